//! The receiving half of a UDP socket: coalesced datagrams in, an ICMP refusal noticed at once.
//! Used by [`super::UdpFlow`].

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use tokio::{
    io::{Interest, Ready},
    net::UdpSocket,
};

use crate::Received;

/// What one call can bring at most, in octets. A buffer of this size never cuts a datagram.
const LARGEST_RECEIVE: usize = 65_535;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; LARGEST_RECEIVE].into());
}

type Watch = Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>;

/// What the receiving task needs between two calls.
pub(super) struct Receiving {
    socket: Arc<UdpSocket>,
    between: Mutex<Between>,
}

#[derive(Default)]
struct Between {
    /// What came coalesced and did not fit the caller's buffer; at most 64 KiB.
    rest: Option<Box<Rest>>,
    /// Waits for an ICMP error: epoll reports it as an error alone, for which tokio wakes no reader.
    errors: Option<Watch>,
}

struct Rest {
    data: Vec<u8>,
    at: usize,
    segment: usize,
}

/// What was taken of some coalesced payloads.
struct Taken {
    received: Option<Received>,
    octets: usize,
    dropped: usize,
}

/// What arrived.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// What of it fits the caller's buffer.
    pub(super) received: Option<Received>,
    /// How the network marked it; unknown for the rest of what did not fit at once.
    pub(super) ecn: Option<EcnCodepoint>,
    /// How many payloads were too large.
    pub(super) dropped: usize,
}

impl From<Taken> for Arrived {
    fn from(taken: Taken) -> Self {
        Self {
            received: taken.received,
            ecn: None,
            dropped: taken.dropped,
        }
    }
}

impl Receiving {
    pub(super) fn new(socket: Arc<UdpSocket>) -> Self {
        Self {
            socket,
            between: Mutex::default(),
        }
    }

    fn between(&self) -> MutexGuard<'_, Between> {
        self.between.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What arrived, if any of it fits `buf`.
    pub(super) fn try_recv(&self, state: &UdpSocketState, buf: &mut [u8]) -> io::Result<Arrived> {
        let mut between = self.between();
        if let Some(taken) = between.take_rest(buf) {
            return Ok(taken.into());
        }
        if buf.len() >= LARGEST_RECEIVE {
            let (received, ecn) = self.recv_whole(state, buf)?;
            return Ok(Arrived {
                received: Some(received),
                ecn,
                dropped: 0,
            });
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let (Received { len, segment }, ecn) = self.recv_whole(state, scratch)?;
            let data = scratch.get(..len).unwrap_or_default();
            let taken = take(data, segment, buf);
            between.keep(data, taken.octets, segment);
            Ok(Arrived {
                ecn,
                ..taken.into()
            })
        })
    }

    fn recv_whole(
        &self,
        state: &UdpSocketState,
        buf: &mut [u8],
    ) -> io::Result<(Received, Option<EcnCodepoint>)> {
        let mut meta = [RecvMeta::default()];
        self.socket.try_io(Interest::READABLE, || {
            let mut bufs = [IoSliceMut::new(buf)];
            state.recv(UdpSockRef::from(&*self.socket), &mut bufs, &mut meta)
        })?;
        let [meta] = meta;
        let received = Received {
            len: meta.len,
            segment: meta.stride.max(1),
        };
        Ok((received, meta.ecn))
    }

    /// Waits for a datagram. An ICMP error that comes instead is returned once.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut between = self.between();
            let errors = between.errors.get_or_insert_with(|| self.watch_errors());
            if errors.as_mut().poll(cx).is_pending() {
                break;
            }
            between.errors = None;
            if let Some(error) = self.take_error()? {
                return Poll::Ready(Err(error));
            }
        }
        self.socket.poll_recv_ready(cx)
    }

    fn watch_errors(&self) -> Watch {
        let socket = Arc::clone(&self.socket);
        Box::pin(async move { socket.ready(Interest::ERROR).await })
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        let take = || {
            let error = self.socket.take_error()?;
            error.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        match self.socket.try_io(Interest::ERROR, take) {
            Ok(error) => Ok(Some(error)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Between {
    fn take_rest(&mut self, buf: &mut [u8]) -> Option<Taken> {
        let rest = self.rest.as_mut()?;
        let taken = take(
            rest.data.get(rest.at..).unwrap_or_default(),
            rest.segment,
            buf,
        );
        rest.at += taken.octets;
        if rest.at >= rest.data.len() {
            self.rest = None;
        }
        Some(taken)
    }

    fn keep(&mut self, data: &[u8], taken: usize, segment: usize) {
        if let Some(rest) = data.get(taken..).filter(|rest| !rest.is_empty()) {
            self.rest = Some(Box::new(Rest {
                data: rest.to_vec(),
                at: 0,
                segment,
            }));
        }
    }
}

/// Copies as many whole payloads as fit; those larger than `buf` are passed over.
fn take(data: &[u8], segment: usize, buf: &mut [u8]) -> Taken {
    let mut passed = 0;
    let mut dropped = 0;
    let too_large = |left: &[u8]| left.len().min(segment) > buf.len();
    while let Some(left) = data.get(passed..).filter(|left| too_large(left)) {
        passed += left.len().min(segment);
        dropped += 1;
    }
    let left = data.get(passed..).unwrap_or_default();
    let whole = match left.len() <= buf.len() {
        true => left.len(),
        false => buf.len() / segment * segment,
    };
    let gone = dropped > 0 && left.is_empty();
    if let (Some(from), Some(to)) = (left.get(..whole), buf.get_mut(..whole)) {
        to.copy_from_slice(from);
    }
    Taken {
        received: (!gone).then_some(Received {
            len: whole,
            segment,
        }),
        octets: passed + whole,
        dropped,
    }
}

impl fmt::Debug for Receiving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiving")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_buffer_gets_whole_payloads_in_order() {
        let mut buf = [0; 25];
        let taken = take(&[7; 95], 10, &mut buf);
        let received = taken.received.expect("something fits");
        assert_eq!((received.len, received.segment, taken.octets), (20, 10, 20));
    }

    #[test]
    fn payloads_larger_than_the_buffer_are_dropped_but_a_short_last_one_is_not() {
        let mut buf = [0; 5];
        let taken = take(&[7; 24], 10, &mut buf);
        let received = taken.received.expect("the last one fits");
        assert_eq!((received.len, taken.octets, taken.dropped), (4, 24, 2));
        let taken = take(&[7; 20], 10, &mut buf);
        assert!(taken.received.is_none() && taken.dropped == 2 && taken.octets == 20);
    }

    #[test]
    fn an_empty_datagram_is_received_as_such() {
        let taken = take(&[], 1, &mut [0; 5]);
        assert_eq!(taken.received.map(|r| r.len), Some(0));
        assert_eq!(taken.dropped, 0);
    }

    proptest! {
        #[test]
        fn every_payload_is_taken_whole_or_dropped_whole(
            count in 1usize..20, segment in 1usize..50, last in 1usize..50, room in 1usize..200
        ) {
            let len = (count - 1) * segment + last.min(segment);
            let data: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            let (mut at, mut dropped, mut whole) = (0, 0, 0);
            while at < len {
                let mut buf = vec![0; room];
                let taken = take(&data[at..], segment, &mut buf);
                at += taken.octets;
                dropped += taken.dropped;
                if let Some(got) = taken.received {
                    prop_assert_eq!(&buf[..got.len], &data[at - got.len..at]);
                    prop_assert!(at == len || got.len % segment == 0);
                    whole += got.len.div_ceil(segment);
                }
            }
            prop_assert_eq!((at, whole + dropped), (len, count));
        }
    }
}
