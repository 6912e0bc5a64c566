//! The shared random values of a list, and what authorities say in votes and lists to make the next one: lines between the parameters and the
//! relays, none of which must be there. srv-spec is the model; docs/directory.md, "Shared random values", says what is different.

use std::{collections::BTreeMap, fmt};

use super::{AUTHORITIES, Key, Lines, Malformed, decode, encode};

/// What a list or a vote says of shared random values. A value is that of a run: the time between two multiples of the list's parameter
/// `hsdir-interval` since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedRandomLines {
    /// The value of the run before the one that the list begins in.
    pub previous: Option<[u8; 32]>,
    /// The value of the run that the list begins in.
    pub current: Option<[u8; 32]>,
    /// By which reveal values authorities stand: in a list those of the next list's votes, in a vote its own time's, as the last list has them.
    pub commitments: BTreeMap<Key, [u8; 32]>,
    /// Of a vote: what its voter adds.
    pub own: Option<Contribution>,
}

/// What one authority adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// The value to which it has committed in the last list.
    pub reveal: [u8; 32],
    /// Its commitment to the value of the next vote.
    pub commitment: [u8; 32],
}

impl SharedRandomLines {
    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            previous: value(lines, "shared-random-previous")?,
            current: value(lines, "shared-random-current")?,
            commitments: commitments(lines)?,
            own: own(lines)?,
        })
    }
}

fn value(lines: &mut Lines<'_>, keyword: &'static str) -> Result<Option<[u8; 32]>, Malformed> {
    let Some(value) = lines.option(keyword) else {
        return Ok(None);
    };
    decode(value).map(Some).ok_or_else(|| lines.wrong(keyword))
}

fn commitments(lines: &mut Lines<'_>) -> Result<BTreeMap<Key, [u8; 32]>, Malformed> {
    let mut commitments = BTreeMap::new();
    while let Some(line) = lines.option("shared-random-commit") {
        let read = line.split_once(' ');
        let read = read.and_then(|(key, value)| Some((key.parse().ok()?, decode(value)?)));
        let (key, value) = read.ok_or_else(|| lines.wrong("shared-random-commit"))?;
        if commitments.len() == AUTHORITIES {
            return Err(lines.wrong("too many commitments"));
        }
        commitments.insert(key, value);
    }
    Ok(commitments)
}

fn own(lines: &mut Lines<'_>) -> Result<Option<Contribution>, Malformed> {
    let Some(line) = lines.option("shared-random-own") else {
        return Ok(None);
    };
    let read = line.split_once(' ').and_then(|(reveal, commitment)| {
        Some(Contribution {
            reveal: decode(reveal)?,
            commitment: decode(commitment)?,
        })
    });
    let wrong = || lines.wrong("shared-random-own");
    read.map(Some).ok_or_else(wrong)
}

impl fmt::Display for SharedRandomLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = &self.previous {
            writeln!(f, "shared-random-previous {}", encode(value))?;
        }
        if let Some(value) = &self.current {
            writeln!(f, "shared-random-current {}", encode(value))?;
        }
        for (key, value) in &self.commitments {
            writeln!(f, "shared-random-commit {key} {}", encode(value))?;
        }
        match &self.own {
            Some(Contribution { reveal, commitment }) => {
                let (reveal, commitment) = (encode(reveal), encode(commitment));
                writeln!(f, "shared-random-own {reveal} {commitment}")
            }
            None => Ok(()),
        }
    }
}
