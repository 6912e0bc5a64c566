//! Regions: a country of ISO 3166-1 or a part of one of ISO 3166-2, as coarse as a geofeed is read here (RFC 8805 §2.1.1); and the field by
//! which a relay tells a client its region and a client shows one to its last relay: an Item of RFC 9651 §3.3 that is a Token, with the client's
//! time zone as a parameter (`Hoplite-Region: DE;zone=Europe/Berlin`).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{fmt, str::FromStr};

/// The field's name.
pub const FIELD: &str = "hoplite-region";

/// The longest name of a time zone that is read, in bytes.
pub const MAX_ZONE: usize = 64;

/// The codes that ISO 3166-1 assigns to countries.
const COUNTRIES: &str = "\
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ \
    CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO \
    FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE \
    JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO \
    MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW \
    PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM \
    TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW";

/// A country, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    country: [u8; 2],
    /// One to three letters and digits, zeros behind them; all zeros for the whole country.
    part: [u8; 3],
}

/// Why a text is no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No country has this code.
    #[error("expected a country's code of ISO 3166-1, as DE")]
    Country,
    /// Not of the form of ISO 3166-2.
    #[error("expected a region's code of ISO 3166-2, as DE-BE")]
    Part,
}

impl Region {
    /// The whole country.
    #[must_use]
    pub const fn country(self) -> Self {
        Self {
            country: self.country,
            part: [0; 3],
        }
    }

    /// Whether it is a whole country.
    #[must_use]
    pub const fn is_country(self) -> bool {
        self.part[0] == 0
    }

    fn code(&self) -> (&str, &str) {
        let part = self.part.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or("");
        (text(&self.country), text(part))
    }
}

impl FromStr for Region {
    type Err = RegionError;

    /// "Parsers SHOULD treat this field case-insensitively" (RFC 8805 §2.1.1.2 and §2.1.1.3).
    fn from_str(text: &str) -> Result<Self, RegionError> {
        let (country, part) = match text.split_once('-') {
            Some((country, part)) => (country, Some(part)),
            None => (text, None),
        };
        let country = country.to_ascii_uppercase();
        if country.len() != 2 || !COUNTRIES.split_ascii_whitespace().any(|c| c == country) {
            return Err(RegionError::Country);
        }
        let country = country
            .as_bytes()
            .try_into()
            .map_err(|_| RegionError::Country)?;
        let mut region = Self {
            country,
            part: [0; 3],
        };
        if let Some(part) = part {
            let fine = part.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !(1..=3).contains(&part.len()) || !fine {
                return Err(RegionError::Part);
            }
            let bytes = part.bytes().map(|byte| byte.to_ascii_uppercase());
            region
                .part
                .iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = from);
        }
        Ok(region)
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code() {
            (country, "") => f.write_str(country),
            (country, part) => write!(f, "{country}-{part}"),
        }
    }
}

/// A region may be a client's: it does not reach a log.
impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Region(hidden)")
    }
}

/// A name of the time zone database, as `Europe/Berlin`: its form is checked, not that there is one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Zone(String);

/// Why a text is no time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of a time zone, as Europe/Berlin")]
pub struct ZoneError;

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        // RFC 9651 §3.3.4: a Token begins with a letter.
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        if begins && text.len() <= MAX_ZONE && text.bytes().all(fine) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ZoneError)
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Zone(hidden)")
    }
}

/// What the field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Where the client is, or says it is.
    pub region: Region,
    /// Its time zone.
    pub zone: Option<Zone>,
}

impl Shown {
    /// Reads the field; `None` if it is none of ours, which counts as no field. Other parameters are passed over.
    #[must_use]
    pub fn read(field: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(field).ok()?;
        let mut pieces = text.split(';').map(|piece| piece.trim_matches(' '));
        let region = pieces.next()?.parse().ok()?;
        let zone = pieces
            .filter_map(|piece| piece.strip_prefix("zone="))
            .next_back();
        let zone = zone.map(str::parse).transpose().ok()?;
        Some(Self { region, zone })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.region)?;
        match &self.zone {
            Some(zone) => write!(f, ";zone={zone}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_code_is_read_in_either_case_and_told_in_capitals() {
        for (text, told) in [
            ("de", "DE"),
            ("De-bE", "DE-BE"),
            ("US-CA", "US-CA"),
            ("fr-75c", "FR-75C"),
        ] {
            assert_eq!(text.parse::<Region>().expect(text).to_string(), told);
        }
        let berlin: Region = "DE-BE".parse().expect("a region");
        assert!(!berlin.is_country() && berlin.country().is_country());
        assert_eq!(berlin.country().to_string(), "DE");
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for text in ["", "D", "DEU", "QQ", "UK", "ÄÖ", "D ", "A B", "-BE"] {
            assert_eq!(
                text.parse::<Region>(),
                Err(RegionError::Country),
                "{text:?}"
            );
        }
        for text in ["DE-", "DE-BERL", "DE-B E", "DE-Ä", "DE-BE-1"] {
            assert_eq!(text.parse::<Region>(), Err(RegionError::Part), "{text:?}");
        }
    }

    #[test]
    fn every_country_is_one_once() {
        let mut all: Vec<&str> = COUNTRIES.split_ascii_whitespace().collect();
        assert_eq!(all.len(), 249);
        assert!(all.is_sorted());
        all.dedup();
        assert_eq!(all.len(), 249);
    }

    #[test]
    fn a_field_that_is_none_of_ours_counts_as_none() {
        for field in [
            &b""[..],
            b"\"DE\"",
            b"QQ",
            b"DE;zone=",
            b"DE;zone=a b",
            b"DE, FR",
            b"\xff",
        ] {
            assert_eq!(Shown::read(field), None, "{field:?}");
        }
        let more = Shown::read(b"DE-BE; later=1").expect("a region");
        assert_eq!(more.to_string(), "DE-BE");
    }

    #[test]
    fn where_a_client_is_reaches_no_log() {
        let shown = Shown::read(b"DE-BE;zone=Europe/Berlin").expect("a region");
        let told = format!("{shown:?}");
        assert!(!told.contains("DE") && !told.contains("Berlin"), "{told}");
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_again(
            text in "(DE|fr|US)(-[A-Za-z0-9]{1,3})?(;zone=[A-Z][A-Za-z/_+-]{0,20})?",
        ) {
            let shown = Shown::read(text.as_bytes()).expect("a field");
            prop_assert_eq!(Shown::read(shown.to_string().as_bytes()), Some(shown));
        }

        #[test]
        fn nothing_makes_it_panic(field in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(shown) = Shown::read(&field) {
                prop_assert_eq!(Shown::read(shown.to_string().as_bytes()), Some(shown));
            }
        }
    }
}
