//! What a client shows a relay to be admitted. Compared in constant time, wiped from memory, never printed.

use std::fmt;

use ring::digest::{SHA256, digest};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use zeroize::Zeroizing;

/// A secret text.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

/// The tokens that a relay accepts.
#[derive(Default)]
pub struct Tokens(Vec<Zeroizing<[u8; 32]>>);

impl Token {
    /// Takes the text over.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, to be sent to a relay and nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Tokens {
    /// A set of tokens; only their digests are kept.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> Self {
        Self(
            tokens
                .into_iter()
                .map(|token| hash(token.0.as_bytes()))
                .collect(),
        )
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which token `shown` is. All are compared, and whole, so that time tells nothing of where they differ.
    pub fn find(&self, shown: &[u8]) -> Option<usize> {
        let shown = hash(shown);
        let (mut found, mut which) = (Choice::from(0), 0u64);
        for (index, token) in (0u64..).zip(&self.0) {
            let same = token.as_slice().ct_eq(shown.as_slice());
            which.conditional_assign(&index, same);
            found |= same;
        }
        bool::from(found).then_some(usize::try_from(which).ok()?)
    }
}

fn hash(text: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut out = Zeroizing::new([0; 32]);
    out.copy_from_slice(digest(&SHA256, text).as_ref());
    out
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        hash(self.0.as_bytes())
            .as_slice()
            .ct_eq(hash(other.0.as_bytes()).as_slice())
            .into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_found_and_no_other() {
        let tokens = ["alpha", "beta"].map(|t| Token::new(t.into()));
        let set = Tokens::new(&tokens);
        assert_eq!(set.find(b"alpha"), Some(0));
        assert_eq!(set.find(b"beta"), Some(1));
        assert_eq!((set.find(b"bet"), set.find(b"")), (None, None));
    }

    #[test]
    fn nothing_is_printed() {
        assert!(!format!("{:?}", Token::new("alpha".into())).contains("alpha"));
    }
}
