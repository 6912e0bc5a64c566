//! A CONNECT-UDP flow at the client's end: what the overlay above sends goes to the relay, what the relay sends waits in an [`Inbox`].
//! RFC 9298 §5.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hoplite_overlay::{Batch, Datagrams, Error, ErrorKind, Received};
use hoplite_wire::RequestHead;

use crate::{
    DatagramSink,
    inbox::Inbox,
    live::{Flow, Lease, Live},
};

/// An open flow.
pub(crate) struct Tunnel {
    flow: Arc<Flow>,
    inbox: Arc<Inbox>,
    /// Ends with the tunnel: tells the reader that the relay has closed the flow.
    watch: tokio::task::JoinHandle<()>,
    lease: Lease,
}

impl Tunnel {
    /// Asks for the flow; what arrives waits, up to `queue` octets.
    pub(crate) async fn open(
        live: Arc<Live>,
        head: &RequestHead,
        queue: usize,
    ) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::new(queue));
        let (flow, lease) = live.datagrams(head, inbox.clone()).await?;
        let flow = Arc::new(flow);
        let watch = tokio::spawn(tell_end(flow.clone(), inbox.clone()));
        Ok(Self {
            flow,
            inbox,
            watch,
            lease,
        })
    }
}

async fn tell_end(flow: Arc<Flow>, inbox: Arc<Inbox>) {
    match &*flow {
        Flow::H3(flow) => drop(flow.closed().await),
        Flow::H2(flow) => drop(flow.closed().await),
    }
    inbox.end(Error::new(
        ErrorKind::PathFailed,
        "receiving from a relay: it closed the flow",
    ));
}

impl DatagramSink for Inbox {
    fn push(&self, payload: Bytes) {
        self.push(payload);
    }

    fn flush(&self) {
        self.wake();
    }
}

impl Datagrams for Tunnel {
    fn max_payload(&self) -> usize {
        match &*self.flow {
            Flow::H3(flow) => flow.max_payload(),
            Flow::H2(flow) => flow.max_payload(),
        }
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        match &*self.flow {
            Flow::H3(flow) => ready!(flow.poll_send(cx, batch))?,
            Flow::H2(flow) => ready!(flow.poll_send(cx, batch))?,
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.inbox.poll_recv(cx, buf)
    }

    /// The hop's connection was replaced, for example because QUIC works again: a link over this flow should follow.
    fn moved(&self) -> bool {
        self.lease.is_superseded()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tunnel({} dropped)", self.inbox.dropped())
    }
}
