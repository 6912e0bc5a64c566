//! PADDING_NEGOTIATE: a client tells its guard how the channel between them is to be padded.
//! padding-spec, "Reducing or Disabling Padding via Negotiation"; the format is C tor's, version 0: version, command, two times.

use std::time::Duration;

use bytes::BufMut;

use super::{Cell, CircuitId, Command, Input, Malformed};

const VERSION: u8 = 0;
const STOP: u8 = 1;
const START: u8 = 2;

/// What a client asks of its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingNegotiate {
    /// Not to pad.
    Stop,
    /// To pad, each time that it has sent nothing for a random time of `low` to `high`: whole milliseconds, 65,535 at most. Both zero: as the
    /// network does.
    Start {
        /// The least such time.
        low: Duration,
        /// The longest.
        high: Duration,
    },
}

impl PaddingNegotiate {
    /// Reads the body of a cell; what follows the times is padding.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, another version or another command.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "PADDING_NEGOTIATE");
        let (version, command) = (input.u8()?, input.u8()?);
        let [low, high] = [input.u16()?, input.u16()?].map(|ms| Duration::from_millis(ms.into()));
        match (version, command) {
            (VERSION, STOP) => Ok(Self::Stop),
            (VERSION, START) => Ok(Self::Start { low, high }),
            _ => Err(Malformed("PADDING_NEGOTIATE")),
        }
    }

    /// Writes the body. Times beyond the format's are its longest.
    pub fn write(&self, out: &mut impl BufMut) {
        let (command, times) = match *self {
            Self::Stop => (STOP, [Duration::ZERO; 2]),
            Self::Start { low, high } => (START, [low, high]),
        };
        out.put_slice(&[VERSION, command]);
        for time in times {
            out.put_u16(u16::try_from(time.as_millis()).unwrap_or(u16::MAX));
        }
    }

    /// The cell, of the channel itself.
    ///
    /// # Errors
    /// None that comes about: six bytes fit.
    pub fn cell(&self) -> Result<Cell, Malformed> {
        let command = Command::PADDING_NEGOTIATE;
        Cell::new(CircuitId::CHANNEL, command, |out| self.write(out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(negotiate: PaddingNegotiate) -> Vec<u8> {
        let mut out = Vec::new();
        negotiate.write(&mut out);
        out
    }

    #[test]
    fn the_format_is_that_of_c_tor() {
        assert_eq!(written(PaddingNegotiate::Stop), [0, 1, 0, 0, 0, 0]);
        let start = PaddingNegotiate::Start {
            low: Duration::from_millis(1500),
            high: Duration::from_millis(9500),
        };
        assert_eq!(written(start), [0, 2, 0x05, 0xdc, 0x25, 0x1c]);
        let cell = start.cell().unwrap();
        assert!(cell.circuit.is_channel());
        assert_eq!(PaddingNegotiate::parse(&cell.body), Ok(start));
    }

    #[test]
    fn another_version_or_command_and_what_is_cut_off_are_refused() {
        for body in [
            &[1, 1, 0, 0, 0, 0][..],
            &[0, 0, 0, 0, 0, 0],
            &[0, 3, 0, 0, 0, 0],
            &[0, 1, 0, 0, 0],
            &[],
        ] {
            assert!(PaddingNegotiate::parse(body).is_err(), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_again(body in proptest::collection::vec(0u8..4, 0..16)) {
            if let Ok(read) = PaddingNegotiate::parse(&body) {
                prop_assert_eq!(PaddingNegotiate::parse(&written(read)), Ok(read));
            }
        }

        #[test]
        fn every_time_of_the_format_comes_back(low: u16, high: u16) {
            let [low, high] = [low, high].map(|ms| Duration::from_millis(ms.into()));
            let start = PaddingNegotiate::Start { low, high };
            prop_assert_eq!(PaddingNegotiate::parse(&written(start)), Ok(start));
        }
    }
}
