//! A UDP flow of either front end once it is open: what a program sends waits at a [`Sender`] until the flow's task takes it, and datagrams move
//! both ways until the flow is idle or fails. SOCKS associations and the TUN device use it; what their ends look like is a [`Program`].

mod sender;

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error};

use self::sender::Wait;
pub(crate) use self::sender::{FLOOR, Pushed, Sender};
use crate::{copy::idle::Idle, queue::Queue};

/// How long a flow that failed keeps its place, so that a program that insists does not make us open flows without a pause.
pub(crate) const HOLD_OFF: Duration = Duration::from_secs(1);
/// How many receive calls are made before other tasks have their turn.
const TURN: usize = 32;

/// The program's end of a flow.
pub(crate) trait Program {
    /// Why a flow failed, as far as programs are told.
    type Why: Copy;

    /// Where the program's datagrams wait.
    fn sender(&self) -> &Sender<Self::Why>;

    /// How long the flow is kept without any datagram; zero is for ever.
    fn idle(&self) -> Duration;

    /// How long a small datagram may wait for others to share a packet with.
    fn pack_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// The road took so many octets.
    fn sent(&self, octets: usize);

    /// The first datagram of `batch` is larger than `most`, what the road carries, and goes no further.
    fn too_large(&self, batch: Batch<'_>, most: usize);

    /// Receives once, into a buffer that nobody keeps, and hands over what came.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>>;
}

/// Moves datagrams until nothing moves any more.
pub(crate) async fn carry(program: &impl Program, datagrams: &dyn Datagrams) -> Result<(), Error> {
    let mut carrying = Carrying {
        program,
        datagrams,
        queue: Queue::default(),
        wait: Wait::new(program.pack_wait()),
        moved: 0,
    };
    let mut idle = Idle::default();
    poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = carrying.poll_up(cx) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(Err(error)) = carrying.poll_down(cx) {
            return Poll::Ready(Err(error));
        }
        idle.poll(cx, program.idle(), carrying.moved).map(Ok)
    })
    .await
}

struct Carrying<'a, P> {
    program: &'a P,
    datagrams: &'a dyn Datagrams,
    queue: Queue,
    wait: Wait,
    /// Changes when something moves.
    moved: usize,
}

impl<P: Program> Carrying<'_, P> {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let Some((batch, count)) = self.queue.batch() else {
                let sender = self.program.sender();
                ready!(sender.poll_take(cx, &mut self.queue, &mut self.wait));
                continue;
            };
            let most = self.datagrams.max_payload();
            if batch.contents.len().min(batch.segment) > most {
                self.program.too_large(batch, most);
                self.queue.pop(1);
                continue;
            }
            ready!(self.datagrams.poll_send(cx, batch))?;
            self.program.sent(batch.contents.len());
            self.moved = self.moved.wrapping_add(1);
            self.queue.pop(count);
        }
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        for _ in 0..TURN {
            ready!(self.program.poll_receive(cx, self.datagrams))?;
            self.moved = self.moved.wrapping_add(1);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
