//! The lab: emulated networks, subjects, workloads, campaigns, and figures that stand up. Researchers run it as `hoplite-lab`.
//! It runs binaries and never imports the product's rooms above the seam.
//!
//! Its parts are the network (`emulator`, `netns`, `topology`), what is run in it (`scenario`, `campaign`, `world`, `subject`, `workload`), and what
//! comes of it (`results`, `analysis`, `report`); `doctor` and `calibrate` look after the machine.
//!
//! # Not in this room
//! Virtual time (`sim`), and everything that is measured: the subjects are processes.
//!
//! ```text
//! scenario ──▶ Trial ──▶ campaign ──▶ world (a process in fresh namespaces)
//!                           │            ├─ emulator: links and routers over TUN
//!                           │            ├─ subject: what carries
//!                           │            └─ workload: what is carried
//!                           ▼
//!                        results ──▶ analysis ──▶ report
//! ```
//!
//! The feature `program` (default) is all that measures and reports. Without it there are only the formats and the emulator:
//! what parses, without a database, figures or servers. The fuzz targets build that.
#![cfg_attr(
    not(feature = "program"),
    expect(dead_code, unused_imports, reason = "the program is what calls it")
)]

pub mod emulator;
pub mod errors;
pub mod scenario;
mod splitmix;
pub mod subject;
pub mod topology;
pub mod trial;
pub mod workload;

#[cfg(feature = "program")]
pub mod analysis;
#[cfg(feature = "program")]
pub mod calibrate;
#[cfg(feature = "program")]
pub mod campaign;
#[cfg(feature = "program")]
pub mod cli;
#[cfg(feature = "program")]
pub mod doctor;
#[cfg(feature = "program")]
mod log;
#[cfg(feature = "program")]
pub mod netns;
#[cfg(feature = "program")]
pub mod report;
#[cfg(feature = "program")]
pub mod results;
#[cfg(feature = "program")]
pub mod world;
