//! Takes octets off the front of a message that may not be complete yet.
//! The parsers of this folder use it.

use super::Unread;

/// What is left to read.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// How many octets of `input` are read.
    pub(super) fn consumed(&self, input: &[u8]) -> usize {
        input.len().saturating_sub(self.0.len())
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Unread> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unread::More)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Unread> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Unread::More)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn octet(&mut self) -> Result<u8, Unread> {
        self.array::<1>().map(|[octet]| octet)
    }

    /// A length octet and as many octets.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], Unread> {
        let len = self.octet()?;
        self.take(len.into())
    }
}
