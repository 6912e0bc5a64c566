//! Which subjects are one and the same but for a parameter: `hoplite-1` where `hops = 1` and `hoplite-2` where `hops = 2` are `hoplite-{hops}`.
//! A family keeps its colour and its column over all cases.

use std::collections::BTreeMap;

use crate::results::store::Run;

/// The families' names in the order of their first subjects, and each subject's family.
pub(in crate::report) fn families(subjects: &[String], runs: &[Run]) -> (Vec<String>, Vec<usize>) {
    let mut names: Vec<String> = Vec::new();
    let mut family = Vec::new();
    for subject in subjects {
        let name = name(subject, runs);
        let place = names.iter().position(|other| *other == name);
        family.push(place.unwrap_or(names.len()));
        if place.is_none() {
            names.push(name);
        }
    }
    (names, family)
}

/// The label with each value in it replaced by the parameter that always has it where this subject runs, and elsewhere others.
fn name(subject: &str, runs: &[Run]) -> String {
    let own = runs.iter().filter(|run| run.key.subject == subject);
    let mut values: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (parameter, value) in own.flat_map(|run| &run.key.case) {
        let known = values.entry(parameter).or_insert(Some(value));
        *known = known.filter(|known| known == value);
    }
    let mut name = subject.to_owned();
    for (parameter, value) in values {
        let Some(value) = value else { continue };
        let others = runs.iter().any(|run| {
            run.key
                .case
                .get(parameter)
                .is_some_and(|other| other != value)
        });
        if others {
            name = replace(&name, value, &format!("{{{parameter}}}"));
        }
    }
    name
}

/// Replaces a value where it stands as a word of its own.
fn replace(label: &str, value: &str, by: &str) -> String {
    let word =
        |character: char| character.is_alphanumeric() || character == '{' || character == '}';
    let mut name = String::new();
    let mut rest = label;
    while let Some((before, after)) = Some(value)
        .filter(|value| !value.is_empty())
        .and_then(|value| rest.split_once(value))
    {
        let alone = !before.chars().next_back().is_some_and(word)
            && !after.chars().next().is_some_and(word);
        name.push_str(before);
        name.push_str(if alone { by } else { value });
        rest = after;
    }
    name + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{results::store::Verdict, trial::Key};

    fn run(subject: &str, hops: &str) -> Run {
        let key = Key {
            scenario: "s".into(),
            case: [("hops".to_owned(), hops.to_owned())].into(),
            subject: subject.into(),
            repetition: 1,
        };
        Run {
            id: key.id(),
            key,
            place: 1,
            seed: 1,
            verdict: Verdict::Ok,
            attempt: 1,
        }
    }

    #[test]
    fn labels_that_follow_a_parameter_are_one_family() {
        let runs = [
            run("hoplite-1", "1"),
            run("hoplite-2", "2"),
            run("native", "1"),
            run("native", "2"),
        ];
        let subjects = ["native", "hoplite-1", "hoplite-2"].map(str::to_owned);
        let (names, family) = families(&subjects, &runs);
        assert_eq!(names, ["native", "hoplite-{hops}"]);
        assert_eq!(family, [0, 1, 1]);
    }

    #[test]
    fn a_number_that_only_looks_like_the_parameter_stays() {
        let runs = [run("h2-x", "2"), run("h2-x", "3"), run("http2", "2")];
        let subjects = ["h2-x", "http2"].map(str::to_owned);
        assert_eq!(families(&subjects, &runs).0, ["h2-x", "http2"]);
    }
}
