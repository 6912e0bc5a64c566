//! Where scenarios, subjects and traces come from: files, and what is built in. `load` and `list` use it.
//! A trace or subject is looked for from the scenario's own directory, so that a directory can be handed on as it is.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use super::document::LONGEST;

/// Built-in scenarios, in the order of `list`.
pub(crate) const SCENARIOS: [(&str, &str); 18] = [
    ("smoke", include_str!("../../../../scenarios/smoke.toml")),
    (
        "ack-cascade",
        include_str!("../../../../scenarios/ack-cascade.toml"),
    ),
    (
        "ack-policies",
        include_str!("../../../../scenarios/ack-policies.toml"),
    ),
    (
        "ack-loss",
        include_str!("../../../../scenarios/ack-loss.toml"),
    ),
    (
        "ack-cross-traffic",
        include_str!("../../../../scenarios/ack-cross-traffic.toml"),
    ),
    (
        "ack-upload",
        include_str!("../../../../scenarios/ack-upload.toml"),
    ),
    (
        "ack-bbr",
        include_str!("../../../../scenarios/ack-bbr.toml"),
    ),
    (
        "ack-cost",
        include_str!("../../../../scenarios/ack-cost.toml"),
    ),
    (
        "ack-fingerprint",
        include_str!("../../../../scenarios/ack-fingerprint.toml"),
    ),
    (
        "private-relay",
        include_str!("../../../../scenarios/private-relay.toml"),
    ),
    ("mobile", include_str!("../../../../scenarios/mobile.toml")),
    (
        "onion-1",
        include_str!("../../../../scenarios/onion-1.toml"),
    ),
    (
        "onion-2",
        include_str!("../../../../scenarios/onion-2.toml"),
    ),
    (
        "onion-3",
        include_str!("../../../../scenarios/onion-3.toml"),
    ),
    (
        "onion-4",
        include_str!("../../../../scenarios/onion-4.toml"),
    ),
    (
        "onion-5",
        include_str!("../../../../scenarios/onion-5.toml"),
    ),
    (
        "throughput",
        include_str!("../../../../scenarios/throughput.toml"),
    ),
    ("device", include_str!("../../../../scenarios/device.toml")),
];

/// Built-in subjects, in the order of `list`.
pub(crate) const SUBJECTS: [(&str, &str); 7] = [
    ("native", include_str!("../../../../subjects/native.toml")),
    ("hoplite", include_str!("../../../../subjects/hoplite.toml")),
    (
        "hoplite-up",
        include_str!("../../../../subjects/hoplite-up.toml"),
    ),
    (
        "hoplite-onion",
        include_str!("../../../../subjects/hoplite-onion.toml"),
    ),
    ("tor", include_str!("../../../../subjects/tor.toml")),
    ("openvpn", include_str!("../../../../subjects/openvpn.toml")),
    (
        "wireguard-go",
        include_str!("../../../../subjects/wireguard-go.toml"),
    ),
];

/// Traces are a line a packet.
const LONGEST_TRACE: u64 = 16 << 20;

/// Where a scenario's other files are looked for.
#[derive(Clone, Debug)]
pub(crate) enum Library {
    /// Only what is built in.
    BuiltIn,
    /// From this directory, then what is built in.
    Beside(PathBuf),
}

/// A text and what it is called in complaints.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its path, or `NAME.toml (built in)`.
    pub(crate) name: String,
    /// What is in it.
    pub(crate) text: String,
}

impl Library {
    /// A subject by its name: beside the scenario, else built in. `None` if there is none.
    pub(crate) fn subject(&self, name: &str) -> Option<Result<Source, String>> {
        if let Self::Beside(directory) = self {
            let path = directory.join("subjects").join(format!("{name}.toml"));
            if path.exists() {
                return Some(read(&path, LONGEST as u64));
            }
        }
        built_in(&SUBJECTS, name).map(Ok)
    }

    /// Names of the subjects that there are.
    pub(crate) fn subjects(&self) -> Vec<String> {
        let mut names: Vec<String> = SUBJECTS
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        if let Self::Beside(directory) = self {
            let own = tomls(&directory.join("subjects"));
            names.extend(
                own.iter()
                    .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())),
            );
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// A file by its path from the scenario's directory.
    pub(crate) fn file(&self, path: &str) -> Result<Source, String> {
        match self {
            Self::Beside(directory) => read(&directory.join(path), LONGEST as u64),
            Self::BuiltIn => Err("a built-in scenario has no files".into()),
        }
    }

    /// A trace by its path from the scenario's directory.
    pub(crate) fn trace(&self, path: &str) -> Result<String, String> {
        match self {
            Self::Beside(directory) => {
                read(&directory.join(path), LONGEST_TRACE).map(|source| source.text)
            }
            Self::BuiltIn => Err("a built-in scenario has no files".into()),
        }
    }
}

/// A built-in text by its name.
pub(crate) fn built_in(list: &[(&str, &str)], name: &str) -> Option<Source> {
    let (name, text) = list.iter().find(|(known, _)| *known == name)?;
    Some(Source {
        name: format!("{name}.toml (built in)"),
        text: (*text).to_owned(),
    })
}

/// Reads a file of at most so many octets.
pub(crate) fn read(path: &Path, longest: u64) -> Result<Source, String> {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(longest + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 > longest => Err(format!("it is longer than {longest} octets")),
        Ok(_) => Ok(Source {
            name: path.display().to_string(),
            text,
        }),
        Err(error) => Err(error.to_string()),
    }
}

/// The TOML files of a directory, sorted; none if it is not there.
pub(crate) fn tomls(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort_unstable();
    paths
}
