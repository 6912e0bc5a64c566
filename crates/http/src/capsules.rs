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

/// How many pieces of a stream are read before others get their turn.
const READ_BUDGET: usize = 32;

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
    let mut capsules = CapsuleReader::default();
    loop {
        let more = poll_fn(|cx| turn(&mut poll_data, &mut capsules, sink, cx)).await;
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

/// Reads what is there; false when the peer has finished.
fn turn<E: From<Malformed>>(
    poll_data: &mut impl FnMut(&mut Context<'_>) -> Poll<Result<Option<Bytes>, E>>,
    capsules: &mut CapsuleReader,
    sink: &dyn DatagramSink,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, E>> {
    for done in 0..READ_BUDGET {
        match poll_data(cx) {
            Poll::Ready(Ok(Some(mut bytes))) => {
                while let Some(item) = capsules.next(&mut bytes) {
                    let trace = |why| tracing::trace!(?why, "a capsule was dropped");
                    if let ControlFlow::Break(refused) = deliver(item, sink, trace) {
                        return Poll::Ready(Err(refused.malformed().into()));
                    }
                }
            }
            Poll::Ready(Ok(None)) => return Poll::Ready(Ok(false)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if done == 0 => return Poll::Pending,
            Poll::Pending => break,
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
