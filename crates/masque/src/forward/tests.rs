//! The machine against a relay that plays along, one that does not, and any order of events.

mod any;

use std::time::Duration;

use bytes::Bytes;
use hoplite_overlay::End;
use hoplite_wire::forwarding::{Capsule, ConnectionId};
use tokio::time::Instant;

use super::{Action, Below, Machine, Route, machine::Breach};

const OWN: &[u8] = b"client-1";
const TARGET: &[u8] = b"target-1";
const ROOM: usize = 1300;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const BELOW: Below = Below {
    round_trip: ROUND_TRIP,
    drained: true,
};
const MOMENT: Duration = Duration::from_millis(1);

fn long(destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc0, 0, 0, 0, 1];
    for id in [destination, source] {
        packet.push(u8::try_from(id.len()).expect("short"));
        packet.extend(id);
    }
    packet.resize(1200, 7);
    packet
}

fn short(id: &[u8], size: usize) -> Vec<u8> {
    let mut packet = vec![0x40];
    packet.extend(id);
    packet.resize(size, 7);
    packet
}

fn bytes(id: &[u8]) -> Bytes {
    Bytes::copy_from_slice(id)
}

fn id(id: &[u8]) -> ConnectionId {
    ConnectionId::new(id).expect("not too long")
}

/// A machine and its clock. Whatever shall be admitted is.
struct Flow {
    machine: Machine,
    now: Instant,
}

impl Flow {
    fn new() -> Self {
        Self {
            machine: Machine::new(16),
            now: Instant::now(),
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn send(&mut self, packet: &[u8]) -> Route {
        self.machine.turn(BELOW, self.now);
        self.machine.route(packet, ROOM, self.now)
    }

    /// A packet that follows another closely.
    fn send_soon(&mut self, packet: &[u8]) -> Route {
        self.wait(MOMENT);
        self.send(packet)
    }

    fn told(&mut self, capsule: &Capsule) {
        self.machine.capsule(capsule, self.now).expect("allowed");
    }

    /// What it wants done; aliases are admitted.
    fn actions(&mut self) -> Vec<Action> {
        let mut all = Vec::new();
        while let Some(action) = self.machine.poll_action() {
            if let Action::Admit { alias, .. } = action {
                self.machine.admitted(alias, true, self.now);
            }
            all.push(action);
        }
        all
    }

    fn sent(&mut self) -> Vec<Capsule> {
        let capsule = |action| match action {
            Action::Send(capsule) => Some(capsule),
            _ => None,
        };
        self.actions().into_iter().filter_map(capsule).collect()
    }

    fn handshake(&mut self) {
        self.send(&long(b"any", OWN));
        self.wait(ROUND_TRIP);
        self.machine.received(&long(OWN, TARGET), self.now);
        self.machine.start();
    }

    /// Both ids are acknowledged.
    fn agree(&mut self) {
        self.told(&ack_client(OWN, b"virtual-c"));
        self.told(&ack_target(TARGET, b"virtual-t"));
        drop(self.actions());
    }

    fn established() -> Self {
        let mut flow = Self::new();
        flow.handshake();
        flow.agree();
        flow
    }
}

fn register_client(id: &[u8]) -> Capsule {
    Capsule::RegisterClientCid { id: bytes(id) }
}

fn register_target(id: &[u8]) -> Capsule {
    Capsule::RegisterTargetCid {
        id: bytes(id),
        reset_token: Bytes::new(),
    }
}

fn ack_client(id: &[u8], alias: &[u8]) -> Capsule {
    Capsule::AckClientCid {
        id: bytes(id),
        virtual_id: bytes(alias),
    }
}

fn ack_target(id: &[u8], alias: &[u8]) -> Capsule {
    Capsule::AckTargetCid {
        id: bytes(id),
        virtual_id: bytes(alias),
        reset_token: Bytes::new(),
    }
}

fn close_target(id: &[u8]) -> Capsule {
    Capsule::CloseTargetCid { id: bytes(id) }
}

fn close_client(id: &[u8]) -> Capsule {
    Capsule::CloseClientCid { id: bytes(id) }
}

fn forwarded(alias: &[u8]) -> Route {
    Route::Forwarded {
        id_len: 8,
        alias: id(alias),
    }
}

#[test]
fn the_ids_of_a_handshake_are_registered_as_they_are_seen() {
    let mut flow = Flow::new();
    assert_eq!(flow.send(&long(b"any", OWN)), Route::Tunnelled);
    assert_eq!(flow.sent(), [register_client(OWN)]);
    flow.machine.received(&long(OWN, TARGET), flow.now);
    assert_eq!(flow.sent(), [register_target(TARGET)]);
}

#[test]
fn an_answer_to_somebody_else_is_not_believed() {
    let mut flow = Flow::new();
    flow.send(&long(b"any", OWN));
    flow.machine.received(&long(b"other", TARGET), flow.now);
    assert_eq!(flow.sent(), [register_client(OWN)]);
}

#[test]
fn an_alias_is_acknowledged_when_it_is_recognised_and_not_before() {
    let mut flow = Flow::new();
    flow.handshake();
    drop(flow.actions());
    flow.told(&ack_client(OWN, b"virtual-c"));
    let admit = Action::Admit {
        id: id(OWN),
        alias: id(b"virtual-c"),
    };
    assert_eq!(flow.machine.poll_action(), Some(admit));
    assert_eq!(flow.machine.poll_action(), None);
    flow.machine.admitted(id(b"virtual-c"), true, flow.now);
    let acknowledged = Capsule::AckClientVcid {
        id: bytes(OWN),
        virtual_id: bytes(b"virtual-c"),
        reset_token: Bytes::new(),
    };
    assert_eq!(flow.sent(), [acknowledged]);
}

#[test]
fn short_headers_are_forwarded_once_the_target_id_is_acknowledged() {
    let mut flow = Flow::new();
    flow.handshake();
    assert_eq!(flow.send_soon(&short(TARGET, 100)), Route::Tunnelled);
    flow.agree();
    let route = flow.send_soon(&short(TARGET, 100));
    assert_eq!(route, forwarded(b"virtual-t"));
    let other = short(b"target-2", 100);
    assert_eq!(flow.send_soon(&other), Route::Tunnelled);
    assert_eq!(flow.send_soon(&long(TARGET, OWN)), Route::Tunnelled);
}

#[test]
fn the_first_packet_after_silence_is_tunnelled_if_it_fits() {
    let mut flow = Flow::established();
    flow.wait(Duration::from_secs(9));
    assert_eq!(flow.send(&short(TARGET, ROOM)), Route::Tunnelled);
    let next = flow.send_soon(&short(TARGET, ROOM));
    assert_eq!(next, forwarded(b"virtual-t"));
    flow.wait(Duration::from_secs(9));
    let large = flow.send(&short(TARGET, ROOM + 1));
    assert_eq!(large, forwarded(b"virtual-t"));
}

#[test]
fn more_ids_are_registered_when_the_relay_allows_more() {
    let mut flow = Flow::established();
    flow.machine
        .announce(End::Target, id(b"inner-t1"), flow.now);
    flow.machine
        .announce(End::Client, id(b"inner-c1"), flow.now);
    assert_eq!(flow.sent(), []);
    flow.told(&Capsule::MaxConnectionIds { sequence: 2 });
    assert_eq!(flow.sent(), [register_target(b"inner-t1")]);
    flow.told(&Capsule::MaxConnectionIds { sequence: 1 });
    assert_eq!(flow.sent(), []);
    flow.told(&Capsule::MaxConnectionIds { sequence: 7 });
    assert_eq!(flow.sent(), [register_client(b"inner-c1")]);
}

#[test]
fn what_is_withdrawn_is_closed() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 7 });
    flow.machine
        .announce(End::Target, id(b"inner-t1"), flow.now);
    flow.machine.withdraw(End::Target, id(b"inner-t1"));
    let expected = [register_target(b"inner-t1"), close_target(b"inner-t1")];
    assert_eq!(flow.sent(), expected);
    flow.told(&ack_target(b"inner-t1", b"virtual-2"));
    let route = flow.send_soon(&short(b"inner-t1", 100));
    assert_eq!(route, Route::Tunnelled);
}

#[test]
fn a_rule_that_the_relay_closes_is_asked_for_again_later_each_time() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    let mut pause = Duration::from_millis(100);
    for round in 0..3 {
        flow.told(&close_target(TARGET));
        drop(flow.actions());
        let route = flow.send_soon(&short(TARGET, 100));
        assert_eq!((round, route), (round, Route::Tunnelled));
        flow.wait(pause - 3 * MOMENT);
        flow.send_soon(&short(TARGET, 100));
        assert_eq!(flow.sent(), []);
        flow.wait(2 * MOMENT);
        flow.send_soon(&short(TARGET, 100));
        assert_eq!(flow.sent(), [register_target(TARGET)]);
        flow.told(&ack_target(TARGET, &[9, 9, 9, round]));
        drop(flow.actions());
        let route = flow.send_soon(&short(TARGET, 100));
        assert_eq!(route, forwarded(&[9, 9, 9, round]));
        pause *= 4;
    }
}

#[test]
fn an_id_that_is_refused_again_and_again_is_given_up() {
    let mut flow = Flow::new();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    flow.handshake();
    let mut asked = 0;
    for _ in 0..100 {
        asked += flow.sent().contains(&register_target(TARGET)) as u32;
        flow.told(&close_target(TARGET));
        flow.wait(Duration::from_secs(100));
        flow.send(&short(TARGET, 100));
    }
    assert_eq!(asked, 9);
}

/// For how long packets that follow each other closely go the same way, at most ten seconds.
fn lasts(flow: &mut Flow, way: Route) -> Duration {
    let start = flow.now;
    let ways = (0..10_000).map(|_| flow.send_soon(&short(TARGET, 40)));
    let same = ways.take_while(|now| *now == way).count();
    assert!(same < 10_000, "for ever");
    flow.now - start
}

#[test]
fn packets_stay_in_the_tunnel_until_those_before_them_have_left_it() {
    let mut flow = Flow::established();
    let waits = Below {
        drained: false,
        ..BELOW
    };
    let mut send = |tunnel, after| {
        flow.wait(after);
        flow.machine.turn(tunnel, flow.now);
        flow.machine.route(&short(TARGET, 40), ROOM, flow.now)
    };
    for _ in 0..3 {
        assert_eq!(send(waits, MOMENT), Route::Tunnelled);
    }
    assert_eq!(send(BELOW, MOMENT), forwarded(b"virtual-t"));
    assert_eq!(
        send(waits, MOMENT),
        forwarded(b"virtual-t"),
        "once is enough"
    );
}

#[test]
fn a_tunnel_that_never_drains_holds_packets_back_for_a_quarter_of_a_second() {
    let mut flow = Flow::established();
    let waits = Below {
        drained: false,
        ..BELOW
    };
    flow.send_soon(&long(b"any", OWN));
    let start = flow.now;
    loop {
        flow.wait(MOMENT);
        flow.machine.turn(waits, flow.now);
        if flow.machine.route(&short(TARGET, 40), ROOM, flow.now) != Route::Tunnelled {
            break;
        }
    }
    assert!(flow.now - start <= Duration::from_millis(250));
    assert!(flow.now - start > Duration::from_millis(200));
}

/// The download of a client that only acknowledges: nothing is acknowledged to it.
#[test]
fn a_relay_that_swallows_what_is_forwarded_is_left_after_a_second() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    let time = lasts(&mut flow, forwarded(b"virtual-t"));
    assert_eq!(time, Duration::from_secs(1) + 2 * MOMENT);
    assert_eq!(flow.sent(), [close_client(OWN), close_target(TARGET)]);
}

#[test]
fn a_relay_that_swallowed_is_tried_again_after_a_pause_that_grows() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    for pause in [10, 40, 160, 600, 600] {
        lasts(&mut flow, forwarded(b"virtual-t"));
        drop(flow.actions());
        flow.wait(Duration::from_secs(pause) - MOMENT);
        flow.machine.turn(BELOW, flow.now);
        assert_eq!(flow.sent(), []);
        flow.wait(MOMENT);
        flow.machine.turn(BELOW, flow.now);
        assert_eq!(flow.sent(), [register_client(OWN), register_target(TARGET)]);
        flow.told(&ack_target(TARGET, b"virtual-t"));
        drop(flow.actions());
        assert_eq!(flow.send(&short(TARGET, 40)), Route::Tunnelled);
    }
}

/// Hardly anything is sent, so that the machine itself cannot tell: the link above waits for an answer.
#[test]
fn a_flow_under_suspicion_is_tunnelled_for_a_while() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    assert_eq!(flow.send_soon(&short(TARGET, 40)), forwarded(b"virtual-t"));
    assert!(flow.machine.suspect(flow.now));
    assert_eq!(flow.sent(), [close_client(OWN), close_target(TARGET)]);
    assert_eq!(flow.send_soon(&short(TARGET, 40)), Route::Tunnelled);
    assert!(!flow.machine.suspect(flow.now), "nothing is forwarded");
    flow.wait(Duration::from_secs(10));
    flow.machine.turn(BELOW, flow.now);
    assert_eq!(flow.sent(), [register_client(OWN), register_target(TARGET)]);
}

/// An upload: the packet after silence arrives and is answered, the burst that follows is not.
#[test]
fn a_relay_that_swallows_bursts_is_left_after_the_third() {
    let mut flow = Flow::established();
    let mut burst = || {
        flow.wait(Duration::from_millis(300));
        assert_eq!(flow.send(&short(TARGET, 1200)), Route::Tunnelled);
        flow.machine.received(&short(OWN, 40), flow.now);
        let route = flow.send_soon(&short(TARGET, 1200));
        flow.send_soon(&short(TARGET, 1200));
        route
    };
    let routes: Vec<_> = (0..4).map(|_| burst()).collect();
    let way = forwarded(b"virtual-t");
    assert_eq!(routes, [way, way, way, Route::Tunnelled]);
}

#[test]
fn a_target_id_without_an_alias_is_tunnelled() {
    let mut flow = Flow::new();
    flow.handshake();
    flow.told(&ack_target(TARGET, b""));
    drop(flow.actions());
    assert_eq!(flow.send_soon(&short(TARGET, 100)), Route::Tunnelled);
}

#[test]
fn a_flow_that_is_answered_now_and_then_stays_forwarded() {
    let mut flow = Flow::established();
    for round in 0..5000 {
        let route = flow.send_soon(&short(TARGET, 1200));
        assert_eq!(route, forwarded(b"virtual-t"), "round {round}");
        if round % 900 == 0 {
            flow.machine.heard(id(OWN), flow.now);
        }
    }
}

#[test]
fn a_link_that_moves_gets_new_aliases() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 7 });
    flow.machine.moved(flow.now);
    assert_eq!(flow.send_soon(&short(TARGET, 100)), Route::Tunnelled);
    let expected = [
        close_client(OWN),
        close_target(TARGET),
        register_client(OWN),
        register_target(TARGET),
    ];
    assert_eq!(flow.sent(), expected);
    flow.told(&ack_target(TARGET, b"new-t"));
    drop(flow.actions());
    let route = flow.send_soon(&short(TARGET, 100));
    assert_eq!(route, forwarded(b"new-t"));
}

#[test]
fn an_acknowledgement_that_crosses_a_move_is_not_taken_for_the_new_one() {
    let mut flow = Flow::new();
    flow.told(&Capsule::MaxConnectionIds { sequence: 7 });
    flow.handshake();
    flow.machine.moved(flow.now);
    drop(flow.actions());
    flow.told(&ack_target(TARGET, b"old-t"));
    assert_eq!(flow.send_soon(&short(TARGET, 100)), Route::Tunnelled);
    flow.told(&ack_target(TARGET, b"new-t"));
    let route = flow.send_soon(&short(TARGET, 100));
    assert_eq!(route, forwarded(b"new-t"));
    flow.told(&ack_target(TARGET, b"unasked"));
    let route = flow.send_soon(&short(TARGET, 100));
    assert_eq!(route, forwarded(b"new-t"));
}

#[test]
fn a_connection_whose_handshake_passed_elsewhere_is_learned_from_what_repeats() {
    let mut flow = Flow::new();
    flow.machine.carries_quic();
    for _ in 0..4 {
        assert_eq!(flow.sent(), []);
        flow.send_soon(&short(TARGET, 100));
    }
    assert_eq!(flow.sent(), [register_target(TARGET)]);
    for _ in 0..4 {
        assert_eq!(flow.sent(), []);
        flow.machine.received(&short(OWN, 100), flow.now);
    }
    assert_eq!(flow.sent(), [register_client(OWN)]);
}

#[test]
fn an_id_that_rests_gives_its_place_to_one_that_is_used_and_takes_it_back() {
    let mut flow = Flow::established();
    flow.wait(Duration::from_millis(998));
    flow.machine.heard(id(OWN), flow.now);
    flow.machine
        .announce(End::Target, id(b"inner-t1"), flow.now);
    assert_eq!(flow.sent(), [], "all are in use");
    flow.send_soon(&short(b"inner-t1", 100));
    assert_eq!(flow.sent(), []);
    flow.send_soon(&short(b"inner-t1", 100));
    assert_eq!(flow.sent(), [close_target(TARGET)]);
    flow.told(&Capsule::MaxConnectionIds { sequence: 2 });
    assert_eq!(flow.sent(), [register_target(b"inner-t1")]);
    flow.told(&ack_target(b"inner-t1", b"virtual-2"));
    flow.wait(Duration::from_secs(2));
    flow.send(&short(TARGET, 100));
    flow.send_soon(&short(TARGET, 100));
    assert_eq!(flow.sent(), [close_client(OWN)]);
    flow.told(&Capsule::MaxConnectionIds { sequence: 3 });
    assert_eq!(flow.sent(), [register_target(TARGET)]);
}

#[test]
fn an_id_that_takes_the_place_of_another_gets_its_place() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 2 });
    flow.wait(MOMENT);
    for _ in 0..4 {
        flow.machine.received(&short(b"client-2", 40), flow.now);
    }
    assert_eq!(
        flow.sent(),
        [close_client(OWN), register_client(b"client-2")]
    );
}

#[test]
fn an_id_that_is_in_use_keeps_its_place_beside_another() {
    let mut flow = Flow::established();
    flow.told(&Capsule::MaxConnectionIds { sequence: 2 });
    for _ in 0..4 {
        flow.wait(MOMENT);
        flow.machine.received(&short(b"client-2", 40), flow.now);
        flow.machine.heard(id(OWN), flow.now);
    }
    assert_eq!(flow.sent(), [register_client(b"client-2")]);
}

#[test]
fn what_is_not_quic_is_never_registered() {
    let mut flow = Flow::new();
    for _ in 0..100 {
        flow.send_soon(&short(TARGET, 100));
        flow.send_soon(&[0x80; 12]);
        flow.machine.received(&short(OWN, 100), flow.now);
    }
    assert_eq!(flow.sent(), []);
}

#[test]
fn aliases_that_cannot_be_told_apart_are_refused() {
    for wrong in [&b"short"[..], b"", &[7; 21], b"virtual-c"] {
        let mut flow = Flow::established();
        flow.told(&Capsule::MaxConnectionIds { sequence: 7 });
        flow.machine
            .announce(End::Client, id(b"inner-c1"), flow.now);
        drop(flow.actions());
        flow.told(&ack_client(b"inner-c1", wrong));
        assert_eq!(flow.sent(), [close_client(b"inner-c1")], "{wrong:?}");
    }
}

#[test]
fn capsules_that_only_a_client_sends_break_the_flow() {
    let mut flow = Flow::established();
    let zero = Capsule::MaxConnectionIds { sequence: 0 };
    for capsule in [register_client(OWN), register_target(TARGET), zero] {
        let answer = flow.machine.capsule(&capsule, flow.now);
        assert_eq!(answer, Err(Breach), "{capsule:?}");
    }
}

#[test]
fn the_end_takes_back_what_others_were_told() {
    let mut flow = Flow::established();
    flow.machine.close();
    let expected = [
        Action::Release(End::Client, id(b"virtual-c")),
        Action::Release(End::Target, id(b"virtual-t")),
    ];
    assert_eq!(flow.actions(), expected);
}

#[test]
fn ids_that_are_seen_are_bounded_and_the_oldest_leaves() {
    let mut flow = Flow::new();
    flow.told(&Capsule::MaxConnectionIds { sequence: 99 });
    for n in 0..5 {
        flow.wait(MOMENT);
        flow.send(&long(b"any", &[n; 8]));
    }
    let last = flow.sent().split_off(4);
    assert_eq!(last, [close_client(&[0; 8]), register_client(&[4; 8])]);
}

#[test]
fn forwarded_packets_are_not_let_overtake_the_handshake() {
    let mut flow = Flow::new();
    flow.send(&long(b"any", OWN));
    flow.told(&ack_client(OWN, b"virtual-c"));
    assert!(
        !flow
            .actions()
            .iter()
            .any(|action| matches!(action, Action::Admit { .. }))
    );
    flow.wait(ROUND_TRIP);
    flow.machine.received(&long(OWN, TARGET), flow.now);
    flow.send(&short(TARGET, 100));
    let (own, alias) = (id(OWN), id(b"virtual-c"));
    assert!(flow.actions().contains(&Action::Admit { id: own, alias }));
}

#[test]
fn what_is_sent_right_after_the_handshake_does_not_overtake_its_end() {
    let mut flow = Flow::established();
    flow.send_soon(&long(TARGET, OWN));
    assert_eq!(flow.send_soon(&short(TARGET, 100)), Route::Tunnelled);
    flow.wait(ROUND_TRIP);
    let now = flow.send_soon(&short(TARGET, 100));
    assert!(matches!(now, Route::Forwarded { .. }), "{now:?}");
}
