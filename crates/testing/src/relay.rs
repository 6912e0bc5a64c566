//! Relays on loopback, in the test's own process.

use std::time::Duration;

use hoplite_crypto::Identity;
use hoplite_relay::{Config, Handle, Relay};
use tokio::time::{sleep, timeout};

use crate::PATIENCE;

/// A relay that serves loopback targets.
pub fn config() -> Config {
    let mut config = Config {
        listen: vec!["127.0.0.1:0".parse().expect("address")],
        ..Config::default()
    };
    let allow = ["127.0.0.0/8", "::1"].map(|rule| rule.parse().expect("rule"));
    config.egress.allow = allow.to_vec();
    config.limits.shards = 2;
    config
}

/// A new one, for `localhost`.
pub fn identity() -> Identity {
    crate::identity("localhost")
}

/// A relay with an identity of its own, until it is dropped.
pub fn start(config: &Config) -> Handle {
    Relay::start(config, &identity()).expect("started")
}

/// A relay with something changed.
pub fn relay(change: impl FnOnce(&mut Config)) -> Handle {
    let mut config = config();
    change(&mut config);
    start(&config)
}

/// This many relays.
pub fn relays(count: usize) -> Vec<Handle> {
    (0..count).map(|_| relay(|_| ())).collect()
}

/// What its operator would hand out, with these roles.
pub fn url(relay: &Handle, roles: &str) -> String {
    let (address, pin) = (relay.addresses()[0], relay.pin());
    format!("hoplite://{address}/r?pin={pin}&roles={roles}")
}

/// The value of a metric, whose name is given without `hoplite_relay_`; 0 if there is none.
pub fn metric(relay: &Handle, what: &str) -> f64 {
    let text = relay.metrics().text();
    let wanted = format!("hoplite_relay_{what} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&*wanted));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// The number behind what the text of the metrics says of `name`, which is given in full with its labels.
///
/// # Panics
/// It says nothing of it.
pub fn number(relay: &Handle, name: &str) -> u64 {
    let text = relay.metrics().text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap_or_else(|| unreachable!("{name} is not in {text}"));
    number.trim().parse().expect("a number")
}

/// Waits until a metric is as it should be.
///
/// # Panics
/// That takes longer than [`crate::PATIENCE`].
pub async fn until_metric(relay: &Handle, what: &str, fits: impl Fn(f64) -> bool) {
    let reached = async {
        while !fits(metric(relay, what)) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "{what}: {}", relay.metrics().text());
}
