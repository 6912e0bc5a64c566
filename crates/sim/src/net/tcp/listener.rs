//! Accepts streams at one address of a node.

use std::{fmt, net::SocketAddr, sync::Arc};

use tokio::sync::mpsc;

use super::{Kind, Segment, TcpStream, connection::Connection};
use crate::net::{Key, Network, Packet, Payload, Port};

/// Streams that may wait to be accepted; one more is refused.
const BACKLOG: usize = 4096;

/// Accepts until it is dropped.
pub struct Listener {
    network: Network,
    address: SocketAddr,
    accepted: mpsc::Receiver<(TcpStream, SocketAddr)>,
}

struct Door {
    network: Network,
    accepted: mpsc::Sender<(TcpStream, SocketAddr)>,
}

impl Listener {
    /// At `address`, which must be one of the network's nodes.
    pub fn at(network: &Network, address: SocketAddr) -> Self {
        let (sender, accepted) = mpsc::channel(BACKLOG);
        let door = Door {
            network: network.clone(),
            accepted: sender,
        };
        network.open_at(Key::Listener(address), Arc::new(door));
        Self {
            network: network.clone(),
            address,
            accepted,
        }
    }

    /// The next stream, and who asked for it; nothing once the node is gone.
    pub async fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        self.accepted.recv().await
    }
}

impl Port for Door {
    fn receive(&self, packet: Packet) -> bool {
        let Payload::Tcp(Segment {
            kind: Kind::Syn, ..
        }) = packet.payload
        else {
            return false;
        };
        let Ok(place) = self.accepted.try_reserve() else {
            return false;
        };
        let connection = Connection::answer(&self.network, packet.to, packet.from);
        place.send((TcpStream::of(connection), packet.from));
        true
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.network.close(&Key::Listener(self.address));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::Listener")
    }
}
