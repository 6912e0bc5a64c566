//! UDP that is blocked, and comes back, and is blocked in the middle of a transfer.

use std::{sync::Arc, time::Duration};

use hoplite_masque::{Config, Path};
use hoplite_overlay::{
    Error, ErrorKind, Overlay, Terms,
    conformance::{self, Subject},
};
use hoplite_testing::{
    path::{Switch, build},
    soon, targets, until,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Everything noticed ten times sooner than by default, so that the tests end soon.
fn hasty() -> Config {
    let mut config = Config::default();
    config.link.suspect_after = Duration::from_millis(300);
    config.link.broken_after = Duration::from_millis(1500);
    config.link.lossy_after = Duration::from_millis(500);
    config.quic_retry = Duration::from_millis(200);
    config.redial_pause = Duration::from_millis(100);
    config
}

fn http_version(path: &Path) -> Option<&'static str> {
    path.hops()[0].http_version()
}

#[tokio::test]
async fn without_udp_the_first_hop_is_http2_and_with_it_http3_again() {
    let below = Switch::new();
    below.block(true);
    let (path, _relays) = build(1, &below.overlay, hasty());
    path.connect().await.expect("connects over TCP");
    assert_eq!(http_version(&path), Some("h2"));
    below.block(false);
    until(|| http_version(&path) == Some("h3")).await;
}

#[tokio::test]
async fn a_second_hop_follows_the_first_one_back_to_quic() {
    let below = Switch::new();
    below.block(true);
    let (path, _relays) = build(2, &below.overlay, hasty());
    path.connect().await.expect("connects over TCP");
    assert_eq!(http_version(&path), Some("h2"));
    let second = &path.hops()[1];
    until(|| second.http_version() == Some("h3")).await;
    below.block(false);
    let first = &path.hops()[0];
    until(|| first.http_version() == Some("h3") && first.flows() == 1).await;
}

#[tokio::test]
async fn a_path_that_loses_udp_carries_new_flows_over_tcp() {
    let below = Switch::new();
    let (path, _relays) = build(1, &below.overlay, hasty());
    path.connect().await.expect("connects");
    assert_eq!(http_version(&path), Some("h3"));
    below.block(true);
    conformance::the_opener_may_finish_first(&Subject::on_loopback(Arc::new(path.clone()))).await;
    assert_eq!(http_version(&path), Some("h2"));
}

/// What was given away may have arrived: a second attempt could do twice what a program wanted once.
#[tokio::test]
async fn an_early_stream_on_a_connection_that_dies_is_not_tried_again_on_another() {
    let below = Switch::new();
    let (path, _relays) = build(1, &below.overlay, hasty());
    path.connect().await.expect("connects");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bound");
    let target = listener.local_addr().expect("bound").into();
    below.block(true);
    let terms = Terms::default().early(true);
    let opened = path.open_stream(&target, &terms).await;
    let mut stream = opened.expect("handed out at once");
    stream.write_all(b"once").await.expect("taken");
    let error = soon(stream.read_u8()).await.expect_err("lost");
    let error = Error::from_io(&error).expect("an overlay's error");
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error:?}");
    let accepted = futures_util::FutureExt::now_or_never(listener.accept());
    assert!(accepted.is_none(), "it was asked for again");
    conformance::an_early_stream_takes_bytes_at_once(&Subject::on_loopback(Arc::new(path.clone())))
        .await;
    assert_eq!(http_version(&path), Some("h2"));
}

#[tokio::test]
async fn a_transfer_through_two_relays_survives_the_loss_of_udp() {
    let below = Switch::new();
    let (path, _relays) = build(2, &below.overlay, hasty());
    let target = targets::tcp_echo().await.into();
    let client = async {
        let mut stream = path
            .open_stream(&target, &Terms::default())
            .await
            .expect("opened");
        let mut answer = [0; 6];
        for round in 0..3 {
            below.block(round == 1);
            stream.write_all(b"answer").await.expect("written");
            stream.flush().await.expect("flushed");
            stream.read_exact(&mut answer).await.expect("echoed");
            assert_eq!(&answer, b"answer");
        }
    };
    soon(client).await;
}

#[tokio::test]
async fn a_download_that_stands_still_ends_with_an_error_and_does_not_hang() {
    let below = Switch::new();
    // Neither may end it: what is tested is that somebody asks.
    let mut config = hasty();
    (config.link.keep_alive, config.link.idle) =
        (Duration::from_secs(300), Duration::from_secs(600));
    let (path, _relays) = build(1, &below.overlay, config);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bound");
    let target = listener.local_addr().expect("bound").into();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accepted");
        while socket.write_all(&[7; 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut stream = path
        .open_stream(&target, &Terms::default())
        .await
        .expect("opened");
    let mut buf = [0; 4096];
    for _ in 0..20 {
        stream.read_exact(&mut buf).await.expect("still open");
    }
    below.block(true);
    let end = async { while stream.read(&mut buf).await.is_ok_and(|bytes| bytes > 0) {} };
    soon(end).await;
    server.abort();
}

/// Reads what never ends, until `is_so`.
async fn downloads_until(path: &Path, mut is_so: impl FnMut() -> bool) {
    let target = targets::tcp_flood(1 << 30).await.into();
    let opened = path.open_stream(&target, &Terms::default()).await;
    let mut stream = opened.expect("opened");
    let mut piece = vec![0; 1 << 16];
    let read = async {
        while !is_so() {
            stream.read_exact(&mut piece).await.expect("goes on");
        }
    };
    soon(read).await;
}

/// As where a network lets UDP pass at a small rate. Only the relay is told by QUIC what is lost of what it sends.
#[tokio::test]
async fn a_path_that_loses_much_of_what_comes_carries_new_flows_over_tcp_for_a_while() {
    for hops in [1, 2] {
        let below = Switch::new();
        let (path, _relays) = build(hops, &below.overlay, hasty());
        path.connect().await.expect("connects");
        assert_eq!(http_version(&path), Some("h3"));
        below.thin(true);
        downloads_until(&path, || http_version(&path) == Some("h2")).await;
        below.thin(false);
        until(|| http_version(&path) == Some("h3")).await;
    }
}
