//! A channel inside the process: each circuit has a bounded queue of its own in each direction.
//! Channels are for tests, and run under a paused clock; a circuit of it joins two others at a rendezvous ([`joint`]).

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hoplite_wire::cell::{Cell, CircuitId, Command, circuit::DestroyReason};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc},
    time::{Instant, Sleep, sleep_until},
};

use super::{Channel, CircuitBacklog, CircuitEnds, Closed, Receiver, Sender, Waiting};

/// Cells that one circuit's queue holds; then the sender waits.
pub const QUEUE: usize = 64;

/// Circuits that wait to be accepted; then opening waits.
const BACKLOG: usize = 1024;

/// One end of a channel.
pub struct Memory {
    latency: Duration,
    peer: Option<[u8; 32]>,
    next: AtomicU32,
    /// The initiator's ids have the high bit set.
    high: u32,
    towards: mpsc::Sender<CircuitEnds>,
    offered: AsyncMutex<mpsc::Receiver<CircuitEnds>>,
}

/// Both ends of a channel; `near` opened it. Each cell takes `latency`. `near_is` and `far_is` are the identities that the other sees.
pub fn pair(
    latency: Duration,
    near_is: Option<[u8; 32]>,
    far_is: Option<[u8; 32]>,
) -> (Arc<Memory>, Arc<Memory>) {
    let (to_far, from_near) = mpsc::channel(BACKLOG);
    let (to_near, from_far) = mpsc::channel(BACKLOG);
    let end = |peer, high, towards, offered| {
        Arc::new(Memory {
            latency,
            peer,
            next: AtomicU32::new(1),
            high,
            towards,
            offered: AsyncMutex::new(offered),
        })
    };
    let near = end(far_is, 1 << 31, to_far, from_far);
    let far = end(near_is, 0, to_near, from_near);
    (near, far)
}

/// Both ends of one circuit.
pub fn circuit(id: CircuitId, latency: Duration) -> (CircuitEnds, CircuitEnds) {
    ends(id, latency, [Arc::default(), Arc::default()])
}

/// Both ends of a circuit between two others: what waits in it counts as what is kept for the one that takes it. Of the near end's and the far
/// end's these are the backlogs.
pub fn joint(near: Arc<CircuitBacklog>, far: Arc<CircuitBacklog>) -> (CircuitEnds, CircuitEnds) {
    ends(CircuitId::CHANNEL, Duration::ZERO, [near, far])
}

fn ends(
    id: CircuitId,
    latency: Duration,
    [near, far]: [Arc<CircuitBacklog>; 2],
) -> (CircuitEnds, CircuitEnds) {
    let (up, down) = (Queue::new(latency, far), Queue::new(latency, near));
    let end = |out: &Arc<Queue>, incoming: &Arc<Queue>| CircuitEnds {
        id,
        sender: Box::new(Out(id, Arc::clone(out))),
        receiver: Box::new(In {
            queue: Arc::clone(incoming),
            timer: None,
        }),
    };
    (end(&up, &down), end(&down, &up))
}

impl Channel for Memory {
    fn open(&self) -> Waiting<'_, Result<CircuitEnds, Closed>> {
        Box::pin(async {
            let id = CircuitId::new(self.high | self.next.fetch_add(1, Relaxed));
            let (near, far) = circuit(id, self.latency);
            self.towards.send(far).await.map_err(|_| Closed)?;
            Ok(near)
        })
    }

    fn accept(&self) -> Waiting<'_, Option<CircuitEnds>> {
        Box::pin(async {
            let mut offered = self.offered.lock().await;
            poll_fn(|cx| offered.poll_recv(cx)).await
        })
    }

    fn peer(&self) -> Option<[u8; 32]> {
        self.peer
    }

    fn is_closed(&self) -> bool {
        self.towards.is_closed()
    }
}

struct Queue {
    latency: Duration,
    /// Of whoever takes the cells.
    backlog: Arc<CircuitBacklog>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cells: VecDeque<(Instant, Cell)>,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct Out(CircuitId, Arc<Queue>);

struct In {
    queue: Arc<Queue>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Queue {
    fn new(latency: Duration, backlog: Arc<CircuitBacklog>) -> Arc<Self> {
        Arc::new(Self {
            latency,
            backlog,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Throws away what waits.
    fn clear(&self) {
        let mut state = self.state();
        let gone = std::mem::take(&mut state.cells).len();
        self.backlog.sending.left(gone as u64);
    }

    fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Sender for Out {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = self.1.state();
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        if state.cells.len() < QUEUE {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn has_backpressure(&self) -> bool {
        false
    }

    fn send(&mut self, mut cell: Cell) {
        cell.circuit = self.0;
        let at = Instant::now() + self.1.latency;
        let mut state = self.1.state();
        if state.closed {
            return;
        }
        // In a queue that stands still each could hold the whole buffer of the channel that it came in.
        cell.detach();
        state.cells.push_back((at, cell));
        self.1.backlog.sending.came(1);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    fn destroy(mut self: Box<Self>, reason: DestroyReason) {
        self.1.clear();
        let cell = Cell::new(self.0, Command::DESTROY, |body| reason.write(body));
        cell.into_iter().for_each(|cell| self.send(cell));
    }
}

impl Receiver for In {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        loop {
            let at = match self.poll_take(cx) {
                Ok(found) => return found,
                Err(at) => at,
            };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            timer.as_mut().reset(at);
            ready!(timer.as_mut().poll(cx));
        }
    }
}

impl In {
    /// What is there, or when it will be.
    fn poll_take(&mut self, cx: &Context<'_>) -> Result<Poll<Option<Cell>>, Instant> {
        let mut state = self.queue.state();
        match state.cells.front() {
            Some((at, _)) if !self.queue.latency.is_zero() && *at > Instant::now() => Err(*at),
            Some(_) => {
                let cell = state.cells.pop_front().map(|(_, cell)| cell);
                self.queue.backlog.sending.left(1);
                let writer = state.writer.take();
                drop(state);
                writer.into_iter().for_each(Waker::wake);
                Ok(Poll::Ready(cell))
            }
            None if state.closed => Ok(Poll::Ready(None)),
            None => {
                state.reader = Some(cx.waker().clone());
                Ok(Poll::Pending)
            }
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.1.close();
    }
}

impl Drop for In {
    fn drop(&mut self) {
        self.queue.close();
        self.queue.clear();
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use hoplite_wire::cell::{BODY, relay::StreamId};

    use super::*;

    fn cell() -> Cell {
        Cell {
            circuit: CircuitId::CHANNEL,
            command: Command::RELAY,
            stream: StreamId::CIRCUIT,
            body: BytesMut::zeroed(BODY),
        }
    }

    #[test]
    fn what_waits_between_two_that_were_joined_counts_for_whoever_is_to_take_it() {
        let [service, client] = [(); 2].map(|()| Arc::<CircuitBacklog>::default());
        let waits = || [&service, &client].map(|one| one.sending.waiting());
        let (mut near, mut far) = joint(Arc::clone(&service), Arc::clone(&client));
        (0..3).for_each(|_| near.sender.send(cell()));
        (0..2).for_each(|_| far.sender.send(cell()));
        assert_eq!(waits(), [2, 3]);
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(far.receiver.poll_recv(cx).is_ready());
        assert_eq!(waits(), [2, 2]);
        near.sender.destroy(DestroyReason::FINISHED);
        assert_eq!(waits(), [2, 1], "that it has ended");
        drop((near.receiver, far));
        assert_eq!(waits(), [0, 0]);
    }
}
