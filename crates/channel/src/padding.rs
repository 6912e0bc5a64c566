//! Padding of the channel between a client and its guard: who records flows at a router (netflow) sees one long flow, and not when it is used.
//! Each of both ends sends a PADDING cell when it has sent nothing for a random time, so that no gap is long enough to end a flow record.
//! padding-spec, "Connection-level padding"; the bounds are those of its consensus parameters.
//!
//! [`Padder`] decides, without clock and I/O; a channel's task that writes asks [`Padding`] for the next cell. Between two relays nothing is
//! padded. What a channel's other cells say is of no matter, so that a channel of circuits that pad themselves costs nothing more.
//!
//! # What a peer can do
//! A client can have its guard pad less or not at all, and no more often than the guard would by itself. A guard can have nothing changed: a
//! client closes the channel on which it tries.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use hoplite_wire::cell::{Cell, CircuitId, Command, padding::PaddingNegotiate};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::Why;

#[cfg(test)]
mod tests;

/// The first link protocol whose relays pad (tor-spec, "Negotiating versions").
const FIRST_VERSION: u16 = 5;
/// How often a padder looks at least whether something was sent: where times are shorter than this, padding may be so late.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// The longest of the times that padding waits for (C tor's bound of `nf_ito_high`).
const LONGEST_MS: i32 = 60_000;
/// Bounds of `nf_conntimeout_clients`, in seconds, as C tor's.
const OPEN_SECONDS: (i32, i32) = (60, 86_400);

/// How much a client has padded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// Both ends pad.
    Auto,
    /// This end alone pads, and less often: for devices that pay for what they send.
    Reduced,
    /// Neither end pads.
    #[default]
    Off,
}

/// For how long nothing is sent before padding is: at random between both, in whole milliseconds, the longer the likelier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietTimes {
    low: Duration,
    high: Duration,
}

impl QuietTimes {
    /// In milliseconds, brought within bounds: 60 s at most, and `high` not below `low`. `None`, no padding, where both are zero.
    pub fn new(low: i32, high: i32) -> Option<Self> {
        let low = low.clamp(0, LONGEST_MS);
        let high = high.clamp(low, LONGEST_MS);
        let [low, high] = [low, high].map(|ms| Duration::from_millis(ms.unsigned_abs().into()));
        (!high.is_zero()).then_some(Self { low, high })
    }

    /// What a client that asks for these gets of a guard that has `self`: none shorter.
    fn at_least(self, low: Duration, high: Duration) -> Self {
        if low.is_zero() && high.is_zero() {
            return self;
        }
        let low = self.low.max(low);
        let high = low.max(high);
        Self { low, high }
    }

    /// The larger of two: padding-spec, "Padding Cell Timeout Distribution Statistics".
    fn draw(self, random: &mut dyn FnMut(u32) -> u32) -> Duration {
        let width = self.high.saturating_sub(self.low).as_millis();
        let width = u32::try_from(width).unwrap_or(u32::MAX);
        let longer = random(width).max(random(width));
        self.low + Duration::from_millis(longer.into())
    }

    /// Within this after a cell no padding is due: who looks so often misses none of the cells.
    fn look(self) -> Duration {
        self.low.max(SHORTEST_LOOK)
    }
}

/// What a network agrees on about padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddingParameters {
    /// `nf_ito_low` and `nf_ito_high`; none: nobody pads unless a client's file asks for it.
    pub usual: Option<QuietTimes>,
    /// `nf_ito_low_reduced` and `nf_ito_high_reduced`, for [`PaddingMode::Reduced`].
    pub reduced: Option<QuietTimes>,
    /// `nf_conntimeout_clients`: for so long, and at random up to twice as long, a channel that carries no circuit is still padded.
    pub open: Duration,
}

impl PaddingParameters {
    /// From a consensus: `parameter` has the values that it gives, by name. What it does not give has its default, what is out of bounds is brought
    /// within them.
    pub fn of(parameter: impl Fn(&str) -> Option<i32>) -> Self {
        let value = |name, default| parameter(name).unwrap_or(default);
        let times = |low, low_default, high, high_default| {
            QuietTimes::new(value(low, low_default), value(high, high_default))
        };
        let (least, most) = OPEN_SECONDS;
        let open = value("nf_conntimeout_clients", 1800).clamp(least, most);
        Self {
            usual: times("nf_ito_low", 1500, "nf_ito_high", 9500),
            reduced: times("nf_ito_low_reduced", 9000, "nf_ito_high_reduced", 14_000),
            open: Duration::from_secs(open.unsigned_abs().into()),
        }
    }

    /// How long a client that pads so keeps a channel without circuits; `None`: as long as it likes.
    pub fn kept_open(&self, mode: PaddingMode) -> Option<Duration> {
        match mode {
            PaddingMode::Auto => Some(self.open),
            PaddingMode::Reduced => Some(self.open / 2),
            PaddingMode::Off => None,
        }
    }
}

impl Default for PaddingParameters {
    fn default() -> Self {
        Self::of(|_| None)
    }
}

/// Which end of a channel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaddingEnd {
    /// It has shown no identity: the client's.
    Client,
    /// The other end has shown none: that of its guard.
    Guard,
    /// Both ends are relays', or the link protocol is too old.
    Neither,
}

impl PaddingEnd {
    /// By the link protocol, and whether this end and the other one have shown who they are.
    pub(super) fn of(version: u16, known: bool, peer_known: bool) -> Self {
        match (known, peer_known) {
            _ if version < FIRST_VERSION => Self::Neither,
            (false, true) => Self::Client,
            (true, false) => Self::Guard,
            _ => Self::Neither,
        }
    }
}

/// Decides for one end of a channel when it pads.
#[derive(Debug)]
pub(super) struct Padder {
    end: PaddingEnd,
    /// What this end does by itself, and what it does now.
    own: Option<QuietTimes>,
    times: Option<QuietTimes>,
    /// For how long a channel without circuits is padded.
    open: Duration,
    /// What the guard is still to be told.
    tell: Option<PaddingNegotiate>,
    /// When padding is due, and the cell after which that was drawn.
    due: Option<(Instant, Instant)>,
    /// When it padded last.
    padded: Option<Instant>,
    /// Since when there has been no circuit.
    bare: Option<Instant>,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// This goes out now.
    Send(Cell),
    /// The padder wants to look again then.
    At(Instant),
    /// Nothing, unless the peer asks for something.
    Never,
}

impl Padder {
    /// `random` gives a number below its argument.
    pub(super) fn new(
        end: PaddingEnd,
        mode: PaddingMode,
        parameters: &PaddingParameters,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Self {
        let (own, tell) = match (end, mode) {
            (PaddingEnd::Neither, _) | (PaddingEnd::Guard, PaddingMode::Off) => (None, None),
            // That a relay pads less is for its clients to say.
            (PaddingEnd::Guard, _) | (PaddingEnd::Client, PaddingMode::Auto) => {
                (parameters.usual, None)
            }
            (PaddingEnd::Client, PaddingMode::Reduced) => {
                (parameters.reduced, Some(PaddingNegotiate::Stop))
            }
            (PaddingEnd::Client, PaddingMode::Off) => (None, Some(PaddingNegotiate::Stop)),
        };
        let least = parameters.kept_open(mode).unwrap_or_default();
        let more = match end {
            PaddingEnd::Guard => least,
            _ => {
                let seconds = u32::try_from(least.as_secs()).unwrap_or(u32::MAX);
                Duration::from_secs(random(seconds).into())
            }
        };
        Self {
            end,
            own,
            times: own,
            open: least + more,
            tell,
            due: None,
            padded: None,
            bare: None,
        }
    }

    /// What to do at `now`, when the last cell of this end was sent at `sent`, and the channel carries `circuits`.
    pub(super) fn look(
        &mut self,
        now: Instant,
        sent: Instant,
        circuits: usize,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Look {
        if let Some(Ok(cell)) = self.tell.take().map(|tell| tell.cell()) {
            return Look::Send(cell);
        }
        let Some(times) = self.times else {
            return Look::Never;
        };
        let again = now + times.look();
        if self.is_over(now, circuits) {
            self.due = None;
            return Look::At(again);
        }
        // Also where the cell is still on its way.
        let sent = self.padded.map_or(sent, |padded| padded.max(sent));
        let drawn = self.due.filter(|(_, after)| *after == sent);
        let (due, _) = *self
            .due
            .insert(drawn.unwrap_or_else(|| (sent + times.draw(random), sent)));
        if due > now {
            return Look::At(due.min(again));
        }
        self.due = None;
        self.padded = Some(now);
        padding().map_or(Look::At(again), Look::Send)
    }

    /// Whether the channel has carried no circuit for so long that it is no longer padded.
    fn is_over(&mut self, now: Instant, circuits: usize) -> bool {
        if circuits > 0 {
            self.bare = None;
            return false;
        }
        let bare = *self.bare.get_or_insert(now);
        now.saturating_duration_since(bare) >= self.open
    }

    /// The peer said what is to be done.
    pub(super) fn negotiated(&mut self, asked: PaddingNegotiate) -> Result<(), Why> {
        match self.end {
            PaddingEnd::Client => {
                return Err(Why::Violation("a relay negotiates padding with a client"));
            }
            PaddingEnd::Neither => return Ok(()),
            PaddingEnd::Guard => {}
        }
        self.times = match asked {
            PaddingNegotiate::Stop => None,
            PaddingNegotiate::Start { low, high } => {
                self.own.map(|times| times.at_least(low, high))
            }
        };
        self.due = None;
        Ok(())
    }
}

fn padding() -> Option<Cell> {
    Cell::new(CircuitId::CHANNEL, Command::PADDING, |_| {}).ok()
}

/// A channel's padder, and when it sent something last: whoever writes notes that without a lock.
#[derive(Debug)]
pub(super) struct Padding {
    padder: Mutex<Padder>,
    start: Instant,
    /// The last cell, in microseconds since `start`.
    sent: AtomicU64,
    changed: Notify,
}

impl Padding {
    /// For a channel that begins now.
    pub(super) fn new(end: PaddingEnd, mode: PaddingMode, parameters: &PaddingParameters) -> Self {
        Self {
            padder: Mutex::new(Padder::new(end, mode, parameters, &mut random_below)),
            start: Instant::now(),
            sent: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// Cells were sent.
    pub(super) fn sent(&self) {
        let micros = self.start.elapsed().as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.sent.store(micros, Relaxed);
    }

    /// The peer sent PADDING_NEGOTIATE. What cannot be read is as good as not sent.
    pub(super) fn negotiated(&self, cell: &Cell) -> Result<(), Why> {
        if let Ok(asked) = PaddingNegotiate::parse(&cell.body) {
            self.padder.lock().negotiated(asked)?;
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits until the channel, which carries so many circuits, is to send something; nothing is lost if nobody waits for it any longer.
    pub(super) async fn next(&self, circuits: impl Fn() -> usize) -> Cell {
        loop {
            match self.look(circuits()) {
                Look::Send(cell) => return cell,
                Look::At(when) => tokio::select! {
                    () = sleep_until(when) => {}
                    () = self.changed.notified() => {}
                },
                Look::Never => self.changed.notified().await,
            }
        }
    }

    fn look(&self, circuits: usize) -> Look {
        let sent = self.start + Duration::from_micros(self.sent.load(Relaxed));
        let mut padder = self.padder.lock();
        padder.look(Instant::now(), sent, circuits, &mut random_below)
    }
}

/// A number that nobody can guess, below `most`; zero where that is zero, or the system has no randomness.
fn random_below(most: u32) -> u32 {
    let mut bytes = [0; 8];
    let filled = SystemRandom::new().fill(&mut bytes);
    debug_assert!(filled.is_ok(), "the system has no randomness");
    // The bias is less than 2^-32.
    let number = u64::from_be_bytes(bytes) % u64::from(most.max(1));
    u32::try_from(number).unwrap_or(0)
}
