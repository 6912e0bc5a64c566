//! A consensus in the microdescriptor flavour: which relays there are, what the authorities think of them, and what all clients should do.
//! dir-spec "Network status consensus", "Microdescriptor consensus".

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

use super::{
    AUTHORITIES, PARAMS, ROUTERS,
    items::{Item, Items, base64, encode, hex},
    time,
};
use crate::directory::{ADDRESSES, Malformed};

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
    /// Its relays.
    pub routers: Vec<Router>,
    /// How much of a relay's bandwidth counts in each position (`Wgg` and so on), in ten-thousandths.
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
    /// What it can carry, in thousands of octets a second, or a weight like it.
    pub bandwidth: u64,
    /// It speaks ntor-v3 (`Relay=4`).
    pub ntor3: bool,
    /// It has congestion control (`FlowCtrl=2`).
    pub congestion_control: bool,
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
        let whole = reading.whole(signed).ok_or(lacks)?;
        let (after, fresh, until) = (whole.valid_after, whole.fresh_until, whole.valid_until);
        match after < fresh && fresh <= until {
            true => Ok(whole),
            false => Err(items.wrong("its times are not in order")),
        }
    }

    /// What a client asks a directory for, to get these microdescriptors.
    pub fn request(digests: &[[u8; 32]]) -> String {
        let digests: Vec<_> = digests.iter().map(|digest| encode(digest)).collect();
        format!("/tor/micro/d/{}", digests.join("-"))
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    is_consensus: bool,
    valid_after: Option<u64>,
    fresh_until: Option<u64>,
    valid_until: Option<u64>,
    params: BTreeMap<String, i32>,
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
        if item.keyword == "directory-signature" {
            return self.signature(item, items);
        }
        if self.signed.is_some() {
            return Err(items.wrong("what nobody has signed"));
        }
        let wrong = items.wrong("consensus");
        match item.keyword {
            "vote-status" => self.is_consensus = item.arguments.trim() == "consensus",
            "valid-after" => self.valid_after = Some(time::seconds(item.arguments).ok_or(wrong)?),
            "fresh-until" => self.fresh_until = Some(time::seconds(item.arguments).ok_or(wrong)?),
            "valid-until" => self.valid_until = Some(time::seconds(item.arguments).ok_or(wrong)?),
            "params" => self.params = numbers(item.arguments).ok_or(wrong)?,
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
        let ["sha256", authority, key] = words[..] else {
            // Another hash, or SHA-1, which is not named.
            return Ok(());
        };
        self.signatures.push(Signature {
            authority: hex(authority).ok_or(wrong)?,
            key: hex(key).ok_or(wrong)?,
            signature: item.octets(items)?,
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
            }
            _ => {}
        }
        Some(())
    }
}

/// Whether `Name=1-2,4` has this version. tor-spec "Subprotocol versioning".
fn speaks(protocols: &str, name: &str, version: u32) -> bool {
    let mut all = protocols.split_ascii_whitespace();
    let versions = all.find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
    let mut ranges = versions.unwrap_or_default().split(',');
    ranges.any(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let between = |low: u32, high: u32| (low..=high).contains(&version);
        let parsed = (u32::from_str(low), u32::from_str(high));
        matches!(parsed, (Ok(low), Ok(high)) if between(low, high))
    })
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
