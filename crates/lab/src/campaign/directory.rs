//! What a campaign's directory holds, and how a file gets there for good: written aside, synced, renamed.
//!
//! ```text
//! OUT/campaign.toml        what the results are of
//!     results.sqlite       runs and their figures
//!     samples/ID.parquet   the transfers of a repetition
//!     runs/ID/N/           what was kept of attempt N: captures, qlogs, logs
//!     shared/              what subjects make once for the whole campaign
//!     attempts/            what is under way; swept at every start
//!     lock                 who writes here
//! ```

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::{
    errors::Failure,
    results::store::{Store, Verdict},
};

/// Below so many octets of free space no attempt is begun: its own logs would not fit.
const NEEDED: u64 = 16 << 20;

/// A campaign's directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Makes what is not there.
    pub(crate) fn open(root: &Path) -> Result<Self, Failure> {
        for part in ["samples", "runs", "shared", "attempts"] {
            let path = root.join(part);
            fs::create_dir_all(&path).map_err(|error| trouble("making", &path, &error))?;
        }
        // Absolute: attempts run in other working directories.
        let root = fs::canonicalize(root).map_err(|error| trouble("finding", root, &error))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn shared(&self) -> PathBuf {
        self.root.join("shared")
    }

    pub(crate) fn samples(&self, run: &str) -> PathBuf {
        self.root.join("samples").join(format!("{run}.parquet"))
    }

    /// Where the samples are while they are written.
    pub(crate) fn samples_aside(&self, run: &str) -> PathBuf {
        self.root.join("attempts").join(format!("{run}.parquet"))
    }

    /// What was kept of an attempt.
    pub(crate) fn kept(&self, run: &str, attempt: u32) -> PathBuf {
        self.root.join("runs").join(run).join(attempt.to_string())
    }

    /// The directory of an attempt that is about to begin: empty.
    pub(crate) fn attempt(&self, run: &str, attempt: u32) -> Result<PathBuf, Failure> {
        let path = self.root.join("attempts").join(format!("{run}-{attempt}"));
        remove(&path)?;
        fs::create_dir(&path).map_err(|error| trouble("making", &path, &error))?;
        Ok(path)
    }

    /// Whether there is room for another attempt.
    pub(crate) fn room(&self) -> Result<(), Failure> {
        let free = rustix::fs::statvfs(&self.root)
            .map(|room| room.f_bavail.saturating_mul(room.f_frsize))
            .unwrap_or(u64::MAX);
        if free >= NEEDED {
            return Ok(());
        }
        Err(trouble(
            "writing to",
            &self.root,
            &io::Error::from(io::ErrorKind::StorageFull),
        ))
    }

    /// Puts the samples in place for good.
    pub(crate) fn place_samples(&self, run: &str) -> Result<(), Failure> {
        let (from, to) = (self.samples_aside(run), self.samples(run));
        fs::rename(&from, &to)
            .and_then(|()| sync(&self.root.join("samples")))
            .map_err(|error| trouble("writing", &to, &error))
    }

    /// Removes what belongs to no stored repetition, and takes back repetitions whose samples somebody has removed.
    pub(crate) fn sweep(&self, store: &mut Store) -> Result<(), Failure> {
        for path in entries(&self.root.join("attempts"))? {
            remove(&path)?;
        }
        let runs = store.runs()?;
        let with_samples = |id: &str| {
            let known = runs.iter().find(|run| run.id == id);
            known.is_some_and(|run| run.verdict != Verdict::Failed)
        };
        for path in entries(&self.root.join("samples"))? {
            let id = path.file_stem().unwrap_or_default().to_string_lossy();
            if !with_samples(&id) {
                remove(&path)?;
            }
        }
        for run in &runs {
            if run.verdict != Verdict::Failed && !self.samples(&run.id).is_file() {
                store.forget(&run.id)?;
            }
        }
        self.sweep_kept(store)
    }

    fn sweep_kept(&self, store: &Store) -> Result<(), Failure> {
        let attempts = store.attempts()?;
        let known = attempts.iter().map(|a| self.kept(&a.run, a.number));
        let known: std::collections::HashSet<_> = known.collect();
        for run in entries(&self.root.join("runs"))? {
            for attempt in entries(&run)? {
                if !known.contains(&attempt) {
                    remove(&attempt)?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a file or a directory outlive a power cut.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file or a directory, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    let gone = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(trouble("removing", path, &error))
        }
        _ => Ok(()),
    }
}

/// What is in a directory; nothing if it is not there.
pub(crate) fn entries(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed = match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    listed.map_err(|error: io::Error| trouble("listing", path, &error))
}

/// What the file system said, with what to do about it.
pub(crate) fn trouble(doing: &str, path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space and run the same command again: what was stored before is safe"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "make it writable, or choose another --out"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "choose another --out",
        _ => "see to it and run the same command again: what was stored before is safe",
    };
    Failure::new(format!("{doing} {}", path.display()), error, remedy)
}
