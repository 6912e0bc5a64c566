//! What a client sees of a relay over every version of HTTP, told once: each test runs over HTTP/3, HTTP/2 and HTTP/1.1.

use std::{net::Ipv4Addr, time::Duration};

use bytes::BytesMut;
use hoplite_crypto::ALPN_HTTP1;
use hoplite_http::{HttpVersion, Session, h2, h3};
use hoplite_overlay::{Batch, Error, ErrorKind, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{
    PATIENCE,
    http::{ALL, Client, SPOKEN_BY_CLIENTS, Sent},
    relay::relay,
    soon, targets,
};
use hoplite_wire::{
    ProxyError, RequestHead,
    connect_tcp::{Draft, Reader},
    forwarding::{FORWARDING, Offer, Transform},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::{
    admission::entry,
    support::{dialer, tcp, tcp_by_template, tls_from, udp},
};

async fn connect(relay: &Handle, version: HttpVersion) -> Client {
    match version {
        HttpVersion::H3 => {
            let link = dialer(relay).quic(&Terms::default()).await;
            let link = link.expect("connected");
            let connection = link.connection().clone();
            let session = Session::quic_client(connection, &h3::Config::default());
            Client::new(session, link)
        }
        HttpVersion::H2 => {
            let link = dialer(relay).tls(&Terms::default()).await;
            let stream = link.expect("connected").into_inner();
            let session = Session::tls_client(stream, &h2::Config::default()).await;
            Client::new(session.expect("spoken to"), ())
        }
        HttpVersion::H1 => {
            let stream = tls_from(relay, Ipv4Addr::LOCALHOST, &[ALPN_HTTP1]).await;
            Client::raw(stream.expect("connected"))
        }
    }
}

/// A request that is granted on a connection of its own, and the connection.
async fn open(relay: &Handle, version: HttpVersion, head: &RequestHead) -> (Sent, Client) {
    let client = connect(relay, version).await;
    let mut sent = client.send(head).await;
    let (status, _) = sent.response("proxy-status").await;
    assert!(matches!(status, 200 | 101), "{status} over {version}");
    (sent, client)
}

/// The status and what `Proxy-Status` says.
async fn refusal(
    relay: &Handle,
    version: HttpVersion,
    head: &RequestHead,
) -> (u16, Option<ProxyError>) {
    let client = connect(relay, version).await;
    let (status, field) = client.send(head).await.response("proxy-status").await;
    (status, field.as_deref().and_then(ProxyError::parse))
}

#[tokio::test]
async fn a_tcp_tunnel_carries_bytes_both_ways_and_ends_in_order() {
    let relay = relay(|_| ());
    let echo = targets::tcp_echo().await;
    let data: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    for version in ALL {
        let (sent, _client) = open(&relay, version, &tcp(echo)).await;
        let (mut read, mut write) = tokio::io::split(sent.into_stream());
        let bytes = data.clone();
        let writing = tokio::spawn(async move {
            write.write_all(&bytes).await.expect("open");
            write.shutdown().await.expect("open");
        });
        let mut back = Vec::new();
        soon(read.read_to_end(&mut back)).await.expect("finished");
        writing.await.expect("written");
        assert!(back == data, "the bytes changed over {version}");
    }
}

/// A DATA capsule.
fn data(draft: Draft, payload: &[u8]) -> Vec<u8> {
    let mut capsule = Vec::new();
    draft.write_data_head(&mut capsule, payload.len());
    capsule.extend_from_slice(payload);
    capsule
}

/// An empty FINAL_DATA capsule.
fn end(draft: Draft) -> Vec<u8> {
    let mut capsule = Vec::new();
    draft.write_end(&mut capsule);
    capsule
}

/// The payload of the capsules until FINAL_DATA; `None` where the stream breaks before.
async fn payload(draft: Draft, from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let (mut reader, mut payload) = (Reader::new(draft), Vec::new());
    while !reader.has_ended() {
        let mut bytes = BytesMut::new();
        let read = soon(from.read_buf(&mut bytes)).await;
        read.ok().filter(|read| *read > 0)?;
        let mut bytes = bytes.freeze();
        while let Some(part) = reader.next(&mut bytes).expect("nothing behind the end") {
            payload.extend_from_slice(&part);
        }
    }
    Some(payload)
}

#[tokio::test]
async fn tcp_by_template_is_carried_in_capsules_and_ends_in_order() {
    let relay = relay(|_| ());
    let echo = targets::tcp_echo().await;
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let all = |version| Draft::ALL.map(|draft| (version, draft));
    for (version, draft) in ALL.into_iter().flat_map(all) {
        let (sent, _client) = open(&relay, version, &tcp_by_template(echo, draft)).await;
        let (mut read, mut write) = tokio::io::split(sent.into_stream());
        let capsules: Vec<u8> = bytes
            .chunks(70_001)
            .flat_map(|part| data(draft, part))
            .collect();
        let writing = tokio::spawn(async move {
            write.write_all(&capsules).await.expect("open");
            write.write_all(&end(draft)).await.expect("open");
            write.flush().await.expect("open");
            write
        });
        let back = payload(draft, &mut read).await;
        assert!(back.as_ref() == Some(&bytes), "{draft:?} over {version}");
        let mut write = writing.await.expect("written");
        // The relay ends the stream without waiting for us.
        assert_eq!(soon(read.read(&mut [0])).await.ok(), Some(0), "{version}");
        drop(write.shutdown().await);
    }
}

#[tokio::test]
async fn the_answer_to_tcp_by_template_says_that_capsules_are_spoken_and_a_refusal_asks_at_the_origin()
 {
    let echo = targets::tcp_echo().await;
    let (open, closed) = (
        relay(|_| ()),
        relay(|config| config.auth.token = vec![entry("right")]),
    );
    let head = tcp_by_template(echo, Draft::D12);
    for version in ALL {
        let client = connect(&open, version).await;
        let (status, capsules) = client.send(&head).await.response("capsule-protocol").await;
        assert!(matches!(status, 200 | 101), "{status} over {version}");
        assert_eq!(capsules.as_deref(), Some(&b"?1"[..]), "{version}");
        let client = connect(&closed, version).await;
        let (status, challenge) = client.send(&head).await.response("www-authenticate").await;
        assert_eq!((status, challenge.is_some()), (401, true), "{version}");
    }
}

#[tokio::test]
async fn a_stream_of_capsules_that_ends_without_the_last_one_resets_the_target() {
    let relay = relay(|_| ());
    for version in ALL {
        let (listener, target) = targets::listener().await;
        let (sent, _client) = open(&relay, version, &tcp_by_template(target, Draft::D12)).await;
        let mut stream = sent.into_stream();
        stream
            .write_all(&data(Draft::D12, b"half"))
            .await
            .expect("open");
        stream.flush().await.expect("open");
        let mut far = soon(listener.accept()).await.expect("connected").0;
        let mut half = [0; 4];
        soon(far.read_exact(&mut half)).await.expect("open");
        stream.shutdown().await.expect("open");
        let end = soon(far.read_u8()).await.expect_err("no more");
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "{version}");
    }
}

#[tokio::test]
async fn what_follows_the_last_capsule_of_a_stream_does_not_reach_the_target() {
    let relay = relay(|_| ());
    let echo = targets::tcp_echo().await;
    for version in ALL {
        let (sent, _client) = open(&relay, version, &tcp_by_template(echo, Draft::D08)).await;
        let mut stream = sent.into_stream();
        let behind = [
            data(Draft::D08, b"a"),
            end(Draft::D08),
            data(Draft::D08, b"b"),
        ]
        .concat();
        stream.write_all(&behind).await.expect("open");
        stream.flush().await.expect("open");
        let back = payload(Draft::D08, &mut stream).await;
        assert_eq!(back.as_deref().unwrap_or(b"a"), b"a", "{version}");
    }
}

#[tokio::test]
async fn a_template_for_tcp_of_the_operators_choice_works_beside_the_well_known_one() {
    let template = "https://relay.example/tcp{?target_host,target_port}";
    let relay = relay(|config| config.masque.tcp_template = Some(template.into()));
    let echo = targets::tcp_echo().await;
    let path = format!("/tcp?target_host=127.0.0.1&target_port={}", echo.port());
    for version in ALL {
        let own = RequestHead::connect_tcp("relay", path.clone(), Draft::D12);
        open(&relay, version, &own).await;
        open(&relay, version, &tcp_by_template(echo, Draft::D12)).await;
        let udp = RequestHead::connect_udp("relay", path.clone());
        assert_eq!(refusal(&relay, version, &udp).await.0, 404, "{version}");
    }
}

#[tokio::test]
async fn a_target_by_name_is_looked_up_by_the_relay() {
    let relay = relay(|_| ());
    let port = targets::tcp_echo().await.port();
    for version in ALL {
        open(&relay, version, &tcp(format!("localhost:{port}"))).await;
    }
}

#[tokio::test]
async fn a_refusing_target_is_told_apart_from_a_forbidden_one() {
    let relay = relay(|_| ());
    let (nobody, forbidden) = (tcp(targets::nobody().await), tcp("169.254.169.254:80"));
    for version in ALL {
        let refused = refusal(&relay, version, &nobody).await;
        let why = Some(ProxyError::ConnectionRefused);
        assert_eq!(refused, (502, why), "{version}");
        let refused = refusal(&relay, version, &forbidden).await;
        let why = Some(ProxyError::DestinationIpProhibited);
        assert_eq!(refused, (403, why), "{version}");
    }
}

#[tokio::test]
async fn a_target_that_resets_resets_the_stream() {
    let relay = relay(|_| ());
    let target = targets::tcp_reset().await;
    for version in ALL {
        let (sent, _client) = open(&relay, version, &tcp(target)).await;
        let mut stream = sent.into_stream();
        stream.write_all(b"x").await.expect("open");
        stream.flush().await.expect("open");
        let error = soon(stream.read_u8()).await.expect_err("reset");
        // Over HTTP/1.1 there is one way to break off.
        if version != HttpVersion::H1 {
            let error = Error::from_io(&error).expect("an overlay's error");
            assert_eq!(error.kind(), ErrorKind::TargetFailed, "{version}");
        }
    }
}

#[tokio::test]
async fn a_silent_tunnel_is_closed_after_its_time() {
    let relay = relay(|config| {
        config.limits.idle_stream = Duration::from_millis(5);
        config.limits.idle_datagrams = Duration::from_millis(5);
    });
    let (tcp, udp) = (
        tcp(targets::tcp_echo().await),
        udp(targets::udp_echo().await),
    );
    for (version, head) in ALL.into_iter().flat_map(|v| [(v, &tcp), (v, &udp)]) {
        let (sent, _client) = open(&relay, version, head).await;
        let end = soon(sent.into_stream().read_u8()).await;
        assert!(end.is_err(), "{version}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_one_tunnel_can_use_another() {
    let relay = relay(|_| ());
    let flood = tcp(targets::tcp_flood(64 << 20).await);
    let echo = tcp(targets::tcp_echo().await);
    for version in SPOKEN_BY_CLIENTS {
        let (_unread, client) = open(&relay, version, &flood).await;
        let mut sent = client.send(&echo).await;
        assert_eq!(sent.response("").await.0, 200, "{version}");
        let mut stream = sent.into_stream();
        stream.write_all(b"still here").await.expect("open");
        let mut back = [0; 10];
        soon(stream.read_exact(&mut back)).await.expect("open");
        assert_eq!(&back, b"still here", "{version}");
    }
}

#[tokio::test]
async fn payloads_keep_their_boundaries_both_ways_and_the_answer_says_that_capsules_are_spoken() {
    let relay = relay(|_| ());
    let head = udp(targets::udp_echo().await);
    for version in ALL {
        let client = connect(&relay, version).await;
        let mut sent = client.send(&head).await;
        let (status, capsules) = sent.response("capsule-protocol").await;
        assert!(matches!(status, 200 | 101), "{status} over {version}");
        assert_eq!(capsules.as_deref(), Some(&b"?1"[..]), "{version}");
        let mut flow = sent.into_flow();
        for payload in [&b"one"[..], &[7; 1000], b""] {
            flow.send(Batch::one(payload)).await;
            assert_eq!(flow.receive().await, payload, "{version}");
        }
    }
}

#[tokio::test]
async fn only_over_http_3_is_forwarding_agreed_on() {
    let relay = relay(|config| config.forwarding.identity = true);
    let offer = Offer {
        transforms: vec![Transform::Identity],
        key: None,
    };
    let head = udp(targets::udp_echo().await).with_offer(&offer);
    for version in SPOKEN_BY_CLIENTS {
        let client = connect(&relay, version).await;
        let (status, agreed) = client.send(&head).await.response(FORWARDING).await;
        assert_eq!(status, 200, "{version}");
        assert_eq!(agreed.is_some(), version == HttpVersion::H3, "{version}");
    }
}

#[tokio::test]
async fn a_drain_waits_for_open_tunnels() {
    let echo = targets::tcp_echo().await;
    for version in ALL {
        let relay = relay(|_| ());
        let (sent, client) = open(&relay, version, &tcp(echo)).await;
        let drained = tokio::spawn(relay.drain(PATIENCE));
        let mut stream = sent.into_stream();
        stream.write_all(b"going on").await.expect("open");
        let mut back = [0; 8];
        soon(stream.read_exact(&mut back)).await.expect("open");
        if let Client::Ours { session, .. } = &client {
            soon(async { while session.request(&tcp(echo)).await.is_ok() {} }).await;
        }
        stream.shutdown().await.expect("open");
        let mut rest = Vec::new();
        soon(stream.read_to_end(&mut rest)).await.expect("finished");
        drop((stream, client));
        let drained = drained.await.expect("no panic");
        assert!(drained, "everything ended in order over {version}");
    }
}

#[tokio::test]
async fn requests_that_are_not_for_a_relay_get_small_answers() {
    let relay = relay(|_| ());
    for version in ALL {
        for authority in ["example.com", "example.com:0", "example.com:x"] {
            let (status, _) = refusal(&relay, version, &tcp(authority)).await;
            assert_eq!(status, 400, "{authority} over {version}");
        }
        let elsewhere = RequestHead::connect_udp("relay", "/");
        let (status, _) = refusal(&relay, version, &elsewhere).await;
        assert_eq!(status, 404, "{version}");
    }
    for version in SPOKEN_BY_CLIENTS {
        let mut other = RequestHead::connect_udp("relay", "/");
        other.protocol = Some("websocket".into());
        assert_eq!(refusal(&relay, version, &other).await.0, 501, "{version}");
        let get = RequestHead {
            method: "GET".into(),
            protocol: None,
            scheme: Some("https".into()),
            authority: "relay".into(),
            path: Some("/".into()),
            headers: Vec::new(),
        };
        assert_eq!(refusal(&relay, version, &get).await.0, 405, "{version}");
    }
}
