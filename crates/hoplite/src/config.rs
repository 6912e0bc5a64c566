//! Configuration files: TOML in, values or complaints out, each complaint with file, line, column and key. What the keys mean stands in the rooms that own the structs.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use hoplite_channel::Rival;
use hoplite_config::meant;
use hoplite_crypto::Token;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};
use zeroize::Zeroizing;

use crate::say::{Complaint, Failure};

pub(crate) mod client;
pub(crate) mod directory;
pub(crate) mod issuer;
pub(crate) mod relay;

#[cfg(test)]
mod tests;

/// What fails where a file is wrong.
const READING: &str = "reading the configuration";

/// Larger files are no configuration.
const LARGEST: u64 = 4 << 20;

/// Keys that only a client's file has.
const CLIENT_KEYS: [&str; 13] = [
    "relay", "path", "hops", "overlay", "socks", "http", "device", "flows", "dns", "takeover",
    "issuer", "service", "scan",
];

/// Keys that only a relay's file has.
const RELAY_KEYS: [&str; 13] = [
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
    "bound_udp",
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
    /// `hoplite issuer`.
    Issuer,
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

/// Why a file may not ask for what the lab alone measures, unless this program is built for it.
pub(crate) fn refused_rival(document: &Document, rival: Option<Rival>) -> Option<Complaint> {
    if rival.is_none() || cfg!(feature = "rivals") {
        return None;
    }
    let why = "circuits would be slower, or could be counted by others: it is for hoplite-lab's comparisons, and this program is built without it";
    let remedy = "remove the key; the lab takes a program that is built with `--features rivals`";
    Some(document.complain("onion.rival", why, remedy))
}

/// Turns a document into a value, or says where it does not fit.
pub(crate) fn value<T: DeserializeOwned>(document: &Document) -> Result<T, Failure> {
    toml::from_str(document.parsed.text()).map_err(|error| {
        let complaint = complaint(document, &error);
        Failure::Wrong(vec![complaint])
    })
}

/// Which of the four a file is: a client's names relays, a relay's listens, an authority's names all of them, an issuer's has accounts, or whose bearers it takes.
pub(crate) fn kind(document: &Document) -> Result<Kind, Failure> {
    if document.has("authorities") {
        return Ok(Kind::Directory);
    }
    if document.has("account") || document.has("oidc") {
        return Ok(Kind::Issuer);
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

/// A token, which no message repeats.
pub(crate) fn token<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Token>, D::Error> {
    let text = String::deserialize(input)?;
    let missing = || de::Error::custom("expected a token, found an empty text");
    trimmed(text).map(Some).ok_or_else(missing)
}

/// A token without the white space around it; nothing if nothing is left. The text is wiped.
pub(crate) fn trimmed(text: String) -> Option<Token> {
    let text = Zeroizing::new(text);
    let token = text.trim();
    (!token.is_empty()).then(|| Token::new(token.to_owned()))
}

/// What does not fit, where, and what to do.
fn complaint(document: &Document, error: &toml::de::Error) -> Complaint {
    let span = error.span().unwrap_or(0..0);
    let key = document.parsed.key_at(&span);
    let complain = |why: &str, remedy: &str| document.complain_at(span.start, &key, why, remedy);
    let message = error.message();
    if let Some((found, known)) = unknown(message, "unknown field ") {
        return complain("there is no such key", &meant(found, &known));
    }
    if let Some((found, known)) = unknown(message, "unknown variant ") {
        let why = format!("{found:?} is not a value of this key");
        return complain(&why, &meant(found, &known));
    }
    if let Some(missing) = quoted(message)
        .next()
        .filter(|_| message.starts_with("missing field"))
    {
        return complain(&format!("the key \"{missing}\" is missing"), "add it");
    }
    let why = if is_secret(&key) {
        without_value(message)
    } else {
        plain(message)
    };
    complain(&why, "correct the value")
}

fn is_secret(key: &str) -> bool {
    // The last may hold a URL, and the URL a password.
    ["token", "url", "store"]
        .iter()
        .any(|end| key.ends_with(end))
}

/// A message never repeats a secret.
fn without_value(message: &str) -> String {
    let expected = message
        .rsplit_once("expected ")
        .map_or("a text", |(_, expected)| expected);
    format!("expected {expected}")
}

/// `invalid type: integer `7`, expected a string` in the order of the other messages.
fn plain(message: &str) -> String {
    let message = message.replace('\n', ", ");
    let found = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!(
            "expected {}, found {}",
            everyday(expected),
            found.replace('`', "")
        ),
        None => message,
    }
}

/// Type names in the words of a user.
fn everyday(expected: &str) -> &str {
    match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number",
        "f64" => "a number",
        "a sequence" => "a list",
        other => other,
    }
}

/// What stands between the grave accents of serde's messages.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

fn unknown<'m>(message: &'m str, start: &str) -> Option<(&'m str, Vec<&'m str>)> {
    let mut names = quoted(message.strip_prefix(start)?);
    Some((names.next()?, names.collect()))
}

/// A parsed file, about whose keys is complained.
#[derive(Debug)]
pub(crate) struct Document {
    path: PathBuf,
    parsed: hoplite_config::Document,
}

fn compare(within: &str, old: &toml::Table, new: &toml::Table, found: &mut Vec<String>) {
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let place = match within {
            "" => key.clone(),
            _ => format!("{within}.{key}"),
        };
        let empty = toml::Table::new();
        let table = |value: Option<&toml::Value>| match value {
            None => Some(empty.clone()),
            Some(value) => value.as_table().cloned(),
        };
        match (old.get(key), new.get(key)) {
            (one, other) if one == other => {}
            (one, other) => match (table(one), table(other)) {
                (Some(one), Some(other)) if !(one.is_empty() && other.is_empty()) => {
                    compare(&place, &one, &other, found);
                }
                _ => found.push(place),
            },
        }
    }
}

impl Document {
    /// Parses TOML; `path` is for the complaints.
    pub(crate) fn parse(path: &Path, text: String) -> Result<Self, Failure> {
        let parsed = hoplite_config::Document::parse(path.display().to_string(), text);
        let parsed = parsed.map_err(|error| {
            let remedy = "correct the TOML syntax there";
            Failure::Wrong(vec![Complaint::new(READING, error, remedy)])
        })?;
        Ok(Self {
            path: path.to_owned(),
            parsed,
        })
    }

    /// The keys, with their tables, that another file has otherwise, or that one of the two does not have. Arrays are compared whole.
    pub(crate) fn differing(&self, other: &Self) -> Vec<String> {
        let read = |document: &Self| document.parsed.text().parse::<toml::Table>();
        let (Ok(old), Ok(new)) = (read(self), read(other)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        compare("", &old, &new, &mut found);
        found
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a key stands at the top.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.parsed.root().node(key).is_some()
    }

    /// A complaint about a key, such as `relay[1].pin`. If it is absent, about the nearest table around it.
    pub(crate) fn complain(&self, key: &str, why: impl fmt::Display, remedy: &str) -> Complaint {
        self.complain_at(self.parsed.find(key).unwrap_or(0), key, why, remedy)
    }

    fn complain_at(&self, at: usize, key: &str, why: impl fmt::Display, remedy: &str) -> Complaint {
        let place = self.parsed.place(at, key);
        Complaint::new(READING, format!("{place}: {why}"), remedy)
    }
}
