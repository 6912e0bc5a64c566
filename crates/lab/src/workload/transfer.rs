//! What clients and servers of the lab say to each other over TCP, as values and, in `frames`, machines without I/O.
//! `tcp` drives them at both ends. A protocol of our own, in the spirit of TGen's: numbers are big-endian.
//!
//! ```text
//! client  head     64 octets   "HLAB", version, flags (1 to the server, 2 from it, 4 rounds), sizes, time, seed, token, rounds
//! server  answer   32 octets   "hlab", version, status, the address that the client came from, its token
//! both    payload  frames: a length of 4 octets, then as many octets (at most 65,536); 0 ends it; then SHA-256 of all payload
//! server  verdict  176 octets  what came of the client's payload: hash right or wrong, octets, when they came
//! ```
//! A side that sends nothing sends no frames, and a server that receives nothing gives no verdict. With both directions the
//! payloads go at the same time. In rounds the client sends its size in frames, the server answers with its own, and so on;
//! end and hash come once, after the last round. A payload for a time ends when its sender's time is over.

use std::net::{IpAddr, Ipv6Addr};

use super::progress::{PARTIAL, Passed};

mod frames;

pub use frames::Receiver;
pub(crate) use frames::Sender;

/// Octets of a head.
pub const HEAD: usize = 64;
/// Octets of an answer.
pub const ANSWER: usize = 32;
/// Octets of a verdict.
pub const VERDICT: usize = 176;

const VERSION: u8 = 1;
const MAGIC: &[u8; 4] = b"HLAB";
const ANSWER_MAGIC: &[u8; 4] = b"hlab";

/// What a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Whether it sends; how much: octets, 0 for as long as `time` (in rounds: of each).
    pub up: Option<u64>,
    /// Whether it receives; how much.
    pub down: Option<u64>,
    /// Microseconds for sizes of 0.
    pub time: u64,
    /// Seeds the payloads.
    pub seed: u64,
    /// Comes back in the answer.
    pub token: u64,
    /// 0: both directions at once; else so many times there and back.
    pub rounds: u32,
}

/// How the server takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It goes on with payload.
    Fine,
    /// The head is none.
    Unreadable,
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it goes on.
    pub status: Status,
    /// Where the client seems to be.
    pub seen_as: IpAddr,
    /// From the head.
    pub token: u64,
}

/// What a server says of the payload that it received. Times are microseconds of the machine's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether the hash was right.
    pub(crate) right: bool,
    /// What came, and when.
    pub(crate) passed: Passed,
}

/// Why octets are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Not this protocol.
    #[error("this is not the lab's transfer protocol")]
    Magic,
    /// Another version of it.
    #[error("the other end speaks version {0} of the transfer protocol")]
    Version(u8),
    /// A field that cannot be.
    #[error("a field of the head cannot be: {0}")]
    Field(&'static str),
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let short = Unreadable::Field("it is cut short");
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn octet(&mut self) -> Result<u8, Unreadable> {
        self.array::<1>().map(|[octet]| octet)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_be_bytes)
    }

    fn magic(&mut self, magic: &[u8; 4]) -> Result<(), Unreadable> {
        if &self.array::<4>()? != magic {
            return Err(Unreadable::Magic);
        }
        match self.octet()? {
            VERSION => Ok(()),
            other => Err(Unreadable::Version(other)),
        }
    }
}

impl Head {
    /// Reads a head.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn parse(octets: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(octets);
        fields.magic(MAGIC)?;
        let flags = fields.octet()?;
        let [0, 0] = fields.array()? else {
            return Err(Unreadable::Field("reserved octets are not 0"));
        };
        let (up, down) = (fields.number()?, fields.number()?);
        let (time, seed, token) = (fields.number()?, fields.number()?, fields.number()?);
        let rounds = u32::from_be_bytes(fields.array()?);
        let head = Self {
            up: (flags & 1 != 0).then_some(up),
            down: (flags & 2 != 0).then_some(down),
            time,
            seed,
            token,
            rounds,
        };
        head.check(flags, [up, down]).map(|()| head)
    }

    fn check(&self, flags: u8, sizes: [u64; 2]) -> Result<(), Unreadable> {
        let sides = [self.up, self.down];
        let idle = sides
            .iter()
            .zip(sizes)
            .any(|(side, size)| side.is_none() && size != 0);
        let endless = sides.contains(&Some(0)) && self.time == 0;
        let rounds = self.rounds > 0;
        let half = rounds && sides.iter().any(|side| !matches!(side, Some(1..)));
        match () {
            () if flags > 7 => Err(Unreadable::Field("unknown flags")),
            () if idle => Err(Unreadable::Field("a size of a side that does not send")),
            () if endless => Err(Unreadable::Field("neither a size nor a time")),
            () if sides == [None, None] => Err(Unreadable::Field("nobody sends")),
            () if rounds != (flags & 4 != 0) => Err(Unreadable::Field("the number of rounds")),
            () if half => Err(Unreadable::Field("a round without a size each way")),
            () => Ok(()),
        }
    }

    /// Its octets.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let flags =
            flag(self.up.is_some(), 1) | flag(self.down.is_some(), 2) | flag(self.rounds > 0, 4);
        let mut out = Vec::with_capacity(HEAD);
        out.extend_from_slice(MAGIC);
        out.extend([VERSION, flags, 0, 0]);
        let sizes = [self.up.unwrap_or(0), self.down.unwrap_or(0)];
        let numbers = [self.time, self.seed, self.token];
        out.extend(sizes.iter().chain(&numbers).flat_map(|n| n.to_be_bytes()));
        out.extend(self.rounds.to_be_bytes());
        out.resize(HEAD, 0);
        out
    }
}

impl Answer {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn parse(octets: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(octets);
        fields.magic(ANSWER_MAGIC)?;
        let status = match fields.octet()? {
            0 => Status::Fine,
            1 => Status::Unreadable,
            _ => return Err(Unreadable::Field("unknown status")),
        };
        fields.array::<2>()?;
        let seen_as = IpAddr::from(Ipv6Addr::from(fields.array::<16>()?)).to_canonical();
        let token = fields.number()?;
        Ok(Self {
            status,
            seen_as,
            token,
        })
    }

    /// Its octets.
    #[must_use]
    pub fn emit(&self) -> [u8; ANSWER] {
        let mut out = [0; ANSWER];
        let (head, rest) = out.split_at_mut(8);
        head[..4].copy_from_slice(ANSWER_MAGIC);
        head[4] = VERSION;
        head[5] = self.status as u8;
        rest[..16].copy_from_slice(&six(self.seen_as).octets());
        rest[16..].copy_from_slice(&self.token.to_be_bytes());
        out
    }
}

fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

impl Verdict {
    /// Reads a verdict.
    pub(crate) fn parse(octets: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(octets);
        let [right, _, _, _, _, _, _, _] = fields.array()?;
        let octets = fields.number()?;
        let some = |stamp: u64| (stamp != 0).then_some(stamp);
        let (first, last) = (some(fields.number()?), some(fields.number()?));
        let mut stamps = [0; 18];
        for stamp in &mut stamps {
            *stamp = fields.number()?;
        }
        let (deciles, partial) = stamps.split_at(9);
        let there = |stamps: &[u64]| stamps.iter().take_while(|at| **at != 0).count();
        let deciles = deciles[..there(deciles)].to_vec();
        let sizes = PARTIAL.iter().zip(partial).take(there(partial));
        let passed = Passed {
            octets,
            first,
            last,
            deciles,
            partial: sizes.map(|(size, at)| (*size, *at)).collect(),
        };
        let right = right == 1;
        Ok(Self { right, passed })
    }

    /// Its octets. A time that is not known is 0.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let passed = &self.passed;
        let mut out = vec![u8::from(self.right), 0, 0, 0, 0, 0, 0, 0];
        let ends = [
            passed.octets,
            passed.first.unwrap_or(0),
            passed.last.unwrap_or(0),
        ];
        let filled = |stamps: &mut dyn Iterator<Item = u64>| {
            let mut nine = [0_u64; 9];
            nine.iter_mut()
                .zip(stamps)
                .for_each(|(to, from)| *to = from);
            nine
        };
        let deciles = filled(&mut passed.deciles.iter().copied());
        let partial = filled(&mut passed.partial.iter().map(|point| point.1));
        let numbers = ends.iter().chain(&deciles).chain(&partial);
        out.extend(numbers.flat_map(|number| number.to_be_bytes()));
        out
    }
}

#[cfg(test)]
mod tests;
