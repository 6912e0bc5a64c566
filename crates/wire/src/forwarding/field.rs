//! The fields Proxy-QUIC-Forwarding and Proxy-QUIC-Port-Sharing.
//! Heads carry them: [`RequestHead::offer`](crate::RequestHead::offer), [`ResponseHead::answer`](crate::ResponseHead::answer).
//! draft-ietf-masque-quic-proxy, "Proxy-QUIC-Forwarding Header", "Proxy-QUIC-Port-Sharing Header"; RFC 8941.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::fmt;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use zeroize::Zeroizing;

use crate::{RequestHead, ResponseHead};

/// The field that offers and selects a transform.
pub const FORWARDING: &str = "proxy-quic-forwarding";

/// The field about sharing ports between flows; it is never offered here, and always answered `?0`.
pub const PORT_SHARING: &str = "proxy-quic-port-sharing";

/// "parsers SHOULD NOT fail to parse" without padding or with odd padding bits (RFC 8941 §4.2.7).
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// How packets are changed between client and relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Not at all: who sees both sides of a relay can match packets by their bytes.
    Identity,
    /// Re-encrypted without authentication, by the version of the draft's design team.
    Scramble,
}

impl Transform {
    /// Its name in fields and configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Scramble => "scramble-dt",
        }
    }

    /// The transform called so.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        [Self::Identity, Self::Scramble]
            .into_iter()
            .find(|transform| transform.name().as_bytes() == name)
    }
}

/// With which one side scrambles what it sends. Wiped from memory, never printed.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// Takes the bytes over.
    pub const fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// The bytes, for the cipher and nothing else.
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let mut bytes = Zeroizing::new([0; 36]);
        let length = BASE64.decode_slice(text, bytes.as_mut_slice()).ok()?;
        let bytes = bytes.get(..length)?.try_into().ok()?;
        Some(Self(Zeroizing::new(bytes)))
    }

    fn write(&self, out: &mut String) {
        out.push_str("; scramble-key=:");
        BASE64.encode_string(self.reveal(), out);
        out.push(':');
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// What a client offers.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// In order of preference; names that we do not know are left out. Empty: it wants no forwarding.
    pub transforms: Vec<Transform>,
    /// With which the client will scramble.
    pub key: Option<Key>,
}

/// What a relay selects.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The transform, and the key with which the relay will scramble; none: no forwarding.
    pub transform: Option<(Transform, Option<Key>)>,
}

/// "If the client receives a transform that it did not advertise support for, it MUST abort the request."
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relay selected a packet transform that it was not offered")]
pub struct NotOffered;

impl Offer {
    /// Reads the request's field; `None`: "ignore the header and respond as if the client had not sent" it.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (mut accepted, mut key) = (None, None);
        let wanted = boolean(value, |name, value| match (name, value) {
            (b"accept-transform", Bare::String(names)) => accepted = Some(names),
            (b"accept-transform", _) => accepted = None,
            (b"scramble-key", Bare::Binary(text)) => key = Key::decode(text),
            (b"scramble-key", _) => key = None,
            _ => {}
        })?;
        match (wanted, accepted) {
            (false, _) => Some(Self::default()),
            (true, None) => None,
            (true, Some(names)) => {
                let transforms = known(names);
                Some(Self { transforms, key })
            }
        }
    }

    /// The field's value.
    pub fn write(&self) -> String {
        if self.transforms.is_empty() {
            return "?0".into();
        }
        let names: Vec<_> = self.transforms.iter().map(|one| one.name()).collect();
        let mut out = String::with_capacity(128);
        out.push_str("?1; accept-transform=\"");
        out.push_str(&names.join(","));
        out.push('"');
        if let Some(key) = &self.key {
            key.write(&mut out);
        }
        out
    }

    /// The relay's end: the first transform that `allowed` has too.
    /// "If either side receives a `scramble` transform without the "scramble-key" parameter, forwarded mode MUST be disabled."
    pub fn select(&self, allowed: &[Transform]) -> Option<Transform> {
        let broken = self.transforms.contains(&Transform::Scramble) && self.key.is_none();
        let mut offered = self.transforms.iter().copied().filter(|_| !broken);
        offered.find(|transform| allowed.contains(transform))
    }
}

impl Answer {
    /// Reads the response's field. A value that cannot be read, or scramble without a key, is no forwarding.
    ///
    /// # Errors
    /// The transform was not `offered`.
    pub fn parse(value: &[u8], offered: &[Transform]) -> Result<Self, NotOffered> {
        let (mut selected, mut key) = (None, None);
        let forwards = boolean(value, |name, value| match (name, value) {
            (b"transform", Bare::String(name)) => selected = Some(name),
            (b"transform", _) => selected = None,
            (b"scramble-key", Bare::Binary(text)) => key = Key::decode(text),
            (b"scramble-key", _) => key = None,
            _ => {}
        });
        let (Some(true), Some(name)) = (forwards, selected) else {
            return Ok(Self::default());
        };
        let transform = Transform::from_name(name)
            .filter(|transform| offered.contains(transform))
            .ok_or(NotOffered)?;
        let transform = match (transform, key) {
            (Transform::Scramble, None) => None,
            (Transform::Identity, _) => Some((transform, None)),
            (Transform::Scramble, key) => Some((transform, key)),
        };
        Ok(Self { transform })
    }

    /// The field's value.
    pub fn write(&self) -> String {
        let Some((transform, key)) = &self.transform else {
            return "?0".into();
        };
        let mut out = String::with_capacity(128);
        out.push_str("?1; transform=\"");
        out.push_str(transform.name());
        out.push('"');
        if let Some(key) = key {
            key.write(&mut out);
        }
        out
    }
}

/// The transforms among comma-separated names, each once.
fn known(names: &[u8]) -> Vec<Transform> {
    let mut transforms = Vec::new();
    let names = names.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    for transform in names.filter_map(Transform::from_name) {
        if !transforms.contains(&transform) {
            transforms.push(transform);
        }
    }
    transforms
}

impl RequestHead {
    /// Adds the field that offers forwarding.
    #[must_use]
    pub fn with_offer(self, offer: &Offer) -> Self {
        self.with(FORWARDING, wiped(offer.write()).as_bytes())
    }

    /// What the client offers; `None` without the field, or if it is not what it should be.
    pub fn offer(&self) -> Option<Offer> {
        Offer::parse(only(&self.headers, FORWARDING)?)
    }

    /// Whether the client lets its port at the relay be shared; `None` if it does not say.
    pub fn port_sharing(&self) -> Option<bool> {
        boolean(only(&self.headers, PORT_SHARING)?, |_, _| {})
    }
}

impl ResponseHead {
    /// Adds the field that selects a transform or none.
    #[must_use]
    pub fn with_answer(self, answer: &Answer) -> Self {
        self.with(FORWARDING, wiped(answer.write()).as_bytes())
    }

    /// Adds the field that says that no port is shared.
    #[must_use]
    pub fn without_port_sharing(self) -> Self {
        self.with(PORT_SHARING, "?0")
    }

    /// What the relay selects out of the `offered`; no forwarding without the field.
    ///
    /// # Errors
    /// The transform was not offered: the request has to be aborted.
    pub fn answer(&self, offered: &[Transform]) -> Result<Answer, NotOffered> {
        match only(&self.headers, FORWARDING) {
            Some(value) => Answer::parse(value, offered),
            None => Ok(Answer::default()),
        }
    }

    /// Whether the relay shares ports; `None` if it does not say.
    pub fn port_sharing(&self) -> Option<bool> {
        boolean(only(&self.headers, PORT_SHARING)?, |_, _| {})
    }
}

/// A text with a key in it.
fn wiped(text: String) -> Zeroizing<String> {
    Zeroizing::new(text)
}

/// The value of a field that stands there once: lines of an item cannot be joined.
pub(crate) fn only<'a>(headers: &'a [crate::http_head::Header], name: &str) -> Option<&'a [u8]> {
    let mut lines = headers.iter().filter(|(line, _)| line == name);
    let (_, value) = lines.next()?;
    lines.next().is_none().then_some(value)
}

// Structured fields that are one boolean with parameters. What is no such item is as if the field were not there.
// RFC 8941 §4.2 (parsing; "parsing MUST fail" is `None` here).

/// A parameter's value, as far as somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare<'a> {
    /// A string, still with its backslashes.
    String(&'a [u8]),
    /// A byte sequence, still in base64.
    Binary(&'a [u8]),
    Boolean(bool),
    /// An integer that is not negative.
    Integer(u64),
    /// Another number, or a token.
    Other,
}

/// Reads the bytes of a field's value.
struct Reader<'a>(&'a [u8]);

/// The boolean; `parameter` is told of each parameter in order: "if there are duplicates, the last one is used".
pub(crate) fn boolean<'a>(
    value: &'a [u8],
    mut parameter: impl FnMut(&'a [u8], Bare<'a>),
) -> Option<bool> {
    let mut reader = Reader(value);
    reader.skip_spaces();
    let Bare::Boolean(item) = reader.bare()? else {
        return None;
    };
    reader.parameters(&mut parameter)?;
    reader.skip_spaces();
    reader.0.is_empty().then_some(item)
}

/// The strings of a List that has nothing else, still with their backslashes; what parameters say is passed over. RFC 9651 §4.2.1.
pub(crate) fn strings(value: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = Reader(value);
    let mut strings = Vec::new();
    reader.skip_spaces();
    loop {
        let Bare::String(string) = reader.bare()? else {
            return None;
        };
        strings.push(string);
        reader.parameters(&mut |_, _| {})?;
        reader.skip_white();
        if reader.0.is_empty() {
            return Some(strings);
        }
        reader.take(b',').then_some(())?;
        reader.skip_white();
    }
}

/// The Inner Lists of a List that has nothing else, of integers that are not negative; what parameters say is passed over. RFC 9651 §4.2.1.2.
/// Commas within an Inner List, which are an error there, are passed over like spaces: a draft writes them so.
pub(crate) fn inner_lists(value: &[u8]) -> Option<Vec<Vec<u64>>> {
    let mut reader = Reader(value);
    let mut lists = Vec::new();
    reader.skip_spaces();
    loop {
        lists.push(reader.inner_list()?);
        reader.parameters(&mut |_, _| {})?;
        reader.skip_white();
        if reader.0.is_empty() {
            return Some(lists);
        }
        reader.take(b',').then_some(())?;
        reader.skip_white();
    }
}

impl<'a> Reader<'a> {
    fn inner_list(&mut self) -> Option<Vec<u64>> {
        self.take(b'(').then_some(())?;
        let mut list = Vec::new();
        loop {
            while self.take(b' ') || self.take(b',') {}
            if self.take(b')') {
                return Some(list);
            }
            let Bare::Integer(integer) = self.bare()? else {
                return None;
            };
            list.push(integer);
            self.parameters(&mut |_, _| {})?;
            matches!(self.peek()?, b' ' | b',' | b')').then_some(())?;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        match self.0.split_first() {
            Some((first, rest)) if *first == byte => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    fn skip_spaces(&mut self) {
        while self.take(b' ') {}
    }

    /// "Discard any leading OWS characters": tabs, too.
    fn skip_white(&mut self) {
        while self.take(b' ') || self.take(b'\t') {}
    }

    fn parameters(&mut self, told: &mut impl FnMut(&'a [u8], Bare<'a>)) -> Option<()> {
        while self.take(b';') {
            self.skip_spaces();
            let key = self.key()?;
            let value = if self.take(b'=') {
                self.bare()?
            } else {
                Bare::Boolean(true)
            };
            told(key, value);
        }
        Some(())
    }

    /// The bytes up to the first that is not `fine`.
    fn run(&mut self, fine: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !fine(*byte));
        let (run, rest) = self
            .0
            .split_at_checked(end.unwrap_or(self.0.len()))
            .unwrap_or_default();
        self.0 = rest;
        run
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let fine = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        };
        let starts = self
            .peek()
            .is_some_and(|first| first.is_ascii_lowercase() || first == b'*');
        starts.then(|| self.run(fine))
    }

    fn bare(&mut self) -> Option<Bare<'a>> {
        match self.peek()? {
            b'?' => self.flag(),
            b'"' => self.string(),
            b':' => self.binary(),
            b'-' | b'0'..=b'9' => self.number(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                self.run(|byte| is_token(byte) || b":/".contains(&byte));
                Some(Bare::Other)
            }
            _ => None,
        }
    }

    fn flag(&mut self) -> Option<Bare<'a>> {
        self.take(b'?');
        match (self.take(b'1'), self.peek()) {
            (true, _) => Some(Bare::Boolean(true)),
            (false, Some(b'0')) => {
                self.take(b'0');
                Some(Bare::Boolean(false))
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<Bare<'a>> {
        self.take(b'"');
        let start = self.0;
        while self.peek()? != b'"' {
            let escaped = self.take(b'\\');
            let (byte, rest) = self.0.split_first()?;
            let fine = if escaped {
                matches!(byte, b'"' | b'\\')
            } else {
                matches!(byte, b' '..=b'~')
            };
            self.0 = rest;
            if !fine {
                return None;
            }
        }
        let length = start.len().checked_sub(self.0.len())?;
        self.take(b'"');
        start.get(..length).map(Bare::String)
    }

    fn binary(&mut self) -> Option<Bare<'a>> {
        self.take(b':');
        let text = self.run(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.take(b':').then_some(Bare::Binary(text))
    }

    /// At most 15 digits, or 12 with up to 3 behind the point.
    fn number(&mut self) -> Option<Bare<'a>> {
        let is_negative = self.take(b'-');
        let whole = self.run(|byte| byte.is_ascii_digit());
        if self.take(b'.') {
            let part = self.run(|byte| byte.is_ascii_digit()).len();
            return matches!((whole.len(), part), (1..=12, 1..=3)).then_some(Bare::Other);
        }
        if !matches!(whole.len(), 1..=15) {
            return None;
        }
        let integer = std::str::from_utf8(whole).ok()?.parse().ok()?;
        Some(if is_negative {
            Bare::Other
        } else {
            Bare::Integer(integer)
        })
    }
}

/// `tchar` of RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
