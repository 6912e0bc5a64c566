//! The way to the server: the host's own sockets, a SOCKS5 proxy, an HTTP proxy. Every socket of the clients is made here.
//! The phases need the moment between a socket and its connection, which `overlay::direct` does not show; names are its business.

use std::{io, net::SocketAddr, time::Duration};

use hoplite_overlay::direct::Direct;
use hoplite_wire::{Target, socks};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    Order, TransferError, Way, http_proxy, random::Random, record::Record, socks as handshake,
    trouble::Fault,
};

/// User name and password at a proxy: whoever has others gets a path of his own (tor's IsolateSOCKSAuth).
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Token {
    /// A fresh one.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut word = || format!("{:016x}", random.next());
        Self {
            user: word(),
            password: word(),
        }
    }
}

/// The server's port as a target.
pub(crate) fn target(order: &Order, port: u16) -> Result<Target, TransferError> {
    let host = order.target.parse().map_err(|why| {
        Fault::Misc.because(format_args!("the target {:?} is none: {why}", order.target))
    })?;
    Target::new(host, port).map_err(|why| Fault::Misc.because(why))
}

/// A connection to the server's `port`, its phases noted.
pub(crate) async fn open(
    order: &Order,
    port: u16,
    token: &Token,
    record: &mut Record,
) -> Result<TcpStream, TransferError> {
    let (target, stall) = (target(order, port)?, order.plan.stall);
    match order.way {
        Way::Direct => connect(resolve(&target).await?, stall, record).await,
        Way::Socks { address, .. } => {
            let mut stream = connect(address, stall, record).await?;
            let request = socks::Request {
                command: socks::Command::Connect,
                endpoint: target.into(),
            };
            handshake::ask(&mut stream, &request, token, (record, stall)).await?;
            Ok(stream)
        }
        Way::Http { address } => {
            let mut stream = connect(address, stall, record).await?;
            http_proxy::ask(&mut stream, &target, token, (record, stall)).await?;
            Ok(stream)
        }
    }
}

/// The first address of a target.
pub(crate) async fn resolve(target: &Target) -> Result<SocketAddr, TransferError> {
    let found = Direct::new().addresses(target).await;
    let found = found.map_err(|error| Fault::Connect.because(error))?;
    let first = found.first().copied();
    first.ok_or_else(|| Fault::Connect.because("the server's name has no address"))
}

/// A TCP connection.
pub(crate) async fn connect(
    address: SocketAddr,
    stall: Duration,
    record: &mut Record,
) -> Result<TcpStream, TransferError> {
    let failed = |error: io::Error| Fault::Connect.because(format_args!("{address}: {error}"));
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    record.phases.socket = Some(record.clock.us());
    #[expect(
        clippy::disallowed_methods,
        reason = "the lab measures the network itself"
    )]
    let connecting = timeout(stall, socket.connect(address));
    let late = |_| Fault::Connect.because(format_args!("{address}: no answer within {stall:?}"));
    let stream = connecting.await.map_err(late)?.map_err(failed)?;
    record.phases.connect = Some(record.clock.us());
    Ok(stream)
}
