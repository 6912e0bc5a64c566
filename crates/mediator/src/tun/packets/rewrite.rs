//! Packets between two worlds: a program sees its device's address and the target's address as it was told, the far end sees the address
//! that it assigned and the one that it found. Only the payload crosses; headers are written anew, echo identifiers are numbered by flow.
//! A name's temporary addresses are of both families whatever the name has: an echo crosses over where it must (RFC 7915 §4.2 and §5.2).
//! No I/O, no clock. RFC 1624 where a checksum covers addresses; RFC 792 and RFC 4443 for what errors quote.

use std::net::IpAddr;

use hoplite_wire::ip::{
    self, ICMP, ICMPV6, Packet, TCP, UDP, checksum,
    icmp::{self, Echo, Unreachable},
};

/// How many programs may use one flow of echoes at a time; the oldest is forgotten.
const MAX_IDENTIFIERS: usize = 16;
/// DCCP and UDP-Lite: like TCP and UDP they have a checksum over addresses.
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;

/// The addresses of a flow as one side of it sees them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowAddresses {
    /// This end.
    pub(super) near: IpAddr,
    /// The other.
    pub(super) far: IpAddr,
}

/// Which program's identifier has which number.
#[derive(Debug, Default)]
pub(super) struct EchoIdentifiers {
    known: Vec<u16>,
    next: usize,
}

impl EchoIdentifiers {
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
        self.next = (at + 1) % MAX_IDENTIFIERS;
        u16::try_from(at).unwrap_or(0)
    }

    fn ident(&self, number: u16) -> Option<u16> {
        self.known.get(usize::from(number)).copied()
    }
}

/// What a program sent, as the far end is to see it; `None` if that is of the other family, and the packet no echo.
pub(super) fn up(
    packet: &Packet<'_>,
    to: FlowAddresses,
    hop_limit: u8,
    identifiers: &mut EchoIdentifiers,
) -> Option<Vec<u8>> {
    let (mut payload, mut protocol) = (packet.payload.to_vec(), packet.protocol);
    let echo = icmp::echo(packet);
    if let Some(echo) = &echo {
        put(&mut payload, 4, identifiers.number(echo.identifier));
    }
    if packet.source.is_ipv4() != to.near.is_ipv4() {
        protocol = cross_request(&mut payload, &echo?)?;
    }
    let was = [packet.source, packet.destination];
    let is = [to.near, to.far];
    Some(written(payload, protocol, hop_limit, was, is))
}

/// What the far end sent to a flow of `protocol`, as the program is to see it; `None` if it is not for the program: no more comes in by a flow of
/// one protocol than packets of that and errors about it, and of ICMP no more than replies to echoes and errors.
pub(super) fn down(
    packet: &Packet<'_>,
    protocol: u8,
    theirs: FlowAddresses,
    ours: FlowAddresses,
    identifiers: &EchoIdentifiers,
) -> Option<Vec<u8>> {
    if packet.destination != theirs.near || packet.fragment || !packet.checksum_is_right() {
        return None;
    }
    if theirs.near.is_ipv4() != ours.near.is_ipv4() {
        return cross_reply(packet, theirs, ours, identifiers);
    }
    let mut payload = packet.payload.to_vec();
    if is_error(packet) {
        requote(payload.get_mut(8..)?, protocol, theirs, ours, identifiers)?;
    } else if packet.source != theirs.far || packet.protocol != protocol {
        return None;
    } else if matches!(protocol, ICMP | ICMPV6) {
        let echo = icmp::echo(packet).filter(|echo| echo.reply)?;
        put(&mut payload, 4, identifiers.ident(echo.identifier)?);
    }
    // Who complains from the way is told as it is; the target has the address that the program knows.
    let from = if packet.source == theirs.far {
        ours.far
    } else {
        packet.source
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

/// Computes ICMP's checksum.
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
fn requote(
    quoted: &mut [u8],
    protocol: u8,
    theirs: FlowAddresses,
    ours: FlowAddresses,
    identifiers: &EchoIdentifiers,
) -> Option<()> {
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
    if quoted.get(if is_v4 { 9 } else { 6 }) != Some(&protocol) {
        return None;
    }
    if matches!(protocol, ICMP | ICMPV6) {
        let ident = identifiers.ident(take(quoted, header + 4)?)?;
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
fn swap(bytes: &mut [u8], at: usize, was: IpAddr, is: IpAddr) -> Option<()> {
    let write = |was: &[u8], is: &[u8], bytes: &mut [u8]| {
        let place = bytes.get_mut(at..at + was.len())?;
        (*place == *was).then(|| place.copy_from_slice(is))
    };
    match (was, is) {
        (IpAddr::V4(was), IpAddr::V4(is)) => write(&was.octets(), &is.octets(), bytes),
        (IpAddr::V6(was), IpAddr::V6(is)) => write(&was.octets(), &is.octets(), bytes),
        _ => None,
    }
}

fn is_error(packet: &Packet<'_>) -> bool {
    match (icmp_protocol(packet), packet.payload.first()) {
        (Some(ICMP), Some(kind)) => matches!(kind, 3 | 11 | 12),
        (Some(ICMPV6), Some(kind)) => matches!(kind, 1..=4),
        _ => false,
    }
}

/// A packet's protocol, if it is the ICMP of its family: that of the other one means nothing there.
fn icmp_protocol(packet: &Packet<'_>) -> Option<u8> {
    (packet.protocol == ip::icmp_of(packet.source)).then_some(packet.protocol)
}

fn take(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at + 2)? {
        [high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// By how much the headers of the families differ, in bytes.
const HEADER_DIFFERENCE: usize = 20;

/// Makes an echo request one of the other family, and says of which protocol that is.
fn cross_request(payload: &mut [u8], echo: &Echo<'_>) -> Option<u8> {
    let kind = payload.first_mut().filter(|_| !echo.reply)?;
    let (to, protocol) = match *kind {
        8 => (128, ICMPV6),
        _ => (8, ICMP),
    };
    *kind = to;
    Some(protocol)
}

/// What came back, as the program is to see it.
fn cross_reply(
    packet: &Packet<'_>,
    theirs: FlowAddresses,
    ours: FlowAddresses,
    identifiers: &EchoIdentifiers,
) -> Option<Vec<u8>> {
    if is_error(packet) {
        return cross_error(packet, theirs, ours, identifiers);
    }
    icmp_protocol(packet)?;
    let echo = icmp::echo(packet).filter(|echo| echo.reply && packet.source == theirs.far)?;
    let mut payload = packet.payload.to_vec();
    let protocol = ip::icmp_of(ours.near);
    *payload.first_mut()? = if protocol == ICMP { 0 } else { 129 };
    put(&mut payload, 4, identifiers.ident(echo.identifier)?);
    let ends = [ours.far, ours.near];
    let hop_limit = packet.hop_limit.max(1);
    Some(written(payload, protocol, hop_limit, ends, ends))
}

/// The error that a program of the other family would have got, about the echo that it sent.
fn cross_error(
    packet: &Packet<'_>,
    theirs: FlowAddresses,
    ours: FlowAddresses,
    identifiers: &EchoIdentifiers,
) -> Option<Vec<u8>> {
    let mut quoted = packet.payload.get(8..)?.to_vec();
    let is_v4 = theirs.near.is_ipv4();
    let [protocol_at, near_at, far_at, header] = if is_v4 {
        [9, 12, 16, 20]
    } else {
        [6, 8, 24, 40]
    };
    if quoted.get(protocol_at) != Some(&ip::icmp_of(theirs.near)) {
        return None;
    }
    // Not changed, but only taken if they are what they must be.
    swap(&mut quoted, near_at, theirs.near, theirs.near)?;
    swap(&mut quoted, far_at, theirs.far, theirs.far)?;
    let echo = Echo {
        reply: false,
        identifier: identifiers.ident(take(&quoted, header + 4)?)?,
        sequence: take(&quoted, header + 6)?,
        payload: quoted.get(header + 8..)?,
    };
    cross_icmp_error(packet, &echo.packet(ours.near, ours.far))
}

fn cross_icmp_error(packet: &Packet<'_>, cause: &[u8]) -> Option<Vec<u8>> {
    let &[kind, code, _, _, a, b, c, d, ..] = packet.payload else {
        return None;
    };
    let mtu = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    match (packet.protocol, kind, code) {
        (ICMP, 3, 4) => icmp::too_big(cause, (mtu & 0xffff).saturating_add(HEADER_DIFFERENCE)),
        (ICMPV6, 2, _) => icmp::too_big(cause, mtu.saturating_sub(HEADER_DIFFERENCE)),
        (ICMP, 11, _) | (ICMPV6, 3, _) => icmp::time_exceeded(cause),
        (ICMP, 3, 0) | (ICMPV6, 1, 0) => icmp::unreachable(cause, Unreachable::Network),
        (ICMP, 3, 9 | 10 | 13) | (ICMPV6, 1, 1 | 5 | 6) => {
            icmp::unreachable(cause, Unreachable::Prohibited)
        }
        _ => icmp::unreachable(cause, Unreachable::Host),
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::ip::icmp::{self, Echo, Unreachable};
    use proptest::prelude::*;

    use super::*;

    /// Makes an error about a packet.
    type Error = fn(&[u8]) -> Option<Vec<u8>>;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    /// As the program sees it, and as the far end does.
    fn worlds(v6: bool) -> (FlowAddresses, FlowAddresses) {
        let pair = |near, far| FlowAddresses {
            near: ip(near),
            far: ip(far),
        };
        if !v6 {
            (
                pair("198.18.0.1", "198.18.9.9"),
                pair("100.96.0.2", "203.0.113.9"),
            )
        } else {
            (pair("fd68::1", "fd68::99"), pair("fd00::2", "2001:db8::9"))
        }
    }

    fn echo(reply: bool, identifier: u16, payload: &[u8], from: IpAddr, to: IpAddr) -> Vec<u8> {
        let sequence = 3;
        let echo = Echo {
            reply,
            identifier,
            sequence,
            payload,
        };
        echo.packet(from, to)
    }

    fn parsed(bytes: &[u8]) -> Packet<'_> {
        ip::parse(bytes).expect("a packet")
    }

    #[test]
    fn an_echo_goes_with_the_far_ends_addresses_and_comes_back_with_the_programs() {
        for v6 in [false, true] {
            let ((ours, theirs), mut identifiers) = (worlds(v6), EchoIdentifiers::default());
            let request = echo(false, 4711, b"ping", ours.near, ours.far);
            let sent = up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
            let sent = parsed(&sent);
            assert_eq!((sent.source, sent.destination), (theirs.near, theirs.far));
            assert!(sent.checksum_is_right() && sent.hop_limit == 64);
            let seen = icmp::echo(&sent).expect("an echo");
            assert_ne!(seen.identifier, 4711, "the program's identifier stays here");
            let reply = echo(true, seen.identifier, seen.payload, theirs.far, theirs.near);
            let back = down(
                &parsed(&reply),
                ip::icmp_of(ours.near),
                theirs,
                ours,
                &identifiers,
            )
            .expect("for the program");
            let back = parsed(&back);
            assert_eq!((back.source, back.destination), (ours.far, ours.near));
            assert!(back.checksum_is_right());
            let told = icmp::echo(&back).expect("an echo");
            assert_eq!(
                (told.reply, told.identifier, told.sequence),
                (true, 4711, 3)
            );
            assert_eq!(told.payload, b"ping");
        }
    }

    #[test]
    fn what_is_not_for_the_program_is_dropped() {
        let ((ours, theirs), mut identifiers) = (worlds(false), EchoIdentifiers::default());
        let request = echo(false, 1, b"", ours.near, ours.far);
        up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
        let for_program =
            |packet: &[u8]| down(&parsed(packet), ICMP, theirs, ours, &identifiers).is_some();
        assert!(for_program(&echo(true, 0, b"x", theirs.far, theirs.near)));
        let mut spoilt = echo(true, 0, b"x", theirs.far, theirs.near);
        spoilt[22] ^= 1;
        for packet in [
            spoilt,
            echo(true, 1, b"another's", theirs.far, theirs.near),
            echo(false, 0, b"a request", theirs.far, theirs.near),
            echo(true, 0, b"from elsewhere", ip("192.0.2.66"), theirs.near),
            echo(true, 0, b"to elsewhere", theirs.far, ip("100.96.0.3")),
        ] {
            assert!(!for_program(&packet));
        }
    }

    /// One header and a payload, with the checksum of ICMP where it is that.
    fn packet(protocol: u8, payload: &[u8], from: IpAddr, to: IpAddr) -> Vec<u8> {
        written(payload.to_vec(), protocol, 64, [from, to], [from, to])
    }

    #[test]
    fn no_more_comes_in_by_a_ping_than_replies_and_errors_about_it() {
        for (v6, crossed) in [(false, false), (true, false), (false, true), (true, true)] {
            let ((ours, _), (_, theirs)) = (worlds(v6 != crossed), worlds(v6));
            let (program, far) = (ip::icmp_of(ours.near), ip::icmp_of(theirs.near));
            let mut identifiers = EchoIdentifiers::default();
            let request = echo(false, 1, b"ping", ours.near, ours.far);
            up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
            let told = |bytes: &[u8]| down(&parsed(bytes), program, theirs, ours, &identifiers);
            assert!(told(&echo(true, 0, b"pong", theirs.far, theirs.near)).is_some());
            for protocol in [TCP, UDP, 132, 47, if far == ICMP { ICMPV6 } else { ICMP }] {
                let other = packet(protocol, &[0; 40], theirs.far, theirs.near);
                assert_eq!(told(&other), None, "protocol {protocol}");
                let quoted = packet(protocol, &[0; 40], theirs.near, theirs.far);
                // About an error there is none.
                if let Some(error) = icmp::unreachable(&quoted, Unreachable::Host) {
                    assert_eq!(told(&error), None, "an error about protocol {protocol}");
                }
            }
            // Redirects, router and neighbour advertisements, timestamps, a redirect of IPv6.
            for kind in [4, 5, 9, 10, 13, 14, 17, 134, 136, 137] {
                let mut payload = vec![0; 40];
                payload[0] = kind;
                let message = packet(far, &payload, theirs.far, theirs.near);
                if !is_error(&parsed(&message)) {
                    assert_eq!(told(&message), None, "ICMP type {kind}");
                }
            }
        }
    }

    #[test]
    fn a_flow_of_another_protocol_gets_its_own_packets_and_errors_about_them() {
        for v6 in [false, true] {
            let (ours, theirs) = worlds(v6);
            let identifiers = EchoIdentifiers::default();
            let told = |bytes: &[u8]| down(&parsed(bytes), 132, theirs, ours, &identifiers);
            assert!(told(&packet(132, b"sctp or so", theirs.far, theirs.near)).is_some());
            assert_eq!(told(&packet(UDP, &[0; 40], theirs.far, theirs.near)), None);
            assert_eq!(told(&echo(true, 0, b"", theirs.far, theirs.near)), None);
            for (protocol, is_told) in [(132, true), (UDP, false)] {
                let sent = packet(protocol, &[0; 40], theirs.near, theirs.far);
                let error = icmp::unreachable(&sent, Unreachable::Host).expect("an error");
                assert_eq!(told(&error).is_some(), is_told);
            }
        }
    }

    #[test]
    fn an_error_quotes_the_packet_that_the_program_sent() {
        for v6 in [false, true] {
            let ((ours, theirs), mut identifiers) = (worlds(v6), EchoIdentifiers::default());
            let request = echo(false, 4711, b"ping", ours.near, ours.far);
            let sent = up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
            let error = icmp::unreachable(&sent, Unreachable::Host).expect("an error");
            let told = down(
                &parsed(&error),
                ip::icmp_of(ours.near),
                theirs,
                ours,
                &identifiers,
            )
            .expect("for the program");
            let told = parsed(&told);
            assert_eq!((told.source, told.destination), (ours.far, ours.near));
            assert!(told.checksum_is_right());
            let quoted = &told.payload[8..];
            let headers = parsed(quoted).header_len;
            assert_eq!(
                quoted[..headers],
                request[..headers],
                "the header as it was sent"
            );
            assert_eq!(
                quoted[headers + 4..],
                request[headers + 4..],
                "identifier, sequence and payload"
            );
        }
    }

    #[test]
    fn an_error_that_quotes_somebody_elses_packet_is_dropped() {
        let ((ours, theirs), mut identifiers) = (worlds(false), EchoIdentifiers::default());
        let request = echo(false, 1, b"ping", ours.near, ours.far);
        up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
        let foreign = echo(false, 0, b"ping", theirs.near, ip("192.0.2.66"));
        let error = icmp::unreachable(&foreign, Unreachable::Host).expect("an error");
        assert_eq!(
            down(&parsed(&error), ICMP, theirs, ours, &identifiers),
            None
        );
    }

    #[test]
    fn an_error_of_the_other_familys_icmp_is_none() {
        for (v6, crossed) in [(false, false), (true, false), (false, true), (true, true)] {
            let ((ours, _), (_, theirs)) = (worlds(v6 != crossed), worlds(v6));
            let mut identifiers = EchoIdentifiers::default();
            let request = echo(false, 1, b"ping", ours.near, ours.far);
            let sent = up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
            let program = ip::icmp_of(ours.near);
            let told = |bytes: &[u8]| down(&parsed(bytes), program, theirs, ours, &identifiers);
            for (protocol, kind) in [(ICMP, 3), (ICMPV6, 1)] {
                let error = [&[kind, 0, 0, 0, 0, 0, 0, 0], &sent[..]].concat();
                let error = packet(protocol, &error, theirs.far, theirs.near);
                assert_eq!(told(&error).is_some(), protocol == ip::icmp_of(theirs.far));
            }
        }
    }

    #[test]
    fn an_echo_crosses_to_the_other_family_and_back_and_so_do_errors_about_it() {
        for v6 in [false, true] {
            let ((ours, _), (_, theirs)) = (worlds(v6), worlds(!v6));
            let mut identifiers = EchoIdentifiers::default();
            let request = echo(false, 4711, b"ping", ours.near, ours.far);
            let sent = up(&parsed(&request), theirs, 64, &mut identifiers).expect("goes");
            assert_eq!(sent, echo(false, 0, b"ping", theirs.near, theirs.far));
            let reply = echo(true, 0, b"ping", theirs.far, theirs.near);
            let back = down(
                &parsed(&reply),
                ip::icmp_of(ours.near),
                theirs,
                ours,
                &identifiers,
            )
            .expect("for the program");
            assert_eq!(back, echo(true, 4711, b"ping", ours.far, ours.near));
            let [unreachable, exceeded, large]: [Error; 3] = [
                |cause| icmp::unreachable(cause, Unreachable::Host),
                icmp::time_exceeded,
                |cause| icmp::too_big(cause, 1400),
            ];
            for error in [unreachable, exceeded] {
                let told = down(
                    &parsed(&error(&sent).expect("an error")),
                    ip::icmp_of(ours.near),
                    theirs,
                    ours,
                    &identifiers,
                );
                assert_eq!(
                    told,
                    error(&request),
                    "as if the target had answered the program"
                );
            }
            let told = down(
                &parsed(&large(&sent).expect("an error")),
                ip::icmp_of(ours.near),
                theirs,
                ours,
                &identifiers,
            );
            let mtu = if v6 { 1420 } else { 1380 };
            assert_eq!(told, icmp::too_big(&request, mtu));
            let foreign = echo(false, 0, b"ping", theirs.near, ours.far);
            assert!(unreachable(&foreign).is_none_or(|error| {
                down(
                    &parsed(&error),
                    ip::icmp_of(ours.near),
                    theirs,
                    ours,
                    &identifiers,
                )
                .is_none()
            }));
        }
    }

    #[test]
    fn other_protocols_do_not_cross() {
        let ((ours, _), (_, theirs)) = (worlds(false), worlds(true));
        let mut packet = Vec::new();
        ip::write_header(&mut packet, ours.near, ours.far, 132, 64, 4);
        packet.extend_from_slice(b"sctp");
        assert_eq!(
            up(
                &parsed(&packet),
                theirs,
                64,
                &mut EchoIdentifiers::default()
            ),
            None
        );
    }

    #[test]
    fn the_seventeenth_program_takes_the_number_of_the_first() {
        let mut identifiers = EchoIdentifiers::default();
        for ident in 1000..1016 {
            assert_eq!(identifiers.number(ident), ident - 1000);
        }
        assert_eq!(identifiers.number(2000), 0);
        assert_eq!(
            (
                identifiers.ident(0),
                identifiers.ident(15),
                identifiers.ident(16)
            ),
            (Some(2000), Some(1015), None)
        );
        assert_eq!(identifiers.number(1001), 1);
    }

    proptest! {
        /// A transport checksum that was right is right for the other addresses, there and back.
        #[test]
        fn checksums_over_addresses_stay_right(v6: bool, tcp: bool, body in prop::collection::vec(any::<u8>(), 20..200)) {
            let (ours, theirs) = worlds(v6);
            let (protocol, at) = if tcp { (TCP, 16) } else { (UDP, 6) };
            let mut payload = body;
            put(&mut payload, at, 0);
            let sum = checksum::transport(ours.near, ours.far, protocol, &[&payload]);
            put(&mut payload, at, if sum == 0 { 0xffff } else { sum });
            let mut packet = Vec::new();
            ip::write_header(&mut packet, ours.near, ours.far, protocol, 64, payload.len());
            packet.extend_from_slice(&payload);
            let sent = up(&parsed(&packet), theirs, 64, &mut EchoIdentifiers::default()).expect("goes");
            let seen = parsed(&sent);
            prop_assert!([0, 0xffff].contains(&checksum::transport(seen.source, seen.destination, protocol, &[seen.payload])));
            let mut back = Vec::new();
            let again = written(seen.payload.to_vec(), protocol, 64, [theirs.near, theirs.far], [theirs.far, theirs.near]);
            back.extend_from_slice(&again);
            let told = down(&parsed(&back), protocol, theirs, ours, &EchoIdentifiers::default()).expect("for the program");
            let told = parsed(&told);
            prop_assert!([0, 0xffff].contains(&checksum::transport(told.source, told.destination, protocol, &[told.payload])));
        }

        #[test]
        fn any_packet_is_rewritten_without_a_panic(bytes: Vec<u8>, v6: bool, protocol: u8) {
            let (ours, theirs) = worlds(v6);
            let mut identifiers = EchoIdentifiers::default();
            let mut packet = Vec::new();
            ip::write_header(&mut packet, theirs.far, theirs.near, protocol, 64, bytes.len());
            packet.extend_from_slice(&bytes);
            // Some protocol numbers are extension headers, which random bytes are not.
            if let Ok(packet) = ip::parse(&packet) {
                let (other, _) = worlds(!v6);
                for ours in [ours, other] {
                    drop(up(&packet, ours, 64, &mut identifiers));
                    drop(down(&packet, protocol, theirs, ours, &identifiers));
                    drop(down(&packet, ip::icmp_of(ours.near), theirs, ours, &identifiers));
                }
            }
        }
    }
}
