//! What clients write of a relay to build circuits through it: who it is and its onion key, as one text that `hoplite keygen` prints.
//! Client files have it as `[[relay]] onion`. The format is ours alone.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// The bytes of both halves.
const BYTES: usize = 64;
/// Characters of their base64url.
const CHARACTERS: usize = 86;

/// A relay's identity and its onion key. Both are public; `Debug` hides them (it ends in logs).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OnionKey {
    /// Its Ed25519 identity: it stays.
    pub identity: [u8; 32],
    /// Its ntor onion key (X25519): a relay that is told to a directory changes it from time to time.
    pub ntor: [u8; 32],
}

/// The text is no such key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relay's `onion` is 86 characters of base64url, as `hoplite keygen` prints them")]
pub struct OnionKeyError;

impl FromStr for OnionKey {
    type Err = OnionKeyError;

    fn from_str(text: &str) -> Result<Self, OnionKeyError> {
        let mut bytes = [0; BYTES];
        let read = (text.len() == CHARACTERS)
            .then(|| URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok())
            .flatten();
        let halves = bytes.split_first_chunk::<32>();
        match (read, halves) {
            (Some(BYTES), Some((identity, ntor))) => Ok(Self {
                identity: *identity,
                ntor: ntor.try_into().map_err(|_| OnionKeyError)?,
            }),
            _ => Err(OnionKeyError),
        }
    }
}

impl fmt::Display for OnionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.identity, self.ntor].concat();
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for OnionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(identity: [u8; 32], ntor: [u8; 32]) {
            let key = OnionKey { identity, ntor };
            prop_assert_eq!(key.to_string().len(), CHARACTERS);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn what_is_read_is_written_so_and_no_other_way(text in "[A-Za-z0-9_=-]{84,88}|.{0,100}") {
            if let Ok(key) = text.parse::<OnionKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }

    #[test]
    fn debug_tells_nothing() {
        let key = OnionKey {
            identity: [1; 32],
            ntor: [2; 32],
        };
        assert_eq!(format!("{key:?}"), "OnionKey(hidden)");
    }
}
