//! Where the binaries are that subjects name as `{hoplite}` and `{lab}`.

use std::path::{Path, PathBuf};

use crate::errors::Failure;

/// Paths of the binaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `hoplite`.
    pub hoplite: String,
    /// `hoplite-lab`.
    pub lab: String,
}

impl Places {
    /// Stands in while a file is only checked.
    pub(crate) fn unknown() -> Self {
        Self {
            hoplite: "hoplite".into(),
            lab: "hoplite-lab".into(),
        }
    }

    /// The running executable, and the product beside it or on the PATH. Test binaries stand one directory deeper.
    ///
    /// # Errors
    /// If `hoplite` is wanted and not there.
    pub fn find(wants_hoplite: bool) -> Result<Self, Failure> {
        let lab = std::env::current_exe();
        let lab = lab.map_err(|error| {
            Failure::new(
                "finding the lab's own executable",
                error,
                "see that /proc is mounted",
            )
        })?;
        let hoplite = match find_hoplite(&lab) {
            Some(path) => path,
            None if wants_hoplite => return Err(absent(&lab)),
            None => PathBuf::from("hoplite"),
        };
        Ok(Self {
            hoplite: utf8(&hoplite)?,
            lab: utf8(&lab)?,
        })
    }
}

fn find_hoplite(lab: &Path) -> Option<PathBuf> {
    let beside = lab
        .ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("hoplite"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates =
        beside.chain(std::env::split_paths(&path).map(|directory| directory.join("hoplite")));
    candidates.find(|path| path.is_absolute() && is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn absent(lab: &Path) -> Failure {
    let directory = lab.parent().unwrap_or(lab).display();
    Failure::new(
        "finding the program hoplite",
        format!("it is neither in {directory} nor on the PATH"),
        "cargo build --release -p hoplite -p hoplite-lab",
    )
}

fn utf8(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::new(
            "finding the programs",
            format!("the path {} is not UTF-8", path.display()),
            "move them",
        )
    })
}
