//! A bandwidth file: what a scanner has measured of relays, as Tor's authorities read it (`V3BandwidthsFile`) before they vote.
//! bandwidth-file-spec, "Format details", up to format version 1.7. What is not known is kept as it is; lines that are none of the format are skipped, as the
//! specification asks. The text, its lines, its relays and what one line says are bounded.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::{self, Write},
};

use super::{
    Items, OBJECT, ROUTERS, base64, date, encode, hex, number, seconds,
    server_descriptor::{Bandwidth, bandwidth},
    to_hex,
};
use crate::directory::Malformed;

/// Bytes of one file: that of the public network has some 6 million.
pub const FILE: usize = 32 << 20;
/// Bytes of one line; longer ones are skipped.
pub const LINE: usize = 8192;
/// What the header, or one relay's line, says beside its own fields.
pub const KEY_VALUES: usize = 128;

/// Behind the header.
const TERMINATOR: &str = "=====";
/// As sbws wrote it before 1.0.3.
const SHORT_TERMINATOR: &str = "====";
const VERSION: &str = "version";

const RSA: &str = "node_id";
const ED25519: &str = "master_key_ed25519";
const BANDWIDTH: &str = "bw";
const VOTE: &str = "vote";
/// What a relay's line has fields for.
const FIELDS: [&str; 4] = [RSA, ED25519, BANDWIDTH, VOTE];

/// A bandwidth file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthFile {
    /// When the newest result was there, in seconds since 1970. Authorities believe no file that is older than three days.
    pub timestamp: u64,
    /// What the header says: `version`, `software` and so on.
    pub header: KeyValues,
    /// Its relays, none of them twice.
    pub relays: Vec<RelayLine>,
}

/// What was measured of one relay.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayLine {
    /// Who it is.
    pub relay: RelayName,
    /// What it can carry beside the others, in thousands of bytes a second, from 1.
    pub bandwidth: u64,
    /// Whether authorities are to vote for that; else it is there for its operator to see what is missing.
    pub votes: bool,
    /// What else is said of it: `nick`, `success`, `bw_median` and so on.
    pub more: KeyValues,
}

/// How a line names its relay. C tor's authorities look at the RSA identity alone, ours at the Ed25519 identity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RelayName {
    /// SHA-1 of its RSA identity (`node_id`).
    Rsa([u8; 20]),
    /// Its Ed25519 identity (`master_key_ed25519`): a relay of ours that Tor's authorities do not know.
    Ed25519([u8; 32]),
    /// Both.
    Both([u8; 20], [u8; 32]),
}

/// Keys and their values, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValues(BTreeMap<String, String>);

/// A point in time as a bandwidth file has it (`DateTime`), from seconds since 1970 and until the year 2200.
pub fn date_time(seconds: u64) -> String {
    date(seconds).replace(' ', "T")
}

impl KeyValues {
    /// Sets a key to a value. Says whether it could: keys are letters, digits, `-` and `_`, values visible ASCII without a space, and there are at most
    /// [`KEY_VALUES`] of them.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) -> bool {
        let value = value.to_string();
        let is_known = self.0.contains_key(key);
        let fits = is_key(key) && is_value(&value) && (is_known || self.0.len() < KEY_VALUES);
        if fits {
            self.0.insert(key.to_owned(), value);
        }
        fits
    }

    /// What a key says.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Takes `key=value`; the first of two with one key counts.
    fn take(&mut self, word: &str) -> bool {
        let pair = word.split_once('=');
        pair.is_some_and(|(key, value)| !self.0.contains_key(key) && self.set(key, value))
    }
}

fn is_key(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.bytes().all(fine)
}

fn is_value(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl RelayName {
    /// SHA-1 of its RSA identity.
    pub fn rsa_id(&self) -> Option<&[u8; 20]> {
        match self {
            Self::Rsa(rsa_id) | Self::Both(rsa_id, _) => Some(rsa_id),
            Self::Ed25519(_) => None,
        }
    }

    /// Its Ed25519 identity.
    pub fn ed25519(&self) -> Option<&[u8; 32]> {
        match self {
            Self::Ed25519(ed25519) | Self::Both(_, ed25519) => Some(ed25519),
            Self::Rsa(_) => None,
        }
    }

    fn of(rsa_id: Option<[u8; 20]>, ed25519: Option<[u8; 32]>) -> Option<Self> {
        match (rsa_id, ed25519) {
            (Some(rsa_id), Some(ed25519)) => Some(Self::Both(rsa_id, ed25519)),
            (Some(rsa_id), None) => Some(Self::Rsa(rsa_id)),
            (None, Some(ed25519)) => Some(Self::Ed25519(ed25519)),
            (None, None) => None,
        }
    }
}

impl RelayLine {
    /// "Each RelayLine includes" a relay and its bandwidth. A zero is taken for one: "implementations SHOULD NOT produce zero bandwidths".
    fn parse(line: &str) -> Option<Self> {
        let mut all = KeyValues::default();
        for word in line.split(' ').filter(|word| word.contains('=')) {
            all.take(word);
        }
        let rsa_id = all.get(RSA).and_then(|id| hex(id.strip_prefix('$')?));
        let ed25519 = all.get(ED25519).and_then(base64);
        let bandwidth: u64 = all.get(BANDWIDTH).and_then(number)?;
        let votes = all.get(VOTE) != Some("0");
        all.0.retain(|key, _| !FIELDS.contains(&key.as_str()));
        Some(Self {
            relay: RelayName::of(rsa_id, ed25519)?,
            bandwidth: bandwidth.max(1),
            votes,
            more: all,
        })
    }
}

impl BandwidthFile {
    /// Reads one. Nobody has signed it: it is believed by where it is.
    ///
    /// # Errors
    /// It is too long, has too many relays, or does not begin with a time.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let wrong = |line, what| Malformed { line, what };
        if text.len() > FILE {
            return Err(wrong(1, "too long"));
        }
        let mut lines = (1..).zip(text.lines());
        let first = lines.next().and_then(|(_, line)| number(line));
        let mut file = Self {
            timestamp: first.ok_or_else(|| wrong(1, "no time"))?,
            header: KeyValues::default(),
            relays: Vec::new(),
        };
        let (mut in_header, mut seen) = (true, Names::default());
        for (place, line) in lines {
            if line.len() > LINE {
                continue;
            }
            if line == TERMINATOR || line == SHORT_TERMINATOR {
                in_header = false;
            } else if let Some(relay) = RelayLine::parse(line) {
                // "In version 1.0.0, Header List ends when the first relay bandwidth is found."
                in_header = false;
                if file.relays.len() >= ROUTERS {
                    return Err(wrong(place, "too many relays"));
                }
                if seen.is_new(&relay.relay) {
                    file.relays.push(relay);
                }
            } else if in_header {
                file.header.take(line);
            }
        }
        Ok(file)
    }

    /// The format's version that it says it has, or the one without versions.
    pub fn version(&self) -> &str {
        self.header.get(VERSION).unwrap_or("1.0.0")
    }
}

// What relays say of themselves, for who compares.

/// Bytes of all descriptors that a directory has: the public network's are some 30 million.
pub const ALL: usize = 64 << 20;

/// What one relay says it can carry, and by what it has signed that. Nothing of it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaidBandwidth<'a> {
    /// Its RSA identity, as it says itself.
    pub rsa_id: [u8; 20],
    /// When it said so, in seconds since 1970.
    pub published: u64,
    /// What it says.
    pub bandwidth: Bandwidth,
    /// The key of that identity (DER, PKCS #1).
    pub key: Vec<u8>,
    /// What the signature is over: the SHA-1 of this.
    pub signed: &'a str,
    /// By that key.
    pub signature: Vec<u8>,
}

/// Where each of them begins.
const ROUTER: &str = "router ";
/// Bytes of one, with notes behind it: authorities take no more than 20,000.
const PIECE: usize = 64 << 10;

/// What each of many relays says it can carry, as a directory gives it (`/tor/server/all`). What is no descriptor, or lacks something of that, is skipped:
/// a relay that writes what we do not read hides no other.
///
/// # Errors
/// The text is too long.
pub fn bandwidths(text: &str) -> Result<Vec<SaidBandwidth<'_>>, Malformed> {
    // Whether it is.
    Items::within(text, ALL, OBJECT)?;
    let lines = text.match_indices(ROUTER).map(|(at, _)| at);
    let is_first = |at: &usize| {
        text.get(..*at)
            .is_some_and(|it| it.is_empty() || it.ends_with('\n'))
    };
    let mut all = Vec::new();
    let mut starts = lines.filter(is_first).peekable();
    while let Some(start) = starts.next() {
        let end = starts.peek().copied().unwrap_or(text.len());
        let said = text.get(start..end).and_then(one);
        all.extend(said.filter(|_| all.len() < ROUTERS));
    }
    Ok(all)
}

/// The one whose descriptor begins here; behind it may be notes of whoever kept it.
fn one(text: &str) -> Option<SaidBandwidth<'_>> {
    let mut items = Items::within(text, PIECE, PIECE).ok()?;
    let (mut rsa_id, mut published, mut bandwidth_said, mut key) = (None, None, None, None);
    loop {
        let item = items.next().ok()??;
        match item.keyword {
            "bandwidth" => bandwidth_said = bandwidth(item.arguments),
            "published" => published = seconds(item.arguments),
            "fingerprint" => rsa_id = hex(&item.arguments.replace(' ', "")),
            "signing-key" => key = item.object.map(|(_, key)| key),
            "router-signature" => {
                let signed = items.until(0, item.body).ok()?;
                let (_, signature) = item.object?;
                return Some(SaidBandwidth {
                    rsa_id: rsa_id?,
                    published: published?,
                    bandwidth: bandwidth_said?,
                    key: key?,
                    signed,
                    signature,
                });
            }
            _ => {}
        }
    }
}

/// Relays that have a line already.
#[derive(Default)]
struct Names {
    rsa_ids: HashSet<[u8; 20]>,
    ed25519: HashSet<[u8; 32]>,
}

impl Names {
    /// "There MUST NOT be multiple RelayLines per relay identity (node_id or master_key_ed25519)": the first one counts.
    fn is_new(&mut self, name: &RelayName) -> bool {
        let is_known = name.rsa_id().is_some_and(|id| self.rsa_ids.contains(id))
            || name.ed25519().is_some_and(|key| self.ed25519.contains(key));
        if !is_known {
            self.rsa_ids.extend(name.rsa_id());
            self.ed25519.extend(name.ed25519());
        }
        !is_known
    }
}

impl fmt::Display for BandwidthFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.timestamp)?;
        // "In second position."
        if let Some(version) = self.header.get(VERSION) {
            writeln!(f, "{VERSION}={version}")?;
        }
        for (key, value) in self.header.iter().filter(|(key, _)| *key != VERSION) {
            writeln!(f, "{key}={value}")?;
        }
        writeln!(f, "{TERMINATOR}")?;
        self.relays.iter().try_for_each(|relay| relay.fmt(f))
    }
}

impl fmt::Display for RelayLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BANDWIDTH}={}", self.bandwidth)?;
        if let Some(rsa_id) = self.relay.rsa_id() {
            write!(f, " {RSA}=${}", to_hex(rsa_id))?;
        }
        if let Some(ed25519) = self.relay.ed25519() {
            write!(f, " {ED25519}={}", encode(ed25519))?;
        }
        let more = self.more.iter().filter(|(key, _)| !FIELDS.contains(key));
        for (key, value) in more {
            write!(f, " {key}={value}")?;
        }
        if !self.votes {
            write!(f, " {VOTE}=0")?;
        }
        f.write_char('\n')
    }
}

/// Who stays out of every log.
impl fmt::Debug for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayName(hidden)")
    }
}

impl fmt::Debug for RelayLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayLine(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    /// As bandwidth-file-spec, appendix A, has them, with the words that this test needs.
    const TORFLOW: &str = "1523911758\n\
        node_id=$68A483E05A2ABDCA6DA5A3EF8DB5177638A27F80 bw=760 nick=Test measured_at=1523911725 circ_fail=0.2 scanner=/filepath\n\
        node_id=$96C15995F30895689291F455587BD94CA427B6FC bw=189 nick=Test2 circ_fail=0.0 scanner=/filepath\n";
    const SBWS: &str = "1523911758\nversion=1.4.0\nlatest_bandwidth=2018-04-16T20:49:18\nsoftware=sbws\n=====\n\
        bw=38000 bw_median=1180062 master_key_ed25519=YaqV4vbvPYKucElk297eVdNArDz9HtIwUoIeo0+cVIp node_id=$68A483E05A2ABDCA6DA5A3EF8DB5177638A27F80\n\
        bw=1 error_circ=1 master_key_ed25519=J3HQ24kOQWac3L1xlFLp7gY91qkb5NuKxjj1BhDi+m8 nick=snap269 node_id=$DC4D609F95A52614D1E69C752168AF1FCAE0B05F success=3 unmeasured=1 vote=0\n";

    #[test]
    fn what_torflow_and_sbws_wrote_is_read() {
        let torflow = BandwidthFile::parse(TORFLOW).expect("read");
        assert_eq!(
            (torflow.timestamp, torflow.version()),
            (1_523_911_758, "1.0.0")
        );
        assert_eq!(torflow.relays.len(), 2);
        let first = torflow.relays.first().expect("one");
        assert_eq!((first.bandwidth, first.votes), (760, true));
        assert_eq!(first.more.get("nick"), Some("Test"));
        let sbws = BandwidthFile::parse(SBWS).expect("read");
        assert_eq!(sbws.header.get("software"), Some("sbws"));
        let bandwidths = sbws.relays.iter().map(|relay| relay.bandwidth);
        assert_eq!(bandwidths.collect::<Vec<_>>(), [38_000, 1]);
        // The specification's example has a key of 31 bytes, which is none: the relay is named by the other.
        let names = sbws
            .relays
            .iter()
            .map(|relay| relay.relay.ed25519().is_some());
        assert_eq!(names.collect::<Vec<_>>(), [false, true]);
        let votes = sbws.relays.iter().map(|relay| relay.votes);
        assert_eq!(votes.collect::<Vec<_>>(), [true, false], "vote=0");
    }

    #[test]
    fn what_is_no_relay_and_no_header_is_skipped() {
        let long = "x".repeat(LINE);
        let text = format!(
            "7\nversion=1.7.0\nno header\n=====\nlater=1\nbw=5\nnode_id=$00 bw=5\nbw=x node_id=${0}\n{long}=1\nbw=5 node_id=${0}\nbw=6 node_id=${0}\nbw=0 node_id=${1}",
            "A".repeat(40),
            "B".repeat(40)
        );
        let file = BandwidthFile::parse(&text).expect("read");
        assert_eq!(
            file.header.iter().collect::<Vec<_>>(),
            [("version", "1.7.0")]
        );
        let bandwidths = file.relays.iter().map(|relay| relay.bandwidth);
        assert_eq!(
            bandwidths.collect::<Vec<_>>(),
            [5, 1],
            "the first of two; no zero"
        );
    }

    #[test]
    fn what_does_not_begin_with_a_time_or_is_too_large_is_refused() {
        for text in [
            "",
            "\n",
            "-1\n",
            "1.5\n",
            "version=1.0.0\n",
            "99999999999999999999\n",
        ] {
            assert!(BandwidthFile::parse(text).is_err(), "{text:?}");
        }
        let lines = (0..=ROUTERS).map(|number| format!("bw=1 node_id=${number:040X}\n"));
        let text = format!("1\n{}", lines.collect::<String>());
        assert_eq!(
            BandwidthFile::parse(&text).expect_err("refused").what,
            "too many relays"
        );
        assert!(BandwidthFile::parse(&"1".repeat(FILE + 1)).is_err());
    }

    #[test]
    fn keys_and_values_that_would_break_a_line_are_not_taken() {
        let mut all = KeyValues::default();
        for (key, value) in [
            ("a b", "c"),
            ("a", "b c"),
            ("a", "b\nbw=9"),
            ("", "a"),
            ("a", ""),
            ("a=", "b"),
        ] {
            assert!(!all.set(key, value), "{key:?}={value:?}");
        }
        assert!((0..KEY_VALUES).all(|number| all.set(&format!("k{number}"), number)));
        assert!(
            !all.set("more", 1) && all.set("k0", 2),
            "there may be so many"
        );
        assert_eq!(date_time(1_523_911_758), "2018-04-16T20:49:18");
    }

    #[test]
    fn what_relays_say_they_carry_is_read_of_many() {
        let object = |name: &str| format!("-----BEGIN {name}-----\nAQID\n-----END {name}-----\n");
        let (key, signature) = (object("RSA PUBLIC KEY"), object("SIGNATURE"));
        let one = |id: &str, bandwidth: &str| {
            format!(
                "router n 192.0.2.1 1 0 0\nbandwidth {bandwidth}\npublished 2038-01-01 00:00:00\nfingerprint {id}\nsigning-key\n{key}router-signature\n"
            )
        };
        let (a, b) = ("AAAA ".repeat(10), "BBBB ".repeat(10));
        let first = one(a.trim(), "1 2 3");
        let text = [
            &*first,
            &*signature,
            "@source \"somebody\"\n",
            &*one(b.trim(), "x 2 3"),
            &*signature,
            // One that lacks its signature.
            &*one(a.trim(), "4 5 6"),
        ]
        .concat();
        let said = SaidBandwidth {
            rsa_id: [0xaa; 20],
            published: 2_145_916_800,
            bandwidth: Bandwidth {
                average: 1,
                burst: 2,
                observed: 3,
            },
            key: vec![1, 2, 3],
            signed: &first,
            signature: vec![1, 2, 3],
        };
        assert_eq!(bandwidths(&text), Ok(vec![said]));
    }

    fn key_values() -> impl Strategy<Value = KeyValues> {
        vec(("[a-z_-]{1,12}", "[!-~]{1,24}"), 0..8).prop_map(|pairs| {
            let mut all = KeyValues::default();
            let pairs = pairs
                .iter()
                .filter(|(key, _)| !FIELDS.contains(&key.as_str()));
            pairs.for_each(|(key, value)| assert!(all.set(key, value)));
            all
        })
    }

    prop_compose! {
        fn relay()(id in any::<[u8; 20]>(), key in option::of(any::<[u8; 32]>()), bandwidth in 1..u64::MAX, votes: bool, more in key_values()) -> RelayLine {
            let relay = RelayName::of(Some(id), key).expect("named");
            RelayLine { relay, bandwidth, votes, more }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(timestamp: u64, header in key_values(), relays in vec(relay(), 0..5)) {
            let mut seen = Names::default();
            let relays = relays.into_iter().filter(|relay| seen.is_new(&relay.relay)).collect();
            let file = BandwidthFile { timestamp, header, relays };
            prop_assert_eq!(BandwidthFile::parse(&file.to_string()), Ok(file));
        }

        #[test]
        fn what_is_read_is_read_again_from_what_it_writes(text in "[0-9]{1,9}\n([a-z=$ _0-9A-F]{0,90}\n){0,9}") {
            if let Ok(file) = BandwidthFile::parse(&text) {
                prop_assert_eq!(BandwidthFile::parse(&file.to_string()), Ok(file));
            }
        }
    }
}
