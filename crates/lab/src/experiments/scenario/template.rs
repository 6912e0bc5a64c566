//! Texts with `{…}` in them: every text of a scenario and of a subject's file.
//! A text that is one `{…}` and nothing else comes to a value; otherwise values are pasted. `{{` and `}}` are braces.
//! A subject's texts also have placeholders that only the world fills, such as `{dir}` and `{ip:HOST}`: they stay as they are.
//! Names that nothing defines and definitions that nothing uses are told before any case is resolved: both are nearly always a typing mistake,
//! also where `when` never holds.
//!
//! This is not a template crate's work, because such a crate brings a language of its own and comes to text: here the expressions are ours
//! (`expression` says why), a lone one keeps its kind, the world's placeholders stay as they are, and names are checked without any value.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    document::{Complaints, Item, Node, Table, Wrong, meant, quoted},
    expression::{Expression, Scope, Value, parse},
    matrix::Parameter,
    reader::Reader,
    subject_file::{KNOWN, SubjectParameter},
};

/// Deeper placeholders in placeholders are refused.
const DEEPEST: u32 = 3;
/// A longer result is refused: repeats of repeats would grow without bound.
const MAX_RESULT_BYTES: usize = 1 << 20;

/// Whose texts they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A scenario: expressions only.
    Scenario,
    /// A subject: placeholders too.
    Subject,
}

/// What the world fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    /// `{dir}`: the attempt's directory.
    Dir,
    /// `{shared}`: the campaign's directory.
    Shared,
    /// `{ip:HOST}`
    Ip,
    /// `{ip6:HOST}`
    Ip6,
    /// `{out:STEP}`
    Out,
    /// `{file:PATH}`
    File,
}

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Expression(Expression),
    Placeholder(Placeholder, Template),
}

impl Template {
    /// Parses a text.
    pub(crate) fn parse(text: &str, owner: Owner) -> Result<Self, Wrong> {
        Self::nested(text, owner, 0)
    }

    fn nested(text: &str, owner: Owner, depth: u32) -> Result<Self, Wrong> {
        if depth > DEEPEST {
            return Err(Wrong::new(
                "braces are nested too deeply",
                format!("at most {DEEPEST} levels"),
            ));
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, here) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = here.strip_prefix("{{").or_else(|| here.strip_prefix("}}")) {
                plain.push_str(here.get(..1).unwrap_or_default());
                rest = after;
                continue;
            }
            let (inside, after) = braces(here)?;
            parts.extend((!plain.is_empty()).then(|| Part::Text(std::mem::take(&mut plain))));
            parts.push(part(inside, owner, depth)?);
            rest = after;
        }
        plain.push_str(rest);
        parts.extend((!plain.is_empty()).then_some(Part::Text(plain)));
        Ok(Self { parts })
    }

    /// Its value: of a lone expression, else a text.
    pub(crate) fn value(&self, scope: &Scope) -> Result<Value, Wrong> {
        if let [Part::Expression(expression)] = self.parts.as_slice() {
            return expression.value(scope);
        }
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Expression(expression) => text.push_str(&expression.value(scope)?.text()),
                Part::Placeholder(placeholder, inner) => {
                    text.push_str(&placeholder.written(&inner.value(scope)?.text()))
                }
            }
            if text.len() > MAX_RESULT_BYTES {
                return Err(Wrong::new("the text becomes too long", "at most 1 MiB"));
            }
        }
        Ok(Value::Text(text))
    }

    /// Every name in it.
    pub(crate) fn names<'t>(&'t self, found: &mut Vec<&'t str>) {
        for part in &self.parts {
            match part {
                Part::Text(_) => {}
                Part::Expression(expression) => expression.names(found),
                Part::Placeholder(_, inner) => inner.names(found),
            }
        }
    }

    /// Every placeholder in it and what it names, in a scope.
    pub(crate) fn placeholders(&self, scope: &Scope) -> Result<Vec<(Placeholder, String)>, Wrong> {
        let placeholder = |part: &Part| match part {
            Part::Placeholder(placeholder, inner) => {
                Some(inner.value(scope).map(|value| (*placeholder, value.text())))
            }
            _ => None,
        };
        self.parts.iter().filter_map(placeholder).collect()
    }
}

impl Placeholder {
    fn written(self, inner: &str) -> String {
        match self {
            Self::Dir => "{dir}".into(),
            Self::Shared => "{shared}".into(),
            Self::Ip => format!("{{ip:{inner}}}"),
            Self::Ip6 => format!("{{ip6:{inner}}}"),
            Self::Out => format!("{{out:{inner}}}"),
            Self::File => format!("{{file:{inner}}}"),
        }
    }
}

/// What stands between a brace and its partner, and what comes after.
fn braces(text: &str) -> Result<(&str, &str), Wrong> {
    let (mut depth, mut quote) = (0_u32, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if depth > 0 => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth == 0 => break,
            (None, '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 && c == '}' {
            let inside = text.get(1..at).unwrap_or_default();
            return Ok((inside, text.get(at + 1..).unwrap_or_default()));
        }
    }
    Err(if text.starts_with('}') {
        Wrong::new("a } has no {", "}} for a brace")
    } else {
        Wrong::new("a { has no }", "{{ for a brace")
    })
}

fn part(inside: &str, owner: Owner, depth: u32) -> Result<Part, Wrong> {
    match placeholder(inside) {
        None => Ok(Part::Expression(parse(inside)?)),
        Some(_) if owner == Owner::Scenario => Err(Wrong::new(
            format!("{} is only known in a subject's file", quoted(inside)),
            "matrix parameters, and i in repeats",
        )),
        Some((placeholder, inner)) => Ok(Part::Placeholder(
            placeholder,
            Template::nested(inner, owner, depth + 1)?,
        )),
    }
}

/// A placeholder and what it names.
fn placeholder(inside: &str) -> Option<(Placeholder, &str)> {
    match inside {
        "dir" => return Some((Placeholder::Dir, "")),
        "shared" => return Some((Placeholder::Shared, "")),
        _ => {}
    }
    let (kind, name) = inside.split_once(':')?;
    let placeholder = match kind {
        "ip" => Placeholder::Ip,
        "ip6" => Placeholder::Ip6,
        "out" => Placeholder::Out,
        "file" => Placeholder::File,
        _ => return None,
    };
    Some((placeholder, name))
}

// Which names are used and defined.

/// Collects the names that texts use.
struct Names<'a> {
    known: BTreeSet<&'a str>,
    used: BTreeSet<String>,
    owner: Owner,
    complaints: &'a Complaints<'a>,
}

impl Names<'_> {
    fn node(&mut self, node: &Node, counters: u8) {
        match &node.item {
            Item::Text(text) => self.text(node.at, text, counters),
            Item::List(list) => list.iter().for_each(|node| self.node(node, counters)),
            Item::Table(table) => self.table(table, counters),
            _ => {}
        }
    }

    /// `i` is known in an entry that is repeated, `j` in one that is repeated twice; `i` in the second number too.
    fn table(&mut self, table: &Table, counters: u8) {
        let counters = match table.node("repeat").map(|node| &node.item) {
            None => counters,
            Some(Item::List(_)) => 2,
            Some(_) => 1,
        };
        for entry in &table.entries {
            let here = if entry.key == "repeat" {
                counters.saturating_sub(1)
            } else {
                counters
            };
            self.node(&entry.node, here);
        }
    }

    fn text(&mut self, at: usize, text: &str, counters: u8) {
        let template = match Template::parse(text, self.owner) {
            Ok(template) => template,
            Err(wrong) => return self.complaints.add(at, wrong),
        };
        let mut names = Vec::new();
        template.names(&mut names);
        for name in names {
            let own = self.known.contains(name)
                || (counters > 0 && name == "i")
                || (counters > 1 && name == "j");
            self.used
                .insert(name.split('.').next().unwrap_or(name).to_owned());
            if !own {
                self.complaints.add(at, self.undefined(name, counters));
            }
        }
    }

    fn undefined(&self, name: &str, counters: u8) -> Wrong {
        let what = format!("{} is not defined", quoted(name));
        let i = (counters > 0).then_some("i");
        match name {
            "i" => Wrong::new(what, "i is known where there is a repeat"),
            "j" => Wrong::new(what, "j is known where there are two: repeat = [2, 3]"),
            _ if self.known.is_empty() && counters == 0 => {
                Wrong::new(what, "a parameter of [matrix]")
            }
            _ => Wrong::new(what, meant(name, self.known.iter().copied().chain(i))),
        }
    }

    fn check_used<'n>(&self, parameters: impl Iterator<Item = (&'n String, usize)>) {
        for (name, at) in parameters.filter(|(name, _)| !self.used.contains(*name)) {
            let what = format!("nothing uses the parameter {}", quoted(name));
            self.complaints.add(
                at,
                Wrong::new(what, format!("use it as {{{name}}} or remove it")),
            );
        }
    }
}

/// Sections of a scenario with expressions in them.
const SECTIONS: [&str; 8] = [
    "host", "router", "link", "sysctl", "subject", "workload", "analysis", "timeout",
];

/// Checks a scenario's expressions against its matrix and its rotation.
pub(crate) fn names_of_scenario(root: Reader<'_>, parameters: &[&Parameter]) {
    let brought = parameters
        .iter()
        .flat_map(|parameter| parameter.rows.iter().flat_map(|row| &row.brings));
    let mut names = Names {
        known: brought.map(|(name, _)| name.as_str()).collect(),
        used: BTreeSet::new(),
        owner: root.owner,
        complaints: root.complaints,
    };
    let sections = SECTIONS
        .iter()
        .filter_map(|section| root.table.node(section));
    sections.for_each(|node| names.node(node, 0));
    names.check_used(
        parameters
            .iter()
            .map(|parameter| (&parameter.name, parameter.at)),
    );
}

/// Checks a subject's expressions against its parameters.
pub(crate) fn names_of_subject(root: Reader<'_>, parameters: &BTreeMap<String, SubjectParameter>) {
    let mut names = Names {
        known: parameters.keys().map(String::as_str).chain(KNOWN).collect(),
        used: BTreeSet::new(),
        owner: root.owner,
        complaints: root.complaints,
    };
    let sections = ["needs", "file", "step", "way", "hides_client"]
        .into_iter()
        .filter_map(|section| root.table.node(section));
    sections.for_each(|node| names.node(node, 0));
    names.check_used(
        parameters
            .iter()
            .map(|(name, parameter)| (name, parameter.at)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        let mut scope = Scope::default();
        scope.set("hops", Value::Number(3.0));
        scope.set("i", Value::Number(2.0));
        let value =
            Template::parse(text, Owner::Subject).and_then(|template| template.value(&scope));
        value.map_err(|wrong| format!("{}: {}", wrong.what, wrong.allowed))
    }

    fn text(source: &str) -> String {
        match value(source) {
            Ok(Value::Text(text)) => text,
            other => panic!("{source}: {other:?}"),
        }
    }

    #[test]
    fn a_lone_expression_keeps_its_kind() {
        assert_eq!(value("{hops > 0}"), Ok(Value::Flag(true)));
        assert_eq!(value("{hops}"), Ok(Value::Number(3.0)));
        assert_eq!(value("plain"), Ok(Value::Text("plain".into())));
        assert_eq!(value(""), Ok(Value::Text(String::new())));
    }

    #[test]
    fn values_are_pasted_into_text() {
        assert_eq!(text("relay{i}-{hops - i}"), "relay2-1");
        assert_eq!(text("{if(hops > 1, '}', \"{\")}!"), "}!");
    }

    #[test]
    fn doubled_braces_are_braces() {
        assert_eq!(text("{{ \"a\": {i} }}"), "{ \"a\": 2 }");
        assert_eq!(text("${{HOME}}"), "${HOME}");
    }

    #[test]
    fn holes_stay_for_the_world() {
        assert_eq!(
            text("{dir}/x {shared} {ip:relay{i}}:{i} {ip6:a} {out:pin{i}}"),
            "{dir}/x {shared} {ip:relay2}:2 {ip6:a} {out:pin2}"
        );
    }

    #[test]
    fn a_scenario_has_no_holes() {
        let wrong = Template::parse("{dir}/x", Owner::Scenario).expect_err("not there");
        assert_eq!(wrong.what, "\"dir\" is only known in a subject's file");
    }

    #[test]
    fn a_lone_brace_is_refused() {
        assert_eq!(value("a { b"), Err("a { has no }: {{ for a brace".into()));
        assert_eq!(value("a } b"), Err("a } has no {: }} for a brace".into()));
        assert_eq!(
            value("{}"),
            Err(
                "there is nothing between the braces: an expression, or {{ and }} for braces"
                    .into()
            )
        );
    }

    #[test]
    fn braces_without_end_are_refused() {
        assert!(value(&"{ip:".repeat(10_000)).is_err());
        assert!(value(&format!("{}{}", "{ip:".repeat(10_000), "}".repeat(10_000))).is_err());
    }
}
