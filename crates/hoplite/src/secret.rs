//! Ed25519 secrets on disk: the key of an authority, and the one with which a relay signs what it says of itself. Readable by their owner only.

use std::{fs, io, path::Path};

use hoplite_crypto::SigningKey;
use zeroize::Zeroizing;

use crate::{errors::Failure, identity};

/// The file of the key with which a relay signs what it says of itself, in the identity's directory.
pub(crate) const DESCRIPTOR: &str = "descriptor.key";

/// Makes a key and stores it; replaces another one only by `force`.
pub(crate) fn make(path: &Path, force: bool) -> Result<SigningKey, Failure> {
    if path.exists() && !force {
        let doing = format!("writing the key to {}", path.display());
        let remedy = "choose another directory, or replace it with --force: who knows the old one must be told the new one";
        return Err(Failure::new(doing, "there is one already", remedy));
    }
    let key =
        SigningKey::generate().map_err(|error| Failure::new("making a key", error, "try again"))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    identity::make_directory(directory)?;
    identity::write(path, key.secret().as_bytes(), 0o600)?;
    Ok(key)
}

/// Reads one.
pub(crate) fn read(path: &Path) -> Result<SigningKey, Failure> {
    let text = fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
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
