//! TLS over a stream of the overlay below, for HTTP/2 or a channel: what is left when UDP is blocked.

use std::{fmt, sync::Arc};

use hoplite_crypto::client_tls;
use hoplite_overlay::{Error, ErrorKind, Reason, Stream, Terms};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use super::Dialer;

/// A TLS connection to a relay that speaks HTTP/2, or cells.
pub struct TlsLink(TlsStream<Stream>);

impl TlsLink {
    /// The stream of octets, for an HTTP/2 session or a channel.
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
