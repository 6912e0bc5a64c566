//! A TCP tunnel once it is open: bytes both ways between the client's stream and the target's socket.
//! The handler of CONNECT and connect-tcp runs it.
//! RFC 9114 §4.4: a finished side finishes the other, a reset one resets it.

use std::{
    future::{Future, pending, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use hoplite_http::read_shared;
use tokio::{
    io::AsyncWrite,
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::{Instant, timeout, timeout_at},
};

use super::client_stream::{Broken, Incoming, Outgoing};
use crate::{
    limits::{Account, InHand, Pace, Stalled},
    metrics::Metrics,
};

/// Chunks written to the target in one call; the next wait in the stream's flow-control window.
const CHUNKS: usize = 64;
/// Bytes written to the target in one call, about.
const CHUNK_BYTES: usize = 128 * 1024;
/// When a target has taken nothing for this long, it stalls.
const STALL: Duration = Duration::from_millis(200);
/// While it does, it is looked at so often at least, whether the client has taken it for the others' loss.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Why a tunnel ended before both sides had finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Target,
    Idle,
}

/// What a tunnel is measured by and bound to.
pub(crate) struct Terms {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pace: Pace,
    /// How long nothing may pass; zero is for ever.
    pub(crate) idle: Duration,
    pub(crate) account: Arc<Account>,
}

/// Carries bytes until both sides have finished or one has broken. Thousands of these stand: what is joined is pinned first, for the macros would have it
/// twice.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn has its parameters twice"
)]
pub(crate) fn splice(
    mut from: Incoming,
    mut to: Outgoing,
    mut target: TcpStream,
    terms: Terms,
) -> impl Future<Output = ()> {
    async move {
        let passed = AtomicU64::new(0);
        let end = {
            let (read, write) = target.split();
            let carried = pin!(async {
                {
                    let up = pin!(up(&mut from, write, &terms, &passed));
                    let down = pin!(down(read, &mut to, &terms, &passed));
                    tokio::try_join!(up, down)?;
                }
                to.close().await.map_err(|_| End::Client)
            });
            tokio::select! {
                end = carried => end,
                () = watch(terms.idle, &passed) => Err(End::Idle),
            }
        };
        if let Err(end) = end {
            tracing::trace!(?end, "a TCP tunnel broke");
            to.reset();
            abort(&target);
        }
    }
}

/// The target must not take what it got for complete: it is reset.
fn abort(target: &TcpStream) {
    if let Err(error) = target.set_zero_linger() {
        tracing::trace!(%error, "a target's socket closes in order instead of resetting");
    }
}

/// Ends when nothing has passed for `idle` to twice `idle`.
pub(crate) async fn watch(idle: Duration, passed: &AtomicU64) {
    if idle.is_zero() {
        return pending().await;
    }
    let mut before = passed.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(idle).await;
        let now = passed.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// From the client to the target.
async fn up(
    from: &mut Incoming,
    mut target: WriteHalf<'_>,
    terms: &Terms,
    passed: &AtomicU64,
) -> Result<(), End> {
    let mut chunks = Vec::new();
    let mut stalled: Option<Stalled<'_>> = None;
    loop {
        let room = unless_over(&mut stalled, terms.account.room()).await;
        if room.is_none() {
            continue;
        }
        // As it is when something comes: all that wait have heard of the same room, and others may have it by then.
        let more = poll_fn(|cx| gather(from, &mut chunks, terms.account.room_now(), cx));
        let Some(more) = unless_over(&mut stalled, more).await else {
            continue;
        };
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        if bytes > 0 {
            passed.fetch_add(1, Ordering::Relaxed);
            terms.account.read(bytes);
            // With what has come behind it, and waits here as long.
            let hand = terms.account.hand(bytes.saturating_add(from.unread()));
            let written = write_all(&mut target, &mut chunks);
            written_in_time(written, hand, &mut stalled)
                .await
                .map_err(|_| End::Target)?;
            terms.metrics.bytes_to_target.tcp.inc_by(bytes as u64);
        }
        let charged = from.take_charge();
        if charged > 0 {
            terms.pace.spend(charged).await;
        }
        if !more.map_err(|_| End::Client)? {
            return shut(&mut target).await;
        }
    }
}

/// Waits for more of what the client sends, and withdraws meanwhile what was given for a stream that stalls, when it has stalled last for long enough.
async fn unless_over<T>(
    stalled: &mut Option<Stalled<'_>>,
    more: impl Future<Output = T>,
) -> Option<T> {
    let more = match stalled.as_ref().map(Stalled::over) {
        None => Some(more.await),
        Some(over) if over <= Instant::now() => None,
        Some(over) => timeout_at(over, more).await.ok(),
    };
    if more.is_none() {
        *stalled = None;
    }
    more
}

/// Waits for a write. While the target takes nothing, what it holds up is counted beside the rest, so that other streams go on. What was given for that
/// stays in `stalled` when the write is over.
async fn written_in_time<'a>(
    written: impl Future<Output = io::Result<()>>,
    mut hand: InHand<'a>,
    stalled: &mut Option<Stalled<'a>>,
) -> io::Result<()> {
    let mut written = pin!(written);
    let mut wait = STALL;
    let done = loop {
        if let Ok(done) = timeout(wait, &mut written).await {
            break done;
        }
        wait = match stalled {
            None => {
                *stalled = hand.stall();
                STALL
            }
            Some(one) => {
                if !one.again(&mut hand) || one.follow() {
                    STALL
                } else if one.is_whole() {
                    break written.await;
                } else {
                    LONGEST_WAIT.min(2 * wait)
                }
            }
        };
    };
    if let Some(one) = stalled {
        one.go_on();
    }
    done
}

async fn shut(target: &mut WriteHalf<'_>) -> Result<(), End> {
    poll_fn(|cx| Pin::new(&mut *target).poll_shutdown(cx))
        .await
        .map_err(|_| End::Target)
}

/// Takes what is there, at most a batch and about what there is room for, which may be nothing; false when the client has finished.
fn gather(
    from: &mut Incoming,
    chunks: &mut Vec<Bytes>,
    room: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, Broken>> {
    chunks.clear();
    let mut bytes = 0;
    while chunks.len() < CHUNKS && bytes.max(from.charge()) < CHUNK_BYTES.min(room) {
        match from.poll_data(cx) {
            Poll::Ready(Ok(Some(chunk))) if chunk.is_empty() => (),
            Poll::Ready(Ok(Some(chunk))) => {
                bytes += chunk.len();
                chunks.push(chunk);
            }
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if chunks.is_empty() && from.charge() == 0 => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(Ok(true))
}

/// Writes the chunks without joining them first.
async fn write_all(target: &mut WriteHalf<'_>, chunks: &mut Vec<Bytes>) -> io::Result<()> {
    let mut first = 0;
    while let Some(rest) = chunks.get_mut(first..).filter(|rest| !rest.is_empty()) {
        let written = poll_fn(|cx| {
            let mut slices = [IoSlice::new(&[]); CHUNKS];
            for (slice, chunk) in slices.iter_mut().zip(rest.iter()) {
                *slice = IoSlice::new(chunk);
            }
            let filled = rest.len().min(CHUNKS);
            let slices = slices.get(..filled).unwrap_or_default();
            Pin::new(&mut *target).poll_write_vectored(cx, slices)
        })
        .await?;
        first += advance(rest, written);
    }
    chunks.clear();
    Ok(())
}

/// Drops what was written; says how many chunks are done.
fn advance(chunks: &mut [Bytes], mut written: usize) -> usize {
    let mut done = 0;
    for chunk in chunks {
        let part = written.min(chunk.len());
        chunk.advance(part);
        written -= part;
        if !chunk.is_empty() {
            break;
        }
        done += 1;
    }
    done
}

/// From the target to the client.
async fn down(
    target: ReadHalf<'_>,
    to: &mut Outgoing,
    terms: &Terms,
    passed: &AtomicU64,
) -> Result<(), End> {
    loop {
        target.readable().await.map_err(|_| End::Target)?;
        let mut drawn = terms.account.draw();
        let bytes = match read(&target, drawn.room()) {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err(End::Target),
        };
        let len = bytes.len();
        drawn.keep(len);
        passed.fetch_add(1, Ordering::Relaxed);
        to.write(bytes).await.map_err(|_| End::Client)?;
        drop(drawn);
        terms.account.wrote(len);
        terms.metrics.bytes_to_client.tcp.inc_by(len as u64);
        terms.pace.spend(len).await;
    }
    to.finish().await.map_err(|_| End::Client)
}

fn read(target: &ReadHalf<'_>, most: usize) -> io::Result<Bytes> {
    read_shared(|buffer| target.try_read_buf(&mut buffer.limit(most)))
}

#[cfg(test)]
mod tests;
