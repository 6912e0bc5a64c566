//! END: a stream has ended, and why. tor-spec: "Closing streams".

use std::{fmt, net::IpAddr};

use bytes::BufMut;

use crate::cell::input::Input;

numbers! {
    /// Why a stream ended. tor-spec: "Closing streams".
    pub struct EndReason(u8) {
        /// Any other reason; the only one that a client sends.
        MISC = 1,
        /// The name could not be resolved.
        RESOLVEFAILED = 2,
        /// The target refused.
        CONNECTREFUSED = 3,
        /// The relay does not serve this target.
        EXITPOLICY = 4,
        /// The circuit is being destroyed.
        DESTROY = 5,
        /// The target closed the connection.
        DONE = 6,
        /// The target did not answer in time.
        TIMEOUT = 7,
        /// There is no way to the target.
        NOROUTE = 8,
        /// The relay rests.
        HIBERNATING = 9,
        /// Internal error.
        INTERNAL = 10,
        /// The relay cannot serve more.
        RESOURCELIMIT = 11,
        /// The target reset the connection.
        CONNRESET = 12,
        /// Somebody broke the protocol.
        TORPROTOCOL = 13,
        /// The relay has no directory.
        NOTDIRECTORY = 14,
    }
}

/// Why a stream ended; for [`EndReason::EXITPOLICY`] also the address that is not served and for how many seconds that may be kept in mind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// What is not served.
    pub address: Option<(IpAddr, u32)>,
}

impl End {
    /// An end without an address.
    pub const fn new(reason: EndReason) -> Self {
        Self {
            reason,
            address: None,
        }
    }

    /// Reads an END message. "Implementations SHOULD accept empty RELAY_END messages"; "if the TTL is absent, it should be treated as if it
    /// were 0xffffffff"; "if the address is absent or is the wrong length, the RELAY_END message should be processed anyway".
    pub fn parse(data: &[u8]) -> Self {
        let mut input = Input::new(data, "END");
        let reason = input.u8().map_or(EndReason::MISC, EndReason);
        let address = match (reason, input.rest()) {
            (EndReason::EXITPOLICY, rest) => address(rest),
            _ => None,
        };
        Self { reason, address }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(self.reason.0);
        let (EndReason::EXITPOLICY, Some((address, seconds))) = (self.reason, self.address) else {
            return;
        };
        match address {
            IpAddr::V4(ip) => out.put_slice(&ip.octets()),
            IpAddr::V6(ip) => out.put_slice(&ip.octets()),
        }
        out.put_u32(seconds);
    }
}

fn address(rest: &[u8]) -> Option<(IpAddr, u32)> {
    let mut input = Input::new(rest, "END");
    let address = match rest.len() {
        4 | 8 => IpAddr::from(input.array::<4>().ok()?),
        16 | 20 => IpAddr::from(input.array::<16>().ok()?),
        _ => return None,
    };
    Some((address, input.u32().unwrap_or(u32::MAX)))
}

/// Addresses stay out of every log.
impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("End").field(&self.reason).finish()
    }
}
