//! A socket of [`hoplite_overlay::memory`] as the socket of a QUIC endpoint: what a relay on the in-memory network listens with.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hoplite_overlay::memory::Socket;
use hoplite_quic::{
    AsyncUdpSocket,
    udp::{RecvMeta, Transmit},
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};

/// A UDP socket on the in-memory network.
pub struct MemorySocket {
    socket: Arc<Socket>,
    received: Mutex<mpsc::Receiver<(Vec<u8>, SocketAddr)>>,
}

impl MemorySocket {
    /// Takes over `socket`; what receives from it is one of `tasks`.
    pub fn new(socket: Socket, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let (sender, received) = mpsc::channel(4096);
        let socket = Arc::new(socket);
        let inner = Arc::downgrade(&socket);
        let far = Arc::new(Self {
            socket,
            received: Mutex::new(received),
        });
        tasks.spawn(async move {
            while let Some(socket) = inner.upgrade() {
                let (payload, from) = socket.recv().await;
                if sender.send((payload.to_vec(), from)).await.is_err() {
                    return;
                }
            }
        });
        far
    }
}

impl fmt::Debug for MemorySocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemorySocket")
    }
}

impl AsyncUdpSocket for MemorySocket {
    fn poll_send(&self, _: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        let whole = transmit.contents.len().max(1);
        for payload in transmit
            .contents
            .chunks(transmit.segment_size.unwrap_or(whole))
        {
            self.socket.send(payload, transmit.destination);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let got = ready!(self.received.lock().poll_recv(cx));
        let Some((payload, addr)) = got else {
            return Poll::Pending;
        };
        bufs[0][..payload.len()].copy_from_slice(&payload);
        meta[0] = RecvMeta {
            addr,
            len: payload.len(),
            stride: payload.len().max(1),
            ..RecvMeta::default()
        };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.address())
    }
}
