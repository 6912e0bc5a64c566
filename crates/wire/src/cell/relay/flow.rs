//! Flow control of circuits and streams. tor-spec: "SENDME Cell Format"; proposal 324 §4: XON and XOFF.

use bytes::BufMut;

use crate::cell::{Malformed, input::Input};

/// SENDME: more may be sent. On a stream it says nothing else, and what it carries is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendme {
    /// Without a proof.
    V0,
    /// With the digest of the cell that it answers: only who has seen that cell knows it.
    V1([u8; 20]),
}

/// XON: the stream may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xon {
    /// What the reader takes, in kilobytes a second; 0 is no limit.
    pub kbps: u32,
}

/// XOFF: the stream is to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xoff;

impl Sendme {
    /// Reads a SENDME message. Nothing at all is version 0. More than 20 octets of digest are cut.
    ///
    /// # Errors
    /// [`Malformed`] for another version and for a digest that is too short: "the circuit should be torn down".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "SENDME");
        if input.is_empty() {
            return Ok(Self::V0);
        }
        match input.u8()? {
            0 => Ok(Self::V0),
            1 => {
                let digest = input.counted_wide()?;
                let digest = digest.first_chunk::<20>();
                digest.map(|d| Self::V1(*d)).ok_or(Malformed("SENDME"))
            }
            _ => Err(input.malformed()),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        if let Self::V1(digest) = self {
            out.put_slice(&[1, 0, 20]);
            out.put_slice(digest);
        }
    }
}

impl Xon {
    /// Reads an XON message.
    ///
    /// # Errors
    /// [`Malformed`] for another version and for what is cut off: "a protocol violation".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "XON");
        match input.u8()? {
            0 => Ok(Self { kbps: input.u32()? }),
            _ => Err(input.malformed()),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(0);
        out.put_u32(self.kbps);
    }
}

impl Xoff {
    /// Reads an XOFF message.
    ///
    /// # Errors
    /// [`Malformed`] for another version: "a protocol violation".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        match Input::new(data, "XOFF").u8()? {
            0 => Ok(Self),
            _ => Err(Malformed("XOFF")),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(0);
    }
}
