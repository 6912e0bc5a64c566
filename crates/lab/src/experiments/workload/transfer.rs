//! What clients and servers of the lab say to each other over TCP, as values and as machines without I/O that cut a payload into frames, put it
//! together and hash it. A protocol of our own, in the spirit of TGen's: numbers are big-endian.
//!
//! ```text
//! client  head     64 bytes   "HLAB", version, flags (1 to the server, 2 from it, 4 rounds), sizes, time, seed, token, rounds
//! server  answer   32 bytes   "hlab", version, status, the address that the client came from, its token
//! both    payload  frames: a length of 4 bytes, then as many bytes (at most 65,536); 0 ends it; then SHA-256 of the seed and all payload
//! server  verdict  176 bytes  what came of the client's payload: hash right or wrong, bytes, when they came
//! ```
//! A side that sends nothing sends no frames, and a server that receives nothing gives no verdict. With both directions the
//! payloads go at the same time. In rounds the client sends its size in frames, the server answers with its own, and so on;
//! end and hash come once, after the last round. A payload for a time ends when its sender's time is over.
//!
//! Payload is `hoplite_workload::web`'s, and so is its hash: whoever gets the payload of another transfer, whole, finds it wrong too.

use std::net::{IpAddr, Ipv6Addr};

use hoplite_workload::web::{PIECE, Payload, begin_hash};
use ring::digest::{Context, SHA256_OUTPUT_LEN};

use super::{
    Fault, TransferError,
    progress::{PARTIAL, Passed},
};

/// Bytes of a head.
pub const HEAD: usize = 64;
/// Bytes of an answer.
pub const ANSWER: usize = 32;
/// Bytes of a verdict.
pub const VERDICT: usize = 176;

/// 2: the hash covers the seed.
const VERSION: u8 = 2;
const MAGIC: &[u8; 4] = b"HLAB";
const ANSWER_MAGIC: &[u8; 4] = b"hlab";

/// What a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Whether it sends; how much: bytes, 0 for as long as `time` (in rounds: of each).
    pub up: Option<u64>,
    /// Whether it receives; how much.
    pub down: Option<u64>,
    /// Microseconds for sizes of 0.
    pub time: u64,
    /// Seeds the payloads.
    pub seed: u64,
    /// Comes back in the answer.
    pub token: u64,
    /// 0: both directions at once; else this many times there and back.
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

/// Why bytes are not what they should be.
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

    fn byte(&mut self) -> Result<u8, Unreadable> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_be_bytes)
    }

    fn magic(&mut self, magic: &[u8; 4]) -> Result<(), Unreadable> {
        if &self.array::<4>()? != magic {
            return Err(Unreadable::Magic);
        }
        match self.byte()? {
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
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(bytes);
        fields.magic(MAGIC)?;
        let flags = fields.byte()?;
        let [0, 0] = fields.array()? else {
            return Err(Unreadable::Field("reserved bytes are not 0"));
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
        let faults = [
            (flags > 7, "unknown flags"),
            (idle, "a size of a side that does not send"),
            (endless, "neither a size nor a time"),
            (sides == [None, None], "nobody sends"),
            (rounds != (flags & 4 != 0), "the number of rounds"),
            (half, "a round without a size each way"),
        ];
        let fault = faults.into_iter().find(|(is, _)| *is);
        fault.map_or(Ok(()), |(_, why)| Err(Unreadable::Field(why)))
    }

    /// Its bytes.
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
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(bytes);
        fields.magic(ANSWER_MAGIC)?;
        let status = match fields.byte()? {
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

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ANSWER] {
        let mut out = [0; ANSWER];
        let (head, rest) = out.split_at_mut(8);
        head[..4].copy_from_slice(ANSWER_MAGIC);
        head[4] = VERSION;
        head[5] = self.status as u8;
        rest[..16].copy_from_slice(&mapped(self.seen_as).octets());
        rest[16..].copy_from_slice(&self.token.to_be_bytes());
        out
    }
}

/// As IPv6: an IPv4 address is mapped.
pub(super) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

impl Verdict {
    /// Reads a verdict.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut fields = Fields(bytes);
        let [right, _, _, _, _, _, _, _] = fields.array()?;
        let bytes = fields.number()?;
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
            bytes,
            first,
            last,
            deciles,
            partial: sizes.map(|(size, at)| (*size, *at)).collect(),
        };
        let right = right == 1;
        Ok(Self { right, passed })
    }

    /// Its bytes. A time that is not known is 0.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let passed = &self.passed;
        let mut out = vec![u8::from(self.right), 0, 0, 0, 0, 0, 0, 0];
        let ends = [
            passed.bytes,
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

/// Cuts payload into frames and hashes it.
pub(crate) struct Sender {
    payload: Payload,
    hash: Context,
    frame: Vec<u8>,
}

impl Sender {
    /// A sender of the payload of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            payload: Payload::new(seed),
            hash: begin_hash(seed),
            frame: Vec::with_capacity(PIECE + 64),
        }
    }

    /// The next frame, with as much of `left` as it takes; with the end and the hash behind it if it is the `last`.
    /// Answers with the bytes to write and how many of them are payload.
    pub(crate) fn frame(&mut self, left: u64, last: bool) -> (&[u8], u64) {
        let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        self.frame.clear();
        self.frame
            .extend(u32::try_from(len).unwrap_or(0).to_be_bytes());
        self.frame.resize(len + 4, 0);
        let payload = &mut self.frame[4..];
        self.payload.fill(payload);
        self.hash.update(payload);
        if last && len as u64 == left {
            self.append_end();
        }
        (&self.frame, len as u64)
    }

    /// The end and the hash, where they were not behind the last frame.
    pub(crate) fn end(&mut self) -> &[u8] {
        self.frame.clear();
        self.append_end();
        &self.frame
    }

    fn append_end(&mut self) {
        self.frame.extend([0; 4]);
        self.frame.extend(self.hash.clone().finish().as_ref());
    }
}

/// Takes frames apart and checks the hash at their end. Feed it as bytes come, however they are cut.
pub struct Receiver {
    hash: Context,
    state: State,
    word: Vec<u8>,
    limit: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length,
    Payload(usize),
    Hash,
    Over { right: bool },
}

impl Receiver {
    /// A receiver of at most `limit` bytes of the payload of a seed.
    #[must_use]
    pub fn new(limit: u64, seed: u64) -> Self {
        Self {
            hash: begin_hash(seed),
            state: State::Length,
            word: Vec::with_capacity(SHA256_OUTPUT_LEN),
            limit,
            bytes: 0,
        }
    }

    /// Bytes of payload so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the hash was right, once all has come.
    #[must_use]
    pub fn verdict(&self) -> Option<bool> {
        match self.state {
            State::Over { right } => Some(right),
            _ => None,
        }
    }

    /// Takes bytes in; answers with how many of them it took (all, unless the payload has ended before).
    ///
    /// # Errors
    /// A frame that is too long, or more payload than agreed.
    pub fn take(&mut self, input: &[u8]) -> Result<usize, TransferError> {
        let mut rest = input;
        while !rest.is_empty() && self.verdict().is_none() {
            let took = match self.state {
                State::Payload(left) => self.payload(rest, left),
                State::Hash => self.fill(rest, SHA256_OUTPUT_LEN),
                _ => self.fill(rest, 4),
            };
            rest = rest.get(took..).unwrap_or_default();
            self.turn()?;
        }
        Ok(input.len() - rest.len())
    }

    fn payload(&mut self, rest: &[u8], left: usize) -> usize {
        let now = rest.len().min(left);
        self.hash.update(&rest[..now]);
        self.bytes += now as u64;
        self.state = State::Payload(left - now);
        now
    }

    fn fill(&mut self, rest: &[u8], size: usize) -> usize {
        let now = rest.len().min(size - self.word.len());
        self.word.extend_from_slice(&rest[..now]);
        now
    }

    /// What is next, if something is complete.
    fn turn(&mut self) -> Result<(), TransferError> {
        self.state = match (self.state, self.word.as_slice()) {
            (State::Payload(0), _) => State::Length,
            (State::Length, [0, 0, 0, 0]) => State::Hash,
            (State::Length, [a, b, c, d]) => self.length(u32::from_be_bytes([*a, *b, *c, *d]))?,
            (State::Hash, word) if word.len() == SHA256_OUTPUT_LEN => State::Over {
                right: self.hash.clone().finish().as_ref() == word,
            },
            _ => return Ok(()),
        };
        self.word.clear();
        Ok(())
    }

    fn length(&self, length: u32) -> Result<State, TransferError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > PIECE {
            return Err(Fault::Read.because("a frame of the payload is too long"));
        }
        if self.bytes + length as u64 > self.limit {
            Err(Fault::Read.because("more payload came than was asked for"))
        } else {
            Ok(State::Payload(length))
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receiver({:?}, {} bytes)", self.state, self.bytes)
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_head_that_is_read_is_written_back_and_no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = bytes;
            bytes.iter_mut().zip(b"HLAB\x02\x03\0\0").for_each(|(to, from)| *to = *from);
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(Head::parse(&head.emit()), Ok(head));
            }
        }

        #[test]
        fn an_answer_is_read_as_written(ip: u32, token: u64) {
            let answer = Answer { status: Status::Unreadable, seen_as: std::net::Ipv4Addr::from(ip).into(), token };
            prop_assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        }

        #[test]
        fn no_bytes_make_a_verdict_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(verdict) = Verdict::parse(&bytes) {
                prop_assert!(verdict.passed.deciles.len() <= 9 && verdict.passed.partial.len() <= 9);
            }
        }
    }

    #[test]
    fn a_verdict_is_read_as_written() {
        let passed = Passed {
            bytes: 30_000,
            first: Some(5),
            last: Some(99),
            deciles: vec![6, 7, 8],
            partial: vec![(PARTIAL[0], 20), (PARTIAL[1], 30)],
        };
        let verdict = Verdict {
            right: true,
            passed,
        };
        let bytes = verdict.emit();
        assert_eq!(bytes.len(), VERDICT);
        assert_eq!(Verdict::parse(&bytes), Ok(verdict));
    }

    #[test]
    fn heads_that_make_no_sense_say_why() {
        let head = Head {
            up: Some(1),
            down: Some(1),
            rounds: 3,
            ..Head::default()
        };
        assert_eq!(Head::parse(&head.emit()), Ok(head));
        for (wrong, part) in [
            (Head { up: None, ..head }, "round"),
            (
                Head {
                    up: None,
                    down: None,
                    rounds: 0,
                    ..head
                },
                "nobody",
            ),
            (
                Head {
                    up: Some(0),
                    rounds: 0,
                    ..head
                },
                "time",
            ),
        ] {
            let error = Head::parse(&wrong.emit()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(Head::parse(b"GET / HTTP/1.1\r\n"), Err(Unreadable::Magic));
    }

    fn stream(seed: u64, sizes: &[u64]) -> Vec<u8> {
        let (mut sender, mut out) = (Sender::new(seed), Vec::new());
        for size in sizes {
            out.extend_from_slice(sender.frame(*size, false).0);
        }
        out.extend_from_slice(sender.end());
        out
    }

    proptest! {
        #[test]
        fn frames_are_understood_however_they_are_cut(sizes in proptest::collection::vec(1_u64..5000, 0..8), cut in 1_usize..700) {
            let bytes = stream(3, &sizes);
            let mut receiver = Receiver::new(u64::MAX, 3);
            for chunk in bytes.chunks(cut) {
                prop_assert_eq!(receiver.take(chunk), Ok(chunk.len()));
            }
            prop_assert_eq!(receiver.verdict(), Some(true));
            prop_assert_eq!(receiver.bytes(), sizes.iter().sum::<u64>());
        }

        #[test]
        fn one_changed_byte_of_payload_is_noticed(place in 4_usize..5000, bit in 0_u8..8) {
            let mut bytes = stream(3, &[5000]);
            bytes[place] ^= 1 << bit;
            let mut receiver = Receiver::new(u64::MAX, 3);
            receiver.take(&bytes).unwrap();
            prop_assert_eq!(receiver.verdict(), Some(false));
        }
    }

    #[test]
    fn the_payload_of_another_transfer_is_wrong_though_it_is_whole() {
        let mut receiver = Receiver::new(u64::MAX, 4);
        receiver.take(&stream(3, &[5000])).unwrap();
        assert_eq!(receiver.verdict(), Some(false));
    }

    #[test]
    fn what_comes_behind_the_end_is_left_alone() {
        let mut bytes = stream(1, &[10]);
        let len = bytes.len();
        bytes.extend([1, 2, 3]);
        assert_eq!(Receiver::new(10, 1).take(&bytes), Ok(len));
    }

    #[test]
    fn more_than_agreed_and_frames_that_are_too_long_are_refused() {
        let refused = |limit, bytes: &[u8]| Receiver::new(limit, 1).take(bytes).unwrap_err().why;
        assert_eq!(
            refused(9, &stream(1, &[10])),
            "more payload came than was asked for"
        );
        assert_eq!(
            refused(u64::MAX, &[0, 1, 0, 1]),
            "a frame of the payload is too long"
        );
    }

    #[test]
    fn the_last_frame_carries_the_end() {
        let mut sender = Sender::new(1);
        let (bytes, len) = sender.frame(100, true);
        assert_eq!((bytes.len(), len), (4 + 100 + 4 + 32, 100));
    }
}
