//! Databases in MaxMind's format 2.0, written with as little as a reader needs: which prefix is in which country.

use std::net::IpAddr;

/// What a database says of a prefix, beside a city, which is always there.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    country: Option<String>,
    part: Option<String>,
}

impl Entry {
    /// In a country.
    #[must_use]
    pub fn country(code: &str) -> Self {
        Self {
            country: Some(code.into()),
            part: None,
        }
    }

    /// In a part of one.
    #[must_use]
    pub fn part(country: &str, part: &str) -> Self {
        Self {
            part: Some(part.into()),
            ..Self::country(country)
        }
    }

    fn encode(&self) -> Vec<u8> {
        let coded = |code: &String| map(&[("iso_code", text(code))]);
        let mut pairs = vec![("city", map(&[("names", map(&[("en", text("Nowhere"))]))]))];
        pairs.extend(self.country.as_ref().map(|code| ("country", coded(code))));
        let parts = self.part.as_ref().map(|code| array(&[coded(code)]));
        pairs.extend(parts.map(|parts| ("subdivisions", parts)));
        map(&pairs)
    }
}

/// Where a bit leads.
#[derive(Clone, Copy)]
enum Record {
    Nothing,
    Node(usize),
    /// So far behind the beginning of the data.
    Data(usize),
}

/// A database of these prefixes, each after those around it.
///
/// # Panics
/// A prefix is none.
#[must_use]
pub fn write(entries: &[(&str, Entry)]) -> Vec<u8> {
    let mut nodes = vec![[Record::Nothing; 2]];
    let mut data = Vec::new();
    for (prefix, entry) in entries {
        let (bits, length) = read(prefix);
        insert(&mut nodes, bits, length, Record::Data(data.len()));
        data.extend(entry.encode());
    }
    file(&nodes, &data)
}

/// A database that no honest program writes: 128 nodes, each of which leads to the next both ways, and so to 2^128 places.
#[must_use]
pub fn ladder() -> Vec<u8> {
    let mut nodes: Vec<_> = (1..128).map(|next| [Record::Node(next); 2]).collect();
    nodes.push([Record::Nothing; 2]);
    file(&nodes, &[])
}

/// A prefix as the tree has it: IPv4 is in `::/96`.
fn read(prefix: &str) -> (u128, usize) {
    let (address, length) = prefix.split_once('/').expect("a prefix");
    let length: usize = length.parse().expect("a length");
    match address.parse().expect("an address") {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 96 + length),
        IpAddr::V6(v6) => (v6.to_bits(), length),
    }
}

fn insert(nodes: &mut Vec<[Record; 2]>, bits: u128, length: usize, record: Record) {
    let mut node = 0;
    for depth in 0..length {
        let bit = usize::from(bits >> (127 - depth) & 1 == 1);
        let there = nodes[node][bit];
        if depth + 1 == length {
            nodes[node][bit] = record;
        } else if let Record::Node(next) = there {
            node = next;
        } else {
            nodes[node][bit] = Record::Node(nodes.len());
            node = nodes.len();
            nodes.push([there; 2]);
        }
    }
}

fn file(nodes: &[[Record; 2]], data: &[u8]) -> Vec<u8> {
    let number = |record: &Record| match record {
        Record::Nothing => nodes.len(),
        Record::Node(node) => *node,
        Record::Data(offset) => nodes.len() + 16 + offset,
    };
    let records = nodes.iter().flatten().map(number);
    let number = |number: usize| u32::try_from(number).expect("small");
    let mut file: Vec<u8> = records.flat_map(|r| number(r).to_be_bytes()).collect();
    file.extend([0; 16]);
    file.extend(data);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    let count = [&[6 << 5 | 4], &number(nodes.len()).to_be_bytes()[..]].concat();
    file.extend(map(&[
        ("binary_format_major_version", short(2)),
        ("binary_format_minor_version", short(0)),
        ("build_epoch", vec![1, 2, 1]),
        ("database_type", text("Test")),
        ("description", map(&[("en", text("of a test"))])),
        ("ip_version", short(6)),
        ("languages", array(&[])),
        ("node_count", count),
        ("record_size", short(32)),
    ]));
    file
}

/// What is short: a type and a size in one byte.
fn control(kind: u8, size: usize) -> u8 {
    assert!(size < 29, "longer ones are written otherwise");
    kind << 5 | u8::try_from(size).expect("short")
}

fn text(text: &str) -> Vec<u8> {
    [&[control(2, text.len())], text.as_bytes()].concat()
}

fn short(number: u8) -> Vec<u8> {
    vec![control(5, 1), number]
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [vec![control(0, items.len()), 4], items.concat()].concat()
}

fn map(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<_> = pairs.iter().map(|(k, v)| [text(k), v.clone()]).collect();
    [vec![control(7, pairs.len())], pairs.as_flattened().concat()].concat()
}
