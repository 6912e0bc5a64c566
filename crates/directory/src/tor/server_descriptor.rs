//! What a relay of ours hands in to Tor's authorities: its server descriptor and its extra-info document, each signed by the signing key of its Ed25519
//! identity and by its RSA identity. dir-spec "Server descriptor format", "Extra-info document format". The texts are `wire::tor`'s.

use std::{collections::BTreeMap, fmt};

use hoplite_crypto::{
    SigningError,
    onion::{
        CertifiedNtor,
        family::FamilyKey,
        identity::{PeerId, RelayIdentity},
        rsa::{PublicKey, SecretKey, sha1, sha256},
    },
};
use hoplite_wire::{
    directory::Malformed,
    tor::{
        bandwidth_file::bandwidths,
        extra_info::{ExtraInfo, Statistics},
        server_descriptor::{
            About, Bandwidth, ED25519_PREFIX, ExtraInfoDigests, Keys, ServerDescriptor,
            put_ed25519_signature, put_rsa_signature,
        },
    },
};

/// Why there are no signed documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsigned {
    /// Tor's authorities list no relay without one.
    #[error("the key of the RSA identity is not here")]
    NoRsaIdentity,
    /// The system has no randomness.
    #[error(transparent)]
    Signing(#[from] SigningError),
}

/// An onion key for TAP, whose secret nobody has any more: no relay of ours answers TAP, and no client asks for it, but authorities take no descriptor
/// without such a key (C tor 0.4.9: "Missing TAP key in descriptor"; proposal 350). It is made once for a process, as a new one looks like a change.
#[derive(Clone, PartialEq, Eq)]
pub struct TapKey {
    public: Vec<u8>,
    cross: Vec<u8>,
}

impl TapKey {
    /// Makes a key, has it vouch for the relay, and forgets it.
    ///
    /// # Errors
    /// [`SigningError::NoRandomness`].
    pub fn forgotten(relay: &PeerId) -> Result<Self, SigningError> {
        let key = SecretKey::generate()?;
        let cross = key.sign(&[&relay.rsa_id()[..], &relay.ed25519].concat())?;
        let public = key.public_der().to_vec();
        Ok(Self { public, cross })
    }
}

impl fmt::Debug for TapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TapKey(hidden)")
    }
}

/// What a relay has to say, beside who it is.
#[derive(Clone, Debug)]
pub struct Said {
    /// In its descriptor.
    pub about: About,
    /// In its extra-info document.
    pub statistics: Statistics,
    /// The keys of the families that it is of: they certify it when it is signed.
    pub families: Vec<FamilyKey>,
}

/// A relay's descriptor, and its extra-info document behind it, as authorities take them in one request.
///
/// # Errors
/// [`Unsigned`].
pub fn sign(
    Said {
        about,
        statistics,
        families,
    }: Said,
    identity: &RelayIdentity,
    onion: &CertifiedNtor,
    tap: &TapKey,
) -> Result<String, Unsigned> {
    let signer = Signer {
        identity,
        rsa: identity.rsa_key().ok_or(Unsigned::NoRsaIdentity)?,
    };
    let mut keys = signer.keys(onion, tap);
    let families = families.iter();
    let certified = families.map(|family| family.certify(&keys.ed25519, about.published));
    keys.families = certified.collect();
    let extra_info = ExtraInfo {
        nickname: about.nickname.clone(),
        rsa_id: keys.rsa_id,
        signing: keys.signing.clone(),
        published: about.published,
        statistics,
    };
    let (extra_info, digests) = signer.sign(extra_info.write())?;
    let descriptor = ServerDescriptor {
        about,
        keys,
        extra_info: Some(digests),
    };
    let (mut documents, _) = signer.sign(descriptor.write())?;
    documents.push_str(&extra_info);
    Ok(documents)
}

/// What relays say they carry, by their RSA identities. Whoever hands it out can leave some out, or give an older one, and no more.
#[derive(Clone, Debug, Default)]
pub struct SaidBandwidths(BTreeMap<[u8; 20], (u64, Bandwidth)>);

impl SaidBandwidths {
    /// Takes what relays have signed of a text (`/tor/server/all`); of two of one relay the later counts. The rest is skipped.
    ///
    /// # Errors
    /// The text is too long.
    pub fn hear(&mut self, text: &str) -> Result<(), Malformed> {
        for said in bandwidths(text)? {
            let key = PublicKey::relay(&said.key).filter(|key| key.id() == said.rsa_id);
            let digest = sha1(said.signed.as_bytes());
            if !key.is_some_and(|key| key.signed(&said.signature, &digest)) {
                continue;
            }
            let one = (said.published, said.bandwidth);
            let known = self.0.entry(said.rsa_id).or_insert(one);
            if known.0 < one.0 {
                *known = one;
            }
        }
        Ok(())
    }

    /// Forgets all others than these.
    pub fn retain(&mut self, is_kept: impl Fn(&[u8; 20]) -> bool) {
        self.0.retain(|rsa_id, _| is_kept(rsa_id));
    }

    /// What this one says.
    pub fn of(&self, rsa_id: &[u8; 20]) -> Option<Bandwidth> {
        let (_, said) = self.0.get(rsa_id)?;
        Some(*said)
    }
}

/// Who signs.
struct Signer<'a> {
    identity: &'a RelayIdentity,
    rsa: &'a SecretKey,
}

impl Signer<'_> {
    fn keys(&self, onion: &CertifiedNtor, tap: &TapKey) -> Keys {
        Keys {
            ed25519: self.identity.peer().ed25519,
            signing: self.identity.signing_certificate().to_vec(),
            rsa_id: self.rsa.public().id(),
            rsa: self.rsa.public_der().to_vec(),
            tap: tap.public.clone(),
            tap_cross: tap.cross.clone(),
            ntor: onion.public,
            ntor_cross: onion.certificate.clone(),
            ntor_sign: onion.sign,
            families: Vec::new(),
        }
    }

    /// Both signatures behind a document, and how it is named then.
    fn sign(&self, mut document: String) -> Result<(String, ExtraInfoDigests), SigningError> {
        let digest = ed25519_digest(&document);
        put_ed25519_signature(&self.identity.sign_for_directory(&digest), &mut document);
        let digest = sha1(document.as_bytes());
        put_rsa_signature(&self.rsa.sign(&digest)?, &mut document);
        let digests = ExtraInfoDigests {
            sha1: digest,
            sha256: sha256(document.as_bytes()),
        };
        Ok((document, digests))
    }
}

/// What the Ed25519 signature of a document is over.
fn ed25519_digest(signed: &str) -> [u8; 32] {
    sha256([ED25519_PREFIX, signed].concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hoplite_crypto::onion::{Secrets, family::family_of};
    use hoplite_wire::{
        cell::cert::{CertKind, Ed25519Cert},
        tor::{
            extra_info::{Interval, Told},
            server_descriptor::Signed,
        },
    };

    use super::*;

    const NOW: u64 = 1_795_737_600;

    fn about() -> About {
        About {
            nickname: "amber".into(),
            address: "192.0.2.1:9001".parse().expect("an address"),
            address_v6: None,
            bandwidth: Bandwidth {
                average: 1_000_000,
                burst: 2_000_000,
                observed: 0,
            },
            platform: "Hoplite 0.2.0 on Linux".into(),
            published: NOW,
            uptime: 7,
            overloaded: Some(NOW),
            contact: None,
            protocols: "Link=4-5 Relay=2-4".into(),
            hsdir: false,
            directory_cache: false,
            family: vec![[9; 20]],
            exit: vec!["reject *:*".parse().expect("a rule")],
            exit_v6: None,
        }
    }

    fn statistics() -> Statistics {
        let interval = Interval {
            end: NOW,
            length: 86_400,
        };
        Statistics {
            circuits: Some((interval, 1304)),
            ..Statistics::default()
        }
    }

    fn family() -> FamilyKey {
        let secret = [&b"== ed25519v1-secret: fmly-id ==\0"[..], &[64; 64]].concat();
        FamilyKey::from_file(&secret).expect("a key")
    }

    fn said() -> Said {
        Said {
            about: about(),
            statistics: statistics(),
            families: vec![family()],
        }
    }

    /// A relay with an RSA identity, and what it hands in.
    fn handed_in() -> (RelayIdentity, String) {
        let secrets = Secrets::fresh(NOW).expect("made");
        let key = Arc::new(SecretKey::generate().expect("made"));
        let identity = secrets.identity(NOW).expect("an identity");
        let identity = identity.with_rsa_key(key, NOW).expect("certified");
        let onion = secrets.certified_ntor(NOW).expect("certified");
        let tap = TapKey::forgotten(&identity.peer()).expect("made");
        let said = said();
        let text = sign(said, &identity, &onion, &tap).expect("signed");
        (identity, text)
    }

    /// What an authority checks of a server descriptor, with the RSA identity that it names.
    fn is_right(read: &Signed<'_>, rsa: &PublicKey) -> bool {
        let certificate = Ed25519Cert::parse(&read.descriptor.keys.signing).expect("a certificate");
        let master = read.descriptor.keys.ed25519;
        certificate.cert.kind == CertKind::SIGNING
            && hoplite_crypto::signing::is_signed(
                &master,
                certificate.signed,
                certificate.signature,
            )
            && hoplite_crypto::signing::is_signed(
                &certificate.cert.key,
                &ed25519_digest(read.ed25519_signed),
                &read.ed25519_signature,
            )
            && rsa.signed(&read.rsa_signature, &sha1(read.rsa_signed.as_bytes()))
            && read.descriptor.keys.rsa_id == rsa.id()
    }

    #[test]
    fn both_identities_sign_all_that_a_relay_says() {
        let (identity, text) = handed_in();
        let at = text.find("extra-info amber").expect("a second document");
        let (descriptor, extra_info) = text.split_at(at);
        let rsa = identity.rsa_key().expect("a key").public();
        let read = ServerDescriptor::parse(descriptor).expect("read");
        assert!(is_right(&read, rsa));
        assert!(read.descriptor.about == about());
        let keys = &read.descriptor.keys;
        let proven = family_of(&keys.families[0], &keys.ed25519, NOW).expect("of a family");
        let proven = family_of(&family().certify(&[1; 32], NOW), &[1; 32], NOW) == Some(proven);
        assert!(proven, "of that family");
        let digests = read.descriptor.extra_info.expect("named");
        assert_eq!(digests.sha256, sha256(extra_info.as_bytes()));
        let told = Told::parse(extra_info).expect("read");
        assert_eq!((told.published, told.statistics), (NOW, statistics()));

        let (other, _) = handed_in();
        assert!(!is_right(&read, other.rsa_key().expect("a key").public()));
        for (said, instead) in [
            ("router amber", "router ambez"),
            ("reject *:*", "accept *:*"),
            ("uptime 7", "uptime 8"),
        ] {
            let changed = descriptor.replace(said, instead);
            let read = ServerDescriptor::parse(&changed).expect("read");
            assert!(!is_right(&read, rsa), "{said}");
        }
    }

    #[test]
    fn what_a_relay_says_it_carries_counts_as_it_has_signed_it_and_the_later_of_two() {
        let (identity, text) = handed_in();
        let rsa_id = identity.rsa_key().expect("a key").public().id();
        let (other, others) = handed_in();
        let others_id = other.rsa_key().expect("a key").public().id();
        for (before, now) in [
            ("bandwidth 1000000 ", "bandwidth 1000 "),
            ("published ", "published 1"),
            ("fingerprint ", "fingerprint 0"),
            ("-----END SIGNATURE", "AAAA\n-----END SIGNATURE"),
            ("published ", "long\n-----BEGIN X-----\npublished "),
        ] {
            let mut said = SaidBandwidths::default();
            // Whatever stands beside it.
            let changed = text.replace(before, now);
            said.hear(&[&*changed, &*others].concat()).expect("read");
            assert!(said.of(&rsa_id).is_none(), "{now}");
            assert!(said.of(&others_id).is_some(), "{now}");
        }
        // By a key of its own, in another's name.
        let secrets = Secrets::fresh(NOW).expect("made");
        let onion = secrets.certified_ntor(NOW).expect("certified");
        let tap = TapKey::forgotten(&identity.peer()).expect("made");
        let signer = Signer {
            identity: &identity,
            rsa: identity.rsa_key().expect("a key"),
        };
        let mut keys = signer.keys(&onion, &tap);
        keys.rsa_id = others_id;
        let descriptor = ServerDescriptor {
            about: about(),
            keys,
            extra_info: None,
        };
        let (in_anothers_name, _) = signer.sign(descriptor.write()).expect("signed");
        let mut said = SaidBandwidths::default();
        said.hear(&in_anothers_name).expect("read");
        assert!(said.of(&others_id).is_none() && said.of(&rsa_id).is_none());
        said.hear(&others).expect("read");
        said.hear(&text).expect("read");
        assert_eq!(said.of(&rsa_id), Some(about().bandwidth));
        let later = |published, average| {
            let mut later = Said {
                about: about(),
                statistics: statistics(),
                families: Vec::new(),
            };
            later.about.published = published;
            later.about.bandwidth.average = average;
            let secrets = Secrets::fresh(NOW).expect("made");
            let onion = secrets.certified_ntor(NOW).expect("certified");
            let tap = TapKey::forgotten(&identity.peer()).expect("made");
            sign(later, &identity, &onion, &tap).expect("signed")
        };
        for (published, average, counts) in [(NOW + 1, 5, 5), (NOW - 1, 6, 5)] {
            said.hear(&later(published, average)).expect("read");
            assert_eq!(said.of(&rsa_id).expect("known").average, counts);
        }
    }

    #[test]
    fn a_relay_without_an_rsa_identity_has_nothing_to_hand_in() {
        let secrets = Secrets::fresh(NOW).expect("made");
        let identity = secrets.identity(NOW).expect("an identity");
        let onion = secrets.certified_ntor(NOW).expect("certified");
        let tap = TapKey::forgotten(&identity.peer()).expect("made");
        let refused = sign(said(), &identity, &onion, &tap);
        assert_eq!(refused, Err(Unsigned::NoRsaIdentity));
    }
}
