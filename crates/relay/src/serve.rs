//! Serving: what all shards share, and how long it goes on.
//! [`Handle`](crate::Handle) owns the other end. Each shard is a thread with its own runtime and its own sockets.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use hoplite_crypto::Certificates;
use hoplite_http::{h1, h2, h3};
use hoplite_link::Pad;
use hoplite_quic::Hooks;
use hoplite_wire::tuning::{Congestion, TuningGrant};
use tokio::sync::{mpsc, watch};

use crate::{
    admission::Admission,
    client_regions::ClientRegions,
    config::{Limits, LinkKind},
    egress::Egress,
    forward::Kernel,
    ip::Ip,
    limits::Quotas,
    metrics::Metrics,
    onion::Onion,
};

pub(crate) mod bound;
pub(crate) mod client_stream;
pub(crate) mod connection;
pub(crate) mod dns;
pub(crate) mod handler;
pub(crate) mod ip_flow;
pub(crate) mod quic;
pub(crate) mod shard;
pub(crate) mod splice;
pub(crate) mod tls;
pub(crate) mod udp;

use self::handler::Templates;

/// What all shards share.
pub(crate) struct Shared {
    /// For `Proxy-Status`.
    pub(crate) name: String,
    pub(crate) limits: ArcSwap<Limits>,
    pub(crate) forwarding: crate::config::Forwarding,
    /// What forwards in the kernel, if anything does.
    pub(crate) kernel: Option<Arc<Kernel>>,
    /// Where it does, or why it does not; `None` where nobody asked for it.
    pub(crate) kernel_state: Option<String>,
    pub(crate) bound_udp: crate::config::BoundUdp,
    pub(crate) templates: Templates,
    pub(crate) egress: Arc<Egress>,
    /// Where clients are.
    pub(crate) client_regions: ArcSwapOption<ClientRegions>,
    /// Circuits, if they are served.
    pub(crate) onion: Option<Arc<Onion>>,
    pub(crate) ip: Arc<Ip>,
    /// Whether clients' DNS queries are answered.
    pub(crate) serves_dns: bool,
    pub(crate) admission: ArcSwap<Admission>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) metrics: Arc<Metrics>,
    /// Who sees clients' packets.
    pub(crate) hooks: Hooks,
    /// What clients may ask for: acknowledgements and congestion control.
    pub(crate) grants: TuningGrant,
    /// The congestion control of what is sent to clients, whatever they ask for.
    pub(crate) congestion: Congestion,
    /// Whether packets to clients are as large as the path carries.
    pub(crate) pad: Pad,
    /// How HTTP/3 is spoken.
    pub(crate) h3: h3::Config,
    /// How HTTP/2 is spoken.
    pub(crate) h2: h2::Config,
    /// How HTTP/1.1 is spoken.
    pub(crate) h1: h1::Config,
}

impl Shared {
    /// The limits that hold now.
    pub(crate) fn limits(&self) -> Arc<Limits> {
        self.limits.load_full()
    }

    /// Circuits, if channels come in over this.
    pub(crate) fn onion_over(&self, carrier: LinkKind) -> Option<&Arc<Onion>> {
        self.onion.as_ref().filter(|onion| onion.has(carrier))
    }
}

/// How long it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is served.
    Serving,
    /// No new connection and no new request; what is open goes on.
    Draining,
    /// All is closed.
    Stopped,
}

/// Told of the phase, and held by everything that a drain waits for.
#[derive(Clone, Debug)]
pub(crate) struct Alive {
    pub(crate) phase: watch::Receiver<Phase>,
    _held: Option<mpsc::Sender<()>>,
}

impl Alive {
    pub(crate) fn new(phase: watch::Receiver<Phase>, held: mpsc::Sender<()>) -> Self {
        Self {
            phase,
            _held: Some(held),
        }
    }

    /// One that no drain waits for.
    pub(crate) fn watching(&self) -> Self {
        Self {
            phase: self.phase.clone(),
            _held: None,
        }
    }

    /// Whether new requests are answered 503.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    /// Resolves when the phase is reached; also when nobody steers any more.
    pub(crate) async fn reached(&mut self, phase: Phase) {
        let reached = self.phase.wait_for(|now| *now >= phase);
        drop(reached.await);
    }
}
