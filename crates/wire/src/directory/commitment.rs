//! Commitments: by which vote an authority stands, told before any vote is shown, and who holds that vote too. Authorities hand them on to each
//! other with every signature that they know, so that who tells two of them two things is seen by all. docs/directory.md, "How authorities agree".

use std::{collections::BTreeMap, fmt};

use super::{
    AUTHORITIES, COMMITMENTS, Key, Malformed, Signature,
    key::{decode, encode},
    lines::Lines,
};

/// Two of one voter are proof enough against it: more are not told.
const EACH: usize = 2;
const HEAD: &str = "hoplite-commitment 1";

/// What an authority votes for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Commitment {
    /// The period.
    pub valid_after: u64,
    /// Whose vote.
    pub voter: Key,
    /// The SHA-256 of the vote's whole text.
    pub vote: [u8; 32],
}

/// Commitments of one period, none of whose signatures has been checked by reading them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commitments {
    /// Each with its signatures, by authority: the voter's makes it a commitment, another's says that its signer holds the vote.
    pub all: BTreeMap<Commitment, BTreeMap<Key, Signature>>,
}

impl Commitment {
    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        lines.exactly(HEAD, "no commitment of version 1")?;
        let (valid_after, voter) = (lines.parsed("valid-after")?, lines.parsed("voter")?);
        let vote = lines.value("vote")?.strip_prefix("sha256:");
        Ok(Self {
            valid_after,
            voter,
            vote: vote.and_then(decode).ok_or_else(|| lines.wrong("vote"))?,
        })
    }
}

impl Commitments {
    /// Reads some, and nothing but them: all of one period, in order, at most two of one voter.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, COMMITMENTS)?;
        let mut found = Self::default();
        while !lines.is_done() {
            let commitment = Commitment::read(&mut lines)?;
            found.fits(&commitment).map_err(|why| lines.wrong(why))?;
            let signatures = super::list::signatures(&mut lines)?;
            found.all.insert(commitment, signatures);
        }
        match found.to_string() == text {
            true => Ok(found),
            false => Err(lines.wrong("not as it would be written")),
        }
    }

    fn fits(&self, next: &Commitment) -> Result<(), &'static str> {
        let last = self.all.last_key_value().map(|(last, _)| last);
        let own = self.all.keys().filter(|other| other.voter == next.voter);
        match last {
            _ if self.all.len() >= AUTHORITIES * EACH => Err("too many commitments"),
            Some(last) if last.valid_after != next.valid_after => Err("of another period"),
            Some(last) if last >= next => {
                Err("a commitment stands twice, or they are not in order")
            }
            _ if own.count() >= EACH => Err("more than two commitments of one voter"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Commitment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nvalid-after {}", self.valid_after)?;
        writeln!(
            f,
            "voter {}\nvote sha256:{}",
            self.voter,
            encode(&self.vote)
        )
    }
}

impl fmt::Display for Commitments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (commitment, signatures) in &self.all {
            commitment.fmt(f)?;
            f.write_str(&super::list::write_signatures(signatures))?;
        }
        Ok(())
    }
}
