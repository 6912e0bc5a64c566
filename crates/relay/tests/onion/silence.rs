//! What the system is told to do about channels over TLS whose other end is silent: its table of connections shows when it will ask.

use std::{fs, time::Duration};

use hoplite_channel::How;
use hoplite_overlay::Terms;
use hoplite_testing::{soon, targets};
use tokio::time::sleep;

use crate::support::{client, open, path, relays};

/// In how many hundredths of a second the system asks at the latest, on open connections with this port in the field `at`; only where all of
/// them have a time for that. docs.kernel.org, "proc_net_tcp".
fn asks(port: u16, at: usize) -> Option<u64> {
    let table = fs::read_to_string("/proc/self/net/tcp").expect("a table");
    let mut found = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port_of = |field: usize| {
            let (_, port) = fields[field].rsplit_once(':').expect("a port");
            u16::from_str_radix(port, 16).expect("a number")
        };
        if fields[3] == "01" && port_of(at) == port {
            let (kind, when) = fields[5].split_once(':').expect("a timer");
            if kind != "02" {
                return None;
            }
            found.push(u64::from_str_radix(when, 16).expect("a number"));
        }
    }
    found.into_iter().max()
}

async fn asked(port: u16, at: usize) -> u64 {
    let times = async {
        loop {
            if let Some(time) = asks(port, at) {
                return time;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon(times).await
}

/// The fields of the table.
const LOCAL: usize = 1;
const REMOTE: usize = 2;

#[tokio::test]
async fn channels_over_tls_are_watched_at_both_ends_between_relays_and_at_the_relay_of_a_client() {
    let [first, second] = relays(How::Tls);
    let onion = client(path([&first, &second]), How::Tls);
    let target = targets::tcp_echo().await;
    let stream = open(&onion, target, &Terms::default())
        .await
        .expect("opens");
    let [first, second] = [&first, &second].map(|relay| relay.addresses()[0].port());
    assert!(
        asked(second, LOCAL).await <= 400,
        "by the relay that was dialled"
    );
    assert!(
        asked(second, REMOTE).await <= 400,
        "by the one that dialled"
    );
    assert!(asked(first, LOCAL).await <= 2500, "by the client's");
    drop(stream);
}
