//! `[parameters]` of a subject: defaults, their kinds and bounds.
//! `hops = 1`, or `hops = { default = 1, min = 0, max = 4, about = "…" }`, or `acks = { default = "default", one_of = ["default", "1ms"] }`.

use std::collections::BTreeMap;

use crate::scenario::{
    complain::{Wrong, meant},
    document::{Item, Node},
    expression::Value,
    matrix::parameter_name,
    reader::Reader,
    units,
};

/// Known in every subject's file.
pub(crate) const KNOWN: [&str; 2] = ["hoplite", "lab"];

/// A parameter.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Where it stands.
    pub(crate) at: usize,
    /// What it is if a scenario does not set it; its kind is the parameter's.
    pub(crate) default: Value,
    /// What it is for.
    pub(crate) about: String,
    /// The only values that it may have; empty if any.
    one_of: Vec<Value>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Parameter {
    /// A scenario's value for it.
    pub(crate) fn fit(&self, value: &Value) -> Result<Value, Wrong> {
        let value = self.kind(value)?;
        if let Value::Number(number) = value {
            self.range(number)?;
        }
        if self.one_of.is_empty() || self.one_of.contains(&value) {
            return Ok(value);
        }
        let names: Vec<String> = self.one_of.iter().map(Value::text).collect();
        let allowed = meant(&value.text(), names.iter().map(String::as_str));
        Err(Wrong::new(
            format!("{} is not possible", value.shown()),
            allowed,
        ))
    }

    /// `""` is an empty list; nothing else changes its kind.
    fn kind(&self, value: &Value) -> Result<Value, Wrong> {
        let same = std::mem::discriminant(value) == std::mem::discriminant(&self.default);
        match (&self.default, value) {
            _ if same => Ok(value.clone()),
            (Value::List(_), Value::Text(text)) if text.is_empty() => Ok(Value::List(Vec::new())),
            (default, _) => Err(Wrong::new(
                format!("{} is {}", value.shown(), value.kind()),
                format!(
                    "{}, such as its default {}",
                    default.kind(),
                    default.shown()
                ),
            )),
        }
    }

    fn range(&self, number: f64) -> Result<(), Wrong> {
        let least = self.min.unwrap_or(f64::NEG_INFINITY);
        let most = self.max.unwrap_or(f64::INFINITY);
        if (!self.whole() || number.fract() == 0.0) && (least..=most).contains(&number) {
            return Ok(());
        }
        let what = format!("{} is not possible", Value::Number(number).shown());
        Err(Wrong::new(what, self.numbers()))
    }

    /// A number whose default is whole is whole.
    fn whole(&self) -> bool {
        matches!(self.default, Value::Number(default) if default.fract() == 0.0)
    }

    fn numbers(&self) -> String {
        let kind = if self.whole() {
            "a whole number"
        } else {
            "a number"
        };
        let from = self.min.map(|min| format!(" from {min}"));
        let to = self.max.map(|max| format!(" to {max}"));
        format!(
            "{kind}{}{}",
            from.unwrap_or_default(),
            to.unwrap_or_default()
        )
    }

    /// What it may be, if not anything of its kind.
    pub(super) fn allowed(&self) -> Option<String> {
        if !self.one_of.is_empty() {
            let names = self.one_of.iter().map(Value::text);
            let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
            return Some(names.join(", "));
        }
        (self.min.is_some() || self.max.is_some()).then(|| self.numbers())
    }
}

/// Reads `[parameters]`.
pub(super) fn parameters(root: Reader<'_>) -> BTreeMap<String, Parameter> {
    let mut parameters = BTreeMap::new();
    let entries = root
        .table("parameters")
        .map_or(&[][..], |reader| &reader.table.entries);
    for entry in entries {
        let known = KNOWN.contains(&entry.key.as_str()) || entry.key == "shared";
        let reserved =
            known.then(|| Wrong::new("the word has a meaning in subjects", "another name"));
        if let Some(wrong) = reserved.or_else(|| parameter_name(&entry.key).err()) {
            root.complaints.add(entry.key_at, wrong);
        }
        if let Some(parameter) = parameter(root, &entry.node, entry.key_at) {
            parameters.insert(entry.key.clone(), parameter);
        }
    }
    parameters
}

fn parameter<'a>(root: Reader<'a>, node: &'a Node, at: usize) -> Option<Parameter> {
    let Item::Table(_) = node.item else {
        let default = root.evaluated(node)?.value;
        return Some(Parameter {
            at,
            default,
            about: String::new(),
            one_of: Vec::new(),
            min: None,
            max: None,
        });
    };
    let entry = root.inner(node)?;
    entry.only(&["default", "about", "one_of", "min", "max"]);
    let one_of = entry
        .list("one_of")
        .iter()
        .filter_map(|node| entry.evaluated(node));
    let parameter = Parameter {
        at,
        default: entry.need(
            "default",
            "its value if a scenario does not set it",
            |value| Ok(value.clone()),
        )?,
        about: entry.text("about").unwrap_or_default(),
        one_of: one_of.map(|found| found.value).collect(),
        min: entry.read("min", units::number),
        max: entry.read("max", units::number),
    };
    if let Err(wrong) = parameter.fit(&parameter.default) {
        entry.wrong("default", wrong);
    }
    Some(parameter)
}
