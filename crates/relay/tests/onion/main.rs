//! Circuits through whole relays on loopback, over QUIC and TLS on the port of MASQUE: what a client, another relay and an operator see.

mod beside;
mod circuits;
mod known;
mod life;
mod limits;
#[path = "../relay/namespace.rs"]
#[expect(dead_code, reason = "shared with the tests of MASQUE")]
mod namespace;
mod observer;
mod refused;
mod silence;
mod support;
#[path = "../relay/targets.rs"]
#[expect(dead_code, reason = "shared with the tests of MASQUE")]
mod targets;

use hoplite_link::channel::How;
use hoplite_relay::config::Carrier;

/// The suite of overlays, through three relays.
mod quic {
    hoplite_overlay::conformance_tests!(crate::support::subject(super::How::Quic));
}

/// The same where every channel is TLS, as Tor's relays speak it.
mod tls {
    hoplite_overlay::conformance_tests!(crate::support::subject(super::How::Tls));
}

/// What channels of `how` run over.
fn carriers(how: How) -> Vec<Carrier> {
    match how {
        How::Quic => vec![Carrier::Quic],
        How::Tls => vec![Carrier::Tls],
        How::Raced => vec![Carrier::Quic, Carrier::Tls],
    }
}
