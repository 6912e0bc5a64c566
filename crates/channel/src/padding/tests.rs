//! The padder in virtual time: what a recorder of flows would see, and what either peer can make it do.

use proptest::{collection::vec, prelude::*};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// One end, and the cells that it has sent.
struct Bench {
    padder: Padder,
    now: Instant,
    sent: Instant,
    circuits: usize,
    padded: Vec<Instant>,
    told: Vec<PaddingNegotiate>,
    seed: u64,
}

fn next(seed: &mut u64, most: u32) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    u32::try_from(*seed >> 33).unwrap() % most.max(1)
}

fn bench(end: PaddingEnd, mode: PaddingMode, seed: u64) -> Bench {
    let (mut seed, now) = (seed, Instant::now());
    let random = &mut |most| next(&mut seed, most);
    let padder = Padder::new(end, mode, &PaddingParameters::default(), random);
    Bench {
        padder,
        now,
        sent: now,
        circuits: 1,
        padded: Vec::new(),
        told: Vec::new(),
        seed,
    }
}

impl Bench {
    /// Does what the padder wants until `end`, and then sends a cell of a circuit.
    fn until(&mut self, end: Instant) {
        loop {
            let random = &mut |most| next(&mut self.seed, most);
            let look = self.padder.look(self.now, self.sent, self.circuits, random);
            match look {
                Look::Send(cell) => {
                    match cell.command {
                        Command::PADDING => self.padded.push(self.now),
                        _ => self.told.extend(PaddingNegotiate::parse(&cell.body)),
                    }
                    assert!(cell.circuit.is_channel());
                    self.sent = self.now;
                }
                Look::At(when) if when <= end => {
                    assert!(when > self.now, "it looks without end");
                    self.now = when;
                }
                _ => break,
            }
        }
        self.now = end;
    }

    fn run(&mut self, time: Duration) {
        self.until(self.now + time);
    }

    fn cell(&mut self) {
        self.sent = self.now;
    }

    /// Times between cells that were padding, in milliseconds.
    fn gaps(&self) -> Vec<u128> {
        let pairs = self.padded.windows(2);
        pairs.map(|pair| (pair[1] - pair[0]).as_millis()).collect()
    }
}

proptest! {
    #[test]
    fn no_flow_is_quiet_for_longer_than_the_longest_time_and_no_padding_comes_before_the_shortest(
        waits in vec(0u64..12_000, 1..60), seed: u64, guard: bool,
    ) {
        let end = if guard { PaddingEnd::Guard } else { PaddingEnd::Client };
        let mut bench = bench(end, PaddingMode::Auto, seed);
        let mut cells = vec![bench.now];
        for wait in waits {
            bench.run(Duration::from_millis(wait));
            bench.cell();
            cells.push(bench.now);
        }
        for padding in &bench.padded {
            let before = cells.iter().filter(|cell| *cell < padding).max().unwrap();
            prop_assert!(*padding - *before >= 1500 * MS);
            let padded = bench.padded.iter().filter(|other| *other < padding).max();
            prop_assert!(padded.is_none_or(|other| *padding - *other >= 1500 * MS));
        }
        cells.extend(&bench.padded);
        cells.sort_unstable();
        for pair in cells.windows(2) {
            prop_assert!(pair[1] - pair[0] <= 9500 * MS);
        }
    }

    #[test]
    fn whatever_a_consensus_says_times_are_bounded(values in vec(any::<i32>(), 5)) {
        let names = ["nf_ito_low", "nf_ito_high", "nf_ito_low_reduced", "nf_ito_high_reduced", "nf_conntimeout_clients"];
        let value = |name: &str| names.iter().position(|known| *known == name).map(|at| values[at]);
        let parameters = PaddingParameters::of(value);
        for times in [parameters.usual, parameters.reduced].into_iter().flatten() {
            prop_assert!(times.low <= times.high && times.high <= 60 * SECOND);
        }
        prop_assert!(parameters.open >= 60 * SECOND && parameters.open <= 86_400 * SECOND);
    }
}

#[test]
fn padding_is_as_frequent_as_the_specification_says() {
    let mut bench = bench(PaddingEnd::Client, PaddingMode::Auto, 7);
    bench.run(60_000 * SECOND);
    let gaps = bench.gaps();
    let mean = gaps.iter().sum::<u128>() / u128::try_from(gaps.len()).unwrap();
    // 1500 and two thirds of 8000.
    assert!((6780..=6890).contains(&mean), "{mean}");
}

#[test]
fn a_busy_channel_is_not_padded() {
    let mut bench = bench(PaddingEnd::Guard, PaddingMode::Auto, 1);
    for _ in 0..1000 {
        bench.run(SECOND);
        bench.cell();
    }
    assert_eq!(bench.padded, []);
}

#[test]
fn a_channel_without_circuits_is_padded_for_as_long_as_it_may_be_kept_and_then_not() {
    for (end, mode, least, most) in [
        (PaddingEnd::Client, PaddingMode::Auto, 1800, 3600),
        (PaddingEnd::Guard, PaddingMode::Auto, 3600, 3600),
        (PaddingEnd::Client, PaddingMode::Reduced, 900, 1800),
    ] {
        let mut bench = bench(end, mode, 3);
        bench.circuits = 0;
        let start = bench.now;
        bench.run(10_000 * SECOND);
        let last = (*bench.padded.last().unwrap() - start).as_secs();
        assert!((least - 14..=most).contains(&last), "{end:?}: {last}");
        let count = bench.padded.len();
        bench.circuits = 1;
        bench.run(60 * SECOND);
        assert!(
            bench.padded.len() > count,
            "a circuit begins, and so does padding"
        );
    }
}

#[test]
fn a_client_tells_its_guard_first_what_it_does_not_want() {
    let told = |mode| {
        let mut bench = bench(PaddingEnd::Client, mode, 1);
        bench.run(600 * SECOND);
        (bench.told.clone(), bench.gaps())
    };
    let (said, gaps) = told(PaddingMode::Auto);
    assert!(said.is_empty() && gaps.len() > 60);
    let (said, gaps) = told(PaddingMode::Reduced);
    assert_eq!(said, [PaddingNegotiate::Stop]);
    assert!(gaps.len() > 30 && gaps.iter().all(|gap| (9000..14_000).contains(gap)));
    assert_eq!(
        told(PaddingMode::Off),
        (vec![PaddingNegotiate::Stop], vec![])
    );
}

#[test]
fn a_guard_obeys_its_client_but_never_pads_more_often_than_by_itself() {
    let mut bench = bench(PaddingEnd::Guard, PaddingMode::Auto, 1);
    bench.padder.negotiated(PaddingNegotiate::Stop).unwrap();
    bench.run(600 * SECOND);
    assert_eq!(bench.padded, []);
    let mut start = |low, high, least, most| {
        let [low, high] = [low, high].map(|ms: u64| Duration::from_millis(ms));
        let start = PaddingNegotiate::Start { low, high };
        bench.padder.negotiated(start).unwrap();
        bench.padded.clear();
        bench.run(600 * SECOND);
        let gaps = bench.gaps();
        let within = |gap: &u128| (least..=most).contains(gap);
        assert!(gaps.len() > 5 && gaps.iter().all(within), "{gaps:?}");
    };
    start(0, 0, 1500, 9500);
    start(1, 2, 1500, 1500);
    start(3000, 20, 3000, 3000);
    start(20_000, 30_000, 20_000, 30_000);
    start(65_535, 65_535, 65_535, 65_535);
}

#[test]
fn a_guard_that_does_not_pad_cannot_be_made_to() {
    let mut bench = bench(PaddingEnd::Guard, PaddingMode::Off, 1);
    let (low, high) = (2 * SECOND, 3 * SECOND);
    let start = PaddingNegotiate::Start { low, high };
    bench.padder.negotiated(start).unwrap();
    bench.run(600 * SECOND);
    assert_eq!(bench.padded, []);
}

#[test]
fn a_relay_that_negotiates_with_a_client_broke_the_protocol_and_between_relays_nothing_is_padded() {
    let mut client = bench(PaddingEnd::Client, PaddingMode::Auto, 1);
    let refused = client.padder.negotiated(PaddingNegotiate::Stop);
    assert!(matches!(refused, Err(Why::Violation(_))));
    let mut relay = bench(PaddingEnd::Neither, PaddingMode::Auto, 1);
    let (low, high) = (SECOND, SECOND);
    let start = PaddingNegotiate::Start { low, high };
    relay.padder.negotiated(start).unwrap();
    relay.run(600 * SECOND);
    assert_eq!((relay.padded, relay.told), (vec![], vec![]));
}

#[test]
fn ends_are_told_by_who_has_shown_an_identity() {
    assert_eq!(PaddingEnd::of(5, false, true), PaddingEnd::Client);
    assert_eq!(PaddingEnd::of(5, true, false), PaddingEnd::Guard);
    assert_eq!(PaddingEnd::of(5, true, true), PaddingEnd::Neither);
    assert_eq!(PaddingEnd::of(4, true, false), PaddingEnd::Neither);
}

#[test]
fn parameters_that_are_both_zero_turn_padding_off() {
    let off = PaddingParameters::of(|name| name.starts_with("nf_ito").then_some(0));
    assert_eq!((off.usual, off.reduced), (None, None));
}
