//! Echoes between a program of one family and a target of the other: IPv6 temporary addresses stand for names that have IPv4 addresses only,
//! and the other way round. RFC 7915 §4.2 and §5.2; what routers say of one is told as if the target had said it.

use hoplite_wire::ip::{
    self, ICMP, ICMPV6, Packet,
    icmp::{self, Echo, Unreachable},
};

use super::{Idents, Pair, is_error, put, swap, take, written};

/// By how much the headers of the families differ, in octets.
const DIFFERENCE: usize = 20;

/// Makes an echo request one of the other family, and says of which protocol that is.
pub(super) fn request(payload: &mut [u8], echo: &Echo<'_>) -> Option<u8> {
    let kind = payload.first_mut().filter(|_| !echo.reply)?;
    let (to, protocol) = match *kind {
        8 => (128, ICMPV6),
        _ => (8, ICMP),
    };
    *kind = to;
    Some(protocol)
}

/// What came back, as the program is to see it.
pub(super) fn back(
    packet: &Packet<'_>,
    theirs: Pair,
    ours: Pair,
    idents: &Idents,
) -> Option<Vec<u8>> {
    if is_error(packet) {
        return error(packet, theirs, ours, idents);
    }
    let echo = icmp::echo(packet).filter(|echo| echo.reply && packet.source == theirs.far)?;
    let mut payload = packet.payload.to_vec();
    let protocol = ip::icmp_of(ours.near);
    *payload.first_mut()? = if protocol == ICMP { 0 } else { 129 };
    put(&mut payload, 4, idents.ident(echo.identifier)?);
    let ends = [ours.far, ours.near];
    let hop_limit = packet.hop_limit.max(1);
    Some(written(payload, protocol, hop_limit, ends, ends))
}

/// The error that a program of the other family would have got, about the echo that it sent.
fn error(packet: &Packet<'_>, theirs: Pair, ours: Pair, idents: &Idents) -> Option<Vec<u8>> {
    let mut quoted = packet.payload.get(8..)?.to_vec();
    let is_v4 = theirs.near.is_ipv4();
    let [near_at, far_at, header] = if is_v4 { [12, 16, 20] } else { [8, 24, 40] };
    // Not changed, but only taken if they are what they must be.
    swap(&mut quoted, near_at, theirs.near, theirs.near)?;
    swap(&mut quoted, far_at, theirs.far, theirs.far)?;
    let echo = Echo {
        reply: false,
        identifier: idents.ident(take(&quoted, header + 4)?)?,
        sequence: take(&quoted, header + 6)?,
        payload: quoted.get(header + 8..)?,
    };
    told(packet, &echo.packet(ours.near, ours.far))
}

fn told(packet: &Packet<'_>, cause: &[u8]) -> Option<Vec<u8>> {
    let &[kind, code, _, _, a, b, c, d, ..] = packet.payload else {
        return None;
    };
    let mtu = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    match (packet.protocol, kind, code) {
        (ICMP, 3, 4) => icmp::too_big(cause, (mtu & 0xffff).saturating_add(DIFFERENCE)),
        (ICMPV6, 2, _) => icmp::too_big(cause, mtu.saturating_sub(DIFFERENCE)),
        (ICMP, 11, _) | (ICMPV6, 3, _) => icmp::time_exceeded(cause),
        (ICMP, 3, 0) | (ICMPV6, 1, 0) => icmp::unreachable(cause, Unreachable::Network),
        (ICMP, 3, 9 | 10 | 13) | (ICMPV6, 1, 1 | 5 | 6) => {
            icmp::unreachable(cause, Unreachable::Prohibited)
        }
        _ => icmp::unreachable(cause, Unreachable::Host),
    }
}
