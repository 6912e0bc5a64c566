//! One connection's file: events wait in memory, and a thread writes them. A file that cannot be written is given up, with one warning.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::{MOST_WAITING, WAKE_AT, event};

/// A file and what waits for it.
pub(super) struct File {
    path: PathBuf,
    waiting: Mutex<Waiting>,
    /// Only the thread that writes takes it.
    disk: Mutex<Disk>,
}

struct Waiting {
    octets: Vec<u8>,
    /// Events that found no room since the last one that did.
    dropped: u64,
}

enum Disk {
    New,
    Open(fs::File),
    GivenUp,
}

impl File {
    /// A file that begins with `head`; it is made when it is first written.
    pub(super) fn new(path: PathBuf, head: Vec<u8>) -> Self {
        Self {
            path,
            waiting: Mutex::new(Waiting {
                octets: head,
                dropped: 0,
            }),
            disk: Mutex::new(Disk::New),
        }
    }

    /// Adds an event if there is room. True if so much waits now that the thread should be woken.
    /// The time is taken here, in the lock: times in a file never go back.
    pub(super) fn append(
        &self,
        time: impl FnOnce() -> Duration,
        event: impl FnOnce(&mut Vec<u8>, Duration),
    ) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.octets.len();
        if before >= MOST_WAITING {
            waiting.dropped += 1;
            return false;
        }
        let time = time();
        if let dropped @ 1.. = std::mem::take(&mut waiting.dropped) {
            event::dropped(&mut waiting.octets, time, dropped);
        }
        event(&mut waiting.octets, time);
        before < WAKE_AT && waiting.octets.len() >= WAKE_AT
    }

    /// Carries what waits to the disk.
    pub(super) fn write(&self) {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let octets = self.take();
        if octets.is_empty() {
            return;
        }
        if let Err(error) = self.write_to(&mut disk, &octets) {
            let path = self.path.display();
            tracing::warn!("a qlog is given up: {path}: {error}: make room on the disk");
            *disk = Disk::GivenUp;
        }
    }

    /// What waits.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut waiting.octets)
    }

    fn write_to(&self, disk: &mut Disk, octets: &[u8]) -> io::Result<()> {
        if let Disk::New = disk {
            let mut options = fs::OpenOptions::new();
            // It tells when who sent how much: nobody else's business.
            let file = options.write(true).create_new(true).mode(0o600);
            *disk = Disk::Open(file.open(&self.path)?);
        }
        match disk {
            Disk::Open(file) => file.write_all(octets),
            Disk::New | Disk::GivenUp => Ok(()),
        }
    }
}
