//! TCP through a bottleneck and through loss. Goodput: rate × 1448 / 1500 within 0.5 % at 1, 10, 50 and 500 Mbit/s.
//! Loss: 1 % within its binomial 99.9 % interval, and as many retransmissions as drops.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{
    Effort, Figure,
    bench::{self, Bench, Seen},
    failed, tcp_info,
};
use crate::{
    errors::Failure,
    topology::{Direction, Loss},
};

const RATES_MBIT: [u64; 4] = [1, 10, 50, 500];
/// What is left of 1500 octets after the headers of IPv4 and of TCP with timestamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;
const RATE_WITHIN: f64 = 0.005;
/// Up to here a small send buffer fills the link; it keeps the queue short, and so the time of warming up.
const SMALL_BUFFER_MBIT: u64 = 50;
const SMALL_BUFFER: usize = 128 << 10;
const WARM_UP: Duration = Duration::from_millis(1500);
const PORT: u16 = 8000;
const LOSS: f64 = 0.01;
/// Standard deviations of 99.9 %.
const DEVIATIONS: f64 = 3.29;

pub(super) fn check_rate(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    for mbit in RATES_MBIT {
        figure(goodput(mbit, effort.time(4, 15))?);
    }
    Ok(())
}

fn goodput(mbit: u64, time: Duration) -> Result<Figure, Failure> {
    let bottleneck = Direction {
        rate: Some(mbit * 1_000_000),
        delay: Duration::from_millis(2),
        ..Direction::default()
    };
    let buffer = (mbit <= SMALL_BUFFER_MBIT).then_some(SMALL_BUFFER);
    let (seen, flow) = transfer(&bottleneck, buffer, time)?;
    let asked = mbit as f64 * PAYLOAD;
    let got = flow.goodput_mbit;
    let ok = (got / asked - 1.0).abs() <= RATE_WITHIN;
    let told = Figure::new("rate", "Mbit/s", asked, got, got, ok).with("rate_mbit", mbit);
    Ok(seen.tell(told.with("retransmissions", flow.retransmissions)))
}

pub(super) fn check_loss(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    let mut link = bench::pair(&Direction {
        delay: Duration::from_millis(1),
        ..Direction::default()
    });
    link.links[0].forward.loss = Loss::Bernoulli { share: LOSS };
    let (seen, flow) = transfer_over(&link, None, effort.time(5, 30))?;
    let forward = &seen.links[0];
    let (packets, lost) = (
        forward.packets as f64,
        forward.drops.get("loss").copied().unwrap_or(0),
    );
    let share = lost as f64 / packets.max(1.0);
    let interval = DEVIATIONS * (LOSS * (1.0 - LOSS) / packets.max(1.0)).sqrt();
    let seen_by_tcp = f64::from(flow.retransmissions);
    let told = (seen_by_tcp - lost as f64).abs() <= (lost as f64 * 0.1).max(3.0);
    let ok = (share - LOSS).abs() <= interval && told && lost > 0;
    let result =
        Figure::new("loss", "share", LOSS, share, share, ok).with("packets", forward.packets);
    let result = result
        .with("drops", lost)
        .with("retransmissions", flow.retransmissions);
    figure(seen.tell(result.with("interval", [LOSS - interval, LOSS + interval])));
    Ok(())
}

/// What a flow came to.
struct Flow {
    goodput_mbit: f64,
    retransmissions: u32,
}

fn transfer(
    direction: &Direction,
    buffer: Option<usize>,
    time: Duration,
) -> Result<(Seen, Flow), Failure> {
    transfer_over(&bench::pair(direction), buffer, time)
}

/// A TCP connection from `a` to `b` that is never short of data, for so long after its warming up.
fn transfer_over(
    topology: &crate::topology::Topology,
    buffer: Option<usize>,
    time: Duration,
) -> Result<(Seen, Flow), Failure> {
    let bench = Bench::new(topology)?;
    let listener = bench.inside(1, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    let to = bench.address(1, PORT)?;
    let sender = bench.inside(0, || connect(to, buffer))?;
    let (receiver, _) = listener
        .accept()
        .map_err(failed("accepting the measured connection"))?;
    bench.begin();
    let flow = carry(sender, receiver, time).map_err(failed("measuring TCP"))?;
    Ok((bench.end()?, flow))
}

fn connect(to: SocketAddr, buffer: Option<usize>) -> io::Result<TcpStream> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the network itself is measured, there is no overlay"
    )]
    let stream = TcpStream::connect(to)?;
    // Pinned here and not by a sysctl: a namespace may have as its default only what the machine allows everybody.
    SockRef::from(&stream).set_tcp_congestion(b"cubic")?;
    if let Some(buffer) = buffer {
        SockRef::from(&stream).set_send_buffer_size(buffer)?;
    }
    Ok(stream)
}

fn carry(mut sender: TcpStream, receiver: TcpStream, time: Duration) -> io::Result<Flow> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| fill(&mut sender, &stop));
        let goodput_mbit = drain(receiver, time, &stop);
        // The receiver has closed: nobody waits for ever.
        let retransmissions = sending
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the sender broke")))?;
        Ok(Flow {
            goodput_mbit: goodput_mbit?,
            retransmissions,
        })
    })
}

/// Writes until it is told to stop, then until all is acknowledged; says how often TCP sent something again.
fn fill(sender: &mut TcpStream, stop: &AtomicBool) -> io::Result<u32> {
    let chunk = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        sender.write_all(&chunk)?;
    }
    sender.shutdown(Shutdown::Write)?;
    sender.read_exact(&mut [0])?;
    tcp_info::retransmissions(sender)
}

/// Reads it all; Mbit/s of payload between the first octets after the warming up and the last ones of the measurement.
fn drain(mut receiver: TcpStream, time: Duration, stop: &AtomicBool) -> io::Result<f64> {
    let (began, mut buffer) = (Instant::now(), vec![0; 256 << 10]);
    let (mut first, mut last, mut octets) = (None, began, 0);
    loop {
        let read = receiver.read(&mut buffer);
        let now = Instant::now();
        match read? {
            0 => break,
            _ if now < began + WARM_UP => {}
            _ if first.is_none() => first = Some(now),
            size if now < began + WARM_UP + time => (last, octets) = (now, octets + size),
            _ => stop.store(true, Ordering::Relaxed),
        }
    }
    receiver.write_all(&[1])?;
    let took = first.map_or(0.0, |first| (last - first).as_secs_f64());
    Ok(octets as f64 * 8.0 / took.max(1e-9) / 1e6)
}
