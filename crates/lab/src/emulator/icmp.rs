//! What a router answers when it cannot pass a packet on: time exceeded and packet too big. `network` sends it back.
//! RFC 792 and RFC 1191 for IPv4, RFC 4443 for IPv6; not more often than packets come, and never about ICMP errors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::packet::{View, checksum};

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Its TTL or hop limit is used up.
    TimeExceeded,
    /// The next link takes no more than so many octets.
    TooBig(u16),
}

/// The answer to whoever sent `packet`, from a router with these addresses; `None` where none may be sent.
#[must_use]
pub fn answer(packet: &[u8], problem: Problem, v4: Ipv4Addr, v6: Ipv6Addr) -> Option<Vec<u8>> {
    let view = View::parse(packet)?;
    match view.source() {
        IpAddr::V4(to) => (!is_error_v4(&view) && !view.is_later_fragment())
            .then(|| answer_v4(&view, problem, v4, to)),
        IpAddr::V6(to) => (!is_error_v6(&view)).then(|| answer_v6(&view, problem, v6, to)),
    }
}

fn is_error_v4(view: &View<'_>) -> bool {
    let asks = matches!(view.payload().first(), Some(0 | 8 | 13..=18));
    view.protocol() == 1 && !asks
}

fn is_error_v6(view: &View<'_>) -> bool {
    view.protocol() == 58 && view.payload().first().is_none_or(|&kind| kind < 128)
}

fn answer_v4(view: &View<'_>, problem: Problem, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let (kind, code, more) = match problem {
        Problem::TimeExceeded => (11, 0, 0),
        Problem::TooBig(mtu) => (3, 4, mtu),
    };
    let [high, low] = more.to_be_bytes();
    let mut message = vec![kind, code, 0, 0, 0, 0, high, low];
    message.extend(view.octets().iter().take(548));
    let sum = checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let [high, low] = u16::try_from(message.len() + 20).unwrap_or(0).to_be_bytes();
    let mut packet = vec![0x45, 0xc0, high, low, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    packet
}

fn answer_v6(view: &View<'_>, problem: Problem, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let (kind, more) = match problem {
        Problem::TimeExceeded => (3, 0),
        Problem::TooBig(mtu) => (2, u32::from(mtu)),
    };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(more.to_be_bytes());
    message.extend(view.octets().iter().take(1280 - 48));
    let [high, low] = u16::try_from(message.len()).unwrap_or(0).to_be_bytes();
    let pseudo = [
        &from.octets()[..],
        &to.octets()[..],
        &[0, 0, high, low, 0, 0, 0, 58],
    ]
    .concat();
    let sum = checksum(&[&pseudo, &message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, high, low, 58, 64];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(message);
    packet
}
