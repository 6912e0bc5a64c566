//! Geofeeds: which addresses are in which region, as who holds the addresses publishes it. RFC 8805.
//! What is finer than a region, its city and its postal code, is read past and kept nowhere.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    net::IpAddr,
};

use ipnet::IpNet;

use crate::region::{Region, RegionError};

/// Prefixes and where they are. A prefix inside another is permitted, and counts for its addresses (RFC 8805 §2.1.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Geofeed {
    /// `None`: its holder asks not to be placed (RFC 8805 §2.1.2).
    regions: HashMap<IpNet, Option<Region>>,
    /// The lengths of prefixes that occur, of IPv4 and of IPv6.
    lengths: [BTreeSet<u8>; 2],
}

/// A line that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct LineError {
    /// The first one is 1.
    pub line: usize,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// "Feeds MUST use UTF-8 character encoding."
    #[error("expected UTF-8")]
    Encoding,
    /// Quotes that do not close, or a control character (RFC 4180 §2).
    #[error("expected fields of plain text between commas")]
    Form,
    /// Neither an address nor a prefix.
    #[error("expected an address or a prefix")]
    Prefix,
    /// Bits behind the prefix are set (RFC 4632 §3.1).
    #[error("the address has bits set behind its prefix: expected {0}")]
    HostBits(IpNet),
    /// The country or the region is no code.
    #[error("{0}")]
    Region(#[from] RegionError),
    /// A region where a country belongs, or the other way round.
    #[error("expected prefix,country,region")]
    Order,
    /// The region is in another country.
    #[error("region {region} is not in country {country}")]
    Elsewhere {
        /// The country of the line.
        country: Region,
        /// Its region.
        region: Region,
    },
    /// "Duplicate IP address or prefix entries MUST be considered an error."
    #[error("{0} is there twice")]
    Duplicate(IpNet),
}

impl Geofeed {
    /// Reads a feed whole: one line that is wrong makes all of it wrong, because who brings it can have it put right.
    ///
    /// # Errors
    /// Every line that is wrong, in their order.
    pub fn parse(feed: &[u8]) -> Result<Self, Vec<LineError>> {
        let (mut read, mut errors) = (Self::default(), Vec::new());
        let feed = feed.strip_prefix("\u{feff}".as_bytes()).unwrap_or(feed);
        for (line, bytes) in (1..).zip(feed.split(|byte| *byte == b'\n')) {
            let added = match parse_line(bytes) {
                Ok(None) => Ok(()),
                Ok(Some((prefix, region))) => read.add(prefix, region),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = added {
                errors.push(LineError { line, fault });
            }
        }
        if errors.is_empty() {
            Ok(read)
        } else {
            Err(errors)
        }
    }

    /// Says where a prefix is.
    ///
    /// # Errors
    /// [`Fault::Duplicate`] and [`Fault::HostBits`].
    pub fn add(&mut self, prefix: IpNet, region: Option<Region>) -> Result<(), Fault> {
        if prefix != prefix.trunc() {
            return Err(Fault::HostBits(prefix.trunc()));
        }
        if self.regions.contains_key(&prefix) {
            return Err(Fault::Duplicate(prefix));
        }
        let [v4, v6] = &mut self.lengths;
        let lengths = if prefix.addr().is_ipv4() { v4 } else { v6 };
        lengths.insert(prefix.prefix_len());
        self.regions.insert(prefix, region);
        Ok(())
    }

    /// Where the address is: "consumers SHOULD consider the entry with the longest matching prefix".
    #[must_use]
    pub fn region(&self, address: IpAddr) -> Option<Region> {
        let address = address.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let found = self.longest(address, longest)?;
        self.regions.get(&found).copied().flatten()
    }

    /// The longest prefix of at most so many bits that has the address.
    fn longest(&self, address: IpAddr, bits: u8) -> Option<IpNet> {
        let [v4, v6] = &self.lengths;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        let nets = lengths.range(..=bits).rev();
        let nets = nets.filter_map(|length| IpNet::new(address, *length).ok());
        nets.map(|net| net.trunc())
            .find(|net| self.regions.contains_key(net))
    }

    /// Each prefix that lies in another of a different region, and that one.
    #[must_use]
    pub fn overlaps(&self) -> Vec<(IpNet, IpNet)> {
        let around = |(prefix, region): (IpNet, Option<Region>)| {
            let shorter = prefix.prefix_len().checked_sub(1)?;
            let around = self.longest(prefix.addr(), shorter)?;
            (self.regions.get(&around) != Some(&region)).then_some((prefix, around))
        };
        self.entries().into_iter().filter_map(around).collect()
    }

    /// All of it, in the order of addresses.
    #[must_use]
    pub fn entries(&self) -> Vec<(IpNet, Option<Region>)> {
        let mut entries: Vec<_> = self
            .regions
            .iter()
            .map(|(net, region)| (*net, *region))
            .collect();
        entries.sort_unstable();
        entries
    }
}

/// The lines of a feed: "new feeds SHOULD NOT include" the postal code, and no city is known here.
impl fmt::Display for Geofeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (prefix, region) in self.entries() {
            match region {
                Some(region) if region.is_country() => writeln!(f, "{prefix},{region},,,")?,
                Some(region) => writeln!(f, "{prefix},{},{region},,", region.country())?,
                None => writeln!(f, "{prefix},,,,")?,
            }
        }
        Ok(())
    }
}

type Entry = (IpNet, Option<Region>);

/// `None` for a line with nothing but a comment: "Text from a '#' character to the end of the current line is treated as a comment only".
fn parse_line(line: &[u8]) -> Result<Option<Entry>, Fault> {
    let text = std::str::from_utf8(line).map_err(|_| Fault::Encoding)?;
    let text = text.split('#').next().unwrap_or("").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let fields = parse_fields(text)?;
    // "A parser MUST ignore any fields beyond those it expects"; fields that are missing are empty.
    let field = |index: usize| fields.get(index).map_or("", |field| field.trim());
    let prefix = parse_prefix(field(0))?;
    Ok(Some((prefix, parse_region(field(1), field(2))?)))
}

/// RFC 4180 §2: fields between commas, which may stand in quotes.
fn parse_fields(text: &str) -> Result<Vec<String>, Fault> {
    let mut fields = Vec::new();
    let (mut field, mut quoted) = (String::new(), false);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            c if c.is_control() && c != '\t' => return Err(Fault::Form),
            c => field.push(c),
        }
    }
    if quoted {
        return Err(Fault::Form);
    }
    fields.push(field);
    Ok(fields)
}

fn parse_prefix(text: &str) -> Result<IpNet, Fault> {
    let single = || text.parse().map(|ip: IpAddr| IpNet::from(ip));
    let net: IpNet = text
        .parse()
        .or_else(|_| single())
        .map_err(|_| Fault::Prefix)?;
    if net == net.trunc() {
        Ok(net)
    } else {
        Err(Fault::HostBits(net.trunc()))
    }
}

fn parse_region(country: &str, region: &str) -> Result<Option<Region>, Fault> {
    let read = |text: &str| -> Result<Option<Region>, Fault> {
        match text {
            "" => Ok(None),
            text => Ok(Some(text.parse()?)),
        }
    };
    match (read(country)?, read(region)?) {
        (Some(country), _) if !country.is_country() => Err(Fault::Order),
        (_, Some(region)) if region.is_country() => Err(Fault::Region(RegionError::Part)),
        (Some(country), Some(region)) if region.country() != country => {
            Err(Fault::Elsewhere { country, region })
        }
        (country, region) => Ok(region.or(country)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(feed: &Geofeed, address: &str) -> Option<String> {
        let found = feed.region(address.parse().expect("an address"));
        found.map(|region| region.to_string())
    }

    fn faults(feed: &str) -> Vec<(usize, Fault)> {
        let errors = Geofeed::parse(feed.as_bytes()).expect_err("is wrong");
        errors.into_iter().map(|e| (e.line, e.fault)).collect()
    }

    #[test]
    fn the_longest_prefix_says_where_an_address_is() {
        let feed = "\u{feff}# of nobody\r\n\r\n\
            192.0.2.0/24,de,,,\r\n\
            192.0.2.5,US,US-AL,Alabaster, # one\r\n\
            192.0.2.128/25,,,,\n\
            2001:db8::/32,FR,fr-idf,\"Paris, \"\"the\"\" city\",75001,more,and more\n\
            2001:db8:5::/48,PL\n";
        let feed = Geofeed::parse(feed.as_bytes()).expect("a feed");
        assert_eq!(region(&feed, "192.0.2.4").as_deref(), Some("DE"));
        assert_eq!(region(&feed, "192.0.2.5").as_deref(), Some("US-AL"));
        assert_eq!(region(&feed, "::ffff:192.0.2.5").as_deref(), Some("US-AL"));
        assert_eq!(
            region(&feed, "192.0.2.200"),
            None,
            "its holder asks for none"
        );
        assert_eq!(region(&feed, "192.0.3.1"), None);
        assert_eq!(region(&feed, "2001:db8::1").as_deref(), Some("FR-IDF"));
        assert_eq!(region(&feed, "2001:db8:5::1").as_deref(), Some("PL"));
        assert_eq!(feed.overlaps().len(), 3);
    }

    #[test]
    fn every_line_that_is_wrong_is_named() {
        let net = |text: &str| text.parse::<IpNet>().expect("a prefix");
        let feed = "192.0.2.0/24,DE,,,\n\
            192.0.2.0/33,DE,,,\n\
            ,DE,,,\n\
            192.0.2.1/24,DE,,,\n\
            198.51.100.0/24,DE,FR-IDF,,\n\
            198.51.100.0/25,QQ,,,\n\
            198.51.100.0/26,DE,Berlin,,\n\
            198.51.100.0/27,DE,DE,,\n\
            198.51.100.0/28,DE-BE,,,\n\
            198.51.100.0/29,DE,,\"Berlin,\n\
            192.0.2.0/24,FR,,,\n";
        let (de, idf) = (
            "DE".parse().expect("a country"),
            "FR-IDF".parse().expect("a region"),
        );
        let expected = [
            (2, Fault::Prefix),
            (3, Fault::Prefix),
            (4, Fault::HostBits(net("192.0.2.0/24"))),
            (
                5,
                Fault::Elsewhere {
                    country: de,
                    region: idf,
                },
            ),
            (6, Fault::Region(RegionError::Country)),
            (7, Fault::Region(RegionError::Country)),
            (8, Fault::Region(RegionError::Part)),
            (9, Fault::Order),
            (10, Fault::Form),
            (11, Fault::Duplicate(net("192.0.2.0/24"))),
        ];
        assert_eq!(faults(feed), expected);
        let errors = Geofeed::parse(b"192.0.2.0/24,DE,,,\n\xff").expect_err("no UTF-8");
        assert_eq!(errors[0].to_string(), "line 2: expected UTF-8");
    }

    #[test]
    fn a_prefix_in_another_of_the_same_region_is_no_overlap() {
        let feed = Geofeed::parse(b"192.0.2.0/24,DE,,,\n192.0.2.0/25,DE,,,\n0.0.0.0/0,US")
            .expect("a feed");
        let told: Vec<String> = feed
            .overlaps()
            .iter()
            .map(|(a, b)| format!("{a} in {b}"))
            .collect();
        assert_eq!(told, ["192.0.2.0/24 in 0.0.0.0/0"]);
    }

    fn entry() -> impl Strategy<Value = (IpNet, Option<Region>)> {
        let net = (any::<IpAddr>(), 0..=128u8).prop_map(|(ip, length)| {
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            IpNet::new(ip, length.min(longest))
                .expect("short enough")
                .trunc()
        });
        let region = proptest::option::of("(DE|FR|US)(-[A-Z0-9]{1,3})?");
        (
            net,
            region.prop_map(|text| text.map(|text| text.parse().expect("a region"))),
        )
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_again(entries in proptest::collection::vec(entry(), 0..20)) {
            let mut feed = Geofeed::default();
            for (prefix, region) in entries {
                drop(feed.add(prefix, region));
            }
            prop_assert_eq!(Geofeed::parse(feed.to_string().as_bytes()), Ok(feed));
        }

        #[test]
        fn the_longest_prefix_is_found(
            entries in proptest::collection::vec(entry(), 0..20),
            address: IpAddr,
        ) {
            let mut feed = Geofeed::default();
            for (prefix, region) in entries {
                drop(feed.add(prefix, region));
            }
            let address = address.to_canonical();
            let having = feed.entries().into_iter().filter(|(net, _)| net.contains(&address));
            let longest = having.max_by_key(|(net, _)| net.prefix_len());
            prop_assert_eq!(feed.region(address), longest.and_then(|(_, region)| region));
        }

        #[test]
        fn nothing_makes_it_panic(feed in "[0-9a-f.:/,#\"DEFR\n-]{0,200}") {
            if let Ok(feed) = Geofeed::parse(feed.as_bytes()) {
                prop_assert_eq!(Geofeed::parse(feed.to_string().as_bytes()), Ok(feed));
            }
        }
    }
}
