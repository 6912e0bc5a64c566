//! Clients whom an onion service has authorised: the key pair of each, the files that both keep, and how the cookie that opens a descriptor's second
//! layer is encrypted for him. rend-spec-v3, "Client authorization keys", "First layer plaintext format", appendix G ("Managing authorized client
//! data"). Files are C tor's.

use std::{fmt, sync::Arc};

use data_encoding::BASE32_NOPAD_NOCASE;
use hoplite_wire::tor::service_descriptor::AuthClient;
use ring::rand::{SecureRandom, SystemRandom};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Refused,
    keys::KeyPair,
    ntor3::encipher_from,
    service_keys::{OnionAddress, ServiceKeyError},
};

/// The most bytes that a file has.
const FILE: usize = 4096;
/// Characters of a key in base32.
const KEY: usize = 52;
/// What stands before a key in both files.
const KIND: &str = "descriptor:x25519:";

/// Opens the second layer of a descriptor (`N_hs_desc_enc`).
pub(super) type Cookie = Zeroizing<[u8; 16]>;

/// Why there is no key of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientFileError {
    /// No line of the file is of a client's key.
    #[error(
        "no line of it is `descriptor:x25519:KEY` (of a service) or `ADDRESS:descriptor:x25519:KEY` (of a client)"
    )]
    NoKey,
    /// The address before the key is none.
    #[error("before the key there is no address: {0}")]
    Address(#[from] ServiceKeyError),
    /// The library takes no such key.
    #[error("the key cannot be used")]
    BadKey,
}

/// The public key of an authorised client (`KP_hsc_desc_enc`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientKey([u8; 32]);

impl ClientKey {
    /// A file of the service (`.auth`): its first line that has a key.
    ///
    /// # Errors
    /// [`ClientFileError::NoKey`].
    pub fn from_file(text: &str) -> Result<Self, ClientFileError> {
        let mut lines = lines(text)?;
        let key = lines.find_map(|line| key(line.strip_prefix(KIND)?));
        key.map(|key| Self(*key)).ok_or(ClientFileError::NoKey)
    }

    /// The file that [`ClientKey::from_file`] reads.
    pub fn file(&self) -> String {
        format!("{KIND}{}\n", BASE32_NOPAD_NOCASE.encode(&self.0))
    }

    /// What the service writes of him: the cookie, for him alone. `service` is its key for this descriptor.
    pub(super) fn authorised(
        &self,
        service: &KeyPair,
        subcredential: &[u8; 32],
        cookie: &Cookie,
    ) -> Result<AuthClient, Refused> {
        let keys = CookieKeys::derive(service, &self.0, subcredential)?;
        let mut line = nobody()?;
        line.id = keys.id;
        line.cookie = **cookie;
        encipher_from(line.iv, &keys.key, &mut line.cookie)?;
        Ok(line)
    }
}

/// A line that is for nobody, and looks like any other.
pub(super) fn nobody() -> Result<AuthClient, Refused> {
    let mut line = AuthClient {
        id: [0; 8],
        iv: [0; 16],
        cookie: [0; 16],
    };
    let random = SystemRandom::new();
    let filled = random
        .fill(&mut line.id)
        .and_then(|()| random.fill(&mut line.iv))
        .and_then(|()| random.fill(&mut line.cookie));
    filled.map_err(|_| Refused::System)?;
    Ok(line)
}

/// The secret key of an authorised client (`KS_hsc_desc_enc`). It is wiped from memory when dropped.
#[derive(Clone)]
pub struct ClientSecret {
    secret: Zeroizing<[u8; 32]>,
    pair: Arc<KeyPair>,
}

impl ClientSecret {
    /// A new one.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn generate() -> Result<Self, Refused> {
        let mut secret = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(secret.as_mut_slice());
        filled.map_err(|_| Refused::System)?;
        Self::new(secret)
    }

    fn new(secret: Zeroizing<[u8; 32]>) -> Result<Self, Refused> {
        let pair = Arc::new(KeyPair::from_octets(&secret)?);
        Ok(Self { secret, pair })
    }

    /// What the service is told.
    pub fn public(&self) -> ClientKey {
        ClientKey(*self.pair.public())
    }

    /// A file of the client (`.auth_private`): its first line that has a key, and the service that it is for.
    ///
    /// # Errors
    /// See [`ClientFileError`].
    pub fn from_file(text: &str) -> Result<(OnionAddress, Self), ClientFileError> {
        let mut lines = lines(text)?;
        let found = lines.find_map(|line| {
            let (label, rest) = line.split_once(':')?;
            Some((label, key(rest.strip_prefix(KIND)?)?))
        });
        let (label, secret) = found.ok_or(ClientFileError::NoKey)?;
        let address = OnionAddress::from_label(label)?;
        let secret = Self::new(secret).map_err(|_| ClientFileError::BadKey)?;
        Ok((address, secret))
    }

    /// The file that [`ClientSecret::from_file`] reads.
    pub fn file(&self, service: &OnionAddress) -> Zeroizing<String> {
        let key = Zeroizing::new(BASE32_NOPAD_NOCASE.encode(self.secret.as_slice()));
        Zeroizing::new(format!("{}:{KIND}{}\n", service.label(), key.as_str()))
    }

    /// The cookie, if one of these lines is for him. `service` is the service's key for this descriptor.
    pub(super) fn cookie(
        &self,
        service: &[u8; 32],
        subcredential: &[u8; 32],
        lines: &[AuthClient],
    ) -> Result<Option<Cookie>, Refused> {
        let keys = CookieKeys::derive(&self.pair, service, subcredential)?;
        let mine = |line: &&AuthClient| bool::from(line.id.ct_eq(&keys.id));
        let Some(line) = lines.iter().find(mine) else {
            return Ok(None);
        };
        let mut cookie = Zeroizing::new(line.cookie);
        encipher_from(line.iv, &keys.key, cookie.as_mut_slice())?;
        Ok(Some(cookie))
    }
}

/// `CLIENT-ID` and `COOKIE-KEY`.
struct CookieKeys {
    id: [u8; 8],
    key: Zeroizing<[u8; 32]>,
}

impl CookieKeys {
    fn derive(own: &KeyPair, peer: &[u8; 32], subcredential: &[u8; 32]) -> Result<Self, Refused> {
        let seed = own.agree(peer)?;
        let mut hash = Shake256::default();
        hash.update(subcredential);
        hash.update(seed.as_slice());
        let mut stream = hash.finalize_xof();
        let (mut id, mut key) = ([0; 8], Zeroizing::new([0; 32]));
        stream.read(&mut id);
        stream.read(key.as_mut_slice());
        Ok(Self { id, key })
    }
}

fn lines(text: &str) -> Result<impl Iterator<Item = &str>, ClientFileError> {
    let fits = (text.len() <= FILE).then(|| text.lines().map(str::trim));
    fits.ok_or(ClientFileError::NoKey)
}

fn key(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    (text.len() == KEY).then_some(())?;
    let decoded = BASE32_NOPAD_NOCASE.decode_mut(text.as_bytes(), key.as_mut_slice());
    decoded.ok()?;
    Some(key)
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(hidden)")
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{service_keys::ServiceIdentity, testing::bytes},
        *,
    };

    const SUBCREDENTIAL: [u8; 32] = [5; 32];

    #[test]
    fn files_are_read_back_with_what_else_stands_in_them() {
        let service = ServiceIdentity::generate().expect("a key").address();
        let secret = ClientSecret::generate().expect("a key");
        let file = secret.file(&service);
        let more = format!(
            "# a note\n\n  {}\r\nmore\n",
            file.trim()
                .to_uppercase()
                .replace("DESCRIPTOR:X25519", "descriptor:x25519")
        );
        for text in [file.as_str(), file.trim(), &more] {
            let (address, again) = ClientSecret::from_file(text).expect("reads");
            assert_eq!(address, service);
            assert_eq!(again.public(), secret.public());
            assert_eq!(again.file(&service), file);
        }
        let public = secret.public().file();
        let more = format!("later:x25519:AAAA\n{public}{}", ClientKey([1; 32]).file());
        for text in [
            public.as_str(),
            public.trim(),
            &public.replace("descriptor", " descriptor"),
            &more,
        ] {
            assert_eq!(ClientKey::from_file(text), Ok(secret.public()));
        }
        assert_eq!(
            format!("{secret:?} {:?}", secret.public()),
            "ClientSecret(hidden) ClientKey(hidden)"
        );
    }

    #[test]
    fn the_file_of_one_is_none_of_the_other_and_nothing_is_guessed() {
        let service = ServiceIdentity::generate().expect("a key").address();
        let secret = ClientSecret::generate().expect("a key");
        let (file, public) = (secret.file(&service), secret.public().file());
        for bad in [
            file.as_str(),
            "",
            public.split_at(public.len() - 2).0,
            &public.replace("x25519", "ed25519"),
            &format!("{}A\n", public.trim()),
            &format!("{}{public}", "\n".repeat(FILE)),
        ] {
            assert_eq!(
                ClientKey::from_file(bad),
                Err(ClientFileError::NoKey),
                "{bad}"
            );
        }
        for bad in [
            public.as_str(),
            "",
            ":",
            file.split_at(1).0,
            file.trim().trim_end_matches(|c| c != ':'),
        ] {
            let read = ClientSecret::from_file(bad);
            assert_eq!(read.err(), Some(ClientFileError::NoKey), "{bad}");
        }
        let wrong = file.replacen(service.label().split_at(2).0, "zz", 1);
        let read = ClientSecret::from_file(&wrong).err();
        assert!(matches!(read, Some(ClientFileError::Address(_))));
    }

    #[test]
    fn a_cookie_is_read_by_the_client_whom_it_is_for_and_by_no_other() {
        let [alice, bob, eve] = [(); 3].map(|()| ClientSecret::generate().expect("a key"));
        let service = KeyPair::generate().expect("a key");
        let cookie = Cookie::new([7; 16]);
        let line = |client: &ClientSecret| {
            client
                .public()
                .authorised(&service, &SUBCREDENTIAL, &cookie)
        };
        let lines = [nobody(), line(&alice), line(&bob)].map(|line| line.expect("a line"));
        let read = |client: &ClientSecret, subcredential| {
            let read = client.cookie(service.public(), &subcredential, &lines);
            read.expect("a secret").map(|cookie| *cookie)
        };
        assert_eq!(read(&alice, SUBCREDENTIAL), Some([7; 16]));
        assert_eq!(read(&bob, SUBCREDENTIAL), Some([7; 16]));
        assert_eq!(read(&eve, SUBCREDENTIAL), None);
        assert_eq!(read(&alice, [6; 32]), None);
        // Nothing of a line is as before in the next descriptor.
        let again = KeyPair::generate().expect("a key");
        let again = alice
            .public()
            .authorised(&again, &SUBCREDENTIAL, &cookie)
            .expect("a line");
        assert!(
            again.id != lines[1].id && again.iv != lines[1].iv && again.cookie != lines[1].cookie
        );
    }

    #[test]
    fn a_key_that_gives_no_secret_is_refused() {
        let service = KeyPair::generate().expect("a key");
        for key in super::super::keys::SMALL_ORDER {
            let key = bytes(key);
            let line = ClientKey(key).authorised(&service, &SUBCREDENTIAL, &Cookie::default());
            assert_eq!(line.err(), Some(Refused::BadKey));
            let client = ClientSecret::generate().expect("a key");
            let read = client.cookie(&key, &SUBCREDENTIAL, &[]);
            assert_eq!(read.err(), Some(Refused::BadKey));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "([a-z2-7]{56}:)?(descriptor:x25519:)?[A-Z2-7]{52}|.{0,90}") {
            let read = (ClientKey::from_file(&text), ClientSecret::from_file(&text));
            if let (Ok(key), _) = read {
                prop_assert_eq!(ClientKey::from_file(&key.file()), Ok(key));
            }
        }
    }
}
