//! The lab: emulated networks, subjects, workloads, campaigns, and figures that stand up. Researchers run it as `hoplite-lab`.
//! It runs binaries and never imports the product's rooms above the seam; `load` alone is clients itself, by the library for programs outside.
//!
//! It has three rooms: the network (`emulator`, `netns`, `topology`), what is run in it (`experiments`), and what comes of it (`results`).
//! `doctor` and `calibrate` look after the machine; `balancer`, `load` and `monitor` are programs beside all this: in front of
//! a fleet of relays, many users of one's own relays, and for months on real networks.
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

mod balancer;
pub mod calibrate;
pub mod cli;
pub mod doctor;
pub mod emulator;
pub mod errors;
pub mod experiments;
pub mod load;
mod log;
pub mod monitor;
pub mod netns;
mod pulse;
pub mod results;
pub mod topology;
