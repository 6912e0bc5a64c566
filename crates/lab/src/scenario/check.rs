//! Resolves every case of a scenario with every subject once, to find what is wrong before anything is run. Used by `file`.
//! Bounded: all cases together may have so many hosts, links, workloads, files and steps.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    complain::{Wrong, quoted},
    file::{Resolved, case_of},
    library::Library,
    link,
    matrix::Case,
    reader::Reader,
    subject_file::{Places, Site, SubjectFile},
};
use crate::{
    errors::{Complaint, Failure},
    subject,
};

/// Nodes, links, workloads and steps of all cases together: loading resolves each.
const MOST_THINGS: usize = 200_000;

/// Resolves every case with every subject, to find what is wrong.
pub(crate) struct Check<'a> {
    library: &'a Library,
    subjects: &'a BTreeMap<String, SubjectFile>,
    /// Labels of the subjects of each case.
    pub(crate) labels: Vec<Vec<String>>,
    /// Links of all cases.
    pub(crate) links: BTreeSet<String>,
    pub(crate) traces: RefCell<BTreeMap<String, Vec<u64>>>,
    /// The longest of all cases.
    pub(crate) timeout: Duration,
    things: usize,
    /// Complaints about subjects' files.
    pub(crate) others: Vec<Complaint>,
}

impl<'a> Check<'a> {
    /// Nothing yet.
    pub(crate) fn of(
        library: &'a Library,
        subjects: &'a BTreeMap<String, SubjectFile>,
        others: Vec<Complaint>,
    ) -> Self {
        Self {
            library,
            subjects,
            labels: Vec::new(),
            links: BTreeSet::new(),
            traces: RefCell::default(),
            timeout: Duration::ZERO,
            things: 0,
            others,
        }
    }

    /// Every case.
    pub(crate) fn all(&mut self, root: Reader<'_>, cases: &[Case]) {
        for case in cases {
            self.case(root.within(&case.scope));
            if self.things > MOST_THINGS {
                let allowed = format!(
                    "at most {MOST_THINGS} hosts, links, workloads, files and steps in all"
                );
                root.wrong(
                    "matrix",
                    Wrong::new("all cases together are too large", allowed),
                );
                return;
            }
        }
    }

    fn case(&mut self, root: Reader<'_>) {
        let read = |path: &str| trace(path, &self.traces, self.library);
        let resolved = case_of(root, self.subjects, &read);
        let plans = if root.complaints.any() {
            Vec::new()
        } else {
            self.plans(root, &resolved)
        };
        let steps: usize = plans
            .iter()
            .map(|plan| plan.steps.len() + plan.files.len())
            .sum();
        let (nodes, links) = (resolved.topology.nodes.len(), resolved.topology.links.len());
        self.things += 1 + nodes + links + resolved.workloads.len() + steps;
        self.timeout = self.timeout.max(resolved.timeout);
        self.labels
            .push(resolved.uses.into_iter().map(|used| used.label).collect());
        self.links
            .extend(resolved.topology.links.into_iter().map(|link| link.name));
    }

    fn plans(&mut self, root: Reader<'_>, resolved: &Resolved) -> Vec<subject::Plan> {
        let (addresses, places) = (resolved.topology.addresses(), Places::unknown());
        let site = Site {
            topology: &resolved.topology,
            addresses: &addresses,
            places: &places,
        };
        let mut plans = Vec::new();
        for used in &resolved.uses {
            let Some(file) = self.subjects.get(&used.file) else {
                continue;
            };
            match file.plan(&used.label, &used.with, &site) {
                Ok(plan) => plans.push(plan),
                Err(failure) => {
                    let what = format!(
                        "the subject does not fit here (label {})",
                        quoted(&used.label)
                    );
                    root.complaints.add(
                        used.at,
                        Wrong::new(what, "see the complaint about its own file"),
                    );
                    self.tell(failure);
                }
            }
        }
        plans
    }

    fn tell(&mut self, failure: Failure) {
        let complaints = match failure {
            Failure::Wrong(list) => list,
            Failure::Failed(one) => vec![one],
        };
        for complaint in complaints {
            if !self.others.contains(&complaint) && self.others.len() < 20 {
                self.others.push(complaint);
            }
        }
    }
}

/// A trace is read once.
fn trace(
    path: &str,
    traces: &RefCell<BTreeMap<String, Vec<u64>>>,
    library: &Library,
) -> Result<Vec<u64>, Wrong> {
    if let Some(known) = traces.borrow().get(path) {
        return Ok(known.clone());
    }
    let text = library.trace(path).map_err(|why| {
        Wrong::new(
            format!("the trace {} cannot be read: {why}", quoted(path)),
            "a file, its path seen from the scenario's directory",
        )
    })?;
    let trace = link::trace(path, &text)?;
    traces.borrow_mut().insert(path.to_owned(), trace.clone());
    Ok(trace)
}
