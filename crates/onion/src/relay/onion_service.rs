//! A relay as introduction point and rendezvous point of onion services: who waits by which cookie, and who is introduced by which key.
//! [`super::driver`] asks here for the circuits that end at this relay. rend-spec-v3, "The introduction protocol", "The rendezvous protocol".
//!
//! Neither the service's circuit nor the client's knows where the other comes from: a rendezvous joins them inside this relay, where each looks
//! to the other like the circuit to a next relay ([`memory::joint`]).
//!
//! A circuit waits by one cookie, or is introduced by one key, or introduces itself once; so circuits bound what is kept here. How many
//! introductions pass to one service a second it says itself, or [`Config`] does.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hoplite_wire::cell::onion_service::{COOKIE, IntroduceStatus, IntroductionRate};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::handshakes::Bucket;
use crate::channel::{CircuitBacklog, CircuitEnds, memory};

/// Introductions that wait for a service's circuit to take them.
const QUEUE: usize = 32;

/// What a relay does for onion services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// It is an introduction point and a rendezvous point for whoever asks.
    pub enabled: bool,
    /// INTRODUCE2 for one service that has not said how many it wants. C tor's where a network asks for a bound.
    pub introductions: IntroductionRate,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            introductions: IntroductionRate {
                per_second: 25,
                burst: 200,
            },
        }
    }
}

/// Who waits, and who is introduced.
#[derive(Default)]
pub(super) struct OnionServices {
    waiting: Mutex<HashMap<[u8; COOKIE], Waiting>>,
    introduced: Mutex<HashMap<[u8; 32], Introduced>>,
}

/// What a service brings to a rendezvous: what its client is told, and the way to its circuit.
pub(super) type Met = (Vec<u8>, CircuitEnds);

/// A client's circuit, and where is counted what is kept for it.
struct Waiting {
    arrives: oneshot::Sender<Met>,
    backlog: Arc<CircuitBacklog>,
}

struct Introduced {
    circuit: mpsc::Sender<Vec<u8>>,
    bucket: Bucket,
    /// Bytes of an INTRODUCE2 that a cell of its circuit holds: the client's cells may hold more.
    longest: usize,
}

impl OnionServices {
    /// A client's circuit waits by this cookie. `None`: somebody does already.
    pub(super) fn wait(
        self: &Arc<Self>,
        cookie: [u8; COOKIE],
        backlog: Arc<CircuitBacklog>,
    ) -> Option<Rendezvous> {
        let (arrives, arrived) = oneshot::channel();
        match self.waiting.lock().entry(cookie) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => {
                place.insert(Waiting { arrives, backlog });
            }
        }
        Some(Rendezvous {
            services: Arc::clone(self),
            cookie,
            arrived,
        })
    }

    /// A service has come to whoever waits by this cookie: the way to the client's circuit. `None`: nobody waits.
    pub(super) fn meet(
        &self,
        cookie: &[u8; COOKIE],
        handshake: &[u8],
        backlog: Arc<CircuitBacklog>,
    ) -> Option<CircuitEnds> {
        let client = self.waiting.lock().remove(cookie)?;
        let (near, far) = memory::joint(backlog, client.backlog);
        client.arrives.send((handshake.to_vec(), far)).ok()?;
        Some(near)
    }

    /// A service is introduced by this key from now on, over no other circuit any more: as often as this, by messages of so many bytes at most.
    pub(super) fn establish(
        self: &Arc<Self>,
        key: [u8; 32],
        (rate, longest): (IntroductionRate, usize),
        now: Instant,
    ) -> Introduction {
        let (circuit, messages) = mpsc::channel(QUEUE);
        let bucket = Bucket::new(rate.burst, rate.per_second, now);
        let introduced = Introduced {
            circuit,
            bucket,
            longest,
        };
        self.introduced.lock().insert(key, introduced);
        Introduction {
            services: Arc::clone(self),
            key,
            messages,
        }
    }

    /// Passes an INTRODUCE1 on.
    pub(super) fn introduce(&self, key: &[u8; 32], data: &[u8], now: Instant) -> IntroduceStatus {
        let mut introduced = self.introduced.lock();
        let Some(service) = introduced.get_mut(key) else {
            return IntroduceStatus::UNKNOWN;
        };
        if data.len() > service.longest || !service.bucket.take(now) {
            return IntroduceStatus::CANT_RELAY;
        }
        match service.circuit.try_send(data.to_vec()) {
            Ok(()) => IntroduceStatus::SUCCESS,
            Err(mpsc::error::TrySendError::Full(_)) => IntroduceStatus::CANT_RELAY,
            Err(mpsc::error::TrySendError::Closed(_)) => IntroduceStatus::UNKNOWN,
        }
    }
}

/// A client's place at a rendezvous; dropping it gives it up.
pub(super) struct Rendezvous {
    services: Arc<OnionServices>,
    cookie: [u8; COOKIE],
    arrived: oneshot::Receiver<Met>,
}

impl Rendezvous {
    /// The service, when it has come.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Met>> {
        Pin::new(&mut self.arrived).poll(cx).map(Result::ok)
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.arrived.close();
        // Somebody else may wait by the cookie of one that was met.
        let mut waiting = self.services.waiting.lock();
        if let Entry::Occupied(place) = waiting.entry(self.cookie)
            && place.get().arrives.is_closed()
        {
            place.remove();
        }
    }
}

/// A service's place at an introduction point; dropping it gives it up.
pub(super) struct Introduction {
    services: Arc<OnionServices>,
    key: [u8; 32],
    messages: mpsc::Receiver<Vec<u8>>,
}

impl Introduction {
    /// The next INTRODUCE2; `None` when another circuit of the service has taken the place.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.messages.poll_recv(cx)
    }
}

impl Drop for Introduction {
    fn drop(&mut self) {
        self.messages.close();
        let mut introduced = self.services.introduced.lock();
        if let Entry::Occupied(place) = introduced.entry(self.key)
            && place.get().circuit.is_closed()
        {
            place.remove();
        }
    }
}

impl fmt::Debug for OnionServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionServices")
    }
}
