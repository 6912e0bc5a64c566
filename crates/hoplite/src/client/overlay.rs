//! Which overlay carries the client's flows: made from the configuration.

use std::sync::Arc;

use hoplite_overlay::{Overlay, direct::Direct};

use crate::{config::client::Client, errors::Failure};

/// The relays of the file.
#[expect(clippy::unnecessary_wraps, reason = "the path is not built yet")]
pub(super) fn over_relays(_client: &Client) -> Result<Arc<dyn Overlay>, Failure> {
    Ok(Arc::new(Direct::new()))
}

/// The device's own sockets: the baseline of every measurement.
pub(super) fn without_relays() -> Arc<dyn Overlay> {
    Arc::new(Direct::new())
}
