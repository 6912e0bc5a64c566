//! Names that are answered here whatever the mode, because they mean something on this device or this network only, or
//! because asking would undo what the device is there for.
//! Used by [`super::Dns`]. Each line of [`answer`] names its specification.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hoplite_wire::{
    HostName,
    dns::{Code, Question, RecordType},
    special::{LOOPBACK, is_local_name, is_localhost, is_nobody, is_refused},
};

use super::NEGATIVE;

/// How long these answers may be kept, in seconds: they do not change.
const LONG: u32 = 3600;
/// The addresses of `ipv4only.arpa` (RFC 7050 §2.2).
const IPV4_ONLY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 170)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 171)),
];

/// The answer to a question about a special name.
pub(super) fn answer(question: &Question, text: &str) -> Option<Vec<u8>> {
    match text {
        // "answer address queries with loopback addresses" (RFC 6761 §6.3).
        _ if is_localhost(text) => Some(addresses(question, &LOOPBACK)),
        // Does not exist (RFC 6761 §6.4), or is not for the DNS (RFC 9476).
        _ if is_nobody(text) || is_below(text, "alt") => Some(missing(question)),
        // Multicast DNS stays on the link: "SHOULD […] respond with NXDOMAIN" (RFC 6762 §22.1 no. 5). So do names of a home
        // (RFC 8375), of a private network (.internal and its elders), and those of onion services (RFC 7686 §2 no. 4).
        _ if is_local_name(text) => Some(missing(question)),
        // Firefox asks whether it may take its own resolver: then names would be looked up twice, and not travel.
        "use-application-dns.net" => Some(missing(question)),
        // "resolvers […] MUST […] answer queries" for it themselves (RFC 8880 §7.1); there is no NAT64 behind this device.
        "ipv4only.arpa" => Some(addresses(question, &IPV4_ONLY)),
        // Nobody finds another resolver by way of this one: NODATA (RFC 9462 §6.4).
        _ if is_below(text, "resolver.arpa") => Some(question.nothing(Code::NO_ERROR, LONG)),
        // The one label of a search: it means nothing outside, and a relay must not learn what it means here.
        _ if !text.contains('.') && asks_for_host(question) => Some(missing(question)),
        _ => reverse(question),
    }
}

/// Reverse zones of addresses that mean something here only (RFC 6303 §4): nobody outside knows them.
fn reverse(question: &Question) -> Option<Vec<u8>> {
    let (ip, prefix) = question.reverse()?;
    if ip.is_loopback() && question.kind() == RecordType::PTR {
        let name = HostName::new("localhost").ok()?;
        return Some(question.pointer(&name, LONG));
    }
    let local = prefix >= 8 && is_refused(ip) && is_refused(last(ip, prefix));
    local.then(|| missing(question))
}

/// The last address of a prefix.
fn last(ip: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match ip {
        IpAddr::V4(ip) => {
            let rest = u32::MAX.checked_shr(prefix).unwrap_or(0);
            Ipv4Addr::from(u32::from(ip) | rest).into()
        }
        IpAddr::V6(ip) => {
            let rest = u128::MAX.checked_shr(prefix).unwrap_or(0);
            Ipv6Addr::from(u128::from(ip) | rest).into()
        }
    }
}

fn addresses(question: &Question, addresses: &[IpAddr]) -> Vec<u8> {
    let wanted = addresses.iter().any(|ip| match question.kind() {
        RecordType::A => ip.is_ipv4(),
        RecordType::AAAA => ip.is_ipv6(),
        _ => false,
    });
    match wanted {
        true => question.addresses(addresses.iter().copied(), LONG),
        false => question.nothing(Code::NO_ERROR, LONG),
    }
}

fn missing(question: &Question) -> Vec<u8> {
    question.nothing(Code::NO_NAME, NEGATIVE)
}

fn asks_for_host(question: &Question) -> bool {
    use RecordType::{A, AAAA, HTTPS, SVCB};
    matches!(question.kind(), A | AAAA | HTTPS | SVCB)
}

fn is_below(text: &str, zone: &str) -> bool {
    let rest = text.strip_suffix(zone);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
