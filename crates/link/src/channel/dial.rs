//! Dials channels: the link of [`crate::Dialer`] (QUIC, TLS, or both raced), and the link handshake on it.
//! `onion` dials its guards with it, a relay the next relay of a circuit. Whom TLS talks to is proven by the link handshake alone.

use std::{fmt, net::IpAddr, sync::Arc};

use hoplite_crypto::Trust;
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_wire::{Host, Target};
use quinn::Connection;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use super::{
    Channel, Config, Counts, Guarded,
    handshake::{Binding, Handshake, Refused, Us},
    shake::{Maker, certificate_of},
};
use crate::{Dialer, Link, Peer, QuicLink, TlsLink};

/// What a channel is to run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// Whichever is there first; QUIC starts first. For relays of which it is not known.
    #[default]
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
    us: Arc<Guarded<Us>>,
    link: crate::Config,
    config: Config,
    counts: Arc<Counts>,
}

impl ChannelDialer {
    /// Dials through `overlay` (usually `direct`) as `us`.
    pub fn new(
        overlay: Arc<dyn Overlay>,
        us: Us,
        link: &crate::Config,
        config: Config,
        counts: Arc<Counts>,
    ) -> Self {
        let link = config.greeting(link);
        Self {
            overlay,
            us: Arc::new(Guarded::new(us)),
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
        let peer = Peer {
            name: whom.name.clone(),
            address: whom.address.clone(),
            trust: Trust::Channel,
        };
        let dialer = Dialer::new(Arc::clone(&self.overlay), peer, 0, self.link.clone());
        let link = match how {
            How::Raced => Box::pin(dialer.race(terms)).await?,
            How::Quic => Link::Quic(Box::pin(dialer.quic(terms)).await?),
            How::Tls => Link::Tls(Box::new(dialer.tls(terms).await?)),
        };
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
