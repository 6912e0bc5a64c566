//! An overlay that is chosen by the name that is asked for; an address has none.

use std::{fmt, net::IpAddr, sync::Arc};

use hoplite_overlay::{Datagrams, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{
    Host, Target,
    connect_ip::{Scope, ScopeTarget},
    dns::Question,
};

type Choose = dyn Fn(&str) -> Option<Arc<dyn Overlay>> + Send + Sync;

/// One overlay for the names that are chosen for it, another one for the rest. A flow to all targets ([`Overlay::open_bound`]) has no name, and would
/// carry all of them one way: there is none.
pub(crate) struct ByName {
    choose: Box<Choose>,
    others: Arc<dyn Overlay>,
}

impl ByName {
    /// What `choose` gives for a name; `others` where it gives none.
    pub(crate) fn new<F>(others: Arc<dyn Overlay>, choose: F) -> Self
    where
        F: Fn(&str) -> Option<Arc<dyn Overlay>> + Send + Sync + 'static,
    {
        Self {
            choose: Box::new(choose),
            others,
        }
    }

    fn of(&self, name: Option<&str>) -> Arc<dyn Overlay> {
        let chosen = name.and_then(|name| (self.choose)(name));
        chosen.unwrap_or_else(|| Arc::clone(&self.others))
    }

    fn of_target(&self, target: &Target) -> Arc<dyn Overlay> {
        match &target.host {
            Host::Name(name) => self.of(Some(name.as_str())),
            Host::Ip(_) => self.of(None),
        }
    }
}

impl Overlay for ByName {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        let overlay = self.of_target(target);
        Box::pin(async move { overlay.open_stream(target, terms).await })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        let overlay = self.of_target(target);
        Box::pin(async move { overlay.open_datagrams(target, terms).await })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        let overlay = self.of(Some(name));
        Box::pin(async move { overlay.resolve(name, terms).await })
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        let overlay = match &scope.target {
            ScopeTarget::Name(name) => self.of(Some(name.as_str())),
            ScopeTarget::Any | ScopeTarget::Prefix(_) => self.of(None),
        };
        Box::pin(async move { overlay.open_packets(scope, terms).await })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        let asked = Question::read(message).ok().map(|question| question.text());
        let overlay = self.of(asked.as_deref());
        Box::pin(async move { overlay.query(message, terms).await })
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByName")
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}
