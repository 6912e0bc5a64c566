//! A bounded queue of cells between one sender and one reader: each circuit has its own, with its own lock, for each direction that needs one.
//! When it is full the sender waits (`poll_ready`) or is told (`push`); nothing is ever dropped silently.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use hoplite_wire::cell::Cell;

/// Makes a queue of at most `bound` cells.
pub(super) fn lane(bound: usize) -> (Tx, Rx) {
    let lane = Arc::new(Lane {
        bound: bound.max(1),
        state: Mutex::default(),
    });
    (Tx(Arc::clone(&lane)), Rx(lane))
}

/// How a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The sender is gone; what it left is to be delivered.
    Finished,
    /// The sender threw away what was queued, and gave this reason (tor-spec, "Tearing down circuits").
    Aborted(u8),
}

/// Why a cell was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// As many cells wait as may.
    Full,
    /// The reader is gone.
    Closed,
}

#[derive(Debug)]
struct Lane {
    bound: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: VecDeque<Cell>,
    sender: Option<Waker>,
    reader: Option<Waker>,
    end: Option<End>,
    unread: bool,
    /// The sender was told to wait.
    waits: bool,
    /// Cells that were read.
    taken: u64,
}

/// Sees how much waits in a lane, and may end it; holds neither end.
#[derive(Debug)]
pub(super) struct Watch(Weak<Lane>);

/// The sending end. Dropping it finishes the lane.
#[derive(Debug)]
pub(super) struct Tx(Arc<Lane>);

/// The reading end. Dropping it closes the lane; what waits is thrown away.
#[derive(Debug)]
pub(super) struct Rx(Arc<Lane>);

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first end counts.
    fn end(&self, end: End) {
        let mut state = self.lock();
        if matches!(end, End::Aborted(_)) {
            state.cells.clear();
        }
        state.end.get_or_insert(end);
        let wakers = [state.reader.take(), state.sender.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Watch {
    /// Cells that wait, and how many were taken.
    pub(super) fn measure(&self) -> (usize, u64) {
        self.0.upgrade().map_or((0, 0), |lane| {
            let state = lane.lock();
            (state.cells.len(), state.taken)
        })
    }

    /// Ends the lane for `reason`, whoever holds it: its sender is told when it next asks, and woken to ask.
    pub(super) fn end(&self, reason: u8) {
        if let Some(lane) = self.0.upgrade() {
            lane.end(End::Aborted(reason));
        }
    }
}

impl Tx {
    /// Sees into it.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.0))
    }

    /// Whether a cell can be pushed now.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Refused>> {
        let mut state = self.0.lock();
        if state.unread || state.end.is_some() {
            return Poll::Ready(Err(Refused::Closed));
        }
        // Also when there is room: the lane may be ended by neither of its holders.
        store(&mut state.sender, cx);
        state.waits = state.cells.len() >= self.0.bound;
        match state.waits {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    /// Queues a cell; tells whether the queue was empty.
    pub(super) fn push(&self, cell: Cell) -> Result<bool, Refused> {
        self.push_within(cell, self.0.bound)
    }

    /// Queues the last cell even where the queue is full, and finishes.
    pub(super) fn push_last(&self, cell: Cell) {
        let taken = self.push_within(cell, self.0.bound.saturating_add(1));
        debug_assert!(taken != Err(Refused::Full), "one more fits always");
        self.0.end(End::Finished);
    }

    /// Throws away what waits, queues a last cell instead, and finishes.
    pub(super) fn replace(&self, cell: Cell) {
        self.0.lock().cells.clear();
        self.push_last(cell);
    }

    fn push_within(&self, cell: Cell, bound: usize) -> Result<bool, Refused> {
        let mut state = self.0.lock();
        if state.unread || state.end.is_some() {
            return Err(Refused::Closed);
        }
        if state.cells.len() >= bound {
            return Err(Refused::Full);
        }
        let first = state.cells.is_empty();
        state.cells.push_back(cell);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(first)
    }

    /// Throws away what waits and ends for `reason`.
    pub(super) fn abort(&self, reason: u8) {
        self.0.end(End::Aborted(reason));
    }

    /// How many cells wait.
    pub(super) fn len(&self) -> usize {
        self.0.lock().cells.len()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.0.end(End::Finished);
    }
}

impl Rx {
    /// Sees into it.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.0))
    }

    /// The next cell; `None` when the lane has ended and all was read.
    pub(super) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Cell>> {
        let mut state = self.0.lock();
        if let Some(cell) = pop(&mut state, self.0.bound) {
            return Poll::Ready(Some(cell));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        store(&mut state.reader, cx);
        Poll::Pending
    }

    /// The next cell if there is one.
    pub(super) fn pop(&self) -> Option<Cell> {
        pop(&mut self.0.lock(), self.0.bound)
    }

    /// Moves up to `most` cells into `out`; an error when the lane has ended and all was read.
    pub(super) fn poll_drain(
        &self,
        cx: &Context<'_>,
        most: usize,
        out: &mut Vec<Cell>,
    ) -> Poll<Result<(), End>> {
        let mut state = self.0.lock();
        let count = state.cells.len().min(most);
        if count > 0 {
            out.extend(state.cells.drain(..count));
            let sender = took(&mut state, count, self.0.bound);
            drop(state);
            sender.into_iter().for_each(Waker::wake);
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = state.end {
            return Poll::Ready(Err(end));
        }
        store(&mut state.reader, cx);
        Poll::Pending
    }

    /// Waits for the end, whatever is still queued.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<End> {
        let mut state = self.0.lock();
        if let Some(end) = state.end {
            return Poll::Ready(end);
        }
        store(&mut state.reader, cx);
        Poll::Pending
    }

    /// How it ended, if it did.
    #[cfg(test)]
    pub(super) fn ended(&self) -> Option<End> {
        self.0.lock().end
    }

    /// How many cells wait.
    pub(super) fn len(&self) -> usize {
        self.0.lock().cells.len()
    }

    /// No more can be sent; what waits is thrown away.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.unread = true;
        state.cells = VecDeque::new();
        let sender = state.sender.take();
        drop(state);
        sender.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.close();
    }
}

fn pop(state: &mut State, bound: usize) -> Option<Cell> {
    let cell = state.cells.pop_front()?;
    took(state, 1, bound).into_iter().for_each(Waker::wake);
    Some(cell)
}

/// Counts what was taken. A sender that waits is woken when half the lane is free: not for each cell.
fn took(state: &mut State, count: usize, bound: usize) -> Option<Waker> {
    state.taken = state.taken.saturating_add(count as u64);
    let wake = state.waits && state.cells.len() <= bound / 2;
    state.waits &= !wake;
    state.sender.take_if(|_| wake)
}

fn store(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}
