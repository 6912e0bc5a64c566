//! Which tokens are spent (redeemed): whoever marks one first has spent it, and everybody else is refused, as double spending. A token is marked before anybody is admitted by it.
//!
//! The marks are in a file of SQLite, for the relays of one host ([`SpentTokens::open`]), or with a server that a fleet shares, PostgreSQL or
//! one of Redis's protocol ([`SpentTokens::share`]): one request, which the server carries out as a whole, for each token. Whoever hears no answer in
//! time does not know whether a token is spent: that is the store's failure, and the token is not asked for a second time.
//!
//! ```text
//! spend -> a place of the queue -> the writer's thread, or a task and a connection ->
//!       <- within the deadline: marked, spent before; or nobody knows
//! ```

use std::{
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_wire::privacy_pass::PrivateToken;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};

use crate::{KeyDirectory, private_file::FileError};

mod file;
mod outage;
mod postgres;
mod redis;
mod server;
mod shared;

pub use server::{ServerError, SpentServer, SpentServerError};

/// Seconds for which the marks of a key outlive it: it may have been missing in the issuer's directory by mistake.
const KEPT: u64 = 30 * 24 * 3600;

/// Why nobody knows whether a token is spent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpentError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(Arc<FileError>),
    /// The system gives no thread.
    #[error("no thread for the spent tokens: {0}")]
    Thread(Arc<std::io::Error>),
    /// The file cannot be written.
    #[error("spent tokens cannot be kept: make room on the disk of their file")]
    Unavailable,
    /// As many wait as may.
    #[error("too many tokens wait to be marked as spent")]
    Full,
    /// It has not answered within the deadline. The token may be marked.
    #[error("the store of spent tokens does not answer in time")]
    Late,
    /// It is not in reach, or what it answers is none. The token may be marked.
    #[error("the store of spent tokens {0}")]
    Server(#[from] ServerError),
}

impl From<FileError> for SpentError {
    fn from(error: FileError) -> Self {
        Self::File(Arc::new(error))
    }
}

impl SpentError {
    /// A word for metrics.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::File(_) | Self::Thread(_) | Self::Unavailable => "file",
            Self::Full => "full",
            Self::Late => "late",
            Self::Server(_) => "server",
        }
    }
}

/// It was spent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is spent")]
pub struct AlreadySpent;

/// What a store of spent tokens is given.
#[derive(Clone)]
pub struct SpentOptions {
    /// How long marking one may take. Whoever waits longer does not know whether it is spent.
    pub deadline: Duration,
    /// How many may wait to be marked, those among them that nobody waits for any more; who comes then is told at once.
    pub queue: usize,
    /// Is told when the store answers, first or again, and when it does not any more. Not for each token: it is back when it answers, and no failure
    /// has been seen for five seconds.
    pub told: Told,
}

/// Whom [`SpentOptions::told`] names.
pub type Told = Arc<dyn Fn(Result<(), &SpentError>) + Send + Sync>;

impl Default for SpentOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            queue: 1024,
            told: Arc::new(|_| ()),
        }
    }
}

impl fmt::Debug for SpentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpentOptions")
            .field("deadline", &self.deadline)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// The tokens that were spent at one relay, or at those of a fleet. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpentTokens(Arc<Store>);

#[derive(Debug)]
struct Store {
    place: Place,
    queue: Arc<Semaphore>,
    deadline: Duration,
    reports: Arc<Reports>,
}

#[derive(Debug)]
enum Place {
    File(mpsc::Sender<(Mark, Asker)>),
    Shared(shared::Store),
}

/// What tells one token from all others. Sixteen bytes of a nonce that its client drew at random: two that are alike are not found, and who makes such
/// ones spends two for one.
#[derive(Clone, Copy, Debug)]
struct Mark {
    key: [u8; 32],
    nonce: [u8; 16],
}

/// Who waits for a mark, and his place in the queue. Dropped, it says that nobody knows.
#[derive(Debug)]
struct Asker {
    tell: oneshot::Sender<Result<bool, SpentError>>,
    _place: OwnedSemaphorePermit,
}

/// Who is told whether the store answers.
struct Reports {
    outage: Mutex<outage::Outage>,
    told: Told,
}

impl SpentTokens {
    /// Opens a file, and makes it if it is not there, for this user alone. `keys` are the issuer's at this moment, `now` in seconds since 1970: what was
    /// spent of keys that have not been among them for a month, and of which nothing was spent since, is forgotten; nothing is while there are none.
    ///
    /// # Errors
    /// [`SpentError::File`], [`SpentError::Thread`].
    #[expect(
        clippy::needless_pass_by_value,
        reason = "whoever opens a store makes its options for it"
    )]
    pub fn open(
        path: &Path,
        keys: &[[u8; 32]],
        now: u64,
        options: SpentOptions,
    ) -> Result<Self, SpentError> {
        let asking = file::open(path, (keys, now), options.queue)?;
        let store = Self::new(Place::File(asking), &options);
        store.0.reports.tell(Ok(()));
        Ok(store)
    }

    /// Marks with a server that others mark with as well, by so many connections. They are opened, and opened again, beside: this does not wait for
    /// them, and needs a runtime of tokio. A mark is kept until a month after its key's end, which is told by when the next key begins; without
    /// another key there is no end.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "whoever opens a store makes its options for it"
    )]
    pub fn share(
        server: SpentServer,
        keys: &KeyDirectory,
        connections: usize,
        options: SpentOptions,
    ) -> Self {
        let reports = Arc::new(Reports::new(&options));
        let store = shared::Store::new(server, keys, (connections, options.deadline), &reports);
        Self(Arc::new(Store {
            place: Place::Shared(store),
            queue: Arc::new(Semaphore::new(options.queue)),
            deadline: options.deadline,
            reports,
        }))
    }

    fn new(place: Place, options: &SpentOptions) -> Self {
        Self(Arc::new(Store {
            place,
            queue: Arc::new(Semaphore::new(options.queue)),
            deadline: options.deadline,
            reports: Arc::new(Reports::new(options)),
        }))
    }

    /// Marks a token that was verified as spent.
    ///
    /// # Errors
    /// Nobody knows: [`SpentError`]. Inside, [`AlreadySpent`].
    pub async fn spend(
        &self,
        token: &PrivateToken,
    ) -> Result<Result<(), AlreadySpent>, SpentError> {
        let marked = self.0.mark(Mark::of(token)).await;
        self.0.reports.tell(marked.as_ref().map(|_| ()));
        marked.map(|fresh| if fresh { Ok(()) } else { Err(AlreadySpent) })
    }
}

impl Store {
    async fn mark(&self, mark: Mark) -> Result<bool, SpentError> {
        let place = Arc::clone(&self.queue).try_acquire_owned();
        let place = place.map_err(|_| SpentError::Full)?;
        let (tell, told) = oneshot::channel();
        let asker = Asker {
            tell,
            _place: place,
        };
        match &self.place {
            // It has as many places as the queue: what it does not take is dropped, and its thread has ended.
            Place::File(asking) => drop(asking.try_send((mark, asker))),
            Place::Shared(store) => store.mark(mark, asker),
        }
        match timeout(self.deadline, told).await {
            Ok(Ok(marked)) => marked,
            Ok(Err(_)) => Err(SpentError::Unavailable),
            Err(_) => Err(SpentError::Late),
        }
    }
}

impl Mark {
    fn of(token: &PrivateToken) -> Self {
        let mut nonce = [0; 16];
        nonce.copy_from_slice(token.nonce().split_at(16).0);
        Self {
            key: *token.key_id(),
            nonce,
        }
    }
}

impl Asker {
    fn tell(self, marked: Result<bool, SpentError>) {
        // He may wait no longer.
        self.tell.send(marked).ok();
    }
}

impl Reports {
    fn new(options: &SpentOptions) -> Self {
        Self {
            outage: Mutex::default(),
            told: Arc::clone(&options.told),
        }
    }

    fn tell(&self, answered: Result<(), &SpentError>) {
        let now = Instant::now();
        let mut outage = self.outage.lock();
        let news = match answered {
            Ok(()) => outage.answered(now),
            Err(_) => outage.failed(now),
        };
        if news {
            // Under the lock, so that what is told last is so.
            (self.told)(answered);
        }
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outage.lock().fmt(f)
    }
}

#[cfg(test)]
mod testing {
    use hoplite_wire::privacy_pass::{Authenticator, PrivateToken, TokenInput};

    pub(super) fn token(number: u64, key: u8) -> PrivateToken {
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&number.to_be_bytes());
        let input = TokenInput {
            nonce,
            challenge_digest: [0; 32],
            key_id: [key; 32],
        };
        PrivateToken::new(input, Authenticator::BlindRsa([0; 256]))
    }
}
