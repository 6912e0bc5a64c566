//! How a node reaches others: the overlay that its channels are dialled through. A relay's and a client's alike, and an exit's to targets.

use std::net::{IpAddr, SocketAddr};

use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};
use hoplite_wire::{Host as Name, Target};

use crate::net::{Network, Node, tcp::TcpStream, udp::Flow};

/// A node's own roads.
#[derive(Clone, Debug)]
pub struct Host {
    network: Network,
    node: Node,
}

impl Host {
    /// Of `node`.
    pub fn new(network: &Network, node: Node) -> Self {
        let network = network.clone();
        Self { network, node }
    }
}

/// Nobody has a name here.
fn address(target: &Target) -> Result<SocketAddr, Error> {
    match &target.host {
        Name::Ip(ip) => Ok(SocketAddr::new(*ip, target.port)),
        Name::Name(_) => Err(nameless()),
    }
}

fn nameless() -> Error {
    let error = Error::new(
        ErrorKind::TargetFailed,
        "resolving a name in a network without names",
    );
    error.because(Reason::NameNotFound)
}

impl Overlay for Host {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(terms.run("connecting", async move {
            let there = address(target)?;
            let stream = TcpStream::connect(&self.network, self.node, there).await?;
            Ok(Stream::new(stream))
        }))
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let flow = Flow::new(&self.network, self.node, address(target)?);
            Ok(Box::new(flow) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async { Err(nameless()) })
    }
}
