//! How much may be under way on a circuit from one of its ends to the other: fixed windows, or Vegas where both ends agreed on it.
//! `edge` asks before it sends, and tells what was sent and acknowledged. tor-spec "Flow control", proposals 289 and 324.

pub mod fixed;
pub mod pressure;
pub mod rtt;
pub mod stream;
pub mod vegas;

use std::collections::VecDeque;

use subtle::ConstantTimeEq;
use tokio::time::Instant;

use self::{fixed::Fixed, vegas::Vegas};

/// What authenticates an acknowledgement: the running digest after the cell that it acknowledges.
pub type Digest = [u8; 20];

/// What a peer did that the protocol does not allow; the circuit is closed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A SENDME for which no cells had been sent.
    #[error("a SENDME too many")]
    SendmeTooMany,
    /// A SENDME without the digest of the cell that it acknowledges.
    #[error("a SENDME with the wrong digest")]
    WrongDigest,
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
    /// Proposal 324; a SENDME for each so many cells.
    Vegas {
        /// DATA cells that one SENDME acknowledges.
        increment: u8,
    },
}

/// The sending side of a circuit's flow control.
#[derive(Debug)]
pub struct Outgoing {
    window: Window,
    /// Of the cells whose SENDMEs are still to come, oldest first: their digest and when they left. Bounded by the window.
    awaited: VecDeque<(Digest, Instant)>,
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
            Self::Fixed => fixed::CIRCUIT_INCREMENT,
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
        Self {
            window,
            awaited: VecDeque::new(),
            since: 0,
        }
    }

    /// Whether one more DATA cell may leave.
    pub fn may_send(&self) -> bool {
        match &self.window {
            Window::Fixed(window) => window.may_send(),
            Window::Vegas(vegas) => vegas.may_send(),
        }
    }

    /// A DATA cell has left; `digest` is the running digest after it.
    pub fn sent(&mut self, digest: Digest, now: Instant) {
        match &mut self.window {
            Window::Fixed(window) => window.sent(),
            Window::Vegas(vegas) => vegas.sent(),
        }
        self.since = self.since.saturating_add(1);
        if self.since >= self.increment() {
            self.since = 0;
            self.awaited.push_back((digest, now));
        }
    }

    /// A SENDME has come; `blocked` says that the channel holds the circuit back ([`pressure::Pressure`]).
    ///
    /// # Errors
    /// [`Violation`]: the circuit must be closed.
    pub fn acknowledged(
        &mut self,
        digest: Option<Digest>,
        now: Instant,
        blocked: bool,
    ) -> Result<(), Violation> {
        let (expected, at) = self.awaited.pop_front().ok_or(Violation::SendmeTooMany)?;
        // tor-spec "Circuit-level flow control": a SENDME MUST be version 1, and its digest MUST match.
        // In constant time: who guesses learns nothing by how long it took.
        let right = digest.is_some_and(|digest| digest.ct_eq(&expected).into());
        if !right {
            return Err(Violation::WrongDigest);
        }
        match &mut self.window {
            Window::Fixed(window) => window.acknowledged()?,
            Window::Vegas(vegas) => vegas.acknowledged(now.saturating_duration_since(at), blocked),
        }
        Ok(())
    }

    /// The congestion window, in cells.
    pub fn window(&self) -> u32 {
        match &self.window {
            Window::Fixed(_) => fixed::CIRCUIT_WINDOW,
            Window::Vegas(vegas) => vegas.window(),
        }
    }

    fn increment(&self) -> u32 {
        match &self.window {
            Window::Fixed(_) => fixed::CIRCUIT_INCREMENT,
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
            allowed: (control == Control::Fixed).then_some(fixed::CIRCUIT_WINDOW),
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
            Some(_) => fixed::CIRCUIT_WINDOW.into(),
            None => (2 * self.count.saturating_add(initial)).min(vegas::LARGEST.into()),
        }
    }

    /// That SENDME has left: so many more cells may come.
    pub fn acknowledged(&mut self) {
        if let Some(allowed) = &mut self.allowed {
            *allowed = allowed.saturating_add(self.increment);
        }
    }
}

#[cfg(test)]
mod tests;
