//! Paths as subjects of the suite, and a network that blocks UDP.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
};

use hoplite_masque::Config;
use hoplite_overlay::{Direct, Overlay, conformance::Subject};
use hoplite_testing::{
    Double,
    path::{build, direct},
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

/// The device's own sockets behind a firewall that can drop all UDP, silently, as firewalls do.
pub(crate) struct Switch {
    pub(crate) overlay: Arc<dyn Overlay>,
    blocked: Arc<AtomicBool>,
}

impl Switch {
    pub(crate) fn new() -> Self {
        let blocked = Arc::<AtomicBool>::default();
        let switch = Arc::clone(&blocked);
        let overlay = Double::over(Direct::new()).flows(move |flow| {
            let (up, down) = (Arc::clone(&switch), Arc::clone(&switch));
            flow.sends(move |below, cx, batch| {
                if up.load(SeqCst) {
                    Poll::Ready(Ok(()))
                } else {
                    below.poll_send(cx, batch)
                }
            })
            .receives(move |below, cx, buf| {
                loop {
                    match below.poll_recv(cx, buf) {
                        Poll::Ready(Ok(_)) if down.load(SeqCst) => {}
                        other => return other,
                    }
                }
            })
        });
        Self {
            overlay: Arc::new(overlay),
            blocked,
        }
    }

    pub(crate) fn block(&self, blocked: bool) {
        self.blocked.store(blocked, SeqCst);
    }
}
