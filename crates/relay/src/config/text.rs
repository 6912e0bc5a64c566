//! Values of the relay's file alone: prefixes, secrets, resolvers. What all files have is in `hoplite_config`; errors name what was expected, the TOML reader adds line and key.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use zeroize::Zeroizing;

use super::ResolverChoice;

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
