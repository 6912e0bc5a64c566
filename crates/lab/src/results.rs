//! What is kept of a campaign: metrics of a repetition, samples in Parquet, exports in the formats of the field.
//! `campaign` writes it while it runs, `report` reads it.

pub mod csv;
pub mod date;
pub mod merge;
pub mod metrics;
pub mod onionperf;
pub mod parquet;
pub mod sample;
pub mod store;

pub use metrics::{Metric, metrics};
pub use sample::Sample;
