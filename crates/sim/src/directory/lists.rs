//! The lists of ours of one network, an hour after the other, as authorities make and sign them, and what relays that keep them answer: `ListCache`,
//! which relays have. docs/directory.md, "What is written" and "Caches".

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use hoplite_crypto::{SigningKey, onion::rsa::sha256};
use hoplite_directory::{ListCache, sign_descriptor};
use hoplite_wire::{
    Protocols,
    content_coding::Encoding,
    directory::{
        Descriptor, Key, List, Opinion, Ports, RelayFlags, Roles, SharedRandomLines, Signature,
        SignedDescriptor, SignedList, Stage,
    },
    tor::Flags,
};
use zeroize::Zeroizing;

use super::{
    Settings, Wrong, lifetime,
    population::{Listed, Named, Population, Relay},
};
use crate::random::Random;

/// The port at which caches answer.
const CACHE_PORT: u16 = 9031;

/// What is given of lists.
#[derive(Debug)]
pub struct Lists {
    /// By the hour.
    hours: Vec<Given>,
}

#[derive(Debug)]
struct Given {
    list: SignedList,
    /// SHA-256 of it without its signatures.
    hash: [u8; 32],
    /// What relays have that have been there from the beginning.
    cache: ListCache,
}

impl Lists {
    /// Signs and writes all of them.
    ///
    /// # Errors
    /// Something cannot be signed or written: a bug.
    pub fn made(population: &Population, settings: &Settings) -> Result<Self, Wrong> {
        let authorities =
            (0..settings.authorities).map(|number| key(settings, "authority", number));
        let authorities = authorities.collect::<Result<Vec<_>, _>>()?;
        let mut signed = Descriptors::new(settings);
        let mut hours: Vec<Given> = Vec::with_capacity(settings.hours);
        for (hour, listed) in population.hours.iter().enumerate() {
            let list = list(hour, listed, population, &mut signed)?;
            let text = list.text();
            let sign = |key: &SigningKey| (Key(key.public()), Signature(key.sign(text.as_bytes())));
            let list = SignedList {
                signatures: authorities.iter().map(sign).collect(),
                list,
            };
            let before = hours.last().map(|given| given.cache.clone());
            hours.push(Given {
                hash: sha256(text.as_bytes()),
                cache: before.unwrap_or_default().with(list.to_string()),
                list,
            });
        }
        Ok(Self { hours })
    }

    /// The list of an hour.
    pub fn list(&self, hour: usize) -> Option<&SignedList> {
        self.hours.get(hour).map(|given| &given.list)
    }

    /// Bytes of an hour's list, compressed.
    pub fn whole(&self, hour: usize) -> u64 {
        self.answer(&[], hour)
    }

    /// Bytes that who has the list of an hour answers to who has earlier ones, or this, the dearest first, and says so; compressed.
    pub fn difference(&self, from: &[usize], hour: usize) -> u64 {
        let known = from.iter().filter_map(|from| self.hours.get(*from));
        let known: Vec<_> = known.map(|given| given.hash).collect();
        self.answer(&known, hour)
    }

    fn answer(&self, known: &[[u8; 32]], hour: usize) -> u64 {
        let given = self.hours.get(hour);
        let Some(answer) = given.and_then(|given| given.cache.answer(known)) else {
            return 0;
        };
        let [deflated, ..] = answer.parts(Encoding::Deflate);
        u64::try_from(deflated.len()).unwrap_or(u64::MAX)
    }
}

fn key(settings: &Settings, purpose: &str, number: usize) -> Result<SigningKey, Wrong> {
    let seed = Random::new(settings.seed, purpose, number).bytes();
    SigningKey::from_seed(Zeroizing::new(seed)).map_err(|_| Wrong("a key cannot be made"))
}

/// What relays say of themselves, each of it signed once.
struct Descriptors<'a> {
    settings: &'a Settings,
    /// By the relay, with when its onion key was which.
    last: HashMap<usize, (u64, SignedDescriptor)>,
}

impl<'a> Descriptors<'a> {
    fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            last: HashMap::new(),
        }
    }

    fn of(&mut self, listed: &Listed, population: &Population) -> Result<SignedDescriptor, Wrong> {
        let known = self.last.get(&listed.relay);
        let same = known.filter(|(onion, signed)| {
            *onion == listed.onion && signed.descriptor.published == listed.published
        });
        if let Some((_, signed)) = same {
            return Ok(signed.clone());
        }
        let relay = population.relays.get(listed.relay);
        let relay = relay.ok_or(Wrong("a list has a relay that is not there"))?;
        let said = said(listed, relay, self.settings.seed);
        let key = key(self.settings, "identity", listed.relay)?;
        let signed = sign_descriptor(said, &key);
        let signed = signed.map_err(|_| Wrong("a descriptor cannot be written"))?;
        self.last
            .insert(listed.relay, (listed.onion, signed.clone()));
        Ok(signed)
    }
}

fn said(listed: &Listed, relay: &Relay, seed: u64) -> Descriptor {
    let (number, flags) = (listed.relay, relay.member.flags);
    let onion = Random::new(seed, &format!("onion key {}", listed.onion), number).bytes();
    let egress = flags.has(Flags::EXIT) && !flags.has(Flags::BAD_EXIT);
    let named = Named::of(number, seed);
    let addresses = [Some(IpAddr::V4(named.v4)), named.v6.map(IpAddr::V6)];
    let addresses = addresses.into_iter().flatten();
    let addresses = addresses.map(|address| (address, named.port).into());
    Descriptor {
        name: named.nickname,
        // Signing puts it in.
        identity: Key([0; 32]),
        published: listed.published,
        addresses: addresses.collect(),
        pin: None,
        onion: Some(onion),
        roles: Roles {
            ingress: true,
            egress,
        },
        region: Some("de".to_owned()),
        operator: Some(format!("operator{}.example.org", number / 4)),
        family: Vec::new(),
        bandwidth: relay.member.weight.saturating_mul(1000),
        exit: Ports::except(&[25]).filter(|_| egress),
        tokens: None,
        hsdir: flags.has(Flags::HS_DIR),
        protocols: Protocols::CONFLUX.and(Protocols::CGO),
        cache: relay.keeps_lists.then_some(CACHE_PORT),
    }
}

fn list(
    hour: usize,
    listed: &[Listed],
    population: &Population,
    signed: &mut Descriptors<'_>,
) -> Result<List, Wrong> {
    let mut relays = Vec::with_capacity(listed.len());
    let mut opinions = BTreeMap::new();
    for one in listed {
        let descriptor = signed.of(one, population)?;
        opinions.insert(descriptor.descriptor.identity, opinion(one, population));
        relays.push(descriptor);
    }
    relays.sort_by_key(|relay| relay.descriptor.identity);
    let lifetime = lifetime(hour);
    Ok(List {
        stage: Stage::List,
        valid_after: lifetime.valid_after,
        fresh_until: lifetime.fresh_until,
        valid_until: lifetime.valid_until,
        params: BTreeMap::from([("bandwidth-cap".to_owned(), 125_000_000)]),
        shared_random: SharedRandomLines::default(),
        relays,
        opinions,
    })
}

fn opinion(listed: &Listed, population: &Population) -> Opinion {
    let relay = population.relays.get(listed.relay);
    let flags = relay.map(|relay| relay.member.flags).unwrap_or_default();
    let pairs = [
        (Flags::FAST, RelayFlags::FAST),
        (Flags::GUARD, RelayFlags::GUARD),
        (Flags::HS_DIR, RelayFlags::HSDIR),
    ];
    let theirs = pairs.into_iter().filter(|(theirs, _)| flags.has(*theirs));
    let mut ours = theirs.fold(RelayFlags::NONE, |all, (_, ours)| all.with(ours));
    if listed.stable {
        ours = ours.with(RelayFlags::STABLE);
    }
    Opinion {
        flags: ours,
        measured: Some(listed.measured.saturating_mul(1000)),
    }
}

#[cfg(test)]
mod tests {
    use hoplite_directory::{Client, Heard, Store, Trust};

    use super::*;
    use crate::directory::{SYNTHETIC, population::sample, valid_after};

    #[test]
    fn clients_believe_the_lists_and_are_told_less_by_the_difference() {
        let settings = Settings {
            relays: 30,
            hours: 3,
            every: 18,
            ..Settings::default()
        };
        let members = sample(SYNTHETIC, settings.relays, settings.seed).expect("read");
        let population = Population::over(&members, &settings);
        let lists = Lists::made(&population, &settings).expect("made");
        let trust = Trust {
            authorities: lists
                .list(0)
                .expect("there")
                .signatures
                .keys()
                .copied()
                .collect(),
            threshold: settings.authorities,
            hostile: 0,
            skew: 0,
        };
        let mut client = Client::new(trust, Store::in_memory().expect("made")).expect("empty");
        for hour in 0..3 {
            let text = lists.list(hour).expect("there").to_string();
            assert!(lists.whole(hour) < text.len() as u64);
            let heard = client.heard(&text, valid_after(hour) + 5).expect("kept");
            assert_eq!(heard, Ok(Heard::Newer));
        }
        assert!(lists.difference(&[0], 2) < lists.whole(2) / 2);
        assert!(lists.difference(&[2, 0], 2) < lists.difference(&[1], 2));
        let caches = client.caches(valid_after(2) + 5);
        assert!((20..=30).contains(&caches.len()), "{}", caches.len());
    }
}
