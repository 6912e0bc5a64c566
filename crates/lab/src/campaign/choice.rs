//! Which subjects and cases of a scenario the command line asks for: `--subjects`, `--case`. `plan` asks. The rest may be run later, into the
//! same directory.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::wrong;
use crate::{cli::RunArgs, errors::Failure, trial::Key};

/// What is run.
#[derive(Debug)]
pub(super) struct Choice {
    /// Labels.
    pub(super) subjects: BTreeSet<String>,
    /// For each parameter that was named, the values that are wanted.
    cases: BTreeMap<String, BTreeSet<String>>,
}

impl Choice {
    /// What is asked for, if the scenario has it.
    pub(super) fn new(keys: &[Key], args: &RunArgs) -> Result<Self, Failure> {
        Ok(Self {
            subjects: subjects(keys, &args.subjects)?,
            cases: cases(keys, &args.case)?,
        })
    }

    /// Whether a repetition belongs to it.
    pub(super) fn holds(&self, key: &Key) -> bool {
        let mut asked = self.cases.iter();
        self.subjects.contains(&key.subject)
            && asked.all(|(name, wanted)| {
                let value = key.case.get(name);
                value.is_some_and(|value| wanted.contains(value))
            })
    }
}

fn subjects(keys: &[Key], asked: &[String]) -> Result<BTreeSet<String>, Failure> {
    let all: BTreeSet<String> = keys.iter().map(|key| key.subject.clone()).collect();
    if asked.is_empty() {
        return Ok(all);
    }
    if let Some(unknown) = asked.iter().find(|label| !all.contains(*label)) {
        let why = "the scenario has no subject of that label";
        return Err(wrong(
            format!("reading --subjects {unknown}"),
            why,
            &choose_from(all),
        ));
    }
    Ok(asked.iter().cloned().collect())
}

fn cases(keys: &[Key], asked: &[String]) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let mut known = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, value) in keys.iter().flat_map(|key| &key.case) {
        known.entry(name.clone()).or_default().insert(value.clone());
    }
    let mut wanted = BTreeMap::<String, BTreeSet<String>>::new();
    for text in asked {
        let (name, value) = one(text, &known)?;
        wanted.entry(name).or_default().insert(value);
    }
    Ok(wanted)
}

/// A parameter and its value, both of which the matrix has.
fn one(
    text: &str,
    known: &BTreeMap<String, BTreeSet<String>>,
) -> Result<(String, String), Failure> {
    let refused =
        |why: &str, remedy: &str| Err(wrong(format!("reading --case {text}"), why, remedy));
    let Some((name, value)) = text.split_once('=') else {
        return refused("it is no PARAMETER=VALUE", "write such as hops=2");
    };
    let Some(values) = known.get(name) else {
        let names = choose_from(known.keys().cloned());
        return refused(
            "the scenario's [matrix] has no parameter of that name",
            &names,
        );
    };
    if !values.contains(value) {
        return refused(
            &format!("{name} has no such value"),
            &choose_from(values.iter().cloned()),
        );
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn choose_from(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().collect();
    format!("choose from: {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        let pairs = [("1", "10Mbit"), ("1", "50Mbit"), ("2", "10Mbit")];
        let key = |(hops, rate): (&str, &str)| Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), hops.into()), ("rate".into(), rate.into())]),
            subject: "native".into(),
            repetition: 1,
        };
        pairs.map(key).into()
    }

    fn held(asked: &[&str]) -> Vec<bool> {
        let asked: Vec<String> = asked.iter().map(|text| (*text).to_owned()).collect();
        let choice = Choice {
            subjects: BTreeSet::from(["native".to_owned()]),
            cases: cases(&keys(), &asked).unwrap(),
        };
        keys().iter().map(|key| choice.holds(key)).collect()
    }

    #[test]
    fn values_of_one_parameter_are_alternatives_and_parameters_all_hold() {
        assert_eq!(held(&[]), [true, true, true]);
        assert_eq!(held(&["hops=1"]), [true, true, false]);
        assert_eq!(held(&["hops=1", "hops=2"]), [true, true, true]);
        assert_eq!(held(&["hops=1", "rate=50Mbit"]), [false, true, false]);
    }

    #[test]
    fn a_case_that_the_scenario_does_not_have_is_refused_with_those_that_it_has() {
        let said = |text: &str| cases(&keys(), &[text.to_owned()]).unwrap_err().to_string();
        assert!(said("hops").contains("write such as hops=2"));
        assert!(said("hop=1").contains("choose from: hops, rate"));
        assert!(said("hops=3").contains("choose from: 1, 2"));
    }
}
