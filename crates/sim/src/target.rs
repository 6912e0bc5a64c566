//! Servers that clients fetch from: eight octets say how many are wanted, and so many come.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use crate::net::{
    Network, Node,
    tcp::{Listener, TcpStream},
};

/// Where they listen.
const PORT: u16 = 80;
/// What is written at once.
static CHUNK: [u8; 16 << 10] = [b'.'; 16 << 10];

/// Where a target listens.
pub(crate) fn address(node: Node) -> SocketAddr {
    SocketAddr::new(Network::address(node), PORT)
}

/// What a client sends to have `octets`.
pub(crate) const fn request(octets: u64) -> [u8; 8] {
    octets.to_be_bytes()
}

/// Serves for ever.
pub(crate) async fn serve(network: Network, node: Node) {
    let mut listener = Listener::at(&network, address(node));
    let mut guests = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = guests.join_next() => {}
            accepted = listener.accept() => match accepted {
                Some((stream, _)) => drop(guests.spawn(answer(stream))),
                None => return,
            },
        }
    }
}

async fn answer(mut stream: TcpStream) {
    // An exit that goes away midway is nothing to a server.
    send(&mut stream).await.ok();
}

async fn send(stream: &mut TcpStream) -> io::Result<()> {
    let mut left = stream.read_u64().await?;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK.len());
        stream
            .write_all(CHUNK.get(..now).unwrap_or_default())
            .await?;
        left = left.saturating_sub(u64::try_from(now).unwrap_or(left));
    }
    stream.shutdown().await?;
    let mut rest = [0; 64];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
