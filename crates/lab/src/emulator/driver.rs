//! The emulator's thread: reads TUNs, moves the network, writes TUNs at the right moment.
//!
//! Packets are read in small batches, port by port, and what is due is released between them, so that no port and no release waits long.
//! It sleeps in `epoll_pwait2` until a packet comes or shortly before the next release, and spins from there on as far as [`Pace`] allows.
//!
//! The kernel stops real-time threads that use more than 95 % of a second (`sched_rt_runtime_us`), for 50 ms at once, which ruins a
//! measurement. So a saturated emulator rests by itself, 100 µs at a time, and stays within 92 % of every 100 ms, 90 % in the long run.
//! A sleep costs two switches of processes, and is often over at once because a packet has come: only what is longer than that is rest.
//! Spinning before a release gets an eighth of the time at most: on a machine of two cores, subjects want the other one and a half.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use hoplite_workload::cpu::thread_time;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use super::{
    health::{self, Lateness, Machine},
    network::{Delivery, Network, Watch},
    priority,
    recorder::Recorder,
};
use crate::experiments::trial::{EmulatorHealth, LinkCount};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Packets read from a port before others have their turn.
const READ_BATCH: usize = 16;
/// Packets released before ports are read again.
const RELEASE_BATCH: usize = 64;
/// Ports that one `epoll_wait` tells of.
const EVENTS: usize = 64;
/// It wakes up so long before a release.
const SPIN: u64 = 60 * US;
/// Without spinning it sleeps at least so long, whatever comes: to sleep and be woken for each packet of many costs more than the packets.
const QUANTUM: u64 = 50 * US;
/// It wakes up at least so often.
const LONGEST_SLEEP: u64 = 100 * MS;
/// Not to have been scheduled for this long is a stall.
const STALL: u64 = MS;
/// Records are handed to the writer at least so often.
const FLUSH: u64 = 500 * MS;
/// The largest IP packet.
const LARGEST: usize = 65_535;
/// What the wake-up descriptor is in epoll's answers.
const WAKE: u64 = u64::MAX;

/// What others tell the thread.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stop: AtomicBool,
    pub(super) begin: AtomicBool,
    pub(super) end: AtomicBool,
    /// Readable when there is something new.
    pub(super) wake: OwnedFd,
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct Driver {
    network: Network,
    recorder: Recorder,
    /// The TUN of each port (`2 · link + end`), where it is a host's.
    ports: Vec<Option<OwnedFd>>,
    epoll: OwnedFd,
    control: Arc<Control>,
    base: Instant,
    pace: Pace,
    lateness: Lateness,
    stalls: u64,
    flushed: u64,
    /// When health began to be recorded: own drops, processor time and the machine's state then.
    since: (u64, Duration, Machine),
    /// What it was when it ended, if it has ended.
    health: Option<EmulatorHealth>,
    real_time: bool,
    scratch: Vec<u8>,
}

/// Nanoseconds since 1970.
pub(super) fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

impl Driver {
    pub(super) fn new(
        network: Network,
        recorder: Recorder,
        ports: Vec<Option<OwnedFd>>,
        control: Arc<Control>,
        (base, tolerated): (Instant, Duration),
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (port, fd) in ports.iter().enumerate() {
            if let Some(fd) = fd {
                rustix::io::ioctl_fionbio(fd, true)?;
                epoll::add(
                    &epoll,
                    fd,
                    epoll::EventData::new_u64(port as u64),
                    epoll::EventFlags::IN,
                )?;
            }
        }
        epoll::add(
            &epoll,
            &control.wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            network,
            recorder,
            ports,
            epoll,
            control,
            base,
            pace: Pace::default(),
            lateness: Lateness::new(tolerated),
            stalls: 0,
            flushed: 0,
            since: (0, Duration::ZERO, Machine::now()),
            health: None,
            real_time: false,
            scratch: vec![0; LARGEST],
        })
    }

    /// Works until it is stopped.
    pub(super) fn run(mut self) -> (Vec<LinkCount>, EmulatorHealth) {
        self.real_time = priority::ask();
        self.begin();
        let mut events = Vec::with_capacity(EVENTS);
        let mut woke = self.now();
        while !self.control.stop.load(Ordering::Acquire) {
            self.work(&events);
            let done = self.now();
            self.note_gap(done.saturating_sub(woke));
            woke = self.wait(done, &mut events);
        }
        self.finish()
    }

    /// Does what it was told since. Before each round of releases, so that a packet that was sent after the word does not count as before it.
    fn heed(&mut self) {
        // Loads first: this is done for every packet, and they cost nothing.
        if is_set(&self.control.begin) {
            self.begin();
        }
        if is_set(&self.control.end) {
            self.health = Some(self.health());
        }
    }

    /// Health is recorded from now on.
    fn begin(&mut self) {
        self.health = None;
        self.lateness.clear();
        self.stalls = 0;
        self.since = (self.network.own_drops(), thread_time(), Machine::now());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// One round: what is due is released, and each port that has something is read.
    fn work(&mut self, events: &[epoll::Event]) {
        self.release();
        for event in events {
            match event.data.u64() {
                WAKE => self.drain_wake(),
                port => self.read(usize::try_from(port).unwrap_or(usize::MAX)),
            }
            self.release();
        }
        if self.recorder.is_active() {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let now = self.now();
        if now.saturating_sub(self.flushed) >= FLUSH {
            self.flushed = now;
            self.recorder.flush();
        }
    }

    fn drain_wake(&self) {
        let mut count = [0; 8];
        rustix::io::read(&self.control.wake, &mut count).ok();
    }

    fn release(&mut self) {
        self.heed();
        let mut now = self.now();
        for _ in 0..RELEASE_BATCH {
            let Some(delivery) = self.network.poll(now, &mut self.recorder) else {
                return;
            };
            now = self.now();
            self.lateness.record(now.saturating_sub(delivery.due));
            self.deliver(now, delivery);
        }
    }

    /// A write either takes the whole packet or nothing.
    fn deliver(&mut self, now: u64, delivery: Delivery) {
        let port = self.ports.get(delivery.port).and_then(Option::as_ref);
        let written = port.is_some_and(|fd| write(fd, &delivery.packet));
        if written {
            self.recorder
                .left(now, delivery.direction, &delivery.packet);
            self.network.recycle(delivery.packet);
        } else {
            self.network.refused(now, delivery, &mut self.recorder);
        }
    }

    fn read(&mut self, port: usize) {
        for _ in 0..READ_BATCH {
            let Some(Some(fd)) = self.ports.get(port) else {
                return;
            };
            match rustix::io::read(fd, &mut self.scratch[..]) {
                Ok(0) | Err(Errno::AGAIN) => return,
                Ok(size) => {
                    let now = self.now();
                    self.network
                        .arrive(now, port, &self.scratch[..size], &mut self.recorder);
                }
                Err(Errno::INTR) => {}
                // The device is gone or down for good: not to be woken by it over and over again.
                Err(_) => {
                    epoll::delete(&self.epoll, fd).ok();
                    return;
                }
            }
        }
    }

    /// Rests until there is something to do; says when it woke up.
    fn wait(&mut self, now: u64, events: &mut Vec<epoll::Event>) -> u64 {
        let next = self.network.next_release();
        let ahead = next
            .map_or(LONGEST_SLEEP, |next| next.saturating_sub(now))
            .min(LONGEST_SLEEP);
        match self.pace.nap() {
            Some(nap) if self.real_time => self.nap(now, nap, events),
            _ if !self.pace.may_spin() && ahead > 0 && ahead < QUANTUM => {
                self.nap(now, QUANTUM, events)
            }
            _ if !self.pace.may_spin() => self.doze(now, ahead, events),
            _ if ahead <= SPIN => self.spin(now, ahead, events),
            _ => self.doze(now, ahead - SPIN, events),
        }
    }

    /// Looks again and again, until `ahead` has passed or a packet comes.
    fn spin(&mut self, now: u64, ahead: u64, events: &mut Vec<epoll::Event>) -> u64 {
        loop {
            self.sleep(0, events);
            let woke = self.now();
            if !events.is_empty() || woke >= now + ahead {
                self.pace.spun(woke.saturating_sub(now));
                return woke;
            }
        }
    }

    /// Sleeps for this long or until a packet comes.
    fn doze(&mut self, now: u64, ahead: u64, events: &mut Vec<epoll::Event>) -> u64 {
        self.sleep(ahead, events);
        let woke = self.now();
        let slept = woke.saturating_sub(now);
        if ahead > 0 {
            self.pace.rested(slept);
        } else {
            self.pace.worked(slept);
        }
        self.stalls += u64::from(ahead > 0 && slept > ahead + STALL);
        woke
    }

    fn nap(&mut self, now: u64, nap: u64, events: &mut Vec<epoll::Event>) -> u64 {
        std::thread::sleep(Duration::from_nanos(nap));
        let woke = self.now();
        self.pace.rested(woke.saturating_sub(now));
        if woke.saturating_sub(now) > nap + STALL {
            self.stalls += 1;
        }
        self.sleep(0, events);
        woke
    }

    fn sleep(&self, timeout: u64, events: &mut Vec<epoll::Event>) {
        events.clear();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(timeout).unwrap_or(0),
        };
        epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&timeout),
        )
        .ok();
    }

    /// A round took so long. It has a bounded number of calls: if it was longer than a stall, somebody else had the core.
    fn note_gap(&mut self, ns: u64) {
        self.pace.worked(ns);
        self.stalls += u64::from(ns > STALL * 2);
    }

    /// How well promises were kept from `begin` until now.
    fn health(&self) -> EmulatorHealth {
        let (drops, cpu_before, machine) = self.since;
        let machine = machine.until_now();
        EmulatorHealth {
            late_us_p50: self.lateness.quantile_us(0.5),
            late_us_p99: self.lateness.quantile_us(0.99),
            late_us_max: self.lateness.max_us(),
            late_share: self.lateness.late_share(),
            released: self.lateness.count(),
            own_drops: self.network.own_drops() - drops,
            stalls: self.stalls,
            cpu_s: thread_time().saturating_sub(cpu_before).as_secs_f64(),
            real_time: self.real_time,
            load: machine.load,
            steal: machine.steal,
            cpu_pressure: machine.cpu_pressure,
            ..EmulatorHealth::default()
        }
    }

    fn finish(mut self) -> (Vec<LinkCount>, EmulatorHealth) {
        self.heed();
        let ended = self.health.take();
        let mut health = ended.unwrap_or_else(|| self.health());
        let unrecorded = self.recorder.finish();
        if unrecorded > 0 {
            tracing::warn!(
                unrecorded,
                "captures are incomplete: the disk is full or too slow"
            );
        }
        health.own_drops += unrecorded;
        (self.network.counts(), health::rounded(health))
    }
}

/// Whether it was said, once.
fn is_set(word: &AtomicBool) -> bool {
    word.load(Ordering::Acquire) && word.swap(false, Ordering::AcqRel)
}

/// Whether the device took the packet. A full queue (EAGAIN, ENOBUFS) or one that is down did not.
fn write(fd: &OwnedFd, packet: &[u8]) -> bool {
    loop {
        match rustix::io::write(fd.as_fd(), packet) {
            Ok(size) => return size == packet.len(),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Nanoseconds of rest that can be saved up: a burst of 18 ms may follow.
const REST: u64 = 2 * MS;
/// Work that a nanosecond of rest allows.
const WORK_PER_REST: u64 = 9;
/// One rest.
const NAP: u64 = 100 * US;
/// Nanoseconds of spinning that can be saved up.
const SPIN_BUDGET: u64 = 5 * MS;
/// Spinning costs so much of the time that passes: one in eight.
const TIME_PER_SPIN: u64 = 8;
/// What going to sleep and waking up costs.
const SWITCH: u64 = 5 * US;

/// Two budgets, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rest: u64,
    spin: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            rest: REST * WORK_PER_REST,
            spin: SPIN_BUDGET * TIME_PER_SPIN,
        }
    }
}

impl Pace {
    /// So much time went into work.
    fn worked(&mut self, ns: u64) {
        self.rest = self.rest.saturating_sub(ns);
        self.passed(ns);
    }

    /// A sleep took so much time.
    fn rested(&mut self, ns: u64) {
        let work = ns.min(SWITCH);
        let saved = (ns - work).saturating_mul(WORK_PER_REST);
        self.rest = self.rest.saturating_sub(work).saturating_add(saved);
        self.rest = self.rest.min(REST * WORK_PER_REST);
        self.passed(ns);
    }

    /// So much time was spun away.
    fn spun(&mut self, ns: u64) {
        self.rest = self.rest.saturating_sub(ns);
        self.spin = self.spin.saturating_sub(ns.saturating_mul(TIME_PER_SPIN));
        self.passed(ns);
    }

    fn passed(&mut self, ns: u64) {
        self.spin = self
            .spin
            .saturating_add(ns)
            .min(SPIN_BUDGET * TIME_PER_SPIN);
    }

    /// How long to sleep before anything else, if it is time.
    #[must_use]
    fn nap(&self) -> Option<u64> {
        (self.rest == 0).then_some(NAP)
    }

    /// Whether there is time for spinning.
    #[must_use]
    fn may_spin(&self) -> bool {
        self.spin > SPIN_BUDGET && self.rest > REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds worked in each 100 ms, when there is always work.
    fn busy(pace: &mut Pace) -> u64 {
        let (mut now, mut worked) = (0, 0);
        while now < 100 * MS {
            if let Some(nap) = pace.nap() {
                pace.rested(nap);
                now += nap;
            } else {
                pace.worked(10 * US);
                worked += 10 * US;
                now += 10 * US;
            }
        }
        worked
    }

    #[test]
    fn a_saturated_emulator_leaves_a_tenth_of_the_core() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            let share = busy(&mut pace) as f64 / (100 * MS) as f64;
            assert!((0.89..0.92).contains(&share), "{share}");
        }
    }

    #[test]
    fn sleeps_that_are_over_at_once_are_no_rest() {
        let (mut pace, mut naps) = (Pace::default(), 0);
        for _ in 0..10_000 {
            if let Some(nap) = pace.nap() {
                naps += 1;
                pace.rested(nap);
            }
            pace.worked(15 * US);
            pace.rested(2 * US);
        }
        assert!(naps > 100, "{naps}");
    }

    #[test]
    fn an_idle_emulator_spins_for_an_eighth_of_the_time_at_most() {
        let (mut pace, mut spun) = (Pace::default(), 0);
        for _ in 0..10_000 {
            if pace.may_spin() {
                pace.spun(50 * US);
                spun += 50 * US;
            } else {
                pace.rested(50 * US);
            }
        }
        let share = spun as f64 / (10_000 * 50 * US) as f64;
        assert!((0.10..0.14).contains(&share), "{share}");
    }
}
