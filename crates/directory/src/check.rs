//! Whether a document may be believed: signatures, threshold, times; and why it is not. Pure.

use hoplite_crypto::{
    Pin, Proof, SigningKey,
    onion::offline::{CertifiedSigningKey, certified_key},
    signing::is_signed,
};
use hoplite_wire::directory::{
    Descriptor, Key, List, Malformed, Signature, SignedDescriptor, SignedList, Stage,
};

/// Why a document is refused. Each says what to do: users read it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be read.
    #[error("it cannot be read ({0}): ask for it elsewhere, or update this program")]
    Malformed(#[from] Malformed),
    /// Too few of the known authorities have signed it as it is.
    #[error(
        "forged: {good} known authorities have signed it, {needed} are needed: somebody has changed it on the way or made it up; ask another authority, \
         and compare `authorities` with what its operators publish"
    )]
    Forged {
        /// Good signatures of known authorities.
        good: usize,
        /// How many there must be.
        needed: usize,
    },
    /// Its time is over.
    #[error(
        "stale: it could be used until {ago} seconds ago: the authorities make no new one, or somebody keeps it from you; check this machine's clock, then try again"
    )]
    Stale {
        /// For how long, in seconds.
        ago: u64,
    },
    /// Its time has not begun.
    #[error("early: it begins in {ahead} seconds: this machine's clock is probably slow; set it")]
    Early {
        /// In how many seconds.
        ahead: u64,
    },
    /// An older one than was seen before.
    #[error(
        "rolled back: it is {by} seconds older than the list that is kept: somebody shows you the past; ask another authority"
    )]
    RolledBack {
        /// By how much, in seconds.
        by: u64,
    },
    /// Another list for the same time is as well signed.
    #[error(
        "split: authorities have signed two different lists for the same time: neither is used, the last list before them is as long as it holds; report it to their operators with both lists, which are kept"
    )]
    Split,
    /// Tor's authorities have signed another consensus for the time of the one that is kept.
    #[error(
        "twofold: a majority of the authorities has signed two different consensuses for one time: the one that came first stays in use; report it to their operators"
    )]
    Twofold,
    /// Of too many of the relays nothing more is known than that they are listed.
    #[error(
        "partial: the descriptors that came are enough for {percent} of 100 paths: somebody keeps the others back; ask another directory"
    )]
    Partial {
        /// How many of a hundred paths could be built.
        percent: u64,
    },
    /// Some relays of Tor's consensus are not described, and were asked for where it can be seen who asks.
    #[error(
        "lacking: some of its relays are not described, which somebody may have kept from this client alone: they are asked for over circuits; try again in a minute"
    )]
    Lacking,
    /// A descriptor whose signature is not that of the key it names.
    #[error("the descriptor's signature is not that of its key: sign it again")]
    Unsigned,
}

/// Whom a list must be signed by, and how far clocks may be apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The known authorities.
    pub authorities: Vec<Key>,
    /// How many of them must have signed.
    pub threshold: usize,
    /// How many of them may be hostile without two lists for the same time being right ever, whatever the network does.
    pub hostile: usize,
    /// How far this machine's clock may be off, in seconds.
    pub skew: u64,
}

impl Trust {
    /// This many of `known` authorities may be hostile if there are to be lists all the same: fewer than a third.
    pub fn bearable(known: usize) -> usize {
        known.saturating_sub(1) / 3
    }

    /// The least threshold above `(known + hostile) / 2`.
    pub fn least(known: usize, hostile: usize) -> usize {
        known.saturating_add(hostile) / 2 + 1
    }

    /// Whether the threshold makes a split impossible as long as no more than `hostile` sign two lists: any two groups of that many
    /// have more than `hostile` in common, and an honest one signs once.
    pub fn is_safe(&self) -> bool {
        let known = self.authorities.len();
        (Self::least(known, self.hostile)..=known).contains(&self.threshold)
    }

    /// How many known authorities have signed `list`, each over the same text.
    pub fn count(&self, list: &SignedList) -> usize {
        let text = list.list.text();
        let known = list.signatures.iter();
        let known = known.filter(|(key, _)| self.authorities.contains(key));
        known
            .filter(|(key, signature)| is_signed(&key.0, text.as_bytes(), &signature.0))
            .count()
    }

    pub(crate) fn check_times(&self, list: &List, now: u64) -> Result<(), Refused> {
        let latest = list.valid_until.saturating_add(self.skew);
        let earliest = list.valid_after.saturating_sub(self.skew);
        match now {
            now if now > latest => Err(Refused::Stale {
                ago: now.saturating_sub(list.valid_until),
            }),
            now if now < earliest => Err(Refused::Early {
                ahead: list.valid_after.saturating_sub(now),
            }),
            _ => Ok(()),
        }
    }
}

/// Reads a list and checks who signed it and when it holds. What its relays say is theirs: each descriptor's own signature is checked too.
///
/// # Errors
/// Each of [`Refused`] but `RolledBack` and `Split`, which need another list to compare with.
pub(crate) fn check_list(text: &str, trust: &Trust, now: u64) -> Result<SignedList, Refused> {
    check_list_with(text, trust, now, &[])
}

/// Checks a list as [`check_list`] does, beside lists of relays that were checked before, each by identity: what stands in one of them in
/// the same words is not checked again.
pub(crate) fn check_list_with(
    text: &str,
    trust: &Trust,
    now: u64,
    known: &[&[SignedDescriptor]],
) -> Result<SignedList, Refused> {
    let list = SignedList::parse(text, Stage::List)?;
    let good = trust.count(&list);
    if good < trust.threshold.max(1) {
        let needed = trust.threshold.max(1);
        return Err(Refused::Forged { good, needed });
    }
    trust.check_times(&list.list, now)?;
    if are_own(&list.list.relays, known) {
        Ok(list)
    } else {
        Err(Refused::Unsigned)
    }
}

/// What the holder of a pin's key signs before a descriptor that names it.
const HOLDER: &str =
    "hoplite-pin 1\nThe holder of this TLS key publishes under the identity of this descriptor.\n";
// More than an end of a TLS handshake can have the other sign as it likes: see `Proof::is_of`.
const _: () = assert!(HOLDER.len() >= 64);

/// What the holder of the TLS key says of a descriptor that names its pin, to be proven by [`Proof`]. It is over the whole of it, with its signature.
pub fn said_by_holder(signed: &SignedDescriptor) -> Vec<u8> {
    format!("{HOLDER}{signed}").into_bytes()
}

/// Whether the descriptor names no pin, or the holder of the pin's key has proven that it is its own. Else whoever has copied the pin could say of the
/// relay what it likes, by a key of its own.
pub(crate) fn is_by_holder(signed: &SignedDescriptor, proof: Option<&Proof>) -> bool {
    signed.descriptor.pin.is_none_or(|pin| {
        proof.is_some_and(|proof| proof.is_of(&Pin::from(pin), &said_by_holder(signed)))
    })
}

/// Reads a descriptor and checks its signature. How old it may be is for whoever asks.
///
/// # Errors
/// [`Refused::Malformed`] or [`Refused::Unsigned`].
pub(crate) fn check_descriptor(text: &str) -> Result<SignedDescriptor, Refused> {
    let signed = SignedDescriptor::parse(text)?;
    if is_own(&signed) {
        Ok(signed)
    } else {
        Err(Refused::Unsigned)
    }
}

/// Whether each of these was signed by the key that it names. Those that one of `known` (each by identity) has in the same words are known to be.
pub(crate) fn are_own(relays: &[SignedDescriptor], known: &[&[SignedDescriptor]]) -> bool {
    relays.iter().all(|relay| {
        let identity = relay.descriptor.identity;
        let is_known = known.iter().any(|known| {
            let place = known.binary_search_by_key(&identity, |known| known.descriptor.identity);
            place.ok().and_then(|place| known.get(place)) == Some(relay)
        });
        is_known || is_own(relay)
    })
}

#[cfg(test)]
thread_local! {
    static CHECKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many descriptors' signatures this thread has checked.
#[cfg(test)]
pub(crate) fn checks() -> usize {
    CHECKS.get()
}

/// Whether the key that it names has signed it.
fn is_own(signed: &SignedDescriptor) -> bool {
    #[cfg(test)]
    CHECKS.set(CHECKS.get() + 1);
    let (text, published) = (signed.descriptor.text(), signed.descriptor.published);
    let by = signer(
        &signed.descriptor.identity,
        signed.certificate.as_deref(),
        published,
    );
    by.is_some_and(|key| is_signed(&key, text.as_bytes(), &signed.signature.0))
}

/// Whose signature a document that a relay has published then must have: the identity's, or that of a key which the identity had certified.
pub(crate) fn signer(
    identity: &Key,
    certificate: Option<&[u8]>,
    published: u64,
) -> Option<[u8; 32]> {
    match certificate {
        None => Some(identity.0),
        Some(certificate) => certified_key(certificate, &identity.0, published),
    }
}

/// What signs for a relay.
#[derive(Debug)]
pub enum RelayKey {
    /// Its identity.
    Identity(SigningKey),
    /// A key that the identity, which is elsewhere, has certified.
    Certified(CertifiedSigningKey),
}

impl RelayKey {
    /// The relay's identity.
    pub fn identity(&self) -> Key {
        match self {
            Self::Identity(key) => Key(key.public()),
            Self::Certified(key) => Key(*key.identity()),
        }
    }

    /// Signs what the relay says of itself; `identity` becomes its own.
    ///
    /// # Errors
    /// [`Refused::Malformed`] if it cannot be written.
    pub fn sign_descriptor(&self, mut descriptor: Descriptor) -> Result<SignedDescriptor, Refused> {
        descriptor.identity = self.identity();
        descriptor.check()?;
        let (certificate, signature) = self.sign(&descriptor.text());
        Ok(SignedDescriptor {
            descriptor,
            certificate,
            signature,
        })
    }

    /// A document's signature, and what goes before it.
    pub(crate) fn sign(&self, text: &str) -> (Option<Vec<u8>>, Signature) {
        match self {
            Self::Identity(key) => (None, Signature(key.sign(text.as_bytes()))),
            Self::Certified(certified) => {
                let signature = certified.key().map(|key| key.sign(text.as_bytes()));
                // Without a key nobody would accept it.
                let signature = Signature(signature.unwrap_or([0; 64]));
                (Some(certified.certificate().to_vec()), signature)
            }
        }
    }
}

/// Signs what a relay says of itself by its identity; `identity` becomes the key's.
///
/// # Errors
/// [`Refused::Malformed`] if it cannot be written.
pub fn sign_descriptor(
    mut descriptor: Descriptor,
    key: &SigningKey,
) -> Result<SignedDescriptor, Refused> {
    descriptor.identity = Key(key.public());
    descriptor.check()?;
    let signature = Signature(key.sign(descriptor.text().as_bytes()));
    Ok(SignedDescriptor {
        descriptor,
        certificate: None,
        signature,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{descriptor, key, list, signed_by, trust};
    use proptest::prelude::*;

    const NOW: u64 = 1_700_000_100;

    #[test]
    fn a_relay_whose_identity_is_elsewhere_is_believed_by_a_key_that_the_identity_has_certified() {
        let master = key(1);
        let issued = |master| CertifiedSigningKey::issue(master, NOW, 3600).expect("issued");
        let sign = |published| {
            let mut said = descriptor(1).descriptor;
            said.published = published;
            let relay = RelayKey::Certified(issued(&master));
            relay.sign_descriptor(said).expect("signed").to_string()
        };
        let text = sign(NOW);
        let read = check_descriptor(&text).expect("believed");
        assert_eq!(read.descriptor.identity, Key(master.public()));
        assert_eq!(check_descriptor(&sign(NOW + 7201)), Err(Refused::Unsigned));
        let mut other = read.clone();
        other.certificate = Some(issued(&key(2)).certificate().to_vec());
        assert_eq!(check_descriptor(&other.to_string()), Err(Refused::Unsigned));
        other.certificate = None;
        assert_eq!(check_descriptor(&other.to_string()), Err(Refused::Unsigned));
        let changed = text.replace("name relay1", "name relay2");
        assert_eq!(check_descriptor(&changed), Err(Refused::Unsigned));
    }

    fn text() -> String {
        signed_by(
            &list(1_700_000_000, &[descriptor(1), descriptor(2)]),
            &[1, 2, 3],
        )
        .to_string()
    }

    #[test]
    fn a_list_signed_by_enough_known_authorities_is_accepted() {
        assert!(check_list(&text(), &trust(3, 2), NOW).is_ok());
    }

    #[test]
    fn strangers_signatures_do_not_count() {
        let made_up = signed_by(&list(1_700_000_000, &[]), &[1, 7, 8, 9]).to_string();
        let refused = check_list(&made_up, &trust(3, 2), NOW);
        assert_eq!(refused, Err(Refused::Forged { good: 1, needed: 2 }));
        assert!(
            refused
                .expect_err("forged")
                .to_string()
                .contains("ask another authority")
        );
    }

    #[test]
    fn signatures_over_other_bytes_do_not_count() {
        let theirs = signed_by(&list(1_700_000_000, &[descriptor(1)]), &[1, 2]);
        let mut ours = signed_by(&list(1_700_000_000, &[descriptor(2)]), &[3]);
        ours.signatures.extend(theirs.signatures);
        let refused = check_list(&ours.to_string(), &trust(3, 2), NOW);
        assert_eq!(refused, Err(Refused::Forged { good: 1, needed: 2 }));
    }

    #[test]
    fn a_list_holds_from_its_beginning_to_its_end_give_or_take_the_clocks() {
        let at = |now| check_list(&text(), &trust(3, 2), now).map(drop);
        assert_eq!(at(1_700_000_000 - 60), Ok(()));
        assert_eq!(at(1_700_000_000 - 61), Err(Refused::Early { ahead: 61 }));
        assert_eq!(at(1_700_010_800 + 60), Ok(()));
        assert_eq!(at(1_700_010_800 + 61), Err(Refused::Stale { ago: 61 }));
    }

    #[test]
    fn a_relay_that_authorities_made_say_something_is_not_believed() {
        let mut forged = descriptor(1);
        forged.descriptor.bandwidth += 1;
        let text = signed_by(&list(1_700_000_000, &[forged]), &[1, 2, 3]).to_string();
        assert_eq!(check_list(&text, &trust(3, 2), NOW), Err(Refused::Unsigned));
    }

    #[test]
    fn a_threshold_is_safe_if_any_two_groups_of_it_share_an_honest_authority() {
        for known in 1..=9u8 {
            for hostile in 0..known {
                for threshold in 0..=known {
                    let trust = Trust {
                        hostile: hostile.into(),
                        ..trust(known, threshold.into())
                    };
                    let in_common = 2 * i32::from(threshold) - i32::from(known);
                    assert_eq!(trust.is_safe(), in_common > i32::from(hostile));
                }
            }
        }
        assert!(!trust(2, 3).is_safe(), "more than there are");
        // With fewer than a third hostile the honest ones alone are enough.
        for known in 1..=32 {
            let hostile = Trust::bearable(known);
            assert!(Trust::least(known, hostile) <= known - hostile);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_flipped_bit_anywhere_is_refused(place: prop::sample::Index, bit in 0..8u8) {
            let mut bytes = text().into_bytes();
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            // All three are needed: a bit of one signature matters too.
            let refused = String::from_utf8(bytes).map_or(true, |text| check_list(&text, &trust(3, 3), NOW).is_err());
            prop_assert!(refused);
        }

        #[test]
        fn a_flipped_bit_of_a_descriptor_is_refused(place: prop::sample::Index, bit in 0..8u8) {
            let mut bytes = descriptor(1).to_string().into_bytes();
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            prop_assert!(String::from_utf8(bytes).map_or(true, |text| check_descriptor(&text).is_err()));
        }
    }

    #[test]
    fn what_a_relay_signs_is_its_own() {
        let key = key(9);
        let signed = sign_descriptor(descriptor(1).descriptor, &key).expect("written");
        assert_eq!(signed.descriptor.identity, Key(key.public()));
        assert_eq!(check_descriptor(&signed.to_string()), Ok(signed.clone()));
        let nameless = Descriptor {
            name: String::new(),
            ..signed.descriptor
        };
        assert!(sign_descriptor(nameless, &key).is_err());
    }
}
