//! `hoplite-lab balancer`: a small balancer of layer 4 in front of a fleet of relays (docs/operating.md, "A fleet"), for studies and tests.
//! draft-ietf-quic-load-balancers-21. UDP goes where the connection id says, TCP to the ready relay with the fewest connections.
//!
//! It is no transparent one: a relay sees each client at a port of the balancer's, one for each client and relay.
//!
//! ```text
//! client ──▶ listening socket ──▶ Steering (which relay?) ──▶ the flow's socket ──▶ relay
//!        ◀── listening socket ◀──────────────────────────── the flow's task ◀──
//! ```

mod config;
mod steering;

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    fmt,
    io::{self, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, UdpSocket},
    task::{AbortHandle, LocalSet, spawn_local},
    time::{interval, sleep, timeout},
};

use self::{
    config::{Balancer, Limits, Relay},
    steering::{Answer, FlowId, Health, Steering},
};
use crate::{
    cli::BalancerArgs,
    errors::{Failure, printed},
};

/// What each UDP socket asks the kernel for, in bytes.
const SOCKET_BUFFER: usize = 4 << 20;

/// The largest UDP payload.
const PAYLOAD: usize = 65_535;

/// How many packets of one socket are passed on before others have their turn.
const TURN: usize = 64;

/// How often flows that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// How much of a relay's answer about itself is read, in bytes.
const ANSWER: usize = 1024;

/// Until what the system is short of may be there again.
const SHORT: Duration = Duration::from_millis(50);

/// Serves until the process is ended.
///
/// # Errors
/// The file is wrong, or an address cannot be listened at.
pub(crate) fn run(args: &BalancerArgs) -> Result<(), Failure> {
    let balancer = Balancer::read(&args.file)?;
    let failed = |why: io::Error| {
        let remedy = "free the address, or choose another with `listen`";
        Failure::new("starting the balancer", why, remedy)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let here = LocalSet::new();
    here.block_on(&runtime, async {
        let (front, ports) = Front::open(balancer).map_err(failed)?;
        let addresses = ports.iter().map(|port| port.address.to_string());
        let addresses: Vec<String> = addresses.collect();
        say(format_args!(
            "{{\"event\":\"up\",\"listen\":{addresses:?}}}"
        ))?;
        front.serve(ports).await
    })
}

/// A line of JSON on stdout. Nothing in it is a client's.
fn say(line: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(writeln!(out, "{line}").and_then(|()| out.flush()))
}

/// What all tasks share. All of them are of one thread.
struct Front {
    steering: RefCell<Steering>,
    relays: Vec<Relay>,
    checks: config::Checks,
    limits: Limits,
    /// The flows that the steering has.
    flows: RefCell<HashMap<FlowId, Flow>>,
    /// Open connections over TCP.
    connections: Cell<usize>,
}

/// An address with both of its sockets.
struct Port {
    address: SocketAddr,
    udp: Rc<UdpSocket>,
    tcp: TcpListener,
}

/// The socket at which a relay sees a client. Its task ends with it.
struct Flow {
    socket: Rc<UdpSocket>,
    back: AbortHandle,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.back.abort();
    }
}

impl Front {
    fn open(balancer: Balancer) -> io::Result<(Rc<Self>, Vec<Port>)> {
        let bounds = balancer.bounds();
        let Balancer { file, ids, servers } = balancer;
        let ports = file.listen.iter().map(|address| Port::open(*address));
        let ports = ports.collect::<io::Result<_>>()?;
        let front = Self {
            steering: RefCell::new(Steering::new(ids, servers, bounds)),
            relays: file.relays,
            checks: file.health,
            limits: file.limits,
            flows: RefCell::default(),
            connections: Cell::new(0),
        };
        Ok((Rc::new(front), ports))
    }

    async fn serve(self: Rc<Self>, ports: Vec<Port>) -> Result<(), Failure> {
        for place in 0..self.relays.len() {
            spawn_local(Rc::clone(&self).watch(place));
        }
        for port in ports {
            spawn_local(Rc::clone(&self).datagrams(port.udp));
            spawn_local(Rc::clone(&self).accept(port.tcp));
        }
        let mut sweep = interval(SWEEP);
        loop {
            sweep.tick().await;
            let gone = self.steering.borrow_mut().expire(Instant::now());
            let mut flows = self.flows.borrow_mut();
            gone.iter().for_each(|flow| drop(flows.remove(flow)));
        }
    }
}

impl Port {
    fn open(address: SocketAddr) -> io::Result<Self> {
        // Port 0 is one that is free for both.
        let tcp = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        tcp.set_reuse_address(true)?;
        tcp.bind(&address.into())?;
        tcp.listen(1024)?;
        tcp.set_nonblocking(true)?;
        let tcp = TcpListener::from_std(tcp.into())?;
        let address = tcp.local_addr()?;
        let udp = Rc::new(datagram_socket(address)?);
        Ok(Self { address, udp, tcp })
    }
}

fn datagram_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // The kernel grants what it likes.
    drop(socket.set_recv_buffer_size(SOCKET_BUFFER));
    drop(socket.set_send_buffer_size(SOCKET_BUFFER));
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket.into())
}

/// Any port of the family of `peer`.
const fn any(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        SocketAddr::V6(_) => SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
    }
}

// UDP. A full queue loses packets, as a network would.

impl Front {
    /// Passes on what comes from clients, for ever.
    async fn datagrams(self: Rc<Self>, front: Rc<UdpSocket>) {
        let mut buffer = vec![0; PAYLOAD];
        loop {
            if front.readable().await.is_err() {
                sleep(SHORT).await;
                continue;
            }
            for _ in 0..TURN {
                match front.try_recv_from(&mut buffer) {
                    Ok((length, client)) => {
                        self.forward(&front, client, buffer.get(..length).unwrap_or_default());
                    }
                    // Somebody to whom we sent is not there: that is no news of this socket.
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn forward(&self, front: &Rc<UdpSocket>, client: SocketAddr, packet: &[u8]) {
        let mut steering = self.steering.borrow_mut();
        let Ok(steered) = steering.steer(Instant::now(), client, packet) else {
            return;
        };
        let mut flows = self.flows.borrow_mut();
        if let Some(displaced) = steered.displaced {
            drop(flows.remove(&displaced));
        }
        let Some(relay) = self.relays.get(steered.relay) else {
            return;
        };
        let flow = match flows.entry(steered.flow) {
            Entry::Occupied(flow) => flow.into_mut(),
            // Without a socket this packet is lost; the next one tries again.
            Entry::Vacant(place) => match Flow::open(front, client, relay.address) {
                Ok(flow) => place.insert(flow),
                Err(_) => return,
            },
        };
        drop(flow.socket.try_send(packet));
    }
}

impl Flow {
    fn open(front: &Rc<UdpSocket>, client: SocketAddr, relay: SocketAddr) -> io::Result<Self> {
        let socket = datagram_socket(any(relay))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the relays of the file are the only ones that are reached"
        )]
        socket2::SockRef::from(&socket).connect(&relay.into())?;
        let socket = Rc::new(socket);
        let back = spawn_local(carry_back(Rc::clone(&socket), Rc::clone(front), client));
        Ok(Self {
            socket,
            back: back.abort_handle(),
        })
    }
}

/// Passes on what comes from the relay, until the flow ends.
async fn carry_back(flow: Rc<UdpSocket>, front: Rc<UdpSocket>, client: SocketAddr) {
    // A packet of the path, not of loopback: a buffer of the largest payload for each flow would be much.
    let mut buffer = [0; 2048];
    loop {
        if flow.readable().await.is_err() {
            return;
        }
        for _ in 0..TURN {
            match flow.try_recv(&mut buffer) {
                Ok(length) => {
                    let packet = buffer.get(..length).unwrap_or_default();
                    drop(front.try_send_to(packet, client));
                }
                // The relay is not there: its health tells.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        tokio::task::yield_now().await;
    }
}

// TCP.

impl Front {
    /// Takes connections, for ever.
    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, client)) if self.connections.get() < self.limits.connections => {
                    spawn_local(Rc::clone(&self).splice(stream, client));
                }
                Ok(_) => {}
                Err(_) => sleep(SHORT).await,
            }
        }
    }

    async fn splice(self: Rc<Self>, mut client: TcpStream, from: SocketAddr) {
        self.connections.set(self.connections.get() + 1);
        if let Some((place, mut relay)) = self.dial(from).await {
            drop(client.set_nodelay(true));
            drop(relay.set_nodelay(true));
            // Each half ends by itself; an error of one end is told to the other by closing it.
            drop(copy_bidirectional(&mut client, &mut relay).await);
            self.steering.borrow_mut().closed(place);
        }
        self.connections.set(self.connections.get() - 1);
    }

    /// A connection to a ready relay; one that does not take it is passed over. Whoever has it says when it has ended.
    async fn dial(&self, from: SocketAddr) -> Option<(usize, TcpStream)> {
        let mut tried = Vec::new();
        loop {
            let place = self.steering.borrow().choose(from, &tried)?;
            let address = self.relays.get(place)?.address;
            // It counts while it is dialled, so that many at once are spread.
            self.steering.borrow_mut().opened(place);
            #[expect(
                clippy::disallowed_methods,
                reason = "the relays of the file are the only ones that are reached"
            )]
            let dialling = TcpStream::connect(address);
            if let Ok(Ok(stream)) = timeout(self.limits.connect, dialling).await {
                return Some((place, stream));
            }
            self.steering.borrow_mut().closed(place);
            tried.push(place);
        }
    }
}

// How relays are.

impl Front {
    /// Asks one relay again and again.
    async fn watch(self: Rc<Self>, place: usize) {
        let Some(relay) = self.relays.get(place) else {
            return;
        };
        loop {
            let answer = timeout(self.checks.patience, ask(relay.health)).await;
            let answer = match answer {
                Ok(Ok(200)) => Answer::Ready,
                Ok(Ok(_)) => Answer::NotReady,
                _ => Answer::Silence,
            };
            let changed = self.steering.borrow_mut().heard(place, answer);
            if let Some(health) = changed {
                let health = match health {
                    Health::Ready => "ready",
                    Health::Draining => "draining",
                    Health::Dead => "dead",
                };
                let id = &relay.server_id;
                let line = format_args!(
                    "{{\"event\":\"health\",\"relay\":\"{id}\",\"health\":\"{health}\"}}"
                );
                // Whoever does not listen any more need not be told.
                drop(say(line));
            }
            sleep(self.checks.every).await;
        }
    }
}

/// The status of a relay's answer to `GET /ready`.
async fn ask(health: SocketAddr) -> io::Result<u16> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the relays of the file are the only ones that are asked"
    )]
    let mut stream = TcpStream::connect(health).await?;
    let request = b"GET /ready HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = [0; ANSWER];
    let mut length = 0;
    while let Some(rest) = answer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        let read = stream.read(rest).await?;
        length += read;
        let read_so_far = answer.get(..length).unwrap_or_default();
        if read == 0 || read_so_far.contains(&b'\n') {
            break;
        }
    }
    let answer = answer.get(..length).unwrap_or_default();
    status(answer).ok_or_else(|| io::Error::other("no HTTP"))
}

/// RFC 9112 §4: "HTTP-version SP status-code SP".
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split(' ');
    words.next().filter(|word| word.starts_with("HTTP/1."))?;
    let code = words.next().filter(|code| code.len() == 3)?;
    code.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_http_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.1 503 \r\n"), Some(503));
        for wrong in [
            &b""[..],
            b"200",
            b"HTTP/2 200 OK\r\n",
            b"HTTP/1.1 2000 OK\r\n",
            b"HTTP/1.1 2x0\r\n",
            b"\xff\xfe",
        ] {
            assert_eq!(status(wrong), None);
        }
    }
}
