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

use super::item::{self, Bare};
use crate::{RequestHead, ResponseHead};

#[cfg(test)]
mod tests;

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
    /// Not at all: who sees both sides of a relay can match packets by their octets.
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
    /// Takes the octets over.
    pub const fn new(octets: Zeroizing<[u8; 32]>) -> Self {
        Self(octets)
    }

    /// The octets, for the cipher and nothing else.
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let mut octets = Zeroizing::new([0; 36]);
        let length = BASE64.decode_slice(text, octets.as_mut_slice()).ok()?;
        let octets = octets.get(..length)?.try_into().ok()?;
        Some(Self(Zeroizing::new(octets)))
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
        let wanted = item::boolean(value, |name, value| match (name, value) {
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
        let forwards = item::boolean(value, |name, value| match (name, value) {
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
    let names = names.split(|octet| *octet == b',').map(<[u8]>::trim_ascii);
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
        item::boolean(only(&self.headers, PORT_SHARING)?, |_, _| {})
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
        item::boolean(only(&self.headers, PORT_SHARING)?, |_, _| {})
    }
}

/// A text with a key in it.
fn wiped(text: String) -> Zeroizing<String> {
    Zeroizing::new(text)
}

/// The value of a field that stands there once: lines of an item cannot be joined.
fn only<'a>(headers: &'a [crate::message::Header], name: &str) -> Option<&'a [u8]> {
    let mut lines = headers.iter().filter(|(line, _)| line == name);
    let (_, value) = lines.next()?;
    lines.next().is_none().then_some(value)
}
