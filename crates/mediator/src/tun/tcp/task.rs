//! A flow's task: opens the stream, hands it to the pump, and stays until the program's side of the connection has ended too. A program
//! that was answered early has its stream early: whether that came about is found out by the pump.
//! The table starts one for each SYN; dropped before its end, it resets the program's connection and the stream.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use hoplite_overlay::{Error, Reason, Stream};
use hoplite_wire::Target;
use tokio::time::Instant;

use super::{
    Shared,
    clock::Clock,
    crowd::HalfOpen,
    flow::{Flow, State},
    machine::End,
    pump::Pump,
};
use crate::tun::{Counters, icmp, names::Hold};

pub(super) struct Task {
    shared: Arc<Shared>,
    flow: Arc<Flow>,
    clock: Clock,
    /// As long as the flow lasts, its address means what it meant.
    _kept: Option<Hold>,
}

/// What is to be opened.
pub(super) struct Order {
    pub(super) target: Target,
    /// The SYN is answered: what the program says travels with the request.
    pub(super) early: bool,
    /// The packet with the SYN, if it is not answered before the stream is open: a refusal quotes it.
    pub(super) cause: Option<Box<[u8]>>,
}

impl Task {
    pub(super) fn new(shared: &Arc<Shared>, flow: &Arc<Flow>, now: Instant) -> Self {
        shared.room.counters.tcp_opened.add(1);
        let target = flow.ends.target.ip();
        Self {
            shared: Arc::clone(shared),
            flow: Arc::clone(flow),
            clock: Clock::default(),
            _kept: shared.room.names.hold(target, now),
        }
    }

    pub(super) async fn run(mut self, order: Order, half_open: HalfOpen) {
        let Some(stream) = self.open(&order).await else {
            return;
        };
        let asked = (!stream.is_answered()).then_some(order.target);
        drop(order.cause);
        let mut pump = Pump::new(&mut self, stream, asked, half_open);
        poll_fn(|cx| pump.poll(cx)).await;
        drop(pump);
        poll_fn(|cx| self.poll_end(cx)).await;
    }

    /// Opens the stream and answers the SYN accordingly; `None` if there is nothing to carry.
    async fn open(&mut self, order: &Order) -> Option<Stream> {
        let room = Arc::clone(&self.shared.room);
        let terms = room.terms().early(order.early);
        let opening = room.open_stream(&order.target, self.flow.user, &terms);
        let mut opening = pin!(terms.run("opening a stream", opening));
        let opened = poll_fn(|cx| match self.poll_end(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => opening.as_mut().poll(cx).map(Some),
        });
        match opened.await? {
            Ok(stream) => {
                if stream.is_answered() {
                    self.worked(&order.target);
                }
                self.accept();
                Some(stream)
            }
            Err(error) => {
                self.failed(&order.target, &error);
                self.refuse(&error, order.cause.as_deref());
                None
            }
        }
    }

    /// The target has taken the flow.
    pub(super) fn worked(&self, target: &Target) {
        self.shared.lately().worked(target, Instant::now());
    }

    /// The flow did not come about.
    pub(super) fn failed(&self, target: &Target, error: &Error) {
        self.shared.lately().failed(target);
        self.counters().failed(error);
        if error.reason() == Some(Reason::NameNotFound) {
            let address = self.flow.ends.target.ip();
            self.shared.room.names.fail(address, Instant::now());
        }
    }

    fn accept(&self) {
        let (mut state, now) = (self.flow.lock(), Instant::now());
        state.machine.accept(now);
        self.transmit(&mut state, now);
    }

    /// Tells the program: by a reset, or by ICMP where the SYN was not answered and the target did not refuse it.
    fn refuse(&self, error: &Error, cause: Option<&[u8]>) {
        let (mut state, now) = (self.flow.lock(), Instant::now());
        match cause.filter(|_| error.reason() != Some(Reason::Refused)) {
            Some(cause) => {
                icmp::tell_unreachable(&self.shared.room, cause, icmp::unreachable_for(error));
                state.machine.abandon();
            }
            None => state.machine.reset(),
        }
        self.transmit(&mut state, now);
    }

    /// Does what the machine wants while there is no stream; ready when it has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flow = self.flow();
        let (mut state, now) = (flow.lock(), Instant::now());
        state.begin(cx, now);
        self.finish_turn(cx, &mut state, now);
        match state.machine.ended() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    /// Sends what is due and sets the timer.
    pub(super) fn finish_turn(&mut self, cx: &mut Context<'_>, state: &mut State, now: Instant) {
        self.transmit(state, now);
        while self.clock.poll(cx, state.machine.timeout()).is_ready() {
            let now = Instant::now();
            state.machine.expire(now);
            self.transmit(state, now);
        }
        state.settle(now);
        state.rest(self.clock.armed());
    }

    pub(super) fn transmit(&self, state: &mut State, now: Instant) {
        state.transmit(self.flow.ends, &*self.shared.room.port, now);
    }

    pub(super) fn flow(&self) -> Arc<Flow> {
        Arc::clone(&self.flow)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.room.counters
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut state = self.flow.lock();
        if state.machine.ended() == Some(End::Idle) {
            self.counters().tcp_idle.add(1);
        }
        state.machine.reset();
        self.transmit(&mut state, Instant::now());
        drop(state);
        self.shared.remove(&self.flow);
        self.shared.room.counters.tcp_closed.add(1);
    }
}
