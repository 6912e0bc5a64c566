//! Takes octets off the front of a body. The parsers of this folder use it.

use super::Malformed;

/// What is left to read, and what it is: that is what an error says.
#[derive(Clone, Debug)]
pub(super) struct Input<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    pub(super) const fn new(rest: &'a [u8], what: &'static str) -> Self {
        Self { rest, what }
    }

    /// The error for this input.
    pub(super) const fn malformed(&self) -> Malformed {
        Malformed(self.what)
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[octet]| octet)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A length of one octet, and as many octets.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A length of two octets, and as many octets.
    pub(super) fn counted_wide(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// Octets up to a zero, which is taken too.
    pub(super) fn until_zero(&mut self) -> Result<&'a [u8], Malformed> {
        let at = self.rest.iter().position(|octet| *octet == 0);
        let text = self.take(at.ok_or(Malformed(self.what))?)?;
        self.u8().map(|_| text)
    }
}

/// The length of a list or a value as one octet; what does not fit is cut by the caller's `take`.
pub(super) fn short(length: usize) -> u8 {
    u8::try_from(length).unwrap_or(u8::MAX)
}

/// The same as two octets.
pub(super) fn wide(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
