//! IP proxying: what a request asks for, and the capsules by which one end tells the other of addresses and routes.
//! RFC 9484 §4.6 (scope) and §4.7 (capsules), draft-ietf-masque-connect-ip-dns-06 (nameservers and NAT64); the packets themselves are HTTP Datagrams of context 0, as in CONNECT-UDP.

mod dns;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use bytes::{Buf, BufMut, Bytes};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Host, HostName, template::PathError, varint};

pub use self::dns::{DnsConfiguration, Nameserver, Nat64Prefix};
/// The protocol numbers of ICMP, which every route allows.
pub use crate::ip::{ICMP, ICMPV6};

/// What "IPv6 requires that every link have": the smallest packet that a tunnel for IPv6 must carry (RFC 9484 §7.1), in bytes.
pub const LEAST_MTU: usize = 1280;

// The capsules of IP proxying. What makes one malformed is checked here; who may send which and when is the ends' business.
// RFC 9484 §4.7.1 to §4.7.3; the head of a capsule: RFC 9297 §3.2.

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
    /// Which nameservers the receiver may ask, and for what.
    DnsAssign(Vec<DnsConfiguration>),
    /// The prefixes by which the sender's network reaches IPv4 from IPv6; none where there are none.
    Pref64(Vec<Nat64Prefix>),
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
    /// The largest value that is kept, in bytes: some 200 routes by IPv6, or a thousand assignments by IPv4.
    pub const LARGEST: usize = 8192;

    /// Whether `kind` is the type of a capsule of this module.
    pub const fn is_kind(kind: u64) -> bool {
        matches!(
            kind,
            ADDRESS_ASSIGN..=ROUTE_ADVERTISEMENT | dns::DNS_ASSIGN | dns::PREF64
        )
    }

    /// Reads the value of a capsule of type `kind`; `None` when it is another extension's.
    pub fn parse(kind: u64, mut value: Bytes) -> Option<Result<Self, Malformed>> {
        let from = &mut value;
        let capsule = match kind {
            ADDRESS_ASSIGN => numbered(from).map(Self::AddressAssign),
            ADDRESS_REQUEST => requests(from).map(Self::AddressRequest),
            ROUTE_ADVERTISEMENT => routes(from).map(Self::RouteAdvertisement),
            dns::DNS_ASSIGN => dns::configurations(from).map(Self::DnsAssign),
            dns::PREF64 => dns::prefixes(from).map(Self::Pref64),
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
            Self::DnsAssign(all) => {
                all.iter()
                    .for_each(|one| dns::write_configuration(&mut value, one));
                dns::DNS_ASSIGN
            }
            Self::Pref64(all) => {
                all.iter()
                    .for_each(|one| dns::write_prefix(&mut value, one));
                dns::PREF64
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
            Self::DnsAssign(_) => "DNS_ASSIGN",
            Self::Pref64(_) => "PREF64",
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
        let length = byte(from)?;
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
    let version = byte(from)?;
    let first = address_of(version, from)?;
    let last = address_of(version, from)?;
    Route::new(first, last, byte(from)?)
}

fn write_route(out: &mut Vec<u8>, route: &Route) {
    write_version(out, route.first());
    write_address(out, route.first());
    write_address(out, route.last());
    out.put_u8(route.protocol());
}

fn read_address(from: &mut Bytes) -> Option<IpAddr> {
    let version = byte(from)?;
    address_of(version, from)
}

fn address_of(version: u8, from: &mut Bytes) -> Option<IpAddr> {
    match version {
        4 if from.len() >= 4 => Some(Ipv4Addr::from(from.get_u32()).into()),
        6 if from.len() >= 16 => Some(Ipv6Addr::from(from.get_u128()).into()),
        _ => None,
    }
}

fn byte(from: &mut Bytes) -> Option<u8> {
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

// Addresses by prefix and by range, and which packets they allow.
// RFC 9484 §4.7.

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Addresses of one family, first and last included, to which packets of one protocol, or of all, are routed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    first: IpAddr,
    last: IpAddr,
    protocol: u8,
}

impl Prefix {
    /// The prefix of `length` bits; `None` when the address has fewer.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        (length <= width(address)).then_some(Self { address, length })
    }

    /// One address.
    pub const fn one(address: IpAddr) -> Self {
        Self {
            address,
            length: width(address),
        }
    }

    /// "The IP Address SHALL be all-zero and the IP Prefix Length SHALL be the maximum length": no address of this one's family.
    pub const fn none(family: IpAddr) -> Self {
        Self::one(zero(family))
    }

    /// The address as it was given; bits beyond the length may be set.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits count.
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// The address, if there is but one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.length == width(self.address)).then_some(self.address)
    }

    /// Whether it stands for a refusal, or for "any address" in a request.
    pub fn is_none(&self) -> bool {
        self.address.is_unspecified()
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (first, last) = self.ends();
        is_same_family(first, address) && (first..=last).contains(&address)
    }

    /// The route to all of them, for one protocol or, with 0, for all.
    pub fn route(&self, protocol: u8) -> Route {
        let (first, last) = self.ends();
        Route {
            first,
            last,
            protocol,
        }
    }

    fn ends(&self) -> (IpAddr, IpAddr) {
        match self.address {
            IpAddr::V4(ip) => {
                let free = u32::MAX.checked_shr(self.length.into()).unwrap_or(0);
                let first = u32::from(ip) & !free;
                (
                    Ipv4Addr::from(first).into(),
                    Ipv4Addr::from(first | free).into(),
                )
            }
            IpAddr::V6(ip) => {
                let free = u128::MAX.checked_shr(self.length.into()).unwrap_or(0);
                let first = u128::from(ip) & !free;
                (
                    Ipv6Addr::from(first).into(),
                    Ipv6Addr::from(first | free).into(),
                )
            }
        }
    }
}

impl Route {
    /// The addresses from `first` to `last`; `None` when they are of two families or `last` comes before.
    /// With protocol 0 all protocols are allowed.
    pub fn new(first: IpAddr, last: IpAddr, protocol: u8) -> Option<Self> {
        (is_same_family(first, last) && first <= last).then_some(Self {
            first,
            last,
            protocol,
        })
    }

    /// The lowest address.
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub const fn last(&self) -> IpAddr {
        self.last
    }

    /// The protocol, or 0 for all.
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The address, if there is but one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        is_same_family(self.first, address) && (self.first..=self.last).contains(&address)
    }

    /// Whether it takes a packet. "ICMP traffic is always allowed, regardless of the value of this field."
    pub fn allows(&self, destination: IpAddr, protocol: u8) -> bool {
        let icmp = match destination {
            IpAddr::V4(_) => ICMP,
            IpAddr::V6(_) => ICMPV6,
        };
        let fits = self.protocol == 0 || self.protocol == protocol || protocol == icmp;
        fits && self.contains(destination)
    }

    /// Whether `next` may stand behind it: "To prevent overlap, the ranges are ordered" by version, protocol and address.
    pub fn precedes(&self, next: &Self) -> bool {
        let key = |route: &Self| (route.first.is_ipv6(), route.protocol);
        match key(self).cmp(&key(next)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.last < next.first,
            std::cmp::Ordering::Greater => false,
        }
    }
}

const fn is_same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

const fn zero(family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prefix(hidden)")
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route(hidden, protocol {})", self.protocol)
    }
}

// What an IP proxying request is about: a host or a prefix or all, one protocol or all, and the path that says so.
// RFC 9484 §3 (well-known template) and §4.6 (variables).

/// Everything but the unreserved characters of RFC 3986 §2.3, and the asterisk, which the standard's example has as it is.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*');

/// What stands before the variables of `/.well-known/masque/ip/{target}/{ipproto}/`.
const WELL_KNOWN: &str = "/.well-known/masque/ip/";

/// What a request is about.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Where packets may go.
    pub target: ScopeTarget,
    /// The only protocol; `None` is all. ICMP is never shut out.
    pub protocol: Option<u8>,
}

/// Where packets may go.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ScopeTarget {
    /// Anywhere that the relay allows.
    Any,
    /// To these addresses; most often one.
    Prefix(Prefix),
    /// To what the relay finds for this name.
    Name(HostName),
}

impl Scope {
    /// One host and one protocol.
    pub fn flow(host: &Host, protocol: u8) -> Self {
        let target = match host {
            Host::Name(name) => ScopeTarget::Name(name.clone()),
            Host::Ip(ip) => ScopeTarget::Prefix(Prefix::one(*ip)),
        };
        Self {
            target,
            protocol: Some(protocol),
        }
    }

    /// The `:path` that asks for it, by the well-known template.
    pub fn path(&self) -> String {
        let target = match &self.target {
            ScopeTarget::Any => "*".into(),
            ScopeTarget::Name(name) => name.to_string(),
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(address) => address.to_string(),
                None => format!("{}/{}", prefix.address(), prefix.length()),
            },
        };
        let protocol = self
            .protocol
            .map_or_else(|| "*".into(), |protocol| protocol.to_string());
        format!(
            "{WELL_KNOWN}{}/{protocol}/",
            utf8_percent_encode(&target, RESERVED)
        )
    }

    /// What a `:path` asks for. A slash at the end may be missing.
    ///
    /// # Errors
    /// [`PathError::NoMatch`] when it is another resource's; [`PathError::BadTarget`] when a variable makes no sense.
    pub fn read_path(path: &str) -> Result<Self, PathError> {
        let rest = path.strip_prefix(WELL_KNOWN).ok_or(PathError::NoMatch)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (target, protocol) = rest.split_once('/').ok_or(PathError::NoMatch)?;
        if protocol.contains('/') {
            return Err(PathError::NoMatch);
        }
        let scope = read_target(target).zip(read_protocol(protocol));
        let (target, protocol) = scope.ok_or(PathError::BadTarget)?;
        Ok(Self { target, protocol })
    }
}

/// `target = IPv6prefix / IPv4prefix / reg-name / "*"`.
fn read_target(text: &str) -> Option<ScopeTarget> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    if text == "*" {
        return Some(ScopeTarget::Any);
    }
    if let Some((address, length)) = text.split_once('/') {
        let length = number(length)?;
        let prefix = Prefix::new(address.parse().ok()?, length)?;
        return Some(ScopeTarget::Prefix(canonical(prefix)));
    }
    match text.parse().ok()? {
        Host::Ip(ip) => Some(ScopeTarget::Prefix(Prefix::one(ip))),
        Host::Name(name) => Some(ScopeTarget::Name(name)),
    }
}

/// An IPv4 address in IPv6 clothes means the IPv4 address, here as everywhere.
fn canonical(prefix: Prefix) -> Prefix {
    match (prefix.single(), prefix.address().to_canonical()) {
        (Some(_), ip @ IpAddr::V4(_)) => Prefix::one(ip),
        _ => prefix,
    }
}

/// `ipproto = 1*3DIGIT / "*"`: the outer `None` is nonsense, the inner one all protocols.
fn read_protocol(text: &str) -> Option<Option<u8>> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    match text.as_ref() {
        "*" => Some(None),
        text => number(text).map(Some),
    }
}

/// A decimal number of at most three digits.
fn number(text: &str) -> Option<u8> {
    let digits = (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("target", &self.target)
            .field("protocol", &self.protocol)
            .finish()
    }
}

impl fmt::Debug for ScopeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "Any",
            Self::Prefix(_) => "Prefix(hidden)",
            Self::Name(_) => "Name(hidden)",
        })
    }
}

#[cfg(test)]
mod tests;
