//! A UDP flow on a stream: DATAGRAM capsules both ways. What does not fit the send buffer is dropped, as a full router would.
//! RFC 9297 §3.5, RFC 9298 §5, RFC 9484 §4.7 and §6.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use hoplite_overlay::Batch;
use hoplite_wire::{
    bound_udp,
    capsule::{self, MAX_DATAGRAM, OVERHEAD},
    connect_ip,
    http_datagram::UDP_HEAD,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, task::AbortHandle};

use super::{DataReceiver, DataSender, H2Error};
use crate::{DatagramSink, capsules};

/// A UDP flow. Dropping it ends it.
pub struct Flow {
    sender: Mutex<DataSender>,
    reader: AbortHandle,
    ended: watch::Receiver<Option<Result<(), H2Error>>>,
    max_payload: usize,
    /// Bytes of capsules that steer the flow and wait beyond the send buffer, at most.
    beyond: AtomicUsize,
}

/// How many such bytes may wait.
const MAX_BEYOND: usize = 16 * 1024;

impl Flow {
    pub(super) fn new(
        sender: DataSender,
        mut receiver: DataReceiver,
        sink: Arc<dyn DatagramSink>,
        max_payload: usize,
    ) -> Self {
        let (ended_in, ended) = watch::channel(None);
        let reader = tokio::spawn(async move {
            let how = capsules::read(|cx| receiver.poll_data(cx), &*sink).await;
            ended_in.send_replace(Some(how));
        });
        Self {
            sender: Mutex::new(sender),
            reader: reader.abort_handle(),
            ended,
            max_payload,
            beyond: AtomicUsize::new(0),
        }
    }

    fn sender(&self) -> MutexGuard<'_, DataSender> {
        self.sender.lock()
    }

    /// The largest payload that the path beyond the stream carries, as far as is known.
    pub fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Sends `batch` if the send buffer has any room, and says how many payloads left; else it is dropped.
    pub fn send(&self, batch: Batch<'_>) -> usize {
        self.send_behind(UDP_HEAD, batch)
    }

    /// As [`send`](Self::send), with `head` for the context id: another one, and what its format puts before each payload.
    pub fn send_behind(&self, head: &[u8], batch: Batch<'_>) -> usize {
        let mut sender = self.sender();
        if sender.room(size(head, batch)) > 0 {
            return put(&mut sender, head, batch).unwrap_or(0);
        }
        sender.room(0);
        0
    }

    /// Sends `batch` as soon as the send buffer has any room. It may exceed its bound by one batch.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), H2Error>> {
        self.poll_send_behind(cx, UDP_HEAD, batch)
    }

    /// As [`poll_send`](Self::poll_send), with `head` for the context id.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn poll_send_behind(
        &self,
        cx: &mut Context<'_>,
        head: &[u8],
        batch: Batch<'_>,
    ) -> Poll<Result<(), H2Error>> {
        let mut sender = self.sender();
        ready!(sender.poll_room(cx, size(head, batch)))?;
        Poll::Ready(put(&mut sender, head, batch).map(drop))
    }

    /// Sends a capsule of IP proxying, in order with the datagrams; `false` when the flow has ended, or when as many wait beyond the send buffer
    /// as may: a peer makes us answer.
    pub fn send_ip_capsule(&self, capsule: &connect_ip::Capsule) -> bool {
        let mut bytes = BytesMut::new();
        capsule.write(&mut bytes);
        self.send_control(bytes)
    }

    /// Sends a capsule of bound UDP, as [`send_ip_capsule`](Self::send_ip_capsule) does one of IP proxying.
    pub fn send_bound_capsule(&self, capsule: &bound_udp::Capsule) -> bool {
        let mut bytes = BytesMut::new();
        capsule.write(&mut bytes);
        self.send_control(bytes)
    }

    fn send_control(&self, bytes: BytesMut) -> bool {
        let mut sender = self.sender();
        if sender.room(bytes.len()) > 0 {
            self.beyond.store(0, Ordering::Relaxed);
        } else if self.beyond.fetch_add(bytes.len(), Ordering::Relaxed) > MAX_BEYOND {
            sender.room(0);
            return false;
        }
        let sent = sender.put(bytes.freeze());
        sender.room(0);
        sent.is_ok()
    }

    /// Resolves when the peer has ended the flow.
    ///
    /// # Errors
    /// It was broken off: by the far side, by a malformed capsule, or with the connection.
    pub async fn closed(&self) -> Result<(), H2Error> {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await;
        how.ok()
            .and_then(|how| how.clone())
            .unwrap_or(Err(H2Error::Closed))
    }

    /// Breaks the flow off because the far side failed.
    pub fn reset(&self) {
        self.sender().reset();
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.reader.abort();
        if let Err(error) = self.sender().finish() {
            tracing::trace!(%error, "a UDP flow had already ended");
        }
    }
}

/// What a batch takes as capsules, at most.
fn size(head: &[u8], batch: Batch<'_>) -> usize {
    batch
        .payloads()
        .map(|payload| payload.len() + head.len() + OVERHEAD)
        .sum()
}

/// Writes all of a batch, and gives back what was reserved beyond it.
fn put(sender: &mut DataSender, head: &[u8], batch: Batch<'_>) -> Result<usize, H2Error> {
    let mut capsules = BytesMut::with_capacity(size(head, batch));
    let mut count = 0;
    for payload in batch
        .payloads()
        .filter(|payload| head.len() + payload.len() <= MAX_DATAGRAM)
    {
        capsule::write_datagram(&mut capsules, head, payload);
        count += 1;
    }
    sender.put(capsules.freeze())?;
    sender.room(0);
    Ok(count)
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flow(h2)")
    }
}
