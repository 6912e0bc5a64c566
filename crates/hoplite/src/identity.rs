//! What a relay or an authority is known by, on disk: `cert.pem` and `key.pem` in one directory, beside them the onion identity, `onion.key`, or the
//! key with which a relay without circuits signs what it says of itself; and the key of an authority. Each is readable by its owner only, and no file is
//! ever there by half: it is written beside and then renamed.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use hoplite_crypto::{
    Identity, NewIdentity, SigningKey,
    onion::{
        CertifiedNtor, Secrets, SecretsError, family::FamilyKey, identity::RelayIdentity,
        offline::CertifiedSigningKey, rsa::SecretKey,
    },
};
use hoplite_directory::RelayKey;
use hoplite_relay::Circuits;
use hoplite_wire::OnionKey;
use zeroize::Zeroizing;

use crate::say::Failure;

/// The certificate's file.
const CERTIFICATE: &str = "cert.pem";
/// The key's file.
const KEY: &str = "key.pem";

/// The two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    /// The certificate chain.
    pub(crate) certificate: PathBuf,
    /// The private key.
    pub(crate) key: PathBuf,
}

impl Files {
    /// Those in an identity's directory.
    pub(crate) fn within(directory: &Path) -> Self {
        Self {
            certificate: directory.join(CERTIFICATE),
            key: directory.join(KEY),
        }
    }

    /// Whether one of them is there.
    pub(crate) fn exist(&self) -> bool {
        self.certificate.exists() || self.key.exists()
    }

    /// Reads both.
    pub(crate) fn read(&self) -> Result<Identity, Failure> {
        let read = |path: &Path| {
            fs::read(path).map_err(|error| Failure::file("reading the identity", path, &error))
        };
        let certificate = read(&self.certificate)?;
        let key = Zeroizing::new(read(&self.key)?);
        Identity::from_pem(&certificate, &key).map_err(|error| {
            let doing = format!("reading the identity {}", self.certificate.display());
            Failure::new(doing, error, "make a new one with 'hoplite keygen --force'")
        })
    }
}

/// Makes a new identity.
pub(crate) fn make(names: &[String]) -> Result<NewIdentity, Failure> {
    Identity::generate(names).map_err(|error| {
        Failure::new(
            "making an identity",
            error,
            "use host names or addresses as --name",
        )
    })
}

/// Reads an identity back from its texts.
pub(crate) fn parse(new: &NewIdentity) -> Result<Identity, Failure> {
    Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes())
        .map_err(|error| Failure::new("making an identity", error, "please report this"))
}

/// Stores a new identity in `directory`, which is made if absent; replaces another one only by `force`.
pub(crate) fn store(directory: &Path, new: &NewIdentity, force: bool) -> Result<Files, Failure> {
    let files = Files::within(directory);
    if files.exist() && !force {
        let doing = format!("writing the identity to {}", directory.display());
        let remedy = "choose another directory, or replace it with --force: its pin changes then";
        return Err(Failure::new(doing, "there is one already", remedy));
    }
    make_directory(directory)?;
    write(&files.key, new.key.as_bytes(), 0o600)?;
    write(&files.certificate, new.certificate.as_bytes(), 0o644)?;
    Ok(files)
}

/// Makes a directory for secrets, if it is not there.
pub(crate) fn make_directory(directory: &Path) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Failure::file("making the directory", directory, &error))
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), Failure> {
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    let written = write_beside(&beside, content, mode).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        drop(fs::remove_file(&beside));
        Failure::file("writing", path, &error)
    })
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// The file of the secrets.
const FILE: &str = "onion.key";
/// The key of the RSA identity, as C tor names and writes it, so that a relay can move.
const RSA_KEY: &str = "secret_id_key";
/// A signing key that an identity which is elsewhere has certified.
const SIGNING_KEY: &str = "signing.key";
/// That identity, where it is.
const MASTER_KEY: &str = "master.key";
/// The key of a family of relays, as C tor writes it and finds it by its ending.
const FAMILY_KEY: &str = "family.secret_family_key";
/// Of an RSA identity whose key is elsewhere: an X.509 certificate, in DER.
const RSA: &str = "rsa.crt";
/// And what it says of the Ed25519 identity: a certificate of type 7.
const CROSS: &str = "rsa.cross";

/// The onion identity on disk, stored again when the onion key was rotated. Where `secret_id_key` is there, or `rsa.crt` and `rsa.cross` (made with
/// OpenSSL), the relay has an RSA identity too, which relays of C tor ask for.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    directory: PathBuf,
    secrets: Secrets,
}

impl Stored {
    /// Those in an identity's directory, if they are there.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::file("reading the onion key", &path, &error)),
        };
        let secrets: Secrets = text.parse().map_err(|error| {
            let doing = format!("reading the onion key {}", path.display());
            let remedy = "restore it from a copy, or remove it: a new one is made then, and clients need the new `onion`";
            Failure::new(doing, error, remedy)
        })?;
        Ok(Some(Self::of(directory, secrets)))
    }

    /// Those in an identity's directory; an identity of an earlier version gets new ones.
    pub(crate) fn read_or_make(directory: &Path, now: u64) -> Result<Self, Failure> {
        match Self::read(directory)? {
            Some(stored) => Ok(stored),
            None => Self::make(directory, now),
        }
    }

    /// New ones, instead of those that may be there. A relay that the directory knows already keeps the identity it is known by.
    pub(crate) fn make(directory: &Path, now: u64) -> Result<Self, Failure> {
        let known = directory.join(DESCRIPTOR);
        let secrets = if known.exists() {
            Secrets::of_identity(Zeroizing::new(*read_secret(&known)?.seed()), now)
        } else {
            Secrets::fresh(now)
        };
        let stored = Self::of(directory, secrets.map_err(|error| unmade(&error))?);
        stored.store()?;
        Ok(stored)
    }

    fn of(directory: &Path, secrets: Secrets) -> Self {
        Self {
            directory: directory.to_owned(),
            secrets,
        }
    }

    /// What clients write of the relay.
    pub(crate) fn public(&self) -> Result<OnionKey, Failure> {
        self.secrets.public().map_err(|error| unmade(&error))
    }

    /// What signs what the relay says of itself to authorities of ours.
    pub(crate) fn relay_key(&self) -> Result<RelayKey, Failure> {
        match self.certified_signing_key()? {
            Some(key) => Ok(RelayKey::Certified(key)),
            None => {
                let key = self.secrets.signing_key();
                key.map(RelayKey::Identity).map_err(|error| unmade(&error))
            }
        }
    }

    /// The signing key of a relay whose identity is elsewhere, as it is on disk now.
    pub(crate) fn certified_signing_key(&self) -> Result<Option<CertifiedSigningKey>, Failure> {
        if !self.secrets.is_offline() {
            return Ok(None);
        }
        let path = self.directory.join(SIGNING_KEY);
        let text = fs::read_to_string(&path).map(Zeroizing::new);
        let text = text.map_err(|error| Failure::file("reading the signing key", &path, &error))?;
        let key = text.parse().map_err(|error| {
            let doing = format!("reading the signing key {}", path.display());
            Failure::new(doing, error, RENEW)
        })?;
        Ok(Some(key))
    }

    /// What is stored.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// What the relay serves with.
    pub(crate) fn circuits(&self, now: u64) -> Result<Circuits, Failure> {
        let identity = self.identity(now)?;
        let keys = self.secrets.keys(&identity);
        let keys = keys.map_err(|error| unmade(&error))?;
        Ok(Circuits { identity, keys })
    }

    /// Who the relay is.
    pub(crate) fn identity(&self, now: u64) -> Result<RelayIdentity, Failure> {
        let signing = self.certified_signing_key()?;
        let identity = self.secrets.identity_by(signing.as_ref(), now);
        let identity = identity.map_err(|error| unmade(&error))?;
        if let Some(key) = self.rsa_key()? {
            let with = identity.with_rsa_key(Arc::new(key), now);
            return with
                .map_err(|error| Failure::new("certifying the RSA identity", error, "try again"));
        }
        if !self.has_rsa_certificates() {
            return Ok(identity);
        }
        let (certificate, cross) = (self.directory.join(RSA), self.directory.join(CROSS));
        let read = |path: &Path| {
            fs::read(path).map_err(|error| Failure::file("reading the RSA identity", path, &error))
        };
        let with = identity.with_rsa(&read(&certificate)?, &read(&cross)?, now);
        with.map_err(|error| {
            let doing = format!("reading the RSA identity {}", certificate.display());
            Failure::new(
                doing,
                error,
                "make rsa.crt and rsa.cross again for this onion.key, or remove both",
            )
        })
    }

    /// The onion key as Tor's directory is told of it.
    pub(crate) fn certified_ntor(&self, now: u64) -> Result<CertifiedNtor, Failure> {
        let certified = self.secrets.certified_ntor(now);
        certified.map_err(|error| unmade(&error))
    }

    /// Makes the key of an RSA identity, unless there is one.
    pub(crate) fn make_rsa_key_if_missing(&self) -> Result<(), Failure> {
        let path = self.directory.join(RSA_KEY);
        if path.exists() {
            return Ok(());
        }
        if self.has_rsa_certificates() {
            let doing = format!("making the RSA identity {}", path.display());
            let remedy = "put its key there (PEM, PKCS #1), or remove rsa.crt and rsa.cross: the relay has another fingerprint then";
            return Err(Failure::new(
                doing,
                "there are certificates of one whose key is elsewhere",
                remedy,
            ));
        }
        let key = SecretKey::generate()
            .map_err(|error| Failure::new("making the RSA identity", error, "try again"))?;
        let text = key.pem();
        let text = text.map_err(|error| {
            Failure::new("making the RSA identity", error, "please report this")
        })?;
        make_directory(&self.directory)?;
        write(&path, text.as_bytes(), 0o600)
    }

    fn has_rsa_certificates(&self) -> bool {
        [RSA, CROSS]
            .iter()
            .any(|file| self.directory.join(file).exists())
    }

    fn rsa_key(&self) -> Result<Option<SecretKey>, Failure> {
        let path = self.directory.join(RSA_KEY);
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::file("reading the RSA identity", &path, &error)),
        };
        let key = SecretKey::from_pem(&text).map_err(|error| {
            let doing = format!("reading the RSA identity {}", path.display());
            let remedy =
                "restore it from a copy, or remove it: the relay has another fingerprint then";
            Failure::new(doing, error, remedy)
        })?;
        Ok(Some(key))
    }

    /// Others from now on, on disk first: what is published must be there after a restart.
    pub(crate) fn replace(&mut self, secrets: Secrets) -> Result<(), Failure> {
        let next = Self::of(&self.directory, secrets);
        next.store()?;
        *self = next;
        Ok(())
    }

    fn store(&self) -> Result<(), Failure> {
        make_directory(&self.directory)?;
        let path = self.directory.join(FILE);
        write(&path, self.secrets.text().as_bytes(), 0o600)
    }
}

/// Secrets of a relay that are stored nowhere.
pub(crate) fn unstored(now: u64) -> Result<Circuits, Failure> {
    let secrets = Secrets::fresh(now).map_err(|error| unmade(&error))?;
    Stored::of(Path::new("nowhere"), secrets).circuits(now)
}

fn unmade(error: &SecretsError) -> Failure {
    match error {
        SecretsError::Offline | SecretsError::OtherIdentity | SecretsError::Expired => {
            Failure::new("taking up the relay's identity", error, RENEW)
        }
        _ => Failure::new("making the onion key", error, "try again"),
    }
}

/// What to do about a signing key that cannot be used.
const RENEW: &str = "make another where the identity is, with 'hoplite keygen --offline', and put its signing.key beside onion.key";

/// What `keygen --offline` has made.
pub(crate) struct Offline {
    /// The identity's file, which the relay does not need.
    pub(crate) master: PathBuf,
    /// What the relay runs with.
    pub(crate) stored: Stored,
    /// Until when, in seconds since 1970.
    pub(crate) expires: u64,
}

/// Certifies a new signing key for the relay of `directory` by the identity in `master`, which is made there, or moved there out of the relay's
/// directory, if it is not there yet. `lifetime` is in seconds.
pub(crate) fn certify_offline(
    directory: &Path,
    master: &Path,
    lifetime: u64,
    now: u64,
) -> Result<Offline, Failure> {
    let before = Stored::read(directory)?;
    let path = master.join(MASTER_KEY);
    let here = before
        .as_ref()
        .filter(|stored| !stored.secrets.is_offline());
    let key = match here {
        _ if path.exists() => read_secret(&path)?,
        Some(stored) => {
            let key = stored.secrets.signing_key();
            let key = key.map_err(|error| unmade(&error))?;
            make_directory(master)?;
            write(&path, key.secret().as_bytes(), 0o600)?;
            key
        }
        None => make_secret(&path, false)?,
    };
    let secrets = match &before {
        Some(stored) if stored.public()?.identity != key.public() => {
            let doing = format!("certifying a signing key for {}", directory.display());
            let why = format!("the relay there is not the one of {}", path.display());
            let remedy =
                "name the directory of its own identity with --master, or another with --out";
            return Err(Failure::new(doing, why, remedy));
        }
        Some(stored) => stored.secrets.without_identity(),
        None => Secrets::offline(key.public(), now),
    };
    let signing = CertifiedSigningKey::issue(&key, now, lifetime)
        .map_err(|error| Failure::new("making a signing key", error, "try again"))?;
    make_directory(directory)?;
    write(
        &directory.join(SIGNING_KEY),
        signing.text().as_bytes(),
        0o600,
    )?;
    let stored = Stored::of(directory, secrets.map_err(|error| unmade(&error))?);
    stored.store()?;
    Ok(Offline {
        master: path,
        stored,
        expires: signing.expires(),
    })
}

#[cfg(test)]
mod onion_tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn an_onion_key_is_stored_for_its_owner_only_and_read_back() {
        let directory = tempfile::tempdir().expect("directory");
        let at = directory.path().join("a");
        let made = Stored::read_or_make(&at, NOW).expect("made");
        let mode = fs::metadata(at.join(FILE))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Stored::read_or_make(&at, NOW + 1).expect("read");
        assert_eq!(
            again.public().expect("a key"),
            made.public().expect("a key")
        );
    }

    #[test]
    fn what_was_rotated_is_there_after_a_restart() {
        let directory = tempfile::tempdir().expect("directory");
        let mut stored = Stored::make(directory.path(), NOW).expect("made");
        let before = stored.public().expect("a key");
        let next = stored.secrets().rotated(NOW + 5).expect("rotated");
        stored.replace(next).expect("stored");
        let again = Stored::read(directory.path())
            .expect("read")
            .expect("there");
        assert_eq!(
            again.public().expect("a key"),
            stored.public().expect("a key")
        );
        assert_ne!(again.public().expect("a key"), before);
        assert!(again.secrets().has_last());
    }

    #[test]
    fn a_relay_that_the_directory_knows_keeps_its_identity() {
        let directory = tempfile::tempdir().expect("directory");
        let known = make_secret(&directory.path().join(DESCRIPTOR), false).expect("made");
        let stored = Stored::read_or_make(directory.path(), NOW).expect("made");
        assert_eq!(stored.public().expect("a key").identity, known.public());
    }

    #[test]
    fn a_broken_file_is_named_with_its_line_and_not_replaced() {
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join(FILE), "hoplite-onion-secret 1\nident").expect("written");
        let failed = Stored::read_or_make(directory.path(), NOW).expect_err("broken");
        let said = failed.to_string();
        assert!(
            said.contains("onion.key") && said.contains("line 2"),
            "{said}"
        );
    }

    #[test]
    fn an_rsa_identity_is_made_once_for_its_owner_only_and_stays() {
        let directory = tempfile::tempdir().expect("directory");
        let stored = Stored::make(directory.path(), NOW).expect("made");
        let id = || stored.identity(NOW).expect("an identity").peer().rsa;
        assert!(id().is_none(), "none that nobody has asked for");
        stored.make_rsa_key_if_missing().expect("made");
        let first = id().expect("an RSA identity");
        stored.make_rsa_key_if_missing().expect("there");
        assert!(id() == Some(first));
        let path = directory.path().join("secret_id_key");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&path, "no key").expect("written");
        let failed = stored.identity(NOW).expect_err("no key");
        assert!(failed.to_string().contains("secret_id_key"), "{failed}");
    }

    #[test]
    fn certificates_without_their_key_are_not_taken_for_it() {
        let directory = tempfile::tempdir().expect("directory");
        let stored = Stored::make(directory.path(), NOW).expect("made");
        fs::write(directory.path().join(RSA), "a certificate").expect("written");
        let failed = stored.make_rsa_key_if_missing().expect_err("elsewhere");
        assert!(failed.to_string().contains("elsewhere"), "{failed}");
        assert!(!directory.path().join(RSA_KEY).exists());
    }

    #[test]
    fn an_identity_moves_out_and_the_relay_goes_on_until_its_signing_key_ends() {
        let (relay, safe) = (tempfile::tempdir(), tempfile::tempdir());
        let (relay, safe) = (relay.expect("directory"), safe.expect("directory"));
        let before = Stored::make(relay.path(), NOW).expect("made");
        let before = before.public().expect("a key");
        let made = certify_offline(relay.path(), safe.path(), 30 * 86_400, NOW).expect("certified");
        assert_eq!(
            made.stored.public().expect("a key"),
            before,
            "the same relay"
        );
        let text = fs::read_to_string(relay.path().join(FILE)).expect("there");
        let master = fs::read_to_string(&made.master).expect("there");
        let secret = master
            .trim_end()
            .strip_prefix("ed25519-secret:")
            .expect("a secret");
        assert!(!text.contains(secret), "the secret is gone from the relay");
        for file in [relay.path().join(SIGNING_KEY), made.master.clone()] {
            let mode = fs::metadata(file).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let stored = Stored::read(relay.path()).expect("read").expect("there");
        let peer = stored.identity(NOW).expect("a relay").peer();
        assert_eq!(peer.ed25519, before.identity);
        assert_eq!(
            stored.relay_key().expect("a key").identity().0,
            before.identity
        );
        let over = NOW + 31 * 86_400;
        let failed = stored.identity(over).expect_err("over").to_string();
        assert!(
            failed.contains("expired") && failed.contains("--offline"),
            "{failed}"
        );
        // Made again, it goes on.
        certify_offline(relay.path(), safe.path(), 30 * 86_400, over).expect("certified");
        assert!(stored.identity(over).is_ok());
        let other = tempfile::tempdir().expect("directory");
        Stored::make(other.path(), NOW).expect("made");
        assert!(
            certify_offline(other.path(), safe.path(), 3600, NOW).is_err(),
            "another relay's"
        );
        fs::remove_file(relay.path().join(SIGNING_KEY)).expect("removed");
        assert!(stored.identity(NOW).is_err());
    }

    #[test]
    fn half_an_rsa_identity_is_refused() {
        let directory = tempfile::tempdir().expect("directory");
        let stored = Stored::make(directory.path(), NOW).expect("made");
        fs::write(directory.path().join(RSA), "no certificate").expect("written");
        assert!(stored.circuits(NOW).is_err(), "the other half is missing");
        fs::write(directory.path().join(CROSS), "none").expect("written");
        let failed = stored.circuits(NOW).expect_err("no certificates");
        assert!(failed.to_string().contains("rsa.crt"), "{failed}");
    }
}

/// Reads keys of families.
pub(crate) fn family_keys(paths: &[PathBuf]) -> Result<Vec<FamilyKey>, Failure> {
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).map(Zeroizing::new);
        let bytes =
            bytes.map_err(|error| Failure::file("reading the key of a family", path, &error))?;
        FamilyKey::from_file(&bytes).map_err(|error| {
            let doing = format!("reading the key of a family {}", path.display());
            let remedy = "make one with 'hoplite keygen --family --out DIR' or 'tor --keygen-family', or correct `family_keys`";
            Failure::new(doing, error, remedy)
        })
    };
    paths.iter().map(read).collect()
}

/// Makes the key of a family in `directory`; replaces another one only by `force`.
pub(crate) fn make_family_key(
    directory: &Path,
    force: bool,
) -> Result<(PathBuf, FamilyKey), Failure> {
    let path = directory.join(FAMILY_KEY);
    if path.exists() && !force {
        let doing = format!("writing the key of a family to {}", path.display());
        let remedy = "choose another directory, or replace it with --force: all relays of the family need the new one then";
        return Err(Failure::new(doing, "there is one already", remedy));
    }
    let key = FamilyKey::generate()
        .map_err(|error| Failure::new("making the key of a family", error, "try again"))?;
    make_directory(directory)?;
    write(&path, &key.file(), 0o600)?;
    Ok((path, key))
}

/// The file of the key with which a relay signs what it says of itself, in the identity's directory.
pub(crate) const DESCRIPTOR: &str = "descriptor.key";

/// Makes a key and stores it; replaces another one only by `force`.
pub(crate) fn make_secret(path: &Path, force: bool) -> Result<SigningKey, Failure> {
    if path.exists() && !force {
        let doing = format!("writing the key to {}", path.display());
        let remedy = "choose another directory, or replace it with --force: who knows the old one must be told the new one";
        return Err(Failure::new(doing, "there is one already", remedy));
    }
    let key =
        SigningKey::generate().map_err(|error| Failure::new("making a key", error, "try again"))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    make_directory(directory)?;
    write(path, key.secret().as_bytes(), 0o600)?;
    Ok(key)
}

/// Reads one.
pub(crate) fn read_secret(path: &Path) -> Result<SigningKey, Failure> {
    let text = fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let remedy = "make one with 'hoplite keygen --authority --out DIR', or correct `key`";
            Failure::new(
                format!("reading the key {}", path.display()),
                &error,
                remedy,
            )
        }
        _ => Failure::file("reading the key", path, &error),
    })?;
    let doing = || format!("reading the key {}", path.display());
    text.parse()
        .map_err(|error| Failure::new(doing(), error, "restore it from a copy"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn made() -> NewIdentity {
        make(&["relay.example".into()]).expect("made")
    }

    #[test]
    fn an_identity_is_stored_for_its_owner_only_and_read_back() {
        let directory = tempfile::tempdir().expect("directory");
        let new = made();
        let files = store(&directory.path().join("a/b"), &new, false).expect("stored");
        let mode = fs::metadata(&files.key)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let pin = parse(&new).expect("valid").pin();
        assert_eq!(files.read().expect("read").pin(), pin);
        let entries = fs::read_dir(directory.path().join("a/b"))
            .expect("there")
            .count();
        assert_eq!(entries, 2, "nothing is left beside");
    }

    #[test]
    fn an_identity_is_replaced_only_by_force() {
        let directory = tempfile::tempdir().expect("directory");
        let first = made();
        store(directory.path(), &first, false).expect("stored");
        let refused = store(directory.path(), &made(), false).expect_err("refused");
        assert!(
            refused
                .to_string()
                .contains("there is one already: choose another directory"),
            "{refused}"
        );
        let pin = |new| parse(new).expect("valid").pin();
        assert_eq!(
            Files::within(directory.path()).read().expect("kept").pin(),
            pin(&first)
        );
        let second = made();
        store(directory.path(), &second, true).expect("replaced");
        assert_eq!(
            Files::within(directory.path()).read().expect("new").pin(),
            pin(&second)
        );
    }
}
