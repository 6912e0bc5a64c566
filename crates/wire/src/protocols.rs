//! Which of Tor's subprotocols a relay speaks, of those that circuits choose by. tor-spec "Subprotocol versioning".
//! A consensus of Tor says it in its `pr` lines ([`Protocols::of_tor`]), a descriptor of ours by `protocols`, a client's file by a relay's
//! key of that name (both by [`FromStr`]).

use std::{
    fmt::{self, Write},
    ops::BitOr,
    str::FromStr,
};

/// The subprotocol of a relay whose channels run over QUIC too, version 1. Proposal 264: "Extension keywords are allowed if they begin with "x-" or
/// "X-""; Tor's authorities vote and list it as it is.
pub const QUIC_CHANNELS: &str = "X-HopliteQuic";

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protocols(u8);

/// Each with the word that says it, in the order in which they are written.
const WORDS: [(Protocols, &str); 3] = [
    (Protocols::CONFLUX, "Conflux=1"),
    (Protocols::DATAGRAM, "Datagram=1"),
    (Protocols::CGO, "Relay=6"),
];

/// The text says no protocols, or not as they would be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected some of `Conflux=1 Datagram=1 Relay=6`, in this order")]
pub struct ProtocolsError;

impl Protocols {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Conflux (proposal 329): two circuits that carry the same streams.
    pub const CONFLUX: Self = Self(1);
    /// Counter Galois Onion (proposal 359), and that it can be asked for in the ntor-v3 handshake (proposal 346).
    pub const CGO: Self = Self(1 << 1);
    /// UDP streams (proposal 339).
    pub const DATAGRAM: Self = Self(1 << 2);

    /// What a `pr` line of a consensus says, of these; what else it says does not matter.
    pub fn of_tor(line: &str) -> Self {
        let all = [
            (Self::CONFLUX, speaks(line, "Conflux", 1)),
            (Self::DATAGRAM, speaks(line, "Datagram", 1)),
            // `Relay=5`: it can be asked for.
            (
                Self::CGO,
                speaks(line, "Relay", 5) && speaks(line, "Relay", 6),
            ),
        ];
        let spoken = all.into_iter().filter(|(_, spoken)| *spoken);
        spoken.fold(Self::NONE, |all, (one, _)| all | one)
    }

    /// Whether all of `others` are among them.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Those of them that are also among `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Protocols {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// Whether `Name=1-2,4` has this version.
pub(crate) fn speaks(protocols: &str, name: &str, version: u32) -> bool {
    let mut all = protocols.split_ascii_whitespace();
    let versions = all.find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
    includes(versions.unwrap_or_default(), version)
}

/// Whether `1-2,4` has this version.
pub(crate) fn includes(versions: &str, version: u32) -> bool {
    versions.split(',').any(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let between = |low: u32, high: u32| (low..=high).contains(&version);
        let parsed = (u32::from_str(low), u32::from_str(high));
        matches!(parsed, (Ok(low), Ok(high)) if between(low, high))
    })
}

/// At least one, each once, in order: what is read is what would be written.
impl FromStr for Protocols {
    type Err = ProtocolsError;

    fn from_str(text: &str) -> Result<Self, ProtocolsError> {
        let named = WORDS
            .iter()
            .filter(|(_, word)| text.split(' ').any(|found| found == *word));
        let found = named.fold(Self::NONE, |all, (one, _)| all | *one);
        let exact = !found.is_empty() && found.to_string() == text;
        exact.then_some(found).ok_or(ProtocolsError)
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spoken = WORDS.iter().filter(|(one, _)| self.has(*one));
        for (place, (_, word)) in spoken.enumerate() {
            if place > 0 {
                f.write_char(' ')?;
            }
            f.write_str(word)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_of_tor_speaks_cgo_only_if_it_can_also_be_asked_for_it() {
        let says = Protocols::of_tor;
        let both = Protocols::CGO | Protocols::CONFLUX;
        assert_eq!(says("Conflux=1 Cons=1-2 Relay=2-6"), both);
        assert_eq!(says("Link=5 Relay=2-4,5,6"), Protocols::CGO);
        for line in [
            "Relay=2-4,6",
            "Relay=1-5",
            "Relays=6",
            "Relay=",
            "Conflux=2",
        ] {
            assert_eq!(says(line), Protocols::NONE, "{line}");
        }
    }

    #[test]
    fn what_is_read_is_what_would_be_written() {
        for protocols in [
            Protocols::CGO,
            Protocols::CONFLUX,
            Protocols::CGO | Protocols::CONFLUX,
            Protocols::CGO | Protocols::CONFLUX | Protocols::DATAGRAM,
        ] {
            assert_eq!(protocols.to_string().parse(), Ok(protocols));
        }
        for wrong in [
            "",
            " Relay=6",
            "Relay=6 ",
            "Relay=6 Conflux=1",
            "Relay=6 Relay=6",
            "Relay=5-6",
            "Relay=6 Link=5",
            "Conflux=1  Relay=6",
        ] {
            assert_eq!(wrong.parse::<Protocols>(), Err(ProtocolsError), "{wrong}");
        }
    }
}
