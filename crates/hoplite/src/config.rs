//! Configuration files: TOML in, values or complaints out, each complaint with file, line, column and key. What the keys mean stands in the rooms that own the structs.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use hoplite_crypto::Token;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use zeroize::Zeroizing;

use crate::say::{Complaint, Failure};

pub(crate) mod client;
pub(crate) mod directory;
pub(crate) mod relay;

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
        let complaint = complaint(document, &error);
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

/// A text with a parser.
pub(crate) fn parsed<'de, D, T>(input: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    let text = String::deserialize(input)?;
    text.parse()
        .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
}

/// The same, where the key may be absent.
pub(crate) fn parsed_option<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    parsed(input).map(Some)
}

/// A number of seconds, whole or not.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(input)?;
    let expected = || de::Error::custom("expected seconds, from 0 to 31536000");
    if (0.0..=31_536_000.0).contains(&seconds) {
        Duration::try_from_secs_f64(seconds).map_err(|_| expected())
    } else {
        Err(expected())
    }
}

/// What does not fit, where, and what to do.
fn complaint(document: &Document, error: &toml::de::Error) -> Complaint {
    let span = error.span().unwrap_or(0..0);
    let key = document.key_at(&span);
    let key = (!key.is_empty()).then_some(key.as_str());
    let message = error.message();
    let offset = span.start;
    if let Some((found, known)) = unknown(message, "unknown field ") {
        return document.complain_at(offset, key, "there is no such key", &meant(&found, &known));
    }
    if let Some((found, known)) = unknown(message, "unknown variant ") {
        let why = format!("{found:?} is not a value of this key");
        return document.complain_at(offset, key, why, &meant(&found, &known));
    }
    if let Some(missing) = quoted(message)
        .first()
        .filter(|_| message.starts_with("missing field"))
    {
        return document.complain_at(
            offset,
            key,
            format!("the key \"{missing}\" is missing"),
            "add it",
        );
    }
    let why = if key.is_some_and(is_secret) {
        without_value(message)
    } else {
        plain(message)
    };
    document.complain_at(offset, key, why, "correct the value")
}

fn is_secret(key: &str) -> bool {
    key.ends_with("token")
}

/// A message never repeats a token.
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
fn quoted(message: &str) -> Vec<String> {
    message
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn unknown(message: &str, start: &str) -> Option<(String, Vec<String>)> {
    let mut names = quoted(message.strip_prefix(start)?).into_iter();
    Some((names.next()?, names.collect()))
}

fn meant(found: &str, known: &[String]) -> String {
    let near = known.iter().map(|name| (distance(found, name), name)).min();
    match near {
        Some((far, name)) if far <= 1 + name.chars().count() / 3 => {
            format!("did you mean \"{name}\"?")
        }
        Some(_) => format!("use one of {}", known.join(", ")),
        None => "remove it".into(),
    }
}

/// How many letters to change, add, drop or swap with their neighbour; of a long text only the beginning is looked at.
fn distance(found: &str, known: &str) -> usize {
    let beginning: String = found.chars().take(64).collect();
    strsim::osa_distance(&beginning, known)
}

/// A parsed file. Lines and columns count from 1, columns in characters.
pub(crate) struct Document {
    path: PathBuf,
    text: String,
    root: DeTable<'static>,
}

/// One step from a table or list to what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The key of a table.
    Key(String),
    /// The element of a list, from 0.
    Index(usize),
}

impl Document {
    /// Parses TOML; `path` is for the complaints.
    pub(crate) fn parse(path: &Path, text: String) -> Result<Self, Failure> {
        let mut parsed = Self {
            path: path.to_owned(),
            text,
            root: DeTable::new(),
        };
        let mut root = match DeTable::parse(&parsed.text) {
            Ok(root) => root.into_inner(),
            Err(error) => return Err(parsed.syntax(&error)),
        };
        root.make_owned();
        parsed.root = owned(root);
        Ok(parsed)
    }

    fn syntax(&self, error: &toml::de::Error) -> Failure {
        let offset = error.span().map_or(self.text.len(), |span| span.start);
        let message = error.message().replace('\n', ", ");
        let remedy = "correct the TOML syntax there";
        Failure::Wrong(vec![self.complain_at(offset, None, message, remedy)])
    }

    /// The file's content.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a key stands at the top.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.root.keys().any(|k| k.get_ref().as_ref() == key)
    }

    /// A complaint about a key, such as `relay[1].pin`. If it is absent, about the nearest table around it.
    pub(crate) fn complain(&self, key: &str, why: impl fmt::Display, remedy: &str) -> Complaint {
        let offset = self.find(&steps(key)).map_or(0, |span| span.start);
        self.complain_at(offset, Some(key), why, remedy)
    }

    /// A complaint about an offset in the text.
    pub(crate) fn complain_at(
        &self,
        offset: usize,
        key: Option<&str>,
        why: impl fmt::Display,
        remedy: &str,
    ) -> Complaint {
        let (line, column) = self.position(offset);
        let place = format!("{}:{line}:{column}", self.path.display());
        let why = match key {
            Some(key) if !key.is_empty() => format!("{place}: {key}: {why}"),
            _ => format!("{place}: {why}"),
        };
        Complaint::new("reading the configuration", why, remedy)
    }

    /// Line and column of an offset.
    pub(crate) fn position(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        (line, column)
    }

    /// The value at the end of `steps`, or the last thing on the way that exists.
    fn find(&self, steps: &[Step]) -> Option<Range<usize>> {
        let (first, rest) = steps.split_first()?;
        let Step::Key(key) = first else { return None };
        let (mut span, mut here) = entry(&self.root, key)?;
        for step in rest {
            let next = match (step, here) {
                (Step::Key(key), DeValue::Table(table)) => entry(table, key),
                (Step::Index(i), DeValue::Array(list)) => {
                    list.get(*i).map(|item| (item.span(), item.get_ref()))
                }
                _ => None,
            };
            let Some((at, value)) = next else { break };
            (span, here) = (at, value);
        }
        Some(span)
    }

    /// The key whose name or value covers `span`, the innermost one.
    pub(crate) fn key_at(&self, span: &Range<usize>) -> String {
        let mut path = Vec::new();
        descend_table(&self.root, span, &mut path);
        written(&path)
    }
}

impl fmt::Debug for Document {
    /// Without the content: there are tokens in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({})", self.path.display())
    }
}

/// The lifetime is gone once every text is owned; the type system is told by building the table anew.
fn owned(table: DeTable<'_>) -> DeTable<'static> {
    let entry = |(key, value): (Spanned<toml::de::DeString<'_>>, Spanned<DeValue<'_>>)| {
        let (key_span, value_span) = (key.span(), value.span());
        let key = Spanned::new(key_span, key.into_inner().into_owned().into());
        (
            key,
            Spanned::new(value_span, owned_value(value.into_inner())),
        )
    };
    table.into_iter().map(entry).collect()
}

/// Numbers and dates keep their place only: nobody asks for their value here.
fn owned_value(value: DeValue<'_>) -> DeValue<'static> {
    match value {
        DeValue::Table(table) => DeValue::Table(owned(table)),
        DeValue::Array(list) => DeValue::Array(list.into_iter().fold(
            toml::de::DeArray::new(),
            |mut list, item| {
                let span = item.span();
                list.push(Spanned::new(span, owned_value(item.into_inner())));
                list
            },
        )),
        _ => DeValue::Boolean(true),
    }
}

fn entry<'t>(
    table: &'t DeTable<'static>,
    key: &str,
) -> Option<(Range<usize>, &'t DeValue<'static>)> {
    let (name, value) = table
        .iter()
        .find(|(name, _)| name.get_ref().as_ref() == key)?;
    let span = match value.get_ref() {
        DeValue::Table(_) | DeValue::Array(_) => name.span(),
        _ => value.span(),
    };
    Some((span, value.get_ref()))
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn descend_table(table: &DeTable<'static>, span: &Range<usize>, path: &mut Vec<Step>) -> bool {
    table.iter().any(|(key, value)| {
        path.push(Step::Key(key.get_ref().to_string()));
        let inside = descend_value(value, span, path) || covers(&key.span(), span);
        if !inside {
            path.pop();
        }
        inside
    })
}

fn descend_value(
    value: &Spanned<DeValue<'static>>,
    span: &Range<usize>,
    path: &mut Vec<Step>,
) -> bool {
    let deeper = match value.get_ref() {
        DeValue::Table(table) => descend_table(table, span, path),
        DeValue::Array(list) => list.iter().enumerate().any(|(i, item)| {
            path.push(Step::Index(i));
            let inside = descend_value(item, span, path);
            if !inside {
                path.pop();
            }
            inside
        }),
        _ => false,
    };
    deeper || covers(&value.span(), span)
}

/// `relay[1].pin` taken apart.
fn steps(key: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in key.split('.') {
        let mut pieces = part.split('[');
        steps.extend(pieces.next().map(|name| Step::Key(name.to_owned())));
        let indices = pieces.filter_map(|piece| piece.trim_end_matches(']').parse().ok());
        steps.extend(indices.map(Step::Index));
    }
    steps
}

fn written(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.extend([".", key]),
            Step::Index(i) => text.push_str(&format!("[{i}]")),
        }
    }
    text
}

#[cfg(test)]
mod suggest_tests {
    use super::*;

    #[test]
    fn a_swapped_and_a_dropped_letter_each_count_once() {
        // A name of two letters forgives one mistake.
        let known = ["ip".to_owned()];
        for found in ["pi", "p", "iip", "up"] {
            assert_eq!(meant(found, &known), "did you mean \"ip\"?");
        }
        assert_eq!(meant("pie", &known), "use one of ip");
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["name".to_owned(), "address".to_owned()];
        assert_eq!(meant("adress", &known), "did you mean \"address\"?");
        assert_eq!(meant("colour", &known), "use one of name, address");
    }
}

#[cfg(test)]
mod locate_tests {
    use super::*;

    const TEXT: &str = "path = [\"a\", \"b\"]\n\n[socks]\nlisten = 7\n\n[[relay]]\nname = \"a\"\n[[relay]]\nname = \"é\"\npin = \"x\"\n";

    fn document() -> Document {
        Document::parse(Path::new("c.toml"), TEXT.into()).expect("valid")
    }

    fn place(key: &str) -> String {
        document().complain(key, "w", "r").why
    }

    #[test]
    fn a_key_is_found_where_its_value_stands() {
        assert_eq!(place("path[1]"), "c.toml:1:14: path[1]: w");
        assert_eq!(place("socks.listen"), "c.toml:4:10: socks.listen: w");
        assert_eq!(place("relay[1].pin"), "c.toml:10:7: relay[1].pin: w");
    }

    #[test]
    fn a_missing_key_is_reported_where_it_belongs() {
        assert_eq!(place("relay[0].pin"), "c.toml:6:1: relay[0].pin: w");
        assert_eq!(place("hops"), "c.toml:1:1: hops: w");
    }

    #[test]
    fn an_offset_is_named_by_its_innermost_key() {
        let at = TEXT.find("\"x\"").expect("there");
        assert_eq!(document().key_at(&(at..at + 3)), "relay[1].pin");
        let at = TEXT.find("\"b\"").expect("there");
        assert_eq!(document().key_at(&(at..at + 3)), "path[1]");
        let at = TEXT.find("listen").expect("there");
        assert_eq!(document().key_at(&(at..at + 6)), "socks.listen");
    }

    #[test]
    fn broken_toml_is_reported_with_its_line() {
        let failure =
            Document::parse(Path::new("c.toml"), "a = 1\nb = [1,\n".into()).expect_err("broken");
        assert!(
            failure
                .to_string()
                .starts_with("hoplite: reading the configuration: c.toml:2:8: "),
            "{failure}"
        );
    }
}
