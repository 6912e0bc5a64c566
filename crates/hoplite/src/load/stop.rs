//! Threads that run until they are told to stop, and are waited for.
//! The other modules of `load` start their workers with it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Set once, when it is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

/// Octets or packets so far, counted by one thread and read by another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

/// A thread that ends when this is dropped; the work has to look at its [`Stop`].
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// Whether it is over.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says that it is over.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Counter {
    /// Adds.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises it to `n`, if it is below.
    pub(crate) fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Worker {
    /// Runs `work` on a thread of its own.
    pub(crate) fn start(work: impl FnOnce(&Stop) + Send + 'static) -> io::Result<Self> {
        let stop = Stop::default();
        let inner = stop.clone();
        let thread = std::thread::Builder::new()
            .name("load".into())
            .spawn(move || work(&inner))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Stop {
    /// Waits until it is over; looks now and then.
    pub(crate) async fn reached(&self) {
        while !self.is_set() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}
