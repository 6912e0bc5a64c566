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
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    errors::Failure,
    experiments::trial::Keep,
    results::store::{Store, Verdict},
};

/// Below this many bytes of free space no attempt is begun: its own logs would not fit.
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
            fs::create_dir_all(&path).map_err(|error| io_failure("making", &path, &error))?;
        }
        // Absolute: attempts run in other working directories.
        let root = fs::canonicalize(root).map_err(|error| io_failure("finding", root, &error))?;
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
        fs::create_dir(&path).map_err(|error| io_failure("making", &path, &error))?;
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
        Err(io_failure(
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
            .map_err(|error| io_failure("writing", &to, &error))
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
            Err(io_failure("removing", path, &error))
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
    listed.map_err(|error: io::Error| io_failure("listing", path, &error))
}

/// What the file system said, with what to do about it.
pub(crate) fn io_failure(doing: &str, path: &Path, error: &io::Error) -> Failure {
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

// Who writes in a directory: one process at a time, by `flock` on `DIR/lock`. The kernel lets go of it when the process is gone, however it went.

/// How long one that is taken is asked for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the directory for this process; `doing` is the command that wants it.
    pub(crate) fn take(directory: &Path, doing: &str) -> Result<Self, Failure> {
        Self::wait(directory, doing, PATIENCE)
    }

    /// The same, and waits so long for whoever has it.
    pub(crate) fn wait(directory: &Path, doing: &str, patience: Duration) -> Result<Self, Failure> {
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options
            .open(&path)
            .map_err(|error| io_failure("opening", &path, &error))?;
        match patiently(&file, FlockOperation::NonBlockingLockExclusive, patience) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(directory, &mut file)),
            Err(error) => return Err(io_failure("locking", &path, &error.into())),
        }
        sign(&mut file, doing).map_err(|error| io_failure("writing", &path, &error))?;
        Ok(Self { file })
    }

    /// Whether the lock that others see in this directory is still this one: not if another file system is there now.
    pub(crate) fn holds(&self, directory: &Path) -> io::Result<bool> {
        let (ours, there) = (self.file.metadata()?, fs::metadata(directory.join("lock"))?);
        Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    }

    /// Keeps writers away from a directory that is only read. One that nobody ever locked needs none.
    pub(crate) fn share(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = directory.join("lock");
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_failure("opening", &path, &error)),
        };
        match patiently(&file, FlockOperation::NonBlockingLockShared, PATIENCE) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK) => Err(taken(directory, &mut file)),
            Err(error) => Err(io_failure("locking", &path, &error.into())),
        }
    }
}

/// Asks again for a moment: a run that was killed just now may still be on its way out.
fn patiently(file: &File, operation: FlockOperation, patience: Duration) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match flock(file, operation) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => thread::sleep(PATIENCE / 20),
            done => return done,
        }
    }
}

fn sign(file: &mut File, doing: &str) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{} {doing}", process::id())
}

fn taken(directory: &Path, file: &mut File) -> Failure {
    let mut text = String::new();
    let pid = match file.take(64).read_to_string(&mut text) {
        Ok(_) => text.split(' ').next().unwrap_or_default(),
        Err(_) => "unknown",
    };
    Failure::new(
        format!("taking {}", directory.display()),
        format!("another run is writing there (pid {pid})"),
        "wait for it, or choose another --out",
    )
}

// What stays of an attempt's files: what the scenario keeps, and always the logs of one that failed, bounded.

/// Bytes of each log of a failed attempt that stay: its end.
const LOG: u64 = 256 << 10;

/// Logs of a failed attempt that stay.
const LOGS: usize = 64;

/// Moves what stays from an attempt's directory to `to`; makes nothing if nothing stays.
pub(crate) fn keep(from: &Path, to: &Path, what: &Keep, verdict: Verdict) -> Result<(), Failure> {
    // An earlier process may have come this far with the same attempt, and no further.
    remove(to)?;
    let failed = verdict == Verdict::Failed;
    if failed {
        shorten(from)?;
    }
    let staying = staying(from, what, failed)?;
    if staying.is_empty() {
        return Ok(());
    }
    let aside = from.join(".kept");
    for file in staying {
        let place = aside.join(file.strip_prefix(from).unwrap_or(&file));
        move_to(&file, &place)?;
    }
    move_to(&aside, to)
}

fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent)
        .and_then(|()| fs::rename(from, to))
        .map_err(|error| io_failure("keeping", to, &error))
}

fn staying(from: &Path, what: &Keep, failed: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut staying: Vec<PathBuf> = entries(&from.join("pcap"))?
        .into_iter()
        .filter(|capture| wanted(capture, &what.pcap))
        .collect();
    let mut also = |name: &str, wanted: bool| {
        let path = from.join(name);
        if wanted && path.exists() {
            staying.push(path);
        }
    };
    also("qlog", what.qlog);
    also("har", what.har);
    also("drops.csv", what.drops);
    also("logs", what.logs || failed);
    also("world.log", what.logs || failed);
    Ok(staying)
}

/// `LINK.pcap`, and `LINK.far.pcap` of the link's other end.
fn wanted(capture: &Path, links: &[String]) -> bool {
    let name = capture.file_stem().unwrap_or_default().to_string_lossy();
    let link = name.strip_suffix(".far").unwrap_or(&name);
    links.iter().any(|wanted| wanted == "*" || wanted == link)
}

/// Keeps the ends of the logs.
fn shorten(from: &Path) -> Result<(), Failure> {
    let mut logs = entries(&from.join("logs"))?;
    logs.sort();
    for log in logs.iter().skip(LOGS) {
        remove(log)?;
    }
    logs.truncate(LOGS);
    logs.push(from.join("world.log"));
    for log in logs.iter().filter(|log| log.is_file()) {
        shorten_one(log).map_err(|error| io_failure("keeping", log, &error))?;
    }
    Ok(())
}

fn shorten_one(log: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(log)?;
    let length = file.metadata()?.len();
    let Some(gone) = length.checked_sub(LOG).filter(|gone| *gone > 0) else {
        return Ok(());
    };
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(gone))?;
    file.take(LOG).read_to_end(&mut end)?;
    let mut file = File::create(log)?;
    writeln!(file, "({gone} bytes before this were cut)")?;
    file.write_all(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_in_the_same_directory_is_told_who_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path(), "run").unwrap();
        let pid = format!("(pid {})", process::id());
        let writer = Lock::take(directory.path(), "run").unwrap_err();
        let reader = Lock::share(directory.path()).unwrap_err();
        for refusal in [writer, reader].map(|refusal| refusal.to_string()) {
            assert!(refusal.contains(&pid), "{refusal}");
        }
        drop(first);
        assert!(Lock::take(directory.path(), "run").is_ok());
    }

    #[test]
    fn a_directory_that_nobody_locked_needs_no_lock_to_be_read() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Lock::share(directory.path()).unwrap().is_none());
    }

    fn attempt() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = directory.path().join("from").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("pcap/a-b.pcap", "1");
        put("pcap/b-c.pcap", "2");
        put("pcap/b-c.far.pcap", "2");
        put("qlog/relay1/x.sqlog", "3");
        put("logs/relay1.log", &"x".repeat(300 << 10));
        put("world.log", "5");
        put("relay1.toml", "6");
        directory
    }

    fn kept(what: &Keep, verdict: Verdict) -> Vec<String> {
        let directory = attempt();
        let to = directory.path().join("runs/ID/1");
        keep(&directory.path().join("from"), &to, what, verdict).unwrap();
        let mut found = Vec::new();
        let mut open = vec![to.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(entries(&path).unwrap());
            } else if path.exists() {
                let size = fs::metadata(&path).unwrap().len();
                assert!(size < 260 << 10 || verdict == Verdict::Ok);
                let name = path.strip_prefix(&to).unwrap().display().to_string();
                found.push(name);
            }
        }
        found.sort();
        found
    }

    #[test]
    fn nothing_stays_of_an_attempt_that_went_well_unless_it_is_wanted() {
        assert_eq!(kept(&Keep::default(), Verdict::Ok), [""; 0]);
        let what = Keep {
            pcap: vec!["b-c".into()],
            qlog: true,
            ..Keep::default()
        };
        let names = ["pcap/b-c.far.pcap", "pcap/b-c.pcap", "qlog/relay1/x.sqlog"];
        assert_eq!(kept(&what, Verdict::Ok), names);
    }

    #[test]
    fn logs_of_a_failed_attempt_always_stay_cut_to_their_ends() {
        let names = ["logs/relay1.log", "world.log"];
        assert_eq!(kept(&Keep::default(), Verdict::Failed), names);
    }

    #[test]
    fn a_star_keeps_every_capture() {
        let what = Keep {
            pcap: vec!["*".into()],
            ..Keep::default()
        };
        assert_eq!(kept(&what, Verdict::Ok).len(), 3);
    }
}
