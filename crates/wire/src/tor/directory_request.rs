//! What a directory of Tor's network is asked for by its clients: the consensus, certificates of the authorities, microdescriptors. dir-spec
//! "General-use HTTP URLs", "Serving and requesting diffs"; "HTTP headers" and RFC 9110, section 5.6.7, for what stands beside the URL.

use super::{base64, date, encode, hex, seconds, to_hex};

const CONSENSUS: &str = "/tor/status-vote/current/consensus-microdesc";
const MICRODESCRIPTORS: &str = "/tor/micro/d/";
const CERTIFICATES: &str = "/tor/keys/";
/// Things that one request names: a client of C tor names 96 at most.
pub const NAMED: usize = 128;

/// What a directory is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryRequest {
    /// The consensus with microdescriptors, if more than half of these authorities have signed it.
    Consensus {
        /// How their v3 identities begin; nobody: whoever has signed it.
        signers: Vec<Prefix>,
        /// SHA3-256 of what is signed of an earlier one: only a difference to that.
        diff_from: Option<[u8; 32]>,
    },
    /// Microdescriptors, by their SHA-256.
    Microdescriptors(Vec<[u8; 32]>),
    /// Certificates of authorities.
    Certificates(Certificates),
}

/// Which certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// All that are there.
    All,
    /// By the v3 identities of the authorities.
    Of(Vec<[u8; 20]>),
    /// By their signing keys.
    OfKeys(Vec<[u8; 20]>),
    /// By both.
    OfBoth(Vec<([u8; 20], [u8; 20])>),
}

/// The first bytes of a v3 identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; 20],
    length: usize,
}

impl DirectoryRequest {
    /// What a request for this target asks for, and whether its answer is to be compressed (`.z`) as far as the target says. `None`: nothing that is
    /// known here.
    pub fn parse(target: &str) -> Option<(Self, bool)> {
        let (target, compressed) = match target.strip_suffix(".z") {
            Some(target) => (target, true),
            None => (target, false),
        };
        let request = if let Some(rest) = target.strip_prefix(CONSENSUS) {
            consensus(rest)
        } else if let Some(rest) = target.strip_prefix(MICRODESCRIPTORS) {
            named(rest, '-', base64).map(Self::Microdescriptors)
        } else {
            let rest = target.strip_prefix(CERTIFICATES)?;
            certificates(rest).map(Self::Certificates)
        };
        Some((request?, compressed))
    }

    /// The target of such a request, without `.z`.
    pub fn target(&self) -> String {
        match self {
            Self::Consensus { signers, diff_from } => {
                let diff = diff_from.map(|from| format!("/diff/{}", to_hex(&from)));
                let signers = joined(signers, "+", |one| {
                    to_hex(one.bytes.get(..one.length).unwrap_or_default())
                });
                let between = if signers.is_empty() { "" } else { "/" };
                [CONSENSUS, &diff.unwrap_or_default(), between, &signers].concat()
            }
            Self::Microdescriptors(digests) => {
                [MICRODESCRIPTORS, &joined(digests, "-", |one| encode(one))].concat()
            }
            Self::Certificates(certificates) => [CERTIFICATES, &certificates.target()].concat(),
        }
    }
}

impl Certificates {
    fn target(&self) -> String {
        match self {
            Self::All => "all".into(),
            Self::Of(ids) => format!("fp/{}", joined(ids, "+", |id| to_hex(id))),
            Self::OfKeys(ids) => format!("sk/{}", joined(ids, "+", |id| to_hex(id))),
            Self::OfBoth(ids) => {
                let both =
                    |(id, key): &([u8; 20], [u8; 20])| format!("{}-{}", to_hex(id), to_hex(key));
                format!("fp-sk/{}", joined(ids, "+", both))
            }
        }
    }
}

impl Prefix {
    /// Whether an identity begins so.
    pub fn is_of(&self, identity: &[u8; 20]) -> bool {
        self.bytes.get(..self.length) == identity.get(..self.length)
    }

    /// "The fingerprints can be shortened to a length of any multiple of two": of one digit they say nothing.
    fn parse(digits: &str) -> Option<Self> {
        let (mut bytes, length) = ([0; 20], digits.len() / 2);
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            [*byte] = hex::<1>(str::from_utf8(pair).ok()?)?;
        }
        let fits = (1..=20).contains(&length) && digits.len().is_multiple_of(2);
        fits.then_some(Self { bytes, length })
    }
}

fn consensus(rest: &str) -> Option<DirectoryRequest> {
    let (diff_from, rest) = match rest.strip_prefix("/diff/") {
        Some(rest) => {
            let (from, rest) = match rest.find('/') {
                Some(at) => rest.split_at_checked(at)?,
                None => (rest, ""),
            };
            (Some(hex(from)?), rest)
        }
        None => (None, rest),
    };
    let signers = match rest.strip_prefix('/') {
        Some(rest) => named(rest, '+', Prefix::parse)?,
        None if rest.is_empty() => Vec::new(),
        None => return None,
    };
    Some(DirectoryRequest::Consensus { signers, diff_from })
}

fn certificates(rest: &str) -> Option<Certificates> {
    if rest == "all" {
        return Some(Certificates::All);
    }
    let (how, names) = rest.split_once('/')?;
    match how {
        "fp" => named(names, '+', hex).map(Certificates::Of),
        "sk" => named(names, '+', hex).map(Certificates::OfKeys),
        "fp-sk" => named(names, '+', both).map(Certificates::OfBoth),
        _ => None,
    }
}

fn both(name: &str) -> Option<([u8; 20], [u8; 20])> {
    let (id, key) = name.split_once('-')?;
    Some((hex(id)?, hex(key)?))
}

/// [`NAMED`] at most.
fn named<T>(text: &str, between: char, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let mut names = text.split(between);
    let found = names.by_ref().take(NAMED).map(parse);
    let found = found.collect::<Option<Vec<_>>>()?;
    names.next().is_none().then_some(found)
}

fn joined<T>(all: &[T], between: &str, write: impl Fn(&T) -> String) -> String {
    let all: Vec<_> = all.iter().map(write).collect();
    all.join(between)
}

/// SHA3-256 of what is signed of the consensuses that the field `X-Or-Diff-From-Consensus` names; those that are none are left out.
pub fn diff_from(field: &str) -> Vec<[u8; 32]> {
    let names = field.split(',').take(NAMED);
    names.filter_map(|name| hex(name.trim())).collect()
}

/// The same field, of one that is known.
pub fn diff_from_field(hash: &[u8; 32]) -> String {
    to_hex(hash)
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970, as `If-Modified-Since` has it; which day of the week it was is not looked at.
pub fn http_date(text: &str) -> Option<u64> {
    let (_weekday, date) = text.trim().split_once(", ")?;
    let words: Vec<_> = date.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else {
        return None;
    };
    let month = (1..).zip(MONTHS).find(|(_, name)| *name == month)?.0;
    seconds(&format!("{year}-{month:02}-{day} {time}"))
}

/// The same written, until the year 2200.
pub fn to_http_date(moment: u64) -> String {
    let text = date(moment);
    let (day, time) = text.split_once(' ').unwrap_or_default();
    let numbers: Vec<_> = day.split('-').collect();
    let [year, month, day] = numbers[..] else {
        return String::new();
    };
    let weekday = usize::try_from(moment / 86_400 % 7).unwrap_or(0);
    let weekday = DAYS.get(weekday).copied().unwrap_or_default();
    let month = month.parse::<usize>().ok();
    let month = month.and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let month = month.copied().unwrap_or_default();
    format!("{weekday}, {day} {month} {year} {time} GMT")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = Prefix> {
        (any::<[u8; 20]>(), 1_usize..=20).prop_map(|(mut bytes, length)| {
            bytes.iter_mut().skip(length).for_each(|byte| *byte = 0);
            Prefix { bytes, length }
        })
    }

    fn request() -> impl Strategy<Value = DirectoryRequest> {
        use DirectoryRequest as Asked;
        let ids = || prop::collection::vec(any::<[u8; 20]>(), 1..NAMED);
        let certificates = prop_oneof![
            Just(Certificates::All),
            ids().prop_map(Certificates::Of),
            ids().prop_map(Certificates::OfKeys),
            prop::collection::vec(any::<([u8; 20], [u8; 20])>(), 1..20)
                .prop_map(Certificates::OfBoth),
        ];
        let consensus = (
            prop::collection::vec(prefix(), 0..20),
            any::<Option<[u8; 32]>>(),
        );
        prop_oneof![
            consensus.prop_map(|(signers, diff_from)| Asked::Consensus { signers, diff_from }),
            prop::collection::vec(any::<[u8; 32]>(), 1..=NAMED).prop_map(Asked::Microdescriptors),
            certificates.prop_map(Asked::Certificates),
        ]
    }

    proptest! {
        #[test]
        fn what_is_asked_for_is_read_back(asked in request()) {
            let target = asked.target();
            prop_assert_eq!(DirectoryRequest::parse(&format!("{target}.z")), Some((asked.clone(), true)));
            prop_assert_eq!(DirectoryRequest::parse(&target), Some((asked, false)));
        }

        #[test]
        fn a_date_of_http_is_read_back(moment in 0..7_000_000_000_u64) {
            prop_assert_eq!(http_date(&to_http_date(moment)), Some(moment));
        }

        #[test]
        fn any_target_is_read_without_a_panic(target in "/tor/(status-vote/current/consensus-microdesc|micro/d/|keys/)(fp|sk|fp-sk|diff)?/?[ -~é]{0,80}(\\.z)?") {
            let read = DirectoryRequest::parse(&target);
            let others = (diff_from(&target), http_date(&target));
            drop((read, others));
        }
    }

    /// As they came from C tor 0.4.9.11 and from Arti 2.7.0.
    #[test]
    fn what_clients_ask_for_is_read() {
        let parse = |target: &str| DirectoryRequest::parse(target).map(|(asked, _)| asked);
        let target = "/tor/status-vote/current/consensus-microdesc/4CB0A1+A383B6+AEE143.z";
        let Some(DirectoryRequest::Consensus { signers, diff_from }) = parse(target) else {
            unreachable!("no consensus");
        };
        assert_eq!((signers.len(), diff_from), (3, None));
        let first = signers.first().expect("one");
        let mut identity = [0; 20];
        identity[..3].copy_from_slice(&[0x4C, 0xB0, 0xA1]);
        assert!(first.is_of(&identity));
        identity[2] ^= 1;
        assert!(!first.is_of(&identity));
        let none = "/tor/status-vote/current/consensus-microdesc.z";
        assert!(matches!(
            parse(none),
            Some(DirectoryRequest::Consensus { signers, .. }) if signers.is_empty()
        ));
        for none in [
            "/tor/status-vote/current/consensus",
            "/tor/status-vote/current/consensus-microdescs",
            "/tor/status-vote/current/consensus-microdesc/4CB0A",
            "/tor/status-vote/current/consensus-microdesc/",
            "/tor/status-vote/current/consensus-microdesc/diff/00",
            "/tor/micro/d/",
            "/tor/micro/d/AAAA",
            "/tor/micro/all",
            "/tor/keys/authority",
            "/tor/keys/fp/",
            "/tor/keys/fp/4CB0A1",
            "/tor/keys/fp-sk/4CB0A1456D97AECE1CF5F2A1F60A987D443C405C",
            "/tor/server/all",
            "/tor/",
            "",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
        let many = vec!["A".repeat(43); NAMED + 1].join("-");
        assert_eq!(parse(&format!("/tor/micro/d/{many}")), None);
    }

    #[test]
    fn dates_and_hashes_of_fields_are_read_and_others_left_out() {
        assert_eq!(
            http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(784_111_777)
        );
        assert_eq!(to_http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        for wrong in [
            "06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "",
        ] {
            assert_eq!(http_date(wrong), None, "{wrong}");
        }
        let field = format!("{}, AB, {}", "AB".repeat(32), "cd".repeat(32));
        assert_eq!(diff_from(&field), [[0xAB; 32], [0xCD; 32]]);
    }
}
