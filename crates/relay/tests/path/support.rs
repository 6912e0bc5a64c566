//! Paths as subjects of the suite.

use std::sync::Arc;

use hoplite_masque::Config;
use hoplite_overlay::{Overlay, conformance::Subject};
use hoplite_testing::{
    Double,
    path::{Switch, build, direct},
};

fn over(hops: usize, below: &Arc<dyn Overlay>) -> Subject {
    let (path, relays) = build(hops, below, Config::default());
    Subject::on_loopback(Arc::new(Double::over(path).keeping(relays)))
}

pub(crate) fn subject(hops: usize) -> Subject {
    over(hops, &direct())
}

pub(crate) fn subject_without_udp(hops: usize) -> Subject {
    let below = Switch::new();
    below.block(true);
    over(hops, &below.overlay)
}
