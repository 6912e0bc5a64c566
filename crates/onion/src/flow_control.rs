//! How much may be under way on a circuit from one of its ends to the other: fixed windows, or Vegas where both ends agreed on it.
//! `endpoint` asks before it sends, and tells what was sent and acknowledged. tor-spec "Flow control", proposals 289 and 324.

use std::{collections::VecDeque, time::Duration};

use hoplite_wire::cell::relay::SendmeTag;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use vegas::Vegas;

pub mod stream;
pub mod vegas;

/// What a peer did that the protocol does not allow; the circuit is closed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A SENDME for which no cells had been sent.
    #[error("a SENDME too many")]
    SendmeTooMany,
    /// A SENDME without the tag of the cell that it acknowledges.
    #[error("a SENDME with the wrong tag")]
    WrongTag,
    /// XON or XOFF without congestion control, or without reason.
    #[error("XON or XOFF without reason")]
    Xon,
    /// More DATA cells than the window allows.
    #[error("more cells than the window allows")]
    Window,
}

/// How the ends of a circuit agreed to hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// 1000 cells a circuit, 500 a stream.
    Fixed,
    /// Proposal 324; a SENDME for each this many cells.
    Vegas {
        /// DATA cells that one SENDME acknowledges.
        increment: u8,
    },
}

/// The sending side of a circuit's flow control.
#[derive(Debug)]
pub struct Outgoing {
    window: Window,
    /// Of the cells whose SENDMEs are still to come, oldest first: their tag and when they left. Bounded by the window.
    awaited: VecDeque<(SendmeTag, Instant)>,
    /// Cells since the last of those.
    since: u32,
}

#[derive(Debug)]
enum Window {
    Fixed(Fixed),
    Vegas(Box<Vegas>),
}

/// The receiving side: when a SENDME is due, and whether the peer keeps to its window.
#[derive(Debug)]
pub struct Incoming {
    increment: u32,
    since: u32,
    /// DATA cells that have come.
    count: u64,
    /// Cells that the peer may still send, where that is known.
    allowed: Option<u32>,
}

impl Control {
    /// DATA cells that one SENDME acknowledges.
    pub fn increment(self) -> u32 {
        match self {
            Self::Fixed => CIRCUIT_INCREMENT,
            Self::Vegas { increment } => u32::from(increment),
        }
    }
}

impl Outgoing {
    /// A circuit on which nothing has been sent.
    pub fn new(control: Control) -> Self {
        let window = match control {
            Control::Fixed => Window::Fixed(Fixed::circuit()),
            Control::Vegas { increment } => {
                let parameters = vegas::Parameters::with_increment(increment);
                Window::Vegas(Box::new(Vegas::new(parameters)))
            }
        };
        Self::over(window)
    }

    /// A circuit between a client and an onion service on which nothing has been sent.
    pub fn to_service(control: Control) -> Self {
        match control {
            Control::Fixed => Self::new(control),
            Control::Vegas { increment } => {
                let parameters = vegas::Parameters::with_increment(increment).to_service();
                Self::over(Window::Vegas(Box::new(Vegas::new(parameters))))
            }
        }
    }

    /// The channel, and those behind it, hold each circuit back by itself ([`Vegas::set_backpressure`]); before anything was sent.
    pub fn set_backpressure(&mut self) {
        if let Window::Vegas(vegas) = &mut self.window {
            vegas.set_backpressure();
        }
    }

    fn over(window: Window) -> Self {
        Self {
            window,
            awaited: VecDeque::new(),
            since: 0,
        }
    }

    /// Whether one more DATA cell may leave.
    pub(crate) fn may_send(&self) -> bool {
        match &self.window {
            Window::Fixed(window) => window.may_send(),
            Window::Vegas(vegas) => vegas.may_send(),
        }
    }

    /// A DATA cell with this tag has left.
    pub fn sent(&mut self, tag: SendmeTag, now: Instant) {
        match &mut self.window {
            Window::Fixed(window) => window.sent(),
            Window::Vegas(vegas) => vegas.sent(),
        }
        self.since = self.since.saturating_add(1);
        if self.since >= self.increment() {
            self.since = 0;
            self.awaited.push_back((tag, now));
        }
    }

    /// A SENDME has come; `blocked` says that the channel holds the circuit back ([`Pressure`]).
    ///
    /// # Errors
    /// [`Violation`]: the circuit must be closed.
    pub fn acknowledged(
        &mut self,
        tag: Option<SendmeTag>,
        now: Instant,
        blocked: bool,
    ) -> Result<(), Violation> {
        let (expected, at) = self.awaited.pop_front().ok_or(Violation::SendmeTooMany)?;
        // tor-spec "Circuit-level flow control": a SENDME MUST be version 1, and its tag MUST match.
        // In constant time: who guesses learns nothing by how long it took.
        let right = tag.is_some_and(|tag| tag.as_bytes().ct_eq(expected.as_bytes()).into());
        if !right {
            return Err(Violation::WrongTag);
        }
        match &mut self.window {
            Window::Fixed(window) => window.acknowledged()?,
            Window::Vegas(vegas) => vegas.acknowledged(now.saturating_duration_since(at), blocked),
        }
        Ok(())
    }

    /// The round trip, as congestion control has measured it so far.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        match &self.window {
            Window::Fixed(_) => None,
            Window::Vegas(vegas) => vegas.round_trip(),
        }
    }

    /// Whether as many DATA cells are under way as one SENDME acknowledges.
    pub(crate) fn carries(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The congestion window, in cells.
    pub fn window(&self) -> u32 {
        match &self.window {
            Window::Fixed(_) => CIRCUIT_WINDOW,
            Window::Vegas(vegas) => vegas.window(),
        }
    }

    fn increment(&self) -> u32 {
        match &self.window {
            Window::Fixed(_) => CIRCUIT_INCREMENT,
            Window::Vegas(vegas) => vegas.increment(),
        }
    }
}

impl Incoming {
    /// A circuit on which nothing has been received.
    pub fn new(control: Control) -> Self {
        Self {
            increment: control.increment(),
            since: 0,
            count: 0,
            allowed: (control == Control::Fixed).then_some(CIRCUIT_WINDOW),
        }
    }

    /// A DATA cell has come; answers whether a SENDME is due for it.
    ///
    /// # Errors
    /// [`Violation::Window`].
    pub fn received(&mut self) -> Result<bool, Violation> {
        if let Some(allowed) = &mut self.allowed {
            *allowed = allowed.checked_sub(1).ok_or(Violation::Window)?;
        }
        self.count = self.count.saturating_add(1);
        self.since = self.since.saturating_add(1);
        let due = self.since >= self.increment;
        if due {
            self.since = 0;
        }
        Ok(due)
    }

    /// DATA cells that have come.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// DATA cells that the peer may have on their way when it reads what is said now: its window. With congestion control it is not known; but it
    /// begins with `cc_cwnd_init` and grows by no more than what was acknowledged (`cc_cwnd_inc_pct_ss`), of which the peer may have other values:
    /// twice as many are believed.
    pub fn under_way(&self) -> u64 {
        let initial = u64::from(vegas::Parameters::default().initial);
        match self.allowed {
            Some(_) => CIRCUIT_WINDOW.into(),
            None => (2 * self.count.saturating_add(initial)).min(vegas::LARGEST.into()),
        }
    }

    /// That SENDME has left: this many more cells may come.
    pub fn acknowledged(&mut self) {
        if let Some(allowed) = &mut self.allowed {
            *allowed = allowed.saturating_add(self.increment);
        }
    }
}

#[cfg(test)]
mod tests;

// Fixed windows: this many cells before an acknowledgement, this many more for each. tor-spec "Flow control".

/// DATA cells under way on a circuit, at most.
pub(crate) const CIRCUIT_WINDOW: u32 = 1000;
/// DATA cells that one SENDME of a circuit acknowledges.
pub(crate) const CIRCUIT_INCREMENT: u32 = 100;
/// DATA cells under way on a stream, at most.
pub const STREAM_WINDOW: u32 = 500;
/// DATA cells that one SENDME of a stream acknowledges.
pub(crate) const STREAM_INCREMENT: u32 = 50;

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    left: u32,
    size: u32,
    increment: u32,
}

impl Fixed {
    /// The window of a circuit.
    pub fn circuit() -> Self {
        Self::new(CIRCUIT_WINDOW, CIRCUIT_INCREMENT)
    }

    /// The window of a stream.
    pub fn stream() -> Self {
        Self::new(STREAM_WINDOW, STREAM_INCREMENT)
    }

    fn new(size: u32, increment: u32) -> Self {
        Self {
            left: size,
            size,
            increment,
        }
    }

    /// Whether one more cell may leave.
    pub(crate) fn may_send(&self) -> bool {
        self.left > 0
    }

    /// A cell has left.
    pub fn sent(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// A SENDME has come.
    ///
    /// # Errors
    /// [`Violation::SendmeTooMany`]: the window would be larger than at the beginning.
    pub fn acknowledged(&mut self) -> Result<(), Violation> {
        let left = self.left.saturating_add(self.increment);
        if left > self.size {
            return Err(Violation::SendmeTooMany);
        }
        self.left = left;
        Ok(())
    }
}

// Whether the channel to the next relay holds a circuit back: Vegas takes that for a sign of congestion, as C tor
// does (proposal 324 §3.3). Each driver of a circuit has one. C tor asks whether 256 cells of the circuit wait. Here
// fewer may wait, and whoever fills the queue while the task that empties it has had no turn yet would see it full:
// so it is asked how long the queue stayed full.

/// So long has a queue to stay full. At 64 cells it drains more slowly than 26 Mbit/s then; what is faster is told by its round trip.
const LONG: Duration = Duration::from_millis(10);

/// How long the channel took nothing, now or the last time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    full_since: Option<Instant>,
    was_long: bool,
}

impl Pressure {
    /// The channel takes a cell, or takes none now.
    pub fn note(&mut self, ready: bool, now: Instant) {
        if !ready {
            self.full_since.get_or_insert(now);
        } else if let Some(since) = self.full_since.take() {
            self.was_long = now.saturating_duration_since(since) >= LONG;
        }
    }

    /// Whether it holds the circuit back: its queue is full, and was for long now or the last time that it was.
    pub fn holds(&self, now: Instant) -> bool {
        self.full_since
            .is_some_and(|since| self.was_long || now.saturating_duration_since(since) >= LONG)
    }
}

#[cfg(test)]
mod pressure_tests {
    use super::*;

    #[test]
    fn a_queue_that_is_emptied_at_once_is_no_sign_of_congestion() {
        let mut now = Instant::now();
        let mut pressure = Pressure::default();
        for _ in 0..100 {
            pressure.note(false, now);
            assert!(!pressure.holds(now));
            now += Duration::from_millis(1);
            pressure.note(true, now);
            assert!(!pressure.holds(now));
        }
    }

    #[test]
    fn a_queue_that_stays_full_is_one_and_so_is_the_next_time_at_once() {
        let mut now = Instant::now();
        let mut pressure = Pressure::default();
        pressure.note(false, now);
        now += LONG;
        pressure.note(false, now);
        assert!(pressure.holds(now));
        pressure.note(true, now);
        assert!(!pressure.holds(now), "there is room");
        pressure.note(false, now);
        assert!(pressure.holds(now), "full again, and slow the last time");
        now += Duration::from_millis(1);
        pressure.note(true, now);
        pressure.note(false, now);
        assert!(!pressure.holds(now), "it was quick the last time");
    }
}
