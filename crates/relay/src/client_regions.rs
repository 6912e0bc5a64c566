//! Where clients are, by a file that the operator brings: a geofeed (RFC 8805), or a database in MaxMind's format 2.0, of which the country and
//! its first part are read and nothing finer. No service is asked, and the file is read whole before anything of it is believed.

use std::{collections::HashSet, fmt, net::IpAddr, path::Path};

use hoplite_wire::{
    geofeed::{Geofeed, LineError},
    region::Region,
};
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use serde::Deserialize;

use crate::config::{ConfigError, Ingress};

/// Which addresses are in which region.
#[derive(Debug)]
pub enum ClientRegions {
    /// Lines of prefixes.
    Geofeed(Geofeed),
    /// A tree of prefixes.
    Mmdb(Mmdb),
}

/// A database in MaxMind's format, in memory.
pub struct Mmdb(Reader<Vec<u8>>);

/// Why a database is of no use.
#[derive(Debug, thiserror::Error)]
enum MmdbError {
    #[error("expected a database in MaxMind's format (MMDB): {0}")]
    Damaged(#[from] MaxMindDbError),
    #[error("its search tree leads round in circles")]
    Tree,
    #[error(
        "no entry of it has a country (country.iso_code): expected a database of countries or cities, found {0:?}"
    )]
    NoCountry(String),
}

/// What is read of an entry; its city, its coordinates and what else it has are skipped.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(default, borrow)]
    country: Option<Coded<'a>>,
    #[serde(default, borrow)]
    subdivisions: Vec<Coded<'a>>,
}

#[derive(Deserialize)]
struct Coded<'a> {
    #[serde(default)]
    iso_code: Option<&'a str>,
}

impl Entry<'_> {
    /// A code that ISO 3166 does not have counts as none: databases have such for places without one.
    fn region(&self) -> Option<Region> {
        let code = |coded: &Coded<'_>| coded.iso_code.map(str::to_owned);
        let country = self.country.as_ref().and_then(code)?;
        let part = self.subdivisions.first().and_then(code);
        let part = part.and_then(|part| format!("{country}-{part}").parse().ok());
        let country = || {
            country
                .parse()
                .ok()
                .filter(|region: &Region| region.is_country())
        };
        part.or_else(country)
    }
}

impl Mmdb {
    /// Reads the database whole: each entry that an address leads to must be one.
    fn parse(bytes: Vec<u8>) -> Result<Self, MmdbError> {
        let reader = Reader::from_source(bytes)?;
        // A tree has one leaf more than it has nodes, and IPv4 is in it up to four times; nodes that more than one leads to, in a file that is
        // damaged or forged, would make 2^128 of them.
        let most = (u64::from(reader.metadata().node_count) + 1) * 4;
        let (mut seen, mut has_country) = (HashSet::new(), false);
        let options = WithinOptions::default()
            .include_networks_without_data()
            .include_aliased_networks();
        for (met, leaf) in (0_u64..).zip(reader.networks(options)?) {
            if met >= most {
                return Err(MmdbError::Tree);
            }
            let leaf = leaf?;
            if leaf.offset().is_some_and(|offset| seen.insert(offset)) {
                let entry = leaf.decode::<Entry<'_>>()?;
                has_country |= entry.is_some_and(|entry| entry.region().is_some());
            }
        }
        if has_country {
            Ok(Self(reader))
        } else {
            Err(MmdbError::NoCountry(
                reader.metadata().database_type.clone(),
            ))
        }
    }

    fn region(&self, address: IpAddr) -> Option<Region> {
        let found = self.0.lookup(address.to_canonical()).ok()?;
        found.decode::<Entry<'_>>().ok()??.region()
    }
}

impl ClientRegions {
    /// Where the address is, if the file says so.
    #[must_use]
    pub fn region(&self, address: IpAddr) -> Option<Region> {
        match self {
            Self::Geofeed(feed) => feed.region(address),
            Self::Mmdb(database) => database.region(address),
        }
    }
}

impl Ingress {
    /// The geofeed or the database, read; `None` if the configuration names neither.
    ///
    /// # Errors
    /// There is no such file, a line of the geofeed is wrong, or the database is damaged or has no countries.
    pub fn read_client_regions(&self) -> Result<Option<ClientRegions>, ConfigError> {
        match (&self.geofeed, &self.mmdb) {
            (Some(path), _) => read("ingress.geofeed", path, |feed| {
                let feed = Geofeed::parse(&feed).map_err(|errors| first(&errors))?;
                Ok(Some(ClientRegions::Geofeed(feed)))
            }),
            (None, Some(path)) => read("ingress.mmdb", path, |bytes| {
                let database = Mmdb::parse(bytes).map_err(|error| error.to_string())?;
                Ok(Some(ClientRegions::Mmdb(database)))
            }),
            (None, None) => Ok(None),
        }
    }
}

fn read<T>(
    key: &'static str,
    path: &Path,
    parse: impl FnOnce(Vec<u8>) -> Result<T, String>,
) -> Result<T, ConfigError> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string());
    bytes.and_then(parse).map_err(|problem| ConfigError {
        key,
        problem: format!("cannot read {}: {problem}", path.display()),
        file: Some(path.to_owned()),
    })
}

fn first(errors: &[LineError]) -> String {
    let first = errors.first().map(ToString::to_string);
    let first = first.unwrap_or_default();
    match errors.len() {
        0 | 1 => first,
        many => format!("{first}, and {} more", many - 1),
    }
}

/// Its provider's prefixes do not reach a log.
impl fmt::Debug for Mmdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mmdb(…)")
    }
}

#[cfg(test)]
mod tests {
    use hoplite_testing::mmdb;
    use proptest::prelude::*;

    use super::*;

    fn database() -> Vec<u8> {
        mmdb::write(&[
            ("192.0.2.0/24", mmdb::Entry::part("DE", "BE")),
            ("192.0.2.128/25", mmdb::Entry::country("FR")),
            ("198.51.100.0/24", mmdb::Entry::part("DE", "Berlin")),
            ("203.0.113.0/24", mmdb::Entry::country("XK")),
            ("2001:db8::/32", mmdb::Entry::part("US", "CA")),
        ])
    }

    fn region(database: &Mmdb, address: &str) -> Option<String> {
        let found = database.region(address.parse().expect("an address"));
        found.map(|region| region.to_string())
    }

    #[test]
    fn a_database_says_the_country_and_its_part_and_nothing_finer() {
        let database = Mmdb::parse(database()).expect("a database");
        for (address, expected) in [
            ("192.0.2.5", Some("DE-BE")),
            ("::ffff:192.0.2.5", Some("DE-BE")),
            ("192.0.2.200", Some("FR")),
            // What is no code of ISO 3166-2 is not told, and its country is; what is no country is nothing.
            ("198.51.100.1", Some("DE")),
            ("203.0.113.1", None),
            ("9.9.9.9", None),
            ("2001:db8:1::1", Some("US-CA")),
            ("2001:db9::1", None),
        ] {
            assert_eq!(region(&database, address).as_deref(), expected, "{address}");
        }
    }

    #[test]
    fn a_database_of_something_else_is_told() {
        let other = mmdb::write(&[("192.0.2.0/24", mmdb::Entry::default())]);
        let told = Mmdb::parse(other).expect_err("is told").to_string();
        assert!(told.contains("no entry of it has a country"), "{told}");
        let told = Mmdb::parse(b"192.0.2.0/24,DE,,,".to_vec());
        let told = told.expect_err("is told").to_string();
        assert!(told.contains("MaxMind's format"), "{told}");
    }

    #[test]
    fn a_tree_that_leads_round_is_told_and_not_walked() {
        let mut bytes = database();
        // The first node leads to itself, both ways.
        bytes[..8].fill(0);
        let told = Mmdb::parse(bytes).expect_err("is told").to_string();
        assert!(told.contains("cycle") || told.contains("circles"), "{told}");
        // Each of 128 nodes leads to the next, both ways.
        let told = Mmdb::parse(mmdb::ladder()).expect_err("is told");
        assert!(matches!(told, MmdbError::Tree), "{told}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_damaged_database_is_told_or_read_and_never_panics(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in proptest::option::of(any::<prop::sample::Index>()),
            addresses in proptest::collection::vec(any::<IpAddr>(), 4),
        ) {
            let mut bytes = database();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(read) = Mmdb::parse(bytes) {
                for address in addresses {
                    _ = read.region(address);
                }
                drop(region(&read, "192.0.2.5"));
            }
        }
    }
}
