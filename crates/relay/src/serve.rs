//! tmp
pub(crate) mod request;
pub(crate) mod splice;
