//! UDP over circuits: how a client asks for a UDP stream, and how datagrams travel on it. Proposal 339; the numbers of its commands are those of
//! Arti's `experimental-udp`.
//!
//! A datagram is cut into DATAGRAM messages of [`FULL`] bytes; one that is shorter, or empty, ends it. So what fits one message is as the
//! proposal has it, and what does not needs no other format ("fragmented messages", proposal 319, are in no relay). Each leaves room for random
//! bytes, whatever the datagram's length is, so that who sends it chooses none of a circuit's digests ([`super::relay::Sendme`]).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use bytes::BufMut;

use super::{Input, Malformed, relay::Flags, short};
use crate::{Host, HostName, Target};

/// Bytes of a DATAGRAM message that another one continues: what cells of either version have room for, less four zeros and 16 random bytes.
pub const FULL: usize = 468;

/// The largest datagram, in bytes: what UDP's length has room for.
pub const LARGEST: usize = 65_527;

const HOSTNAME: u8 = 0x00;
const IPV4: u8 = 0x04;
const IPV6: u8 = 0x06;

/// CONNECT_UDP: a UDP stream to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectUdp {
    /// Where to.
    pub target: Target,
    /// Which addresses will do, as in BEGIN.
    pub flags: Flags,
}

/// CONNECTED_UDP: the stream is open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConnectedUdp {
    /// The address that datagrams leave from, at the relay; unspecified if it does not say.
    pub own: SocketAddr,
    /// The target's.
    pub target: SocketAddr,
}

impl ConnectUdp {
    /// Reads a CONNECT_UDP message. What stands behind the address is passed over.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for what is no target.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "CONNECT_UDP");
        let flags = Flags(input.u32()?);
        let (kind, address) = (input.u8()?, input.counted()?);
        let host = match ip(kind, address) {
            Some(ip) => Host::ip(ip),
            None if kind == HOSTNAME => name(address).ok_or_else(|| input.malformed())?,
            None => return Err(input.malformed()),
        };
        let target = Target::new(host, input.u16()?).map_err(|_| input.malformed())?;
        Ok(Self { target, flags })
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u32(self.flags.0);
        match &self.target.host {
            Host::Ip(ip) => write_ip(*ip, out),
            Host::Name(name) => write_name(name.as_str().as_bytes(), out),
        }
        out.put_u16(self.target.port);
    }
}

/// The port of a CONNECT_UDP to an onion service, which looks at nothing else, as in [`super::onion_service::begin`].
///
/// # Errors
/// [`Malformed`] for what has no port.
pub fn port(data: &[u8]) -> Result<u16, Malformed> {
    let mut input = Input::new(data, "CONNECT_UDP");
    input.u32()?;
    input.u8()?;
    input.counted()?;
    match input.u16()? {
        0 => Err(input.malformed()),
        port => Ok(port),
    }
}

/// Writes CONNECT_UDP to a port of an onion service: with no name and no flags.
pub fn write_port(port: u16, out: &mut impl BufMut) {
    out.put_u32(0);
    write_name(&[], out);
    out.put_u16(port);
}

impl ConnectedUdp {
    /// Reads a CONNECTED_UDP message. What stands behind the addresses is passed over.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for names.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "CONNECTED_UDP");
        let mut address = || {
            let (kind, address) = (input.u8()?, input.counted()?);
            let ip = ip(kind, address).ok_or_else(|| input.malformed())?;
            Ok(SocketAddr::new(ip, input.u16()?))
        };
        Ok(Self {
            own: address()?,
            target: address()?,
        })
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        for address in [self.own, self.target] {
            write_ip(address.ip(), out);
            out.put_u16(address.port());
        }
    }
}

fn ip(kind: u8, address: &[u8]) -> Option<IpAddr> {
    match kind {
        IPV4 => <[u8; 4]>::try_from(address).map(IpAddr::from).ok(),
        IPV6 => <[u8; 16]>::try_from(address).map(IpAddr::from).ok(),
        _ => None,
    }
}

fn name(address: &[u8]) -> Option<Host> {
    let text = std::str::from_utf8(address).ok()?;
    HostName::new(text).map(Host::Name).ok()
}

fn write_ip(ip: IpAddr, out: &mut impl BufMut) {
    match ip {
        IpAddr::V4(ip) => {
            out.put_slice(&[IPV4, 4]);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_slice(&[IPV6, 16]);
            out.put_slice(&ip.octets());
        }
    }
}

fn write_name(name: &[u8], out: &mut impl BufMut) {
    let length = short(name.len());
    out.put_slice(&[HOSTNAME, length]);
    out.put_slice(name.get(..length.into()).unwrap_or(name));
}

/// Addresses stay out of every log.
impl fmt::Debug for ConnectedUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectedUdp(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(message: &ConnectUdp) -> Vec<u8> {
        let mut out = Vec::new();
        message.write(&mut out);
        out
    }

    #[test]
    fn a_name_an_address_and_a_port_alone_are_as_the_proposal_has_them() {
        let asked = |target: &str| {
            let target = target.parse().expect("a target");
            written(&ConnectUdp {
                target,
                flags: Flags::IPV6_OKAY,
            })
        };
        assert_eq!(
            asked("a.example:53"),
            b"\x00\x00\x00\x01\x00\x09a.example\x00\x35"
        );
        assert_eq!(
            asked("192.0.2.1:443"),
            b"\x00\x00\x00\x01\x04\x04\xc0\x00\x02\x01\x01\xbb"
        );
        let mut out = Vec::new();
        write_port(53, &mut out);
        assert_eq!(out, b"\x00\x00\x00\x00\x00\x00\x00\x35");
        assert_eq!(port(&out), Ok(53));
        // No exit connects to it.
        assert!(ConnectUdp::parse(&out).is_err());
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for wrong in [
            &b""[..],
            b"\x00\x00\x00",
            b"\x00\x00\x00\x00\x04\x04\xc0\x00\x02\x01\x01",
            // Port 0, an address of another length or kind, a name with a zero or that is an address.
            b"\x00\x00\x00\x00\x04\x04\xc0\x00\x02\x01\x00\x00",
            b"\x00\x00\x00\x00\x04\x03\xc0\x00\x02\x01\xbb",
            b"\x00\x00\x00\x00\x05\x04\xc0\x00\x02\x01\x01\xbb",
            b"\x00\x00\x00\x00\x00\x03a\x00b\x01\xbb",
            b"\x00\x00\x00\x00\x00\x09192.0.2.1\x01\xbb",
            b"\x00\x00\x00\x00\x00\x00\x01\xbb",
        ] {
            assert!(ConnectUdp::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_has_addresses_and_no_names() {
        let answer = ConnectedUdp {
            own: "0.0.0.0:0".parse().expect("an address"),
            target: "[2001:db8::1]:443".parse().expect("an address"),
        };
        let mut out = Vec::new();
        answer.write(&mut out);
        assert_eq!(ConnectedUdp::parse(&out), Ok(answer));
        assert!(ConnectedUdp::parse(&out[..out.len() - 1]).is_err());
        out[0] = HOSTNAME;
        assert!(ConnectedUdp::parse(&out).is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_it_was(
            name in "[a-z0-9]{1,20}(\\.[a-z]{1,20}){0,3}", port in 1u16.., flags: u32, rest: Vec<u8>,
        ) {
            prop_assume!(HostName::new(&name).is_ok());
            let host = name.parse().expect("a host");
            let message = ConnectUdp { target: Target { host, port }, flags: Flags(flags) };
            let mut out = written(&message);
            out.extend(rest);
            prop_assert_eq!(ConnectUdp::parse(&out), Ok(message));
        }

        #[test]
        fn nothing_panics(data: Vec<u8>) {
            if let Ok(message) = ConnectUdp::parse(&data) {
                prop_assert_eq!(ConnectUdp::parse(&written(&message)), Ok(message));
            }
            ConnectedUdp::parse(&data).ok();
            port(&data).ok();
        }
    }
}
