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

/// What the client of a testbed sends its traffic over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Over {
    /// Nested hops.
    #[default]
    Masque,
    /// Circuits, whose channels run over QUIC.
    Quic,
    /// Circuits, whose channel to the first relay runs over TLS; relays race.
    Tls,
}

impl Over {
    /// What the client's file calls the overlay.
    pub(crate) fn overlay(self) -> &'static str {
        match self {
            Self::Masque => "masque",
            Self::Quic | Self::Tls => "onion",
        }
    }

    /// What circuits run over.
    pub(crate) fn channel(self) -> Option<&'static str> {
        match self {
            Self::Masque => None,
            Self::Quic => Some("quic"),
            Self::Tls => Some("tls"),
        }
    }
}

/// A chain: the client's SOCKS port, relay 1 (the ingress) to relay n (the egress).
#[derive(Debug)]
pub(crate) struct Chain {
    client: Node,
    relays: Vec<Node>,
}

impl Chain {
    /// Starts `hops` relays, the last one first, and the client.
    pub(crate) fn start(hops: usize, over: Over) -> Result<Self, Failure> {
        Self::with_client_keys(hops, over, "")
    }

    /// The same, with more lines for the client's file.
    pub(crate) fn with_client_keys(hops: usize, over: Over, keys: &str) -> Result<Self, Failure> {
        let relays = Relays::start(hops, over)?;
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
    over: Over,
}

impl Relays {
    /// Starts `count` relays.
    pub(crate) fn start(count: usize, over: Over) -> Result<Self, Failure> {
        let mut nodes: Vec<Node> = Vec::with_capacity(count);
        for _ in 0..count {
            let next = nodes.first().map(|node| node.ready().listen);
            let config = relay_file(next, over);
            nodes.insert(0, Node::start(&Order::Relay { config })?);
        }
        Ok(Self { nodes, over })
    }

    /// A client whose path are the last `hops` relays.
    pub(crate) fn client(&self, hops: usize, keys: &str) -> Result<Node, Failure> {
        let path = self.path(hops);
        if path.is_empty() {
            return Node::start(&Order::Direct);
        }
        Node::start(&Order::Client {
            config: client_file(path, self.over, keys),
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

/// The last relay connects to loopback targets; the ones before forward to the next one only. Relays of circuits are all alike.
fn relay_file(next: Option<SocketAddr>, over: Over) -> String {
    let role = match next {
        _ if over != Over::Masque => {
            "[egress]\nallow = [\"127.0.0.0/8\"]\n[onion]\nenabled = true\nopen = true\ncircuits_per_client = 4096\n"
                .to_owned()
        }
        None => "roles = [\"egress\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n".to_owned(),
        Some(next) => format!("roles = [\"ingress\"]\n[ingress]\nrelays = [\"{next}\"]\n"),
    };
    // IP packets are not measured; whether the system would let a relay answer echoes is no news here.
    format!(
        "listen = [\"127.0.0.1:0\"]\nip.enabled = false\n{role}[[auth.token]]\ntoken = \"{TOKEN}\"\n"
    )
}

fn client_file(path: &[Node], over: Over, keys: &str) -> String {
    let names: Vec<String> = (1..=path.len()).map(|i| format!("\"relay{i}\"")).collect();
    let names = names.join(", ");
    let overlay = match over {
        Over::Masque => "",
        Over::Quic => "overlay = \"onion\"\nonion.channel = \"quic\"\n",
        Over::Tls => "overlay = \"onion\"\nonion.channel = \"tls\"\n",
    };
    let file = format!(
        "{overlay}path = [{names}]\ntoken = \"{TOKEN}\"\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"off\"\n{keys}\n"
    );
    let relays = (1..).zip(path).map(|(i, node)| stanza(i, node.ready()));
    std::iter::once(file).chain(relays).collect()
}

fn stanza(i: usize, ready: &Ready) -> String {
    let Ready { listen, pin, onion } = ready;
    let line = |key: &str, value: &Option<String>| match value {
        Some(value) => format!("{key} = \"{value}\"\n"),
        None => String::new(),
    };
    let (pin, onion) = (line("pin", pin), line("onion", onion));
    format!("[[relay]]\nname = \"relay{i}\"\naddress = \"{listen}\"\n{pin}{onion}")
}
