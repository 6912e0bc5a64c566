//! What steers one QUIC connection while it runs: when its end acknowledges, and its congestion control. Both ends of a hop hold one each:
//! the client's says what it wishes, the relay's what it grants; each hears the other's by a setting of HTTP/3, and both come to the same.
//! Both ends make one for a connection; `http::h3` passes on what the ends say and tells of streams.

use std::{fmt, sync::Arc, time::Duration};

use hoplite_wire::tuning::{AckPolicy, Agreed, Congestion, TuningGrant, TuningRequest};
use parking_lot::{Mutex, MutexGuard};
use quinn_proto::{AckFrequencyConfig, TransportConfig, VarInt};

use crate::{
    AckController, Bounds, Hooks,
    congestion::{Factory, Switch},
};

/// What the peer is asked for by the extension: one acknowledgement for this many packets, or after its max_ack_delay.
const ASKED_THRESHOLD: u32 = 100;
/// RFC 9002 §6.1.1: the third packet after one tells that it is lost.
const ASKED_REORDERING: u32 = 3;

/// One connection's. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionController(Arc<Shared>);

struct Shared {
    end: End,
    ack_controller: Arc<AckController>,
    switch: Arc<Switch>,
    agreed: Mutex<Agreed>,
    /// What this end keeps to whatever is agreed; [`Congestion::Auto`]: nothing.
    own: Mutex<Congestion>,
}

/// Which end we are, and what we say.
#[derive(Clone, Copy, Debug)]
enum End {
    Client(TuningRequest),
    Relay(TuningGrant),
}

impl ConnectionController {
    /// The client's, for a connection that begins. `inbox` is how many bytes of datagrams may wait for their reader.
    #[must_use]
    pub fn client(request: TuningRequest, inbox: usize) -> Self {
        let bounds = Bounds {
            own_delay: request.down.longest(),
            peer_delay: request.up.longest(),
            inbox,
        };
        Self::new(End::Client(request), bounds, request.alone())
    }

    /// The relay's, for a connection that begins.
    #[must_use]
    pub fn relay(grants: TuningGrant, inbox: usize) -> Self {
        let bounds = Bounds {
            own_delay: grants.acks.longest(),
            peer_delay: Duration::ZERO,
            inbox,
        };
        Self::new(End::Relay(grants), bounds, of_plain_client(grants))
    }

    /// This end keeps to a congestion control of its own, unless it is [`Congestion::Auto`].
    #[must_use]
    pub fn insisting(self, congestion: Congestion) -> Self {
        *self.0.own.lock() = congestion;
        self.apply(self.agreed());
        self
    }

    fn new(end: End, bounds: Bounds, agreed: Agreed) -> Self {
        let controller = Self(Arc::new(Shared {
            end,
            ack_controller: AckController::new(bounds),
            switch: Arc::default(),
            agreed: Mutex::new(agreed),
            own: Mutex::default(),
        }));
        controller.apply(agreed);
        controller
    }

    /// The hooks of the endpoint, with those of this connection.
    #[must_use]
    pub fn hooks(&self, hooks: &Hooks) -> Hooks {
        hooks.governed(&self.0.ack_controller)
    }

    /// Makes the connection obey.
    pub fn configure_transport(&self, transport: &mut TransportConfig) {
        let factory = Factory(Arc::clone(&self.0.switch));
        transport.congestion_controller_factory(Arc::new(factory));
        if self.asks_by_extension() {
            let mut asks = AckFrequencyConfig::default();
            asks.ack_eliciting_threshold(VarInt::from_u32(ASKED_THRESHOLD))
                .reordering_threshold(VarInt::from_u32(ASKED_REORDERING));
            transport.ack_frequency_config(Some(asks));
        }
    }

    fn asks_by_extension(&self) -> bool {
        let asks = match self.0.end {
            End::Client(request) => request.up,
            End::Relay(grants) => grants.acks,
        };
        asks == AckPolicy::Extension
    }

    /// What the peer is told, as the value of the setting of HTTP that negotiates this.
    #[must_use]
    pub fn tuning_setting(&self) -> u64 {
        match self.0.end {
            End::Client(request) => request.encode(),
            End::Relay(grants) => grants.encode(),
        }
    }

    /// What the peer told; `None` if it is a plain one. From now on both ends do what was agreed.
    pub fn agree_tuning(&self, value: Option<u64>) {
        let agreed = match self.0.end {
            End::Client(request) => value
                .and_then(TuningGrant::decode)
                .map_or_else(|| request.alone(), |grants| request.granted(grants)),
            End::Relay(grants) => value.and_then(TuningRequest::decode).map_or_else(
                || of_plain_client(grants),
                |request| request.granted(grants),
            ),
        };
        if agreed.refused.any() && matches!(self.0.end, End::Client(_)) {
            let (up, down) = (agreed.up, agreed.down);
            tracing::debug!(refused = ?agreed.refused, %up, %down, "a relay does not acknowledge as asked");
        }
        *self.agreed_now() = agreed;
        self.apply(agreed);
    }

    fn apply(&self, agreed: Agreed) {
        let (ours, peers) = match self.0.end {
            End::Client(_) => (agreed.down, agreed.up),
            End::Relay(_) => (agreed.up, agreed.down),
        };
        self.0.ack_controller.set(ours, agreed.after);
        let spare = peers == AckPolicy::NoAcks;
        let own = *self.0.own.lock();
        let (congestion, spare) = match (own, agreed.congestion, self.0.end) {
            // A client may do without for datagrams, whose ends control themselves. Of a stream this is the end: TCP towards the target would
            // let it send as fast as the target's line carries, whatever becomes of the path to the client.
            (Congestion::Auto, Congestion::Off, End::Relay(_)) => (Congestion::Auto, true),
            (Congestion::Auto, agreed, _) => (agreed, spare),
            (own, ..) => (own, spare),
        };
        self.0
            .ack_controller
            .tell_all_losses(congestion == Congestion::Bbr);
        self.0.switch.set(congestion, spare);
    }

    fn agreed_now(&self) -> MutexGuard<'_, Agreed> {
        self.0.agreed.lock()
    }

    /// What both ends do, and what the relay refused.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        *self.agreed_now()
    }

    /// Where datagrams come from that the QUIC stack never sees, and who wants to know the round trip.
    #[must_use]
    pub fn ack_controller(&self) -> &AckController {
        &self.0.ack_controller
    }

    /// A stream begins that wants congestion control.
    pub fn stream_begins(&self) {
        self.0.switch.stream_begins();
    }

    /// It ends.
    pub fn stream_ends(&self) {
        self.0.switch.stream_ends();
    }
}

/// A client that knows nothing of this is acknowledged as the relay's file says, and controlled as usual.
fn of_plain_client(grants: TuningGrant) -> Agreed {
    let up = match grants.acks {
        AckPolicy::Auto | AckPolicy::NoAcks => AckPolicy::Stack,
        fixed => fixed,
    };
    Agreed {
        up,
        congestion: Congestion::Auto,
        ..Agreed::PLAIN
    }
}

impl fmt::Debug for ConnectionController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { end, .. } = &*self.0;
        f.debug_struct("ConnectionController")
            .field("end", end)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(request: TuningRequest, grants: TuningGrant) -> [ConnectionController; 2] {
        let (client, relay) = (
            ConnectionController::client(request, 1000),
            ConnectionController::relay(grants, 1000),
        );
        client.agree_tuning(Some(relay.tuning_setting()));
        relay.agree_tuning(Some(client.tuning_setting()));
        [client, relay]
    }

    #[test]
    fn both_ends_come_to_the_same() {
        let carrier = TuningRequest::default().for_hop(true);
        for grants in [
            TuningGrant::default(),
            TuningGrant {
                no_acks: false,
                ..TuningGrant::default()
            },
            TuningGrant {
                acks: AckPolicy::Stack,
                no_acks: true,
            },
        ] {
            let [client, relay] = met(carrier, grants);
            assert_eq!(client.agreed(), relay.agreed());
            assert_eq!(client.ack_controller().acks(), client.agreed().down);
            assert_eq!(relay.ack_controller().acks(), relay.agreed().up);
        }
        let [client, relay] = met(carrier, TuningGrant::default());
        assert_eq!(
            (
                client.ack_controller().acks(),
                relay.ack_controller().acks()
            ),
            (AckPolicy::NoAcks, AckPolicy::NoAcks)
        );
    }

    #[test]
    fn a_peer_that_says_nothing_or_nonsense_is_a_plain_one() {
        for value in [None, Some(1 << 61), Some(3 << 18)] {
            let client = ConnectionController::client(TuningRequest::default().for_hop(true), 1000);
            client.agree_tuning(value);
            assert_eq!(
                client.agreed(),
                TuningRequest::default().for_hop(true).alone()
            );
            let relay = ConnectionController::relay(TuningGrant::default(), 1000);
            relay.agree_tuning(value);
            assert_eq!(relay.agreed(), Agreed::PLAIN);
        }
    }
}
