//! Lines of `keyword value`, taken one after the other. The documents' parsers use it.

use std::str::FromStr;

/// Why a text is no document, and in which of its lines (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    /// Which line.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// What is left of a text.
pub(super) struct Lines<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lines<'a> {
    /// Texts of more than `most` octets are not looked at.
    pub(super) fn of(text: &'a str, most: usize) -> Result<Self, Malformed> {
        let lines = Self {
            rest: text,
            line: 1,
        };
        match text.len() <= most && text.is_ascii() {
            true => Ok(lines),
            false => Err(lines.wrong("too long, or not ASCII")),
        }
    }

    pub(super) fn wrong(&self, what: &'static str) -> Malformed {
        Malformed {
            line: self.line,
            what,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next line must be this one.
    pub(super) fn exactly(&mut self, line: &str, what: &'static str) -> Result<(), Malformed> {
        match self.next() {
            Some(found) if found == line => Ok(()),
            _ => Err(self.wrong(what)),
        }
    }

    /// The value of the next line if it has this keyword.
    pub(super) fn option(&mut self, keyword: &str) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        let value = line.strip_prefix(keyword)?.strip_prefix(' ')?;
        self.rest = rest;
        self.line = self.line.saturating_add(1);
        Some(value)
    }

    /// The value of the next line, which must have this keyword.
    pub(super) fn value(&mut self, keyword: &'static str) -> Result<&'a str, Malformed> {
        self.option(keyword).ok_or_else(|| self.wrong(keyword))
    }

    /// The same, parsed.
    pub(super) fn parsed<T: FromStr>(&mut self, keyword: &'static str) -> Result<T, Malformed> {
        let wrong = self.wrong(keyword);
        self.value(keyword)?.parse().map_err(|_| wrong)
    }

    fn next(&mut self) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        self.rest = rest;
        self.line = self.line.saturating_add(1);
        Some(line)
    }
}
