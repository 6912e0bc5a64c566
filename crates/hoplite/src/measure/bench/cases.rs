//! The cases. First the raw limit, and TCP through the SOCKS port: goodput and CPU seconds per GB, up and down, one and several streams.
//! Plain TCP over loopback is measured with the same generator.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use hoplite_workload::{
    cpu::{self, Meter, Watched},
    datagrams::{Dress, Flood, Socket, UdpTarget},
    load::{self, Counter, ECHO, Target, Worker},
    raw,
    socks::{self, Association},
    statistics::median,
};

use super::{broken, report::Sample};
use crate::{
    measure::testbed::{Chain, Over},
    say::Failure,
};

/// What comes before the measurement: connections open, windows grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// Which way the payload goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Download,
    /// A download at the rate of a line that people have.
    Paced,
    Upload,
}

/// A transfer on a thread of its own; dropping it ends it.
struct Flow {
    stream: TcpStream,
    _worker: Worker,
}

/// Measures the raw limit for `window`.
pub(super) fn raw_limit(window: Duration) -> Result<Sample, Failure> {
    let limit = raw::limit(window).map_err(|error| broken(&error))?;
    let (bytes, seconds) = (limit.bytes(), limit.wall.as_secs_f64());
    let cpu = [
        ("sender".to_owned(), limit.sender.as_secs_f64()),
        ("receiver".to_owned(), limit.receiver.as_secs_f64()),
    ];
    let pps = limit.packets as f64 / seconds;
    Ok(Sample::transfer(bytes, seconds, &cpu).with("pps", pps))
}

/// Measures for `window` through the chain.
pub(super) fn stream_through(
    chain: &Chain,
    target: &Target,
    way: Way,
    streams: u8,
    window: Duration,
) -> Result<Sample, Failure> {
    let connect = || socks::connect(chain.socks(), None, target.address());
    transfer(&chain.watched(), connect, target, way, streams, window)
        .map_err(|error| broken(&error))
}

/// Measures plain TCP; both ends are this process.
pub(super) fn plain_stream(
    target: &Target,
    streams: u8,
    window: Duration,
) -> Result<Sample, Failure> {
    let both = [Watched {
        name: "both".into(),
        pid: std::process::id(),
    }];
    let connect = || directly(target.address());
    transfer(&both, connect, target, Way::Download, streams, window).map_err(|error| broken(&error))
}

#[expect(clippy::disallowed_methods, reason = "the baseline has no overlay")]
fn directly(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect(address)
}

fn transfer(
    watched: &[Watched],
    connect: impl Fn() -> io::Result<TcpStream>,
    target: &Target,
    way: Way,
    streams: u8,
    window: Duration,
) -> io::Result<Sample> {
    let counter = match way {
        Way::Download | Way::Paced => Counter::default(),
        Way::Upload => target.taken().clone(),
    };
    let flows: Vec<Flow> = (0..streams)
        .map(|_| Flow::start(connect()?, way, &counter))
        .collect::<Result<_, _>>()?;
    std::thread::sleep(WARM_UP.min(window));
    let (meter, start, before) = (Meter::start(watched)?, Instant::now(), counter.value());
    std::thread::sleep(window);
    let (bytes, seconds) = (counter.value() - before, start.elapsed().as_secs_f64());
    let cpu = meter.stop()?;
    drop(flows);
    match bytes {
        0 => Err(io::Error::other("nothing arrived")),
        bytes => Ok(Sample::transfer(bytes, seconds, &cpu)),
    }
}

impl Flow {
    fn start(mut stream: TcpStream, way: Way, counter: &Counter) -> io::Result<Self> {
        stream.write_all(&[match way {
            Way::Download => load::DOWNLOAD,
            Way::Paced => load::PACED,
            Way::Upload => load::UPLOAD,
        }])?;
        let (mut working, counter) = (stream.try_clone()?, counter.clone());
        let worker = Worker::start(move |stop| {
            drop(match way {
                Way::Download | Way::Paced => load::take(&mut working, &counter),
                Way::Upload => load::send(&mut working, stop),
            });
        })?;
        Ok(Self {
            stream,
            _worker: worker,
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

// Datagrams through CONNECT-UDP: a target floods the program in front of the SOCKS port as fast as it takes them.
// Packets a second and CPU per packet matter here; the relay's share is what an operator pays.

/// How long the first datagram may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Payload under way, in bytes: less than a socket's usual buffer takes.
const UNDER_WAY: u64 = 128 << 10;
/// Datagrams under way that were sent one by one: the kernel's buffer counts its own costs, some 800 bytes for each.
const MOST_ALONE: u64 = 200;
/// How often a program that receives a flood of QUIC says so.
const ACKNOWLEDGED: Duration = Duration::from_millis(20);
/// Whoever sends as little as this does not send trains of it: the flood is no kinder to the relay than real programs are.
const SENT_ALONE: usize = 200;

/// Measures datagrams of `size` bytes for `window`.
pub(super) fn flood(
    chain: &Chain,
    size: usize,
    dress: Dress,
    window: Duration,
) -> Result<Sample, Failure> {
    flood_run(chain, size, dress, window).map_err(|error| broken(&error))
}

/// The program: what it received so far.
struct Receiver {
    association: Association,
    socket: Socket,
    /// The SOCKS header before each payload.
    header: Vec<u8>,
    size: usize,
    dress: Dress,
    highest: Counter,
    count: u64,
    acknowledged: Option<Instant>,
}

fn flood_run(chain: &Chain, size: usize, dress: Dress, window: Duration) -> io::Result<Sample> {
    let flood = Flood {
        dress,
        size,
        together: size > SENT_ALONE,
        window: window_of(size),
        arrived: Counter::default(),
        sent: Counter::default(),
    };
    let target = UdpTarget::flood(flood.clone())?;
    let mut receiver = Receiver::open(chain, size, dress, flood.arrived.clone())?;
    receiver.ask(target.address())?;
    receiver.receive_for(WARM_UP.min(window))?;
    let watched = chain.watched();
    let (meter, start, before, sent) = (
        Meter::start(&watched)?,
        Instant::now(),
        receiver.count,
        flood.sent.value(),
    );
    receiver.receive_for(window)?;
    let (count, seconds) = (receiver.count - before, start.elapsed().as_secs_f64());
    let sent = flood.sent.value() - sent;
    let cpu = meter.stop()?;
    if count == 0 {
        return Err(io::Error::other("no datagram arrived"));
    }
    let relay: f64 = cpu
        .iter()
        .filter(|(name, _)| name.starts_with("relay"))
        .map(|(_, spent)| spent)
        .sum();
    Ok(Sample::transfer(count * size as u64, seconds, &cpu)
        .with("pps", count as f64 / seconds)
        .with("pps_per_relay_cpu_s", count as f64 / relay)
        .with("lost", 1.0 - (count as f64 / sent as f64).min(1.0)))
}

fn window_of(size: usize) -> u64 {
    if size > SENT_ALONE {
        UNDER_WAY / size as u64
    } else {
        MOST_ALONE
    }
}

impl Receiver {
    fn open(chain: &Chain, size: usize, dress: Dress, highest: Counter) -> io::Result<Self> {
        let association = socks::associate(chain.socks())?;
        let socket = Socket::new(association.socket.try_clone()?)?;
        Ok(Self {
            association,
            socket,
            header: Vec::new(),
            size,
            dress,
            highest,
            count: 0,
            acknowledged: None,
        })
    }

    /// Asks the target until it answers: the first datagrams may be lost.
    fn ask(&mut self, target: SocketAddr) -> io::Result<()> {
        self.header = socks::udp_header(target);
        let request = [self.header.clone(), self.dress.request()].concat();
        let start = Instant::now();
        while self.count == 0 {
            self.socket
                .send(self.association.relay, &request, request.len())?;
            self.receive_for(Duration::from_millis(100))?;
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(
                    "the UDP target does not answer through the relay",
                ));
            }
        }
        Ok(())
    }

    fn receive_for(&mut self, time: Duration) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            let (mut count, mut highest) = (0, 0);
            let (header, size, dress) = (self.header.len(), self.size, self.dress);
            self.socket
                .receive(Duration::from_millis(20), |_, datagram| {
                    if let Some(payload) = datagram
                        .get(header..)
                        .filter(|payload| payload.len() == size)
                    {
                        count += 1;
                        highest = dress.number_of(payload).max(highest);
                    }
                })?;
            self.count += count;
            self.highest.raise(highest);
            self.acknowledge()?;
        }
        Ok(())
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        let due = self
            .acknowledged
            .is_none_or(|last| last.elapsed() >= ACKNOWLEDGED);
        match self
            .dress
            .acknowledgement()
            .filter(|_| due && self.count > 0)
        {
            Some(acknowledgement) => {
                self.acknowledged = Some(Instant::now());
                let packet = [&self.header[..], &acknowledgement].concat();
                self.socket
                    .send(self.association.relay, &packet, packet.len())
            }
            None => Ok(()),
        }
    }
}

// What a relay keeps in memory: at rest, and for each client that is connected and idle. Idle clients are connections
// of their own to the last of two relays, one for each SOCKS user name; of circuits, a circuit for each.

/// What a process may still do after the last client came: closing flows, answering.
const SETTLE: Duration = Duration::from_millis(500);

/// Measures a relay with this many idle clients.
pub(super) fn memory_of_a_relay(
    clients: usize,
    over: Over,
    target: &Target,
) -> Result<Sample, Failure> {
    let isolated = clients + 1;
    let keys = match over {
        Over::Masque => format!("tunnel.isolated = {isolated}\ntunnel.isolated_idle = 3600"),
        Over::Onion(_) => format!("onion.isolated = {isolated}"),
    };
    let chain = Chain::with_client_keys(2, over, &keys)?;
    memory_run(&chain, clients, target).map_err(|error| broken(&error))
}

fn memory_run(chain: &Chain, clients: usize, target: &Target) -> io::Result<Sample> {
    let watched = chain.watched();
    let relay = watched.iter().find(|process| process.name == "relay2");
    let relay = relay
        .ok_or_else(|| io::Error::other("there is no relay"))?
        .pid;
    std::thread::sleep(SETTLE);
    let at_rest = cpu::resident(relay)?;
    visit(chain, "first", target)?;
    let warm = cpu::resident(relay)?;
    for i in 0..clients {
        visit(chain, &format!("client{i}"), target)?;
    }
    std::thread::sleep(SETTLE);
    let grown = cpu::resident(relay)?.saturating_sub(warm);
    Ok(Sample::default()
        .with("relay_at_rest_bytes", at_rest as f64)
        .with("idle_clients", clients as f64)
        .with("bytes_per_idle_client", grown as f64 / clients as f64))
}

/// One flow that comes and goes; the connection under it stays.
fn visit(chain: &Chain, user: &str, target: &Target) -> io::Result<()> {
    let mut stream = socks::connect(chain.socks(), Some(user), target.address())?;
    stream.write_all(&[ECHO])?;
    stream.read_exact(&mut [0])
}

// Time to the first byte on a warm path: from the connection to the SOCKS port to the target's first byte. The same
// with 0 hops is the baseline; the report shows the difference per hop.

/// Flows that warm the path up, and flows that are measured.
const WARM_FLOWS: usize = 20;
const MEASURED: usize = 300;

/// Measures through the chain.
pub(super) fn first_byte(chain: &Chain, target: &Target) -> Result<Sample, Failure> {
    let times = (0..WARM_FLOWS + MEASURED)
        .map(|_| timed_fetch(chain, target))
        .skip(WARM_FLOWS);
    let times: Vec<f64> = times
        .collect::<Result<_, _>>()
        .map_err(|error| broken(&error))?;
    let mut sample = Sample::default();
    if let Some(median) = median(&times) {
        sample = sample.with("ttfb_ms", median * 1e3);
    }
    Ok(sample)
}

fn timed_fetch(chain: &Chain, target: &Target) -> io::Result<f64> {
    let start = Instant::now();
    let mut stream = socks::connect(chain.socks(), None, target.address())?;
    stream.write_all(&[ECHO])?;
    stream.read_exact(&mut [0])?;
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_tcp_is_measured_both_ways() {
        let target = Target::start().expect("listens");
        let me = [Watched {
            name: "both".into(),
            pid: std::process::id(),
        }];
        for way in [Way::Download, Way::Upload] {
            let connect = || directly(target.address());
            let window = Duration::from_millis(100);
            let sample = transfer(&me, connect, &target, way, 2, window).expect("measured");
            assert!(format!("{sample:?}").contains("goodput_bps"));
        }
    }
}
