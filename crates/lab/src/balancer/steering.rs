//! Which relay a packet goes to, and which a new connection: the decision alone, without sockets and clock.
//! draft-ietf-quic-load-balancers-21, §3 (configurations) and §4 (unroutable ids, the fallback algorithm); RFC 8999 §5 (where ids stand).
//!
//! A packet with an id that a relay made goes to that relay, wherever the packet comes from. What a client begins with has an id of the client's own,
//! which is *unroutable*: it goes to a relay that is ready, by a hash of the client's address and port, and so does what follows it from there until
//! the client has a relay's id. Hence the table of flows, one for each client and relay: it holds the socket that the relay sees the client at, and
//! where the unroutable packets of a client went.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    time::{Duration, Instant},
};

use hoplite_crypto::RoutableIds;
use hoplite_wire::forwarding::{is_short, long_header_ids};

/// How often a flow that is used moves to the end of the order in which flows give way.
const TOUCH: Duration = Duration::from_secs(1);

/// What a relay takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Everything.
    Ready,
    /// What it has; nothing new.
    Draining,
    /// Nothing.
    Dead,
}

/// What a relay said when it was asked whether it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Yes.
    Ready,
    /// Anything else.
    NotReady,
    /// Nothing, in time.
    Silence,
}

/// A flow, by the order in which flows began. None has the number of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowId(u64);

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steered {
    /// Which relay, by its place.
    pub(crate) relay: usize,
    /// Its client's flow to that relay; it may be new.
    pub(crate) flow: FlowId,
    /// What gave way to it.
    pub(crate) displaced: Option<FlowId>,
}

/// Why a packet goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Too short to have an id.
    Malformed,
    /// "Load balancers SHOULD drop short header packets with unroutable DCIDs": no relay made the id, or that relay is dead.
    Unroutable,
    /// It may go to any relay that is ready, and none is.
    NoRelay,
}

/// A relay, as it is written in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its number, as its ids say it.
    pub(crate) id: Vec<u8>,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Flows at a time, at least one; for one more, one that only had unroutable packets gives way, of these the one that was used last the longest ago;
    /// where there is none, the one of all others.
    pub(crate) flows: usize,
    /// After how long without a packet from the client a flow ends.
    pub(crate) idle: Duration,
    /// After how many silences in a row a relay counts as dead, at least one.
    pub(crate) silences: u32,
}

/// What is known of the fleet and of its clients.
pub(crate) struct Steering {
    /// The configurations that are in force.
    ids: Vec<RoutableIds>,
    places: HashMap<Vec<u8>, usize>,
    relays: Vec<Relay>,
    bounds: Bounds,
    flows: HashMap<Ends, Flow>,
    /// Which relay has a client's unroutable packets. There is a flow for each.
    fallbacks: HashMap<SocketAddr, usize>,
    /// Who gives way first.
    order: BTreeMap<Turn, Ends>,
    next: u64,
    /// Keyed at random: who sends cannot choose where to.
    hasher: RandomState,
}

/// A client and a relay.
type Ends = (SocketAddr, usize);

#[derive(Debug)]
struct Relay {
    health: Health,
    silences: u32,
    /// Open connections over TCP.
    connections: usize,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    id: FlowId,
    turn: Turn,
}

/// When a flow gives way: those that carried an id of a relay go last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    routable: bool,
    used: Instant,
    id: FlowId,
}

impl Steering {
    /// Nobody is known to be ready yet.
    pub(crate) fn new(ids: Vec<RoutableIds>, servers: Vec<Server>, bounds: Bounds) -> Self {
        let unknown = |_: &Server| Relay {
            health: Health::Draining,
            silences: 0,
            connections: 0,
        };
        let relays = servers.iter().map(unknown).collect();
        let numbered = servers.into_iter().zip(0..);
        Self {
            ids,
            places: numbered.map(|(server, place)| (server.id, place)).collect(),
            relays,
            bounds,
            flows: HashMap::new(),
            fallbacks: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            hasher: RandomState::new(),
        }
    }

    /// Where a UDP payload from `client` goes.
    ///
    /// # Errors
    /// Why it goes nowhere.
    pub(crate) fn steer(
        &mut self,
        now: Instant,
        client: SocketAddr,
        packet: &[u8],
    ) -> Result<Steered, Dropped> {
        let (relay, routable) = match self.relay_of(packet) {
            Ok(relay) => (relay, true),
            Err(Dropped::Unroutable) if !is_short(packet) => (self.fallback(client)?, false),
            Err(dropped) => return Err(dropped),
        };
        Ok(self.touch(now, (client, relay), routable))
    }

    /// The relay that made a packet's destination id, unless it is dead.
    fn relay_of(&self, packet: &[u8]) -> Result<usize, Dropped> {
        let id = if is_short(packet) {
            packet.get(1..)
        } else {
            long_header_ids(packet).map(|ids| ids.destination)
        };
        let id = id.ok_or(Dropped::Malformed)?;
        let whose = self.ids.iter().find_map(|ids| ids.open(id));
        let place = whose.and_then(|whose| self.places.get(whose.as_bytes()).copied());
        let alive = |place: &usize| self.health(*place) != Health::Dead;
        place.filter(alive).ok_or(Dropped::Unroutable)
    }

    /// Where an unroutable packet goes: where those before it went, as long as that relay takes something new.
    fn fallback(&mut self, client: SocketAddr) -> Result<usize, Dropped> {
        let before = self.fallbacks.get(&client).copied();
        let ready = |place: &usize| self.health(*place) == Health::Ready;
        if let Some(place) = before.filter(ready) {
            return Ok(place);
        }
        let all = (0..self.relays.len()).filter(ready);
        let chosen = all.max_by_key(|place| self.weight(client, *place));
        let chosen = chosen.ok_or(Dropped::NoRelay)?;
        self.fallbacks.insert(client, chosen);
        Ok(chosen)
    }

    /// Rendezvous hashing: when a relay comes or goes, only its own clients change.
    fn weight(&self, client: SocketAddr, place: usize) -> u64 {
        self.hasher.hash_one((client, place))
    }

    /// The flow between these ends, used now; a new one if there is none.
    fn touch(&mut self, now: Instant, ends: Ends, routable: bool) -> Steered {
        let steered = |flow, displaced| Steered {
            relay: ends.1,
            flow,
            displaced,
        };
        if let Some(flow) = self.flows.get_mut(&ends) {
            let proven = routable && !flow.turn.routable;
            if proven || now.saturating_duration_since(flow.turn.used) >= TOUCH {
                self.order.remove(&flow.turn);
                flow.turn.routable |= routable;
                flow.turn.used = now;
                self.order.insert(flow.turn, ends);
            }
            return steered(flow.id, None);
        }
        let full = self.flows.len() >= self.bounds.flows.max(1);
        let first = self.order.first_key_value().filter(|_| full);
        let first = first.map(|(_, ends)| *ends);
        let displaced = first.and_then(|first| self.remove(first));
        let id = FlowId(self.next);
        self.next += 1;
        let turn = Turn {
            routable,
            used: now,
            id,
        };
        self.flows.insert(ends, Flow { id, turn });
        self.order.insert(turn, ends);
        steered(id, displaced)
    }

    fn remove(&mut self, ends: Ends) -> Option<FlowId> {
        let flow = self.flows.remove(&ends)?;
        self.order.remove(&flow.turn);
        if self.fallbacks.get(&ends.0) == Some(&ends.1) {
            self.fallbacks.remove(&ends.0);
        }
        Some(flow.id)
    }

    /// Ends the flows that nobody has used for long.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<FlowId> {
        let idle = self.bounds.idle;
        let old = |turn: &Turn| now.saturating_duration_since(turn.used) >= idle;
        let gone: Vec<Ends> = self
            .order
            .iter()
            .filter_map(|(turn, ends)| old(turn).then_some(*ends))
            .collect();
        gone.into_iter()
            .filter_map(|ends| self.remove(ends))
            .collect()
    }

    /// The relay for a new TCP connection: of those that are ready and not among `tried`, the one with the fewest.
    pub(crate) fn choose(&self, client: SocketAddr, tried: &[usize]) -> Option<usize> {
        let all = self.relays.iter().enumerate();
        all.filter(|(place, relay)| relay.health == Health::Ready && !tried.contains(place))
            .min_by_key(|(place, relay)| (relay.connections, self.weight(client, *place)))
            .map(|(place, _)| place)
    }

    /// A TCP connection to a relay has begun.
    pub(crate) fn opened(&mut self, place: usize) {
        if let Some(relay) = self.relays.get_mut(place) {
            relay.connections += 1;
        }
    }

    /// One has ended.
    pub(crate) fn closed(&mut self, place: usize) {
        if let Some(relay) = self.relays.get_mut(place) {
            relay.connections = relay.connections.saturating_sub(1);
        }
    }

    /// What a relay said of itself. Returns what it takes from now on, if that has changed.
    pub(crate) fn heard(&mut self, place: usize, answer: Answer) -> Option<Health> {
        let relay = self.relays.get_mut(place)?;
        relay.silences = match answer {
            Answer::Silence => relay.silences.saturating_add(1),
            _ => 0,
        };
        let health = match answer {
            Answer::Ready => Health::Ready,
            Answer::NotReady => Health::Draining,
            Answer::Silence if relay.silences >= self.bounds.silences => Health::Dead,
            Answer::Silence => relay.health,
        };
        let before = std::mem::replace(&mut relay.health, health);
        (before != health).then_some(health)
    }

    fn health(&self, place: usize) -> Health {
        self.relays
            .get(place)
            .map_or(Health::Dead, |relay| relay.health)
    }
}

/// Who is connected to whom is nobody's business.
impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering")
            .field("relays", &self.relays)
            .field("flows", &self.flows.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The key of the draft's vectors (Appendix B).
    const KEY: [u8; 16] = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();

    const BOUNDS: Bounds = Bounds {
        flows: 100,
        idle: Duration::from_secs(60),
        silences: 2,
    };

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn ids(config: u8) -> RoutableIds {
        RoutableIds::new(config, 2, 5, &KEY).expect("ids")
    }

    /// Relays 1, 2, … of configurations 0 and 3, all of them ready.
    fn fleet(relays: u8, bounds: Bounds) -> Steering {
        let servers = (1..=relays).map(|number| Server {
            id: vec![0, number],
        });
        let mut steering = Steering::new(vec![ids(0), ids(3)], servers.collect(), bounds);
        for place in 0..usize::from(relays) {
            assert_eq!(steering.heard(place, Answer::Ready), Some(Health::Ready));
        }
        steering
    }

    /// An id of a relay, by its number.
    fn id(config: u8, relay: u8, nonce: u8) -> Vec<u8> {
        let sealed = ids(config).seal(&[0, relay], &[nonce; 5]).expect("sealed");
        sealed.as_bytes().to_vec()
    }

    fn short(id: &[u8]) -> Vec<u8> {
        [&[0x40], id, &[9; 20]].concat()
    }

    fn long(id: &[u8]) -> Vec<u8> {
        let length = u8::try_from(id.len()).expect("an id");
        [&[0xc0, 0, 0, 0, 1, length], id, &[0], &[9; 20]].concat()
    }

    /// One of a client's own, of no configuration that is in force.
    fn own(seed: u8) -> Vec<u8> {
        vec![0xe7 | seed << 5, 1, 2, 3, 4, 5, 6, seed]
    }

    /// Appendix B.2, the first.
    #[test]
    fn the_drafts_vector_is_routed_to_its_server() {
        let ids = RoutableIds::new(0, 3, 4, &KEY).expect("ids");
        let servers = [[1, 2, 3], [0xed, 0x79, 0x3a]].map(|id| Server { id: id.to_vec() });
        let mut steering = Steering::new(vec![ids], servers.to_vec(), BOUNDS);
        let id = 0x0720_b1d0_7b35_9d3c_u64.to_be_bytes();
        for packet in [short(&id), long(&id)] {
            let steered = steering.steer(Instant::now(), client(1), &packet);
            assert_eq!(steered.expect("routed").relay, 1);
        }
    }

    #[test]
    fn an_id_leads_to_its_relay_from_every_address_and_in_every_configuration_in_force() {
        let (mut steering, now) = (fleet(3, BOUNDS), Instant::now());
        for config in [0, 3] {
            for relay in 1..=3 {
                for port in 1..20 {
                    for packet in [short(&id(config, relay, 7)), long(&id(config, relay, 8))] {
                        let steered = steering.steer(now, client(port), &packet);
                        assert_eq!(steered.expect("routed").relay, usize::from(relay) - 1);
                    }
                }
            }
        }
        let other = steering.steer(now, client(1), &short(&id(1, 1, 7)));
        assert_eq!(other, Err(Dropped::Unroutable));
    }

    #[test]
    fn a_client_that_moves_has_another_flow_to_the_same_relay() {
        let (mut steering, now) = (fleet(3, BOUNDS), Instant::now());
        let first = steering.steer(now, client(1), &short(&id(0, 2, 1)));
        let moved = steering.steer(now, client(2), &short(&id(0, 2, 2)));
        let (first, moved) = (first.expect("routed"), moved.expect("routed"));
        assert_eq!((first.relay, moved.relay), (1, 1));
        assert_ne!(first.flow, moved.flow);
        let again = steering.steer(now, client(1), &short(&id(0, 2, 3)));
        assert_eq!(again.expect("routed").flow, first.flow);
    }

    #[test]
    fn what_clients_begin_with_is_spread_over_relays_that_are_ready() {
        let (mut steering, now) = (fleet(3, BOUNDS), Instant::now());
        let places = |steering: &mut Steering, ports: std::ops::Range<u16>| -> HashSet<usize> {
            ports
                .map(|port| steering.steer(now, client(port), &long(&own(0))))
                .map(|steered| steered.expect("routed").relay)
                .collect()
        };
        assert_eq!(places(&mut steering, 0..100), HashSet::from([0, 1, 2]));
        steering.heard(1, Answer::NotReady);
        assert_eq!(places(&mut steering, 200..300), HashSet::from([0, 2]));
    }

    #[test]
    fn what_follows_from_a_client_goes_where_its_first_packet_went() {
        let (mut steering, now) = (fleet(3, BOUNDS), Instant::now());
        for port in 0..50 {
            let steered = |steering: &mut Steering, seed| {
                let steered = steering.steer(now, client(port), &long(&own(seed)));
                steered.expect("routed").relay
            };
            let first = steered(&mut steering, 0);
            // Relays come and go meanwhile.
            let other = (first + 1) % 3;
            steering.heard(other, Answer::NotReady);
            assert_eq!(steered(&mut steering, 0), first);
            steering.heard(other, Answer::Ready);
            assert_eq!(steered(&mut steering, 0), first);
            // Its relay drains: it begins anew elsewhere.
            steering.heard(first, Answer::NotReady);
            let second = steered(&mut steering, 0);
            assert_ne!(second, first);
            steering.heard(first, Answer::Ready);
            assert_eq!(steered(&mut steering, 0), second);
        }
    }

    #[test]
    fn a_relay_that_drains_keeps_what_it_has_and_a_dead_one_gets_nothing() {
        let (mut steering, now) = (fleet(2, BOUNDS), Instant::now());
        let mine = short(&id(0, 1, 1));
        steering.heard(0, Answer::NotReady);
        assert_eq!(
            steering
                .steer(now, client(1), &mine)
                .map(|steered| steered.relay),
            Ok(0)
        );
        assert_eq!(
            steering.heard(0, Answer::Silence),
            None,
            "one silence is none"
        );
        assert!(steering.steer(now, client(1), &mine).is_ok());
        assert_eq!(steering.heard(0, Answer::Silence), Some(Health::Dead));
        assert_eq!(
            steering.steer(now, client(1), &mine),
            Err(Dropped::Unroutable)
        );
        // The first packet of a connection may have any id.
        let first = steering.steer(now, client(1), &long(&id(0, 1, 1)));
        assert_eq!(first.map(|steered| steered.relay), Ok(1));
        assert_eq!(steering.heard(0, Answer::Ready), Some(Health::Ready));
        assert!(steering.steer(now, client(1), &mine).is_ok());
    }

    #[test]
    fn an_answer_between_silences_begins_the_count_anew() {
        let mut steering = fleet(1, BOUNDS);
        for _ in 0..5 {
            assert_eq!(steering.heard(0, Answer::Silence), None);
            assert_eq!(steering.heard(0, Answer::Ready), None);
        }
    }

    #[test]
    fn without_a_ready_relay_nothing_begins() {
        let (mut steering, now) = (fleet(2, BOUNDS), Instant::now());
        steering.heard(0, Answer::NotReady);
        steering.heard(1, Answer::NotReady);
        assert_eq!(
            steering.steer(now, client(1), &long(&own(0))),
            Err(Dropped::NoRelay)
        );
        assert_eq!(steering.choose(client(1), &[]), None);
        let unknown = Steering::new(vec![], vec![Server { id: vec![1] }], BOUNDS);
        assert_eq!(unknown.choose(client(1), &[]), None, "not asked yet");
    }

    #[test]
    fn connections_go_to_the_ready_relay_with_the_fewest() {
        let mut steering = fleet(3, BOUNDS);
        let mut counts = [0; 3];
        for port in 0..30 {
            let place = steering.choose(client(port), &[]).expect("a relay");
            steering.opened(place);
            counts[place] += 1;
        }
        assert_eq!(counts, [10; 3]);
        steering.closed(1);
        assert_eq!(steering.choose(client(1), &[]), Some(1));
        let other = steering.choose(client(1), &[1]).expect("another");
        assert_ne!(other, 1);
        steering.heard(other, Answer::NotReady);
        let last = steering.choose(client(1), &[1]).expect("the last");
        assert!(last != 1 && last != other);
        assert_eq!(steering.choose(client(1), &[0, 1, 2]), None);
    }

    #[test]
    fn flows_are_bounded_and_a_flood_of_first_packets_displaces_none_that_has_an_id() {
        let bounds = Bounds { flows: 4, ..BOUNDS };
        let (mut steering, now) = (fleet(3, bounds), Instant::now());
        let kept: Vec<Steered> = (1..=3)
            .map(|port| steering.steer(now, client(port), &short(&id(0, 1, 1))))
            .collect::<Result<_, _>>()
            .expect("routed");
        for port in 1000..2000 {
            let steered = steering.steer(now, client(port), &long(&own(0)));
            let steered = steered.expect("routed");
            assert!(kept.iter().all(|k| Some(k.flow) != steered.displaced));
            assert!(steering.flows.len() <= 4 && steering.order.len() <= 4);
            assert!(steering.fallbacks.len() <= 4);
        }
    }

    #[test]
    fn a_flow_that_has_come_by_an_id_outlives_one_that_has_not() {
        let bounds = Bounds { flows: 2, ..BOUNDS };
        let (mut steering, now) = (fleet(1, bounds), Instant::now());
        let first = steering.steer(now, client(1), &long(&own(0)));
        let second = steering.steer(now, client(2), &long(&own(0)));
        let later = steering.steer(now, client(1), &short(&id(0, 1, 1)));
        assert_eq!(later.expect("routed").flow, first.expect("routed").flow);
        let third = steering.steer(now, client(3), &long(&own(0)));
        let displaced = third.expect("routed").displaced;
        assert_eq!(displaced, Some(second.expect("routed").flow));
    }

    #[test]
    fn a_flow_ends_when_its_client_is_silent_for_long() {
        let (mut steering, now) = (fleet(1, BOUNDS), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let first = steering.steer(now, client(1), &long(&own(0)));
        let second = steering.steer(now, client(2), &short(&id(0, 1, 1)));
        steering
            .steer(after(30), client(2), &short(&id(0, 1, 1)))
            .expect("routed");
        assert_eq!(
            steering.expire(after(60)),
            [first.expect("routed").flow],
            "the other was used"
        );
        assert!(steering.fallbacks.is_empty());
        assert_eq!(
            steering.expire(after(90)),
            [second.expect("routed").flow],
            "and then no more"
        );
        assert!(steering.flows.is_empty() && steering.order.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_go_somewhere_or_nowhere_and_the_tables_agree(
            packets: Vec<(u8, Vec<u8>, u8)>, flows in 1_usize..5,
        ) {
            let bounds = Bounds { flows, ..BOUNDS };
            let (mut steering, start) = (fleet(3, bounds), Instant::now());
            for (number, (port, packet, answer)) in packets.into_iter().enumerate() {
                let now = start + Duration::from_secs(number as u64);
                let answer = [Answer::Ready, Answer::NotReady, Answer::Silence][usize::from(answer % 3)];
                steering.heard(number % 4, answer);
                if let Ok(steered) = steering.steer(now, client(port.into()), &packet) {
                    prop_assert!(steered.relay < 3);
                    prop_assert_ne!(steered.displaced, Some(steered.flow));
                }
                prop_assert!(steering.flows.len() <= flows);
                prop_assert_eq!(steering.flows.len(), steering.order.len());
                for (client, place) in &steering.fallbacks {
                    prop_assert!(steering.flows.contains_key(&(*client, *place)));
                }
            }
        }
    }
}
