//! One at a time: a lock that the kernel gives back when its holder dies. `daemon` holds it, `down` and `up --block-only` take it for a moment.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use crate::errors::Complaint;

/// How often, and after what pause, one is tried again whose holder is ending.
const TRIES: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);

/// Held by who changes the machine.
pub(crate) const DEVICE: &str = "lock";

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Why it is not ours.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This process holds it; 0 if that is not known.
    Held(u32),
    /// There is no place for it.
    Failed(Complaint),
}

impl Lock {
    /// Takes the one of that name, in the directory of what lasts while the machine runs, which is made.
    pub(crate) fn take(run_dir: &Path, name: &str) -> Result<Self, Refusal> {
        let path = run_dir.join(name);
        let failed = |error: io::Error| {
            let doing = format!("taking the lock {}", path.display());
            let remedy = "run as root, or give a directory of yours with --run-dir";
            Refusal::Failed(Complaint::new(doing, error, remedy))
        };
        make(run_dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o600).open(&path).map_err(failed)?;
        let mut tries = TRIES;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = holder(&mut file);
            if tries == 0 || !is_ending(holder) {
                return Err(Refusal::Held(holder));
            }
            tries -= 1;
            std::thread::sleep(PAUSE);
        }
        file.rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| write!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn make(run_dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(run_dir)
}

/// Whether the process has no program any more: the kernel still closes what it had, an interface among that, and then the lock.
fn is_ending(process: u32) -> bool {
    let program = fs::read_link(format!("/proc/{process}/exe"));
    program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn holder(file: &mut File) -> u32 {
    let mut text = String::new();
    file.rewind().unwrap_or_default();
    let read = file.read_to_string(&mut text);
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_one_is_told_who_holds_it_until_it_is_given_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let run = directory.path().join("run");
        let lock = Lock::take(&run, DEVICE).expect("free");
        match Lock::take(&run, DEVICE) {
            Err(Refusal::Held(pid)) => assert_eq!(pid, std::process::id()),
            other => panic!("{other:?}"),
        }
        drop(lock);
        Lock::take(&run, DEVICE).expect("free again");
    }
}
