//! A campaign as the report sees it: values by case, subject and measure, and what became of the repetitions.
//! Only repetitions that are valid give values.

use std::collections::{BTreeMap, BTreeSet};

use super::metric::{Meaning, meaning};
use crate::{
    errors::Failure,
    results::{
        Metric,
        analysis::statistics::Clusters,
        store::{Attempt, Campaign, Machine, Run, Store, Verdict},
    },
};

/// A point of the matrix.
pub(super) type CaseValues = BTreeMap<String, String>;

/// Everything that a report is made of, but for the samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) campaign: Campaign,
    pub(super) machines: Vec<Machine>,
    pub(super) runs: Vec<Run>,
    pub(super) attempts: Vec<Attempt>,
    /// In the scenario's order; those of runs that the scenario has no more at the end.
    pub(super) cases: Vec<CaseValues>,
    /// In the scenario's order, likewise.
    pub(super) subjects: Vec<String>,
    /// For each subject, which family it belongs to: labels that differ by a parameter only share colour and column.
    pub(super) family: Vec<usize>,
    /// The families' names.
    pub(super) families: Vec<String>,
    /// What was measured, in the page's order.
    pub(super) measures: Vec<Measure>,
    /// The values, by case, subject and measure.
    pub(super) groups: BTreeMap<GroupKey, Vec<Point>>,
    /// What became of repetitions, by case and subject.
    pub(super) counts: BTreeMap<(usize, usize), RunCounts>,
    /// Transfers that failed, by case, subject and workload.
    pub(super) failed: BTreeMap<(usize, usize, String), usize>,
}

/// Where values belong: places in `cases`, `subjects` and `measures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) measure: usize,
    pub(super) case: usize,
    pub(super) subject: usize,
}

/// A metric of a workload, or of the repetition as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measure {
    pub(super) workload: Option<String>,
    pub(super) metric: String,
    pub(super) meaning: Meaning,
}

impl Measure {
    /// For headings.
    pub(super) fn title(&self) -> String {
        match &self.workload {
            Some(workload) => format!("{} · {workload}", self.meaning.title),
            None => self.meaning.title.clone(),
        }
    }
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) repetition: u32,
    /// When its repetition began, since 1970.
    pub(super) at: f64,
    pub(super) value: f64,
}

/// What became of the repetitions of a case with a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RunCounts {
    /// That count.
    pub(super) ok: usize,
    /// Given up as invalid or failed.
    pub(super) given_up: usize,
    /// Attempts that the gate refused.
    pub(super) invalid: usize,
    /// Attempts that failed.
    pub(super) failed: usize,
}

impl Data {
    /// Reads a campaign.
    ///
    /// # Errors
    /// When the store cannot be read, or no campaign was begun in it.
    pub(super) fn read(store: &Store) -> Result<Self, Failure> {
        let campaign = store.campaign()?.ok_or_else(|| {
            Failure::new(
                "reading the campaign",
                "none was begun in this directory",
                "run a scenario with this directory as --out first",
            )
        })?;
        let data = Self {
            campaign,
            machines: store.machines()?,
            runs: store.runs()?,
            attempts: store.attempts()?,
            ..Self::default()
        };
        Ok(data.with(store.metrics()?))
    }

    /// Sorts the figures in, instead of those that were.
    pub(super) fn with(mut self, metrics: Vec<(String, Metric)>) -> Self {
        self.cases = ordered(
            &self.campaign.cases,
            self.runs.iter().map(|run| &run.key.case),
        );
        self.subjects = ordered(
            &self.campaign.subjects,
            self.runs.iter().map(|run| &run.key.subject),
        );
        (self.families, self.family) =
            families(&self.subjects, &self.runs, &self.campaign.families);
        self.count();
        self.measures = measures(&metrics);
        self.sort_in(metrics);
        self
    }

    fn sort_in(&mut self, metrics: Vec<(String, Metric)>) {
        self.groups.clear();
        let valid = self.runs.iter().filter(|run| run.verdict == Verdict::Ok);
        let began: BTreeMap<(&str, u32), f64> = self
            .attempts
            .iter()
            .map(|attempt| ((attempt.run.as_str(), attempt.number), attempt.began))
            .collect();
        let runs: BTreeMap<&str, (&Run, f64)> = valid
            .map(|run| {
                let began = began.get(&(run.id.as_str(), run.attempt));
                (
                    run.id.as_str(),
                    (run, began.copied().unwrap_or(self.campaign.began)),
                )
            })
            .collect();
        for (id, metric) in metrics {
            let Some((run, at)) = runs.get(id.as_str()) else {
                continue;
            };
            let Some(place) = self.place(run, &metric) else {
                continue;
            };
            let point = Point {
                repetition: run.key.repetition,
                at: *at,
                value: metric.value,
            };
            self.groups.entry(place).or_default().push(point);
        }
    }

    fn place(&self, run: &Run, metric: &Metric) -> Option<GroupKey> {
        let same = |measure: &Measure| {
            measure.metric == metric.name && measure.workload == metric.workload
        };
        Some(GroupKey {
            measure: self.measures.iter().position(same)?,
            case: self.case(&run.key.case)?,
            subject: self.subject(&run.key.subject)?,
        })
    }

    pub(super) fn case(&self, case: &CaseValues) -> Option<usize> {
        self.cases.iter().position(|other| other == case)
    }

    pub(super) fn subject(&self, label: &str) -> Option<usize> {
        self.subjects.iter().position(|other| other == label)
    }

    /// Attempts before a retry of the whole repetition count too: they happened.
    fn count(&mut self) {
        let mut counts: BTreeMap<(usize, usize), RunCounts> = BTreeMap::new();
        let mut of_run = BTreeMap::new();
        for run in &self.runs {
            let (Some(case), Some(subject)) =
                (self.case(&run.key.case), self.subject(&run.key.subject))
            else {
                continue;
            };
            of_run.insert(run.id.as_str(), (case, subject));
            let count = counts.entry((case, subject)).or_default();
            match run.verdict {
                Verdict::Ok => count.ok += 1,
                Verdict::Invalid | Verdict::Failed => count.given_up += 1,
            }
        }
        for attempt in &self.attempts {
            let Some(count) = of_run
                .get(attempt.run.as_str())
                .and_then(|place| counts.get_mut(place))
            else {
                continue;
            };
            match attempt.verdict {
                Verdict::Ok => {}
                Verdict::Invalid => count.invalid += 1,
                Verdict::Failed => count.failed += 1,
            }
        }
        self.counts = counts;
    }

    /// Values of one place by repetition.
    pub(super) fn clusters(&self, place: GroupKey) -> Clusters {
        let mut clusters = Clusters::new();
        for point in self.groups.get(&place).into_iter().flatten() {
            clusters
                .entry(point.repetition)
                .or_default()
                .push(point.value);
        }
        clusters
    }

    /// Values of one place.
    pub(super) fn values(&self, place: GroupKey) -> Vec<f64> {
        let points = self.groups.get(&place).into_iter().flatten();
        points.map(|point| point.value).collect()
    }

    /// Subjects that have values of a measure in a case.
    pub(super) fn present(&self, measure: usize, case: usize) -> Vec<usize> {
        let has = |subject: &usize| {
            let place = GroupKey {
                measure,
                case,
                subject: *subject,
            };
            self.groups.contains_key(&place)
        };
        (0..self.subjects.len()).filter(has).collect()
    }

    /// The subject of a family that has values of a measure in a case.
    pub(super) fn member(
        &self,
        (measure, case): (usize, usize),
        family: usize,
    ) -> Option<GroupKey> {
        let mut present = self.present(measure, case).into_iter();
        let subject = present.find(|subject| self.series(*subject) == family)?;
        Some(GroupKey {
            measure,
            case,
            subject,
        })
    }

    /// A subject in a case; one whose label follows the case has another label there.
    pub(super) fn in_case(
        &self,
        (measure, case): (usize, usize),
        subject: usize,
    ) -> Option<GroupKey> {
        let itself = GroupKey {
            measure,
            case,
            subject,
        };
        if self.groups.contains_key(&itself) {
            return Some(itself);
        }
        self.member((measure, case), self.series(subject))
    }

    /// The subject of that label, or the first one of that family.
    pub(super) fn subject_or_family(&self, name: &str) -> Option<usize> {
        let family = || {
            let family = self.families.iter().position(|family| family == name)?;
            self.family.iter().position(|of| *of == family)
        };
        self.subject(name).or_else(family)
    }

    /// The measures of the same by single egresses, with these, in the order of their names.
    pub(super) fn by_egress(&self, measure: usize) -> Vec<(usize, &str)> {
        let Some(whole) = self
            .measures
            .get(measure)
            .filter(|of| of.workload.is_some())
        else {
            return Vec::new();
        };
        let mut parts = Vec::new();
        for (place, of) in self.measures.iter().enumerate() {
            let rest = of.metric.strip_prefix(&whole.metric);
            let egress = rest.and_then(|rest| rest.strip_prefix(':'));
            let egress = egress.filter(|_| of.workload == whole.workload);
            parts.extend(egress.map(|egress| (place, egress)));
        }
        parts.sort_by_key(|(_, egress)| *egress);
        parts
    }

    /// Cases that have values of a measure.
    pub(super) fn cases_of(&self, measure: usize) -> Vec<usize> {
        let places = self.groups.keys().filter(|place| place.measure == measure);
        let cases: BTreeSet<usize> = places.map(|place| place.case).collect();
        cases.into_iter().collect()
    }

    /// Transfers behind a measure that failed. A schedule's workload has the size behind its name; of workloads that are counted as one the names
    /// begin with that one's.
    pub(super) fn failed_transfers(&self, at: GroupKey) -> usize {
        let workload = self
            .measures
            .get(at.measure)
            .and_then(|measure| measure.workload.as_deref());
        let Some(workload) = workload else { return 0 };
        let count = |name: &str| {
            self.failed
                .get(&(at.case, at.subject, name.to_owned()))
                .copied()
        };
        let stem = workload.rsplit_once('/').map_or(workload, |(stem, _)| stem);
        count(workload)
            .or_else(|| count(stem))
            .unwrap_or_else(|| self.failed_parts(at, stem))
    }

    /// Those of workloads without figures of their own whose names begin like this.
    fn failed_parts(&self, at: GroupKey, stem: &str) -> usize {
        let measured = |name: &str| {
            let same = |measure: &Measure| measure.workload.as_deref() == Some(name);
            self.measures.iter().any(same)
        };
        let parts = self.failed.iter().filter(|((case, subject, name), _)| {
            (*case, *subject) == (at.case, at.subject) && name.starts_with(stem) && !measured(name)
        });
        parts.map(|(_, count)| count).sum()
    }

    /// The colour of a subject.
    pub(super) fn series(&self, subject: usize) -> usize {
        self.family.get(subject).copied().unwrap_or(subject)
    }

    /// Families of which anything was run: a part of a scenario has no columns for the rest.
    pub(super) fn run_families(&self) -> Vec<usize> {
        let run = self.counts.keys().map(|(_, subject)| self.series(*subject));
        let run: BTreeSet<usize> = run.collect();
        run.into_iter().collect()
    }

    pub(super) fn family_name(&self, family: usize) -> &str {
        self.families.get(family).map_or("?", String::as_str)
    }

    /// What the subject that ratios refer to is called: where its label follows the case, each case has its own of that family.
    pub(super) fn baseline_name(&self, baseline: usize) -> &str {
        self.family_name(self.series(baseline))
    }

    pub(super) fn label(&self, subject: usize) -> &str {
        self.subjects.get(subject).map_or("?", String::as_str)
    }

    /// The parameters in which cases differ.
    pub(super) fn varying(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.cases.iter().flat_map(|case| case.keys()).collect();
        let differs = |name: &&&String| {
            let values: BTreeSet<_> = self.cases.iter().map(|case| case.get(**name)).collect();
            values.len() > 1
        };
        all.iter()
            .filter(differs)
            .map(|name| (*name).clone())
            .collect()
    }

    /// A case in words: only what differs between cases. Empty if there is but one.
    pub(super) fn case_title(&self, case: usize) -> String {
        let Some(case) = self.cases.get(case) else {
            return String::new();
        };
        let part = |name: String| Some(format!("{name} {}", case.get(&name)?));
        let parts: Vec<String> = self.varying().into_iter().filter_map(part).collect();
        parts.join(" · ")
    }
}

/// The known ones first, then the others as they come.
fn ordered<'a, T: Clone + PartialEq + 'a>(
    known: &[T],
    others: impl Iterator<Item = &'a T>,
) -> Vec<T> {
    let mut all = known.to_vec();
    for other in others {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    all
}

/// Each measure once: by what it means, then by workload as they come.
fn measures(metrics: &[(String, Metric)]) -> Vec<Measure> {
    let mut seen: Vec<(&Option<String>, &str)> = Vec::new();
    for (_, metric) in metrics {
        let measure = (&metric.workload, metric.name.as_str());
        if !seen.contains(&measure) {
            seen.push(measure);
        }
    }
    let measure = |(workload, metric): (&Option<String>, &str)| Measure {
        workload: workload.clone(),
        metric: metric.to_owned(),
        meaning: meaning(metric),
    };
    let mut measures: Vec<Measure> = seen.into_iter().map(measure).collect();
    measures.sort_by_key(|measure| measure.meaning.rank);
    measures
}

// Families: subjects that are one and the same but for a parameter: `hoplite-1` where `hops = 1` and `hoplite-2` where `hops = 2` are `hoplite-{hops}`.
// A family keeps its colour and its column over all cases, and what is compared across cases is compared within it.

/// The families' names in the order of their first subjects, and each subject's family: as the scenario wrote the label, or, where it did not, as
/// what was run so far has it.
pub(in crate::results::report) fn families(
    subjects: &[String],
    runs: &[Run],
    written: &BTreeMap<String, String>,
) -> (Vec<String>, Vec<usize>) {
    let mut names: Vec<String> = Vec::new();
    let mut family = Vec::new();
    for subject in subjects {
        let written = written.get(subject).cloned();
        let name = written.unwrap_or_else(|| name(subject, runs));
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
    use crate::{experiments::trial::Key, results::store::Verdict};

    #[test]
    fn failed_transfers_of_workloads_that_are_counted_as_one_are_counted_together() {
        let measure = |workload: &str| Measure {
            workload: Some(workload.to_owned()),
            metric: "ttfb_s".to_owned(),
            meaning: meaning("ttfb_s"),
        };
        let failed = [("get1", 2), ("get2", 3), ("getter", 5), ("put", 7)];
        let data = Data {
            measures: vec![measure("get"), measure("getter")],
            failed: failed
                .map(|(name, count)| ((0, 0, name.to_owned()), count))
                .into(),
            ..Data::default()
        };
        let failed = |measure| {
            data.failed_transfers(GroupKey {
                measure,
                case: 0,
                subject: 0,
            })
        };
        assert_eq!([failed(0), failed(1)], [5, 5]);
    }

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
        let (names, family) = families(&subjects, &runs, &BTreeMap::new());
        assert_eq!(names, ["native", "hoplite-{hops}"]);
        assert_eq!(family, [0, 1, 1]);
    }

    #[test]
    fn a_number_that_only_looks_like_the_parameter_stays() {
        let runs = [run("h2-x", "2"), run("h2-x", "3"), run("http2", "2")];
        let subjects = ["h2-x", "http2"].map(str::to_owned);
        let names = families(&subjects, &runs, &BTreeMap::new()).0;
        assert_eq!(names, ["h2-x", "http2"]);
    }

    #[test]
    fn what_the_scenario_wrote_folds_labels_however_little_was_run_and_whatever_else_has_their_value()
     {
        let case = |subject: &str, clients: &str, hops: &str| {
            let mut run = run(subject, hops);
            let more = ("clients".to_owned(), clients.to_owned());
            run.key.case.extend([more]);
            run
        };
        // So far hoplite-2 has met two clients only, and hoplite-3 nobody.
        let runs = [case("hoplite-1", "1", "1"), case("hoplite-2", "2", "2")];
        let subjects = ["hoplite-1", "hoplite-2", "hoplite-3"].map(str::to_owned);
        let guessed = families(&subjects, &runs, &BTreeMap::new()).0;
        assert_eq!(guessed, ["hoplite-{clients}", "hoplite-3"]);
        let written = subjects
            .clone()
            .map(|label| (label, "hoplite-{hops}".to_owned()));
        let (names, family) = families(&subjects, &runs, &written.into());
        assert_eq!(
            (names, family),
            (vec!["hoplite-{hops}".to_owned()], vec![0; 3])
        );
    }
}
