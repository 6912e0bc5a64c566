//! `hoplite-lab calibrate`: the lab measures itself, in namespaces of its own, and says whether its figures may be believed here.
//! Each check builds a small network, measures it with plain sockets, and compares with what was asked for.
//!
//! Output: a line for each figure (JSON unless stdout is a terminal); the exit code is 0 only if every one is within its limits.

mod checks;

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, IsTerminal, Write},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    cli::CalibrateArgs,
    emulator::{self, Options, Port, Running},
    errors::{Complaint, Failure},
    experiments::{
        scenario::Gate,
        trial::{EmulatorHealth, LinkCount},
    },
    netns::{
        Host, Lab,
        user::{Entered, enter},
    },
    pulse::Beating,
    topology::{Direction, Link, Node, Topology},
};

/// One thing that is measured.
type Check = fn(&Effort, &mut dyn FnMut(Figure)) -> Result<(), Failure>;

/// All of them, in the order of their running.
const CHECKS: [(&str, Check); 7] = [
    ("setup", checks::check_setup),
    ("hash", checks::check_hash),
    ("rtt", checks::check_rtt),
    ("rate", checks::check_rate),
    ("loss", checks::check_loss),
    ("pps", checks::check_pps),
    ("hosts", checks::check_hosts),
];

/// How long the checks may take, and how often one is made again that a pause has spoilt.
#[derive(Clone, Copy, Debug)]
struct Effort {
    quick: bool,
    again: u32,
}

impl Effort {
    /// The time of one measurement.
    fn time(&self, quick: u64, thorough: u64) -> Duration {
        Duration::from_secs(if self.quick { quick } else { thorough })
    }
}

/// One result.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    /// Which check it belongs to.
    check: &'static str,
    /// What was asked of the lab, in `unit`.
    asked: f64,
    /// What was seen: the median where it is a distribution.
    median: f64,
    /// The 99th percentile; the same as the median where there is one value.
    p99: f64,
    /// Whether that is within the limits.
    ok: bool,
    /// Of the three figures.
    unit: &'static str,
    /// The longest time for which everything stood still meanwhile.
    #[serde(skip)]
    pause: Duration,
    /// What was special about this measurement, and what else was seen.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Figure {
    fn new(
        check: &'static str,
        unit: &'static str,
        asked: f64,
        median: f64,
        p99: f64,
        ok: bool,
    ) -> Self {
        let more = Map::new();
        Self {
            check,
            asked,
            median,
            p99,
            ok,
            unit,
            pause: Duration::ZERO,
            more,
        }
    }

    fn paused(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    fn with(mut self, name: &str, value: impl Serialize) -> Self {
        self.more.insert(name.to_owned(), json!(value));
        self
    }
}

/// Who stands still for so long has measured the pause: a virtual machine whose host has taken its processors, a process that was stopped.
const PAUSE: Duration = Duration::from_millis(20);

/// How often one looks.
const PULSE: Duration = Duration::from_millis(5);

/// A pulse that programs which want the processor do not stop: only who stops everything does.
fn pulse() -> Result<Beating, Failure> {
    let first = || {
        emulator::ask_for_priority();
    };
    Beating::start(PULSE, first).map_err(failed("starting the pulse"))
}

/// What a measurement comes to. One that is out of its limits, and that a pause has spoilt, is made again; the pauses are told.
fn unspoilt(
    effort: &Effort,
    mut measure: impl FnMut() -> Result<Figure, Failure>,
) -> Result<Figure, Failure> {
    let mut spoilt = Vec::new();
    loop {
        let figure = measure()?;
        let is_spoilt = !figure.ok && figure.pause >= PAUSE;
        if is_spoilt {
            spoilt.push((figure.pause.as_secs_f64() * 1e4).round() / 10.0);
        }
        if is_spoilt && spoilt.len() <= effort.again as usize {
            continue;
        }
        if spoilt.is_empty() {
            return Ok(figure);
        }
        return Ok(figure.with("spoilt_by_pauses_ms", spoilt));
    }
}

/// Runs the checks.
///
/// # Errors
/// A check that does not exist, a machine without namespaces or TUN, figures outside their limits.
pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let checks = chosen(&args.only)?;
    match enter()? {
        Entered::Inside => {}
        Entered::Over(status) if status.success() => return Ok(()),
        Entered::Over(status) => {
            let remedy = "see the lines above";
            return Err(Failure::new("calibrating", status, remedy));
        }
    }
    let effort = Effort {
        quick: args.quick,
        again: args.again,
    };
    let mut printer = Printer::new(args.json || !io::stdout().is_terminal(), checks.len());
    for (name, check) in checks {
        printer.begin(name);
        check(&effort, &mut |figure| printer.print(&figure))?;
        printer.bar.inc(1);
    }
    printer.finish()
}

fn chosen(only: &[String]) -> Result<Vec<(&'static str, Check)>, Failure> {
    let known = |name: &String| CHECKS.iter().any(|(check, _)| check == name);
    let wrong = only.iter().filter(|name| !known(name)).map(|name| {
        let remedy = "choose from setup, hash, rtt, rate, loss, pps, hosts";
        Complaint::new(
            "reading --only",
            format!("there is no check {name}"),
            remedy,
        )
    });
    let wrong: Vec<_> = wrong.collect();
    if !wrong.is_empty() {
        return Err(Failure::Wrong(wrong));
    }
    let wanted =
        |check: &&(&'static str, Check)| only.is_empty() || only.iter().any(|name| name == check.0);
    Ok(CHECKS.iter().filter(wanted).copied().collect())
}

/// Prints figures as they come.
struct Printer {
    json: bool,
    bar: ProgressBar,
    bad: Vec<String>,
    figures: usize,
}

impl Printer {
    fn new(json: bool, checks: usize) -> Self {
        let bar = if json {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(checks as u64)
        };
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            json,
            bar,
            bad: Vec::new(),
            figures: 0,
        }
    }

    fn begin(&mut self, name: &'static str) {
        self.bar.set_message(name);
    }

    fn print(&mut self, figure: &Figure) {
        let line = match (self.json, self.figures) {
            (true, _) => serde_json::to_string(figure).unwrap_or_default(),
            (false, 0) => format!("{HEAD}\n{figure}"),
            (false, _) => figure.to_string(),
        };
        self.figures += 1;
        if !figure.ok {
            let more = Value::Object(figure.more.clone());
            self.bad.push(format!(
                "{} {} {} {more}",
                figure.check, figure.median, figure.unit
            ));
        }
        // Nobody listens any more: the exit code still tells.
        self.bar
            .suspend(|| writeln!(io::stdout().lock(), "{line}"))
            .ok();
    }

    fn finish(self) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        if self.bad.is_empty() {
            return Ok(());
        }
        let why = format!(
            "{} of {} figures are outside their limits ({})",
            self.bad.len(),
            self.figures,
            self.bad.join("; ")
        );
        let remedy = "run a release build on a quiet machine, as root so that the emulator has real-time priority";
        Err(Failure::new("calibrating", why, remedy))
    }
}

const HEAD: &str = "check        asked     median        p99  unit";

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            check,
            asked,
            median,
            p99,
            unit,
            ..
        } = self;
        write!(
            f,
            "{check:<6} {asked:>11.3} {median:>10.3} {p99:>10.3}  {unit:<7}"
        )?;
        write!(f, " {}", if self.ok { "ok " } else { "BAD" })?;
        for (name, value) in &self.more {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// A failure of the bench itself.
fn failed(doing: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        Failure::new(
            doing,
            error,
            "look after free memory and limits of files and threads, and try again",
        )
    }
}

/// The middle of a star.
const ROUTER: &str = "core";

/// A network at work.
struct Bench {
    hosts: Vec<Arc<Host>>,
    running: Running,
    /// Packets that interfaces had dropped before.
    dropped: u64,
    pulse: Beating,
}

/// What it all came to.
struct Seen {
    links: Vec<LinkCount>,
    health: EmulatorHealth,
    pause: Duration,
}

/// Two hosts, `a` and `b`, and one link, the same both ways.
fn pair(direction: &Direction) -> Topology {
    Topology {
        nodes: ["a", "b"].map(Node::host).into(),
        links: vec![Link::between("a", "b", direction)],
    }
}

/// This many hosts around a router.
fn star(hosts: usize, direction: &Direction) -> Topology {
    let names: Vec<String> = (1..=hosts).map(|number| format!("h{number}")).collect();
    let nodes = names.iter().map(|name| Node::host(name));
    let link = |name: &String| Link::between(name, ROUTER, direction);
    Topology {
        nodes: nodes.chain([Node::router(ROUTER)]).collect(),
        links: names.iter().map(link).collect(),
    }
}

impl Bench {
    /// Builds the network and starts its emulator.
    fn new(topology: &Topology) -> Result<Self, Failure> {
        let metrics = ("net.ipv4.tcp_no_metrics_save".to_owned(), "1".to_owned());
        let sysctls = BTreeMap::from([metrics]);
        let (lab, tuns) = Lab::build(topology, &sysctls)?;
        let ports = tuns.into_iter().map(|tun| Port {
            node: tun.host,
            link: tun.link,
            fd: tun.fd,
        });
        let options = Options {
            seed: 1,
            directory: PathBuf::new(),
            record: Default::default(),
            tolerated: Gate::default().tolerated(),
        };
        let running = emulator::start(topology, ports.collect(), &topology.addresses(), &options);
        let mut bench = Self {
            hosts: lab.hosts().to_vec(),
            running: running.map_err(failed("starting the emulator"))?,
            dropped: 0,
            pulse: pulse()?,
        };
        bench.dropped = bench.dropped()?;
        Ok(bench)
    }

    /// The host of that number.
    fn host(&self, number: usize) -> Result<&Host, Failure> {
        let host = self.hosts.get(number).map(Arc::as_ref);
        host.ok_or_else(|| Failure::new("calibrating", "a host is missing", "please report this"))
    }

    /// Where the host listens.
    fn address(&self, number: usize, port: u16) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::from((self.host(number)?.addresses.v4, port)))
    }

    /// Something made on a thread inside the host.
    fn inside<T: Send>(
        &self,
        number: usize,
        make: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, Failure> {
        let made = self.host(number)?.enter(make).and_then(|made| made);
        made.map_err(failed("making a socket in a host"))
    }

    /// A UDP socket inside the host.
    fn udp(&self, number: usize, port: u16) -> Result<UdpSocket, Failure> {
        self.inside(number, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))
    }

    /// The measurement begins.
    fn begin(&self) {
        self.running.begin();
    }

    fn dropped(&self) -> Result<u64, Failure> {
        let dropped = self
            .hosts
            .iter()
            .map(|host| host.dropped())
            .sum::<io::Result<u64>>();
        dropped.map_err(failed("reading the counters of interfaces"))
    }

    /// Ends it all. What interfaces dropped, because nobody read them in time, are drops of the emulator's own.
    fn end(self) -> Result<Seen, Failure> {
        let pause = self.pulse.so_far().stood();
        let dropped = self.dropped()?.saturating_sub(self.dropped);
        let (links, mut health) = self.running.stop();
        health.own_drops += dropped;
        Ok(Seen {
            links,
            health,
            pause,
        })
    }
}

impl Seen {
    /// The figure with what the emulator says about itself.
    fn tell(&self, figure: Figure) -> Figure {
        let health = &self.health;
        figure
            .with("late_us_p99", health.late_us_p99)
            .with("late_us_max", health.late_us_max)
            .with("own_drops", health.own_drops)
            .with("stalls", health.stalls)
            .with("late_share", health.late_share)
            .with("real_time", health.real_time)
            .paused(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_does_not_exist_is_named_with_those_that_do() {
        let Err(Failure::Wrong(complaints)) = chosen(&["rtt".into(), "speed".into()]) else {
            panic!("it was taken");
        };
        assert!(complaints[0].why.contains("speed") && complaints[0].remedy.contains("hosts"));
        assert_eq!(chosen(&[]).unwrap().len(), CHECKS.len());
        assert_eq!(chosen(&["pps".into()]).unwrap()[0].0, "pps");
    }

    const EFFORT: Effort = Effort {
        quick: true,
        again: 2,
    };

    /// Measures: whether each measurement was within its limits, and the milliseconds of its longest pause. The figure, and how often it was made.
    fn measured(all: &[(bool, u64)]) -> (Figure, usize) {
        let mut made = 0;
        let measure = || {
            let (ok, pause) = all[made];
            made += 1;
            let figure = Figure::new("rtt", "ms", 20.0, made as f64, 20.9, ok);
            Ok(figure.paused(Duration::from_millis(pause)))
        };
        let figure = unspoilt(&EFFORT, measure).unwrap();
        (figure, made)
    }

    #[test]
    fn what_a_pause_has_spoilt_is_measured_again_and_told() {
        let (figure, made) = measured(&[(false, 112), (true, 3)]);
        assert_eq!((made, figure.ok, figure.median), (2, true, 2.0));
        assert_eq!(figure.more["spoilt_by_pauses_ms"], json!([112.0]));
        assert!(
            figure
                .to_string()
                .contains("ok  spoilt_by_pauses_ms=[112.0]"),
            "{figure}"
        );
    }

    #[test]
    fn a_machine_that_pauses_again_and_again_is_told_as_it_is() {
        let (figure, made) = measured(&[(false, 50), (false, 30), (false, 20), (true, 0)]);
        assert_eq!((made, figure.ok), (3, false));
        assert_eq!(
            figure.more["spoilt_by_pauses_ms"],
            json!([50.0, 30.0, 20.0])
        );
    }

    #[test]
    fn what_is_within_its_limits_or_bad_without_a_pause_is_measured_once() {
        for first in [(true, 500), (false, 19)] {
            let (figure, made) = measured(&[first, (true, 0)]);
            assert_eq!((made, figure.ok), (1, first.0));
            assert!(figure.more.is_empty());
        }
    }

    #[test]
    fn a_figure_is_one_flat_line_of_json() {
        let figure = Figure::new("rtt", "ms", 20.0, 20.1, 20.9, true).with("load_mbit", 10);
        let value: Value = serde_json::from_str(&serde_json::to_string(&figure).unwrap()).unwrap();
        let expected = json!({"check": "rtt", "asked": 20.0, "median": 20.1, "p99": 20.9, "ok": true, "unit": "ms", "load_mbit": 10});
        assert_eq!(value, expected);
    }
}
