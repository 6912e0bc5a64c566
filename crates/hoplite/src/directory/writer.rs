//! What an authority writes to its disk: all that has come together is written at once, in a thread that may block. Who hands in a descriptor is
//! answered when it is there to stay.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_directory::{Change, Store};
use tokio::{
    sync::{Notify, oneshot},
    task::spawn_blocking,
};
use tracing::warn;

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
