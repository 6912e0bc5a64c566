//! Paths of nested hops over relays on loopback, and a network below them that blocks UDP.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::Poll,
};

use hoplite_crypto::Trust;
use hoplite_link::Peer;
use hoplite_masque::{Config, Path, Relay as Known};
use hoplite_overlay::{Direct, Overlay};
use hoplite_relay::Handle;
use hoplite_wire::Target;

use crate::{Double, relay::relays};

/// The device's own sockets, below the first hop.
pub fn direct() -> Arc<dyn Overlay> {
    Arc::new(Direct::new())
}

/// Where a relay is, and its key.
pub fn peer(name: &str, relay: &Handle) -> Peer {
    Peer {
        name: name.to_owned(),
        address: Target::from(relay.addresses()[0]),
        trust: Trust::Pins(vec![relay.pin()]),
    }
}

/// What a client knows of a relay.
pub fn known(name: &str, relay: &Handle) -> Known {
    Known {
        peer: peer(name, relay),
        token: None,
        tokens: None,
        template: None,
        mode: None,
    }
}

/// The path through `relays`, which it calls `r0`, `r1` and so on.
pub fn through<'a>(
    relays: impl IntoIterator<Item = &'a Handle>,
    below: &Arc<dyn Overlay>,
    client: Config,
) -> Path {
    let numbered = relays.into_iter().enumerate();
    let known = numbered.map(|(n, relay)| known(&format!("r{n}"), relay));
    Path::new(known.collect(), below, &Arc::new(client)).expect("a path")
}

/// A path of this many hops, and its relays: they stop when they are dropped.
pub fn build(hops: usize, below: &Arc<dyn Overlay>, client: Config) -> (Path, Vec<Handle>) {
    let relays = relays(hops);
    (through(&relays, below, client), relays)
}

/// The device's own sockets behind a firewall that can drop all UDP, silently, as firewalls do, or much of what comes.
#[derive(Debug)]
pub struct Switch {
    /// The sockets.
    pub overlay: Arc<dyn Overlay>,
    blocked: Arc<AtomicBool>,
    thinned: Arc<AtomicBool>,
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

impl Switch {
    /// One that lets all pass.
    pub fn new() -> Self {
        let blocked = Arc::<AtomicBool>::default();
        let switch = Arc::clone(&blocked);
        let thinned = Arc::<AtomicBool>::default();
        let thins = Arc::clone(&thinned);
        let overlay = Double::over(Direct::new()).flows(move |flow| {
            let (up, down) = (Arc::clone(&switch), Arc::clone(&switch));
            let (thins, come) = (Arc::clone(&thins), AtomicU32::new(0));
            flow.sends(move |below, cx, batch| {
                if up.load(SeqCst) {
                    Poll::Ready(Ok(()))
                } else {
                    below.poll_send(cx, batch)
                }
            })
            .receives(move |below, cx, buf| {
                loop {
                    match below.poll_recv(cx, buf) {
                        Poll::Ready(Ok(_)) if down.load(SeqCst) => {}
                        Poll::Ready(Ok(_)) if thins.load(SeqCst) && is_third(&come) => {}
                        other => return other,
                    }
                }
            })
        });
        Self {
            overlay: Arc::new(overlay),
            blocked,
            thinned,
        }
    }

    /// Drops every third of the batches that come from now on, or none.
    pub fn thin(&self, thinned: bool) {
        self.thinned.store(thinned, SeqCst);
    }

    /// Drops all from now on, or nothing.
    pub fn block(&self, blocked: bool) {
        self.blocked.store(blocked, SeqCst);
    }
}

fn is_third(come: &AtomicU32) -> bool {
    come.fetch_add(1, SeqCst).is_multiple_of(3)
}
