//! A vantage point: one interface that is measured from, for months. It does what the schedule says, and writes before and after: see [`super::days`]
//! for what a kill or a full disk leaves.
//!
//! Whatever goes wrong is a sample with its reason: `INTERFACE` (gone), `CONNECT` and what else a transfer has (no address, no server),
//! `BUDGET` (no room in the month, or more passed than was reserved), `CLOCK` (it was set), `DISK` (nothing could be written), `KILLED`.

use std::{io, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use hoplite_workload::load::Stop;
use parking_lot::Mutex;
use tokio::{process::Command, time::sleep};

use super::{
    Clock,
    budget::{Reservation, day},
    config::File,
    control::Tracker,
    days::{Days, Kept, Measured, Totals, replace},
    interface::{Counter, Interface},
    schedule::{Now, Plan, SIZES, Schedule, Step, allowed},
};
use crate::experiments::workload::{
    Bulk, Fault, Kind, Order, Phases, Plan as Workload, Ports, Transfer, TransferError, Way,
    run::client::download,
};

/// How often what passed over the interface is looked at while a transfer runs.
const LOOK: Duration = Duration::from_millis(100);
/// How long something that cannot be written is waited for until it is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// How often the page is drawn.
const DRAWN: Duration = Duration::from_secs(3600);
/// How much a clock may seem to be set, in seconds.
const SET: u64 = 5;

/// One interface with its schedule.
pub(crate) struct Vantage {
    file: File,
    name: String,
    interface: Option<Interface>,
    days: Days,
    schedule: Schedule,
    counter: Option<Counter>,
    totals: Totals,
    /// When the clock was looked at last.
    seen: Now,
    today: String,
    drawn: Duration,
    /// Since when nothing could be written, and why.
    full: Option<(u64, String)>,
    /// Times of the last transfer of each size that succeeded: first and last byte, in microseconds.
    last: [Option<(u64, u64)>; 3],
    clock: Clock,
    stop: Stop,
    tracker: Arc<Mutex<Tracker>>,
}

impl Vantage {
    /// Goes on where it ended.
    pub(crate) fn open(
        file: &File,
        name: &str,
        plan: Plan,
        (clock, stop, tracker): (Clock, Stop, Arc<Mutex<Tracker>>),
    ) -> io::Result<Self> {
        let days = Days::open(file.directory.join(name))?;
        let (kept, now) = (days.kept()?, clock.now());
        let (schedule, cut) = Schedule::restore(plan, kept.schedule, now);
        let named = !file.interfaces.is_empty();
        let mut vantage = Self {
            file: file.clone(),
            name: name.to_owned(),
            interface: named.then(|| Interface::new(name)),
            days,
            schedule,
            counter: kept.counter,
            totals: kept.totals,
            // A clock that was set back while the program did not run.
            seen: Now {
                unix: now.unix.max(kept.seen),
                ..now
            },
            today: String::new(),
            drawn: now.elapsed,
            full: None,
            last: [None; 3],
            clock,
            stop,
            tracker,
        };
        vantage.recover(cut)?;
        Ok(vantage)
    }

    /// A transfer that was cut off by the end of the program is a sample, unless it had been written.
    fn recover(&mut self, cut: Option<Reservation>) -> io::Result<()> {
        let Some(cut) = cut else {
            return Ok(());
        };
        self.charge_passed(cut.bytes);
        if !self.days.has(cut.number, &day(cut.at))? {
            let error = Fault::Killed.because("the program ended within the transfer");
            let sample = Measured {
                charged: cut.bytes,
                ..self.without_transfer(&cut, error)
            };
            self.days.add(&day(self.clock.now().unix), &sample)?;
            self.totals.failed += 1;
        }
        self.days.keep(&self.kept())
    }

    fn kept(&self) -> Kept {
        Kept {
            schedule: self.schedule.state().clone(),
            counter: self.counter.clone(),
            totals: self.totals.clone(),
            seen: self.seen.unix,
        }
    }

    /// Until it is told to end.
    pub(crate) async fn run(&mut self) -> io::Result<()> {
        while !self.stop.is_set() {
            self.close_days();
            self.look_at_clock().await;
            self.charge_passed(0);
            match self.schedule.poll(self.clock.now()) {
                Step::Wait(time) => self.wait(time).await,
                Step::Spent(due) => {
                    let why = "the month's budget has no room for another transfer";
                    self.note(&due, Fault::Budget.because(why)).await;
                }
                Step::Begin(due) => self.transfer(due).await,
            }
        }
        match self.full {
            // What the disk has tells more than what is in memory: a sample that could not be written is open there.
            Some(_) => Ok(()),
            None => self.days.keep(&self.kept()),
        }
    }

    /// Waits for so long of the calendar, or until it is told to end.
    async fn wait(&self, time: Duration) {
        tokio::select! {
            () = self.clock.wait(time) => {}
            () = self.stop.reached() => {}
        }
    }

    async fn transfer(&mut self, due: Reservation) {
        // Nothing is sent before its reservation is on the disk.
        self.insist(|vantage| vantage.days.keep(&vantage.kept()))
            .await;
        if self.stop.is_set() && self.full.is_some() {
            return;
        }
        let began = self.clock.unix();
        let (before, gone) = self.look();
        let sample = match gone {
            Some(error) => {
                self.schedule.ended(Some(0), self.clock.now());
                self.without_transfer(&due, error)
            }
            None => {
                let (transfer, local) = self.carry(&due, before.as_ref()).await;
                let (after, _) = self.look();
                let used = before.and_then(|before| after.as_ref()?.since(&before));
                self.counter = after.or_else(|| self.counter.take());
                self.schedule.ended(used, self.clock.now());
                Measured {
                    number: due.number,
                    charged: used.unwrap_or(due.bytes),
                    local,
                    transfer: Transfer { began, ..transfer },
                }
            }
        };
        self.count(&sample);
        self.write(sample).await;
    }

    /// What the interface has counted; `None` and why where it is named and not there.
    fn look(&self) -> (Option<Counter>, Option<TransferError>) {
        match self.interface.as_ref().map(Interface::counter) {
            None => (None, None),
            Some(Ok(counter)) => (Some(counter), None),
            Some(Err(error)) => {
                let why = format_args!("{} is not there: {error}", self.name);
                (None, Some(Fault::Interface.because(why)))
            }
        }
    }

    async fn carry(&self, due: &Reservation, before: Option<&Counter>) -> (Transfer, Option<u16>) {
        let order = self.order(due);
        let number = u32::try_from(due.number).unwrap_or(u32::MAX);
        let broken = async {
            loop {
                sleep(LOOK).await;
                if self.stop.is_set() {
                    return Fault::Killed.because("the program was told to end");
                }
                let (counter, gone) = self.look();
                if let Some(gone) = gone {
                    return gone;
                }
                let passed = before.and_then(|before| counter?.since(before));
                if passed.is_some_and(|passed| passed > allowed(due.size)) {
                    let why = "more went over the interface than a transfer of this size may take";
                    return Fault::Budget.because(why);
                }
            }
        };
        let (transfer, local) = download(&order, due.size, number, broken).await;
        if let Some(port) = local {
            self.tracker.lock().claim(port);
        }
        (transfer, local)
    }

    fn order(&self, due: &Reservation) -> Order {
        let (server, subject) = (&self.file.server, &self.file.subject);
        let bulk = Bulk {
            bytes: due.size,
            time: Duration::ZERO,
            connections: 1,
            count: 1,
            pause: Duration::ZERO,
        };
        let way = |address| Way::Socks {
            address,
            udp: false,
        };
        Order {
            plan: Workload {
                name: name_of(due.size),
                group: "1".into(),
                at: Duration::ZERO,
                from: self.name.clone(),
                to: "server".into(),
                resolver: None,
                among: Vec::new(),
                direct: false,
                may_fail: true,
                counted_as: None,
                kind: Kind::Download(bulk),
                stall: self.file.schedule.stall,
                timeout: self.file.schedule.timeout,
            },
            way: subject.socks.map_or(Way::Direct, way),
            target: server.host.clone(),
            fresh_names: false,
            nearest: Default::default(),
            ports: Ports {
                transfer: server.port,
                ..Ports::default()
            },
            seed: self.schedule.plan().payload_seed(due.number),
            qlog: None,
            interface: self.interface.is_some().then(|| self.name.clone()),
            surroundings: None,
        }
    }

    /// A sample that says why there was no transfer.
    fn without_transfer(&self, due: &Reservation, error: TransferError) -> Measured {
        let transfer = Transfer {
            workload: name_of(due.size),
            number: u32::try_from(due.number).unwrap_or(u32::MAX),
            connection: 1,
            began: self.clock.unix(),
            server: self.file.server.host.parse().ok(),
            seen_as: None,
            asked: [0, due.size],
            moved: [0; 2],
            phases: Phases::default(),
            round_trips: Vec::new(),
            datagrams: [0; 2],
            error: Some(error),
            more: [].into(),
        };
        Measured {
            number: due.number,
            charged: 0,
            local: None,
            transfer,
        }
    }

    fn count(&mut self, sample: &Measured) {
        let transfer = &sample.transfer;
        let phases = &transfer.phases;
        match (&transfer.error, phases.first_byte, phases.last_byte) {
            (None, Some(first), Some(last)) => {
                self.totals.succeeded += 1;
                let place = SIZES.iter().position(|size| *size == transfer.asked[1]);
                if let Some(slot) = place.and_then(|place| self.last.get_mut(place)) {
                    *slot = Some((first, last));
                }
            }
            _ => self.totals.failed += 1,
        }
        self.totals.payload = self.totals.payload.saturating_add(transfer.moved[1]);
    }

    /// Writes a sample, then the state that knows of it.
    async fn write(&mut self, sample: Measured) {
        self.insist(|vantage| vantage.days.add(&day(vantage.clock.now().unix), &sample))
            .await;
        if self.stop.is_set() && self.full.is_some() {
            // Its number stays open in the state: it is told when the program starts again.
            return;
        }
        self.insist(|vantage| vantage.days.keep(&vantage.kept()))
            .await;
        self.write_told();
        if let Err(error) = self.write_metrics() {
            tracing::warn!(%error, "metrics cannot be written");
        }
        if let Some((since, why)) = self.full.take() {
            let time = self.clock.now().unix.saturating_sub(since);
            let error =
                Fault::Disk.because(format_args!("nothing could be written for {time} s: {why}"));
            self.tell(error).await;
        }
    }

    /// A sample beside those of the schedule.
    async fn tell(&mut self, error: TransferError) {
        tracing::warn!(
            interface = self.name,
            kind = error.kind,
            why = error.why,
            "noted"
        );
        let note = self.schedule.note(self.clock.now());
        Box::pin(self.note(&note, error)).await;
    }

    /// A sample that is no transfer.
    async fn note(&mut self, note: &Reservation, error: TransferError) {
        self.insist(|vantage| vantage.days.keep(&vantage.kept()))
            .await;
        if self.stop.is_set() && self.full.is_some() {
            return;
        }
        self.schedule.ended(Some(0), self.clock.now());
        let sample = self.without_transfer(note, error);
        self.count(&sample);
        self.write(sample).await;
    }

    /// Writes until it is written; nothing else is done meanwhile, as nothing could be told of it.
    async fn insist(&mut self, write: impl Fn(&Self) -> io::Result<()>) {
        while let Err(error) = write(self) {
            if self.full.is_none() {
                tracing::warn!(interface = self.name, %error, "nothing is transferred until this can be written");
                self.full = Some((self.clock.now().unix, error.to_string()));
            }
            self.wait(RETRY).await;
            if self.stop.is_set() {
                return;
            }
        }
    }

    fn write_told(&self) {
        // One vantage writes what tor tells: tor is not asked which interface it used.
        let first = self
            .file
            .plans()
            .first()
            .is_some_and(|(name, _)| *name == self.name);
        if !first || self.file.subject.control.is_none() {
            return;
        }
        let told = self.tracker.lock().take();
        if let Err(error) = self.days.add_told(&day(self.clock.now().unix), &told) {
            tracing::warn!(%error, "what tor told cannot be written");
        }
    }

    /// Charges what went over the interface since it was looked at last, but for what is charged already.
    fn charge_passed(&mut self, charged: u64) {
        let (Some(counter), _) = self.look() else {
            return;
        };
        let passed = self.counter.as_ref().map_or(0, |before| {
            // It counts from 0 again: all of that was since.
            counter.since(before).unwrap_or_else(|| counter.bytes())
        });
        self.schedule
            .charge(passed.saturating_sub(charged), self.clock.now());
        self.counter = Some(counter);
    }

    /// A clock that was set is told: months and days follow it.
    async fn look_at_clock(&mut self) {
        let (before, now) = (self.seen, self.clock.now());
        self.seen = now;
        let went = now.elapsed.saturating_sub(before.elapsed).as_secs();
        let expected = before.unix.saturating_add(went);
        let set = now.unix.abs_diff(expected);
        // One that goes faster than it should is off by a second for each look.
        if set > SET {
            let way = if now.unix < expected { "back" } else { "ahead" };
            let why = format_args!("the clock was set {way} by {set} s, or the machine slept");
            self.tell(Fault::Clock.because(why)).await;
        }
    }

    /// Closes days that are over, and draws the page then and every hour.
    fn close_days(&mut self) {
        let now = self.clock.now();
        let today = day(now.unix);
        let due = now.elapsed.saturating_sub(self.drawn) >= DRAWN;
        if today == self.today && !due {
            return;
        }
        let closed = self.days.close(&today, &self.name, &self.file.label());
        let drawn = closed.and_then(|_| super::draw(&self.file, now.unix));
        if let Err(error) = drawn {
            tracing::warn!(interface = self.name, %error, "days cannot be closed");
        }
        (self.today, self.drawn) = (today, now.elapsed);
    }

    /// For the text file collector of Prometheus's node exporter.
    fn write_metrics(&self) -> io::Result<()> {
        let path: PathBuf = self.file.directory.join(format!("{}.prom", self.name));
        let text = self.metrics();
        replace(&path, |file| io::Write::write_all(file, text.as_bytes()))
    }

    fn metrics(&self) -> String {
        let now = self.clock.now().unix;
        let place = format!(
            "interface=\"{}\",subject=\"{}\"",
            self.name,
            quoted(&self.file.label())
        );
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, lines: &[(String, f64)]| {
            out += &format!("# TYPE hoplite_monitor_{name} {kind}\n");
            for (labels, value) in lines {
                out += &format!("hoplite_monitor_{name}{{{place}{labels}}} {value}\n");
            }
        };
        let alone = |value: u64| {
            #[expect(clippy::cast_precision_loss, reason = "Prometheus has floats alone")]
            [(String::new(), value as f64)]
        };
        let result =
            |word: &str, [(_, count)]: [(String, f64); 1]| (format!(",result=\"{word}\""), count);
        let results = [
            result("success", alone(self.totals.succeeded)),
            result("failure", alone(self.totals.failed)),
        ];
        family("transfers_total", "counter", &results);
        family(
            "payload_bytes_total",
            "counter",
            &alone(self.totals.payload),
        );
        family("budget_bytes", "gauge", &alone(self.schedule.plan().limit));
        family(
            "budget_charged_bytes",
            "gauge",
            &alone(self.schedule.ledger().charged(now)),
        );
        family("last_sample_timestamp_seconds", "gauge", &alone(now));
        let times = |of: fn((u64, u64)) -> u64| -> Vec<(String, f64)> {
            let sizes = SIZES.iter().zip(self.last);
            let told = sizes.filter_map(|(size, last)| {
                let seconds = Duration::from_micros(of(last?)).as_secs_f64();
                Some((format!(",size=\"{}\"", name_of(*size)), seconds))
            });
            told.collect()
        };
        family("first_byte_seconds", "gauge", &times(|last| last.0));
        family("last_byte_seconds", "gauge", &times(|last| last.1));
        out
    }
}

/// What a size is called.
fn name_of(size: u64) -> String {
    match SIZES.iter().position(|one| *one == size) {
        Some(0) => "50KB",
        Some(1) => "1MB",
        Some(2) => "5MB",
        _ => "note",
    }
    .to_owned()
}

/// A label's value as Prometheus reads it.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Runs the subject's program, and again when it has ended; for ever.
pub(crate) async fn supervise(command: &[String]) {
    let Some((program, arguments)) = command.split_first() else {
        return std::future::pending().await;
    };
    loop {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        match command.spawn() {
            Ok(mut child) => match child.wait().await {
                Ok(status) => {
                    tracing::warn!(%status, "the subject's program has ended, and is started again")
                }
                Err(error) => tracing::warn!(%error, "the subject's program cannot be waited for"),
            },
            Err(error) => tracing::warn!(%error, "the subject's program cannot be started"),
        }
        sleep(Duration::from_secs(10)).await;
    }
}
