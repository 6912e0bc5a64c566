//! How both ends of an HTTP/3 connection carry: congestion control and packet size. `three` and `server` build their transport from it.
//! The server learns the client's wish before the handshake, from the connection id that the client draws for its first packet
//! (RFC 9000 §7.2): it is random but for a mark and the wish. Only our own server reads it; nobody else's does.

use std::{sync::Arc, time::Duration};

use quinn::{
    ConnectionId, IdleTimeout, MtuDiscoveryConfig, TransportConfig,
    congestion::{BbrConfig, CubicConfig, NewRenoConfig},
};

use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::workload::{Congestion, Tuning};

/// What a first connection id with a wish begins with.
const MARK: [u8; 4] = *b"hlab";

/// Octets of such an id: mark, congestion control, packet size, and enough random ones.
const LENGTH: usize = 16;

/// QUIC's first packet size, and the smallest that it may have (RFC 9000 §14.1).
const SMALLEST: u16 = 1200;

/// How a connection carries.
pub(super) fn transport(tuning: Tuning, idle: Duration) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.stream_receive_window(STREAM_WINDOW.into());
    config.receive_window(CONNECTION_WINDOW.into());
    config.send_window(CONNECTION_WINDOW.into());
    config.initial_mtu(tuning.packet.max(SMALLEST));
    let search = (tuning.packet == 0).then(MtuDiscoveryConfig::default);
    config.mtu_discovery_config(search);
    config.max_idle_timeout(IdleTimeout::try_from(idle).ok());
    match tuning.congestion {
        Congestion::Cubic => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
        Congestion::Bbr => config.congestion_controller_factory(Arc::new(BbrConfig::default())),
        Congestion::Newreno => {
            config.congestion_controller_factory(Arc::new(NewRenoConfig::default()))
        }
    };
    Arc::new(config)
}

/// A first connection id with this wish; `random` fills the rest.
pub(super) fn first_id(tuning: Tuning, random: [u8; LENGTH]) -> ConnectionId {
    let mut id = random;
    let (head, _) = id.split_at_mut(7);
    head[..4].copy_from_slice(&MARK);
    head[4] = tuning.congestion as u8;
    head[5..].copy_from_slice(&tuning.packet.to_be_bytes());
    ConnectionId::new(&id)
}

/// The wish of a client, if it has one.
pub(super) fn wish(id: &ConnectionId) -> Tuning {
    let &[a, b, c, d, congestion, high, low, ..] = &**id else {
        return Tuning::default();
    };
    if [a, b, c, d] != MARK {
        return Tuning::default();
    }
    let all = [Congestion::Cubic, Congestion::Bbr, Congestion::Newreno];
    let congestion = all.get(usize::from(congestion)).copied();
    Tuning {
        congestion: congestion.unwrap_or_default(),
        packet: u16::from_be_bytes([high, low]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_comes_out_of_the_first_connection_id_as_it_went_in() {
        for congestion in [Congestion::Cubic, Congestion::Bbr, Congestion::Newreno] {
            for packet in [0, 1200, 1350] {
                let tuning = Tuning { congestion, packet };
                assert_eq!(wish(&first_id(tuning, [0xee; LENGTH])), tuning);
            }
        }
    }

    #[test]
    fn an_id_of_somebody_else_is_no_wish() {
        for id in [&b""[..], b"hla", b"hlab\x01", b"HLAB\x01\x04\xb0and more"] {
            assert_eq!(wish(&ConnectionId::new(id)), Tuning::default());
        }
        let unknown = wish(&ConnectionId::new(b"hlab\x09\0\0"));
        assert_eq!(unknown, Tuning::default());
    }
}
