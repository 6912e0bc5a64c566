//! Packets without their cipher, to measure what it costs: paper 003, section 8.1, has "a modified version […] where encryption and decryption has been
//! disabled". It protects nothing and nobody: only a build with the feature `without-cipher` has it, and there only a process whose command line says so.
//!
//! The payload of 1-RTT packets stays in the clear, with a tag of the same size that anybody can make, so that packets have their sizes. Handshakes are
//! as they are, and so is header protection, by which the stack finds packet numbers. Both ends must leave the cipher out.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use quinn_proto::crypto::CryptoError;

static LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// What stands where a tag would.
const FILLER: u8 = 0xa5;

/// From now on this process sends and takes packets that are not encrypted, and no others. For measurements alone.
pub fn leave_out_cipher() {
    LEFT_OUT.store(true, Ordering::Relaxed);
}

/// Whether that was said.
#[must_use]
pub fn is_cipher_left_out() -> bool {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Makes a packet of header, payload and room for the tag one that [`open`] takes.
pub(crate) fn seal(packet: &mut [u8], tag: usize) {
    let end = packet.len().saturating_sub(tag);
    packet.get_mut(end..).unwrap_or_default().fill(FILLER);
}

/// Takes the tag off.
pub(crate) fn open(payload: &mut BytesMut, tag: usize) -> Result<(), CryptoError> {
    let end = payload.len().checked_sub(tag).ok_or(CryptoError)?;
    if payload.split_off(end).iter().any(|byte| *byte != FILLER) {
        return Err(CryptoError);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_out_as_it_went_in_and_an_encrypted_one_does_not() {
        let mut packet = *b"headpayload................";
        seal(&mut packet, 16);
        let mut payload = BytesMut::from(&packet[4..]);
        open(&mut payload, 16).expect("taken");
        assert_eq!(payload, b"payload"[..]);
        for wrong in [&b"short"[..], b"payload\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
            assert!(open(&mut BytesMut::from(wrong), 16).is_err());
        }
    }

    #[test]
    fn nobody_leaves_the_cipher_out_who_was_not_told_to() {
        assert!(!is_cipher_left_out());
    }
}
