//! One UDP flow from a program to one target: opens, then moves datagrams both ways until it is idle or fails. A task of its own.

use std::{
    cell::RefCell,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error, Reason};
use hoplite_wire::{Target, ip::icmp::Unreachable};
use tokio::time::{Instant, sleep};

use super::Sender;
use crate::{
    datagrams::{self, HOLD_OFF, Program},
    tun::{
        Ends, Room, icmp,
        names::Meaning,
        port::{Outgoing, udp_headers},
    },
};

/// The most that one packet to a program holds, and the most datagrams in it: UDP_MAX_SEGMENTS of older kernels.
const TRAIN: usize = 65_000;
const TRAIN_COUNT: usize = 64;

/// Buffers that live only between two calls, one set for the thread, because a flow at rest is to hold none.
struct Scratch {
    received: Vec<u8>,
    headers: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        received: vec![0; TRAIN],
        headers: Vec::with_capacity(64),
    });
}

/// The flow.
pub(super) struct Flow {
    room: Arc<Room>,
    ends: Ends,
    sender: Sender,
}

impl Flow {
    pub(super) fn new(room: Arc<Room>, ends: Ends, sender: Sender) -> Self {
        room.counters.udp_opened.add(1);
        Self { room, ends, sender }
    }

    /// Runs until it is over; then its place may be given to another.
    pub(super) async fn run(self) {
        let (now, address) = (Instant::now(), self.ends.target);
        let _kept = self.room.names.hold(address.ip(), now);
        let failed = match self.room.names.meaning(address, now) {
            Meaning::Target(target) => self.serve(&target).await,
            Meaning::Expired => {
                self.room.counters.expired.add(1);
                Some(Unreachable::Host)
            }
        };
        if let Some(why) = failed {
            self.fail(why);
            sleep(HOLD_OFF).await;
        }
    }

    /// Answers what to tell the program, if it has to be told something.
    async fn serve(&self, target: &Target) -> Option<Unreachable> {
        let terms = self.room.terms();
        let opening = self.room.overlay.open_datagrams(target, &terms);
        let opened = terms.run("opening a datagram flow", opening).await;
        let ended = match opened {
            Ok(datagrams) => datagrams::carry(self, &*datagrams).await,
            Err(error) => Err(error),
        };
        let error = ended.err()?;
        self.room.counters.failed(&error);
        if error.reason() == Some(Reason::NameNotFound) {
            let now = Instant::now();
            self.room.names.fail(self.ends.target.ip(), now);
        }
        Some(icmp::unreachable_for(&error))
    }

    fn fail(&self, why: Unreachable) {
        let cause = icmp::datagram_of(self.ends, &self.sender.first());
        icmp::tell_unreachable(&self.room, &cause, why);
        self.room.counters.udp_dropped.add(self.sender.fail(why));
    }

    /// Hands over what came from the target, in packets as large as programs' kernels take.
    fn take(&self, batch: Batch<'_>, headers: &mut Vec<u8>) {
        let Batch { contents, segment } = batch;
        let train = Batch {
            contents,
            segment: segment.saturating_mul(TRAIN_COUNT),
        };
        for contents in train.payloads() {
            self.deliver(contents, segment, headers);
        }
        self.room.counters.udp_down.add(contents.len());
        self.sender.received(batch, Instant::now());
    }

    fn deliver(&self, contents: &[u8], segment: usize, headers: &mut Vec<u8>) {
        let Ends { program, target } = self.ends;
        udp_headers(headers, target, program, contents.len());
        let segment = u16::try_from(segment).ok();
        let packet = Outgoing::udp(headers, [contents, &[]], segment);
        self.room.port.send(packet);
    }
}

impl Program for Flow {
    type Why = Unreachable;

    fn sender(&self) -> &Sender {
        &self.sender
    }

    fn idle(&self) -> Duration {
        let flows = &self.room.config.flows;
        flows.idle(self.ends.target.port(), self.sender.is_stream())
    }

    fn pack_wait(&self) -> Duration {
        self.room.config.flows.pack_wait
    }

    fn sent(&self, octets: usize) {
        self.room.counters.udp_up.add(octets);
    }

    /// QUIC inside finds its own path MTU by this (RFC 8899 §4.6.1), other programs are told by the kernel (EMSGSIZE).
    fn too_large(&self, batch: Batch<'_>, most: usize) {
        self.room.counters.udp_too_big.add(1);
        let headers = if self.ends.target.is_ipv4() { 28 } else { 48 };
        let first = batch.payloads().next().unwrap_or_default();
        let cause = icmp::datagram_of(self.ends, first);
        icmp::tell_too_big(&self.room, &cause, most + headers);
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>> {
        SCRATCH.with_borrow_mut(|Scratch { received, headers }| {
            let got = ready!(datagrams.poll_recv(cx, received))?;
            let contents = received.get(..got.len).unwrap_or_default();
            let segment = got.segment.max(1);
            self.take(Batch { contents, segment }, headers);
            Poll::Ready(Ok(()))
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.sender.end();
        self.room.counters.udp_closed.add(1);
    }
}
