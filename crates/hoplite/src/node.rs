//! A relay or a client as a process of its own, for `demo` and `bench`, so that each one's CPU time can be read.
//! The parent writes one line of JSON to its stdin (what to be) and reads one from its stdout (where it listens).
//! It ends when its stdin ends: it cannot outlive its parent.

pub(crate) mod parent;

use std::{
    io::{self, BufRead},
    net::SocketAddr,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{self, locate::Document},
    errors::Failure,
    say,
};

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
