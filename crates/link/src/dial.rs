//! Dials a relay through an overlay: QUIC, TLS over TCP, or both raced as Happy Eyeballs does (RFC 8305).
//! The overlay is `direct` for the first hop of a path and the hop before for the others.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use hoplite_crypto::{ALPN_CHANNEL, ALPN_H2, ALPN_H3, Trust, client_tls};
use hoplite_overlay::{Error, ErrorKind, Isolation, Overlay, Reason, Stream, Terms};
use hoplite_quic::{
    ClientConfig, Connection, ConnectionController, ConnectionError, Endpoint, EndpointConfig,
    Hooks, crypto::rustls::QuicClientConfig, liveness::Pulse, timer::Timers,
};
use hoplite_wire::Target;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use crate::{
    Bypass, Config,
    health::Watch,
    socket::{PEER, VirtualSocket},
};

#[cfg(test)]
mod tests;

/// A relay as the dialler sees it.
#[derive(Clone)]
pub struct Peer {
    /// What the user calls it; it stands in errors.
    pub name: String,
    /// Where it listens, both UDP and TCP.
    pub address: Target,
    /// How it is recognised.
    pub trust: Trust,
}

/// Makes links to one relay.
pub struct Dialer {
    overlay: Arc<dyn Overlay>,
    peer: Peer,
    config: Config,
    place: HopName,
}

/// An open link.
#[derive(Debug)]
pub enum Link {
    /// Over UDP.
    Quic(QuicLink),
    /// Over TCP.
    Tls(Box<TlsLink>),
}

/// What links and channels run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// QUIC.
    Quic,
    /// TLS over TCP.
    Tls,
}

impl LinkKind {
    /// What files and command lines call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Tls => "tls",
        }
    }
}

impl FromStr for LinkKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Quic, Self::Tls].into_iter();
        let mut called = known.filter(|kind| kind.name() == text);
        called.next().ok_or("expected \"quic\" or \"tls\"")
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A QUIC connection to a relay that is watched: it moves when the device does, and ends soon after the relay is gone.
pub struct QuicLink {
    connection: Connection,
    controller: ConnectionController,
    bypass: Arc<Bypass>,
    pulse: Arc<Pulse>,
    watch: tokio::task::JoinHandle<()>,
    flows: Arc<AtomicUsize>,
    hop: usize,
}

/// A handshake of TCP and one of TLS take two round trips, and a third may be the last one's bad luck.
const HANDSHAKES: u32 = 3;

/// What both ends' machines may need beside; a packet of theirs that is lost costs as much at least, and the first one a second (RFC 6298 §2).
const UNHARMED: Duration = Duration::from_millis(200);

impl Dialer {
    /// Dials `peer`, the relay number `hop` of its path (the first is 0), through `overlay`.
    pub fn new(overlay: Arc<dyn Overlay>, peer: Peer, hop: usize, config: Config) -> Self {
        let place = HopName {
            hop,
            relay: peer.name.clone(),
        };
        Self {
            overlay,
            peer,
            config,
            place,
        }
    }

    /// Whichever of QUIC and TLS is ready first; QUIC starts first, and TLS is the fallback where UDP does not get through.
    ///
    /// # Errors
    /// The failure that tells more, if both fail. A wrong identity over QUIC ends the race at once, and one over TLS when QUIC has not answered soon either: a
    /// box on the way that answers TCP with a certificate of its own keeps nobody from a relay that QUIC reaches.
    pub async fn race(&self, terms: &Terms) -> Result<Link, Error> {
        let (ready, failed) = (Notify::new(), Notify::new());
        let quic = async {
            let answer = self.quic_over(terms, &ready).await;
            failed.notify_one();
            answer.map(Link::Quic)
        };
        let tls = async {
            tokio::select! {
                biased;
                // The path may have to be dialled itself: that is no delay of QUIC's.
                () = ready.notified() => {
                    drop(tokio::time::timeout(self.config.head_start, failed.notified()).await);
                }
                () = failed.notified() => {}
            }
            self.tls(terms).await.map(Box::new).map(Link::Tls)
        };
        first_of(quic, tls).await
    }

    /// A QUIC link.
    ///
    /// # Errors
    /// [`ErrorKind::EntryUnreachable`] for the first hop, [`ErrorKind::PathFailed`] for the others, with
    /// [`Reason::Identity`] where the relay is not the expected one; what the overlay says of authentication.
    pub async fn quic(&self, terms: &Terms) -> Result<QuicLink, Error> {
        self.quic_over(terms, &Notify::new()).await
    }

    /// A TLS link whose handshakes come about as if nothing was lost on the way, whose round trip `rtt` is: beside a QUIC link that loses much, and
    /// which one that is slow itself could not help.
    ///
    /// # Errors
    /// As [`Self::tls`].
    pub async fn tls_unharmed(&self, terms: &Terms, rtt: Duration) -> Result<TlsLink, Error> {
        let answer = tokio::time::timeout(HANDSHAKES * rtt + UNHARMED, self.tls(terms)).await;
        answer.unwrap_or_else(|_| Err(self.place.unreachable().because(Reason::HostUnreachable)))
    }

    /// A QUIC link; `ready` is told when the path stands and the handshake begins.
    async fn quic_over(&self, terms: &Terms, ready: &Notify) -> Result<QuicLink, Error> {
        let terms = self.hurried(terms);
        let handshake = self.handshake(&terms, ready);
        let answer = tokio::time::timeout(self.config.handshake, handshake).await;
        answer.unwrap_or_else(|_| Err(self.place.unreachable().because(Reason::HostUnreachable)))
    }

    /// The terms with the nearer of the two deadlines: the caller's or that of a handshake.
    fn hurried(&self, terms: &Terms) -> Terms {
        let own = terms.clone().within(self.config.handshake);
        match (terms.deadline, own.deadline) {
            (Some(asked), Some(limit)) if asked < limit => terms.clone(),
            _ => own,
        }
    }

    async fn handshake(&self, terms: &Terms, ready: &Notify) -> Result<QuicLink, Error> {
        let opened = self.overlay.open_datagrams(&self.peer.address, terms).await;
        let flow = opened.map_err(|error| self.place.below(error))?;
        ready.notify_one();
        let controller = self.config.controller();
        let config = self.client_config(flow.max_payload(), &controller)?;
        let flow_ended = Arc::new(Notify::new());
        let bypass = Arc::<Bypass>::default();
        let pulse = Pulse::new();
        let flows = Arc::<AtomicUsize>::default();
        let segments = self.config.receive_segments;
        let socket = VirtualSocket::new(flow, flow_ended.clone(), &bypass, &pulse, segments);
        let endpoint = self.endpoint(socket.clone(), timers(&terms.isolation))?;
        let name = self.peer.server_name();
        let connecting = endpoint
            .connect_with(config, PEER, &name)
            .map_err(|e| self.bug(e))?;
        let connection = tokio::select! {
            biased;
            answer = connecting => answer.map_err(|error| self.place.quic(error))?,
            () = flow_ended.notified() => return Err(self.place.below(socket.failure())),
        };
        self.config.adapt_windows(&connection);
        let watch = Watch {
            overlay: self.overlay.clone(),
            peer: self.peer.clone(),
            terms: Terms {
                isolation: terms.isolation.clone(),
                ..Terms::default()
            },
            config: self.config.clone(),
            hop: self.place.hop,
            endpoint,
            connection: connection.clone(),
            controller: controller.clone(),
            socket: Arc::downgrade(&socket),
            bypass: bypass.clone(),
            flow_ended,
            pulse: pulse.clone(),
            flows: flows.clone(),
        };
        Ok(QuicLink {
            connection,
            controller,
            bypass,
            pulse,
            watch: tokio::spawn(watch.run()),
            flows,
            hop: self.place.hop,
        })
    }

    fn endpoint(&self, socket: Arc<VirtualSocket>, timers: Timers) -> Result<Endpoint, Error> {
        let mut config = EndpointConfig::default();
        config.rng_seed(self.config.seed);
        // The peer's packets are no larger than ours: then both ends find the same MTU.
        let largest = u16::try_from(self.config.largest()).unwrap_or(u16::MAX);
        config
            .max_udp_payload_size(largest)
            .map_err(|e| self.bug(e))?;
        Endpoint::with_socket(config, None, socket, timers).map_err(|error| self.bug(error))
    }

    fn client_config(
        &self,
        carried: usize,
        controller: &ConnectionController,
    ) -> Result<ClientConfig, Error> {
        let tls =
            client_tls(&self.peer.trust, &[self.peer.quic_protocol()]).map_err(|e| self.bug(e))?;
        let crypto = QuicClientConfig::try_from(tls).map_err(|e| self.bug(e))?;
        let label = format!("hop{}", self.place.hop + 1);
        let hooks = controller.hooks(&Hooks {
            // A relay that is hostile, too, may have the stack hold no more than a few windows.
            window: Some(u64::from(self.config.connection_window)),
            ..self.config.hooks.clone()
        });
        let mut config = ClientConfig::new(hooks.client(Arc::new(crypto), &label));
        let mut transport = self.config.transport(self.place.hop, carried);
        controller.configure_transport(&mut transport);
        config.transport_config(Arc::new(transport));
        Ok(config)
    }

    fn bug(&self, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        let doing = format!("preparing a connection to relay {}", self.peer.name);
        Error::new(ErrorKind::Bug, doing).caused_by(error)
    }
}

/// What all flows share beats together, so that a device at rest seldom wakes. Connections of isolation tokens do not: a relay that has two would know
/// by their beat that they are one client's.
fn timers(isolation: &Isolation) -> Timers {
    if *isolation == Isolation::default() {
        Timers::Coinciding
    } else {
        Timers::Exact
    }
}

/// For so long QUIC may go on with its handshake once a wrong identity was shown over TLS.
const AFTER_IDENTITY: Duration = Duration::from_secs(3);

/// The first success; if both fail, the more telling failure. A wrong identity is final, but for what is under way.
async fn first_of(
    quic: impl Future<Output = Result<Link, Error>>,
    tls: impl Future<Output = Result<Link, Error>>,
) -> Result<Link, Error> {
    tokio::pin!(quic, tls);
    let (first, quic_was_first) = tokio::select! {
        biased;
        answer = &mut quic => (answer, true),
        answer = &mut tls => (answer, false),
    };
    let error = match first {
        Err(error) if error.reason() != Some(Reason::Identity) => error,
        Err(error) if !quic_was_first => {
            let link = tokio::time::timeout(AFTER_IDENTITY, quic).await;
            return link.ok().and_then(Result::ok).ok_or(error);
        }
        answer => return answer,
    };
    let second = if quic_was_first {
        tls.await
    } else {
        quic.await
    };
    second.map_err(|other| {
        if other.reason().is_some() {
            other
        } else {
            error
        }
    })
}

impl Peer {
    /// The name in the TLS handshake: the host, whatever it is. An address is not sent (RFC 6066 §3).
    fn server_name(&self) -> String {
        let text = self.address.host.to_string();
        text.trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned()
    }
}

impl Peer {
    /// What is spoken over QUIC.
    fn quic_protocol(&self) -> &'static [u8] {
        match self.trust {
            Trust::Channel => ALPN_CHANNEL,
            _ => ALPN_H3,
        }
    }

    /// What is spoken over TLS; on channels as Tor has it, which names nothing.
    fn tls_protocol(&self) -> Option<&'static [u8]> {
        match self.trust {
            Trust::Channel => None,
            _ => Some(ALPN_H2),
        }
    }
}

impl QuicLink {
    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The way for packets that pass beside the connection.
    pub fn bypass(&self) -> &Arc<Bypass> {
        &self.bypass
    }

    /// What steers it.
    pub fn controller(&self) -> &ConnectionController {
        &self.controller
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// Whether new flows should use it: it has not ended, and nothing waits for an answer for suspiciously long.
    pub fn is_answering(&self) -> bool {
        self.is_alive() && !self.pulse.is_suspect()
    }

    /// Somebody is about to use it: if it is dead, that should be noticed soon.
    pub fn use_now(&self) {
        self.pulse.use_now();
    }

    /// Waits until it is more than kept alive: something goes over it that is nobody's sign of life.
    pub async fn stirred(&self) {
        self.pulse.stirred().await;
    }

    /// What tells whether it answers, for who does not hold the link itself.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// How many flows it carries: whoever opens one counts it. One without any has no need to move at once.
    pub fn flows(&self) -> &Arc<AtomicUsize> {
        &self.flows
    }

    /// Waits until much of what the relay sends is lost, for [`Config::lossy_after`]. Never, where the relay is not the first of its path.
    pub async fn loses_much(&self) {
        if self.hop > 0 {
            std::future::pending::<()>().await;
        }
        self.pulse.loses_much().await;
    }

    /// Waits until it does not answer. It may answer again.
    pub async fn suspected(&self) {
        self.pulse.suspected().await;
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        self.connection.close(0u32.into(), b"");
        self.watch.abort();
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for QuicLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicLink")
    }
}

// TLS over a stream of the overlay below, for HTTP/2 or a channel: what is left when UDP is blocked.

/// A TLS connection to a relay that speaks HTTP/2, or cells.
pub struct TlsLink(TlsStream<Stream>);

impl TlsLink {
    /// The stream of bytes, for an HTTP/2 session or a channel.
    pub fn into_inner(self) -> TlsStream<Stream> {
        self.0
    }
}

impl Dialer {
    /// A TLS link.
    ///
    /// # Errors
    /// As [`Dialer::quic`].
    pub async fn tls(&self, terms: &Terms) -> Result<TlsLink, Error> {
        let terms = self.hurried(terms);
        let answer = tokio::time::timeout(self.config.handshake, self.tls_handshake(&terms)).await;
        answer.unwrap_or_else(|_| Err(self.place.unreachable().because(Reason::HostUnreachable)))
    }

    async fn tls_handshake(&self, terms: &Terms) -> Result<TlsLink, Error> {
        let opened = self.overlay.open_stream(&self.peer.address, terms).await;
        let stream = opened.map_err(|error| self.place.below(error))?;
        let protocol = self.peer.tls_protocol();
        let config = client_tls(&self.peer.trust, protocol.as_slice()).map_err(|e| self.bug(e))?;
        let name = ServerName::try_from(self.peer.server_name()).map_err(|e| self.bug(e))?;
        let connector = TlsConnector::from(Arc::new(config));
        let tls = connector
            .connect(name, stream)
            .await
            .map_err(|e| self.place.tls(e))?;
        if tls.get_ref().1.alpn_protocol() != protocol {
            let doing = format!("speaking HTTP/2 with relay {}", self.peer.name);
            return Err(Error::new(ErrorKind::Unsupported, doing));
        }
        Ok(TlsLink(tls))
    }
}

impl fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsLink")
    }
}

// What a failure on the way to a relay means to the user: the entry, the path, or an identity that is not the expected
// one.

/// Which hop of which relay failed.
#[derive(Clone, Debug)]
struct HopName {
    hop: usize,
    relay: String,
}

/// Whether our TLS side ended the handshake because the relay is not the expected one (alerts of RFC 8446 §6.2):
/// bad_certificate to access_denied, decrypt_error (it shows a certificate whose key it does not have),
/// bad_certificate_status_response.
fn is_identity_alert(code: u64) -> bool {
    matches!(code.checked_sub(0x100), Some(42..=49 | 51 | 113))
}

impl HopName {
    /// A failure to reach the relay at all.
    fn unreachable(&self) -> Error {
        let kind = if self.hop == 0 {
            ErrorKind::EntryUnreachable
        } else {
            ErrorKind::PathFailed
        };
        Error::new(kind, format!("connecting to relay {}", self.relay))
    }

    /// What the overlay below said when it was asked for a flow to the relay.
    fn below(&self, error: Error) -> Error {
        let telling = matches!(error.kind(), ErrorKind::EntryUnreachable | ErrorKind::Bug)
            || error.reason() == Some(Reason::Authentication);
        if telling && self.hop > 0 {
            return error;
        }
        let reason = error.reason();
        let failure = self.unreachable().caused_by(error);
        match reason {
            Some(reason) => failure.because(reason),
            None => failure,
        }
    }

    /// A QUIC connection that failed or ended.
    fn quic(&self, error: ConnectionError) -> Error {
        let failure = self.unreachable();
        let failure = match &error {
            ConnectionError::TransportError(e) if is_identity_alert(e.code.into()) => {
                failure.because(Reason::Identity)
            }
            _ => failure,
        };
        failure.caused_by(error)
    }

    /// A TLS handshake that failed.
    fn tls(&self, error: std::io::Error) -> Error {
        let failure = self.unreachable();
        if hoplite_crypto::is_identity_mismatch(&error) {
            return failure.because(Reason::Identity).caused_by(error);
        }
        failure.caused_by(error)
    }
}
