//! The running SHA-1 of one direction, seeded by the handshake, and the fields of a relay cell that carry it. `layer` uses it.
//! tor-spec, "Relay cells": the digest covers "all data destined for this hop", with the digest field itself zero.

use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq;

use super::{BODY, Digest};

/// The state after all cells that were meant for this hop, or said by it. It is wiped when dropped.
#[derive(Clone)]
pub(super) struct Running(Sha1);

/// What stands in a body: command, recognized, stream, digest, and the rest.
const RECOGNIZED: usize = 1;
const DIGEST: usize = 5;

impl Running {
    pub(super) fn new(seed: &[u8; 20]) -> Self {
        Self(Sha1::new_with_prefix(seed))
    }

    /// Fills in the recognized and digest fields of a body, and counts it.
    pub(super) fn seal(&mut self, body: &mut [u8; BODY]) -> Digest {
        set(body, RECOGNIZED, [0; 2]);
        set(body, DIGEST, [0; 4]);
        self.0.update(&body[..]);
        let digest = self.digest();
        let [a, b, c, d, ..] = digest;
        set(body, DIGEST, [a, b, c, d]);
        digest
    }

    /// Counts a body if it is recognised: its recognized field is zero and its digest right. Else nothing has happened.
    pub(super) fn recognise(&mut self, body: &[u8; BODY]) -> Option<Digest> {
        let (head, shown, rest) = parts(body)?;
        if !matches!(head, [_, 0, 0, ..]) {
            return None;
        }
        let mut after = self.clone();
        after.0.update(head);
        after.0.update([0; 4]);
        after.0.update(rest);
        let digest = after.digest();
        let right: bool = digest.first_chunk::<4>()?.ct_eq(shown).into();
        right.then(|| {
            *self = after;
            digest
        })
    }

    fn digest(&self) -> Digest {
        self.0.clone().finalize().into()
    }
}

/// What is before the digest field, the field, and what is behind it.
fn parts(body: &[u8; BODY]) -> Option<(&[u8; DIGEST], &[u8; 4], &[u8])> {
    let (head, rest) = body.split_first_chunk()?;
    let (shown, rest) = rest.split_first_chunk()?;
    Some((head, shown, rest))
}

fn set<const N: usize>(body: &mut [u8; BODY], at: usize, value: [u8; N]) {
    if let Some(field) = body.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}
