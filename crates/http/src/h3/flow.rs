//! A UDP flow: CONNECT-UDP at either end, over QUIC DATAGRAM frames or over capsules on the request stream. CONNECT-IP is the same with
//! packets for payloads, and with capsules of its own.
//! The overlay's datagrams and `relay` send through it; what arrives goes to a sink.
//! RFC 9297 §2.1 and §3.5, RFC 9298 §4 and §5, RFC 9484 §5 and §6.
//!
//! Frames carry what fits into one. Up to 1200 bytes that do not fit travel as a capsule, so that QUIC works inside before
//! the path MTU is known and on small paths; larger ones are dropped and counted, unless they may have been forwarded. What follows such a capsule within a
//! round trip is one as well, so that it does not overtake ([`Order`]). A server answers in capsules when the client has sent nothing else. Capsules of forwarded mode go their own way: they say nothing about how payloads travel.

use std::{
    fmt,
    future::poll_fn,
    ops::ControlFlow,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use hoplite_overlay::Batch;
use hoplite_wire::{
    ResponseHead, bound_udp,
    capsule::{self, CapsuleReader, Item},
    connect_ip,
    forwarding::Capsule,
    h3::{self, Code},
    http_datagram::{self, UDP_HEAD},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use super::{
    Counters, DataReceiver, DataSender, DatagramSink, H3Error, add,
    datagrams::Frames,
    exchange::Waits,
    session::Ticket,
    sharing::{Class, Rhythm},
};
use crate::capsules::{self, Dropped, Part, Refused};

/// What QUIC needs of every path (RFC 9000 §14): up to here a payload goes as a capsule when no frame holds it.
const ALWAYS_CARRIED: usize = 1200;
/// What a flow that could be forwarded always carries: packets of this size have passed beside the connection, and QUIC would
/// take long to notice that they are too large all of a sudden.
const FORWARDED: usize = 1500;
/// The largest UDP payload there is.
const MAX_UDP: usize = 65_527;
/// What a flow over capsules reports as its largest payload: more than Ethernet carries is no use to a target.
const USUAL_UDP: usize = 1472;
/// How many bytes of capsules that steer a flow may wait before another: a peer makes us send them, and need not read them. One that reads
/// has a few dozen of them under way.
const CAPSULES_WAITING: usize = 8 * 1024;
/// How many bytes of payloads may wait as capsules, and one payload: what the stream does not take beyond them is dropped.
const PIECE: usize = 8 * 1024;
/// How many chunks of the request stream are read before other tasks get their turn; [`ITEMS`] capsules count as one.
const TURN: usize = 64;
const ITEMS: usize = 16;

/// The receiving side: what the datagram task sees of a flow.
pub(super) struct Inbound {
    sink: Arc<dyn DatagramSink>,
    counters: Arc<Counters>,
    /// The form in which the peer sends: see the constants.
    form: AtomicU8,
    /// What it carries, where that says how long what is small waits for others.
    rhythm: Option<Mutex<Rhythm>>,
}

const FORM_UNKNOWN: u8 = 0;
const FORM_CAPSULES: u8 = 1;
const FORM_FRAMES: u8 = 2;

impl Inbound {
    /// An HTTP Datagram, from a frame.
    pub(super) fn datagram(&self, datagram: Bytes) {
        if let Some(rhythm) = &self.rhythm {
            let now = Instant::now();
            rhythm.lock().handle_received(datagram.len(), now);
        }
        capsules::datagram(datagram, &*self.sink, |why| self.count(why));
    }

    /// A capsule on the request stream; `Break`: the sink bears no more of them, and the stream ends with this code. One of IP proxying or bound UDP that is
    /// broken is "a malformed or incomplete message" (RFC 9297 §3.3).
    fn item(&self, item: Item) -> ControlFlow<Code> {
        if matches!(item, Item::Datagram(_)) {
            self.seen_capsule();
        }
        match capsules::deliver(item, &*self.sink, |why| self.count(why)) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(Refused::Forwarding) => ControlFlow::Break(Code::DATAGRAM_ERROR),
            ControlFlow::Break(Refused::Ip | Refused::Bound) => {
                ControlFlow::Break(Code::MESSAGE_ERROR)
            }
        }
    }

    fn count(&self, why: Dropped) {
        let counter = match why {
            Dropped::Malformed => &self.counters.malformed,
            Dropped::UnknownContext => &self.counters.unknown_context,
        };
        add(counter, 1);
    }

    pub(super) fn flush(&self) {
        self.sink.flush();
    }

    /// The peer sends frames: it gets frames from now on.
    pub(super) fn seen_frames(&self) {
        if self.form.load(Ordering::Relaxed) != FORM_FRAMES {
            self.form.store(FORM_FRAMES, Ordering::Relaxed);
        }
    }

    /// The peer sends capsules: it gets capsules, unless it has sent frames as well.
    fn seen_capsule(&self) {
        let relaxed = Ordering::Relaxed;
        self.form
            .compare_exchange(FORM_UNKNOWN, FORM_CAPSULES, relaxed, relaxed)
            .ok();
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").finish_non_exhaustive()
    }
}

/// An open UDP flow. Dropping it ends the request stream.
#[derive(Debug)]
pub struct Flow {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    inbound: Arc<Inbound>,
    ticket: Arc<Ticket>,
    /// Up to here a payload goes as a capsule when no frame holds it.
    always_carried: AtomicUsize,
    order: Order,
    /// Capsules go out through it. Its bound is one batch.
    sender: Mutex<DataSender>,
    /// Wakes the flow's task to push on what QUIC did not take at once.
    drive: AtomicWaker,
    wakers: Mutex<Vec<Waker>>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    response: Option<ResponseHead>,
    ended: Option<Result<(), H3Error>>,
}

/// By what a payload travels.
enum SendMode {
    Frames,
    Capsules,
    TooLarge,
}

impl Flow {
    pub(super) fn new(
        mut sender: DataSender,
        receiver: DataReceiver,
        sink: Arc<dyn DatagramSink>,
    ) -> Self {
        let ticket = Arc::clone(receiver.ticket());
        // The task holds the session through the receiver.
        drop(sender.session.take());
        let counters = Arc::clone(&ticket.inner().config.counters);
        let shares = ticket.inner().config.share.any();
        let inbound = Arc::new(Inbound {
            sink,
            counters,
            form: AtomicU8::new(FORM_UNKNOWN),
            rhythm: shares.then(Mutex::default),
        });
        let shared = Arc::new(Shared {
            inbound,
            ticket,
            always_carried: AtomicUsize::new(ALWAYS_CARRIED),
            order: Order::new(),
            sender: Mutex::new(sender),
            drive: AtomicWaker::new(),
            wakers: Mutex::default(),
            progress: watch::Sender::new(Progress::default()),
        });
        shared.deliver_early();
        let task = tokio::spawn(run(Arc::clone(&shared), receiver)).abort_handle();
        Self { shared, task }
    }

    /// The id of the stream.
    pub fn id(&self) -> u64 {
        self.shared.ticket.id()
    }

    /// The client's end: the response, if [`super::Exchange::response`] was not asked for it before.
    ///
    /// # Errors
    /// The flow ended before it.
    pub async fn response(&self) -> Result<ResponseHead, H3Error> {
        let mut progress = self.shared.progress.subscribe();
        let seen = progress
            .wait_for(|seen| seen.response.is_some() || seen.ended.is_some())
            .await;
        let seen = seen.map_err(|_| H3Error::Closed)?;
        match (&seen.response, &seen.ended) {
            (Some(response), _) => Ok(response.clone()),
            (None, Some(Err(error))) => Err(error.clone()),
            _ => Err(H3Error::Closed),
        }
    }

    /// Makes the peer say that it is still there; what passes the connection by does not count for its idle timeout.
    pub fn keep_alive(&self) {
        self.shared.ticket.inner().ping.notify_one();
    }

    /// Its packets may be forwarded, and may have to be tunnelled again at any moment: none of them is too large for that.
    pub fn carry_forwarded(&self) {
        let always = &self.shared.always_carried;
        always.store(FORWARDED, Ordering::Relaxed);
    }

    /// It carries IP packets: what IPv6 requires of every link travels as a capsule when no frame holds it.
    pub fn carry_packets(&self) {
        let always = &self.shared.always_carried;
        always.store(connect_ip::LEAST_MTU, Ordering::Relaxed);
    }

    /// How long an answer of the peer takes now.
    pub fn round_trip(&self) -> Duration {
        self.shared.ticket.inner().conn.rtt()
    }

    /// Breaks the flow off: the peer must not take it for ended in order.
    pub fn reset(&self, code: Code) {
        self.shared.sender().reset(code);
    }

    /// Waits until the peer has ended the flow.
    ///
    /// # Errors
    /// It did not end in order, or the connection is lost.
    pub async fn closed(&self) -> Result<(), H3Error> {
        let mut progress = self.shared.progress.subscribe();
        match progress.wait_for(|seen| seen.ended.is_some()).await {
            Ok(seen) => seen.ended.clone().unwrap_or(Ok(())),
            Err(_) => Err(H3Error::Closed),
        }
    }

    /// The largest payload, in bytes, that is carried now. It grows and shrinks with the path MTU.
    pub fn max_payload(&self) -> usize {
        match self.shared.frame_room(UDP_HEAD) {
            Some(room) => room.max(ALWAYS_CARRIED),
            None => USUAL_UDP,
        }
    }

    /// Sends what there is room for now and drops the rest, the newest, which is counted. How many payloads were taken.
    pub fn send(&self, batch: Batch<'_>) -> usize {
        self.send_behind(UDP_HEAD, batch)
    }

    /// As [`send`](Self::send), with `head` for the context id: another one, and what its format puts before each payload.
    pub fn send_behind(&self, head: &[u8], batch: Batch<'_>) -> usize {
        match self.shared.send(head, batch, None) {
            Poll::Ready(taken) => taken,
            Poll::Pending => 0,
        }
    }

    /// Sends a capsule of forwarded mode on the request stream, in order with others, at once or behind what waits.
    /// `false` when too much waits or the flow has ended: nothing was sent.
    pub fn send_capsule(&self, capsule: &Capsule) -> bool {
        self.send_control(&forwarding_frame(capsule))
    }

    /// Sends a capsule of IP proxying on the request stream, as [`send_capsule`](Self::send_capsule) does one of forwarded mode.
    pub fn send_ip_capsule(&self, capsule: &connect_ip::Capsule) -> bool {
        let mut body = BytesMut::new();
        capsule.write(&mut body);
        self.send_control(&data_frame(&body))
    }

    /// Sends a capsule of bound UDP on the request stream, as [`send_capsule`](Self::send_capsule) does one of forwarded mode.
    pub fn send_bound_capsule(&self, capsule: &bound_udp::Capsule) -> bool {
        let mut body = BytesMut::new();
        capsule.write(&mut body);
        self.send_control(&data_frame(&body))
    }

    fn send_control(&self, frame: &[u8]) -> bool {
        let waits = self.shared.sender().write_behind(frame, CAPSULES_WAITING);
        if waits == Some(Waits::ForFlush) {
            self.shared.drive.wake();
        }
        waits.is_some()
    }

    /// Whether nothing that was sent before waits, be it as a frame, of whichever flow of the connection, or as a capsule: what goes beside the
    /// connection from now on overtakes none of it. Whoever asks has waited for that already for this long.
    pub fn is_drained(&self, waited: Duration) -> bool {
        let inner = self.shared.ticket.inner();
        inner.outbox.is_drained(inner)
            && !self.shared.sender().has_pending()
            && !self.shared.order.waits(waited, || inner.conn.rtt())
    }

    /// Takes the whole batch, or none and wakes later. Payloads too large for the path are dropped and counted.
    ///
    /// # Errors
    /// The flow has ended.
    pub fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), H3Error>> {
        self.poll_send_behind(cx, UDP_HEAD, batch)
    }

    /// As [`poll_send`](Self::poll_send), with `head` for the context id.
    ///
    /// # Errors
    /// The flow has ended.
    pub fn poll_send_behind(
        &self,
        cx: &mut Context<'_>,
        head: &[u8],
        batch: Batch<'_>,
    ) -> Poll<Result<(), H3Error>> {
        self.shared.check_open()?;
        self.shared.send(head, batch, Some(cx)).map(|_| Ok(()))
    }

    /// Ready when [`Flow::poll_send`] will take a batch.
    ///
    /// # Errors
    /// The flow has ended.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), H3Error>> {
        self.shared.check_open()?;
        match self.shared.frame_room(UDP_HEAD) {
            Some(_) => self.shared.ticket.inner().outbox.poll_ready(cx).map(Ok),
            None => self.shared.poll_sender(&self.shared.sender(), cx).map(Ok),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let removed = self.shared.ticket.inner().routes().close(self.id());
        drop(removed);
        self.shared.sender().close();
        self.task.abort();
    }
}

impl Shared {
    fn sender(&self) -> MutexGuard<'_, DataSender> {
        self.sender.lock()
    }

    fn deliver_early(&self) {
        let early = self
            .ticket
            .inner()
            .routes()
            .enter(self.ticket.id(), Arc::clone(&self.inbound));
        if !early.is_empty() {
            self.inbound.seen_frames();
            early
                .into_iter()
                .for_each(|datagram| self.inbound.datagram(datagram));
            self.inbound.flush();
        }
    }

    fn check_open(&self) -> Result<(), H3Error> {
        match &self.progress.borrow().ended {
            None => Ok(()),
            Some(Ok(())) => Err(H3Error::Closed),
            Some(Err(error)) => Err(error.clone()),
        }
    }

    /// The largest payload of a frame behind `head`; `None` when the flow goes over capsules.
    fn frame_room(&self, head: &[u8]) -> Option<usize> {
        let inner = self.ticket.inner();
        let form = self.inbound.form.load(Ordering::Relaxed);
        let capsules = form == FORM_CAPSULES && inner.is_server();
        if capsules || (form != FORM_FRAMES && !inner.peer_takes_datagrams()) {
            return None;
        }
        let limit = inner.conn.max_datagram_size()?;
        let overhead = http_datagram::overhead(self.ticket.id()) + head.len();
        Some(limit.saturating_sub(overhead))
    }

    fn mode(&self, head: &[u8], largest: usize) -> SendMode {
        let room = self.frame_room(head);
        // Without frames all of it is a stream, which QUIC sends again, and as fast as its control lets it.
        self.ticket.streams(room.is_none());
        match room {
            Some(room) if largest <= room && !self.would_overtake() => SendMode::Frames,
            Some(room) if largest <= room => SendMode::Capsules,
            Some(_) if largest <= self.always_carried.load(Ordering::Relaxed) => {
                self.order.capsule();
                SendMode::Capsules
            }
            None if largest <= MAX_UDP => SendMode::Capsules,
            _ => SendMode::TooLarge,
        }
    }

    /// What the flow carries, if what is small in it waits for others.
    fn class(&self, batch: Batch<'_>) -> Option<Class> {
        let rhythm = self.inbound.rhythm.as_ref()?;
        let bytes = batch.contents.len().min(batch.segment);
        Some(rhythm.lock().handle_sent(bytes, Instant::now()))
    }

    /// Whether a frame could come before capsules under way. Where the stream takes no more, it had better overtake than be dropped.
    fn would_overtake(&self) -> bool {
        let conn = &self.ticket.inner().conn;
        self.order.holds(|| conn.rtt()) && !self.sender().has_pending()
    }

    fn send(&self, head: &[u8], batch: Batch<'_>, waiter: Option<&Context<'_>>) -> Poll<usize> {
        match self.mode(head, batch.contents.len().min(batch.segment)) {
            SendMode::Frames => {
                let frames = Frames {
                    head,
                    batch,
                    stream: self.ticket.id(),
                };
                let inner = self.ticket.inner();
                inner.outbox.send(inner, frames, self.class(batch), waiter)
            }
            SendMode::Capsules => self.send_capsules(head, batch, waiter),
            SendMode::TooLarge => {
                let whole = batch.contents.len() / batch.segment.max(1);
                add(&self.inbound.counters.too_large, whole);
                match batch.contents.get(whole * batch.segment..) {
                    Some(last) if !last.is_empty() => self.send(head, Batch::one(last), waiter),
                    _ => Poll::Ready(0),
                }
            }
        }
    }

    fn send_capsules(
        &self,
        head: &[u8],
        batch: Batch<'_>,
        waiter: Option<&Context<'_>>,
    ) -> Poll<usize> {
        let mut sender = self.sender();
        let count = batch.payloads().count();
        if sender.has_pending() {
            return match waiter {
                Some(cx) => self.poll_sender(&sender, cx).map(|()| 0),
                None => {
                    add(&self.inbound.counters.full, count);
                    Poll::Ready(0)
                }
            };
        }
        self.order.sent();
        if waiter.is_none() {
            return Poll::Ready(self.write_pieces(&mut sender, head, batch));
        }
        match sender.write_now(capsules(head, batch, count)) {
            Ok(true) => {}
            Ok(false) => self.drive.wake(),
            Err(_) => return Poll::Ready(0),
        }
        Poll::Ready(count)
    }

    /// Writes a batch as capsules, a piece at a time, until the stream takes no more, and drops the rest. How many payloads were taken.
    fn write_pieces(&self, sender: &mut DataSender, head: &[u8], batch: Batch<'_>) -> usize {
        let mut payloads = batch.payloads().peekable();
        let mut taken = 0;
        while !sender.has_pending() && payloads.peek().is_some() {
            let mut body = BytesMut::with_capacity(batch.contents.len().min(PIECE));
            let mut count = 0;
            while body.len() < PIECE
                && let Some(payload) = payloads.next()
            {
                capsule::write_datagram(&mut body, head, payload);
                count += 1;
            }
            if sender.write_now(data_frame(&body)).is_err() {
                return taken;
            }
            taken += count;
        }
        add(&self.inbound.counters.full, payloads.count());
        if sender.has_pending() {
            self.drive.wake();
        }
        taken
    }

    /// The sink bears no more capsules of the peer's.
    fn break_off(&self, receiver: &mut DataReceiver, code: Code) -> H3Error {
        self.sender().reset(code);
        receiver.refuse(code, "a capsule that breaks the rules of its protocol")
    }

    /// Ready when no capsules wait; the waker is kept while the sender is locked, so that none is forgotten.
    fn poll_sender(&self, sender: &MutexGuard<'_, DataSender>, cx: &Context<'_>) -> Poll<()> {
        if !sender.has_pending() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn wake_waiters(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Pushes on what waits to be sent.
    fn poll_drive(&self, cx: &mut Context<'_>) -> Result<(), H3Error> {
        self.drive.register(cx.waker());
        let mut sender = self.sender();
        if sender.has_pending() {
            match sender.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.wake_waiters(),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
        Ok(())
    }
}

/// A DATA frame with a DATAGRAM capsule for each payload.
fn capsules(head: &[u8], batch: Batch<'_>, count: usize) -> Bytes {
    let each = head.len() + capsule::OVERHEAD;
    let mut body = BytesMut::with_capacity(batch.contents.len() + count * each);
    for payload in batch.payloads() {
        capsule::write_datagram(&mut body, head, payload);
    }
    data_frame(&body)
}

/// A DATA frame with one capsule of forwarded mode.
fn forwarding_frame(capsule: &Capsule) -> Bytes {
    let mut body = BytesMut::with_capacity(Capsule::LARGEST + capsule::UDP_OVERHEAD);
    capsule.write(&mut body);
    data_frame(&body)
}

fn data_frame(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(body.len() + 16);
    h3::write_data_head(&mut frame, body.len());
    frame.extend_from_slice(body);
    frame.freeze()
}

/// The flow's task: the response at the client, then the request stream with its capsules, until the peer ends it.
async fn run(shared: Arc<Shared>, mut receiver: DataReceiver) {
    let ended = read(&shared, &mut receiver).await;
    shared
        .progress
        .send_modify(|progress| progress.ended = Some(ended));
    shared.wake_waiters();
}

async fn read(shared: &Shared, receiver: &mut DataReceiver) -> Result<(), H3Error> {
    if receiver.awaits_head() {
        let response = {
            let mut response = pin!(receiver.response());
            poll_fn(|cx| {
                shared.poll_drive(cx)?;
                response.as_mut().poll(cx)
            })
            .await?
        };
        let success = response.is_success();
        shared
            .progress
            .send_modify(|progress| progress.response = Some(response));
        if !success {
            return Ok(());
        }
    }
    let (mut capsules, mut part) = (CapsuleReader::default(), Part::default());
    let mut rest = Bytes::new();
    poll_fn(|cx| {
        shared.poll_drive(cx)?;
        let reading = (&mut capsules, &mut part, &mut rest);
        poll_capsules(shared, receiver, reading, cx)
    })
    .await?;
    if capsules.is_between_capsules() {
        Ok(())
    } else {
        Err(receiver.refuse(Code::MESSAGE_ERROR, "the stream ends inside a capsule"))
    }
}

/// Reads the request stream to its end, a turn at a time. `rest` is what was left of a chunk when the turn was over.
fn poll_capsules(
    shared: &Shared,
    receiver: &mut DataReceiver,
    (capsules, part, rest): (&mut CapsuleReader, &mut Part, &mut Bytes),
    cx: &mut Context<'_>,
) -> Poll<Result<(), H3Error>> {
    let mut read = Poll::Ready(Ok(Some(Bytes::new())));
    let mut done = 0;
    while done < TURN * ITEMS {
        if rest.is_empty() {
            read = receiver.poll_data(cx);
            let Poll::Ready(Ok(Some(data))) = &mut read else {
                break;
            };
            *rest = std::mem::take(data);
            done += ITEMS;
        }
        let item = capsules.next(rest);
        if rest.is_empty() {
            part.see(capsules, &*shared.inbound.sink);
        }
        let Some(item) = item else {
            continue;
        };
        if let ControlFlow::Break(code) = shared.inbound.item(item) {
            return Poll::Ready(Err(shared.break_off(receiver, code)));
        }
        done += 1;
    }
    if done > 0 {
        let skipped = usize::try_from(capsules.take_oversized()).unwrap_or(usize::MAX);
        add(&shared.inbound.counters.too_large, skipped);
        shared.inbound.flush();
    }
    match read {
        Poll::Pending => Poll::Pending,
        Poll::Ready(Ok(None)) => Poll::Ready(Ok(())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Ready(Ok(Some(_))) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
}

/// When a flow's payloads last went as capsules.
#[derive(Debug)]
pub(super) struct Order {
    born: Instant,
    /// When the last one did that was too large for a frame, in microseconds after `born`; 0: there was none lately.
    last: AtomicU64,
    /// When the last one of any size did, in microseconds after `born`.
    sent: AtomicU64,
}

impl Order {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            last: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// A payload goes as a capsule, for whatever reason.
    pub(super) fn sent(&self) {
        self.sent.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether one that QUIC has taken could still wait there, behind its congestion window: for a round trip. While they go on and on, those
    /// from before whoever asks began to wait, `waited` ago, count alone: the others follow each other as they were sent.
    pub(super) fn waits(&self, waited: Duration, round_trip: impl FnOnce() -> Duration) -> bool {
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let began = self.now().saturating_sub(waited).max(1);
        let last = self.sent.load(Ordering::Relaxed).min(began);
        within(last, round_trip, || self.now())
    }

    /// A payload goes as a capsule because no frame holds it.
    pub(super) fn capsule(&self) {
        self.last.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether a frame could overtake such a capsule: for a round trip after it.
    pub(super) fn holds(&self, round_trip: impl FnOnce() -> Duration) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let holds = within(last, round_trip, || self.now());
        if !holds && last != 0 {
            // Unless another capsule has gone meanwhile.
            let relaxed = Ordering::Relaxed;
            self.last.compare_exchange(last, 0, relaxed, relaxed).ok();
        }
        holds
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Whether it is less than a round trip since `last`, if that ever was.
fn within(last: u64, round_trip: impl FnOnce() -> Duration, now: impl FnOnce() -> u64) -> bool {
    let long = || u64::try_from(round_trip().as_micros()).unwrap_or(u64::MAX);
    last != 0 && now() < last.saturating_add(long())
}

#[cfg(test)]
mod order_tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_capsule_of_any_size_may_wait_for_a_round_trip() {
        let order = Order::new();
        let [none, long] = [0, 200].map(Duration::from_millis);
        let waits = |waited| order.waits(waited, || Duration::from_millis(100));
        tokio::time::advance(long).await;
        assert!(!waits(none));
        order.sent();
        assert!(!order.holds(|| Duration::from_millis(100)), "for frames");
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(waits(none) && waits(Duration::from_millis(99)));
        assert!(!waits(long), "of those that go on and on");
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(!waits(none));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_stay_behind_a_capsule_for_a_round_trip() {
        let order = Order::new();
        let holds = || order.holds(|| Duration::from_millis(100));
        assert!(!holds());
        order.capsule();
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(holds());
        order.capsule();
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!holds());
    }
}
