//! What a program is told by ICMP when its packet cannot be carried.
//! UDP flows and whole packets use it; TCP where a reset would say too little. RFC 792, RFC 4443.

use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::ip::icmp::{self, Unreachable};

use super::{
    Ends, Room,
    port::{Outgoing, udp_headers},
};

/// What a failure of the overlay is called. The table of the crate's documentation, for programs that know no proxy.
pub(crate) fn unreachable_for(error: &Error) -> Unreachable {
    use Unreachable::{Host, Network, Port, Prohibited};
    match error.kind() {
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed | ErrorKind::Bug => Network,
        ErrorKind::Forbidden | ErrorKind::Unsupported => Prohibited,
        ErrorKind::TimedOut => Host,
        ErrorKind::TargetFailed => match error.reason() {
            Some(Reason::Refused) => Port,
            Some(Reason::NetworkUnreachable) => Network,
            _ => Host,
        },
    }
}

/// Tells the sender of the packet `cause` that its target is out of reach.
pub(crate) fn tell_unreachable(room: &Room, cause: &[u8], why: Unreachable) {
    tell(room, icmp::unreachable(cause, why));
}

/// Tells the sender of `cause` how large a packet may be.
pub(crate) fn tell_too_big(room: &Room, cause: &[u8], mtu: usize) {
    tell(room, icmp::too_big(cause, mtu));
}

/// Tells the sender of `cause` that it has used up its hops.
pub(crate) fn tell_time_exceeded(room: &Room, cause: &[u8]) {
    tell(room, icmp::time_exceeded(cause));
}

fn tell(room: &Room, answer: Option<Vec<u8>>) {
    if let Some(packet) = answer {
        room.counters.errors_told.add(1);
        room.port.send(Outgoing::whole(&packet));
    }
}

/// The packet that a program sent, as far as an error has to quote it: flows keep no packets.
pub(crate) fn datagram_of(ends: Ends, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(48 + payload.len());
    udp_headers(&mut packet, ends.program, ends.target, payload.len());
    packet.extend_from_slice(payload);
    packet
}
