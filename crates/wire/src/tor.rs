//! Documents of Tor's own directory: a consensus in its microdescriptor flavour, the authorities' key certificates, microdescriptors.
//! Signatures are checked elsewhere (`hoplite_directory::tor`).
//! dir-spec "Network status consensus", "Creating key certificates", "Computing microdescriptors". Only what a client of circuits needs is read;
//! what is not known is skipped, as the specification asks. Texts, items, relays and objects are bounded.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};

pub mod bandwidth_file;
pub mod consensus_diff;
pub mod directory_request;
pub mod extra_info;
pub mod hsdir_request;
pub mod server_descriptor;
pub mod service_descriptor;

use crate::{
    Protocols,
    directory::{ADDRESSES, Malformed, Ports},
    protocols::{QUIC_CHANNELS, speaks},
};

/// A relay's RSA identity, as operators write it: forty hexadecimal digits, perhaps behind a `$`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 20]);

/// The text is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the fingerprint of a relay's RSA identity, 40 hexadecimal digits")]
pub struct NoFingerprint;

impl std::str::FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let digits = text.strip_prefix('$').unwrap_or(text);
        hex(digits).map(Self).ok_or(NoFingerprint)
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fingerprint(hidden)")
    }
}

/// Forty hexadecimal digits: how Tor names RSA keys.
pub fn fingerprint(text: &str) -> Option<[u8; 20]> {
    hex(text)
}

/// Bytes of one text: the consensus of the public network has 3 million.
pub const TEXT: usize = 16 << 20;

/// Relays of a consensus.
pub const ROUTERS: usize = 16_384;

/// Signatures of a consensus, and certificates of one text.
pub const AUTHORITIES: usize = 64;

/// Bytes of a certificate: not all of them are signed. With keys of 4,096 bits it has 4,000.
pub const CERTIFICATE: usize = 16 << 10;

/// Bytes of a consensus behind what is signed: anybody who hands it on can put there what he likes.
pub const SIGNATURES: usize = 64 << 10;

/// Parameters, and weights.
pub const PARAMS: usize = 1024;

/// Bytes of one key or signature, in base64.
pub const OBJECT: usize = 8192;

/// Relays that one calls its family.
pub const FAMILY: usize = 512;

// The items of a document: a keyword line, with an object behind it in some. dir-spec "Document meta-format".

/// Tor writes digests and keys without padding, objects with it, and Curve25519 keys either way.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is left of a text.
#[derive(Clone)]
struct Items<'a> {
    text: &'a str,
    /// Where the next item begins.
    at: usize,
    line: usize,
    /// Characters of base64 that one object may have.
    object: usize,
}

/// One item.
struct Item<'a> {
    keyword: &'a str,
    arguments: &'a str,
    /// What BEGIN says, and the bytes between it and END.
    object: Option<(&'a str, Vec<u8>)>,
    /// Where it begins, and where its keyword line has ended.
    start: usize,
    body: usize,
}

impl<'a> Items<'a> {
    /// Texts of more than [`TEXT`] bytes are not looked at.
    fn of(text: &'a str) -> Result<Self, Malformed> {
        Self::within(text, TEXT, OBJECT)
    }

    /// Texts of more than `most` bytes are not looked at.
    fn within(text: &'a str, most: usize, object: usize) -> Result<Self, Malformed> {
        let items = Self {
            text,
            at: 0,
            line: 1,
            object,
        };
        if text.len() <= most {
            Ok(items)
        } else {
            Err(items.wrong("too long"))
        }
    }

    fn wrong(&self, what: &'static str) -> Malformed {
        Malformed {
            line: self.line,
            what,
        }
    }

    /// Where the next item begins.
    fn position(&self) -> usize {
        self.at
    }

    /// What stands from `start` to `end`.
    fn until(&self, start: usize, end: usize) -> Result<&'a str, Malformed> {
        let slice = self.text.get(start..end);
        slice.ok_or_else(|| self.wrong("cut"))
    }

    /// The next item; `None` at the end. Lines that begin with `@` are notes of whoever kept the text.
    fn next(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        loop {
            let start = self.at;
            let Some(line) = self.line() else {
                return if self.at == self.text.len() {
                    Ok(None)
                } else {
                    Err(self.wrong("cut in the middle of a line"))
                };
            };
            if line.starts_with('@') || line.is_empty() {
                continue;
            }
            let line = line.strip_prefix("opt ").unwrap_or(line);
            let (keyword, arguments) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            let body = self.at;
            return Ok(Some(Item {
                keyword,
                arguments,
                object: self.object()?,
                start,
                body,
            }));
        }
    }

    fn line(&mut self) -> Option<&'a str> {
        let (line, _) = self.text.get(self.at..)?.split_once('\n')?;
        self.at = self.at.saturating_add(line.len()).saturating_add(1);
        self.line = self.line.saturating_add(1);
        Some(line)
    }

    fn object(&mut self) -> Result<Option<(&'a str, Vec<u8>)>, Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with("-----BEGIN ") {
            return Ok(None);
        }
        let begin = self
            .line()
            .and_then(|line| line.strip_prefix("-----BEGIN "));
        let label = begin.ok_or_else(|| self.wrong("object"))?;
        let mut text = String::new();
        loop {
            let line = self.line().ok_or_else(|| self.wrong("object"))?;
            if let Some(end) = line.strip_prefix("-----END ") {
                if end != label {
                    return Err(self.wrong("object that ends as another"));
                }
                break;
            }
            text.push_str(line);
            if text.len() > self.object {
                return Err(self.wrong("object that is too long"));
            }
        }
        let bytes = BASE64.decode(text).map_err(|_| self.wrong("object"))?;
        Ok(Some((label.strip_suffix("-----").unwrap_or(label), bytes)))
    }
}

impl Item<'_> {
    /// Bytes that must be there.
    fn bytes(self, items: &Items<'_>) -> Result<Vec<u8>, Malformed> {
        let object = self.object.map(|(_, bytes)| bytes);
        object.ok_or_else(|| items.wrong("no object"))
    }

    /// Bytes that must be there, and be called so.
    fn labelled(self, label: &str, items: &Items<'_>) -> Result<Vec<u8>, Malformed> {
        let object = self.object.filter(|(found, _)| *found == label);
        let object = object.map(|(_, bytes)| bytes);
        object.ok_or_else(|| items.wrong("no object of its kind"))
    }
}

/// Puts a value where there is none yet.
fn once<T>(place: &mut Option<T>, value: Option<T>, items: &Items<'_>) -> Result<(), Malformed> {
    match (&place, value) {
        (None, Some(value)) => {
            *place = Some(value);
            Ok(())
        }
        (Some(_), _) => Err(items.wrong("what may be there once is there twice")),
        (None, None) => Err(items.wrong("a value that cannot be read")),
    }
}

/// Decimal digits.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Characters in a line of an object.
const LINE: usize = 64;

fn put_object(label: &str, bytes: &[u8], text: &mut String) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in STANDARD.encode(bytes).as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

fn base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    (text.len() <= N.saturating_mul(2)).then_some(())?;
    BASE64.decode(text).ok()?.try_into().ok()
}

fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Capital hexadecimal digits.
fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    (digits.len() == N.checked_mul(2)?).then_some(())?;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| (*pair.get(at)? as char).to_digit(16);
        let value = digit(0)?.checked_mul(16)?.checked_add(digit(1)?)?;
        *byte = u8::try_from(value).ok()?;
    }
    Some(bytes)
}

// `YYYY-MM-DD HH:MM:SS` in seconds since 1970. dir-spec "Document meta-format".

/// Days before each month of a year that is no leap year.
const DAYS_BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.trim_end().split_once(' ')?;
    let [year, month, day] = date_numbers(date, '-')?;
    let [hours, minutes, seconds] = date_numbers(time, ':')?;
    let fits = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hours < 24
        && minutes < 60
        && seconds <= 60;
    fits.then_some(())?;
    let before = DAYS_BEFORE_MONTH.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let leap = u64::from(month > 2 && is_leap(year));
    let days = (1970..year).map(|year| 365 + u64::from(is_leap(year)));
    let days = days.sum::<u64>().checked_add(*before)?.checked_add(leap)?;
    let days = days.checked_add(day)?.checked_sub(1)?;
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds)
}

/// A time in seconds since 1970 as documents of Tor's have it, until the year 2200.
pub fn date(seconds: u64) -> String {
    let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while year < 2200 && days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let leap = u64::from(is_leap(year));
    let starts = (1..).zip(DAYS_BEFORE_MONTH);
    let starts = starts.map(|(month, before)| (month, before + u64::from(month > 2) * leap));
    let month = starts.take_while(|(_, before)| *before <= days).last();
    let (month, before) = month.unwrap_or((1, 0));
    let day = days - before + 1;
    let (hours, minutes, seconds) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}")
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn date_numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut number = || {
        let part = parts.next()?;
        let digits = part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    };
    let all = [number()?, number()?, number()?];
    parts.next().is_none().then_some(all)
}

// A consensus in the microdescriptor flavour: which relays there are, what the authorities think of them, and what all clients should do.
// dir-spec "Network status consensus", "Microdescriptor consensus".

/// A consensus, none of whose signatures has been checked by reading it. All times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consensus<'a> {
    /// What the signatures are over.
    pub signed: &'a str,
    /// From when it holds.
    pub valid_after: u64,
    /// When there should be another.
    pub fresh_until: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// What all clients and relays should do.
    pub params: BTreeMap<String, i32>,
    /// The shared random value of the day before.
    pub shared_random_previous: Option<[u8; 32]>,
    /// The shared random value of the day.
    pub shared_random_current: Option<[u8; 32]>,
    /// Its relays.
    pub routers: Vec<Router>,
    /// How much of a relay's bandwidth counts in each position (`Wgg` and so on), in parts of the parameter `bwweightscale`: 10,000 where it is not said.
    pub weights: BTreeMap<String, i32>,
    /// Of the authorities.
    pub signatures: Vec<Signature>,
}

/// What the authorities think of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

/// A relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// What it calls itself; not unique.
    pub nickname: String,
    /// SHA-1 of its RSA identity.
    pub rsa_id: [u8; 20],
    /// Where it listens, IPv4 first.
    pub addresses: Vec<SocketAddr>,
    /// SHA-256 of its microdescriptor.
    pub digest: [u8; 32],
    /// What the authorities think of it.
    pub flags: Flags,
    /// What it can carry, in thousands of bytes a second, or a weight like it.
    pub bandwidth: u64,
    /// It speaks ntor-v3 (`Relay=4`).
    pub ntor3: bool,
    /// It has congestion control (`FlowCtrl=2`).
    pub congestion_control: bool,
    /// Others that circuits choose by.
    pub protocols: Protocols,
    /// Its channels run over QUIC too ([`QUIC_CHANNELS`]): a relay of ours.
    pub quic: bool,
    /// It is an introduction point of onion services of version 3 (`HSIntro=4`).
    pub introduces: bool,
    /// It is a rendezvous point of onion services of version 3 (`HSRend=2`).
    pub joins: bool,
    /// It keeps descriptors of onion services of version 3 (`HSDir=2`); who is asked for them has [`Flags::HS_DIR`] too.
    pub keeps_descriptors: bool,
}

/// One authority's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// SHA-1 of its identity key.
    pub authority: [u8; 20],
    /// SHA-1 of the key that has signed.
    pub key: [u8; 20],
    /// Over the SHA-256 of [`Consensus::signed`], or over another hash: those are left out.
    pub signature: Vec<u8>,
}

impl Flags {
    /// The authorities reached it.
    pub const RUNNING: Self = Self(1);
    /// It is usable.
    pub const VALID: Self = Self(1 << 1);
    /// It may be a guard.
    pub const GUARD: Self = Self(1 << 2);
    /// It serves useful ports.
    pub const EXIT: Self = Self(1 << 3);
    /// It must not be an exit.
    pub const BAD_EXIT: Self = Self(1 << 4);
    /// Fast enough for any circuit.
    pub const FAST: Self = Self(1 << 5);
    /// Fit for circuits that live long.
    pub const STABLE: Self = Self(1 << 6);
    /// It answers as a directory.
    pub const V2_DIR: Self = Self(1 << 7);
    /// The authorities do not agree on its Ed25519 identity.
    pub const NO_ED_CONSENSUS: Self = Self(1 << 8);
    /// It has been there for long enough to be asked for descriptors of onion services.
    pub const HS_DIR: Self = Self(1 << 9);

    /// Whether all of these are among them.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    fn of(names: &str) -> Self {
        let bits = names.split_ascii_whitespace().map(|name| match name {
            "Running" => Self::RUNNING.0,
            "Valid" => Self::VALID.0,
            "Guard" => Self::GUARD.0,
            "Exit" => Self::EXIT.0,
            "BadExit" => Self::BAD_EXIT.0,
            "Fast" => Self::FAST.0,
            "Stable" => Self::STABLE.0,
            "V2Dir" => Self::V2_DIR.0,
            "NoEdConsensus" => Self::NO_ED_CONSENSUS.0,
            "HSDir" => Self::HS_DIR.0,
            _ => 0,
        });
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

impl<'a> Consensus<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &'a str) -> Result<Self, Malformed> {
        let mut items = Items::of(text)?;
        let mut reading = Reading::default();
        let head = items.next()?;
        let is_head = head.is_some_and(|item| {
            let mut words = item.arguments.split_ascii_whitespace();
            let flavour = (words.next(), words.next()) == (Some("3"), Some("microdesc"));
            item.keyword == "network-status-version" && item.start == 0 && flavour
        });
        if !is_head {
            return Err(items.wrong("no consensus of version 3 with microdescriptors"));
        }
        while let Some(item) = items.next()? {
            reading.take(item, &items)?;
        }
        let lacks = items.wrong("the consensus lacks something");
        let signed = items.until(0, reading.signed.ok_or(lacks)?)?;
        if text.len().saturating_sub(signed.len()) > SIGNATURES {
            return Err(items.wrong("too much behind what is signed"));
        }
        let whole = reading.whole(signed).ok_or(lacks)?;
        let (after, fresh, until) = (whole.valid_after, whole.fresh_until, whole.valid_until);
        if after < fresh && fresh <= until {
            Ok(whole)
        } else {
            Err(items.wrong("its times are not in order"))
        }
    }

    /// The text as authorities write it, with `signatures` alone behind what they are over. Whoever hands a consensus on can put there more than they have
    /// signed, which C tor refuses.
    pub fn to_text(&self) -> String {
        let mut text = self.signed.to_owned();
        for (place, one) in self.signatures.iter().enumerate() {
            if place > 0 {
                text.push_str(SIGNED_BY);
            }
            let (authority, key) = (to_hex(&one.authority), to_hex(&one.key));
            text.push_str(&format!("{HASH} {authority} {key}\n"));
            put_object(SIGNATURE, &one.signature, &mut text);
        }
        text
    }

    /// What a client asks a directory for, to get these microdescriptors.
    pub fn request(digests: &[[u8; 32]]) -> String {
        let digests: Vec<_> = digests.iter().map(|digest| encode(digest)).collect();
        format!("/tor/micro/d/{}", digests.join("-"))
    }
}

/// The keyword of a signature, with the space through which it is signed itself.
const SIGNED_BY: &str = "directory-signature ";
/// The hash that signatures are over.
const HASH: &str = "sha256";
/// What the object is called.
const SIGNATURE: &str = "SIGNATURE";

/// What was read so far.
#[derive(Default)]
struct Reading {
    is_consensus: bool,
    valid_after: Option<u64>,
    fresh_until: Option<u64>,
    valid_until: Option<u64>,
    params: BTreeMap<String, i32>,
    shared_random_previous: Option<[u8; 32]>,
    shared_random_current: Option<[u8; 32]>,
    routers: Vec<Router>,
    /// The last of `routers` has its microdescriptor's hash.
    is_whole: bool,
    in_footer: bool,
    weights: BTreeMap<String, i32>,
    /// Where what is signed ends.
    signed: Option<usize>,
    signatures: Vec<Signature>,
}

impl Reading {
    fn take(&mut self, item: Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        if item.keyword == SIGNED_BY.trim_end() {
            return self.signature(item, items);
        }
        if self.signed.is_some() {
            return Err(items.wrong("what nobody has signed"));
        }
        let wrong = items.wrong("consensus");
        match item.keyword {
            "vote-status" => self.is_consensus = item.arguments.trim() == "consensus",
            "valid-after" => self.valid_after = Some(seconds(item.arguments).ok_or(wrong)?),
            "fresh-until" => self.fresh_until = Some(seconds(item.arguments).ok_or(wrong)?),
            "valid-until" => self.valid_until = Some(seconds(item.arguments).ok_or(wrong)?),
            "params" => self.params = numbers(item.arguments).ok_or(wrong)?,
            "shared-rand-previous-value" if self.routers.is_empty() => {
                let value = shared_random(item.arguments).ok_or(wrong)?;
                self.shared_random_previous = Some(value);
            }
            "shared-rand-current-value" if self.routers.is_empty() => {
                let value = shared_random(item.arguments).ok_or(wrong)?;
                self.shared_random_current = Some(value);
            }
            "directory-footer" => self.in_footer = true,
            "bandwidth-weights" if self.in_footer => {
                self.weights = numbers(item.arguments).ok_or(wrong)?;
            }
            "r" if !self.in_footer => self.router(item.arguments).ok_or(wrong)?,
            keyword if !self.in_footer => {
                let mut router = self.routers.last_mut();
                if let Some(router) = &mut router {
                    self.is_whole |= keyword == "m";
                    router.take(keyword, item.arguments).ok_or(wrong)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The one before must have its microdescriptor.
    fn router(&mut self, arguments: &str) -> Option<()> {
        let fits = self.routers.len() < ROUTERS && (self.is_whole || self.routers.is_empty());
        fits.then_some(())?;
        self.is_whole = false;
        self.routers.push(Router::begin(arguments)?);
        Some(())
    }

    fn signature(&mut self, item: Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let wrong = items.wrong("directory-signature");
        // "The signature is over the document from its beginning through the space after directory-signature."
        let keyword = item.keyword.len().saturating_add(1);
        let end = item.start.saturating_add(keyword);
        self.signed.get_or_insert(end);
        let words: Vec<_> = item.arguments.split_ascii_whitespace().collect();
        if self.signatures.len() >= AUTHORITIES {
            return Err(items.wrong("too many signatures"));
        }
        let [HASH, authority, key] = words[..] else {
            // Another hash, or SHA-1, which is not named.
            return Ok(());
        };
        self.signatures.push(Signature {
            authority: hex(authority).ok_or(wrong)?,
            key: hex(key).ok_or(wrong)?,
            signature: item.bytes(items)?,
        });
        Ok(())
    }

    fn whole(self, signed: &str) -> Option<Consensus<'_>> {
        let fits = self.is_consensus && (self.is_whole || self.routers.is_empty());
        fits.then_some(())?;
        Some(Consensus {
            signed,
            valid_after: self.valid_after?,
            fresh_until: self.fresh_until?,
            valid_until: self.valid_until?,
            params: self.params,
            shared_random_previous: self.shared_random_previous,
            shared_random_current: self.shared_random_current,
            routers: self.routers,
            weights: self.weights,
            signatures: self.signatures,
        })
    }
}

impl Router {
    /// `r nickname identity date time address port dirport`.
    fn begin(arguments: &str) -> Option<Self> {
        let mut words = arguments.split_ascii_whitespace();
        let nickname = words.next().filter(|name| name.len() <= 19)?.to_owned();
        let rsa_id = base64(words.next()?)?;
        let (_date, _time) = (words.next()?, words.next()?);
        let address: Ipv4Addr = words.next()?.parse().ok()?;
        let port: u16 = words.next()?.parse().ok()?;
        Some(Self {
            nickname,
            rsa_id,
            addresses: vec![(address, port).into()],
            digest: [0; 32],
            flags: Flags::default(),
            bandwidth: 0,
            ntor3: false,
            congestion_control: false,
            protocols: Protocols::NONE,
            quic: false,
            introduces: false,
            joins: false,
            keeps_descriptors: false,
        })
    }

    fn take(&mut self, keyword: &str, arguments: &str) -> Option<()> {
        match keyword {
            "m" => self.digest = base64(arguments.trim())?,
            "a" if self.addresses.len() < ADDRESSES => {
                self.addresses.push(arguments.trim().parse().ok()?);
            }
            "s" => self.flags = Flags::of(arguments),
            "w" => {
                let mut words = arguments.split_ascii_whitespace();
                let value = words.find_map(|word| word.strip_prefix("Bandwidth="));
                self.bandwidth = value.map_or(Some(0), |value| value.parse().ok())?;
            }
            "pr" => {
                self.ntor3 = speaks(arguments, "Relay", 4);
                self.congestion_control = speaks(arguments, "FlowCtrl", 2);
                self.protocols = Protocols::of_tor(arguments);
                self.quic = speaks(arguments, QUIC_CHANNELS, 1);
                self.introduces = speaks(arguments, "HSIntro", 4);
                self.joins = speaks(arguments, "HSRend", 2);
                self.keeps_descriptors = speaks(arguments, "HSDir", 2);
            }
            _ => {}
        }
        Some(())
    }
}

/// `NumReveals Value`.
fn shared_random(arguments: &str) -> Option<[u8; 32]> {
    let mut words = arguments.split_ascii_whitespace();
    let _reveals: u32 = words.next()?.parse().ok()?;
    base64(words.next()?)
}

/// `name=value name=value`.
fn numbers(arguments: &str) -> Option<BTreeMap<String, i32>> {
    let words = arguments.split_ascii_whitespace().take(PARAMS);
    let pairs = words.map(|word| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs.collect()
}

// An authority's key certificate: its identity, which does not change, vouches for the key that it signs with now.
// dir-spec "Creating key certificates".

/// A certificate, none of whose signatures has been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCertificate<'a> {
    /// All of it.
    pub text: &'a str,
    /// What the certification is over.
    pub signed: &'a str,
    /// SHA-1 of the identity key, as it says itself.
    pub fingerprint: [u8; 20],
    /// From when it holds, in seconds since 1970.
    pub published: u64,
    /// Until when.
    pub expires: u64,
    /// The identity key (DER, PKCS #1).
    pub identity: Vec<u8>,
    /// The signing key (DER, PKCS #1).
    pub signing: Vec<u8>,
    /// By the signing key, over the SHA-1 of the identity key.
    pub cross: Vec<u8>,
    /// By the identity key, over the SHA-1 of `signed`.
    pub certification: Vec<u8>,
}

/// What was read so far of one.
#[derive(Default)]
struct Parts {
    start: usize,
    fingerprint: Option<[u8; 20]>,
    published: Option<u64>,
    expires: Option<u64>,
    identity: Option<Vec<u8>>,
    signing: Option<Vec<u8>>,
    cross: Option<Vec<u8>>,
}

impl<'a> KeyCertificate<'a> {
    /// The text as authorities write it: what is signed, and the certification.
    pub fn to_text(&self) -> String {
        let mut text = self.signed.to_owned();
        put_object(SIGNATURE, &self.certification, &mut text);
        text
    }

    /// Reads all that stand one behind the other.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse_all(text: &'a str) -> Result<Vec<Self>, Malformed> {
        let mut items = Items::of(text)?;
        let (mut found, mut parts) = (Vec::new(), None::<Parts>);
        while let Some(item) = items.next()? {
            if item.keyword == "dir-key-certificate-version" {
                if item.arguments.trim() != "3" || parts.is_some() {
                    return Err(items.wrong("no key certificate of version 3"));
                }
                parts = Some(Parts {
                    start: item.start,
                    ..Parts::default()
                });
                continue;
            }
            let Some(open) = parts.as_mut() else {
                return Err(items.wrong("no key certificate"));
            };
            if item.keyword != "dir-key-certification" {
                open.take(item, &items)?;
                continue;
            }
            let signed = items.until(open.start, item.body)?;
            let certification = item.bytes(&items)?;
            let text = items.until(open.start, items.position())?;
            if text.len() > CERTIFICATE {
                return Err(items.wrong("a key certificate is too long"));
            }
            let whole = parts.take();
            let whole = whole.and_then(|it| it.whole(text, signed, certification));
            found.push(whole.ok_or_else(|| items.wrong("a key certificate lacks something"))?);
            if found.len() > AUTHORITIES {
                return Err(items.wrong("too many key certificates"));
            }
        }
        match parts {
            None => Ok(found),
            Some(_) => Err(items.wrong("a key certificate without end")),
        }
    }
}

impl Parts {
    fn take(&mut self, item: Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let wrong = items.wrong("key certificate");
        match item.keyword {
            "fingerprint" => self.fingerprint = Some(hex(item.arguments.trim()).ok_or(wrong)?),
            "dir-key-published" => {
                self.published = Some(seconds(item.arguments).ok_or(wrong)?);
            }
            "dir-key-expires" => self.expires = Some(seconds(item.arguments).ok_or(wrong)?),
            "dir-identity-key" => self.identity = Some(item.bytes(items)?),
            "dir-signing-key" => self.signing = Some(item.bytes(items)?),
            "dir-key-crosscert" => self.cross = Some(item.bytes(items)?),
            _ => {}
        }
        Ok(())
    }

    fn whole<'a>(
        self,
        text: &'a str,
        signed: &'a str,
        certification: Vec<u8>,
    ) -> Option<KeyCertificate<'a>> {
        Some(KeyCertificate {
            text,
            signed,
            fingerprint: self.fingerprint?,
            published: self.published?,
            expires: self.expires?,
            identity: self.identity?,
            signing: self.signing?,
            cross: self.cross?,
            certification,
        })
    }
}

// A microdescriptor: what the consensus leaves out of a relay, named there by its hash. dir-spec "Computing microdescriptors".

/// A microdescriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Microdescriptor<'a> {
    /// What its SHA-256 is over.
    pub text: &'a str,
    /// The onion key, X25519.
    pub ntor: [u8; 32],
    /// The Ed25519 identity.
    pub ed25519: Option<[u8; 32]>,
    /// To which ports it connects over IPv4, if to any.
    pub exit: Option<Ports>,
    /// RSA identities of relays that it calls its family; it counts where they say so too.
    pub family: Vec<[u8; 20]>,
    /// Its proven families: relays that share one are of one family (proposal 321).
    pub family_ids: Vec<String>,
}

impl<'a> Microdescriptor<'a> {
    /// Reads all that stand one behind the other. One without an onion key cannot be used, and is left out.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse_all(text: &'a str) -> Result<Vec<Self>, Malformed> {
        let mut items = Items::of(text)?;
        let (mut found, mut open) = (Vec::new(), None::<(usize, Self)>);
        let mut before = items.clone();
        let mut end = 0;
        while let Some(item) = items.next()? {
            if item.keyword == "onion-key" {
                close(open.take(), end, &items, &mut found)?;
                open = Some((item.start, Self::default()));
            } else if let Some((_, descriptor)) = &mut open {
                descriptor.take(&item, &items)?;
            } else {
                return Err(before.wrong("no microdescriptor"));
            }
            before = items.clone();
            end = items.position();
        }
        close(open, end, &items, &mut found)?;
        Ok(found)
    }

    fn take(&mut self, item: &Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let mut words = item.arguments.split_ascii_whitespace();
        match item.keyword {
            "ntor-onion-key" => {
                let key = words.next().and_then(base64);
                self.ntor = key.ok_or_else(|| items.wrong("ntor-onion-key"))?;
            }
            "id" if words.next() == Some("ed25519") => {
                let key = words.next().and_then(base64);
                self.ed25519 = Some(key.ok_or_else(|| items.wrong("id ed25519"))?);
            }
            "p" => self.exit = ports(item.arguments),
            "family" => {
                let digits = words.filter_map(|word| word.strip_prefix('$')?.get(..40));
                self.family = digits.filter_map(hex).take(FAMILY).collect();
            }
            "family-ids" => {
                self.family_ids = words.take(FAMILY).map(str::to_owned).collect();
            }
            _ => {}
        }
        Ok(())
    }
}

fn close<'a>(
    open: Option<(usize, Microdescriptor<'a>)>,
    end: usize,
    items: &Items<'a>,
    found: &mut Vec<Microdescriptor<'a>>,
) -> Result<(), Malformed> {
    let Some((start, descriptor)) = open else {
        return Ok(());
    };
    if found.len() >= ROUTERS {
        return Err(items.wrong("too many microdescriptors"));
    }
    if descriptor.ntor != [0; 32] {
        let text = items.until(start, end)?;
        found.push(Microdescriptor { text, ..descriptor });
    }
    Ok(())
}

/// `accept 80,443` or `reject 25,135-139`; what cannot be read is no exit.
fn ports(summary: &str) -> Option<Ports> {
    let (word, list) = summary.trim_end().split_once(' ')?;
    match word {
        "accept" => list.parse().ok(),
        "reject" => list.parse::<Ports>().ok()?.others(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
