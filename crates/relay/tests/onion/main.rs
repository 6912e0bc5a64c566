//! Circuits through whole relays on loopback, over QUIC and TLS on the port of MASQUE: what a client, another relay and an operator see.

mod beside;
mod blocked;
mod circuits;
mod hsdir;
mod known;
mod life;
mod limits;
mod observer;
mod refused;
mod silence;
mod support;

use hoplite_channel::How;
use hoplite_relay::config::LinkKind;

/// The suite of overlays, through three relays.
mod quic {
    hoplite_overlay::conformance_tests!(crate::support::subject(super::How::Quic));
}

/// The same where every channel is TLS, as Tor's relays speak it.
mod tls {
    hoplite_overlay::conformance_tests!(crate::support::subject(super::How::Tls));
}

/// What channels of `how` run over.
fn carriers(how: How) -> Vec<LinkKind> {
    match how {
        How::Quic => vec![LinkKind::Quic],
        How::Tls => vec![LinkKind::Tls],
        How::Raced => vec![LinkKind::Quic, LinkKind::Tls],
    }
}
