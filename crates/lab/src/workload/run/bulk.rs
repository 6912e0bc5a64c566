//! Transfers over TCP as a client runs them: downloads and uploads over one or several connections, rounds, schedules.
//! `client` calls it with an order and takes the transfers as they end.

use std::{io, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};

use super::{
    Bulk, Choice, Order, Transfer, TransferError,
    door::{self, Token},
    progress::{self, Passed},
    random::Random,
    record::Record,
    tcp::{self, Job},
    transfer::Head,
    trouble::Fault,
};

/// Takes transfers as they end.
pub(crate) type Out<'a> = &'a mut dyn FnMut(Transfer) -> io::Result<()>;

/// Downloads, or uploads if `up`.
pub(crate) async fn run(order: &Order, bulk: &Bulk, up: bool, out: Out<'_>) -> io::Result<()> {
    for number in 1..=bulk.count {
        let mut random = Random::stream(order.seed, &order.plan.name, number.into());
        let token = Token::draw(&mut random);
        let heads: Vec<_> = heads(bulk, up, &mut random).collect();
        together(order, number, &heads, &token, out).await?;
        pause(bulk.pause, number < bulk.count).await;
    }
    Ok(())
}

/// The share of each connection.
fn heads<'a>(bulk: &Bulk, up: bool, random: &'a mut Random) -> impl Iterator<Item = Head> + 'a {
    let connections = u64::from(bulk.connections.max(1));
    let time = micros(bulk.time);
    let (each, rest) = (bulk.octets / connections, bulk.octets % connections);
    let by_size = bulk.octets > 0;
    (0..connections).map(move |i| {
        // More connections than octets: one octet each, for 0 would mean "by time".
        let size = by_size.then(|| (each + u64::from(i < rest)).max(1));
        let side = Some(size.unwrap_or(0));
        Head {
            up: side.filter(|_| up),
            down: side.filter(|_| !up),
            time: if by_size { 0 } else { time.max(1) },
            seed: random.next(),
            token: random.next(),
            rounds: 0,
        }
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

async fn pause(pause: Duration, wanted: bool) {
    if wanted && !pause.is_zero() {
        sleep(pause).await;
    }
}

/// All connections of one transfer at once, and their sum if there are several.
async fn together(
    order: &Order,
    number: u32,
    heads: &[Head],
    token: &Token,
    out: Out<'_>,
) -> io::Result<()> {
    let start = Record::start([0; 2]);
    let mut running: FuturesUnordered<_> = (1..)
        .zip(heads)
        .map(|(connection, head)| {
            let job = job(order, *head);
            async move { (connection, one(order, &job, token).await) }
        })
        .collect();
    let mut ended = Vec::new();
    while let Some((connection, (record, outcome))) = running.next().await {
        let offset = record.clock.since(&start.clock);
        let passed = record.passed();
        let transfer = record.transfer(order, number, connection, outcome);
        if heads.len() > 1 {
            ended.push((transfer.clone(), passed, offset));
        }
        out(transfer)?;
    }
    match ended.is_empty() {
        true => Ok(()),
        false => out(sum(order, number, start, &ended)),
    }
}

fn job(order: &Order, head: Head) -> Job {
    Job {
        head,
        pause: Duration::ZERO,
        stall: order.plan.stall,
    }
}

/// One transfer on a connection of its own.
async fn one(order: &Order, job: &Job, token: &Token) -> (Record, Result<(), TransferError>) {
    let mut record = Record::start(job.asked());
    let limit = order.plan.timeout;
    let outcome = timeout(limit, async {
        let mut stream = door::open(order, order.ports.transfer, token, &mut record).await?;
        tcp::exchange(&mut stream, job, &mut record).await
    });
    let outcome = outcome.await.unwrap_or_else(|_| {
        Err(Fault::Timeout.because(format_args!("the transfer was not over after {limit:?}")))
    });
    (record, outcome)
}

/// Connection 0: sizes added, phases over all; it failed if one of them did.
fn sum(
    order: &Order,
    number: u32,
    mut start: Record,
    ended: &[(Transfer, Passed, u64)],
) -> Transfer {
    let shifted = ended.iter().map(|(_, passed, offset)| {
        let passed = passed.clone();
        passed.map(|at| at.saturating_add(*offset))
    });
    let parts: Vec<_> = shifted.collect();
    let add = |of: fn(&Transfer) -> [u64; 2]| {
        let sums = ended.iter().map(|(transfer, ..)| of(transfer));
        sums.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]])
    };
    start.asked = add(|transfer| transfer.asked);
    start.moved = add(|transfer| transfer.moved);
    start.seen_as = ended.iter().find_map(|(transfer, ..)| transfer.seen_as);
    let latest = |of: fn(&Transfer) -> Option<u64>| {
        let stamps = ended
            .iter()
            .map(|(transfer, _, offset)| Some(of(transfer)? + offset));
        stamps.max().flatten()
    };
    start.phases.connect = latest(|transfer| transfer.phases.connect);
    start.phases.checksum = latest(|transfer| transfer.phases.checksum);
    let outcome = ended
        .iter()
        .find_map(|(transfer, ..)| transfer.error.clone());
    let passed = progress::sum(&parts);
    let mut transfer = start.transfer(order, number, 0, outcome.map_or(Ok(()), Err));
    transfer.phases.first_byte = passed.first;
    transfer.phases.last_byte = passed.last.filter(|_| transfer.error.is_none());
    transfer.phases.deciles = passed.deciles;
    transfer.phases.partial = passed.partial;
    transfer
}

/// Requests and answers on one connection.
pub(crate) async fn rounds(
    order: &Order,
    (sizes, count, pause): ([u64; 2], u32, Duration),
    out: Out<'_>,
) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut random = Random::stream(order.seed, &order.plan.name, 1);
    let token = Token::draw(&mut random);
    let head = Head {
        up: Some(sizes[0].max(1)),
        down: Some(sizes[1].max(1)),
        time: 0,
        seed: random.next(),
        token: random.next(),
        rounds: count,
    };
    let job = Job {
        pause,
        ..job(order, head)
    };
    let (record, outcome) = one(order, &job, &token).await;
    out(record.transfer(order, 1, 1, outcome))
}

/// Transfers drawn by weight; each waits after it.
pub(crate) async fn schedule(
    order: &Order,
    choices: &[Choice],
    count: u32,
    out: Out<'_>,
) -> io::Result<()> {
    for number in 1..=count {
        let mut random = Random::stream(order.seed, &order.plan.name, number.into());
        let Some((row, choice)) = draw(choices, random.share()) else {
            return Ok(());
        };
        let token = Token::draw(&mut random);
        let head = Head {
            up: Some(choice.sendsize).filter(|size| *size > 0),
            down: Some(choice.recvsize).filter(|size| *size > 0),
            time: 0,
            seed: random.next(),
            token: random.next(),
            rounds: 0,
        };
        let (mut record, outcome) = one(order, &job(order, head), &token).await;
        record.tell("choice", f64::from(row));
        out(record.transfer(order, number, 1, outcome))?;
        pause(choice.pause, number < count).await;
    }
    Ok(())
}

/// The row that `share` of the sum of weights falls into, and its number from 1. Weights that are no numbers count as 0.
fn draw(choices: &[Choice], share: f64) -> Option<(u32, &Choice)> {
    let weight = |choice: &Choice| choice.weight.max(0.0);
    let mut left = share * choices.iter().map(weight).sum::<f64>();
    let rows = (1..).zip(choices);
    let drawn = rows
        .clone()
        .filter(|(_, choice)| weight(choice) > 0.0)
        .find(|(_, choice)| {
            left -= weight(choice);
            left < 0.0
        });
    drawn.or_else(|| rows.last())
}

#[cfg(test)]
mod tests;
