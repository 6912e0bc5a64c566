//! Observes connections and writes one qlog file for each: size, frames and time of every packet, no payloads, no keys.
//! The binary makes one if `QLOGDIR` is set; the lab's HTTP/3 workloads use it too.
//! draft-ietf-quic-qlog-main-schema (JSON text sequences, RFC 7464), draft-ietf-quic-qlog-quic-events.
//!
//! The packet path only writes into memory; a thread carries it to the disk. A connection has [`MOST_WAITING`] octets of memory for it: when
//! the disk is slow or full, events are dropped and counted, and the traffic goes on.

mod event;
mod file;
#[cfg(test)]
mod tests;
mod utc;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant, SystemTime},
};

use quinn_proto::Side;

use self::{event::Direction, file::File};
use crate::observe::{Begun, Observer, Packet, Watch};

/// Octets of events of one connection that may wait for the disk; further events are dropped.
const MOST_WAITING: usize = 256 << 10;

/// With so many octets waiting the thread is woken before its time.
const WAKE_AT: usize = 64 << 10;

/// Connections that are written at once; further ones are not.
const MOST_FILES: usize = 1024;

/// How often events are carried to the disk.
const PAUSE: Duration = Duration::from_millis(100);

/// How long [`Qlog::flush`] waits for a disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// A directory of qlog files. Cheap to clone; every clone writes there.
#[derive(Clone)]
pub struct Qlog(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    /// Where all files' times begin: files of one process can be put beside each other.
    reference: Instant,
    /// What the wall clock showed then.
    wall: SystemTime,
    count: AtomicU64,
    files: Mutex<Vec<Arc<File>>>,
    /// Held while files are written.
    sweep: Mutex<()>,
    thread: OnceLock<Thread>,
}

/// One connection's observer.
struct Writer {
    shared: Arc<Shared>,
    file: Arc<File>,
}

impl Qlog {
    /// Writes into `directory`, which is made if it is not there.
    ///
    /// # Errors
    /// The directory cannot be made or written, or there is no thread.
    pub fn start(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            reference: Instant::now(),
            wall: SystemTime::now(),
            count: AtomicU64::new(0),
            files: Mutex::default(),
            sweep: Mutex::default(),
            thread: OnceLock::new(),
        });
        let weak = Arc::downgrade(&shared);
        let thread = thread::Builder::new()
            .name("qlog".into())
            .spawn(move || carry(&weak))?;
        drop(shared.thread.set(thread.thread().clone()));
        Ok(Self(shared))
    }

    /// Waits until all that was observed so far is in the files, for two seconds at most: call it before the process ends.
    pub fn flush(&self) {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::clone(&self.0);
        let sweep = move || {
            shared.sweep();
            tell.try_send(()).unwrap_or_default();
        };
        if thread::Builder::new()
            .name("qlog-end".into())
            .spawn(sweep)
            .is_ok()
        {
            told.recv_timeout(PATIENCE).unwrap_or_default();
        }
    }
}

/// Runs in the thread, until nobody holds the directory any more.
fn carry(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.sweep();
        drop(shared);
        thread::park_timeout(PAUSE);
    }
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Vec<Arc<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits, and forgets files whose connection has ended.
    fn sweep(&self) {
        let _one = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.files().clone();
        let mut ended = Vec::new();
        for file in files {
            // This list's and the clone's reference: its observer is gone, nothing more will come.
            let last = Arc::strong_count(&file) <= 2;
            file.write();
            if last {
                ended.push(file);
            }
        }
        if !ended.is_empty() {
            let stays = |file: &Arc<File>| !ended.iter().any(|other| Arc::ptr_eq(file, other));
            self.files().retain(stays);
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn open(&self, connection: &Begun<'_>) -> Option<Arc<File>> {
        let mut files = self.files();
        if files.len() >= MOST_FILES {
            tracing::debug!("a connection has no qlog: {MOST_FILES} are written already");
            return None;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let began = self.wall + self.reference.elapsed();
        let side = match connection.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        let name = file_name(utc::milliseconds(began), number, side, connection.label);
        let head = event::head(connection, side, &utc::rfc3339(self.wall));
        let file = Arc::new(File::new(self.directory.join(name), head));
        files.push(Arc::clone(&file));
        Some(file)
    }
}

/// `<milliseconds since 1970>-<number>-client|server-<label>.sqlog`.
fn file_name(began: u128, number: u64, side: &str, label: &str) -> String {
    let label: String = label.chars().filter(|c| event::is_plain(*c)).collect();
    format!("{began}-{number}-{side}-{label}.sqlog")
}

impl Watch for Qlog {
    fn observe(&self, connection: &Begun<'_>) -> Option<Arc<dyn Observer>> {
        let file = self.0.open(connection)?;
        let shared = Arc::clone(&self.0);
        Some(Arc::new(Writer { shared, file }))
    }
}

impl Writer {
    fn event(&self, direction: Direction, packet: &Packet<'_>) {
        let reference = self.shared.reference;
        let time = || reference.elapsed();
        let wake = self.file.append(time, |out, time| {
            event::packet(out, direction, time, packet);
        });
        if wake {
            self.shared.wake();
        }
    }
}

impl Observer for Writer {
    fn sent(&self, packet: &Packet<'_>) {
        self.event(Direction::Sent, packet);
    }

    fn received(&self, packet: &Packet<'_>) {
        self.event(Direction::Received, packet);
    }
}

impl fmt::Debug for Qlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Qlog").field(&self.0.directory).finish()
    }
}
