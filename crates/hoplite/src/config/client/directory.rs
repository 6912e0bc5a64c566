//! `[directory]` in the client's file: which authorities list the relays, and which of these may stand on one path.

use std::{path::PathBuf, time::Duration};

use hoplite_directory::{Source, Trust, select::Apart};
use serde::{Deserialize, Deserializer, de};

use crate::config::{directory, text};

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Directory {
    /// The known authorities.
    pub(crate) authorities: Vec<directory::Authority>,
    /// How many of them must have signed the list.
    pub(crate) threshold: usize,
    /// How many of them may be hostile: if it is not said, fewer than a third.
    pub(crate) hostile: directory::Hostile,
    /// The file in which list and guards are kept.
    pub(crate) cache: PathBuf,
    /// How far this machine's clock may be off, in seconds.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) skew: Duration,
    /// How long authorities may take to answer, in seconds.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) wait: Duration,
    /// What differs between any two relays of a path.
    #[serde(deserialize_with = "apart")]
    pub(crate) apart: Apart,
    /// The last relay's region, if it matters.
    pub(crate) region: Option<String>,
    /// Whether the first relay is one of a few that are kept.
    pub(crate) guards: bool,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            authorities: Vec::new(),
            threshold: 0,
            hostile: directory::Hostile::Third,
            cache: "directory.sqlite".into(),
            skew: Duration::from_secs(60),
            wait: Duration::from_secs(20),
            apart: Apart::default(),
            region: None,
            guards: true,
        }
    }
}

impl Directory {
    /// Whom to believe.
    pub(crate) fn trust(&self) -> Trust {
        directory::trust(&self.authorities, self.threshold, self.hostile, self.skew)
    }

    /// Whom to ask.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let sources = self.authorities.iter();
        sources.map(|authority| authority.0.clone()).collect()
    }
}

/// A list of what differs.
fn apart<'de, D: Deserializer<'de>>(input: D) -> Result<Apart, D::Error> {
    let mut apart = Apart::hardly();
    for word in Vec::<String>::deserialize(input)? {
        let which = match word.as_str() {
            "family" => &mut apart.family,
            "operator" => &mut apart.operator,
            "network" => &mut apart.network,
            "region" => &mut apart.region,
            _ => {
                let expected = "expected \"family\", \"operator\", \"network\" and \"region\", or some of them";
                return Err(de::Error::custom(expected));
            }
        };
        *which = true;
    }
    Ok(apart)
}
