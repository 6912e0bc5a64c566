//! The process `hoplite-lab __serve`: every server that workloads need, on one host. It prints `ready` and ends when stdin does.
//! Nothing that a client sends makes it fail: what cannot be understood ends that client's connection alone.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener},
    path::Path,
    time::Duration,
};

use hoplite_quic::Qlog;
use hoplite_workload::web::{accept, prepare_payload};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use super::{
    http,
    tcp::{self, Reading},
    udp,
};
use crate::{
    errors::Failure,
    experiments::workload::{
        Ports, TransferError,
        browse::Served,
        progress::Progress,
        transfer::{Answer, HEAD, Head, Sender, Status, Verdict},
    },
};

/// A client that moves nothing for this long has gone; longer than any pause of a scenario.
const STALL: Duration = Duration::from_secs(1800);

/// Serves until stdin ends.
///
/// # Errors
/// A port is taken, or the runtime cannot start.
pub fn main() -> Result<(), Failure> {
    let failed = |doing| {
        move |why: io::Error| Failure::new(doing, why, "free the port, or end the other server")
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(failed("starting the runtime"))?;
    prepare_payload();
    let outcome = runtime.block_on(async {
        let qlog = qlog().map_err(failed("opening the directory of QLOGDIR"))?;
        let server = Server::bind(Ports::default(), qlog.as_ref());
        let server = server.map_err(failed("opening the servers' ports"))?;
        let pages = pages().map_err(failed("opening the ports of the pages' servers"))?;
        let ended = stdin_ended();
        say_ready().map_err(failed("telling that the servers are ready"))?;
        tokio::select! {
            () = server.run() => {}
            () = serve_pages(pages) => {}
            _ = ended => {}
        }
        if let Some(qlog) = qlog {
            qlog.flush();
        }
        Ok(())
    });
    // A thread that still sends what nobody waits for any more ends with the process.
    runtime.shutdown_background();
    outcome
}

/// Where HTTP/3 connections are recorded, if QLOGDIR says so.
fn qlog() -> io::Result<Option<Qlog>> {
    let directory = std::env::var_os("QLOGDIR").filter(|name| !name.is_empty());
    directory
        .map(|name| Qlog::start(Path::new(&name)))
        .transpose()
}

/// The servers of pages, if the environment asks for them.
fn pages() -> io::Result<Option<http::pages::Server>> {
    let Some(told) = std::env::var_os(Served::VARIABLE) else {
        return Ok(None);
    };
    let served: Served = serde_json::from_str(&told.to_string_lossy())?;
    let server = http::pages::Server::bind(&served, http::pages::Ports::default());
    server.map(Some).map_err(io::Error::other)
}

async fn serve_pages(pages: Option<http::pages::Server>) {
    match pages {
        Some(pages) => pages.run().await,
        None => std::future::pending().await,
    }
}

fn say_ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(b"ready\n")?;
    out.flush()
}

/// Resolves when stdin has ended.
fn stdin_ended() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let (mut input, mut buffer) = (io::stdin().lock(), [0; 256]);
        while matches!(input.read(&mut buffer), Ok(1..)) {}
        drop(tell);
    });
    told
}

/// All servers, their ports open.
#[derive(Debug)]
pub struct Server {
    transfer: TcpListener,
    udp: udp::server::Server,
    web: http::server::Server,
}

impl Server {
    /// Opens the ports on all addresses; port 0 takes any. HTTP/3 connections are recorded in `qlog`. Needs a runtime.
    ///
    /// # Errors
    /// The operating system's, or no certificate can be made.
    pub fn bind(ports: Ports, qlog: Option<&Qlog>) -> io::Result<Self> {
        let web = http::server::Server::bind(ports.http, ports.https, qlog);
        Ok(Self {
            web: web.map_err(io::Error::other)?,
            transfer: listen(ports.transfer)?,
            udp: udp::server::Server::bind(ports.udp)?,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The operating system's.
    pub fn ports(&self) -> io::Result<Ports> {
        let [http, https] = self.web.ports()?;
        Ok(Ports {
            http,
            https,
            transfer: self.transfer.local_addr()?.port(),
            udp: self.udp.port()?,
        })
    }

    /// Serves for ever.
    pub async fn run(self) {
        let transfers = accept(self.transfer, |stream, peer| async move {
            if let Err(error) = transfer(stream, peer, STALL, |_| true).await {
                tracing::debug!(kind = error.kind, why = error.why, "a transfer ended early");
            }
        });
        tokio::join!(transfers, self.udp.run(), self.web.run());
    }
}

/// IPv4 and IPv6 on one socket, or IPv4 alone where there is no IPv6.
pub(super) fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = bound(Type::STREAM, Protocol::TCP, port)?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(StdListener::from(socket))
}

/// A socket on all addresses of the host.
pub(super) fn bound(kind: Type, protocol: Protocol, port: u16) -> io::Result<Socket> {
    let six = || {
        let socket = Socket::new(Domain::IPV6, kind, Some(protocol))?;
        socket.set_only_v6(false)?;
        claim(
            &socket,
            kind,
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        )?;
        Ok(socket)
    };
    six().or_else(|error: io::Error| {
        if error.kind() == io::ErrorKind::AddrInUse {
            return Err(error);
        }
        let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
        claim(
            &socket,
            kind,
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        )?;
        Ok(socket)
    })
}

fn claim(socket: &Socket, kind: Type, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.bind(&address.into())
}

/// The server's half of the transfer protocol. What the client asks for and `may` not have is answered like what cannot be read.
pub(crate) async fn transfer(
    mut stream: TcpStream,
    peer: SocketAddr,
    stall: Duration,
    may: impl FnOnce(&Head) -> bool,
) -> Result<(), TransferError> {
    let (reading, mut writing) = stream.split();
    let mut reading = Reading::new(reading, stall);
    let head = Head::parse(&reading.exact::<HEAD>().await?);
    let head = head.ok().filter(|head| may(head));
    let answer = Answer {
        status: head.map_or(Status::Unreadable, |_| Status::Fine),
        seen_as: peer.ip().to_canonical(),
        token: head.map_or(0, |head| head.token),
    };
    tcp::write(&mut writing, &answer.emit(), stall).await?;
    let Some(head) = head else {
        return Ok(());
    };
    let verdict = match head.rounds {
        0 => at_once(&mut reading, &mut writing, &head, stall).await?,
        _ => rounds(&mut reading, &mut writing, &head, stall).await?,
    };
    match verdict {
        Some(verdict) => tcp::write(&mut writing, &verdict.emit(), stall).await,
        None => Ok(()),
    }
}

type From<'a> = Reading<tokio::net::tcp::ReadHalf<'a>>;
type To<'a> = tokio::net::tcp::WriteHalf<'a>;

async fn at_once(
    reading: &mut From<'_>,
    writing: &mut To<'_>,
    head: &Head,
    stall: Duration,
) -> Result<Option<Verdict>, TransferError> {
    let mut sent = Progress::new(0);
    let sending = tcp::send(writing, head.down, head, (&mut sent, stall));
    let receiving = async {
        let Some(size) = head.up else {
            return Ok(None);
        };
        let (mut receiver, mut progress) = (tcp::receiver(size, head), Progress::new(size));
        reading.receive(&mut receiver, None, &mut progress).await?;
        Ok(Some(Verdict {
            right: receiver.verdict() == Some(true),
            passed: progress.passed(),
        }))
    };
    let ((), verdict) = futures_util::future::try_join(sending, receiving).await?;
    Ok(verdict)
}

async fn rounds(
    reading: &mut From<'_>,
    writing: &mut To<'_>,
    head: &Head,
    stall: Duration,
) -> Result<Option<Verdict>, TransferError> {
    let (up, down) = (head.up.unwrap_or(1), head.down.unwrap_or(1));
    let mut sender = Sender::new(head.seed);
    let mut receiver = tcp::receiver(up, head);
    let mut sent = Progress::new(0);
    let mut progress = Progress::new(up.saturating_mul(head.rounds.into()));
    for round in 1..=head.rounds {
        let until = u64::from(round).saturating_mul(up);
        reading
            .receive(&mut receiver, Some(until), &mut progress)
            .await?;
        let last = round == head.rounds;
        tcp::send_size(writing, &mut sender, down, last, (&mut sent, stall)).await?;
    }
    reading.receive(&mut receiver, None, &mut progress).await?;
    Ok(Some(Verdict {
        right: receiver.verdict() == Some(true),
        passed: progress.passed(),
    }))
}
