//! The directories of Tor's network over circuits, so that a renewal of the consensus shows no directory who asks, and no network what is asked.
//! tor-spec "Opening a directory stream" (BEGIN_DIR). An overlay whose streams lead to the directory of some relay, each to another one's, whatever
//! the target: what they answer is signed, or named by its hash.

use std::{fmt, net::IpAddr};

use hoplite_onion::{onion_service::DirectoryCircuits, path::ServicePurpose};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Stream, Terms};
use hoplite_wire::Target;

use super::onion::relay_of_list;
use crate::listed::Listed;

/// The relays of Tor's network that are directories.
pub(super) struct TorCaches {
    listed: Listed,
    circuits: DirectoryCircuits,
}

impl TorCaches {
    pub(super) fn new(listed: &Listed, circuits: DirectoryCircuits) -> Self {
        Self {
            listed: listed.clone(),
            circuits,
        }
    }

    async fn open(&self) -> Result<Stream, Error> {
        let drawn = self.listed.directory_cache();
        let relay = drawn.and_then(|(network, relay)| relay_of_list(&network, &relay));
        let doing = "asking a relay for Tor's consensus: there is none that is a directory";
        let relay = relay.ok_or_else(|| Error::new(ErrorKind::PathFailed, doing))?;
        self.circuits
            .open(&relay, ServicePurpose::ClientHsDir)
            .await
    }
}

fn only_directories() -> Error {
    let doing = "reaching anything but directories over the circuits to them";
    Error::new(ErrorKind::Unsupported, doing)
}

impl Overlay for TorCaches {
    fn open_stream<'a>(&'a self, _: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        let opening = terms.run("opening a stream to a directory of Tor's", self.open());
        Box::pin(opening)
    }

    fn open_datagrams<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async { Err(only_directories()) })
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async { Err(only_directories()) })
    }
}

impl fmt::Debug for TorCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TorCaches")
    }
}
