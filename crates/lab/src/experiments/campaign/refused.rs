//! Subjects of which attempts at one repetition did not count again and again, and the cause: the last line of a run tells it, so that nobody has to
//! look for it in a database.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde::Serialize;

use super::plan::CampaignPlan;
use crate::{
    errors::Failure,
    results::store::{Attempt, Store, Verdict},
};

/// So many attempts at one repetition did not count: the gate refused them, or they failed.
const OFTEN: usize = 3;

/// Subjects that a line names; the rest is counted.
const NAMED: usize = 5;

/// A subject that was refused so often, in one repetition or more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    /// Its label.
    pub(crate) subject: String,
    /// Repetitions in which it was.
    pub(crate) repetitions: usize,
    /// Attempts at these that did not count.
    pub(crate) attempts: usize,
    /// How they ended, if it was always the same.
    pub(crate) verdict: Option<Verdict>,
    /// The cause that was there most often, as it was told last.
    pub(crate) why: String,
}

/// Those of a plan, by label. What was set aside by `--retry` is told no more.
pub(crate) fn of(store: &Store, plan: &CampaignPlan) -> Result<Vec<Refused>, Failure> {
    let subjects = plan.places.iter();
    let subjects: HashMap<String, &str> = subjects
        .map(|place| (place.key.id(), place.key.subject.as_str()))
        .collect();
    let mut runs: BTreeMap<(&str, String), Vec<Attempt>> = BTreeMap::new();
    for attempt in store.attempts()? {
        let counts = attempt.verdict == Verdict::Ok || attempt.set_aside;
        if let Some(subject) = subjects.get(&attempt.run).filter(|_| !counts) {
            let run = (*subject, attempt.run.clone());
            runs.entry(run).or_default().push(attempt);
        }
    }
    let mut often: BTreeMap<&str, Vec<Vec<Attempt>>> = BTreeMap::new();
    for ((subject, _), attempts) in runs {
        if attempts.len() >= OFTEN {
            often.entry(subject).or_default().push(attempts);
        }
    }
    let refused = often.into_iter().map(|(subject, runs)| one(subject, &runs));
    Ok(refused.collect())
}

fn one(subject: &str, runs: &[Vec<Attempt>]) -> Refused {
    let attempts: Vec<&Attempt> = runs.iter().flatten().collect();
    let verdict = attempts.first().map(|attempt| attempt.verdict);
    let same = attempts.iter().all(|one| Some(one.verdict) == verdict);
    Refused {
        subject: subject.to_owned(),
        repetitions: runs.len(),
        attempts: attempts.len(),
        verdict: verdict.filter(|_| same),
        why: cause(&attempts),
    }
}

/// Causes that differ in their figures alone are one.
fn cause(attempts: &[&Attempt]) -> String {
    let mut kinds: HashMap<String, (usize, usize)> = HashMap::new();
    for (place, attempt) in attempts.iter().enumerate() {
        let kind = kinds.entry(without_figures(&attempt.why)).or_default();
        *kind = (kind.0 + 1, place);
    }
    let most = kinds.into_values().max();
    let told = most.and_then(|(_, last)| attempts.get(last));
    let why = told.map(|attempt| attempt.why.as_str());
    // It is to be one line.
    let words: Vec<&str> = why.unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

fn without_figures(why: &str) -> String {
    let figure = |c: char| c.is_ascii_digit() || c == '.';
    why.chars().filter(|c| !figure(*c)).collect()
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            repetitions,
            attempts,
            verdict,
            why,
        } = self;
        let verdict = verdict.map_or("invalid or failed", Verdict::word);
        let repetitions = match repetitions {
            1 => "one repetition".to_owned(),
            many => format!("{many} repetitions"),
        };
        write!(
            f,
            "{subject} ({attempts} attempts at {repetitions} {verdict}: {why})"
        )
    }
}

/// What a line says of them; empty if there are none.
pub(crate) fn told(refused: &[Refused]) -> String {
    if refused.is_empty() {
        return String::new();
    }
    let named = refused.iter().take(NAMED).map(Refused::to_string);
    let mut named: Vec<String> = named.collect();
    let left = refused.len() - named.len();
    if left > 0 {
        named.push(format!("and {left} subjects more"));
    }
    format!("; refused {OFTEN} times or more: {}", named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, verdict: Verdict, why: &str) -> Attempt {
        Attempt {
            run: "r".into(),
            number,
            verdict,
            why: why.into(),
            log: String::new(),
            set_aside: false,
            machine: "m".into(),
            began: 0.0,
            ready_after: 0.0,
            took: 1.0,
            health: Default::default(),
        }
    }

    #[test]
    fn the_most_frequent_cause_is_told_as_it_was_told_last_whatever_its_figures() {
        let runs = [vec![
            attempt(1, Verdict::Invalid, "packets left late: 1.20 %"),
            attempt(2, Verdict::Failed, "waiting for relay1:\nit ended"),
            attempt(3, Verdict::Invalid, "packets left late: 3.40 %"),
        ]];
        let refused = one("tor", &runs);
        assert_eq!(refused.why, "packets left late: 3.40 %");
        assert_eq!((refused.verdict, refused.attempts), (None, 3));
        let only = one("tor", &[vec![runs[0][1].clone()]]);
        assert_eq!(
            only.to_string(),
            "tor (1 attempts at one repetition failed: waiting for relay1: it ended)"
        );
    }

    #[test]
    fn a_line_names_a_few_and_counts_the_rest() {
        let refused = vec![one("tor", &[vec![attempt(1, Verdict::Failed, "x")]]); 7];
        let line = told(&refused);
        assert_eq!(line.matches("tor (").count(), NAMED);
        assert!(line.ends_with("; and 2 subjects more"), "{line}");
        assert_eq!(told(&[]), "");
    }
}
