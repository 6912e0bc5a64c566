//! TCP flows: CONNECT as a byte stream.

use std::{future::poll_fn, task::Poll};

use hoplite_http::h3::{Config, Session};
use hoplite_overlay::{Error, ErrorKind, Stream};
use hoplite_testing::soon;
use hoplite_wire::{RequestHead, ResponseHead, h3::Code};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::pair::{Pair, connect, pair};

#[tokio::test]
async fn informational_responses_come_before_the_final_one() {
    let pair = pair().await;
    let (mut client, mut incoming) = pair.request(&RequestHead::connect("a:1")).await;
    incoming
        .exchange
        .respond(&ResponseHead::new(103))
        .await
        .expect("sent");
    incoming
        .exchange
        .respond(&ResponseHead::new(204))
        .await
        .expect("sent");
    assert_eq!(
        soon(client.response()).await.expect("an answer").status,
        204
    );
}

/// A target may be long in coming. Until then it waits where the client has used up credit for it.
#[tokio::test]
async fn of_what_follows_a_request_no_more_than_a_packet_is_read_before_it_is_asked_for() {
    let pair = pair().await;
    let request = RequestHead::connect("a:1");
    let near = pair.client.request(&request).await.expect("sent");
    let (mut sender, _receiver) = near.split();
    sender.write(vec![7; 10_000].into()).await.expect("open");
    let far = soon(pair.server.accept()).await.expect("arrives").exchange;
    let (_sender, mut receiver) = far.split();
    let unread = receiver.unread();
    assert!(unread <= 2048, "{unread}");
    let mut rest = 10_000;
    while rest > 0 {
        let part = soon(receiver.data()).await.expect("goes on");
        rest -= part.expect("more").len();
    }
}

#[tokio::test]
async fn a_dropped_stream_is_no_complete_one() {
    let pair = pair().await;
    let (client, server) = pair.tunnel().await;
    let (mut client, mut server) = (client.into_stream(), server.into_stream());
    client.write_all(b"half").await.expect("sent");
    let mut half = [0; 4];
    soon(server.read_exact(&mut half)).await.expect("received");
    drop(client);
    let error = soon(server.read(&mut half)).await.expect_err("reset");
    assert_eq!(
        Error::from_io(&error).expect("ours").kind(),
        ErrorKind::PathFailed
    );
    let error = soon(async {
        loop {
            if let Err(error) = server.write_all(&[0; 1000]).await {
                break error;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(
        Error::from_io(&error.await).is_some(),
        "writing fails as well"
    );
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_writer() {
    let pair = pair().await;
    let (client, server) = pair.tunnel().await;
    let mut client = client.into_stream();
    // What QUIC's windows and one write hold at most: the default is 1.25 MB a stream.
    let most = 16 << 20;
    let taken = poll_fn(|cx| {
        let mut taken = 0;
        while taken < most {
            match std::pin::Pin::new(&mut client).poll_write_chunk(cx) {
                Poll::Ready(count) => taken += count,
                Poll::Pending => break,
            }
        }
        Poll::Ready(taken)
    });
    assert!(soon(taken).await < most);
    drop(server);
}

trait PollWriteChunk {
    fn poll_write_chunk(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<usize>;
}

impl<T: tokio::io::AsyncWrite> PollWriteChunk for T {
    fn poll_write_chunk(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<usize> {
        self.poll_write(cx, &[7; 20_000])
            .map(|count| count.expect("open"))
    }
}

#[tokio::test]
async fn a_thousand_streams_share_a_connection() {
    let mut transport = hoplite_quic::TransportConfig::default();
    transport.max_concurrent_bidi_streams(1000_u32.into());
    let pair = crate::pair::pair_with(transport).await;
    let server = pair.server.clone();
    let serve = async move {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let mut incoming = server.accept().await.expect("arrived");
            incoming
                .exchange
                .respond(&ResponseHead::new(200))
                .await
                .expect("answered");
            all.push(incoming.exchange.into_stream());
        }
        for (index, stream) in all.iter_mut().enumerate() {
            stream.write_all(&index.to_be_bytes()).await.expect("sent");
            stream.shutdown().await.expect("ended");
        }
        all
    };
    let ask = async {
        let mut all = Vec::new();
        for _ in 0..1000 {
            all.push(
                pair.client
                    .request(&RequestHead::connect("a:1"))
                    .await
                    .expect("sent"),
            );
        }
        let mut sum = 0;
        for mut exchange in all {
            exchange.response().await.expect("an answer");
            sum += exchange.into_stream().read_u64().await.expect("received");
        }
        sum
    };
    let (_streams, sum) = soon(async { tokio::join!(serve, ask) }).await;
    assert_eq!(sum, 499_500);
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_connection() {
    let quic = connect(hoplite_quic::TransportConfig::default()).await;
    let client = Session::client(quic.client.clone(), &Config::default());
    let server = Session::server(quic.server.clone(), &Config::default());
    let exchange = client
        .request(&RequestHead::connect("a:1"))
        .await
        .expect("sent");
    let incoming = soon(server.accept()).await.expect("arrived");
    drop(client);
    assert!(
        server.connection().close_reason().is_none(),
        "an exchange keeps it"
    );
    drop(exchange);
    soon(server.closed()).await;
    drop(incoming);
    assert!(soon(server.accept()).await.is_none());
}

/// The client's end of a request that nobody has answered.
async fn early(pair: &Pair) -> Stream {
    let head = RequestHead::connect("a:1");
    let exchange = soon(pair.client.request(&head)).await.expect("sent");
    Stream::early(exchange.into_stream(), None)
}

#[tokio::test]
async fn an_early_stream_that_is_dropped_is_no_complete_one() {
    let pair = pair().await;
    let mut client = early(&pair).await;
    client.write_all(b"half").await.expect("taken");
    let mut incoming = soon(pair.server.accept()).await.expect("arrived");
    drop(client);
    drop(incoming.exchange.respond(&ResponseHead::new(200)).await);
    let (_sender, mut receiver) = incoming.exchange.split();
    let end = soon(async {
        loop {
            match receiver.data().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        }
    });
    assert!(end.await.is_err(), "a dropped stream looked finished");
}

#[tokio::test]
async fn an_early_stream_whose_connection_is_lost_says_that_the_path_failed() {
    let pair = pair().await;
    let mut client = early(&pair).await;
    client.write_all(b"question").await.expect("taken");
    pair.server.close(Code::NO_ERROR);
    let error = soon(client.read_u8()).await.expect_err("lost");
    let error = Error::from_io(&error).expect("ours");
    assert_eq!(error.kind(), ErrorKind::PathFailed);
}
