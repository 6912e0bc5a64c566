//! The files of onion services, as C tor has them: a service's directory with its identity and the clients whom it has authorised, and a client's
//! directory with his keys. Whatever others can read is refused by its name. rend-spec-v3, appendix G; tor(1), "HiddenServiceDir", "ClientOnionAuthDir".

use std::{
    collections::hash_map::Entry,
    fs::{self, File},
    io::{ErrorKind, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use hoplite_crypto::onion::{
    client_authorisation::{ClientKey, ClientSecret},
    service_keys::{OnionAddress, ServiceIdentity},
};
use hoplite_onion::onion_service::ClientKeys;
use zeroize::Zeroizing;

use crate::{
    identity::{make_directory, write},
    say::Failure,
};

const SECRET: &str = "hs_ed25519_secret_key";
const PUBLIC: &str = "hs_ed25519_public_key";
const HOSTNAME: &str = "hostname";
const AUTHORISED: &str = "authorized_clients";
/// What files of authorised clients end in: the service's, and the client's.
const AUTH: &str = "auth";
const AUTH_PRIVATE: &str = "auth_private";

/// The largest file.
const FILE: u64 = 4096;
/// Clients whom one service may authorise: more would not fit into its descriptor.
const CLIENTS: usize = 256;
/// Keys of a client.
const KEYS: usize = 4096;

const READING: &str = "reading the keys of an onion service";

/// What is in a service's directory.
pub(crate) struct ServiceKeys {
    /// Who it is.
    pub(crate) identity: ServiceIdentity,
    /// For whom it is; for all, if nobody is named.
    pub(crate) authorised: Vec<ClientKey>,
}

impl ServiceKeys {
    /// Those in this directory; a new identity, if there is none.
    pub(crate) fn read_or_make(directory: &Path) -> Result<Self, Failure> {
        make_directory(directory)?;
        is_private(directory)?;
        let identity = match read(&directory.join(SECRET)) {
            Ok(file) => ServiceIdentity::from_file(&file).map_err(|why| {
                let doing = format!("{READING} {}", directory.join(SECRET).display());
                Failure::new(doing, why, "restore it from a copy; or remove it: a new one is made then, with another address")
            })?,
            Err(Unread::Missing) => made(directory)?,
            Err(Unread::Failed(failure)) => return Err(failure),
        };
        tell(directory, &identity)?;
        Ok(Self {
            authorised: authorised(&directory.join(AUTHORISED))?,
            identity,
        })
    }
}

fn made(directory: &Path) -> Result<ServiceIdentity, Failure> {
    let identity = ServiceIdentity::generate();
    let identity =
        identity.map_err(|why| Failure::new("making an onion service", why, "try again"))?;
    write(&directory.join(SECRET), &identity.file(), 0o600)?;
    Ok(identity)
}

/// The public files, for the service's owner and for C tor.
fn tell(directory: &Path, identity: &ServiceIdentity) -> Result<(), Failure> {
    let address = identity.address();
    for (name, content) in [
        (PUBLIC, address.file()),
        (HOSTNAME, format!("{address}\n").into_bytes()),
    ] {
        let path = directory.join(name);
        let is_there = matches!(read(&path), Ok(file) if *file == content);
        if !is_there {
            write(&path, &content, 0o600)?;
        }
    }
    Ok(())
}

fn authorised(directory: &Path) -> Result<Vec<ClientKey>, Failure> {
    let files = match files(directory, AUTH, CLIENTS) {
        Ok(files) => files,
        Err(Unread::Missing) => return Ok(Vec::new()),
        Err(Unread::Failed(failure)) => return Err(failure),
    };
    let mut keys = Vec::new();
    for path in files {
        let text = text(&path)?;
        keys.push(ClientKey::from_file(&text).map_err(|why| unfit(&path, &why))?);
    }
    Ok(keys)
}

/// The keys of a client that are in this directory.
pub(crate) fn of_client(directory: &Path) -> Result<ClientKeys, Failure> {
    is_private(directory)?;
    let mut keys = ClientKeys::default();
    for path in files(directory, AUTH_PRIVATE, KEYS)? {
        let text = text(&path)?;
        let read = ClientSecret::from_file(&text);
        let (address, secret) = read.map_err(|why| unfit(&path, &why))?;
        match keys.entry(address) {
            Entry::Vacant(place) => drop(place.insert(secret)),
            Entry::Occupied(_) => {
                let why = "another file has a key for the same onion service";
                return Err(unfit(&path, &why));
            }
        }
    }
    Ok(keys)
}

/// Makes the key of a client of a service, in a file of this directory that [`of_client`] reads; what the service is told.
pub(crate) fn make_client(
    directory: &Path,
    service: &OnionAddress,
    force: bool,
) -> Result<(PathBuf, ClientKey), Failure> {
    let path = directory.join(format!("{}.{AUTH_PRIVATE}", service.label()));
    if path.exists() && !force {
        let doing = format!("writing {}", path.display());
        let remedy = "replace it with --force: the service has to authorise the new one then";
        return Err(Failure::new(doing, "there is a key already", remedy));
    }
    let secret = ClientSecret::generate();
    let secret = secret.map_err(|why| Failure::new("making a key", why, "try again"))?;
    make_directory(directory)?;
    write(&path, secret.file(service).as_bytes(), 0o600)?;
    Ok((path, secret.public()))
}

fn unfit(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let doing = format!("{READING} {}", path.display());
    Failure::new(doing, why, "correct or remove the file")
}

/// Why a file is not read.
enum Unread {
    Missing,
    Failed(Failure),
}

impl Unread {
    fn of(path: &Path, error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::Missing,
            _ => Self::Failed(Failure::file(READING, path, error)),
        }
    }
}

impl From<Failure> for Unread {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Unread> for Failure {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Failed(failure) => failure,
            Unread::Missing => Self::new(READING, "a file is not there any more", "try again"),
        }
    }
}

/// A file that nobody else can read.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Unread> {
    let file = File::open(path).map_err(|error| Unread::of(path, &error))?;
    let metadata = file.metadata().map_err(|error| Unread::of(path, &error))?;
    is_of_owner(path, metadata.permissions().mode(), "600")?;
    let length = usize::try_from(metadata.len().min(FILE)).unwrap_or(0);
    let mut content = Zeroizing::new(Vec::with_capacity(length.saturating_add(1)));
    let read = file.take(FILE).read_to_end(&mut content);
    read.map_err(|error| Unread::of(path, &error))?;
    Ok(content)
}

fn text(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let content = read(path)?;
    let text = str::from_utf8(&content).map_err(|_| unfit(path, &"it is no text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// The files of a directory that end so, in order.
fn files(directory: &Path, end: &str, most: usize) -> Result<Vec<PathBuf>, Unread> {
    let failed = |error| Unread::of(directory, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == end) {
            found.push(path);
        }
    }
    if found.len() > most {
        let doing = format!("{READING} {}", directory.display());
        let why = format!("there are more than {most} files *.{end}");
        return Err(Failure::new(doing, why, "remove some").into());
    }
    found.sort();
    Ok(found)
}

fn is_private(directory: &Path) -> Result<(), Failure> {
    let metadata =
        fs::metadata(directory).map_err(|error| Failure::file(READING, directory, &error))?;
    is_of_owner(directory, metadata.permissions().mode(), "700")
}

fn is_of_owner(path: &Path, mode: u32, right: &str) -> Result<(), Failure> {
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let doing = format!("{READING} {}", path.display());
    let why = format!("others can use it: its mode is {:o}", mode & 0o777);
    Err(Failure::new(doing, why, format!("chmod {right}")))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn allow(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }

    fn private(directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        make_directory(&path).expect("made");
        path
    }

    #[test]
    fn a_service_keeps_its_address_and_its_files_are_its_owners_alone() {
        let directory = tempfile::tempdir().expect("directory");
        let at = directory.path().join("a/service");
        let made = ServiceKeys::read_or_make(&at).expect("made");
        for name in [SECRET, PUBLIC, HOSTNAME] {
            let mode = fs::metadata(at.join(name)).expect("there").permissions();
            assert_eq!(mode.mode() & 0o777, 0o600, "{name}");
        }
        let address = made.identity.address();
        let hostname = fs::read_to_string(at.join(HOSTNAME)).expect("there");
        assert_eq!(hostname, format!("{address}\n"));
        fs::remove_file(at.join(HOSTNAME)).expect("there");
        let again = ServiceKeys::read_or_make(&at).expect("read");
        assert_eq!(again.identity.address(), address);
        assert!(at.join(HOSTNAME).exists(), "told again");
        assert!(again.authorised.is_empty());
    }

    #[test]
    fn what_others_can_read_is_refused_by_its_name() {
        let directory = tempfile::tempdir().expect("directory");
        let at = private(directory.path(), "service");
        ServiceKeys::read_or_make(&at).expect("made");
        allow(&at.join(SECRET), 0o640);
        let told = ServiceKeys::read_or_make(&at).err().expect("refused");
        assert!(told.to_string().contains(SECRET), "{told}");
        allow(&at.join(SECRET), 0o600);
        allow(&at, 0o750);
        let told = ServiceKeys::read_or_make(&at).err().expect("refused");
        assert!(told.to_string().contains("750"), "{told}");
        assert!(of_client(&at).is_err());
    }

    #[test]
    fn a_broken_secret_is_not_replaced() {
        let directory = tempfile::tempdir().expect("directory");
        let at = private(directory.path(), "service");
        write(&at.join(SECRET), b"broken", 0o600).expect("written");
        let told = ServiceKeys::read_or_make(&at).err().expect("refused");
        assert!(told.to_string().contains("96 bytes"), "{told}");
        assert_eq!(fs::read(at.join(SECRET)).expect("there"), b"broken");
    }

    #[test]
    fn authorised_clients_are_read_at_both_ends_and_what_is_no_key_is_named() {
        let directory = tempfile::tempdir().expect("directory");
        let at = private(directory.path(), "service");
        let service = ServiceKeys::read_or_make(&at).expect("made").identity;
        let secret = ClientSecret::generate().expect("a key");
        let clients = private(&at, AUTHORISED);
        write(
            &clients.join("alice.auth"),
            secret.public().file().as_bytes(),
            0o600,
        )
        .expect("written");
        write(&clients.join("notes"), b"no key", 0o600).expect("written");
        let read = ServiceKeys::read_or_make(&at).expect("read");
        assert!(read.authorised == [secret.public()]);

        let own = private(directory.path(), "client");
        let file = secret.file(&service.address());
        write(&own.join("a.auth_private"), file.as_bytes(), 0o600).expect("written");
        let keys = of_client(&own).expect("read");
        let found = keys.get(&service.address()).expect("there");
        assert_eq!(found.public(), secret.public());
        write(&own.join("b.auth_private"), file.as_bytes(), 0o600).expect("written");
        let told = of_client(&own).expect_err("refused");
        assert!(told.to_string().contains("b.auth_private"), "{told}");
        write(&clients.join("bob.auth"), b"no key", 0o600).expect("written");
        let told = ServiceKeys::read_or_make(&at).err().expect("refused");
        assert!(told.to_string().contains("bob.auth"), "{told}");
    }
}
