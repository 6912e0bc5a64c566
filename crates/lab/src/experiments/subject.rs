//! What carries traffic: Hoplite, a competitor, or nothing. A TOML file describes it; no line of Rust is needed to add one.

pub mod run;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

/// A subject with every placeholder filled in but those that only the world knows: `{dir}` (the attempt's directory), `{shared}` (kept over
/// the campaign), `{ip:HOST}` and `{ip6:HOST}` (a host's addresses).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The subject's label in this scenario.
    pub label: String,
    /// Files written before anything starts; those with an `{out:STEP}` as soon as that step has ended.
    pub files: Vec<File>,
    /// What is run, in order; a step begins when the one before it is done or ready.
    pub steps: Vec<Step>,
    /// Whether servers must never see the client's own address: a transfer that they do see it on fails the attempt.
    pub hides_client: bool,
    /// The ways in, at most one for each host; a host without one has its own sockets.
    pub ways: Vec<WayIn>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Below the attempt's directory.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Permission bits.
    pub mode: u32,
}

/// Something to run in a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name in logs and results, `relay1`.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// The program and its arguments. `{out:NAME}` is what the step NAME wrote to stdout, trimmed.
    pub command: Vec<String>,
    /// Added to its environment.
    pub env: BTreeMap<String, String>,
    /// Whether it is waited for, or goes on.
    pub run: Run,
    /// Waited for before the next step, if it goes on.
    pub ready: Vec<Ready>,
    /// How long that may take.
    pub ready_within: Duration,
    /// Starts together with the step after it: its readiness is waited for later, at the first step that is not `together`.
    pub together: bool,
}

/// How long a step lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// A daemon: it must live until the end.
    #[default]
    Daemon,
    /// It must end with exit code 0.
    Once,
    /// `Once`, and only if it was not done before in this campaign: what it makes in `{shared}` and what it says is kept, whole or not at all.
    OncePerCampaign,
}

/// How one sees that a daemon is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// This text stands in its stdout or stderr.
    Log(String),
    /// This text stands in a file.
    File {
        /// Which.
        path: String,
        /// What.
        text: String,
    },
    /// Something listens on TCP there, seen from its host.
    Tcp(SocketAddr),
    /// The interface is up in its host.
    Interface(String),
    /// This command exits with 0 in its host.
    Command(Vec<String>),
}

/// Where programs on a host enter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayIn {
    /// The host.
    pub host: String,
    /// The door.
    pub way: super::workload::Way,
    /// What programs ask for instead of the server's address: a name, or `{out:NAME}`, or `{file:PATH}`.
    pub target: Option<String>,
}
