//! Clients that cost a relay work and give it none, over HTTP/2 and HTTP/3, frame by frame: it closes their connection with the code for it, or reads no
//! more, and serves others beside them. RFC 9113 §10.5, RFC 9114 §10.5; CVE-2023-44487 (rapid reset), CVE-2024-27316 (CONTINUATION),
//! CVE-2019-9512 and -9515 (PING, SETTINGS).

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use hoplite_crypto::{ALPN_H2, ALPN_HTTP1};
use hoplite_quic::{self as quic, VarInt};
use hoplite_relay::{Handle, config::ResolverChoice};
use hoplite_testing::{
    PATIENCE,
    relay::{metric, relay, until_metric},
    soon, targets,
};
use hoplite_wire::{RequestHead, h3};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use crate::support::{connect, quic_from, tcp, tls_from};

const MALLORY: Ipv4Addr = Ipv4Addr::new(127, 8, 8, 8);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// A target whose name is never resolved: requests for it wait.
const NOWHERE: &str = "nowhere.test:80";

/// A relay whose resolver hears, and never answers.
async fn waiting_relay(abandoned: u32) -> (Handle, UdpSocket) {
    let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let resolver = resolver.expect("a socket");
    let at = resolver.local_addr().expect("bound");
    let relay = relay(|config| {
        config.egress.resolver = ResolverChoice::Servers(vec![at]);
        config.limits.abandoned = abandoned;
    });
    (relay, resolver)
}

/// An honest client is served, from its handshake to an answer of its target.
async fn others_are_served(relay: &Handle) {
    let client = connect(relay).await;
    let mut tunnel = client.udp(targets::udp_echo().await).await;
    assert_eq!(tunnel.echo(b"served").await, &b"served"[..]);
    assert_eq!(client.status(tcp(targets::tcp_echo().await)).await, 200);
}

// HTTP/2, RFC 9113

struct H2(TlsStream<TcpStream>);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// CONNECT in HPACK: literals without indexing, by the names of the static table (RFC 7541 §6.2.2, Appendix A).
fn connect_block(authority: &str) -> Vec<u8> {
    let length = u8::try_from(authority.len()).expect("short");
    [b"\x02\x07CONNECT\x01", &[length][..], authority.as_bytes()].concat()
}

impl H2 {
    async fn dial(relay: &Handle) -> Self {
        let mut stream = tls_from(relay, MALLORY, &[ALPN_H2]).await.expect("TLS");
        let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        stream.write_all(&hello).await.expect("sent");
        Self(stream)
    }

    async fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok()
    }

    /// The next frame: its type, flags and payload.
    async fn next(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length.try_into().expect("small")];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((head[3], head[4], payload))
    }

    /// Waits until all that was sent has been looked at.
    async fn synced(&mut self) -> bool {
        self.send(&frame(PING, 0, 0, &[1; 8])).await;
        loop {
            match self.next().await {
                Some((PING, ACK, _)) => return true,
                Some((GOAWAY, ..)) | None => return false,
                Some(_) => {}
            }
        }
    }

    /// The code of the GOAWAY that ends the connection, unless it ends without one.
    async fn goaway(&mut self) -> Option<u32> {
        let told = async {
            loop {
                let (kind, _, payload) = self.next().await?;
                if kind == GOAWAY {
                    let code = payload.get(4..8)?.try_into().ok()?;
                    return Some(u32::from_be_bytes(code));
                }
            }
        };
        soon(told).await
    }
}

#[tokio::test]
async fn a_burst_of_requests_that_are_reset_at_once_ends_the_http_2_connection() {
    let (relay, _resolver) = waiting_relay(10_000).await;
    let mut mallory = H2::dial(&relay).await;
    let block = connect_block(NOWHERE);
    let burst: Vec<u8> = (0..1000)
        .flat_map(|number| {
            let stream = 2 * number + 1;
            let begun = frame(HEADERS, END_HEADERS, stream, &block);
            [begun, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        })
        .collect();
    mallory.send(&burst).await;
    assert_eq!(mallory.goaway().await, Some(ENHANCE_YOUR_CALM));
    others_are_served(&relay).await;
}

#[tokio::test]
async fn requests_that_are_reset_once_they_are_being_served_end_the_http_2_connection() {
    let (relay, _resolver) = waiting_relay(1).await;
    let mut mallory = H2::dial(&relay).await;
    let block = connect_block(NOWHERE);
    let mut stream = 1;
    let mut lives = true;
    while lives {
        mallory
            .send(&frame(HEADERS, END_HEADERS, stream, &block))
            .await;
        lives = mallory.synced().await;
        mallory
            .send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]))
            .await;
        stream += 2;
        assert!(stream < 20_000, "nobody stops it");
    }
    until_metric(&relay, EXCESSIVE, |count| count == 1.0).await;
    others_are_served(&relay).await;
}

const EXCESSIVE: &str = "connections_ended_total{cause=\"excessive\"}";

#[tokio::test]
async fn malformed_requests_without_end_end_the_http_2_connection() {
    let (relay, _resolver) = waiting_relay(1).await;
    let mut mallory = H2::dial(&relay).await;
    // An authority alone: no method.
    let block = b"\x01\x03a:1\x02\x01x";
    for number in 0..2000 {
        if !mallory
            .send(&frame(HEADERS, END_HEADERS, 2 * number + 1, block))
            .await
        {
            break;
        }
    }
    assert_eq!(mallory.goaway().await, Some(ENHANCE_YOUR_CALM));
    others_are_served(&relay).await;
}

#[tokio::test]
async fn a_head_that_goes_on_for_ever_ends_the_http_2_connection() {
    let relay = relay(|_| ());
    let mut mallory = H2::dial(&relay).await;
    let mut sent = frame(HEADERS, 0, 1, &connect_block(NOWHERE));
    sent.extend((0..1000).flat_map(|_| frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y")));
    mallory.send(&sent).await;
    assert_eq!(mallory.goaway().await, Some(ENHANCE_YOUR_CALM));
    others_are_served(&relay).await;
}

#[tokio::test]
async fn who_floods_with_settings_or_pings_and_reads_nothing_is_not_read_any_more() {
    let relay = relay(|config| config.limits.first_request = Duration::from_secs(5));
    for flood in [frame(SETTINGS, 0, 0, &[]), frame(PING, 0, 0, &[7; 8])] {
        let mut mallory = H2::dial(&relay).await;
        let batch = flood.repeat(1000);
        let stalled = async {
            let mut bytes = 0;
            while mallory.send(&batch).await {
                bytes += batch.len();
                assert!(bytes < 256 << 20, "all of it is read");
            }
        };
        // It stands still until its place is taken away for want of a request.
        soon(stalled).await;
        others_are_served(&relay).await;
    }
}

// HTTP/3, RFC 9114

async fn h3_client(relay: &Handle) -> (quic::Endpoint, quic::Connection) {
    let (endpoint, connection) = quic_from(relay, MALLORY).await.expect("connected");
    let mut control = connection.open_uni().await.expect("a stream");
    control.write_all(&[0, 4, 0]).await.expect("sent");
    // Kept open: the end of a control stream would be another breach.
    std::mem::forget(control);
    (endpoint, connection)
}

fn headers(target: &str) -> Vec<u8> {
    let mut frame = bytes::BytesMut::new();
    h3::write_headers(
        &mut frame,
        &RequestHead::connect(target.to_owned()).encode(),
    );
    frame.to_vec()
}

/// The code with which the relay has closed the connection.
async fn closed(connection: &quic::Connection) -> h3::Code {
    let closed = soon(connection.closed()).await;
    match closed {
        quic::ConnectionError::ApplicationClosed(close) => h3::Code(close.error_code.into_inner()),
        other => unreachable!("{other}"),
    }
}

/// The relay has closed the connection because it costs too much. A client that goes on sending may hear of that only that the relay has
/// forgotten it (a stateless reset).
async fn closed_as_excessive(relay: &Handle, connection: &quic::Connection) {
    let closed = soon(connection.closed()).await;
    match closed {
        quic::ConnectionError::ApplicationClosed(close) => {
            assert_eq!(
                h3::Code(close.error_code.into_inner()),
                h3::Code::EXCESSIVE_LOAD
            );
        }
        quic::ConnectionError::Reset => {}
        other => unreachable!("{other}"),
    }
    assert_eq!(metric(relay, EXCESSIVE), 1.0);
}

const CANCELLED: VarInt = VarInt::from_u32(0x10c);

#[tokio::test]
async fn requests_that_are_reset_at_once_end_the_http_3_connection() {
    let (relay, _resolver) = waiting_relay(1).await;
    let (_endpoint, mallory) = h3_client(&relay).await;
    let head = headers(NOWHERE);
    for _ in 0..2000 {
        let Ok((mut send, mut recv)) = mallory.open_bi().await else {
            break;
        };
        drop(send.write_all(&head).await);
        drop(send.reset(CANCELLED));
        drop(recv.stop(CANCELLED));
    }
    closed_as_excessive(&relay, &mallory).await;
    others_are_served(&relay).await;
}

#[tokio::test]
async fn requests_that_are_stopped_while_they_are_served_end_the_http_3_connection() {
    let (relay, _resolver) = waiting_relay(1).await;
    let (_endpoint, mallory) = h3_client(&relay).await;
    let head = headers(NOWHERE);
    let mut held = Vec::new();
    while let Ok((mut send, mut recv)) = mallory.open_bi().await {
        drop(send.write_all(&head).await);
        until_metric(&relay, "connections_open{transport=\"quic\"}", |open| {
            open < 2.0
        })
        .await;
        drop(recv.stop(CANCELLED));
        held.push(send);
        assert!(held.len() < 20_000, "nobody stops it");
    }
    closed_as_excessive(&relay, &mallory).await;
    others_are_served(&relay).await;
}

#[tokio::test]
async fn streams_that_are_never_a_request_end_the_http_3_connection() {
    for bytes in [&[][..], &[1, 0xff], &[0x21, 0x3f]] {
        let (relay, _resolver) = waiting_relay(1).await;
        let (_endpoint, mallory) = h3_client(&relay).await;
        for _ in 0..2000 {
            let Ok((mut send, _recv)) = mallory.open_bi().await else {
                break;
            };
            drop(send.write_all(bytes).await);
            drop(send.reset(CANCELLED));
        }
        closed_as_excessive(&relay, &mallory).await;
        others_are_served(&relay).await;
    }
}

#[tokio::test]
async fn unidirectional_streams_without_a_use_end_the_http_3_connection() {
    let (relay, _resolver) = waiting_relay(1).await;
    let (_endpoint, mallory) = h3_client(&relay).await;
    for _ in 0..2000 {
        let Ok(mut stream) = mallory.open_uni().await else {
            break;
        };
        // A reserved type (RFC 9114 §6.2.3): anybody may send some.
        drop(stream.write_all(&[0x21]).await);
        drop(stream.finish());
    }
    closed_as_excessive(&relay, &mallory).await;
    others_are_served(&relay).await;
}

#[tokio::test]
async fn settings_again_and_insertions_into_the_table_end_the_http_3_connection_at_once() {
    let relay = relay(|_| ());
    let cases: [(&[u8], h3::Code); 2] = [
        (&[0, 4, 0, 4, 0], h3::Code::FRAME_UNEXPECTED),
        (&[2, 0xc0, 1, b'x'], h3::Code::QPACK_ENCODER_STREAM_ERROR),
    ];
    for (bytes, code) in cases {
        let (_endpoint, mallory) = quic_from(&relay, MALLORY).await.expect("connected");
        let mut stream = mallory.open_uni().await.expect("a stream");
        stream.write_all(bytes).await.expect("sent");
        assert_eq!(closed(&mallory).await, code);
    }
    others_are_served(&relay).await;
}

#[tokio::test]
async fn a_client_that_opens_all_streams_and_sends_no_head_gets_no_more_of_them() {
    // So long that no head is given up while the test lasts.
    let relay = relay(|config| config.limits.handshake = 10 * PATIENCE);
    let (_endpoint, mallory) = h3_client(&relay).await;
    let mut held = Vec::new();
    // Slow heads: type and length of a HEADERS frame, and nothing of it. Room grows with requests that are served, and here is none.
    for _ in 0..104 {
        let (mut send, recv) = mallory.open_bi().await.expect("a stream");
        send.write_all(&[1, 0x20]).await.expect("sent");
        held.push((send, recv));
    }
    others_are_served(&relay).await;
    let more = timeout(Duration::from_millis(300), mallory.open_bi()).await;
    assert!(more.is_err(), "more streams than at first");
}

#[tokio::test]
async fn what_a_client_has_broken_off_holds_no_place_while_its_name_is_resolved() {
    let (relay, _resolver) = relay_whose_names_take_long().await;
    let client = connect(&relay).await;
    let echo = targets::tcp_echo().await;
    for _ in 0..3 {
        let held = client.session.request(&tcp(NOWHERE)).await.expect("sent");
        while client.status(tcp(echo)).await != 429 {}
        drop(held);
        let free = async { while client.status(tcp(echo)).await != 200 {} };
        soon(free).await;
    }
    let mut h1 = tls_from(&relay, MALLORY, &[ALPN_HTTP1]).await.expect("TLS");
    let request = format!("CONNECT {NOWHERE} HTTP/1.1\r\nHost: {NOWHERE}\r\n\r\n");
    h1.write_all(request.as_bytes()).await.expect("sent");
    until_metric(&relay, "connections_open{transport=\"tls\"}", |open| {
        open == 1.0
    })
    .await;
    drop(h1);
    until_metric(&relay, "connections_open{transport=\"tls\"}", |open| {
        open == 0.0
    })
    .await;
}

/// One request of a client at a time, and that waits for longer than a test.
async fn relay_whose_names_take_long() -> (Handle, UdpSocket) {
    let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let resolver = resolver.expect("a socket");
    let at = resolver.local_addr().expect("bound");
    let relay = relay(|config| {
        config.egress.resolver = ResolverChoice::Servers(vec![at]);
        config.limits.requests_per_client = 1;
        config.limits.resolve = 10 * PATIENCE;
    });
    (relay, resolver)
}

/// Whoever abandons a few requests, as browsers do, and has others answered, is nobody's enemy.
#[tokio::test]
async fn a_client_that_breaks_off_some_requests_is_served_on() {
    let (relay, _resolver) = waiting_relay(50).await;
    let client = connect(&relay).await;
    let echo: SocketAddr = targets::tcp_echo().await;
    for _ in 0..40 {
        drop(client.session.request(&tcp(NOWHERE)).await.expect("sent"));
        assert_eq!(client.status(tcp(echo)).await, 200);
    }
    assert_eq!(metric(&relay, EXCESSIVE), 0.0);
}
