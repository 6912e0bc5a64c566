//! The table `[scan]` of a client's file: what `hoplite directory scan` measures, and where it writes it. `examples/scan.toml` explains the keys, which a test
//! holds equal to the defaults.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hoplite_config::ConfigError;
use hoplite_directory::scanner;
use serde::Deserialize;

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scan {
    /// Where the scanner's own target listens.
    pub(crate) listen: SocketAddr,
    /// Where exits reach it, if that is another address.
    pub(crate) target: Option<SocketAddr>,
    /// Connections to it at once.
    pub(crate) connections: usize,
    /// The file of all results, one JSON object a line.
    pub(crate) results: PathBuf,
    /// Such files of other vantage points.
    pub(crate) with: Vec<PathBuf>,
    /// The bandwidth file.
    pub(crate) file: PathBuf,
    /// How often it is written anew.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) write: Duration,
    /// How long a relay is let alone after it was measured.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) pause: Duration,
    /// How long a result counts.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) keep: Duration,
    /// Measurements at once.
    pub(crate) at_once: usize,
    /// Results that a relay must have to be voted for.
    pub(crate) least: usize,
    /// Of a hundred relays, so many must have them.
    pub(crate) least_percent: usize,
}

impl Default for Scan {
    fn default() -> Self {
        let scanner = scanner::Config::default();
        Self {
            listen: SocketAddr::from(([0u16; 8], 8800)),
            target: None,
            connections: 64,
            results: "scan.jsonl".into(),
            with: Vec::new(),
            file: "bandwidth".into(),
            write: Duration::from_secs(600),
            pause: Duration::from_secs(scanner.pause),
            keep: Duration::from_secs(scanner.keep),
            at_once: scanner.at_once,
            least: scanner.least,
            least_percent: scanner.least_percent,
        }
    }
}

impl Scan {
    /// How the scanner works.
    pub(crate) fn scanner(&self) -> scanner::Config {
        scanner::Config {
            pause: self.pause.as_secs(),
            keep: self.keep.as_secs(),
            at_once: self.at_once,
            least: self.least,
            least_percent: self.least_percent,
        }
    }

    /// Where exits reach the target.
    pub(crate) fn reached(&self) -> SocketAddr {
        self.target.unwrap_or(self.listen)
    }

    /// Which keys have no sense, and why.
    pub(super) fn wrongs(&self) -> impl Iterator<Item = ConfigError> {
        let second = "expected a second at least";
        let all = [
            (
                "scan.target",
                "expected the address by which exits reach the target, as `listen` is none",
                !self.reached().ip().is_unspecified(),
            ),
            (
                "scan.connections",
                "expected 1 to 1024",
                (1..=1024).contains(&self.connections),
            ),
            ("scan.write", second, !self.write.is_zero()),
            ("scan.pause", second, self.pause.as_secs() > 0),
            (
                "scan.keep",
                "expected at least twice `pause`",
                self.keep >= self.pause.saturating_mul(2),
            ),
            (
                "scan.at_once",
                "expected 1 to 64",
                (1..=64).contains(&self.at_once),
            ),
            (
                "scan.least",
                "expected 1 to 16",
                (1..=16).contains(&self.least),
            ),
            (
                "scan.least_percent",
                "expected 0 to 100",
                self.least_percent <= 100,
            ),
        ];
        hoplite_config::wrongs(all)
    }
}
