//! Two channels over one bottleneck: the line of the relay that both go to, with a queue that drops the newest.

use std::fmt;

use hoplite_sim::random::Random;

use super::*;

/// Circuits that send on each channel: one alone may send 512 kB ahead of its reader.
const CIRCUITS: usize = 4;
/// The bytes of a cell.
const CELL: usize = 514;
/// No bottleneck.
const WIDE: Access = Access {
    up: 1_250_000_000,
    down: 1_250_000_000,
    queue: 64 << 20,
};

/// What two channels share, and how they are controlled.
#[derive(Clone, Copy)]
struct Case {
    megabits: u64,
    rtt_ms: u64,
    /// In products of rate and round trip.
    queue: f64,
    loss: f64,
    controls: [Congestion; 2],
    /// They begin within this time, each at a moment of its own.
    begin: Duration,
    /// So long after it cells are counted.
    settle: Duration,
    counted: Duration,
}

/// Cells that came.
type Tally = Arc<AtomicUsize>;

impl Case {
    /// What the bottleneck sends in a round trip, in bytes.
    fn product(&self) -> u64 {
        self.megabits * 125 * self.rtt_ms
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "at most some megabytes"
    )]
    fn bottleneck(&self) -> Access {
        Access {
            down: self.megabits * 125_000,
            queue: (self.queue * self.product() as f64) as u64,
            ..WIDE
        }
    }

    /// Megabits a second that each of the two was brought.
    async fn shares(&self, seed: u64) -> [f64; 2] {
        let network = Network::new(seed, self.loss);
        let far = network.add(Place::apart(0.0), self.bottleneck());
        let mut tasks = JoinSet::new();
        let mut random = Random::new(seed, "beginnings", 0);
        let tallies = [Tally::default(), Tally::default()];
        for (number, (control, tally)) in (0u8..).zip(self.controls.iter().zip(&tallies)) {
            let way = Duration::from_millis(self.rtt_ms).as_secs_f64() * 500.0;
            let plan = Plan {
                near: network.add(Place::apart(way), WIDE),
                address: SocketAddr::new(Network::address(far), 443 + u16::from(number)),
                how: How::Quic,
                congestion: *control,
                seed: 2 * number + 1,
            };
            let begins = random.within(self.begin);
            tasks.spawn(busy(network.clone(), plan, begins, Arc::clone(tally)));
        }
        sleep(self.begin + self.settle).await;
        let before = tallies.each_ref().map(|tally| tally.load(Relaxed));
        sleep(self.counted).await;
        let after = tallies.each_ref().map(|tally| tally.load(Relaxed));
        assert!(network.ledger().is_balanced());
        [0, 1].map(|which| self.rate(after[which] - before[which]))
    }

    #[expect(clippy::cast_precision_loss, reason = "few")]
    fn rate(&self, cells: usize) -> f64 {
        (cells * CELL * 8) as f64 / 1e6 / self.counted.as_secs_f64()
    }
}

/// A channel that sends all that it can, from `begins` on and for ever.
async fn busy(network: Network, plan: Plan, begins: Duration, tally: Tally) {
    sleep(begins).await;
    let mut tasks = JoinSet::new();
    let (near, far, _) = plan.dialled(&network, &mut tasks).await;
    for _ in 0..CIRCUITS {
        let (mut here, mut there) = circuit(&near, &far).await;
        let tally = Arc::clone(&tally);
        tasks.spawn(async move {
            send(&mut here.sender, usize::MAX).await;
            drop(here);
        });
        tasks.spawn(async move {
            while there.receiver.recv().await.is_some() {
                tally.fetch_add(1, Relaxed);
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// The median, and the least and the most.
struct Spread([f64; 3]);

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (half, last) = (values.len() / 2, values.len() - 1);
        let median = f64::midpoint(values[last - half], values[half]);
        Self([median, values[0], values[last]])
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([median, least, most]) = self;
        write!(f, "{median:.1} ({least:.1}–{most:.1})")
    }
}

/// Runs on a runtime of its own, whose clock leaps.
fn outcome(case: &Case, seed: u64) -> [f64; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("made").block_on(case.shares(seed))
}

/// One line of the table: what the first of the two gets of what both get, and megabits a second of each.
#[expect(clippy::print_stdout, reason = "a study's table")]
fn tell(case: &Case, seeds: u64) {
    let outcomes: Vec<_> = (1..=seeds).map(|seed| outcome(case, seed)).collect();
    let share = |[one, other]: &[f64; 2]| 100.0 * one / (one + other);
    let share = Spread::of(outcomes.iter().map(share).collect());
    let rates = [0, 1].map(|which| Spread::of(outcomes.iter().map(|both| both[which]).collect()));
    let Case {
        megabits,
        rtt_ms,
        queue,
        loss,
        controls: [one, other],
        ..
    } = case;
    println!(
        "| {megabits} | {rtt_ms} | {queue} | {loss} | {one:?}, {other:?} | {share} | {} | {} |",
        rates[0], rates[1]
    );
}

/// All of these queues, with and without loss.
fn study(megabits: u64, queues: &[f64], seeds: u64) {
    use Congestion::{Auto, Cubic};
    for loss in [0.0, 0.01] {
        for rtt_ms in [20, 40] {
            for queue in queues {
                for controls in [[Auto, Cubic], [Auto, Auto], [Cubic, Cubic]] {
                    let case = Case {
                        megabits,
                        rtt_ms,
                        queue: *queue,
                        loss,
                        controls,
                        begin: Duration::from_secs(10),
                        settle: Duration::from_secs(5),
                        counted: Duration::from_secs(60),
                    };
                    tell(&case, seeds);
                }
            }
        }
    }
}

#[test]
#[ignore = "a study of minutes: cargo test --release -p hoplite-sim --test channel -- --ignored --nocapture"]
fn shares_of_ten_megabits() {
    study(10, &[0.25, 1.0, 1.5], 10);
}

#[test]
#[ignore = "likewise"]
fn shares_of_a_hundred_megabits() {
    study(100, &[0.25, 1.0, 1.5], 5);
}

#[test]
#[ignore = "likewise"]
fn shares_where_there_is_next_to_no_queue() {
    study(100, &[0.05, 0.1], 5);
}

/// 10 Mbit/s, 40 ms, a queue of one product, nothing lost but by the queue.
const SHARED: Case = Case {
    megabits: 10,
    rtt_ms: 40,
    queue: 1.0,
    loss: 0.0,
    controls: [Congestion::Auto, Congestion::Cubic],
    begin: Duration::from_secs(1),
    settle: Duration::from_secs(4),
    counted: Duration::from_secs(15),
};

#[test]
fn beside_cubic_a_channel_that_forgives_chance_takes_its_half_of_a_bottleneck() {
    // Who of two that are alike has more in one run is chance.
    let (mut auto, mut cubic) = (0.0, 0.0);
    for seed in 1..=6 {
        let [ours, other] = outcome(&SHARED, seed);
        assert!(ours + other > 9.0, "{ours} and {other} Mbit/s of 10");
        auto += ours;
        cubic += other;
    }
    let share = auto / (auto + cubic);
    assert!((0.4..0.6).contains(&share), "{share} of the bottleneck");
}

#[test]
fn on_a_lossy_path_it_takes_what_cubic_leaves_and_nothing_of_what_cubic_has() {
    let lossy = Case {
        loss: 0.01,
        ..SHARED
    };
    let [auto, cubic] = outcome(&lossy, 1);
    let controls = [Congestion::Cubic; 2];
    let [other, alone] = outcome(&Case { controls, ..lossy }, 1);
    assert!(auto > 1.5 * other, "{auto} instead of {other} Mbit/s");
    assert!(cubic > 0.8 * alone, "{cubic} instead of {alone} Mbit/s");
}
