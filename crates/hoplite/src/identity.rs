//! A relay's identity on disk: `cert.pem` and `key.pem` in one directory, and beside them what [`onion`] keeps.
//! `keygen` makes it, `relay` reads it or makes it at its first start. The key is readable by its owner only, and no file
//! is ever there by half: it is written beside and then renamed.

pub(crate) mod onion;

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use hoplite_crypto::{Identity, NewIdentity};

use crate::errors::Failure;

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
        let key = zeroize::Zeroizing::new(read(&self.key)?);
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
