//! What was seen in a run: each fetch, each circuit that was built, each relay. Nothing of it depends on the machine: times are virtual.
//! Clients write into the [`Book`] while they run; `report` makes figures of the [`Outcome`].

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{net::Ledger, settings::Settings};

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It fetches pages.
    Web,
    /// It fetches much.
    Bulk,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Bulk => "bulk",
        }
    }
}

/// One fetch. Times are from the run's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Whose.
    pub client: usize,
    /// Which kind of client.
    pub kind: Kind,
    /// How much was wanted.
    pub wanted: u64,
    /// How much came.
    pub octets: u64,
    /// When it began: the client asked for a stream.
    pub begun: Duration,
    /// When it had one.
    pub opened: Option<Duration>,
    /// When the first octet came.
    pub first: Option<Duration>,
    /// When the last one came.
    pub last: Option<Duration>,
    /// The longest time without an octet.
    pub gap: Duration,
    /// How it ended; nothing: it had not when the run did.
    pub end: Option<&'static str>,
    /// When something came last.
    heard: Duration,
    /// When it ended, or the run did.
    over: Duration,
}

/// A circuit that was to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// When that was known.
    pub at: Duration,
    /// How long it took; nothing: it failed.
    pub took: Option<Duration>,
}

/// What a relay did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayUse {
    /// Octets a second of its line.
    pub bandwidth: u64,
    /// Octets that its node sent.
    pub sent: u64,
    /// Octets that its node received.
    pub received: u64,
    /// Circuits that were made.
    pub created: u64,
    /// Circuits that it refused or broke off because of a limit, a bad handshake or a broken protocol.
    pub refused: u64,
    /// Circuits that it still has.
    pub open: usize,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of what.
    pub settings: Settings,
    /// How long it was.
    pub took: Duration,
    /// All fetches, in the order in which they began.
    pub fetches: Vec<Fetch>,
    /// All circuits.
    pub builds: Vec<Build>,
    /// All relays.
    pub relays: Vec<RelayUse>,
    /// Faults of channels, by name.
    pub faults: Vec<(&'static str, u64)>,
    /// All packets.
    pub ledger: Ledger,
}

/// What is written while the network runs.
#[derive(Debug)]
pub struct Book {
    began: Instant,
    state: Mutex<(Vec<Fetch>, Vec<Build>)>,
}

/// One fetch's place in the book.
#[derive(Debug)]
pub(crate) struct Page {
    book: Arc<Book>,
    place: usize,
}

impl Book {
    /// Begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, (Vec<Fetch>, Vec<Build>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, client: usize, kind: Kind, wanted: u64) -> Page {
        let begun = self.began.elapsed();
        let mut state = self.state();
        let place = state.0.len();
        state.0.push(Fetch {
            client,
            kind,
            wanted,
            octets: 0,
            begun,
            opened: None,
            first: None,
            last: None,
            gap: Duration::ZERO,
            end: None,
            heard: begun,
            over: begun,
        });
        drop(state);
        Page {
            book: Arc::clone(self),
            place,
        }
    }

    /// A circuit was built, or not.
    pub(crate) fn built(&self, took: Option<Duration>) {
        let at = self.began.elapsed();
        self.state().1.push(Build { at, took });
    }

    /// All that was written; what has not ended has waited until now.
    pub(crate) fn close(&self) -> (Vec<Fetch>, Vec<Build>) {
        let now = self.began.elapsed();
        let (mut fetches, builds) = std::mem::take(&mut *self.state());
        for fetch in fetches.iter_mut().filter(|fetch| fetch.end.is_none()) {
            fetch.over(now);
        }
        (fetches, builds)
    }
}

impl Fetch {
    fn hear(&mut self, now: Duration) {
        self.gap = self.gap.max(now.saturating_sub(self.heard));
        self.heard = now;
    }

    fn over(&mut self, now: Duration) {
        self.over = now;
        if self.last.is_none() {
            self.gap = self.gap.max(now.saturating_sub(self.heard));
        }
    }
}

impl Outcome {
    /// The longest time from `since` on that a client went without octets while it wanted some. A fetch that fails is one with the next;
    /// pauses between fetches do not count.
    pub fn outage(&self, client: usize, since: Duration) -> Duration {
        let (mut longest, mut silent) = (Duration::ZERO, Duration::ZERO);
        let fetches = self.fetches.iter();
        for fetch in fetches.filter(|fetch| fetch.client == client && fetch.over >= since) {
            let first = fetch.first.unwrap_or(fetch.over);
            silent += first.saturating_sub(fetch.begun.max(since));
            longest = longest.max(silent).max(fetch.gap);
            match (fetch.first, fetch.last) {
                (Some(_), Some(_)) => silent = Duration::ZERO,
                (Some(_), None) => silent = fetch.over.saturating_sub(fetch.heard),
                (None, _) => {}
            }
        }
        longest
    }
}

impl Page {
    fn write(&self, write: impl FnOnce(&mut Fetch, Duration)) {
        let now = self.book.began.elapsed();
        if let Some(fetch) = self.book.state().0.get_mut(self.place) {
            write(fetch, now);
        }
    }

    pub(crate) fn opened(&self) {
        self.write(|fetch, now| fetch.opened = Some(now));
    }

    pub(crate) fn read(&self, octets: usize) {
        self.write(|fetch, now| {
            fetch.hear(now);
            fetch.first.get_or_insert(now);
            let octets = u64::try_from(octets).unwrap_or(u64::MAX);
            fetch.octets = fetch.octets.saturating_add(octets);
        });
    }

    pub(crate) fn whole(&self) {
        self.write(|fetch, now| fetch.last = Some(now));
    }

    pub(crate) fn end(&self, how: &'static str) {
        self.write(|fetch, now| {
            fetch.over(now);
            fetch.end = Some(how);
        });
    }
}
