//! Relays and a client on loopback, each a process of its own, in a chain of 0 to 4 hops.
//! `demo` and `bench` send their traffic through it.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use hoplite_link::LinkKind;
use hoplite_workload::cpu::Watched;
use serde::{Deserialize, Serialize};

use crate::{
    config::{self, Document},
    say,
    say::Failure,
};

/// The token that the testbed's relays want.
const TOKEN: &str = "loopback";

/// What the client of a testbed sends its traffic over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Over {
    /// Nested hops.
    #[default]
    Masque,
    /// Circuits, whose channels run over this, the relays' to each other too.
    Onion(LinkKind),
}

impl Over {
    /// What the client's file calls the overlay.
    pub(crate) fn overlay(self) -> &'static str {
        match self {
            Self::Masque => "masque",
            Self::Onion(_) => "onion",
        }
    }

    /// What circuits run over.
    pub(crate) fn channel(self) -> Option<&'static str> {
        match self {
            Self::Masque => None,
            Self::Onion(kind) => Some(kind.name()),
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

/// The last relay connects to loopback targets; the ones before forward to the next one only. Relays of circuits are all alike, and their channels to
/// each other are of the client's kind: with both, a relay that no list has is dialled over TLS first.
fn relay_file(next: Option<SocketAddr>, over: Over) -> String {
    let role = match (over, next) {
        (Over::Onion(kind), _) => format!(
            "[egress]\nallow = [\"127.0.0.0/8\"]\n[onion]\nenabled = true\nopen = true\ncircuits_per_client = 4096\nchannels = [\"{kind}\"]\n"
        ),
        (Over::Masque, None) => {
            "roles = [\"egress\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n".to_owned()
        }
        (Over::Masque, Some(next)) => {
            format!("roles = [\"ingress\"]\n[ingress]\nrelays = [\"{next}\"]\n")
        }
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
        Over::Masque => String::new(),
        Over::Onion(kind) => format!("overlay = \"onion\"\nonion.channel = \"{kind}\"\n"),
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

// A relay or a client as a process of its own, for `demo` and `bench`, so that each one's CPU time can be read. The
// parent writes one line of JSON to its stdin (what to be) and reads one from its stdout (where it listens). It ends
// when its stdin ends: it cannot outlive its parent.

/// What a node shall be: the text of its configuration file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(crate) enum Order {
    /// A relay with an identity of its own that is never stored.
    Relay {
        /// A relay's file.
        config: String,
    },
    /// A client.
    Client {
        /// A client's file.
        config: String,
    },
    /// A client without any relay: the baseline.
    Direct,
}

/// What a node answers when it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// A relay's pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pin: Option<String>,
    /// What clients write of a relay that serves circuits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) onion: Option<String>,
}

/// Runs until stdin ends.
pub(crate) fn run() -> Result<(), Failure> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    let order = read.and_then(|_| Ok(serde_json::from_str(&line)?));
    let order = order.map_err(|error| {
        Failure::new(
            "reading what to be",
            error,
            "this command is for 'hoplite demo' and 'hoplite bench'",
        )
    })?;
    match order {
        Order::Relay { config } => {
            let relay = config::relay::read(&document(config)?)?;
            crate::relay::serve_node(&relay.config)
        }
        Order::Client { config } => {
            let client = config::client::read(&document(config)?)?;
            crate::client::serve_node(Some(&client))
        }
        Order::Direct => crate::client::serve_node(None),
    }
}

fn document(text: String) -> Result<Document, Failure> {
    Document::parse(Path::new("node.toml"), text)
}

/// Tells the parent that the node is ready.
pub(crate) fn ready(ready: &Ready) -> Result<(), Failure> {
    say::json(ready)
}

/// Waits until the parent is gone or wants the node to end. Reading happens on a thread of its own, which ends with the process.
pub(crate) async fn orphaned() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let wait = move || {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
        drop(tell);
    };
    if std::thread::Builder::new()
        .name("stdin".into())
        .spawn(wait)
        .is_ok()
    {
        drop(told.await);
    }
}

// The parent's side of a node: starts it, waits until it is ready, ends it.

/// How long a node may take to end by itself before it is killed.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running node. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    stdin: Option<ChildStdin>,
    ready: Ready,
}

impl Node {
    /// Starts a process of this program and waits until it is ready.
    pub(crate) fn start(order: &Order) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(
                "starting a process of its own",
                error,
                "run it where processes may start others",
            )
        };
        let mut child = spawn().map_err(failed)?;
        let (stdin, answer) = ask(&mut child, order).map_err(failed)?;
        let mut node = Self {
            child,
            stdin: Some(stdin),
            ready: nowhere(),
        };
        node.ready = serde_json::from_str(&answer).map_err(|_| {
            let remedy = "see its message above";
            Failure::new(
                "starting a process of its own",
                "it ended before it was ready",
                remedy,
            )
        })?;
        Ok(node)
    }

    /// Where it listens, and its pin.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > FAREWELL {
                self.child.kill()?;
                return self.child.wait().map(drop);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stdin.take());
        drop(self.wait());
    }
}

fn nowhere() -> Ready {
    Ready {
        listen: ([0, 0, 0, 0], 0).into(),
        pin: None,
        onion: None,
    }
}

fn spawn() -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    #[cfg(feature = "without-cipher")]
    if hoplite_quic::is_cipher_left_out() {
        command.arg("--without-cipher");
    }
    command
        .arg("__node")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

fn ask(child: &mut Child, order: &Order) -> io::Result<(ChildStdin, String)> {
    let gone = || io::Error::other("it has no pipes");
    let mut stdin = child.stdin.take().ok_or_else(gone)?;
    let stdout = child.stdout.take().ok_or_else(gone)?;
    let mut line = serde_json::to_string(order)?;
    line.push('\n');
    stdin.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stdout).read_line(&mut answer)?;
    Ok((stdin, answer))
}
