//! A host and a port as SOCKS writes them: ATYP, address, port.
//! Requests, replies and the datagram header hold one. RFC 1928 §4 and §5.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

use crate::{Host, HostName, Target, TargetError};

use super::{Refusal, Unread, reader::Reader};

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// An address as it came: a name may be any octets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AddressView<'a> {
    /// ATYP 1.
    V4([u8; 4]),
    /// ATYP 4.
    V6([u8; 16]),
    /// ATYP 3, "a fully-qualified domain name", unchecked.
    Name(&'a [u8]),
}

/// An address with a port, as it came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EndpointView<'a> {
    /// Where to.
    pub address: AddressView<'a>,
    /// In host order; 0 where the sender does not know it.
    pub port: u16,
}

/// A valid host with a port that may be 0 (a bound address that is not known, an association's source).
/// `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address.
    pub host: Host,
    /// TCP or UDP port, or 0.
    pub port: u16,
}

impl<'a> EndpointView<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Unread> {
        let address = match reader.octet()? {
            IPV4 => AddressView::V4(reader.array()?),
            NAME => AddressView::Name(reader.counted()?),
            IPV6 => AddressView::V6(reader.array()?),
            other => return Err(Unread::Bad(Refusal::AddressType(other))),
        };
        let port = u16::from_be_bytes(reader.array()?);
        Ok(Self { address, port })
    }

    /// The strict value.
    ///
    /// # Errors
    /// [`TargetError`] for a name that is none.
    pub fn endpoint(&self) -> Result<Endpoint, TargetError> {
        let host = match self.address {
            AddressView::V4(octets) => Host::ip(Ipv4Addr::from(octets).into()),
            AddressView::V6(octets) => Host::ip(Ipv6Addr::from(octets).into()),
            // Some programs write an address as a name; it is taken for what it is.
            AddressView::Name(name) => str::from_utf8(name)
                .map_err(|_| TargetError::Character)?
                .parse()?,
        };
        let port = self.port;
        Ok(Endpoint { host, port })
    }
}

impl Endpoint {
    /// 0.0.0.0:0, "not known".
    pub const UNSPECIFIED: Self = Self {
        host: Host::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        port: 0,
    };

    /// The target, which has a port.
    ///
    /// # Errors
    /// [`TargetError::Port`] for port 0.
    pub fn target(self) -> Result<Target, TargetError> {
        Target::new(self.host, self.port)
    }

    /// Appends ATYP, address and port.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match &self.host {
            Host::Ip(IpAddr::V4(ip)) => emit_tagged(out, IPV4, &ip.octets()),
            Host::Ip(IpAddr::V6(ip)) => emit_tagged(out, IPV6, &ip.octets()),
            Host::Name(name) => emit_name(out, name),
        }
        out.extend(self.port.to_be_bytes());
    }
}

fn emit_tagged(out: &mut Vec<u8>, tag: u8, octets: &[u8]) {
    out.push(tag);
    out.extend(octets);
}

fn emit_name(out: &mut Vec<u8>, name: &HostName) {
    let name = name.as_str().as_bytes();
    // A host name has at most 253 octets.
    let len = u8::try_from(name.len()).unwrap_or(u8::MAX);
    out.extend([NAME, len]);
    out.extend(name);
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        let (host, port) = (Host::ip(addr.ip()), addr.port());
        Self { host, port }
    }
}

impl From<Target> for Endpoint {
    fn from(Target { host, port }: Target) -> Self {
        Self { host, port }
    }
}

impl std::fmt::Debug for AddressView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4(_) => "V4(hidden)",
            Self::V6(_) => "V6(hidden)",
            Self::Name(_) => "Name(hidden)",
        })
    }
}

impl std::fmt::Debug for EndpointView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndpointView({:?})", self.address)
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({:?})", self.host)
    }
}
