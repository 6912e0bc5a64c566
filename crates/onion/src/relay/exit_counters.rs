//! What an exit counts for its statistics: streams to targets by TCP and their bytes, for a few ports apart. Which ports does not depend on what is asked
//! for, so that a port that is told says nothing of anybody. dir-spec "Extra-info document format", `exit-*`.
//!
//! A circuit is one client's. What it adds is bounded ([`STREAMS_PER_CIRCUIT`], [`BYTES_PER_CIRCUIT`]): beyond it, it is served and not counted. So the noise
//! that `hoplite_relay::statistics` adds hides each circuit, whatever it does.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use hoplite_overlay::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Relay;

/// Ports that are counted apart; what goes to any other is counted together.
pub const COUNTED_PORTS: [u16; 6] = [22, 80, 443, 853, 993, 5222];
/// Streams of one circuit that count.
pub const STREAMS_PER_CIRCUIT: u64 = 1000;
/// Bytes of one circuit that count, both ways together.
pub const BYTES_PER_CIRCUIT: u64 = 400 << 20;

/// All that an exit has carried.
#[derive(Debug, Default)]
pub struct ExitCounters {
    ports: [PortCounters; COUNTED_PORTS.len()],
    others: PortCounters,
    /// Whosever it is, and however much.
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug, Default)]
struct PortCounters {
    streams: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
}

/// What was carried to one port, or to all that are not counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Streams.
    pub streams: u64,
    /// Bytes from targets.
    pub read: u64,
    /// Bytes to targets.
    pub written: u64,
}

/// How much of it is of one circuit.
#[derive(Debug, Default)]
pub(super) struct CircuitShare {
    streams: AtomicU64,
    bytes: AtomicU64,
}

impl ExitCounters {
    /// Each port with its totals; `None` is all others.
    pub fn totals(&self) -> impl Iterator<Item = (Option<u16>, PortTotals)> {
        let ports = COUNTED_PORTS.iter().zip(&self.ports);
        let ports = ports.map(|(port, counters)| (Some(*port), counters.get()));
        ports.chain([(None, self.others.get())])
    }

    /// Bytes that were read from targets, and written to them, of all circuits and all of theirs.
    pub fn carried(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.written.load(Relaxed))
    }

    fn of(&self, port: u16) -> &PortCounters {
        let mut apart = COUNTED_PORTS.iter().zip(&self.ports);
        let apart = apart.find(|(counted, _)| **counted == port);
        apart.map_or(&self.others, |(_, counters)| counters)
    }
}

impl PortCounters {
    fn get(&self) -> PortTotals {
        PortTotals {
            streams: self.streams.load(Relaxed),
            read: self.read.load(Relaxed),
            written: self.written.load(Relaxed),
        }
    }
}

/// Adds to what a circuit has counted already, up to `most`; answers how much of it counts.
fn within(counted: &AtomicU64, more: u64, most: u64) -> u64 {
    let before = counted.fetch_add(more, Relaxed);
    more.min(most.saturating_sub(before))
}

/// A stream to a target, whose bytes are counted if it is one by a port.
pub(super) struct Metered {
    stream: Stream,
    port: Option<u16>,
    relay: Arc<Relay>,
    share: Arc<CircuitShare>,
}

impl Metered {
    /// One that has been opened.
    pub(super) fn new(
        stream: Stream,
        port: Option<u16>,
        relay: &Arc<Relay>,
        share: Arc<CircuitShare>,
    ) -> Self {
        let metered = Self {
            stream,
            port,
            relay: Arc::clone(relay),
            share,
        };
        metered.count(|counters, share| {
            let counts = within(&share.streams, 1, STREAMS_PER_CIRCUIT);
            counters.streams.fetch_add(counts, Relaxed);
        });
        metered
    }

    fn count(&self, add: impl FnOnce(&PortCounters, &CircuitShare)) {
        if let Some(port) = self.port {
            add(self.relay.counters.exits.of(port), &self.share);
        }
    }

    fn carried(
        &self,
        bytes: usize,
        all: fn(&ExitCounters) -> &AtomicU64,
        of: fn(&PortCounters) -> &AtomicU64,
    ) {
        self.count(|counters, share| {
            all(&self.relay.counters.exits).fetch_add(bytes as u64, Relaxed);
            let counts = within(&share.bytes, bytes as u64, BYTES_PER_CIRCUIT);
            of(counters).fetch_add(counts, Relaxed);
        });
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let bytes = buffer.filled().len().saturating_sub(before);
        self.carried(bytes, |all| &all.read, |port| &port.read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.carried(written, |all| &all.written, |port| &port.written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_circuit_counts_for_so_much_and_no_more() {
        let share = CircuitShare::default();
        let most = 10;
        let counted: Vec<_> = [4, 4, 4, 4, u64::MAX / 2]
            .map(|more| within(&share.bytes, more, most))
            .into();
        assert_eq!(counted, [4, 4, 2, 0, 0]);
    }

    #[test]
    fn a_port_that_is_not_counted_apart_is_counted_with_all_others() {
        let counters = ExitCounters::default();
        for port in [443, 443, 80, 12_345, 1] {
            counters.of(port).streams.fetch_add(1, Relaxed);
        }
        let told: Vec<_> = counters
            .totals()
            .map(|(port, totals)| (port, totals.streams))
            .collect();
        assert_eq!(told.len(), COUNTED_PORTS.len() + 1);
        assert!(told.contains(&(Some(443), 2)) && told.contains(&(Some(80), 1)));
        assert_eq!(told.last(), Some(&(None, 2)));
        assert!(
            told.contains(&(Some(22), 0)),
            "also a port that nobody asked for"
        );
    }
}
