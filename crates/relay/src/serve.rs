//! tmp
pub(crate) mod splice;
