//! What a path does when nobody wants anything of it: a device shall sleep, and relays in memory see when it does not.

use std::time::Duration;

use hoplite_masque::{Config, Mode};
use tokio::time::{Instant, sleep};

use crate::early::{CLIENT, Lab};

const SECOND: Duration = Duration::from_secs(1);

/// When the client sends, in seconds since `from`; what leaves within a second of something is left out.
fn moments(lab: &Lab, from: Instant) -> Vec<u64> {
    let seen = lab.network.seen().into_iter();
    let sent = seen.filter(|seen| seen.from.ip() == CLIENT && seen.at >= from);
    let mut sent: Vec<_> = sent.map(|seen| seen.at - from).collect();
    sent.sort_unstable();
    let mut last: Option<Duration> = None;
    sent.retain(|at| last.replace(*at).is_none_or(|last| *at > last + SECOND));
    sent.iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn all_hops_of_a_path_at_rest_speak_at_one_moment_every_25_seconds() {
    // These relays do not forward: whoever knows looks for no larger packets.
    let config = Config {
        mode: Mode::Tunnelled,
        ..Config::default()
    };
    let mut lab = Lab::with(3, config);
    lab.path.connect().await.expect("connects");
    lab.first_byte(false).await;
    // What stands still is asked about five times, the last time half a minute after it came to rest.
    sleep(100 * SECOND).await;
    let from = Instant::now();
    sleep(500 * SECOND).await;
    let moments = moments(&lab, from);
    assert!((19..=21).contains(&moments.len()), "{moments:?}");
    assert!(
        moments
            .windows(2)
            .all(|pair| (24..=26).contains(&(pair[1] - pair[0]))),
        "{moments:?}"
    );
    lab.first_byte(false).await;
}
