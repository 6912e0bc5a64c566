//! How values are written in the client's file: texts that parse, secrets, times in seconds.
//! The structs of `config::client` use it; the messages say what was expected.

use std::{fmt, str::FromStr, time::Duration};

use hoplite_crypto::Token;
use serde::{Deserialize, Deserializer, de};
use zeroize::Zeroizing;

/// A token, which no message repeats.
pub(crate) fn token<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Token>, D::Error> {
    let text = String::deserialize(input)?;
    let missing = || de::Error::custom("expected a token, found an empty text");
    trimmed(text).map(Some).ok_or_else(missing)
}

/// A token without the white space around it; nothing if nothing is left. The text is wiped.
pub(crate) fn trimmed(text: String) -> Option<Token> {
    let text = Zeroizing::new(text);
    let token = text.trim();
    (!token.is_empty()).then(|| Token::new(token.to_owned()))
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
