//! Wishes and grants as the value of a setting: 62 bits, of which the highest three are zero in this version.
//! A value of another version, or of one that means nothing, is read as if there were none: such a peer is treated as a plain one.

use std::time::Duration;

use super::{Acks, Congestion, DELAYS, Grants, Share, Wishes};

/// How many bits an [`Acks`] takes: two for its kind, 18 for microseconds or thousandths.
const BITS: u32 = 20;
const NUMBER: u64 = (1 << 18) - 1;
const DELAY: u64 = 1;
const SHARE: u64 = 2;

const NAMES: [Acks; 4] = [Acks::Auto, Acks::Default, Acks::Extension, Acks::Never];
const CONTROLS: [Congestion; 5] = [
    Congestion::Auto,
    Congestion::Cubic,
    Congestion::Bbr,
    Congestion::NewReno,
    Congestion::Off,
];

/// Where each part of a value begins, in bits.
mod at {
    pub(super) const DOWN: u32 = super::BITS;
    pub(super) const AFTER: u32 = 2 * super::BITS;
    pub(super) const CONGESTION: u32 = AFTER + 16;
    pub(super) const NO_ACKS: u32 = super::BITS;
}

impl Acks {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::After(delay) => (DELAY, u64::try_from(delay.as_micros()).unwrap_or(NUMBER)),
            Self::Share(Share(thousandths)) => (SHARE, u64::from(thousandths)),
            name => (0, position(&NAMES, name)),
        };
        kind << 18 | number.min(NUMBER)
    }

    fn decode(code: u64) -> Option<Self> {
        let (kind, number) = (code >> 18 & 3, code & NUMBER);
        match kind {
            0 => NAMES.get(usize::try_from(number).ok()?).copied(),
            DELAY => {
                let delay = Duration::from_micros(number);
                DELAYS.contains(&delay).then_some(Self::After(delay))
            }
            SHARE => Share::new(u16::try_from(number).ok()?).map(Self::Share),
            _ => None,
        }
    }
}

fn position<T: PartialEq + Copy>(all: &[T], one: T) -> u64 {
    let found = all.iter().position(|other| *other == one);
    found.and_then(|at| u64::try_from(at).ok()).unwrap_or(0)
}

impl Wishes {
    /// The setting's value.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.up.encode()
            | self.down.encode() << at::DOWN
            | u64::from(self.after) << at::AFTER
            | position(&CONTROLS, self.congestion) << at::CONGESTION
    }

    /// What a setting's value asks for; `None` for one that means nothing here.
    #[must_use]
    pub fn decode(value: u64) -> Option<Self> {
        let control = usize::try_from(value >> at::CONGESTION).ok()?;
        Some(Self {
            up: Acks::decode(value)?,
            down: Acks::decode(value >> at::DOWN)?,
            after: u16::try_from(value >> at::AFTER & 0xffff).ok()?,
            congestion: CONTROLS.get(control).copied()?,
        })
    }
}

impl Grants {
    /// The setting's value.
    #[must_use]
    pub fn encode(self) -> u64 {
        self.acks.encode() | u64::from(self.no_acks) << at::NO_ACKS
    }

    /// What a setting's value grants; `None` for one that means nothing here.
    #[must_use]
    pub fn decode(value: u64) -> Option<Self> {
        let no_acks = match value >> at::NO_ACKS {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            acks: Acks::decode(value)?,
            no_acks,
        })
    }
}
