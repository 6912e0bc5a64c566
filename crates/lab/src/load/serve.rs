//! `hoplite-lab load serve`: where the load goes. Transfers are those of `monitor serve`, whose sizes a client asks for and a day bounds; a datagram of the
//! lab's is sent back as it came, nothing larger, and an answer is answered by nobody: two such servers cannot be set on each other.

use std::{io, net::SocketAddr};

use hoplite_overlay::direct::udp::enlarge_buffers;
use hoplite_workload::web::prepare_payload;
use tokio::net::UdpSocket;

use super::{Told, broken, remark, runtime};
use crate::{
    cli::LoadServeArgs,
    errors::Failure,
    experiments::workload::message::{Head, Kind},
    monitor::{config::Serve, server::Server},
};

/// The largest transfer, in bytes.
pub(super) const LARGEST: u64 = 16 << 20;
/// A gigabyte.
const GB: u64 = 1_000_000_000;

/// Serves until it is told to end.
pub(super) fn run(args: &LoadServeArgs) -> Result<(), Failure> {
    prepare_payload();
    super::allow_descriptors(1024);
    let runtime = runtime().map_err(|error| broken(&error))?;
    let outcome = runtime.block_on(async {
        let failed = |error: io::Error| {
            let remedy = "free the address, or choose another with --listen";
            Failure::new(format!("listening at {}", args.listen), error, remedy)
        };
        let serve = Serve {
            listen: vec![args.listen],
            connections: 65_536,
            largest: LARGEST,
            bytes_per_day: args.gb_per_day.saturating_mul(GB),
            ..Serve::default()
        };
        let (server, socket) = (Server::open(serve), bind(args.listen));
        let (server, socket) = (server.map_err(failed)?, socket.map_err(failed)?);
        let mut told = Told::listen().map_err(|error| broken(&error))?;
        remark(&format!("hoplite-lab: serving at {}", args.listen));
        tokio::select! {
            () = told.asked_to_end() => {}
            () = server.run() => {}
            () = echo(&socket) => {}
        }
        Ok(())
    });
    runtime.shutdown_background();
    outcome
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    enlarge_buffers(&socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

async fn echo(socket: &UdpSocket) {
    let mut buffer = vec![0; 65_536];
    loop {
        // A peer that is gone: the socket lives on.
        let Ok((len, peer)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        if let Some((head, body)) = buffer.get(..len).and_then(Head::parse)
            && head.kind == Kind::Echo
        {
            let answer = Head {
                kind: Kind::Echoed,
                ..head
            };
            drop(socket.send_to(&answer.emit(body), peer).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;

    #[tokio::test]
    async fn an_echo_is_as_long_as_what_came_and_nothing_else_is_answered() {
        let server = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let at = server.local_addr().unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let head = |kind, number| Head {
            kind,
            token: 1,
            number,
            sent: 2,
            turned: 0,
        };
        let mut room = [0; 2000];
        tokio::spawn(async move { echo(&server).await });
        client.send_to(b"who is there?", at).await.unwrap();
        client
            .send_to(&head(Kind::Echoed, 1).emit(&[0; 9]), at)
            .await
            .unwrap();
        client
            .send_to(&head(Kind::Begin, 2).emit(&[0; 60]), at)
            .await
            .unwrap();
        client
            .send_to(&head(Kind::Echo, 3).emit(&[7; 100]), at)
            .await
            .unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(20), client.recv(&mut room));
        let len = answer.await.unwrap().unwrap();
        let (answer, body) = Head::parse(&room[..len]).unwrap();
        assert_eq!(
            (answer.kind, answer.number, body),
            (Kind::Echoed, 3, &[7; 100][..])
        );
    }
}
