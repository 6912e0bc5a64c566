//! `hoplite demo`: three relays and a client on this machine, a real download and a UDP echo through 0 to 3 hops, one table.
//! With `--overlay onion` the same by circuits, which refuse UDP.
//! The first thing a new user runs, and what CI runs. Needs no root and no file; relays and client are processes of their own.

use std::time::Duration;

use clap::{Args, ValueEnum};
use hoplite_link::LinkKind;
use hoplite_workload::{
    cpu::{Meter, Watched},
    datagrams::{Echo, UdpTarget},
    socks,
    statistics::median,
    web::{WebServer, download},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::testbed::{Node, Over, Relays};
use crate::{process, say, say::Failure, say::Table};

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// What carries the traffic.
    #[arg(long, value_name = "OVERLAY", value_enum, default_value_t = Overlay::Masque)]
    overlay: Overlay,
    /// How many MiB are downloaded through each path.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// The numbers of hops, 0 to 3.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 1, 2, 3], value_parser = clap::value_parser!(u8).range(0..=3))]
    hops: Vec<u8>,
}

/// What the traffic is carried by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Overlay {
    /// Nested hops: TCP and UDP.
    Masque,
    /// Circuits of Tor's cells, over QUIC: TCP alone, UDP is refused.
    Onion,
}

/// Round trips whose median is the UDP row's time to the first byte.
const ROUND_TRIPS: usize = 50;

/// The targets, the relays, and what to do with them.
struct Demo {
    options: Options,
    web: WebServer,
    echo: UdpTarget,
    relays: Relays,
    bar: ProgressBar,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let options = options.clone();
    process::interruptible("the demo", move || {
        let rows = Demo::start(options)?.rows(json)?;
        if !json {
            say::answer(table(&rows))?;
        }
        let failed = rows.iter().filter(|row| !row.ok()).count();
        match failed {
            0 => Ok(()),
            n => Err(Failure::new(
                "the demo",
                format!("{n} of {} transfers failed", rows.len()),
                "run it again with HOPLITE_LOG=debug",
            )),
        }
    })
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::new("the demo", error, "run it again with HOPLITE_LOG=debug")
}

impl Demo {
    fn start(options: Options) -> Result<Self, Failure> {
        let most = options.hops.iter().max().copied().unwrap_or(0);
        Ok(Self {
            web: WebServer::start(options.bytes()).map_err(|error| broken(&error))?,
            echo: UdpTarget::echo().map_err(|error| broken(&error))?,
            relays: Relays::start(most.into(), options.overlay.into())?,
            bar: bar(options.bytes() * options.hops.len() as u64),
            options,
        })
    }

    fn rows(&self, json: bool) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for &hops in &self.options.hops {
            self.bar.set_message(format!("{hops} hop(s)"));
            let client = self.relays.client(hops.into(), "")?;
            let watched = self.relays.watched(&client, hops.into());
            for proto in [Proto::Tcp, Proto::Udp] {
                let row = self.row(hops, proto, &client, &watched);
                if json {
                    say::json(&row)?;
                }
                rows.push(row);
            }
        }
        self.bar.finish_and_clear();
        Ok(rows)
    }

    fn row(&self, hops: u8, proto: Proto, client: &Node, watched: &[Watched]) -> Row {
        let circuits = self.options.overlay == Overlay::Onion && hops > 0;
        match proto {
            Proto::Udp if circuits => self.refusal(hops, client),
            _ => Row::new(hops, proto, self.measure(proto, client, watched)),
        }
    }

    /// Circuits carry no UDP: that is to be said at once, and not by silence.
    fn refusal(&self, hops: u8, client: &Node) -> Row {
        match socks::associate(client.ready().listen) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                Row::refused(hops, Proto::Udp)
            }
            Err(error) => Row::new(hops, Proto::Udp, Err(error.to_string())),
            Ok(_) => Row::new(hops, Proto::Udp, Err("circuits took UDP".into())),
        }
    }

    fn measure(&self, proto: Proto, client: &Node, watched: &[Watched]) -> Result<Outcome, String> {
        let outcome = match proto {
            Proto::Tcp => self.download(client, watched),
            Proto::Udp => self.echo(client, watched),
        };
        outcome.map_err(|error| error.to_string())
    }

    /// A download that is checked; a small one before it warms the path up.
    fn download(&self, client: &Node, watched: &[Watched]) -> std::io::Result<Outcome> {
        let proxy = client.ready().listen;
        let fetch = |size, bar: &ProgressBar| {
            let connect = || socks::connect(proxy, None, self.web.address());
            download(connect, size, |n| bar.inc(n))
        };
        fetch(1000, &ProgressBar::hidden())?;
        let size = self.options.bytes();
        let meter = Meter::start(watched)?;
        let got = fetch(size, &self.bar)?;
        let cpu = meter.stop()?;
        Ok(Outcome::new(got.first_byte, size, got.whole, &cpu))
    }

    /// Round trips, then many datagrams; one in a hundred may be lost.
    fn echo(&self, client: &Node, watched: &[Watched]) -> std::io::Result<Outcome> {
        let mut echo = Echo::open(client.ready().listen, self.echo.address())?;
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            times.extend(echo.round_trip()?.map(|time| time.as_secs_f64()));
        }
        let middle = median(&times).map(Duration::from_secs_f64);
        let middle = middle.ok_or_else(|| std::io::Error::other("no UDP datagram came back"))?;
        let meter = Meter::start(watched)?;
        let count = self.options.datagrams();
        let echoed = echo.stream(count)?;
        let cpu = meter.stop()?;
        if echoed.answers * 100 >= count * 99 {
            Ok(Outcome::new(middle, echoed.bytes, echoed.time, &cpu))
        } else {
            Err(std::io::Error::other(format!(
                "{} of {count} datagrams came back",
                echoed.answers
            )))
        }
    }
}

impl Options {
    fn bytes(&self) -> u64 {
        self.mib << 20
    }

    /// Enough for a figure, and not longer than the download.
    fn datagrams(&self) -> usize {
        usize::try_from(self.mib * 100)
            .unwrap_or(usize::MAX)
            .clamp(200, 20_000)
    }
}

impl From<Overlay> for Over {
    fn from(overlay: Overlay) -> Self {
        match overlay {
            Overlay::Masque => Self::Masque,
            Overlay::Onion => Self::Onion(LinkKind::Quic),
        }
    }
}

/// On stderr, and only on a terminal.
fn bar(bytes: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:9} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    let bar = ProgressBar::new(bytes);
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}

// One line of the demo: how a transfer through this many hops went. JSON for scripts (docs/command-line.md), a table for
// people.

/// What was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Proto {
    Tcp,
    Udp,
}

/// The figures of a transfer that worked.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Outcome {
    ttfb_ms: f64,
    goodput_bps: f64,
    /// Client and relays together.
    cpu_s_per_gb: f64,
}

/// One transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    hops: u8,
    proto: Proto,
    ok: bool,
    #[serde(flatten)]
    outcome: Option<Outcome>,
    /// The overlay cannot carry it, and said so: what it should do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Outcome {
    /// From what was measured.
    fn new(first: Duration, bytes: u64, time: Duration, cpu: &[(String, f64)]) -> Self {
        let spent: f64 = cpu.iter().map(|(_, spent)| spent).sum();
        let bytes = bytes as f64;
        Self {
            ttfb_ms: rounded(first.as_secs_f64() * 1e3),
            goodput_bps: (bytes * 8.0 / time.as_secs_f64()).round(),
            cpu_s_per_gb: rounded(spent / (bytes / 1e9)),
        }
    }
}

impl Row {
    /// A transfer that worked or did not.
    fn new(hops: u8, proto: Proto, outcome: Result<Outcome, String>) -> Self {
        let ok = outcome.is_ok();
        let (outcome, error) = match outcome {
            Ok(outcome) => (Some(outcome), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            hops,
            proto,
            ok,
            outcome,
            refused: false,
            error,
        }
    }

    /// A transfer that was refused at once, as it should be.
    fn refused(hops: u8, proto: Proto) -> Self {
        Self {
            refused: true,
            ok: true,
            ..Self::new(hops, proto, Err("refused: circuits carry TCP".into()))
        }
    }

    /// Whether it worked.
    fn ok(&self) -> bool {
        self.ok
    }

    fn cells(&self) -> Vec<String> {
        let proto = match self.proto {
            Proto::Tcp => "tcp download",
            Proto::Udp => "udp echo",
        };
        let mut cells = vec![self.hops.to_string(), proto.to_owned()];
        match &self.outcome {
            Some(outcome) => cells.extend([
                format!("{:.2}", outcome.ttfb_ms),
                format!("{:.2}", outcome.goodput_bps / 1e9),
                format!("{:.2}", outcome.cpu_s_per_gb),
                "ok".to_owned(),
            ]),
            None => {
                cells.extend(std::iter::repeat_n("-".to_owned(), 3));
                cells.push(self.error.clone().unwrap_or_default());
            }
        }
        cells
    }
}

/// What people read.
fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&["hops", "what", "first byte ms", "Gbit/s", "CPU s/GB", ""]);
    rows.iter().for_each(|row| table.row(row.cells()));
    let note = "CPU: client and relays together, the load generator left out; warm path, loopback.";
    format!("{}\n{note}", table.render())
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod row_tests {
    use super::*;

    #[test]
    fn json_lines_have_the_keys_of_the_contract() {
        let cpu = [("client".to_owned(), 1.0), ("relay1".to_owned(), 0.5)];
        let outcome = Outcome::new(
            Duration::from_millis(2),
            500_000_000,
            Duration::from_secs(2),
            &cpu,
        );
        let line = serde_json::to_value(Row::new(2, Proto::Tcp, Ok(outcome))).expect("JSON");
        let expected = serde_json::json!({"hops": 2, "proto": "tcp", "ok": true, "ttfb_ms": 2.0, "goodput_bps": 2e9, "cpu_s_per_gb": 3.0});
        assert_eq!(line, expected);
    }

    #[test]
    fn what_is_refused_as_it_should_be_has_no_figures_and_is_no_failure() {
        let row = Row::refused(3, Proto::Udp);
        let line = serde_json::to_value(&row).expect("JSON");
        assert!(row.ok() && line["refused"] == true && line.get("ttfb_ms").is_none());
        assert!(table(&[row]).contains("refused: circuits carry TCP"));
    }

    #[test]
    fn a_failed_transfer_says_why() {
        let row = Row::new(1, Proto::Udp, Err("no datagram came back".into()));
        let text = table(std::slice::from_ref(&row));
        assert!(
            !row.ok() && text.contains("no datagram came back"),
            "{text}"
        );
    }
}
