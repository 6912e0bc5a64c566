//! The keys of an onion service: its identity (`KS_hs_id`), which is its address, and the key that stands for it in one time period, blinded so that
//! who has that key knows neither the address nor the service's keys of other periods. rend-spec-v3, "Deriving blinded keys and subcredentials",
//! "Encoding onion addresses", appendix A ("Signature scheme with key blinding").
//!
//! Files are C tor's: a service can move here with its address, and back.

use std::{fmt, hash, str::FromStr};

use aws_lc_rs::digest::{self, SHA3_256, SHA512};
use curve25519_dalek::{
    edwards::{CompressedEdwardsY, EdwardsPoint},
    scalar::{Scalar, clamp_integer},
    traits::Identity as _,
};
use data_encoding::BASE32_NOPAD_NOCASE;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::{ntor3::encipher, time_period::TimePeriod};

/// What every address ends in.
const SUFFIX: &str = ".onion";
/// Characters before it.
const CHARACTERS: usize = 56;
/// Bytes of a key, two of its checksum, one of the version.
const ADDRESS: usize = 35;
const VERSION: u8 = 3;

const SECRET_FILE: &[u8; 32] = b"== ed25519v1-secret: type0 ==\0\0\0";
const PUBLIC_FILE: &[u8; 32] = b"== ed25519v1-public: type0 ==\0\0\0";

const BLIND: &[u8] = b"Derive temporary signing key\0";
const REVISION: &[u8] = b"rev-counter-generation\0";
/// Seconds for which revisions grow: two of the longest time periods.
const REVISIONS: u64 = 2 * 14_400 * 60;
const BLIND_NONCE: &[u8] = b"Derive temporary signing key hash input";
const OF_X25519: &[u8] = b"Derive high part of ed25519 key from curve25519 key\0";
/// The base point, as it is written out for the blinding factor.
const BASE_POINT: &[u8] =
    b"(15112221349535400772501151409588531511454012693041857206046113283949847762202, \
      46316835694926478169428394003475163141307993866256225615783033603165251855960)";

/// Why there is no key of an onion service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceKeyError {
    /// It is no address of version 3.
    #[error("an onion address is 56 letters and digits, and `.onion`")]
    NoAddress,
    /// A letter of the address is wrong.
    #[error("the onion address is mistyped: its checksum does not match")]
    Mistyped,
    /// The address is of another version.
    #[error("the onion address is of version {0}, and only version 3 is spoken")]
    Version(u8),
    /// The key is no point of the prime-order group: it is a variant of another service's key, or nobody has its secret.
    #[error("the onion address has a key that no service can have: it may imitate another address")]
    BadKey,
    /// The file is none of a service's identity.
    #[error("expected the file `hs_ed25519_secret_key` of an onion service, 96 bytes")]
    NoSecret,
    /// The system has no randomness, or the library not the cipher.
    #[error("the system gives no random bytes")]
    NoRandomness,
}

/// Who a service is to all the world: its public identity key (`KP_hs_id`). Only keys without torsion are addresses.
#[derive(Clone, Copy)]
pub struct OnionAddress {
    key: [u8; 32],
    point: EdwardsPoint,
}

impl OnionAddress {
    /// The address of this key.
    ///
    /// # Errors
    /// [`ServiceKeyError::BadKey`].
    pub fn from_key(key: [u8; 32]) -> Result<Self, ServiceKeyError> {
        let point = CompressedEdwardsY(key).decompress();
        let point = point.filter(|point| {
            point.is_torsion_free()
                && *point != EdwardsPoint::identity()
                && point.compress().0 == key
        });
        let point = point.ok_or(ServiceKeyError::BadKey)?;
        Ok(Self { key, point })
    }

    /// The 56 characters before `.onion`, in any case: the last label but one of a name.
    ///
    /// # Errors
    /// See [`ServiceKeyError`].
    pub fn from_label(label: &str) -> Result<Self, ServiceKeyError> {
        let mut bytes = [0; ADDRESS];
        if label.len() != CHARACTERS {
            return Err(ServiceKeyError::NoAddress);
        }
        let decoded = BASE32_NOPAD_NOCASE.decode_mut(label.as_bytes(), &mut bytes);
        if decoded.ok() != Some(ADDRESS) {
            return Err(ServiceKeyError::NoAddress);
        }
        let (key, rest) = bytes
            .split_first_chunk()
            .ok_or(ServiceKeyError::NoAddress)?;
        let [first, second, version] = *rest else {
            return Err(ServiceKeyError::NoAddress);
        };
        if version != VERSION {
            return Err(ServiceKeyError::Version(version));
        }
        if [first, second] != checksum(key) {
            return Err(ServiceKeyError::Mistyped);
        }
        Self::from_key(*key)
    }

    /// The public key.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// The 56 characters before `.onion`.
    pub fn label(&self) -> String {
        let [first, second] = checksum(&self.key);
        let bytes = [&self.key[..], &[first, second, VERSION]].concat();
        BASE32_NOPAD_NOCASE.encode(&bytes).to_ascii_lowercase()
    }

    /// The key that stands for the service in this period.
    pub fn blinded(&self, period: TimePeriod) -> BlindedKey {
        let point = self.point * blinding_factor(&self.key, period);
        BlindedKey(point.compress().0)
    }

    /// What opens the outer layer of the descriptor of this blinded key, and introduces to its service (`N_hs_subcred`).
    pub fn subcredential(&self, blinded: &BlindedKey) -> [u8; 32] {
        let credential = sha3_256(&[b"credential", &self.key]);
        sha3_256(&[b"subcredential", &credential, &blinded.0])
    }

    /// The file `hs_ed25519_public_key`.
    pub fn file(&self) -> Vec<u8> {
        [&PUBLIC_FILE[..], &self.key].concat()
    }
}

fn checksum(key: &[u8; 32]) -> [u8; 2] {
    let [first, second, ..] = sha3_256(&[b".onion checksum", key, &[VERSION]]);
    [first, second]
}

impl FromStr for OnionAddress {
    type Err = ServiceKeyError;

    /// `LABEL.onion`, in any case. Names below an address are the caller's to cut off.
    fn from_str(text: &str) -> Result<Self, ServiceKeyError> {
        let (label, suffix) = text
            .split_at_checked(CHARACTERS)
            .ok_or(ServiceKeyError::NoAddress)?;
        if !suffix.eq_ignore_ascii_case(SUFFIX) {
            return Err(ServiceKeyError::NoAddress);
        }
        Self::from_label(label)
    }
}

impl fmt::Display for OnionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())?;
        f.write_str(SUFFIX)
    }
}

impl PartialEq for OnionAddress {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for OnionAddress {}

impl hash::Hash for OnionAddress {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// The key by which a service is known in one time period (`KP_hs_blind_id`): directories find its descriptors by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlindedKey([u8; 32]);

impl BlindedKey {
    /// As somebody asks for it, or a certificate names it. Whether a service has it, its signature shows.
    pub fn from_bytes(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The public key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A secret scalar, and what nonces of signatures are made with: the two halves of what RFC 8032 expands a secret to.
#[derive(Clone)]
pub(super) struct Expanded(Zeroizing<[u8; 64]>);

impl Expanded {
    /// What RFC 8032 makes of a seed.
    pub(super) fn of_seed(seed: &[u8; 32]) -> Self {
        let mut expanded = sha512(&[seed.as_slice()]);
        if let Some(scalar) = expanded.first_chunk_mut::<32>() {
            *scalar = clamp_integer(*scalar);
        }
        Self(expanded)
    }

    /// As it stands in a file.
    pub(super) fn of_bytes(bytes: &[u8; 64]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// The same.
    pub(super) fn bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// Whose it is.
    pub(super) fn public(&self) -> [u8; 32] {
        EdwardsPoint::mul_base(&self.scalar()).compress().0
    }

    /// The Ed25519 key that an X25519 secret is as well, and who signs with it. dir-spec, "Converting a curve25519 public key to an ed25519 public key"
    /// (its appendix C).
    pub(super) fn of_x25519(secret: &[u8; 32]) -> (Self, [u8; 32]) {
        let scalar = Zeroizing::new(clamp_integer(*secret));
        let nonce = sha512(&[scalar.as_slice(), OF_X25519]);
        let mut expanded = Zeroizing::new([0; 64]);
        let (first, second) = expanded.split_at_mut(32);
        first.copy_from_slice(scalar.as_slice());
        second.copy_from_slice(nonce.split_at(32).0);
        let expanded = Self(expanded);
        let public = expanded.public();
        (expanded, public)
    }

    /// RFC 8032, §5.1.6; `public` is the public half.
    pub(super) fn sign(&self, public: &[u8; 32], message: &[u8]) -> [u8; 64] {
        let nonce = wide_scalar(&[self.nonce(), message]);
        let point = EdwardsPoint::mul_base(&nonce).compress().0;
        let challenge = wide_scalar(&[&point, public, message]);
        let answer = *nonce + *challenge * *self.scalar();
        let mut signature = [0; 64];
        let (first, second) = signature.split_at_mut(32);
        first.copy_from_slice(&point);
        second.copy_from_slice(answer.as_bytes());
        signature
    }

    fn halves(&self) -> (&[u8; 32], &[u8; 32]) {
        let halves = self.0.split_first_chunk::<32>();
        let halves = halves.and_then(|(scalar, nonce)| Some((scalar, nonce.try_into().ok()?)));
        halves.unwrap_or((&[0; 32], &[0; 32]))
    }

    fn scalar(&self) -> Zeroizing<Scalar> {
        Zeroizing::new(Scalar::from_bytes_mod_order(*self.halves().0))
    }

    fn nonce(&self) -> &[u8; 32] {
        self.halves().1
    }
}

/// A service's identity: who has it is the service.
#[derive(Clone)]
pub struct ServiceIdentity {
    expanded: Expanded,
    address: OnionAddress,
}

impl ServiceIdentity {
    /// A new one.
    ///
    /// # Errors
    /// [`ServiceKeyError::NoRandomness`].
    pub fn generate() -> Result<Self, ServiceKeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| ServiceKeyError::NoRandomness)?;
        Self::from_expanded(Expanded::of_seed(&seed))
    }

    /// C tor's file `hs_ed25519_secret_key`: its tag, and the expanded secret.
    ///
    /// # Errors
    /// [`ServiceKeyError::NoSecret`]; [`ServiceKeyError::BadKey`].
    pub fn from_file(bytes: &[u8]) -> Result<Self, ServiceKeyError> {
        let secret = bytes.strip_prefix(SECRET_FILE);
        let secret = secret.ok_or(ServiceKeyError::NoSecret)?.try_into();
        let secret: &[u8; 64] = secret.map_err(|_| ServiceKeyError::NoSecret)?;
        Self::from_expanded(Expanded::of_bytes(secret))
    }

    /// The file that [`ServiceIdentity::from_file`] reads.
    pub fn file(&self) -> Zeroizing<Vec<u8>> {
        // Of its whole size at once: what a vector grows out of is not wiped.
        let mut file = Zeroizing::new(Vec::with_capacity(96));
        file.extend_from_slice(SECRET_FILE);
        file.extend_from_slice(self.expanded.0.as_slice());
        file
    }

    fn from_expanded(expanded: Expanded) -> Result<Self, ServiceKeyError> {
        let address = OnionAddress::from_key(expanded.public())?;
        Ok(Self { expanded, address })
    }

    /// Who it is.
    pub fn address(&self) -> OnionAddress {
        self.address
    }

    /// What signs for the service in this period.
    pub fn blinded(&self, period: TimePeriod) -> BlindedSecret {
        let factor = blinding_factor(self.address.key(), period);
        let scalar = Zeroizing::new(*self.expanded.scalar() * factor);
        let nonce = sha512(&[BLIND_NONCE, self.expanded.nonce()]);
        let mut secret = Zeroizing::new([0; 64]);
        let (first, second) = secret.split_at_mut(32);
        first.copy_from_slice(Zeroizing::new(scalar.to_bytes()).as_slice());
        second.copy_from_slice(nonce.split_at(32).0);
        BlindedSecret {
            expanded: Expanded(secret),
            public: self.address.blinded(period),
        }
    }
}

/// The secret half of a [`BlindedKey`] (`KS_hs_blind_id`). It tells nothing of the identity.
#[derive(Clone)]
pub struct BlindedSecret {
    expanded: Expanded,
    public: BlindedKey,
}

impl BlindedSecret {
    /// Who signs.
    pub fn public(&self) -> BlindedKey {
        self.public
    }

    /// The revision of a descriptor that is made so many seconds after the time that revisions of its period are counted from (see
    /// [`Schedule::counted_from`](super::time_period::Schedule::counted_from)): each second has a greater one, and none tells the service's clock. A
    /// service that starts anew needs no memory of those before, and other instances of it agree. rend-spec-v3, "Encrypted time in period", with the
    /// key and the sum that C tor has.
    ///
    /// # Errors
    /// [`ServiceKeyError::NoRandomness`].
    pub fn revision(&self, seconds: u64) -> Result<u64, ServiceKeyError> {
        let words = seconds.min(REVISIONS).saturating_add(1);
        let bytes = usize::try_from(words.saturating_mul(2));
        let bytes = bytes.map_err(|_| ServiceKeyError::NoRandomness)?;
        let key = Zeroizing::new(sha3_256(&[REVISION, self.expanded.0.as_slice()]));
        let mut stream = Zeroizing::new(vec![0; bytes]);
        encipher(&key, &mut stream).map_err(|_| ServiceKeyError::NoRandomness)?;
        let words = stream.as_chunks::<2>().0.iter();
        Ok(words
            .map(|word| u64::from(u16::from_le_bytes(*word)) + 1)
            .sum())
    }

    /// An Ed25519 signature (RFC 8032, §5.1.6) of `message`, whose first bytes must say what kind of message it is.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.expanded.sign(&self.public.0, message)
    }
}

/// `h`, for a service without a further secret.
fn blinding_factor(key: &[u8; 32], period: TimePeriod) -> Scalar {
    let (number, minutes) = period.parts();
    let parts = [b"key-blind", &number[..], &minutes[..]].concat();
    let hash = sha3_256(&[BLIND, key, BASE_POINT, &parts]);
    Scalar::from_bytes_mod_order(clamp_integer(hash))
}

/// SHA-512, as a number modulo the group's order.
fn wide_scalar(parts: &[&[u8]]) -> Zeroizing<Scalar> {
    Zeroizing::new(Scalar::from_bytes_mod_order_wide(&sha512(parts)))
}

fn sha512(parts: &[&[u8]]) -> Zeroizing<[u8; 64]> {
    let mut context = digest::Context::new(&SHA512);
    parts.iter().for_each(|part| context.update(part));
    let mut out = Zeroizing::new([0; 64]);
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// SHA3-256 of all parts: the specification's `H`, and what names a consensus to which a difference is told.
pub fn sha3_256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&SHA3_256);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

impl fmt::Debug for OnionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionAddress(hidden)")
    }
}

impl fmt::Debug for BlindedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlindedKey(hidden)")
    }
}

impl fmt::Debug for ServiceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceIdentity(hidden)")
    }
}

impl fmt::Debug for BlindedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlindedSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::testing::bytes, *};
    use crate::signing::is_signed;

    /// Examples of rend-spec-v3, "Encoding onion addresses".
    const EXAMPLES: [&str; 3] = [
        "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion",
        "sp3k262uwy4r2k3ycr5awluarykdpag6a7y33jxop4cs2lu5uz5sseqd.onion",
        "xa4r2iadxm55fbnqgwwi5mymqdcofiu3w6rpbtqn7b2dyn7mgwj64jyd.onion",
    ];

    fn period(number: u64) -> TimePeriod {
        let minutes = 1440;
        TimePeriod { number, minutes }
    }

    #[test]
    fn published_addresses_are_read_in_any_case_and_shown_again() {
        for example in EXAMPLES {
            let address: OnionAddress = example.parse().expect("an address");
            assert_eq!(address.to_string(), example);
            assert_eq!(example.to_uppercase().parse(), Ok(address));
            assert_eq!(
                OnionAddress::from_label(example.split_at(56).0),
                Ok(address)
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused_for_what_is_wrong_with_it() {
        let [example, ..] = EXAMPLES;
        let refused = |text: &str| text.parse::<OnionAddress>().err();
        for wrong in [
            "",
            "example.onion",
            example.split_at(56).0,
            example.split_at(61).0,
            &format!("www.{example}"),
            &format!("{example}."),
            &example.replace('6', "1"),
            &format!("{}é.onion", example.split_at(54).0),
        ] {
            assert_eq!(refused(wrong), Some(ServiceKeyError::NoAddress), "{wrong}");
        }
        let mistyped = example.replacen("pg6", "pg7", 1);
        assert_eq!(refused(&mistyped), Some(ServiceKeyError::Mistyped));
        let version = format!("{}c.onion", example.split_at(55).0);
        assert_eq!(refused(&version), Some(ServiceKeyError::Version(2)));
    }

    #[test]
    fn any_single_letter_that_changed_is_noticed() {
        let [example, ..] = EXAMPLES;
        for at in 0..56 {
            for letter in ["a", "q", "7"] {
                let mut changed = example.to_owned();
                changed.replace_range(at..=at, letter);
                assert!(changed == example || changed.parse::<OnionAddress>().is_err());
            }
        }
    }

    /// An address as its owner would write it, whatever the key.
    fn written(key: &[u8; 32]) -> String {
        let point = EdwardsPoint::identity();
        OnionAddress { key: *key, point }.to_string()
    }

    #[test]
    fn a_key_that_imitates_another_or_belongs_to_nobody_is_no_address() {
        let genuine: OnionAddress = EXAMPLES[0].parse().expect("an address");
        for torsion in curve25519_dalek::constants::EIGHT_TORSION.iter().skip(1) {
            let imitation = (genuine.point + torsion).compress().0;
            let read = written(&imitation).parse::<OnionAddress>();
            assert_eq!(read, Err(ServiceKeyError::BadKey));
        }
        for small in curve25519_dalek::constants::EIGHT_TORSION {
            let read = OnionAddress::from_key(small.compress().0);
            assert_eq!(read, Err(ServiceKeyError::BadKey));
        }
        // Not on the curve; the identity written in another way.
        let mut unreduced = [0xff; 32];
        (unreduced[0], unreduced[31]) = (0xee, 0x7f);
        for bad in [bytes(&"02".repeat(32)), unreduced, [0; 32]] {
            assert_eq!(OnionAddress::from_key(bad), Err(ServiceKeyError::BadKey));
        }
    }

    #[test]
    fn what_signs_for_a_period_is_the_key_that_everybody_derives() {
        let identity = ServiceIdentity::generate().expect("a key");
        let (today, tomorrow) = (identity.blinded(period(1)), identity.blinded(period(2)));
        assert_eq!(today.public(), identity.address().blinded(period(1)));
        assert_ne!(today.public(), tomorrow.public());
        let shorter = TimePeriod {
            number: 1,
            minutes: 1439,
        };
        assert_ne!(today.public(), identity.address().blinded(shorter));
        let signature = today.sign(b"a descriptor");
        let by = |key: BlindedKey| is_signed(key.as_bytes(), b"a descriptor", &signature);
        assert!(by(today.public()) && !by(tomorrow.public()));
        assert!(!is_signed(
            identity.address().key(),
            b"a descriptor",
            &signature
        ));
        assert!(!is_signed(
            today.public().as_bytes(),
            b"another",
            &signature
        ));
        let subcredentials =
            [&today, &tomorrow].map(|key| identity.address().subcredential(&key.public()));
        assert_ne!(subcredentials[0], subcredentials[1]);
    }

    #[test]
    fn each_second_has_a_greater_revision_in_steps_that_say_nothing() {
        let key = ServiceIdentity::generate()
            .expect("a key")
            .blinded(period(1));
        let revision = |seconds| key.revision(seconds).expect("a cipher");
        let first: Vec<_> = (0..50).map(revision).collect();
        assert!(first[0] > 0 && first.is_sorted_by(|a, b| a < b));
        let steps = first.windows(2).map(|two| two[1] - two[0]);
        assert!(steps.clone().max() > steps.min().map(|least| least + 1000));
        let other = ServiceIdentity::generate()
            .expect("a key")
            .blinded(period(1));
        assert_ne!(other.revision(9), key.revision(9));
        assert_eq!(revision(u64::MAX), revision(REVISIONS));
    }

    #[test]
    fn signatures_are_those_of_the_standard() {
        // RFC 8032, §7.1, test 2: the expanded secret signs as the seed does.
        let seed = bytes::<32>("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let mut expanded = sha512(&[&seed]);
        let scalar: &mut [u8; 32] = expanded.first_chunk_mut().expect("64 bytes");
        *scalar = clamp_integer(*scalar);
        let identity = ServiceIdentity::from_expanded(Expanded(expanded.clone())).expect("a key");
        let plain = BlindedSecret {
            expanded: Expanded(expanded),
            public: BlindedKey(*identity.address().key()),
        };
        assert_eq!(
            plain.sign(&[0x72]),
            bytes(
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da
                 085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            )
        );
    }

    #[test]
    fn an_identity_is_kept_in_a_file_and_is_the_same_service() {
        let identity = ServiceIdentity::generate().expect("a key");
        let file = identity.file();
        assert_eq!((file.len(), file.capacity()), (96, 96));
        let again = ServiceIdentity::from_file(&file).expect("reads");
        assert_eq!(again.address(), identity.address());
        assert_eq!(again.file(), file);
        assert_eq!(
            again.blinded(period(7)).sign(b"x"),
            identity.blinded(period(7)).sign(b"x")
        );
        let public = identity.address().file();
        for bad in [
            &file[..95],
            &file[1..],
            &public,
            &[],
            &[&file[..], &[0]].concat(),
        ] {
            let refused = ServiceIdentity::from_file(bad).err();
            assert_eq!(refused, Some(ServiceKeyError::NoSecret));
        }
        let mut nobody = file.clone();
        nobody[32..64].fill(0);
        let refused = ServiceIdentity::from_file(&nobody).err();
        assert_eq!(refused, Some(ServiceKeyError::BadKey));
    }

    #[test]
    fn debug_tells_nothing() {
        let identity = ServiceIdentity::generate().expect("a key");
        let secret = identity.blinded(period(1));
        let all = format!(
            "{identity:?} {:?} {secret:?} {:?}",
            identity.address(),
            secret.public()
        );
        assert_eq!(all.matches("(hidden)").count(), 4);
        assert_eq!(
            all.len(),
            "ServiceIdentity OnionAddress BlindedSecret BlindedKey".len() + 32
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_what_is_read_is_shown_so(text in "[a-zA-Z2-7]{56}\\.onion|.{0,80}") {
            if let Ok(address) = text.parse::<OnionAddress>() {
                prop_assert_eq!(address.to_string(), text.to_ascii_lowercase());
            }
        }

        #[test]
        fn a_key_that_is_an_address_is_read_from_its_text(key: [u8; 32]) {
            let address = OnionAddress::from_key(key);
            prop_assert_eq!(written(&key).parse::<OnionAddress>(), address);
        }
    }
}
