//! Fetches over HTTP/1.1, 2 and 3, as a browser or a download manager makes them. `client` calls it with an order.
//! HTTP/1.1 goes in clear text, 2 and 3 over TLS. RFC 9112, RFC 9113, RFC 9114.
//!
//! A fetch is `GET /OCTETS/SEED`; the body is so many octets of payload and their SHA-256 behind them. `x-seen-as` in the answer is
//! the address that the client came from. An upload is `PUT /OCTETS/SEED` with that body, over HTTP/3 only; the answer is the server's
//! verdict on it, as in the lab's own protocol.
//!
//! Workers, `parallel` of them, fetch one after the other. In HTTP/1.1 each has a connection of its own; in 2 and 3 they share
//! one, and the first fetch that finds none makes it: its phases show what that took. A connection that failed is not used again.

use std::{
    cell::{Cell, RefCell},
    io,
    path::Path,
};

use futures_util::{future, join};
use hoplite_crypto::Qlog;
use tokio::{
    sync::{Mutex, mpsc},
    time::timeout,
};

use self::{body::Check, connection::Connection};
use super::{
    Kind, Order, Transfer, TransferError, bulk::Out, door::Token, random::Random, record::Record,
    trouble::Fault,
};

mod association;
mod body;
mod connection;
mod one;
pub(crate) mod server;
mod three;
mod tls;
mod tuning;
mod two;

/// Octets that a stream may have on their way to a client: what Chromium grants.
const STREAM_WINDOW: u32 = 6 << 20;

/// The same for a connection.
const CONNECTION_WINDOW: u32 = 15 << 20;

/// Transfers that wait to be told.
const WAITING: usize = 16;

/// What is fetched.
#[derive(Clone, Copy, Debug)]
struct Fetches {
    /// 1, 2 or 3.
    version: u8,
    /// Octets of each body.
    octets: u64,
    /// How many.
    count: u32,
    /// How many at once.
    parallel: u16,
    /// Whether each has a connection of its own.
    fresh: bool,
    /// Whether the bodies go to the server.
    upload: bool,
}

impl Fetches {
    fn of(kind: &Kind) -> Option<Self> {
        let Kind::Http {
            version,
            octets,
            count,
            parallel,
            fresh,
            upload,
            ..
        } = *kind
        else {
            return None;
        };
        Some(Self {
            version,
            octets,
            count,
            parallel,
            fresh,
            upload,
        })
    }
}

impl Fetches {
    /// Octets to the server and from it.
    fn asked(&self) -> [u64; 2] {
        match self.upload {
            true => [self.octets, 0],
            false => [0, self.octets],
        }
    }
}

/// Fetches all.
pub(crate) async fn run(order: &Order, out: Out<'_>) -> io::Result<()> {
    let Some(fetches) = Fetches::of(&order.plan.kind) else {
        return Ok(());
    };
    let qlog = match start_qlog(order.qlog.as_deref()) {
        Ok(qlog) => qlog,
        Err(error) => return out(no_qlog(order, &error)),
    };
    let (tell, told) = mpsc::channel(WAITING);
    let work = Work {
        order,
        fetches,
        qlog: qlog.as_ref(),
        next: Cell::new(1),
        shared: Mutex::new(None),
        tell: RefCell::new(Some(tell)),
    };
    let workers = (1..=fetches.parallel.max(1)).map(|worker| work.run(worker));
    let workers = async {
        future::join_all(workers).await;
        work.tell.take();
    };
    let ((), outcome) = join!(workers, hand_on(told, out));
    if let Some(qlog) = qlog {
        qlog.flush();
    }
    outcome
}

fn start_qlog(directory: Option<&Path>) -> io::Result<Option<Qlog>> {
    directory.map(Qlog::start).transpose()
}

fn no_qlog(order: &Order, error: &io::Error) -> Transfer {
    let why = Fault::Misc.because(format_args!("the qlog directory: {error}"));
    Record::start([0; 2]).transfer(order, 1, 1, Err(why))
}

async fn hand_on(mut told: mpsc::Receiver<Transfer>, out: Out<'_>) -> io::Result<()> {
    while let Some(transfer) = told.recv().await {
        out(transfer)?;
    }
    Ok(())
}

/// What the workers share.
struct Work<'a> {
    order: &'a Order,
    fetches: Fetches,
    qlog: Option<&'a Qlog>,
    next: Cell<u32>,
    /// The connection of HTTP/2 and 3, and which fetch made it.
    shared: Mutex<Option<(u32, Connection)>>,
    tell: RefCell<Option<mpsc::Sender<Transfer>>>,
}

/// One thing to get.
#[derive(Clone, Debug)]
struct Fetch {
    /// Octets of payload.
    octets: u64,
    /// Seeds the payload.
    seed: u64,
    /// Whether it goes to the server.
    upload: bool,
    /// The host as it stands in requests.
    authority: String,
    /// Where it is.
    path: String,
}

impl Work<'_> {
    /// Fetches until all is fetched, or nobody listens any more.
    async fn run(&self, worker: u16) {
        let mut own = None;
        while self.next.get() <= self.fetches.count {
            let number = self.next.replace(self.next.get() + 1);
            let mut record = Record::start(self.fetches.asked());
            let fetching = self.fetch(number, &mut own, &mut record);
            let limit = self.order.plan.timeout;
            let outcome = timeout(limit, fetching).await.unwrap_or_else(|_| {
                Err(Fault::Timeout.because(format_args!("the fetch was not over after {limit:?}")))
            });
            if outcome.is_err() {
                own = None;
            }
            let transfer = record.transfer(self.order, number, worker, outcome);
            let tell = self.tell.borrow().clone();
            match tell {
                Some(tell) if tell.send(transfer).await.is_ok() => {}
                _ => return,
            }
        }
    }

    async fn fetch(
        &self,
        number: u32,
        own: &mut Option<Connection>,
        record: &mut Record,
    ) -> Result<(), TransferError> {
        let mut random = Random::stream(self.order.seed, &self.order.plan.name, number.into());
        let token = Token::draw(&mut random);
        let fetch = self.what(random.next());
        if self.fetches.fresh {
            let mut connection = self.open(&token, record).await?;
            return connection.fetch(&fetch, record).await;
        }
        if self.fetches.version == 1 {
            let mut connection = match own.take() {
                Some(connection) => connection,
                None => self.open(&token, record).await?,
            };
            connection.fetch(&fetch, record).await?;
            *own = Some(connection);
            return Ok(());
        }
        let (made_by, mut connection) = self.share(number, &token, record).await?;
        let outcome = connection.fetch(&fetch, record).await;
        if outcome.is_err() {
            self.forget(made_by).await;
        }
        outcome
    }

    fn what(&self, seed: u64) -> Fetch {
        let octets = self.fetches.octets;
        let port = connection::port(self.order, self.fetches.version);
        let authority =
            super::door::target(self.order, port).map_or_else(|_| String::new(), |t| t.to_string());
        Fetch {
            octets,
            seed,
            upload: self.fetches.upload,
            authority,
            path: format!("/{octets}/{seed}"),
        }
    }

    async fn open(&self, token: &Token, record: &mut Record) -> Result<Connection, TransferError> {
        Connection::open(self.order, self.fetches.version, (token, self.qlog), record).await
    }

    /// The connection that all workers share; made now if there is none.
    async fn share(
        &self,
        number: u32,
        token: &Token,
        record: &mut Record,
    ) -> Result<(u32, Connection), TransferError> {
        let mut shared = self.shared.lock().await;
        if let Some((made_by, connection)) = &*shared {
            return Ok((*made_by, connection.again()?));
        }
        let connection = self.open(token, record).await?;
        let again = connection.again()?;
        *shared = Some((number, connection));
        Ok((number, again))
    }

    async fn forget(&self, made_by: u32) {
        let mut shared = self.shared.lock().await;
        if shared.as_ref().is_some_and(|(by, _)| *by == made_by) {
            *shared = None;
        }
    }
}

/// What every version does with a body's octets.
fn take(check: &mut Check, octets: &[u8], record: &mut Record) -> Result<(), TransferError> {
    let payload = check.take(octets)?;
    record.received.add(payload, super::clock::monotonic_us());
    Ok(())
}

/// What every version does at a body's end.
fn finish(check: Check, record: &mut Record) -> Result<(), TransferError> {
    record.moved[1] = check.finish()?;
    record.phases.checksum = Some(record.clock.us());
    Ok(())
}

/// What every version does with an answer's head.
fn head(status: u16, seen_as: Option<&[u8]>, record: &mut Record) -> Result<(), TransferError> {
    record.phases.response = Some(record.clock.us());
    let seen_as = seen_as.and_then(|value| std::str::from_utf8(value).ok());
    record.seen_as = seen_as.and_then(|value| value.parse().ok());
    match status {
        200 => Ok(()),
        other => Err(Fault::Auth.because(format_args!("the server answered with status {other}"))),
    }
}

/// The same with the type that HTTP/1.1 and 2 have for an answer.
fn headed<B>(answer: &http::Response<B>, record: &mut Record) -> Result<(), TransferError> {
    let seen_as = answer.headers().get("x-seen-as");
    let seen_as = seen_as.map(|value| value.as_bytes());
    head(answer.status().as_u16(), seen_as, record)
}

#[cfg(test)]
mod tests;
