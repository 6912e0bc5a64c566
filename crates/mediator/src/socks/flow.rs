//! One UDP flow of an association, from a program to one target: opens, then moves datagrams both ways until it is idle,
//! fails, or the association ends. Each runs in a task of its own, so that a slow one holds up nobody.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error, Isolation};
use hoplite_wire::Target;
use tokio::time::{Instant, sleep};

use crate::{
    datagrams::{self, HOLD_OFF, Program},
    front::Room,
};

use super::{
    scratch::{self, Scratch, TRAIN},
    socket::Socket,
};

/// The end of a flow that the association holds. A program is not told why its flow failed.
pub(super) type Sender = datagrams::Sender<()>;

/// What a flow is opened with.
pub(super) struct Flow {
    pub(super) room: Arc<Room>,
    pub(super) socket: Arc<Socket>,
    /// Where the program receives.
    pub(super) program: SocketAddr,
    /// Stands in front of every answer: the target in the very form in which it was asked for.
    pub(super) header: Box<[u8]>,
    pub(super) sender: Sender,
}

impl Flow {
    /// Runs until it is over; then its place may be given to another.
    pub(super) async fn run(self, target: Target, isolation: Isolation) {
        match self.open(&target, isolation).await {
            Ok(datagrams) => {
                self.room.counters.datagram_flows.add(1);
                if datagrams::carry(&self, &*datagrams).await.is_ok() {
                    return;
                }
            }
            Err(error) => self.room.counters.failed(&error),
        }
        let lost = self.sender.fail(());
        self.room.counters.datagrams_dropped.add(lost);
        sleep(HOLD_OFF).await;
    }

    async fn open(
        &self,
        target: &Target,
        isolation: Isolation,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let terms = self.room.terms(isolation);
        let opening = self.room.overlay.open_datagrams(target, &terms);
        terms.run("opening a datagram flow", opening).await
    }

    fn deliver(&self, batch: Batch<'_>, sending: &mut Vec<u8>) {
        let payloads = batch.payloads();
        let dropped = self
            .socket
            .send(self.program, &self.header, payloads, sending);
        self.room.counters.datagrams_dropped.add(dropped);
        self.room.counters.octets_down.add(batch.contents.len());
        self.sender.received(batch, Instant::now());
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.sender.end();
    }
}

impl Program for Flow {
    type Why = ();

    fn sender(&self) -> &Sender {
        &self.sender
    }

    fn idle(&self) -> Duration {
        self.room.limits.idle_datagrams
    }

    fn sent(&self, octets: usize) {
        self.room.counters.octets_up.add(octets);
    }

    fn too_large(&self, _: Batch<'_>, _: usize) {
        self.room.counters.datagrams_dropped.add(1);
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>> {
        scratch::with(|Scratch { received, sending }| {
            let train = received.get_mut(..TRAIN).unwrap_or_default();
            let got = ready!(datagrams.poll_recv(cx, train))?;
            let contents = train.get(..got.len).unwrap_or_default();
            let segment = got.segment.max(1);
            self.deliver(Batch { contents, segment }, sending);
            Poll::Ready(Ok(()))
        })
    }
}
