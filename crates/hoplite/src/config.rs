//! Configuration files: TOML in, values or complaints out, each complaint with file, line, column and key.
//! The commands `relay`, `client` and `check` use it. What the keys mean stands in the rooms that own the structs.

pub(crate) mod client;
pub(crate) mod directory;
pub(crate) mod locate;
pub(crate) mod relay;
mod suggest;
pub(crate) mod text;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::errors::Failure;
use locate::Document;

#[cfg(test)]
mod tests;

/// Larger files are no configuration.
const LARGEST: u64 = 4 << 20;

/// Keys that only a client's file has.
const CLIENT_KEYS: [&str; 10] = [
    "relay", "path", "hops", "overlay", "socks", "http", "device", "flows", "dns", "takeover",
];

/// Keys that only a relay's file has.
const RELAY_KEYS: [&str; 12] = [
    "name",
    "listen",
    "roles",
    "identity",
    "tls",
    "auth",
    "egress",
    "ingress",
    "masque",
    "forwarding",
    "ip",
    "metrics",
];

/// What a file configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `hoplite relay`.
    Relay,
    /// `hoplite client`.
    Client,
    /// `hoplite directory`.
    Directory,
}

/// Reads a file into a document whose parts know where they stand.
pub(crate) fn open(path: &Path) -> Result<Document, Failure> {
    let text = read_bounded(path).map_err(|error| Failure::no_config(path, &error))?;
    Document::parse(path, text)
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let size = std::fs::metadata(path)?.len();
    if size > LARGEST {
        return Err(std::io::Error::other("it is larger than 4 MiB"));
    }
    std::fs::read_to_string(path)
}

/// Turns a document into a value, or says where it does not fit.
pub(crate) fn value<T: DeserializeOwned>(document: &Document) -> Result<T, Failure> {
    toml::from_str(document.text()).map_err(|error| {
        let complaint = suggest::complaint(document, &error);
        Failure::Wrong(vec![complaint])
    })
}

/// Which of the three a file is: a client's names relays, a relay's listens, an authority's names all of them.
pub(crate) fn kind(document: &Document) -> Result<Kind, Failure> {
    if document.has("authorities") {
        return Ok(Kind::Directory);
    }
    let first = |keys: &[&'static str]| keys.iter().copied().find(|key| document.has(key));
    let why = match (first(&CLIENT_KEYS), first(&RELAY_KEYS)) {
        (Some(_), None) => return Ok(Kind::Client),
        (None, Some(_)) => return Ok(Kind::Relay),
        (Some(client), Some(relay)) => {
            format!("`{client}` belongs into a client's file, `{relay}` into a relay's")
        }
        (None, None) => "neither a client's file nor a relay's".to_owned(),
    };
    let remedy = "a client's file has [[relay]] and `path` or `hops`, or `overlay`; a relay's has `listen`, `roles` or `identity`";
    Err(vec![document.complain("", why, remedy)].into())
}

/// A path of a file, seen from the directory of the configuration that names it.
pub(crate) fn beside(config: &Path, path: &Path) -> PathBuf {
    config
        .parent()
        .map_or_else(|| path.to_owned(), |directory| directory.join(path))
}
