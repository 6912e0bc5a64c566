//! How much may be under way on one stream: fixed windows with SENDMEs, or XON/XOFF where the circuit has congestion control.
//! `endpoint` has one of each for every stream. tor-spec "Stream-level flow control", proposal 324 §4 (FLOW_CONTROL).
//!
//! XON is sent with the rate 0, which means that there is no limit, and the rate of an XON that comes is not kept to: §4.1.2 gives rates
//! so that XOFF and XON come seldom, and here one of each comes for 249,000 bytes at most. A sender that keeps to none stops at XOFF all the same.

use super::{Control, Fixed, STREAM_INCREMENT, STREAM_WINDOW, Violation};

/// Bytes of one full cell (`RELAY_PAYLOAD_SIZE`): the thresholds are multiples of it, counted in bytes, as C tor does.
const CELL: u64 = 498;
/// `cc_xoff_client` and `cc_xoff_exit`: bytes that wait for the program or the target when XOFF is sent.
pub const XOFF: u64 = 500 * CELL;
/// `cc_xon_rate`: bytes sent for each XON that may come.
const XON_RATE: u64 = 500 * CELL;

/// The sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// SENDMEs open the window.
    Window(Fixed),
    /// The peer says when to stop.
    Xon(Heard),
}

/// What the peer has said on a stream, and whether it had reason to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    stopped: bool,
    /// Bytes sent.
    sent: u64,
    xoffs: u64,
    xons: u64,
}

/// The receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// SENDMEs are due as cells are taken.
    Window {
        /// Cells that the peer may still send.
        allowed: u32,
        /// Cells taken since the last SENDME.
        taken: u32,
    },
    /// The peer is told when to stop.
    Xon {
        /// Whether it was.
        stopped: bool,
        /// Bytes that wait.
        waiting: u64,
        /// Bytes that may wait in all; a peer that ignores XOFF beyond it has broken the protocol.
        most: u64,
    },
}

/// What was taken by the program or the target at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Cells, fewer than a SENDME acknowledges.
    pub cells: u32,
    /// Their bytes.
    pub bytes: usize,
}

/// What is to be said to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControlMessage {
    /// A SENDME of the stream.
    Sendme,
    /// Stop.
    Xoff,
    /// Go on.
    Xon,
}

impl Outgoing {
    /// A new stream.
    pub fn new(control: Control) -> Self {
        match control {
            Control::Fixed => Self::Window(Fixed::stream()),
            Control::Vegas { .. } => Self::Xon(Heard::default()),
        }
    }

    /// Whether one more DATA cell may leave.
    pub(crate) fn may_send(&self) -> bool {
        match self {
            Self::Window(window) => window.may_send(),
            Self::Xon(heard) => !heard.stopped,
        }
    }

    /// A DATA cell with this many bytes has left.
    pub fn sent(&mut self, bytes: usize) {
        match self {
            Self::Window(window) => window.sent(),
            Self::Xon(heard) => {
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                heard.sent = heard.sent.saturating_add(bytes);
            }
        }
    }

    /// A SENDME of the stream has come.
    ///
    /// # Errors
    /// [`Violation::SendmeTooMany`]; with congestion control there are none at all.
    pub fn acknowledged(&mut self) -> Result<(), Violation> {
        match self {
            Self::Window(window) => window.acknowledged(),
            Self::Xon { .. } => Err(Violation::SendmeTooMany),
        }
    }

    /// XOFF or XON has come, at a client (`strict`) or at an exit.
    ///
    /// # Errors
    /// [`Violation::Xon`]: without congestion control there are none; XOFF was said already; or a client hears more of them than what it
    /// has sent can have brought about (§4.1.4: they could mark the circuit for somebody who watches it).
    pub fn told(&mut self, stop: bool, strict: bool) -> Result<(), Violation> {
        match self {
            Self::Window(_) => Err(Violation::Xon),
            Self::Xon(heard) => heard.told(stop, strict),
        }
    }
}

impl Heard {
    fn told(&mut self, stop: bool, strict: bool) -> Result<(), Violation> {
        if stop && self.stopped {
            return Err(Violation::Xon);
        }
        self.stopped = stop;
        let (count, each) = if stop {
            (&mut self.xoffs, XOFF)
        } else {
            (&mut self.xons, XOFF.min(XON_RATE))
        };
        *count = count.saturating_add(1);
        if strict && self.sent < count.saturating_mul(each) {
            Err(Violation::Xon)
        } else {
            Ok(())
        }
    }
}

impl Incoming {
    /// A new stream, of which as many bytes as `most` full cells have may wait in all.
    pub fn new(control: Control, most: u32) -> Self {
        match control {
            Control::Fixed => Self::Window {
                allowed: STREAM_WINDOW,
                taken: 0,
            },
            Control::Vegas { .. } => Self::Xon {
                stopped: false,
                waiting: 0,
                most: u64::from(most) * CELL,
            },
        }
    }

    /// A DATA cell with this many bytes has come.
    ///
    /// # Errors
    /// [`Violation::Window`]: more than the window, or than may wait.
    pub fn received(&mut self, bytes: usize) -> Result<Option<FlowControlMessage>, Violation> {
        match self {
            Self::Window { allowed, .. } => {
                *allowed = allowed.checked_sub(1).ok_or(Violation::Window)?;
                Ok(None)
            }
            Self::Xon {
                stopped,
                waiting,
                most,
            } => {
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                *waiting = waiting.saturating_add(bytes);
                if *waiting > *most {
                    return Err(Violation::Window);
                }
                let say = !*stopped && *waiting > XOFF;
                *stopped |= say;
                Ok(say.then_some(FlowControlMessage::Xoff))
            }
        }
    }

    /// The program or the target has taken bytes.
    pub fn taken(&mut self, what: Taken) -> Option<FlowControlMessage> {
        match self {
            Self::Window { allowed, taken } => {
                *taken = taken.saturating_add(what.cells);
                *taken = taken.checked_sub(STREAM_INCREMENT)?;
                *allowed = allowed.saturating_add(STREAM_INCREMENT);
                Some(FlowControlMessage::Sendme)
            }
            Self::Xon {
                stopped, waiting, ..
            } => {
                let bytes = u64::try_from(what.bytes).unwrap_or(u64::MAX);
                *waiting = waiting.saturating_sub(bytes);
                let say = *stopped && *waiting == 0;
                *stopped &= !say;
                say.then_some(FlowControlMessage::Xon)
            }
        }
    }
}
