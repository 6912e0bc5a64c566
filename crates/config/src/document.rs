//! A TOML file as a tree in which everything knows where it stands, so that a complaint names file, line, column and key.
//! The tree is as deep as the TOML parser allows (80 levels); walking it may recurse.

use std::{fmt, ops::Range};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

/// A parsed file. Places are bytes from its beginning.
#[derive(Clone, Default)]
pub struct Document {
    name: String,
    text: String,
    root: Table,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it begins.
    pub at: usize,
    /// Where it ends.
    pub end: usize,
    /// What stands there.
    pub item: Item,
}

/// A value of TOML.
#[derive(Clone, Debug)]
pub enum Item {
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
    /// A date or time.
    Date,
}

/// A table and where it begins.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Where it begins.
    pub at: usize,
    /// Keys in the order of the file.
    pub entries: Vec<Entry>,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key begins.
    pub key_at: usize,
    /// Where the key ends.
    pub key_end: usize,
    /// Its value.
    pub node: Node,
}

/// No TOML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Malformed {
    /// File, line and column.
    pub place: String,
    /// What is wrong there, in one line.
    pub message: String,
}

impl Table {
    /// The value of a key.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

impl Item {
    /// What it is, for a complaint.
    pub fn kind(&self) -> &'static str {
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
    /// Parses TOML; `name` is the file's, for complaints.
    ///
    /// # Errors
    /// The first place at which it is none.
    pub fn parse(name: impl Into<String>, text: impl Into<String>) -> Result<Self, Malformed> {
        let mut document = Self {
            name: name.into(),
            text: text.into(),
            root: Table::default(),
        };
        let root = DeTable::parse(&document.text).map(|root| table(0, root.get_ref()));
        match root {
            Ok(root) => document.root = root,
            Err(error) => {
                let at = error.span().map_or(document.text.len(), |span| span.start);
                let message = error.message().replace('\n', ", ");
                let place = document.place(at, "");
                return Err(Malformed { place, message });
            }
        }
        Ok(document)
    }

    /// The whole of it.
    pub fn root(&self) -> &Table {
        &self.root
    }

    /// The file's content.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A place as complaints begin: `file:line:column: key`, without the key if it is empty.
    pub fn place(&self, at: usize, key: &str) -> String {
        let (line, column) = self.position(at);
        let between = if key.is_empty() { "" } else { ": " };
        format!("{}:{line}:{column}{between}{key}", self.name)
    }

    /// Line and column, from 1; columns in characters.
    fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        (line, column)
    }

    /// Where the value of a key such as `relay[1].pin` stands; of a table or list its key. If it is absent: the last thing on the way that exists.
    pub fn find(&self, key: &str) -> Option<usize> {
        let (mut found, mut here): (_, Option<&Item>) = (None, None);
        for step in steps(key) {
            let next = match (step, here) {
                (Step::Key(key), None) => of_entry(&self.root, key),
                (Step::Key(key), Some(Item::Table(table))) => of_entry(table, key),
                (Step::Index(i), Some(Item::List(list))) => {
                    list.get(i).map(|node| (node.at, &node.item))
                }
                _ => None,
            };
            let Some((at, item)) = next else { break };
            (found, here) = (Some(at), Some(item));
        }
        found
    }

    /// The key whose name or value covers a place, the innermost one, such as `relay[1].pin`; empty if there is none.
    pub fn key_at(&self, place: &Range<usize>) -> String {
        let mut path = String::new();
        in_table(&self.root, place, &mut path);
        path
    }
}

impl fmt::Debug for Document {
    /// Without the content: there may be secrets in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({})", self.name)
    }
}

fn of_entry<'t>(table: &'t Table, key: &str) -> Option<(usize, &'t Item)> {
    let entry = table.entry(key)?;
    let at = match &entry.node.item {
        Item::Table(_) | Item::List(_) => entry.key_at,
        _ => entry.node.at,
    };
    Some((at, &entry.node.item))
}

/// One step from a table or list to what is in it.
#[derive(Clone, Copy, Debug)]
enum Step<'k> {
    Key(&'k str),
    Index(usize),
}

/// `relay[1].pin` taken apart.
fn steps(key: &str) -> impl Iterator<Item = Step<'_>> {
    key.split('.').flat_map(|part| {
        let mut pieces = part.split('[');
        let name = pieces.next().map(Step::Key);
        let indices = pieces.filter_map(|piece| piece.trim_end_matches(']').parse().ok());
        name.into_iter().chain(indices.map(Step::Index))
    })
}

fn covers(begin: usize, end: usize, place: &Range<usize>) -> bool {
    begin <= place.start && place.end <= end
}

fn in_table(table: &Table, place: &Range<usize>, path: &mut String) -> bool {
    table.entries.iter().any(|entry| {
        let long = path.len();
        let dot = if path.is_empty() { "" } else { "." };
        path.extend([dot, entry.key.as_str()]);
        let found = in_node(&entry.node, place, path) || covers(entry.key_at, entry.key_end, place);
        if !found {
            path.truncate(long);
        }
        found
    })
}

fn in_node(node: &Node, place: &Range<usize>, path: &mut String) -> bool {
    let inside = match &node.item {
        Item::Table(table) => in_table(table, place, path),
        Item::List(list) => list.iter().enumerate().any(|(i, node)| {
            let long = path.len();
            path.push_str(&format!("[{i}]"));
            let found = in_node(node, place, path);
            if !found {
                path.truncate(long);
            }
            found
        }),
        _ => false,
    };
    inside || covers(node.at, node.end, place)
}

fn table(at: usize, table: &DeTable<'_>) -> Table {
    let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| Entry {
        key: key.get_ref().to_string(),
        key_at: key.span().start,
        key_end: key.span().end,
        node: node(value),
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at);
    Table { at, entries }
}

fn node(value: &Spanned<DeValue<'_>>) -> Node {
    let Range { start: at, end } = value.span();
    let item = match value.get_ref() {
        DeValue::String(text) => Item::Text(text.to_string()),
        DeValue::Integer(number) => whole(number),
        DeValue::Float(number) => Item::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Item::Flag(*flag),
        DeValue::Array(list) => Item::List(list.iter().map(node).collect()),
        DeValue::Table(inner) => Item::Table(table(at, inner)),
        DeValue::Datetime(_) => Item::Date,
    };
    Node { at, end, item }
}

/// Integers above 2^53 are not exact.
#[expect(
    clippy::cast_precision_loss,
    reason = "who wants larger numbers exactly reads them by serde"
)]
fn whole(number: &toml::de::DeInteger<'_>) -> Item {
    let value = i64::from_str_radix(number.as_str(), number.radix());
    Item::Number(value.map_or(f64::NAN, |value| value as f64))
}

// What was meant.

/// What was probably meant instead of a name that does not exist, or what there is.
pub fn meant(found: &str, known: &[&str]) -> String {
    let near = known.iter().map(|name| (distance(found, name), *name));
    match near.min() {
        Some((far, name)) if is_near(far, found, name) => {
            format!("did you mean \"{name}\"?")
        }
        Some(_) => format!("use one of {}", listed(known)),
        None => "remove it".into(),
    }
}

/// What has no letter in common is never meant, however short it is.
fn is_near(far: usize, found: &str, known: &str) -> bool {
    let [found, known] = [found, known].map(|text| text.chars().count());
    far <= 1 + known / 3 && far < found.max(known)
}

/// Names joined by commas; of very many only the first.
pub fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 30;
    let shown = names.get(..SHOWN).unwrap_or(names).join(", ");
    match names.len() {
        0 => "(there is none)".into(),
        1..=SHOWN => shown,
        more => format!("{shown} and {} more", more - SHOWN),
    }
}

/// How many letters to change, add, drop or swap with their neighbour; of long texts only the beginnings are looked at.
fn distance(found: &str, known: &str) -> usize {
    let [found, known] = [found, known].map(|text| text.chars().take(64).collect::<String>());
    strsim::osa_distance(&found, &known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "path = [\"a\", \"b\"]\n\n[socks]\nlisten = 7\n\n[[relay]]\nname = \"a\"\n[[relay]]\nname = \"é\"\npin = \"x\"\nafter = { width = \"1ms\" }\n";

    fn document() -> Document {
        Document::parse("c.toml", TEXT).expect("valid")
    }

    fn at(part: &str) -> usize {
        TEXT.find(part).expect("there")
    }

    fn key(part: &str) -> String {
        document().key_at(&(at(part)..at(part) + part.len()))
    }

    fn place(key: &str) -> String {
        let document = document();
        document.place(document.find(key).unwrap_or(0), key)
    }

    #[test]
    fn a_key_is_found_where_its_value_stands() {
        assert_eq!(place("path[1]"), "c.toml:1:14: path[1]");
        assert_eq!(place("socks.listen"), "c.toml:4:10: socks.listen");
        assert_eq!(place("relay[1].pin"), "c.toml:10:7: relay[1].pin");
    }

    #[test]
    fn a_missing_key_is_placed_where_it_belongs() {
        assert_eq!(place("relay[0].pin"), "c.toml:6:1: relay[0].pin");
        assert_eq!(place("hops"), "c.toml:1:1: hops");
    }

    #[test]
    fn a_place_is_named_by_its_innermost_key() {
        assert_eq!(key("\"x\""), "relay[1].pin");
        assert_eq!(key("\"b\""), "path[1]");
        assert_eq!(key("listen"), "socks.listen");
        assert_eq!(key("\"1ms\""), "relay[1].after.width");
        let far = TEXT.len() + 5;
        assert_eq!(document().key_at(&(far..far + 1)), "");
    }

    #[test]
    fn broken_toml_is_placed() {
        let malformed = Document::parse("c.toml", "a = 1\nb = [1,\n").expect_err("broken");
        assert_eq!(malformed.place, "c.toml:2:8");
        assert!(!malformed.message.contains('\n'), "{malformed}");
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
        assert!(Document::parse("s.toml", text).is_err());
    }

    #[test]
    fn a_swapped_and_a_dropped_letter_each_count_once() {
        // A name of two letters forgives one mistake.
        for found in ["pi", "p", "iip", "up"] {
            assert_eq!(meant(found, &["ip"]), "did you mean \"ip\"?");
        }
        assert_eq!(meant("pie", &["ip"]), "use one of ip");
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["name", "address"];
        assert_eq!(meant("adress", &known), "did you mean \"address\"?");
        assert_eq!(meant("colour", &known), "use one of name, address");
        assert_eq!(meant("bb", &["a", "b"]), "did you mean \"b\"?");
        assert_eq!(meant("7", &["1", "2"]), "use one of 1, 2");
        assert_eq!(meant("x", &[]), "remove it");
    }
}
