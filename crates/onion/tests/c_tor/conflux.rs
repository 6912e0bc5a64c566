//! Conflux sets of ours that end at an exit of C tor: one leg by a guard of theirs and a middle of ours, the other the other way round.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_onion::{
    Config, Onion,
    channel::Waiting,
    path::{CircuitUsage, Paths, Relay},
};
use hoplite_overlay::Error;

use crate::{
    MEGABYTE, limit,
    ours::{Ours, dialer},
    target::{Served, download, upload},
    tor::Tor,
};

/// Always the same two paths, and the first where one will do.
#[derive(Debug)]
struct Pair([Vec<Relay>; 2]);

impl Paths for Pair {
    fn path<'a>(&'a self, _: &'a CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async { Ok(self.0[0].clone()) })
    }

    fn pair<'a>(
        &'a self,
        _: &'a CircuitUsage,
    ) -> Waiting<'a, Result<Option<[Vec<Relay>; 2]>, Error>> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn an_exit_of_c_tor_carries_streams_over_both_legs_of_a_set() {
    let (tors, ours) = (
        Tor::three().await,
        [Ours::start(1).await, Ours::start(2).await],
    );
    let [t0, t1, exit] = [0, 1, 2].map(|n| tors[n].relay());
    let [o0, o1] = [0, 1].map(|n: usize| ours[n].relay());
    let paths = Pair([vec![t0, o0, exit.clone()], vec![o1, t1, exit]]);
    let client = Onion::new(Arc::new(dialer()), Arc::new(paths), Config::default());
    client.warm();
    limit(tors[2].hears("Successfully linked a conflux relay set")).await;
    // The other leg, and LINKED and its answer on both.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let served = Served::start().await;
    limit(download(&client, &served, 8 * MEGABYTE)).await;
    limit(upload(&client, &served, 8 * MEGABYTE)).await;
    let many = (0..20).map(|_| download(&client, &served, 100_000));
    limit(join_all(many)).await;
    let [down, up] =
        [Ours::passed_back, Ours::passed_forth].map(|passed| ours.each_ref().map(passed));
    println!("cells by each leg: {down:?} to the client, {up:?} to the exit");
    assert!(down.iter().all(|cells| *cells > 1000), "{down:?}");
    assert!(up.iter().sum::<u64>() > 16_000, "{up:?}");
}
