//! The difference between two consensuses, as directories hand it out instead of the later one to who has the earlier. dir-spec "Consensus diffs".
//! Whoever makes one, and whoever applies one, works out the hashes; see [`crate::line_diff`] for the rest.

use std::fmt;

use super::{TEXT, hex, to_hex};
use crate::{directory::Malformed, line_diff};

const HEAD: &str = "network-status-diff-version 1\n";
const SIGNATURES: &str = "directory-signature ";

/// A difference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConsensusDiff<'a> {
    /// SHA3-256 of what is signed of the earlier consensus.
    pub from: [u8; 32],
    /// SHA3-256 of all of the later one.
    pub to: [u8; 32],
    /// What makes the one of the other.
    script: &'a str,
}

impl<'a> ConsensusDiff<'a> {
    /// Whether a directory that was asked for a consensus has answered with a difference.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(HEAD)
    }

    /// Reads one. Of what makes the later consensus nothing is looked at.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &'a str) -> Result<Self, Malformed> {
        let wrong = |line, what| Malformed { line, what };
        let rest = text.strip_prefix(HEAD).filter(|_| text.len() <= TEXT);
        let rest = rest.ok_or_else(|| wrong(1, "no difference between consensuses"))?;
        let (hashes, script) = rest.split_once('\n').unwrap_or_default();
        let hashes = hashes
            .strip_prefix("hash ")
            .and_then(|it| it.split_once(' '));
        let hashes = hashes.and_then(|(from, to)| Some((hex(from)?, hex(to)?)));
        let (from, to) = hashes.ok_or_else(|| wrong(2, "no hashes of consensuses"))?;
        Ok(Self { from, to, script })
    }

    /// The later consensus, if this is the earlier one: its hash is to be looked at.
    ///
    /// # Errors
    /// What is wrong first, by the line behind the hashes.
    pub fn apply(&self, consensus: &str) -> Result<String, Malformed> {
        line_diff::apply(consensus, self.script)
    }

    /// The difference between two consensuses, with these hashes of the parts that belong in it. `None`: there is none, as neither is a document in lines.
    pub fn make(
        (from, earlier): (&[u8; 32], &str),
        (to, later): (&[u8; 32], &str),
    ) -> Option<String> {
        let hashes = format!("hash {} {}\n", to_hex(from), to_hex(to));
        let script = script(earlier, later)?;
        Some([HEAD, &hashes, &script].concat())
    }
}

impl fmt::Debug for ConsensusDiff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsensusDiff").finish_non_exhaustive()
    }
}

/// "If there are any directory signatures on the original document, the first command MUST be a `<n1>,$d` form to remove all of the directory signatures.":
/// whoever has others under the same consensus has use for it as well.
fn script(earlier: &str, later: &str) -> Option<String> {
    let mut at = 0;
    for (before, line) in earlier.split_inclusive('\n').enumerate() {
        if line.starts_with(SIGNATURES) {
            let unsigned = earlier.get(..at)?;
            let first = before.saturating_add(1);
            let rest = line_diff::make(unsigned, later)?;
            return Some(format!("{first},$d\n{rest}"));
        }
        at = at.saturating_add(line.len());
    }
    line_diff::make(earlier, later)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONSENSUS: &str = include_str!("tests/consensus-microdesc");
    const FROM: [u8; 32] = [0xAB; 32];
    const TO: [u8; 32] = [1; 32];

    fn made(earlier: &str, later: &str) -> String {
        ConsensusDiff::make((&FROM, earlier), (&TO, later)).expect("made")
    }

    /// An earlier one: another time, a relay less, another one's flags, and other signatures.
    fn earlier() -> String {
        let mut parts: Vec<_> = CONSENSUS.split("\nr ").collect();
        parts.remove(1);
        let text = parts.join("\nr ");
        let text = text.replacen("s Exit Fast", "s Fast", 1);
        text.replace("valid-after 2026", "valid-after 2025")
    }

    #[test]
    fn signatures_go_first_so_that_others_under_the_same_consensus_do_not_matter() {
        let (earlier, later) = (earlier(), CONSENSUS);
        let text = made(&earlier, later);
        assert!(ConsensusDiff::is_one(&text));
        let diff = ConsensusDiff::parse(&text).expect("read");
        assert_eq!((diff.from, diff.to), (FROM, TO));
        assert_eq!(diff.apply(&earlier).as_deref(), Ok(later));
        let signed = earlier.find("directory-signature ").expect("signed");
        let (unsigned, signatures) = earlier.split_at(signed);
        let more = format!("{earlier}{signatures}");
        assert_eq!(diff.apply(&more).as_deref(), Ok(later));
        assert_eq!(diff.apply(unsigned).as_deref(), Ok(later));
        let command = text.lines().nth(2).expect("a command");
        assert!(command.ends_with(",$d"), "{command}");
        // All but the signatures of the later one, which it has to tell, is short.
        assert!(text.len() < signatures.len() + 1500, "{}", text.len());
    }

    #[test]
    fn what_c_tor_takes_for_a_difference_has_its_hashes_in_hexadecimal_digits() {
        let text = made("a\n", "b\n");
        let hashes = format!("hash {} {}\n", "AB".repeat(32), "01".repeat(32));
        assert_eq!(
            text,
            format!("network-status-diff-version 1\n{hashes}1c\nb\n.\n")
        );
        for (from, to) in [
            ("version 1", "version 2"),
            ("hash AB", "hash A"),
            ("hash ", "hash  "),
            ("hash", "hashes"),
            ("01\n", "01 00\n"),
        ] {
            assert!(
                ConsensusDiff::parse(&text.replace(from, to)).is_err(),
                "{to}"
            );
        }
        assert!(!ConsensusDiff::is_one(CONSENSUS));
    }

    proptest! {
        #[test]
        fn what_is_read_makes_a_consensus_or_is_refused(script in "([0-9]{1,3}(,[0-9$]{1,3})?[acd]\n([a-z ]{0,9}\n){0,3}(\\.\n)?){0,5}") {
            let hashes = format!("hash {} {}\n", "ab".repeat(32), "cd".repeat(32));
            let text = [HEAD, &hashes, &script].concat();
            let diff = ConsensusDiff::parse(&text).expect("read");
            if let Ok(made) = diff.apply(CONSENSUS) {
                prop_assert!(made.len() <= CONSENSUS.len() + script.len());
            }
        }
    }
}
