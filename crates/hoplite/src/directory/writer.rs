//! What an authority writes to its disk: all that has come together is written at once, in a thread that may block. Who hands in a descriptor is
//! answered when it is there to stay. What is signed is noted beside the key before it is, and waited for.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use hoplite_directory::{
    Change, Store,
    authority::{LastSigned, Promise},
};
use tokio::{
    sync::{Notify, oneshot},
    task::spawn_blocking,
};
use tracing::warn;

use crate::errors::Failure;

/// Goes on with the promise beside an authority's key. It is written once at the start: who cannot write it later would sign nothing.
pub(super) fn promise(key: &Path) -> Result<Promise, Failure> {
    let path = beside(key);
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.parse().map_err(|error| {
            let doing = format!("reading {}", path.display());
            Failure::new(
                doing,
                error,
                "restore it from a copy; or remove it when all that this authority has signed is out of date",
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LastSigned::default()),
        Err(error) => Err(Failure::file("reading", &path, &error)),
    }?;
    keep(&path, &last).map_err(|error| Failure::file("writing", &path, &error))?;
    Ok(Promise::new(last, move |last| match keep(&path, last) {
        Ok(()) => true,
        Err(error) => {
            warn!("what is to be signed cannot be noted: {error}");
            false
        }
    }))
}

/// `authority.key.signed` of `authority.key`.
fn beside(key: &Path) -> PathBuf {
    let mut path = key.as_os_str().to_owned();
    path.push(".signed");
    path.into()
}

/// Two small writes a period, for which everybody waits. A crash leaves the old or the new whole.
fn keep(path: &Path, last: &LastSigned) -> io::Result<()> {
    let new = path.with_extension("signed.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(last.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name too.
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// What waits to be written: of each connection one descriptor, of each period one list, and what is forgotten.
#[derive(Debug, Default)]
pub(super) struct Writer {
    queue: Mutex<Vec<Job>>,
    wake: Notify,
}

type Job = (Vec<Change>, Option<oneshot::Sender<()>>);

impl Writer {
    fn queue(&self) -> MutexGuard<'_, Vec<Job>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it written before long; nobody waits for it.
    pub(super) fn write(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.queue().push((changes, None));
            self.wake.notify_one();
        }
    }

    /// Has it written, and says whether it is.
    pub(super) async fn written(&self, changes: Vec<Change>) -> bool {
        let (done, written) = oneshot::channel();
        self.queue().push((changes, Some(done)));
        self.wake.notify_one();
        written.await.is_ok()
    }

    /// Writes until dropped.
    pub(super) async fn run(&self, mut store: Store) {
        loop {
            self.wake.notified().await;
            let jobs = std::mem::take(&mut *self.queue());
            let written = spawn_blocking(move || {
                let (changes, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
                let written = store.write(&changes.concat());
                (store, written, waiting)
            });
            let Ok((back, written, waiting)) = written.await else {
                return;
            };
            store = back;
            match written {
                Ok(()) => {
                    let waiting = waiting.into_iter().flatten();
                    // Who has hung up needs no answer.
                    waiting.for_each(|done| done.send(()).unwrap_or(()));
                }
                Err(error) => warn!("what came in cannot be stored: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::directory::Key;

    use super::*;

    #[test]
    fn what_was_signed_last_is_noted_beside_the_key_whatever_a_crash_has_left_there() {
        let directory = tempfile::tempdir().expect("directory");
        let key = directory.path().join("authority.key");
        drop(promise(&key).expect("the first start"));
        let path = directory.path().join("authority.key.signed");
        let read = || fs::read_to_string(&path).expect("there");
        assert_eq!(read(), LastSigned::default().to_string());
        // A crash has left the new one by half.
        fs::write(directory.path().join("authority.key.signed.new"), "half").expect("written");
        let last = format!("hoplite-signed 1\nvote 3600 sha256:{}\n", "5a".repeat(32));
        fs::write(&path, &last).expect("written");
        drop(promise(&key).expect("another start"));
        assert_eq!(read(), last);
        // What cannot be read is no promise that could be kept.
        fs::write(&path, "hoplite-signed 1\nvote 36").expect("written");
        let refused = promise(&key).expect_err("refused").to_string();
        assert!(refused.contains("authority.key.signed"), "{refused}");
    }

    #[tokio::test]
    async fn what_comes_together_is_written_together_and_is_there_when_it_is_answered() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("store");
        let store = Store::open(&path).expect("made");
        let writer = Writer::default();
        let one = |n: u8| vec![Change::Descriptor(Key([n; 32]), format!("relay {n}"))];
        let all = futures_util::future::join_all((0..200).map(|n| writer.written(one(n))));
        let written = tokio::select! {
            () = writer.run(store) => Vec::new(),
            written = all => written,
        };
        assert_eq!(written, [true; 200]);
        let kept = Store::open(&path)
            .expect("opened")
            .descriptors()
            .expect("read");
        assert_eq!(kept.len(), 200);
    }
}
