//! Which relays are known, and over what they are dialled: those of the directory's list and of the consensus of Tor's authorities, as the binary hands
//! them in, and those that the operator's file names. Channels ask, before a relay is dialled or kept ([`Listing`], [`Carriers`]).
//!
//! In a network of Tor's QUIC is dialled only where somebody says that the relay has it: a relay of C tor would get packets that it cannot answer, and
//! who watches would see whom a relay of ours takes for one of ours.

use std::{collections::HashMap, fmt, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use hoplite_channel::{How, Listing};
use hoplite_onion::channel::Carriers;

use crate::{
    config::{LinkKind, Onion as Settings},
    egress::Egress,
};

/// Which relays are known.
pub(crate) struct KnownRelays {
    egress: Arc<Egress>,
    /// Over what relays are dialled that have both.
    how: How,
    /// The relay is one of a network of Tor's.
    in_tor: bool,
    list: ArcSwap<HashMap<[u8; 32], Vec<SocketAddr>>>,
    consensus: ArcSwap<HashMap<[u8; 32], InConsensus>>,
}

/// What a consensus of Tor's says of a relay.
#[derive(Clone, PartialEq, Eq)]
pub struct InConsensus {
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Its channels run over QUIC too.
    pub quic: bool,
}

/// Where relays are stays out of every log.
impl fmt::Debug for InConsensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InConsensus(hidden)")
    }
}

/// The directory's list, as a running relay of circuits sees it. Clones are the same one.
#[derive(Clone)]
pub struct Listed(pub(crate) Arc<KnownRelays>);

impl Listed {
    /// From now on these are the relays of the list: identity and addresses.
    pub fn replace(&self, relays: impl IntoIterator<Item = ([u8; 32], Vec<SocketAddr>)>) {
        self.0.list.store(Arc::new(relays.into_iter().collect()));
    }

    /// From now on these are the relays of the consensus of Tor's authorities, by their Ed25519 identities.
    pub fn replace_consensus(&self, relays: impl IntoIterator<Item = ([u8; 32], InConsensus)>) {
        let relays = relays.into_iter().collect();
        self.0.consensus.store(Arc::new(relays));
    }
}

impl KnownRelays {
    pub(super) fn new(egress: Arc<Egress>, settings: &Settings) -> Self {
        Self {
            egress,
            how: how(settings),
            in_tor: settings.tor.is_some(),
            list: ArcSwap::default(),
            consensus: ArcSwap::default(),
        }
    }

    /// The list has it there, or the operator names a relay there.
    fn is_ours_at(&self, identity: &[u8; 32], address: SocketAddr) -> bool {
        let list = self.list.load();
        let here = list
            .get(identity)
            .is_some_and(|addresses| addresses.contains(&address));
        here || self.egress.is_configured_relay(address)
    }

    /// What the consensus says of it, if it has it there.
    fn in_consensus_at(&self, identity: &[u8; 32], address: SocketAddr) -> Option<bool> {
        let consensus = self.consensus.load();
        let relay = consensus.get(identity)?;
        relay.addresses.contains(&address).then_some(relay.quic)
    }
}

impl Listing for KnownRelays {
    fn lists(&self, identity: &[u8; 32]) -> bool {
        self.list.load().contains_key(identity) || self.consensus.load().contains_key(identity)
    }

    fn lists_at(&self, identity: &[u8; 32], address: SocketAddr) -> bool {
        self.is_ours_at(identity, address) || self.in_consensus_at(identity, address).is_some()
    }

    fn permits_quic(&self, address: SocketAddr) -> bool {
        self.egress.is_explicitly_allowed(address)
    }
}

impl Carriers for Listed {
    fn how(&self, identity: &[u8; 32], address: SocketAddr) -> How {
        let known = &self.0;
        let has_quic = !known.in_tor
            || known.is_ours_at(identity, address)
            || known.in_consensus_at(identity, address) == Some(true);
        if has_quic { known.how } else { How::Tls }
    }
}

fn how(settings: &Settings) -> How {
    match (settings.has(LinkKind::Quic), settings.has(LinkKind::Tls)) {
        (true, false) => How::Quic,
        (false, true) => How::Tls,
        _ => How::Raced,
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed")
            .field("relays", &self.0.list.load().len())
            .field("in_consensus", &self.0.consensus.load().len())
            .finish()
    }
}
