//! The overlay with the device's resolver in it: streams to port 53 of the resolver's addresses end here, everything else goes on.
//! So the TCP table need not know that there is a resolver. Each [`super::super::Room`] has one.

use std::{net::IpAddr, sync::Arc};

use hoplite_overlay::{Datagrams, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{Target, connect_ip::Scope};

use super::{Config, Server};

/// An overlay and a resolver.
#[derive(Debug)]
pub(crate) struct Resolving {
    below: Arc<dyn Overlay>,
    server: Arc<Server>,
    config: Config,
}

impl Resolving {
    pub(crate) fn new(below: Arc<dyn Overlay>, server: Arc<Server>, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            below,
            server,
            config: config.clone(),
        })
    }

    fn is_resolver(&self, target: &Target) -> bool {
        let address = target.socket_addr();
        address.is_some_and(|address| self.config.resolves_at(address))
    }
}

impl Overlay for Resolving {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        match self.is_resolver(target) {
            true => Box::pin(async { Ok(self.server.stream()) }),
            false => self.below.open_stream(target, terms),
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        self.below.open_datagrams(target, terms)
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.below.resolve(name, terms)
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        self.below.query(message, terms)
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        self.below.open_packets(scope, terms)
    }
}
