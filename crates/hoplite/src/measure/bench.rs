//! `hoplite bench`: what a hop costs on this machine, beside the raw limit and plain TCP, all in one run.
//! For operators who plan, and for us: docs/performance.md is made of it. Relays and client are processes of their own;
//! the load generator is this process, and its CPU time is left out.

mod cases;
mod report;

use std::time::Duration;

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use hoplite_link::LinkKind;
use hoplite_workload::{datagrams::Dress, load::Target};

use super::{
    demo::Overlay,
    testbed::{Chain, Over},
};
use crate::{process, say, say::Failure};
use report::{Case, Key, Report, Sample, Samples};

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// With "onion": circuits over QUIC and over TLS, beside nested hops; datagrams are left out, as circuits carry none.
    #[arg(long, value_name = "OVERLAY", value_enum, default_value_t = Overlay::Masque)]
    overlay: Overlay,
    /// What circuits run over: "quic", "tls", or both in turn.
    #[arg(long, value_name = "CHANNEL,…", value_parser = PossibleValuesParser::new(["quic", "tls"]).try_map(|text| text.parse::<LinkKind>()), value_delimiter = ',', default_values_t = [LinkKind::Quic, LinkKind::Tls])]
    channel: Vec<LinkKind>,
    /// How long each transfer is measured, in seconds.
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// The numbers of hops, 0 to 4.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 1, 2], value_parser = clap::value_parser!(u8).range(0..=4))]
    hops: Vec<u8>,
    /// The numbers of parallel streams.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u8).range(1..=64))]
    streams: Vec<u8>,
    /// How often everything is measured; the median is shown, with the lowest and the highest.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    repetitions: u8,
    /// Only these cases.
    #[arg(long, value_name = "CASE,…", value_delimiter = ',')]
    only: Vec<Case>,
    /// How many idle clients the memory case opens.
    #[arg(long, value_name = "N", default_value_t = 200)]
    idle_clients: usize,
}

/// One run: what was asked, the target, and what was measured so far.
struct Bench {
    options: Options,
    target: Target,
    samples: Samples,
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || "expected seconds, from 0.05 to 600".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    (0.05..=600.0)
        .contains(&seconds)
        .then_some(seconds)
        .ok_or_else(wrong)
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let options = options.clone();
    if cfg!(debug_assertions) {
        say::remark(
            "hoplite: this is a debug build, its figures mean little: use cargo run --release",
        );
    }
    process::interruptible("measuring", move || {
        let target = Target::start().map_err(|error| broken(&error))?;
        let bench = Bench {
            options,
            target,
            samples: Samples::default(),
        };
        let samples = bench.measure()?;
        say::passing("");
        let report = Report::new(&samples);
        if json {
            report.lines().iter().try_for_each(say::json)
        } else {
            say::answer(report.table())
        }
    })
}

/// The load generator's own sockets fail.
fn broken(error: &std::io::Error) -> Failure {
    Failure::new(
        "measuring",
        error,
        "see the messages above; HOPLITE_LOG=debug shows more",
    )
}

impl Bench {
    fn measure(mut self) -> Result<Samples, Failure> {
        for _ in 0..self.options.repetitions {
            self.once()?;
        }
        Ok(self.samples)
    }

    fn once(&mut self) -> Result<(), Failure> {
        let window = self.window();
        self.note(Case::Raw, Over::Masque, 0, 1, |_| cases::raw_limit(window))?;
        for streams in self.options.streams.clone() {
            self.note(Case::Tcp, Over::Masque, 0, streams, |bench| {
                cases::plain_stream(&bench.target, streams, window)
            })?;
        }
        for hops in self.options.hops.clone() {
            for over in self.ways(hops) {
                self.hops(hops, over)?;
            }
        }
        if self.options.overlay == Overlay::Masque {
            self.datagrams(Case::Datagram1200, 1200, Dress::Plain)?;
            self.datagrams(Case::Forwarded1200, 1200, Dress::Quic)?;
            self.datagrams(Case::Datagram64, 64, Dress::Plain)?;
        }
        let clients = self.options.idle_clients;
        for over in self.ways(2) {
            self.note(Case::Memory, over, 2, 1, |bench| {
                cases::memory_of_a_relay(clients, over, &bench.target)
            })?;
        }
        Ok(())
    }

    /// What this many hops are measured over; without any there is only one way.
    fn ways(&self, hops: u8) -> Vec<Over> {
        let channels = self.options.channel.iter().copied().map(Over::Onion);
        let circuits = self.options.overlay == Overlay::Onion && hops > 0;
        let circuits = channels.filter(|_| circuits);
        std::iter::once(Over::Masque).chain(circuits).collect()
    }

    /// Everything that goes through one chain.
    fn hops(&mut self, hops: u8, over: Over) -> Result<(), Failure> {
        let wanted = [Case::Download, Case::Upload, Case::Paced, Case::Ttfb];
        if !wanted.into_iter().any(|case| self.wants(case)) {
            return Ok(());
        }
        let window = self.window();
        let chain = Chain::start(hops.into(), over)?;
        self.note(Case::Ttfb, over, hops, 1, |bench| {
            cases::first_byte(&chain, &bench.target)
        })?;
        for streams in self.options.streams.clone() {
            for (case, way) in [
                (Case::Download, cases::Way::Download),
                (Case::Upload, cases::Way::Upload),
                (Case::Paced, cases::Way::Paced),
            ] {
                self.note(case, over, hops, streams, |bench| {
                    cases::stream_through(&chain, &bench.target, way, streams, window)
                })?;
            }
        }
        Ok(())
    }

    fn datagrams(&mut self, case: Case, size: usize, dress: Dress) -> Result<(), Failure> {
        let window = self.window();
        self.note(case, Over::Masque, 1, 1, |_| {
            cases::flood(&Chain::start(1, Over::Masque)?, size, dress, window)
        })
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds)
    }

    fn wants(&self, case: Case) -> bool {
        let needed = matches!(case, Case::Raw | Case::Tcp);
        self.options.only.is_empty() || needed || self.options.only.contains(&case)
    }

    /// Measures a case if it is wanted, and keeps the sample.
    fn note(
        &mut self,
        case: Case,
        over: Over,
        hops: u8,
        streams: u8,
        measure: impl FnOnce(&Self) -> Result<Sample, Failure>,
    ) -> Result<(), Failure> {
        if !self.wants(case) {
            return Ok(());
        }
        let key = Key {
            case,
            over,
            hops,
            streams,
        };
        progress(&key);
        let sample = measure(self)?;
        self.samples.add(key, sample);
        Ok(())
    }
}

/// One line that the next one overwrites, on a terminal only.
fn progress(key: &Key) {
    let name = key
        .case
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    say::passing(format!(
        "measuring {name}: {} hop(s) ({}{}), {} stream(s)",
        key.hops,
        key.over.overlay(),
        key.over
            .channel()
            .map_or_else(String::new, |channel| format!(", {channel}")),
        key.streams
    ));
}
