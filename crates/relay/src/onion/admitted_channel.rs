//! One channel's door: circuits come in within the limits, and at the client's pace. `onion` serves a channel through it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use hoplite_channel::{self as link, Listing, Origin, Share, Shares};
use hoplite_onion::{
    channel::{
        AdmittedStream, Channel, CircuitBacklog, CircuitEnds, Closed, LookUp, Receiver, Sender,
        Waiting,
    },
    relay::Requester,
};
use hoplite_wire::cell::{BODY, Cell, circuit::DestroyReason};
use tokio::time::{Instant, Sleep, sleep};

use super::known_relays::KnownRelays;
use crate::{
    failure::Limit,
    limits::{Busy, ClientKey, Pace, Place, QuotaGuard},
    serve::{Alive, Shared},
    statistics::{ClientShare, Seen},
};

/// A channel, and what its circuits count as.
pub(super) struct AdmittedChannel {
    pub(super) channel: link::Channel,
    pub(super) peer: Peer,
    /// Of a channel that came in: it is busy while it carries circuits.
    pub(super) place: Option<Arc<Place>>,
    pub(super) shared: Arc<Shared>,
    pub(super) alive: Alive,
    /// The relay's circuits, and how many of them a stranger may have.
    pub(super) circuits: Shares,
    pub(super) each: usize,
    /// What is counted of it: of a client's channel, so much and no more.
    pub(super) seen: Arc<Seen>,
    pub(super) share: Option<ClientShare>,
    /// Streams of the channel's circuits that end here, and how many there may be.
    pub(super) streams: Arc<AtomicUsize>,
    pub(super) most_streams: usize,
}

/// Whose is what comes on a channel.
pub(super) struct Peer {
    /// A stranger's, who counts by his address.
    pub(super) stranger: ClientKey,
    /// One that shows an identity, and what it counts as while the directory's list has it.
    pub(super) relay: Option<([u8; 32], ClientKey)>,
    pub(super) known: Arc<KnownRelays>,
}

impl Peer {
    /// What it counts as now, and whether it is a relay of the list, which comes before strangers: a channel may be older than the list that has its
    /// relay, and than the one that has it no more.
    fn now(&self) -> (ClientKey, bool) {
        let listed = self
            .relay
            .filter(|(identity, _)| self.known.lists(identity));
        listed.map_or((self.stranger, false), |(_, key)| (key, true))
    }
}

/// One of them: it counts as a request of its client, too.
struct Streaming {
    shared: Arc<Shared>,
    quota: QuotaGuard,
    streams: Arc<AtomicUsize>,
}

/// The bandwidth of one direction of a circuit.
struct Throttle {
    pace: Pace,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Cells from the peer.
struct Inward {
    receiver: link::Receiver,
    throttle: Throttle,
    /// The circuit's place among the client's requests, and among the relay's circuits.
    _permit: QuotaGuard,
    _share: Share,
    _busy: Option<Busy>,
}

/// Cells to the peer.
struct Outward {
    sender: link::Sender,
    throttle: Throttle,
    origin: Origin,
}

/// What a circuit has when it was let in.
struct Admitted {
    quota: QuotaGuard,
    share: Share,
    origin: Origin,
}

impl AdmittedChannel {
    fn admit(&self, circuit: &link::Circuit) -> Result<Admitted, DestroyReason> {
        if self.alive.is_draining() {
            return Err(DestroyReason::HIBERNATING);
        }
        let (client, is_relay) = self.peer.now();
        let origin = Origin {
            who: client.number(),
            is_relay,
            circuit: circuit.sender.handle(),
        };
        if !is_relay {
            origin.circuit.is_of_guest(origin.who);
        }
        let each = if is_relay { usize::MAX } else { self.each };
        let place = || {
            let quota = self.shared.quotas.request(client).ok()?;
            let share = self.circuits.take(&origin, each, Instant::now())?;
            Some((quota, share))
        };
        let Some((quota, share)) = place() else {
            self.shared.metrics.limited("circuits");
            return Err(DestroyReason::RESOURCELIMIT);
        };
        Ok(Admitted {
            quota,
            share,
            origin,
        })
    }
}

impl Channel for AdmittedChannel {
    fn open(&self) -> Waiting<'_, Result<CircuitEnds, Closed>> {
        Channel::open(&self.channel)
    }

    fn open_for<'a>(&'a self, origin: &'a Origin) -> Waiting<'a, Result<CircuitEnds, Closed>> {
        Channel::open_for(&self.channel, origin)
    }

    fn accept(&self) -> Waiting<'_, Option<CircuitEnds>> {
        Box::pin(async {
            loop {
                let circuit = self.channel.accept().await?;
                match self.admit(&circuit) {
                    Ok(admitted) => {
                        self.seen.circuit(self.share.as_ref());
                        let busy = self.place.as_ref().map(Place::busy);
                        return Some(held(circuit, admitted, busy));
                    }
                    Err(reason) => circuit.sender.destroy(reason.0),
                }
            }
        })
    }

    fn peer(&self) -> Option<[u8; 32]> {
        Channel::peer(&self.channel)
    }

    fn admit_stream(&self) -> Option<Box<dyn AdmittedStream>> {
        let more = |n| (n < self.most_streams).then_some(n + 1);
        let counted = self.streams.fetch_update(Relaxed, Relaxed, more).is_ok();
        let quota = counted
            .then(|| self.shared.quotas.request(self.peer.now().0).ok())
            .flatten();
        let Some(quota) = quota else {
            self.streams.fetch_sub(usize::from(counted), Relaxed);
            self.shared.metrics.limited("streams");
            return None;
        };
        Some(Box::new(Streaming {
            shared: Arc::clone(&self.shared),
            quota,
            streams: Arc::clone(&self.streams),
        }))
    }

    fn requester(&self) -> Requester {
        let (client, known) = self.peer.now();
        Requester {
            key: client.number(),
            known,
        }
    }

    fn is_closed(&self) -> bool {
        Channel::is_closed(&self.channel)
    }
}

impl AdmittedStream for Streaming {
    fn look_up(&self, purpose: LookUp) -> Option<Box<dyn Send + Sync>> {
        let queries = self.shared.quotas.queries(&self.quota);
        let admitted = match purpose {
            LookUp::Resolve => queries.admits_query(),
            LookUp::Connect => queries.admits_name(),
        };
        let place = admitted.then(|| queries.look_up().ok());
        if let Some(Some(place)) = place {
            return Some(Box::new(place));
        }
        self.shared.metrics.limited(Limit::Queries.label());
        None
    }

    fn udp_port(&self) -> Option<Box<dyn Send + Sync>> {
        match self.shared.quotas.udp(&self.quota) {
            Ok(port) => Some(Box::new(port)),
            Err(_) => {
                self.shared.metrics.limited(Limit::UdpTunnels.label());
                None
            }
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Relaxed);
    }
}

fn held(circuit: link::Circuit, admitted: Admitted, busy: Option<Busy>) -> CircuitEnds {
    let Admitted {
        quota,
        share,
        origin,
    } = admitted;
    CircuitEnds {
        id: circuit.id,
        sender: Box::new(Outward {
            sender: circuit.sender,
            throttle: Throttle::new(&quota),
            origin,
        }),
        receiver: Box::new(Inward {
            receiver: circuit.receiver,
            throttle: Throttle::new(&quota),
            _permit: quota,
            _share: share,
            _busy: busy,
        }),
    }
}

impl Throttle {
    fn new(quota: &QuotaGuard) -> Self {
        Self {
            pace: quota.pace(),
            pause: None,
        }
    }

    /// Whether the debt is paid.
    fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// A cell has passed.
    fn pay(&mut self) {
        let wait = self.pace.owes(BODY);
        if !wait.is_zero() {
            self.pause = Some(Box::pin(sleep(wait)));
        }
    }
}

impl Receiver for Inward {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        ready!(self.throttle.poll_paid(cx));
        let cell = ready!(self.receiver.poll_recv(cx));
        self.throttle.pay();
        Poll::Ready(cell)
    }
}

impl Sender for Outward {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        ready!(self.throttle.poll_paid(cx));
        Sender::poll_ready(&mut self.sender, cx)
    }

    fn send(&mut self, cell: Cell) {
        self.throttle.pay();
        Sender::send(&mut self.sender, cell);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Sender::poll_flush(&mut self.sender, cx)
    }

    fn backlog(&self) -> Arc<CircuitBacklog> {
        Arc::clone(self.sender.backlog())
    }

    fn has_backpressure(&self) -> bool {
        self.sender.has_backpressure()
    }

    fn origin(&self) -> Option<Origin> {
        Some(self.origin.clone())
    }

    fn destroy(self: Box<Self>, reason: DestroyReason) {
        self.sender.destroy(reason.0);
    }
}

impl fmt::Debug for AdmittedChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmittedChannel").finish_non_exhaustive()
    }
}
