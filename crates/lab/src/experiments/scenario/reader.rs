//! Reads typed values from a table of a file, in a scope. Whatever does not fit becomes a complaint, and reading goes on.

use std::fmt;

use super::{
    document::{Complaints, Item, MAX_FILE_BYTES, Node, Table, Wrong, meant},
    expression::{Scope, Value},
    template::{Owner, Template},
    units,
};

/// An entry may stand for this many.
const MOST_REPEATS: u64 = 1000;

/// A table, the names that its expressions know, and where complaints go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    /// What is read.
    pub(crate) table: &'a Table,
    /// What its expressions know.
    pub(crate) scope: &'a Scope,
    /// Whose file it is.
    pub(crate) owner: Owner,
    /// Where complaints go.
    pub(crate) complaints: &'a Complaints<'a>,
}

/// A value that was read, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    /// Where.
    pub(crate) at: usize,
    /// What.
    pub(crate) value: T,
}

impl<'a> Reader<'a> {
    /// This table, read in another scope.
    pub(crate) fn within(self, scope: &'a Scope) -> Self {
        Self { scope, ..self }
    }

    /// Complains about keys that are not among these, which stand apart by spaces.
    pub(crate) fn only(&self, known: &str) {
        let known = known.split_whitespace();
        let entries = self.table.entries.iter();
        for entry in entries.filter(|entry| known.clone().all(|key| key != entry.key)) {
            let remedy = meant(&entry.key, known.clone());
            self.complaints
                .add(entry.key_at, Wrong::new("there is no such key", remedy));
        }
    }

    /// Complains about what stands at a key: what is wrong, and what is allowed.
    pub(crate) fn wrong(&self, key: &str, what: impl fmt::Display, allowed: impl Into<String>) {
        self.refuse(key, Wrong::new(what, allowed));
    }

    /// Complains about what stands at a key.
    pub(crate) fn refuse(&self, key: &str, wrong: Wrong) {
        let at = self.table.node(key).map_or(self.table.at, |node| node.at);
        self.complaints.add(at, wrong);
    }

    /// Complains that a key is not there.
    pub(crate) fn missing(&self, key: &str, allowed: &str) {
        self.complaints.missing(self.table.at, key, allowed);
    }

    /// A key's value with its expressions computed.
    pub(crate) fn value(&self, key: &str) -> Option<Located<Value>> {
        self.evaluated(self.table.node(key)?)
    }

    /// A node's value with its expressions computed.
    pub(crate) fn evaluated(&self, node: &Node) -> Option<Located<Value>> {
        match evaluate(node, self.scope, self.owner) {
            Ok(value) if self.complaints.spend(value.size()) => {
                let what = "the texts of the file come to too much";
                self.complaints
                    .add(node.at, Wrong::new(what, "at most 64 MiB in all cases"));
                None
            }
            Ok(value) => Some(Located { at: node.at, value }),
            Err((at, wrong)) => {
                self.complaints.add(at, wrong);
                None
            }
        }
    }

    /// A key's value, if it is there and fits.
    pub(crate) fn read<T>(
        &self,
        key: &str,
        fits: impl Fn(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.fitted(&self.value(key)?, fits)
    }

    /// A node's value, if it fits.
    pub(crate) fn read_node<T>(
        &self,
        node: &Node,
        fits: impl Fn(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.fitted(&self.evaluated(node)?, fits)
    }

    fn fitted<T>(
        &self,
        found: &Located<Value>,
        fits: impl Fn(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        match fits(&found.value) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.complaints.add(found.at, wrong);
                None
            }
        }
    }

    /// A key's value; a complaint if it is not there.
    pub(crate) fn need<T>(
        &self,
        key: &str,
        allowed: &str,
        fits: impl Fn(&Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        if self.table.node(key).is_none() {
            self.missing(key, allowed);
        }
        self.read(key, fits)
    }

    /// A text; numbers are taken for the text that they are.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.read(key, text)
    }

    /// true or false.
    pub(crate) fn flag(&self, key: &str, default: bool) -> bool {
        self.read(key, flag).unwrap_or(default)
    }

    /// A whole number between two, which a `T` holds.
    pub(crate) fn count<T>(&self, key: &str, default: T, least: u64, most: u64) -> T
    where
        T: TryFrom<u64>,
    {
        self.read(key, |value| units::count(value, least, most))
            .and_then(|count| T::try_from(count).ok())
            .unwrap_or(default)
    }

    /// A table below this one.
    pub(crate) fn table(&self, key: &str) -> Option<Self> {
        self.inner(self.table.node(key)?)
    }

    /// A node as a table.
    pub(crate) fn inner(&self, node: &'a Node) -> Option<Self> {
        match &node.item {
            Item::Table(table) => Some(Self { table, ..*self }),
            other => {
                self.complaints.add(
                    node.at,
                    Wrong::new(format!("{} stands there", other.kind()), "a table"),
                );
                None
            }
        }
    }

    /// The items of a list; a complaint if it is something else.
    pub(crate) fn list(&self, key: &str) -> &'a [Node] {
        match self.table.node(key) {
            None => &[],
            Some(Node {
                item: Item::List(list),
                ..
            }) => list,
            Some(node) => {
                let what = format!("{} stands there", node.item.kind());
                self.complaints.add(node.at, Wrong::new(what, "a list"));
                &[]
            }
        }
    }

    /// The tables of a list, such as all `[[link]]`.
    pub(crate) fn tables(&self, key: &str) -> Vec<Self> {
        self.list(key)
            .iter()
            .filter_map(|node| self.inner(node))
            .collect()
    }

    /// The scopes in which an entry with `when` and `repeat` applies: one with each `i`, one if it is not repeated, none if it does not apply.
    pub(crate) fn instances(&self) -> Vec<Scope> {
        let each = mentions_i(self.table.node("when"));
        if !each && !self.applies() {
            return Vec::new();
        }
        if self.table.node("repeat").is_none() {
            return vec![self.scope.clone()];
        }
        let scopes = self.repeated().into_iter();
        scopes
            .filter(|scope| !each || self.within_any(scope).applies())
            .collect()
    }

    /// A scope for each `i`, or for each `i` and `j` of `repeat = [3, "{i}"]`.
    fn repeated(&self) -> Vec<Scope> {
        let Some(Node {
            item: Item::List(list),
            ..
        }) = self.table.node("repeat")
        else {
            let count = self.read("repeat", times).unwrap_or(0);
            return (1..=count).map(|i| self.scope.with("i", i)).collect();
        };
        let [outer, inner] = list.as_slice() else {
            let what = format!("there are {} numbers", list.len());
            self.wrong("repeat", what, "one, or two for i and j");
            return Vec::new();
        };
        let mut scopes = Vec::new();
        for i in 1..=self.read_node(outer, times).unwrap_or(0) {
            let scope = self.scope.with("i", i);
            let count = self.within_any(&scope).read_node(inner, times).unwrap_or(0);
            scopes.extend((1..=count).map(|j| scope.with("j", j)));
            if scopes.len() as u64 > MOST_REPEATS {
                let what = "there are too many";
                self.wrong("repeat", what, format!("at most {MOST_REPEATS} in all"));
                return Vec::new();
            }
        }
        scopes
    }

    /// This table, read in a scope that does not live as long.
    fn within_any<'b>(&'b self, scope: &'b Scope) -> Reader<'b> {
        Reader {
            table: self.table,
            scope,
            owner: self.owner,
            complaints: self.complaints,
        }
    }

    /// Whether `when` holds or is absent.
    fn applies(&self) -> bool {
        self.flag("when", true)
    }
}

fn times(value: &Value) -> Result<u32, Wrong> {
    let count = units::count(value, 0, MOST_REPEATS)?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// A text; numbers are taken for the text that they are.
pub(crate) fn text(value: &Value) -> Result<String, Wrong> {
    match value {
        Value::Text(_) | Value::Number(_) => Ok(value.text()),
        other => Err(Wrong::new(
            format!("{} stands there", other.kind()),
            "a text",
        )),
    }
}

/// true or false.
pub(crate) fn flag(value: &Value) -> Result<bool, Wrong> {
    match value {
        Value::Flag(flag) => Ok(*flag),
        other => Err(Wrong::new(
            format!("{} is {}", other.shown(), other.kind()),
            "true or false, or a condition such as \"{hops > 0}\"",
        )),
    }
}

/// A name of a host, link, workload or subject: it becomes a host name, a file name and a column.
pub(crate) fn name(value: &Value) -> Result<String, Wrong> {
    let name = text(value)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let first = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= 63 && name.chars().all(fits) {
        return Ok(name);
    }
    Err(Wrong::new(
        format!("{} is not a name", value.shown()),
        "up to 63 letters, digits, '-', '_' and '.', a letter or digit first",
    ))
}

/// One of some words.
pub(crate) fn one_of<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, Wrong> {
    let word = value.text();
    let found = words
        .iter()
        .find(|(name, _)| *name == word)
        .map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let what = format!("{} is not possible", value.shown());
        Wrong::new(what, meant(&word, words.iter().map(|(name, _)| *name)))
    })
}

/// A node's value, or where it is wrong.
pub(crate) fn evaluate(node: &Node, scope: &Scope, owner: Owner) -> Result<Value, (usize, Wrong)> {
    let at = |wrong| (node.at, wrong);
    match &node.item {
        Item::Text(text) => Template::parse(text, owner)
            .and_then(|template| template.value(scope))
            .map_err(at),
        Item::Number(number) if number.is_finite() => Ok(Value::Number(*number)),
        Item::Number(_) => Err(at(Wrong::new("the number is too large", "less than 2^63"))),
        Item::Flag(flag) => Ok(Value::Flag(*flag)),
        Item::List(list) => evaluate_list(node.at, list, scope, owner),
        other => Err(at(Wrong::new(
            format!("{} stands there", other.kind()),
            "a text, a number, true or false",
        ))),
    }
}

fn evaluate_list(
    at: usize,
    list: &[Node],
    scope: &Scope,
    owner: Owner,
) -> Result<Value, (usize, Wrong)> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    for node in list {
        let item = evaluate(node, scope, owner)?;
        bytes += item.size();
        if bytes > MAX_FILE_BYTES {
            return Err((
                at,
                Wrong::new("the list becomes too long", "at most 1 MiB of texts"),
            ));
        }
        items.push(item);
    }
    Ok(Value::List(items.into()))
}

fn mentions_i(node: Option<&Node>) -> bool {
    let Some(Node {
        item: Item::Text(text),
        ..
    }) = node
    else {
        return false;
    };
    Template::parse(text, Owner::Subject).is_ok_and(|template| {
        let mut names = Vec::new();
        template.names(&mut names);
        names.contains(&"i") || names.contains(&"j")
    })
}
