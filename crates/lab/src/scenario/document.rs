//! A TOML file as a tree in which everything knows where it stands, and the complaints about it, one line each:
//! `file:line:column: key: what is wrong: what is allowed`. Complaints are collected, so that a user sees all mistakes at once.
//! The tree is as deep as the TOML parser allows (80 levels); walking it may recurse.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use crate::errors::{Complaint, Failure};

/// A longer file is refused.
pub(crate) const LONGEST: usize = 1 << 20;

/// A parsed file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    name: String,
    text: String,
    root: Table,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Bytes from the beginning of the file.
    pub(crate) at: usize,
    /// What stands there.
    pub(crate) item: Item,
}

/// A value of TOML.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A text.
    Text(String),
    /// A whole or decimal number.
    Number(f64),
    /// true or false.
    Flag(bool),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
    /// A date or time: nothing here takes one.
    Date,
}

/// A table and where it begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Bytes from the beginning of the file.
    pub(crate) at: usize,
    /// Keys in the order of the file.
    pub(crate) entries: Vec<Entry>,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) key_at: usize,
    /// Its value.
    pub(crate) node: Node,
}

impl Table {
    /// The value of a key.
    pub(crate) fn node(&self, key: &str) -> Option<&Node> {
        self.entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.node)
    }
}

impl Item {
    /// What it is, for a complaint.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Number(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Date => "a date",
        }
    }
}

impl Document {
    /// Parses TOML; `name` stands in complaints.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let mut document = Self {
            name: name.to_owned(),
            text: text.to_owned(),
            root: Table::default(),
        };
        if text.len() > LONGEST {
            let wrong = Wrong::new("the file is too long", "at most 1 MiB");
            return Err(Failure::Wrong(vec![document.complaint(0, "", wrong)]));
        }
        match DeTable::parse(text) {
            Ok(root) => document.root = table(0, root.get_ref()),
            Err(error) => return Err(Failure::Wrong(vec![document.syntax(&error)])),
        }
        Ok(document)
    }

    fn syntax(&self, error: &toml::de::Error) -> Complaint {
        let at = error.span().map_or(self.text.len(), |span| span.start);
        let what = error.message().replace('\n', ", ");
        self.complaint(at, "", Wrong::new(what, "correct the TOML syntax there"))
    }

    /// The whole of it.
    pub(crate) fn root(&self) -> &Table {
        &self.root
    }

    /// The file's content.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// A complaint about a place.
    pub(crate) fn complaint(&self, at: usize, key: &str, wrong: Wrong) -> Complaint {
        let (line, column) = self.position(at);
        let end = if key.is_empty() {
            String::new()
        } else {
            format!(": {key}")
        };
        let place = format!("{}:{line}:{column}{end}", self.name);
        Complaint::new(place, wrong.what, wrong.allowed)
    }

    /// Line and column, from 1; columns in characters.
    fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        (line, column)
    }

    /// The key whose name or value begins at an offset, such as `link[2].delay`; empty if there is none.
    pub(crate) fn key_at(&self, at: usize) -> String {
        let mut path = String::new();
        in_table(&self.root, at, &mut path);
        path
    }
}

fn in_table(table: &Table, at: usize, path: &mut String) -> bool {
    table.entries.iter().any(|entry| {
        let long = path.len();
        let dot = if path.is_empty() { "" } else { "." };
        path.extend([dot, entry.key.as_str()]);
        let found = in_node(&entry.node, at, path) || entry.key_at == at;
        if !found {
            path.truncate(long);
        }
        found
    })
}

fn in_node(node: &Node, at: usize, path: &mut String) -> bool {
    let inside = match &node.item {
        Item::Table(table) => in_table(table, at, path),
        Item::List(list) => list.iter().enumerate().any(|(i, node)| {
            let long = path.len();
            path.push_str(&format!("[{i}]"));
            let found = in_node(node, at, path);
            if !found {
                path.truncate(long);
            }
            found
        }),
        _ => false,
    };
    inside || node.at == at
}

fn table(at: usize, table: &DeTable<'_>) -> Table {
    let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| Entry {
        key: key.get_ref().to_string(),
        key_at: key.span().start,
        node: node(value),
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at);
    Table { at, entries }
}

fn node(value: &Spanned<DeValue<'_>>) -> Node {
    let at = value.span().start;
    let item = match value.get_ref() {
        DeValue::String(text) => Item::Text(text.to_string()),
        DeValue::Integer(number) => whole(number),
        DeValue::Float(number) => Item::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Item::Flag(*flag),
        DeValue::Array(list) => Item::List(list.iter().map(node).collect()),
        DeValue::Table(inner) => Item::Table(table(at, inner)),
        DeValue::Datetime(_) => Item::Date,
    };
    Node { at, item }
}

/// Integers above 2^53 are not exact: nothing here takes one.
#[expect(
    clippy::cast_precision_loss,
    reason = "larger numbers are refused by every reader"
)]
fn whole(number: &toml::de::DeInteger<'_>) -> Item {
    let value = i64::from_str_radix(number.as_str(), number.radix());
    Item::Number(value.map_or(f64::NAN, |value| value as f64))
}

// Complaints.

/// More are not shown: they are mostly consequences of the first.
const MOST: usize = 20;

/// So many bytes of texts are computed in a file; a text may paste another, so that they would grow without bound.
const MOST_TEXT: usize = 64 << 20;

/// A value that does not fit: found by a function that does not know where the value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// What is wrong.
    pub(crate) what: String,
    /// What is allowed.
    pub(crate) allowed: String,
}

impl Wrong {
    /// Something wrong.
    pub(crate) fn new(what: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self {
            what: what.to_string(),
            allowed: allowed.into(),
        }
    }
}

/// The complaints about one document.
#[derive(Debug)]
pub(crate) struct Complaints<'d> {
    document: &'d Document,
    list: RefCell<Vec<(usize, Complaint)>>,
    spent: Cell<usize>,
}

impl<'d> Complaints<'d> {
    /// None yet.
    pub(crate) fn about(document: &'d Document) -> Self {
        Self {
            document,
            list: RefCell::default(),
            spent: Cell::new(0),
        }
    }

    /// One about what stands at an offset. What is wrong in several cases is told for the first.
    pub(crate) fn add(&self, at: usize, wrong: Wrong) {
        let key = self.document.key_at(at);
        self.push(at, &key, wrong);
    }

    /// One about a key that is not there, in the table at an offset.
    pub(crate) fn missing(&self, at: usize, key: &str, allowed: &str) {
        let wrong = Wrong::new(format!("the key \"{key}\" is missing"), allowed);
        self.add(at, wrong);
    }

    fn push(&self, at: usize, key: &str, wrong: Wrong) {
        let complaint = self.document.complaint(at, key, wrong);
        let mut list = self.list.borrow_mut();
        let same = |(there, other): &(usize, Complaint)| *there == at && other.why == complaint.why;
        if list.len() < MOST && !list.iter().any(same) {
            list.push((at, complaint));
        }
    }

    /// Counts a text that was computed; whether there were too many.
    pub(crate) fn spend(&self, bytes: usize) -> bool {
        self.spent.set(self.spent.get().saturating_add(bytes));
        self.spent.get() > MOST_TEXT
    }

    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        !self.list.borrow().is_empty()
    }

    /// All of them, in the order of the file.
    pub(crate) fn into_list(self) -> Vec<Complaint> {
        let mut list = self.list.into_inner();
        list.sort_by_key(|(at, _)| *at);
        list.into_iter().map(|(_, complaint)| complaint).collect()
    }

    /// Nothing, or all complaints as a failure.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.into_list() {
            list if list.is_empty() => Ok(()),
            list => Err(Failure::Wrong(list)),
        }
    }
}

/// What was probably meant, or what there is.
pub(crate) fn meant<'n>(found: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    known.dedup();
    let near = known
        .iter()
        .map(|name| (distance(found, name), *name))
        .min();
    match near {
        Some((far, name)) if is_near(far, name) => {
            format!("did you mean \"{name}\"?")
        }
        Some(_) => format!("use one of {}", listed(&known)),
        None => "remove it".into(),
    }
}

/// A name of one letter is near to everything, so it is never meant.
fn is_near(far: usize, name: &str) -> bool {
    let length = name.chars().count();
    far <= 1 + length / 3 && far < length
}

/// Names joined by commas; of very many only the first.
pub(crate) fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 30;
    let shown = names.get(..SHOWN).unwrap_or(names).join(", ");
    match names.len() {
        0 => "(there is none)".into(),
        1..=SHOWN => shown,
        more => format!("{shown} and {} more", more - SHOWN),
    }
}

/// A text of the file in a complaint: in quotes, on one line, not too long.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let short: String = text.chars().take(SHOWN).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}

/// How many letters to change, add, drop or swap with their neighbour; of long texts only the beginnings are looked at.
fn distance(found: &str, known: &str) -> usize {
    let [found, known] = [found, known].map(|text| text.chars().take(64).collect::<String>());
    strsim::osa_distance(&found, &known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"é\"\n[[link]]\nends = [\"a\", \"b\"]\n[[link]]\n  delay = 7\n  jitter = { width = \"1ms\" }\n";

    fn document() -> Document {
        Document::parse("s.toml", TEXT).expect("valid")
    }

    fn at(part: &str) -> usize {
        TEXT.find(part).expect("there")
    }

    #[test]
    fn every_value_is_named_by_its_key() {
        assert_eq!(document().key_at(at("\"b\"")), "link[0].ends[1]");
        assert_eq!(document().key_at(at("7")), "link[1].delay");
        assert_eq!(document().key_at(at("\"1ms\"")), "link[1].jitter.width");
        assert_eq!(document().key_at(at("delay")), "link[1].delay");
        assert_eq!(document().key_at(TEXT.len() + 5), "");
    }

    #[test]
    fn a_complaint_names_file_line_and_column() {
        let complaint = document().complaint(at("7"), "link[1].delay", Wrong::new("w", "a"));
        assert_eq!(complaint.to_string(), "s.toml:5:11: link[1].delay: w: a");
    }

    #[test]
    fn broken_toml_is_reported_with_its_line() {
        let failure = Document::parse("s.toml", "a = 1\nb = [1,\n").expect_err("broken");
        let text = failure.to_string();
        assert!(text.starts_with("hoplite-lab: s.toml:2:8: "), "{text}");
    }

    #[test]
    fn numbers_of_every_notation_are_read() {
        let document =
            Document::parse("s.toml", "a = 0o600\nb = 1_000\nc = 0.5\nd = -3\n").expect("valid");
        let number = |key: &str| match document.root().node(key).map(|node| &node.item) {
            Some(Item::Number(number)) => *number,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [number("a"), number("b"), number("c"), number("d")],
            [384.0, 1000.0, 0.5, -3.0]
        );
    }

    #[test]
    fn a_file_that_nests_without_end_is_refused() {
        let text = format!("a = {}", "[".repeat(100_000));
        assert!(Document::parse("s.toml", &text).is_err());
    }

    #[test]
    fn a_swapped_and_a_dropped_letter_each_count_once() {
        // A name of two letters forgives one mistake.
        for found in ["pu", "p", "uup", "un"] {
            assert_eq!(meant(found, ["up"]), "did you mean \"up\"?");
        }
        assert_eq!(meant("put", ["up"]), "use one of up");
    }

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(meant("dealy", ["delay", "rate"]), "did you mean \"delay\"?");
        assert_eq!(meant("colour", ["rate", "delay"]), "use one of delay, rate");
        assert_eq!(meant("x", []), "remove it");
    }

    #[test]
    fn a_long_text_is_cut_and_stays_on_its_line() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), 63);
    }
}
