//! How values are written in the client's file: texts that parse, secrets, times in seconds.
//! The structs of `config::client` use it; the messages say what was expected.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A text that is not shown and not compared in passing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(zeroize::Zeroizing<String>);

impl Secret {
    /// A secret without the white space around it.
    pub(crate) fn new(text: &str) -> Self {
        Self(zeroize::Zeroizing::new(text.trim().to_owned()))
    }

    /// The text itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = zeroize::Zeroizing::new(String::deserialize(input)?);
        match text.trim().is_empty() {
            true => Err(de::Error::custom("expected a token, found an empty text")),
            false => Ok(Self::new(&text)),
        }
    }
}

/// A text with a parser.
pub(crate) fn parsed<'de, D, T>(input: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    let text = String::deserialize(input)?;
    text.parse()
        .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
}

/// The same, where the key may be absent.
pub(crate) fn parsed_option<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    parsed(input).map(Some)
}

/// A number of seconds, whole or not.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(input)?;
    let expected = || de::Error::custom("expected seconds, from 0 to 31536000");
    match (0.0..=31_536_000.0).contains(&seconds) {
        true => Duration::try_from_secs_f64(seconds).map_err(|_| expected()),
        false => Err(expected()),
    }
}
