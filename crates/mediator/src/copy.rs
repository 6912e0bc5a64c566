//! Copies between a program's connection and an overlay's stream, both ways, in one task and without a clock of its own
//! when nothing limits idleness. SOCKS CONNECT and HTTP CONNECT end here.
//!
//! Half-close travels in both directions; what ends otherwise is reset at the other end. At most 64 KiB wait in each
//! direction, in buffers that a flow holds only while something moves.

mod down;
pub(crate) mod idle;
pub(crate) mod pool;
mod up;

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
    time::Duration,
};

use hoplite_overlay::Stream;

use crate::{app::App, counters::Counters};

use self::{down::Down, idle::Idle, up::Up};

/// The most that waits in one direction, in octets.
pub(crate) const BUFFER: usize = 64 * 1024;
/// How long a target that reads no more may go on sending nothing before both ends are reset.
const LINGER: Duration = Duration::from_secs(10);

/// Whose connection broke.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the program's connection broke: {0}")]
    App(io::Error),
    #[error("the target's stream broke: {0}")]
    Stream(io::Error),
}

/// How it ended. All but the first reset both ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("both directions were finished")]
    Complete,
    #[error("the target took no more, and the download has ended")]
    Refused,
    #[error("{0}")]
    Broke(#[from] Fault),
    #[error("nothing moved for too long")]
    Idle,
}

/// Copies until both directions have ended. `early` is what the program sent before it was answered.
pub(crate) async fn copy(
    app: App,
    stream: Stream,
    early: Vec<u8>,
    idle: Duration,
    counters: &Counters,
) {
    let mut pump = Pump {
        app,
        stream,
        up: Up::new(early),
        down: Down::default(),
        idle,
        counters,
    };
    let mut watch = Idle::default();
    let end = poll_fn(|cx| pump.poll(cx, &mut watch)).await;
    tracing::trace!(%end, "a flow ended");
    if !matches!(end, End::Complete) {
        pump.app.reset();
    }
}

struct Pump<'a> {
    app: App,
    stream: Stream,
    up: Up,
    down: Down,
    idle: Duration,
    counters: &'a Counters,
}

impl Pump<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, watch: &mut Idle) -> Poll<End> {
        let (up_before, down_before) = (self.up.moved, self.down.moved);
        let ended = self.poll_both(cx);
        self.counters.octets_up.add(self.up.moved - up_before);
        self.counters.octets_down.add(self.down.moved - down_before);
        if ended.is_ready() {
            return ended;
        }
        let (limit, moved) = self.limit();
        watch.poll(cx, limit, moved).map(|()| End::Idle)
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let down = self.down.poll(cx, &mut self.app, &mut self.stream);
        let up = self.up.poll(cx, &mut self.app, &mut self.stream);
        match (down, up) {
            (Poll::Ready(Err(fault)), _) | (_, Poll::Ready(Err(fault))) => {
                Poll::Ready(fault.into())
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(self.both_ended()),
            _ => Poll::Pending,
        }
    }

    fn both_ended(&self) -> End {
        match self.up.refused() {
            true => End::Refused,
            false => End::Complete,
        }
    }

    /// How long nothing may move, and what counts as moving.
    fn limit(&self) -> (Duration, usize) {
        match (self.up.refused(), self.idle) {
            (true, Duration::ZERO) => (LINGER, self.down.moved),
            (true, idle) => (LINGER.min(idle), self.down.moved),
            (false, idle) => (idle, self.up.moved.wrapping_add(self.down.moved)),
        }
    }
}
