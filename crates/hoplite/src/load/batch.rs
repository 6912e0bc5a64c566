//! A UDP socket that sends and receives in batches (UDP_SEGMENT, UDP_GRO), by quinn-udp.
//! The datagram cases, the raw limit and the UDP echo use it.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a socket may queue in each direction, in octets.
const BUFFER: usize = 8 << 20;
/// How many batches one receive call takes.
const BATCHES: usize = 8;
/// The largest batch.
const ROOM: usize = 65_536;

/// A socket, its offload state, and room to receive.
pub(crate) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    room: Vec<u8>,
}

impl Socket {
    /// Takes a bound socket; from then on it does not block.
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        let sized = socket2::SockRef::from(&socket);
        // The kernel gives what it allows; less is slower, not wrong.
        drop(sized.set_recv_buffer_size(BUFFER));
        drop(sized.set_send_buffer_size(BUFFER));
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            socket,
            state,
            room: vec![0; BATCHES * ROOM],
        })
    }

    /// How many datagrams one call may send.
    pub(crate) fn most_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Where it is bound.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends `contents` cut every `segment` octets; waits while the queue is full.
    pub(crate) fn send(&self, to: SocketAddr, contents: &[u8], segment: usize) -> io::Result<()> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents,
            segment_size,
            src_ip: None,
        };
        loop {
            match self.state.try_send((&self.socket).into(), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.socket, PollFlags::OUT, Duration::from_millis(20))
                }
                // A closed port of a moment ago (ICMP) says nothing about this datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                done => return done,
            };
        }
    }

    /// Hands each datagram that is there to `each`; answers how many there were. Waits up to `patience` for the first.
    pub(crate) fn receive(
        &mut self,
        patience: Duration,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); BATCHES];
        let mut slices: Vec<_> = self.room.chunks_mut(ROOM).map(IoSliceMut::new).collect();
        let received = match self
            .state
            .recv((&self.socket).into(), &mut slices, &mut metas)
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !patience.is_zero() => {
                wait(&self.socket, PollFlags::IN, patience);
                self.state
                    .recv((&self.socket).into(), &mut slices, &mut metas)
            }
            done => done,
        };
        let received = match received {
            Ok(received) => received,
            Err(error) if is_nothing(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut count = 0;
        for (meta, room) in metas.iter().take(received).zip(self.room.chunks_mut(ROOM)) {
            let Some(filled) = room.get_mut(..meta.len) else {
                continue;
            };
            for datagram in filled.chunks_mut(meta.stride.max(1)) {
                each(meta.addr, datagram);
                count += 1;
            }
        }
        Ok(count)
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
    )
}

/// Waits until there is something to read, at most `patience`.
pub(crate) fn readable(on: impl AsFd, patience: Duration) {
    wait(on, PollFlags::IN, patience);
}

fn wait(on: impl AsFd, for_what: PollFlags, patience: Duration) {
    let timeout = Timespec::try_from(patience).ok();
    // Interrupted or not: the caller looks again.
    poll(&mut [PollFd::new(&on, for_what)], timeout.as_ref()).unwrap_or_default();
}
