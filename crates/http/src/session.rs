//! A connection, of whichever version: make requests, take requests, drain, close.
//! `masque` keeps one or more for each hop, `relay` one for each of a client's connections.

use hoplite_quic::{self as quic};
use hoplite_wire::{RequestHead, h3::Code};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::{Exchange, HttpError, HttpVersion, h1, h2, h3};

/// One HTTP connection.
#[derive(Debug)]
pub enum Session {
    /// Over TLS, the server's end.
    H1(h1::Session),
    /// Over TLS.
    H2(h2::Session),
    /// Over QUIC.
    H3(h3::Session),
}

/// A request, with the exchange to answer it on.
#[derive(Debug)]
pub struct Incoming {
    /// What is asked for; its form is checked, its content is not.
    pub head: RequestHead,
    /// Where the answer goes.
    pub exchange: Exchange,
}

impl Session {
    /// The client's end of a QUIC connection. Runs its tasks on the current tokio runtime.
    pub fn quic_client(connection: quic::Connection, config: &h3::Config) -> Self {
        Self::H3(h3::Session::client(connection, config))
    }

    /// The server's end of a QUIC connection. Runs its tasks on the current tokio runtime.
    pub fn quic_server(connection: quic::Connection, config: &h3::Config) -> Self {
        Self::H3(h3::Session::server(connection, config))
    }

    /// The client's end of a TLS stream.
    ///
    /// # Errors
    /// The connection breaks while it begins.
    pub async fn tls_client(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        config: &h2::Config,
    ) -> Result<Self, HttpError> {
        Ok(Self::H2(h2::Session::client(stream, config).await?))
    }

    /// The server's end of a TLS stream whose client chose HTTP/1.1, or named no protocol.
    pub fn h1_server(stream: TlsStream<TcpStream>, config: &h1::Config) -> Self {
        Self::H1(h1::Session::server(stream, config))
    }

    /// The server's end of a TLS stream whose client chose HTTP/2.
    ///
    /// # Errors
    /// The connection breaks, or what comes is not HTTP/2.
    pub async fn h2_server(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        config: &h2::Config,
    ) -> Result<Self, HttpError> {
        Ok(Self::H2(h2::Session::server(stream, config).await?))
    }

    /// The version that is spoken.
    pub fn version(&self) -> HttpVersion {
        match self {
            Self::H1(_) => HttpVersion::H1,
            Self::H2(_) => HttpVersion::H2,
            Self::H3(_) => HttpVersion::H3,
        }
    }

    /// The client's end: sends a request. An Extended CONNECT waits for the peer's settings first.
    ///
    /// # Errors
    /// The peer takes no more requests or no Extended CONNECT, or the connection is lost.
    pub async fn request(&self, head: &RequestHead) -> Result<Exchange, HttpError> {
        match self {
            Self::H3(session) => Ok(Exchange::H3(session.request(head).await?)),
            Self::H2(session) => Ok(Exchange::H2(session.request(head).await?)),
            Self::H1(_) => Err(HttpError::ServedOnly(HttpVersion::H1)),
        }
    }

    /// The server's end: the next request; `None` when the connection has ended, or is drained and without a request.
    /// Malformed requests are answered here and not returned.
    pub async fn accept(&self) -> Option<Incoming> {
        let (head, exchange) = match self {
            Self::H3(session) => {
                let incoming = session.accept().await?;
                (incoming.head, Exchange::H3(incoming.exchange))
            }
            Self::H2(session) => {
                let incoming = session.accept().await?;
                (incoming.head, Exchange::H2(incoming.exchange))
            }
            Self::H1(session) => {
                let (head, exchange) = session.accept().await?;
                (head, Exchange::H1(exchange))
            }
        };
        Some(Incoming { head, exchange })
    }

    /// The client's end: whether the peer takes requests, as far as is known.
    pub fn takes_requests(&self) -> bool {
        match self {
            Self::H3(session) => !session.is_going_away(),
            Self::H2(session) => session.is_alive(),
            Self::H1(_) => false,
        }
    }

    /// The client's end: resolves when the connection is lost, with the reason.
    pub async fn closed(&self) -> HttpError {
        match self {
            Self::H3(session) => h3::H3Error::from(session.closed().await).into(),
            Self::H2(session) => session.broken().await.into(),
            Self::H1(_) => HttpError::ServedOnly(HttpVersion::H1),
        }
    }

    /// Makes the peer show that it is there: a side that only receives would otherwise not notice that it is gone. Over HTTP/2 the
    /// session does that by itself.
    pub fn ping(&self) {
        if let Self::H3(session) = self {
            session.ping();
        }
    }

    /// Resolves once QUIC takes more for the peer (see [`h3::Session::takes_more`]); `false`: that is not known, or the connection is lost.
    pub async fn takes_more(&self) -> bool {
        match self {
            Self::H3(session) => session.takes_more().await,
            Self::H2(_) | Self::H1(_) => false,
        }
    }

    /// The server's end: resolves once for each thing that the client has given up, or that made no sense, and that became no request:
    /// whoever serves bounds their number.
    pub async fn abandoned(&self) {
        match self {
            Self::H3(session) => session.abandoned().await,
            Self::H2(session) => session.abandoned().await,
            Self::H1(_) => std::future::pending().await,
        }
    }

    /// Takes no more requests and says so; those that are alive go on.
    pub fn drain(&self) {
        match self {
            Self::H3(session) => session.drain(),
            Self::H2(session) => session.drain(),
            Self::H1(session) => session.drain(),
        }
    }

    /// Ends the connection and all that is on it; over HTTP/1.1 a tunnel goes on.
    pub fn close(&self) {
        match self {
            Self::H3(session) => session.close(Code::NO_ERROR),
            Self::H2(session) => session.close(),
            Self::H1(session) => session.close(),
        }
    }

    /// Ends the connection of a client that does nothing but cost, and tells it so (H3_EXCESSIVE_LOAD, ENHANCE_YOUR_CALM).
    pub fn close_excessive(&self) {
        match self {
            Self::H3(session) => session.close(Code::EXCESSIVE_LOAD),
            Self::H2(session) => session.calm(),
            Self::H1(session) => session.close(),
        }
    }
}
