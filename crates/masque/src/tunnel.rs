//! A CONNECT-UDP flow at the client's end: what the overlay above sends goes to the relay, what the relay sends waits in an [`Inbox`].
//! Where the relay agreed, a [`Forwarder`] takes care of the packets that need not go through the tunnel.
//! RFC 9298 §5.

use std::{
    fmt,
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Flow};
use hoplite_overlay::{Batch, Datagrams, End, Error, ErrorKind, Received};
use hoplite_wire::{
    RequestHead,
    forwarding::{Capsule, Malformed},
};

use crate::{
    connection::{Connection, Lease},
    forward::{Forwarder, Negotiation},
    gather::PackedDatagrams,
    inbox::Inbox,
};

/// An open flow.
pub(crate) struct Tunnel {
    flow: Arc<Flow>,
    inbox: Arc<Inbox>,
    negotiation: Arc<Negotiation>,
    forwarder: Option<Arc<Forwarder>>,
    /// Ends with the tunnel: tells the reader that the relay has closed the flow.
    watch: tokio::task::JoinHandle<()>,
    lease: Lease,
}

/// Where the connection puts what arrives in a flow.
pub(crate) struct Arriving {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) negotiation: Arc<Negotiation>,
    pub(crate) forwarder: Option<Arc<Forwarder>>,
}

impl Tunnel {
    /// Asks for the flow; what arrives waits, up to `queue` bytes.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        head: &RequestHead,
        queue: usize,
        negotiation: &Arc<Negotiation>,
    ) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::new(queue));
        let (flow, lease, forwarder) = connection.datagrams(head, &inbox, negotiation).await?;
        let watch = tokio::spawn(tell_end(flow.clone(), inbox.clone()));
        Ok(Self {
            flow,
            inbox,
            negotiation: negotiation.clone(),
            forwarder,
            watch,
            lease,
        })
    }
}

async fn tell_end(flow: Arc<Flow>, inbox: Arc<Inbox>) {
    drop(flow.closed().await);
    inbox.end(Error::new(
        ErrorKind::PathFailed,
        "receiving from a relay: it closed the flow",
    ));
}

impl DatagramSink for Arriving {
    fn push(&self, payload: Bytes) {
        self.negotiation.received_tunnelled(1);
        if let Some(forwarder) = &self.forwarder {
            forwarder.received(&payload);
        }
        self.inbox.push(payload);
    }

    fn flush(&self) {
        self.inbox.wake();
    }

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let told = match &self.forwarder {
            Some(forwarder) => forwarder.capsule(capsule),
            None => ControlFlow::Continue(()),
        };
        if told.is_break() {
            self.inbox.end(Error::new(
                ErrorKind::PathFailed,
                "receiving from a relay: it broke a rule of forwarded mode",
            ));
        }
        told
    }
}

impl Datagrams for Tunnel {
    fn max_payload(&self) -> usize {
        self.flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        if let Some(forwarder) = &self.forwarder {
            return forwarder
                .poll_send(cx, &self.flow, batch)
                .map_err(Error::from);
        }
        ready!(self.flow.poll_send(cx, batch))?;
        self.negotiation.sent_tunnelled(batch.payloads().count());
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.inbox.poll_recv(cx, buf)
    }

    /// The hop's connection was replaced, for example because QUIC works again: a link over this flow should follow.
    fn moved(&self) -> bool {
        self.lease.is_superseded()
    }

    fn announce(&self, end: End, id: &[u8]) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.announce(end, id);
        }
    }

    fn withdraw(&self, end: End, id: &[u8]) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.withdraw(end, id);
        }
    }

    fn carries_quic(&self) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.carries_quic();
        }
    }

    fn suspect(&self) -> bool {
        self.forwarder.as_ref().is_some_and(|it| it.suspect())
    }
}

/// Payloads share the packets of a QUIC connection, unless they pass beside it.
impl PackedDatagrams for Tunnel {
    fn round_trip(&self) -> Duration {
        self.flow.round_trip()
    }

    fn packs(&self) -> bool {
        let forwards = |forwarder: &Arc<Forwarder>| forwarder.is_forwarding();
        self.flow.version().is_over_quic() && !self.forwarder.as_ref().is_some_and(forwards)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.watch.abort();
        if let Some(forwarder) = &self.forwarder {
            forwarder.close();
        }
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tunnel({} dropped)", self.inbox.dropped())
    }
}
