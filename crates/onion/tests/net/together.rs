//! Streams of one token that want a circuit at the same time: who waits for whom, and how many circuits are built for them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_onion::{
    Config, Onion,
    channel::Waiting,
    path::{self, CircuitUsage, Paths},
};
use hoplite_overlay::{Error, Isolation, Overlay, Terms, conformance::Far};
use hoplite_testing::soon;
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::support::{FAR, Kind, World, known};

/// The exit that says nothing serves this port alone, and no other exit does.
const DEAD: u16 = 6667;

/// A path for each port, and for which it was asked.
#[derive(Debug)]
struct ByPort {
    to_dead: Vec<path::Relay>,
    to_others: Vec<path::Relay>,
    asked: Mutex<Vec<u16>>,
}

impl ByPort {
    fn asked_for(&self, port: u16) -> usize {
        let asked = self.asked.lock();
        asked.iter().filter(|other| **other == port).count()
    }
}

impl Paths for ByPort {
    fn path<'a>(&'a self, usage: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        self.asked.lock().extend(&usage.ports);
        let path = if usage.ports.contains(&DEAD) {
            self.to_dead.clone()
        } else {
            self.to_others.clone()
        };
        Box::pin(async { Ok(path) })
    }
}

struct Scene {
    world: World,
    paths: Arc<ByPort>,
    onion: Arc<Onion>,
    target: Target,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new(Duration::from_millis(50), Kind::default());
        let mut silent = known(&world.net.relay(4, &world.network, |_| {}), Kind::default());
        world.net.silence(4);
        silent.exit = DEAD.to_string().parse().ok().map(Arc::new);
        let mut others = world.path.clone();
        let but_dead = "1-6666,6668-65535".parse().expect("ports");
        others[2].exit = Some(Arc::new(but_dead));
        let mut dead = others.clone();
        dead[2] = silent;
        let paths = Arc::new(ByPort {
            to_dead: dead,
            to_others: others,
            asked: Mutex::default(),
        });
        let config = Config {
            ahead: 0,
            ..Config::default()
        };
        let onion = Onion::new(world.net.dialer(None), Arc::clone(&paths) as _, config);
        let mut listener = world.far().listen().await.expect("listens");
        let target = listener.target();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok(stream) = listener.accept().await {
                held.push(stream);
            }
        });
        Self {
            world,
            paths,
            onion: Arc::new(onion),
            target,
        }
    }

    /// Streams of the one token to the port that nobody serves.
    fn to_dead(&self, streams: usize) -> JoinSet<Result<(), Error>> {
        let mut waiting = JoinSet::new();
        for _ in 0..streams {
            let onion = Arc::clone(&self.onion);
            waiting.spawn(async move {
                let dead = Target::from(SocketAddr::new(FAR, DEAD));
                onion.open_stream(&dead, &terms()).await.map(drop)
            });
        }
        waiting
    }

    async fn opens_in(&self) -> Duration {
        let begun = Instant::now();
        soon(self.onion.open_stream(&self.target, &terms()))
            .await
            .expect("opens");
        begun.elapsed()
    }
}

fn terms() -> Terms {
    Terms {
        isolation: Isolation::new(b"one program".to_vec()),
        ..Terms::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_whose_circuit_does_not_come_about_holds_up_no_other_stream_of_its_token() {
    let scene = Scene::new().await;
    let mut stuck = scene.to_dead(5);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = scene.opens_in().await;
    assert!(
        first < Duration::from_secs(2),
        "a circuit of its own: {first:?}"
    );
    let second = scene.opens_in().await;
    assert!(
        second < Duration::from_millis(400),
        "it is there: {second:?}"
    );
    assert!(stuck.try_join_next().is_none(), "those still wait");
    assert_eq!(scene.paths.asked_for(DEAD), 1, "one circuit for all five");
    // Three attempts of twenty seconds take longer than a test's patience.
    while let Some(ended) = stuck.join_next().await {
        ended.expect("no panic").expect_err("nobody serves it");
    }
    // Each has had its three attempts, and they shared them.
    assert_eq!(scene.paths.asked_for(DEAD), 3);
}

#[tokio::test(start_paused = true)]
async fn streams_to_many_ports_that_one_exit_serves_wait_for_one_circuit() {
    let scene = Scene::new().await;
    let ports = (8000..8050).map(|port| Target::from(SocketAddr::new(FAR, port)));
    let targets: Vec<_> = ports.chain([scene.target.clone()]).collect();
    let terms = terms();
    let opened = targets
        .iter()
        .map(|target| scene.onion.open_stream(target, &terms));
    let opened = soon(join_all(opened)).await;
    assert!(opened.last().is_some_and(Result::is_ok));
    assert_eq!(scene.world.relays[2].circuits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_is_built_to_its_end_though_who_asked_first_has_given_up() {
    let scene = Scene::new().await;
    let mut first = JoinSet::new();
    let (onion, target) = (Arc::clone(&scene.onion), scene.target.clone());
    first.spawn(async move { onion.open_stream(&target, &terms()).await.map(drop) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(first);
    let took = scene.opens_in().await;
    assert!(took < Duration::from_millis(1200), "{took:?}");
    assert_eq!(scene.paths.asked_for(scene.target.port), 1);
    assert_eq!(scene.world.relays[2].circuits(), 1);
}
