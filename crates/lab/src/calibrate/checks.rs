//! The checks: how long 200 hosts take to make, what checking payload costs, round trips beside loads, TCP through a bottleneck and through loss,
//! small packets through one emulator, many hosts around a router.
//!
//! Round trips are of ICMP (RFC 792), as `ping` sends them: the far kernel answers, and ours stamps the answer as it comes. So the network is
//! measured, not how soon a process is woken up.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    mem::{self, MaybeUninit},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use hoplite_wire::ip::{
    self,
    icmp::{self, Echo},
};
use hoplite_workload::{
    cpu::thread_time,
    web::{PIECE, prepare_payload},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{Bench, Effort, Figure, Seen, failed, pair, pulse, star, unspoilt};
use crate::{
    emulator::ask_for_priority,
    errors::Failure,
    experiments::{
        scenario::Gate,
        workload::{
            message,
            transfer::{Receiver, Sender},
        },
    },
    netns::Lab,
    topology::{Direction, Loss},
};

const RATES_MBIT: [u64; 4] = [1, 10, 50, 500];
/// What is left of 1500 bytes after the headers of IPv4 and of TCP with timestamps.
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
        figure(unspoilt(effort, || goodput(mbit, effort.time(4, 15)))?);
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
    figure(unspoilt(effort, || lossy(effort.time(5, 30)))?);
    Ok(())
}

fn lossy(time: Duration) -> Result<Figure, Failure> {
    let mut link = pair(&Direction {
        delay: Duration::from_millis(1),
        ..Direction::default()
    });
    link.links[0].forward.loss = Loss::Bernoulli { share: LOSS };
    let (seen, flow) = transfer_over(&link, None, time)?;
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
    Ok(seen.tell(result.with("interval", [LOSS - interval, LOSS + interval])))
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
    transfer_over(&pair(direction), buffer, time)
}

/// A TCP connection from `a` to `b` that is never short of data, for this long after its warming up.
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
    retransmissions(sender)
}

/// Reads it all; Mbit/s of payload between the first bytes after the warming up and the last ones of the measurement.
fn drain(mut receiver: TcpStream, time: Duration, stop: &AtomicBool) -> io::Result<f64> {
    let (began, mut buffer) = (Instant::now(), vec![0; 256 << 10]);
    let (mut first, mut last, mut bytes) = (None, began, 0);
    loop {
        let read = receiver.read(&mut buffer);
        let now = Instant::now();
        match read? {
            0 => break,
            _ if now < began + WARM_UP => {}
            _ if first.is_none() => first = Some(now),
            size if now < began + WARM_UP + time => (last, bytes) = (now, bytes + size),
            _ => stop.store(true, Ordering::Relaxed),
        }
    }
    receiver.write_all(&[1])?;
    let took = first.map_or(0.0, |first| (last - first).as_secs_f64());
    Ok(bytes as f64 * 8.0 / took.max(1e-9) / 1e6)
}

/// Segments that this end sent again.
fn retransmissions(stream: &TcpStream) -> io::Result<u32> {
    // SAFETY: the structure consists of integers, for which all zeros are valid.
    #[expect(unsafe_code, reason = "a C structure that the kernel fills")]
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    let to = (&raw mut info).cast();
    // SAFETY: the descriptor is open; the kernel writes at most `size` bytes to `info`, which has this many.
    #[expect(unsafe_code, reason = "no safe wrapper reads TCP_INFO")]
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            to,
            &raw mut size,
        )
    };
    match result {
        0 => Ok(info.tcpi_total_retrans),
        _ => Err(io::Error::last_os_error()),
    }
}

const NOMINAL: Duration = Duration::from_millis(20);
const LOADS_MBIT: [f64; 4] = [0.0, 10.0, 100.0, 500.0];
const MEDIAN_MS: f64 = 0.5;
const P99_MS: f64 = 1.5;
/// The share of the load that must really have been there.
const LOAD_WITHIN: f64 = 0.95;
/// This many probes are not counted.
const PROBES_TO_WARM_UP: u32 = 5;
/// From one probe to the next, beyond the round trip.
const PROBE_PAUSE: Duration = Duration::from_millis(2);
/// After so long a probe is lost.
const PROBE_LOST: Duration = Duration::from_millis(500);

pub(super) fn check_rtt(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    for mbit in LOADS_MBIT {
        figure(unspoilt(effort, || measure(mbit, effort.time(3, 15)))?);
    }
    Ok(())
}

fn measure(mbit: f64, time: Duration) -> Result<Figure, Failure> {
    let bench = Bench::new(&pair(&Direction {
        delay: NOMINAL / 2,
        ..Direction::default()
    }))?;
    let to = bench.address(1, 0)?;
    let pinger = bench.inside(0, || Pinger::new(to, PROBE_LOST))?;
    bench.begin();
    let probes = || probe_all(pinger, time).map_err(failed("measuring round trips"));
    let began = Instant::now();
    let ((mut trips, lost), sent) = beside(&bench, 1500, mbit * 1e6 / 8.0 / 1500.0, probes)?;
    let seen_mbit = sent as f64 * 1500.0 * 8.0 / 1e6 / began.elapsed().as_secs_f64();
    let seen = bench.end()?;
    trips.sort_unstable_by(|a, b| a.total_cmp(b));
    let (median, p99, nominal) = (
        quantile(&trips, 0.5),
        quantile(&trips, 0.99),
        NOMINAL.as_secs_f64() * 1e3,
    );
    let close = (median - nominal).abs() <= MEDIAN_MS && (p99 - nominal).abs() <= P99_MS;
    // Beside less than was meant to be there, a good round trip says nothing.
    let ok = close && lost == 0 && !trips.is_empty() && seen_mbit >= mbit * LOAD_WITHIN;
    let told = Figure::new("rtt", "ms", nominal, median, p99, ok)
        .with("load_mbit", mbit)
        .with("load_seen_mbit", (seen_mbit * 10.0).round() / 10.0);
    Ok(seen.tell(told.with("n", trips.len()).with("lost", lost)))
}

/// One probe after the other for this long: round trips in milliseconds, and how many were lost. The first ones warm up.
fn probe_all(mut pinger: Pinger, time: Duration) -> io::Result<(Vec<f64>, usize)> {
    let prober = thread::spawn(move || {
        ask_for_priority();
        probe_until(&mut pinger, Instant::now() + time)
    });
    prober
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the prober broke")))
}

fn probe_until(pinger: &mut Pinger, end: Instant) -> io::Result<(Vec<f64>, usize)> {
    let (mut trips, mut lost) = (Vec::new(), 0);
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        match pinger.trip()? {
            Some(trip) if number >= PROBES_TO_WARM_UP => trips.push(trip.as_secs_f64() * 1e3),
            Some(_) => {}
            None => lost += 1,
        }
        thread::sleep(PROBE_PAUSE);
    }
    Ok((trips, lost))
}

/// Of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let wanted = share * sorted.len() as f64;
    let at = (1..=sorted.len()).find(|&count| count as f64 >= wanted);
    at.and_then(|count| sorted.get(count.max(1) - 1))
        .copied()
        .unwrap_or(0.0)
}

/// Every request of ours has it: a raw socket hears all.
const IDENTITY: u16 = 0x686f;
/// Bytes of an echo with eight of payload.
const SIZE: usize = 16;
/// `linux/sockios.h`: when the last packet came that this socket gave; asking for the first time switches the stamps on.
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;

/// Asks one host.
#[derive(Debug)]
struct Pinger {
    socket: Socket,
    to: SocketAddr,
    number: u16,
}

impl Pinger {
    /// Must be made inside the host that asks. After `patience` an answer is lost.
    pub(super) fn new(to: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
        socket.set_read_timeout(Some(patience))?;
        stamp(&socket).ok();
        Ok(Self {
            socket,
            to,
            number: 0,
        })
    }

    /// One round trip; None if it was lost.
    pub(super) fn trip(&mut self) -> io::Result<Option<Duration>> {
        self.number = self.number.wrapping_add(1);
        let sent = SystemTime::now();
        self.socket
            .send_to(&request(self.number), &self.to.into())?;
        match self.hear() {
            Ok(came) => Ok(came.duration_since(sent).ok()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When the answer to the last request came; late answers to earlier ones are passed over.
    fn hear(&mut self) -> io::Result<SystemTime> {
        let mut packet = [0; 128];
        loop {
            let size = (&self.socket).read(&mut packet)?;
            if answers(packet.get(..size).unwrap_or_default(), self.number) {
                return stamp(&self.socket);
            }
        }
    }
}

fn echo(reply: bool, number: u16) -> Echo<'static> {
    Echo {
        reply,
        identifier: IDENTITY,
        sequence: number,
        payload: &[0; 8],
    }
}

/// The message alone: the kernel puts the IP header in front of it.
fn request(number: u16) -> Vec<u8> {
    let nowhere = Ipv4Addr::UNSPECIFIED.into();
    let mut packet = echo(false, number).packet(nowhere, nowhere);
    packet.split_off(packet.len() - SIZE)
}

/// Whether an IPv4 packet answers the request of that number.
fn answers(packet: &[u8], number: u16) -> bool {
    let packet = ip::parse(packet).ok();
    packet.and_then(|packet| icmp::echo(&packet)) == Some(echo(true, number))
}

/// When the kernel got the packet that was read last.
fn stamp(socket: &Socket) -> io::Result<SystemTime> {
    let mut stamp = MaybeUninit::<libc::timespec>::zeroed();
    #[expect(unsafe_code, reason = "no safe wrapper asks for a packet's time")]
    // SAFETY: the descriptor is open, and the kernel writes one timespec, for which there is room; zeroes are a valid one too.
    let (answer, stamp) = unsafe {
        let answer = libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS, stamp.as_mut_ptr());
        (answer, stamp.assume_init())
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(stamp.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(stamp.tv_nsec).unwrap_or(0);
    Ok(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// Where nobody reads: the kernel counts and forgets.
const SINK: u16 = 9;
/// How long a sender waits between two bursts.
const GAP: Duration = Duration::from_micros(100);
/// A sender that was held up catches up with this many packets at most, lest a stall becomes a flood.
const CATCH_UP: u64 = 500;

const PACKETS_A_SECOND: f64 = 250_000.0;
const HOSTS: usize = 60;
const PACKETS_OF_HOST: u32 = 400;

/// Sends `packets` a second of `size` bytes of IP, in turn from each of the sockets to its target, until `stop`; says how many.
pub(super) fn send(
    from: &[(UdpSocket, SocketAddr)],
    size: usize,
    packets: f64,
    stop: &AtomicBool,
) -> u64 {
    let (payload, began) = (vec![0; size - 28], Instant::now());
    let (mut sent, mut skipped) = (0_u64, 0_u64);
    for (socket, to) in from.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        while sent + skipped >= due(began, packets) && !stop.load(Ordering::Relaxed) {
            thread::sleep(GAP);
            let behind = due(began, packets).saturating_sub(sent + skipped);
            skipped += behind.saturating_sub(burst(packets));
        }
        sent += u64::from(socket.send_to(&payload, to).is_ok());
    }
    sent
}

/// What is due in ten milliseconds, within bounds.
fn burst(packets: f64) -> u64 {
    whole(packets / 100.0).clamp(64, CATCH_UP)
}

fn due(began: Instant, packets: f64) -> u64 {
    whole(began.elapsed().as_secs_f64() * packets)
}

fn whole(number: f64) -> u64 {
    Duration::from_secs_f64(number.max(0.0)).as_secs()
}

/// Runs `work` while `packets` a second of `size` bytes go from host 0 to host 1; says how many went.
pub(super) fn beside<T>(
    bench: &Bench,
    size: usize,
    packets: f64,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, u64), Failure> {
    let _sink = bench.udp(1, SINK)?;
    let from = [(bench.udp(0, 0)?, bench.address(1, SINK)?)];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            if packets > 0.0 {
                send(&from, size, packets, &stop)
            } else {
                0
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        Ok((result?, sender.join().unwrap_or(0)))
    })
}

/// 250,000 small packets a second through one emulator, that is one core.
pub(super) fn check_pps(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    figure(unspoilt(effort, || small_packets(effort.time(3, 20)))?);
    Ok(())
}

fn small_packets(time: Duration) -> Result<Figure, Failure> {
    let bench = Bench::new(&pair(&Direction::default()))?;
    bench.begin();
    let (took, sent) = beside(&bench, 100, PACKETS_A_SECOND, || {
        let began = Instant::now();
        thread::sleep(time);
        Ok(began.elapsed().as_secs_f64())
    })?;
    let seen = bench.end()?;
    let rate = seen.health.released as f64 / took;
    let ok = seen.health.own_drops == 0 && rate >= PACKETS_A_SECOND * 0.99;
    let mut told = Figure::new(
        "pps",
        "pkt/s",
        PACKETS_A_SECOND,
        rate.round(),
        rate.round(),
        ok,
    );
    if (sent as f64) < PACKETS_A_SECOND * 0.99 * took {
        told = told.with(
            "note",
            "the sender could not send so much: this says nothing of the emulator",
        );
    }
    let told = seen.tell(told).with("sent", sent);
    Ok(told.with("cpu_share", (seen.health.cpu_s / took * 1e3).round() / 1e3))
}

/// 60 hosts around a router, each sends 400 packets a second to the next: none is dropped, and so few are late that the gate lets them pass.
pub(super) fn check_hosts(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    figure(unspoilt(effort, || many_hosts(effort.time(3, 20)))?);
    Ok(())
}

fn many_hosts(time: Duration) -> Result<Figure, Failure> {
    let delay = Duration::from_millis(10);
    let bench = Bench::new(&star(
        HOSTS,
        &Direction {
            delay,
            ..Direction::default()
        },
    ))?;
    let mut sockets = Vec::new();
    for host in 0..HOSTS {
        sockets.push((
            bench.udp(host, SINK)?,
            bench.address((host + 1) % HOSTS, SINK)?,
        ));
    }
    bench.begin();
    let stop = AtomicBool::new(false);
    let packets = HOSTS as f64 * f64::from(PACKETS_OF_HOST);
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| send(&sockets, 1000, packets, &stop));
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap_or(0)
    });
    thread::sleep(delay * 5);
    let seen = bench.end()?;
    let came = seen.health.released as f64 / time.as_secs_f64() / HOSTS as f64;
    let ok = seen.health.own_drops == 0
        && seen.health.late_share.unwrap_or(1.0) <= Gate::default().late_share
        && seen.health.released >= sent
        && came >= f64::from(PACKETS_OF_HOST) * 0.99;
    let told = Figure::new("hosts", "pkt/s", PACKETS_OF_HOST.into(), came, came, ok);
    Ok(seen.tell(told).with("hosts", HOSTS).with("sent", sent))
}

const MANY_HOSTS: usize = 200;
const LIMIT_S: f64 = 3.0;

pub(super) fn check_setup(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    figure(unspoilt(effort, set_up)?);
    Ok(())
}

fn set_up() -> Result<Figure, Failure> {
    let topology = star(MANY_HOSTS, &Direction::default());
    let (pulse, began) = (pulse()?, Instant::now());
    let built = Lab::build(&topology, &BTreeMap::new())?;
    let took = began.elapsed().as_secs_f64();
    drop(built);
    let told = Figure::new("setup", "s", LIMIT_S, took, took, took <= LIMIT_S);
    let pause = pulse.so_far().stood();
    Ok(told.with("hosts", MANY_HOSTS).paused(pause))
}

/// Megabytes of payload for each second of processor time that a workload's end must manage at least: ten times what a link of 200 Mbit/s carries.
const CHECKED_MB: f64 = 250.0;

/// What a workload's ends do beside sending and receiving, by processor time.
pub(super) fn check_hash(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    prepare_payload();
    let time = effort.time(1, 3);
    let mut sender = Sender::new(7);
    figure(cost("sender: fill and hash", time, || {
        sender.frame(PIECE as u64, false).1
    }));
    let (mut receiver, frame) = (Receiver::new(u64::MAX, 7), frame_of_payload());
    figure(cost("receiver: hash", time, || {
        let taken = receiver.take(&frame);
        taken.map_or(0, |_| PIECE as u64)
    }));
    let head = message::Head {
        kind: message::Kind::Data,
        token: 7,
        number: 0,
        sent: 0,
        turned: 0,
    };
    let mut datagram = Vec::new();
    figure(cost(
        "datagrams of 1200 bytes: fill, read and compare",
        time,
        || {
            head.fill(1200, &mut datagram);
            let read = message::Head::parse(&datagram);
            let intact = read.is_some_and(|(head, _)| head.is_intact(1200, &datagram));
            u64::from(intact) * 1200
        },
    ));
    Ok(())
}

fn frame_of_payload() -> Vec<u8> {
    Sender::new(7).frame(PIECE as u64, false).0.to_vec()
}

/// Megabytes for each second of processor time, of what `work` says that it has done.
fn cost(what: &str, time: Duration, mut work: impl FnMut() -> u64) -> Figure {
    let (before, mut bytes, mut took) = (thread_time(), 0, Duration::ZERO);
    while took < time {
        bytes += (0..64).map(|_| work()).sum::<u64>();
        took = thread_time().saturating_sub(before);
    }
    let seen = (bytes as f64 / took.as_secs_f64() / 1e6).round();
    let ok = seen >= CHECKED_MB;
    Figure::new("hash", "MB/s", CHECKED_MB, seen, seen, ok).with("what", what)
}

#[cfg(test)]
mod tests {
    use hoplite_wire::ip::checksum;

    use super::*;

    #[test]
    fn only_the_answer_to_the_request_counts() {
        let [a, b] = [1, 2].map(|host| Ipv4Addr::new(10, 77, 0, host).into());
        let answer = echo(true, 7).packet(b, a);
        assert!(answers(&answer, 7));
        assert!(!answers(&answer, 8));
        let asked = echo(false, 7).packet(a, b);
        assert!(!answers(&asked, 7), "a request is no answer");
        assert!(!(0..answer.len()).any(|size| answers(&answer[..size], 7)));
    }

    #[test]
    fn the_sum_over_a_request_is_zero() {
        assert_eq!(checksum::of(&[&request(0xfedc)]), 0);
        assert_eq!(request(7).len(), SIZE);
    }
}
