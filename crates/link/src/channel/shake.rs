//! Drives a link handshake over a stream of octets: TLS, or the control stream of QUIC.
//! `dial` and `serve` start with it; what comes of it is a channel.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use hoplite_wire::{Target, cell::Reader};
use quinn::{Connection, RecvStream, SendStream};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{client, server};

use super::{
    Carrier, Channel, Config, Counts, Inner, Shares,
    handshake::{Around, Established, Handshake, Refused},
    ids::Ids,
    quic, tls,
};
use crate::QuicLink;

/// How much is read at once, in octets.
const READ: usize = 4096;

/// What both ends of a channel need, whatever it runs over.
pub(super) struct Maker<'a> {
    pub(super) config: &'a Config,
    pub(super) counts: &'a Arc<Counts>,
    pub(super) initiator: bool,
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
        S: Road + Send + 'static,
    {
        let (established, reader) = self.shake(&mut stream, handshake).await?;
        let (sender, arrivals) = mpsc::channel(self.config.arrivals.max(1));
        let road = tls::Road {
            stream,
            reader,
            arrivals: sender,
        };
        let ids = self.ids(&established)?;
        let (carrier, hold) = tls::start(road, ids, self.config, self.counts);
        Ok(self.channel(established, Carrier::Tls(carrier), arrivals, hold))
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
        let (established, reader) = self.shake(&mut stream, handshake).await?;
        let (sender, arrivals) = mpsc::channel(self.config.arrivals.max(1));
        let road = quic::Road {
            connection: stream.connection,
            link,
            control: (stream.send, stream.receive),
            reader,
            known: established.peer.is_some(),
            arrivals: sender,
        };
        let ids = self.ids(&established)?;
        let (carrier, hold) = quic::start(road, ids, self.config, self.counts);
        Ok(self.channel(established, Carrier::Quic(carrier), arrivals, hold))
    }

    fn channel(
        &self,
        established: Established,
        carrier: Carrier,
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
            carrier,
            arrivals: tokio::sync::Mutex::new(arrivals),
            hold,
        }))
    }

    fn ids(&self, established: &Established) -> Result<Ids, Refused> {
        let mut start = [0; 4];
        let filled = SystemRandom::new().fill(&mut start);
        filled.map_err(|_| Refused::Own("random numbers"))?;
        // A client's peer proved itself; where the peer is a client, it is a guest.
        let most = self.config.most_circuits(established.peer.is_some());
        Ok(Ids::new(self.initiator, u32::from_ne_bytes(start), most))
    }

    async fn shake<S: Road>(
        &self,
        stream: &mut S,
        handshake: Handshake,
    ) -> Result<(Established, Reader), Refused> {
        let shaken = timeout(self.config.handshake, shake(stream, handshake)).await;
        let shaken = shaken.unwrap_or(Err(Refused::TimedOut));
        if shaken.is_err() {
            self.counts.refused.up();
        }
        shaken
    }
}

async fn shake<S: Road>(
    stream: &mut S,
    mut handshake: Handshake,
) -> Result<(Established, Reader), Refused> {
    let mut established = None;
    loop {
        if let Some(mut octets) = handshake.transmit() {
            stream.write_all_buf(&mut octets).await?;
            stream.flush().await?;
        }
        if let Some(established) = established {
            return Ok((established, handshake.into_reader()));
        }
        let mut octets = BytesMut::with_capacity(READ);
        if stream.read_buf(&mut octets).await? == 0 {
            return Err(Refused::Ended);
        }
        let around = Around {
            now: unix_time(),
            exporter: &|label, context| stream.export(label, context),
        };
        established = handshake.receive(octets, around)?;
    }
}

/// Certificates are valid by the calendar.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

/// A stream of octets inside a TLS connection that exports keys (RFC 5705).
pub(super) trait Road: AsyncRead + AsyncWrite + Unpin {
    /// 32 octets for a label and a context.
    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]>;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Road for client::TlsStream<S> {
    fn export(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        let tls = self.get_ref().1;
        let exported = tls.export_keying_material([0; 32], label, Some(context));
        exported.ok()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Road for server::TlsStream<S> {
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

impl Road for Control {
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
