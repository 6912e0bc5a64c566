//! What the directory's cache has, as one value: for a process that may not write the file itself, and the one that does it for it.

use std::{collections::HashSet, fmt, sync::Arc};

use hoplite_crypto::onion::rsa::sha256;
use hoplite_directory::{Candidate, Guard, Layer, PathBias, Store, StoreError, Vanguard};
use hoplite_wire::{directory::Key, tor::ROUTERS};
use serde::{Deserialize, Serialize};

use super::unusable;
use crate::{config::client::Directory, say::Failure};

/// Bytes of microdescriptors that are handed on; further ones are asked for again.
const MICRODESCRIPTORS: usize = 20 << 20;

/// All that is kept of the directory: for a process that may not write the cache itself, and the one that does it for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryCache {
    list: Option<(String, bool)>,
    before: Option<String>,
    proofs: Vec<String>,
    guards: Vec<KeptGuard>,
    #[serde(default)]
    vanguards: Vec<KeptVanguard>,
    #[serde(default)]
    candidates: Vec<KeptCandidate>,
    /// Where there are others than were handed on before: they are large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tor: Option<KeptTor>,
}

/// What is kept of Tor's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptTor {
    consensus: String,
    certificates: String,
    /// One behind the other.
    microdescriptors: String,
    /// How long each is, in bytes.
    lengths: Vec<u32>,
}

impl KeptTor {
    fn of(store: &mut Store) -> Result<Option<Self>, StoreError> {
        let Some(kept) = store.tor_documents()? else {
            return Ok(None);
        };
        let mut left = MICRODESCRIPTORS;
        let texts = kept.microdescriptors.into_iter().map(|(_, text)| text);
        let texts = texts.filter(|text| {
            let rest = left.checked_sub(text.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        });
        let texts: Vec<_> = texts.collect();
        let lengths = texts.iter().map(|text| u32::try_from(text.len()));
        Ok(Some(Self {
            consensus: kept.consensus,
            certificates: kept.certificates,
            lengths: lengths.map_while(Result::ok).collect(),
            microdescriptors: texts.concat(),
        }))
    }

    /// As many as a consensus has relays at most, whoever has written them.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.microdescriptors.as_str();
        self.lengths.iter().take(ROUTERS).map_while(move |length| {
            let (text, after) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
            rest = after;
            Some(text)
        })
    }

    /// Writes only those that are not there.
    fn put_into(&self, store: &mut Store) -> Result<(), StoreError> {
        let there = store.tor_documents()?.unwrap_or_default().microdescriptors;
        let there: HashSet<_> = there.into_iter().map(|(digest, _)| digest).collect();
        let texts = self.texts();
        let all: Vec<_> = texts.map(|text| (sha256(text.as_bytes()), text)).collect();
        let named = all.iter().map(|(digest, _)| *digest).collect();
        let fresh = all.iter().filter(|(digest, _)| !there.contains(digest));
        let signed = (&*self.consensus, &*self.certificates);
        store.keep_tor_documents(signed, fresh.copied(), &named)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptVanguard {
    identity: [u8; 32],
    #[serde(default)]
    rsa_id: Option<[u8; 20]>,
    is_third: bool,
    until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptCandidate {
    identity: [u8; 32],
    millis: Option<u32>,
    since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptGuard {
    identity: [u8; 32],
    #[serde(default)]
    rsa_id: Option<[u8; 20]>,
    chosen: u64,
    confirmed: Option<u64>,
    unlisted: Option<u64>,
    /// How its circuits have fared: those to be built, built, to be used, used; and whether it is given up.
    #[serde(default)]
    circuits: [u32; 4],
    #[serde(default)]
    barred: bool,
}

impl From<Guard> for KeptGuard {
    fn from(guard: Guard) -> Self {
        let bias = guard.bias;
        Self {
            identity: guard.identity.0,
            rsa_id: guard.rsa_id,
            chosen: guard.chosen,
            confirmed: guard.confirmed,
            unlisted: guard.unlisted,
            circuits: [bias.circuits, bias.built, bias.uses, bias.used],
            barred: bias.barred,
        }
    }
}

impl From<&KeptGuard> for Guard {
    fn from(guard: &KeptGuard) -> Self {
        let [circuits, built, uses, used] = guard.circuits;
        Self {
            identity: Key(guard.identity),
            rsa_id: guard.rsa_id,
            chosen: guard.chosen,
            confirmed: guard.confirmed,
            unlisted: guard.unlisted,
            bias: PathBias {
                circuits,
                built,
                uses,
                used,
                barred: guard.barred,
            },
        }
    }
}

impl From<Vanguard> for KeptVanguard {
    fn from(one: Vanguard) -> Self {
        Self {
            identity: one.identity.0,
            rsa_id: one.rsa_id,
            is_third: one.layer == Layer::Third,
            until: one.until,
        }
    }
}

impl From<&KeptVanguard> for Vanguard {
    fn from(one: &KeptVanguard) -> Self {
        Self {
            identity: Key(one.identity),
            rsa_id: one.rsa_id,
            layer: if one.is_third {
                Layer::Third
            } else {
                Layer::Second
            },
            until: one.until,
        }
    }
}

/// Where a process without a cache has its things kept.
#[derive(Clone)]
pub(crate) struct Keeper {
    /// What there was when it began.
    pub(crate) kept: DirectoryCache,
    /// Is given all of it when something is new.
    pub(crate) keep: Arc<dyn Fn(DirectoryCache) + Send + Sync>,
}

impl DirectoryCache {
    /// What the cache of the file has.
    pub(crate) fn load(file: &Directory) -> Result<Self, Failure> {
        let read = || {
            let mut store = Store::open(&file.cache)?;
            match &file.tor {
                Some(_) => Self::with_tor(&mut store),
                None => Self::of(&store),
            }
        };
        read().map_err(|error| unusable(&file.cache, &error))
    }

    /// Into the cache of the file.
    pub(crate) fn save(&self, file: &Directory) -> Result<(), Failure> {
        let write = || self.put_into(&mut Store::open(&file.cache)?);
        write().map_err(|error| unusable(&file.cache, &error))
    }

    pub(super) fn of(store: &Store) -> Result<Self, StoreError> {
        let candidate = |one: Candidate| KeptCandidate {
            identity: one.identity.0,
            millis: one.millis,
            since: one.since,
        };
        Ok(Self {
            list: store.list()?,
            before: store.before()?,
            proofs: store.proofs()?,
            guards: store.guards()?.into_iter().map(KeptGuard::from).collect(),
            vanguards: store
                .vanguards()?
                .into_iter()
                .map(KeptVanguard::from)
                .collect(),
            candidates: store.candidates()?.into_iter().map(candidate).collect(),
            tor: None,
        })
    }

    /// With Tor's documents.
    pub(super) fn with_tor(store: &mut Store) -> Result<Self, StoreError> {
        let tor = KeptTor::of(store)?;
        Ok(Self {
            tor,
            ..Self::of(store)?
        })
    }

    fn put_into(&self, store: &mut Store) -> Result<(), StoreError> {
        let old = Self::of(store)?;
        if *self == old {
            return Ok(());
        }
        self.put_lists_into(store, &old)?;
        if let Some(tor) = &self.tor {
            tor.put_into(store)?;
        }
        if self.guards != old.guards {
            let guards: Vec<Guard> = self.guards.iter().map(Guard::from).collect();
            store.keep_guards(&guards)?;
        }
        if self.vanguards != old.vanguards {
            let vanguards: Vec<Vanguard> = self.vanguards.iter().map(Vanguard::from).collect();
            store.keep_vanguards(&vanguards)?;
        }
        let candidate = |one: &KeptCandidate| Candidate {
            identity: Key(one.identity),
            millis: one.millis,
            since: one.since,
        };
        if self.candidates != old.candidates {
            let candidates: Vec<Candidate> = self.candidates.iter().map(candidate).collect();
            store.keep_candidates(&candidates)?;
        }
        Ok(())
    }

    /// As they came: what a list replaces is the one before, unless it was split.
    fn put_lists_into(&self, store: &mut Store, old: &Self) -> Result<(), StoreError> {
        let Some((text, is_split)) = &self.list else {
            return Ok(());
        };
        let is_there = |(old, was_split): &(String, bool)| old == text && (*is_split || !was_split);
        let is_there = old.list.as_ref().is_some_and(is_there);
        if !is_there {
            let whole = old.list.as_ref().filter(|(_, was_split)| !was_split);
            let becomes = whole.map(|(text, _)| text).or(old.before.as_ref());
            for earlier in self.before.iter().filter(|it| Some(*it) != becomes) {
                store.keep_list(earlier)?;
            }
            store.keep_list(text)?;
        }
        let was_split = is_there && old.list.as_ref().is_some_and(|(_, was_split)| *was_split);
        if let [one, other] = self.proofs.as_slice()
            && (*is_split != was_split || self.proofs != old.proofs)
        {
            store.keep_split(one, other)?;
            if !is_split {
                store.keep_list(text)?;
            }
        }
        Ok(())
    }

    fn store(&self) -> Result<Store, StoreError> {
        let mut store = Store::in_memory()?;
        self.put_into(&mut store)?;
        Ok(store)
    }
}

impl Keeper {
    /// With what there was.
    pub(super) fn store(&mut self) -> Result<Store, StoreError> {
        let store = self.kept.store()?;
        self.kept.tor = None;
        Ok(store)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(change: impl FnOnce(&mut Store)) {
        let mut store = Store::in_memory().expect("a store");
        change(&mut store);
        let kept = DirectoryCache::of(&store).expect("read");
        let copy = kept.store().expect("written");
        assert_eq!(DirectoryCache::of(&copy).expect("read"), kept);
    }

    #[test]
    fn what_is_kept_is_the_same_in_another_store_whatever_was_seen() {
        let guard = Guard {
            identity: Key([7; 32]),
            rsa_id: Some([6; 20]),
            chosen: 1,
            confirmed: Some(2),
            unlisted: None,
            bias: PathBias {
                circuits: 5,
                built: 4,
                uses: 3,
                used: 2,
                barred: true,
            },
        };
        let vanguard = |layer| Vanguard {
            identity: Key([8; 32]),
            rsa_id: Some([5; 20]),
            layer,
            until: 9,
        };
        carried(|_| ());
        carried(|store| store.keep_list("one").expect("kept"));
        carried(|store| store.keep_guards(&[guard]).expect("kept"));
        carried(|store| {
            let vanguards = [Layer::Second, Layer::Third].map(vanguard);
            store.keep_vanguards(&vanguards).expect("kept");
        });
        let candidate = Candidate {
            identity: Key([7; 32]),
            millis: Some(3),
            since: 4,
        };
        carried(|store| store.keep_candidates(&[candidate]).expect("kept"));
        carried(|store| {
            store.keep_list("one").expect("kept");
            store.keep_split("one", "other").expect("kept");
        });
        carried(|store| {
            store.keep_list("one").expect("kept");
            store.keep_split("one", "other").expect("kept");
            store.keep_list("later").expect("kept");
        });
    }

    #[test]
    fn tors_documents_are_handed_on_as_they_are_and_what_nobody_names_goes() {
        let (mut seen, mut file) = (
            Store::in_memory().expect("a store"),
            Store::in_memory().expect("a store"),
        );
        let long = "x".repeat(MICRODESCRIPTORS + 1);
        let states = [("one", &["a", "b"][..]), ("two", &["b", "c", &long][..])];
        for (consensus, texts) in states {
            let digests = texts.iter().map(|text| sha256(text.as_bytes()));
            let named = digests.clone().collect();
            let texts = digests.zip(texts.iter().copied());
            let kept = seen.keep_tor_documents((consensus, "keys"), texts, &named);
            kept.expect("kept");
            let carried = DirectoryCache::with_tor(&mut seen).expect("read");
            let json = serde_json::to_vec(&carried).expect("written");
            let carried: DirectoryCache = serde_json::from_slice(&json).expect("read");
            carried.put_into(&mut file).expect("written");
            let (mut before, after) = (seen.tor_documents(), file.tor_documents());
            if let Ok(Some(before)) = &mut before {
                before.microdescriptors.retain(|(_, text)| text.len() == 1);
            }
            assert_eq!(before.expect("read"), after.expect("read"));
        }
        let kept = DirectoryCache::of(&file).expect("read");
        kept.put_into(&mut file).expect("written");
        let kept = file.tor_documents().expect("read").expect("there");
        assert_eq!(kept.consensus, "two", "nothing else takes them away");
    }

    #[test]
    fn a_split_list_is_never_the_one_before_that_nothing_spoke_against() {
        let mut file = Store::in_memory().expect("a store");
        let mut seen = Store::in_memory().expect("a store");
        let carry = |seen: &Store, file: &mut Store| {
            let kept = DirectoryCache::of(seen).expect("read");
            kept.put_into(file).expect("written");
            file.before().expect("read")
        };
        seen.keep_list("one").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_split("one", "other").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_list("two").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_list("three").expect("kept");
        assert_eq!(carry(&seen, &mut file), Some("two".into()));
        let again = DirectoryCache::of(&file)
            .expect("read")
            .store()
            .expect("written");
        assert_eq!(again.before().expect("read"), Some("two".into()));
    }

    #[test]
    fn a_later_state_takes_the_place_of_an_earlier_one() {
        let mut file = Store::in_memory().expect("a store");
        let mut seen = Store::in_memory().expect("a store");
        for step in 0..4 {
            match step {
                0 => seen.keep_list("one"),
                1 => seen.keep_split("one", "other"),
                2 => seen.keep_list("two"),
                _ => seen.keep_split("two", "another"),
            }
            .expect("kept");
            let kept = DirectoryCache::of(&seen).expect("read");
            kept.put_into(&mut file).expect("written");
            assert_eq!(
                DirectoryCache::of(&file).expect("read"),
                kept,
                "step {step}"
            );
        }
    }
}
