//! Echoes: round trips, loss, order, and the delay of each direction, for all hosts share one clock.
//! `udp` calls it with a session that is open.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    STRAGGLERS, Session,
    message::{Head, Kind, Stream},
    refused,
    tally::quantiles,
};
use crate::workload::run::{TransferError, clock::monotonic_ns, record::Record, trouble::Fault};

/// What has come back.
#[derive(Debug, Default)]
struct Echoes {
    trips: Vec<Option<u32>>,
    there: Vec<u32>,
    back: Vec<u32>,
    next: u32,
    longest: u32,
    received: u32,
    duplicates: u32,
    reordered: u32,
    corrupt: u32,
}

/// Sends all and waits for the last ones.
pub(super) async fn run(
    session: &Session,
    stream: Stream,
    record: &mut Record,
) -> Result<(), TransferError> {
    let mut echoes = Echoes::new(stream.count);
    let outcome = collect(session, stream, &mut echoes, record).await;
    let octets = u64::from(echoes.received) * u64::from(stream.size);
    record.moved = [octets, octets];
    let (received, corrupt) = (echoes.received, echoes.corrupt);
    echoes.tell(record);
    outcome?;
    match (received, corrupt) {
        (0, 0) if stream.count > 0 => Err(Fault::Read.because("no datagram came back")),
        (_, 0) => Ok(()),
        (_, changed) => {
            Err(Fault::Checksum.because(format_args!("{changed} datagrams were changed")))
        }
    }
}

async fn collect(
    session: &Session,
    stream: Stream,
    echoes: &mut Echoes,
    record: &mut Record,
) -> Result<(), TransferError> {
    let mut sending = session.pace(stream, Kind::Echo);
    let (mut buffer, mut over) = (vec![0; 65_536], None);
    while over.is_none() || echoes.received < stream.count {
        let end = over.map(|over: Instant| over + echoes.patience(session.stall));
        tokio::select! {
            sent = &mut sending, if over.is_none() => {
                let sent = sent.map_err(|why| Fault::Misc.because(why))?;
                let sent = sent.map_err(|error| refused(&error))?;
                record.datagrams[0] = u64::from(sent);
                record.sent.add(u64::from(sent) * u64::from(stream.size), monotonic_ns() / 1000);
                over = Some(Instant::now());
            }
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => break,
            payload = session.flow.receive(&mut buffer) => {
                let now = monotonic_ns();
                let payload = payload.map_err(|error| refused(&error))?;
                if let Some((head, _)) = session.ours(payload, Some(Kind::Echoed)) {
                    let octets = echoes.take(&head, head.is_intact(stream.size, payload), now);
                    record.received.add(octets * u64::from(stream.size), now / 1000);
                }
            }
        }
    }
    Ok(())
}

impl Echoes {
    fn new(count: u32) -> Self {
        Self {
            trips: vec![None; usize::try_from(count).unwrap_or(0)],
            ..Self::default()
        }
    }

    /// How long the last ones are waited for: three times the longest round trip, or until the way counts as dead if there was none.
    fn patience(&self, stall: Duration) -> Duration {
        match self.longest {
            0 => stall,
            longest => {
                (Duration::from_micros(longest.into()) * 3).clamp(STRAGGLERS.min(stall), stall)
            }
        }
    }

    /// Takes one in; 1 if it counts.
    fn take(&mut self, head: &Head, intact: bool, now: u64) -> u64 {
        let trip = usize::try_from(head.number)
            .ok()
            .and_then(|number| self.trips.get_mut(number));
        let Some(trip) = trip.filter(|_| intact) else {
            self.corrupt += 1;
            return 0;
        };
        if trip.is_some() {
            self.duplicates += 1;
            return 0;
        }
        *trip = Some(micros(head.sent, now));
        self.longest = self.longest.max(micros(head.sent, now)).max(1);
        self.there.push(micros(head.sent, head.turned));
        self.back.push(micros(head.turned, now));
        self.received += 1;
        match head.number < self.next {
            true => self.reordered += 1,
            false => self.next = head.number.saturating_add(1),
        }
        1
    }

    fn tell(self, record: &mut Record) {
        record.datagrams[1] = u64::from(self.received);
        record.tell("duplicates", self.duplicates.into());
        record.tell("reordered", self.reordered.into());
        record.tell("corrupt", self.corrupt.into());
        record.round_trips = self.trips.into_iter().flatten().collect();
        if self.received == 0 {
            return;
        }
        for (way, delays) in [("up", self.there), ("down", self.back)] {
            let [shortest, median, _, p99, longest] = quantiles(delays);
            for (name, delay) in [
                ("min", shortest),
                ("p50", median),
                ("p99", p99),
                ("max", longest),
            ] {
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                record.tell(&format!("{way}_delay_us_{name}"), delay as f64);
            }
        }
    }
}

fn micros(from: u64, to: u64) -> u32 {
    u32::try_from(to.saturating_sub(from) / 1000).unwrap_or(u32::MAX)
}
