//! `hoplite client`: programs' traffic in, relays out.

use std::path::Path;

use crate::errors::Failure;

/// Carries traffic with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let _client = crate::config::client::load(path)?;
    Err(Failure::new(
        "starting the client",
        "not built yet",
        "wait for it",
    ))
}

/// A client of `demo` and `bench`.
pub(crate) fn serve_node(
    _client: Option<crate::config::client::Client>,
    _direct: Option<std::net::SocketAddr>,
) -> Result<(), Failure> {
    crate::node::ready(([127, 0, 0, 1], 1).into(), None)
}
