//! Whether relays are where they say: each address of a descriptor is dialled as clients would dial it, before it is voted for, and again from time
//! to time. A relay of circuits proves its identity by a channel's handshake, one of MASQUE the key of its pin by TLS; over QUIC or TCP.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use hoplite_crypto::{Pin, Trust};
use hoplite_directory::{Change, authority::Probe};
use hoplite_link::{
    Config, Dialer, Peer,
    channel::{self, ChannelDialer, Counts, How, Whom, handshake::Us},
};
use hoplite_overlay::{Direct, Terms};
use hoplite_wire::Target;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{Shared, now};

/// How long a QUIC endpoint that came to nothing holds memory: three times the probe timeout before a round trip was measured (RFC 9000 §10.2,
/// RFC 9002 §6.2.2).
const CLOSING: Duration = Duration::from_secs(3);

/// How long one address may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether somebody is to be tested.
const PAUSE: Duration = Duration::from_millis(100);

/// Who dials.
struct Tester {
    overlay: Arc<Direct>,
    link: Config,
    channels: ChannelDialer,
}

/// Tests until dropped.
pub(super) async fn run(shared: Shared) {
    let tester = Tester::new();
    let mut under_way = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some((probe, passed)) = under_way.next() => settle(&shared, &probe, passed),
        }
        let probes = shared.lock().probes(now());
        under_way.extend(probes.into_iter().map(|probe| tester.test(probe)));
    }
}

fn settle(shared: &Shared, probe: &Probe, passed: bool) {
    let gone = shared.lock().probed(probe, passed, now());
    shared
        .writer()
        .write(gone.map(Change::Forget).into_iter().collect());
    if !passed {
        debug!("a relay was not found where its descriptor says");
    }
}

impl Tester {
    fn new() -> Self {
        let overlay = Arc::new(Direct::new());
        let link = Config {
            handshake: PATIENCE / 2,
            // Nothing but a handshake comes, three packets at a time until the address is proven (RFC 9000 §8.1); the QUIC stack's room for more
            // would be most of what a test takes.
            receive_segments: 8,
            ..Config::default()
        };
        let counts = Arc::<Counts>::default();
        let behaves = channel::Config::default();
        let over = Arc::clone(&overlay);
        let channels = ChannelDialer::new(over, Us::default(), &link, behaves, counts);
        Self {
            overlay,
            link,
            channels,
        }
    }

    /// Whether the relay is at each of the addresses.
    async fn test(&self, probe: Probe) -> (Probe, bool) {
        let mut passed = !probe.addresses.is_empty();
        for address in &probe.addresses {
            passed = passed && self.is_at(&probe, *address).await;
        }
        if !passed {
            // Whoever names addresses where nobody is pays with his places, not with the authority's memory.
            sleep(CLOSING).await;
        }
        (probe, passed)
    }

    async fn is_at(&self, probe: &Probe, address: SocketAddr) -> bool {
        let relay = &probe.relay;
        // Errors call it so: no name gets anywhere.
        let (name, address) = ("to be tested".to_owned(), Target::from(address));
        let terms = || Terms::default().within(PATIENCE);
        if relay.onion.is_some() {
            let whom = Whom {
                name: name.clone(),
                address: address.clone(),
                identity: Some(relay.identity.0),
                rsa: None,
            };
            let terms = terms();
            let dial = self.channels.dial(&whom, How::Raced, &terms);
            let Ok(Ok(channel)) = timeout(PATIENCE, Box::pin(dial)).await else {
                return false;
            };
            channel.close();
        }
        let Some(pin) = relay.pin else {
            return relay.onion.is_some();
        };
        let peer = Peer {
            name,
            address,
            trust: Trust::Pins(vec![Pin::from(pin)]),
        };
        let over = Arc::clone(&self.overlay);
        let dialer = Dialer::new(over, peer, 0, self.link.clone());
        let terms = terms();
        let dialled = timeout(PATIENCE, Box::pin(dialer.race(&terms))).await;
        matches!(dialled, Ok(Ok(_)))
    }
}
