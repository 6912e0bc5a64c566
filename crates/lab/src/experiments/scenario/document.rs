//! The complaints about a file, one line each: `file:line:column: key: what is wrong: what is allowed`. They are collected, so that a user sees all
//! mistakes at once.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use hoplite_config::Malformed;
pub(crate) use hoplite_config::{Document, Entry, Item, Node, Table, listed};

use crate::errors::{Complaint, Failure};

/// A longer file is refused.
pub(crate) const MAX_FILE_BYTES: usize = 1 << 20;

/// Parses TOML; `name` stands in complaints.
pub(crate) fn parse(name: &str, text: &str) -> Result<Document, Failure> {
    let wrong = |place: String, what: String, allowed: &str| {
        Failure::Wrong(vec![Complaint::new(place, what, allowed)])
    };
    if text.len() > MAX_FILE_BYTES {
        let what = "the file is too long".to_owned();
        return Err(wrong(format!("{name}:1:1"), what, "at most 1 MiB"));
    }
    Document::parse(name, text).map_err(|Malformed { place, message }| {
        wrong(place, message, "correct the TOML syntax there")
    })
}

// Complaints.

/// More are not shown: they are mostly consequences of the first.
const MOST: usize = 20;

/// This many bytes of texts are computed in a file; a text may paste another, so that they would grow without bound.
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
        // What stands there begins there.
        let key = self.document.key_at(&(at..at.saturating_add(1)));
        self.push(at, &key, wrong);
    }

    /// One about a key that is not there, in the table at an offset.
    pub(crate) fn missing(&self, at: usize, key: &str, allowed: &str) {
        let wrong = Wrong::new(format!("the key \"{key}\" is missing"), allowed);
        self.add(at, wrong);
    }

    fn push(&self, at: usize, key: &str, wrong: Wrong) {
        let complaint = Complaint::new(self.document.place(at, key), wrong.what, wrong.allowed);
        let mut list = self.list.borrow_mut();
        let same = |(there, other): &(usize, Complaint)| *there == at && other.why == complaint.why;
        if list.len() < MOST && !list.iter().any(same) {
            list.push((at, complaint));
        }
    }

    /// Counts a text that was computed; whether there were too many.
    pub(crate) fn spend(&self, bytes: usize) -> bool {
        self.spent.set(self.spent.get().saturating_add(bytes));
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

/// What was probably meant, or what there is, in the order of the alphabet.
pub(crate) fn meant<'n>(found: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    known.dedup();
    hoplite_config::meant(found, &known)
}

/// A text of the file in a complaint: in quotes, on one line, not too long.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let short: String = text.chars().take(SHOWN).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", short.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"é\"\n[[link]]\nends = [\"a\", \"b\"]\n[[link]]\n  delay = 7\n  jitter = { width = \"1ms\" }\n";

    #[test]
    fn a_complaint_names_file_line_column_and_key() {
        let document = parse("s.toml", TEXT).expect("valid");
        let complaint = |part: &str| {
            let complaints = Complaints::about(&document);
            complaints.add(TEXT.find(part).expect("there"), Wrong::new("w", "a"));
            complaints.into_list().remove(0).to_string()
        };
        assert_eq!(complaint("7"), "s.toml:5:11: link[1].delay: w: a");
        assert_eq!(complaint("delay"), "s.toml:5:3: link[1].delay: w: a");
        assert_eq!(complaint("\"b\""), "s.toml:3:14: link[0].ends[1]: w: a");
        assert_eq!(
            complaint("\"1ms\""),
            "s.toml:6:22: link[1].jitter.width: w: a"
        );
    }

    #[test]
    fn broken_toml_is_reported_with_its_line() {
        let failure = parse("s.toml", "a = 1\nb = [1,\n").expect_err("broken");
        let text = failure.to_string();
        assert!(text.starts_with("hoplite-lab: s.toml:2:8: "), "{text}");
    }

    #[test]
    fn names_are_listed_by_the_alphabet() {
        assert_eq!(meant("dealy", ["delay", "rate"]), "did you mean \"delay\"?");
        assert_eq!(meant("colour", ["rate", "delay"]), "use one of delay, rate");
    }

    #[test]
    fn a_long_text_is_cut_and_stays_on_its_line() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), 63);
    }
}
