//! Packets between two worlds: a program sees its device's address and the target's address as it was told, the far end sees the address
//! that it assigned and the one that it found. Only the payload crosses; headers are written anew, echo identifiers are numbered by flow.
//! A name's temporary addresses are of both families whatever the name has: an echo crosses over where it must (RFC 7915 §4.2 and §5.2).
//! Pure; [`super::flow`] calls it. RFC 1624 where a checksum covers addresses; RFC 792 and RFC 4443 for what errors quote.

mod cross;

use std::net::IpAddr;

use hoplite_wire::ip::{self, ICMP, ICMPV6, Packet, TCP, UDP, checksum};

/// How many programs may use one flow of echoes at a time; the one that came first makes room.
const IDENTS: usize = 16;
/// DCCP and UDP-Lite: like TCP and UDP they have a checksum over addresses.
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;

/// Both ends as one side sees them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    /// This end.
    pub(super) near: IpAddr,
    /// The other.
    pub(super) far: IpAddr,
}

/// Which program's identifier has which number.
#[derive(Debug, Default)]
pub(super) struct Idents {
    known: Vec<u16>,
    next: usize,
}

impl Idents {
    /// The number that stands for `ident` at the far end: it tells nothing of the program.
    fn number(&mut self, ident: u16) -> u16 {
        if let Some(at) = self.known.iter().position(|known| *known == ident) {
            return u16::try_from(at).unwrap_or(0);
        }
        let at = self.next;
        match self.known.get_mut(at) {
            Some(place) => *place = ident,
            None => self.known.push(ident),
        }
        self.next = (at + 1) % IDENTS;
        u16::try_from(at).unwrap_or(0)
    }

    fn ident(&self, number: u16) -> Option<u16> {
        self.known.get(usize::from(number)).copied()
    }
}

/// What a program sent, as the far end is to see it; `None` if that is of the other family, and the packet no echo.
pub(super) fn up(
    packet: &Packet<'_>,
    to: Pair,
    hop_limit: u8,
    idents: &mut Idents,
) -> Option<Vec<u8>> {
    let (mut payload, mut protocol) = (packet.payload.to_vec(), packet.protocol);
    let echo = ip::icmp::echo(packet);
    if let Some(echo) = &echo {
        put(&mut payload, 4, idents.number(echo.identifier));
    }
    if packet.source.is_ipv4() != to.near.is_ipv4() {
        protocol = cross::request(&mut payload, &echo?)?;
    }
    let was = [packet.source, packet.destination];
    let is = [to.near, to.far];
    Some(written(payload, protocol, hop_limit, was, is))
}

/// What the far end sent, as the program is to see it; `None` if it is not for the program.
pub(super) fn down(
    packet: &Packet<'_>,
    theirs: Pair,
    ours: Pair,
    idents: &Idents,
) -> Option<Vec<u8>> {
    if packet.destination != theirs.near || packet.fragment || !packet.checksum_is_right() {
        return None;
    }
    if theirs.near.is_ipv4() != ours.near.is_ipv4() {
        return cross::back(packet, theirs, ours, idents);
    }
    let mut payload = packet.payload.to_vec();
    let is_error = is_error(packet);
    if is_error {
        requote(payload.get_mut(8..)?, theirs, ours, idents)?;
    } else if packet.source != theirs.far {
        return None;
    }
    if let Some(echo) = ip::icmp::echo(packet) {
        put(
            &mut payload,
            4,
            idents.ident(echo.identifier).filter(|_| echo.reply)?,
        );
    }
    // Who complains from the way is told as it is; the target has the address that the program knows.
    let from = match packet.source == theirs.far {
        true => ours.far,
        false => packet.source,
    };
    let was = [packet.source, packet.destination];
    let hop_limit = packet.hop_limit.max(1);
    Some(written(
        payload,
        packet.protocol,
        hop_limit,
        was,
        [from, ours.near],
    ))
}

/// A packet with other addresses, its checksum right for them.
fn written(
    mut payload: Vec<u8>,
    protocol: u8,
    hop_limit: u8,
    was: [IpAddr; 2],
    is: [IpAddr; 2],
) -> Vec<u8> {
    let [from, to] = is;
    match protocol {
        ICMP => fresh(&mut payload, |payload| checksum::of(&[payload])),
        ICMPV6 => fresh(&mut payload, |payload| {
            checksum::transport(from, to, ICMPV6, &[payload])
        }),
        _ => adjust(&mut payload, protocol, was, is),
    }
    let mut out = Vec::with_capacity(40 + payload.len());
    ip::write_header(&mut out, from, to, protocol, hop_limit, payload.len());
    out.extend_from_slice(&payload);
    out
}

/// ICMP's checksum anew.
fn fresh(payload: &mut [u8], sum: impl FnOnce(&[u8]) -> u16) {
    put(payload, 2, 0);
    let sum = sum(payload);
    put(payload, 2, sum);
}

/// The checksum of a protocol that covers addresses, for others. What has none (SCTP, GRE, ESP) stays as it is.
fn adjust(payload: &mut [u8], protocol: u8, was: [IpAddr; 2], is: [IpAddr; 2]) {
    let at = match protocol {
        TCP => 16,
        UDP | UDP_LITE | DCCP => 6,
        _ => return,
    };
    let Some(before) = take(payload, at) else {
        return;
    };
    // UDP over IPv4 may do without (RFC 768).
    if protocol == UDP && before == 0 {
        return;
    }
    let pairs = was.into_iter().zip(is);
    let after = pairs.fold(before, |sum, (was, is)| match (was, is) {
        (IpAddr::V4(was), IpAddr::V4(is)) => checksum::update(sum, &was.octets(), &is.octets()),
        (IpAddr::V6(was), IpAddr::V6(is)) => checksum::update(sum, &was.octets(), &is.octets()),
        _ => sum,
    });
    put(
        payload,
        at,
        if protocol == UDP && after == 0 {
            0xffff
        } else {
            after
        },
    );
}

/// The packet that an error quotes, as the program sent it; `None` if it is none of the flow's. Its own checksums are not looked at by
/// anybody but that of the IPv4 header, which is right again.
fn requote(quoted: &mut [u8], theirs: Pair, ours: Pair, idents: &Idents) -> Option<()> {
    let is_v4 = theirs.near.is_ipv4();
    let (source_at, header) = if is_v4 { (12, 20) } else { (8, 40) };
    let is_fit = match quoted.first()? {
        0x45 => is_v4,
        first => first >> 4 == 6 && !is_v4,
    };
    if !is_fit || quoted.len() < header + 8 {
        return None;
    }
    swap(quoted, source_at, theirs.near, ours.near)?;
    swap(
        quoted,
        source_at + if is_v4 { 4 } else { 16 },
        theirs.far,
        ours.far,
    )?;
    let protocol = *quoted.get(if is_v4 { 9 } else { 6 })?;
    if matches!(protocol, ICMP | ICMPV6) {
        let ident = idents.ident(take(quoted, header + 4)?)?;
        put(quoted, header + 4, ident);
    }
    if is_v4 {
        put(quoted, 10, 0);
        let sum = checksum::of(&[quoted.get(..header)?]);
        put(quoted, 10, sum);
    }
    Some(())
}

/// Puts `is` in the place of `was`; `None` if something else is there.
fn swap(octets: &mut [u8], at: usize, was: IpAddr, is: IpAddr) -> Option<()> {
    let write = |was: &[u8], is: &[u8], octets: &mut [u8]| {
        let place = octets.get_mut(at..at + was.len())?;
        (*place == *was).then(|| place.copy_from_slice(is))
    };
    match (was, is) {
        (IpAddr::V4(was), IpAddr::V4(is)) => write(&was.octets(), &is.octets(), octets),
        (IpAddr::V6(was), IpAddr::V6(is)) => write(&was.octets(), &is.octets(), octets),
        _ => None,
    }
}

fn is_error(packet: &Packet<'_>) -> bool {
    match (packet.protocol, packet.payload.first()) {
        (ICMP, Some(kind)) => matches!(kind, 3 | 11 | 12),
        (ICMPV6, Some(kind)) => matches!(kind, 1..=4),
        _ => false,
    }
}

fn take(octets: &[u8], at: usize) -> Option<u16> {
    match octets.get(at..at + 2)? {
        [high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

fn put(octets: &mut [u8], at: usize, value: u16) {
    if let Some(place) = octets.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
