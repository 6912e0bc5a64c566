//! One client of a load test: what it does again and again until it is stopped, and what can go wrong with that.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::ValueEnum;
use futures_util::future::try_join_all;
use hoplite_client::{Client, Error, ErrorKind, Reason, UdpFlow};
use hoplite_wire::Target;
use hoplite_workload::splitmix::mix;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

use super::{figures::Tally, path::Relays, serve::LARGEST};
use crate::experiments::workload::{
    message::{Head as Datagram, Kind},
    transfer::{ANSWER, Answer, Head, Receiver, Status},
};

/// After how long without a byte a transfer has failed.
const STALL: Duration = Duration::from_secs(20);
/// How long a client whose session failed waits.
const PAUSE: Duration = Duration::from_secs(1);
/// How long datagrams are waited for after the last one.
const LATE: Duration = Duration::from_secs(1);
/// Read at once, in bytes.
const ROOM: usize = 16 << 10;
/// A page, and what it loads, in bytes.
const PAGE: u64 = 30_000;
const PARTS: [u64; 6] = [50_000; 6];
/// What is fetched over each new connection, in bytes.
const LITTLE: u64 = 1000;
/// Payload of a datagram, in bytes, and how often one is sent: a call with pictures.
const DATAGRAM: usize = 1000;
const EVERY: Duration = Duration::from_millis(20);
/// Between datagrams at least, however many megabits are asked for.
const LEAST: Duration = Duration::from_micros(100);

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A page of 30 kB and six parts of 50 kB at once, then half a second to one and a half of reading.
    Web,
    /// Downloads of 16 MiB, one after the other.
    Bulk,
    /// Datagrams of 1000 bytes, 50 a second, which come back.
    Datagrams,
    /// A new connection to the first relay for each kilobyte.
    Connections,
}

/// What all clients have in common.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) relays: Arc<Relays>,
    pub(super) server: Target,
    pub(super) workload: Workload,
    /// Holds the downloads of all of them to a rate.
    pub(super) pacer: Option<Arc<Pacer>>,
    /// The same rate, by which datagrams are sent.
    pub(super) mbit: Option<u32>,
}

/// Why something failed, and what may help.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) why: String,
    pub(super) hint: Hint,
}

/// What an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hint {
    Limits,
    Path,
    Policy,
    Server,
    Token,
}

impl Hint {
    /// When not even one client was served.
    pub(super) const fn first(self) -> &'static str {
        match self {
            Self::Path => {
                "check that the relay runs and that `address` and `pin` in the client's file are its own"
            }
            other => other.later(),
        }
    }

    /// When others were.
    pub(super) const fn later(self) -> &'static str {
        match self {
            Self::Limits | Self::Path => {
                "a relay that has enough turns clients away, and all of these come from one address with one token: for the test raise [limits] connections_per_client, waiting_per_client, requests_per_client and unvalidated_handshakes_per_client in the relay's file, at an egress behind it too, and LimitNOFILE; 'hoplite relay status' says which was reached (docs/operating.md, \"A load test\")"
            }
            Self::Policy => {
                "let the last relay connect to the server: `allow` of [egress] in its file, for the test"
            }
            Self::Server => {
                "run 'hoplite-lab load serve' there, and let its port through the firewall, TCP and UDP"
            }
            Self::Token => "use a client's file with the relay's own token",
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let hint = match (error.kind(), error.reason()) {
            (_, Some(Reason::Limit)) => Hint::Limits,
            (_, Some(Reason::Authentication)) => Hint::Token,
            (_, Some(Reason::Policy)) | (ErrorKind::Forbidden, _) => Hint::Policy,
            (ErrorKind::TargetFailed, _) => Hint::Server,
            _ => Hint::Path,
        };
        Self {
            why: error.to_string(),
            hint,
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match Error::from_io(&error) {
            Some(error) => error.clone().into(),
            None => Self {
                why: format!("a stream broke: {}", error.kind()),
                hint: Hint::Path,
            },
        }
    }
}

fn of_server(why: impl fmt::Display) -> Fault {
    Fault {
        why: why.to_string(),
        hint: Hint::Server,
    }
}

/// Until the first byte has come. One that has not come when all ends, or fails, counts as if it came then: else the slowest would be left out.
struct Waiting<'a>(&'a Tally, Instant);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.first_byte(self.1.elapsed());
    }
}

/// Holds what all clients together take to a rate: whoever takes something waits until its time has come.
#[derive(Debug)]
pub(super) struct Pacer {
    per_byte: Duration,
    free: Mutex<Instant>,
}

impl Pacer {
    /// So many megabits a second.
    pub(super) fn new(mbit: u32) -> Self {
        Self {
            per_byte: Duration::from_secs(8) / mbit / 1_000_000,
            free: Mutex::new(Instant::now()),
        }
    }

    async fn take(&self, bytes: usize) {
        let until = {
            let mut free = self.free.lock();
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            *free = (*free).max(Instant::now()) + self.per_byte * bytes;
            *free
        };
        sleep_until(until).await;
    }
}

impl Clients {
    /// One client, before all others: whether there is a way at all.
    pub(super) async fn try_once(&self) -> Result<(), Fault> {
        let (tally, (stop, stopped)) = (Tally::new(1), watch::channel(false));
        let client = self.connect(&tally).await?;
        if self.workload != Workload::Datagrams {
            return self.fetch(&client, LITTLE, (0, 0), &tally).await;
        }
        let soon = async {
            sleep(LATE / 10).await;
            stop.send_replace(true);
        };
        tokio::join!(self.datagrams(&client, 1, &tally, stopped), soon).0
    }

    /// One client, from a moment on until it is stopped.
    pub(super) async fn run(
        &self,
        number: u32,
        at: Instant,
        tally: &Tally,
        mut stopped: watch::Receiver<bool>,
    ) {
        let (mut over, until) = (stopped.clone(), async move {
            drop(stopped.wait_for(|is| *is).await);
        });
        let work = async {
            sleep_until(at).await;
            let mut round = 0_u64;
            loop {
                round += 1;
                let seed = mix(u64::from(number) << 32 | round);
                let done = self.session(number, seed, tally, &mut over).await;
                if let Err(fault) = done {
                    tally.failed(number, fault);
                    sleep(PAUSE).await;
                }
            }
        };
        // Datagrams that are under way are waited for: their session ends by itself.
        let grace = async {
            until.await;
            if self.workload == Workload::Datagrams {
                sleep(LATE * 2).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = grace => {}
        }
    }

    /// Until something fails, or for `connections` once.
    async fn session(
        &self,
        number: u32,
        seed: u64,
        tally: &Tally,
        over: &mut watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let client = self.connect(tally).await?;
        for round in 0_u64.. {
            let seed = mix(seed ^ round);
            match self.workload {
                Workload::Web => {
                    self.fetch(&client, PAGE, (number, seed), tally).await?;
                    let parts = PARTS.iter().zip(1..);
                    try_join_all(
                        parts
                            .map(|(size, n)| self.fetch(&client, *size, (number, seed ^ n), tally)),
                    )
                    .await?;
                    sleep(Duration::from_millis(500 + seed % 1000)).await;
                }
                Workload::Bulk => self.fetch(&client, LARGEST, (number, seed), tally).await?,
                Workload::Datagrams => {
                    self.datagrams(&client, tally.clients(), tally, over.clone())
                        .await?;
                    tally.served(number);
                    return std::future::pending().await;
                }
                Workload::Connections => {
                    return self.fetch(&client, LITTLE, (number, seed), tally).await;
                }
            }
        }
        Ok(())
    }

    async fn connect(&self, tally: &Tally) -> Result<Client, Fault> {
        let begun = Instant::now();
        let client = self.relays.client().map_err(|error| Fault {
            why: error.to_string(),
            hint: Hint::Path,
        })?;
        client.ready().await?;
        tally.connected(begun.elapsed());
        Ok(client)
    }

    /// A transfer of so many bytes from the server, checked.
    async fn fetch(
        &self,
        client: &Client,
        size: u64,
        (number, seed): (u32, u64),
        tally: &Tally,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        let waiting = Waiting(tally, begun);
        let mut stream = client.connect(self.server.clone()).await?;
        tally.opened(begun.elapsed());
        let head = Head {
            down: Some(size),
            seed,
            token: seed,
            ..Head::default()
        };
        stream.write_all(&head.emit()).await?;
        let stalled = |_| of_server(format_args!("nothing came for {} s", STALL.as_secs()));
        let mut answer = [0; ANSWER];
        timeout(STALL, stream.read_exact(&mut answer))
            .await
            .map_err(stalled)??;
        drop(waiting);
        match Answer::parse(&answer).map_err(of_server)? {
            answer if answer.status != Status::Fine => {
                return Err(of_server(
                    "the server gives no more: its --gb-per-day are used up, or it is another",
                ));
            }
            answer if answer.token != seed => return Err(of_server("an answer was another's")),
            _ => {}
        }
        let (mut receiver, mut room) = (Receiver::new(size, seed), vec![0; ROOM]);
        while receiver.verdict().is_none() {
            let read = timeout(STALL, stream.read(&mut room))
                .await
                .map_err(stalled)??;
            let came = room.get(..read).unwrap_or_default();
            if came.is_empty() {
                return Err(of_server("a transfer ended too early"));
            }
            receiver.take(came).map_err(|error| of_server(error.why))?;
            tally.took(read);
            // A download may not end within the test.
            if self.workload == Workload::Bulk || receiver.verdict() == Some(true) {
                tally.served(number);
            }
            if let Some(pacer) = &self.pacer {
                pacer.take(read).await;
            }
        }
        match receiver.verdict() {
            Some(true) if receiver.bytes() == size => Ok(()),
            _ => Err(of_server("a transfer's hash is wrong")),
        }
    }

    /// Datagrams there and back, until it is stopped. That none came back is a failure.
    async fn datagrams(
        &self,
        client: &Client,
        clients: u32,
        tally: &Tally,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        let flow = client.udp(self.server.clone()).await?;
        tally.opened(begun.elapsed());
        let came = AtomicU64::new(0);
        let sending = async {
            let mut ticks = interval(self.every(clients));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for number in 0.. {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = stopped.wait_for(|is| *is) => break,
                }
                send(&flow, number, begun).await?;
                tally.sent();
            }
            sleep(LATE).await;
            Ok::<(), Fault>(())
        };
        tokio::select! {
            done = sending => done?,
            fault = receive(&flow, begun, &came, tally) => return Err(fault),
        }
        match came.load(Ordering::Relaxed) {
            0 => Err(of_server("no datagram came back")),
            _ => Ok(()),
        }
    }

    fn every(&self, clients: u32) -> Duration {
        let Some(mbit) = self.mbit else {
            return EVERY;
        };
        let bits = u64::from(clients) * 8 * DATAGRAM as u64;
        Duration::from_micros(bits / u64::from(mbit)).max(LEAST)
    }
}

async fn send(flow: &UdpFlow, number: u32, begun: Instant) -> Result<(), Fault> {
    let head = Datagram {
        kind: Kind::Echo,
        token: 0,
        number,
        sent: micros(begun),
        turned: 0,
    };
    let bare = head.emit(&[]).len();
    let body = flow.max_payload().min(DATAGRAM).saturating_sub(bare);
    flow.send(&head.emit(&vec![0; body])).await?;
    Ok(())
}

/// Takes what comes back, until the flow ends.
async fn receive(flow: &UdpFlow, begun: Instant, came: &AtomicU64, tally: &Tally) -> Fault {
    let mut room = vec![0; 65_536];
    loop {
        let received = match flow.recv(&mut room).await {
            Ok(received) => received,
            Err(error) => return error.into(),
        };
        let batch = room.get(..received.len).unwrap_or_default();
        for datagram in batch.chunks(received.segment.max(1)) {
            if let Some((head, _)) = Datagram::parse(datagram)
                && head.kind == Kind::Echoed
            {
                came.fetch_add(1, Ordering::Relaxed);
                tally.took(datagram.len());
                tally.came(Duration::from_micros(
                    micros(begun).saturating_sub(head.sent),
                ));
            }
        }
    }
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_clients_take_together_comes_to_the_rate() {
        let (pacer, begun) = (Pacer::new(8), Instant::now());
        let two = || async {
            pacer.take(500_000).await;
            pacer.take(500_000).await;
        };
        tokio::join!(two(), two());
        assert_eq!(begun.elapsed().as_millis(), 2000, "2 MB at 1 MB/s");
    }

    #[test]
    fn what_failed_says_what_helps() {
        let hint = |error: Error| Fault::from(error).hint;
        let error = |kind| Error::new(kind, "asking");
        let limit = error(ErrorKind::Forbidden).because(Reason::Limit);
        assert_eq!(hint(limit.clone()), Hint::Limits);
        assert_eq!(Fault::from(io::Error::from(limit)).hint, Hint::Limits);
        assert_eq!(hint(error(ErrorKind::TargetFailed)), Hint::Server);
        assert_eq!(hint(error(ErrorKind::EntryUnreachable)), Hint::Path);
    }
}
