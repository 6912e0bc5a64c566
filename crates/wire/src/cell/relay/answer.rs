//! CONNECTED: a stream is open, and to which address. tor-spec: "Opening streams and transferring data".

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use bytes::BufMut;

use crate::cell::{Malformed, input::Input};

/// The address that a stream goes to, with the seconds for which the name may be taken to mean it.
/// There is none for streams to a relay's directory and to an onion service.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Connected(pub Option<(IpAddr, u32)>);

impl Connected {
    /// Reads a CONNECTED message. Nothing but zeros is no address; a missing time is 0.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for an address of another type.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        if data.iter().all(|octet| *octet == 0) {
            return Ok(Self(None));
        }
        let mut input = Input::new(data, "CONNECTED");
        let v4 = Ipv4Addr::from(input.u32()?);
        if !v4.is_unspecified() {
            return Ok(Self(Some((v4.into(), input.u32().unwrap_or(0)))));
        }
        if input.u8()? != 6 {
            return Err(input.malformed());
        }
        let v6 = IpAddr::from(input.array::<16>()?);
        Ok(Self(Some((v6, input.u32().unwrap_or(0)))))
    }

    /// Writes the message. There is no way to write the IPv4 address 0.0.0.0.
    pub fn write(&self, out: &mut impl BufMut) {
        match self.0 {
            Some((IpAddr::V4(ip), seconds)) => {
                out.put_slice(&ip.octets());
                out.put_u32(seconds);
            }
            Some((IpAddr::V6(ip), seconds)) => {
                out.put_slice(&[0, 0, 0, 0, 6]);
                out.put_slice(&ip.octets());
                out.put_u32(seconds);
            }
            None => {}
        }
    }
}

/// Addresses stay out of every log.
impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Connected(hidden)",
            None => "Connected",
        })
    }
}
