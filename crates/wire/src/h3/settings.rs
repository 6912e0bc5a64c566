//! SETTINGS: what each end announces once, at the start of its control stream.
//! `masque::h3` sends one and waits for the other.
//! RFC 9114 §7.2.4, RFC 9204 §5, RFC 9220 §3, RFC 9297 §2.1.1.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{BufMut, BytesMut};

use super::{Code, frame};
use crate::varint;

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
const H3_DATAGRAM: u64 = 0x33;
/// The id of H3_DATAGRAM in draft 04 of RFC 9297; some clients still send both.
const H3_DATAGRAM_DRAFT: u64 = 0xff_d277;
/// No specification has it, and nobody else does: how the ends of a tunnel tune their connection (see [`crate::tuning`]).
const TUNING: u64 = 0x2a71_5c3e_90d6_4b18;
/// 0x1f * N + 0x21: must be ignored, so that ignoring stays possible (RFC 9114 §7.2.4.1).
const GREASE: u64 = 0x1f * 0x0451 + 0x21;

/// The settings that matter here; others are ignored. The QPACK dynamic table is never used, whatever the peer offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// QUIC DATAGRAM frames carry HTTP Datagrams.
    pub datagrams: bool,
    /// The server takes Extended CONNECT.
    pub extended_connect: bool,
    /// The largest field section that the sender of the settings accepts, in octets as RFC 9114 §4.2.2 counts.
    pub max_field_section: Option<u64>,
    /// What the sender wishes or grants; see [`crate::tuning`].
    pub tuning: Option<u64>,
}

impl Settings {
    /// Reads the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// [`Code::FRAME_ERROR`] when it is cut short, [`Code::SETTINGS_ERROR`] when its content breaks a rule.
    pub fn parse(mut payload: &[u8]) -> Result<Self, Code> {
        let (mut settings, mut seen) = (Self::default(), Vec::new());
        while !payload.is_empty() {
            let id = varint::read(&mut payload).ok_or(Code::FRAME_ERROR)?;
            let value = varint::read(&mut payload).ok_or(Code::FRAME_ERROR)?;
            seen.push(id);
            settings.set(id, value)?;
        }
        // "The same setting identifier MUST NOT occur more than once in the SETTINGS frame."
        seen.sort_unstable();
        match seen.windows(2).any(|pair| pair.first() == pair.last()) {
            true => Err(Code::SETTINGS_ERROR),
            false => Ok(settings),
        }
    }

    fn set(&mut self, id: u64, value: u64) -> Result<(), Code> {
        match id {
            H3_DATAGRAM => self.datagrams |= flag(value)?,
            H3_DATAGRAM_DRAFT => self.datagrams |= value == 1,
            ENABLE_CONNECT_PROTOCOL => self.extended_connect = flag(value)?,
            MAX_FIELD_SECTION_SIZE => self.max_field_section = Some(value),
            TUNING => self.tuning = Some(value),
            // "Setting identifiers that were defined in [HTTP/2] where there is no corresponding HTTP/3 setting
            // have also been reserved. […] their receipt MUST be treated as a connection error of type H3_SETTINGS_ERROR."
            0x00 | 0x02..=0x05 => return Err(Code::SETTINGS_ERROR),
            _ => {}
        }
        Ok(())
    }

    /// Writes the SETTINGS frame, with one setting and one frame after it that mean nothing.
    pub fn write(&self, out: &mut BytesMut) {
        let mut payload = BytesMut::new();
        let mut put = |id, value| {
            varint::write(&mut payload, id);
            varint::write(&mut payload, value);
        };
        put(QPACK_MAX_TABLE_CAPACITY, 0);
        put(QPACK_BLOCKED_STREAMS, 0);
        put(H3_DATAGRAM, self.datagrams.into());
        if self.extended_connect {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        if let Some(size) = self.max_field_section {
            put(MAX_FIELD_SECTION_SIZE, size);
        }
        if let Some(tuning) = self.tuning {
            put(TUNING, tuning);
        }
        put(GREASE, 0);
        frame::write_head(out, frame::SETTINGS, payload.len());
        out.put_slice(&payload);
        frame::write_head(out, GREASE, 0);
    }
}

fn flag(value: u64) -> Result<bool, Code> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::SETTINGS_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h3::{Frame, FrameReader, Place};
    use proptest::prelude::*;

    fn payload(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in pairs {
            varint::write(&mut out, *id);
            varint::write(&mut out, *value);
        }
        out
    }

    #[test]
    fn unknown_settings_and_the_draft_id_of_datagrams_are_understood() {
        let settings =
            Settings::parse(&payload(&[(0xffd277, 1), (0x1234_5678, 9)])).expect("valid");
        assert!(settings.datagrams && !settings.extended_connect);
    }

    #[test]
    fn settings_that_break_a_rule_are_refused() {
        for pairs in [
            &[(0x33, 2)][..],
            &[(0x02, 0)],
            &[(0x04, 9)],
            &[(8, 7)],
            &[(6, 1), (6, 1)],
        ] {
            assert_eq!(
                Settings::parse(&payload(pairs)),
                Err(Code::SETTINGS_ERROR),
                "{pairs:?}"
            );
        }
        assert_eq!(Settings::parse(&[0x33]), Err(Code::FRAME_ERROR));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(datagrams: bool, extended_connect: bool, size in proptest::option::of(0..=varint::MAX), tuning in proptest::option::of(0..=varint::MAX)) {
            let settings = Settings { datagrams, extended_connect, max_field_section: size, tuning };
            let mut out = BytesMut::new();
            settings.write(&mut out);
            let mut input = out.freeze();
            let mut reader = FrameReader::new(Place::Control, 1024);
            prop_assert_eq!(reader.next(&mut input), Ok(Some(Frame::Settings(settings))));
            prop_assert_eq!(reader.next(&mut input), Ok(None));
            prop_assert!(reader.is_between_frames());
        }

        #[test]
        fn any_octets_are_read_without_a_panic(octets: Vec<u8>) {
            prop_assert!(Settings::parse(&octets).is_ok() || !octets.is_empty());
        }
    }
}
