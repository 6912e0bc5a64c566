//! What holds over every version of HTTP, told once: each test runs over HTTP/3, HTTP/2 and HTTP/1.1.

use std::{future::poll_fn, net::Ipv4Addr, sync::Arc, time::Duration};

use hoplite_crypto::{ALPN_HTTP1, Certificates, Trust, client_tls, server_tls};
use hoplite_http::{Exchange, HttpVersion, Incoming, Session, h1, h2, h3};
use hoplite_overlay::{Batch, Error, ErrorKind, Stream};
use hoplite_quic::TransportConfig;
use hoplite_testing::{
    http::{ALL, Client, SPOKEN_BY_CLIENTS, Sent, flow},
    identity, soon,
};
use hoplite_wire::{RequestHead, ResponseHead};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls::pki_types::ServerName};

use crate::pair::{connect, udp_head};

/// Both ends of a connection.
async fn ends(version: HttpVersion) -> (Client, Session) {
    match version {
        HttpVersion::H3 => {
            let quic = connect(TransportConfig::default()).await;
            let config = h3::Config::default();
            let client = Session::quic_client(quic.client.clone(), &config);
            let server = Session::quic_server(quic.server.clone(), &config);
            (Client::new(client, quic), server)
        }
        HttpVersion::H2 => {
            let config = h2::Config::default();
            let (near, far) = duplex(64 * 1024);
            let (client, server) = tokio::join!(
                Session::tls_client(near, &config),
                Session::h2_server(far, &config)
            );
            let client = client.expect("a client");
            (Client::new(client, ()), server.expect("a server"))
        }
        HttpVersion::H1 => h1_ends().await,
    }
}

async fn h1_ends() -> (Client, Session) {
    let identity = identity("relay.test");
    let certificates = Certificates::new(&identity).expect("certificates");
    let tls = server_tls(certificates, &[ALPN_HTTP1]).expect("a server's TLS");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let tls = client_tls(&Trust::Pins(vec![identity.pin()]), &[ALPN_HTTP1]);
    let connector = TlsConnector::from(Arc::new(tls.expect("a client's TLS")));
    let (near, far) = loopback().await;
    let name = ServerName::try_from("relay.test").expect("a name");
    let (near, far) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
    let config = h1::Config {
        head_timeout: Duration::from_secs(20),
        max_head: 16 << 10,
        tunnel_timeout: Duration::from_secs(20),
        datagram_buffer: 1 << 20,
    };
    let server = Session::h1_server(far.expect("a server"), &config);
    (Client::raw(near.expect("a client")), server)
}

#[expect(clippy::disallowed_methods, reason = "both ends are this test's")]
async fn loopback() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bound");
    let address = listener.local_addr().expect("bound");
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.expect("connected"), far.expect("accepted").0)
}

/// A request that has arrived.
async fn ask(client: &Client, server: &Session, head: &RequestHead) -> (Sent, Incoming) {
    let sent = client.send(head).await;
    (sent, soon(server.accept()).await.expect("arrives"))
}

/// An answered request; the client's end comes first.
async fn open(client: &Client, server: &Session, head: &RequestHead) -> (Sent, Exchange) {
    let (mut sent, mut incoming) = ask(client, server, head).await;
    let answer = ResponseHead::new(200);
    let answering = async { incoming.exchange.respond(&answer).await.expect("answered") };
    let ((), (status, _)) =
        soon(async { tokio::join!(answering, sent.response("proxy-status")) }).await;
    assert!(matches!(status, 200 | 101), "{status}");
    (sent, incoming.exchange)
}

fn tcp_head() -> RequestHead {
    RequestHead::connect("example.com:443")
}

/// Reads a tunnel at the server's end to its end.
async fn read_to_end(receiver: &mut hoplite_http::DataReceiver) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = poll_fn(|cx| receiver.poll_data(cx))
        .await
        .expect("in order")
    {
        all.extend_from_slice(&bytes);
    }
    all
}

#[tokio::test]
async fn bytes_go_both_ways_and_each_side_ends_alone() {
    let data: Vec<u8> = (0..3_000_000_u32)
        .map(|i| (i / 7).to_le_bytes()[0])
        .collect();
    for version in ALL {
        let (client, server) = ends(version).await;
        let (near, far) = open(&client, &server, &tcp_head()).await;
        let (mut sender, mut receiver) = far.split();
        let echo = async {
            let all = read_to_end(&mut receiver).await;
            sender.write(all.into()).await.expect("sent back");
            sender.finish().await.expect("ended");
        };
        let (mut near, mut back) = (near.into_stream(), Vec::new());
        let ask = async {
            near.write_all(&data).await.expect("sent");
            near.shutdown().await.expect("ended");
            near.read_to_end(&mut back).await.expect("received");
        };
        soon(async { tokio::join!(echo, ask) }).await;
        assert!(back == data, "the bytes changed over {version}");
    }
}

#[tokio::test]
async fn a_refusal_carries_its_status_and_fields() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let head = RequestHead::connect("[2001:db8::1]:25");
        let (mut sent, incoming) = ask(&client, &server, &head).await;
        assert_eq!(incoming.head.authority, "[2001:db8::1]:25", "{version}");
        let status = "hoplite; error=http_request_denied";
        let refusal = ResponseHead::new(403).with("proxy-status", status);
        let refusing = async { incoming.exchange.refuse(&refusal).await.expect("answered") };
        let ((), answer) =
            soon(async { tokio::join!(refusing, sent.response("proxy-status")) }).await;
        assert_eq!(answer, (403, Some(status.into())), "{version}");
        if let Sent::Ours(mut exchange) = sent {
            let content = soon(exchange.content(1)).await.expect("a clean end");
            assert_eq!(content.as_deref(), Some(&b""[..]), "{version}");
        }
    }
}

#[tokio::test]
async fn a_reset_tells_a_failed_target_from_a_failed_path() {
    for version in ALL {
        for kind in [ErrorKind::TargetFailed, ErrorKind::PathFailed] {
            let (client, server) = ends(version).await;
            let (near, far) = open(&client, &server, &tcp_head()).await;
            let (mut sender, receiver) = far.split();
            if kind == ErrorKind::TargetFailed {
                sender.reset();
            }
            drop((sender, receiver));
            let read = soon(near.into_stream().read_u8()).await;
            let error = read.expect_err("no end in order");
            // Over HTTP/1.1 there is one way to break off.
            if version != HttpVersion::H1 {
                let error = Error::from_io(&error).expect("an overlay's error");
                assert_eq!(error.kind(), kind, "{version}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_is_no_end_in_order() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let (near, far) = open(&client, &server, &tcp_head()).await;
        let mut near = near.into_stream();
        let (_sender, mut receiver) = far.split();
        near.write_all(b"half").await.expect("sent");
        near.flush().await.expect("sent");
        let half = soon(poll_fn(|cx| receiver.poll_data(cx))).await;
        assert_eq!(half.expect("arrives").as_deref(), Some(&b"half"[..]));
        drop(near);
        let end = soon(poll_fn(|cx| receiver.poll_data(cx))).await;
        assert!(end.is_err(), "{end:?} over {version}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_is_noticed() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let (sent, mut incoming) = ask(&client, &server, &tcp_head()).await;
        drop(sent);
        soon(incoming.exchange.gone()).await;
    }
}

#[tokio::test]
async fn bytes_and_the_end_travel_behind_the_request_and_before_the_answer() {
    for (version, status) in SPOKEN_BY_CLIENTS
        .into_iter()
        .flat_map(|version| [(version, 200), (version, 403)])
    {
        let (client, server) = ends(version).await;
        let near = client.send(&tcp_head()).await;
        let mut near = Stream::early(near.into_byte_stream(), None);
        near.write_all(b"question").await.expect("taken");
        near.shutdown().await.expect("finished");
        let mut far = soon(server.accept()).await.expect("arrives").exchange;
        let content = soon(far.content(100)).await.expect("whole");
        assert_eq!(content.as_deref(), Some(&b"question"[..]), "{version}");
        assert!(!near.is_answered());
        let answer = ResponseHead::new(status);
        let answering = async {
            if answer.is_success() {
                far.respond(&answer).await.expect("answered");
                let (mut sender, _receiver) = far.split();
                sender.write(b"answer"[..].into()).await.expect("open");
                sender.finish().await.expect("open");
            } else {
                far.refuse(&answer).await.expect("answered");
            }
        };
        let mut got = String::new();
        let reading = near.read_to_string(&mut got);
        let ((), read) = soon(async { tokio::join!(answering, reading) }).await;
        assert_eq!(near.is_answered(), answer.is_success(), "{version}");
        match read {
            Ok(_) => assert_eq!(got, "answer", "{version}"),
            Err(error) => {
                assert_eq!(status, 403, "{version}");
                let error = Error::from_io(&error).expect("an overlay's error");
                assert_eq!(error.kind(), ErrorKind::Forbidden, "{version}");
            }
        }
    }
}

#[tokio::test]
async fn a_draining_server_lets_flows_end_and_takes_no_more() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let (near, far) = open(&client, &server, &tcp_head()).await;
        let (mut near, (mut sender, mut receiver)) = (near.into_stream(), far.split());
        server.drain();
        if let Client::Ours { session, .. } = &client {
            soon(async {
                while session.request(&tcp_head()).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            assert!(!session.takes_requests(), "{version}");
        }
        near.write_all(b"on").await.expect("the tunnel goes on");
        near.shutdown().await.expect("the tunnel goes on");
        assert_eq!(soon(read_to_end(&mut receiver)).await, b"on", "{version}");
        let finishing = async { sender.finish().await.expect("ended") };
        let mut rest = Vec::new();
        let reading = async { near.read_to_end(&mut rest).await.expect("ended") };
        soon(async { tokio::join!(finishing, reading) }).await;
        drop((near, sender, receiver));
        let more = async { while server.accept().await.is_some() {} };
        soon(more).await;
    }
}

#[tokio::test]
async fn payloads_keep_their_boundaries_both_ways() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let (near, far) = open(&client, &server, &udp_head()).await;
        let mut near = near.into_flow();
        let (far, mut to_far) = flow(far);
        assert_eq!(far.version(), version);
        let batch = Batch {
            contents: &[5; 2500],
            segment: 1000,
        };
        near.send(batch).await;
        near.send(Batch::one(b"")).await;
        for len in [1000, 1000, 500, 0] {
            let payload = soon(to_far.recv()).await.expect("arrives");
            assert_eq!(payload.len(), len, "{version}");
        }
        let sent = far.send(batch);
        assert_eq!((sent.accepted, sent.full, sent.too_large), (3, 0, 0));
        for len in [1000, 1000, 500] {
            assert_eq!(near.receive().await.len(), len, "{version}");
        }
    }
}

#[tokio::test]
async fn the_end_of_a_flow_is_seen_at_the_other_end() {
    for version in ALL {
        let (client, server) = ends(version).await;
        let (near, far) = open(&client, &server, &udp_head()).await;
        let near = near.into_flow();
        let (far, _payloads) = flow(far);
        drop(near);
        let closed = soon(far.closed()).await;
        // Over HTTP/2 whoever drops a flow also resets what it does not read any more.
        if version == HttpVersion::H3 {
            closed.expect("ended in order");
        }
    }
}
