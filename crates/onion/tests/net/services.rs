//! A client of ours reaches a service of ours: what each sees, and what happens when relays fail or lie.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_crypto::onion::hs_ntor::{self, IntroductionKeys};
use hoplite_onion::{
    Config,
    channel::{Dialer, Waiting},
    onion_service::{
        Client, ClientConfig, IntroductionPoint, KnownService, Service, ServiceConfig,
    },
    path::{self, CircuitFate, CircuitUsage, Paths},
    relay,
};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Reason, Stream, Terms, memory::Network};
use hoplite_testing::{soon, until};
use hoplite_wire::cell::{
    onion_service::{IntroduceStatus, Introduction, IntroductionRate, Rendezvous1},
    relay::{RelayCommand, StreamId},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::Instant,
};

use crate::{
    raw::{Heard, Raw},
    support::{Kind, Net, known},
    token,
};

const SUBCREDENTIAL: [u8; 32] = [0x5c; 32];
const IDENTITY: [u8; 32] = [0x1d; 32];

/// Any three relays that are there, one after another.
pub(crate) struct Any {
    pub(crate) relays: Mutex<Vec<path::Relay>>,
    next: Mutex<Box<dyn FnMut() -> u64 + Send>>,
    /// Relays that are said to have failed.
    blamed: Mutex<Vec<[u8; 32]>>,
    fates: Mutex<Vec<CircuitFate>>,
}

impl fmt::Debug for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Any")
    }
}

impl Paths for Any {
    fn path<'a>(&'a self, _: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        Box::pin(async {
            let mut left = self.relays.lock().clone();
            let mut next = self.next.lock();
            let mut path = Vec::new();
            while path.len() < 3 {
                let at = usize::try_from(next() % left.len() as u64).expect("fits");
                path.push(left.swap_remove(at));
            }
            Ok(path)
        })
    }

    fn tried(&self, path: &[path::Relay], outcome: Result<(), path::Failed>) {
        if let Err(failed) = outcome {
            self.blamed.lock().push(path[failed.hop].keys.ed25519);
        }
    }

    fn fares(&self, _: &[path::Relay], fate: CircuitFate) {
        self.fates.lock().push(fate);
    }
}

/// Relays, a service and a client.
pub(crate) struct Scene {
    net: Arc<Net>,
    relays: Vec<Arc<relay::Relay>>,
    pub(crate) paths: Arc<Any>,
    pub(crate) service: Service,
    points: watch::Receiver<Vec<IntroductionPoint>>,
    client: Client,
    _subcredentials: Option<watch::Sender<Vec<[u8; 32]>>>,
}

impl Scene {
    async fn new() -> Self {
        Self::with(ServiceConfig::default(), ClientConfig::default()).await
    }

    async fn with(service: ServiceConfig, client: ClientConfig) -> Self {
        let (mut scene, tell) = Self::without_subcredentials(service, client).await;
        tell.send_replace(vec![[0; 32], SUBCREDENTIAL]);
        scene._subcredentials = Some(tell);
        scene
    }

    /// With a service that nobody can introduce himself to yet.
    pub(crate) async fn without_subcredentials(
        service: ServiceConfig,
        client: ClientConfig,
    ) -> (Self, watch::Sender<Vec<[u8; 32]>>) {
        let places = service.points;
        let (net, network) = (Net::new(Duration::ZERO), Network::new(1));
        let relays: Vec<_> = (1..=9).map(|n| net.relay(n, &network, |_| {})).collect();
        let all = relays.iter().map(|relay| known(relay, Kind::default()));
        let paths = Arc::new(Any {
            relays: Mutex::new(all.collect()),
            next: Mutex::new(Box::new(hoplite_testing::seeded(7))),
            blamed: Mutex::default(),
            fates: Mutex::default(),
        });
        let (tell, subcredentials) = watch::channel(Vec::new());
        let service = Service::start(
            net.dialer(None),
            Arc::clone(&paths) as Arc<dyn Paths>,
            &Config::default(),
            service,
            subcredentials,
        );
        let client = Client::new(
            net.dialer(None),
            Arc::clone(&paths) as Arc<dyn Paths>,
            &Config::default(),
            client,
        );
        let points = service.points();
        let scene = Self {
            net,
            relays,
            paths,
            service,
            points,
            client,
            _subcredentials: None,
        };
        scene.is_introduced(places).await;
        (scene, tell)
    }

    /// Another client.
    pub(crate) fn another_client(&self, config: ClientConfig) -> Client {
        let paths = Arc::clone(&self.paths) as Arc<dyn Paths>;
        let dialer = self.net.dialer(None);
        Client::new(dialer, paths, &Config::default(), config)
    }

    async fn is_introduced(&self, points: usize) {
        let mut told = self.points.clone();
        let is_so = |told: &Vec<IntroductionPoint>| told.len() >= points;
        drop(soon(told.wait_for(is_so)).await.expect("a service"));
    }

    /// What the descriptor says now.
    fn known(&self) -> KnownService {
        KnownService {
            identity: IDENTITY,
            subcredential: SUBCREDENTIAL,
            points: self.points.borrow().clone(),
            sendme_increment: self.service.sendme_increment(),
        }
    }

    /// A stream at both ends.
    async fn stream(&mut self, terms: &Terms) -> (Stream, Stream) {
        let known = self.known();
        let (near, far) = soon(async {
            tokio::join!(self.client.open_stream(&known, 80, terms), async {
                self.service.accept().await.expect("a request").accept()
            })
        })
        .await;
        (near.expect("opens"), far)
    }

    /// A circuit of two hops to a relay, for who says what he likes.
    async fn raw(&self, to: &path::Relay) -> Raw {
        let first = {
            let relays = self.paths.relays.lock();
            let first = relays.iter().find(|relay| relay.keys != to.keys);
            first.cloned().expect("a relay")
        };
        let dialer = self.net.dialer(None);
        let channel = Dialer::channel(&*dialer, &first).await.expect("a channel");
        let mut raw = Raw::new(&*channel, &first, false).await;
        let whole = path::Relay {
            ntor3: true,
            ..to.clone()
        };
        raw.extend(&whole, false).await;
        raw
    }

    /// A relay that is no introduction point.
    fn elsewhere(&self) -> path::Relay {
        let points = self.points.borrow();
        let relays = self.paths.relays.lock();
        let is_point = |relay: &path::Relay| {
            points
                .iter()
                .any(|point| point.relay.keys.ed25519 == relay.keys.ed25519)
        };
        let found = relays.iter().find(|relay| !is_point(relay));
        found.cloned().expect("more relays than points")
    }

    /// A relay that nobody takes of himself, and that takes circuits and never answers.
    fn silent_relay(&self) -> path::Relay {
        let relay = self.net.relay(10, &Network::new(1), |_| {});
        self.net.silence(10);
        known(&relay, Kind::default())
    }

    /// What introduces somebody who waits at `at` by `cookie`.
    fn introduction(&self, at: &path::Relay, cookie: [u8; 20]) -> (hs_ntor::ClientState, Vec<u8>) {
        self.introduction_through(0, at, cookie)
    }

    /// What does so through this introduction point.
    fn introduction_through(
        &self,
        point: usize,
        at: &path::Relay,
        cookie: [u8; 20],
    ) -> (hs_ntor::ClientState, Vec<u8>) {
        let point = &self.points.borrow()[point];
        let keys = IntroductionKeys {
            auth: point.auth_key,
            encryption: point.enc_key,
            subcredential: SUBCREDENTIAL,
        };
        let introduction = Introduction {
            cookie,
            congestion_control: false,
            onion_key: at.keys.onion,
            specifiers: at.specifiers(),
        };
        hs_ntor::client(&keys, &introduction.write()).expect("begun")
    }

    /// Sends INTRODUCE1 to the first introduction point.
    async fn introduce(&self, message: &[u8]) -> IntroduceStatus {
        self.introduce_through(0, message).await
    }

    /// Sends INTRODUCE1 to this introduction point.
    async fn introduce_through(&self, point: usize, message: &[u8]) -> IntroduceStatus {
        let point = self.points.borrow()[point].clone();
        let mut raw = self.raw(&point.relay).await;
        raw.say(RelayCommand::INTRODUCE1, 0, message).await;
        let Heard::Message(1, RelayCommand::INTRODUCE_ACK, _, data, _) = raw.hear().await else {
            panic!("no answer");
        };
        IntroduceStatus::parse(&data).expect("a status")
    }

    /// A hundred introductions a second through the first point, of which nobody waits for what comes.
    async fn flood(&self, at: &path::Relay, sent: &AtomicUsize) {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        loop {
            pause.tick().await;
            let (_, message) = self.introduction(at, [7; 20]);
            self.introduce(&message).await;
            sent.fetch_add(1, Relaxed);
        }
    }

    /// Somebody who waits at a rendezvous point.
    async fn waiting(&self, at: &path::Relay, cookie: [u8; 20]) -> Raw {
        let mut raw = self.raw(at).await;
        raw.say(RelayCommand::ESTABLISH_RENDEZVOUS, 0, &cookie)
            .await;
        let heard = raw.hear().await;
        let Heard::Message(1, RelayCommand::RENDEZVOUS_ESTABLISHED, ..) = heard else {
            panic!("{heard:?}");
        };
        raw
    }
}

async fn echo(near: &mut Stream, far: &mut Stream, bytes: usize) {
    let sent: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    let (mut near_reads, mut near_writes) = tokio::io::split(near);
    let there = async {
        let mut got = vec![0; bytes];
        far.read_exact(&mut got).await.expect("arrives");
        far.write_all(&got).await.expect("open");
    };
    let back = async {
        let mut got = vec![0; bytes];
        near_reads.read_exact(&mut got).await.expect("comes back");
        got
    };
    let there_and_back = async {
        near_writes.write_all(&sent).await.expect("open");
    };
    let ((), (), got) = soon(async { tokio::join!(there_and_back, there, back) }).await;
    assert!(got == sent, "other bytes came back");
}

#[tokio::test]
async fn a_client_reaches_a_service_and_a_mebibyte_goes_both_ways() {
    for congestion_control in [true, false] {
        let config = ServiceConfig {
            congestion_control,
            ..ServiceConfig::default()
        };
        let mut scene = Scene::with(config, ClientConfig::default()).await;
        let (near, far) = scene.stream(&Terms::default()).await;
        let (mut near_reads, mut near_writes) = tokio::io::split(near);
        let (mut far_reads, mut far_writes) = tokio::io::split(far);
        let sent = vec![0x5a; 1 << 20];
        let (mut up, mut down) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let all = soon(async {
            tokio::try_join!(
                near_writes.write_all(&sent),
                far_writes.write_all(&sent),
                async { near_reads.read_exact(&mut down).await.map(drop) },
                async { far_reads.read_exact(&mut up).await.map(drop) },
            )
        });
        all.await.expect("both ways");
        assert!(up == sent && down == sent);
        assert_eq!(scene.service.counters().met.load(Relaxed), 1);
        let exits = |relay: &Arc<relay::Relay>| relay.counters.streams.load(Relaxed);
        let streams: u64 = scene.relays.iter().map(exits).sum();
        assert_eq!(streams, 0, "no relay saw a stream");
    }
}

#[tokio::test]
async fn what_is_begun_while_a_service_is_looked_for_serves_to_reach_it() {
    let mut scene = Scene::new().await;
    let known = scene.known();
    let built = |scene: &Scene| -> u64 {
        let created = |relay: &Arc<relay::Relay>| relay.counters.created.load(Relaxed);
        scene.relays.iter().map(created).sum()
    };
    let mut more = Vec::new();
    for n in 0..16 {
        let terms = token(n);
        let before = built(&scene);
        let prepared = scene.client.prepare(&IDENTITY, &terms.isolation);
        let prepared = prepared.expect("nothing is there yet");
        // Three relays to the rendezvous point, three that are led on.
        soon(until(|| built(&scene) == before + 6)).await;
        let newer = || std::future::ready(None);
        let reached = soon(scene.client.reach(&known, Some(prepared), newer, &terms)).await;
        let circuit = reached.expect("reached");
        more.push(built(&scene) - before - 6);
        let (near, far) = soon(async {
            tokio::join!(scene.client.open_stream(&known, 80, &terms), async {
                scene.service.accept().await.expect("a request").accept()
            })
        })
        .await;
        let (mut near, mut far) = (near.expect("opens"), far);
        echo(&mut near, &mut far, 1_000).await;
        assert!(
            scene.client.prepare(&IDENTITY, &terms.isolation).is_none(),
            "a circuit stands"
        );
        drop(circuit);
    }
    // The introduction point, and the service's way of four; more where chance had begun with an introduction point.
    assert_eq!(more.iter().min(), Some(&5), "{more:?}");
    assert!(
        more.iter().all(|more| [5, 8, 11].contains(more)),
        "{more:?}"
    );
}

#[tokio::test]
async fn no_more_is_begun_for_services_that_nobody_has_found_than_there_is_room_for() {
    let config = ClientConfig {
        prepared: 2,
        ..ClientConfig::default()
    };
    let scene = Scene::with(ServiceConfig::default(), config).await;
    let isolation = Terms::default().isolation;
    let prepare = |n: u8| scene.client.prepare(&[n; 32], &isolation);
    let (one, _two) = (prepare(1).expect("room"), prepare(2).expect("room"));
    assert!(prepare(3).is_none());
    drop(one);
    assert!(prepare(3).is_some());
}

#[tokio::test]
async fn datagrams_go_to_a_service_and_back_and_one_that_has_none_refuses_them() {
    let mut scene = Scene::new().await;
    let (known, terms) = (scene.known(), Terms::default());
    let circuit = soon(
        scene
            .client
            .reach(&known, None, || std::future::ready(None), &terms),
    )
    .await;
    let circuit = circuit.expect("reached");
    let (near, far) = soon(async {
        tokio::join!(
            scene.client.open_datagrams_on(&circuit, 53, &terms),
            async {
                let request = scene.service.accept().await.expect("a request");
                assert_eq!((request.port(), request.is_udp()), (53, true));
                request.accept_udp()
            }
        )
    })
    .await;
    let (near, far) = (near.expect("opens"), Box::new(far) as Box<dyn Datagrams>);
    let mut buf = vec![0; 2_000];
    for length in [5, 0, 1_200] {
        let sent = vec![7; length];
        for (from, to) in [(&near, &far), (&far, &near)] {
            soon(from.send(&sent)).await.expect("taken");
            let received = soon(to.recv(&mut buf)).await.expect("comes");
            assert_eq!(buf[..received.len], sent);
        }
    }
    // The circuit stands whatever the service says to one more.
    let (refused, ()) = soon(async {
        tokio::join!(
            scene.client.open_datagrams_on(&circuit, 443, &terms),
            async {
                scene.service.accept().await.expect("a request").refuse();
            }
        )
    })
    .await;
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Unsupported);
    soon(far.send(b"still")).await.expect("taken");
    let received = soon(near.recv(&mut buf)).await.expect("comes");
    assert_eq!(&buf[..received.len], b"still");
    let streams = |scene: &Scene| scene.service.watch().state().expect("it runs").streams;
    assert_eq!(streams(&scene), 1, "it has a place like any stream");
    drop(near);
    let error = soon(far.recv(&mut buf)).await.expect_err("ended");
    assert_eq!(error.kind(), ErrorKind::PathFailed, "MISC says nothing");
    drop(far);
    assert_eq!(streams(&scene), 0);
}

#[tokio::test]
async fn the_streams_of_a_token_share_a_circuit_and_those_of_two_do_not() {
    let mut scene = Scene::new().await;
    let mut streams = Vec::new();
    for n in [1, 1, 1, 2, 2, 3] {
        streams.push(scene.stream(&token(n)).await);
    }
    assert_eq!(scene.service.counters().met.load(Relaxed), 3);
    for (near, far) in &mut streams {
        echo(near, far, 1000).await;
    }
    let joined: u64 = scene
        .relays
        .iter()
        .map(|relay| relay.counters.joined.load(Relaxed))
        .sum();
    assert_eq!(joined, 3);
}

#[tokio::test]
async fn a_stream_ends_when_either_end_ends_it() {
    let mut scene = Scene::new().await;
    let (near, mut far) = scene.stream(&Terms::default()).await;
    drop(near);
    assert_eq!(soon(far.read(&mut [0; 9])).await.expect("an end"), 0);
    let (mut near, mut far) = scene.stream(&Terms::default()).await;
    far.write_all(b"goodbye").await.expect("open");
    far.shutdown().await.expect("open");
    let mut got = Vec::new();
    soon(near.read_to_end(&mut got))
        .await
        .expect("an orderly end");
    assert_eq!(got, b"goodbye");
}

#[tokio::test]
async fn a_client_that_is_refused_learns_nothing_but_that_and_may_ask_again() {
    let mut scene = Scene::new().await;
    let known = scene.known();
    let terms = Terms::default();
    let (refused, ()) = soon(async {
        tokio::join!(scene.client.open_stream(&known, 22, &terms), async {
            let request = scene.service.accept().await.expect("a request");
            assert_eq!(request.port(), 22);
            request.refuse();
        })
    })
    .await;
    let error = refused.expect_err("refused");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::TargetFailed, None)
    );
    let (mut near, mut far) = scene.stream(&terms).await;
    echo(&mut near, &mut far, 10).await;
    assert_eq!(
        scene.service.counters().met.load(Relaxed),
        1,
        "over the same circuit"
    );
}

#[tokio::test]
async fn a_client_that_tries_ports_can_be_cut_off_with_all_of_its_streams() {
    let mut scene = Scene::new().await;
    let terms = Terms::default();
    let (mut near, _far) = scene.stream(&terms).await;
    let known = scene.known();
    let (refused, ()) = soon(async {
        tokio::join!(scene.client.open_stream(&known, 22, &terms), async {
            scene
                .service
                .accept()
                .await
                .expect("a request")
                .close_circuit();
        })
    })
    .await;
    assert_eq!(refused.expect_err("closed").kind(), ErrorKind::PathFailed);
    soon(near.read(&mut [0; 9])).await.expect_err("closed, too");
}

#[tokio::test]
async fn when_the_rendezvous_point_dies_streams_end_at_both_ends_and_the_next_connect_works() {
    let mut scene = Scene::new().await;
    let terms = Terms::default();
    let (mut near, mut far) = scene.stream(&terms).await;
    let joined = |relay: &Arc<relay::Relay>| relay.counters.joined.load(Relaxed) > 0;
    let at = scene
        .relays
        .iter()
        .position(joined)
        .expect("one joined them");
    scene
        .paths
        .relays
        .lock()
        .retain(|relay| usize::from(relay.keys.ed25519[0]) != at + 1);
    scene.net.kill(u8::try_from(at + 1).expect("fits"));
    soon(near.read(&mut [0; 9])).await.expect_err("cut off");
    soon(far.read(&mut [0; 9])).await.expect_err("cut off");
    scene.is_introduced(3).await;
    let (mut near, mut far) = scene.stream(&terms).await;
    echo(&mut near, &mut far, 100).await;
}

#[tokio::test]
async fn when_introduction_points_die_clients_take_the_others_and_the_service_new_ones() {
    let mut scene = Scene::new().await;
    let known = scene.known();
    for dead in &known.points[..2] {
        let n = dead.relay.keys.ed25519[0];
        scene
            .paths
            .relays
            .lock()
            .retain(|relay| relay.keys.ed25519[0] != n);
        scene.net.kill(n);
    }
    // By the old descriptor.
    let terms = Terms::default();
    let (near, mut far) = soon(async {
        tokio::join!(scene.client.open_stream(&known, 80, &terms), async {
            scene.service.accept().await.expect("a request").accept()
        })
    })
    .await;
    echo(&mut near.expect("opens"), &mut far, 100).await;
    let mut points = scene.points.clone();
    let dead: Vec<_> = known.points[..2]
        .iter()
        .map(|point| point.auth_key)
        .collect();
    let is_new = |now: &Vec<IntroductionPoint>| {
        now.len() == 3 && now.iter().all(|point| !dead.contains(&point.auth_key))
    };
    drop(soon(points.wait_for(is_new)).await.expect("new points"));
    let ids: std::collections::HashSet<_> = points
        .borrow()
        .iter()
        .map(|point| point.relay.keys.ed25519)
        .collect();
    assert_eq!(ids.len(), 3, "at three relays");
}

#[tokio::test]
async fn an_introduction_point_that_was_only_lost_is_kept_with_its_keys() {
    let config = ServiceConfig {
        points: 1,
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let known = scene.known();
    let point = known.points[0].relay.keys.ed25519[0];
    let on_the_way: Vec<u8> = (1..=9)
        .zip(&scene.relays)
        .filter(|(n, relay)| *n != point && relay.circuits() > 0)
        .map(|(n, _)| n)
        .collect();
    assert_eq!(on_the_way.len(), 2);
    for n in on_the_way {
        let mut relays = scene.paths.relays.lock();
        relays.retain(|relay| relay.keys.ed25519[0] != n);
        drop(relays);
        scene.net.kill(n);
    }
    let terms = Terms::default();
    let reached = async {
        loop {
            match scene.client.open_stream(&known, 80, &terms).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let accepted = async { scene.service.accept().await.expect("a request").accept() };
    let (mut near, mut far) = soon(async { tokio::join!(reached, accepted) }).await;
    echo(&mut near, &mut far, 100).await;
    assert_eq!(*scene.points.borrow(), known.points);
}

#[tokio::test]
async fn where_all_relays_are_introduction_points_a_client_waits_at_one_of_them() {
    let config = ServiceConfig {
        points: 4,
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let points = scene.known().points;
    let is_point = |relay: &path::Relay| {
        let mut relays = points.iter().map(|point| &point.relay);
        relays.any(|point| point.keys.ed25519 == relay.keys.ed25519)
    };
    scene.paths.relays.lock().retain(is_point);
    let (mut near, mut far) = scene.stream(&Terms::default()).await;
    echo(&mut near, &mut far, 1000).await;
}

#[tokio::test]
async fn a_service_that_is_gone_is_not_reached_and_the_error_says_that_its_descriptor_is_old() {
    let scene = Scene::new().await;
    let known = scene.known();
    drop(scene.service);
    for relay in &scene.relays {
        until(|| relay.circuits() == 0).await;
    }
    let error = soon(scene.client.open_stream(&known, 80, &Terms::default())).await;
    let error = error.expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::PathFailed);
    assert!(error.to_string().contains("descriptor is old"), "{error}");
}

#[tokio::test]
async fn an_introduction_that_comes_twice_or_a_cookie_is_answered_once() {
    let scene = Scene::new().await;
    let at = scene.elsewhere();
    let mut first = scene.waiting(&at, [1; 20]).await;
    let (state, message) = scene.introduction(&at, [1; 20]);
    assert_eq!(scene.introduce(&message).await, IntroduceStatus::SUCCESS);
    let Heard::Message(1, RelayCommand::RENDEZVOUS2, StreamId::CIRCUIT, reply, _) =
        first.hear().await
    else {
        panic!("no service");
    };
    state.finish(&reply).expect("the service");
    // Who has seen the message waits by the same cookie, where it has become free.
    first
        .circuit
        .sender
        .destroy(hoplite_wire::cell::circuit::DestroyReason::NONE);
    let counters = scene.service.counters();
    scene.introduce(&message).await;
    until(|| counters.replayed.load(Relaxed) == 1).await;
    let (_, again) = scene.introduction(&at, [1; 20]);
    scene.introduce(&again).await;
    until(|| counters.replayed.load(Relaxed) == 2).await;
    assert_eq!(counters.met.load(Relaxed), 1);
}

#[tokio::test]
async fn garbage_is_dropped_and_disturbs_nobody() {
    let mut scene = Scene::new().await;
    let (at, before) = (scene.elsewhere(), scene.known().points);
    let (_, message) = scene.introduction(&at, [1; 20]);
    for change in [60, 100, message.len() - 1] {
        let mut changed = message.clone();
        changed[change] ^= 1;
        assert_eq!(scene.introduce(&changed).await, IntroduceStatus::SUCCESS);
    }
    scene.introduce(&message[..60]).await;
    // An introduction that is authentic and says nothing.
    let point = scene.points.borrow()[0].clone();
    let keys = IntroductionKeys {
        auth: point.auth_key,
        encryption: point.enc_key,
        subcredential: SUBCREDENTIAL,
    };
    for plaintext in [&[0; 20][..], &[0; 190], b""] {
        let (_, empty) = hs_ntor::client(&keys, plaintext).expect("begun");
        scene.introduce(&empty).await;
    }
    until(|| scene.service.counters().garbage.load(Relaxed) == 7).await;
    assert_eq!(*scene.points.borrow(), before);
    let (mut near, mut far) = scene.stream(&Terms::default()).await;
    echo(&mut near, &mut far, 10).await;
    assert_eq!(scene.service.counters().met.load(Relaxed), 1);
}

/// Else whoever knows a service's address would choose the relays that it trusts.
#[tokio::test]
async fn a_client_who_sends_a_service_to_a_relay_with_a_wrong_key_has_nobody_blamed_for_it() {
    let scene = Scene::new().await;
    let mut at = scene.elsewhere();
    at.keys.onion = scene.points.borrow()[0].enc_key;
    let (_, message) = scene.introduction(&at, [1; 20]);
    assert_eq!(scene.introduce(&message).await, IntroduceStatus::SUCCESS);
    until(|| scene.service.counters().missed.load(Relaxed) == 1).await;
    assert!(scene.paths.blamed.lock().is_empty());
    // Nor the guards before it: three introduction points were established, and nothing failed.
    let fates = scene.paths.fates.lock().clone();
    let useful = [CircuitFate::Built, CircuitFate::Used];
    assert!(fates.iter().all(|fate| useful.contains(fate)), "{fates:?}");
    assert_eq!(fates.len(), 6);
}

/// As where the relay that was named has no open port, and the one before it, C tor's, closes the circuit as if it were lost itself.
#[tokio::test(start_paused = true)]
async fn a_relay_that_closes_the_circuit_since_the_next_one_is_a_strangers_is_not_blamed() {
    let scene = Scene::new().await;
    let (at, points) = (scene.silent_relay(), scene.known().points);
    let is_point = |relay: &path::Relay| points.iter().any(|point| point.relay == *relay);
    // The path of a service takes the first of these relays, the last, and the one before that.
    let before = {
        let mut relays = scene.paths.relays.lock();
        relays.sort_by_key(is_point);
        relays.rotate_left(2);
        relays[7].keys.ed25519[0]
    };
    *scene.paths.next.lock() = Box::new(|| 0);
    let created = &scene.relays[usize::from(before) - 1].counters.created;
    let so_far = created.load(Relaxed);
    let (_, message) = scene.introduction(&at, [1; 20]);
    assert_eq!(scene.introduce(&message).await, IntroduceStatus::SUCCESS);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(created.load(Relaxed), so_far + 1, "it leads there");
    let others = |relay: &path::Relay| relay.keys.ed25519[0] != before;
    scene.paths.relays.lock().retain(others);
    scene.net.kill(before);
    until(|| scene.service.counters().missed.load(Relaxed) == 1).await;
    assert!(scene.paths.blamed.lock().is_empty());
}

/// Two circuits for a client, each of which has that relay's ten seconds.
#[tokio::test(start_paused = true)]
async fn a_relay_of_a_strangers_choice_that_never_answers_is_given_up_soon() {
    let scene = Scene::new().await;
    let (_, message) = scene.introduction(&scene.silent_relay(), [1; 20]);
    let begun = Instant::now();
    assert_eq!(scene.introduce(&message).await, IntroduceStatus::SUCCESS);
    until(|| scene.service.counters().missed.load(Relaxed) == 1).await;
    assert_eq!(begun.elapsed().as_secs(), 20);
    assert!(scene.paths.blamed.lock().is_empty());
}

/// Through every introduction point, and slower than is too many.
#[tokio::test(start_paused = true)]
async fn who_sends_a_service_to_relays_that_never_answer_keeps_nobody_else_out() {
    let config = ServiceConfig {
        building: 8,
        ..ServiceConfig::default()
    };
    let scene = Scene::with(config, ClientConfig::default()).await;
    let (at, known) = (scene.silent_relay(), scene.known());
    for n in 0..60 {
        let through = usize::from(n) % 3;
        let (_, message) = scene.introduction_through(through, &at, [n; 20]);
        scene.introduce_through(through, &message).await;
    }
    let counters = scene.service.counters();
    until(|| counters.limited.load(Relaxed) >= 50).await;
    // They have had their time, and not all that they may have.
    tokio::time::sleep(Duration::from_secs(6)).await;
    for point in &known.points {
        let through = KnownService {
            points: vec![point.clone()],
            ..known.clone()
        };
        let client = scene.another_client(ClientConfig {
            attempts: 1,
            ..ClientConfig::default()
        });
        let (terms, newer) = (Terms::default(), || std::future::ready(None));
        let reached = soon(client.reach(&through, None, newer, &terms)).await;
        assert!(reached.expect("reached").is_usable());
    }
    assert_eq!(counters.missed.load(Relaxed), 0, "none has come to its end");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_for_no_stream_is_left_after_half_a_minute_and_one_that_did_is_not() {
    let mut scene = Scene::new().await;
    drop(scene.stream(&token(1)).await);
    let (known, terms) = (scene.known(), token(2));
    let newer = || std::future::ready(None);
    let silent = soon(scene.client.reach(&known, None, newer, &terms)).await;
    let silent = silent.expect("reached");
    let clients = |scene: &Scene| scene.service.watch().state().expect("it lives").clients;
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!((clients(&scene), silent.is_usable()), (2, true));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((clients(&scene), silent.is_usable()), (1, false));
    let (mut near, mut far) = scene.stream(&token(1)).await;
    echo(&mut near, &mut far, 100).await;
    assert_eq!(
        scene.service.counters().met.load(Relaxed),
        2,
        "over the same circuit"
    );
}

/// Half of the places are for who comes through one introduction point.
#[tokio::test(start_paused = true)]
async fn clients_that_do_nothing_give_way_to_those_who_come_and_those_with_streams_do_not() {
    let config = ServiceConfig {
        points: 1,
        clients: 4,
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let (mut near, mut far) = scene.stream(&token(1)).await;
    let at = scene.elsewhere();
    let mut silent = Vec::new();
    for n in 1..=5 {
        let mut raw = scene.waiting(&at, [n; 20]).await;
        let (_, message) = scene.introduction(&at, [n; 20]);
        scene.introduce(&message).await;
        let heard = raw.hear().await;
        let Heard::Message(1, RelayCommand::RENDEZVOUS2, ..) = heard else {
            panic!("{heard:?} as client {n}");
        };
        silent.push(raw);
    }
    let (mut next, mut there) = scene.stream(&token(2)).await;
    for mut raw in silent {
        let heard = raw.hear().await;
        assert!(
            matches!(heard, Heard::Message(0, RelayCommand::TRUNCATED, ..)),
            "{heard:?}"
        );
    }
    let (_, message) = scene.introduction(&at, [6; 20]);
    scene.introduce(&message).await;
    let counters = scene.service.counters();
    until(|| counters.limited.load(Relaxed) == 1).await;
    assert_eq!(counters.met.load(Relaxed), 7);
    echo(&mut near, &mut far, 100).await;
    echo(&mut next, &mut there, 100).await;
}

#[tokio::test]
async fn a_token_with_streams_to_all_services_that_it_can_leaves_circuits_to_the_others() {
    let config = ClientConfig {
        kept: 4,
        ..ClientConfig::default()
    };
    let mut scene = Scene::with(ServiceConfig::default(), config).await;
    let mut held = Vec::new();
    for (client, services) in [(1, 2), (2, 1), (3, 1)] {
        let terms = token(client);
        for n in 0..=services {
            let known = KnownService {
                identity: [n; 32],
                ..scene.known()
            };
            let opening = scene.client.open_stream(&known, 80, &terms);
            if n == services {
                let refused = soon(opening).await.expect_err("no more than are free");
                assert_eq!(refused.reason(), Some(Reason::Limit));
                continue;
            }
            let (near, far) = soon(async {
                tokio::join!(opening, async {
                    scene.service.accept().await.expect("a request").accept()
                })
            })
            .await;
            held.push((near.expect("opens"), far));
        }
    }
    for (near, far) in &mut held {
        echo(near, far, 100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn circuits_that_are_over_take_no_place_from_another_token() {
    let config = ClientConfig {
        kept: 5,
        ..ClientConfig::default()
    };
    let mut scene = Scene::with(ServiceConfig::default(), config).await;
    for client in 1..=3 {
        drop(scene.stream(&token(client)).await);
    }
    // The service leaves clients without streams.
    tokio::time::sleep(Duration::from_secs(700)).await;
    let (terms, mut held) = (token(4), Vec::new());
    for n in 0..2 {
        let known = KnownService {
            identity: [n; 32],
            ..scene.known()
        };
        let opening = scene.client.open_stream(&known, 80, &terms);
        let (near, far) = soon(async {
            tokio::join!(opening, async {
                scene.service.accept().await.expect("a request").accept()
            })
        })
        .await;
        held.push((near.expect("opens"), far));
    }
    for (near, far) in &mut held {
        echo(near, far, 100).await;
    }
}

#[tokio::test]
async fn a_flood_of_introductions_is_met_as_far_as_there_is_room() {
    let config = ServiceConfig {
        rendezvous: IntroductionRate {
            per_second: 1,
            burst: 3,
        },
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let (mut near, mut far) = scene.stream(&Terms::default()).await;
    let at = scene.elsewhere();
    let mut messages = Vec::new();
    for n in 0..20 {
        messages.push(scene.introduction(&at, [n; 20]).1);
    }
    for message in &messages {
        scene.introduce(message).await;
    }
    let counters = scene.service.counters();
    until(|| counters.limited.load(Relaxed) >= 10).await;
    let begun = counters.met.load(Relaxed) + counters.missed.load(Relaxed);
    assert!((1..=8).contains(&begun), "{begun}");
    // Who was there before is served as before.
    echo(&mut near, &mut far, 100_000).await;
}

/// Through one introduction point, which cannot tell him from the others either.
#[tokio::test]
async fn who_floods_one_introduction_point_stops_nobody_who_comes_through_the_others() {
    let config = ServiceConfig {
        rendezvous: IntroductionRate {
            per_second: 0,
            burst: 6,
        },
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let at = scene.elsewhere();
    for n in 0..20 {
        let (_, message) = scene.introduction(&at, [n; 20]);
        scene.introduce(&message).await;
    }
    let known = scene.known();
    let counters = |scene: &Scene| scene.service.counters().limited.load(Relaxed);
    until(|| counters(&scene) == 18).await;
    for (n, point) in (1..).zip(&known.points[1..]) {
        let through = KnownService {
            points: vec![point.clone()],
            ..known.clone()
        };
        let terms = token(n);
        let (near, mut far) = soon(async {
            tokio::join!(scene.client.open_stream(&through, 80, &terms), async {
                scene.service.accept().await.expect("a request").accept()
            })
        })
        .await;
        echo(&mut near.expect("opens"), &mut far, 100).await;
    }
}

/// No test: `cargo test -p hoplite-onion --test net how_long -- --ignored --nocapture` prints milliseconds. The one who floods goes on meanwhile, with more
/// introductions through one point than a service begins to answer, and has its own work done by the same thread.
#[tokio::test]
#[ignore = "it measures"]
async fn how_long_others_take_to_reach_a_service_beside_a_flood() {
    let scene = Scene::new().await;
    let (at, known) = (scene.elsewhere(), scene.known());
    for flooded in [false, true, false, true, false, true] {
        let others = async {
            let mut times = Vec::new();
            for _ in 0..40 {
                let client = scene.another_client(ClientConfig::default());
                let newer = || std::future::ready(None);
                let begun = std::time::Instant::now();
                let reached = soon(client.reach(&known, None, newer, &Terms::default())).await;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
                drop(reached.expect("reached"));
            }
            times
        };
        let (mut times, sent) = if flooded {
            let sent = AtomicUsize::new(0);
            let times = tokio::select! {
                times = others => times,
                () = scene.flood(&at, &sent) => unreachable!("it goes on"),
            };
            (times, sent.into_inner())
        } else {
            (others.await, 0)
        };
        times.sort_by(f64::total_cmp);
        let (median, least, most) = (times[20], times[0], times[39]);
        println!(
            "{sent} introductions beside: others median {median:.1} ms, {least:.1} to {most:.1}"
        );
    }
}

#[tokio::test]
async fn a_hundred_clients_have_a_thousand_streams_at_once() {
    let client = ClientConfig {
        kept: 100,
        ..ClientConfig::default()
    };
    let mut scene = Scene::with(ServiceConfig::default(), client).await;
    let mut streams = Vec::new();
    for n in 0..100 {
        for _ in 0..10 {
            streams.push(scene.stream(&token(n)).await);
        }
    }
    for (near, far) in &mut streams {
        echo(near, far, 600).await;
    }
    let watch = scene.service.watch();
    let state = watch.state().expect("it lives");
    assert_eq!((state.clients, state.streams), (100, 1000));
    assert_eq!(state.points.len(), 3);
    drop(streams);
    until(|| watch.state().is_some_and(|state| state.streams == 0)).await;
    drop(scene);
    until(|| watch.state().is_none()).await;
}

#[tokio::test]
async fn a_client_that_opens_all_streams_that_it_can_leaves_as_many_to_the_others() {
    let config = ServiceConfig {
        streams_of_all: 16,
        ..ServiceConfig::default()
    };
    let mut scene = Scene::with(config, ClientConfig::default()).await;
    let mut held = Vec::new();
    for (client, streams) in [(1, 8), (2, 4), (3, 2)] {
        for _ in 0..streams {
            held.push(scene.stream(&token(client)).await);
        }
        let (known, terms) = (scene.known(), token(client));
        let more = soon(scene.client.open_stream(&known, 80, &terms)).await;
        let refused = more.expect_err("no more than are free");
        assert_eq!(refused.kind(), ErrorKind::TargetFailed);
    }
    for (near, far) in &mut held {
        echo(near, far, 100).await;
    }
    // What it gives back it may have again.
    held.truncate(7);
    let state = || scene.service.watch().state().expect("it lives");
    until(|| state().streams == 7).await;
    held.push(scene.stream(&token(1)).await);
}

#[tokio::test]
async fn a_worn_out_introduction_point_gives_way_to_another() {
    let config = ServiceConfig {
        points: 1,
        of_a_point: 2,
        ..ServiceConfig::default()
    };
    let scene = Scene::with(config, ClientConfig::default()).await;
    let first = scene.points.borrow()[0].clone();
    let at = scene.elsewhere();
    for n in 1..=2 {
        let (_, message) = scene.introduction(&at, [n; 20]);
        scene.introduce(&message).await;
    }
    let mut points = scene.points.clone();
    let is_new = |now: &Vec<IntroductionPoint>| now.len() == 1 && now[0].auth_key != first.auth_key;
    drop(soon(points.wait_for(is_new)).await.expect("another"));
}

/// Relay `elsewhere` pretends that the service has come.
#[tokio::test]
async fn a_client_believes_nobody_who_has_not_the_services_key() {
    let once = ClientConfig {
        attempts: 1,
        ..ClientConfig::default()
    };
    let scene = Scene::with(ServiceConfig::default(), once).await;
    // Of an introduction point that the service does not listen to, so that it does not come.
    let (point, mut listening) = scene.silent_point().await;
    let secret = hoplite_crypto::onion::OnionKey::fresh_secret().expect("randomness");
    let encryption = hoplite_crypto::onion::OnionKey::from_secret(&secret).expect("a key");
    let auth_key = point.auth_key;
    let silent = KnownService {
        points: vec![IntroductionPoint {
            enc_key: *encryption.public(),
            ..point
        }],
        ..scene.known()
    };
    let secret = hs_ntor::IntroductionSecret::new(auth_key, encryption);
    let terms = Terms::default();
    let lie = async {
        let heard = listening.hear().await;
        let Heard::Message(1, RelayCommand::INTRODUCE2, _, message, _) = heard else {
            panic!("{heard:?}");
        };
        let read = secret
            .introduced(&message, &[SUBCREDENTIAL])
            .expect("reads");
        let (plaintext, introduced) = read;
        let introduction = Introduction::parse(&plaintext).expect("reads");
        let there =
            hoplite_onion::onion_service::relay(&introduction.specifiers, introduction.onion_key);
        let mut raw = scene.raw(&there.expect("a relay")).await;
        let (mut reply, _) = introduced.answer().expect("answered");
        reply[40] ^= 1;
        let mut message = Vec::new();
        Rendezvous1 {
            cookie: introduction.cookie,
            handshake: &reply,
        }
        .write(&mut message);
        raw.say(RelayCommand::RENDEZVOUS1, 0, &message).await;
        // The client has closed its circuit.
        let heard = raw.hear().await;
        assert!(
            matches!(heard, Heard::Message(0, RelayCommand::TRUNCATED, ..)),
            "{heard:?}"
        );
    };
    let (opened, ()) =
        soon(async { tokio::join!(scene.client.open_stream(&silent, 80, &terms), lie) }).await;
    assert_eq!(opened.expect_err("a liar").kind(), ErrorKind::PathFailed);
}

impl Scene {
    /// An introduction point that is told of clients and tells nobody; it lasts as long as the circuit.
    async fn silent_point(&self) -> (IntroductionPoint, Raw) {
        let at = self.elsewhere();
        let key = hoplite_crypto::SigningKey::generate().expect("a key");
        let mut listening = self.raw(&at).await;
        let asked = hoplite_crypto::onion::introduction::establish(&key, None, &listening.nonce);
        listening
            .say(RelayCommand::ESTABLISH_INTRO, 0, &asked)
            .await;
        let Heard::Message(1, RelayCommand::INTRO_ESTABLISHED, ..) = listening.hear().await else {
            panic!("not established");
        };
        let point = IntroductionPoint {
            relay: at,
            auth_key: key.public(),
            enc_key: self.points.borrow()[0].enc_key,
        };
        (point, listening)
    }

    /// Streams of so many clients that know nothing but this, and who else may know; each hurries.
    async fn reached(&self, clients: u8, known: &KnownService, newer: Option<KnownService>) {
        let config = ClientConfig {
            hurry: Duration::from_millis(20),
            ..ClientConfig::default()
        };
        for _ in 0..clients {
            let client = self.another_client(config);
            let newer = || std::future::ready(newer.clone().map(Arc::new));
            let reached = soon(client.reach(known, None, newer, &Terms::default())).await;
            assert!(reached.expect("reached").is_usable());
        }
    }
}

/// A service that has lost its circuit there, or is gone.
#[tokio::test]
async fn where_a_service_does_not_come_it_is_asked_for_over_the_next_point_beside() {
    let scene = Scene::new().await;
    let (silent, _listening) = scene.silent_point().await;
    let mut known = scene.known();
    known.points.truncate(1);
    known.points.push(silent);
    // Each begins with the silent one as likely as not.
    scene.reached(8, &known, None).await;
}

#[tokio::test]
async fn where_a_service_does_not_come_a_newer_descriptor_leads_to_it() {
    let scene = Scene::new().await;
    let (silent, _listening) = scene.silent_point().await;
    let now = scene.known();
    let mut old = now.clone();
    old.points = vec![silent];
    scene.reached(1, &old, Some(now)).await;
}
