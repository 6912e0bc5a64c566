//! An association's socket: datagrams from and to one program, many with each system call where the kernel can.
//! Linux gives trains of equal datagrams when the program sends them so (UDP_SEGMENT), and takes them from us.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    task::{Context, Poll, ready},
};

use hoplite_overlay::direct::udp::enlarge_buffers;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket};

use super::scratch::{Scratch, TRAIN, TRAINS};

/// What UDP over IPv4 can carry in one call.
const LARGEST: usize = 65_507;

/// The socket.
#[derive(Debug)]
pub(super) struct Socket {
    udp: UdpSocket,
    state: UdpSocketState,
}

/// One datagram that was received.
pub(super) struct Arrived<'a> {
    pub(super) source: SocketAddr,
    pub(super) datagram: &'a [u8],
}

impl Socket {
    /// Binds a port of the system's choice at the address of `local`.
    pub(super) async fn bind(local: SocketAddr) -> io::Result<Self> {
        let mut local = local;
        local.set_port(0);
        local.set_ip(local.ip().to_canonical());
        let udp = UdpSocket::bind(local).await?;
        // A program's burst waits here until its turn comes; what the kernel grants is all there is.
        enlarge_buffers(&udp);
        let state = UdpSocketState::new((&udp).into())?;
        Ok(Self { udp, state })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Receives what is there and hands over each datagram.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        mut take: impl FnMut(Arrived<'_>),
    ) -> Poll<io::Result<()>> {
        let mut metas = [RecvMeta::default(); TRAINS];
        let count = loop {
            ready!(self.udp.poll_recv_ready(cx))?;
            match self.receive(scratch, &mut metas) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => break received?,
            }
        };
        for (meta, train) in metas.iter().zip(scratch.received.chunks(TRAIN)).take(count) {
            let source = meta.addr;
            for datagram in datagrams(train, meta) {
                take(Arrived { source, datagram });
            }
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&self, scratch: &mut Scratch, metas: &mut [RecvMeta; TRAINS]) -> io::Result<usize> {
        let mut trains = scratch.received.chunks_mut(TRAIN).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; TRAINS] =
            std::array::from_fn(|_| trains.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let call = || self.state.recv((&self.udp).into(), &mut slices, metas);
        self.udp.try_io(Interest::READABLE, call)
    }

    /// Sends `payloads`, each with `header` in front, all of one size but for the last. Answers how many were dropped:
    /// a program that reads too slowly loses datagrams, as on any network.
    pub(super) fn send<'a>(
        &self,
        program: SocketAddr,
        header: &[u8],
        payloads: impl Iterator<Item = &'a [u8]>,
        sending: &mut Vec<u8>,
    ) -> usize {
        let (mut count, mut dropped, mut segment) = (0, 0, 0);
        sending.clear();
        for payload in payloads {
            let len = header.len() + payload.len();
            if count >= self.state.max_gso_segments().max(1) || sending.len() + len > LARGEST {
                dropped += self.flush(program, sending, segment, count);
                (count, segment) = (0, 0);
                sending.clear();
            }
            segment = segment.max(len);
            count += 1;
            sending.extend_from_slice(header);
            sending.extend_from_slice(payload);
        }
        dropped + self.flush(program, sending, segment, count)
    }

    fn flush(&self, program: SocketAddr, octets: &[u8], segment: usize, count: usize) -> usize {
        let transmit = Transmit {
            destination: program,
            ecn: None,
            contents: octets,
            segment_size: (count > 1).then_some(segment),
            src_ip: None,
        };
        match count {
            0 => 0,
            _ if self.transmit(&transmit) => 0,
            1 => 1,
            // The kernel may not take trains on this road.
            _ => self.one_by_one(&transmit, segment),
        }
    }

    fn one_by_one(&self, train: &Transmit<'_>, segment: usize) -> usize {
        let single = |contents| Transmit {
            contents,
            segment_size: None,
            ..train.clone()
        };
        let datagrams = train.contents.chunks(segment.max(1));
        datagrams
            .filter(|contents| !self.transmit(&single(contents)))
            .count()
    }

    fn transmit(&self, transmit: &Transmit<'_>) -> bool {
        self.state.try_send((&self.udp).into(), transmit).is_ok()
    }
}

/// The datagrams of one train. An empty one is no train and has no header: nobody misses it.
fn datagrams<'a>(train: &'a [u8], meta: &RecvMeta) -> impl Iterator<Item = &'a [u8]> {
    let filled = train.get(..meta.len).unwrap_or(train);
    filled.chunks(meta.stride.max(1))
}
