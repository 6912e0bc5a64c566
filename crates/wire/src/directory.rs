//! The documents of the directory: what a relay says of itself, what an authority votes, by which vote it stands, what all of them sign.
//! docs/directory.md has the format, which is ours alone.
//!
//! Each is lines of ASCII, `keyword value`, in one order, and read strictly: what is read is exactly what would be written, so a
//! signature over the text is one over the meaning, and nobody can write the same thing twice.

pub mod list_diff;
mod opinion;
mod shared_random;

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    net::SocketAddr,
    str::FromStr,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{Protocols, Target};

pub use opinion::{Opinion, RelayFlags};
pub use shared_random::{Contribution, SharedRandomLines};

/// Addresses of one relay.
pub const ADDRESSES: usize = 4;

/// Relays that one says it shares an operator with.
pub const FAMILY: usize = 32;

/// Bytes of a signed descriptor.
pub const DESCRIPTOR: usize = 4096;

/// Relays of a list.
pub const RELAYS: usize = 8192;

/// Bytes of a signed list or vote.
pub const LIST: usize = 8 << 20;

/// Authorities that sign a list.
pub const AUTHORITIES: usize = 32;

/// Bytes of the commitments of one period: two of each authority, with the signatures of all.
pub const COMMITMENTS: usize = 512 << 10;

/// Parameters of a list.
pub const PARAMS: usize = 32;

/// Bytes of an issuer's or an origin's name.
pub const TOKEN_NAME: usize = 255;

/// Whether `text` is 1 to `most` letters, digits, '-', '_' and '.': names, regions, operators.
pub fn is_word(text: &str, most: usize) -> bool {
    let fine = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    (1..=most).contains(&text.len()) && text.bytes().all(fine)
}

// Lines of `keyword value`, taken one after the other.

/// Why a text is no document, and in which of its lines (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    /// Which line.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// What is left of a text.
struct Lines<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lines<'a> {
    /// Texts of more than `most` bytes are not looked at.
    fn of(text: &'a str, most: usize) -> Result<Self, Malformed> {
        let lines = Self {
            rest: text,
            line: 1,
        };
        if text.len() <= most && text.is_ascii() {
            Ok(lines)
        } else {
            Err(lines.wrong("too long, or not ASCII"))
        }
    }

    fn wrong(&self, what: &'static str) -> Malformed {
        Malformed {
            line: self.line,
            what,
        }
    }

    fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next line must be this one.
    fn exactly(&mut self, line: &str, what: &'static str) -> Result<(), Malformed> {
        match self.next() {
            Some(found) if found == line => Ok(()),
            _ => Err(self.wrong(what)),
        }
    }

    /// The value of the next line if it has this keyword.
    fn option(&mut self, keyword: &str) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        let value = line.strip_prefix(keyword)?.strip_prefix(' ')?;
        self.rest = rest;
        self.line = self.line.saturating_add(1);
        Some(value)
    }

    /// The value of the next line, which must have this keyword.
    fn value(&mut self, keyword: &'static str) -> Result<&'a str, Malformed> {
        self.option(keyword).ok_or_else(|| self.wrong(keyword))
    }

    /// The value of the next line, parsed.
    fn parsed<T: FromStr>(&mut self, keyword: &'static str) -> Result<T, Malformed> {
        let wrong = self.wrong(keyword);
        self.value(keyword)?.parse().map_err(|_| wrong)
    }

    /// Whether the next line is this one; then it is taken.
    fn flag(&mut self, line: &str) -> bool {
        let rest = self.rest.strip_prefix(line);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix('\n')) else {
            return false;
        };
        self.rest = rest;
        self.line = self.line.saturating_add(1);
        true
    }

    fn next(&mut self) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        self.rest = rest;
        self.line = self.line.saturating_add(1);
        Some(line)
    }
}

// Ed25519 keys and signatures as documents, configuration files and URLs write them: `ed25519:` and base64url without padding.

/// An Ed25519 public key: who a relay or an authority is. `Debug` hides it (it ends in logs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

/// The text is no key or no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `ed25519:` and 32 bytes in base64url, as `hoplite keygen` prints them")]
pub struct KeyError;

/// Base64url without padding: for bytes that need no name.
fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    // A longer text is not decoded at all.
    (text.len() <= N.saturating_mul(2)).then_some(())?;
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = text.strip_prefix("ed25519:").and_then(decode);
        bytes.map(Self).ok_or(KeyError)
    }
}

/// Where an authority answers, and by what key it signs; `ed25519:…@host:port` in configuration files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Host and port of its HTTP.
    pub address: Target,
    /// Who it is.
    pub key: Key,
}

/// The text names no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"ed25519:…@host:port\"")]
pub struct SourceError;

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (key, address) = text.split_once('@').ok_or(SourceError)?;
        Ok(Self {
            address: address.parse().map_err(|_| SourceError)?,
            key: key.parse().map_err(|_| SourceError)?,
        })
    }
}

impl FromStr for Signature {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self).ok_or(KeyError)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ed25519:{}", encode(&self.0))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(hidden)")
    }
}

// To which ports an egress connects: the summary of its policy that path selection needs. Written `80,443,8000-8100`.

/// Ranges of ports in order, apart from each other, at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ports(Vec<(u16, u16)>);

/// Ranges of one relay.
const RANGES: usize = 64;

impl Ports {
    /// Every port.
    pub fn all() -> Self {
        Self(vec![(1, u16::MAX)])
    }

    /// All ports but these.
    pub fn except(closed: &[u16]) -> Option<Self> {
        let mut closed: Vec<u16> = closed.iter().copied().filter(|port| *port != 0).collect();
        closed.sort_unstable();
        let (mut open, mut from) = (Vec::new(), Some(1u16));
        for port in closed {
            let Some(start) = from else { break };
            if start < port {
                open.push((start, port.saturating_sub(1)));
            }
            from = port.checked_add(1).map(|next| next.max(start));
        }
        open.extend(from.map(|start| (start, u16::MAX)));
        Self::of(open)
    }

    /// All that are not among them.
    pub fn others(&self) -> Option<Self> {
        let (mut open, mut from) = (Vec::new(), Some(1u16));
        for (low, high) in &self.0 {
            let start = from.filter(|start| start < low);
            open.extend(start.map(|start| (start, low.saturating_sub(1))));
            from = high.checked_add(1);
        }
        open.extend(from.map(|start| (start, u16::MAX)));
        Self::of(open)
    }

    /// Whether `port` is among them.
    pub fn contains(&self, port: u16) -> bool {
        let mut ranges = self.0.iter();
        ranges.any(|(low, high)| (*low..=*high).contains(&port))
    }

    fn of(ranges: Vec<(u16, u16)>) -> Option<Self> {
        let bounded = (1..=RANGES).contains(&ranges.len());
        let ordered = ranges.iter().all(|(low, high)| 0 < *low && low <= high);
        let apart = ranges.windows(2).all(|pair| match pair {
            [(_, before), (low, _)] => before.checked_add(1).is_some_and(|next| next < *low),
            _ => true,
        });
        (bounded && ordered && apart).then_some(Self(ranges))
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    match text.split_once('-') {
        Some((low, high)) => Some((low.parse().ok()?, high.parse().ok()?)),
        None => text.parse().ok().map(|port| (port, port)),
    }
}

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let ranges: Option<Vec<_>> = text.split(',').take(RANGES + 1).map(range).collect();
        ranges.and_then(Self::of).ok_or(())
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (low, high)) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            if low == high {
                write!(f, "{low}")?
            } else {
                write!(f, "{low}-{high}")?
            }
        }
        Ok(())
    }
}

// A descriptor: what a relay says of itself, signed by its key. Authorities gather them, lists contain them whole, so that an
// authority can leave a relay out but not speak for it.

/// What a relay does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Roles {
    /// It forwards to other relays: first or inner hop.
    pub ingress: bool,
    /// It connects to targets: last hop.
    pub egress: bool,
}

/// What a relay says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What it calls itself: a word of 1 to 64 characters, not unique.
    pub name: String,
    /// Its Ed25519 key: who it is.
    pub identity: Key,
    /// When it said so, in seconds since 1970.
    pub published: u64,
    /// Where it listens, the best first, 1 to 4.
    pub addresses: Vec<SocketAddr>,
    /// The SHA-256 of its TLS key, by which MASQUE clients know it.
    pub pin: Option<[u8; 32]>,
    /// Its ntor onion key, by which circuits are extended to it.
    pub onion: Option<[u8; 32]>,
    /// What it does.
    pub roles: Roles,
    /// Where it stands: a word of 1 to 32 characters.
    pub region: Option<String>,
    /// Who runs it: a word of 1 to 64 characters.
    pub operator: Option<String>,
    /// Relays of the same operator; it counts where they say so too. In order.
    pub family: Vec<Key>,
    /// What it can carry, in bytes a second.
    pub bandwidth: u64,
    /// To which ports it connects; an egress has some, and nobody else.
    pub exit: Option<Ports>,
    /// The private tokens that let a client in, if it takes such.
    pub tokens: Option<Tokens>,
    /// It keeps descriptors of onion services (rend-spec-v3, "HSDir"); only who has an onion key does.
    pub hsdir: bool,
    /// Which subprotocols of Tor it speaks, of those that circuits choose by; only who has an onion key does.
    pub protocols: Protocols,
    /// At which port of its first address it gives the list of relays to whoever asks, if it does.
    pub cache: Option<u16>,
}

/// Which private tokens a relay takes: what stands in their challenge (RFC 9577 §2.1.1). Both are 1 to 255 visible ASCII characters without a comma.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tokens {
    /// Who issues them (`issuer_name`).
    pub issuer: String,
    /// The name that they are for, which several relays may share (`origin_info`).
    pub origin: String,
}

/// A descriptor with the signature of the relay's key, which has not been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedDescriptor {
    /// What it says.
    pub descriptor: Descriptor,
    /// Of the key that has signed it, by the identity (cert-spec, type 4); without one the identity itself has.
    pub certificate: Option<Vec<u8>>,
    /// Over [`Descriptor::text`].
    pub signature: Signature,
}

const DESCRIPTOR_HEAD: &str = "hoplite-descriptor 1";

/// A relay's line: it keeps descriptors of onion services of version 3.
const HSDIR: &str = "hsdir 3";

impl Descriptor {
    /// Where it gives the list of relays, if it does.
    pub fn cache_address(&self) -> Option<SocketAddr> {
        let first = self.addresses.first()?;
        Some(SocketAddr::new(first.ip(), self.cache?))
    }

    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// Whether it can be written so that it is read back.
    ///
    /// # Errors
    /// What stands in the way, as reading it would say.
    pub fn check(&self) -> Result<(), Malformed> {
        let text = self.text();
        let mut lines = Lines::of(&text, DESCRIPTOR)?;
        let again = Self::read(&mut lines)?;
        if again == *self && lines.is_done() {
            Ok(())
        } else {
            Err(lines.wrong("it cannot be written"))
        }
    }

    fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        lines.exactly(DESCRIPTOR_HEAD, "no descriptor of version 1")?;
        let descriptor = Self {
            name: word(lines, "name", 64)?.ok_or_else(|| lines.wrong("name"))?,
            identity: lines.parsed("identity")?,
            published: lines.parsed("published")?,
            addresses: addresses(lines)?,
            pin: bytes(lines, "pin", "sha256:")?,
            onion: bytes(lines, "onion", "ntor:")?,
            roles: roles(lines)?,
            region: word(lines, "region", 32)?,
            operator: word(lines, "operator", 64)?,
            family: family(lines)?,
            bandwidth: lines.parsed("bandwidth")?,
            exit: exit(lines)?,
            tokens: tokens(lines)?,
            hsdir: lines.flag(HSDIR),
            protocols: protocols(lines)?,
            cache: cache(lines)?,
        };
        if descriptor.roles.egress != descriptor.exit.is_some() {
            return Err(lines.wrong("an egress, and nobody else, says to which ports it connects"));
        }
        if descriptor.hsdir && descriptor.onion.is_none() {
            return Err(lines.wrong("who keeps descriptors of onion services has an onion key"));
        }
        if !descriptor.protocols.is_empty() && descriptor.onion.is_none() {
            return Err(lines.wrong("who speaks protocols of circuits has an onion key"));
        }
        Ok(descriptor)
    }
}

fn word(
    lines: &mut Lines<'_>,
    keyword: &'static str,
    most: usize,
) -> Result<Option<String>, Malformed> {
    match lines.option(keyword) {
        Some(value) if !is_word(value, most) => Err(lines.wrong(keyword)),
        value => Ok(value.map(str::to_owned)),
    }
}

/// Bytes of a certificate: one of type 4 has 140.
const CERTIFICATE: usize = 256;

fn certificate(lines: &mut Lines<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    let Some(text) = lines.option("certificate") else {
        return Ok(None);
    };
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let bytes = bytes.filter(|bytes| (1..=CERTIFICATE).contains(&bytes.len()));
    bytes.map(Some).ok_or_else(|| lines.wrong("certificate"))
}

fn addresses(lines: &mut Lines<'_>) -> Result<Vec<SocketAddr>, Malformed> {
    let mut addresses = Vec::new();
    while let Some(text) = lines.option("address") {
        let address = text.parse().ok().filter(is_usable);
        let address = address.ok_or_else(|| lines.wrong("address"))?;
        if addresses.len() == ADDRESSES || addresses.contains(&address) {
            return Err(lines.wrong("too many addresses, or one of them twice"));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        Err(lines.wrong("address"))
    } else {
        Ok(addresses)
    }
}

/// An address that one can connect to, and can write in one way only.
fn is_usable(address: &SocketAddr) -> bool {
    let ip = address.ip();
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0);
    address.port() != 0
        && ip == ip.to_canonical()
        && !scoped
        && !ip.is_unspecified()
        && !ip.is_multicast()
}

fn bytes(
    lines: &mut Lines<'_>,
    keyword: &'static str,
    prefix: &str,
) -> Result<Option<[u8; 32]>, Malformed> {
    let Some(value) = lines.option(keyword) else {
        return Ok(None);
    };
    let bytes = value.strip_prefix(prefix).and_then(decode);
    bytes.map(Some).ok_or_else(|| lines.wrong(keyword))
}

fn roles(lines: &mut Lines<'_>) -> Result<Roles, Malformed> {
    let (ingress, egress) = match lines.value("roles")? {
        "ingress" => (true, false),
        "egress" => (false, true),
        "ingress egress" => (true, true),
        _ => return Err(lines.wrong("roles")),
    };
    Ok(Roles { ingress, egress })
}

fn family(lines: &mut Lines<'_>) -> Result<Vec<Key>, Malformed> {
    let Some(value) = lines.option("family") else {
        return Ok(Vec::new());
    };
    let keys = value.split(' ').take(FAMILY + 1).map(str::parse);
    let keys: Vec<Key> = keys
        .collect::<Result<_, _>>()
        .map_err(|_| lines.wrong("family"))?;
    if keys.len() <= FAMILY && keys.is_sorted_by(|a, b| a < b) {
        Ok(keys)
    } else {
        Err(lines.wrong("too large a family, or not in order"))
    }
}

fn exit(lines: &mut Lines<'_>) -> Result<Option<Ports>, Malformed> {
    let Some(value) = lines.option("exit") else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|()| lines.wrong("exit"))
}

fn tokens(lines: &mut Lines<'_>) -> Result<Option<Tokens>, Malformed> {
    let Some(value) = lines.option("tokens") else {
        return Ok(None);
    };
    let is_name = |name: &&str| {
        let fine = |c: u8| c.is_ascii_graphic() && c != b',';
        (1..=TOKEN_NAME).contains(&name.len()) && name.bytes().all(fine)
    };
    let names = value.split_once(' ');
    let names = names.filter(|(issuer, origin)| is_name(issuer) && is_name(origin));
    let tokens = names.map(|(issuer, origin)| Tokens {
        issuer: issuer.to_owned(),
        origin: origin.to_owned(),
    });
    tokens.map(Some).ok_or_else(|| lines.wrong("tokens"))
}

fn cache(lines: &mut Lines<'_>) -> Result<Option<u16>, Malformed> {
    let Some(value) = lines.option("cache") else {
        return Ok(None);
    };
    let port = value.parse().ok();
    let port = port.filter(|port: &u16| *port > 0 && port.to_string() == value);
    port.map(Some).ok_or_else(|| lines.wrong("cache"))
}

fn protocols(lines: &mut Lines<'_>) -> Result<Protocols, Malformed> {
    let value = lines.option("protocols").map(str::parse);
    let value = value.transpose().map_err(|_| lines.wrong("protocols"))?;
    Ok(value.unwrap_or_default())
}

impl SignedDescriptor {
    /// Reads one, and nothing but it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, DESCRIPTOR)?;
        let signed = Self::read(&mut lines)?;
        if lines.is_done() && signed.to_string() == text {
            Ok(signed)
        } else {
            Err(lines.wrong("more than a descriptor, or not as it would be written"))
        }
    }

    fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            descriptor: Descriptor::read(lines)?,
            certificate: certificate(lines)?,
            signature: lines.parsed("signature")?,
        })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{DESCRIPTOR_HEAD}\nname {}\nidentity {}",
            self.name, self.identity
        )?;
        writeln!(f, "published {}", self.published)?;
        for address in &self.addresses {
            writeln!(f, "address {address}")?;
        }
        if let Some(pin) = &self.pin {
            writeln!(f, "pin sha256:{}", encode(pin))?;
        }
        if let Some(onion) = &self.onion {
            writeln!(f, "onion ntor:{}", encode(onion))?;
        }
        writeln!(f, "roles {}", self.roles)?;
        if let Some(region) = &self.region {
            writeln!(f, "region {region}")?;
        }
        if let Some(operator) = &self.operator {
            writeln!(f, "operator {operator}")?;
        }
        if !self.family.is_empty() {
            f.write_str("family")?;
            self.family.iter().try_for_each(|key| write!(f, " {key}"))?;
            f.write_char('\n')?;
        }
        writeln!(f, "bandwidth {}", self.bandwidth)?;
        if let Some(ports) = &self.exit {
            writeln!(f, "exit {ports}")?;
        }
        if let Some(Tokens { issuer, origin }) = &self.tokens {
            writeln!(f, "tokens {issuer} {origin}")?;
        }
        if self.hsdir {
            writeln!(f, "{HSDIR}")?;
        }
        if !self.protocols.is_empty() {
            writeln!(f, "protocols {}", self.protocols)?;
        }
        if let Some(port) = self.cache {
            writeln!(f, "cache {port}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ingress, self.egress) {
            (true, true) => "ingress egress",
            (true, false) => "ingress",
            (false, true) => "egress",
            (false, false) => "",
        })
    }
}

impl fmt::Display for SignedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.descriptor)?;
        if let Some(certificate) = &self.certificate {
            writeln!(f, "certificate {}", encode(certificate))?;
        }
        writeln!(f, "signature {}", self.signature)
    }
}

// A list: the relays that authorities agree on, and for when. A vote is one authority's own view in the same form.

/// How far a list has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What one authority would have in it.
    Vote,
    /// What a majority has.
    List,
}

/// Relays, and for when. All times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Vote or list.
    pub stage: Stage,
    /// From when it holds; it is also its number: a later one replaces it.
    pub valid_after: u64,
    /// When there should be another.
    pub fresh_until: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// Numbers that all clients should use, by name.
    pub params: BTreeMap<String, u64>,
    /// Shared random values, and what the next is made of.
    pub shared_random: SharedRandomLines,
    /// The relays, by identity.
    pub relays: Vec<SignedDescriptor>,
    /// What the authorities say of those of whom they say anything.
    pub opinions: BTreeMap<Key, Opinion>,
}

/// A list with signatures, none of which has been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedList {
    /// What it says.
    pub list: List,
    /// Over [`List::text`], by authority.
    pub signatures: BTreeMap<Key, Signature>,
}

impl Stage {
    /// The first line of such a document.
    pub fn head_line(self) -> String {
        format!("{}\n", self.head())
    }

    fn head(self) -> &'static str {
        match self {
            Self::Vote => "hoplite-vote 1",
            Self::List => "hoplite-list 1",
        }
    }
}

impl List {
    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// What the authorities say of a relay.
    pub fn opinion(&self, relay: &Key) -> Opinion {
        self.opinions.get(relay).copied().unwrap_or_default()
    }

    /// The relays that have these flags.
    pub fn flagged(&self, flags: RelayFlags) -> impl Iterator<Item = &Key> {
        let opinions = self.opinions.iter();
        let flagged = opinions.filter(move |(_, opinion)| opinion.flags.has(flags));
        flagged.map(|(relay, _)| relay)
    }

    fn read(lines: &mut Lines<'_>, stage: Stage) -> Result<Self, Malformed> {
        lines.exactly(stage.head(), "no list or vote of version 1")?;
        let (valid_after, fresh_until, valid_until) = (
            lines.parsed("valid-after")?,
            lines.parsed("fresh-until")?,
            lines.parsed("valid-until")?,
        );
        let (params, shared_random) = (params(lines)?, SharedRandomLines::read(lines)?);
        if stage == Stage::List && shared_random.own.is_some() {
            return Err(lines.wrong("a list has no shared random value of its own"));
        }
        let (relays, opinions) = relays(lines)?;
        let list = Self {
            stage,
            valid_after,
            fresh_until,
            valid_until,
            params,
            shared_random,
            relays,
            opinions,
        };
        let (after, fresh, until) = (list.valid_after, list.fresh_until, list.valid_until);
        if after < fresh && fresh <= until {
            Ok(list)
        } else {
            Err(lines.wrong("its times are not in order"))
        }
    }
}

fn params(lines: &mut Lines<'_>) -> Result<BTreeMap<String, u64>, Malformed> {
    let mut params = BTreeMap::new();
    while let Some(value) = lines.option("param") {
        let (name, number) = value.split_once(' ').ok_or_else(|| lines.wrong("param"))?;
        let number = number.parse().map_err(|_| lines.wrong("param"))?;
        if !is_word(name, 32) || params.len() == PARAMS {
            return Err(lines.wrong("param"));
        }
        params.insert(name.to_owned(), number);
    }
    Ok(params)
}

fn relays(
    lines: &mut Lines<'_>,
) -> Result<(Vec<SignedDescriptor>, BTreeMap<Key, Opinion>), Malformed> {
    let count: usize = lines.parsed("relays")?;
    if count > RELAYS {
        return Err(lines.wrong("too many relays"));
    }
    let (mut relays, mut opinions) = (Vec::<SignedDescriptor>::new(), BTreeMap::new());
    for _ in 0..count {
        let relay = SignedDescriptor::read(lines)?;
        let last = relays.last().map(|last| last.descriptor.identity);
        if last.is_some_and(|last| last >= relay.descriptor.identity) {
            return Err(lines.wrong("a relay stands twice, or they are not in order"));
        }
        let opinion = Opinion::read(lines)?;
        if opinion.flags.has(RelayFlags::HSDIR) && !relay.descriptor.hsdir {
            return Err(lines.wrong("an HSDir flag of who keeps no descriptors"));
        }
        if !opinion.is_nothing() {
            opinions.insert(relay.descriptor.identity, opinion);
        }
        relays.push(relay);
    }
    Ok((relays, opinions))
}

fn signatures(lines: &mut Lines<'_>) -> Result<BTreeMap<Key, Signature>, Malformed> {
    let mut signatures = BTreeMap::new();
    while let Some(value) = lines.option("signed") {
        let (key, signature) = value.split_once(' ').ok_or_else(|| lines.wrong("signed"))?;
        let key: Key = key.parse().map_err(|_| lines.wrong("signed"))?;
        let signature = signature.parse().map_err(|_| lines.wrong("signed"))?;
        if signatures.len() == AUTHORITIES {
            return Err(lines.wrong("too many signatures"));
        }
        signatures.insert(key, signature);
    }
    Ok(signatures)
}

/// What is signed and by whom, without reading what it says: for who only has to compare. The last lines must be signatures as they would be
/// written.
///
/// # Errors
/// What is wrong with them; the line is counted from the first signature.
pub fn split_signed(text: &str) -> Result<(&str, BTreeMap<Key, Signature>), Malformed> {
    let lines = text.split_inclusive('\n').rev();
    let signed = lines.take_while(|line| line.starts_with("signed "));
    let tail = signed.take(AUTHORITIES.saturating_add(1)).map(str::len);
    let end = text.len().saturating_sub(tail.sum());
    let (body, tail) = text.split_at_checked(end).unwrap_or((text, ""));
    let mut lines = Lines::of(tail, LIST)?;
    let found = signatures(&mut lines)?;
    if lines.is_done() && write_signatures(&found) == tail {
        Ok((body, found))
    } else {
        Err(lines.wrong("no signatures, or not as they would be written"))
    }
}

/// The lines `signed KEY SIGNATURE` below what is signed.
pub fn write_signatures(signatures: &BTreeMap<Key, Signature>) -> String {
    let line = |(key, signature)| format!("signed {key} {signature}\n");
    signatures.iter().map(line).collect()
}

impl SignedList {
    /// Reads a list or a vote, and nothing but it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str, stage: Stage) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, LIST)?;
        let signed = Self {
            list: List::read(&mut lines, stage)?,
            signatures: signatures(&mut lines)?,
        };
        if lines.is_done() && signed.to_string() == text {
            Ok(signed)
        } else {
            Err(lines.wrong("more than a list, or not as it would be written"))
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.stage.head())?;
        writeln!(f, "valid-after {}", self.valid_after)?;
        writeln!(f, "fresh-until {}", self.fresh_until)?;
        writeln!(f, "valid-until {}", self.valid_until)?;
        for (name, number) in &self.params {
            writeln!(f, "param {name} {number}")?;
        }
        self.shared_random.fmt(f)?;
        writeln!(f, "relays {}", self.relays.len())?;
        for relay in &self.relays {
            relay.fmt(f)?;
            self.opinion(&relay.descriptor.identity).fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for SignedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)?;
        f.write_str(&write_signatures(&self.signatures))
    }
}

// Commitments: by which vote an authority stands, told before any vote is shown, and who holds that vote too. Authorities hand them on to each
// other with every signature that they know, so that who tells two of them two things is seen by all. docs/directory.md, "How authorities agree".

/// Commitments of one voter that are kept and told: two prove that it is two-faced.
pub const COMMITMENTS_PER_VOTER: usize = 2;

const COMMITMENT_HEAD: &str = "hoplite-commitment 1";

/// What an authority votes for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Commitment {
    /// The period.
    pub valid_after: u64,
    /// Whose vote.
    pub voter: Key,
    /// The SHA-256 of the vote's whole text.
    pub vote: [u8; 32],
}

/// Commitments of one period, none of whose signatures has been checked by reading them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commitments {
    /// Each with its signatures, by authority: the voter's makes it a commitment, another's says that its signer holds the vote.
    pub all: BTreeMap<Commitment, BTreeMap<Key, Signature>>,
}

impl Commitment {
    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        lines.exactly(COMMITMENT_HEAD, "no commitment of version 1")?;
        let (valid_after, voter) = (lines.parsed("valid-after")?, lines.parsed("voter")?);
        let vote = lines.value("vote")?.strip_prefix("sha256:");
        Ok(Self {
            valid_after,
            voter,
            vote: vote.and_then(decode).ok_or_else(|| lines.wrong("vote"))?,
        })
    }
}

impl Commitments {
    /// Reads some, and nothing but them: all of one period, in order, at most two of one voter.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, COMMITMENTS)?;
        let mut found = Self::default();
        while !lines.is_done() {
            let commitment = Commitment::read(&mut lines)?;
            found.fits(&commitment).map_err(|why| lines.wrong(why))?;
            let signatures = signatures(&mut lines)?;
            found.all.insert(commitment, signatures);
        }
        if found.to_string() == text {
            Ok(found)
        } else {
            Err(lines.wrong("not as it would be written"))
        }
    }

    fn fits(&self, next: &Commitment) -> Result<(), &'static str> {
        let last = self.all.last_key_value().map(|(last, _)| last);
        let own = self.all.keys().filter(|other| other.voter == next.voter);
        match last {
            _ if self.all.len() >= AUTHORITIES * COMMITMENTS_PER_VOTER => {
                Err("too many commitments")
            }
            Some(last) if last.valid_after != next.valid_after => Err("of another period"),
            Some(last) if last >= next => {
                Err("a commitment stands twice, or they are not in order")
            }
            _ if own.count() >= COMMITMENTS_PER_VOTER => {
                Err("more than two commitments of one voter")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Commitment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{COMMITMENT_HEAD}\nvalid-after {}", self.valid_after)?;
        writeln!(
            f,
            "voter {}\nvote sha256:{}",
            self.voter,
            encode(&self.vote)
        )
    }
}

impl fmt::Display for Commitments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (commitment, signatures) in &self.all {
            commitment.fmt(f)?;
            f.write_str(&write_signatures(signatures))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
