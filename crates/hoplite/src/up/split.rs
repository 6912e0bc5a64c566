//! Two roads: what is asked for by an excluded name goes by the device's own marked sockets, the rest by the relays.
//! `carrier` puts it in front of the path when the file excludes domains.

use std::{net::IpAddr, sync::Arc};

use hoplite_overlay::{Datagrams, Direct, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{
    Host, Target,
    connect_ip::{Scope, ScopeTarget},
    dns::Question,
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
    let direct = Direct::new().mark(MARK).name_servers(&names.servers());
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

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        let asked = Question::read(message).ok().map(|question| question.text());
        match asked.and_then(|name| self.past(&name)) {
            Some(past) => Box::pin(async move { past.query(message, terms).await }),
            None => self.relays.query(message, terms),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hoplite_overlay::{Error, ErrorKind};
    use hoplite_wire::{HostName, dns::RecordType};

    use super::*;

    /// Relays that refuse everything and count how often they are asked.
    #[derive(Debug, Default)]
    struct Relays(AtomicUsize);

    impl Relays {
        fn refuse<T>(&self) -> Opening<'_, T> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Err(Error::new(ErrorKind::PathFailed, "testing")) })
        }
    }

    impl Overlay for Relays {
        fn open_stream<'a>(&'a self, _: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
            self.refuse()
        }

        fn open_datagrams<'a>(
            &'a self,
            _: &'a Target,
            _: &'a Terms,
        ) -> Opening<'a, Box<dyn Datagrams>> {
            self.refuse()
        }

        fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
            self.refuse()
        }

        fn open_packets<'a>(&'a self, _: &'a Scope, _: &'a Terms) -> Opening<'a, Box<dyn Packets>> {
            self.refuse()
        }

        fn query<'a>(&'a self, _: &'a [u8], _: &'a Terms) -> Opening<'a, Vec<u8>> {
            self.refuse()
        }
    }

    /// How often relays are asked when all there is to ask is asked about `name`.
    async fn asked(name: &str) -> usize {
        let relays = Arc::new(Relays::default());
        let domains = vec!["invalid".parse().expect("a domain")];
        let split = Split::new(Arc::clone(&relays) as _, Arc::default(), domains);
        let (terms, name) = (Terms::default(), HostName::new(name).expect("a name"));
        let target = Target::new(Host::Name(name.clone()), 443).expect("a target");
        let question = Question::new(&name, RecordType::MX).message();
        let scope = Scope {
            target: ScopeTarget::Name(name.clone()),
            protocol: None,
        };
        drop(split.open_stream(&target, &terms).await);
        drop(split.open_datagrams(&target, &terms).await);
        drop(split.resolve(name.as_str(), &terms).await);
        drop(split.open_packets(&scope, &terms).await);
        drop(split.query(&question, &terms).await);
        relays.0.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn relays_hear_of_no_excluded_name_and_of_all_others() {
        assert_eq!(asked("host.invalid").await, 0);
        assert_eq!(asked("host.example").await, 5);
    }
}
