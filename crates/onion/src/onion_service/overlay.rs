//! Circuits as an overlay that leads to onion services, too: a name under `.onion` is the address of a service, and no exit is ever told of it, also
//! where it is none. RFC 7686, §2; rend-spec-v3, "Encoding onion addresses".

use std::{net::IpAddr, sync::Arc};

use hoplite_crypto::onion::service_keys::OnionAddress;
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};
use hoplite_wire::{Host, Target, special};

use super::{Client, Descriptors};
use crate::client::{BuiltCircuit, StreamEvents};

/// What services are reached by.
#[derive(Debug)]
pub struct Reach {
    /// Circuits to them.
    pub client: Client,
    /// Where they are introduced.
    pub descriptors: Descriptors,
}

/// An overlay whose streams also lead to onion services, if there is what they are reached by.
#[derive(Debug)]
pub struct ServicesOverlay {
    below: Arc<dyn Overlay>,
    reach: Option<Reach>,
}

impl ServicesOverlay {
    /// Everything but names under `.onion` goes to `below`. Without `reach` those are refused: whoever has a list of relays can reach services.
    pub fn new(below: Arc<dyn Overlay>, reach: Option<Reach>) -> Self {
        Self { below, reach }
    }

    /// How many circuits to services stand now.
    pub fn circuits(&self) -> usize {
        let reach = self.reach.as_ref();
        reach.map_or(0, |reach| reach.client.circuits())
    }

    async fn open(&self, name: &str, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let (reach, address) = self.reach(name)?;
        let events = reach.client.events().stream(target, terms);
        let opened = reach.open((&address, target.port), terms, &events);
        opened.await.inspect_err(|error| events.failed(error))
    }

    async fn datagrams(
        &self,
        name: &str,
        port: u16,
        terms: &Terms,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let (reach, address) = self.reach(name)?;
        let circuit = reach.circuit(&address, terms).await?;
        reach.client.open_datagrams_on(&circuit, port, terms).await
    }

    /// What the service of this name is reached by, and its address.
    fn reach(&self, name: &str) -> Result<(&Reach, OnionAddress), Error> {
        let address = address(name)?;
        let Some(reach) = &self.reach else {
            let doing = "reaching an onion service without a list of the relays that keep its descriptor: it needs [directory]";
            return Err(Error::new(ErrorKind::Unsupported, doing));
        };
        Ok((reach, address))
    }
}

impl Reach {
    async fn open(
        &self,
        (address, port): (&OnionAddress, u16),
        terms: &Terms,
        events: &StreamEvents,
    ) -> Result<Stream, Error> {
        let circuit = self.circuit(address, terms).await?;
        let service = (address.key(), &circuit);
        let opening = self.client.open_soon(service, port, terms, events);
        if let Some(stream) = opening.await? {
            return Ok(stream);
        }
        let circuit = self.circuit(address, terms).await?;
        self.client.open_on(&circuit, port, terms, events).await
    }

    async fn circuit(
        &self,
        address: &OnionAddress,
        terms: &Terms,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        let prepared = if self.descriptors.knows(address) {
            None
        } else {
            self.client.prepare(address.key(), &terms.isolation)
        };
        let looking = self.descriptors.service(address, &terms.isolation);
        let known = terms.run("looking for an onion service", looking).await?;
        let newer = || self.descriptors.newer(address, &terms.isolation, &known);
        self.client.reach(&known, prepared, newer, terms).await
    }
}

/// Of a name under `.onion`: names below an address are the service's own affair.
fn address(name: &str) -> Result<OnionAddress, Error> {
    let (labels, _) = name.rsplit_once('.').unwrap_or((name, ""));
    let label = labels.rsplit('.').next().unwrap_or(labels);
    OnionAddress::from_label(label).map_err(|why| {
        let doing = format!("reaching an onion service: {why}");
        Error::new(ErrorKind::TargetFailed, doing).because(Reason::NameNotFound)
    })
}

fn service_of(target: &Target) -> Option<String> {
    match &target.host {
        Host::Name(name) => service_name(name.as_str()),
        Host::Ip(_) => None,
    }
}

/// The name without the root's dot, if it is one of an onion service.
fn service_name(name: &str) -> Option<String> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    special::is_onion_name(&name).then_some(name)
}

impl Overlay for ServicesOverlay {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        match service_of(target) {
            Some(name) => Box::pin(async move { self.open(&name, target, terms).await }),
            None => self.below.open_stream(target, terms),
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        match service_of(target) {
            Some(name) => Box::pin(async move { self.datagrams(&name, target.port, terms).await }),
            None => self.below.open_datagrams(target, terms),
        }
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        if service_name(name).is_some() {
            return Box::pin(async {
                let doing = "resolving the name of an onion service, which has no address: streams to the name itself lead there";
                Err(Error::new(ErrorKind::TargetFailed, doing).because(Reason::NameNotFound))
            });
        }
        self.below.resolve(name, terms)
    }
}

#[cfg(test)]
mod tests {
    use hoplite_crypto::onion::service_keys::ServiceIdentity;

    use super::*;

    #[test]
    fn the_last_label_before_onion_is_the_address_and_what_is_none_is_refused() {
        let service = ServiceIdentity::generate().expect("a key").address();
        for name in [
            format!("{service}"),
            format!("www.{service}."),
            format!("a.b.{service}").to_uppercase(),
        ] {
            let name = service_name(&name).expect("a name of a service");
            assert_eq!(address(&name).expect("an address"), service);
        }
        let mistyped = format!("{service}").replacen(service.label().split_at(3).0, "zzz", 1);
        for name in ["onion", "x.onion", "..onion", &mistyped] {
            let name = service_name(name).expect("never an exit's");
            let error = address(&name).expect_err("no address");
            assert_eq!(error.reason(), Some(Reason::NameNotFound));
            assert!(
                !error.to_string().contains(&name) || name == "onion",
                "{error}"
            );
        }
        for name in ["onion.example", "example.onion.org", "myonion", ""] {
            assert_eq!(service_name(name), None, "{name}");
        }
    }
}
