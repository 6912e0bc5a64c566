//! What the HTTP/3 sessions of all clients dropped. Part of `/metrics`.
//! The sessions count for themselves; here their numbers are read when somebody asks.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hoplite_http::h3::Counters;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

#[derive(Debug)]
pub(super) struct Sessions(pub(super) Arc<Counters>);

impl Collector for Sessions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "What HTTP/3 sessions dropped";
        let mut family =
            encoder.encode_descriptor("session_dropped", help, None, MetricType::Counter)?;
        for (cause, count) in causes(&self.0) {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(family.encode_family(&[("cause", cause)])?)?;
        }
        Ok(())
    }
}

/// Payloads that were dropped on their way to a client are among those of `datagrams_dropped`, and left out here.
fn causes(counters: &Counters) -> [(&'static str, &AtomicU64); 4] {
    [
        ("malformed", &counters.malformed),
        ("unknown_context", &counters.unknown_context),
        ("early", &counters.early_dropped),
        ("unrouted", &counters.unrouted),
    ]
}
