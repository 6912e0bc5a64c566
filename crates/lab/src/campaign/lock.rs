//! Who writes in a directory: one process at a time, by `flock` on `DIR/lock`. The kernel lets go of it when the process is gone, however it went.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    process, thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::directory::trouble;
use crate::errors::Failure;

/// How long one that is taken is asked for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the directory for this process; `doing` is the command that wants it.
    pub(crate) fn take(directory: &Path, doing: &str) -> Result<Self, Failure> {
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options
            .open(&path)
            .map_err(|error| trouble("opening", &path, &error))?;
        match patiently(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(directory, &mut file)),
            Err(error) => return Err(trouble("locking", &path, &error.into())),
        }
        sign(&mut file, doing).map_err(|error| trouble("writing", &path, &error))?;
        Ok(Self { _file: file })
    }

    /// Keeps writers away from a directory that is only read. One that nobody ever locked needs none.
    pub(crate) fn share(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = directory.join("lock");
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(trouble("opening", &path, &error)),
        };
        match patiently(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Err(taken(directory, &mut file)),
            Err(error) => Err(trouble("locking", &path, &error.into())),
        }
    }
}

/// Asks again for a moment: a run that was killed just now may still be on its way out.
fn patiently(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match flock(file, operation) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => thread::sleep(PATIENCE / 20),
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
}
