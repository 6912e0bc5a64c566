//! Waiting with a limit: a transfer that moves nothing for that long has stalled. Clients wait so for every octet.

use std::time::Duration;

use tokio::time::timeout;

use super::{TransferError, trouble::stalled};

/// What the work comes to, unless it takes longer than `limit`: then it stalled.
pub(crate) async fn patiently<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, TransferError> {
    timeout(limit, work).await.map_err(|_| stalled(limit))
}
