//! A connection's QUIC DATAGRAM frames. A task reads them and hands them to the flows, in batches; what comes for a request that has not
//! arrived is kept a little; what goes out waits in one queue of all flows, which takes no more than QUIC has room for. What is small waits there for
//! others first, up to one packet of it, if it is to share packets (`sharing`).
//! RFC 9297 §2.1: "If a DATAGRAM frame is received and its Quarter Stream ID field maps to a stream that has not yet been created,
//! the receiver SHALL either drop that frame silently or buffer it temporarily".

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_overlay::Batch;
use hoplite_wire::{h3::Code, http_datagram};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    Share, add,
    flow::Inbound,
    quic,
    session::Inner,
    sharing::{Class, Packet, Verdict},
};

/// How many datagrams are handed out before the flows flush and other tasks get their turn.
const BATCH: usize = 256;

/// After this many batches the ACK controller is told what the round trip is.
const ROUND_TRIP_AFTER: u64 = 64;

/// Runs until the connection is lost.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut batch = Dispatch {
        number: 0,
        touched: Vec::new(),
        last: None,
    };
    while let Some(first) = next(&inner).await {
        let mut arrived = vec![first];
        waiting(&inner, &mut arrived);
        let is_full = arrived.len() == BATCH;
        batch.begin(&inner);
        for datagram in arrived {
            batch.route(&inner, datagram);
        }
        batch.flush();
        if is_full {
            tokio::task::yield_now().await;
        }
    }
}

/// The next datagram: one that the stack received, or one that was cut out of a packet before the stack saw it.
/// `None` when the connection is lost.
async fn next(inner: &Inner) -> Option<Bytes> {
    let cut_out = std::future::poll_fn(|cx| match &inner.config.controller {
        Some(controller) => controller.ack_controller().poll_datagram(cx),
        None => Poll::Pending,
    });
    tokio::select! {
        biased;
        datagram = cut_out => Some(datagram),
        datagram = inner.conn.read_datagram() => datagram.ok(),
    }
}

/// The datagrams that are there without waiting, up to a batch with what `arrived` has.
fn waiting(inner: &Inner, arrived: &mut Vec<Bytes>) {
    if let Some(controller) = &inner.config.controller {
        controller.ack_controller().take_datagrams(arrived, BATCH);
    }
    inner.conn.take_datagrams(arrived, BATCH);
}

/// Datagrams that are handed out before the flows flush.
struct Dispatch {
    number: u64,
    touched: Vec<Arc<Inbound>>,
    /// Stream and slot of the datagram before: most batches are for one flow.
    last: Option<(u64, usize)>,
}

impl Dispatch {
    fn begin(&mut self, inner: &Inner) {
        self.number += 1;
        if let Some(controller) = &inner.config.controller
            && self.number.is_multiple_of(ROUND_TRIP_AFTER)
        {
            controller.ack_controller().round_trip(inner.conn.rtt());
        }
    }

    fn route(&mut self, inner: &Inner, datagram: Bytes) {
        let Some((id, rest)) = http_datagram::split(datagram) else {
            return inner.fail(Code::DATAGRAM_ERROR, "a datagram for no possible stream");
        };
        let slot = match self.last {
            Some((last, slot)) if last == id => Some(slot),
            _ => self.find(inner, id, &rest),
        };
        if let Some(inbound) = slot.and_then(|slot| self.touched.get(slot)) {
            inbound.datagram(rest);
        }
    }

    fn find(&mut self, inner: &Inner, id: u64, rest: &Bytes) -> Option<usize> {
        let found = inner
            .routes()
            .find(id, rest, self.number, self.touched.len());
        match found {
            Found::Flow { slot, first } => {
                self.touched.extend(first);
                self.last = Some((id, slot));
                return Some(slot);
            }
            Found::Kept => {}
            Found::NoRoom => add(&inner.config.counters.early_dropped, 1),
            Found::Nobody => add(&inner.config.counters.unrouted, 1),
        }
        None
    }

    fn flush(&mut self) {
        self.last = None;
        for inbound in self.touched.drain(..) {
            inbound.seen_frames();
            inbound.flush();
        }
    }
}

/// At most this many early datagrams are kept a connection; what comes then is dropped and counted.
const EARLY_COUNT: usize = 32;
/// At most this many bytes of them.
const EARLY_BYTES: usize = 64 * 1024;
/// How far ahead of the newest request a stream id may be to be plausible.
const AHEAD: u64 = 4 * 256;

/// What to do with a datagram.
pub(super) enum Found {
    /// The flow's place among those touched in this batch, and the flow itself the first time.
    Flow {
        slot: usize,
        first: Option<Arc<Inbound>>,
    },
    /// It was kept.
    Kept,
    /// There is no room for early datagrams.
    NoRoom,
    /// No flow will ever want it.
    Nobody,
}

#[derive(Debug, Default)]
pub(super) struct Routes {
    entries: HashMap<u64, Entry>,
    early: VecDeque<(u64, Bytes)>,
    early_bytes: usize,
    /// The server's end: the first request that has not arrived.
    next: u64,
    /// The server's end: no more requests are taken.
    draining: bool,
}

#[derive(Debug)]
enum Entry {
    /// The request is not decided yet.
    Waiting,
    /// `batch` and `slot`: where the flow stands among those touched, and in which batch that was.
    Flow {
        inbound: Arc<Inbound>,
        batch: u64,
        slot: usize,
    },
}

impl Routes {
    /// The server's end: a request has arrived. `false` while draining.
    pub(super) fn arrive(&mut self, id: u64) -> bool {
        if !self.draining {
            self.next = self.next.max(id + 4);
            self.entries.insert(id, Entry::Waiting);
        }
        !self.draining
    }

    /// The client's end: a request was made.
    pub(super) fn open(&mut self, id: u64) {
        self.entries.insert(id, Entry::Waiting);
    }

    /// No more requests; the id of the first one that is not taken.
    pub(super) fn drain(&mut self) -> u64 {
        self.draining = true;
        self.next
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// The request ended, or it is no UDP flow: its datagrams are unwanted.
    /// The flow is returned, to be dropped by the caller when nothing is locked any more.
    #[must_use]
    pub(super) fn close(&mut self, id: u64) -> Option<Arc<Inbound>> {
        drop(self.take_early(id));
        match self.entries.remove(&id)? {
            Entry::Flow { inbound, .. } => Some(inbound),
            Entry::Waiting => None,
        }
    }

    /// The request became a flow; what came early for it.
    pub(super) fn enter(&mut self, id: u64, inbound: Arc<Inbound>) -> Vec<Bytes> {
        self.entries.insert(
            id,
            Entry::Flow {
                inbound,
                batch: 0,
                slot: 0,
            },
        );
        self.take_early(id)
    }

    fn take_early(&mut self, id: u64) -> Vec<Bytes> {
        let mut taken = Vec::new();
        if self.early.iter().any(|(early, _)| *early == id) {
            let (mine, others) = std::mem::take(&mut self.early)
                .into_iter()
                .partition(|(early, _)| *early == id);
            self.early = others;
            self.early_bytes = self.early.iter().map(|(_, datagram)| datagram.len()).sum();
            let mine: VecDeque<_> = mine;
            taken.extend(mine.into_iter().map(|(_, datagram)| datagram));
        }
        taken
    }

    /// Where a datagram for stream `id` goes. `batch` counts from 1; `touched` is how many flows it has touched so far.
    pub(super) fn find(&mut self, id: u64, datagram: &Bytes, batch: u64, touched: usize) -> Found {
        match self.entries.get_mut(&id) {
            Some(Entry::Flow {
                inbound,
                batch: seen,
                slot,
            }) => {
                let first = (*seen != batch).then(|| Arc::clone(inbound));
                if first.is_some() {
                    (*seen, *slot) = (batch, touched);
                }
                Found::Flow { slot: *slot, first }
            }
            Some(Entry::Waiting) => self.keep(id, datagram),
            None if !self.draining && (self.next..self.next + AHEAD).contains(&id) => {
                self.keep(id, datagram)
            }
            None => Found::Nobody,
        }
    }

    /// Copies, because the datagram may hold a whole receive buffer.
    fn keep(&mut self, id: u64, datagram: &Bytes) -> Found {
        if self.early.len() == EARLY_COUNT || self.early_bytes + datagram.len() > EARLY_BYTES {
            return Found::NoRoom;
        }
        self.early_bytes += datagram.len();
        self.early.push_back((id, Bytes::copy_from_slice(datagram)));
        Found::Kept
    }
}

/// What QUIC counts for each datagram on top of its bytes.
const PER_DATAGRAM: usize = size_of::<Bytes>();

/// A batch that is to become frames of one flow.
#[derive(Clone, Copy)]
pub(super) struct Frames<'a> {
    /// What stands before each payload: a context id, and what its format adds.
    pub(super) head: &'a [u8],
    pub(super) batch: Batch<'a>,
    pub(super) stream: u64,
}

/// One a connection. Its bound is one batch, and one packet of what shares it: while any datagram waits for QUIC here, nobody sends.
#[derive(Debug)]
pub(super) struct Outbox {
    /// How much room QUIC's buffer has while it is empty.
    room: usize,
    /// How long what is small waits for others.
    share: Share,
    state: Mutex<State>,
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// For room in QUIC's buffer.
    waiting: VecDeque<Bytes>,
    wakers: Vec<Waker>,
    /// For others to share a packet with; none while any waits for room.
    sharing: VecDeque<Bytes>,
    packet: Packet,
    /// Streams whose small pieces wait for the same packet, each of them counted in it.
    streams: Vec<Waker>,
    /// The connection is lost: nobody waits any more.
    closed: bool,
}

impl State {
    fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.waiting.is_empty() {
            return Poll::Ready(());
        }
        keep(&mut self.wakers, cx);
        Poll::Pending
    }
}

fn keep(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

/// What a DATAGRAM frame has before its content, in bytes.
const FRAME_HEAD: usize = 3;
/// The same of a STREAM frame with a DATA frame in it.
const STREAM_HEAD: usize = 16;

impl Outbox {
    /// For a connection whose empty buffer has so much room.
    pub(super) fn new(room: usize, share: Share) -> Self {
        Self {
            room,
            share,
            state: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// Whether nothing waits here or in QUIC's buffer.
    pub(super) fn is_drained(&self, inner: &Inner) -> bool {
        let state = self.state();
        let here = state.waiting.is_empty() && state.sharing.is_empty();
        here && inner.conn.datagram_send_buffer_space() >= self.room
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Ready when a batch will be taken whole.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.state().poll_ready(cx)
    }

    /// Sends what there is room for and returns how many payloads that were. Of the rest, a caller that can wait leaves
    /// all here; for one that cannot, the rest counts as dropped. Of a `class` it may wait for others first.
    pub(super) fn send(
        &self,
        inner: &Inner,
        frames: Frames<'_>,
        class: Option<Class>,
        waiter: Option<&Context<'_>>,
    ) -> Poll<usize> {
        let mut state = self.state();
        if let Some(cx) = waiter
            && state.poll_ready(cx).is_pending()
        {
            return Poll::Pending;
        }
        if let Some(class) = class
            && self.shares(&mut state, inner, frames, self.share.of(class))
        {
            return Poll::Ready(frames.count());
        }
        let fitting = if state.waiting.is_empty() {
            frames.fitting(inner.conn.datagram_send_buffer_space())
        } else {
            0
        };
        let taken = if waiter.is_some() {
            frames.count()
        } else {
            fitting
        };
        add(&inner.config.counters.full, frames.count() - taken);
        let lost = self.hand_over(&mut state, inner, frames.encode(taken), fitting);
        Poll::Ready(taken - lost)
    }

    /// Whether the batch waits with others, or has left with them; otherwise they have left, and it is to follow.
    fn shares(&self, state: &mut State, inner: &Inner, frames: Frames<'_>, wait: Duration) -> bool {
        let verdict = self.verdict(state, inner, frames.wire_bytes(), wait);
        match verdict {
            Verdict::Leaves => {
                self.release(state, inner);
                return false;
            }
            Verdict::Begins => self.let_go(state, inner),
            Verdict::Fills | Verdict::Waits => {}
        }
        state.sharing.extend(frames.encode(frames.count()));
        if verdict == Verdict::Fills {
            self.let_go(state, inner);
        }
        true
    }

    /// What is to become of something small. Its packet has left if it fills that; who has the timer is told when the time changes.
    fn verdict(&self, state: &mut State, inner: &Inner, bytes: usize, wait: Duration) -> Verdict {
        // What QUIC holds back shares packets anyway, and lately something may have gone wrong with the path.
        let is_backlogged =
            !state.waiting.is_empty() || inner.conn.datagram_send_buffer_space() < self.room;
        let room = match inner.conn.max_datagram_size() {
            Some(largest) if !is_backlogged && !state.closed => largest + FRAME_HEAD,
            _ => 0,
        };
        let due = state.packet.due();
        let verdict = state.packet.handle(bytes, wait, room, Instant::now());
        if verdict == Verdict::Fills {
            state.packet.leave();
        }
        if state.packet.due().is_some() && state.packet.due() != due {
            self.work.notify_one();
        }
        verdict
    }

    /// What waits for others waits no more.
    fn release(&self, state: &mut State, inner: &Inner) {
        state.packet.leave();
        self.let_go(state, inner);
    }

    /// Hands over what waited for a packet that has left. Streams come first: they write before QUIC, which is woken by the first datagram, looks
    /// at what there is to send.
    fn let_go(&self, state: &mut State, inner: &Inner) {
        state.streams.drain(..).for_each(Waker::wake);
        let sharing = std::mem::take(&mut state.sharing);
        for frame in sharing {
            let space = inner.conn.datagram_send_buffer_space();
            let fits = state.waiting.is_empty() && frame.len() <= space;
            self.hand_over(state, inner, std::iter::once(frame), usize::from(fits));
        }
    }

    /// Ready when a piece of a stream may be written, and at once but for small ones. `waits` is the packet that it waits for, between calls.
    pub(super) fn poll_share(
        &self,
        inner: &Inner,
        bytes: usize,
        waits: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<()> {
        let mut state = self.state();
        if let Some(number) = *waits {
            if state.closed || number != state.packet.number() {
                *waits = None;
                return Poll::Ready(());
            }
            keep(&mut state.streams, cx);
            return Poll::Pending;
        }
        let bytes = bytes.saturating_add(STREAM_HEAD);
        match self.verdict(&mut state, inner, bytes, self.share.streams) {
            Verdict::Leaves => {
                self.release(&mut state, inner);
                return Poll::Ready(());
            }
            Verdict::Fills => {
                self.let_go(&mut state, inner);
                return Poll::Ready(());
            }
            Verdict::Begins => self.let_go(&mut state, inner),
            Verdict::Waits => {}
        }
        *waits = Some(state.packet.number());
        keep(&mut state.streams, cx);
        Poll::Pending
    }

    /// The first `fitting` go to QUIC, the others wait. How many QUIC refused.
    fn hand_over(
        &self,
        state: &mut State,
        inner: &Inner,
        mut frames: impl Iterator<Item = Bytes>,
        fitting: usize,
    ) -> usize {
        let mut refused = 0;
        if fitting > 0 {
            let fitting = frames.by_ref().take(fitting);
            inner.conn.send_datagrams(fitting, |error| {
                refused += 1;
                count_refusal(inner, &error);
            });
        }
        state.waiting.extend(frames);
        if !state.waiting.is_empty() {
            self.work.notify_one();
        }
        refused
    }

    /// Feeds what waits to QUIC, when there is room and when it is time. Runs until the connection is lost.
    pub(super) async fn run(&self, inner: &Inner) {
        loop {
            let due = self.state().packet.due();
            tokio::select! {
                () = self.work.notified() => {}
                () = until(due) => self.release_due(inner),
            }
            while let Some(frame) = self.first() {
                match inner.conn.send_datagram_wait(frame).await {
                    Err(quic::SendDatagramError::ConnectionLost(_)) => return,
                    Err(error) => count_refusal(inner, &error),
                    Ok(()) => {}
                }
                self.forget_first();
            }
        }
    }

    fn release_due(&self, inner: &Inner) {
        let mut state = self.state();
        if state.packet.due().is_some_and(|due| due <= Instant::now()) {
            self.release(&mut state, inner);
        }
    }

    fn first(&self) -> Option<Bytes> {
        self.state().waiting.front().cloned()
    }

    /// The first one has gone; when none wait any more, whoever wanted to send is told.
    fn forget_first(&self) {
        let mut state = self.state();
        state.waiting.pop_front();
        if state.waiting.is_empty() {
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// The connection is lost.
    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.waiting.clear();
        state.sharing.clear();
        state.packet.leave();
        state.closed = true;
        let wakers = std::mem::take(&mut state.wakers);
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        wakers.into_iter().chain(streams).for_each(Waker::wake);
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn count_refusal(inner: &Inner, error: &quic::SendDatagramError) {
    if *error == quic::SendDatagramError::TooLarge {
        add(&inner.config.counters.too_large, 1);
    }
}

impl<'a> Frames<'a> {
    fn count(&self) -> usize {
        self.batch
            .contents
            .len()
            .div_ceil(self.batch.segment.max(1))
            .max(1)
    }

    fn overhead(&self) -> usize {
        http_datagram::overhead(self.stream) + self.head.len()
    }

    /// What all of them take of a packet.
    fn wire_bytes(&self) -> usize {
        let each = FRAME_HEAD + self.overhead();
        self.batch
            .contents
            .len()
            .saturating_add(self.count().saturating_mul(each))
    }

    /// How many of the payloads, from the first, QUIC takes when it has `space` bytes left.
    fn fitting(&self, space: usize) -> usize {
        let (count, head) = (self.count(), self.overhead());
        let each = self.batch.segment.max(1) + head + PER_DATAGRAM;
        let fitting = (space + PER_DATAGRAM) / each;
        if fitting + 1 != count {
            return fitting.min(count);
        }
        let last = self.batch.contents.len() - fitting * self.batch.segment + head;
        fitting + usize::from(fitting * each + last <= space)
    }

    /// The frames of the first `taken` payloads, all in one allocation.
    fn encode(&self, taken: usize) -> impl Iterator<Item = Bytes> + use<'a> {
        let (segment, head) = (self.batch.segment.max(1), self.overhead());
        let bytes = self.batch.contents.len().min(taken * segment);
        let mut all = BytesMut::with_capacity(bytes + taken * head);
        for payload in self.batch.payloads().take(taken) {
            http_datagram::write_stream(&mut all, self.stream);
            all.extend_from_slice(self.head);
            all.extend_from_slice(payload);
        }
        let mut all = all.freeze();
        (0..taken).map(move |_| all.split_to(all.len().min(head + segment)))
    }
}

#[cfg(test)]
mod outbox_tests {
    use super::*;
    use hoplite_wire::http_datagram::UDP_HEAD;
    use proptest::prelude::*;

    /// QUIC's own rule, one datagram at a time.
    fn fitting_slowly(frames: Frames<'_>, mut space: isize) -> usize {
        let sizes: Vec<_> = frames
            .encode(frames.count())
            .map(|frame| frame.len())
            .collect();
        let mut count = 0;
        for size in sizes {
            if size as isize > space {
                break;
            }
            space -= (size + PER_DATAGRAM) as isize;
            count += 1;
        }
        count
    }

    proptest! {
        #[test]
        fn never_more_is_handed_over_than_quic_has_room_for(contents in proptest::collection::vec(any::<u8>(), 0..2000), segment in 1_usize..700, space in 0_usize..4000, stream in 0_u64..1 << 20, head in proptest::collection::vec(any::<u8>(), 1..28)) {
            let frames = Frames { head: &head, batch: Batch { contents: &contents, segment }, stream: stream * 4 };
            prop_assert_eq!(frames.fitting(space), fitting_slowly(frames, space as isize));
        }

        #[test]
        fn frames_hold_the_payloads_in_order(contents in proptest::collection::vec(any::<u8>(), 0..2000), segment in 1_usize..700, stream in 0_u64..1 << 20) {
            let batch = Batch { contents: &contents, segment };
            let frames = Frames { head: UDP_HEAD, batch, stream: stream * 4 };
            let expected: Vec<_> = batch.payloads().map(|payload| http_datagram::Udp::Payload(Bytes::copy_from_slice(payload))).collect();
            let read: Vec<_> = frames.encode(frames.count()).map(|frame| http_datagram::split(frame).expect("valid")).collect();
            prop_assert!(read.iter().all(|(id, _)| *id == stream * 4));
            prop_assert_eq!(read.into_iter().map(|(_, rest)| http_datagram::udp(rest)).collect::<Vec<_>>(), expected);
        }
    }
}
