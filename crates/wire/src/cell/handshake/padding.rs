//! PADDING_NEGOTIATE: asks for padding on a channel, or for none. Link protocol 5.
//! tor-spec: "Link padding"; padding-spec: "Control commands".

use bytes::BufMut;

use crate::cell::{Malformed, input::Input};

/// What a client asks of the relay at the other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingNegotiate {
    /// No padding.
    Stop,
    /// Padding after a silence of between so many milliseconds; 0 and 0: as the consensus says.
    Start {
        /// The shortest silence.
        low: u16,
        /// The longest.
        high: u16,
    },
}

impl PaddingNegotiate {
    /// Reads the body of a PADDING_NEGOTIATE cell.
    ///
    /// # Errors
    /// [`Malformed`] for another version, another command, and what is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "PADDING_NEGOTIATE");
        match (input.u8()?, input.u8()?) {
            (0, 1) => Ok(Self::Stop),
            (0, 2) => Ok(Self::Start {
                low: input.u16()?,
                high: input.u16()?,
            }),
            _ => Err(input.malformed()),
        }
    }

    /// Writes the body.
    pub fn write(&self, out: &mut impl BufMut) {
        let (command, low, high) = match *self {
            Self::Stop => (1, 0, 0),
            Self::Start { low, high } => (2, low, high),
        };
        out.put_slice(&[0, command]);
        out.put_u16(low);
        out.put_u16(high);
    }
}
