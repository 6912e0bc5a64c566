//! What is kept while a transfer runs, so that a failure at any point still tells how far it came; and the time as transfers tell it: microseconds
//! since they began, and the machine's monotonic clock, which all hosts of a world share. One-way delays are differences of two processes' stamps.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::timeout;

use crate::experiments::workload::{
    Order, Phases, Transfer, TransferError,
    progress::{Passed, Progress},
    stalled,
};

/// A transfer that runs.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) clock: Clock,
    pub(crate) phases: Phases,
    pub(crate) seen_as: Option<IpAddr>,
    /// The port of its connection on this machine.
    pub(crate) local: Option<u16>,
    pub(crate) asked: [u64; 2],
    pub(crate) moved: [u64; 2],
    /// Sent, as the sender sees it. All progress is in microseconds of the monotonic clock.
    pub(crate) sent: Progress,
    /// Received, as the receiver sees it.
    pub(crate) received: Progress,
    /// Sent, as the receiver saw it.
    pub(crate) arrived: Option<Passed>,
    pub(crate) round_trips: Vec<u32>,
    pub(crate) datagrams: [u64; 2],
    pub(crate) more: BTreeMap<String, f64>,
}

impl Record {
    /// Begins now; `asked` to the server and from it.
    pub(crate) fn start(asked: [u64; 2]) -> Self {
        Self {
            clock: Clock::start(),
            phases: Phases::default(),
            seen_as: None,
            local: None,
            asked,
            moved: [0; 2],
            sent: Progress::new(asked[0]),
            received: Progress::new(asked[1]),
            arrived: None,
            round_trips: Vec::new(),
            datagrams: [0; 2],
            more: BTreeMap::new(),
        }
    }

    /// A figure beside the phases.
    pub(crate) fn tell(&mut self, name: &str, value: f64) {
        self.more.insert(name.into(), value);
    }

    /// What has passed of the payload that the phases speak of: what was received if anything was asked for, else what was sent.
    /// In microseconds from the beginning.
    pub(crate) fn passed(&self) -> Passed {
        let received = self.received.passed();
        let sent = self.sent.passed().first;
        let passed = match (&self.arrived, received.first) {
            (_, Some(_)) => received,
            (Some(arrived), None) => Passed {
                first: sent,
                ..arrived.clone()
            },
            (None, None) => Passed {
                first: sent,
                ..Passed::default()
            },
        };
        passed.map(|stamp| self.clock.at(stamp))
    }

    /// What is printed.
    pub(crate) fn transfer(
        mut self,
        order: &Order,
        number: u32,
        connection: u16,
        outcome: Result<(), TransferError>,
    ) -> Transfer {
        if outcome.is_err() {
            self.tell_unchecked();
        }
        self.tell_other_direction();
        let passed = self.passed();
        let phases = Phases {
            first_byte: passed.first,
            deciles: passed.deciles,
            partial: passed.partial,
            last_byte: passed.last.filter(|_| outcome.is_ok()),
            ..self.phases
        };
        Transfer {
            workload: order.plan.name.clone(),
            number,
            connection,
            began: self.clock.unix(),
            server: order.target.parse().ok(),
            seen_as: self.seen_as,
            asked: self.asked,
            moved: self.moved,
            phases,
            round_trips: self.round_trips,
            datagrams: self.datagrams,
            error: outcome.err(),
            more: self.more,
        }
    }

    /// The ends of what was sent, where the phases speak of what was received.
    fn tell_other_direction(&mut self) {
        let sent = self.arrived.as_ref().and_then(|arrived| arrived.last);
        let both = self.received.bytes() > 0 && self.round_trips.is_empty();
        let ends = [
            ("send_first_byte_us", self.sent.passed().first),
            ("send_last_byte_us", sent),
        ];
        for (name, stamp) in ends.into_iter().filter(|_| both) {
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            if let Some(stamp) = stamp {
                self.tell(name, self.clock.at(stamp) as f64);
            }
        }
    }

    /// What moved and was not checked, of a transfer that broke off.
    fn tell_unchecked(&mut self) {
        for (name, bytes) in [
            ("unchecked_sent", self.sent.bytes()),
            ("unchecked_received", self.received.bytes()),
        ] {
            if bytes > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                self.tell(name, bytes as f64);
            }
        }
    }
}

/// When something began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: u64,
    unix: f64,
}

impl Clock {
    /// Begins now.
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            began: monotonic_us(),
            unix: since.unwrap_or_default().as_secs_f64(),
        }
    }

    /// Seconds since 1970 at the beginning.
    pub(crate) fn unix(&self) -> f64 {
        self.unix
    }

    /// Microseconds from the beginning of `other` to this one's.
    pub(crate) fn since(&self, other: &Self) -> u64 {
        other.at(self.began)
    }

    /// Microseconds since the beginning.
    pub(crate) fn us(&self) -> u64 {
        self.at(monotonic_us())
    }

    /// Microseconds from the beginning to a stamp of [`monotonic_us`].
    pub(crate) fn at(&self, stamp: u64) -> u64 {
        stamp.saturating_sub(self.began)
    }
}

/// Microseconds of the clock that all processes of a machine share.
pub(crate) fn monotonic_us() -> u64 {
    monotonic_ns() / 1000
}

/// Nanoseconds of the clock that all processes of a machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// What the work comes to, unless it takes longer than `limit`: then it stalled.
pub(crate) async fn patiently<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, TransferError> {
    timeout(limit, work).await.map_err(|_| stalled(limit))
}
