//! An authority's promise: one vote and one list a period, whatever becomes of the process and of its clock. What is signed last is kept, to stay,
//! before the signature is made; another for the same time, or one for an earlier time, is never signed.

use std::{fmt, str::FromStr};

use hoplite_crypto::onion::rsa::sha256;
use hoplite_wire::directory::Stage;

use super::Event;

/// The first line of its text.
const HEAD: &str = "hoplite-signed 1\n";

/// What an authority has signed last. Its text is a line for each, behind one that says what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastSigned {
    /// The vote.
    pub vote: Option<Document>,
    /// The list.
    pub list: Option<Document>,
}

/// A vote or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// When its period begins.
    pub valid_after: u64,
    /// The SHA-256 of its text without signatures.
    pub digest: [u8; 32],
}

/// Whether it is on the disk to stay.
type Keep = dyn FnMut(&LastSigned) -> bool + Send;

/// What was signed last, and who keeps it.
pub struct Promise {
    last: LastSigned,
    keep: Box<Keep>,
}

impl Promise {
    /// Goes on from what was kept before. `keep` returns when what it is given outlives the machine's next crash, and says whether it does.
    pub fn new(last: LastSigned, keep: impl FnMut(&LastSigned) -> bool + Send + 'static) -> Self {
        let keep = Box::new(keep);
        Self { last, keep }
    }

    /// One that is forgotten with the process.
    #[cfg(test)]
    pub(super) fn forgetful() -> Self {
        Self::new(LastSigned::default(), |_| true)
    }

    /// What was signed last.
    #[cfg(test)]
    pub(super) fn last(&self) -> LastSigned {
        self.last
    }

    /// Promises to sign no other vote or list for this time, nor any for an earlier one. Nothing may be signed without.
    pub(super) fn give(&mut self, what: Stage, valid_after: u64, text: &str) -> Result<(), Event> {
        let document = Document {
            valid_after,
            digest: sha256(text.as_bytes()),
        };
        let mut last = self.last;
        let before = match what {
            Stage::Vote => &mut last.vote,
            Stage::List => &mut last.list,
        };
        match before {
            Some(before) if *before == document => return Ok(()),
            Some(before) if before.valid_after >= valid_after => {
                return Err(Event::Promised(before.valid_after));
            }
            before => *before = Some(document),
        }
        if !(self.keep)(&last) {
            return Err(Event::NotKept);
        }
        self.last = last;
        Ok(())
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({:?})", self.last)
    }
}

impl fmt::Display for LastSigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for (name, document) in [("vote", &self.vote), ("list", &self.list)] {
            if let Some(document) = document {
                write!(f, "{name} {} sha256:", document.valid_after)?;
                let mut digest = document.digest.iter();
                digest.try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str("\n")?;
            }
        }
        Ok(())
    }
}

/// The text does not say what was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not say what this authority has signed last")]
pub struct Unreadable;

impl FromStr for LastSigned {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let mut last = Self::default();
        for line in text.strip_prefix(HEAD).ok_or(Unreadable)?.lines() {
            match line.split_once(' ') {
                Some(("vote", rest)) => last.vote = document(rest),
                Some(("list", rest)) => last.list = document(rest),
                _ => return Err(Unreadable),
            }
        }
        if last.to_string() == text {
            Ok(last)
        } else {
            Err(Unreadable)
        }
    }
}

fn document(line: &str) -> Option<Document> {
    let (valid_after, digest) = line.split_once(" sha256:")?;
    let bytes = digest.as_bytes().chunks(2).map(|pair| {
        let pair = str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    Some(Document {
        valid_after: valid_after.parse().ok()?,
        digest: bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_promised_that_is_not_kept() {
        let mut promise = Promise::new(LastSigned::default(), |_| false);
        assert_eq!(promise.give(Stage::Vote, 1, "a"), Err(Event::NotKept));
        assert_eq!(promise.give(Stage::Vote, 1, "b"), Err(Event::NotKept));
    }

    #[test]
    fn what_is_kept_is_enough_to_go_on_from() {
        let kept = Arc::new(Mutex::new(LastSigned::default()));
        let open = || {
            let (last, store) = (*kept.lock(), Arc::clone(&kept));
            let text = last.to_string();
            let last = text.parse().expect("read back");
            Promise::new(last, move |new| {
                *store.lock() = *new;
                true
            })
        };
        assert_eq!(open().give(Stage::Vote, 20, "a"), Ok(()));
        assert_eq!(open().give(Stage::List, 10, "l"), Ok(()));
        assert_eq!(open().give(Stage::Vote, 20, "a"), Ok(()), "the same bytes");
        let refused = Err(Event::Promised(20));
        assert_eq!(open().give(Stage::Vote, 20, "b"), refused);
        assert_eq!(open().give(Stage::Vote, 10, "a"), refused);
        assert_eq!(open().give(Stage::List, 20, "l"), Ok(()));
        assert_eq!(open().give(Stage::List, 20, "k"), refused);
        assert_eq!(open().give(Stage::Vote, 30, "b"), Ok(()));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_only_what_was_written(text in "(hoplite-signed 1\n)?((vote|list) [0-9]{0,21} sha256:[a-f0-9]{0,66}\n){0,3}") {
            if let Ok(last) = text.parse::<LastSigned>() {
                prop_assert_eq!(last.to_string(), text);
            }
        }

        #[test]
        fn what_is_written_is_read_back(vote: Option<(u64, [u8; 32])>, list: Option<(u64, [u8; 32])>) {
            let document = |(valid_after, digest)| Document { valid_after, digest };
            let last = LastSigned { vote: vote.map(document), list: list.map(document) };
            prop_assert_eq!(last.to_string().parse(), Ok(last));
        }
    }
}
