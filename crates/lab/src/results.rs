//! What comes of a campaign: what is kept of it (samples and metrics of a repetition, samples in Parquet, figures in SQLite, exports in the formats
//! of the field, what is handed in where many machines' results are), what is computed from that, and the report.

pub mod analysis;
pub mod export;
pub mod hand_in;
pub mod metrics;
pub mod parquet;
pub mod report;
pub mod sample;
pub mod store;

pub use self::{
    metrics::{Metric, metrics},
    sample::Sample,
};
