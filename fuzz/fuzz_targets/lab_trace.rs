//! mahimahi traces: what is accepted can be used as a bottleneck, which never serves a packet before it came, nor out of order.
#![no_main]

use hoplite_lab::emulator::trace::{Opportunities, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(moments) = parse(text) else {
        return;
    };
    let mut trace = Opportunities::new(&moments).expect("what is parsed goes forward");
    let last = moments.last().copied().unwrap_or(1) * 1_000_000;
    let mut done = 0;
    for (since, size) in [
        (0, 40),
        (0, 1500),
        (last / 2, 9000),
        (last, 1500),
        (last * 3 + 1, 40),
    ] {
        let start = trace.ready(since.max(done));
        assert!(start >= since.max(done));
        let end = trace.serve(start, size);
        assert!(end >= start);
        done = end;
    }
});
