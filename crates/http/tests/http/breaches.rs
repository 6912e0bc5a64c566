//! Peers that break the rules, through raw QUIC streams: each breach has its code, and harms nobody else.

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::{Config, H3Error, Session};
use hoplite_quic::{self as quic};
use hoplite_testing::soon;
use hoplite_wire::{
    RequestHead,
    h3::{self, Code, Settings},
    varint,
};

use crate::pair::{Quic, connect, udp_head};

const CONTROL: u8 = 0x00;
const SETTINGS: &[u8] = &[0x04, 0x00];

async fn quic() -> Quic {
    connect(quic::TransportConfig::default()).await
}

async fn uni(conn: &quic::Connection, bytes: &[u8]) -> quic::SendStream {
    let mut stream = conn.open_uni().await.expect("a stream");
    stream.write_all(bytes).await.expect("sent");
    stream
}

async fn request(conn: &quic::Connection, bytes: &[u8]) -> (quic::SendStream, quic::RecvStream) {
    let (mut send, recv) = conn.open_bi().await.expect("a stream");
    send.write_all(bytes).await.expect("sent");
    (send, recv)
}

/// The code with which the other end closed the connection.
async fn closed(conn: &quic::Connection) -> Code {
    match soon(conn.closed()).await {
        quic::ConnectionError::ApplicationClosed(close) => Code(close.error_code.into_inner()),
        other => unreachable!("{other}"),
    }
}

fn control(bytes: &[u8]) -> Vec<u8> {
    [&[CONTROL], SETTINGS, bytes].concat()
}

type Breach = (&'static str, Vec<Vec<u8>>, Code);

/// What is wrong, one unidirectional stream each, and the code for it.
fn unidirectional() -> [Breach; 14] {
    [
        (
            "two control streams",
            vec![control(&[]), control(&[])],
            Code::STREAM_CREATION_ERROR,
        ),
        (
            "two encoder streams",
            vec![vec![2], vec![2]],
            Code::STREAM_CREATION_ERROR,
        ),
        (
            "two decoder streams",
            vec![vec![3], vec![3]],
            Code::STREAM_CREATION_ERROR,
        ),
        (
            "a push stream from a client",
            vec![vec![1, 0]],
            Code::STREAM_CREATION_ERROR,
        ),
        (
            "no settings",
            vec![vec![CONTROL, 0x07, 1, 0]],
            Code::MISSING_SETTINGS,
        ),
        (
            "settings twice",
            vec![control(SETTINGS)],
            Code::FRAME_UNEXPECTED,
        ),
        (
            "data on the control stream",
            vec![control(&[0, 0])],
            Code::FRAME_UNEXPECTED,
        ),
        (
            "a frame of HTTP/2",
            vec![control(&[0x06, 0])],
            Code::FRAME_UNEXPECTED,
        ),
        (
            "a setting of HTTP/2",
            vec![vec![CONTROL, 0x04, 2, 0x02, 1]],
            Code::SETTINGS_ERROR,
        ),
        (
            "settings cut short",
            vec![vec![CONTROL, 0x04, 1, 0x06]],
            Code::FRAME_ERROR,
        ),
        (
            "a huge control frame",
            vec![control(&[0x07, 0x80, 1, 0, 0])],
            Code::EXCESSIVE_LOAD,
        ),
        (
            "a goaway taken back",
            vec![control(&[0x07, 1, 0, 0x07, 1, 4])],
            Code::ID_ERROR,
        ),
        (
            "an unknown push",
            vec![control(&[0x03, 1, 0])],
            Code::ID_ERROR,
        ),
        (
            "an insertion",
            vec![vec![2, 0x20, 0xc0]],
            Code::QPACK_ENCODER_STREAM_ERROR,
        ),
    ]
}

#[tokio::test]
async fn breaches_of_unidirectional_streams_close_the_connection() {
    for (what, streams, code) in unidirectional() {
        let quic = quic().await;
        let _server = Session::server(quic.server.clone(), &Config::default());
        let mut open = Vec::new();
        for bytes in streams {
            open.push(uni(&quic.client, &bytes).await);
        }
        assert_eq!(closed(&quic.client).await, code, "{what}");
    }
}

#[tokio::test]
async fn a_control_stream_must_not_end() {
    for reset in [false, true] {
        let quic = quic().await;
        let server = Session::server(quic.server.clone(), &Config::default());
        let mut stream = uni(&quic.client, &control(&[])).await;
        soon(server.settings()).await.expect("it has arrived");
        if reset {
            stream.reset(0_u32.into()).expect("open");
        } else {
            stream.finish().expect("open");
        }
        assert_eq!(closed(&quic.client).await, Code::CLOSED_CRITICAL_STREAM);
    }
}

#[tokio::test]
async fn breaches_of_the_framing_of_requests_close_the_connection() {
    let head = |bytes: &[u8]| {
        let mut out = BytesMut::new();
        h3::write_headers(&mut out, &RequestHead::connect("a:1").encode());
        out.extend_from_slice(bytes);
        out.to_vec()
    };
    let cases = [
        (
            "data before the head",
            vec![0, 1, 1],
            Code::FRAME_UNEXPECTED,
        ),
        ("settings", SETTINGS.to_vec(), Code::FRAME_UNEXPECTED),
        (
            "headers in a tunnel",
            head(&[1, 2, 0, 0]),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "a head above the limit",
            vec![1, 0x80, 1, 0, 0],
            Code::EXCESSIVE_LOAD,
        ),
        (
            "a dynamic reference",
            vec![1, 3, 0, 0, 0x80],
            Code::QPACK_DECOMPRESSION_FAILED,
        ),
    ];
    for (what, bytes, code) in cases {
        let quic = quic().await;
        let server = Session::server(quic.server.clone(), &Config::default());
        let _stream = request(&quic.client, &bytes).await;
        let serve = async {
            while let Some(incoming) = server.accept().await {
                let (_sender, mut receiver) = incoming.exchange.split();
                receiver.data().await.expect_err("broken");
            }
        };
        let (code_seen, ()) = tokio::join!(closed(&quic.client), serve);
        assert_eq!(code_seen, code, "{what}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_inside_a_frame_closes_the_connection() {
    let quic = quic().await;
    let _server = Session::server(quic.server.clone(), &Config::default());
    let (mut send, _recv) = request(&quic.client, &[1, 9, 0]).await;
    send.finish().expect("open");
    assert_eq!(closed(&quic.client).await, Code::FRAME_ERROR);
}

#[tokio::test]
async fn malformed_requests_are_reset_and_the_others_go_on() {
    let quic = quic().await;
    let server = Session::server(quic.server.clone(), &Config::default());
    let fields = |fields: &[(&str, &str)]| {
        let mut out = BytesMut::new();
        let section =
            hoplite_wire::qpack::encode(fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
        h3::write_headers(&mut out, &section);
        out.freeze()
    };
    let malformed = [
        fields(&[(":method", "CONNECT")]),
        fields(&[
            (":method", "CONNECT"),
            (":authority", "a:1"),
            (":status", "200"),
        ]),
        fields(&[
            (":method", "CONNECT"),
            (":authority", "a:1"),
            ("Upper", "x"),
        ]),
    ];
    for bytes in malformed {
        let (_send, mut recv) = request(&quic.client, &bytes).await;
        let error = soon(recv.read_to_end(9)).await.expect_err("reset");
        let expected = quic::ReadError::Reset(quic::VarInt::from_u32(0x10e));
        assert_eq!(error, quic::ReadToEndError::Read(expected));
    }
    let (mut send, mut recv) = request(&quic.client, &[]).await;
    send.finish().expect("open");
    let error = soon(recv.read_to_end(9)).await.expect_err("reset");
    assert_eq!(
        error,
        quic::ReadToEndError::Read(quic::ReadError::Reset(quic::VarInt::from_u32(0x10d)))
    );

    let large = "x".repeat(15_000);
    let large = fields(&[
        (":method", "CONNECT"),
        (":authority", "a:1"),
        ("x", &large),
        ("y", &"y".repeat(1300)),
    ]);
    let (_send, mut recv) = request(&quic.client, &large).await;
    let answer = soon(recv.read_to_end(999)).await.expect("an answer");
    let section = Bytes::from(answer).slice(2..);
    assert_eq!(
        hoplite_wire::ResponseHead::decode(&section, 999)
            .expect("a head")
            .status,
        431
    );

    let _good = request(
        &quic.client,
        &fields(&[(":method", "CONNECT"), (":authority", "good:1")]),
    )
    .await;
    assert_eq!(
        soon(server.accept()).await.expect("arrived").head.authority,
        "good:1"
    );
}

#[tokio::test]
async fn a_datagram_for_no_possible_stream_closes_the_connection() {
    for bytes in [&[][..], &[0x40], &[0xff; 8]] {
        let quic = quic().await;
        let _server = Session::server(quic.server.clone(), &Config::default());
        quic.client
            .send_datagram(Bytes::copy_from_slice(bytes))
            .expect("sent");
        assert_eq!(closed(&quic.client).await, Code::DATAGRAM_ERROR);
    }
}

#[tokio::test]
async fn unknown_streams_frames_and_settings_are_ignored() {
    let quic = quic().await;
    let server = Session::server(quic.server.clone(), &Config::default());
    let stray = uni(&quic.client, &[0x21, 1, 2, 3]).await;
    let priority_update = [0x80, 0x0f, 0x07, 0x00, 2, 0, b'u'];
    let mut bytes = vec![CONTROL, 0x04, 4, 0x40, 0x40, 0x40, 0x50];
    bytes.extend_from_slice(&priority_update);
    bytes.extend_from_slice(&[0x0d, 1, 8]);
    let _control = uni(&quic.client, &bytes).await;
    let _encoder = uni(&quic.client, &[2, 0x20]).await;
    let _decoder = uni(&quic.client, &[3, 0x44]).await;
    let mut bytes = BytesMut::from(&[0x21, 3, 1, 2, 3][..]);
    h3::write_headers(&mut bytes, &udp_head().encode());
    let _request = request(&quic.client, &bytes).await;
    assert_eq!(
        soon(server.accept()).await.expect("arrived").head,
        udp_head()
    );
    assert_eq!(
        soon(stray.stopped()).await.expect("open"),
        Some(quic::VarInt::from_u32(0x103))
    );
}

#[tokio::test]
async fn a_server_must_not_open_requests_or_push() {
    let quic = quic().await;
    let _client = Session::client(quic.client.clone(), &Config::default());
    let _stream = request(&quic.server, &[1]).await;
    assert_eq!(closed(&quic.server).await, Code::STREAM_CREATION_ERROR);

    let quic = self::quic().await;
    let _client = Session::client(quic.client.clone(), &Config::default());
    let _stream = uni(&quic.server, &[1, 0]).await;
    assert_eq!(closed(&quic.server).await, Code::ID_ERROR);
}

#[tokio::test]
async fn extended_connect_waits_for_the_settings_and_needs_them() {
    let quic = quic().await;
    let client = Session::client(quic.client.clone(), &Config::default());
    let serve = async {
        let mut bytes = BytesMut::new();
        varint::write(&mut bytes, h3::stream::CONTROL);
        Settings::default().write(&mut bytes);
        uni(&quic.server, &bytes).await
    };
    let head = udp_head();
    let (answer, _control) = soon(async { tokio::join!(client.request(&head), serve) }).await;
    assert!(matches!(answer, Err(H3Error::Unsupported(_))));
    client
        .request(&RequestHead::connect("a:1"))
        .await
        .expect("plain CONNECT needs none");
}

#[tokio::test]
async fn malformed_responses_end_the_exchange_alone() {
    let quic = quic().await;
    let client = Session::client(quic.client.clone(), &Config::default());
    for response in [&[1, 4, 0, 0, 0xc1, 0xc1][..], &[1, 2, 0, 0], &[]] {
        let mut exchange = client
            .request(&RequestHead::connect("a:1"))
            .await
            .expect("sent");
        let serve = async {
            let (mut send, recv) = quic.server.accept_bi().await.expect("a stream");
            send.write_all(response).await.expect("sent");
            send.finish().expect("open");
            recv
        };
        let (answer, _recv) = soon(async { tokio::join!(exchange.response(), serve) }).await;
        assert!(
            matches!(answer, Err(H3Error::Protocol(Code::MESSAGE_ERROR, _))),
            "{answer:?}"
        );
    }
    assert!(quic.client.close_reason().is_none());
}
