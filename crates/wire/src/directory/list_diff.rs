//! The difference between two lists, as a relay that keeps them hands it out instead of the later one to who has the earlier. docs/directory.md, "Caches".
//! Whoever makes one, and whoever applies one, works out the hashes; see [`crate::line_diff`] for the rest.

use std::fmt;

use super::{LIST, Malformed, decode, encode};
use crate::line_diff;

const HEAD: &str = "hoplite-list-diff 1\n";
const HASH: &str = "sha256:";
/// Lists that one request names: what is known, and what has just been heard from somebody else.
const HASHES: usize = 4;

/// A difference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListDiff<'a> {
    /// SHA-256 of the earlier list without its signatures.
    pub from: [u8; 32],
    /// SHA-256 of all of the later one.
    pub to: [u8; 32],
    /// What makes the one of the other.
    script: &'a str,
}

impl<'a> ListDiff<'a> {
    /// Whether who was asked for a list has answered with a difference.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(HEAD)
    }

    /// Reads one. Of what makes the later list nothing is looked at.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &'a str) -> Result<Self, Malformed> {
        let wrong = |line, what| Malformed { line, what };
        let rest = text.strip_prefix(HEAD).filter(|_| text.len() <= LIST);
        let rest = rest.ok_or_else(|| wrong(1, "no difference between lists of version 1"))?;
        let hash = |rest: &'a str, keyword| {
            let (line, rest) = rest.split_once('\n')?;
            Some((hash(line.strip_prefix(keyword)?)?, rest))
        };
        let (from, rest) = hash(rest, "from ").ok_or_else(|| wrong(2, "from"))?;
        let (to, script) = hash(rest, "to ").ok_or_else(|| wrong(3, "to"))?;
        Ok(Self { from, to, script })
    }

    /// The later list, if `body` is the earlier one without its signatures: its hash is to be looked at.
    ///
    /// # Errors
    /// What is wrong first, by the line behind the hashes.
    pub fn apply(&self, body: &str) -> Result<String, Malformed> {
        line_diff::apply(body, self.script)
    }

    /// The difference from a list without its signatures to all of another, with their hashes. `None`: there is none, as neither is a document in lines.
    pub fn make((from, body): (&[u8; 32], &str), (to, later): (&[u8; 32], &str)) -> Option<String> {
        let script = line_diff::make(body, later)?;
        let head = format!("{HEAD}from {}\nto {}\n", hash_text(from), hash_text(to));
        Some(head + &script)
    }
}

/// A hash as requests and differences have it.
pub fn hash_text(hash: &[u8; 32]) -> String {
    format!("{HASH}{}", encode(hash))
}

/// The same read.
pub fn hash(text: &str) -> Option<[u8; 32]> {
    decode(text.strip_prefix(HASH)?)
}

/// Those of a request's field: so many at most, and none of those that are no hash.
pub fn hashes(field: &str) -> Vec<[u8; 32]> {
    let named = field.split(',').take(HASHES);
    named.filter_map(|one| hash(one.trim_ascii())).collect()
}

impl fmt::Debug for ListDiff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListDiff").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_difference_is_read_back_and_makes_the_later_list(from: [u8; 32], to: [u8; 32], old in "([a-c ]{0,3}\n){0,20}", new in "([a-c ]{0,3}\n){0,20}") {
            let text = ListDiff::make((&from, &old), (&to, &new)).expect("made");
            prop_assert!(ListDiff::is_one(&text));
            let read = ListDiff::parse(&text).expect("read");
            prop_assert_eq!((read.from, read.to), (from, to));
            prop_assert_eq!(read.apply(&old), Ok(new));
            prop_assert_eq!(hash(&hash_text(&from)), Some(from));
            let both = format!("{},{:?}, {}", hash_text(&from), old, hash_text(&to));
            prop_assert!(hashes(&both).starts_with(&[from]));
            let many = vec![hash_text(&to); 9].join(", ");
            prop_assert_eq!(hashes(&many), vec![to; HASHES]);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(hoplite-list-diff 1\n)?(from sha256:[A-Za-z_-]{42,44}\n)?(to sha256:[A-Za-z_-]{43}\n)?([0-9]{1,2}[acd]\n|[a-z.]\n){0,5}") {
            if let Ok(read) = ListDiff::parse(&text) {
                drop(read.apply("a\nb\nc\n"));
            }
        }
    }
}
