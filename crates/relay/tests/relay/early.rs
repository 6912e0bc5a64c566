//! Bytes that come behind a CONNECT, before its answer.

use std::time::Duration;

use hoplite_http::{h2, h3};
use hoplite_overlay::{
    Error, ErrorKind, PendingStream, Stream,
    conformance::{Far, Loopback},
};
use hoplite_testing::{relay::relay, soon, targets};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{connect, dialer, tcp};

/// The least that a relay may be told to hold of one stream.
const WINDOW: u32 = 65_536;
/// What besides may be on its way: one write, and what the client's own HTTP/2 buffers.
const UNDER_WAY: usize = 64 * 1024 + 256 * 1024;
/// A write that takes longer has stalled.
const STALLED: Duration = Duration::from_millis(500);

/// A relay that soon gives up targets that do not answer.
fn narrow() -> hoplite_relay::Handle {
    relay(|config| {
        config.limits.stream_window = WINDOW;
        config.limits.connect = Duration::from_secs(2);
    })
}

/// Writes to a target that does not answer until no more is taken, then hears why. Our own client would take less.
async fn waits_and_is_refused(
    mut io: impl PendingStream + 'static,
    other: impl Future<Output = ()>,
) {
    let mut written = 0;
    while let Ok(count) = tokio::time::timeout(STALLED, io.write(&[7; 16_384])).await {
        // The relay may have given the target up by now.
        let Ok(count) = count else { break };
        written += count;
        let most = usize::try_from(WINDOW).expect("small") + UNDER_WAY;
        assert!(written <= most, "{written} bytes are held");
    }
    assert!(written > 0);
    other.await;
    let mut stream = Stream::early(io, None);
    let error = soon(stream.read_u8()).await.expect_err("nobody answers");
    let error = Error::from_io(&error).expect("an overlay's error");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
}

/// Another flow is not disturbed.
async fn echoes(io: impl PendingStream + 'static) {
    let mut stream = Stream::early(io, None);
    stream.write_all(b"hello").await.expect("taken");
    let mut got = [0; 5];
    soon(stream.read_exact(&mut got)).await.expect("echoed");
    assert_eq!(&got, b"hello");
}

async fn over_http3(session: &h3::Session, target: String) -> impl PendingStream + use<> {
    let exchange = session.request(&tcp(target)).await.expect("sent");
    exchange.into_stream()
}

async fn over_http2(session: &h2::Session, target: String) -> impl PendingStream + use<> {
    let exchange = session.request(&tcp(target)).await.expect("sent");
    exchange.into_stream()
}

#[tokio::test]
async fn over_http3_they_wait_in_the_streams_window_and_disturb_nobody() {
    let (relay, silent) = (narrow(), Loopback.silent().await.expect("silence"));
    let client = connect(&relay).await;
    let stream = over_http3(&client.session, silent.target.to_string()).await;
    let echo = targets::tcp_echo().await;
    let other = async { echoes(over_http3(&client.session, echo.to_string()).await).await };
    waits_and_is_refused(stream, other).await;
}

#[tokio::test]
async fn over_http2_they_wait_in_the_streams_window_and_disturb_nobody() {
    let (relay, silent) = (narrow(), Loopback.silent().await.expect("silence"));
    let link = dialer(&relay).tls(&hoplite_overlay::Terms::default()).await;
    let stream = link.expect("connected").into_inner();
    let session = h2::Session::client(stream, &h2::Config::default()).await;
    let session = session.expect("spoken to");
    let stream = over_http2(&session, silent.target.to_string()).await;
    let echo = targets::tcp_echo().await;
    let other = async { echoes(over_http2(&session, echo.to_string()).await).await };
    waits_and_is_refused(stream, other).await;
}
