//! The serving end of channels: takes what `relay` accepted, a TLS stream or a QUIC connection, and makes a channel of it.
//! Which of a shard's connections are channels is said by ALPN ([`hoplite_crypto::ALPN_CHANNEL`]), over TCP by none at all: Tor has none.

use std::{fmt, net::IpAddr, sync::Arc};

use quinn::Connection;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::server::TlsStream;

use super::{
    Channel, Config, Counts, Guarded,
    handshake::{Binding, Handshake, Refused, Us},
    shake::Maker,
};

/// Makes channels of accepted connections.
pub struct ChannelServer {
    shown: Guarded<Shown>,
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
            shown: Guarded::new(Shown { us, certificate }),
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
