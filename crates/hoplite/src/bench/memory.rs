//! What a relay keeps in memory: at rest, and for each client that is connected and idle.
//! Idle clients are connections of their own to the last of two relays, one for each SOCKS user name; of circuits, a circuit for each.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use super::{broken, sample::Sample};
use crate::{
    cpu,
    errors::Failure,
    load::{
        socks,
        target::{ECHO, Target},
    },
    testbed::{Chain, Over},
};

/// What a process may still do after the last client came: closing flows, answering.
const SETTLE: Duration = Duration::from_millis(500);

/// Measures a relay with so many idle clients.
pub(super) fn of_a_relay(clients: usize, over: Over, target: &Target) -> Result<Sample, Failure> {
    let isolated = clients + 1;
    let keys = match over {
        Over::Masque => format!("tunnel.isolated = {isolated}\ntunnel.isolated_idle = 3600"),
        Over::Quic | Over::Tls => format!("onion.isolated = {isolated}"),
    };
    let chain = Chain::with_client_keys(2, over, &keys)?;
    run(&chain, clients, target).map_err(|error| broken(&error))
}

fn run(chain: &Chain, clients: usize, target: &Target) -> io::Result<Sample> {
    let watched = chain.watched();
    let relay = watched.iter().find(|process| process.name == "relay2");
    let relay = relay
        .ok_or_else(|| io::Error::other("there is no relay"))?
        .pid;
    std::thread::sleep(SETTLE);
    let at_rest = cpu::resident(relay)?;
    visit(chain, "first", target)?;
    let warm = cpu::resident(relay)?;
    for i in 0..clients {
        visit(chain, &format!("client{i}"), target)?;
    }
    std::thread::sleep(SETTLE);
    let grown = cpu::resident(relay)?.saturating_sub(warm);
    Ok(Sample::default()
        .with("relay_at_rest_octets", at_rest as f64)
        .with("idle_clients", clients as f64)
        .with("octets_per_idle_client", grown as f64 / clients as f64))
}

/// One flow that comes and goes; the connection under it stays.
fn visit(chain: &Chain, user: &str, target: &Target) -> io::Result<()> {
    let mut stream = socks::connect_as(chain.socks(), user, target.address())?;
    stream.write_all(&[ECHO])?;
    stream.read_exact(&mut [0])
}
