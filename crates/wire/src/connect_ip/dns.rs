//! DNS_ASSIGN and PREF64: by which nameservers and NAT64 prefixes the peer of a flow of IP packets may go.
//! draft-ietf-masque-connect-ip-dns-06 §3 and §4; service parameters: RFC 9460 §2.2; prefixes: RFC 6052 §2.2.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BufMut, Bytes};

use crate::{HostName, varint};

/// Provisional: "this value will be replaced by a smaller one before publication".
pub(super) const DNS_ASSIGN: u64 = 0x1ace_79ec;

/// Provisional, likewise.
pub(super) const PREF64: u64 = 0x274c_0fbc;

// Keys of service parameters, RFC 9460 §14.3.2.
const ALPN: u16 = 1;
const NO_DEFAULT_ALPN: u16 = 2;
const IPV4HINT: u16 = 4;
const IPV6HINT: u16 = 6;

/// Nameservers, and what they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfiguration {
    /// Whom to ask.
    pub nameservers: Vec<Nameserver>,
    /// What they can resolve, with all names below; `None` is the root.
    pub internal: Vec<Option<HostName>>,
    /// What is appended to names of one label.
    pub search: Vec<HostName>,
}

/// One nameserver.
#[derive(Clone, PartialEq, Eq)]
pub struct Nameserver {
    /// The lower, the sooner; "this field MUST NOT be set to 0".
    pub priority: u16,
    /// Where it is.
    pub ipv4: Vec<Ipv4Addr>,
    /// Where it is.
    pub ipv6: Vec<Ipv6Addr>,
    /// Who it is; `None` where it is only asked without encryption.
    pub name: Option<HostName>,
    /// How it is asked, by ascending keys.
    pub parameters: Vec<(u16, Bytes)>,
}

/// A prefix that stands for IPv4 in IPv6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nat64Prefix {
    address: Ipv6Addr,
    length: u8,
}

impl Nat64Prefix {
    /// "Valid values are 32, 40, 48, 56, 64, and 96." Only the highest 96 bits travel.
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Self> {
        let address = Ipv6Addr::from(u128::from(address) >> 32 << 32);
        matches!(length, 32 | 40 | 48 | 56 | 64 | 96).then_some(Self { address, length })
    }

    fn read(from: &mut Bytes) -> Option<Self> {
        if from.len() < 13 {
            return None;
        }
        let length = from.get_u8();
        let high = from.get_u64();
        let low = u64::from(from.get_u32()) << 32;
        Self::new(
            Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)),
            length,
        )
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.length);
        out.extend(self.address.octets().iter().take(12));
    }
}

impl Nameserver {
    fn read(from: &mut Bytes) -> Option<Self> {
        let read = Self {
            priority: from.try_get_u16().ok()?,
            ipv4: counted(from, |from| from.try_get_u32().ok().map(Ipv4Addr::from))?,
            ipv6: counted(from, |from| from.try_get_u128().ok().map(Ipv6Addr::from))?,
            name: domain(from)?,
            parameters: parameters(sized(from)?)?,
        };
        read.is_sound().then_some(read)
    }

    /// The rules of §3.2.
    fn is_sound(&self) -> bool {
        let has = |wanted| self.parameters.iter().any(|(key, _)| *key == wanted);
        let hints = has(IPV4HINT) || has(IPV6HINT);
        // "If Authentication Domain Name is empty, the 'alpn' and 'no-default-alpn' service parameter MUST be omitted."
        let named = self.name.is_some() || !(has(ALPN) || has(NO_DEFAULT_ALPN));
        // "In that case, the sum of IPv4 Address Count and IPv6 Address Count MUST be nonzero."
        let reached = has(NO_DEFAULT_ALPN) || !(self.ipv4.is_empty() && self.ipv6.is_empty());
        self.priority != 0 && !hints && named && reached
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.priority);
        varint::write(out, self.ipv4.len() as u64);
        self.ipv4.iter().for_each(|ip| out.put_slice(&ip.octets()));
        varint::write(out, self.ipv6.len() as u64);
        self.ipv6.iter().for_each(|ip| out.put_slice(&ip.octets()));
        write_domain(out, self.name.as_ref());
        let mut value = Vec::new();
        for (key, parameter) in &self.parameters {
            value.put_u16(*key);
            value.put_u16(u16::try_from(parameter.len()).unwrap_or(u16::MAX));
            value.extend(parameter.iter().take(usize::from(u16::MAX)));
        }
        varint::write(out, value.len() as u64);
        out.put_slice(&value);
    }
}

/// The value of a DNS_ASSIGN capsule.
pub(super) fn configurations(from: &mut Bytes) -> Option<Vec<DnsConfiguration>> {
    let mut all = Vec::new();
    while from.has_remaining() {
        all.push(DnsConfiguration {
            nameservers: counted(from, Nameserver::read)?,
            internal: counted(from, domain)?,
            search: counted(from, |from| domain(from)?)?,
        });
    }
    Some(all)
}

pub(super) fn write_configuration(out: &mut Vec<u8>, configuration: &DnsConfiguration) {
    varint::write(out, configuration.nameservers.len() as u64);
    configuration
        .nameservers
        .iter()
        .for_each(|one| one.write(out));
    varint::write(out, configuration.internal.len() as u64);
    configuration
        .internal
        .iter()
        .for_each(|name| write_domain(out, name.as_ref()));
    varint::write(out, configuration.search.len() as u64);
    configuration
        .search
        .iter()
        .for_each(|name| write_domain(out, Some(name)));
}

/// The value of a PREF64 capsule: "with a length that is not a multiple of 13 bytes, it MUST treat it as malformed".
pub(super) fn prefixes(from: &mut Bytes) -> Option<Vec<Nat64Prefix>> {
    let mut all = Vec::new();
    while from.has_remaining() {
        all.push(Nat64Prefix::read(from)?);
    }
    Some(all)
}

pub(super) fn write_prefix(out: &mut Vec<u8>, prefix: &Nat64Prefix) {
    prefix.write(out);
}

/// As many as are announced. Each takes a byte at least, so that no more are kept than came.
fn counted<T>(from: &mut Bytes, mut read: impl FnMut(&mut Bytes) -> Option<T>) -> Option<Vec<T>> {
    let count = varint::read(from)?;
    if count > from.len() as u64 {
        return None;
    }
    (0..count).map(|_| read(from)).collect()
}

fn sized(from: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(varint::read(from)?).ok()?;
    (length <= from.len()).then(|| from.split_to(length))
}

/// "Fully Qualified Domain Name in DNS presentation format"; the inner `None` is an empty one.
fn domain(from: &mut Bytes) -> Option<Option<HostName>> {
    let text = sized(from)?;
    if text.is_empty() {
        return Some(None);
    }
    HostName::new(std::str::from_utf8(&text).ok()?)
        .ok()
        .map(Some)
}

fn write_domain(out: &mut Vec<u8>, name: Option<&HostName>) {
    let text = name.map_or("", HostName::as_str);
    varint::write(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

/// "SvcParamKeys SHALL appear in increasing numeric order", each once.
fn parameters(mut from: Bytes) -> Option<Vec<(u16, Bytes)>> {
    let mut all: Vec<(u16, Bytes)> = Vec::new();
    while from.has_remaining() {
        let key = from.try_get_u16().ok()?;
        let length = usize::from(from.try_get_u16().ok()?);
        if length > from.len() || all.last().is_some_and(|(last, _)| *last >= key) {
            return None;
        }
        all.push((key, from.split_to(length)));
    }
    Some(all)
}

impl std::fmt::Debug for Nameserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nameserver(hidden, priority {})", self.priority)
    }
}

impl std::fmt::Debug for Nat64Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nat64Prefix(hidden/{})", self.length)
    }
}
