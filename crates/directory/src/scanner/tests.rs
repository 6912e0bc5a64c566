use std::time::Duration;

use hoplite_wire::tor::bandwidth_file::{BandwidthFile, RelayLine};
use proptest::prelude::*;

use super::{weights::About, *};

const DAY: u64 = 86_400;
const BEGIN: u64 = 1_790_000_000;

/// A relay of a network of rates: what it carries for whom, and what it says.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    /// What it carries for everybody, in bytes a second.
    carries: u64,
    /// What it carries where it can tell the scanner.
    for_scanner: u64,
    /// What it says of itself.
    says: u64,
    exits: bool,
    /// From then on it lets no circuit come about.
    refuses: u64,
}

fn honest(carries: u64) -> Modelled {
    Modelled {
        carries,
        for_scanner: carries,
        says: carries * 2,
        exits: true,
        refuses: u64::MAX,
    }
}

fn identity(number: usize) -> Key {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&u64::try_from(number).expect("small").to_be_bytes());
    Key(key)
}

fn candidate((number, relay): (usize, &Modelled)) -> Candidate {
    Candidate {
        identity: identity(number),
        rsa_id: None,
        nickname: format!("relay{number}"),
        exits: relay.exits,
        average: relay.says,
        observed: Some(relay.says / 2),
        believed: relay.says,
    }
}

/// Numbers as nobody's: xorshift.
fn draws(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// A network whose circuits are as fast as their slowest relay, which shares what it has among the measurements that it carries: rates and time are numbers
/// here, no bytes move.
struct World {
    relays: Vec<Modelled>,
    scanner: Scanner,
    now: u64,
    random: Box<dyn FnMut(u64) -> u64>,
    under_way: Vec<Outcome>,
    /// What each relay carried for the scanner, in bytes.
    carried: Vec<u64>,
    measured: usize,
    /// Seconds from one look at it to the next.
    step: u64,
}

impl World {
    fn new(config: Config, relays: &[Modelled], seed: u64) -> Self {
        let mut scanner = Scanner::new(config, Results::default());
        scanner.renew(relays.iter().enumerate().map(candidate).collect());
        Self {
            relays: relays.to_vec(),
            scanner,
            now: BEGIN,
            random: Box::new(draws(seed)),
            under_way: Vec::new(),
            carried: vec![0; relays.len()],
            measured: 0,
            step: 5,
        }
    }

    fn number(relay: &Key) -> usize {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&relay.0[..8]);
        usize::try_from(u64::from_be_bytes(bytes)).expect("small")
    }

    /// What the circuit carries beside those that are under way.
    fn rate(&mut self, measurement: &Measurement) -> u64 {
        let shares = measurement.path.iter().map(|relay| {
            let modelled = self.relays[Self::number(relay)];
            // Who is the first or the last can tell, as a partner too.
            let is_blind = *relay == measurement.relay && measurement.place == Place::Middle;
            let carries = if is_blind {
                modelled.carries
            } else {
                modelled.for_scanner
            };
            let others = self.under_way.iter();
            let others = others.filter(|other| other.of.path.contains(relay));
            carries / (1 + u64::try_from(others.count()).expect("few"))
        });
        let rate = shares.min().expect("a relay");
        // Within a tenth.
        rate * (95 + (self.random)(11)) / 100
    }

    fn begin(&mut self, measurement: Measurement) {
        let mut path = measurement.path.iter();
        if path.any(|relay| self.relays[Self::number(relay)].refuses <= self.now) {
            self.under_way.push(Outcome {
                at: self.now + 60,
                of: measurement,
                rates: Err(Failure::Circuit),
            });
            return;
        }
        let rate = self.rate(&measurement).max(1);
        let (mut transfers, mut took, mut moved) = (Transfers::default(), Duration::ZERO, 0);
        while let Step::Transfer(_, bytes) = transfers.step() {
            let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
            transfers.took(bytes, time);
            took += time + Duration::from_millis(500);
            moved += bytes;
        }
        for relay in &measurement.path {
            self.carried[Self::number(relay)] += moved;
        }
        let Step::Done(rates) = transfers.step() else {
            unreachable!("all is transferred")
        };
        let outcome = Outcome {
            at: self.now + took.as_secs() + 2,
            of: measurement,
            rates: Ok(rates),
        };
        self.under_way.push(outcome);
        self.measured += 1;
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            let now = self.now;
            let (over, under_way): (Vec<_>, _) = self
                .under_way
                .drain(..)
                .partition(|outcome| outcome.at <= now);
            self.under_way = under_way;
            for outcome in over {
                self.scanner.measured(&outcome);
            }
            while let Some(measurement) = self.scanner.next(self.now, &mut self.random) {
                self.begin(measurement);
            }
            self.now += self.step;
        }
    }

    fn file(&self) -> BandwidthFile {
        let points = [self.scanner.results()];
        let file = weights::bandwidth_file(
            &points,
            self.scanner.relays(),
            &self.scanner.config,
            about(self.now),
        );
        file.expect("a file")
    }
}

/// Of a relay between or beside others that nobody knows more of.
fn outcome(at: u64, relay: Key, place: Place, rates: Result<Rates, Failure>) -> Outcome {
    let of = Measurement {
        relay,
        place,
        path: vec![relay],
    };
    Outcome { at, of, rates }
}

fn about(now: u64) -> About<'static> {
    About {
        version: "0.0",
        started: BEGIN,
        now,
    }
}

fn line(file: &BandwidthFile, number: usize) -> &RelayLine {
    let mut lines = file.relays.iter();
    let found = lines.find(|line| line.relay.ed25519() == Some(&identity(number).0));
    found.expect("a line")
}

/// Weights of these relays behind six fast ones, after some rounds.
fn weighed(relays: &[Modelled], seed: u64) -> Vec<u64> {
    let fast = [honest(20_000_000); 6];
    let all = [&fast[..], relays].concat();
    let config = Config {
        pause: 60,
        ..Config::default()
    };
    let mut world = World::new(config, &all, seed);
    world.run(BEGIN + 3600);
    let file = world.file();
    let numbers = fast.len()..all.len();
    numbers
        .map(|number| line(&file, number).bandwidth)
        .collect()
}

/// By how many percent `found` is above `wanted`, or below.
fn off(found: u64, wanted: u64) -> i64 {
    let (found, wanted) = (found.cast_signed(), wanted.cast_signed());
    (found - wanted) * 100 / wanted
}

/// By how many percent each weight is off 1 : 2 : 4.
fn off_shape(weights: &[u64]) -> [i64; 3] {
    let sum: u64 = weights.iter().sum();
    [0, 1, 2].map(|place| off(weights[place] * 7, sum << place))
}

const SHAPED: [u64; 3] = [500_000, 1_000_000, 2_000_000];

/// By how many percent the first of the shaped ones has gained in weight beside the others, over twenty networks.
fn gain(change: impl Fn(&mut Modelled)) -> i64 {
    let beside = |shaped: &[Modelled]| {
        let weights = (1..=20).map(|seed| weighed(shaped, seed));
        let shares = weights.map(|weights| weights[0] * 100_000 / (weights[1] + weights[2]));
        shares.sum::<u64>()
    };
    let mut shaped = SHAPED.map(honest);
    let before = beside(&shaped);
    change(&mut shaped[0]);
    let gain = off(beside(&shaped) * 10, before * 10);
    println!("gains {gain} %");
    gain
}

#[test]
fn relays_that_carry_one_two_and_four_are_weighed_so() {
    let mut most = 0;
    for seed in 1..=20 {
        let weights = weighed(&SHAPED.map(honest), seed);
        let off = off_shape(&weights);
        most = off.iter().fold(most, |most, off| most.max(off.abs()));
        assert!(most <= 15, "{weights:?}: {off:?} % with seed {seed}");
    }
    println!("{most} % off at most");
}

#[test]
fn who_says_ten_times_what_it_has_gains_a_tenth_at_most() {
    let gain = gain(|liar| liar.says *= 10);
    assert!(gain <= 10, "{gain} %");
}

#[test]
fn who_serves_the_scanner_alone_well_gains_a_tenth_at_most() {
    let gain = gain(|liar| liar.for_scanner *= 10);
    assert!((5..=10).contains(&gain), "{gain} %");
}

#[test]
fn relays_that_let_no_circuit_come_about_keep_nobody_from_being_measured_whatever_they_say() {
    let config = Config {
        pause: 3600,
        ..Config::default()
    };
    // At once, or when they have shown that they are by far the fastest.
    for refuses in [0, BEGIN + DAY / 4] {
        let mut relays: Vec<_> = (0..20).map(|n| honest(1_000_000 + n * 50_000)).collect();
        relays.extend([1 << 30; 10].map(|carries| Modelled {
            says: 1 << 40,
            refuses,
            ..honest(carries)
        }));
        let mut world = World::new(config, &relays, 1);
        world.run(BEGIN + DAY / 4);
        let since = world.now;
        world.run(BEGIN + DAY);
        for number in 0..20 {
            let relay = identity(number);
            let found = world.scanner.results().of(&relay);
            let found = found.filter(|one| one.at > since + 60 && one.rates.is_ok());
            assert!(found.count() >= 2, "{number} with {refuses}");
        }
    }
}

#[test]
fn relays_that_never_work_leave_all_others_their_turns() {
    let config = Config {
        at_once: 1,
        ..Config::default()
    };
    let mut relays: Vec<_> = (0..100).map(|n| honest(1_000_000 + n * 50_000)).collect();
    // More of them than can be tried in the pause after a failure.
    relays.extend([1_000_000; 130].map(|carries| Modelled {
        refuses: 0,
        ..honest(carries)
    }));
    let mut world = World::new(config, &relays, 1);
    world.step = 20;
    world.run(BEGIN + DAY);
    for number in 0..100 {
        let relay = identity(number);
        let found = world.scanner.results().of(&relay);
        let found = found.filter(|one| one.rates.is_ok()).count();
        assert!(found >= 3, "{number}: {found}");
    }
}

#[test]
fn a_relay_gets_no_more_than_it_says_it_is_willing_to_carry() {
    let mut shaped = [500_000, 1_000_000].map(honest);
    shaped[1].says = 100_000;
    assert_eq!(weighed(&shaped, 1)[1], 100);
}

#[test]
fn a_scan_of_a_thousand_relays_takes_less_than_a_day_and_a_hundredth_of_their_bandwidth() {
    let relays = (0..1000u32).map(|number| Modelled {
        exits: (number / 6).is_multiple_of(3),
        ..honest(2_500_000 << (number % 6))
    });
    let relays: Vec<_> = relays.collect();
    let config = Config::default();
    let mut world = World::new(config, &relays, 1);
    world.step = 20;
    let done = loop {
        world.run(world.now + 600);
        let often = |number| world.scanner.results().of(&identity(number)).count() >= 2;
        if (0..relays.len()).all(often) {
            break world.now - BEGIN;
        }
        assert!(world.now < BEGIN + 2 * DAY, "not done in two days");
    };
    world.run(BEGIN + DAY);
    let parts = relays.iter().zip(&world.carried);
    let parts = parts.map(|(relay, bytes)| bytes * 100_000 / (relay.carries * DAY));
    let most = parts.clone().max().expect("relays");
    let (all, carried) = (
        relays.iter().map(|relay| relay.carries).sum::<u64>(),
        world.carried.iter().sum::<u64>(),
    );
    let mean = carried * 100_000 / (all * DAY);
    println!(
        "each twice after {} min; {} measurements in a day; in thousandths of a percent of a relay's bandwidth: {mean} on average, {most} at most",
        done / 60,
        world.measured
    );
    assert!(done <= DAY);
    assert!(most < 1000, "{most} thousandths of a percent");
    let file = world.file();
    assert!(file.relays.iter().all(|line| line.votes));
    assert_eq!(file.relays.len(), 1000);
    let weights = relays.iter().enumerate();
    let weights =
        weights.map(|(number, relay)| off(line(&file, number).bandwidth, relay.carries / 1000));
    let weights: Vec<_> = weights.collect();
    let near = weights.iter().filter(|off| off.abs() <= 15).count();
    println!("{near} of 1000 within 15 %");
    assert_eq!(near, 1000, "{weights:?}");
}

#[test]
fn of_several_vantage_points_the_low_median_counts() {
    let candidates = [candidate((1, &honest(10_000_000)))];
    let point = |rate: u64| {
        let mut results = Results::default();
        for place in [Place::Middle, Place::First] {
            let rates = Ok(Rates {
                down: rate,
                up: rate,
            });
            results.put(outcome(BEGIN, identity(1), place, rates));
        }
        results
    };
    let weight = |rates: &[u64]| {
        let points: Vec<_> = rates.iter().map(|rate| point(*rate)).collect();
        let points: Vec<_> = points.iter().collect();
        let config = Config::default();
        let file = weights::bandwidth_file(&points, candidates.iter(), &config, about(BEGIN));
        line(&file.expect("a file"), 1).bandwidth
    };
    assert_eq!(weight(&[1_000_000]), 1000 * 10);
    assert_eq!(weight(&[2_000_000, 20_000_000]), weight(&[2_000_000]));
    assert_eq!(
        weight(&[2_000_000, 20_000_000, 2_000_000]),
        weight(&[2_000_000])
    );
}

#[test]
fn what_is_not_known_well_enough_is_told_and_not_voted_for() {
    let relays: Vec<_> = (0..4).map(|_| honest(1_000_000)).collect();
    let candidates = relays.iter().enumerate().map(candidate);
    let candidates = candidates.map(|relay| Candidate {
        observed: None,
        ..relay
    });
    let candidates: Vec<_> = candidates.collect();
    let mut results = Results::default();
    let file = |results: &Results, now| {
        let points = [results];
        weights::bandwidth_file(&points, candidates.iter(), &Config::default(), about(now))
    };
    assert_eq!(file(&results, BEGIN), None, "no results, no file");
    let put = |results: &mut Results, number, rates| {
        for place in [Place::Middle, Place::Last] {
            results.put(outcome(BEGIN, identity(number), place, rates));
        }
    };
    let rates = Ok(Rates {
        down: 1_000_000,
        up: 900_000,
    });
    put(&mut results, 0, rates);
    put(&mut results, 1, rates);
    put(&mut results, 3, Err(Failure::Circuit));
    let few = file(&results, BEGIN).expect("a file");
    assert!(few.relays.iter().all(|line| !line.votes), "half is too few");
    assert_eq!(line(&few, 0).more.get("under_min_report"), Some("1"));
    assert_eq!(few.header.get("percent_eligible_relays"), Some("50"));
    put(&mut results, 2, rates);
    let enough = file(&results, BEGIN).expect("a file");
    let votes = enough
        .relays
        .iter()
        .map(|line| (line.votes, line.bandwidth));
    let measured = (true, 900);
    assert_eq!(
        votes.collect::<Vec<_>>(),
        [measured, measured, measured, (false, 1)]
    );
    assert_eq!(line(&enough, 3).more.get("unmeasured"), Some("1"));
    assert_eq!(line(&enough, 3).more.get("error_circ"), Some("2"));
    assert_eq!(BandwidthFile::parse(&enough.to_string()), Ok(enough));
    assert_eq!(file(&results, BEGIN + DAY + 1), None, "it has stopped");
}

/// Results that are a relay's own.
fn settled(relay: Key, rate: u64) -> impl Iterator<Item = Outcome> {
    let rates = Ok(Rates {
        down: rate,
        up: rate,
    });
    let places = [Place::First, Place::Middle, Place::First, Place::Middle];
    let places = places.into_iter();
    places.map(move |place| outcome(BEGIN - 400, relay, place, rates))
}

#[test]
fn a_relay_that_a_slow_partner_may_have_limited_is_measured_again_sooner_until_that_one_has_shown_more()
 {
    let config = Config {
        pause: 400,
        ..Config::default()
    };
    let relays = [1_000_000; 6].map(honest);
    let rate_of_limited = Ok(Rates { down: 50, up: 50 });
    let limited = |place, path: &[usize]| Outcome {
        at: BEGIN - 400,
        of: Measurement {
            relay: identity(5),
            place,
            path: path.iter().copied().map(identity).collect(),
        },
        rates: rate_of_limited,
    };
    let mut results = Results::default();
    let others = (0..4).flat_map(|number| settled(identity(number), 100));
    let slow = settled(identity(4), 50);
    others.chain(slow).for_each(|one| results.put(one));
    for _ in 0..2 {
        results.put(limited(Place::First, &[5, 4]));
        results.put(limited(Place::Middle, &[4, 5, 0]));
    }
    let due = |results: &Results, now| {
        let mut scanner = Scanner::new(config, results.clone());
        scanner.renew(relays.iter().enumerate().map(candidate).collect());
        scanner
            .next(now, &mut draws(1))
            .map(|measurement| measurement.relay)
    };
    assert_eq!(due(&results, BEGIN - 301), None);
    assert_eq!(due(&results, BEGIN - 300), Some(identity(5)));
    assert_eq!(Estimates::of(&results).capacity(&identity(5)), Some(50));
    let more = Ok(Rates { down: 100, up: 100 });
    results.put(outcome(BEGIN - 400, identity(4), Place::First, more));
    assert_eq!(due(&results, BEGIN - 300), None, "it was as slow as that");
}

#[test]
fn a_relay_that_failed_is_tried_again_sooner_and_nobody_twice_at_once() {
    let relays = [1_000_000; 6].map(honest);
    let config = Config {
        pause: 400,
        at_once: 2,
        ..Config::default()
    };
    let settled = |number| settled(identity(number), 1);
    let mut results = Results::default();
    (0..relays.len())
        .flat_map(settled)
        .for_each(|one| results.put(one));
    let mut scanner = Scanner::new(config, results);
    scanner.renew(relays.iter().enumerate().map(candidate).collect());
    let mut random = draws(1);
    let mut next = |scanner: &mut Scanner, now| scanner.next(now, &mut random);
    let (first, second) = (next(&mut scanner, BEGIN), next(&mut scanner, BEGIN));
    let (first, second) = (first.expect("one"), second.expect("another"));
    let both: BTreeSet<_> = first.path.iter().chain(&second.path).collect();
    assert_eq!(both.len(), 6, "nobody twice");
    assert_eq!(next(&mut scanner, BEGIN), None, "two at once");
    let over = |of, rates| Outcome {
        at: BEGIN,
        of,
        rates,
    };
    let rates = Ok(Rates { down: 1, up: 1 });
    let failed = first.relay;
    scanner.measured(&over(first, Err(Failure::Stream)));
    scanner.measured(&over(second, rates));
    while let Some(other) = next(&mut scanner, BEGIN) {
        scanner.measured(&over(other, rates));
    }
    let mut due = |now| next(&mut scanner, now).map(|next| next.relay);
    assert_eq!(due(BEGIN + 99), None);
    assert_eq!(due(BEGIN + 100), Some(failed));
    assert_eq!(due(BEGIN + 399), None);
    assert!(due(BEGIN + 400).is_some());
}

#[test]
fn results_are_bounded_and_grow_old() {
    let mut results = Results::default();
    let relay = identity(1);
    for at in 0..100 {
        results.put(outcome(at, relay, Place::First, Err(Failure::Circuit)));
    }
    assert_eq!(results.of(&relay).count(), RESULTS);
    assert_eq!(
        results.of(&relay).next().map(|outcome| outcome.at),
        Some(68)
    );
    results.forget_before(&relay, 100);
    assert_eq!(results.iter().count(), 0);
}

/// A network in which nobody was measured before.
fn unmeasured_network() -> impl Strategy<Value = Vec<Modelled>> {
    // From 100 kB/s to 25 MB/s; what it says is up to ten times as much, or all say the same; one of ten serves the scanner better.
    let relay = (0..32u32, 1..=10u64, 0..10u8, 0..4u8);
    let relay = relay.prop_map(|(size, lie, cheat, exit)| {
        let carries = (0..size).fold(100_000, |rate, _| rate * 119 / 100);
        Modelled {
            carries,
            for_scanner: if cheat == 0 { carries * 10 } else { carries },
            says: carries * lie,
            exits: exit > 0,
            ..honest(carries)
        }
    });
    let relays = proptest::collection::vec(relay, 8..30);
    (relays, any::<bool>()).prop_map(|(mut relays, say_nothing)| {
        for relay in &mut relays {
            relay.says = if say_nothing { 1 << 40 } else { relay.says };
        }
        relays
    })
}

/// Whether relays are there that can show what a relay carries: exits and others, half as fast again.
fn can_be_shown(relays: &[Modelled], relay: &Modelled) -> bool {
    let faster = relays
        .iter()
        .filter(|other| other.carries * 2 >= relay.carries * 3);
    let exits = faster.clone().filter(|other| other.exits).count();
    exits >= 3 && faster.count() >= 4
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever says what, whoever is measured first: after six rounds each relay counts for what it carries.
    #[test]
    fn from_nothing_known_six_rounds_tell_what_relays_carry(relays in unmeasured_network(), seed in 1u64..) {
        let config = Config { pause: 600, at_once: 2, ..Config::default() };
        let mut world = World::new(config, &relays, seed);
        world.run(BEGIN + 6 * 600);
        let estimates = Estimates::of(world.scanner.results());
        for (number, relay) in relays.iter().enumerate().filter(|(_, relay)| can_be_shown(&relays, relay)) {
            let found = estimates.capacity(&identity(number));
            let off = off(found.expect("measured"), relay.carries);
            // Who serves the scanner well where it can tell, and others badly, may have less.
            let is_honest = relay.for_scanner == relay.carries;
            prop_assert!(off <= 15 && (off >= -15 || !is_honest), "{off} % of {number}");
        }
    }
}

proptest! {
    /// Whatever relays there are: a circuit has no relay twice, ends at one that exits, and has the relay where it says.
    #[test]
    fn circuits_lead_over_different_relays_to_an_exit(exits in proptest::collection::vec(any::<bool>(), 1..8), rounds in 1..20u64, seed in 1u64..) {
        let relays = exits.iter().map(|exits| Modelled { exits: *exits, ..honest(1000) });
        let relays: Vec<_> = relays.collect();
        let config = Config { pause: 1, at_once: 100, ..Config::default() };
        let mut scanner = Scanner::new(config, Results::default());
        scanner.renew(relays.iter().enumerate().map(candidate).collect());
        let mut random = draws(seed);
        for now in 0..rounds {
            while let Some(of) = scanner.next(now * 2, &mut random) {
                let Measurement { relay, place, path } = &of;
                let different: BTreeSet<_> = path.iter().collect();
                prop_assert_eq!(different.len(), path.len());
                let last = path.last().expect("one");
                prop_assert!(exits[World::number(last)]);
                let stands = match *place { Place::First => 0, Place::Middle => 1, Place::Last => path.len() - 1 };
                prop_assert_eq!(path[stands], *relay);
                prop_assert_eq!(path.len(), if *place == Place::Middle { 3 } else { 2 });
                let rates = if seed.is_multiple_of(3) { Err(Failure::Circuit) } else { Ok(Rates { down: 5, up: 5 }) };
                scanner.measured(&Outcome { at: now * 2, of, rates });
            }
        }
    }
}
