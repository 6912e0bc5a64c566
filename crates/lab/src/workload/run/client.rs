//! The process `hoplite-lab __work`: an order as a line of JSON on stdin, transfers as lines of JSON on stdout as they end.
//! It ends well even if transfers fail: they say so themselves. Only an order that is none is a failure.

use std::io::{self, BufRead, Write};

use super::{Kind, Order, Transfer, bulk, http, payload, udp};
use crate::errors::{Complaint, Failure};

/// Does what stdin orders.
///
/// # Errors
/// The order cannot be read, the runtime cannot start, or nobody reads the transfers any more.
pub fn main() -> Result<(), Failure> {
    let order = order(&mut io::stdin().lock())?;
    payload::prepare();
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
        Kind::Download(bulk) => bulk::run(order, &bulk, false, out).await,
        Kind::Upload(bulk) => bulk::run(order, &bulk, true, out).await,
        Kind::Request {
            request,
            response,
            count,
            pause,
        } => bulk::rounds(order, ([request, response], count, pause), out).await,
        Kind::Schedule { choices, count } => bulk::schedule(order, &choices, count, out).await,
        Kind::UdpEcho {
            size,
            count,
            interval,
        } => udp::echo(order, udp::echoes(size, count, interval), out).await,
        Kind::UdpRate { .. } => udp::rate(order, out).await,
        Kind::Http { .. } => http::run(order, out).await,
    }
}
