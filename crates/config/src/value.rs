//! Values as files have them: texts with a parser, lists of them, times in seconds. For serde's `deserialize_with`; errors name what was expected,
//! whoever reads the file adds line and key.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A text with a parser.
///
/// # Errors
/// What the parser says, after the text.
pub fn parsed<'de, D, T>(input: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    parse(&String::deserialize(input)?)
}

/// A text with a parser whose key may be absent: `Some` where it is there.
///
/// # Errors
/// As [`parsed`].
pub fn parsed_option<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    parsed(input).map(Some)
}

/// A list whose elements are texts with a parser.
///
/// # Errors
/// What the parser says of the first that does not fit.
pub fn list<'de, D, T>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    let texts = Vec::<String>::deserialize(input)?;
    texts.iter().map(|text| parse(text)).collect()
}

/// A number, or `"third"`, which is none: how many of some, or fewer than a third of them.
///
/// # Errors
/// It is neither.
pub fn or_third<'de, D: Deserializer<'de>>(input: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or \"third\"")]
    enum Share {
        Number(usize),
        Word(String),
    }
    match Share::deserialize(input)? {
        Share::Number(number) => Ok(Some(number)),
        Share::Word(word) if word == "third" => Ok(None),
        Share::Word(_) => Err(de::Error::custom("expected a number, or \"third\"")),
    }
}

/// A number of seconds, whole or not.
///
/// # Errors
/// It is none from 0 to a year of them.
pub fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(input)?;
    let expected = || de::Error::custom("expected seconds, from 0 to 31536000");
    if (0.0..=31_536_000.0).contains(&seconds) {
        Duration::try_from_secs_f64(seconds).map_err(|_| expected())
    } else {
        Err(expected())
    }
}

fn parse<T, E>(text: &str) -> Result<T, E>
where
    T: FromStr,
    T::Err: fmt::Display,
    E: de::Error,
{
    text.parse()
        .map_err(|error| E::custom(format!("{text:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Values {
        #[serde(deserialize_with = "seconds")]
        time: Duration,
        #[serde(deserialize_with = "list")]
        all: Vec<std::net::IpAddr>,
    }

    fn read(text: &str) -> Result<Values, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn times_are_seconds_whole_or_not_and_a_year_at_most() {
        let times = |text: &str| read(&format!("time = {text}\nall = []")).map(|read| read.time);
        assert_eq!(times("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(times("31536000"), Ok(Duration::from_secs(31_536_000)));
        for wrong in ["-1", "31536001", "nan", "inf"] {
            let error = times(wrong).expect_err(wrong);
            assert!(error.contains("expected seconds"), "{error}");
        }
    }

    #[test]
    fn an_element_that_does_not_parse_is_named() {
        let addresses = |text: &str| read(&format!("time = 0\nall = {text}")).map(|read| read.all);
        assert_eq!(
            addresses("[\"::1\", \"127.0.0.1\"]").map(|all| all.len()),
            Ok(2)
        );
        let error = addresses("[\"::1\", \"x\"]").expect_err("no address");
        assert!(error.contains("\"x\": invalid IP address"), "{error}");
    }
}
