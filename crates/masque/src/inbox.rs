//! Datagrams that came from a relay and wait for their reader: a queue bounded in bytes, filled by the connection's driver task.
//! When it is full the newest are dropped and counted, as a router's queue would.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use hoplite_overlay::{Ecn, Error, Received};
use parking_lot::{Mutex, MutexGuard};

/// What an empty datagram costs of the bound, so that these are bounded too.
const OVERHEAD: usize = 64;
/// Where so many wait, the reader is slow, and what is smaller than this is copied: it may hold several packets that came with it, which the bound does not
/// count.
const MANY: usize = 256;
const SMALL: usize = 1024;
/// Copies share buffers of so many bytes.
const BUFFER: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Inbox {
    bound: usize,
    dropped: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Bytes, Option<Ecn>)>,
    /// Where small payloads are copied to.
    copies: BytesMut,
    bytes: usize,
    reader: Option<Waker>,
    ended: Option<Error>,
}

impl Inbox {
    /// A queue of at most `bound` bytes.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            bound,
            dropped: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Keeps `payload`, whose packet was marked so, for the reader; wakes nobody until [`Self::wake`].
    pub(crate) fn push(&self, payload: Bytes, mark: Option<Ecn>) {
        let mut state = self.lock();
        let cost = payload.len() + OVERHEAD;
        if state.bytes + cost > self.bound {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.bytes += cost;
        let payload = state.own(payload);
        state.queue.push_back((payload, mark));
    }

    /// Tells the reader that there is something.
    pub(crate) fn wake(&self) {
        let reader = self.lock().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// As [`Self::wake`], if there is something.
    pub(crate) fn wake_if_any(&self) {
        let mut state = self.lock();
        let reader = (!state.queue.is_empty()).then(|| state.reader.take());
        drop(state);
        reader.flatten().into_iter().for_each(Waker::wake);
    }

    /// No more will come: the reader gets what is left, then `error`.
    pub(crate) fn end(&self, error: Error) {
        self.lock().ended.get_or_insert(error);
        self.wake();
    }

    /// How many were dropped because the reader was slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Fills `buf` with payloads of one size, a last shorter one included, and says which mark all of them bear.
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        let mut state = self.lock();
        if let Some(received) = state.fill(buf) {
            return Poll::Ready(Ok(received));
        }
        if let Some(error) = &state.ended {
            return Poll::Ready(Err(error.clone()));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    /// The payload, and of what came with it nothing that matters.
    fn own(&mut self, payload: Bytes) -> Bytes {
        if payload.len() >= SMALL || self.queue.len() < MANY {
            return payload;
        }
        if self.copies.capacity() < payload.len() {
            self.copies.reserve(BUFFER);
        }
        self.copies.extend_from_slice(&payload);
        self.copies.split().freeze()
    }

    fn pop(&mut self) -> Option<(Bytes, Option<Ecn>)> {
        let (payload, mark) = self.queue.pop_front()?;
        self.bytes -= payload.len() + OVERHEAD;
        if self.queue.is_empty() {
            self.copies = BytesMut::new();
        }
        Some((payload, mark))
    }

    fn fill(&mut self, buf: &mut [u8]) -> Option<(Received, Option<Ecn>)> {
        let (mut first, mut mark) = self.pop()?;
        while first.len() > buf.len() {
            (first, mark) = self.pop()?;
        }
        let segment = first.len();
        let mut len = put(buf, 0, &first);
        while len.is_multiple_of(segment.max(1))
            && segment > 0
            && self.next_fits(segment, buf.len() - len, mark)
        {
            let Some((next, _)) = self.pop() else { break };
            len = put(buf, len, &next);
        }
        let segment = segment.max(1);
        Some((Received { len, segment }, mark))
    }

    /// A shorter payload ends the batch; an empty one would be lost in it.
    fn next_fits(&self, segment: usize, room: usize, mark: Option<Ecn>) -> bool {
        self.queue.front().is_some_and(|(next, its)| {
            !next.is_empty() && next.len() <= segment.min(room) && *its == mark
        })
    }
}

fn put(buf: &mut [u8], at: usize, payload: &[u8]) -> usize {
    let end = at + payload.len();
    if let Some(room) = buf.get_mut(at..end) {
        room.copy_from_slice(payload);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoplite_overlay::ErrorKind;
    use proptest::prelude::*;
    use std::task::Waker;

    fn read(inbox: &Inbox, buf: &mut [u8]) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        inbox.poll_recv(&mut Context::from_waker(Waker::noop()), buf)
    }

    fn drain(inbox: &Inbox, room: usize) -> Vec<(Vec<u8>, Option<Ecn>)> {
        let mut buf = vec![0; room];
        let mut all = Vec::new();
        while let Poll::Ready(Ok((got, mark))) = read(inbox, &mut buf) {
            match got.len {
                0 => all.push((Vec::new(), mark)),
                _ => {
                    let payloads = buf[..got.len].chunks(got.segment);
                    all.extend(payloads.map(|payload| (payload.to_vec(), mark)));
                }
            }
        }
        all
    }

    #[test]
    fn small_payloads_that_wait_long_keep_nothing_that_came_with_them() {
        let inbox = Inbox::new(1 << 20);
        for _ in 0..MANY {
            inbox.push(Bytes::from_static(&[1]), None);
        }
        let mut packets = BytesMut::zeroed(12_000);
        let payloads = [100, 50, 70].map(|len| packets.split_to(len).freeze());
        packets.clear();
        for payload in payloads {
            inbox.push(payload, None);
        }
        assert!(packets.try_reclaim(12_000), "nobody else holds them");
        let all = drain(&inbox, 200);
        let sizes = all[MANY..].iter().map(|(payload, _)| payload.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [100, 50, 70]);
        assert_eq!(inbox.lock().copies.capacity(), 0);
    }

    #[test]
    fn what_exceeds_the_bound_is_dropped_and_counted() {
        let inbox = Inbox::new(200);
        for _ in 0..3 {
            inbox.push(Bytes::from_static(&[7; 36]), None);
        }
        assert_eq!((drain(&inbox, 100).len(), inbox.dropped()), (2, 1));
    }

    #[test]
    fn the_end_is_told_after_what_was_left() {
        let inbox = Inbox::new(1000);
        inbox.push(Bytes::from_static(b"last"), None);
        inbox.end(Error::new(ErrorKind::PathFailed, "receiving"));
        let mut buf = [0; 10];
        assert!(matches!(read(&inbox, &mut buf), Poll::Ready(Ok(_))));
        assert!(matches!(read(&inbox, &mut buf), Poll::Ready(Err(_))));
    }

    proptest! {
        #[test]
        fn boundaries_order_and_marks_are_kept(sizes in prop::collection::vec((0usize..40, any::<bool>()), 0..50), room in 40usize..200) {
            let inbox = Inbox::new(1 << 20);
            let sent = sizes.iter().enumerate().map(|(i, (n, marked))| (vec![i.to_le_bytes()[0]; *n], marked.then_some(Ecn::Ce)));
            let sent: Vec<_> = sent.collect();
            for (payload, mark) in &sent {
                inbox.push(Bytes::from(payload.clone()), *mark);
            }
            prop_assert_eq!(drain(&inbox, room), sent);
        }
    }
}
