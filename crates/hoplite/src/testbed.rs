//! Relays and a client on loopback, each a process of its own, in a chain of 0 to 4 hops.
//! `demo` and `bench` send their traffic through it.

use std::net::SocketAddr;

use crate::{
    cpu::Watched,
    errors::Failure,
    node::{Order, Ready, parent::Node},
};

/// The token that the testbed's relays want.
const TOKEN: &str = "loopback";

/// A chain: the client's SOCKS port, relay 1 (the ingress) to relay n (the egress).
#[derive(Debug)]
pub(crate) struct Chain {
    client: Node,
    relays: Vec<Node>,
}

impl Chain {
    /// Starts `hops` relays, the last one first, and the client.
    pub(crate) fn start(hops: usize) -> Result<Self, Failure> {
        Self::with_client_keys(hops, "")
    }

    /// The same, with more lines for the client's file.
    pub(crate) fn with_client_keys(hops: usize, keys: &str) -> Result<Self, Failure> {
        let relays = Relays::start(hops)?;
        let client = relays.client(hops, keys)?;
        Ok(Self {
            client,
            relays: relays.nodes,
        })
    }

    /// Where SOCKS listens.
    pub(crate) fn socks(&self) -> SocketAddr {
        self.client.ready().listen
    }

    /// The processes to account for: the client, then the relays in the order of the path.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        watched(&self.client, &self.relays)
    }
}

/// Relays of which each knows the next; a path of n hops uses the last n.
#[derive(Debug)]
pub(crate) struct Relays {
    nodes: Vec<Node>,
}

impl Relays {
    /// Starts `count` relays.
    pub(crate) fn start(count: usize) -> Result<Self, Failure> {
        let mut nodes: Vec<Node> = Vec::with_capacity(count);
        for _ in 0..count {
            let next = nodes.first().map(|node| node.ready().listen);
            let config = relay_file(next);
            nodes.insert(0, Node::start(&Order::Relay { config })?);
        }
        Ok(Self { nodes })
    }

    /// A client whose path are the last `hops` relays.
    pub(crate) fn client(&self, hops: usize, keys: &str) -> Result<Node, Failure> {
        let path = self.path(hops);
        if path.is_empty() {
            return Node::start(&Order::Direct);
        }
        Node::start(&Order::Client {
            config: client_file(path, keys),
        })
    }

    /// The processes of a path of `hops`.
    pub(crate) fn watched(&self, client: &Node, hops: usize) -> Vec<Watched> {
        watched(client, self.path(hops))
    }

    fn path(&self, hops: usize) -> &[Node] {
        self.nodes
            .get(self.nodes.len().saturating_sub(hops)..)
            .unwrap_or_default()
    }
}

fn watched(client: &Node, relays: &[Node]) -> Vec<Watched> {
    let relay = |(i, node): (usize, &Node)| Watched {
        name: format!("relay{}", i + 1),
        pid: node.pid(),
    };
    let client = Watched {
        name: "client".into(),
        pid: client.pid(),
    };
    std::iter::once(client)
        .chain(relays.iter().enumerate().map(relay))
        .collect()
}

/// The last relay connects to loopback targets; the ones before forward to the next one only.
fn relay_file(next: Option<SocketAddr>) -> String {
    let role = match next {
        None => "roles = [\"egress\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n".to_owned(),
        Some(next) => format!("roles = [\"ingress\"]\n[ingress]\nrelays = [\"{next}\"]\n"),
    };
    format!("listen = [\"127.0.0.1:0\"]\n{role}[[auth.token]]\ntoken = \"{TOKEN}\"\n")
}

fn client_file(path: &[Node], keys: &str) -> String {
    let names: Vec<String> = (1..=path.len()).map(|i| format!("\"relay{i}\"")).collect();
    let mut file = format!(
        "path = [{}]\ntoken = \"{TOKEN}\"\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"off\"\n{keys}\n",
        names.join(", ")
    );
    for (name, node) in names.iter().zip(path) {
        let Ready { listen, pin } = node.ready();
        let pin = pin.as_deref().unwrap_or_default();
        file.push_str(&format!(
            "[[relay]]\nname = {name}\naddress = \"{listen}\"\npin = \"{pin}\"\n"
        ));
    }
    file
}
