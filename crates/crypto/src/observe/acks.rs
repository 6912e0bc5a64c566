//! When a connection acknowledges. The local stack is told by an ACK_FREQUENCY frame that is put before what it receives:
//! it obeys from the next packet on, the peer knows nothing of it, and no transport parameter is needed.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::BytesMut;
use hoplite_wire::quic::AckFrequency;

/// The shortest and the longest delay. Below, the QUIC stack closes the connection; above, the peer expects an answer before it comes
/// ("max_ack_delay", RFC 9000 §18.2), and probes for nothing.
const DELAYS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(25);

/// Above every number that a peer's own frames reach, so that a peer cannot overrule us.
const SEQUENCE: u64 = 1 << 40;

/// So many packets never wait: only the delay counts.
const NO_THRESHOLD: u64 = 1 << 30;

/// Packets out of order are still acknowledged at once (RFC 9000 §13.2.1).
const AT_ONCE: u64 = 1;

/// When what was received is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// As the QUIC stack does: every second packet, or after 25 ms.
    #[default]
    Default,
    /// So long after the first packet that wants it, however many come in between.
    After(Duration),
}

/// Not a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"default\" or a delay from \"1ms\" to \"25ms\"")]
pub struct NotAcks;

impl FromStr for Acks {
    type Err = NotAcks;

    fn from_str(text: &str) -> Result<Self, NotAcks> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let number = text.strip_suffix("ms").ok_or(NotAcks)?;
        let milliseconds: f64 = number.trim_end().parse().map_err(|_| NotAcks)?;
        let delay = Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(|_| NotAcks)?;
        match DELAYS.contains(&delay) {
            true => Ok(Self::After(delay)),
            false => Err(NotAcks),
        }
    }
}

impl fmt::Display for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::After(delay) => write!(f, "{}ms", delay.as_secs_f64() * 1000.0),
        }
    }
}

/// What is still to be told to the local stack of one connection.
#[derive(Debug)]
pub(super) struct Request {
    frame: Option<AckFrequency>,
    told: AtomicBool,
}

impl Request {
    pub(super) fn new(acks: Acks) -> Self {
        let frame = match acks {
            Acks::Default => None,
            Acks::After(delay) => Some(AckFrequency {
                sequence: SEQUENCE,
                threshold: NO_THRESHOLD,
                delay: u64::try_from(delay.as_micros()).unwrap_or(u64::MAX),
                reordering: AT_ONCE,
            }),
        };
        Self {
            told: AtomicBool::new(frame.is_none()),
            frame,
        }
    }

    /// Puts the request before the frames of the first packet that comes. Before, because a DATAGRAM frame may run to the packet's end.
    pub(super) fn tell(&self, payload: &mut BytesMut) {
        if self.told.load(Ordering::Relaxed) || self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(frame) = &self.frame else { return };
        let received = std::mem::take(payload);
        payload.reserve(received.len() + 34);
        frame.write(payload);
        payload.extend_from_slice(&received);
    }
}
