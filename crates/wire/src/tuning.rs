//! How the two ends of a tunnel tune the connection between them: what the client wishes, what the relay grants, what follows.
//! The configuration files are read with it; `masque::h3` sends both as one private setting (no specification has it);
//! `crypto::observe` and `link` do what was agreed. "Up" is what the client sends, "down" what the relay sends.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod agreement;
mod code;
#[cfg(test)]
mod tests;

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

pub use agreement::{Agreed, Refused};

/// The shortest and the longest delay of an acknowledgement. Below, QUIC stacks refuse; above, timers of the sender fire in vain.
pub const DELAYS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(250);

/// The smallest and the largest share of a round trip, in thousandths.
const SHARES: RangeInclusive<u16> = 10..=4000;

/// When one end acknowledges what the other sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// As suits what the connection carries.
    #[default]
    Auto,
    /// As the QUIC stack does: every second packet, or after 25 ms.
    Default,
    /// So long after the first packet that wants it, however many come in between.
    After(Duration),
    /// After this share of the round trip.
    Share(Share),
    /// As the sender asks by ACK_FREQUENCY (draft-ietf-quic-ack-frequency).
    Extension,
    /// Datagrams are not acknowledged, but for a probe now and then; everything else is.
    Never,
}

/// A share of the round trip, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

/// Which congestion control the sender of a tunnel's packets has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// As suits what the connection carries: RFC 9438 where packets are acknowledged, none where they are not and no stream runs.
    #[default]
    Auto,
    /// RFC 9438.
    Cubic,
    /// A model of bandwidth and round trip.
    Bbr,
    /// RFC 9002 §7.
    NewReno,
    /// None, and no pacing: what the tunnel carries must control itself.
    Off,
}

/// Not a congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\", \"cubic\", \"bbr\", \"newreno\" or \"off\"")]
pub struct NotCongestion;

impl FromStr for Congestion {
    type Err = NotCongestion;

    fn from_str(text: &str) -> Result<Self, NotCongestion> {
        match text {
            "auto" => Ok(Self::Auto),
            "cubic" => Ok(Self::Cubic),
            "bbr" => Ok(Self::Bbr),
            "newreno" => Ok(Self::NewReno),
            "off" => Ok(Self::Off),
            _ => Err(NotCongestion),
        }
    }
}

/// What a client asks for. [`Default`] is what suits best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// When the relay acknowledges what the client sends.
    pub up: Acks,
    /// When the client acknowledges what the relay sends.
    pub down: Acks,
    /// A delay begins after so many packets: until then a connection learns what the road carries.
    pub after: u16,
    /// The congestion control of both ends.
    pub congestion: Congestion,
}

/// What a relay grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    /// When it acknowledges, whatever clients ask for; [`Acks::Auto`]: as they ask.
    pub acks: Acks,
    /// Whether datagrams may go without acknowledgement, and either end without congestion control.
    pub no_acks: bool,
}

/// Not a way to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected \"auto\", \"default\", \"extension\", \"none\", a delay from \"1ms\" to \"250ms\", or a share of the round trip from \"0.01rtt\" to \"4rtt\""
)]
pub struct NotAcks;

impl Default for Wishes {
    fn default() -> Self {
        Self {
            up: Acks::Auto,
            down: Acks::Auto,
            after: 100,
            congestion: Congestion::Auto,
        }
    }
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            acks: Acks::Auto,
            no_acks: true,
        }
    }
}

impl Wishes {
    /// The same wish for both directions; `"none-up"` is for studies: nothing that the client sends is acknowledged, the rest as usual.
    ///
    /// # Errors
    /// The text is none of those.
    pub fn both(text: &str) -> Result<(Acks, Acks), NotAcks> {
        match text {
            "none-up" => Ok((Acks::Never, Acks::Default)),
            _ => text.parse().map(|acks| (acks, acks)),
        }
    }
}

impl Share {
    /// Rare enough to be cheap, and soon enough that a sender goes on.
    pub const QUARTER: Self = Self(250);

    /// So much of this round trip.
    #[must_use]
    pub fn of(self, rtt: Duration) -> Duration {
        let share = rtt.saturating_mul(u32::from(self.0));
        share.checked_div(1000).unwrap_or_default()
    }

    fn new(thousandths: u16) -> Option<Self> {
        SHARES.contains(&thousandths).then_some(Self(thousandths))
    }
}

/// A share is one of a round trip of so much at most: what a delay may come to must be known before the round trip is.
const LONG_ROAD: Duration = Duration::from_millis(100);

/// What QUIC stacks allow when nothing else was said (RFC 9000 §18.2), and the most of an automatic delay.
const USUAL: Duration = Duration::from_millis(25);

impl Acks {
    /// How long an acknowledgement may be held back by this policy.
    #[must_use]
    pub fn longest(self) -> Duration {
        match self {
            Self::After(delay) => delay,
            Self::Share(share) => share.of(LONG_ROAD).clamp(USUAL, *DELAYS.end()),
            _ => USUAL,
        }
    }

    /// How long it is held back on a road with this round trip, if it is known; `None`: as the QUIC stack likes.
    #[must_use]
    pub fn delay(self, rtt: Option<Duration>) -> Option<Duration> {
        let delay = match self {
            Self::Default | Self::Extension => return None,
            Self::After(delay) => delay,
            Self::Share(share) => share.of(rtt?),
            Self::Auto | Self::Never => Share::QUARTER.of(rtt?),
        };
        Some(delay.min(self.longest()).max(*DELAYS.start()))
    }
}

impl FromStr for Acks {
    type Err = NotAcks;

    fn from_str(text: &str) -> Result<Self, NotAcks> {
        match text {
            "auto" => Ok(Self::Auto),
            "default" => Ok(Self::Default),
            "extension" => Ok(Self::Extension),
            "none" => Ok(Self::Never),
            _ => delay(text).or_else(|| share(text)).ok_or(NotAcks),
        }
    }
}

fn delay(text: &str) -> Option<Acks> {
    let milliseconds: f64 = text.strip_suffix("ms")?.trim_end().parse().ok()?;
    let delay = Duration::try_from_secs_f64(milliseconds / 1000.0).ok()?;
    DELAYS.contains(&delay).then_some(Acks::After(delay))
}

fn share(text: &str) -> Option<Acks> {
    let share: f64 = text.strip_suffix("rtt")?.trim_end().parse().ok()?;
    let thousandths = (share * 1000.0).round();
    let all = f64::from(*SHARES.start())..=f64::from(*SHARES.end());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within 16 bits"
    )]
    let share = all.contains(&thousandths).then_some(thousandths as u16)?;
    Share::new(share).map(Acks::Share)
}

impl fmt::Display for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Default => f.write_str("default"),
            Self::After(delay) => write!(f, "{}ms", delay.as_secs_f64() * 1000.0),
            Self::Share(share) => write!(f, "{}rtt", f64::from(share.0) / 1000.0),
            Self::Extension => f.write_str("extension"),
            Self::Never => f.write_str("none"),
        }
    }
}
