//! UDP by a socket of the device's own that is bound and not connected: to and from anybody, batches in by UDP_GRO, never fragmented.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    task::{Context, Poll, ready},
};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};

use super::{socket_error, tcp::bind_source};
use crate::{Error, Received};

/// A socket that is bound to one address and a port of the system's choice.
pub struct BoundUdp {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl BoundUdp {
    /// Binds to `source`, which an IPv6 address need not be of an interface's.
    ///
    /// # Errors
    /// The system does not have the address, or no port or descriptor left.
    pub fn bind(source: IpAddr) -> Result<Self, Error> {
        Self::open(source).map_err(|error| socket_error(error, "binding a UDP socket"))
    }

    fn open(source: IpAddr) -> io::Result<Self> {
        let domain = Domain::for_address(SocketAddr::new(source, 0));
        let socket = Socket::new(domain, Type::DGRAM, None)?;
        if source.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        bind_source(&socket, source)?;
        socket.set_nonblocking(true)?;
        let socket: std::net::UdpSocket = socket.into();
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let local = socket.local_addr()?;
        let local = SocketAddr::new(local.ip(), local.port());
        let socket = UdpSocket::from_std(socket)?;
        Ok(Self {
            socket,
            state,
            local,
        })
    }

    /// Its address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The largest payload that is sent, in bytes: what an Ethernet frame carries.
    pub fn max_payload(&self) -> usize {
        if self.local.is_ipv4() { 1472 } else { 1452 }
    }

    /// Waits until the socket is known to take payloads: a fresh one is not.
    ///
    /// # Errors
    /// The runtime is stopping.
    pub async fn writable(&self) -> Result<(), Error> {
        let ready = self.socket.writable().await;
        ready.map_err(|error| socket_error(error, "waiting for a socket"))
    }

    /// Sends one payload, or does not: a full queue, an address without a way to it and a payload too large for the way lose it.
    pub fn send(&self, payload: &[u8], to: SocketAddr) -> bool {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: payload,
            segment_size: None,
            src_ip: None,
        };
        let sent = self.socket.try_io(Interest::WRITABLE, || {
            self.state
                .try_send(UdpSockRef::from(&self.socket), &transmit)
        });
        sent.is_ok()
    }

    /// Receives what is there of one sender into `buf`, which should have 65,535 bytes, and says who that is.
    ///
    /// # Errors
    /// The socket failed.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, SocketAddr), Error>> {
        loop {
            let failed = |error| socket_error(error, "receiving");
            ready!(self.socket.poll_recv_ready(cx)).map_err(failed)?;
            let mut meta = [RecvMeta::default()];
            let got = self.socket.try_io(Interest::READABLE, || {
                let mut bufs = [IoSliceMut::new(buf)];
                self.state
                    .recv(UdpSockRef::from(&self.socket), &mut bufs, &mut meta)
            });
            match got {
                Ok(_) => {
                    let [meta] = meta;
                    let received = Received {
                        len: meta.len,
                        segment: meta.stride.max(1),
                    };
                    let from = SocketAddr::new(meta.addr.ip(), meta.addr.port());
                    return Poll::Ready(Ok((received, from)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(failed(error))),
            }
        }
    }
}

impl fmt::Debug for BoundUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundUdp(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn anybody_is_heard_and_answered_from_one_address() {
        let [bound, first, second] =
            [(); 3].map(|()| BoundUdp::bind([127, 0, 0, 1].into()).expect("bound"));
        let mut buf = vec![0; 65_535];
        for other in [&first, &second] {
            other.writable().await.expect("ready");
            assert!(other.send(b"question", bound.local_addr()));
            let (received, from) = poll_fn(|cx| bound.poll_recv(cx, &mut buf))
                .await
                .expect("open");
            assert_eq!(
                (&buf[..received.len], from),
                (&b"question"[..], other.local_addr())
            );
            bound.writable().await.expect("ready");
            assert!(bound.send(b"answer", from));
            let (_, from) = poll_fn(|cx| other.poll_recv(cx, &mut buf))
                .await
                .expect("open");
            assert_eq!(from, bound.local_addr());
        }
    }

    #[tokio::test]
    async fn nobody_there_does_not_end_it() {
        let bound = BoundUdp::bind([127, 0, 0, 1].into()).expect("bound");
        bound.writable().await.expect("ready");
        let gone = BoundUdp::bind([127, 0, 0, 1].into())
            .expect("bound")
            .local_addr();
        for _ in 0..3 {
            assert!(bound.send(b"anybody?", gone));
        }
        assert!(!bound.send(&[0; 65_535], gone), "too large for any way");
        assert!(bound.send(b"myself", bound.local_addr()));
        let mut buf = vec![0; 65_535];
        let (received, _) = poll_fn(|cx| bound.poll_recv(cx, &mut buf))
            .await
            .expect("open");
        assert_eq!(&buf[..received.len], b"myself");
    }
}
