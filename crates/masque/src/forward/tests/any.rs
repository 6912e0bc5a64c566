//! Any capsules and packets in any order.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use hoplite_overlay::End;
use hoplite_wire::forwarding::Capsule;
use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;

use super::{BELOW, ack_client, ack_target, close_client, close_target, id, long, short};
use crate::forward::{Action, Below, Machine, Route};

/// Few ids, so that events meet.
const IDS: [&[u8]; 4] = [b"aaaaaaaa", b"bbbbbbbb", b"cccccccccc", b"d"];

#[derive(Clone, Debug)]
enum Event {
    Send { long: bool, id: usize, size: usize },
    Receive { long: bool, id: usize, to: usize },
    AckClient { id: usize, alias: Vec<u8> },
    AckTarget { id: usize, alias: Vec<u8> },
    Close { end: bool, id: usize },
    Most(u64),
    Announce { end: bool, id: usize },
    Withdraw { end: bool, id: usize },
    Wait(u64),
    Moved,
}

fn event() -> impl Strategy<Value = Event> {
    let one = || 0..IDS.len();
    let alias = || vec(0u8..3, 7..10);
    prop_oneof![
        4 => (any::<bool>(), one(), 9usize..1500).prop_map(|(long, id, size)| Event::Send { long, id, size }),
        2 => (any::<bool>(), one(), one()).prop_map(|(long, id, to)| Event::Receive { long, id, to }),
        2 => (one(), alias()).prop_map(|(id, alias)| Event::AckClient { id, alias }),
        4 => (one(), alias()).prop_map(|(id, alias)| Event::AckTarget { id, alias }),
        1 => (any::<bool>(), one()).prop_map(|(end, id)| Event::Close { end, id }),
        1 => (0u64..20).prop_map(Event::Most),
        2 => (any::<bool>(), one()).prop_map(|(end, id)| Event::Announce { end, id }),
        1 => (any::<bool>(), one()).prop_map(|(end, id)| Event::Withdraw { end, id }),
        4 => (0u64..1500).prop_map(Event::Wait),
        1 => Just(Event::Moved),
    ]
}

fn end(client: bool) -> End {
    if client { End::Client } else { End::Target }
}

/// What the relay has said, and what was asked of it.
struct Relay {
    /// Acknowledged and not closed since.
    open: HashMap<Vec<u8>, HashSet<Vec<u8>>>,
    /// Registered and not closed by the client since.
    asked: HashSet<Vec<u8>>,
    registrations: u64,
    most: u64,
    admitted: HashSet<Vec<u8>>,
}

struct Play {
    machine: Machine,
    relay: Relay,
    now: Instant,
}

impl Play {
    fn happens(&mut self, event: &Event) {
        let now = self.now;
        match event {
            Event::Send { long, id, size } => self.send(*long, IDS[*id], *size),
            Event::Receive { long: true, id, to } => {
                self.machine.received(&long(IDS[*to], IDS[*id]), now);
            }
            Event::Receive { id, .. } => self.machine.received(&short(IDS[*id], 100), now),
            Event::AckClient { id, alias } => self.told(&ack_client(IDS[*id], alias)),
            Event::AckTarget { id, alias } => {
                let open = self.relay.open.entry(IDS[*id].to_vec()).or_default();
                open.insert(alias.clone());
                self.told(&ack_target(IDS[*id], alias));
            }
            Event::Close { end: true, id } => self.told(&close_client(IDS[*id])),
            Event::Close { id, .. } => {
                self.relay.open.remove(IDS[*id]);
                self.told(&close_target(IDS[*id]));
            }
            Event::Most(most) => {
                self.relay.most = self.relay.most.max(*most);
                self.told(&Capsule::MaxConnectionIds { sequence: *most });
            }
            Event::Announce { end: e, id: n } => self.machine.announce(end(*e), id(IDS[*n]), now),
            Event::Withdraw { end: e, id: n } => self.machine.withdraw(end(*e), id(IDS[*n])),
            Event::Wait(millis) => self.now += Duration::from_millis(*millis),
            Event::Moved => self.machine.moved(now),
        }
        self.act();
    }

    fn told(&mut self, capsule: &Capsule) {
        let breach = *capsule == Capsule::MaxConnectionIds { sequence: 0 };
        let answer = self.machine.capsule(capsule, self.now);
        assert_eq!(answer.is_err(), breach);
    }

    fn send(&mut self, is_long: bool, id: &[u8], size: usize) {
        let drained = size.is_multiple_of(2);
        self.machine.turn(Below { drained, ..BELOW }, self.now);
        self.act();
        let packet = if is_long {
            long(b"any", id)
        } else {
            short(id, size)
        };
        if let Route::Forwarded { alias, .. } = self.machine.route(&packet, 1300, self.now) {
            assert!(!is_long, "a long header was forwarded");
            assert!(self.relay.asked.contains(id), "not registered");
            let open = self.relay.open.get(id);
            let open = open.is_some_and(|open| open.contains(&alias[..]));
            assert!(open, "not acknowledged, or closed");
        }
    }

    fn act(&mut self) {
        let mut count = 0;
        while let Some(action) = self.machine.poll_action() {
            count += 1;
            assert!(count < 100, "it never comes to rest");
            self.does(action);
        }
    }

    fn does(&mut self, action: Action) {
        match action {
            Action::Send(Capsule::RegisterTargetCid { id, .. }) => {
                self.relay.asked.insert(id.to_vec());
                self.registered();
            }
            Action::Send(Capsule::RegisterClientCid { .. }) => self.registered(),
            Action::Send(Capsule::CloseTargetCid { id }) => {
                self.relay.asked.remove(&*id);
                self.relay.open.remove(&*id);
            }
            Action::Send(Capsule::AckClientVcid {
                virtual_id: alias, ..
            }) => {
                assert!(self.relay.admitted.contains(&*alias), "not admitted");
            }
            Action::Send(_) | Action::Announce(_) => {}
            Action::Admit { alias, .. } => {
                let done = self.relay.admitted.insert(alias.to_vec());
                self.machine.admitted(alias, done, self.now);
            }
            Action::Release(End::Client, alias) => {
                let known = self.relay.admitted.remove(&alias[..]);
                assert!(known, "released twice");
            }
            Action::Release(End::Target, _) => {}
        }
    }

    fn registered(&mut self) {
        self.relay.registrations += 1;
        assert!(self.relay.registrations <= self.relay.most + 1, "too many");
    }
}

proptest! {
    #[test]
    fn nothing_is_forwarded_that_is_not_agreed_and_no_more_is_registered_than_allowed(
        events in vec(event(), 0..200),
    ) {
        let mut play = Play {
            machine: Machine::new(6),
            relay: Relay {
                open: HashMap::new(),
                asked: HashSet::new(),
                registrations: 0,
                most: 1,
                admitted: HashSet::new(),
            },
            now: Instant::now(),
        };
        for event in &events {
            play.happens(event);
        }
        play.machine.close();
        play.act();
        prop_assert!(play.relay.admitted.is_empty(), "aliases are left behind");
    }

    #[test]
    fn any_bytes_are_looked_at_without_a_panic(packets in vec((any::<bool>(), vec(any::<u8>(), 0..64)), 0..64)) {
        let mut machine = Machine::new(6);
        machine.carries_quic();
        for (sent, packet) in packets {
            if sent {
                machine.route(&packet, 1300, Instant::now());
            } else {
                machine.received(&packet, Instant::now());
            }
        }
    }
}
