//! A CONNECT-UDP flow at the client's end: what the overlay above sends goes to the relay, what the relay sends waits in an [`Inbox`].
//! Where the relay agreed, a [`Forwarder`] takes care of the packets that need not go through the tunnel.
//! RFC 9298 §5; marks by draft-ietf-masque-connect-udp-ecn-dscp.

use std::{
    fmt,
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Flow};
use hoplite_overlay::{Batch, Datagrams, Ecn, End, Error, ErrorKind, Received};
use hoplite_wire::{
    RequestHead,
    ecn_contexts::{self, EcnContexts},
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
    /// In which contexts marks pass, if the relay passes any.
    marks: Option<Arc<EcnContexts>>,
    /// Ends with the tunnel: tells the reader that the relay has closed the flow.
    watch: tokio::task::JoinHandle<()>,
    lease: Lease,
}

/// Where the connection puts what arrives in a flow.
pub(crate) struct Arriving {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) negotiation: Arc<Negotiation>,
    pub(crate) forwarder: Option<Arc<Forwarder>>,
    pub(crate) marks: Option<Arc<EcnContexts>>,
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
        let opened = connection.datagrams(head, &inbox, negotiation).await?;
        let watch = tokio::spawn(tell_end(opened.flow.clone(), inbox.clone()));
        Ok(Self {
            flow: opened.flow,
            inbox,
            negotiation: negotiation.clone(),
            forwarder: opened.forwarder,
            marks: opened.marks,
            watch,
            lease: opened.lease,
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

impl Arriving {
    fn arrived(&self, payload: Bytes, mark: Option<Ecn>) {
        self.negotiation.received_tunnelled(1);
        if let Some(forwarder) = &self.forwarder {
            forwarder.received(&payload);
        }
        self.inbox.push(payload, mark);
    }
}

impl DatagramSink for Arriving {
    fn push(&self, payload: Bytes) {
        self.arrived(payload, None);
    }

    fn push_in(&self, context: u64, content: Bytes) -> bool {
        let marks = self.marks.as_ref();
        let Some(code_point) = marks.and_then(|marks| marks.code_point(context)) else {
            return false;
        };
        self.arrived(content, Ecn::from_bits(code_point));
        true
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
        self.poll_send_marked(cx, batch, None)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.poll_recv_marked(cx, buf)
            .map_ok(|(received, _)| received)
    }

    /// The relay's packets to the target bear the mark, if it said that they would.
    fn poll_send_marked(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        mark: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        let head = ecn_contexts::head(self.marks.as_deref(), mark.map(|mark| mark as u8));
        if let Some(forwarder) = &self.forwarder {
            return forwarder
                .poll_send(cx, &self.flow, batch, (mark, &head))
                .map_err(Error::from);
        }
        ready!(self.flow.poll_send_behind(cx, &head, batch))?;
        self.negotiation.sent_tunnelled(batch.payloads().count());
        Poll::Ready(Ok(()))
    }

    fn poll_recv_marked(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
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
