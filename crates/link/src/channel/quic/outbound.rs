//! Writes a circuit's queue to its stream. Its only wait for others is the connection's congestion window, where quiet streams go first.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::cell::{self, Cell, CircuitId};
use quinn::SendStream;
use tokio::time::{Instant, timeout};

use super::code;
use crate::{
    channel::{
        Counts, Hold,
        ewma::{Activity, Scale},
        hoard::Gauge,
        lane::{self, End},
        tls::destroy,
    },
    health::Pulse,
};

/// How many cells are written at once: 16 KiB.
const BATCH: usize = 32;
/// DESTROY: the stream is of no use any more.
const FINISHED: u8 = 9;

/// One circuit's sending side.
pub(super) struct Outbound {
    pub(super) stream: SendStream,
    pub(super) queue: lane::Rx,
    pub(super) scale: Scale,
    pub(super) linger: Duration,
    pub(super) counts: Arc<Counts>,
    pub(super) gauge: Arc<Gauge>,
    /// Octets that were handed to QUIC.
    pub(super) written: u64,
    /// Told that something was.
    pub(super) pulse: Option<Arc<Pulse>>,
    pub(super) _hold: Hold,
}

/// Why writing ended.
enum Stop {
    /// Our side did, and how.
    Ours(End),
    /// Our side did while a cell was on its way that the peer does not take.
    Within(End),
    /// The peer takes no more, or is gone.
    Theirs,
}

impl Outbound {
    pub(super) async fn run(mut self, id: CircuitId) {
        match self.carry().await {
            Stop::Theirs => self.queue.close(),
            Stop::Ours(End::Finished) => self.finish(FINISHED).await,
            Stop::Ours(End::Aborted(reason)) => {
                let last = encode(&[destroy(id, reason)]);
                // It may not fit into the window; then the reset says it.
                if self.write(last).await.is_ok() {
                    self.finish(reason).await;
                }
            }
            Stop::Within(End::Aborted(reason)) => self.reset(reason),
            Stop::Within(End::Finished) => self.reset(FINISHED),
        }
    }

    async fn carry(&mut self) -> Stop {
        let mut cells = Vec::new();
        let mut activity = Activity::NONE;
        let mut level = 0;
        let mut stopped = pin!(self.stream.stopped());
        loop {
            if let Err(stop) = self.next(&mut cells, stopped.as_mut()).await {
                return stop;
            }
            let now = self.scale.at(Instant::now());
            activity.add(cells.len(), now);
            let new = activity.level(now);
            if std::mem::replace(&mut level, new) != new {
                drop(self.stream.set_priority(-new));
            }
            let octets = encode(&cells);
            cells.clear();
            if let Err(stop) = self.write(octets).await {
                return stop;
            }
        }
    }

    async fn next(
        &self,
        cells: &mut Vec<Cell>,
        stopped: Pin<&mut impl Future>,
    ) -> Result<(), Stop> {
        tokio::select! {
            biased;
            got = poll_fn(|cx| self.queue.poll_drain(cx, BATCH, cells)) => got.map_err(Stop::Ours),
            _ = stopped => Err(Stop::Theirs),
        }
    }

    /// Once the circuit has ended here, what is left may take [`Config::linger`](crate::channel::Config::linger); aborted: no time.
    async fn write(&mut self, octets: Bytes) -> Result<(), Stop> {
        self.written = self.written.saturating_add(octets.len() as u64);
        self.gauge.is_stuck(true);
        let (queue, linger) = (&self.queue, self.linger);
        let patience = async {
            let end = poll_fn(|cx| queue.poll_end(cx)).await;
            if end == End::Finished {
                tokio::time::sleep(linger).await;
            }
            end
        };
        let written = tokio::select! {
            biased;
            written = self.stream.write_chunk(octets) => written.map_err(|_| Stop::Theirs),
            end = patience => {
                self.counts.unread.up();
                Err(Stop::Within(end))
            }
        };
        self.gauge.is_stuck(false);
        if let Some(pulse) = &self.pulse {
            pulse.packet();
        }
        self.gauge.wrote(self.written);
        written
    }

    /// Says that nothing follows, and waits until all has arrived; what does not in time is not kept.
    async fn finish(mut self, reason: u8) {
        if self.stream.finish().is_err() {
            return;
        }
        if timeout(self.linger, self.stream.stopped()).await.is_err() {
            self.counts.unread.up();
            self.reset(reason);
        }
    }

    fn reset(&mut self, reason: u8) {
        drop(self.stream.reset(code(reason)));
    }
}

fn encode(cells: &[Cell]) -> Bytes {
    let mut out = BytesMut::with_capacity(cells.len().saturating_mul(cell::LEN));
    for cell in cells {
        let written = cell::write(cell, &mut out);
        debug_assert!(written.is_ok(), "a cell that fits no frame is left out");
    }
    out.freeze()
}
