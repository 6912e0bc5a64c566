//! Which programs a campaign's results are of: each with the hash of its file. `plan` asks for those that its subjects name.

use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use ring::digest;

use super::directory::trouble;
use crate::{errors::Failure, results::store::Binary, subject::Plan};

/// They only start others; another version of them changes no figure.
const WRAPPERS: [&str; 3] = ["sh", "bash", "env"];

/// What a subject's steps start, as its file says it: a name, a path, `{hoplite}` or `{lab}`.
pub(crate) fn of(subject: &Plan) -> BTreeSet<String> {
    let first = |step: &crate::subject::Step| step.command.first().cloned();
    subject
        .steps
        .iter()
        .filter_map(first)
        .filter(|name| !WRAPPERS.contains(&name.as_str()))
        .collect()
}

/// Finds and hashes them. One that is not there is left out: the attempt says what is missing.
pub(crate) fn identify(names: &BTreeSet<String>) -> Result<Vec<Binary>, Failure> {
    let mut binaries = Vec::new();
    for path in names.iter().filter_map(|name| find(name)) {
        let sha256 = hash(&path).map_err(|error| trouble("reading", &path, &error))?;
        let name = path.file_name().unwrap_or_default();
        binaries.push(Binary {
            name: name.to_string_lossy().into_owned(),
            sha256,
            version: String::new(),
        });
    }
    binaries.sort();
    binaries.dedup();
    Ok(binaries)
}

fn find(name: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    match name {
        "{lab}" => Some(own),
        "{hoplite}" => {
            let sibling = own.with_file_name("hoplite");
            if sibling.is_file() {
                Some(sibling)
            } else {
                on_path("hoplite")
            }
        }
        // A program that an earlier step makes.
        name if name.contains('{') => None,
        name if name.contains('/') => Some(PathBuf::from(name)).filter(|path| path.is_file()),
        name => on_path(name),
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut places = env::split_paths(&path).map(|place| place.join(name));
    places.find(|place| place.is_file())
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else {
            return Ok(hexadecimal(context.finish().as_ref()));
        };
        context.update(part);
    }
}

/// In lower case.
pub(crate) fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_the_hash_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relay");
        std::fs::write(&path, "abc").unwrap();
        let names = BTreeSet::from([path.to_string_lossy().into_owned(), "/no/such".to_owned()]);
        let found = identify(&names).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "relay");
        // FIPS 180-2, appendix B.1
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found[0].sha256, hash);
    }
}
