//! Bound UDP: one public address for all targets, whom it hears and whom not, and clients that break the rules.

use std::{net::SocketAddr, ops::ControlFlow, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::ALPN_H2;
use hoplite_http::{DatagramSink, Exchange, Flow, Session, h2};
use hoplite_overlay::Batch;
use hoplite_relay::{Config, Handle};
use hoplite_testing::{
    relay::{metric, number, relay, until_metric},
    soon, targets,
};
use hoplite_wire::{
    RequestHead, ResponseHead, Template,
    bound_udp::{self, Capsule, Malformed, PUBLIC_ADDRESS, split_peer},
    capsule::write_datagram,
    region::FIELD,
};
use parking_lot::Mutex;
use tokio::{
    net::UdpSocket,
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    region::{pool, pools},
    support::{Client, connect, tls_from, udp},
};

/// The context of anybody, as our own client has it.
const ANYBODY: u64 = 2;

fn serving(config: &mut Config) {
    config.bound_udp.enabled = true;
    let addresses = ["127.0.0.1", "::1"];
    config.bound_udp.addresses = addresses.map(|ip| ip.parse().expect("an address")).to_vec();
}

fn bind() -> RequestHead {
    RequestHead::connect_udp("relay", Template::well_known().expand_any()).with_bind()
}

/// The client's end of a flow.
struct Bound {
    flow: Flow,
    addresses: Vec<SocketAddr>,
    received: mpsc::Receiver<(u64, Bytes)>,
    capsules: mpsc::Receiver<Capsule>,
}

struct Inbox {
    datagrams: Mutex<mpsc::Sender<(u64, Bytes)>>,
    capsules: Mutex<mpsc::Sender<Capsule>>,
}

impl DatagramSink for Inbox {
    fn push(&self, _: Bytes) {
        unreachable!("a relay never uses context 0");
    }

    fn push_in(&self, context: u64, content: Bytes) -> bool {
        drop(self.datagrams.lock().try_send((context, content)));
        true
    }

    fn flush(&self) {}

    fn bound_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let sent = self.capsules.lock().try_send(capsule.expect("well formed"));
        sent.expect("room");
        ControlFlow::Continue(())
    }
}

impl Bound {
    fn new(exchange: Exchange, answer: &ResponseHead) -> Self {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("capsule-protocol"), Some(&b"?1"[..]));
        let (datagrams, received) = mpsc::channel(1024);
        let (told, capsules) = mpsc::channel(1024);
        let inbox = Inbox {
            datagrams: Mutex::new(datagrams),
            capsules: Mutex::new(told),
        };
        Self {
            flow: exchange.datagrams(Arc::new(inbox)),
            addresses: answer.bound().expect("addresses"),
            received,
            capsules,
        }
    }

    async fn open(client: &Client) -> Self {
        let (exchange, answer) = client.ask(bind()).await;
        Self::new(Exchange::H3(exchange), &answer)
    }

    /// A flow that anybody may write to.
    async fn open_to_anybody(client: &Client) -> Self {
        let mut bound = Self::open(client).await;
        bound.assign(ANYBODY, None).await;
        bound
    }

    /// Its address of IPv4.
    fn address(&self) -> SocketAddr {
        let v4 = self.addresses.iter().find(|address| address.is_ipv4());
        *v4.expect("an address of IPv4")
    }

    fn say(&self, capsule: &Capsule) {
        assert!(self.flow.send_bound_capsule(capsule));
    }

    async fn told(&mut self) -> Capsule {
        soon(self.capsules.recv()).await.expect("open")
    }

    async fn assign(&mut self, context: u64, peer: Option<SocketAddr>) {
        self.say(&Capsule::Assign { context, peer });
        assert_eq!(self.told().await, Capsule::Ack { context });
    }

    fn send(&self, peer: SocketAddr, payload: &[u8]) {
        let head = bound_udp::head(ANYBODY, Some(peer));
        self.flow.send_behind(&head, Batch::one(payload));
    }

    async fn recv(&mut self) -> (SocketAddr, Bytes) {
        let (context, content) = soon(self.received.recv()).await.expect("open");
        assert_eq!(context, ANYBODY);
        split_peer(content).expect("a peer")
    }

    /// Sends to a target until it answers: UDP may lose.
    async fn ask(&mut self, target: SocketAddr, payload: &[u8]) -> Bytes {
        loop {
            self.send(target, payload);
            let answer = timeout(Duration::from_millis(500), self.received.recv()).await;
            if let Ok(Some((ANYBODY, content))) = answer {
                let (peer, answer) = split_peer(content).expect("a peer");
                assert_eq!(peer, target);
                return answer;
            }
        }
    }

    async fn ends(&self) {
        soon(self.flow.closed()).await.expect_err("broken off");
    }
}

/// Answers with the address that it sees, as a STUN server does.
async fn mirror(at: &str) -> SocketAddr {
    let socket = UdpSocket::bind(at).await.expect("bound");
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut buf = [0; 1500];
        while let Ok((_, from)) = socket.recv_from(&mut buf).await {
            drop(socket.send_to(from.to_string().as_bytes(), from).await);
        }
    });
    address
}

#[tokio::test]
async fn all_targets_see_the_one_address_that_the_client_is_told() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let mirrors = [mirror("127.0.0.1:0").await, mirror("127.0.0.1:0").await];
    for target in mirrors {
        let seen = bound.ask(target, b"who am I?").await;
        assert_eq!(seen, bound.address().to_string().as_bytes());
    }
    let text = relay.metrics().text();
    for line in [
        "hoplite_relay_requests_total{method=\"bound_udp\",outcome=\"ok\"} 1",
        "hoplite_relay_tunnels_open{method=\"bound_udp\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[tokio::test]
async fn each_family_has_its_address() {
    let Ok(socket) = UdpSocket::bind("[::1]:0").await else {
        eprintln!("left out: no IPv6 here");
        return;
    };
    drop(socket);
    let relay = relay(serving);
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    assert_eq!(bound.addresses.len(), 2);
    let v6 = bound.addresses.iter().find(|address| address.is_ipv6());
    let own = *v6.expect("an address of IPv6");
    let target = mirror("[::1]:0").await;
    assert_eq!(bound.ask(target, b"x").await, own.to_string().as_bytes());
}

#[tokio::test]
async fn the_address_is_of_the_region_that_the_client_shows() {
    let relay = relay(|config| {
        serving(config);
        pools(config);
    });
    let client = connect(&relay).await;
    for (shown, prefix) in [
        (Some("DE-BE"), "127.7.1."),
        (Some("DE;zone=Europe/Berlin"), "127.7.2."),
        (Some("FR"), "127.7.3."),
        (None, "127.7.3."),
    ] {
        let head = match shown {
            Some(region) => bind().with(FIELD, region),
            None => bind(),
        };
        let (exchange, answer) = client.ask(head).await;
        let mut bound = Bound::new(Exchange::H3(exchange), &answer);
        bound.assign(ANYBODY, None).await;
        let told = bound.address().to_string();
        assert!(told.starts_with(prefix), "{shown:?}: {told}");
        let seen = bound.ask(mirror("127.0.0.1:0").await, b"who?").await;
        assert_eq!(seen, told.as_bytes(), "{shown:?}");
    }
}

#[tokio::test]
async fn where_no_pool_is_for_the_region_the_address_is_the_relays() {
    let relay = relay(|config| {
        serving(config);
        config.egress.pool = vec![pool(Some("DE"), "127.7.2.0/24")];
    });
    let client = connect(&relay).await;
    let (exchange, answer) = client.ask(bind().with(FIELD, "FR")).await;
    let bound = Bound::new(Exchange::H3(exchange), &answer);
    assert_eq!(bound.address().ip().to_string(), "127.0.0.1");
}

#[tokio::test]
async fn strangers_are_heard_and_answered_where_the_client_wants_anybody() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = stranger.local_addr().expect("bound");
    stranger
        .send_to(b"hello", bound.address())
        .await
        .expect("sent");
    assert_eq!(bound.recv().await, (address, Bytes::from_static(b"hello")));
    let mut buf = [0; 100];
    bound.send(address, b"hello yourself");
    let (len, from) = soon(stranger.recv_from(&mut buf)).await.expect("answered");
    assert_eq!(
        (&buf[..len], from),
        (&b"hello yourself"[..], bound.address())
    );
}

#[tokio::test]
async fn clients_of_two_relays_speak_with_each_other() {
    let relays = [relay(serving), relay(serving)];
    speak_with_each_other([&relays[0], &relays[1]]).await;
}

/// This host is no target of theirs, but for each other.
#[tokio::test]
async fn clients_of_one_relay_speak_with_each_other() {
    let relay = relay(|config| {
        serving(config);
        config.egress.allow.clear();
    });
    speak_with_each_other([&relay, &relay]).await;
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    stranger.send_to(b"x", bound.address()).await.expect("sent");
    bound.send(stranger.local_addr().expect("bound"), b"x");
    let refused = "datagrams_dropped_total{cause=\"policy\"}";
    until_metric(&relay, refused, |dropped| dropped == 2.0).await;
    bound
        .received
        .try_recv()
        .expect_err("nothing of a stranger's");
}

/// The port may be a local program's next, whom no client of this relay may reach.
#[tokio::test]
async fn a_context_for_another_flow_leads_nowhere_once_that_has_ended() {
    let relay = relay(|config| {
        serving(config);
        config.egress.allow.clear();
        config.bound_udp.addresses.truncate(1);
    });
    let clients = [connect(&relay).await, connect(&relay).await];
    let mut first = Bound::open_to_anybody(&clients[0]).await;
    let second = Bound::open_to_anybody(&clients[1]).await;
    let (own, other) = (first.address(), second.address());
    first.assign(4, Some(other)).await;
    drop(second);
    until_metric(&relay, "tunnels_open{method=\"bound_udp\"}", |open| {
        open == 1.0
    })
    .await;
    let local = UdpSocket::bind(other).await.expect("free again");
    first.flow.send_behind(&[4], Batch::one(b"x"));
    local.send_to(b"y", own).await.expect("sent");
    let refused = "datagrams_dropped_total{cause=\"policy\"}";
    until_metric(&relay, refused, |dropped| dropped == 2.0).await;
    local.try_recv_from(&mut [0; 1]).expect_err("nothing came");
    first.received.try_recv().expect_err("nothing came");
}

async fn speak_with_each_other(relays: [&Handle; 2]) {
    let clients = [connect(relays[0]).await, connect(relays[1]).await];
    let mut first = Bound::open_to_anybody(&clients[0]).await;
    let mut second = Bound::open_to_anybody(&clients[1]).await;
    let (one, two) = (first.address(), second.address());
    for _ in 0..3 {
        first.send(two, b"offer");
        assert_eq!(second.recv().await, (one, Bytes::from_static(b"offer")));
        second.send(one, b"answer");
        assert_eq!(first.recv().await, (two, Bytes::from_static(b"answer")));
    }
}

#[tokio::test]
async fn a_context_of_its_own_saves_a_peer_its_address() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let target = targets::udp_echo().await;
    bound.assign(4, Some(target)).await;
    bound.flow.send_behind(&[4], Batch::one(b"x"));
    let echoed = soon(bound.received.recv()).await.expect("open");
    assert_eq!(echoed, (4, Bytes::from_static(b"x")));
    bound.say(&Capsule::Close { context: 4 });
    assert_eq!(
        bound.ask(target, b"x").await,
        &b"x"[..],
        "as of anybody again"
    );
}

#[tokio::test]
async fn whoever_is_not_asked_for_costs_the_client_nothing() {
    let relay = relay(|config| {
        serving(config);
        // A packet and a half.
        config.limits.bandwidth_per_client = 12_000;
    });
    let client = connect(&relay).await;
    let mut bound = Bound::open(&client).await;
    let friend = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    bound
        .assign(4, Some(friend.local_addr().expect("bound")))
        .await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    for _ in 0..50 {
        stranger
            .send_to(&[7; 1200], bound.address())
            .await
            .expect("sent");
    }
    let unasked = "datagrams_dropped_total{cause=\"unasked\"}";
    until_metric(&relay, unasked, |dropped| dropped == 50.0).await;
    friend.send_to(b"x", bound.address()).await.expect("sent");
    let heard = soon(bound.received.recv()).await.expect("open");
    assert_eq!(heard, (4, Bytes::from_static(b"x")));
    bound.received.try_recv().expect_err("nothing else");
    assert_eq!(
        metric(&relay, "datagrams_dropped_total{cause=\"bandwidth\"}"),
        0.0
    );
    assert_eq!(
        metric(&relay, "to_client_bytes_total{method=\"bound_udp\"}"),
        1.0
    );
}

/// A relay whose clients have one payload, and then none for many minutes.
fn throttled() -> Handle {
    relay(|config| {
        serving(config);
        config.limits.bandwidth_per_client = 8;
    })
}

const BEYOND_BANDWIDTH: &str = "datagrams_dropped_total{cause=\"bandwidth\"}";

/// Sends again and again, for UDP may lose, until the relay has dropped some.
async fn until_some_are_dropped(relay: &Handle, send: impl Fn()) {
    let some = async {
        while metric(relay, BEYOND_BANDWIDTH) < 5.0 {
            send();
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon(some).await;
}

#[tokio::test]
async fn what_a_client_sends_beyond_its_bandwidth_goes_nowhere() {
    // One that has nothing in it is a packet, too.
    for (payload, bytes) in [(&[7; 1200][..], 1200.0), (&[], 0.0)] {
        let relay = throttled();
        let client = connect(&relay).await;
        let bound = Bound::open_to_anybody(&client).await;
        let target = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        let address = target.local_addr().expect("bound");
        until_some_are_dropped(&relay, || bound.send(address, payload)).await;
        let mut buf = [0; 1500];
        let heard = soon(target.recv(&mut buf)).await.expect("heard");
        assert_eq!(heard, payload.len());
        target.try_recv(&mut buf).expect_err("no more");
        let passed = metric(&relay, "to_target_bytes_total{method=\"bound_udp\"}");
        assert_eq!(passed, bytes);
    }
}

#[tokio::test]
async fn what_others_send_beyond_the_clients_bandwidth_does_not_come() {
    let relay = throttled();
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let send = || drop(stranger.try_send_to(&[7; 1200], bound.address()));
    until_some_are_dropped(&relay, send).await;
    let (peer, payload) = bound.recv().await;
    assert_eq!(peer, stranger.local_addr().expect("bound"));
    assert_eq!(payload.len(), 1200);
    bound.received.try_recv().expect_err("no more");
    let passed = "to_client_bytes_total{method=\"bound_udp\"}";
    assert_eq!(metric(&relay, passed), 1200.0);
}

#[tokio::test]
async fn what_was_wanted_of_anybody_can_be_unwanted() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let target = targets::udp_echo().await;
    assert_eq!(bound.ask(target, b"x").await, &b"x"[..]);
    bound.say(&Capsule::Close { context: ANYBODY });
    bound.assign(4, Some(target)).await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    stranger.send_to(b"x", bound.address()).await.expect("sent");
    let unasked = "datagrams_dropped_total{cause=\"unasked\"}";
    until_metric(&relay, unasked, |dropped| dropped == 1.0).await;
    bound.flow.send_behind(&[4], Batch::one(b"y"));
    loop {
        // An answer to the first question may be late.
        let (context, content) = soon(bound.received.recv()).await.expect("open");
        if context == 4 {
            assert_eq!(content, &b"y"[..]);
            return;
        }
    }
}

#[tokio::test]
async fn what_the_policy_refuses_is_refused_for_each_datagram_and_each_context() {
    let denied = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = denied.local_addr().expect("bound");
    let relay = relay(|config| {
        serving(config);
        config.egress.deny = vec![address.to_string().parse().expect("a rule")];
    });
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let own = relay.addresses()[0];
    let mapped = format!("[::ffff:127.0.0.1]:{}", address.port());
    let others = ["10.0.0.1:53", "169.254.169.254:80", "127.0.0.1:0", &mapped];
    let others = others.map(|text| text.parse().expect("an address"));
    let refused: Vec<SocketAddr> = [&[address, own][..], &others].concat();
    for (peer, context) in refused.iter().zip((4..).step_by(2)) {
        bound.send(*peer, b"x");
        let peer = Some(*peer);
        bound.say(&Capsule::Assign { context, peer });
        // At an address where flows are, a context tells nothing of who has which port, and leads nowhere.
        let is_at_ours = |peer: SocketAddr| {
            let mut ours = bound.addresses.iter();
            peer.port() != 0 && ours.any(|ours| ours.ip() == peer.ip())
        };
        if peer.is_some_and(is_at_ours) {
            let told = bound.told().await;
            assert!(matches!(told, Capsule::Ack { .. }), "{told:?}");
        } else {
            assert_eq!(bound.told().await, Capsule::Close { context }, "{peer:?}");
        }
    }
    denied.send_to(b"x", bound.address()).await.expect("sent");
    let dropped = "datagrams_dropped_total{cause=\"policy\"}";
    until_metric(&relay, dropped, |dropped| dropped == 7.0).await;
    denied
        .try_recv_from(&mut [0; 1])
        .expect_err("nothing arrived");
    bound.received.try_recv().expect_err("nothing came");
    assert_eq!(bound.ask(targets::udp_echo().await, b"x").await, &b"x"[..]);
}

#[tokio::test]
async fn a_flow_sends_to_so_many_targets_and_no_more() {
    let relay = relay(|config| {
        serving(config);
        config.bound_udp.targets = 2;
    });
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    for _ in 0..2 {
        let target = targets::udp_echo().await;
        assert_eq!(bound.ask(target, b"x").await, &b"x"[..]);
    }
    let third = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = third.local_addr().expect("bound");
    bound.send(address, b"x");
    bound.assign(4, Some(address)).await;
    bound.flow.send_behind(&[4], Batch::one(b"x"));
    let dropped = "datagrams_dropped_total{cause=\"targets\"}";
    until_metric(&relay, dropped, |dropped| dropped == 2.0).await;
    third
        .try_recv_from(&mut [0; 1])
        .expect_err("nothing arrived");
}

#[tokio::test]
async fn contexts_beyond_the_limit_are_refused_one_by_one() {
    let relay = relay(|config| {
        serving(config);
        config.bound_udp.contexts = 2;
    });
    let client = connect(&relay).await;
    let mut bound = Bound::open_to_anybody(&client).await;
    let peer = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
    bound.assign(4, peer(1)).await;
    bound.assign(6, peer(2)).await;
    bound.say(&Capsule::Assign {
        context: 8,
        peer: peer(3),
    });
    assert_eq!(bound.told().await, Capsule::Close { context: 8 });
    bound.say(&Capsule::Close { context: 4 });
    bound.assign(10, peer(3)).await;
}

#[tokio::test]
async fn sockets_count_as_udp_tunnels() {
    let relay = relay(|config| {
        serving(config);
        config.bound_udp.addresses.truncate(1);
        config.limits.udp_tunnels = 2;
    });
    let client = connect(&relay).await;
    let first = Bound::open(&client).await;
    assert_eq!(client.status(bind()).await, 429);
    assert_eq!(client.status(udp(targets::udp_echo().await)).await, 429);
    drop(first);
    until_metric(&relay, "tunnels_open{method=\"bound_udp\"}", |open| {
        open == 0.0
    })
    .await;
    drop(Bound::open(&client).await);
}

#[tokio::test]
async fn it_is_served_where_the_operator_says_so_and_asked_for_whole() {
    let closed = relay(|_| ());
    let client = connect(&closed).await;
    assert_eq!(client.status(bind()).await, 400);
    let relay = relay(serving);
    let client = connect(&relay).await;
    let path = Template::well_known().expand_any();
    assert_eq!(
        client.status(RequestHead::connect_udp("relay", path)).await,
        400,
        "no field"
    );
    for half in ["%2A/53", "127.0.0.1/%2A"] {
        let path = format!("/.well-known/masque/udp/{half}/");
        let head = RequestHead::connect_udp("relay", path).with_bind();
        assert_eq!(client.status(head).await, 400, "{half}");
    }
    let (_, answer) = client.ask(udp(targets::udp_echo().await).with_bind()).await;
    assert_eq!(
        (answer.status, answer.bound()),
        (200, None),
        "a target: served without"
    );
    assert_eq!(answer.header(PUBLIC_ADDRESS), None);
}

#[tokio::test]
async fn whoever_breaks_a_rule_is_broken_off() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let target = targets::udp_echo().await;
    let peer = Some(target);
    let assign = |context, peer| Capsule::Assign { context, peer };
    for (what, capsules) in [
        ("an id of a relay's", vec![assign(3, None)]),
        ("an id twice", vec![assign(4, peer), assign(4, None)]),
        ("anybody twice", vec![assign(4, None), assign(6, None)]),
        ("a peer twice", vec![assign(4, peer), assign(6, peer)]),
        ("an answer to nothing", vec![Capsule::Ack { context: 4 }]),
        ("no id", vec![Capsule::Close { context: 0 }]),
    ] {
        let bound = Bound::open(&client).await;
        capsules.iter().for_each(|capsule| bound.say(capsule));
        timeout(Duration::from_secs(20), bound.ends())
            .await
            .expect(what);
    }
    let bound = Bound::open_to_anybody(&client).await;
    bound.flow.send(Batch::one(b"in context 0"));
    bound.ends().await;
    let mut bound = Bound::open_to_anybody(&client).await;
    bound
        .flow
        .send_behind(&[ANYBODY.to_le_bytes()[0]], Batch::one(b"\x05no peer"));
    bound
        .flow
        .send_behind(&[8], Batch::one(b"a context to come"));
    assert_eq!(bound.ask(target, b"x").await, &b"x"[..], "it goes on");
}

/// HTTP/3 by hand, so that nothing is read: a relay must not keep answers for whoever never takes them.
#[tokio::test]
async fn a_client_that_asks_and_never_reads_is_broken_off() {
    let relay = relay(serving);
    let client = connect(&relay).await;
    let (exchange, answer) = client.ask(bind()).await;
    assert_eq!(answer.status, 200);
    let (mut sender, _receiver) = exchange.split();
    let mut flood = Vec::new();
    for n in 1..2000 {
        Capsule::Assign {
            context: 2 * n,
            peer: None,
        }
        .write(&mut flood);
        Capsule::Close { context: 2 * n }.write(&mut flood);
    }
    let mut sent = 0;
    while sender.write(Bytes::from(flood.clone())).await.is_ok() {
        // The same ids again are a breach of their own.
        sent += flood.len();
        assert!(sent < 1 << 20, "it is broken off");
    }
}

/// A flow over HTTP/2; the relay may send so much before the client reads.
async fn open_over_http_2(relay: &Handle, stream_window: u32) -> (Session, Exchange, ResponseHead) {
    let tls = tls_from(relay, [127, 0, 0, 1].into(), &[ALPN_H2]).await;
    let config = h2::Config {
        stream_window,
        widest_stream_window: stream_window,
        ..h2::Config::default()
    };
    let session = Session::tls_client(tls.expect("connected"), &config).await;
    let session = session.expect("a session");
    let mut exchange = session.request(&bind()).await.expect("sent");
    let answer = soon(exchange.response()).await.expect("answered");
    (session, exchange, answer)
}

/// So many contexts are opened and closed at once: fewer than answers may wait for their turn.
const AT_ONCE: u64 = 100;
/// So often: the answers are several times as many bytes as may wait for a client.
const ROUNDS: u64 = 200;
/// Some answers of a round, and not all.
const SMALL_WINDOW: u32 = 64;

/// The contexts of a round, of which none was there before.
fn contexts_of(round: u64) -> impl Iterator<Item = u64> {
    (1..=AT_ONCE).map(move |n| 2 * (round * AT_ONCE + n))
}

#[tokio::test]
async fn over_http_2_a_client_that_asks_and_reads_is_answered_for_ever() {
    let relay = relay(serving);
    let (_session, exchange, answer) = open_over_http_2(&relay, SMALL_WINDOW).await;
    let mut bound = Bound::new(exchange, &answer);
    for round in 0..ROUNDS {
        for context in contexts_of(round) {
            bound.say(&Capsule::Assign {
                context,
                peer: None,
            });
            bound.say(&Capsule::Close { context });
        }
        for context in contexts_of(round) {
            assert_eq!(bound.told().await, Capsule::Ack { context });
        }
    }
}

/// The relay has taken one round's capsules before the next comes: what waits is answers that the client has no room for.
#[tokio::test]
async fn over_http_2_a_client_that_asks_and_never_reads_is_broken_off() {
    let relay = relay(serving);
    let (_session, exchange, _) = open_over_http_2(&relay, SMALL_WINDOW).await;
    let (mut sender, _receiver) = exchange.split();
    for round in 0..ROUNDS {
        let mut capsules = BytesMut::new();
        for context in contexts_of(round) {
            let peer = None;
            Capsule::Assign { context, peer }.write(&mut capsules);
            // Counted, as it names no peer.
            write_datagram(&mut capsules, &bound_udp::head(context, None), b"");
            Capsule::Close { context }.write(&mut capsules);
        }
        let sent = sender.write(capsules.freeze()).await;
        let taken = (round + 1) * AT_ONCE;
        if sent.is_err() || !takes(&relay, taken).await {
            return;
        }
    }
    unreachable!("it asked {} times", ROUNDS * AT_ONCE);
}

/// Waits until the relay has taken so many datagrams without a peer; false if the flow ends before.
async fn takes(relay: &Handle, datagrams: u64) -> bool {
    let (dropped, open) = (
        "datagrams_dropped_total{cause=\"policy\"}",
        "tunnels_open{method=\"bound_udp\"}",
    );
    let taken = || number(relay, &format!("hoplite_relay_{dropped}")) >= datagrams;
    let ended = async {
        while !taken() && metric(relay, open) > 0.0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    soon(ended).await;
    taken()
}

#[tokio::test]
async fn over_http_2_payloads_travel_in_capsules() {
    let relay = relay(serving);
    let window = h2::Config::default().stream_window;
    let (_session, exchange, answer) = open_over_http_2(&relay, window).await;
    let mut bound = Bound::new(exchange, &answer);
    bound.assign(ANYBODY, None).await;
    let target = mirror("127.0.0.1:0").await;
    let own = bound.address().to_string();
    assert_eq!(bound.ask(target, b"who am I?").await, own.as_bytes());
    bound.say(&Capsule::Ack { context: 4 });
    bound.ends().await;
}
