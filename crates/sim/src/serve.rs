//! The listening side of a relay: channels over QUIC and over TLS, made of what comes to its address. `world` says what becomes of them.

use std::{net::SocketAddr, sync::Arc};

use hoplite_link::{
    Grants, Reins,
    channel::{Channel, ChannelServer},
    quic::{Endpoint, Incoming, TokioRuntime},
    server::Acceptor,
};
use tokio::{task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;

use crate::{
    ground::{Ground, Unmade},
    net::{
        Network,
        tcp::{Listener, TcpStream},
        udp::Socket,
    },
};

/// Octets of datagrams that may wait at a relay; channels have none.
const INBOX: usize = 1 << 16;

/// Told of each channel.
pub type Told = Arc<dyn Fn(Channel) + Send + Sync>;

/// A relay's doors.
#[derive(Clone)]
pub struct Doors {
    /// What all relays share.
    pub ground: Ground,
    /// Makes channels of connections.
    pub server: Arc<ChannelServer>,
    /// Hears of them.
    pub told: Told,
}

impl Doors {
    /// Opens the one for QUIC at `address`; its tasks are added to `tasks` and end with them.
    ///
    /// # Errors
    /// [`Unmade`]
    pub fn quic(
        &self,
        network: &Network,
        address: SocketAddr,
        seed: [u8; 32],
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Unmade> {
        let socket = Arc::new(Socket::at(network, address));
        let endpoint = Endpoint::new_with_abstract_socket(
            Ground::endpoint(seed),
            Some(self.ground.quic.clone()),
            socket,
            Arc::new(TokioRuntime),
        )?;
        let doors = self.clone();
        tasks.spawn(async move {
            let mut guests = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = guests.join_next() => {}
                    incoming = endpoint.accept() => match incoming {
                        Some(incoming) => drop(guests.spawn(doors.clone().welcome(incoming))),
                        None => return,
                    },
                }
            }
        });
        Ok(())
    }

    /// Opens the one for TLS at `address`; likewise.
    pub fn tls(&self, network: &Network, address: SocketAddr, tasks: &mut JoinSet<()>) {
        let mut listener = Listener::at(network, address);
        let doors = self.clone();
        tasks.spawn(async move {
            let mut guests = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = guests.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Some((stream, from)) => {
                            guests.spawn(doors.clone().welcome_tls(stream, from));
                        }
                        None => return,
                    },
                }
            }
        });
    }

    async fn welcome_tls(self, stream: TcpStream, from: SocketAddr) {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.ground.tls));
        let accepted = timeout(self.ground.channel.handshake, acceptor.accept(stream)).await;
        let Ok(Ok(stream)) = accepted else {
            return;
        };
        if let Ok(channel) = self.server.tls(stream, Some(from.ip())).await {
            (self.told)(channel);
        }
    }

    async fn welcome(self, incoming: Incoming) {
        let reins = Reins::relay(Grants::default(), INBOX);
        let hooks = self.ground.link.hooks.clone();
        let acceptor = Acceptor::new(self.ground.quic.clone(), hooks);
        let handshake = async {
            let connecting = acceptor.accept(incoming, self.ground.transport(), &reins);
            connecting.ok()?.await.ok()
        };
        let connection = timeout(self.ground.channel.handshake, handshake).await;
        let Some(connection) = connection.ok().flatten() else {
            return;
        };
        if let Ok(channel) = self.server.quic(connection).await {
            (self.told)(channel);
        }
    }
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Doors")
    }
}
