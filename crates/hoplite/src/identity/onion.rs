//! The onion identity of a relay on disk: `onion.key` beside `cert.pem` and `key.pem`, readable by its owner only.
//! `keygen` makes it and shows it, `relay` reads it or makes it, and stores it again when the onion key was rotated.
//! Where `rsa.crt` and `rsa.cross` are there (made with OpenSSL), the relay has an RSA identity too, which relays of C tor ask for.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use hoplite_crypto::{
    SigningKey,
    onion::{Secrets, SecretsError, identity::RelayIdentity},
};
use hoplite_relay::Circuits;
use hoplite_wire::OnionKey;
use zeroize::Zeroizing;

use crate::{errors::Failure, secret};

/// The file of the secrets.
const FILE: &str = "onion.key";
/// An X.509 certificate of the RSA identity, in DER.
const RSA: &str = "rsa.crt";
/// What it says of the Ed25519 identity: a certificate of type 7.
const CROSS: &str = "rsa.cross";

/// Secrets that are on disk.
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
        let known = directory.join(secret::DESCRIPTOR);
        let secrets = match known.exists() {
            true => Secrets::of_identity(Zeroizing::new(*secret::read(&known)?.seed()), now),
            false => Secrets::fresh(now),
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

    /// What signs what the relay says of itself.
    pub(crate) fn signing_key(&self) -> Result<SigningKey, Failure> {
        self.secrets.signing_key().map_err(|error| unmade(&error))
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
        let identity = self.secrets.identity(now);
        let identity = identity.map_err(|error| unmade(&error))?;
        let (certificate, cross) = (self.directory.join(RSA), self.directory.join(CROSS));
        if !certificate.exists() && !cross.exists() {
            return Ok(identity);
        }
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

    /// Others from now on, on disk first: what is published must be there after a restart.
    pub(crate) fn replace(&mut self, secrets: Secrets) -> Result<(), Failure> {
        let next = Self::of(&self.directory, secrets);
        next.store()?;
        *self = next;
        Ok(())
    }

    fn store(&self) -> Result<(), Failure> {
        super::make_directory(&self.directory)?;
        let path = self.directory.join(FILE);
        super::write(&path, self.secrets.text().as_bytes(), 0o600)
    }
}

/// Secrets of a relay that are stored nowhere.
pub(crate) fn unstored(now: u64) -> Result<Circuits, Failure> {
    let secrets = Secrets::fresh(now).map_err(|error| unmade(&error))?;
    Stored::of(Path::new("nowhere"), secrets).circuits(now)
}

fn unmade(error: &SecretsError) -> Failure {
    Failure::new("making the onion key", error, "try again")
}

#[cfg(test)]
mod tests {
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
        let known = secret::make(&directory.path().join(secret::DESCRIPTOR), false).expect("made");
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
