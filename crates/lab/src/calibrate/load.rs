//! Constant rates of datagrams: as the load beside a measurement, and as the measurement itself (`pps`, `hosts`).

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    Effort, Figure,
    bench::{self, Bench},
};
use crate::{errors::Failure, topology::Direction};

/// Where nobody reads: the kernel counts and forgets.
pub(super) const SINK: u16 = 9;
/// How long a sender waits between two bursts.
const GAP: Duration = Duration::from_micros(100);
/// A sender that was held up catches up with so many packets at most, lest a stall becomes a flood.
const CATCH_UP: u64 = 500;

const PACKETS: f64 = 250_000.0;
const HOSTS: usize = 60;
const PACKETS_OF_HOST: u32 = 400;
/// The validity gate's.
const LATE_US: f64 = 500.0;

/// Sends `packets` a second of `size` octets of IP, in turn from each of the sockets to its target, until `stop`; says how many.
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

/// Runs `work` while `packets` a second of `size` octets go from host 0 to host 1; says how many went.
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
    let bench = Bench::new(&bench::pair(&Direction::default()))?;
    bench.begin();
    let time = effort.time(3, 20);
    let (took, sent) = beside(&bench, 100, PACKETS, || {
        let began = Instant::now();
        thread::sleep(time);
        Ok(began.elapsed().as_secs_f64())
    })?;
    let seen = bench.end()?;
    let rate = seen.health.released as f64 / took;
    let ok = seen.health.own_drops == 0 && rate >= PACKETS * 0.99;
    let mut told = Figure::new("pps", "pkt/s", PACKETS, rate.round(), rate.round(), ok);
    if (sent as f64) < PACKETS * 0.99 * took {
        told = told.with(
            "note",
            "the sender could not send so much: this says nothing of the emulator",
        );
    }
    figure(
        seen.tell(told)
            .with("sent", sent)
            .with("cpu_share", (seen.health.cpu_s / took * 1e3).round() / 1e3),
    );
    Ok(())
}

/// 60 hosts around a router, each sends 400 packets a second to the next: none is dropped, and 99 of 100 leave within half a millisecond.
pub(super) fn check_hosts(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    let delay = Duration::from_millis(10);
    let bench = Bench::new(&bench::star(
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
    let (stop, time) = (AtomicBool::new(false), effort.time(3, 20));
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
        && seen.health.late_us_p99 <= LATE_US
        && seen.health.released >= sent
        && came >= f64::from(PACKETS_OF_HOST) * 0.99;
    let told = Figure::new("hosts", "pkt/s", PACKETS_OF_HOST.into(), came, came, ok);
    figure(seen.tell(told).with("hosts", HOSTS).with("sent", sent));
    Ok(())
}
