//! A client's connection of any version, from the door to TLS. `http` opens it and fetches over it.

use std::{fmt, sync::Arc};

use hoplite_crypto::Qlog;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Fetch, one::One, three::Three, tls, two::Two};
use crate::workload::run::{
    Order, TransferError,
    door::{self, Token},
    patience::patiently,
    record::Record,
    trouble::Fault,
};

/// The connection.
pub(super) enum Connection {
    One(One),
    Two(Two),
    Three(Three),
}

/// The server's port for a version.
pub(super) fn port(order: &Order, version: u8) -> u16 {
    match version {
        1 => order.ports.http,
        _ => order.ports.https,
    }
}

impl Connection {
    pub(super) async fn open(
        order: &Order,
        version: u8,
        (token, qlog): (&Token, Option<&Qlog>),
        record: &mut Record,
    ) -> Result<Self, TransferError> {
        let stall = order.plan.stall;
        let port = port(order, version);
        match version {
            1 => {
                let stream = door::open(order, port, token, record).await?;
                One::open(stream, stall).await.map(Self::One)
            }
            2 => {
                let stream = door::open(order, port, token, record).await?;
                let stream = secure(order, port, stream, record).await?;
                Two::open(stream, stall).await.map(Self::Two)
            }
            3 => Three::open(order, port, (token, qlog), record)
                .await
                .map(Self::Three),
            other => Err(Fault::Misc.because(format_args!("there is no HTTP/{other} here"))),
        }
    }

    pub(super) async fn fetch(
        &mut self,
        fetch: &Fetch,
        record: &mut Record,
    ) -> Result<(), TransferError> {
        match self {
            Self::One(one) => one.fetch(fetch, record).await,
            Self::Two(two) => two.fetch(fetch, record).await,
            Self::Three(three) => three.fetch(fetch, record).await,
        }
    }

    /// The same connection for one more stream.
    pub(super) fn again(&self) -> Result<Self, TransferError> {
        match self {
            Self::One(_) => Err(Fault::Misc.because("HTTP/1.1 has no streams")),
            Self::Two(two) => Ok(Self::Two(two.clone())),
            Self::Three(three) => Ok(Self::Three(three.clone())),
        }
    }
}

async fn secure(
    order: &Order,
    port: u16,
    stream: TcpStream,
    record: &mut Record,
) -> Result<TlsStream<TcpStream>, TransferError> {
    let name = name(order, port)?;
    let connector = TlsConnector::from(tls::client(2)?);
    let handshake = patiently(order.plan.stall, connector.connect(name, stream)).await?;
    let stream = handshake.map_err(|error| Fault::Tls.because(error))?;
    record.phases.tls = Some(record.clock.us());
    Ok(stream)
}

/// The server's name in TLS.
pub(super) fn name(order: &Order, port: u16) -> Result<ServerName<'static>, TransferError> {
    let host = door::target(order, port)?.host.to_string();
    let bare = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    ServerName::try_from(bare).map_err(|why| Fault::Misc.because(why))
}

/// A task that ends with its holder.
#[derive(Debug)]
pub(super) struct Task(tokio::task::JoinHandle<()>);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self(tokio::spawn(work)))
    }

    /// Drives what moves a connection's octets. That it failed is told by its fetches too.
    pub(super) fn drive<E: fmt::Display>(
        version: &'static str,
        connection: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Arc<Self> {
        Self::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, version, "a connection ended early");
            }
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
