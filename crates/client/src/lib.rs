//! A program's own traffic over relays: TCP, UDP and names, without a proxy and without changing anything of the machine.
//!
//! A [`Client`] is made of the URLs that relays' operators hand out (`hoplite init` and `hoplite keygen` print them), one to four, the first one first. It keeps the path warm
//! and dials it again when it breaks. Nothing of what it is asked for goes any other way: no name is looked up here. It reads no file: `client.toml` is the
//! programs'.
//!
//! ```no_run
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn fetch() -> Result<(), Box<dyn std::error::Error>> {
//! let client = hoplite_client::Client::builder()
//!     .relay("hoplite://amber.example.net:443/amber?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=&roles=ingress#token")?
//!     .relay("hoplite://birch.example.org:443/birch?pin=sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=&roles=egress#token")?
//!     .build()?;
//! let mut stream = client.connect("example.com:80").await?;
//! stream.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n").await?;
//! let mut page = Vec::new();
//! stream.read_to_end(&mut page).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything needs a tokio runtime, of any kind, with I/O and time. With the feature `hyper`, which is on by default, a client has a connector for hyper
//! (`Client::connector`). Every future here may be dropped: what it would have brought is given up, and nothing else.
//!
//! # A relay's URL
//! `hoplite://HOST:PORT/NAME?pin=PIN&roles=ROLES#TOKEN`. The pin is `sha256:` and the digest of the relay's key in base 64, as `hoplite keygen` tells it;
//! without one the relay's certificate has to be of a public authority. The roles are `ingress`, `egress`, or both with a comma between; without them the relay
//! has both. The token is what its operator gave, if he gives any. Where a part has characters that a URL has not, they are percent-encoded.
//!
//! # When something fails
//! An [`Error`] says whose failure it is ([`ErrorKind`]) and, where that is known, which ([`Reason`]); what to do about each stands in `docs/errors.md`. A relay
//! that falls silent is noticed 4 s after something was sent to it, and by those behind it later: a flow that is opened in between fails after so long, with
//! [`ErrorKind::EntryUnreachable`] or [`ErrorKind::PathFailed`], and one that is open ends. Nothing is opened again by itself; the path is, and [`Client::connect`]
//! can be called again. An error of a stream's is an [`std::io::Error`] as tokio's would be, and [`Error::from_io`] finds the [`Error`] in it.
//!
//! # The end
//! When the last clone and the last flow are dropped, relays are told by the runtime, which needs a moment more for it, a quarter of a second beyond the path's
//! round trip; a program that has ended before that leaves it to them to notice, after a minute at most.
//!
//! # Stability
//! What is public here follows semantic versioning on its own: of other crates of Hoplite it has those types that are named here, such as [`Error`] and
//! [`Target`], and no others. A `match` on [`ErrorKind`] or [`Reason`] should have an arm for others.

#[cfg(feature = "hyper")]
mod connector;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

#[cfg(feature = "hyper")]
pub use connector::{Connection, Connector};
pub use hoplite_crypto::RelayUrlError;
use hoplite_crypto::{RelayUrl, Trust};
use hoplite_link::Peer;
use hoplite_masque::{Config, Path, Relay};
use hoplite_overlay::{Datagrams, Direct, Isolation, Overlay, Stream, Terms};
pub use hoplite_overlay::{Error, ErrorKind, Reason};
pub use hoplite_wire::{Host, HostName, Target, TargetError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most relays of a path.
pub const MAX_RELAYS: usize = hoplite_masque::MAX_HOPS;

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A relay's URL is wrong.
    #[error("a relay's URL cannot be read: {0}")]
    Url(#[from] RelayUrlError),
    /// No relay, or more than [`MAX_RELAYS`].
    #[error("a path has one to four relays, not {0}")]
    Relays(usize),
    /// The first relay forwards to nobody, or the last one connects to nothing.
    #[error("{name} is not meant to be the {place} relay of a path")]
    Role {
        /// The relay.
        name: String,
        /// "first" or "last".
        place: &'static str,
    },
    /// Nobody runs a tokio runtime here.
    #[error("a client is made within a tokio runtime")]
    NoRuntime,
    /// A relay cannot be used.
    #[error(transparent)]
    Path(#[from] Error),
}

/// Collects what a [`Client`] is made of.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    relays: Vec<RelayUrl>,
    limit: Option<Duration>,
}

impl Builder {
    /// Adds the next relay of the path, [by its URL](crate#a-relays-url). A host that is a name is asked of the system's resolver if the relay is the first
    /// one, and of the relay before it else.
    ///
    /// # Errors
    /// [`BuildError::Url`].
    pub fn relay(mut self, url: &str) -> Result<Self, BuildError> {
        self.relays.push(url.parse()?);
        Ok(self)
    }

    /// How long [`Client::connect`], [`Client::udp`] and [`Client::resolve`] may take each; 20 s if nothing is said. One shorter than it takes to find out that a
    /// relay is dead has them fail with [`ErrorKind::TimedOut`], which does not say whose fault it is.
    #[must_use]
    pub const fn open_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Makes the client, which begins to dial the path, in the tokio runtime that this is called in.
    ///
    /// # Errors
    /// [`BuildError`]. That a relay does not answer is not known yet: see [`Client::ready`].
    pub fn build(self) -> Result<Client, BuildError> {
        let count = self.relays.len();
        let (Some(first), Some(last)) = (self.relays.first(), self.relays.last()) else {
            return Err(BuildError::Relays(0));
        };
        if count > MAX_RELAYS {
            return Err(BuildError::Relays(count));
        }
        let wrong = |relay: &RelayUrl, place| BuildError::Role {
            name: relay.name.clone(),
            place,
        };
        if count > 1 && !first.ingress {
            return Err(wrong(first, "first"));
        }
        if !last.egress {
            return Err(wrong(last, "last"));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(BuildError::NoRuntime);
        }
        let mut config = Config::default();
        config.open_limit = self.limit.unwrap_or(config.open_limit);
        let below: Arc<dyn Overlay> = Arc::new(Direct::for_tunnels());
        let relays = self.relays.into_iter().map(relay).collect();
        let path = Path::new(relays, &below, &Arc::new(config))?;
        path.keep_warm();
        Ok(Client {
            path,
            terms: Terms::default(),
        })
    }
}

fn relay(url: RelayUrl) -> Relay {
    let trust = url.pin.map_or(Trust::WebPki, |pin| Trust::Pins(vec![pin]));
    Relay {
        peer: Peer {
            name: url.name.as_str().into(),
            address: url.address,
            trust,
        },
        token: url.token,
        tokens: None,
        template: None,
        mode: None,
    }
}

/// Carries flows over its path. Cheap to clone; the path lives as long as a clone or one of its flows.
#[derive(Clone, Debug)]
pub struct Client {
    path: Path,
    terms: Terms,
}

impl Client {
    /// Begins to make one.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client over the same relays whose flows never share a connection to the last relay with those of another identity: the last relay cannot tell
    /// that they are one user's. `identity` is any secret or name; equal ones are one.
    #[must_use]
    pub fn isolated(&self, identity: impl Into<Vec<u8>>) -> Self {
        let isolation = Isolation::new(identity.into());
        Self {
            path: self.path.clone(),
            terms: Terms {
                isolation,
                ..self.terms.clone()
            },
        }
    }

    /// Waits until there is a connection to each relay of the path, as long as it takes to find out that there is none: some 5 s
    /// where a relay is silent, whatever [`Builder::open_limit`] says. Flows wait by themselves: this is for who
    /// wants to know. May be called again and again. That the last relay takes the token is known with the first flow.
    ///
    /// # Errors
    /// What the relay that failed answered.
    pub async fn ready(&self) -> Result<(), Error> {
        self.path.connect().await
    }

    /// Opens a TCP connection from the last relay to `target`, `HOST:PORT`, where a name is the last relay's to look up. It is tried once.
    ///
    /// # Errors
    /// [`ErrorKind`] says whose failure it is: the path's, the target's, or what the last relay forbids.
    pub async fn connect(&self, target: impl IntoTarget) -> Result<TcpStream, Error> {
        let target = target.into_target()?;
        let stream = self.path.open_stream(&target, &self.terms).await?;
        Ok(TcpStream(stream))
    }

    /// Opens a flow of UDP datagrams between the last relay and `target`.
    ///
    /// # Errors
    /// As of [`Self::connect`].
    pub async fn udp(&self, target: impl IntoTarget) -> Result<UdpFlow, Error> {
        let target = target.into_target()?;
        let flow = self.path.open_datagrams(&target, &self.terms).await?;
        Ok(UdpFlow(flow))
    }

    /// Asks the last relay for the addresses of a name.
    ///
    /// # Errors
    /// As of [`Self::connect`].
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        self.path.resolve(name, &self.terms).await
    }

    /// A connector for hyper's client, and for whatever takes a tower service from a URI to a connection. It speaks no TLS and refuses `https`:
    /// put TLS around it, and tell it so ([`Connector::enforce_http`]). (reqwest takes no connector.)
    #[cfg(feature = "hyper")]
    #[must_use]
    pub fn connector(&self) -> Connector {
        Connector::new(self.clone())
    }
}

/// What can be read as a target.
pub trait IntoTarget {
    /// The target.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: it is none.
    fn into_target(self) -> Result<Target, Error>;
}

impl IntoTarget for Target {
    fn into_target(self) -> Result<Target, Error> {
        Ok(self)
    }
}

impl IntoTarget for SocketAddr {
    fn into_target(self) -> Result<Target, Error> {
        Ok(self.into())
    }
}

impl IntoTarget for &str {
    fn into_target(self) -> Result<Target, Error> {
        self.parse().map_err(no_target)
    }
}

impl IntoTarget for &String {
    fn into_target(self) -> Result<Target, Error> {
        self.as_str().into_target()
    }
}

impl IntoTarget for String {
    fn into_target(self) -> Result<Target, Error> {
        self.as_str().into_target()
    }
}

impl IntoTarget for (&str, u16) {
    fn into_target(self) -> Result<Target, Error> {
        let host = self.0.parse().map_err(no_target)?;
        Target::new(host, self.1).map_err(no_target)
    }
}

impl IntoTarget for (String, u16) {
    fn into_target(self) -> Result<Target, Error> {
        (self.0.as_str(), self.1).into_target()
    }
}

impl IntoTarget for (IpAddr, u16) {
    fn into_target(self) -> Result<Target, Error> {
        SocketAddr::from(self).into_target()
    }
}

fn no_target(error: TargetError) -> Error {
    Error::new(ErrorKind::Unsupported, "reading a target").caused_by(error)
}

/// A TCP connection of the last relay's. Shutting it down ends the sending side alone; dropped before both sides have ended it is reset, so that nobody takes
/// what came for all. `tokio::io::split` makes two halves of it.
#[derive(Debug)]
pub struct TcpStream(Stream);

impl AsyncRead for TcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Datagrams between the last relay and one target; they may be lost or overtaken. One task sends and one receives at a time: share it by an
/// [`Arc`]. With two that receive each datagram goes to one of them. That nobody listens at the target is not told.
pub struct UdpFlow(Box<dyn Datagrams>);

impl UdpFlow {
    /// The largest payload that the path carries now, in bytes; it may change.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.0.max_payload()
    }

    /// Sends one datagram. One that is larger than [`Self::max_payload`] may be dropped, as any may on its way: neither is told.
    ///
    /// # Errors
    /// The flow has ended, for good. It may be [`Self::recv`] that tells it first.
    pub async fn send(&self, payload: &[u8]) -> Result<(), Error> {
        self.0.send(payload).await
    }

    /// Receives one or more datagrams that are there: `len` bytes of `buf`, cut every `segment` bytes, the last of which may be shorter
    /// (`buf[..len].chunks(segment)`; with a `len` of zero one that is empty). A datagram that is larger than `buf` is dropped; 65,535 bytes hold any, and many at once.
    ///
    /// # Errors
    /// The flow has ended, for good.
    pub async fn recv(&self, buf: &mut [u8]) -> Result<Received, Error> {
        let received = self.0.recv(buf).await?;
        Ok(Received {
            len: received.len,
            segment: received.segment,
        })
    }
}

impl fmt::Debug for UdpFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpFlow").finish_non_exhaustive()
    }
}

/// What one call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes are filled; zero is an empty datagram.
    pub len: usize,
    /// The size of each datagram but the last, in bytes; never zero.
    pub segment: usize,
}
