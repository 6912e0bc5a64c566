//! The machine alone: whose turn it is, and cells that no honest peer sends.

use std::{sync::Arc, time::Duration};

use bytes::{BufMut, BytesMut};
use hoplite_wire::cell::{self, Cell, CircuitId, Command, Reader};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{Mux, News};
use crate::{Config, Counts, ewma::Scale, ids::Ids, tests::harness};

const HIGH: u32 = 1 << 31;

struct Bench {
    mux: Mux,
    counts: Arc<Counts>,
    start: Instant,
}

fn bench(config: &Config) -> Bench {
    let (counts, start) = (Arc::<Counts>::default(), Instant::now());
    let ids = Ids::new(false, 1, config.circuits);
    let scale = Scale::new(start, config.half_life);
    Bench {
        mux: Mux::new(ids, scale, config, Arc::clone(&counts)),
        counts,
        start,
    }
}

fn numbered(circuit: u32, command: Command, number: u32) -> Cell {
    let id = CircuitId::new(circuit);
    Cell::new(id, command, |body| body.put_u32(number)).unwrap()
}

impl Bench {
    fn create(&mut self, number: u32) -> News {
        let create = numbered(HIGH | number, Command::CREATE2, number);
        self.mux.arrived(create).unwrap()
    }

    fn push(&mut self, news: &News, number: u32) {
        let cell = numbered(news.key.id.number(), Command::RELAY, number);
        if news.outbox.push(cell).unwrap() {
            self.mux.has_cells(news.key);
        }
    }

    /// All cells that go out at `after`, as (circuit without its high bit, command, number).
    fn take(&mut self, after: Duration, most: usize) -> Vec<(u32, Command, u32)> {
        let mut out = BytesMut::new();
        self.mux.take(self.start + after, most, &mut out);
        let mut reader = Reader::wide(cell::LARGEST_VARIABLE);
        reader.push(out);
        let cells = std::iter::from_fn(|| reader.next().unwrap());
        let told = |cell: Cell| {
            let id = cell.circuit.number() & !HIGH;
            (id, cell.command, harness::number(&cell))
        };
        cells.map(told).collect()
    }
}

const ALL: usize = 1 << 20;

#[test]
fn a_quiet_circuit_overtakes_a_loud_ones_queue() {
    let mut bench = bench(&Config::default());
    let (loud, quiet) = (bench.create(1), bench.create(2));
    (0..60).for_each(|number| bench.push(&loud, number));
    let first = bench.take(Duration::ZERO, 20 * cell::LEN);
    assert!(first.iter().all(|(id, ..)| *id == 1));
    (0..3).for_each(|number| bench.push(&quiet, number));
    let order: Vec<_> = bench.take(Duration::ZERO, 4 * cell::LEN);
    let expected = [(2, 0), (2, 1), (2, 2), (1, 20)];
    let order: Vec<_> = order.iter().map(|(id, _, number)| (*id, *number)).collect();
    assert_eq!(order, expected);
}

#[test]
fn equally_loud_circuits_take_turns() {
    let mut bench = bench(&Config::default());
    let circuits: Vec<_> = (1..=3).map(|number| bench.create(number)).collect();
    for number in 0..10 {
        circuits.iter().for_each(|news| bench.push(news, number));
    }
    let order = bench.take(Duration::ZERO, ALL);
    for (place, chunk) in order.chunks(3).enumerate() {
        let mut ids: Vec<_> = chunk.iter().map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3], "round {place}");
    }
}

#[test]
fn a_loud_past_is_forgotten_with_time() {
    let mut bench = bench(&Config::default());
    let (old, new) = (bench.create(1), bench.create(2));
    (0..60).for_each(|number| bench.push(&old, number));
    bench.take(Duration::ZERO, ALL);
    let later = Duration::from_secs(300);
    (0..10).for_each(|number| bench.push(&new, number));
    bench.take(later, ALL);
    bench.push(&new, 10);
    bench.push(&old, 60);
    assert_eq!(bench.take(later, cell::LEN).first().unwrap().0, 1);
}

#[test]
fn an_overfull_circuit_is_destroyed_at_both_ends_and_the_others_are_not() {
    let config = Config {
        inbox: 10,
        ..Config::default()
    };
    let mut bench = bench(&config);
    let (slow, other) = (bench.create(1), bench.create(2));
    for number in 0..20 {
        bench
            .mux
            .arrived(numbered(HIGH | 1, Command::RELAY, number));
    }
    assert_eq!(
        (bench.counts.overfull.get(), bench.counts.unknown.get()),
        (1, 10)
    );
    assert_eq!(
        bench.take(Duration::ZERO, ALL),
        [(1, Command::DESTROY, 5 << 24)]
    );
    assert_eq!(slow.inbox.pop().unwrap().command, Command::DESTROY);
    assert!(slow.inbox.pop().is_none() && slow.inbox.ended().is_some());
    bench.mux.arrived(numbered(HIGH | 2, Command::RELAY, 1));
    assert_eq!(other.inbox.len(), 2);
    assert_eq!(bench.mux.len(), 1);
}

#[test]
fn an_id_is_free_again_after_destroy_and_old_ends_do_not_touch_the_new_circuit() {
    let mut bench = bench(&Config::default());
    let old = bench.create(1);
    bench.mux.arrived(numbered(HIGH | 1, Command::DESTROY, 0));
    let new = bench.create(1);
    bench.push(&new, 7);
    bench.mux.abandon(old.key, false);
    bench.mux.destroy(old.key, 5);
    assert_eq!(bench.take(Duration::ZERO, ALL), [(1, Command::RELAY, 7)]);
    assert_eq!(bench.mux.len(), 1);
}

#[test]
fn an_abandoned_circuit_sends_its_queue_first_and_then_says_that_it_is_over() {
    let mut bench = bench(&Config::default());
    let news = bench.create(1);
    bench.push(&news, 7);
    bench.mux.abandon(news.key, false);
    let out = bench.take(Duration::ZERO, ALL);
    assert_eq!(out, [(1, Command::RELAY, 7), (1, Command::DESTROY, 0)]);
    assert_eq!(bench.mux.len(), 0);
}

#[test]
fn wrong_ids_and_collisions_are_refused_and_counted() {
    let config = Config {
        circuits: 1,
        ..Config::default()
    };
    let mut bench = bench(&config);
    let news = bench.create(1);
    for id in [7, HIGH | 1, HIGH | 2] {
        assert!(
            bench
                .mux
                .arrived(numbered(id, Command::CREATE2, 9))
                .is_none()
        );
    }
    let counts = &bench.counts;
    let counted = [&counts.wrong_ids, &counts.collisions, &counts.too_many];
    assert!(counted.iter().all(|count| count.get() == 1));
    let out = bench.take(Duration::ZERO, ALL);
    let refused = [
        (7, Command::DESTROY, 1 << 24),
        (2, Command::DESTROY, 5 << 24),
    ];
    assert_eq!(out, refused);
    assert_eq!(news.inbox.len(), 1);
}

#[test]
fn answers_are_bounded() {
    let config = Config {
        answers: 10,
        ..Config::default()
    };
    let mut bench = bench(&config);
    for id in 1..100 {
        bench.mux.arrived(numbered(id, Command::CREATE2, 0));
    }
    assert_eq!(bench.take(Duration::ZERO, ALL).len(), 10);
    assert_eq!(bench.counts.unanswered.get(), 89);
}

#[test]
fn what_says_nothing_is_ignored() {
    let mut bench = bench(&Config::default());
    let news = bench.create(1);
    for id in [0, HIGH | 1, HIGH | 9] {
        for command in [Command::NETINFO, Command(77), Command(200), Command::CERTS] {
            bench.mux.arrived(numbered(id, command, 0));
        }
        bench.mux.arrived(numbered(id, Command::PADDING, 0));
    }
    bench.mux.arrived(numbered(HIGH | 9, Command::RELAY, 0));
    assert_eq!(
        (bench.counts.ignored.get(), bench.counts.unknown.get()),
        (12, 1)
    );
    assert_eq!(news.inbox.len(), 1);
}

proptest! {
    #[test]
    fn whatever_comes_nothing_grows_beyond_its_bound(
        cells in proptest::collection::vec((0u32..6, any::<bool>(), 0u8..140), 0..400),
    ) {
        let config = Config { circuits: 3, inbox: 5, answers: 7, ..Config::default() };
        let mut bench = bench(&config);
        let mut held = Vec::new();
        for (id, high, command) in cells {
            let id = if high { HIGH | id } else { id };
            held.extend(bench.mux.arrived(numbered(id, Command(command), 0)));
            prop_assert!(bench.mux.len() <= 3);
            prop_assert!(held.iter().all(|news| news.inbox.len() <= 6));
        }
        prop_assert!(bench.take(Duration::ZERO, ALL).len() <= 7);
        for news in &held {
            bench.mux.abandon(news.key, true);
        }
        prop_assert_eq!(bench.mux.len(), 0);
    }
}
