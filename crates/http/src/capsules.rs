//! The one reader of a request stream's capsules, of all versions: payloads and the capsules of their protocols go to the flow's sink.
//! RFC 9297 §3, RFC 9298 §4 and §5, RFC 9484 §4.7 and §6.

use std::{
    future::poll_fn,
    ops::ControlFlow,
    task::{Context, Poll},
};

use bytes::Bytes;
use hoplite_wire::{
    capsule::{CapsuleReader, Item},
    http_datagram::{self, Udp},
};

use crate::DatagramSink;

/// How many bytes of a stream are read before others get their turn; each piece counts [`PIECE`] more, and so does each capsule.
const READ_BUDGET: usize = 128 * 1024;
/// What a piece costs beside its bytes: of small ones more are read in a turn than come in one (`h2::driver::TURN`). And what it costs to hand on what one
/// capsule has, which may be nothing.
const PIECE: usize = 256;

/// How much a stream's capsule that has come in part holds, as its sink was told.
#[derive(Debug, Default)]
pub(crate) struct Part(usize);

impl Part {
    /// All of what came was read: the sink is told what is held of it, and what it has no room for is given up.
    pub(crate) fn see(&mut self, capsules: &mut CapsuleReader, sink: &dyn DatagramSink) {
        let held = capsules.held();
        if std::mem::replace(&mut self.0, held) != held && !sink.holds(held) {
            capsules.give_up();
            self.0 = 0;
        }
    }
}

/// Why an HTTP Datagram or a capsule comes to nothing; the flow goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is badly laid out.
    Malformed,
    /// Its context id is none that the sink knows (RFC 9298 §4).
    UnknownContext,
}

/// A capsule of which the sink says that it breaks the rules of its protocol: the flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// One of forwarded mode.
    Forwarding,
    /// One of IP proxying.
    Ip,
    /// One of bound UDP.
    Bound,
}

/// The stream is a malformed message (RFC 9297 §3.3), for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Hands an HTTP Datagram, from a frame or from a capsule, to `sink`.
pub(crate) fn datagram(value: Bytes, sink: &dyn DatagramSink, dropped: impl FnOnce(Dropped)) {
    match http_datagram::udp(value) {
        Udp::Payload(payload) => sink.push(payload),
        Udp::Context(context, content) => {
            if !sink.push_in(context, content) {
                dropped(Dropped::UnknownContext);
            }
        }
        Udp::Malformed => dropped(Dropped::Malformed),
    }
}

/// Hands what a capsule carries to `sink`; `Break`: the sink bears no more of them.
pub(crate) fn deliver(
    item: Item,
    sink: &dyn DatagramSink,
    dropped: impl FnOnce(Dropped),
) -> ControlFlow<Refused> {
    let (told, refused) = match item {
        Item::Datagram(value) => {
            datagram(value, sink, dropped);
            return ControlFlow::Continue(());
        }
        Item::Forwarding(capsule) => {
            if capsule.is_err() {
                dropped(Dropped::Malformed);
            }
            (sink.capsule(capsule), Refused::Forwarding)
        }
        Item::Ip(capsule) => {
            if capsule.is_err() {
                dropped(Dropped::Malformed);
            }
            (sink.ip_capsule(capsule), Refused::Ip)
        }
        Item::Bound(capsule) => {
            if capsule.is_err() {
                dropped(Dropped::Malformed);
            }
            (sink.bound_capsule(capsule), Refused::Bound)
        }
    };
    match told {
        ControlFlow::Continue(()) => ControlFlow::Continue(()),
        ControlFlow::Break(()) => ControlFlow::Break(refused),
    }
}

/// Reads a stream that carries capsules and nothing else, in turns, until it ends. `poll_data` is the stream's, over TCP.
pub(crate) async fn read<E: From<Malformed>>(
    mut poll_data: impl FnMut(&mut Context<'_>) -> Poll<Result<Option<Bytes>, E>>,
    sink: &dyn DatagramSink,
) -> Result<(), E> {
    let (mut capsules, mut part) = (CapsuleReader::default(), Part::default());
    let mut rest = Bytes::new();
    loop {
        let turn = |cx: &mut Context<'_>| {
            let reading = (&mut capsules, &mut part, &mut rest);
            turn(&mut poll_data, reading, sink, cx)
        };
        let more = poll_fn(turn).await;
        sink.flush();
        if !more? {
            break;
        }
        tokio::task::yield_now().await;
    }
    if capsules.is_between_capsules() {
        Ok(())
    } else {
        Err(Malformed("the stream ends inside a capsule").into())
    }
}

/// Reads what is there; false when the peer has finished. `rest` is what was left of a piece when the turn was over.
fn turn<E: From<Malformed>>(
    poll_data: &mut impl FnMut(&mut Context<'_>) -> Poll<Result<Option<Bytes>, E>>,
    (capsules, part, rest): (&mut CapsuleReader, &mut Part, &mut Bytes),
    sink: &dyn DatagramSink,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, E>> {
    let mut done = 0;
    while done < READ_BUDGET {
        if rest.is_empty() {
            match poll_data(cx) {
                Poll::Ready(Ok(Some(bytes))) => *rest = bytes,
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if done == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
            done += PIECE;
        }
        let before = rest.len();
        let item = capsules.next(rest);
        done += before - rest.len();
        if rest.is_empty() {
            part.see(capsules, sink);
        }
        let Some(item) = item else {
            continue;
        };
        done += PIECE;
        let trace = |why| tracing::trace!(?why, "a capsule was dropped");
        if let ControlFlow::Break(refused) = deliver(item, sink, trace) {
            return Poll::Ready(Err(refused.malformed().into()));
        }
    }
    Poll::Ready(Ok(true))
}

impl Refused {
    /// What a version without an error code for it makes of it.
    fn malformed(self) -> Malformed {
        Malformed(match self {
            Self::Forwarding => "a capsule of forwarded mode",
            Self::Ip => "a capsule of IP proxying",
            Self::Bound => "a capsule of bound UDP",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Waker};

    use hoplite_wire::capsule::{self, UDP_OVERHEAD};
    use parking_lot::Mutex;

    use super::*;

    /// Has room for so much of a capsule that has come in part.
    struct Narrow {
        room: usize,
        held: Mutex<Vec<usize>>,
        lengths: Mutex<Vec<usize>>,
    }

    impl DatagramSink for Narrow {
        fn push(&self, payload: Bytes) {
            self.lengths.lock().push(payload.len());
        }

        fn flush(&self) {}

        fn holds(&self, bytes: usize) -> bool {
            self.held.lock().push(bytes);
            bytes <= self.room
        }
    }

    /// Capsules of three bytes, 40,000 of them in one piece: their receiver sends a packet for each.
    #[test]
    fn however_many_capsules_one_piece_has_others_get_their_turn_between() {
        let sink = Narrow {
            room: 8_192,
            held: Mutex::default(),
            lengths: Mutex::default(),
        };
        let mut pieces = Some(Bytes::from([0, 1, 0].repeat(40_000))).into_iter();
        let reading = read(|_| Poll::Ready(Ok::<_, Malformed>(pieces.next())), &sink);
        let (mut reading, mut cx) = (pin!(reading), Context::from_waker(Waker::noop()));
        let (mut turns, mut before) = (0, 0);
        while reading.as_mut().poll(&mut cx).is_pending() {
            let now = sink.lengths.lock().len();
            assert!(now - before < 1_000, "{} in one turn", now - before);
            (turns, before) = (turns + 1, now);
        }
        assert!(turns > 40, "{turns} turns");
        assert_eq!(sink.lengths.lock().len(), 40_000);
    }

    #[tokio::test]
    async fn a_capsule_that_comes_in_parts_is_lost_alone_where_its_sink_has_no_room_for_it() {
        let mut bytes = Vec::with_capacity(200_000 + 4 * UDP_OVERHEAD);
        for length in [100_usize, 60_000, 2_000, 40_000, 5_000] {
            capsule::write_udp(&mut bytes, &vec![7; length]);
        }
        let mut pieces = bytes.chunks(1_000).map(Bytes::copy_from_slice);
        let sink = Narrow {
            room: 8_192,
            held: Mutex::default(),
            lengths: Mutex::default(),
        };
        let read = read(|_| Poll::Ready(Ok::<_, Malformed>(pieces.next())), &sink).await;
        assert_eq!(read, Ok(()));
        assert_eq!(*sink.lengths.lock(), [100, 2_000, 5_000]);
        let held = sink.held.lock();
        // It is told as it grows, a few times, and when there is nothing any more.
        assert!(held.contains(&0) && held.len() < 20, "{held:?}");
        assert!(held.iter().all(|held| *held <= 4 * sink.room), "{held:?}");
    }
}
