//! The three capsules of IP proxying. What makes one malformed is checked here; who may send which and when is the ends' business.
//! RFC 9484 §4.7.1 to §4.7.3; the head of a capsule: RFC 9297 §3.2.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use bytes::{Buf, BufMut, Bytes};

use super::{Prefix, Route};
use crate::varint;

const ADDRESS_ASSIGN: u64 = 0x01;
const ADDRESS_REQUEST: u64 = 0x02;
const ROUTE_ADVERTISEMENT: u64 = 0x03;

/// A capsule about addresses or routes. Each replaces what the last one of its kind said.
#[derive(Clone, PartialEq, Eq)]
pub enum Capsule {
    /// The source addresses that the receiver may use.
    AddressAssign(Vec<Numbered>),
    /// The sender asks for source addresses; at least one entry.
    AddressRequest(Vec<Numbered>),
    /// Where the sender routes packets to.
    RouteAdvertisement(Vec<Route>),
}

/// An address with the number of the request that it belongs to; 0 belongs to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The request's number.
    pub request: u64,
    /// The address or prefix.
    pub prefix: Prefix,
}

/// "If any of the capsule fields are malformed upon reception", the request stream is aborted. Also one larger than we keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a capsule of IP proxying is malformed")]
pub struct Malformed;

impl Capsule {
    /// The largest value that is kept, in octets: some 200 routes by IPv6, or a thousand assignments by IPv4.
    pub const LARGEST: usize = 8192;

    /// Whether `kind` is the type of a capsule of this module.
    pub const fn is_kind(kind: u64) -> bool {
        matches!(kind, ADDRESS_ASSIGN..=ROUTE_ADVERTISEMENT)
    }

    /// Reads the value of a capsule of type `kind`; `None` when it is another extension's.
    pub fn parse(kind: u64, mut value: Bytes) -> Option<Result<Self, Malformed>> {
        let from = &mut value;
        let capsule = match kind {
            ADDRESS_ASSIGN => numbered(from).map(Self::AddressAssign),
            ADDRESS_REQUEST => requests(from).map(Self::AddressRequest),
            ROUTE_ADVERTISEMENT => routes(from).map(Self::RouteAdvertisement),
            _ => return None,
        };
        Some(capsule.ok_or(Malformed))
    }

    /// Writes type, length and value.
    pub fn write(&self, out: &mut impl BufMut) {
        let mut value = Vec::new();
        let kind = match self {
            Self::AddressAssign(entries) => {
                entries.iter().for_each(|entry| entry.write(&mut value));
                ADDRESS_ASSIGN
            }
            Self::AddressRequest(entries) => {
                entries.iter().for_each(|entry| entry.write(&mut value));
                ADDRESS_REQUEST
            }
            Self::RouteAdvertisement(routes) => {
                routes
                    .iter()
                    .for_each(|route| write_route(&mut value, route));
                ROUTE_ADVERTISEMENT
            }
        };
        varint::write(out, kind);
        varint::write(out, value.len() as u64);
        out.put_slice(&value);
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::AddressAssign(_) => "ADDRESS_ASSIGN",
            Self::AddressRequest(_) => "ADDRESS_REQUEST",
            Self::RouteAdvertisement(_) => "ROUTE_ADVERTISEMENT",
        }
    }
}

impl Numbered {
    /// An assignment that nobody asked for.
    pub const fn unasked(prefix: Prefix) -> Self {
        Self { request: 0, prefix }
    }

    fn read(from: &mut Bytes) -> Option<Self> {
        let request = varint::read(from)?;
        let address = read_address(from)?;
        let length = octet(from)?;
        let prefix = Prefix::new(address, length)?;
        Some(Self { request, prefix })
    }

    fn write(&self, out: &mut Vec<u8>) {
        varint::write(out, self.request);
        write_version(out, self.prefix.address());
        write_address(out, self.prefix.address());
        out.put_u8(self.prefix.length());
    }
}

fn numbered(from: &mut Bytes) -> Option<Vec<Numbered>> {
    let mut entries = Vec::new();
    while from.has_remaining() {
        entries.push(Numbered::read(from)?);
    }
    Some(entries)
}

/// "Request IDs […] MUST NOT be zero." "If an endpoint receives an ADDRESS_REQUEST capsule that contains zero Requested Addresses,
/// it MUST abort the IP proxying request stream."
fn requests(from: &mut Bytes) -> Option<Vec<Numbered>> {
    let entries = numbered(from)?;
    let sound = !entries.is_empty() && entries.iter().all(|entry| entry.request != 0);
    sound.then_some(entries)
}

/// "If an endpoint receives a ROUTE_ADVERTISEMENT capsule that does not meet these requirements, it MUST abort".
fn routes(from: &mut Bytes) -> Option<Vec<Route>> {
    let mut routes: Vec<Route> = Vec::new();
    while from.has_remaining() {
        let route = read_route(from)?;
        if routes.last().is_some_and(|last| !last.precedes(&route)) {
            return None;
        }
        routes.push(route);
    }
    Some(routes)
}

fn read_route(from: &mut Bytes) -> Option<Route> {
    let version = octet(from)?;
    let first = address_of(version, from)?;
    let last = address_of(version, from)?;
    Route::new(first, last, octet(from)?)
}

fn write_route(out: &mut Vec<u8>, route: &Route) {
    write_version(out, route.first());
    write_address(out, route.first());
    write_address(out, route.last());
    out.put_u8(route.protocol());
}

fn read_address(from: &mut Bytes) -> Option<IpAddr> {
    let version = octet(from)?;
    address_of(version, from)
}

fn address_of(version: u8, from: &mut Bytes) -> Option<IpAddr> {
    match version {
        4 if from.len() >= 4 => Some(Ipv4Addr::from(from.get_u32()).into()),
        6 if from.len() >= 16 => Some(Ipv6Addr::from(from.get_u128()).into()),
        _ => None,
    }
}

fn octet(from: &mut Bytes) -> Option<u8> {
    from.has_remaining().then(|| from.get_u8())
}

fn write_version(out: &mut Vec<u8>, address: IpAddr) {
    out.put_u8(if address.is_ipv4() { 4 } else { 6 });
}

fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => out.put_slice(&ip.octets()),
        IpAddr::V6(ip) => out.put_slice(&ip.octets()),
    }
}

/// Addresses stay out of every log.
impl fmt::Debug for Capsule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
