//! Which relays are known: those of the directory's list, as the binary hands it in, and those that the operator's file names.
//! Channels ask, before a relay is dialled or kept ([`hoplite_channel::Listing`]).

use std::{collections::HashMap, fmt, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use hoplite_channel::Listing;

use crate::egress::Egress;

/// Which relays are known.
pub(crate) struct KnownRelays {
    egress: Arc<Egress>,
    list: ArcSwap<HashMap<[u8; 32], Vec<SocketAddr>>>,
}

/// The directory's list, as a running relay of circuits sees it. Clones are the same one.
#[derive(Clone)]
pub struct Listed(pub(crate) Arc<KnownRelays>);

impl Listed {
    /// From now on these are the relays of the list: identity and addresses.
    pub fn replace(&self, relays: impl IntoIterator<Item = ([u8; 32], Vec<SocketAddr>)>) {
        self.0.list.store(Arc::new(relays.into_iter().collect()));
    }
}

impl KnownRelays {
    pub(super) fn new(egress: Arc<Egress>) -> Self {
        Self {
            egress,
            list: ArcSwap::default(),
        }
    }
}

impl Listing for KnownRelays {
    fn lists(&self, identity: &[u8; 32]) -> bool {
        self.list.load().contains_key(identity)
    }

    fn lists_at(&self, identity: &[u8; 32], address: SocketAddr) -> bool {
        let list = self.list.load();
        let here = list
            .get(identity)
            .is_some_and(|addresses| addresses.contains(&address));
        here || self.egress.is_configured_relay(address)
    }

    fn permits_quic(&self, address: SocketAddr) -> bool {
        self.egress.is_explicitly_allowed(address)
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed")
            .field("relays", &self.0.list.load().len())
            .finish()
    }
}
