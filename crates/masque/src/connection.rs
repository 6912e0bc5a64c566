//! An open HTTP connection to a relay: HTTP/3 on a QUIC link, or HTTP/2 on a TLS link. The pool keeps it, its flows keep it too, by leases:
//! it closes when nobody does.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Exchange, Flow, HttpError, HttpVersion, Session, accepted, h3};
use hoplite_link::{Link, QuicLink};
use hoplite_overlay::{Error, ErrorKind, Reason, Stream};
use hoplite_quic::ConnectionError;
use hoplite_wire::{
    RequestHead, ResponseHead, dns::MAX_MESSAGE, ecn_contexts::EcnContexts,
    privacy_pass::PrivateToken, tuning::Agreed,
};
use tokio::{sync::Notify, time::Instant};
use zeroize::Zeroizing;

use crate::{
    Config,
    forward::{Forwarder, Negotiation},
    hop::{TokenSource, answered},
    inbox::Inbox,
    told::Told,
    tunnel::Arriving,
};

/// How long the flows of a connection must be quiet before it is probed, and the longest pause between probes. After that one it is kept alive,
/// which tells as much.
const PROBE_FIRST: Duration = Duration::from_secs(1);
const PROBE_LAST: Duration = Duration::from_secs(16);
/// So few frames between two probes are signs of life of hops further on, or next to nothing: that is quiet, too.
const QUIET_FRAMES: u64 = 16;

/// A usable connection, as long as [`Self::is_usable`].
#[derive(Debug)]
pub(crate) struct Connection {
    session: Session,
    /// Shown with each request until the relay has let the connection in; it is this connection's alone.
    token: Option<Shown>,
    admitted: AtomicBool,
    /// Where the region goes that the relay tells.
    told: Option<Arc<Told>>,
    /// The link below, if that is QUIC: it knows whether the relay answers, and packets may pass it by.
    link: Option<QuicLink>,
    flows: Arc<AtomicUsize>,
    /// Told when a flow begins.
    used: Notify,
    /// New flows take another connection, and what can move should move there.
    superseded: AtomicBool,
    /// Told when that happens.
    replaced: Notify,
    /// The relay has no flows of bound UDP. What one connection has found out no other one shows.
    no_bound_udp: AtomicBool,
    /// Since when it is there.
    pub(crate) began: Instant,
    /// Whether it counts as one that was of no use.
    useless: AtomicBool,
}

/// A private token, and where it is from.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) token: PrivateToken,
    /// Is told what became of it.
    pub(crate) source: Arc<dyn TokenSource>,
}

/// A UDP flow that the relay has agreed to, and what else it has agreed to.
pub(crate) struct Opened {
    pub(crate) flow: Arc<Flow>,
    pub(crate) lease: Lease,
    /// Packets may pass beside the connection.
    pub(crate) forwarder: Option<Arc<Forwarder>>,
    /// Marks pass in these contexts.
    pub(crate) marks: Option<Arc<EcnContexts>>,
}

/// Counts a flow of a connection, and keeps the connection.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Connection>);

impl Connection {
    /// Begins to speak HTTP on `link`.
    pub(crate) async fn start(
        link: Link,
        token: Option<Shown>,
        told: Option<Arc<Told>>,
        config: &Config,
    ) -> Result<Arc<Self>, Error> {
        let (h3, h2) = config.http();
        let (session, link) = match link {
            Link::Quic(link) => {
                let config = h3::Config {
                    controller: Some(link.controller().clone()),
                    ..h3
                };
                let session = Session::quic_client(link.connection().clone(), &config);
                (session, Some(link))
            }
            Link::Tls(link) => (Session::tls_client(link.into_inner(), &h2).await?, None),
        };
        Ok(Arc::new(Self::over(session, link, token, told)))
    }

    fn over(
        session: Session,
        link: Option<QuicLink>,
        token: Option<Shown>,
        told: Option<Arc<Told>>,
    ) -> Self {
        let flows = link.as_ref().map(QuicLink::flows).cloned();
        Self {
            session,
            token,
            admitted: AtomicBool::new(false),
            told,
            link,
            flows: flows.unwrap_or_default(),
            used: Notify::new(),
            superseded: AtomicBool::new(false),
            replaced: Notify::new(),
            no_bound_udp: AtomicBool::new(false),
            began: Instant::now(),
            useless: AtomicBool::new(false),
        }
    }

    /// The version of HTTP that it speaks.
    pub(crate) fn version(&self) -> HttpVersion {
        self.session.version()
    }

    /// How both ends acknowledge and control congestion; over HTTP/2 TCP does.
    pub(crate) fn agreed(&self) -> Option<Agreed> {
        self.link.as_ref().map(|link| link.controller().agreed())
    }

    /// The relay has refused a flow of bound UDP because it has none: on this connection it is not asked again.
    pub(crate) fn lacks_bound_udp(&self) {
        self.no_bound_udp.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    pub(crate) fn has_no_bound_udp(&self) -> bool {
        self.no_bound_udp.load(Ordering::Relaxed)
    }

    /// Whether new flows may be asked for. If the relay takes none any more, who gives tokens is told: another connection will want one.
    pub(crate) fn is_usable(&self) -> bool {
        let is_answering = self.link.as_ref().is_none_or(QuicLink::is_answering);
        let takes_requests = is_answering && self.session.takes_requests();
        if !takes_requests {
            self.ended();
        }
        let refused = self.token.is_some() && self.superseded.load(Ordering::Relaxed);
        takes_requests && !refused
    }

    /// See [`TokenSource::ended`]. Nobody replaces what has been replaced.
    fn ended(&self) {
        let is_current = !self.superseded.load(Ordering::Relaxed);
        if let Some(shown) = self.token.as_ref().filter(|_| is_current) {
            shown.source.ended();
        }
    }

    /// Another connection has taken its place, or will.
    pub(crate) fn supersede(&self) {
        self.is_superseded_now();
    }

    /// The same; whether it is so only now.
    fn is_superseded_now(&self) -> bool {
        let before = self.superseded.swap(true, Ordering::Relaxed);
        self.replaced.notify_one();
        !before
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
    pub(crate) async fn closed(&self) {
        self.session.closed().await;
        self.ended();
    }

    /// Whether the relay has said that it ends, or what it came over is gone; not, over QUIC, that nothing was heard.
    pub(crate) fn is_closed_by_relay(&self) -> bool {
        let Some(link) = &self.link else { return true };
        matches!(
            link.connection().close_reason(),
            Some(
                ConnectionError::ConnectionClosed(_)
                    | ConnectionError::ApplicationClosed(_)
                    | ConnectionError::Reset
            )
        )
    }

    /// It was of no use; whether that is known only now.
    pub(crate) fn was_useless(&self) -> bool {
        !self.useless.swap(true, Ordering::Relaxed)
    }

    async fn request(&self, head: &RequestHead) -> Result<Exchange, HttpError> {
        match &self.token {
            Some(Shown { token, .. }) if !self.admitted.load(Ordering::Relaxed) => {
                // A proxy's credentials for what it proxies, an origin's for what is its own: as the hop's other requests have them.
                let proxied = head.method == "CONNECT" && head.protocol.is_none();
                let field = if proxied {
                    "proxy-authorization"
                } else {
                    "authorization"
                };
                let value = Zeroizing::new(token.to_field());
                let head = head.clone().with(field, value.as_bytes());
                self.session.request(&head).await
            }
            _ => self.session.request(head).await,
        }
    }

    /// As [`accepted`]; from then on no request needs the token, and no refusal says anything of it.
    fn admitted(&self, response: &ResponseHead) -> Result<(), Error> {
        let accepted = accepted(response);
        let reason = accepted.as_ref().err().and_then(Error::reason);
        let refused = self.token.as_ref();
        if let Some(refused) = refused.filter(|_| reason == Some(Reason::Authentication)) {
            // Another connection shows another.
            if self.is_superseded_now() {
                if self.admitted.load(Ordering::Relaxed) {
                    refused.source.ended();
                } else {
                    // It was spent before, or its key is not in use any more.
                    refused.source.refused();
                }
            }
        } else if !self.admitted.swap(true, Ordering::Relaxed)
            && accepted.is_ok()
            && let Some(shown) = &self.token
        {
            shown.source.accepted();
        }
        accepted
    }

    /// Whether no private token is asked for any more.
    pub(crate) fn is_admitted(&self) -> bool {
        self.token.is_none() || self.admitted.load(Ordering::Relaxed)
    }

    /// As [`Self::admitted`]; with a flow the first relay says where the client is.
    fn opened(&self, response: &ResponseHead) -> Result<(), Error> {
        self.admitted(response)?;
        if let Some(told) = &self.told {
            told.hear(response);
        }
        Ok(())
    }

    /// A TCP flow, once the relay has connected.
    pub(crate) async fn stream(self: Arc<Self>, head: &RequestHead) -> Result<Stream, Error> {
        let lease = self.lease();
        let mut exchange = self.request(head).await?;
        self.opened(&exchange.response().await?)?;
        Ok(Stream::new(exchange.into_stream()?).holding(lease))
    }

    /// A TCP flow that takes bytes at once: they follow the request. The relay's answer is awaited until `deadline`.
    pub(crate) async fn early_stream(
        self: Arc<Self>,
        head: &RequestHead,
        deadline: Option<Instant>,
    ) -> Result<Stream, Error> {
        let lease = self.lease();
        let stream = self.request(head).await?.into_stream()?;
        Ok(Stream::early(stream, deadline).holding(lease))
    }

    /// A UDP flow, once the relay has agreed. Its payloads go to `inbox`.
    pub(crate) async fn datagrams(
        self: Arc<Self>,
        head: &RequestHead,
        inbox: &Arc<Inbox>,
        negotiation: &Arc<Negotiation>,
    ) -> Result<Opened, Error> {
        let lease = self.lease();
        let offer = match &self.link {
            Some(_) => negotiation.offer()?,
            None => None,
        };
        let head = head.clone().with_ecn_contexts();
        let head = offer.iter().fold(head, RequestHead::with_offer);
        let mut exchange = self.request(&head).await?;
        let response = exchange.response().await?;
        self.opened(&response)?;
        let forwarder = match (&self.link, &offer) {
            (Some(link), Some(offer)) => negotiation
                .agreed(offer, &response)?
                .map(|transform| Forwarder::new(transform, link.bypass(), inbox, negotiation)),
            (Some(_), None) => None,
            (None, _) => {
                negotiation.refused();
                None
            }
        };
        let marks = response.ecn_contexts().map(Arc::new);
        let arriving = Arriving {
            inbox: inbox.clone(),
            negotiation: negotiation.clone(),
            forwarder: forwarder.clone(),
            marks: marks.clone(),
        };
        let flow = Arc::new(exchange.datagrams(Arc::new(arriving)));
        if let Some(forwarder) = &forwarder {
            forwarder.attach(&flow);
        }
        Ok(Opened {
            flow,
            lease,
            forwarder,
            marks,
        })
    }

    /// A flow of bound UDP, once the relay has agreed, and the addresses that it has. What arrives goes to `sink`.
    pub(crate) async fn bound(
        self: Arc<Self>,
        head: &RequestHead,
        sink: Arc<dyn DatagramSink>,
    ) -> Result<(Arc<Flow>, Vec<SocketAddr>, Lease), Error> {
        let lease = self.lease();
        let mut exchange = self.request(head).await?;
        let response = exchange.response().await?;
        let opened = self.opened(&response);
        // A relay that knows nothing of it sees a target that it cannot read.
        if response.status == 400 {
            return Err(not_bound());
        }
        opened?;
        let addresses = response.bound().ok_or_else(not_bound)?;
        let flow = exchange.datagrams(sink);
        Ok((Arc::new(flow), addresses, lease))
    }

    /// A flow of IP packets, once the relay has agreed. They go to `sink`.
    pub(crate) async fn packets(
        self: Arc<Self>,
        head: &RequestHead,
        sink: Arc<dyn DatagramSink>,
    ) -> Result<(Arc<Flow>, Lease), Error> {
        let lease = self.lease();
        let mut exchange = self.request(head).await?;
        self.admitted(&exchange.response().await?)?;
        let flow = exchange.datagrams(sink);
        flow.carry_packets();
        Ok((Arc::new(flow), lease))
    }

    /// Asks the relay's resolver. "Clients MUST NOT discard complete responses as a result of having their request terminated
    /// abruptly" (RFC 9114 §4.1): a refusal may come before the query has left, and says more than that it could not.
    pub(crate) async fn query(
        self: Arc<Self>,
        head: &RequestHead,
        message: Bytes,
    ) -> Result<Vec<u8>, Error> {
        let _lease = self.lease();
        let mut exchange = self.request(head).await?;
        drop(exchange.send(message).await);
        let response = exchange.response().await?;
        drop(self.admitted(&response));
        answered(&response)?;
        let reply = exchange.content(MAX_MESSAGE).await?;
        let large = || Error::new(ErrorKind::PathFailed, "reading a relay's answer to a query");
        reply.map(|reply| reply.to_vec()).ok_or_else(large)
    }

    /// Asks the relay for a sign of life when its flows have been quiet for a while: a download that stands still has nothing
    /// of ours to acknowledge. Never returns; over HTTP/2 the session does this itself.
    pub(crate) async fn probe(&self) {
        let Some(link) = &self.link else {
            return pending().await;
        };
        let (mut seen, mut pause) = (0, Some(PROBE_FIRST));
        loop {
            if self.is_used_within(pause, link).await {
                pause = Some(PROBE_FIRST);
                continue;
            }
            let frames = link.connection().stats().frame_rx;
            let carried =
                frames.stream + frames.datagram + link.controller().ack_controller().datagrams();
            let moved = carried.saturating_sub(std::mem::replace(&mut seen, carried));
            pause = match self.flows() {
                _ if moved > QUIET_FRAMES => Some(PROBE_FIRST),
                0 => None,
                _ => {
                    self.session.ping();
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
        match &self.link {
            Some(link) => link.suspected().await,
            None => pending().await,
        }
    }

    /// Waits until much of what the relay sends over QUIC is lost; answers with the round trip.
    pub(crate) async fn loses_much(&self) -> Duration {
        let Some(link) = &self.link else {
            return pending().await;
        };
        link.loses_much().await;
        self.ended();
        link.connection().rtt()
    }

    /// Lets the link be looked at soon.
    pub(crate) fn look_soon(&self) {
        if let Some(link) = &self.link {
            link.use_now();
        }
    }

    fn lease(self: &Arc<Self>) -> Lease {
        self.used.notify_one();
        self.look_soon();
        self.flows.fetch_add(1, Ordering::Relaxed);
        Lease(self.clone())
    }
}

/// The relay has no addresses for its clients.
fn not_bound() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "asking a relay for a UDP flow with a public address",
    )
}

/// The pause after this one, if any.
fn longer(pause: Duration) -> Option<Duration> {
    (pause < PROBE_LAST).then(|| (pause * 2).min(PROBE_LAST))
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

#[cfg(test)]
mod tests {
    use hoplite_http::h2;
    use hoplite_overlay::{Isolation, Opening};
    use hoplite_wire::privacy_pass::{Authenticator, TokenInput};
    use parking_lot::Mutex;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// What it was told.
    #[derive(Debug, Default)]
    struct Ear(Mutex<Vec<&'static str>>);

    impl TokenSource for Ear {
        fn take(&self, _: &Isolation) -> Opening<'_, PrivateToken> {
            Box::pin(pending())
        }

        fn accepted(&self) {
            self.0.lock().push("accepted");
        }

        fn refused(&self) {
            self.0.lock().push("refused");
        }

        fn ended(&self) {
            self.0.lock().push("ended");
        }
    }

    /// A connection that shows a token, the relay's end of it, and who gave the token.
    async fn connection() -> (Connection, DuplexStream, Arc<Ear>) {
        let (near, far) = duplex(1 << 16);
        let session = Session::tls_client(near, &h2::Config::default()).await;
        let input = TokenInput {
            nonce: [0; 32],
            challenge_digest: [0; 32],
            key_id: [0; 32],
        };
        let ear = Arc::<Ear>::default();
        let shown = Shown {
            token: PrivateToken::new(input, Authenticator::Voprf([0; 48])),
            source: Arc::clone(&ear) as _,
        };
        let session = session.expect("it begins");
        let connection = Connection::over(session, None, Some(shown), None);
        (connection, far, ear)
    }

    #[tokio::test]
    async fn only_a_refusal_before_a_connection_was_let_in_is_one_of_its_token() {
        for (status, first) in [(200, "accepted"), (407, "refused"), (401, "refused")] {
            let (connection, _far, ear) = connection().await;
            drop(connection.admitted(&ResponseHead::new(status)));
            assert_eq!(*ear.0.lock(), [first]);
            // Another connection takes its place in any case.
            for refusal in [407, 401] {
                let refused = connection.admitted(&ResponseHead::new(refusal));
                let reason = refused.expect_err("refused").reason();
                assert_eq!(reason, Some(Reason::Authentication));
                assert!(!connection.is_usable());
            }
            let then: &[_] = if status == 200 { &["ended"] } else { &[] };
            assert_eq!(ear.0.lock().split_first(), Some((&first, then)));
        }
    }

    #[tokio::test]
    async fn who_gives_tokens_is_told_that_a_connection_has_ended_unless_another_one_has_its_place()
    {
        for is_replaced in [false, true] {
            let (connection, far, ear) = connection().await;
            if is_replaced {
                connection.supersede();
            }
            drop(far);
            connection.closed().await;
            let told: &[_] = if is_replaced { &[] } else { &["ended"] };
            assert_eq!(*ear.0.lock(), told);
        }
    }
}
