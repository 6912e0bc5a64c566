//! A connection's part of the budget as whoever serves it has it: what has moved is told, and what may be read, held and kept waiting is asked for.
//! Nothing is shared with other connections where bytes pass.

use std::{
    fmt,
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Books, INITIAL_WINDOWS, Memory, Moved, PIECE, Promised, REST, Tally, Way};

/// What a larger read of a target counts beside the piece, whatever it brings: it holds the buffer that it came in.
const LARGE: u64 = 56 << 10;
/// What a stream that stalls may hold for a start.
const STALLED: u64 = 1 << 20;

/// A connection's windows, as its transport has them.
pub(crate) trait Transport: Send + Sync {
    /// From now on the client may send so much that is not read, in bytes.
    fn set_receive(&self, bytes: u64);
    /// From now on so much may wait for the client, in bytes.
    fn set_send(&self, bytes: u64);
    /// The shortest round trip, and what may be on its way to the client. Behind a queue that the connection fills itself a wider window only fills it more.
    fn path(&self) -> (Duration, u64);
    /// How often the client has said that it may send nothing more on all its streams; 0 where none can say so.
    fn blocked(&self) -> u64;
}

/// A connection's part of the budget; dropping it gives it back.
pub(crate) struct Account {
    memory: Arc<Memory>,
    id: u64,
    tally: Arc<Tally>,
    transport: Mutex<Option<Box<dyn Transport>>>,
    stream_window: u64,
}

/// Bytes that were read and are not taken by a target yet.
pub(crate) struct InHand<'a> {
    account: &'a Account,
    bytes: u64,
}

/// What may be read of a target, and was, and is not taken by the transport yet. Dropping it says that it is.
pub(crate) struct Drawn<'a> {
    account: &'a Account,
    bytes: u64,
}

/// A stream whose target takes nothing, or took nothing of late. Dropping it withdraws what it may hold.
pub(crate) struct Stalled<'a> {
    account: &'a Account,
    /// What was read for it and waits, counted apart from what is in hand.
    stuck: u64,
    /// What it may hold beside the connection's window, and how often the client had been blocked when it got that.
    window: u64,
    blocked: u64,
    /// When it took nothing last.
    last: Instant,
}

/// Bytes that a tunnel may hold beside the windows.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    account: Arc<Account>,
    bytes: u64,
}

/// What a tunnel holds of a capsule that has come in part. Its [`PIECE`] counts with its request, and what is more here.
#[derive(Debug)]
pub(crate) struct HeldPart {
    account: Arc<Account>,
    more: Mutex<Option<MemoryReservation>>,
}

impl Tally {
    /// At how many bytes this way's window is looked at again.
    fn next(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Up => &self.next_read,
            Way::Down => &self.next_written,
        }
    }

    /// How much more may be in hand.
    fn room(&self) -> usize {
        let may = self.may_hand.load(Relaxed);
        let room = may.saturating_sub(self.in_hand.load(Relaxed));
        usize::try_from(room).unwrap_or(usize::MAX)
    }
}

impl Account {
    pub(super) fn new(memory: Arc<Memory>, id: u64, tally: Arc<Tally>, stream_window: u64) -> Self {
        let account = Self {
            memory,
            id,
            tally,
            transport: Mutex::default(),
            stream_window,
        };
        account.apply(Promised::NEW, None);
        account
    }

    /// From now on the windows of this transport are set. It has those of [`INITIAL_WINDOWS`].
    pub(crate) fn attach(&self, transport: impl Transport + 'static) {
        *self.transport.lock() = Some(Box::new(transport));
    }

    /// Does something to the books, and tells the transport what came of it.
    fn change(&self, change: impl FnOnce(&mut Books, u64, Instant)) {
        let mut books = self.memory.books();
        let windows = |books: &Books| books.entries.get(&self.id).map(|entry| entry.windows);
        let before = windows(&books);
        change(&mut books, self.id, Instant::now());
        // Under the lock, so that two changes are told in their order.
        if let Some(after) = windows(&books) {
            self.apply(after, before);
        }
    }

    fn apply(&self, windows: Promised, before: Option<Promised>) {
        let Tally {
            read,
            written,
            next_read,
            next_written,
            may_hand,
            may_draw,
            less,
            ..
        } = &*self.tally;
        // When something else changes they are looked at when they would have been.
        if before.is_none_or(|before| before.up != windows.up) {
            next_read.store(read.load(Relaxed) + windows.up / 2, Relaxed);
        }
        if before.is_none_or(|before| before.down != windows.down) {
            next_written.store(written.load(Relaxed) + windows.down / 2, Relaxed);
        }
        may_hand.store(windows.up, Relaxed);
        may_draw.store(windows.may_draw, Relaxed);
        let Some(before) = before else {
            return;
        };
        if windows.up > before.up {
            less.notify_waiters();
        }
        if let Some(transport) = &*self.transport.lock() {
            if windows.receive() != before.receive() {
                transport.set_receive(windows.receive());
            }
            if windows.down != before.down {
                transport.set_send(windows.down);
            }
        }
    }

    /// A request was admitted.
    pub(crate) fn begin(&self) {
        if !self.tally.begun.swap(true, Relaxed) {
            self.change(Books::begin);
        }
    }

    /// The connection holds this many bytes more from now on, if there is room for them.
    pub(crate) fn keep_more(&self, bytes: u64) -> bool {
        let mut kept = false;
        self.change(|books, id, now| kept = books.keep(id, bytes, now));
        kept
    }

    /// So many of those it holds no more.
    pub(crate) fn keep_less(&self, bytes: u64) {
        self.change(|books, id, now| books.give_back(id, bytes, now));
    }

    /// Whether what the connection moves is to have less room from now on, for others. So once each time that it is to.
    pub(crate) fn is_to_narrow(&self) -> bool {
        self.memory.books().is_to_narrow(self.id)
    }

    /// The connection has moved so much by now, where it does not say so at each [`read`](Self::read).
    pub(crate) fn has_moved(&self, bytes: u64) {
        self.tally.read.store(bytes, Relaxed);
    }

    /// The connection has ended: its transport is let go, which holds its memory, and what it may still hold is counted until the account is dropped.
    pub(crate) fn end(&self) {
        drop(self.transport.lock().take());
        self.change(Books::end);
    }

    /// This many bytes were read of what the client sends.
    pub(crate) fn read(&self, bytes: usize) {
        let Tally {
            read, next_read, ..
        } = &*self.tally;
        if add(read, bytes) >= next_read.load(Relaxed) {
            self.moved(Way::Up, read);
        }
    }

    /// This many bytes were taken of what the client gets.
    pub(crate) fn wrote(&self, bytes: usize) {
        let Tally {
            written,
            next_written,
            ..
        } = &*self.tally;
        if add(written, bytes) >= next_written.load(Relaxed) {
            self.moved(Way::Down, written);
        }
    }

    fn moved(&self, way: Way, bytes: &AtomicU64) {
        let path = self.transport.lock().as_ref().map(|one| one.path());
        let Some((round_trip, congestion_window)) = path else {
            return;
        };
        let moved = Moved {
            bytes: bytes.load(Relaxed),
            round_trip,
            congestion_window,
        };
        self.change(|books, id, now| {
            books.moved(id, way, moved, now);
            if let Some(entry) = books.entries.get_mut(&id) {
                let half = *entry.windows.of(way).0 / 2;
                self.tally.next(way).store(moved.bytes + half, Relaxed);
            }
        });
    }

    /// Waits until more may be in hand.
    pub(crate) async fn room(&self) {
        while self.room_now() == 0 {
            let less = self.tally.less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            if self.room_now() == 0 {
                less.await;
            }
        }
    }

    /// How many bytes more may be in hand.
    pub(crate) fn room_now(&self) -> usize {
        self.tally.room()
    }

    /// This many bytes are on their way to a target.
    pub(crate) fn hand(&self, bytes: usize) -> InHand<'_> {
        add(&self.tally.in_hand, bytes);
        InHand {
            account: self,
            bytes: bytes as u64,
        }
    }

    /// Room for a read of a target: for a large one if the connection's other tunnels leave so much, else for a piece.
    pub(crate) fn draw(&self) -> Drawn<'_> {
        let Tally {
            drawn, may_draw, ..
        } = &*self.tally;
        let may = may_draw.load(Relaxed);
        let is_large = drawn
            .fetch_update(Relaxed, Relaxed, |drawn| {
                Some(drawn + LARGE).filter(|drawn| *drawn <= may)
            })
            .is_ok();
        Drawn {
            account: self,
            bytes: if is_large { LARGE } else { 0 },
        }
    }

    /// How often the client has been blocked.
    fn blocked(&self) -> u64 {
        let transport = self.transport.lock();
        transport
            .as_ref()
            .map_or(0, |transport| transport.blocked())
    }

    fn hand_less(&self, bytes: u64) {
        let before = self.tally.in_hand.fetch_sub(bytes, Relaxed);
        if before >= self.tally.may_hand.load(Relaxed) {
            self.tally.less.notify_waiters();
        }
    }

    /// Narrows what may wait for a client that rests; never resolves. `taken` resolves once the transport would take more.
    pub(crate) async fn keep<F: Future<Output = bool>>(&self, taken: impl Fn() -> F) {
        let mut before = 0;
        loop {
            tokio::time::sleep(REST).await;
            let written = self.tally.written.load(Relaxed);
            let rests = written == std::mem::replace(&mut before, written);
            if rests && self.may_hold_more_than_at_first() {
                self.change(Books::rest);
                if taken().await {
                    self.change(Books::taken);
                } else {
                    pending().await
                }
            }
        }
    }

    fn may_hold_more_than_at_first(&self) -> bool {
        let books = self.memory.books();
        let windows = books.entries.get(&self.id).map(|entry| entry.windows);
        let more = |it: Promised| it.down + it.owed.1 + it.may_draw > INITIAL_WINDOWS.1 / 2 * 3;
        windows.is_some_and(more)
    }

    /// Resolves when somebody else needs the memory.
    pub(crate) async fn lost(&self) {
        self.tally.lost.notified().await;
    }
}

impl<'a> InHand<'a> {
    /// The target takes nothing: what is in hand and what the stream may still bring is counted beside the rest, if there is room.
    pub(crate) fn stall(&mut self) -> Option<Stalled<'a>> {
        let account = self.account;
        let mut stalled = Stalled {
            account,
            stuck: 0,
            window: 0,
            blocked: account.blocked(),
            last: Instant::now(),
        };
        let window = account.stream_window.min(STALLED);
        stalled.hold(window, self).then_some(stalled)
    }
}

impl Drawn<'_> {
    /// How many bytes may be read.
    pub(crate) fn room(&self) -> usize {
        PIECE.saturating_add(usize::try_from(self.bytes).unwrap_or(usize::MAX))
    }

    /// So many were: of a piece nothing counts beside the request.
    pub(crate) fn keep(&mut self, bytes: usize) {
        if bytes <= PIECE {
            let spared = std::mem::take(&mut self.bytes);
            self.account.tally.drawn.fetch_sub(spared, Relaxed);
        }
    }
}

impl Stalled<'_> {
    /// Whether there is room for so much more that the stream may hold, and for what is in hand, which then counts with it.
    fn hold(&mut self, more: u64, hand: &mut InHand<'_>) -> bool {
        let (account, bytes) = (self.account, hand.bytes);
        let mut done = false;
        account.change(|books, id, now| done = books.stall(id, (more, bytes), now));
        if done {
            account.hand_less(std::mem::take(&mut hand.bytes));
            self.stuck += bytes;
            self.window += more;
        }
        done
    }

    /// The target takes nothing again, of what is in hand. Whether that counts apart now.
    pub(crate) fn again(&mut self, hand: &mut InHand<'_>) -> bool {
        self.last = Instant::now();
        hand.bytes == 0 || self.hold(0, hand)
    }

    /// The stream has taken all that was meant for others if the client is blocked again: it may hold twice as much, if there is room. Whether it may now.
    pub(crate) fn follow(&mut self) -> bool {
        let account = self.account;
        let blocked = account.blocked();
        let wider = account.stream_window.min(self.window.saturating_mul(2));
        let more = wider - self.window;
        if blocked == self.blocked || more == 0 {
            return false;
        }
        let mut done = false;
        account.change(|books, id, now| done = books.stall(id, (more, 0), now));
        if done {
            (self.window, self.blocked) = (wider, blocked);
        }
        done
    }

    /// Whether it may hold all that the client may send on it.
    pub(crate) fn is_whole(&self) -> bool {
        self.window >= self.account.stream_window
    }

    /// The target has taken what waited.
    pub(crate) fn go_on(&mut self) {
        let stuck = std::mem::take(&mut self.stuck);
        if stuck > 0 {
            self.last = Instant::now();
            self.account
                .change(|books, id, now| books.resume(id, (0, stuck), now));
        }
    }

    /// When it has taken all it got for long enough.
    pub(crate) fn over(&self) -> Instant {
        self.last + REST
    }
}

impl MemoryReservation {
    /// Counts what a request may hold, for as long as this lives; `None` if there is no room for it.
    pub(crate) fn of_request(account: &Arc<Account>, bytes: usize) -> Option<Self> {
        let bytes = bytes as u64;
        let mut done = false;
        account.change(|books, id, now| done = books.admit(id, bytes, now));
        done.then(|| Self {
            account: Arc::clone(account),
            bytes,
        })
    }

    /// Counts what a tunnel may hold, for as long as this lives; `None` if there is no room for it.
    pub(crate) fn take(account: &Arc<Account>, bytes: usize) -> Option<Self> {
        let bytes = bytes as u64;
        let mut done = false;
        account.change(|books, id, now| done = books.stall(id, (0, bytes), now));
        done.then(|| Self {
            account: Arc::clone(account),
            bytes,
        })
    }
}

impl HeldPart {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self {
            account,
            more: Mutex::default(),
        }
    }

    /// It is so many bytes from now on, if there is room for them.
    pub(crate) fn is(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(PIECE);
        let mut held = self.more.lock();
        if held.as_ref().map_or(0, |held| held.bytes) != more as u64 {
            // What it was goes first: of a capsule that grows, what is left counts.
            *held = None;
            *held = MemoryReservation::take(&self.account, more);
        }
        more == 0 || held.is_some()
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.account
            .change(|books, id, now| books.resume(id, (0, bytes), now));
    }
}

impl Drop for Drawn<'_> {
    fn drop(&mut self) {
        self.account.tally.drawn.fetch_sub(self.bytes, Relaxed);
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.account.hand_less(self.bytes);
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        let (stuck, window) = (self.stuck, self.window);
        self.account
            .change(|books, id, now| books.resume(id, (window, stuck), now));
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").finish_non_exhaustive()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.memory.books().leave(self.id);
    }
}

fn add(count: &AtomicU64, bytes: usize) -> u64 {
    let bytes = bytes as u64;
    count.fetch_add(bytes, Relaxed) + bytes
}
