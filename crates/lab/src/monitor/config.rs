//! A monitor's file: what is measured, from where, how often and within which budget; and where its server listens.
//! `examples/lab/monitor.toml` has every key.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hoplite_config::Document;
use serde::Deserialize;

use super::schedule::{Plan, Profile, WEIGHTS};
use crate::errors::{Complaint, Failure};

/// A larger file is no configuration.
const LARGEST: u64 = 1 << 20;

/// What a file says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Where everything is kept, seen from the file's directory.
    pub(crate) directory: PathBuf,
    /// Seeds sizes, pauses and payloads.
    #[serde(default = "one")]
    pub(crate) seed: u64,
    /// Whom to.
    pub(crate) server: Server,
    /// What carries it.
    #[serde(default)]
    pub(crate) subject: Subject,
    /// What, and how often.
    #[serde(default)]
    pub(crate) schedule: Schedule,
    /// How much.
    pub(crate) budget: Budget,
    /// Over what; none is wherever the system's routes lead.
    #[serde(default, rename = "interface")]
    pub(crate) interfaces: Vec<Interface>,
    /// How `monitor serve` does its part.
    #[serde(default)]
    pub(crate) serve: Serve,
}

fn one() -> u64 {
    1
}

/// Where transfers go.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// An address, a name, or a name that ends in `.onion`.
    pub(crate) host: String,
    /// The port of `monitor serve` there.
    #[serde(default = "port")]
    pub(crate) port: u16,
}

fn port() -> u16 {
    8000
}

/// What carries the transfers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subject {
    /// The SOCKS5 proxy in front of it: Hoplite's, a system tor's. Without one transfers go straight.
    pub(crate) socks: Option<SocketAddr>,
    /// The program that opens this proxy, and its arguments; started again when it ends. Without it the proxy is there already.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// C tor's control port or a client's control socket, for times of circuits and streams.
    pub(crate) control: Option<Control>,
    /// Its cookie, seen from the file's directory. Without one tor has to ask for no authentication.
    pub(crate) cookie: Option<PathBuf>,
    /// What figures are called.
    pub(crate) label: Option<String>,
}

/// Where Tor's control protocol is spoken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Control {
    /// A port, C tor's `ControlPort`.
    Port(SocketAddr),
    /// A Unix socket, written `unix:PATH`: C tor's `ControlSocket`, `control` of Hoplite's circuits.
    Socket(PathBuf),
}

impl TryFrom<String> for Control {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Socket(path.into()));
        }
        let port = text.parse().map(Self::Port);
        port.map_err(|_| "expected an address with its port, or unix: and the path of a socket")
    }
}

impl Control {
    fn beside(self, directory: &Path) -> Self {
        match self {
            Self::Socket(path) => Self::Socket(directory.join(path)),
            port @ Self::Port(_) => port,
        }
    }
}

/// What is transferred, and how often.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Schedule {
    /// Which sizes.
    pub(crate) profile: Profile,
    /// The shares of 50 KB, 1 MB and 5 MB in *full*, which the others' times follow from.
    pub(crate) weights: [u32; 3],
    /// From the beginning of one to that of the next, in seconds; the profile's own if absent.
    every: Option<f64>,
    /// How much a single one differs, up or down, as a share.
    pub(crate) jitter: f64,
    /// After how long without a byte one has failed, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) stall: Duration,
    /// After how long one has failed, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) timeout: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            profile: Profile::Full,
            weights: WEIGHTS,
            every: None,
            jitter: 0.1,
            stall: Duration::from_secs(120),
            timeout: Duration::from_secs(1800),
        }
    }
}

/// How much may go over each interface.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// Both ways, headers and all, in a month of UTC.
    bytes_per_month: u64,
    /// Of these, what is left for what nobody asked for: a subject's own traffic, a neighbour's.
    #[serde(default)]
    spare: u64,
}

/// A network interface.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interface {
    /// As the system calls it.
    pub(crate) name: String,
    /// Its own budget, if it has another than the rest.
    bytes_per_month: Option<u64>,
}

/// How the server does its part.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Serve {
    /// Where it listens.
    pub(crate) listen: Vec<SocketAddr>,
    /// The interface that it listens on, of several that the machine has.
    pub(crate) interface: Option<String>,
    /// Transfers at once; more are closed at once.
    pub(crate) connections: usize,
    /// The largest transfer, in bytes.
    pub(crate) largest: u64,
    /// Payload that all clients together may ask for in a day of UTC.
    pub(crate) bytes_per_day: u64,
    /// After how long without a byte a client has gone, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) stall: Duration,
    /// How long a transfer may take, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) timeout: Duration,
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([0; 16], port()))],
            interface: None,
            connections: 64,
            largest: 5_242_880,
            bytes_per_day: 4_000_000_000,
            stall: Duration::from_secs(120),
            timeout: Duration::from_secs(1800),
        }
    }
}

impl File {
    /// Reads the file at `path`; paths in it are seen from its directory.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let unread = |why: String| {
            let doing = format!("reading {}", path.display());
            let remedy = "examples/lab/monitor.toml shows a monitor's file";
            Failure::Wrong(vec![Complaint::new(doing, why, remedy)])
        };
        let size = fs::metadata(path).map(|found| found.len());
        if size.is_ok_and(|size| size > LARGEST) {
            return Err(unread("it is larger than 1 MiB".into()));
        }
        let text = fs::read_to_string(path).map_err(|error| unread(error.to_string()))?;
        let mut file = Self::parse(&path.display().to_string(), &text)?;
        let directory = path.parent().unwrap_or_else(|| Path::new(""));
        file.directory = directory.join(&file.directory);
        let subject = &mut file.subject;
        subject.cookie = subject.cookie.take().map(|cookie| directory.join(cookie));
        subject.control = subject.control.take().map(|it| it.beside(directory));
        Ok(file)
    }

    fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let wrong = |place: String, why: &str| {
            let remedy = "examples/lab/monitor.toml has every key";
            Failure::Wrong(vec![Complaint::new(place, why, remedy)])
        };
        let document = Document::parse(name, text);
        let document = document.map_err(|error| wrong(error.place, &error.message))?;
        let file: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let place = document.place(span.start, &document.key_at(&span));
            wrong(place, error.message())
        })?;
        file.check().map_err(|(key, why)| {
            let at = document.find(&key).unwrap_or_default();
            wrong(document.place(at, &key), &why)
        })?;
        Ok(file)
    }

    /// What the syntax cannot say. The error is a key and what is wrong with it.
    fn check(&self) -> Result<(), (String, String)> {
        let (schedule, serve, subject) = (&self.schedule, &self.serve, &self.subject);
        let above = "expected a number above 0";
        let without = "expected subject.socks, where the proxy listens";
        let host: Result<hoplite_wire::Host, _> = self.server.host.parse();
        let faults = [
            (
                "server.host",
                host.is_err(),
                "expected an address or a name",
            ),
            ("server.port", self.server.port == 0, above),
            (
                "subject.command",
                !subject.command.is_empty() && subject.socks.is_none(),
                without,
            ),
            (
                "subject.control",
                subject.control.is_some() && subject.socks.is_none(),
                without,
            ),
            (
                "subject.cookie",
                subject.cookie.is_some() && subject.control.is_none(),
                "expected subject.control beside it",
            ),
            (
                "schedule.weights",
                self.is_never_drawn(),
                "expected weights from 0 to 1000000, that of the profile's size above 0",
            ),
            (
                "schedule.every",
                schedule
                    .every
                    .is_some_and(|every| !(1.0..=1e7).contains(&every)),
                "expected 1 second to 10000000",
            ),
            (
                "schedule.jitter",
                !(0.0..=0.9).contains(&schedule.jitter),
                "expected a share from 0 to 0.9",
            ),
            ("schedule.stall", schedule.stall.is_zero(), above),
            ("schedule.timeout", schedule.timeout.is_zero(), above),
            (
                "serve.listen",
                serve.listen.is_empty(),
                "expected at least one address",
            ),
            (
                "serve.connections",
                !(1..=65_536).contains(&serve.connections),
                "expected 1 to 65536",
            ),
            ("serve.largest", serve.largest == 0, above),
            ("serve.stall", serve.stall.is_zero(), above),
            ("serve.timeout", serve.timeout.is_zero(), above),
        ];
        if let Some((key, _, why)) = faults.into_iter().find(|(_, wrong, _)| *wrong) {
            return Err((key.to_owned(), why.to_owned()));
        }
        self.check_interfaces()
    }

    fn is_never_drawn(&self) -> bool {
        let Schedule {
            profile, weights, ..
        } = self.schedule;
        let used = weights.iter().zip(profile.weights(weights));
        let mine: u32 = used
            .map(|(weight, mine)| if mine > 0 { *weight } else { 0 })
            .fold(0, u32::saturating_add);
        mine == 0 || weights.iter().any(|weight| *weight > 1_000_000)
    }

    fn check_interfaces(&self) -> Result<(), (String, String)> {
        let places = self.interfaces.iter().enumerate();
        for (place, interface) in places {
            let wrong = |why: &str| Err((format!("interface[{place}].name"), why.to_owned()));
            if !is_interface(&interface.name) {
                return wrong(
                    "expected the name of an interface: at most 15 letters, digits, '-', '_' and '.'",
                );
            }
            let same = |other: &Interface| other.name == interface.name;
            if self.interfaces.iter().take(place).any(same) {
                return wrong("another interface has this name");
            }
        }
        let serve = self.serve.interface.as_deref();
        if serve.is_some_and(|name| !is_interface(name)) {
            return Err((
                "serve.interface".into(),
                "expected the name of an interface".into(),
            ));
        }
        for (name, plan) in self.plans() {
            if plan.limit < plan.largest() {
                let least = plan.largest();
                let why =
                    format!("{name} needs at least {least}, spare excepted, for one transfer");
                return Err(("budget.bytes_per_month".into(), why));
            }
        }
        Ok(())
    }

    /// The names under which things are kept, and what is done there: one for each interface, `default` without any.
    pub(crate) fn plans(&self) -> Vec<(String, Plan)> {
        let schedule = &self.schedule;
        let every = schedule.every.map(Duration::from_secs_f64);
        let plan = |bytes: u64| Plan {
            weights: schedule.profile.weights(schedule.weights),
            every: every.unwrap_or_else(|| schedule.profile.every(schedule.weights)),
            jitter: schedule.jitter,
            seed: self.seed,
            limit: bytes.saturating_sub(self.budget.spare),
        };
        let of = |one: &Interface| {
            (
                one.name.clone(),
                plan(one.bytes_per_month.unwrap_or(self.budget.bytes_per_month)),
            )
        };
        match self.interfaces.as_slice() {
            [] => vec![("default".to_owned(), plan(self.budget.bytes_per_month))],
            some => some.iter().map(of).collect(),
        }
    }

    /// What figures are called.
    pub(crate) fn label(&self) -> String {
        let subject = &self.subject;
        let kind = if subject.socks.is_some() {
            "socks"
        } else {
            "native"
        };
        subject.label.clone().unwrap_or_else(|| kind.to_owned())
    }
}

/// Linux's rule, without what would lead out of a directory or break a metric's line.
fn is_interface(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..16).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(root.join("../../examples/lab/monitor.toml")).expect("the example")
    }

    fn parse(text: &str) -> Result<File, String> {
        File::parse("m.toml", text).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_example_is_right_and_what_it_comments_out_is_the_default() {
        let text = example();
        let plain = parse(&text).expect("right");
        let uncommented = |line: &str| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") || key.starts_with('[') => key.to_owned(),
            _ => line.to_owned(),
        };
        let full: Vec<String> = text.lines().map(uncommented).collect();
        let full = parse(&full.join("\n")).expect("right");
        assert_eq!(format!("{:?}", full.serve), format!("{:?}", plain.serve));
        assert_eq!(full.schedule.profile, plain.schedule.profile);
        let (one, other) = (full.plans(), plain.plans());
        assert!(one.len() > other.len(), "a second interface");
        assert_eq!(one[0], other[0], "every, weights, jitter and spare");
        assert!(!full.subject.command.is_empty() && full.subject.cookie.is_some());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_key() {
        let text = example();
        for (from, to, told) in [
            (
                "host = \"192.0.2.10\"",
                "host = \"\"",
                "server.host: expected an address",
            ),
            ("[server]", "[servr]", "servr"),
            (
                "# profile = \"full\"",
                "[schedule]\nprofile = \"half\"",
                "half",
            ),
            (
                "# [schedule]",
                "[schedule]\nweights = [0, 0, 0]",
                "schedule.weights: expected weights",
            ),
            (
                "# [schedule]",
                "[schedule]\nevery = 0",
                "schedule.every: expected 1 second",
            ),
            (
                "# [schedule]",
                "[schedule]\njitter = 1",
                "schedule.jitter: expected a share",
            ),
            (
                "bytes_per_month = 25_000_000_000",
                "bytes_per_month = 1000",
                "eth0 needs at least 8126464",
            ),
            (
                "name = \"eth0\"",
                "name = \"../eth0\"",
                "interface[0].name: expected the name",
            ),
            (
                "# [subject]",
                "[subject]\ncommand = [\"tor\"]",
                "subject.command: expected subject.socks",
            ),
            (
                "# [serve]",
                "[serve]\nlisten = []",
                "serve.listen: expected at least one",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            let error = parse(&text.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(told), "{told}: {error}");
            assert!(error.contains("m.toml:"), "{error}");
        }
    }

    #[test]
    fn a_plan_of_each_profile_follows_from_the_shares_of_full() {
        let every = |profile: &str| {
            let text = example().replacen(
                "# [schedule]",
                &format!("[schedule]\nprofile = \"{profile}\""),
                1,
            );
            parse(&text).expect("right").plans()[0].1.every.as_secs()
        };
        assert_eq!(
            [every("full"), every("partial"), every("one-megabyte")],
            [50, 1000, 555]
        );
    }
}
