//! An open connection to a relay: HTTP/3 on a QUIC link, or HTTP/2 on a TLS link. The pool keeps it, its flows keep it too:
//! it closes when nobody does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, accepted, h2, h3};
use hoplite_link::{Agreed, Link, QuicLink};
use hoplite_overlay::{Error, ErrorKind, Stream};
use hoplite_wire::{RequestHead, dns::MAX_MESSAGE};
use tokio::{sync::Notify, time::Instant};

use crate::{
    forward::{Bargain, Forwarder},
    held::Held,
    inbox::Inbox,
    request,
    tunnel::Arriving,
};

/// How long the flows of a connection must be quiet before it is probed, and the longest pause between probes. After that one it is kept alive,
/// which tells as much.
const PROBE_FIRST: Duration = Duration::from_secs(1);
const PROBE_LAST: Duration = Duration::from_secs(16);
/// So few frames between two probes are signs of life of hops further on, or next to nothing: that is quiet, too.
const FEW: u64 = 16;

/// A usable connection, as long as [`Self::is_usable`].
#[derive(Debug)]
pub(crate) struct Live {
    carrier: Carrier,
    flows: AtomicUsize,
    /// Told when a flow begins.
    used: Notify,
    /// New flows take another connection, and what can move should move there.
    superseded: AtomicBool,
    /// Told when that happens.
    replaced: Notify,
}

#[derive(Debug)]
enum Carrier {
    H3 {
        session: h3::Session,
        link: QuicLink,
    },
    H2(h2::Session),
}

/// A flow of UDP payloads or IP packets, of either carrier.
#[derive(Clone)]
pub(crate) enum Flow {
    H3(Arc<h3::Flow>),
    H2(Arc<h2::Flow>),
}

/// Counts a flow of a connection, and keeps the connection.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Live>);

impl Live {
    /// Begins to speak HTTP on `link`.
    pub(crate) async fn start(link: Link) -> Result<Arc<Self>, Error> {
        let carrier = match link {
            Link::Quic(link) => {
                let config = h3::Config {
                    reins: Some(link.reins().clone()),
                    ..h3::Config::default()
                };
                let session = h3::Session::client(link.connection().clone(), &config);
                Carrier::H3 { session, link }
            }
            Link::Tls(link) => {
                let session = h2::Session::client(link.into_inner(), &h2::Config::default()).await;
                Carrier::H2(session?)
            }
        };
        Ok(Arc::new(Self {
            carrier,
            flows: AtomicUsize::new(0),
            used: Notify::new(),
            superseded: AtomicBool::new(false),
            replaced: Notify::new(),
        }))
    }

    pub(crate) fn is_quic(&self) -> bool {
        matches!(self.carrier, Carrier::H3 { .. })
    }

    /// The HTTP version in ALPN's words.
    pub(crate) fn carrier(&self) -> &'static str {
        if self.is_quic() { "h3" } else { "h2" }
    }

    /// How both ends acknowledge and control congestion; over HTTP/2 TCP does.
    pub(crate) fn agreed(&self) -> Option<Agreed> {
        match &self.carrier {
            Carrier::H3 { link, .. } => Some(link.reins().agreed()),
            Carrier::H2(_) => None,
        }
    }

    /// Whether new flows may be asked for.
    pub(crate) fn is_usable(&self) -> bool {
        match &self.carrier {
            Carrier::H3 { session, link } => link.is_answering() && !session.is_going_away(),
            Carrier::H2(session) => session.is_alive(),
        }
    }

    /// Another connection has taken its place, or will.
    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
        self.replaced.notify_one();
    }

    /// Waits until another connection has taken its place. One task waits.
    pub(crate) async fn superseded(&self) {
        if !self.superseded.load(Ordering::Relaxed) {
            self.replaced.notified().await;
        }
    }

    /// How many flows it carries.
    pub(crate) fn flows(&self) -> usize {
        self.flows.load(Ordering::Relaxed)
    }

    /// Returns when it is lost.
    pub(crate) async fn broken(&self) {
        match &self.carrier {
            Carrier::H3 { session, .. } => drop(session.closed().await),
            Carrier::H2(session) => drop(session.broken().await),
        }
    }

    /// A TCP flow, once the relay has connected.
    pub(crate) async fn stream(self: Arc<Self>, head: &RequestHead) -> Result<Stream, Error> {
        let lease = self.lease();
        match &self.carrier {
            Carrier::H3 { session, .. } => {
                let mut exchange = session.request(head).await?;
                accepted(&exchange.response().await?)?;
                Ok(Stream::new(Held::new(exchange.into_stream(), lease)))
            }
            Carrier::H2(session) => {
                let mut exchange = session.request(head).await?;
                accepted(&exchange.response().await?)?;
                Ok(Stream::new(Held::new(exchange.into_stream(), lease)))
            }
        }
    }

    /// A TCP flow that takes octets at once: they follow the request. The relay's answer is awaited until `deadline`.
    pub(crate) async fn early_stream(
        self: Arc<Self>,
        head: &RequestHead,
        deadline: Option<Instant>,
    ) -> Result<Stream, Error> {
        let lease = self.lease();
        Ok(match &self.carrier {
            Carrier::H3 { session, .. } => {
                let stream = session.request(head).await?.into_stream();
                Stream::early(Held::new(stream, lease), deadline)
            }
            Carrier::H2(session) => {
                let stream = session.request(head).await?.into_stream();
                Stream::early(Held::new(stream, lease), deadline)
            }
        })
    }

    /// A UDP flow, once the relay has agreed. Its payloads go to `inbox`.
    pub(crate) async fn datagrams(
        self: Arc<Self>,
        head: &RequestHead,
        inbox: &Arc<Inbox>,
        bargain: &Arc<Bargain>,
    ) -> Result<(Flow, Lease, Option<Arc<Forwarder>>), Error> {
        let lease = self.lease();
        let arriving = |forwarder| Arriving {
            inbox: inbox.clone(),
            bargain: bargain.clone(),
            forwarder,
        };
        let (flow, forwarder) = match &self.carrier {
            Carrier::H3 { session, link } => {
                let offer = bargain.offer()?;
                let head = offer.iter().fold(head.clone(), RequestHead::with_offer);
                let mut exchange = session.request(&head).await?;
                let response = exchange.response().await?;
                accepted(&response)?;
                let agreed = match &offer {
                    Some(offer) => bargain.agreed(offer, &response)?,
                    None => None,
                };
                let make = |transform| Forwarder::new(transform, link.bypass(), inbox, bargain);
                let forwarder = agreed.map(make);
                let flow = Arc::new(exchange.datagrams(Arc::new(arriving(forwarder.clone()))));
                if let Some(forwarder) = &forwarder {
                    forwarder.attach(&flow);
                }
                (Flow::H3(flow), forwarder)
            }
            Carrier::H2(session) => {
                let mut exchange = session.request(head).await?;
                accepted(&exchange.response().await?)?;
                bargain.refused();
                let flow = exchange.datagrams(Arc::new(arriving(None)));
                (Flow::H2(Arc::new(flow)), None)
            }
        };
        Ok((flow, lease, forwarder))
    }

    /// A flow of IP packets, once the relay has agreed. They go to `sink`.
    pub(crate) async fn packets(
        self: Arc<Self>,
        head: &RequestHead,
        sink: Arc<dyn DatagramSink>,
    ) -> Result<(Flow, Lease), Error> {
        let lease = self.lease();
        let flow = match &self.carrier {
            Carrier::H3 { session, .. } => {
                let mut exchange = session.request(head).await?;
                accepted(&exchange.response().await?)?;
                let flow = exchange.datagrams(sink);
                flow.carry_packets();
                Flow::H3(Arc::new(flow))
            }
            Carrier::H2(session) => {
                let mut exchange = session.request(head).await?;
                accepted(&exchange.response().await?)?;
                Flow::H2(Arc::new(exchange.datagrams(sink)))
            }
        };
        Ok((flow, lease))
    }

    /// Asks the relay's resolver. "Clients MUST NOT discard complete responses as a result of having their request terminated
    /// abruptly" (RFC 9114 §4.1): a refusal may come before the query has left, and says more than that it could not.
    pub(crate) async fn query(
        self: Arc<Self>,
        head: &RequestHead,
        message: Bytes,
    ) -> Result<Vec<u8>, Error> {
        let _lease = self.lease();
        let reply = match &self.carrier {
            Carrier::H3 { session, .. } => {
                let mut exchange = session.request(head).await?;
                drop(exchange.send(message).await);
                request::answered(&exchange.response().await?)?;
                exchange.content(MAX_MESSAGE).await?
            }
            Carrier::H2(session) => {
                let mut exchange = session.request(head).await?;
                drop(exchange.send(message));
                request::answered(&exchange.response().await?)?;
                exchange.content(MAX_MESSAGE).await?
            }
        };
        let large = || Error::new(ErrorKind::PathFailed, "reading a relay's answer to a query");
        reply.map(|reply| reply.to_vec()).ok_or_else(large)
    }

    /// Asks the relay for a sign of life when its flows have been quiet for a while: a download that stands still has nothing
    /// of ours to acknowledge. Never returns; over HTTP/2 the session does this itself.
    pub(crate) async fn probe(&self) {
        let Carrier::H3 { session, link } = &self.carrier else {
            return std::future::pending().await;
        };
        let (mut seen, mut pause) = (0, Some(PROBE_FIRST));
        loop {
            if self.is_used_within(pause, link).await {
                pause = Some(PROBE_FIRST);
                continue;
            }
            let frames = session.connection().stats().frame_rx;
            let carried = frames.stream + frames.datagram + link.reins().governor().datagrams();
            let moved = carried.saturating_sub(std::mem::replace(&mut seen, carried));
            pause = match self.flows() {
                _ if moved > FEW => Some(PROBE_FIRST),
                0 => None,
                _ => {
                    session.ping();
                    pause.and_then(longer)
                }
            };
        }
    }

    /// Whether a flow begins before `pause` is over; without one, waits until a flow begins or those that there are move again.
    async fn is_used_within(&self, pause: Option<Duration>, link: &QuicLink) -> bool {
        let over = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => link.stirred().await,
            }
        };
        tokio::select! {
            () = over => pause.is_none(),
            () = self.used.notified() => true,
        }
    }

    /// Waits until an answer is overdue: a flow that is being opened should try another connection.
    pub(crate) async fn suspected(&self) {
        match &self.carrier {
            Carrier::H3 { link, .. } => link.suspected().await,
            Carrier::H2(_) => std::future::pending().await,
        }
    }

    /// Lets the link be looked at soon.
    pub(crate) fn look(&self) {
        if let Carrier::H3 { link, .. } = &self.carrier {
            link.use_now();
        }
    }

    fn lease(self: &Arc<Self>) -> Lease {
        self.used.notify_one();
        self.look();
        self.flows.fetch_add(1, Ordering::Relaxed);
        Lease(self.clone())
    }
}

/// The pause after this one, if any.
fn longer(pause: Duration) -> Option<Duration> {
    (pause < PROBE_LAST).then(|| (pause * 2).min(PROBE_LAST))
}

impl Flow {
    pub(crate) fn max_payload(&self) -> usize {
        match self {
            Self::H3(flow) => flow.max_payload(),
            Self::H2(flow) => flow.max_payload(),
        }
    }

    /// Waits until the relay has ended it, in order or not.
    pub(crate) async fn closed(&self) {
        match self {
            Self::H3(flow) => drop(flow.closed().await),
            Self::H2(flow) => drop(flow.closed().await),
        }
    }
}

impl Lease {
    /// Whether the flow would be better off on another connection to the same relay.
    pub(crate) fn is_superseded(&self) -> bool {
        self.0.superseded.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.flows.fetch_sub(1, Ordering::Relaxed);
    }
}
