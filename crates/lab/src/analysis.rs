//! What is computed from results and records: order statistics, intervals, comparisons, and the papers' own analyses.
//! Pure functions over values; `campaign` and `report` read the files.

pub mod bootstrap;
pub mod cascade;
pub mod holm;
pub mod quantile;
