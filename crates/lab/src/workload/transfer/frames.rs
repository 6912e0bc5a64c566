//! The payload of a transfer, cut into frames by its sender and put together by its receiver; both hash it. `transfer` has the layout.

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::workload::{
    TransferError,
    payload::{PIECE, Payload},
    trouble::Fault,
};

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
            hash: Context::new(&SHA256),
            frame: Vec::with_capacity(PIECE + 64),
        }
    }

    /// The next frame, with as much of `left` as it takes; with the end and the hash behind it if it is the `last`.
    /// Answers with the octets to write and how many of them are payload.
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

/// Takes frames apart and checks the hash at their end. Feed it as octets come, however they are cut.
pub struct Receiver {
    hash: Context,
    state: State,
    word: Vec<u8>,
    limit: u64,
    octets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length,
    Payload(usize),
    Hash,
    Over { right: bool },
}

impl Receiver {
    /// A receiver of at most `limit` octets.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            hash: Context::new(&SHA256),
            state: State::Length,
            word: Vec::with_capacity(SHA256_OUTPUT_LEN),
            limit,
            octets: 0,
        }
    }

    /// Octets of payload so far.
    #[must_use]
    pub fn octets(&self) -> u64 {
        self.octets
    }

    /// Whether the hash was right, once all has come.
    #[must_use]
    pub fn verdict(&self) -> Option<bool> {
        match self.state {
            State::Over { right } => Some(right),
            _ => None,
        }
    }

    /// Takes octets in; answers with how many of them it took (all, unless the payload has ended before).
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
        self.octets += now as u64;
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
        match self.octets + length as u64 > self.limit {
            true => Err(Fault::Read.because("more payload came than was asked for")),
            false => Ok(State::Payload(length)),
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receiver({:?}, {} octets)", self.state, self.octets)
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

#[cfg(test)]
mod tests;
