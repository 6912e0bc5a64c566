//! The registry of channels among participants who lie: they make identities as they like, name others' identities with addresses of their own, pass
//! bytes on, and send circuits to where nobody answers. Channels are doubles, time is handed in.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

use proptest::prelude::*;

use super::*;
use hoplite_link::LinkKind;

type Identity = [u8; 32];

/// A channel, and what is true of it.
#[derive(Clone)]
struct Double(Rc<State>);

struct State {
    identity: Identity,
    remote: Cell<IpAddr>,
    /// What the peer says of itself.
    claims: IpAddr,
    ours: bool,
    kind: LinkKind,
    open: Cell<bool>,
    circuits: Cell<usize>,
    answers: Cell<bool>,
    superseded: Cell<bool>,
}

impl TableChannel for Double {
    fn is_open(&self) -> bool {
        self.0.open.get()
    }
    fn circuits(&self) -> usize {
        self.0.circuits.get()
    }
    fn is_ours(&self) -> bool {
        self.0.ours
    }
    fn kind(&self) -> LinkKind {
        self.0.kind
    }
    fn remote(&self) -> Option<IpAddr> {
        Some(self.0.remote.get())
    }
    fn is_peer_address_confirmed(&self) -> bool {
        self.0.remote.get() == self.0.claims
    }
    fn serves(&self, target: &Target) -> bool {
        self.is_peer_address_confirmed() || socket(target).unwrap().ip() == self.0.remote.get()
    }
    fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
    fn takes_new(&self) -> bool {
        self.0.answers.get() && !self.0.superseded.get()
    }
    fn supersede(&self) {
        self.0.superseded.set(true);
    }
    fn close(&self) {
        self.0.open.set(false);
    }
}

/// Honest relays: the first are in the list, the others are not.
const HONEST: u8 = 6;
const LISTED: u8 = 4;

fn honest(n: u8) -> Identity {
    let mut identity = [n; 32];
    identity[0] = 1;
    identity
}

fn thrown_away(n: u16) -> Identity {
    let mut identity = [0; 32];
    identity[0] = 2;
    identity[1..3].copy_from_slice(&n.to_be_bytes());
    identity
}

fn home(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

fn hostile(n: u8) -> IpAddr {
    IpAddr::from([203, 0, 113, n])
}

/// Where relays with this identity say that they are: an honest one at home, one of the attacker's wherever that is.
fn claims(identity: &Identity, at: IpAddr) -> IpAddr {
    match identity[0] {
        1 => home(identity[1]),
        _ => at,
    }
}

struct Directory;

impl Listing for Directory {
    fn lists(&self, identity: &Identity) -> bool {
        (0..LISTED).any(|n| honest(n) == *identity)
    }
    fn lists_at(&self, identity: &Identity, address: SocketAddr) -> bool {
        self.lists(identity) && address == SocketAddr::new(home(identity[1]), 443)
    }
    fn permits_quic(&self, _: SocketAddr) -> bool {
        false
    }
}

fn bounds() -> Config {
    Config {
        channels: 12,
        channels_per_address: 3,
        failed: Duration::from_secs(8),
        idle: Duration::from_secs(180),
        dials: Rate {
            at_once: 8,
            per_second: 2,
        },
        dials_per_address: Rate {
            at_once: 3,
            per_second: 1,
        },
        ..Config::default()
    }
}

fn whom(identity: Identity, address: IpAddr) -> Whom {
    Whom {
        name: String::new(),
        address: Target::from(SocketAddr::new(address, 443)),
        identity: Some(identity),
        rsa: None,
    }
}

fn table(bounds: Config) -> Table<Double> {
    let mut table = Table::new(bounds);
    table.set_listing(Arc::new(Directory));
    table
}

fn channel(identity: Identity, remote: IpAddr, ours: bool, kind: LinkKind) -> Double {
    Double(Rc::new(State {
        identity,
        remote: Cell::new(remote),
        claims: claims(&identity, remote),
        ours,
        kind,
        open: Cell::new(true),
        circuits: Cell::new(0),
        answers: Cell::new(true),
        superseded: Cell::new(false),
    }))
}

impl Table<Double> {
    fn asks(&mut self, whom: &Whom, how: How, now: Instant) -> Result<Lookup<Double>, Error> {
        let identity = whom.identity.unwrap();
        self.ask((&identity, whom), None, how, true, now)
    }

    fn answers(&mut self, whom: &Whom, plan: &Plan<Double>, how: LinkKind, now: Instant) -> Double {
        let identity = whom.identity.unwrap();
        let remote = socket(&whom.address).unwrap().ip();
        let made = channel(identity, remote, true, how);
        let times = Times { begun: now, now };
        self.dialled((&identity, whom), plan, Ok(made.clone()), true, times);
        made
    }

    fn dials(&mut self, whom: &Whom, how: How, now: Instant) -> Plan<Double> {
        match self.asks(whom, how, now).unwrap() {
            Lookup::Dial(plan) => plan,
            Lookup::Here(..) | Lookup::Wait(_) => panic!("it is dialled"),
        }
    }
}

#[test]
fn thousands_of_identities_from_one_address_keep_no_relay_from_dialling_others() {
    let (mut table, now) = (table(Config::default()), Instant::now());
    let mut gone = Vec::new();
    for n in 0..5000 {
        let guest = channel(thrown_away(n), hostile(1), false, LinkKind::Tls);
        guest.0.circuits.set(1);
        table.accepted(&thrown_away(n), guest.clone());
        gone.push(guest);
    }
    assert_eq!(table.relays.len(), table.bounds.channels_per_address);
    for n in 0..HONEST {
        let whom = whom(honest(n), home(n));
        table.dials(&whom, How::Raced, now);
    }
    assert!(
        gone.iter().all(TableChannel::is_open),
        "their circuits are served"
    );
}

#[test]
fn a_relay_of_the_list_finds_room_where_guests_from_everywhere_have_taken_all() {
    let (mut table, now) = (table(bounds()), Instant::now());
    for n in 0..200u16 {
        let at = hostile(n.to_be_bytes()[1]);
        let guest = channel(thrown_away(n), at, false, LinkKind::Tls);
        guest.0.circuits.set(1);
        table.accepted(&thrown_away(n), guest);
    }
    assert_eq!(table.relays.len(), table.bounds.channels);
    for n in 0..LISTED {
        let listed = whom(honest(n), home(n));
        let plan = table.dials(&listed, How::Raced, now);
        table.answers(&listed, &plan, LinkKind::Quic, now);
    }
    for n in 0..LISTED {
        let found = table.asks(&whom(honest(n), home(n)), How::Raced, now);
        assert!(matches!(found, Ok(Lookup::Here(_, None))));
    }
}

#[test]
fn quic_goes_to_the_list_and_to_who_has_shown_himself_and_to_nobody_else() {
    let (mut table, now) = (table(bounds()), Instant::now());
    let listed = table.dials(&whom(honest(0), home(0)), How::Raced, now);
    assert_eq!((listed.how, listed.beside), (How::Raced, None));
    let victim = whom(honest(0), hostile(9));
    let forged = table.dials(&victim, How::Raced, now);
    assert_eq!((forged.how, forged.beside), (How::Tls, Some(How::Quic)));
    let refused = table.asks(&whom(thrown_away(1), hostile(8)), How::Quic, now);
    assert_eq!(refused.err().unwrap().reason(), Some(Reason::Policy));
    // Somebody who passes bytes on shows himself by what another says.
    let through = table.answers(&victim, &forged, LinkKind::Tls, now);
    assert!(!through.is_peer_address_confirmed());
    let unlisted = whom(honest(LISTED), home(LISTED));
    let plan = table.dials(&unlisted, How::Raced, now);
    assert_eq!((plan.how, plan.beside), (How::Tls, Some(How::Quic)));
    let shown = table.answers(&unlisted, &plan, LinkKind::Tls, now);
    assert!(shown.is_peer_address_confirmed());
}

#[test]
fn whoever_is_there_over_tls_and_said_to_have_quic_is_dialled_once_more_for_the_circuits_to_come() {
    let (mut table, now) = (table(bounds()), Instant::now());
    let relay = whom(honest(0), home(0));
    // It dialled us, or it was dialled before anything was known of it.
    let tls = channel(honest(0), home(0), false, LinkKind::Tls);
    table.accepted(&honest(0), tls.clone());
    let better = |table: &mut Table<Double>, how, now| match table.asks(&relay, how, now) {
        Ok(Lookup::Here(found, better)) => (found, better),
        _ => panic!("it is there"),
    };
    assert!(
        better(&mut table, How::Tls, now).1.is_none(),
        "it has no QUIC"
    );
    let (found, plan) = better(&mut table, How::Raced, now);
    assert!(found.is_same(&tls), "nobody waits");
    let plan = plan.unwrap();
    assert_eq!(
        (plan.how, plan.otherwise, plan.beside),
        (How::Quic, None, None)
    );
    assert!(
        better(&mut table, How::Raced, now).1.is_none(),
        "one at a time"
    );
    // Where UDP does not get through that is not tried with each circuit.
    let refused = Err(Error::new(ErrorKind::PathFailed, "dialling"));
    let times = Times { begun: now, now };
    table.dialled((&honest(0), &relay), &plan, refused, true, times);
    let (found, again) = better(&mut table, How::Raced, now + Duration::from_secs(599));
    assert!(found.is_same(&tls) && again.is_none());
    let later = now + Duration::from_secs(600);
    let plan = better(&mut table, How::Raced, later).1.unwrap();
    let quic = table.answers(&relay, &plan, LinkKind::Quic, later);
    let (found, more) = better(&mut table, How::Raced, later);
    assert!(found.is_same(&quic) && more.is_none());
    // A stranger gets no packet of UDP by it.
    let stranger = whom(honest(LISTED), home(LISTED));
    table.accepted(
        &honest(LISTED),
        channel(honest(LISTED), home(LISTED), false, LinkKind::Tls),
    );
    let found = table.asks(&stranger, How::Raced, now);
    assert!(matches!(found, Ok(Lookup::Here(_, None))));
}

#[test]
fn a_client_goes_over_to_tls_before_silence_is_an_end_and_back_to_quic_when_it_is_there() {
    let (mut table, now) = (Table::<Double>::new(Config::default()), Instant::now());
    let relay = whom(honest(0), home(0));
    let asked = (&honest(0), &relay);
    let plan = table.dials(&relay, How::Raced, now);
    let quic = table.answers(&relay, &plan, LinkKind::Quic, now);
    assert_eq!(table.quic_retry(asked, &plan, &quic), None);
    quic.0.answers.set(false);
    let plan = table.dials(&relay, How::Raced, now);
    assert!(
        matches!(table.asks(&relay, How::Raced, now), Ok(Lookup::Wait(_))),
        "it is dialled once"
    );
    let tls = table.answers(&relay, &plan, LinkKind::Tls, now);
    let first = table.bounds.quic_retry;
    assert_eq!(table.quic_retry(asked, &plan, &tls), Some(first));
    let takes = |table: &mut Table<Double>| match table.asks(&relay, How::Raced, now) {
        Ok(Lookup::Here(channel, _)) => channel,
        _ => panic!("it is there"),
    };
    assert!(takes(&mut table).is_same(&tls));
    quic.close();
    let plan = table.quic(asked).unwrap();
    assert!(table.quic(asked).is_none(), "one at a time");
    let back = table.answers(&relay, &plan, LinkKind::Quic, now);
    assert!(takes(&mut table).is_same(&back) && !tls.takes_new());
    // What stays over TLS does not serve where QUIC is lost again, and the next time it is tried again later.
    back.0.answers.set(false);
    let plan = table.dials(&relay, How::Raced, now);
    let tls = table.answers(&relay, &plan, LinkKind::Tls, now);
    assert_eq!(table.quic_retry(asked, &plan, &tls), Some(2 * first));
    // Who asked for TLS alone gets nothing else.
    let other = whom(honest(1), home(1));
    let plan = table.dials(&other, How::Tls, now);
    let tls = table.answers(&other, &plan, LinkKind::Tls, now);
    assert_eq!(table.quic_retry((&honest(1), &other), &plan, &tls), None);
}

#[test]
fn a_relay_waits_for_a_peer_that_does_not_answer_until_that_is_an_end() {
    let (mut table, now) = (table(bounds()), Instant::now());
    let relay = whom(honest(0), home(0));
    let plan = table.dials(&relay, How::Raced, now);
    let quic = table.answers(&relay, &plan, LinkKind::Quic, now);
    quic.0.answers.set(false);
    let found = table.asks(&relay, How::Raced, now);
    assert!(matches!(found, Ok(Lookup::Here(_, None))));
}

#[test]
fn addresses_that_the_list_does_not_have_are_dialled_so_often_and_no_more() {
    let (mut table, mut now) = (table(bounds()), Instant::now());
    let mut dial = |at: u8, from: u16, now: Instant| {
        let dials = (from..from + 50).filter(|n| {
            let asked = table.asks(&whom(thrown_away(*n), hostile(at)), How::Tls, now);
            match asked {
                Ok(Lookup::Dial(plan)) => {
                    let identity = thrown_away(*n);
                    let error = Error::new(ErrorKind::PathFailed, "dialling");
                    let times = Times { begun: now, now };
                    let asked = whom(identity, hostile(at));
                    table.dialled((&identity, &asked), &plan, Err(error), true, times);
                    true
                }
                Ok(_) => panic!("there is none"),
                Err(error) => {
                    assert_eq!(error.reason(), Some(Reason::Limit));
                    false
                }
            }
        });
        dials.count()
    };
    assert_eq!(dial(1, 0, now), 3, "at once to one address");
    assert_eq!(
        dial(2, 100, now) + dial(3, 200, now) + dial(4, 300, now),
        5,
        "in all"
    );
    now += Duration::from_secs(2);
    assert_eq!(dial(1, 400, now), 2, "and then each second");
    // The list's relays are not held up by that.
    for n in 0..LISTED {
        table.dials(&whom(honest(n), home(n)), How::Raced, now);
    }
}

#[test]
fn who_asks_for_random_addresses_all_the_time_leaves_others_their_dials() {
    let (mut table, mut now) = (table(Config::default()), Instant::now());
    let mut number = 0u32;
    let mut dials = |who, now| {
        number += 1;
        let [_, high, middle, low] = number.to_be_bytes();
        let mut identity = thrown_away(0);
        identity[3..7].copy_from_slice(&number.to_be_bytes());
        let asked = whom(identity, IpAddr::from([203, high, middle, low]));
        let found = table.ask((&identity, &asked), Some(who), How::Tls, true, now);
        let Ok(Lookup::Dial(plan)) = found else {
            return false;
        };
        let failed = Err(Error::new(ErrorKind::PathFailed, "dialling"));
        let times = Times { begun: now, now };
        table.dialled((&identity, &asked), &plan, failed, true, times);
        true
    };
    let mut had = 0;
    for tick in 0..12_000 {
        now += Duration::from_millis(10);
        had += (0..10).filter(|_| dials(1, now)).count();
        assert!(tick % 10 != 0 || dials(2, now), "another, once in a while");
    }
    assert!(had > 120 * 40, "he has the rest: {had}");
    assert!((100..120).all(|who| dials(who, now)), "who comes new");
}

#[test]
fn who_passes_bytes_on_pushes_no_channel_out_that_goes_to_the_relay() {
    let (mut table, now) = (table(Config::default()), Instant::now());
    let listed = whom(honest(0), home(0));
    let plan = table.dials(&listed, How::Quic, now);
    let own = table.answers(&listed, &plan, LinkKind::Quic, now);
    for n in 0..100 {
        let through = channel(honest(0), hostile(n), false, LinkKind::Quic);
        through.0.circuits.set(7);
        table.accepted(&honest(0), through);
    }
    let found = table.asks(&listed, How::Quic, now);
    assert!(matches!(found, Ok(Lookup::Here(found, None)) if found.is_same(&own)));
    assert_eq!(table.relays[&honest(0)].channels.len(), MAX_PER_RELAY);
}

#[test]
fn a_channel_that_was_dialled_ends_without_circuits_whether_or_not_the_table_keeps_it() {
    let (mut table, now) = (table(bounds()), Instant::now());
    let identity = honest(LISTED);
    let mut made = Vec::new();
    for at in (0..5).chain([4, 4]) {
        // Somebody who passes bytes on, at five addresses of which the relay says nothing.
        let through = whom(identity, hostile(at));
        let plan = table.dials(&through, How::Tls, now);
        let channel = table.answers(&through, &plan, LinkKind::Tls, now);
        channel.0.circuits.set(1);
        made.push(channel);
    }
    assert_eq!(table.relays[&identity].channels.len(), MAX_PER_RELAY);
    let later = now + table.bounds.idle;
    table.sweep(now);
    table.sweep(later);
    assert!(made.iter().all(Double::is_open), "their circuits live on");
    made.iter().for_each(|channel| channel.0.circuits.set(0));
    table.sweep(later);
    let last = later + table.bounds.idle;
    table.sweep(last - Duration::from_secs(1));
    assert!(made.iter().all(Double::is_open), "new circuits may come");
    table.sweep(last);
    assert!(!made.iter().any(Double::is_open));
    assert!(table.unkept.is_empty());
}

/// What somebody does.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A circuit is to be extended to an honest relay, at its address or at one that is none of its.
    Extend {
        honest: u8,
        at: Option<u8>,
        how: u8,
    },
    /// The same to an identity of the attacker's.
    ExtendAway {
        number: u16,
        at: u8,
        how: u8,
    },
    /// A dial comes about, or fails after a while.
    Answer {
        which: usize,
        well: bool,
    },
    /// An honest relay dials, itself or through one who passes bytes on.
    Accept {
        honest: u8,
        through: Option<u8>,
    },
    /// An identity of the attacker's dials.
    AcceptAway {
        number: u16,
        at: u8,
    },
    /// A channel ends, moves, or gets and loses circuits.
    End(usize),
    Move(usize, u8),
    Circuits(usize, usize),
    Wait(u64),
    Sweep,
}

fn act() -> impl Strategy<Value = Act> {
    use Act::*;
    let at = || proptest::option::of(0..4u8);
    prop_oneof![
        (0..HONEST, at(), 0..3u8).prop_map(|(honest, at, how)| Extend { honest, at, how }),
        (0..60u16, 0..6u8, 0..3u8).prop_map(|(number, at, how)| ExtendAway { number, at, how }),
        (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Answer { which, well }),
        (0..HONEST, at()).prop_map(|(honest, through)| Accept { honest, through }),
        (0..60u16, 0..6u8).prop_map(|(number, at)| AcceptAway { number, at }),
        any::<usize>().prop_map(End),
        (any::<usize>(), 0..4u8).prop_map(|(which, at)| Move(which, at)),
        (any::<usize>(), 0..3usize).prop_map(|(which, circuits)| Circuits(which, circuits)),
        (0..5000u64).prop_map(Wait),
        Just(Sweep),
    ]
}

/// Everything that there is beside the table.
struct World {
    table: Table<Double>,
    now: Instant,
    channels: Vec<Double>,
    running: Vec<(Whom, Plan<Double>, Instant)>,
    waiting: RefCell<Vec<(Whom, Outcome<Double>)>>,
    /// When addresses were dialled that the list does not have.
    dialled: Vec<(Instant, IpAddr)>,
    failed: BTreeSet<(Identity, IpAddr)>,
}

fn how(n: u8) -> How {
    [How::Raced, How::Quic, How::Tls][usize::from(n % 3)]
}

impl World {
    fn new() -> Self {
        Self {
            table: table(bounds()),
            now: Instant::now(),
            channels: Vec::new(),
            running: Vec::new(),
            waiting: RefCell::default(),
            dialled: Vec::new(),
            failed: BTreeSet::new(),
        }
    }

    fn extend(&mut self, whom: Whom, how: How) {
        let (identity, address) = (whom.identity.unwrap(), socket(&whom.address).unwrap());
        let listed = Directory.lists_at(&identity, address);
        match self.table.asks(&whom, how, self.now) {
            Ok(Lookup::Here(channel, better)) => {
                may_have(&whom, &channel);
                if let Some(plan) = better {
                    assert!(
                        listed && channel.kind() == LinkKind::Tls,
                        "a dial for nothing"
                    );
                    self.running.push((whom, plan, self.now));
                }
            }
            Ok(Lookup::Wait(outcome)) => self.waiting.borrow_mut().push((whom, outcome)),
            Ok(Lookup::Dial(plan)) => {
                if !listed {
                    self.dialled.push((self.now, address.ip()));
                    assert!(plan.how == How::Tls, "QUIC to a stranger");
                }
                let outcome = Arc::clone(&plan.outcome);
                self.waiting.borrow_mut().push((whom.clone(), outcome));
                self.running.push((whom, plan, self.now));
            }
            Err(error) => {
                let failed = self.failed.contains(&(identity, address.ip()));
                assert!(
                    !listed || failed,
                    "a relay of the list cannot be reached: {error}"
                );
                if error.reason() == Some(Reason::HostUnreachable) {
                    assert!(failed, "a failure that was another's");
                }
            }
        }
    }

    fn answer(&mut self, which: usize, well: bool) {
        if self.running.is_empty() {
            return;
        }
        let (whom, plan, begun) = self.running.swap_remove(which % self.running.len());
        let (identity, at) = (whom.identity.unwrap(), socket(&whom.address).unwrap().ip());
        let made = if well {
            let kind = match plan.how {
                How::Tls => LinkKind::Tls,
                How::Quic | How::Raced => LinkKind::Quic,
            };
            let made = channel(identity, at, true, kind);
            self.channels.push(made.clone());
            Ok(made)
        } else {
            self.now += Duration::from_secs(10);
            self.failed.insert((identity, at));
            let failed = Error::new(ErrorKind::PathFailed, "dialling");
            Err(failed.because(Reason::HostUnreachable))
        };
        let times = Times {
            begun,
            now: self.now,
        };
        let asked = (&identity, &whom);
        self.table.dialled(asked, &plan, made, true, times);
    }

    fn accept(&mut self, identity: Identity, at: IpAddr) {
        let kind = match self.channels.len() % 2 {
            0 => LinkKind::Quic,
            _ => LinkKind::Tls,
        };
        let made = channel(identity, at, false, kind);
        self.channels.push(made.clone());
        self.table.accepted(&identity, made);
    }

    fn does(&mut self, act: Act) {
        let pick = |channels: &[Double], which: usize| {
            let most = channels.len().max(1);
            channels.get(which % most).cloned()
        };
        match act {
            Act::Extend {
                honest: n,
                at,
                how: way,
            } => {
                let at = at.map_or_else(|| home(n), hostile);
                self.extend(whom(honest(n), at), how(way));
            }
            Act::ExtendAway {
                number,
                at,
                how: way,
            } => {
                self.extend(whom(thrown_away(number), hostile(at)), how(way));
            }
            Act::Answer { which, well } => self.answer(which, well),
            Act::Accept { honest: n, through } => {
                self.accept(honest(n), through.map_or_else(|| home(n), hostile));
            }
            Act::AcceptAway { number, at } => self.accept(thrown_away(number), hostile(at)),
            Act::End(which) => {
                pick(&self.channels, which)
                    .into_iter()
                    .for_each(|channel| channel.close());
            }
            Act::Move(which, at) => {
                // Only who dialled moves, and only over QUIC.
                let moves = |channel: &Double| !channel.0.ours && channel.0.kind == LinkKind::Quic;
                let channel = pick(&self.channels, which).filter(moves);
                channel
                    .into_iter()
                    .for_each(|channel| channel.0.remote.set(hostile(at)));
            }
            Act::Circuits(which, circuits) => {
                let channel = pick(&self.channels, which);
                channel
                    .into_iter()
                    .for_each(|channel| channel.0.circuits.set(circuits));
            }
            Act::Wait(millis) => self.now += Duration::from_millis(millis),
            Act::Sweep => self.table.sweep(self.now),
        }
        self.tell();
    }

    /// Whoever was told something has what he may have.
    fn tell(&self) {
        self.waiting.borrow_mut().retain(|(whom, outcome)| {
            let told = outcome.get();
            if let Some(Ok(channel)) = told {
                may_have(whom, channel);
            }
            told.is_none()
        });
    }

    /// Relays that stand so high at least, with their channels that go where the relay is.
    fn known(&self, least: Priority) -> Vec<(Identity, Double)> {
        let table = &self.table;
        let relays = table.relays.iter();
        let known = relays.filter(|(identity, relay)| table.priority(identity, relay) >= least);
        known
            .flat_map(|(identity, relay)| {
                let kept = relay
                    .channels
                    .iter()
                    .map(|kept| (*identity, kept.channel.clone()));
                kept.filter(|(_, channel)| channel.is_open() && channel.is_peer_address_confirmed())
            })
            .collect()
    }

    fn is_sound(&self) {
        let (table, bounds) = (&self.table, bounds());
        assert!(table.relays.len() <= bounds.channels);
        assert!(
            table
                .relays
                .values()
                .all(|relay| relay.channels.len() <= MAX_PER_RELAY)
        );
        let crowds = table.crowds();
        assert!(
            crowds
                .values()
                .all(|crowd| *crowd <= bounds.channels_per_address)
        );
        for (identity, relay) in &table.relays {
            let own = |kept: &TableEntry<Double>| kept.channel.0.identity == *identity;
            assert!(relay.channels.iter().all(own), "another's channel");
        }
        let within = |rate: Rate, dials: &[Instant]| {
            for (number, first) in dials.iter().enumerate() {
                let since = dials[number..].len() as f64;
                let most = dials.last().unwrap().duration_since(*first).as_secs_f64()
                    * f64::from(rate.per_second);
                assert!(
                    since <= f64::from(rate.at_once) + most + 1.0,
                    "too many dials"
                );
            }
        };
        let all: Vec<_> = self.dialled.iter().map(|(at, _)| *at).collect();
        within(bounds.dials, &all);
        for n in 0..6 {
            let dialled = self.dialled.iter().filter(|(_, to)| *to == hostile(n));
            let each: Vec<_> = dialled.map(|(at, _)| *at).collect();
            within(bounds.dials_per_address, &each);
        }
    }
}

/// The connection goes to the address that was asked for, or to the relay's own.
fn may_have(whom: &Whom, channel: &Double) {
    assert_eq!(Some(channel.0.identity), whom.identity, "another relay");
    let (asked, goes) = (socket(&whom.address).unwrap().ip(), channel.0.remote.get());
    assert!(
        goes == asked || goes == channel.0.claims,
        "a channel that goes to neither the address that was asked for nor one of the relay's"
    );
}

proptest! {
    #[test]
    fn whatever_hostile_participants_do_the_registry_keeps_what_it_promises(
        acts in proptest::collection::vec(act(), 1..200),
    ) {
        let mut world = World::new();
        for act in acts {
            // Who stands so high at least goes for nobody who comes by this act.
            let stays = match &act {
                // A relay of the list has its place also where another passes its bytes on.
                Act::Accept { honest, through: Some(_) } if *honest < LISTED => Some(Priority::Listed),
                Act::ExtendAway { .. }
                | Act::AcceptAway { .. }
                | Act::Extend { at: Some(_), .. }
                | Act::Accept { through: Some(_), .. } => Some(Priority::Dialled),
                _ => None,
            };
            // Who dials once too often gives up a channel of his own.
            let own = match &act {
                Act::AcceptAway { number, .. } => Some(thrown_away(*number)),
                _ => None,
            };
            let mut before = stays.map(|least| world.known(least)).unwrap_or_default();
            before.retain(|(identity, _)| Some(*identity) != own);
            world.does(act);
            world.is_sound();
            for (identity, channel) in before {
                let relay = world.table.relays.get(&identity);
                let kept = relay.is_some_and(|relay| {
                    relay.channels.iter().any(|kept| kept.channel.is_same(&channel))
                });
                prop_assert!(kept, "a relay that is known went for one that is not");
            }
        }
    }
}
