//! `acks` in `[tunnel]`: one policy for both directions, or a table with one for each.
//! `config::client` reads it; what the policies are stands in `hoplite_wire::tuning`.

use std::fmt;

use hoplite_wire::tuning::{self, Wishes};
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use crate::config::text;

/// When each end of a hop acknowledges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// What the client sends.
    pub(crate) up: tuning::Acks,
    /// What the relay sends.
    pub(crate) down: tuning::Acks,
}

/// The table.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    #[serde(deserialize_with = "text::parsed")]
    up: tuning::Acks,
    #[serde(deserialize_with = "text::parsed")]
    down: tuning::Acks,
}

struct Either;

impl<'de> de::Visitor<'de> for Either {
    type Value = Acks;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy, or a table with `up` and `down`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Acks, E> {
        let (up, down) =
            Wishes::both(text).map_err(|error| E::custom(format!("{text:?}: {error}")))?;
        Ok(Acks { up, down })
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Acks, A::Error> {
        let Table { up, down } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Acks { up, down })
    }
}

impl<'de> Deserialize<'de> for Acks {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Either)
    }
}
