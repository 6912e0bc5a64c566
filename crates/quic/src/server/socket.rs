//! The UDP socket of one shard: QUIC's packets, and beside them those that are forwarded. What is forwarded in small pieces is collected into longer
//! batches, which the endpoint's task sends when it has its turn.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit};

use super::divert::{self, Aliases};
use crate::{
    coalesce::{Coalescer, Pushed},
    driver::{AsyncUdpSocket, UdpSocket},
};

#[cfg(test)]
mod tests;

/// From how many segments on a batch is sent as it comes.
const BULK_SEGMENTS: usize = 10;

/// A shard's socket.
#[derive(Debug)]
pub(super) struct ShardSocket {
    io: UdpSocket,
    /// Whose packets are not for QUIC.
    aliases: Arc<Aliases>,
    /// What is forwarded and waits for more.
    forwarded: Mutex<Coalescer>,
    task: AtomicWaker,
}

impl ShardSocket {
    /// Takes over a bound socket.
    pub(super) fn new(socket: std::net::UdpSocket, aliases: Arc<Aliases>) -> io::Result<Self> {
        Ok(Self {
            io: UdpSocket::new(socket)?,
            aliases,
            forwarded: Mutex::default(),
            task: AtomicWaker::new(),
        })
    }

    /// Sends packets that are not QUIC's: at once what is a batch already, the rest with what comes after it.
    ///
    /// # Errors
    /// The kernel's queue is full; nothing was taken.
    pub(super) fn pass(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut forwarded = self.forwarded.lock();
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        if transmit.contents.len() >= BULK_SEGMENTS * segment {
            self.send(&mut forwarded)?;
            return self.io.try_send(transmit);
        }
        forwarded.limit(self.io.max_transmit_segments());
        let is_first = forwarded.is_empty();
        if forwarded.push(transmit) == Pushed::Full {
            self.send(&mut forwarded)?;
            let pushed = forwarded.push(transmit);
            debug_assert_eq!(pushed, Pushed::Kept, "an empty batch takes everything");
        } else if !is_first {
            return Ok(());
        }
        drop(forwarded);
        self.task.wake();
        Ok(())
    }

    /// Sends the batch. The only error is that the kernel's queue is full: then it stays.
    fn send(&self, forwarded: &mut Coalescer) -> io::Result<()> {
        if let Some(batch) = forwarded.batch() {
            self.io.try_send(&batch)?;
        }
        forwarded.clear();
        Ok(())
    }

    /// How many packets one call sends.
    pub(super) fn most_segments(&self) -> usize {
        self.io.max_transmit_segments()
    }
}

impl AsyncUdpSocket for ShardSocket {
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        let mut forwarded = self.forwarded.lock();
        if let Some(batch) = forwarded.batch() {
            if self.io.poll_send(cx, &batch).is_pending() {
                return Poll::Pending;
            }
            forwarded.clear();
        }
        Poll::Ready(())
    }

    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        self.io.poll_send(cx, transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.io.poll_recv(cx, buffers, metas);
        if let Poll::Ready(Ok(count)) = received
            && self.aliases.any()
        {
            divert::divert(&self.aliases, buffers, &mut metas[..count]);
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.io.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.io.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.io.may_fragment()
    }
}
