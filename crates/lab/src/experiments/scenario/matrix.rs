//! `[matrix]`: parameters and their values. Every combination is a case, in which all of the file is resolved; `[rotation]`: parameters that take
//! their values in turn, repetition after repetition, in every case alike; and what seeds decide: the seed of a trial, and the order of trials.
//! A value is a number, a text, true or false, or a table with a `name` and further fields, which may be lists: `{profile.down}`.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_workload::splitmix::SplitMix;
use ring::digest;

use super::{
    document::{Complaints, Entry, Item, Node, Table, Wrong},
    expression::{Scope, Value},
    reader::evaluate,
};

/// More cases are refused.
const MOST_CASES: usize = 4096;
/// A rotation begins anew after so many repetitions at most: each case is checked in each of its turns.
const MOST_TURNS: usize = 100;

/// What `[rotation]` brings into the scope of a repetition.
pub(crate) type Turn = Vec<(String, Value)>;

/// One point of the matrix.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Parameter to value, as written.
    pub(crate) values: BTreeMap<String, String>,
    /// What expressions know in it.
    pub(crate) scope: Scope,
}

/// A parameter and its values.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its name.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) at: usize,
    /// Its values in order.
    pub(crate) rows: Vec<Row>,
}

/// A value of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// As it is named in keys.
    pub(crate) text: String,
    /// What it brings into the scope: the parameter's name, and its fields behind a dot.
    pub(crate) brings: Vec<(String, Value)>,
}

/// Reads all parameters.
pub(crate) fn parameters(table: Option<&Table>, complaints: &Complaints<'_>) -> Vec<Parameter> {
    let entries = table.map_or(&[][..], |table| &table.entries);
    let read = |entry| {
        let parameter = parameter(entry, complaints);
        check_twice(&parameter.rows, entry, complaints);
        parameter
    };
    let parameters: Vec<Parameter> = entries.iter().map(read).collect();
    let size = parameters.iter().try_fold(1_usize, |size, parameter| {
        size.checked_mul(parameter.rows.len())
    });
    if size.is_none_or(|size| size > MOST_CASES) {
        let at = table.map_or(0, |table| table.at);
        complaints.add(
            at,
            Wrong::new(
                "there are too many combinations",
                format!("at most {MOST_CASES} cases"),
            ),
        );
        return Vec::new();
    }
    parameters
}

/// Reads what takes its values in turn, beside the parameters of the matrix. A value may be there several times.
pub(crate) fn rotation(
    table: Option<&Table>,
    matrix: &[Parameter],
    complaints: &Complaints<'_>,
) -> Vec<Parameter> {
    let entries = table.map_or(&[][..], |table| &table.entries);
    let read = |entry: &Entry| {
        if matrix.iter().any(|other| other.name == entry.key) {
            let what = "[matrix] has a parameter of that name";
            complaints.add(entry.key_at, Wrong::new(what, "another name"));
        }
        parameter(entry, complaints)
    };
    let rotation: Vec<Parameter> = entries.iter().map(read).collect();
    if period(&rotation) > MOST_TURNS {
        let what = "it begins anew after too many repetitions";
        let allowed =
            format!("lists whose lengths have {MOST_TURNS} as their least common multiple at most");
        complaints.add(table.map_or(0, |table| table.at), Wrong::new(what, allowed));
        return Vec::new();
    }
    rotation
}

/// After how many repetitions all lists begin anew.
fn period(rotation: &[Parameter]) -> usize {
    let lengths = rotation.iter().map(|parameter| parameter.rows.len().max(1));
    lengths.fold(1, |all, length| {
        (all / common_divisor(all, length)).saturating_mul(length)
    })
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// What the first repetition has, the second and so on, until all begins anew; one turn that brings nothing where there is no rotation.
pub(crate) fn turns(rotation: &[Parameter]) -> Vec<Turn> {
    let turn = |number: usize| {
        let rows = rotation
            .iter()
            .filter_map(|parameter| parameter.rows.iter().cycle().nth(number));
        rows.flat_map(|row| row.brings.clone()).collect()
    };
    (0..period(rotation)).map(turn).collect()
}

/// Every combination, the last parameter changing fastest.
pub(crate) fn cases(parameters: &[Parameter]) -> Vec<Case> {
    let mut cases = vec![Case {
        values: BTreeMap::new(),
        scope: Scope::default(),
    }];
    for parameter in parameters {
        let with = |case: &Case| -> Vec<Case> {
            parameter
                .rows
                .iter()
                .map(|row| case.with(&parameter.name, row))
                .collect()
        };
        cases = cases.iter().flat_map(with).collect();
    }
    cases
}

impl Case {
    /// This case with one more parameter.
    pub(crate) fn with(&self, name: &str, row: &Row) -> Self {
        let mut case = self.clone();
        case.values.insert(name.to_owned(), row.text.clone());
        for (name, value) in &row.brings {
            case.scope.set(name, value.clone());
        }
        case
    }

    /// What expressions know in it when it is this turn.
    pub(crate) fn in_turn(&self, turn: &Turn) -> Scope {
        let mut scope = self.scope.clone();
        for (name, value) in turn {
            scope.set(name, value.clone());
        }
        scope
    }
}

fn parameter(entry: &Entry, complaints: &Complaints<'_>) -> Parameter {
    check_name(entry, complaints);
    let nodes = match &entry.node.item {
        Item::List(list) => list.as_slice(),
        _ => std::slice::from_ref(&entry.node),
    };
    if nodes.is_empty() {
        complaints.add(
            entry.node.at,
            Wrong::new("the list is empty", "at least one value"),
        );
    }
    let rows: Vec<Row> = nodes
        .iter()
        .filter_map(|node| row(&entry.key, node, complaints))
        .collect();
    check_fields(&rows, entry, complaints);
    Parameter {
        name: entry.key.clone(),
        at: entry.key_at,
        rows,
    }
}

/// Words of the expression language, and of a repeat.
const RESERVED: [&str; 12] = [
    "i", "j", "and", "or", "not", "true", "false", "if", "min", "max", "len", "dir",
];

fn check_name(entry: &Entry, complaints: &Complaints<'_>) {
    if let Err(wrong) = parameter_name(&entry.key) {
        complaints.add(entry.key_at, wrong);
    }
}

/// A name that expressions can use.
pub(crate) fn parameter_name(name: &str) -> Result<(), Wrong> {
    let first = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !first || !rest {
        return Err(Wrong::new(
            "it is not a parameter's name",
            "letters, digits and '_', a letter first",
        ));
    }
    if RESERVED.contains(&name) {
        return Err(Wrong::new(
            "the word has a meaning in expressions",
            "another name",
        ));
    }
    Ok(())
}

fn row(parameter: &str, node: &Node, complaints: &Complaints<'_>) -> Option<Row> {
    if let Item::Table(table) = &node.item {
        return fields(parameter, table, complaints);
    }
    let value = scalar(node, complaints)?;
    let text = value.text();
    Some(Row {
        text,
        brings: vec![(parameter.to_owned(), value)],
    })
}

fn fields(parameter: &str, table: &Table, complaints: &Complaints<'_>) -> Option<Row> {
    let Some(name) = table.node("name") else {
        complaints.missing(
            table.at,
            "name",
            "the value's name in the results, such as name = \"edge\"",
        );
        return None;
    };
    let name = scalar(name, complaints)?;
    let text = name.text();
    let mut brings = vec![(parameter.to_owned(), name)];
    for entry in &table.entries {
        check_name(entry, complaints);
        let value = match &entry.node.item {
            Item::List(_) => list(&entry.node, complaints)?,
            _ => scalar(&entry.node, complaints)?,
        };
        brings.push((format!("{parameter}.{}", entry.key), value));
    }
    Some(Row { text, brings })
}

/// A list of values without expressions, or of such lists.
fn list(node: &Node, complaints: &Complaints<'_>) -> Option<Value> {
    let value = evaluate(node, &Scope::default(), super::template::Owner::Scenario);
    value.map_err(|(at, wrong)| complaints.add(at, wrong)).ok()
}

/// A value without expressions: there is nothing that they could know.
fn scalar(node: &Node, complaints: &Complaints<'_>) -> Option<Value> {
    let allowed = "a number, a text, true or false, or a table with a name";
    let found = match &node.item {
        Item::Text(text) => Ok(Value::Text(text.clone())),
        Item::List(_) | Item::Table(_) | Item::Date => Err((
            node.at,
            Wrong::new(format!("{} stands there", node.item.kind()), allowed),
        )),
        _ => evaluate(node, &Scope::default(), super::template::Owner::Scenario),
    };
    found.map_err(|(at, wrong)| complaints.add(at, wrong)).ok()
}

fn check_twice(rows: &[Row], entry: &Entry, complaints: &Complaints<'_>) {
    let mut seen = BTreeSet::new();
    for row in rows.iter().filter(|row| !seen.insert(row.text.as_str())) {
        let what = format!("the value {} is there twice", row.text);
        complaints.add(entry.node.at, Wrong::new(what, "each value once"));
    }
}

fn check_fields(rows: &[Row], entry: &Entry, complaints: &Complaints<'_>) {
    let names = |row: &Row| -> BTreeSet<String> {
        row.brings.iter().map(|(name, _)| name.clone()).collect()
    };
    let Some(first) = rows.first().map(names) else {
        return;
    };
    for row in rows {
        let here = names(row);
        if let Some(name) = first.symmetric_difference(&here).next() {
            let what = format!("not every value has the field {name}");
            complaints.add(entry.node.at, Wrong::new(what, "the same fields in each"));
            return;
        }
    }
}

// Seeds are the same on every machine and in every version: SHA-256 of the scenario's seed and a path of names.

/// A seed that depends on all parts. Below 2^53, so that every tool reads it exactly from JSON.
pub(crate) fn seed(seed: u64, path: &[&str]) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&seed.to_be_bytes());
    for name in path {
        context.update(&(name.len() as u64).to_be_bytes());
        context.update(name.as_bytes());
    }
    let hash = context.finish();
    let bytes = hash.as_ref().iter().take(8);
    bytes.fold(0, |number, byte| (number << 8) | u64::from(*byte)) >> 11
}

/// A case as one text.
pub(crate) fn named(case: &BTreeMap<String, String>) -> String {
    serde_json::to_string(case).unwrap_or_default()
}

/// Fisher and Yates, with numbers of `SplitMix64`.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = SplitMix::new(seed);
    for last in (1..items.len()).rev() {
        let bound = last as u64 + 1;
        let pick = usize::try_from(random.below(bound)).unwrap_or(last);
        items.swap(last, pick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::scenario::document;

    fn read(text: &str) -> Result<Vec<Case>, String> {
        let document = document::parse("s.toml", text).map_err(|failure| failure.to_string())?;
        let complaints = Complaints::about(&document);
        let parameters = parameters(Some(document.root()), &complaints);
        complaints.finish().map_err(|failure| failure.to_string())?;
        Ok(cases(&parameters))
    }

    fn values(text: &str) -> Vec<String> {
        let shown = |case: &Case| case.values.values().cloned().collect::<Vec<_>>().join(" ");
        read(text).expect("valid").iter().map(shown).collect()
    }

    #[test]
    fn every_combination_is_a_case_and_the_last_parameter_changes_fastest() {
        assert_eq!(
            values("hops = [0, 1]\nrate = [\"10Mbit\", \"50Mbit\"]"),
            ["0 10Mbit", "0 50Mbit", "1 10Mbit", "1 50Mbit"]
        );
        assert_eq!(values(""), [""]);
        assert_eq!(values("loss = 0.01"), ["0.01"]);
    }

    #[test]
    fn a_value_with_fields_is_known_by_its_name() {
        let cases = read("p = [{ name = \"edge\", down = 240 }, { name = \"lte\", down = 50 }]")
            .expect("valid");
        assert_eq!(cases[0].values["p"], "edge");
        let expression =
            crate::experiments::scenario::expression::parse("p.down + 1").expect("valid");
        assert_eq!(expression.value(&cases[1].scope), Ok(Value::Number(51.0)));
    }

    #[test]
    fn a_field_may_be_a_list_that_all_of_the_file_shares() {
        let cases = read("p = [{ name = \"small\", ways = [[\"a\", \"b\"], [\"c\", \"d\"]] }]")
            .expect("valid");
        let second =
            crate::experiments::scenario::expression::parse("p.ways[2][1]").expect("valid");
        assert_eq!(second.value(&cases[0].scope), Ok(Value::Text("c".into())));
        let wrong = read("p = [{ name = \"small\", ways = [{ x = 1 }] }]").expect_err("a table");
        assert!(wrong.contains("a table stands there"), "{wrong}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        for (text, part) in [
            ("a = [1, 1.0]", "the value 1 is there twice"),
            ("a = []", "the list is empty"),
            ("a = [[1]]", "a list stands there"),
            ("i = [1]", "the word has a meaning"),
            ("a-b = [1]", "not a parameter's name"),
            (
                "a = [{ name = \"x\", b = 1 }, { name = \"y\" }]",
                "not every value has the field a.b",
            ),
            ("a = [{ b = 1 }]", "the key \"name\" is missing"),
        ] {
            let message = read(text).expect_err(text);
            assert!(message.contains(part), "{message}");
        }
    }

    /// The turns of a rotation beside a matrix with `hops`.
    fn turns_of(text: &str) -> Result<Vec<Turn>, String> {
        let document = document::parse("s.toml", text).map_err(|failure| failure.to_string())?;
        let complaints = Complaints::about(&document);
        let matrix = [Parameter {
            name: "hops".into(),
            at: 0,
            rows: Vec::new(),
        }];
        let rotation = rotation(Some(document.root()), &matrix, &complaints);
        complaints.finish().map_err(|failure| failure.to_string())?;
        Ok(turns(&rotation))
    }

    #[test]
    fn a_rotation_gives_each_repetition_its_values_until_all_lists_begin_anew() {
        let turns = turns_of("egress = ['a', 'a', 'b']\nload = [1, 2]").expect("valid");
        let shown = |turn: &Turn| {
            let values: Vec<String> = turn.iter().map(|(_, value)| value.text()).collect();
            values.join(" ")
        };
        let all: Vec<String> = turns.iter().map(shown).collect();
        assert_eq!(all, ["a 1", "a 2", "b 1", "a 2", "a 1", "b 2"]);
        assert_eq!(turns_of("").expect("valid"), [Turn::new()]);
    }

    #[test]
    fn a_rotation_that_never_seems_to_end_or_hides_the_matrix_is_refused() {
        let list = |length: usize| vec!["1"; length].join(",");
        let lists: String = [7, 11, 13]
            .map(|length| format!("a{length} = [{}]\n", list(length)))
            .concat();
        for (text, part) in [
            (lists.as_str(), "begins anew after too many repetitions"),
            ("hops = [1]", "[matrix] has a parameter of that name"),
            ("a = []", "the list is empty"),
        ] {
            let message = turns_of(text).expect_err(text);
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn too_many_combinations_are_refused_before_they_are_made() {
        let hundred: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let text: String = ('a'..='h')
            .map(|name| format!("{name} = [{}]\n", hundred.join(",")))
            .collect();
        assert!(
            read(&text)
                .expect_err("too many")
                .contains("at most 4096 cases")
        );
    }

    #[test]
    fn a_shuffle_keeps_everything_and_depends_on_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<u32>>());
    }

    #[test]
    fn every_place_is_as_likely_as_another() {
        let mut first = [0_u32; 5];
        for seed in 0..5000 {
            let mut items = [0, 1, 2, 3, 4];
            shuffle(&mut items, seed);
            first[items[0]] += 1;
        }
        assert!(
            first.iter().all(|count| (850..1150).contains(count)),
            "{first:?}"
        );
    }

    #[test]
    fn seeds_tell_paths_apart_and_stay_exact_in_json() {
        assert_ne!(seed(1, &["a", "bc"]), seed(1, &["ab", "c"]));
        assert_ne!(seed(1, &["a"]), seed(2, &["a"]));
        assert_eq!(seed(1, &["order", "1"]), seed(1, &["order", "1"]));
        assert!((0..100).all(|i| seed(i, &[]) < 1 << 53));
    }
}
