//! Two roads: what is asked for by an excluded name goes by the device's own marked sockets, the rest by the relays.
//! `carrier` puts it in front of the path when the file excludes domains.

use std::{net::IpAddr, sync::Arc};

use hoplite_overlay::{Datagrams, Direct, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{
    Host, Target,
    connect_ip::{Scope, ScopeTarget},
};

use super::{numbers::MARK, remembering::Remembering};
use crate::config::client::takeover::Domain;

/// The fork.
#[derive(Debug)]
pub(crate) struct Split {
    relays: Arc<dyn Overlay>,
    names: Arc<Remembering>,
    domains: Vec<Domain>,
}

impl Split {
    /// Past the relays for these domains, asking whom `names` asks; `relays` for all others.
    pub(crate) fn new(
        relays: Arc<dyn Overlay>,
        names: Arc<Remembering>,
        domains: Vec<Domain>,
    ) -> Self {
        Self {
            relays,
            names,
            domains,
        }
    }

    /// The way past, if `name` takes it. Made anew each time: the network's name servers may have changed.
    fn past(&self, name: &str) -> Option<Direct> {
        let is_excluded = self.domains.iter().any(|domain| domain.covers(name));
        is_excluded.then(|| past(&self.names))
    }

    fn past_to(&self, target: &Target) -> Option<Direct> {
        match &target.host {
            Host::Name(name) => self.past(name.as_str()),
            Host::Ip(_) => None,
        }
    }
}

/// For flows that go past the relays: marked sockets, and names asked of the network's own servers.
pub(crate) fn past(names: &Arc<Remembering>) -> Direct {
    let direct = Direct::new().mark(MARK);
    direct.resolver(Arc::clone(names) as _)
}

impl Overlay for Split {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        match self.past_to(target) {
            Some(past) => Box::pin(async move { past.open_stream(target, terms).await }),
            None => self.relays.open_stream(target, terms),
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        match self.past_to(target) {
            Some(past) => Box::pin(async move { past.open_datagrams(target, terms).await }),
            None => self.relays.open_datagrams(target, terms),
        }
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        match self.past(name) {
            Some(past) => Box::pin(async move { past.resolve(name, terms).await }),
            None => self.relays.resolve(name, terms),
        }
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        let past = match &scope.target {
            ScopeTarget::Name(name) => self.past(name.as_str()),
            ScopeTarget::Any | ScopeTarget::Prefix(_) => None,
        };
        match past {
            Some(past) => Box::pin(async move { past.open_packets(scope, terms).await }),
            None => self.relays.open_packets(scope, terms),
        }
    }
}
