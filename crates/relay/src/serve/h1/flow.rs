//! A UDP tunnel on an upgraded connection: DATAGRAM capsules both ways.
//! The CONNECT-UDP handler holds it; a task of its own reads and writes. RFC 9297 §3.5, RFC 9298 §5.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use hoplite_http::DatagramSink;
use hoplite_overlay::Batch;
use hoplite_wire::{
    capsule::{self, CapsuleReader, MAX_DATAGRAM, UDP_OVERHEAD},
    http_datagram::{Udp, udp},
};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};

use super::tunnel::{DataReceiver, DataSender};
use crate::serve::{
    exchange::{ClientFlow, Sent},
    splice::{Broken, FromClient, ToClient},
};

/// How many pieces of the stream are read before others get their turn.
const TURN: usize = 32;

/// The client's end of a UDP tunnel. Dropping it ends the tunnel.
pub(crate) struct Flow {
    outbox: Arc<Outbox>,
    ended: watch::Receiver<bool>,
    reset: watch::Sender<bool>,
    driver: AbortHandle,
}

/// Capsules that wait for the client, at most `bound` octets; the newest are dropped. As many again may be on their way.
struct Outbox {
    bound: usize,
    waiting: Mutex<BytesMut>,
    more: Notify,
}

impl Flow {
    pub(super) fn new(
        sender: DataSender,
        mut receiver: DataReceiver,
        sink: Arc<dyn DatagramSink>,
        bound: usize,
    ) -> Self {
        let outbox = Arc::new(Outbox::new(bound));
        let (ended_in, ended) = watch::channel(false);
        let (reset, resets) = watch::channel(false);
        let capsules = outbox.clone();
        let driver = tokio::spawn(async move {
            let mut sender = Sender(sender, resets);
            tokio::select! {
                _ = read(&mut receiver, &*sink) => (),
                Err(Broken) = capsules.write(&mut sender.0) => (),
            }
            drop((sender, receiver));
            ended_in.send_replace(true);
        });
        Self {
            outbox,
            ended,
            reset,
            driver: driver.abort_handle(),
        }
    }
}

/// Resets the connection when it is dropped, if it is to.
struct Sender(DataSender, watch::Receiver<bool>);

impl Drop for Sender {
    fn drop(&mut self) {
        if *self.1.borrow() {
            self.0.abort();
        }
    }
}

impl ClientFlow for Flow {
    fn send(&self, batch: Batch<'_>) -> Sent {
        self.outbox.put(batch)
    }

    async fn closed(&self) {
        drop(self.ended.clone().wait_for(|ended| *ended).await);
    }

    fn reset(&self) {
        self.reset.send_replace(true);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Outbox {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            waiting: Mutex::default(),
            more: Notify::new(),
        }
    }

    fn put(&self, batch: Batch<'_>) -> Sent {
        let mut sent = Sent::default();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for payload in batch.payloads() {
            if payload.len() >= MAX_DATAGRAM {
                sent.too_large += 1;
            } else if waiting.len() + payload.len() + UDP_OVERHEAD > self.bound {
                sent.full += 1;
            } else {
                capsule::write_udp(&mut *waiting, payload);
                sent.accepted += 1;
            }
        }
        drop(waiting);
        self.more.notify_one();
        sent
    }

    /// All that waits; the memory goes with it, so that a tunnel at rest has none.
    fn take(&self) -> Bytes {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting).freeze()
    }

    /// Writes what is put in, until the client is gone.
    async fn write(&self, sender: &mut DataSender) -> Result<(), Broken> {
        loop {
            self.more.notified().await;
            sender.write(self.take()).await?;
        }
    }
}

/// Hands the client's payloads to `sink` until the stream ends.
async fn read(receiver: &mut DataReceiver, sink: &dyn DatagramSink) -> Result<(), Broken> {
    let mut capsules = CapsuleReader::default();
    let mut more = true;
    while more {
        let turn = poll_fn(|cx| turn(receiver, &mut capsules, sink, cx)).await;
        sink.flush();
        more = turn?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Reads what is there; false when the client has finished.
fn turn(
    receiver: &mut DataReceiver,
    capsules: &mut CapsuleReader,
    sink: &dyn DatagramSink,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, Broken>> {
    for done in 0..TURN {
        match receiver.poll_data(cx) {
            Poll::Ready(Ok(Some(octets))) => push(capsules, octets, sink),
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
            Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
            Poll::Pending if done == 0 => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(Ok(true))
}

/// Payloads of context 0; others are dropped (RFC 9298 §4).
fn push(capsules: &mut CapsuleReader, mut octets: Bytes, sink: &dyn DatagramSink) {
    while let Some(value) = capsules.next_datagram(&mut octets) {
        match udp(value) {
            Udp::Payload(payload) => sink.push(payload),
            Udp::UnknownContext | Udp::Malformed => {
                tracing::trace!("a capsule of no known context");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_bound_is_dropped_and_counted() {
        let outbox = Outbox::new(100);
        let contents = [7; 120];
        let batch = Batch {
            contents: &contents,
            segment: 40,
        };
        let sent = outbox.put(batch);
        assert_eq!((sent.accepted, sent.full, sent.too_large), (2, 1, 0));
        assert_eq!(outbox.take().len(), 2 * 43);
        assert_eq!(outbox.put(Batch::one(b"again")).accepted, 1);
    }
}
