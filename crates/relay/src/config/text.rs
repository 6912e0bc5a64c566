//! How values are written in the file: lists of texts that parse, secrets, times in seconds.
//! The configuration's structs use it; errors name what was expected, the TOML reader adds line and key.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use zeroize::Zeroizing;

use super::ResolverChoice;

/// A list whose elements are texts with a parser.
pub(super) fn list<'de, D, T>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    let parse = |text: String| {
        text.parse()
            .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
    };
    Vec::<String>::deserialize(input)?
        .into_iter()
        .map(parse)
        .collect()
}

/// A list of prefixes, and of addresses, which stand for themselves alone.
pub(super) fn nets<'de, D>(input: D) -> Result<Vec<IpNet>, D::Error>
where
    D: Deserializer<'de>,
{
    let parse = |text: String| {
        let single = text.parse().map(|ip: IpAddr| ip.to_canonical().into());
        let expected = || de::Error::custom(format!("{text:?}: expected an address or a prefix"));
        text.parse().or(single).map_err(|_| expected())
    };
    Vec::<String>::deserialize(input)?
        .into_iter()
        .map(parse)
        .collect()
}

/// A text with a parser.
pub(super) fn parsed<'de, D, T>(input: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    let text = String::deserialize(input)?;
    text.parse()
        .map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
}

/// A text that is wiped from memory when dropped.
pub(super) fn secret<'de, D>(input: D) -> Result<Option<Zeroizing<String>>, D::Error>
where
    D: Deserializer<'de>,
{
    String::deserialize(input).map(|text| Some(Zeroizing::new(text)))
}

/// `"system"`, one server, or a list of servers.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for ResolverChoice {
    fn from(texts: OneOrMany) -> Self {
        let texts = match texts {
            OneOrMany::One(text) if text == "system" => return Self::System,
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        };
        let servers: Result<Vec<SocketAddr>, _> = texts.iter().map(|text| server(text)).collect();
        servers.map_or_else(|()| Self::Invalid(texts.join(", ")), Self::Servers)
    }
}

/// An address, with port 53 unless it says otherwise.
fn server(text: &str) -> Result<SocketAddr, ()> {
    let bare = text.parse().map(|ip| SocketAddr::new(ip, 53));
    text.parse().or(bare).map_err(|_| ())
}

/// A number, or `"third"`, which is none.
pub(super) fn or_third<'de, D>(input: D) -> Result<Option<usize>, D::Error>
where
    D: Deserializer<'de>,
{
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

/// Times are numbers of seconds, whole or not.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de};

    pub(in crate::config) fn deserialize<'de, D>(input: D) -> Result<Duration, D::Error>
    where
        D: Deserializer<'de>,
    {
        let seconds = f64::deserialize(input)?;
        let expected = || de::Error::custom("expected seconds, from 0 to 31536000");
        match (0.0..=31_536_000.0).contains(&seconds) {
            true => Duration::try_from_secs_f64(seconds).map_err(|_| expected()),
            false => Err(expected()),
        }
    }
}
