//! Two ends of an HTTP/3 connection over loopback, and ends that break the rules.

#[path = "h3/breaches.rs"]
mod breaches;
#[path = "h3/flows.rs"]
mod flows;
#[path = "h3/forwarding.rs"]
mod forwarding;
#[path = "h3/pair.rs"]
mod pair;
#[path = "h3/streams.rs"]
mod streams;
#[path = "h3/tuning.rs"]
mod tuning;
