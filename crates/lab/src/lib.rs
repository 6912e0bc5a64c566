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

pub mod analysis;
pub mod calibrate;
pub mod campaign;
pub mod cli;
pub mod doctor;
pub mod emulator;
pub mod errors;
mod log;
pub mod netns;
pub mod report;
pub mod results;
pub mod scenario;
mod splitmix;
pub mod subject;
pub mod topology;
pub mod trial;
pub mod workload;
pub mod world;
