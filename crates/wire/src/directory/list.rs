//! A list: the relays that authorities agree on, and for when. A vote is one authority's own view in the same form.

use std::{collections::BTreeMap, fmt};

use super::{
    AUTHORITIES, Key, LIST, Malformed, PARAMS, RELAYS, Signature, SignedDescriptor, lines::Lines,
};

/// How far a list has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What one authority would have in it.
    Vote,
    /// What a majority has.
    List,
}

/// Relays, and for when. All times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Vote or list.
    pub stage: Stage,
    /// From when it holds; it is also its number: a later one replaces it.
    pub valid_after: u64,
    /// When there should be another.
    pub fresh_until: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// Numbers that all clients should use, by name.
    pub params: BTreeMap<String, u64>,
    /// The relays, by identity.
    pub relays: Vec<SignedDescriptor>,
}

/// A list with signatures, none of which has been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedList {
    /// What it says.
    pub list: List,
    /// Over [`List::text`], by authority.
    pub signatures: BTreeMap<Key, Signature>,
}

impl Stage {
    /// The first line of such a document.
    pub fn head_line(self) -> String {
        format!("{}\n", self.head())
    }

    fn head(self) -> &'static str {
        match self {
            Self::Vote => "hoplite-vote 1",
            Self::List => "hoplite-list 1",
        }
    }
}

impl List {
    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    fn read(lines: &mut Lines<'_>, stage: Stage) -> Result<Self, Malformed> {
        lines.exactly(stage.head(), "no list or vote of version 1")?;
        let list = Self {
            stage,
            valid_after: lines.parsed("valid-after")?,
            fresh_until: lines.parsed("fresh-until")?,
            valid_until: lines.parsed("valid-until")?,
            params: params(lines)?,
            relays: relays(lines)?,
        };
        let (after, fresh, until) = (list.valid_after, list.fresh_until, list.valid_until);
        match after < fresh && fresh <= until {
            true => Ok(list),
            false => Err(lines.wrong("its times are not in order")),
        }
    }
}

fn params(lines: &mut Lines<'_>) -> Result<BTreeMap<String, u64>, Malformed> {
    let mut params = BTreeMap::new();
    while let Some(value) = lines.option("param") {
        let (name, number) = value.split_once(' ').ok_or_else(|| lines.wrong("param"))?;
        let number = number.parse().map_err(|_| lines.wrong("param"))?;
        if !super::is_word(name, 32) || params.len() == PARAMS {
            return Err(lines.wrong("param"));
        }
        params.insert(name.to_owned(), number);
    }
    Ok(params)
}

fn relays(lines: &mut Lines<'_>) -> Result<Vec<SignedDescriptor>, Malformed> {
    let count: usize = lines.parsed("relays")?;
    if count > RELAYS {
        return Err(lines.wrong("too many relays"));
    }
    let mut relays = Vec::<SignedDescriptor>::new();
    for _ in 0..count {
        let relay = SignedDescriptor::read(lines)?;
        let last = relays.last().map(|last| last.descriptor.identity);
        if last.is_some_and(|last| last >= relay.descriptor.identity) {
            return Err(lines.wrong("a relay stands twice, or they are not in order"));
        }
        relays.push(relay);
    }
    Ok(relays)
}

pub(super) fn signatures(lines: &mut Lines<'_>) -> Result<BTreeMap<Key, Signature>, Malformed> {
    let mut signatures = BTreeMap::new();
    while let Some(value) = lines.option("signed") {
        let (key, signature) = value.split_once(' ').ok_or_else(|| lines.wrong("signed"))?;
        let key: Key = key.parse().map_err(|_| lines.wrong("signed"))?;
        let signature = signature.parse().map_err(|_| lines.wrong("signed"))?;
        if signatures.len() == AUTHORITIES {
            return Err(lines.wrong("too many signatures"));
        }
        signatures.insert(key, signature);
    }
    Ok(signatures)
}

/// What is signed and by whom, without reading what it says: for who only has to compare. The last lines must be signatures as they would be
/// written.
///
/// # Errors
/// What is wrong with them; the line is counted from the first signature.
pub fn split_signed(text: &str) -> Result<(&str, BTreeMap<Key, Signature>), Malformed> {
    let lines = text.split_inclusive('\n').rev();
    let signed = lines.take_while(|line| line.starts_with("signed "));
    let tail = signed.take(AUTHORITIES.saturating_add(1)).map(str::len);
    let end = text.len().saturating_sub(tail.sum());
    let (body, tail) = text.split_at_checked(end).unwrap_or((text, ""));
    let mut lines = Lines::of(tail, LIST)?;
    let found = signatures(&mut lines)?;
    match lines.is_done() && write_signatures(&found) == tail {
        true => Ok((body, found)),
        false => Err(lines.wrong("no signatures, or not as they would be written")),
    }
}

pub(super) fn write_signatures(signatures: &BTreeMap<Key, Signature>) -> String {
    let line = |(key, signature)| format!("signed {key} {signature}\n");
    signatures.iter().map(line).collect()
}

impl SignedList {
    /// Reads a list or a vote, and nothing but it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str, stage: Stage) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, LIST)?;
        let signed = Self {
            list: List::read(&mut lines, stage)?,
            signatures: signatures(&mut lines)?,
        };
        match lines.is_done() && signed.to_string() == text {
            true => Ok(signed),
            false => Err(lines.wrong("more than a list, or not as it would be written")),
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.stage.head())?;
        writeln!(f, "valid-after {}", self.valid_after)?;
        writeln!(f, "fresh-until {}", self.fresh_until)?;
        writeln!(f, "valid-until {}", self.valid_until)?;
        for (name, number) in &self.params {
            writeln!(f, "param {name} {number}")?;
        }
        writeln!(f, "relays {}", self.relays.len())?;
        self.relays.iter().try_for_each(|relay| relay.fmt(f))
    }
}

impl fmt::Display for SignedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)?;
        f.write_str(&write_signatures(&self.signatures))
    }
}
