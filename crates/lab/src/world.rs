//! A world: one attempt at one repetition, in a process of its own, in namespaces of its own, that leaves nothing behind.
//! `campaign` calls [`spawn_until`]; the process that it starts is `hoplite-lab __world`, and runs [`inside::main`].
//!
//! ```text
//! campaign ──Trial──▶ __world (unshares) ──▶ __world (PID 1): hosts, emulator, subject, __serve, __work
//!          ◀─Answer── stdout                 └─ dies with its parent, and everything with it
//! ```
//!
//! # Not in this room
//! Whether an attempt counts, and whether there will be another one: `campaign`.

use serde::{Deserialize, Serialize};

use crate::{
    errors::{Complaint, Failure},
    trial::{Outcome, Report},
};

mod attempt;
mod groups;
pub mod inside;
mod leaks;
mod machine;
mod outside;
mod servers;
mod usage;
mod watchdog;
mod work;

pub use outside::{World, check, spawn, spawn_until};

/// What `__world` writes on stdout, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The attempt was made.
    Report(Box<Report>),
    /// This machine, or this scenario on it, allows no attempt at all.
    Impossible {
        doing: String,
        why: String,
        remedy: String,
    },
}

impl Answer {
    fn impossible(failure: Failure) -> Self {
        let complaint = match failure {
            Failure::Failed(complaint) => Some(complaint),
            Failure::Wrong(complaints) => complaints.into_iter().next(),
        };
        let Complaint { doing, why, remedy } = complaint
            .unwrap_or_else(|| Complaint::new("running the world", "it failed", "see its log"));
        Self::Impossible { doing, why, remedy }
    }
}

fn failed(doing: impl Into<String>, why: impl Into<String>, log: impl Into<String>) -> Outcome {
    Outcome::Failed {
        doing: doing.into(),
        why: why.into(),
        log: log.into(),
    }
}
