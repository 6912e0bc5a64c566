//! The balancer's file: where it listens, the configurations of the draft that are in force, the relays. `examples/lab/balancer.toml` has every key.

use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hoplite_config::{Document, hex, hex_key};
use hoplite_crypto::RoutableIds;
use serde::Deserialize;

use super::steering::{Bounds, Server};
use crate::errors::{Complaint, Failure};

/// A larger file is no configuration.
const LARGEST: u64 = 1 << 20;

/// How long a relay's ids are without their first byte, which says so.
const ID: usize = 7;

/// What a file says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Where clients come, UDP and TCP alike.
    pub(crate) listen: Vec<SocketAddr>,
    #[serde(rename = "config")]
    configs: Vec<IdConfig>,
    /// Whom to.
    #[serde(rename = "relay")]
    pub(crate) relays: Vec<Relay>,
    /// How relays are asked how they are.
    #[serde(default)]
    pub(crate) health: Checks,
    /// How much of everything.
    #[serde(default)]
    pub(crate) limits: Limits,
}

/// A configuration of the draft: while a key is changed there are two.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdConfig {
    id: u8,
    key: PathBuf,
}

/// A relay.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Relay {
    /// Its number, as its own file has it.
    pub(crate) server_id: String,
    /// Where it listens, UDP and TCP.
    pub(crate) address: SocketAddr,
    /// Where its metrics are, and with them `/ready`.
    pub(crate) health: SocketAddr,
}

/// How relays are asked how they are.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checks {
    /// How often, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) every: Duration,
    /// How long an answer may take, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) patience: Duration,
    /// After how many questions without an answer a relay counts as dead.
    pub(crate) silences: u32,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            patience: Duration::from_secs(1),
            silences: 2,
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Flows over UDP, one for each client and relay; each holds a socket.
    pub(crate) flows: usize,
    /// After how long without a packet from its client one ends, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) idle: Duration,
    /// Connections over TCP; each holds two sockets. More are closed at once.
    pub(crate) connections: usize,
    /// How long a relay may take to accept one, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) connect: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 8192,
            idle: Duration::from_secs(120),
            connections: 4096,
            connect: Duration::from_secs(2),
        }
    }
}

/// A file that was read and checked, with the keys that it names.
#[derive(Debug)]
pub(crate) struct Balancer {
    /// What it says.
    pub(crate) file: File,
    /// Its configurations.
    pub(crate) ids: Vec<RoutableIds>,
    /// Its relays' numbers.
    pub(crate) servers: Vec<Server>,
}

impl Balancer {
    /// Reads the file at `path`, and the keys' files seen from there.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let reading = format!("reading {}", path.display());
        let unread = |why: String| {
            let remedy = "examples/lab/balancer.toml shows a balancer's file";
            Failure::Wrong(vec![Complaint::new(reading.clone(), why, remedy)])
        };
        let size = fs::metadata(path).map(|found| found.len());
        if size.is_ok_and(|size| size > LARGEST) {
            return Err(unread("it is larger than 1 MiB".into()));
        }
        let text = fs::read_to_string(path).map_err(|error| unread(error.to_string()))?;
        let name = path.display().to_string();
        Self::parse(&name, &text, path.parent().unwrap_or_else(|| Path::new("")))
    }

    fn parse(name: &str, text: &str, directory: &Path) -> Result<Self, Failure> {
        let wrong = |place: String, why: &str| {
            let remedy = "examples/lab/balancer.toml has every key";
            Failure::Wrong(vec![Complaint::new(place, why, remedy)])
        };
        let document = Document::parse(name, text);
        let document = document.map_err(|error| wrong(error.place, &error.message))?;
        let file: File = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let place = document.place(span.start, &document.key_at(&span));
            wrong(place, error.message())
        })?;
        Self::check(file, directory).map_err(|(key, why)| {
            let at = document.find(&key).unwrap_or_default();
            wrong(document.place(at, &key), &why)
        })
    }

    /// What the syntax cannot say. The error is a key and what is wrong with it.
    fn check(file: File, directory: &Path) -> Result<Self, (String, String)> {
        let wrong = |key: &str, why: &str| Err((key.to_owned(), why.to_owned()));
        if file.listen.is_empty() {
            return wrong("listen", "expected at least one address");
        }
        if file.relays.is_empty() {
            return wrong("relay", "expected at least one relay");
        }
        let zeros = [
            ("health.every", file.health.every.is_zero()),
            ("health.patience", file.health.patience.is_zero()),
            ("health.silences", file.health.silences == 0),
            ("limits.flows", file.limits.flows == 0),
            ("limits.idle", file.limits.idle.is_zero()),
            ("limits.connections", file.limits.connections == 0),
            ("limits.connect", file.limits.connect.is_zero()),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return wrong(key, "expected a number above 0");
        }
        let servers = servers(&file.relays)?;
        let length = servers.first().map_or(1, |server| server.id.len());
        let ids = configurations(&file.configs, length, directory)?;
        Ok(Self { file, ids, servers })
    }

    /// How much is remembered.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            flows: self.file.limits.flows,
            idle: self.file.limits.idle,
            silences: self.file.health.silences,
        }
    }
}

fn servers(relays: &[Relay]) -> Result<Vec<Server>, (String, String)> {
    let (mut servers, mut seen) = (Vec::new(), HashSet::new());
    for (place, relay) in relays.iter().enumerate() {
        let wrong = |why: &str| Err((format!("relay[{place}].server_id"), why.to_owned()));
        let id = hex(&relay.server_id).filter(|id| matches!(id.len(), 1 | 2));
        let Some(id) = id else {
            return wrong("expected two or four hexadecimal digits");
        };
        let first: Option<&Server> = servers.first();
        if first.is_some_and(|first| first.id.len() != id.len()) {
            return wrong("expected as many digits as the first relay has");
        }
        if !seen.insert(id.clone()) {
            return wrong("another relay has this number");
        }
        servers.push(Server { id });
    }
    Ok(servers)
}

/// The server id has `length` bytes of an id, the nonce the rest.
fn configurations(
    configs: &[IdConfig],
    length: usize,
    directory: &Path,
) -> Result<Vec<RoutableIds>, (String, String)> {
    if configs.is_empty() {
        let why = "expected at least one configuration".to_owned();
        return Err(("config".into(), why));
    }
    let mut seen = HashSet::new();
    let mut ids = Vec::new();
    for (place, config) in configs.iter().enumerate() {
        let wrong = |key: &str, why: String| (format!("config[{place}].{key}"), why);
        if !seen.insert(config.id) {
            return Err(wrong("id", "another configuration has this number".into()));
        }
        let key = hex_key(&directory.join(&config.key)).map_err(|why| wrong("key", why))?;
        let made = RoutableIds::new(config.id, length, ID - length, &key);
        ids.push(made.map_err(|error| wrong("id", error.to_string()))?);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    /// The example, with both keys it names beside it.
    fn example() -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().expect("a directory");
        for key in ["fleet.key", "fleet-next.key"] {
            let path = directory.path().join(key);
            fs::write(&path, "0f".repeat(16)).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join("../../examples/lab/balancer.toml");
        let text = fs::read_to_string(path).expect("the example");
        (directory, text)
    }

    fn parse(text: &str, directory: &Path) -> Result<Balancer, String> {
        Balancer::parse("b.toml", text, directory).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_example_is_right_and_what_it_comments_out_is_the_default() {
        let (directory, text) = example();
        let plain = parse(&text, directory.path()).expect("right");
        assert!(plain.file.relays.len() >= 2);
        let uncommented = |line: &str| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") || key.starts_with('[') => key.to_owned(),
            _ => line.to_owned(),
        };
        let full: Vec<String> = text.lines().map(uncommented).collect();
        let full = parse(&full.join("\n"), directory.path()).expect("right");
        assert_eq!(
            format!("{:?}{:?}", full.file.health, full.file.limits),
            format!("{:?}{:?}", plain.file.health, plain.file.limits)
        );
        assert_eq!(
            full.ids.len(),
            plain.ids.len() + 1,
            "the next key beside the present one"
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_key() {
        let (directory, text) = example();
        for (from, to, told) in [
            ("listen =", "lisn =", "lisn"),
            (
                "\"0001\"",
                "\"1\"",
                "relay[0].server_id: expected two or four",
            ),
            (
                "\"0002\"",
                "\"02\"",
                "relay[1].server_id: expected as many digits",
            ),
            ("\"0002\"", "\"0001\"", "relay[1].server_id: another relay"),
            (
                "id = 0",
                "id = 7",
                "config[0].id: expected a configuration of 0 to 6",
            ),
            ("\"fleet.key\"", "\"nowhere\"", "config[0].key: cannot read"),
            ("# silences = 2", "silences = 0", "health"),
            (
                "# [health]",
                "[health]\nevery = 0",
                "health.every: expected a number above 0",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            let changed = text.replacen(from, to, 1);
            let error = parse(&changed, directory.path()).expect_err(to);
            assert!(error.contains(told), "{error}");
            assert!(error.contains("b.toml:"), "{error}");
        }
    }

    #[test]
    fn a_key_that_everybody_may_read_is_refused() {
        let (directory, text) = example();
        let path = directory.path().join("fleet.key");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        let error = parse(&text, directory.path()).expect_err("open to everybody");
        assert!(error.contains("config[0].key: everybody"), "{error}");
    }
}
