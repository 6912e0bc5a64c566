//! How fast the layers are: `cargo test --release -p hoplite-crypto speed -- --ignored --nocapture`. It measures and asserts nothing.

use std::{hint::black_box, time::Instant};

use super::*;

const CELLS: u32 = 400_000;

fn report(what: &str, mut one: impl FnMut(&mut [u8; BODY])) {
    let mut body = message(1);
    let start = Instant::now();
    for _ in 0..CELLS {
        one(black_box(&mut body));
    }
    let octets = f64::from(CELLS) * 509.0;
    let speed = octets / start.elapsed().as_secs_f64() / 1e9;
    println!("{what:40} {speed:6.2} GB/s");
}

#[test]
#[ignore = "it measures: run it alone, in release"]
fn speed() {
    let mut circuit = Circuit::of(3);
    let mut relay = RelayLayer::of(&Keys::of(&keys_of(0))).expect("a layer");
    report("a relay passes a cell back", |body| relay.backward(body));
    report("a relay passes a cell on", |body| {
        black_box(relay.forward(body));
    });
    report("a relay says a cell", |body| {
        black_box(relay.originate(body));
    });
    report("a client makes a cell for three hops", |body| {
        black_box(circuit.client.encrypt_for(2, body));
    });
    report("the same, and three relays read it", |body| {
        circuit.client.encrypt_for(2, body);
        assert!(circuit.forward(body).is_some());
    });
}
