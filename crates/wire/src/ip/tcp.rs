//! The TCP header (RFC 9293 §3.1) and the options that are used here: MSS, and of RFC 7323 and RFC 2018 what a SYN offers.

use std::{fmt, ops::BitOr};

use super::{Malformed, be16};

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 20;

/// Where the checksum stands in the header.
pub const CHECKSUM_AT: usize = 16;

/// Where the flags stand in the header.
pub const FLAGS_AT: usize = 13;

/// The control bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

/// A segment as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The number of the first byte of the payload, or of the SYN.
    pub sequence: u32,
    /// The next byte that the sender expects, with ACK.
    pub acknowledgment: u32,
    /// The control bits.
    pub flags: Flags,
    /// How many bytes the sender takes, before scaling.
    pub window: u16,
    /// The urgent pointer, with URG.
    pub urgent: u16,
    /// The options that we know. A list that breaks off counts as far as it goes.
    pub options: Options,
    /// Where the payload begins.
    pub header_len: usize,
    /// The payload.
    pub payload: &'a [u8],
}

/// A header to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The number of the first byte of the payload, or of the SYN.
    pub sequence: u32,
    /// The next byte that the sender expects, with ACK.
    pub acknowledgment: u32,
    /// The control bits.
    pub flags: Flags,
    /// How many bytes the sender takes, before scaling.
    pub window: u16,
    /// The urgent pointer, with URG.
    pub urgent: u16,
    /// What goes behind the fixed part.
    pub options: Options,
}

impl Flags {
    /// The sender has no more data.
    pub const FIN: Self = Self(1);
    /// Sequence numbers begin.
    pub const SYN: Self = Self(2);
    /// The connection is gone.
    pub const RST: Self = Self(4);
    /// Hand it to the program at once.
    pub const PSH: Self = Self(8);
    /// The acknowledgment is valid.
    pub const ACK: Self = Self(16);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(32);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(64);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(128);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether one of `flags` is set.
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Without `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = |(bit, _): &(usize, &str)| self.0 >> bit & 1 == 1;
        let set = names.into_iter().enumerate().filter(set);
        let set: Vec<_> = set.map(|(_, name)| name).collect();
        f.write_str(&set.join("+"))
    }
}

/// The segment that an IP payload is.
///
/// # Errors
/// [`Malformed::Truncated`] or [`Malformed::Length`].
pub fn parse(bytes: &[u8]) -> Result<Segment<'_>, Malformed> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let header_len = usize::from(fixed[12] >> 4) * 4;
    if header_len < HEADER_LEN {
        return Err(Malformed::Length);
    }
    let options = bytes.get(HEADER_LEN..header_len);
    let options = options.ok_or(Malformed::Truncated)?;
    Ok(Segment {
        source: be16(fixed[0], fixed[1]),
        destination: be16(fixed[2], fixed[3]),
        sequence: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
        acknowledgment: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
        flags: Flags(fixed[FLAGS_AT]),
        window: be16(fixed[14], fixed[15]),
        urgent: be16(fixed[18], fixed[19]),
        options: Options::parse(options),
        header_len,
        payload: bytes.get(header_len..).unwrap_or_default(),
    })
}

impl Segment<'_> {
    /// Its header alone.
    pub fn header(&self) -> Header {
        Header {
            source: self.source,
            destination: self.destination,
            sequence: self.sequence,
            acknowledgment: self.acknowledgment,
            flags: self.flags,
            window: self.window,
            urgent: self.urgent,
            options: self.options,
        }
    }
}

impl Header {
    /// How many bytes [`Self::write`] appends.
    pub fn written_len(&self) -> usize {
        HEADER_LEN + self.options.written_len()
    }

    /// Appends the header; `checksum` is the finished one, or the pseudo header's sum.
    pub fn write(&self, checksum: u16, out: &mut Vec<u8>) {
        let words = u8::try_from(self.written_len() / 4).unwrap_or(15);
        out.extend_from_slice(&self.source.to_be_bytes());
        out.extend_from_slice(&self.destination.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.acknowledgment.to_be_bytes());
        out.extend_from_slice(&[words << 4, self.flags.0]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&checksum.to_be_bytes());
        out.extend_from_slice(&self.urgent.to_be_bytes());
        self.options.write(out);
    }
}

// TCP options: MSS (RFC 9293 §3.7.1), window scale and timestamps (RFC 7323), SACK permitted (RFC 2018). Others are skipped.

/// End of the list.
const END: u8 = 0;

/// Padding.
const NOTHING: u8 = 1;

const MSS: u8 = 2;

const WINDOW_SCALE: u8 = 3;

const SACK_PERMITTED: u8 = 4;

const TIMESTAMPS: u8 = 8;

/// RFC 7323 §2.3: a larger shift is read as this one.
const MAX_WINDOW_SCALE: u8 = 14;

/// The options that we know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest payload that the sender takes.
    pub mss: Option<u16>,
    /// By how many bits its windows are shifted, at most 14.
    pub window_scale: Option<u8>,
    /// Whether it takes selective acknowledgments.
    pub sack_permitted: bool,
    /// Its clock, and what it last heard of ours.
    pub timestamps: Option<(u32, u32)>,
}

impl Options {
    /// Reads a list as far as it goes: an option of an impossible length ends it.
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            bytes = match kind {
                END => break,
                NOTHING => rest,
                kind => {
                    let Some((value, rest)) = value(rest) else {
                        break;
                    };
                    options.take(kind, value);
                    rest
                }
            };
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let clocks = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
                self.timestamps = Some(clocks.into());
            }
            _ => {}
        }
    }

    /// How many bytes [`Self::write`] appends: whole words of four.
    pub fn written_len(&self) -> usize {
        let len = |there: bool, len: usize| if there { len } else { 0 };
        let all = len(self.mss.is_some(), 4)
            + len(self.window_scale.is_some(), 3)
            + len(self.sack_permitted, 2)
            + len(self.timestamps.is_some(), 10);
        all.next_multiple_of(4)
    }

    /// Appends them, and padding up to a whole word.
    pub fn write(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.written_len();
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[MSS, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.extend_from_slice(&[WINDOW_SCALE, 3, shift.min(MAX_WINDOW_SCALE)]);
        }
        if self.sack_permitted {
            out.extend_from_slice(&[SACK_PERMITTED, 2]);
        }
        if let Some((clock, heard)) = self.timestamps {
            out.extend_from_slice(&[TIMESTAMPS, 10]);
            out.extend_from_slice(&clock.to_be_bytes());
            out.extend_from_slice(&heard.to_be_bytes());
        }
        out.resize(end, END);
    }
}

/// The value of an option and what follows it; `rest` begins with its length, which counts the two bytes before the value.
fn value(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(len).checked_sub(2)?)
}
