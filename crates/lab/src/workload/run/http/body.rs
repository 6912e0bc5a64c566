//! Bodies: payload and its SHA-256 behind it. Servers draw one, clients check one. Every version of HTTP carries the same bytes.

use bytes::{Bytes, BytesMut};
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::workload::{
    Fault, TransferError,
    transfer::{PIECE, Payload},
};

/// Bytes of the hash.
const HASH: u64 = SHA256_OUTPUT_LEN as u64;

/// Bytes of a whole body.
pub(super) const fn length(octets: u64) -> u64 {
    octets.saturating_add(HASH)
}

/// A body that is drawn piece by piece.
pub(super) struct Body {
    payload: Payload,
    hash: Option<Context>,
    left: u64,
    buffer: BytesMut,
}

impl Body {
    pub(super) fn new(octets: u64, seed: u64) -> Self {
        Self {
            payload: Payload::new(seed),
            hash: Some(Context::new(&SHA256)),
            left: octets,
            buffer: BytesMut::new(),
        }
    }

    /// The next piece; the hash is on the last one.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.hash.as_ref()?;
        let len = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE);
        self.buffer.resize(len, 0);
        self.payload.fill(&mut self.buffer);
        self.left -= len as u64;
        self.hash.as_mut()?.update(&self.buffer);
        if self.left == 0 {
            let hash = self.hash.take()?.finish();
            self.buffer.extend_from_slice(hash.as_ref());
        }
        Some(self.buffer.split().freeze())
    }

    /// Whether nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.hash.is_none()
    }
}

/// A body that is checked as it comes.
pub(super) struct Check {
    hash: Context,
    octets: u64,
    left: u64,
    told: Vec<u8>,
}

impl Check {
    /// A body of so many bytes of payload.
    pub(super) fn new(octets: u64) -> Self {
        Self {
            hash: Context::new(&SHA256),
            octets,
            left: octets,
            told: Vec::with_capacity(SHA256_OUTPUT_LEN),
        }
    }

    /// Takes what came; answers with how many bytes of it are payload.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<u64, TransferError> {
        let payload = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(input.len());
        let (payload, rest) = input.split_at(payload);
        self.hash.update(payload);
        self.left -= payload.len() as u64;
        if self.told.len() + rest.len() > SHA256_OUTPUT_LEN {
            return Err(Fault::Read.because("more came than was asked for"));
        }
        self.told.extend_from_slice(rest);
        Ok(payload.len() as u64)
    }

    /// Bytes that were right.
    pub(super) fn finish(self) -> Result<u64, TransferError> {
        if self.told.len() < SHA256_OUTPUT_LEN {
            return Err(Fault::Closed.because("the body ended too early"));
        }
        if self.hash.finish().as_ref() == self.told {
            Ok(self.octets)
        } else {
            Err(Fault::Checksum.because("the hash of the body is wrong"))
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} octets left)", self.left)
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Check({} octets left)", self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(octets: u64) -> Vec<u8> {
        let mut body = Body::new(octets, 9);
        std::iter::from_fn(|| body.next()).flatten().collect()
    }

    #[test]
    fn a_body_of_any_size_is_found_right_however_it_is_cut() {
        for octets in [0, 1, 65_535, 65_536, 200_000] {
            let body = drawn(octets);
            for cut in [1, 7, 1000, 1_000_000] {
                let mut check = Check::new(octets);
                let payload: u64 = body
                    .chunks(cut)
                    .map(|piece| check.take(piece).unwrap())
                    .sum();
                assert_eq!(payload, octets);
                assert_eq!(check.finish(), Ok(octets));
            }
        }
    }

    #[test]
    fn a_body_that_was_changed_or_cut_or_is_too_long_is_found_wrong() {
        let check = |body: &[u8]| {
            let mut check = Check::new(1000);
            check.take(body)?;
            check.finish()
        };
        let mut body = drawn(1000);
        assert_eq!(check(&body[..1031]).unwrap_err().kind, "CLOSED");
        body[500] ^= 1;
        assert_eq!(check(&body).unwrap_err().kind, "CHECKSUM");
        body.push(0);
        assert_eq!(check(&body).unwrap_err().kind, "READ");
    }
}
