//! The client's end: circuits built over a path, and the overlay made of them.
//! The binary hands it a [`Dialer`](crate::channel::Dialer) and [`Paths`](crate::path::Paths).

mod builder;
mod circuit;
mod driver;
mod onion;
mod pool;
mod ports;
mod signs;
mod times;

pub use circuit::{Circuit, Progress};
pub use driver::{Live, build};
pub use onion::Onion;
pub use pool::OF_A_TOKEN;
pub use times::BuildTimes;

use std::time::Duration;

use crate::edge::Limits;

/// How circuits are built and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Offer congestion control (proposal 324) where the exit has it.
    pub congestion_control: bool,
    /// Circuits that stand ready for the next isolation token, for ports that were lately used.
    pub ahead: usize,
    /// Isolation tokens with a circuit; beyond it those without streams are closed, and if there are none the next token is refused.
    pub tokens: usize,
    /// No new streams on a circuit that is used for so long (`MaxCircuitDirtiness`).
    pub lasts: Duration,
    /// A circuit without streams is closed after so long.
    pub idle: Duration,
    /// Circuits tried for one stream.
    pub attempts: usize,
    /// The time that the channel to the first relay may take.
    pub dial: Duration,
    /// The least and the first time that building a circuit over it may take; between them it is learnt.
    pub build: (Duration, Duration),
    /// Bounds of one circuit.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            congestion_control: true,
            ahead: 1,
            tokens: 1024,
            lasts: Duration::from_secs(600),
            idle: Duration::from_secs(1800),
            attempts: 3,
            dial: Duration::from_secs(15),
            build: (Duration::from_millis(1500), Duration::from_secs(60)),
            limits: Limits::default(),
        }
    }
}
