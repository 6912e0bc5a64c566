//! Forwarded mode of one UDP flow: packets with registered ids pass the QUIC connection by, everything else goes through it.
//! The CONNECT-UDP handler makes one for each flow that has agreed on it; the flow's sink, its way down and its driver share it.
//! draft-ietf-masque-quic-proxy. Its code points and the scramble transform are provisional.
//!
//! A rule holds for the client's address at which it was asked for. When the connection has another one, all rules of its flows go
//! and the client is told; so nothing is forwarded to an address that has not proved that it wants it: whoever acknowledges a client
//! VCID has received it there.

mod control;
mod down;
mod id;
mod packets;
mod registrations;
mod terms;
mod up;

use std::{
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_crypto::Transform;
use hoplite_http::Flow;
use hoplite_link::{quic::Connection, server::Forwarder};
use hoplite_overlay::direct::UdpFlow;
use hoplite_wire::forwarding::{Capsule, Malformed};
use tokio::{sync::Notify, time::sleep};

pub(crate) use self::down::Tunnel;
pub(crate) use self::terms::{Terms, negotiate};
use self::{control::Control, down::Clients, id::Id, registrations::Refusal};
use crate::{
    limits::{Account, Pace},
    metrics::Metrics,
};

/// How long a capsule waits when the request stream takes no more.
const RETRY: Duration = Duration::from_millis(20);

/// A client's connection, and the socket that its packets arrive at.
#[derive(Clone)]
pub(crate) struct Road {
    connection: Connection,
    forwarder: Forwarder,
}

/// Where a connection's client is. An address that was left and taken again differs in the challenges that were sent meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    challenges: u64,
}

impl Road {
    pub(crate) fn new(connection: Connection, forwarder: Forwarder) -> Self {
        Self {
            connection,
            forwarder,
        }
    }

    fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    fn source(&self) -> Option<IpAddr> {
        self.connection.local_ip()
    }

    fn place(&self) -> Place {
        Place {
            address: self.address(),
            challenges: self.connection.stats().frame_tx.path_challenge,
        }
    }
}

/// What a flow has beside its target's socket, whichever way its payloads go.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pace: Pace,
    /// How many batches have passed; the idle watch looks at it.
    pub(crate) passed: Arc<AtomicU64>,
    /// Where payloads come on streams: whose windows they move.
    pub(crate) account: Option<Arc<Account>>,
}

/// The forwarded mode of one flow.
pub(crate) struct Forwarding {
    me: Weak<Self>,
    road: Road,
    transform: Transform,
    target: Arc<UdpFlow>,
    ledger: Ledger,
    control: Mutex<Control>,
    /// What the way to the client needs of it.
    clients: Mutex<Clients>,
    /// Whether there is any client id to be forwarded.
    active: AtomicBool,
    /// How many batches the client has sent past its connection.
    forwarded: AtomicU64,
    /// There are capsules to be sent, or the client broke a rule.
    work: Notify,
}

impl Forwarding {
    pub(crate) fn new(terms: Terms, target: Arc<UdpFlow>, ledger: Ledger) -> Arc<Self> {
        let place = terms.road.place();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clients: Mutex::new(Clients::new(place.address)),
            control: Mutex::new(Control::new(terms.ids, place)),
            road: terms.road,
            transform: terms.transform,
            target,
            ledger,
            active: AtomicBool::new(false),
            forwarded: AtomicU64::new(0),
            work: Notify::new(),
        })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A capsule has arrived. `Break`: the client broke a rule.
    pub(crate) fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let mut control = self.control();
        self.check_place(&mut control);
        match capsule {
            Ok(capsule) => self.obey(&mut control, capsule),
            Err(Malformed) => self.fail(&mut control, Refusal::Malformed),
        }
        match control.is_broken() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Drops all rules if the client has moved. Called when a packet says so, and from time to time.
    pub(crate) fn look_around(&self) {
        let mut control = self.control();
        self.check_place(&mut control);
    }

    /// Something came through the tunnel: cheaper than [`Self::look_around`], and enough while the client sends.
    pub(crate) fn tunnelled(&self) {
        let rules = self.control().has_rules();
        if rules && self.road.address() != self.clients().address() {
            self.look_around();
        }
    }

    /// Tells the client what there is to tell, and its connection that it lives. Resolves when the client broke a rule.
    pub(crate) async fn drive(&self, client: &Flow, idle: Duration) {
        let mut seen = 0;
        loop {
            let sent = self.control().send(client);
            match sent {
                control::Sent::Broken => return,
                control::Sent::Some => sleep(RETRY).await,
                control::Sent::All => tokio::select! {
                    () = self.work.notified() => (),
                    () = self.pause(idle) => seen = self.keep_alive(client, seen),
                },
            }
        }
    }

    /// A third of the idle time; for ever while there is nothing to keep alive.
    async fn pause(&self, idle: Duration) {
        match idle.is_zero() || !self.control().has_rules() {
            true => std::future::pending().await,
            false => sleep(idle / 3).await,
        }
    }

    /// "Packets sent by the client that are forwarded SHOULD be considered as activity for restarting QUIC's Idle Timeout".
    fn keep_alive(&self, client: &Flow, seen: u64) -> u64 {
        let now = self.forwarded.load(Ordering::Relaxed);
        if now != seen {
            client.keep_alive();
        }
        self.look_around();
        now
    }

    /// All rules end with the flow.
    pub(crate) fn end(&self) {
        self.control().end();
        self.clients().clear();
        self.active.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forwarding")
    }
}
