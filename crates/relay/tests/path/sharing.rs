//! Small datagrams of several flows that share packets of one size: packets and bytes that are saved, what it costs in time, and what somebody sees of
//! sizes who watches the client's link. In virtual time, over a network in memory, with a relay that serves HTTP/3 and nothing else; then both ends as they
//! are, on loopback. `cargo test -p hoplite-relay --test path sharing -- --nocapture` prints the table of docs/tunnels.md.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Certificates, Pin, Trust, server_tls};
use hoplite_http::{DatagramSink, h3};
use hoplite_link::{Peer, memory::MemorySocket};
use hoplite_masque::{Acks, Config, Path, Relay as Known};
use hoplite_overlay::{
    Batch, Datagrams, Overlay, Terms,
    memory::{Conditions, Network, What},
};
use hoplite_quic::{
    Endpoint, EndpointConfig, Hooks,
    server::{Secrets, server_config},
    timer::Timers,
};
use hoplite_relay::config::{Pad, Share};
use hoplite_testing::identity;
use hoplite_wire::{ResponseHead, Target, tuning::TuningRequest};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
const LATENCY: Duration = Duration::from_millis(20);
/// How long traffic goes, and how long it is waited for.
const LASTS: Duration = Duration::from_secs(4);
/// The runtime's timer is as coarse, once for the wait and once for the sender.
const GRAIN: Duration = Duration::from_millis(2);

/// Datagrams of one size at a rhythm, in milliseconds and bytes.
#[derive(Clone, Copy)]
struct Beat {
    every: u64,
    first: u64,
    bytes: usize,
}

const fn beat(every: u64, first: u64, bytes: usize) -> Option<Beat> {
    Some(Beat {
        every,
        first,
        bytes,
    })
}

/// What goes up and down in each flow.
type Flows = &'static [[Option<Beat>; 2]];

const CALL: [Option<Beat>; 2] = [beat(20, 0, 172), beat(20, 3, 172)];
const OTHER_CALL: [Option<Beat>; 2] = [beat(20, 7, 172), beat(20, 11, 172)];
const DOWNLOAD: [Option<Beat>; 2] = [beat(2, 1, 35), beat(1, 0, 1100)];
const QUESTIONS: [Option<Beat>; 2] = [beat(150, 40, 60), beat(150, 90, 120)];

const TRAFFIC: [(&str, Flows); 4] = [
    ("a call", &[CALL]),
    ("two calls", &[CALL, OTHER_CALL]),
    ("a download", &[DOWNLOAD]),
    ("all at once", &[CALL, OTHER_CALL, DOWNLOAD, QUESTIONS]),
];

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A call waits less than answers to a download.
fn sharing() -> Share {
    Share {
        call: ms(10),
        answers: ms(20),
        other: ms(40),
        streams: ms(10),
    }
}

/// What was seen one way.
#[derive(Default)]
struct OneWay {
    /// How often packets of each size were seen.
    sizes: BTreeMap<usize, usize>,
    /// How much later than without a relay each datagram came, in microseconds.
    late: Vec<u128>,
}

impl OneWay {
    fn packets(&self) -> usize {
        self.sizes.values().sum()
    }

    fn bytes(&self) -> usize {
        self.sizes.iter().map(|(size, count)| size * count).sum()
    }

    /// What the size of a packet tells, in bits.
    fn entropy(&self) -> f64 {
        let all = self.packets() as f64;
        let shares = self.sizes.values().map(|count| *count as f64 / all);
        shares.map(|share| -share * share.log2()).sum::<f64>() + 0.0
    }

    /// Milliseconds.
    fn late(&self, percent: usize) -> f64 {
        let mut late = self.late.clone();
        late.sort_unstable();
        let index = (percent * late.len().saturating_sub(1) + 50) / 100;
        late.get(index).map_or(0.0, |late| *late as f64 / 1000.0)
    }

    fn latest(&self) -> Duration {
        let most = self.late.iter().max().copied().unwrap_or_default();
        Duration::from_micros(u64::try_from(most).expect("a short time"))
    }
}

/// Delays, up and down, of datagrams that have come.
type Late = Arc<Mutex<[Vec<u128>; 2]>>;

/// Each datagram begins with the time at which it was sent.
fn stamped(began: Instant, bytes: usize) -> Vec<u8> {
    let sent = u64::try_from(began.elapsed().as_micros()).expect("a short time");
    let mut payload = vec![0; bytes];
    payload[..8].copy_from_slice(&sent.to_be_bytes());
    payload
}

fn note(late: &Late, way: usize, began: Instant, payload: &[u8]) {
    let sent = u64::from_be_bytes(payload[..8].try_into().expect("a stamp"));
    let took = began.elapsed().saturating_sub(Duration::from_micros(sent));
    late.lock()[way].push(took.saturating_sub(LATENCY).as_micros());
}

/// When the datagrams of a beat are sent.
fn times(beat: Beat, began: Instant) -> impl Iterator<Item = Instant> {
    let times = (0..).map(move |number| ms(beat.first + number * beat.every));
    times.take_while(|at| *at < LASTS).map(move |at| began + at)
}

struct Arrivals {
    late: Late,
    began: Instant,
}

impl DatagramSink for Arrivals {
    fn push(&self, payload: Bytes) {
        note(&self.late, 0, self.began, &payload);
    }

    fn flush(&self) {}
}

/// The relay, and behind it the far end of each flow, whose number is the target's port. TCP flows are echoed.
struct Far {
    flows: Flows,
    share: Share,
    late: Late,
    began: Instant,
}

impl Far {
    async fn serve(self: Arc<Self>, connection: hoplite_quic::Connection) {
        let config = h3::Config {
            share: self.share,
            ..h3::Config::default()
        };
        let session = h3::Session::server(connection, &config);
        let mut requests = JoinSet::new();
        while let Some(mut incoming) = session.accept().await {
            let answer = ResponseHead::new(200);
            incoming.exchange.respond(&answer).await.expect("answered");
            let far = Arc::clone(&self);
            let path = incoming.head.path.clone();
            requests.spawn(async move {
                match path {
                    Some(path) => far.flow(&path, incoming.exchange).await,
                    None => {
                        let (mut up, mut down) = tokio::io::split(incoming.exchange.into_stream());
                        drop(tokio::io::copy(&mut up, &mut down).await);
                    }
                }
            });
        }
    }

    async fn flow(&self, path: &str, exchange: h3::Exchange) {
        let number = path.trim_end_matches('/').rsplit('/').next();
        let number: usize = number.expect("a port").parse().expect("a number");
        let arrivals = Arrivals {
            late: Arc::clone(&self.late),
            began: self.began,
        };
        let flow = exchange.datagrams(Arc::new(arrivals));
        if let Some(beat) = self.flows[number - 1][1] {
            for at in times(beat, self.began) {
                sleep_until(at).await;
                let payload = stamped(self.began, beat.bytes);
                assert_eq!(flow.send(Batch::one(&payload)), 1, "no room");
            }
        }
        drop(flow.closed().await);
    }

    fn listen(self, network: &Network, pad: Pad, tasks: &mut JoinSet<()>) -> Pin {
        let identity = identity("relay.example");
        let certificates = Certificates::new(&identity).expect("certificates");
        let tls = Arc::new(server_tls(certificates, &[ALPN_H3]).expect("TLS"));
        let link = hoplite_link::Config {
            streams: 100,
            pad,
            keep_alive: Duration::from_secs(1000),
            ..hoplite_link::Config::default()
        };
        let transport = Arc::new(link.transport(0, 1472));
        let secrets = Secrets::generate().expect("random");
        let config = server_config(tls, transport, &secrets, &Hooks::default());
        let endpoint = Endpoint::with_socket(
            EndpointConfig::default(),
            Some(config.expect("QUIC")),
            MemorySocket::new(network.bind_at(RELAY), tasks),
            Timers::Exact,
        );
        let (endpoint, far) = (endpoint.expect("an endpoint"), Arc::new(self));
        tasks.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let connection = incoming.await.expect("connected");
                tokio::spawn(Arc::clone(&far).serve(connection));
            }
        });
        identity.pin()
    }
}

/// A network with the relay, and the client's path over it.
struct World {
    network: Network,
    path: Path,
    late: Late,
    began: Instant,
    _tasks: JoinSet<()>,
}

impl World {
    /// Traffic begins when all has settled.
    async fn new(flows: Flows, pad: Pad, share: Share, acks: &str) -> Self {
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        let mut tasks = JoinSet::new();
        let (late, began) = (Late::default(), Instant::now() + Duration::from_secs(12));
        let far = Far {
            flows,
            share,
            late: Arc::clone(&late),
            began,
        };
        let pin = far.listen(&network, pad, &mut tasks);
        let relay = Known {
            peer: Peer {
                name: "amber".into(),
                address: Target::from(RELAY),
                trust: Trust::Pins(vec![pin]),
            },
            token: None,
            tokens: None,
            template: None,
            mode: None,
        };
        let (up, down) = TuningRequest::both(acks).expect("a policy");
        let config = Config {
            pad,
            share,
            acks: Acks { up, down },
            // What is measured is not to be shared by other means.
            gather: false,
            ..Config::default()
        };
        let below: Arc<dyn Overlay> = Arc::new(network.overlay(CLIENT));
        let path = Path::new(vec![relay], &below, &Arc::new(config)).expect("a path");
        path.connect().await.expect("connected");
        Self {
            network,
            path,
            late,
            began,
            _tasks: tasks,
        }
    }

    async fn near(&self, number: usize) -> Arc<dyn Datagrams> {
        let port = u16::try_from(number).expect("few");
        let target = SocketAddr::from((Ipv4Addr::new(198, 51, 100, 80), port)).into();
        let flow = self.path.open_datagrams(&target, &Terms::default()).await;
        flow.expect("open").into()
    }

    /// Carries all of it.
    async fn carry(&self, flows: Flows) -> [OneWay; 2] {
        let mut tasks = JoinSet::new();
        for (number, [up, _]) in flows.iter().enumerate() {
            let (flow, late, began) = (self.near(number + 1).await, self.late.clone(), self.began);
            let receiver = Arc::clone(&flow);
            tasks.spawn(async move {
                let mut buffer = [0; 2000];
                while let Ok(received) = receiver.recv(&mut buffer).await {
                    for payload in buffer[..received.len].chunks(received.segment.max(1)) {
                        note(&late, 1, began, payload);
                    }
                }
            });
            if let Some(beat) = *up {
                tasks.spawn(async move {
                    for at in times(beat, began) {
                        sleep_until(at).await;
                        let payload = stamped(began, beat.bytes);
                        flow.send(&payload).await.expect("sent");
                    }
                    // The flow stays.
                    std::future::pending().await
                });
            }
        }
        sleep_until(self.began).await;
        self.network.forget();
        sleep_until(self.began + LASTS).await;
        let mut ways = <[OneWay; 2]>::default();
        for seen in self.network.seen() {
            if let What::Datagram(bytes) = seen.what {
                let way = usize::from(seen.from == RELAY);
                *ways[way].sizes.entry(bytes).or_default() += 1;
            }
        }
        sleep(Duration::from_secs(1)).await;
        for (way, late) in ways.iter_mut().zip(&*self.late.lock()) {
            way.late.clone_from(late);
        }
        ways
    }
}

async fn carried(flows: Flows, pad: Pad, share: Share, acks: &str) -> [OneWay; 2] {
    let world = World::new(flows, pad, share, acks).await;
    world.carry(flows).await
}

/// Acknowledgements are packets as well, unless they may wait for one.
const LATE_ACKS: &str = "1rtt";

/// How many datagrams go one way.
fn datagrams(flows: Flows, way: usize) -> usize {
    let now = Instant::now();
    let count = |beat| times(beat, now).count();
    flows.iter().filter_map(|flow| flow[way].map(count)).sum()
}

/// One test prints all, so that lines do not mix.
#[tokio::test(start_paused = true)]
async fn small_datagrams_share_packets_and_wait_no_longer_than_they_may() {
    println!(
        "| traffic, {LASTS:?} | pad | acks | share | way | datagrams | packets | bytes | later by p50, p99 (ms) | sizes | bits |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, flows) in TRAFFIC {
        for (pad, acks) in [
            (Pad::Off, "auto"),
            (Pad::Full, "auto"),
            (Pad::Full, LATE_ACKS),
        ] {
            let each = carried(flows, pad, Share::default(), acks).await;
            let shared = carried(flows, pad, sharing(), acks).await;
            for (share, ways) in [("off", &each), ("on", &shared)] {
                for (way, seen) in ["up", "down"].into_iter().zip(ways) {
                    let (packets, bytes) = (seen.packets(), seen.bytes());
                    let (late, latest) = (seen.late(50), seen.late(99));
                    println!(
                        "| {name} | {pad:?} | {acks} | {share} | {way} | {} | {packets} | {bytes} | {late:.1}, {latest:.1} | {} | {:.2} |",
                        seen.late.len(),
                        seen.sizes.len(),
                        seen.entropy(),
                    );
                }
            }
            for way in [0, 1] {
                let (each, shared) = (&each[way], &shared[way]);
                assert_eq!(each.late.len(), datagrams(flows, way), "{name}: lost");
                assert_eq!(shared.late.len(), each.late.len(), "{name}: lost");
                // A lone call has nobody to share with, and acknowledgements find the fewer packets to go with.
                if flows.len() > 1 {
                    assert!(shared.packets() <= each.packets(), "{name}: more packets");
                    assert!(shared.bytes() <= each.bytes(), "{name}: more bytes");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_calls_need_half_the_packets_each_way_and_wait_no_longer_than_a_call_may() {
    let flows: Flows = &[CALL, OTHER_CALL];
    for pad in [Pad::Off, Pad::Full] {
        let each = carried(flows, pad, Share::default(), LATE_ACKS).await;
        let calls = Share {
            other: sharing().call,
            ..sharing()
        };
        let shared = carried(flows, pad, calls, LATE_ACKS).await;
        for (each, shared) in each.iter().zip(&shared) {
            let (before, after) = (each.packets(), shared.packets());
            assert!(after * 5 <= before * 3, "{after} of {before}");
            assert!(
                shared.latest() <= calls.call + GRAIN,
                "{:?}",
                shared.latest()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_to_a_download_need_a_fourth_of_the_packets() {
    let flows: Flows = &[DOWNLOAD];
    let [each, _] = carried(flows, Pad::Full, Share::default(), LATE_ACKS).await;
    let [shared, _] = carried(flows, Pad::Full, sharing(), LATE_ACKS).await;
    let (before, after) = (each.packets(), shared.packets());
    assert!(after * 4 <= before, "{after} of {before}");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_answers_of_a_download_no_longer_than_a_call_may() {
    let flows: Flows = &[DOWNLOAD, CALL];
    let hurried = Share {
        call: ms(2),
        ..sharing()
    };
    let world = World::new(flows, Pad::Full, hurried, LATE_ACKS).await;
    let [up, _] = world.carry(flows).await;
    // Answers wait 20 ms where nobody is in a hurry. Of those that a call takes along a few have waited as long.
    let most = datagrams(&flows[1..], 0);
    let long = up.late.iter().filter(|late| **late > 4_000).count();
    assert!(long <= up.late.len() - most, "{long} of {}", up.late.len());
    assert!(
        up.packets() >= most,
        "each of the call leaves in its own time"
    );
    assert!(
        up.packets() <= up.late.len() / 2,
        "{} packets",
        up.packets()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lone_call_seldom_waits_for_nothing() {
    let share = Share {
        call: ms(5),
        ..Share::default()
    };
    let [up, down] = carried(&[CALL], Pad::Full, share, LATE_ACKS).await;
    for way in [up, down] {
        assert!(way.late(50) < 3.0, "{}", way.late(50));
        let waited = way.late.iter().filter(|late| **late >= 5_000).count();
        assert!(
            waited * 6 <= way.late.len(),
            "{waited} of {}",
            way.late.len()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_watches_sees_one_size_and_how_many() {
    let flows: Flows = &[CALL, OTHER_CALL, DOWNLOAD, QUESTIONS];
    let bare = carried(flows, Pad::Off, Share::default(), "auto").await;
    assert!(bare[0].sizes.len() > 2, "{:?}", bare[0].sizes);
    for way in carried(flows, Pad::Full, sharing(), "auto").await {
        let [most, all] = [
            way.sizes.values().max().copied().unwrap_or_default(),
            way.packets(),
        ];
        // Probes for the size of the path and for loss have sizes of their own.
        assert!((all - most) * 100 <= all, "{:?}", way.sizes);
    }
}

#[tokio::test(start_paused = true)]
async fn small_pieces_of_a_stream_share_packets_and_what_is_large_takes_along_what_waits() {
    let share = sharing();
    let world = World::new(&[CALL], Pad::Full, share, LATE_ACKS).await;
    let target = "192.0.2.80:80".parse::<SocketAddr>().expect("right").into();
    let stream = world.path.open_stream(&target, &Terms::default()).await;
    let mut stream = stream.expect("open");
    let flow = world.near(1).await;
    sleep(Duration::from_secs(2)).await;
    let up = |from: Instant| {
        let seen = world.network.seen();
        let sent = seen.into_iter().filter(|seen| seen.from != RELAY);
        sent.map(|seen| (seen.at - from).as_millis())
            .collect::<Vec<_>>()
    };
    // A datagram of a flow that is no call yet may wait for 40 ms, a piece of a stream for 10.
    let began = Instant::now();
    world.network.forget();
    flow.send(&stamped(began, 60)).await.expect("sent");
    // Programs' streams are written by tasks of their own.
    let mut stream = tokio::spawn(async move {
        stream.write_all(b"piece").await.expect("written");
        stream
    })
    .await
    .expect("done");
    sleep(ms(1)).await;
    assert_eq!(up(began).len(), 1, "both in one packet: {:?}", up(began));
    assert!((10..=12).contains(&up(began)[0]), "{:?}", up(began));
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.expect("echoed");
    // What is large does not wait, nor does what waits behind it.
    sleep(Duration::from_secs(1)).await;
    world.network.forget();
    let began = Instant::now();
    flow.send(&stamped(began, 60)).await.expect("sent");
    stream.write_all(&[7; 800]).await.expect("written");
    tokio::task::yield_now().await;
    sleep(ms(1)).await;
    assert_eq!(up(began).len(), 1, "both in one packet: {:?}", up(began));
}

/// Both ends as they are: what goes up at one time and what comes down is in a few packets.
#[tokio::test]
async fn a_relay_and_its_client_share_packets_both_ways() {
    use hoplite_testing::{
        path::through,
        relay::{config, start},
        soon, targets,
    };
    const FLOWS: usize = 8;
    let share = Share {
        other: ms(400),
        ..Share::default()
    };
    let mut served = config();
    served.tunnel.share = share;
    let relay = start(&served);
    let client = Config {
        share,
        ..Config::default()
    };
    let scales = super::padding::Scales::default();
    let path = through([&relay], &super::padding::weighed(&scales), client);
    path.connect().await.expect("connected");
    let target = targets::udp_echo().await.into();
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let flow = path.open_datagrams(&target, &Terms::default()).await;
        flows.push(flow.expect("open"));
    }
    // The search for the path's packet size is over.
    sleep(Duration::from_secs(1)).await;
    let before = scales.count();
    for flow in &flows {
        flow.send(&[7; 60]).await.expect("sent");
        // Without a wait they would be sent one by one.
        sleep(ms(5)).await;
    }
    let mut buffer = [0; 2000];
    for flow in &flows {
        let received = soon(flow.recv(&mut buffer)).await.expect("answered");
        assert_eq!(buffer[..received.len], [7; 60]);
    }
    let seen = scales.count();
    for way in [0, 1] {
        let packets = seen[way] - before[way];
        // Acknowledgements among them.
        assert!(
            packets <= FLOWS / 2,
            "{packets} packets for {FLOWS} datagrams"
        );
    }
}
