//! What is wrong with a file, in one line each: `file:line:column: key: what is wrong: what is allowed`.
//! Every reader of `scenario` collects here, so that a user sees all mistakes at once.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use super::document::Document;
use crate::errors::{Complaint, Failure};

/// More are not shown: they are mostly consequences of the first.
const MOST: usize = 20;

/// So many octets of texts are computed in a file; a text may paste another, so that they would grow without bound.
const MOST_TEXT: usize = 64 << 20;

/// A value that does not fit: found by a function that does not know where the value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// What is wrong.
    pub(crate) what: String,
    /// What is allowed.
    pub(crate) allowed: String,
}

impl Wrong {
    /// Something wrong.
    pub(crate) fn new(what: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self {
            what: what.to_string(),
            allowed: allowed.into(),
        }
    }
}

/// The complaints about one document.
#[derive(Debug)]
pub(crate) struct Complaints<'d> {
    document: &'d Document,
    list: RefCell<Vec<(usize, Complaint)>>,
    spent: Cell<usize>,
}

impl<'d> Complaints<'d> {
    /// None yet.
    pub(crate) fn about(document: &'d Document) -> Self {
        Self {
            document,
            list: RefCell::default(),
            spent: Cell::new(0),
        }
    }

    /// One about what stands at an offset. What is wrong in several cases is told for the first.
    pub(crate) fn add(&self, at: usize, wrong: Wrong) {
        let key = self.document.key_at(at);
        self.push(at, &key, wrong);
    }

    /// One about a key that is not there, in the table at an offset.
    pub(crate) fn missing(&self, at: usize, key: &str, allowed: &str) {
        let wrong = Wrong::new(format!("the key \"{key}\" is missing"), allowed);
        self.add(at, wrong);
    }

    fn push(&self, at: usize, key: &str, wrong: Wrong) {
        let complaint = self.document.complaint(at, key, wrong);
        let mut list = self.list.borrow_mut();
        let same = |(there, other): &(usize, Complaint)| *there == at && other.why == complaint.why;
        if list.len() < MOST && !list.iter().any(same) {
            list.push((at, complaint));
        }
    }

    /// Counts a text that was computed; whether there were too many.
    pub(crate) fn spend(&self, octets: usize) -> bool {
        self.spent.set(self.spent.get().saturating_add(octets));
        self.spent.get() > MOST_TEXT
    }

    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        !self.list.borrow().is_empty()
    }

    /// All of them, in the order of the file.
    pub(crate) fn into_list(self) -> Vec<Complaint> {
        let mut list = self.list.into_inner();
        list.sort_by_key(|(at, _)| *at);
        list.into_iter().map(|(_, complaint)| complaint).collect()
    }

    /// Nothing, or all complaints as a failure.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.into_list() {
            list if list.is_empty() => Ok(()),
            list => Err(Failure::Wrong(list)),
        }
    }
}

/// What was probably meant, or what there is.
pub(crate) fn meant<'n>(found: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    known.dedup();
    let near = known
        .iter()
        .map(|name| (distance(found, name), *name))
        .min();
    match near {
        Some((far, name)) if is_near(far, name) => {
            format!("did you mean \"{name}\"?")
        }
        Some(_) => format!("use one of {}", listed(&known)),
        None => "remove it".into(),
    }
}

/// A name of one letter is near to everything, so it is never meant.
fn is_near(far: usize, name: &str) -> bool {
    let length = name.chars().count();
    far <= 1 + length / 3 && far < length
}

/// Names joined by commas; of very many only the first.
pub(crate) fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 30;
    let shown = names.get(..SHOWN).unwrap_or(names).join(", ");
    match names.len() {
        0 => "(there is none)".into(),
        1..=SHOWN => shown,
        more => format!("{shown} and {} more", more - SHOWN),
    }
}

/// A text of the file in a complaint: in quotes, on one line, not too long.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let short: String = text.chars().take(SHOWN).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}

/// How many letters to change, add, drop or swap with their neighbour; of long texts only the beginnings are looked at.
fn distance(found: &str, known: &str) -> usize {
    let [found, known] = [found, known].map(|text| text.chars().take(64).collect::<String>());
    strsim::osa_distance(&found, &known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_and_a_dropped_letter_each_count_once() {
        // A name of two letters forgives one mistake.
        for found in ["pu", "p", "uup", "un"] {
            assert_eq!(meant(found, ["up"]), "did you mean \"up\"?");
        }
        assert_eq!(meant("put", ["up"]), "use one of up");
    }

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(meant("dealy", ["delay", "rate"]), "did you mean \"delay\"?");
        assert_eq!(meant("colour", ["rate", "delay"]), "use one of delay, rate");
        assert_eq!(meant("x", []), "remove it");
    }

    #[test]
    fn a_long_text_is_cut_and_stays_on_its_line() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), 63);
    }
}
