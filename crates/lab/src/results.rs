//! What is kept of a campaign: samples and metrics of a repetition, samples in Parquet, figures in SQLite, exports in the formats of the field.

pub mod export;
pub mod metrics;
pub mod parquet;
pub mod sample;
pub mod store;

pub use self::{
    metrics::{Metric, metrics},
    sample::Sample,
};
