//! One relay as an overlay: flows are CONNECT, CONNECT-UDP and CONNECT-IP requests on a warm connection to it.
//! A path is a chain of hops; each is dialled through the one before. RFC 9110 §9.3.6, RFC 9298 §3, RFC 9484 §4, RFC 8441, RFC 9220; names by RFC 8484.

use std::{fmt, net::IpAddr, sync::Arc};

use bytes::Bytes;
use hoplite_crypto::Token;
use hoplite_link::{Agreed, Dialer, Peer};
use hoplite_overlay::{
    Datagrams, Error, ErrorKind, Isolation, Opening, Overlay, Packets, Reason, Stream, Terms,
    names::look_up,
};
use hoplite_wire::{HostName, Target, connect_ip::Scope};

use crate::{
    Config, Forwarding, Mode, Passed, connection::Connection, forward::Negotiation, gather::Gather,
    packets::PacketTunnel, pool::Pool, request::Credentials, tunnel::Tunnel,
};

/// What a client must know to use a relay.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Name, address and how to recognise it.
    pub peer: Peer,
    /// What the relay wants to see, if anything.
    pub token: Option<Token>,
    /// Its CONNECT-UDP template; the well-known one of RFC 9298 §2 if `None`.
    pub template: Option<String>,
    /// How packets pass it; as the configuration says if `None`.
    pub mode: Option<Mode>,
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
}

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
        let credentials = Credentials::new(&relay)?;
        let forwarding = Forwarding {
            mode: relay.mode(config),
            ..config.forwarding.clone()
        };
        let name = Arc::from(relay.peer.name.as_str());
        let dialer = Dialer::new(below, relay.peer, number, config.link.clone());
        Ok(Self {
            name,
            pool: Pool::new(dialer, config),
            credentials: Arc::new(credentials),
            config: config.clone(),
            negotiation: Arc::new(Negotiation::new(forwarding)),
            shared: number == 0,
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
    pub fn look(&self) {
        self.pool.look();
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

    /// The same for the connection of a token.
    pub(crate) async fn connect_for(&self, token: &Isolation) -> Result<(), Error> {
        self.pool.connection(token).await.map(|_| ())
    }

    /// How long to wait after so many failures before it is dialled again.
    pub(crate) fn pause(&self, failures: u32) -> std::time::Duration {
        self.config.redial_pause * (1 << failures.min(5))
    }

    /// How the hop is carried now: `h3` or `h2`; `None` while there is no connection.
    pub fn carrier(&self) -> Option<&'static str> {
        self.pool
            .current(&Isolation::default())
            .map(|connection| connection.version().alpn())
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

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
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
            Err(error) if error.kind() == ErrorKind::PathFailed && !connection.is_usable() => {
                self.pool.forget(&terms.isolation, &connection);
                ask(self.pool.connection(&terms.isolation).await?).await
            }
            answer => answer,
        }
    }

    async fn stream(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let head = self.credentials.connect(target);
        match terms.early {
            // What is written to a stream that was handed out may have reached the target: it is not asked for again.
            true => {
                let ask =
                    |connection: Arc<Connection>| connection.early_stream(&head, terms.deadline);
                self.ask(terms, ask).await
            }
            false => self.ask(terms, |connection| connection.stream(&head)).await,
        }
    }

    async fn tunnel(&self, target: &Target, terms: &Terms) -> Result<Tunnel, Error> {
        let head = self.credentials.connect_udp(target);
        let queue = self.config.datagram_queue;
        self.ask(terms, |connection| {
            Tunnel::open(connection, &head, queue, &self.negotiation)
        })
        .await
    }

    async fn packets(&self, scope: &Scope, terms: &Terms) -> Result<PacketTunnel, Error> {
        let head = self.credentials.connect_ip(scope);
        let queue = self.config.datagram_queue;
        self.ask(terms, |connection| {
            PacketTunnel::open(connection, &head, queue)
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
        Ok(match self.config.gather {
            true => Box::new(Gather::new(tunnel)),
            false => Box::new(tunnel),
        })
    }
}

impl Relay {
    /// How packets pass it.
    pub(crate) fn mode(&self, config: &Config) -> Mode {
        // What passes beside a connection is not padded by it.
        match config.link.pad {
            true => Mode::Tunnelled,
            false => self.mode.unwrap_or(config.forwarding.mode),
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
            .field("carrier", &self.carrier())
            .finish_non_exhaustive()
    }
}
