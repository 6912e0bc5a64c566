//! A client of onion services: for each token and service a circuit to a rendezvous point, where the service comes ([`super::reaching`]), and streams on
//! it. A program asks [`Client::open_stream`]. rend-spec-v3, "Managing streams".
//!
//! A client tells a service nothing but where to meet; a hostile introduction point can refuse or keep silent, and the next one is asked; a hostile
//! rendezvous point can do so too, and sees bytes that it cannot read. What each of them may cost is bounded by [`ClientConfig`] and the stream's own
//! deadline.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn, ready},
    sync::Arc,
    time::Duration,
};

use hoplite_overlay::{Datagrams, Error, ErrorKind, Isolation, Reason, Stream, Terms};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::timeout;

use super::{
    KnownService,
    reaching::{Prepared, Reaching},
    room::{Place, Room},
};
use crate::{
    channel::Dialer,
    client::{self, Builder, BuiltCircuit, Events, StreamEvents},
    endpoint::{io::Handle, udp::UdpHandle},
    path::Paths,
};

/// Bounds of a client: the table `[onion.services]` of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Introductions that are tried for one stream, by one descriptor.
    pub attempts: usize,
    /// Where the service does not come within this time, or three times what circuits usually take if that is longer, the next introduction is tried beside, and a newer descriptor is looked for.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub hurry: Duration,
    /// The time that a relay may take to answer.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub answer: Duration,
    /// The time that a service may take to come, once it was told.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub service: Duration,
    /// A stream that the service has not answered within this time is asked for once more, over another circuit.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub silent: Duration,
    /// An introduction point that failed is tried after the others for so long.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub failed: Duration,
    /// Introduction points that failed and are remembered.
    pub failures: usize,
    /// Services for which circuits are begun while they are looked for; for further ones they are begun after that.
    pub prepared: usize,
    /// Tokens and services with a circuit; of them a token has no more than are left for others. Beyond it those without streams are closed, and if there
    /// are none the next is refused.
    pub kept: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            attempts: 6,
            hurry: Duration::from_secs(5),
            answer: Duration::from_secs(15),
            service: Duration::from_secs(60),
            silent: Duration::from_secs(10),
            failed: Duration::from_secs(120),
            failures: 1024,
            prepared: 8,
            kept: 48,
        }
    }
}

/// Reaches services. Dropped, its circuits end with their last streams.
pub struct Client {
    reaching: Reaching,
    /// No new streams on a circuit that is older.
    lasts: Duration,
    config: ClientConfig,
    slots: Mutex<Slots>,
    /// Of slots, by token.
    places: Room<Isolation>,
}

/// By token, and by the service's identity.
type Slots = HashMap<(Isolation, [u8; 32]), Arc<Slot>>;

/// The circuit of one token to one service. Whoever builds it holds the lock, and others of the token wait.
struct Slot {
    circuit: tokio::sync::Mutex<Option<Arc<BuiltCircuit>>>,
    _place: Place<Isolation>,
}

impl Client {
    /// Builds circuits over what `paths` chooses, by the channels of `dialer`; `circuits` bounds each.
    pub fn new(
        dialer: Arc<dyn Dialer>,
        paths: Arc<dyn Paths>,
        circuits: &client::Config,
        config: ClientConfig,
    ) -> Self {
        Self {
            lasts: circuits.lasts,
            reaching: Reaching::new(Builder::new(dialer, paths, circuits.clone()), config),
            config,
            slots: Mutex::default(),
            places: Room::new(config.kept),
        }
    }

    /// A stream to a port of a service. Streams of one token to one service share a circuit, others none.
    ///
    /// # Errors
    /// The service refuses ([`ErrorKind::TargetFailed`]), cannot be reached over any introduction point that was tried
    /// ([`ErrorKind::PathFailed`]: its descriptor may be old), or not in time; there are too many circuits.
    pub async fn open_stream(
        &self,
        service: &KnownService,
        port: u16,
        terms: &Terms,
    ) -> Result<Stream, Error> {
        let newer = || ready(None);
        let circuit = self.reach(service, None, newer, terms).await?;
        let events = StreamEvents::default();
        self.open_on(&circuit, port, terms, &events).await
    }

    /// Where it is told what streams do.
    pub(super) fn events(&self) -> &Events {
        self.reaching.events()
    }

    /// How many circuits to services stand now.
    pub fn circuits(&self) -> usize {
        let stands = |slot: &&Arc<Slot>| {
            let held = slot.circuit.try_lock();
            held.is_ok_and(|held| held.as_ref().is_some_and(|circuit| circuit.is_usable()))
        };
        self.slots.lock().values().filter(stands).count()
    }

    /// Begins what reaching a service takes while it is still being looked for: so many round trips less for whoever waits. Nothing: the token has a
    /// circuit to it, or is about to, or too much is begun.
    pub fn prepare(&self, identity: &[u8; 32], isolation: &Isolation) -> Option<Prepared> {
        let name = (isolation.clone(), *identity);
        if let Some(slot) = self.slots.lock().get(&name) {
            let kept = slot.circuit.try_lock().ok()?;
            if kept.as_ref().is_some_and(|circuit| self.serves(circuit)) {
                return None;
            }
        }
        self.reaching.prepare()
    }

    /// The token's circuit to a service, by what was `prepared` for it. `newer` is asked how it is reached by a newer descriptor, if it is not soon by this one.
    ///
    /// # Errors
    /// As [`Client::open_stream`], but for the service's refusal.
    pub async fn reach<N: Future<Output = Option<Arc<KnownService>>>>(
        &self,
        service: &KnownService,
        prepared: Option<Prepared>,
        newer: impl Fn() -> N,
        terms: &Terms,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        let circuit = self.circuit(&terms.isolation, service, prepared, newer);
        terms.run("reaching an onion service", circuit).await
    }

    /// A stream on such a circuit; `None`: the service has not answered so far, which may be gone and not be missed yet, and further streams of the token
    /// take another circuit.
    ///
    /// # Errors
    /// The service refuses, or the circuit has ended.
    pub(super) async fn open_soon(
        &self,
        (service, circuit): (&[u8; 32], &Arc<BuiltCircuit>),
        port: u16,
        terms: &Terms,
        events: &StreamEvents,
    ) -> Result<Option<Stream>, Error> {
        let opening = self.open_on(circuit, port, terms, events);
        if let Ok(opened) = timeout(self.config.silent, opening).await {
            return opened.map(Some);
        }
        let slot = self
            .slots
            .lock()
            .get(&(terms.isolation.clone(), *service))
            .cloned();
        if let Some(slot) = slot {
            let mut kept = slot.circuit.lock().await;
            if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, circuit)) {
                *kept = None;
            }
        }
        Ok(None)
    }

    /// A stream on such a circuit, whenever the service answers.
    ///
    /// # Errors
    /// As [`Client::open_soon`].
    pub(super) async fn open_on(
        &self,
        circuit: &BuiltCircuit,
        port: u16,
        terms: &Terms,
        events: &StreamEvents,
    ) -> Result<Stream, Error> {
        let opening = async {
            let id = circuit.shared().lock().begin_port(port)?;
            events.sent(circuit.id());
            let mut handle = Handle::new(circuit.shared(), id).telling(events.clone());
            if terms.early {
                return Ok(Stream::early(handle, terms.deadline));
            }
            poll_fn(|cx| handle.poll_said(cx)).await?;
            Ok(Stream::new(handle))
        };
        terms
            .run("opening a stream to an onion service", opening)
            .await
    }

    /// A UDP stream on such a circuit. A service that carries none may say nothing at all (C tor's does not).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the service refuses or does not answer. Else the circuit has ended.
    pub async fn open_datagrams_on(
        &self,
        circuit: &BuiltCircuit,
        port: u16,
        terms: &Terms,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let opening = async {
            let id = circuit.shared().lock().connect_udp_port(port)?;
            let handle = UdpHandle::new(circuit.shared(), id);
            let said = timeout(self.config.answer, poll_fn(|cx| handle.poll_said(cx)));
            match said.await {
                Ok(Ok(())) => Ok(Box::new(handle) as _),
                Ok(Err(error)) if error.kind() != ErrorKind::TargetFailed => Err(error),
                Ok(Err(_)) | Err(_) => {
                    let doing = "opening a UDP flow to an onion service, which has none there";
                    Err(Error::new(ErrorKind::Unsupported, doing))
                }
            }
        };
        terms
            .run("opening a UDP flow to an onion service", opening)
            .await
    }

    async fn circuit<N: Future<Output = Option<Arc<KnownService>>>>(
        &self,
        isolation: &Isolation,
        service: &KnownService,
        prepared: Option<Prepared>,
        newer: impl Fn() -> N,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        let slot = self.slot(isolation, service)?;
        let mut kept = slot.circuit.lock().await;
        if let Some(circuit) = kept.as_ref().filter(|circuit| self.serves(circuit)) {
            return Ok(Arc::clone(circuit));
        }
        // The last one takes no further streams, and ends with those that it has.
        *kept = None;
        let connecting = self.reaching.connect(service, prepared, newer);
        let circuit = Arc::new(Box::pin(connecting).await?);
        *kept = Some(Arc::clone(&circuit));
        Ok(circuit)
    }

    fn serves(&self, circuit: &BuiltCircuit) -> bool {
        circuit.is_usable() && circuit.since().elapsed() < self.lasts
    }

    fn slot(&self, isolation: &Isolation, service: &KnownService) -> Result<Arc<Slot>, Error> {
        let mut slots = self.slots.lock();
        let name = (isolation.clone(), service.identity);
        if let Some(slot) = slots.get(&name) {
            return Ok(Arc::clone(slot));
        }
        let Some(place) = self.place(&mut slots, isolation) else {
            let doing = "giving one more token or onion service a circuit";
            return Err(Error::new(ErrorKind::PathFailed, doing).because(Reason::Limit));
        };
        let slot = Arc::new(Slot {
            circuit: tokio::sync::Mutex::default(),
            _place: place,
        });
        slots.insert(name, Arc::clone(&slot));
        Ok(slot)
    }

    /// A place for one circuit more of a token. Where it has none, those that are over are forgotten, and its circuits without streams closed; those of others
    /// only if all places are taken.
    fn place(&self, slots: &mut Slots, token: &Isolation) -> Option<Place<Isolation>> {
        let take = || self.places.take(token.clone());
        if let Some(place) = take() {
            return Some(place);
        }
        slots.retain(|(of, _), slot| !is_over(slot) && (of != token || !is_idle(slot)));
        if slots.len() >= self.config.kept {
            slots.retain(|_, slot| !is_idle(slot));
        }
        take()
    }
}

/// Whether nobody waits for its circuit or has a stream on it.
fn is_idle(slot: &Arc<Slot>) -> bool {
    let kept = slot.circuit.try_lock();
    let streams = |circuit: &Arc<BuiltCircuit>| circuit.shared().lock().streams();
    kept.is_ok_and(|kept| kept.as_ref().is_none_or(|circuit| streams(circuit) == 0))
        && Arc::strong_count(slot) == 1
}

/// Whether its circuit has ended, or never stood, and nobody waits for it.
fn is_over(slot: &Arc<Slot>) -> bool {
    let kept = slot.circuit.try_lock();
    let has_closed = |circuit: &Arc<BuiltCircuit>| circuit.shared().lock().closed().is_some();
    kept.is_ok_and(|kept| kept.as_ref().is_none_or(has_closed)) && Arc::strong_count(slot) == 1
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.slots.lock().len();
        f.debug_struct("onion_service::Client")
            .field("circuits", &slots)
            .finish_non_exhaustive()
    }
}
