//! Which programs a campaign's results are of: each with the hash of its file and what it says of its version. `plan` asks for those that its
//! subjects name.

use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use ring::digest;

use super::trouble;
use crate::{
    errors::Failure,
    results::store::Binary,
    scenario::subject_file::{Needs, Places},
    subject::Plan,
};

/// They only start others; another version of them changes no figure.
const WRAPPERS: [&str; 3] = ["sh", "bash", "env"];

/// Octets of what a program says of its version.
const WORDS: usize = 200;

/// What a subject's steps start: names or paths.
pub(crate) fn of(subject: &Plan) -> BTreeSet<String> {
    let first = |step: &crate::subject::Step| step.command.first().cloned();
    subject
        .steps
        .iter()
        .filter_map(first)
        .filter(|name| !WRAPPERS.contains(&name.as_str()))
        .collect()
}

/// Finds and hashes them, and this program too. One that is not there is left out: the attempt says what is missing.
pub(crate) fn identify(names: &BTreeSet<String>, needs: &[Needs]) -> Result<Vec<Binary>, Failure> {
    let places = Places::find(false)?;
    let lab = PathBuf::from(&places.lab);
    let mut binaries = vec![Binary {
        name: "hoplite-lab".to_owned(),
        sha256: own(&lab).map_err(|error| trouble("reading", &lab, &error))?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }];
    let found = names.iter().filter_map(|name| find(name));
    for path in found.filter(|path| *path != lab) {
        let sha256 = hash(&path).map_err(|error| trouble("reading", &path, &error))?;
        let name = path.file_name().unwrap_or_default();
        binaries.push(Binary {
            name: name.to_string_lossy().into_owned(),
            sha256,
            version: version(&path, &places, needs),
        });
    }
    binaries.sort();
    binaries.dedup();
    Ok(binaries)
}

fn find(name: &str) -> Option<PathBuf> {
    match name {
        // What an earlier step makes is no program of ours.
        name if name.contains('{') => None,
        name if name.contains('/') => Some(PathBuf::from(name)).filter(|path| path.is_file()),
        name => {
            let path = env::var_os("PATH")?;
            let mut places = env::split_paths(&path).map(|place| place.join(name));
            places.find(|place| place.is_file())
        }
    }
}

/// The first line that a program says when it is asked for its version, as its subject's file tells how.
fn version(path: &Path, places: &Places, needs: &[Needs]) -> String {
    let own = |text: &str| {
        let text = text.replace("{hoplite}", &places.hoplite);
        text.replace("{lab}", &places.lab)
    };
    let of = |needs: &&Needs| find(&own(&needs.command)).as_deref() == Some(path);
    let ask = needs
        .iter()
        .filter(of)
        .find(|needs| !needs.version.is_empty());
    let words: Vec<String> = ask
        .into_iter()
        .flat_map(|needs| &needs.version)
        .map(|word| own(word))
        .collect();
    let Some((program, arguments)) = words.split_first() else {
        return String::new();
    };
    let said = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let first = |octets: Vec<u8>| {
        let text = String::from_utf8_lossy(&octets).into_owned();
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.map(|line| line.chars().take(WORDS).collect::<String>())
    };
    let line = said
        .ok()
        .and_then(|said| first(said.stdout).or_else(|| first(said.stderr)));
    line.unwrap_or_default()
}

/// This program's own hash: it does not change while it runs.
fn own(path: &Path) -> io::Result<String> {
    static OWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = OWN.get() {
        return Ok(known.clone());
    }
    let found = hash(path)?;
    Ok(OWN.get_or_init(|| found).clone())
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
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_program_is_known_by_the_hash_of_its_file_and_what_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relay");
        fs::write(&path, "abc").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let path = path.to_string_lossy().into_owned();
        let names = BTreeSet::from([path.clone(), "/no/such".to_owned(), "{out:x}".to_owned()]);
        let needs = Needs {
            command: path,
            install: String::new(),
            version: ["sh", "-c", "echo; echo relay 1.2; echo more"]
                .map(str::to_owned)
                .to_vec(),
        };
        let found = identify(&names, &[needs]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, "hoplite-lab");
        assert_eq!(
            (found[1].name.as_str(), found[1].version.as_str()),
            ("relay", "relay 1.2")
        );
        // FIPS 180-2, appendix B.1
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found[1].sha256, hash);
    }
}
