//! One relay as an overlay: flows are CONNECT, CONNECT-UDP and CONNECT-IP requests on a warm connection to it.
//! A path is a chain of hops; each is dialled through the one before. RFC 9110 §9.3.6, RFC 9298 §3, RFC 9484 §4, RFC 8441, RFC 9220; names by
//! RFC 8484 §4.1.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_crypto::Token;
use hoplite_http::accepted;
use hoplite_link::{Dialer, Pad, Peer};
use hoplite_overlay::{
    Bound, Datagrams, Error, ErrorKind, Isolation, Opening, Overlay, Packets, Reason, Stream,
    Terms, names::look_up,
};
use hoplite_wire::{
    HostName, RequestHead, ResponseHead, Target, Template, connect_ip::Scope, dns,
    privacy_pass::PrivateToken, tuning::Agreed,
};
use zeroize::Zeroizing;

use crate::{
    Config, Mode, Passed, bound::BoundTunnel, connection::Connection, forward::Negotiation,
    gather::Gather, packets::PacketTunnel, pool::Pool, told::Told, tunnel::Tunnel,
};

/// What a client must know to use a relay.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Name, address and how to recognise it.
    pub peer: Peer,
    /// What the relay wants to see, if anything.
    pub token: Option<Token>,
    /// Where a token for each connection comes from, if the relay wants such.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// Its CONNECT-UDP template; the well-known one of RFC 9298 §2 if `None`.
    pub template: Option<String>,
    /// How packets pass it; as the configuration says if `None`.
    pub mode: Option<Mode>,
}

/// Tokens for one relay, none of which was ever shown: each is for one connection, so that no two of them are known to be the same client's.
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// One of them, for a connection of this isolation token; it is this caller's alone. It may have to be waited for. Any program can make up isolation
    /// tokens without end: the last tokens may be kept for connections without one.
    ///
    /// # Errors
    /// [`ErrorKind::Forbidden`] if they have run out.
    fn take(&self, isolation: &Isolation) -> Opening<'_, PrivateToken>;

    /// The relay has let a connection in for one of them.
    fn accepted(&self) {}

    /// The relay has refused one of them, which is lost.
    fn refused(&self) {}

    /// Whether the relay is shown none for a while, as it has refused too many.
    fn is_given_up(&self) -> bool {
        false
    }

    /// A connection that was shown one is lost, or is to be replaced, and the relay may be the one who wants it so: the next token may be taken at a moment
    /// that it has chosen.
    fn ended(&self) {}
}

/// An overlay that ends at one relay. Cheap to clone.
#[derive(Clone)]
pub struct Hop {
    name: Arc<str>,
    pool: Arc<Pool>,
    credentials: Arc<Credentials>,
    config: Arc<Config>,
    negotiation: Arc<Negotiation>,
    /// The first relay sees the client's address anyway: all tokens share one connection to it.
    shared: bool,
    /// The client's region, which the relay is shown if it is the last.
    told: Option<Arc<Told>>,
}

/// The round trip to a relay, the `number` of a path (the first is 0), through `below`: by QUIC's handshake, with nothing asked and no token shown.
///
/// # Errors
/// What dialling answered.
pub async fn round_trip(
    relay: Relay,
    number: usize,
    below: Arc<dyn Overlay>,
    config: &Config,
) -> Result<Duration, Error> {
    let mut link = config.link();
    link.tunnelled_below = number;
    let dialer = Dialer::new(below, relay.peer, number, link);
    let link = dialer.quic(&Terms::default()).await?;
    Ok(link.connection().rtt())
}

const BINDING: &str = "opening a UDP flow with a public address";

impl Hop {
    /// The hop `number` (the first is 0) of a path, reached through `below`.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if the relay's template is none of RFC 9298.
    pub fn new(
        relay: Relay,
        number: usize,
        below: Arc<dyn Overlay>,
        config: &Arc<Config>,
    ) -> Result<Self, Error> {
        Self::of_path(relay, number, below, config, (None, None))
    }

    /// As [`Self::new`]; into the first of `regions` goes the client's region that the relay tells, the second is what it is shown.
    pub(crate) fn of_path(
        relay: Relay,
        number: usize,
        below: Arc<dyn Overlay>,
        config: &Arc<Config>,
        regions: (Option<Arc<Told>>, Option<Arc<Told>>),
    ) -> Result<Self, Error> {
        let (hears, told) = regions;
        let credentials = Credentials::new(&relay)?;
        let negotiation = Negotiation::new(relay.mode(config), config);
        let name = Arc::from(relay.peer.name.as_str());
        let tokens = relay.tokens.clone();
        let dialer = Dialer::new(below, relay.peer, number, config.link());
        Ok(Self {
            name,
            pool: Pool::new(dialer, tokens, hears, config),
            credentials: Arc::new(credentials),
            config: config.clone(),
            negotiation: Arc::new(negotiation),
            shared: number == 0,
            told,
        })
    }

    /// What the configuration calls the relay.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the connection that flows without a token use, before the first flow needs it, and keeps it open from now on.
    pub fn keep_warm(&self) {
        self.pool.keep_warm();
    }

    /// Looks at its connections soon: the device's network may have changed. Without being told, that is noticed at the next look.
    pub fn network_changed(&self) {
        self.pool.network_changed();
    }

    /// Waits until the connection stands, or fails as the dialling did.
    ///
    /// # Errors
    /// What dialling answered.
    pub async fn connect(&self) -> Result<(), Error> {
        self.pool
            .connection(&Isolation::default())
            .await
            .map(|_| ())
    }

    /// Waits until the connection of a token stands, or fails as the dialling did.
    pub(crate) async fn connect_for(&self, token: &Isolation) -> Result<(), Error> {
        self.pool.connection(token).await.map(|_| ())
    }

    /// How long to wait after this many failures before it is dialled again.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.config.redial_pause * (1 << failures.min(5))
    }

    /// Whether its connection goes over QUIC, not TCP; `None` if there is none.
    pub fn is_over_quic(&self) -> Option<bool> {
        let connection = self.pool.current(&Isolation::default());
        connection.map(|connection| connection.version().is_over_quic())
    }

    /// The version of HTTP over which the hop is carried now: `h3` or `h2`; `None` while there is no connection.
    pub fn http_version(&self) -> Option<&'static str> {
        self.pool
            .current(&Isolation::default())
            .map(|connection| connection.version().name())
    }

    /// How both ends of it acknowledge and control congestion now, and what the relay refused; `None` without a QUIC connection.
    pub fn agreed(&self) -> Option<Agreed> {
        self.pool.current(&Isolation::default())?.agreed()
    }

    /// How many flows the connection carries that new ones take; a hop further on is one of them.
    pub fn flows(&self) -> usize {
        self.pool
            .current(&Isolation::default())
            .map_or(0, |connection| connection.flows())
    }

    /// Which way the datagrams of its UDP flows went; a hop further on is one of these flows.
    pub fn passed(&self) -> Passed {
        self.negotiation.passed()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Whether the relay has just refused a token, or too many.
    pub(crate) fn has_refused(&self) -> bool {
        self.pool.has_refused()
    }

    fn terms(&self, terms: &Terms) -> Terms {
        let mut terms = terms.clone();
        if self.shared {
            terms.isolation = Isolation::default();
        }
        if terms.deadline.is_none() {
            terms = terms.within(self.config.open_limit);
        }
        terms
    }

    /// Runs `ask` on an open connection. A connection that turns out dead, or falls silent, before it answered is replaced
    /// once: nothing of the flow has been sent to the target yet.
    async fn ask<T, F>(&self, terms: &Terms, ask: impl Fn(Arc<Connection>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.pool.connection(&terms.isolation).await?;
        let silent = || Error::new(ErrorKind::PathFailed, "waiting for a relay's answer");
        let answer = tokio::select! {
            answer = ask(connection.clone()) => answer,
            () = connection.suspected() => Err(silent()),
        };
        match answer {
            Err(error) if error.reason() == Some(Reason::Authentication) => {
                self.pool.refused();
                Err(error)
            }
            Err(error) if error.kind() == ErrorKind::PathFailed && !connection.is_usable() => {
                self.pool.given_up(&connection);
                self.pool.forget(&terms.isolation, &connection);
                ask(self.pool.connection(&terms.isolation).await?).await
            }
            answer => answer,
        }
    }

    async fn stream(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        self.ask(terms, |connection| async move {
            let head = self.located(self.credentials.connect(target));
            // A refused token would be noticed by nobody.
            if terms.early && connection.is_admitted() {
                // What is written to a stream that was handed out may have reached the target: it is not asked for again.
                connection.early_stream(&head, terms.deadline).await
            } else {
                connection.stream(&head).await
            }
        })
        .await
    }

    async fn tunnel(&self, target: &Target, terms: &Terms) -> Result<Tunnel, Error> {
        let queue = self.config.datagram_queue;
        self.ask(terms, |connection| async move {
            let head = self.located(self.credentials.connect_udp(target));
            Tunnel::open(connection, &head, queue, &self.negotiation).await
        })
        .await
    }

    /// With the client's region, as far as it is shown. Called once there is a connection: until then the first relay may have said nothing.
    fn located(&self, head: RequestHead) -> RequestHead {
        match &self.told {
            Some(told) => told.show(self.config.region, self.config.zone.as_ref(), head),
            None => head,
        }
    }

    async fn bound(&self, terms: &Terms) -> Result<BoundTunnel, Error> {
        let queue = self.config.datagram_queue;
        self.ask(terms, |connection| async move {
            if connection.has_no_bound_udp() {
                return Err(Error::new(ErrorKind::Unsupported, BINDING));
            }
            let head = self.located(self.credentials.bind());
            let opened = BoundTunnel::open(connection.clone(), &head, queue).await;
            opened.inspect_err(|error| {
                if error.kind() == ErrorKind::Unsupported {
                    connection.lacks_bound_udp();
                }
            })
        })
        .await
    }

    async fn packets(&self, scope: &Scope, terms: &Terms) -> Result<PacketTunnel, Error> {
        let queue = self.config.datagram_queue;
        self.ask(terms, |connection| async move {
            let head = self.located(self.credentials.connect_ip(scope));
            PacketTunnel::open(connection, &head, queue).await
        })
        .await
    }

    /// A flow of a program's: small payloads of it may share packets, if the configuration says so.
    pub(crate) async fn gathered(
        &self,
        target: &Target,
        terms: &Terms,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let terms = self.terms(terms);
        let opening = self.tunnel(target, &terms);
        let tunnel = terms.run("opening a UDP flow", opening).await?;
        Ok(if self.config.gather {
            Box::new(Gather::new(tunnel))
        } else {
            Box::new(tunnel)
        })
    }
}

impl Relay {
    /// How packets pass it.
    pub(crate) fn mode(&self, config: &Config) -> Mode {
        // What passes beside a connection is not padded by it.
        match config.pad {
            Pad::Full => Mode::Tunnelled,
            Pad::Off => self.mode.unwrap_or(config.mode),
        }
    }
}

impl Overlay for Hop {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            let terms = self.terms(terms);
            terms
                .run("opening a stream", self.stream(target, &terms))
                .await
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let terms = self.terms(terms);
            let opening = self.tunnel(target, &terms);
            let tunnel = terms.run("opening a UDP flow", opening).await?;
            Ok(Box::new(tunnel) as Box<dyn Datagrams>)
        })
    }

    /// MASQUE has no request that only resolves: two queries do.
    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let missing = |_| {
                let error = Error::new(ErrorKind::TargetFailed, "resolving a name");
                error.because(Reason::NameNotFound)
            };
            let name = HostName::new(name).map_err(missing)?;
            look_up(self, &name, terms).await
        })
    }

    /// DNS over HTTPS (RFC 8484) on the connection that flows use.
    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(async move {
            let terms = self.terms(terms);
            let head = self.credentials.query(message.len());
            let message = Bytes::copy_from_slice(message);
            let asking = self.ask(&terms, |connection| {
                connection.query(&head, message.clone())
            });
            terms.run("asking a relay's resolver", asking).await
        })
    }

    fn open_bound<'a>(&'a self, terms: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        Box::pin(async move {
            if !self.config.bound_udp {
                return Err(Error::new(ErrorKind::Unsupported, BINDING));
            }
            let terms = self.terms(terms);
            let opened = terms.run(BINDING, self.bound(&terms)).await?;
            Ok(Arc::new(opened) as Arc<dyn Bound>)
        })
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(async move {
            let terms = self.terms(terms);
            let opening = self.packets(scope, &terms);
            let tunnel = terms.run("opening a flow of packets", opening).await?;
            Ok(Box::new(tunnel) as Box<dyn Packets>)
        })
    }
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hop")
            .field("http_version", &self.http_version())
            .finish_non_exhaustive()
    }
}

/// What every request to one relay carries.
#[derive(Debug)]
struct Credentials {
    authority: String,
    template: Template,
    token: Option<Token>,
}

impl Credentials {
    fn new(relay: &Relay) -> Result<Self, Error> {
        let template = match &relay.template {
            Some(text) => text.parse().map_err(|error| {
                let doing = format!("reading the template of relay {}", relay.peer.name);
                Error::new(ErrorKind::Bug, doing).caused_by(error)
            })?,
            None => Template::well_known(),
        };
        let own = relay.peer.address.to_string();
        let authority = template.authority().map_or(own, str::to_owned);
        Ok(Self {
            authority,
            template,
            token: relay.token.clone(),
        })
    }

    /// A TCP flow. A proxy's credentials stand in Proxy-Authorization (RFC 9110 §11.7.1).
    fn connect(&self, target: &Target) -> RequestHead {
        self.authorized(
            RequestHead::connect(target.to_string()),
            "proxy-authorization",
        )
    }

    /// A UDP flow. The template is a resource of the relay's own, hence Authorization (RFC 9298 §7).
    fn connect_udp(&self, target: &Target) -> RequestHead {
        let head = RequestHead::connect_udp(self.authority.clone(), self.template.expand(target));
        self.authorized(head, "authorization")
    }

    /// A UDP flow with an address of its own, for whatever targets.
    fn bind(&self) -> RequestHead {
        let path = self.template.expand_any();
        let head = RequestHead::connect_udp(self.authority.clone(), path).with_bind();
        self.authorized(head, "authorization")
    }

    /// A flow of IP packets, by the well-known template.
    fn connect_ip(&self, scope: &Scope) -> RequestHead {
        let head = RequestHead::connect_ip(self.authority.clone(), scope.path());
        self.authorized(head, "authorization")
    }

    /// A DNS query of this many bytes. As the template it is a resource of the relay's own.
    fn query(&self, bytes: usize) -> RequestHead {
        let head = RequestHead {
            method: "POST".into(),
            scheme: Some("https".into()),
            path: Some(dns::PATH.into()),
            ..RequestHead::connect(self.authority.clone())
        };
        let head = head
            .with("accept", dns::MEDIA_TYPE)
            .with("content-type", dns::MEDIA_TYPE)
            .with("content-length", bytes.to_string());
        self.authorized(head, "authorization")
    }

    fn authorized(&self, head: RequestHead, field: &str) -> RequestHead {
        match &self.token {
            Some(token) => {
                let value = Zeroizing::new(format!("Bearer {}", token.reveal()));
                head.with(field, value.as_bytes())
            }
            None => head,
        }
    }
}

/// A success with a DNS message behind it. A relay without DNS knows no such path, or no such method.
pub(crate) fn answered(answer: &ResponseHead) -> Result<(), Error> {
    let doing = "asking a relay that does not answer DNS queries";
    let unsupported = || Err(Error::new(ErrorKind::Unsupported, doing));
    if matches!(answer.status, 404 | 405 | 501) {
        return unsupported();
    }
    accepted(answer)?;
    match answer.header("content-type") {
        Some(value) if value.eq_ignore_ascii_case(dns::MEDIA_TYPE.as_bytes()) => Ok(()),
        _ => unsupported(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_dns_message_is_none() {
        let page = ResponseHead::new(200).with("content-type", "text/html");
        let error = answered(&page).expect_err("a page");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let reply = ResponseHead::new(200).with("content-type", "application/dns-message");
        answered(&reply).expect("a reply");
    }
}
