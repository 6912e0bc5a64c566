//! DNS over TCP: messages with their length before them, answered one after the other.
//! [`super::server`] opens it as the far end of a program's connection. RFC 1035 §4.2.2, RFC 7766.

use std::{io, sync::Arc, time::Duration};

use hoplite_overlay::Stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex},
    time::timeout,
};

use super::server::Server;
use crate::users::User;

/// How long a program may think between two queries: "a few seconds" (RFC 7766 §6.2.3).
const IDLE: Duration = Duration::from_secs(10);
/// What waits in each direction, in octets.
const BUFFER: usize = 4096;

/// A user's connection to `server`.
pub(super) fn open(server: Arc<Server>, user: User) -> Stream {
    let (near, far) = duplex(BUFFER);
    tokio::spawn(serve(server, user, far));
    Stream::new(BufReader::with_capacity(BUFFER, near))
}

async fn serve(server: Arc<Server>, user: User, mut stream: DuplexStream) {
    while let Ok(Ok(query)) = timeout(IDLE, read(&mut stream)).await {
        let Some(reply) = server.query(&query, user).await else {
            break;
        };
        let written = timeout(IDLE, write(&mut stream, &reply)).await;
        if !matches!(written, Ok(Ok(()))) {
            break;
        }
    }
    if let Err(error) = stream.shutdown().await {
        tracing::trace!(%error, "a program left before its resolver did");
    }
}

async fn read(stream: &mut DuplexStream) -> io::Result<Vec<u8>> {
    let mut query = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut query).await?;
    Ok(query)
}

async fn write(stream: &mut DuplexStream, reply: &[u8]) -> io::Result<()> {
    let len = u16::try_from(reply.len()).map_err(io::Error::other)?;
    let framed = [&len.to_be_bytes()[..], reply].concat();
    stream.write_all(&framed).await
}
