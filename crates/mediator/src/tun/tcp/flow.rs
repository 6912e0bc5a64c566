//! What the table and a flow's task share: the machine, and how one wakes the other. The table hands segments in and sends what follows
//! from a batch of them; the task moves octets between the machine and the overlay's stream.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use hoplite_wire::ip::tcp::{Flags, Segment};
use tokio::time::Instant;

use super::machine::{End, Machine, Packet};
use crate::{
    budget::Account,
    tun::{
        Ends,
        port::{Outgoing, Port, tcp_headers},
    },
    users::User,
};

thread_local! {
    /// Where headers are put together.
    static HEADERS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A program's connection.
pub(super) struct Flow {
    pub(super) ends: Ends,
    pub(super) user: User,
    half_open: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) machine: Machine,
    task: Option<Waker>,
    /// There is something for the task to do.
    news: bool,
    /// It waits for the end of the batch to be sent for.
    listed: bool,
    /// When the task's timer wakes it.
    armed: Option<Instant>,
    /// Its part of the budget, until it has made room for others.
    account: Option<Account>,
    /// Since when what waits in it has waited, at least.
    waits_since: Option<Instant>,
}

impl Flow {
    pub(super) fn new(ends: Ends, machine: Machine, account: Account) -> Self {
        let user = account.user();
        let state = State {
            machine,
            task: None,
            news: false,
            listed: false,
            armed: None,
            account: Some(account),
            waits_since: None,
        };
        Self {
            ends,
            user,
            half_open: AtomicBool::new(true),
            state: Mutex::new(state),
        }
    }

    /// Whether it waits for the stream or for the program's confirmation.
    pub(super) fn is_half_open(&self) -> bool {
        self.half_open.load(Ordering::Relaxed)
    }

    pub(super) fn set_opened(&self) {
        self.half_open.store(false, Ordering::Relaxed);
    }

    /// Never held across an await, and all is on one thread: nobody waits here.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a segment; `true` if the flow is to be flushed and nobody knows yet.
    pub(super) fn received(&self, segment: &Segment<'_>, payload: Bytes, now: Instant) -> bool {
        let mut state = self.lock();
        if !payload.is_empty() {
            state.allow();
        }
        state.news |= !payload.is_empty() || segment.flags.intersects(Flags::FIN | Flags::RST);
        state.machine.segment(segment, payload, now);
        state.settle(now);
        state.news |= state.machine.may_go_on() || state.machine.ended().is_some();
        !std::mem::replace(&mut state.listed, true)
    }

    /// Sends what follows from a batch of segments, and wakes the task if it has something to do.
    pub(super) fn flush(&self, port: &dyn Port, now: Instant) {
        let mut state = self.lock();
        state.listed = false;
        state.transmit(self.ends, port, now);
        if state.news || state.is_earlier() {
            state.wake();
        }
    }

    /// Ends the connection without a word to the program, for it has forgotten it.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.machine.abandon();
        state.wake();
    }

    /// Ends a connection so that others have its place and its memory from now on.
    pub(super) fn make_room(&self, now: Instant) {
        self.give_up();
        let mut state = self.lock();
        state.settle(now);
        state.account = None;
    }

    /// Ends a connection that has not begun. A program that has no answer yet will ask again.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        match state.machine.is_held() {
            true => state.machine.abandon(),
            false => state.machine.reset(),
        }
        state.wake();
    }
}

impl State {
    /// The task begins its turn.
    pub(super) fn begin(&mut self, cx: &Context<'_>, now: Instant) {
        self.news = false;
        if !self
            .task
            .as_ref()
            .is_some_and(|task| task.will_wake(cx.waker()))
        {
            self.task = Some(cx.waker().clone());
        }
        self.machine.expire(now);
    }

    /// Tells the machine what it may hold now.
    fn allow(&mut self) {
        let more = self.account.as_ref().map_or(0, Account::allowance);
        self.machine.allow(more);
    }

    /// Counts what the machine holds.
    pub(super) fn settle(&mut self, now: Instant) {
        self.waits_since = self.machine.waits_since(now);
        let held = self.machine.memory();
        if let Some(account) = &mut self.account {
            account.set(held);
        }
    }

    /// Since when it has held memory for octets that nobody takes.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waits_since.filter(|_| self.account.is_some())
    }

    /// How much others miss its place: see [`Account::rest_counts`]. `None` if it has made room already.
    pub(super) fn rest_counts(&self, now: Instant) -> Option<(u128, Duration)> {
        let heard = self.machine.heard().unwrap_or(now);
        let account = self.account.as_ref()?;
        Some(account.rest_counts(now.saturating_duration_since(heard)))
    }

    /// How many octets the flows of its owner hold, and those of its user.
    pub(super) fn user_holds(&self) -> Option<(usize, usize)> {
        let [owner, user, _] = self.account.as_ref()?.held();
        Some((owner, user))
    }

    /// How many octets may be pushed now.
    pub(super) fn room(&mut self) -> usize {
        self.allow();
        self.machine.room()
    }

    /// Octets for the program; no more than there is [`Self::room`] for.
    pub(super) fn push(&mut self, octets: &[u8], now: Instant) {
        self.machine.push(octets);
        self.settle(now);
    }

    /// The task's turn is over, and it will be woken at `armed`.
    pub(super) fn rest(&mut self, armed: Option<Instant>) {
        self.armed = armed;
    }

    /// Whether the machine must be looked after before the task's timer does.
    fn is_earlier(&self) -> bool {
        match (self.machine.timeout(), self.armed) {
            (Some(wanted), Some(armed)) => wanted < armed,
            (wanted, _) => wanted.is_some(),
        }
    }

    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Whether the connection ended otherwise than by both sides finishing.
    pub(super) fn is_broken(&self) -> bool {
        self.machine.ended().is_some_and(|end| end != End::Complete)
    }

    /// Sends all that may leave. When the port is full, the rest waits for acknowledgements or the timer.
    pub(super) fn transmit(&mut self, ends: Ends, port: &dyn Port, now: Instant) {
        while let Some(packet) = self.machine.transmit(now) {
            if !self.send(ends, port, packet) {
                return;
            }
        }
    }

    fn send(&self, ends: Ends, port: &dyn Port, packet: Packet) -> bool {
        let (payload, segment) = self.machine.payload(&packet);
        send(ends, port, packet, payload, segment)
    }
}

/// Sends one packet to the program.
pub(super) fn send(
    ends: Ends,
    port: &dyn Port,
    packet: Packet,
    payload: [&[u8]; 2],
    segment: Option<u16>,
) -> bool {
    let (from, to, mut header) = (ends.target, ends.program, packet.header);
    (header.source, header.destination) = (from.port(), to.port());
    let len = payload[0].len() + payload[1].len();
    HEADERS.with_borrow_mut(|headers| {
        tcp_headers(headers, from.ip(), to.ip(), &header, len);
        port.send(Outgoing::tcp(headers, payload, segment))
    })
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flow")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use hoplite_wire::ip::tcp::{self, Header};

    use super::*;
    use crate::{
        budget::Budget,
        tun::{
            tcp::machine::Settings,
            testing::{MemoryPort, PROGRAM, TARGET, parsed, tcp_packet},
        },
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flow() -> Flow {
        let header = Header {
            flags: Flags::SYN,
            ..Header::default()
        };
        let octets = tcp_packet(PROGRAM, TARGET, &header, b"");
        let syn = tcp::parse(parsed(&octets).payload).expect("a segment");
        let settings = Settings {
            isn: 1,
            window: 1 << 20,
            floor: 2048,
            mss: 1460,
            default_mss: 536,
            idle: Duration::ZERO,
        };
        let (program, target) = ((PROGRAM, 1).into(), (TARGET, 2).into());
        let account =
            Budget::new(1 << 20).open(User::at(PROGRAM), hoplite_wire::Host::ip(TARGET), 4096);
        let machine = Machine::new(&syn, settings);
        Flow::new(
            Ends { program, target },
            machine,
            account.expect("there is room"),
        )
    }

    #[test]
    fn a_task_whose_timer_would_come_too_late_is_woken() {
        let (flow, now) = (flow(), Instant::now());
        let (port, woken) = (MemoryPort::new(1500), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        flow.lock().begin(&Context::from_waker(&waker), now);
        flow.flush(&*port, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nothing to wait for");
        flow.lock().machine.accept(now);
        flow.flush(&*port, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        flow.lock().begin(&Context::from_waker(&waker), now);
        let deadline = flow.lock().machine.timeout();
        flow.lock().rest(deadline);
        flow.flush(&*port, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "it wakes by itself");
    }
}
