//! A service of ours publishes itself, and a client of ours finds it by nothing but its name.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use hoplite_crypto::onion::{
    service_keys::{BlindedKey, OnionAddress, ServiceIdentity},
    time_period::TimePeriod,
};
use hoplite_onion::{
    channel::Waiting,
    onion_service::{
        ClientConfig, ClientKeys, Descriptors, DescriptorsConfig, Destination, Placed, Publisher,
        PublisherConfig, Reach, ServiceConfig, ServiceDirectory, ServicesOverlay,
    },
    path::Relay,
};
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_testing::{Double, soon, until};
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
};

use crate::services::Scene;

/// HSDirs that keep what they are given.
#[derive(Debug)]
struct Shelves {
    /// The period of the service's first descriptor; clients look for the one of the second.
    first: Mutex<u64>,
    hsdirs: Vec<Relay>,
    kept: Mutex<Kept>,
    /// Those that refuse once.
    refuses: Mutex<HashSet<[u8; 32]>>,
}

type BlindedKeyBytes = [u8; 32];

/// By HSDir and blinded key.
type Kept = HashMap<([u8; 32], BlindedKeyBytes), Arc<str>>;

fn period(number: u64) -> TimePeriod {
    TimePeriod {
        number,
        minutes: 1440,
    }
}

impl Shelves {
    fn placed(&self, number: u64) -> Placed {
        Placed {
            period: period(number),
            ends: u64::MAX,
            hsdirs: self.hsdirs.clone(),
        }
    }

    /// How many HSDirs have the service's descriptor of this period.
    fn have(&self, service: &OnionAddress, number: u64) -> usize {
        let key = *service.blinded(period(number)).as_bytes();
        let kept = self.kept.lock();
        kept.keys().filter(|(_, kept)| *kept == key).count()
    }
}

impl ServiceDirectory for Shelves {
    fn looked_for(&self, _: &OnionAddress) -> Result<Placed, Error> {
        Ok(self.placed(*self.first.lock() + 1))
    }

    fn published(&self, _: &OnionAddress) -> Result<[Destination; 2], Error> {
        let first = *self.first.lock();
        Ok([first, first + 1].map(|number| Destination {
            placed: self.placed(number),
            counted_from: 0,
        }))
    }

    fn fetch<'a>(
        &'a self,
        hsdir: &'a Relay,
        key: &'a BlindedKey,
    ) -> Waiting<'a, Result<String, Error>> {
        Box::pin(async {
            let name = (hsdir.keys.ed25519, *key.as_bytes());
            let found = self.kept.lock().get(&name).map(ToString::to_string);
            let missing = Error::new(ErrorKind::TargetFailed, "a test");
            found.ok_or_else(|| missing.because(Reason::NameNotFound))
        })
    }

    fn publish<'a>(
        &'a self,
        hsdir: &'a Relay,
        descriptor: Arc<str>,
    ) -> Waiting<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.refuses.lock().remove(&hsdir.keys.ed25519) {
                return Err(Error::new(ErrorKind::PathFailed, "a test"));
            }
            let signed = hoplite_crypto::onion::descriptor::SignedDescriptor::parse(
                &descriptor,
                50_000,
                now(),
            );
            let key = *signed.expect("signed").key().as_bytes();
            let mut kept = self.kept.lock();
            kept.insert((hsdir.keys.ed25519, key), descriptor);
            Ok(())
        })
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.expect("later").as_secs()
}

fn target(name: &str) -> Target {
    format!("{name}:80").parse().expect("a target")
}

/// Other names below onion than a service's that is there, and what such a name is not for.
async fn nothing_else_is_found(overlay: &ServicesOverlay) {
    let terms = Terms::default();
    let unknown = ServiceIdentity::generate().expect("a key").address();
    for wrong in [unknown.to_string(), "example.onion".into(), "ONION".into()] {
        let opened = soon(overlay.open_stream(&target(&wrong), &terms)).await;
        let reason = opened.expect_err("nobody's").reason();
        assert_eq!(reason, Some(Reason::NameNotFound), "{wrong}");
    }
    let resolved = soon(overlay.resolve("example.onion.", &terms)).await;
    let reason = resolved.expect_err("no address").reason();
    assert_eq!(reason, Some(Reason::NameNotFound));
    let datagrams = soon(overlay.open_datagrams(&target("a.onion"), &terms)).await;
    let reason = datagrams.expect_err("no address").reason();
    assert_eq!(reason, Some(Reason::NameNotFound));
}

/// The scene's service, published at four HSDirs, one of which refuses at first; its address.
async fn published(
    scene: &Scene,
    tell: watch::Sender<Vec<[u8; 32]>>,
) -> (Arc<Shelves>, OnionAddress) {
    let identity = ServiceIdentity::generate().expect("a key");
    let address = identity.address();
    let hsdirs: Vec<_> = scene.paths.relays.lock()[..4].to_vec();
    let refuses = HashSet::from([hsdirs[1].keys.ed25519]);
    let shelves = Arc::new(Shelves {
        first: Mutex::new(20_000),
        hsdirs,
        kept: Mutex::default(),
        refuses: Mutex::new(refuses),
    });
    let config = PublisherConfig {
        pause: std::time::Duration::from_millis(20),
        look: std::time::Duration::from_millis(50),
        ..PublisherConfig::default()
    };
    let publisher = Publisher::new(
        identity,
        Vec::new(),
        Arc::clone(&shelves) as Arc<dyn ServiceDirectory>,
        &scene.service,
        tell,
        config,
    );
    let mut published = publisher.published();
    tokio::spawn(publisher.run());
    let all_told = published.wait_for(|it| it.told == 8 && it.hsdirs == 8);
    let points = soon(all_told).await.expect("published").points;
    assert_eq!(points, 3);
    (shelves, address)
}

/// What a client reaches it by.
fn reach(scene: &Scene, shelves: &Arc<Shelves>, config: ClientConfig) -> Reach {
    let directory = Arc::clone(shelves) as Arc<dyn ServiceDirectory>;
    Reach {
        client: scene.another_client(config),
        descriptors: Descriptors::new(
            directory,
            ClientKeys::default(),
            DescriptorsConfig::default(),
        ),
    }
}

#[tokio::test]
async fn a_service_is_found_by_its_name_also_in_the_next_period_and_no_exit_hears_a_name_below_onion()
 {
    let (mut scene, tell) =
        Scene::without_subcredentials(ServiceConfig::default(), ClientConfig::default()).await;
    let (shelves, address) = published(&scene, tell).await;
    assert_eq!(
        [20_000, 20_001].map(|number| shelves.have(&address, number)),
        [4, 4],
        "also at the one that refused"
    );

    let exit = Double::nothing().streams(|_, target, _| {
        let is_service = target.to_string().contains("onion");
        assert!(!is_service, "an exit hears of a service");
        Box::pin(async { Err(Error::new(ErrorKind::Forbidden, "the exit was asked")) })
    });
    let reach = reach(&scene, &shelves, ClientConfig::default());
    let overlay = ServicesOverlay::new(Arc::new(exit), Some(reach));
    for number in [20_000, 20_001] {
        *shelves.first.lock() = number;
        soon(until(|| shelves.have(&address, number + 1) == 4)).await;
        let name = target(&format!("www.{address}"));
        let terms = Terms::default();
        let (near, far) = soon(async {
            tokio::join!(overlay.open_stream(&name, &terms), async {
                scene.service.accept().await.expect("a request").accept()
            })
        })
        .await;
        let (mut near, mut far) = (near.expect("opens"), far);
        near.write_all(b"hello").await.expect("open");
        near.flush().await.expect("open");
        let mut got = [0; 5];
        soon(far.read_exact(&mut got)).await.expect("arrives");
        assert_eq!(&got, b"hello");
    }

    nothing_else_is_found(&overlay).await;
    let terms = Terms::default();
    let other = soon(overlay.open_stream(&target("example.org"), &terms)).await;
    assert_eq!(
        other.expect_err("refused").to_string(),
        "the exit was asked: forbidden"
    );
}

#[tokio::test]
async fn without_a_list_of_relays_a_name_below_onion_is_refused_and_no_exit_hears_it() {
    let address = ServiceIdentity::generate().expect("a key").address();
    let terms = Terms::default();
    let exit = Double::nothing().streams(|_, _, _| unreachable!("an exit hears of a service"));
    let without = ServicesOverlay::new(Arc::new(exit), None);
    let opened = soon(without.open_stream(&target(&address.to_string()), &terms)).await;
    let error = opened.expect_err("no list");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("[directory]"), "{error}");
}

/// It may be gone, and nobody has missed it yet.
#[tokio::test]
async fn a_stream_that_a_service_does_not_answer_is_asked_for_over_another_circuit() {
    let (mut scene, tell) =
        Scene::without_subcredentials(ServiceConfig::default(), ClientConfig::default()).await;
    let (shelves, address) = published(&scene, tell).await;
    let config = ClientConfig {
        silent: std::time::Duration::from_millis(20),
        ..ClientConfig::default()
    };
    let reach = reach(&scene, &shelves, config);
    let overlay = ServicesOverlay::new(Arc::new(Double::nothing()), Some(reach));
    let (name, terms) = (target(&address.to_string()), Terms::default());
    let (opened, ()) = soon(async {
        tokio::join!(overlay.open_stream(&name, &terms), async {
            let unanswered = scene.service.accept().await.expect("a request");
            let again = scene.service.accept().await.expect("another");
            let clients = scene.service.watch().state().expect("it lives").clients;
            assert_eq!(clients, 2, "each over a circuit of its own");
            drop((again.accept(), unanswered));
        })
    })
    .await;
    drop(opened.expect("opens"));
}
