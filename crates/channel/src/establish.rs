//! Dials channels: the link of [`hoplite_link::Dialer`] (QUIC, TLS, or both raced), and the link handshake on it.
//! `onion` dials its guards with it, a relay the next relay of a circuit. Whom TLS talks to is proven by the link handshake alone.

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use hoplite_crypto::Trust;
use hoplite_link::{Dialer, Link, LinkKind, Peer, QuicLink, TlsLink};
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_quic::{Connection, RecvStream, SendStream};
use hoplite_wire::{Host, Target, cell::Reader};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{client, server::TlsStream};

use super::{
    Channel, Config, Counts, Inner, Rival, Shares, Standing, Transport,
    handshake::{Around, Binding, Established, Handshake, Refused, Us},
    ids::Ids,
    padding::{Padding, PaddingEnd},
    quic, tls,
};

/// What is dialled for a channel. What it comes to is a [`LinkKind`](hoplite_link::LinkKind).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Whichever is there first; QUIC starts first. For relays of which it is not known.
    #[default]
    #[serde(rename = "auto")]
    Raced,
    /// QUIC.
    Quic,
    /// TLS over TCP.
    Tls,
}

/// A relay to be dialled.
#[derive(Clone, PartialEq, Eq)]
pub struct Whom {
    /// What it is called in errors.
    pub name: String,
    /// Where it listens, both UDP and TCP.
    pub address: Target,
    /// Its Ed25519 identity; without one, whoever is there will do.
    pub identity: Option<[u8; 32]>,
    /// The RSA identity that it must have shown as well, if one is named.
    pub rsa: Option<[u8; 20]>,
}

/// Makes channels to relays, over an overlay.
#[derive(Clone)]
pub struct ChannelDialer {
    overlay: Arc<dyn Overlay>,
    us: Arc<Mutex<Us>>,
    link: hoplite_link::Config,
    config: Config,
    counts: Arc<Counts>,
}

impl ChannelDialer {
    /// Dials through `overlay` (usually `direct`) as `us`.
    pub fn new(
        overlay: Arc<dyn Overlay>,
        us: Us,
        link: &hoplite_link::Config,
        config: Config,
        counts: Arc<Counts>,
    ) -> Self {
        let link = config.greeting(link);
        Self {
            overlay,
            us: Arc::new(Mutex::new(us)),
            link,
            config,
            counts,
        }
    }

    /// From now on `us` is this: keys were renewed. It holds for clones, too.
    pub fn show(&self, us: Us) {
        *self.us.lock() = us;
    }

    /// The configuration of its channels.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether a channel that we dialled goes before one that the relay of this identity dialled. A client's always does.
    pub(super) fn goes_first(&self, identity: &[u8; 32]) -> bool {
        let us = self.us.lock().identity.clone();
        us.is_none_or(|us| us.peer().ed25519 < *identity)
    }

    /// A new channel to `whom`.
    ///
    /// # Errors
    /// As [`Dialer::race`]; [`Reason::Identity`] also where the link handshake shows that the relay is not the one.
    pub async fn dial(&self, whom: &Whom, how: How, terms: &Terms) -> Result<Channel, Error> {
        let dialer = self.dialer(whom);
        let link = match how {
            How::Raced => Box::pin(dialer.race(terms)).await?,
            How::Quic => Link::Quic(Box::pin(dialer.quic(terms)).await?),
            How::Tls => Link::Tls(Box::new(dialer.tls(terms).await?)),
        };
        self.over(link, whom).await
    }

    /// A new channel over TLS beside one over QUIC that loses much, whose round trip `rtt` is.
    ///
    /// # Errors
    /// As [`Self::dial`]; also where what makes QUIC slow makes TLS slow, too.
    pub(super) async fn dial_unharmed(
        &self,
        whom: &Whom,
        rtt: Duration,
        terms: &Terms,
    ) -> Result<Channel, Error> {
        let link = self.dialer(whom).tls_unharmed(terms, rtt).await?;
        self.over(Link::Tls(Box::new(link)), whom).await
    }

    fn dialer(&self, whom: &Whom) -> Dialer {
        let peer = Peer {
            name: whom.name.clone(),
            address: whom.address.clone(),
            trust: Trust::Channel,
        };
        Dialer::new(Arc::clone(&self.overlay), peer, 0, self.link.clone())
    }

    async fn over(&self, link: Link, whom: &Whom) -> Result<Channel, Error> {
        let made = match link {
            Link::Quic(link) => Box::pin(self.over_quic(link, whom)).await,
            Link::Tls(link) => Box::pin(self.over_tls(*link, whom)).await,
        };
        made.map_err(|refused| failure(&whom.name, refused))
    }

    async fn over_quic(&self, link: QuicLink, whom: &Whom) -> Result<Channel, Refused> {
        let connection = link.connection().clone();
        let handshake = self.handshake(shown(&connection)?, whom);
        let opened = timeout(self.config.handshake, connection.open_bi()).await;
        let opened = opened.map_err(|_| Refused::TimedOut)?;
        let control = opened.map_err(|_| Refused::Ended)?;
        let maker = self.maker(whom);
        maker.quic(connection, Some(link), control, handshake).await
    }

    async fn over_tls(&self, link: TlsLink, whom: &Whom) -> Result<Channel, Refused> {
        let stream = link.into_inner();
        let certificate = certificate_of(stream.get_ref().1.peer_certificates())?;
        let handshake = self.handshake(certificate, whom);
        self.maker(whom).tls(stream, handshake).await
    }

    fn handshake(&self, certificate: [u8; 32], whom: &Whom) -> Handshake {
        let binding = Binding {
            certificate,
            remote: address(whom),
        };
        Handshake::initiator(self.us.lock().clone(), whom.identity, binding, &self.config)
    }

    fn maker(&self, whom: &Whom) -> Maker<'_> {
        Maker {
            config: &self.config,
            counts: &self.counts,
            initiator: true,
            known: self.us.lock().identity.is_some(),
            target: Some(whom.address.clone()),
            remote: address(whom),
        }
    }
}

fn address(whom: &Whom) -> Option<IpAddr> {
    match &whom.address.host {
        Host::Ip(address) => Some(*address),
        Host::Name(_) => None,
    }
}

pub(super) fn shown(connection: &Connection) -> Result<[u8; 32], Refused> {
    let chain = connection.peer_identity();
    let chain = chain.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    certificate_of(chain.as_ref().map(|chain| chain.as_slice()))
}

/// What a refusal means to whoever wanted the channel: another relay, or a wrong one.
fn failure(relay: &str, refused: Refused) -> Error {
    let doing = format!("making a channel to relay {relay}");
    let kind = match &refused {
        Refused::TimedOut => ErrorKind::TimedOut,
        Refused::Own(_) => ErrorKind::Bug,
        Refused::Versions | Refused::NoMethod => ErrorKind::Unsupported,
        _ => ErrorKind::PathFailed,
    };
    let identity = matches!(refused, Refused::Identity(_) | Refused::Ourselves);
    let error = Error::new(kind, doing).caused_by(refused);
    if identity {
        return error.because(Reason::Identity);
    }
    error
}

impl fmt::Debug for ChannelDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDialer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Whom")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

// The serving end of channels: takes what `relay` accepted, a TLS stream or a QUIC connection, and makes a channel of
// it. Which of a shard's connections are channels is said by ALPN ([`hoplite_crypto::ALPN_CHANNEL`]), over TCP by
// none at all: Tor has none.

/// Makes channels of accepted connections.
pub struct ChannelServer {
    shown: Mutex<Shown>,
    config: Config,
    counts: Arc<Counts>,
}

/// Who we are, and the certificate that TLS shows.
#[derive(Clone)]
struct Shown {
    us: Us,
    certificate: [u8; 32],
}

impl ChannelServer {
    /// For a relay; `certificate` is the SHA-256 of the certificate that its TLS shows.
    pub fn new(us: Us, certificate: [u8; 32], config: Config, counts: Arc<Counts>) -> Self {
        Self {
            shown: Mutex::new(Shown { us, certificate }),
            config,
            counts,
        }
    }

    /// From now on `us` and the certificate are these: keys were renewed or the certificate replaced.
    pub fn show(&self, us: Us, certificate: [u8; 32]) {
        *self.shown.lock() = Shown { us, certificate };
    }

    /// A channel over a TLS stream from `remote`.
    ///
    /// # Errors
    /// [`Refused`]; the stream is closed.
    pub async fn tls<S>(
        &self,
        stream: TlsStream<S>,
        remote: Option<IpAddr>,
    ) -> Result<Channel, Refused>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = self.handshake(remote);
        self.maker(remote).tls(stream, handshake).await
    }

    /// A channel over a QUIC connection. Until the peer has said who it is, it has [`Config::guest_circuits`] streams at most if the
    /// connection was accepted so, and [`Config::greeting_window`].
    ///
    /// # Errors
    /// [`Refused`]; the connection is closed.
    pub async fn quic(&self, connection: Connection) -> Result<Channel, Refused> {
        let remote = Some(connection.remote_address().ip());
        let first = timeout(self.config.handshake, connection.accept_bi()).await;
        let control = match first {
            Ok(Ok(control)) => control,
            missing => {
                self.counts.refused.up();
                connection.close(0u32.into(), b"");
                let late = missing.is_err();
                return Err(if late {
                    Refused::TimedOut
                } else {
                    Refused::Ended
                });
            }
        };
        let handshake = self.handshake(remote);
        let made = self.maker(remote);
        let made = made
            .quic(connection.clone(), None, control, handshake)
            .await;
        made.inspect_err(|_| connection.close(0u32.into(), b""))
    }

    fn handshake(&self, remote: Option<IpAddr>) -> Handshake {
        let shown = self.shown.lock().clone();
        let binding = Binding {
            certificate: shown.certificate,
            remote,
        };
        Handshake::responder(shown.us, binding, &self.config)
    }

    fn maker(&self, remote: Option<IpAddr>) -> Maker<'_> {
        Maker {
            config: &self.config,
            counts: &self.counts,
            initiator: false,
            known: true,
            target: None,
            remote,
        }
    }
}

impl fmt::Debug for ChannelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelServer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

// Drives a link handshake over a stream of bytes: TLS, or the control stream of QUIC. What
// comes of it is a channel.

/// How much is read at once, in bytes.
const READ_SIZE: usize = 4096;

/// What both ends of a channel need, whatever it runs over.
pub(super) struct Maker<'a> {
    pub(super) config: &'a Config,
    pub(super) counts: &'a Arc<Counts>,
    pub(super) initiator: bool,
    /// Whether we show who we are.
    pub(super) known: bool,
    /// Where it was dialled.
    pub(super) target: Option<Target>,
    pub(super) remote: Option<IpAddr>,
}

impl Maker<'_> {
    /// A channel over a TLS stream.
    pub(super) async fn tls<S>(
        &self,
        mut stream: S,
        handshake: Handshake,
    ) -> Result<Channel, Refused>
    where
        S: KeyExporter + Send + 'static,
    {
        let greeted = self.handshake(&mut stream, handshake).await?;
        self.on_one_stream(stream, None, greeted)
    }

    /// All circuits on the stream of the handshake.
    fn on_one_stream<S>(
        &self,
        stream: S,
        link: Option<QuicLink>,
        (established, reader): (Established, Reader),
    ) -> Result<Channel, Refused>
    where
        S: KeyExporter + Send + 'static,
    {
        let (sender, arrivals) = mpsc::channel(self.config.arrivals.max(1));
        let io = tls::ChannelIo {
            stream,
            link,
            reader,
            padding: self.padding(&established),
            arrivals: sender,
        };
        let ids = self.ids(&established)?;
        let (transport, hold) = tls::start(io, ids, self.config, self.counts);
        let transport = Transport::OneStream(transport, S::KIND);
        Ok(self.channel(established, transport, arrivals, hold))
    }

    /// A channel over a QUIC connection, with its first stream.
    pub(super) async fn quic(
        &self,
        connection: Connection,
        link: Option<QuicLink>,
        control: (SendStream, RecvStream),
        handshake: Handshake,
    ) -> Result<Channel, Refused> {
        let (send, receive) = control;
        let mut stream = Control {
            connection,
            send,
            receive,
        };
        let (established, reader) = self.handshake(&mut stream, handshake).await?;
        if self.config.rival == Some(Rival::OneStream) {
            let known = established.peer.is_some();
            quic::widen(&stream.connection, self.config, known);
            // What QUIC has, the quietest circuit does not go before.
            stream.connection.set_send_window(self.config.window.into());
            return self.on_one_stream(stream, link, (established, reader));
        }
        let (sender, arrivals) = mpsc::channel(self.config.arrivals.max(1));
        let io = quic::ChannelIo {
            connection: stream.connection,
            link,
            control: (stream.send, stream.receive),
            reader,
            known: established.peer.is_some(),
            padding: self.padding(&established),
            arrivals: sender,
        };
        let ids = self.ids(&established)?;
        let (transport, hold) = quic::start(io, ids, self.config, self.counts);
        Ok(self.channel(established, Transport::Quic(transport), arrivals, hold))
    }

    fn channel(
        &self,
        established: Established,
        transport: Transport,
        arrivals: mpsc::Receiver<super::Circuit>,
        hold: super::Hold,
    ) -> Channel {
        let most = self.config.most_circuits(established.peer.is_some());
        Channel(Arc::new(Inner {
            shares: Shares::new(usize::try_from(most).unwrap_or(usize::MAX)),
            established,
            initiator: self.initiator,
            target: self.target.clone(),
            remote: self.remote.map(|address| address.to_canonical()),
            transport,
            arrivals: tokio::sync::Mutex::new(arrivals),
            standing: Standing::of(hold.0.link.as_ref()),
            hold,
        }))
    }

    fn padding(&self, established: &Established) -> Arc<Padding> {
        let peer_known = established.peer.is_some();
        let end = PaddingEnd::of(established.version, self.known, peer_known);
        let parameters = &self.config.padding_parameters;
        Arc::new(Padding::new(end, self.config.padding, parameters))
    }

    fn ids(&self, established: &Established) -> Result<Ids, Refused> {
        let mut start = [0; 4];
        let filled = SystemRandom::new().fill(&mut start);
        filled.map_err(|_| Refused::Own("random numbers"))?;
        // A client's peer proved itself; where the peer is a client, it is a guest.
        let most = self.config.most_circuits(established.peer.is_some());
        Ok(Ids::new(self.initiator, u32::from_ne_bytes(start), most))
    }

    async fn handshake<S: KeyExporter>(
        &self,
        stream: &mut S,
        handshake: Handshake,
    ) -> Result<(Established, Reader), Refused> {
        let finished = timeout(self.config.handshake, run_handshake(stream, handshake)).await;
        let finished = finished.unwrap_or(Err(Refused::TimedOut));
        if finished.is_err() {
            self.counts.refused.up();
        }
        finished
    }
}

async fn run_handshake<S: KeyExporter>(
    stream: &mut S,
    mut handshake: Handshake,
) -> Result<(Established, Reader), Refused> {
    let mut established = None;
    loop {
        if let Some(mut bytes) = handshake.transmit() {
            stream.write_all_buf(&mut bytes).await?;
            stream.flush().await?;
        }
        if let Some(established) = established {
            return Ok((established, handshake.into_reader()));
        }
        let mut bytes = BytesMut::with_capacity(READ_SIZE);
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(Refused::Ended);
        }
        let around = Around {
            now: unix_time(),
            exporter: &|label, context| stream.export(label, context),
        };
        established = handshake.receive(bytes, around)?;
    }
}

/// Certificates are valid by the calendar.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

/// A stream of bytes inside a TLS connection that exports keys (RFC 5705).
pub(super) trait KeyExporter: AsyncRead + AsyncWrite + Unpin {
    /// What it runs over.
    const KIND: LinkKind;

    /// 32 bytes for a label and a context.
    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]>;
}

impl<S: AsyncRead + AsyncWrite + Unpin> KeyExporter for client::TlsStream<S> {
    const KIND: LinkKind = LinkKind::Tls;

    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        let tls = self.get_ref().1;
        let exported = tls.export_keying_material([0; 32], label, Some(context));
        exported.ok()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> KeyExporter for TlsStream<S> {
    const KIND: LinkKind = LinkKind::Tls;

    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        let tls = self.get_ref().1;
        let exported = tls.export_keying_material([0; 32], label, Some(context));
        exported.ok()
    }
}

/// QUIC's control stream, with its connection.
struct Control {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

impl KeyExporter for Control {
    const KIND: LinkKind = LinkKind::Quic;

    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        let mut out = [0; 32];
        let exported = self
            .connection
            .export_keying_material(&mut out, label, context);
        exported.ok().map(|()| out)
    }
}

impl AsyncRead for Control {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().receive).poll_read(cx, buf)
    }
}

impl AsyncWrite for Control {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.get_mut().send), cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.get_mut().send), cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.get_mut().send), cx)
    }
}

/// SHA-256 of the certificate that the peer showed.
pub(super) fn certificate_of(chain: Option<&[CertificateDer<'_>]>) -> Result<[u8; 32], Refused> {
    let first = chain.and_then(<[_]>::first);
    let first = first.ok_or_else(|| io::Error::other("the peer showed no TLS certificate"))?;
    let hash = ring::digest::digest(&ring::digest::SHA256, first);
    <[u8; 32]>::try_from(hash.as_ref()).map_err(|_| Refused::Own("hash"))
}
