//! Where things stand in a TOML document: from a key to line and column, and from an offset back to its key.
//! The other modules of `config` use it to complain precisely.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::errors::{Complaint, Failure};

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
mod tests {
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
