//! The process `hoplite-lab __work`: an order as a line of JSON on stdin, transfers as lines of JSON on stdout as they end.
//! It ends well even if transfers fail: they say so themselves. Only an order that is none is a failure.
//!
//! Here are also the transfers over TCP as a client runs them, downloads and uploads over one or several connections, rounds, schedules; from which
//! of several servers, as speed tests choose theirs; and what clients draw: one stream of random numbers for each transfer, so that one more transfer changes none of the others.

use std::{
    borrow::Cow,
    io::{self, BufRead, Write},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use hoplite_workload::{
    socks::Login,
    splitmix::{SplitMix, unit},
    web::prepare_payload,
};
use tokio::time::{sleep, timeout};

use super::{
    browse, connect, http,
    record::Record,
    tcp::{self, Job},
    udp,
};
use crate::{
    errors::{Complaint, Failure},
    experiments::workload::{
        Bulk, Choice, Fault, Kind, Order, Transfer, TransferError,
        progress::{self, Passed},
        transfer::Head,
    },
};

/// Does what stdin orders.
///
/// # Errors
/// The order cannot be read, the runtime cannot start, or nobody reads the transfers any more.
pub fn main() -> Result<(), Failure> {
    let order = order(&mut io::stdin().lock())?;
    prepare_payload();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|why| broken("starting the runtime", &why))?;
    let outcome = runtime.block_on(run(&order, &mut |transfer| print(&transfer)));
    // A thread that still sends what nobody waits for any more ends with the process.
    runtime.shutdown_background();
    outcome.map_err(|why| broken("telling what was transferred", &why))
}

fn broken(doing: &str, why: &io::Error) -> Failure {
    Failure::new(doing, why, "see what the world's log says above this line")
}

fn order(input: &mut impl BufRead) -> Result<Order, Failure> {
    let mut line = String::new();
    let wrong = |why: String| {
        let remedy = "give one line of JSON as `workload::Order` describes it";
        Failure::Wrong(vec![Complaint::new("reading the order", why, remedy)])
    };
    input
        .read_line(&mut line)
        .map_err(|why| wrong(why.to_string()))?;
    serde_json::from_str(&line).map_err(|why| wrong(why.to_string()))
}

fn print(transfer: &Transfer) -> io::Result<()> {
    let mut line = serde_json::to_vec(transfer)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Does what `order` says and hands each transfer to `out` when it is over.
///
/// # Errors
/// Those of `out`.
pub async fn run(order: &Order, out: &mut dyn FnMut(Transfer) -> io::Result<()>) -> io::Result<()> {
    match order.plan.kind.clone() {
        Kind::Download(bulk) => transfers(order, &bulk, false, out).await,
        Kind::Upload(bulk) => transfers(order, &bulk, true, out).await,
        Kind::Request {
            request,
            response,
            count,
            pause,
        } => rounds(order, ([request, response], count, pause), out).await,
        Kind::Schedule { choices, count } => schedule(order, &choices, count, out).await,
        Kind::UdpEcho {
            size,
            count,
            interval,
        } => udp::echo(order, udp::echoes(size, count, interval), out).await,
        Kind::UdpRate { .. } => udp::rate(order, out).await,
        Kind::Http { .. } => http::run(order, out).await,
        Kind::Browse(_) => browse::run(order, out).await,
    }
}

/// Takes transfers as they end.
pub(crate) type Out<'a> = &'a mut dyn FnMut(Transfer) -> io::Result<()>;

/// Downloads, or uploads if `up`.
pub(crate) async fn transfers(
    order: &Order,
    bulk: &Bulk,
    up: bool,
    out: Out<'_>,
) -> io::Result<()> {
    for number in 1..=bulk.count {
        let mut random = Random::stream(order.seed, &order.plan.name, number.into());
        let token = random.login();
        let heads: Vec<_> = heads(bulk, up, &mut random).collect();
        match located(order, random.next(), &token).await {
            Ok(order) => together(&order, number, &heads, &token, out).await?,
            Err(error) => out(unlocated(order, number, &heads, error))?,
        }
        pause(bulk.pause, number < bulk.count).await;
    }
    Ok(())
}

/// The order to the server that is nearest to where the client is seen from: by the same way and with the same token as the transfer, whose time
/// has not begun.
async fn located<'a>(
    order: &'a Order,
    echo: u64,
    token: &Login,
) -> Result<Cow<'a, Order>, TransferError> {
    if order.nearest.is_empty() {
        return Ok(Cow::Borrowed(order));
    }
    // A payload of one byte: the protocol has no smaller one.
    let head = Head {
        down: Some(1),
        token: echo,
        ..Head::default()
    };
    let (record, outcome) = one(order, &job(order, head), token).await;
    outcome?;
    let seen = record.seen_as.map(|seen| seen.to_canonical());
    let nearest = seen.and_then(|seen| order.nearest.get(&seen));
    let unknown = "no host of the network has the address that the server saw: none is nearest";
    let nearest = nearest.ok_or_else(|| Fault::Misc.because(unknown))?;
    Ok(Cow::Owned(Order {
        target: nearest.to_string(),
        ..order.clone()
    }))
}

/// A transfer that knew no server.
fn unlocated(order: &Order, number: u32, heads: &[Head], error: TransferError) -> Transfer {
    let size = |side: fn(&Head) -> Option<u64>| heads.iter().filter_map(side).sum::<u64>();
    let record = Record::start([size(|head| head.up), size(|head| head.down)]);
    record.transfer(order, number, u16::from(heads.len() == 1), Err(error))
}

/// The share of each connection.
fn heads<'a>(bulk: &Bulk, up: bool, random: &'a mut Random) -> impl Iterator<Item = Head> + 'a {
    let connections = u64::from(bulk.connections.max(1));
    let time = micros(bulk.time);
    let (each, rest) = (bulk.bytes / connections, bulk.bytes % connections);
    let by_size = bulk.bytes > 0;
    (0..connections).map(move |i| {
        // More connections than bytes: one byte each, for 0 would mean "by time".
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
    token: &Login,
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
    if ended.is_empty() {
        Ok(())
    } else {
        out(sum(order, number, start, &ended))
    }
}

fn job(order: &Order, head: Head) -> Job {
    Job {
        head,
        pause: Duration::ZERO,
        stall: order.plan.stall,
    }
}

/// A download of `size` bytes on a connection of its own with a token of its own, and the port that it was made from. It is broken off with the
/// error that `broken` answers with, if that answers before.
pub(crate) async fn download(
    order: &Order,
    size: u64,
    number: u32,
    broken: impl Future<Output = TransferError>,
) -> (Transfer, Option<u16>) {
    let mut random = Random::stream(order.seed, &order.plan.name, number.into());
    let token = random.login();
    let head = Head {
        down: Some(size),
        seed: random.next(),
        token: random.next(),
        ..Head::default()
    };
    let job = job(order, head);
    let mut record = Record::start(job.asked());
    let outcome = tokio::select! {
        outcome = carry(order, &job, &token, &mut record) => outcome,
        error = broken => Err(error),
    };
    let local = record.local;
    (record.transfer(order, number, 1, outcome), local)
}

/// One transfer on a connection of its own.
async fn one(order: &Order, job: &Job, token: &Login) -> (Record, Result<(), TransferError>) {
    let mut record = Record::start(job.asked());
    let outcome = carry(order, job, token, &mut record).await;
    (record, outcome)
}

async fn carry(
    order: &Order,
    job: &Job,
    token: &Login,
    record: &mut Record,
) -> Result<(), TransferError> {
    let limit = order.plan.timeout;
    let outcome = timeout(limit, async {
        let mut stream = connect::open(order, order.ports.transfer, token, record).await?;
        tcp::exchange(&mut stream, job, record).await
    });
    outcome.await.unwrap_or_else(|_| {
        Err(Fault::Timeout.because(format_args!("the transfer was not over after {limit:?}")))
    })
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
    let token = random.login();
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
        let token = random.login();
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

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix);

impl Random {
    /// The stream of `number` in the workload `name` of a repetition.
    pub(crate) fn stream(seed: u64, name: &str, number: u64) -> Self {
        let mut random = SplitMix::new(seed);
        random.absorb(name.bytes());
        random.absorb_number(number);
        Self(random)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// A fresh isolation token.
    pub(crate) fn login(&mut self) -> Login {
        let mut word = || format!("{:016x}", self.next());
        Login {
            user: word(),
            password: word(),
        }
    }

    /// Evenly in 0..1.
    pub(crate) fn share(&mut self) -> f64 {
        unit(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(weight: f64) -> Choice {
        Choice {
            sendsize: 1,
            recvsize: 1,
            pause: Duration::ZERO,
            weight,
        }
    }

    #[test]
    fn rows_are_drawn_in_proportion_to_their_weights() {
        let choices = [
            choice(12.0),
            choice(0.0),
            choice(2.0),
            choice(f64::NAN),
            choice(1.0),
        ];
        let row = |share| draw(&choices, share).unwrap().0;
        assert_eq!(
            [row(0.0), row(0.79), row(0.81), row(0.93), row(0.94)],
            [1, 1, 3, 3, 5]
        );
    }
}
