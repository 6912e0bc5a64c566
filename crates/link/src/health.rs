//! Notices within seconds that a link is dead: something that wants an answer was sent, and none came.
//! A suspect link asks its flow first to leave off what may be to blame, forwarded mode below; then it gets a new socket (QUIC migration,
//! RFC 9000 §9); one that stays silent is given up.

use std::{
    future::pending,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_overlay::{Isolation, Overlay, Terms};
use hoplite_quic::{
    Connection, ConnectionController, Endpoint,
    liveness::{LOOK, Pulse, Silence},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{Bypass, Config, dial::Peer, losses::Losses, socket::VirtualSocket};

/// A link whose flows are at rest moves so long after the one below is lost at the latest, if it is one of an isolation token.
const LATEST_MOVE: Duration = Duration::from_secs(10);

/// Watches one link; everything it needs to give it a new socket.
pub(crate) struct Watch {
    pub(crate) overlay: Arc<dyn Overlay>,
    pub(crate) peer: Peer,
    pub(crate) terms: Terms,
    pub(crate) config: Config,
    pub(crate) hop: usize,
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) controller: ConnectionController,
    pub(crate) socket: std::sync::Weak<VirtualSocket>,
    pub(crate) bypass: Arc<Bypass>,
    pub(crate) flow_ended: Arc<Notify>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) flows: Arc<AtomicUsize>,
}

impl Watch {
    /// Returns when the connection has ended or has been given up (and closed).
    pub(crate) async fn run(mut self) {
        let connection = self.connection.clone();
        tokio::select! {
            biased;
            _ = connection.closed() => {}
            () = self.follow() => connection.close(0u32.into(), b""),
        }
    }

    /// Looks at the counters again and again; returns when the link is to be given up.
    async fn follow(&mut self) {
        let (mut silence, mut losses) = (Silence::default(), Losses::default());
        let mut last_move: Option<Instant> = None;
        // In this silence the flow was asked whether something of its own is to blame.
        let mut asked = false;
        let (mut pause, mut looked) = (LOOK, Instant::now());
        loop {
            let ended = self.wait(pause).await;
            // What is looked at again so soon does not rest yet.
            let rests = self.observe(&mut silence) && looked.elapsed() >= LOOK;
            pause = self.pause(rests);
            looked = Instant::now();
            self.judge(&mut losses, looked);
            let silent = silence.length(looked);
            if silent >= self.broken_after() {
                return;
            }
            let suspect = silent >= self.suspect_after();
            self.pulse.suspect(suspect);
            let calm = last_move.is_none_or(|at| at.elapsed() >= self.suspect_after());
            if ended || self.moved() {
                if silence.is_still(looked) {
                    self.stay_hidden().await;
                }
                self.move_on(ended, &mut last_move, &mut silence).await;
            } else if !suspect {
                asked = false;
            } else if calm && !std::mem::replace(&mut asked, true) && self.flow_leaves_off() {
                last_move = Some(Instant::now());
            } else if calm {
                self.move_on(ended, &mut last_move, &mut silence).await;
            }
        }
    }

    /// How long until the next look if nothing happens.
    fn pause(&self, rests: bool) -> Duration {
        if !rests {
            return LOOK;
        }
        self.pulse.rest();
        self.config.rest
    }

    /// Waits for the next look: `pause` at most, less when the link is used and answers. Tells whether its flow has ended.
    async fn wait(&self, pause: Duration) -> bool {
        let mut next = Instant::now() + pause;
        loop {
            tokio::select! {
                biased;
                () = self.flow_ended.notified() => return true,
                () = self.pulse.used() => next = next.min(Instant::now() + LOOK),
                () = self.pulse.heard() => {
                    // The connection's task has yet to see what came.
                    tokio::task::yield_now().await;
                    return false;
                }
                () = tokio::time::sleep_until(next) => return false,
            }
        }
    }

    /// Reads the counters; tells whether hardly anything has happened and nothing is expected. More than that is told to whoever waits for it.
    fn observe(&self, silence: &mut Silence) -> bool {
        let stats = self.connection.stats();
        let ack_controller = self.controller.ack_controller();
        ack_controller.round_trip(stats.path.rtt);
        // Datagrams that are not acknowledged are cut out of packets before the stack counts them.
        let stirs = silence.look(&stats, ack_controller.datagrams(), Instant::now());
        if stirs {
            self.pulse.stir();
        }
        !stirs && !silence.is_waiting()
    }

    /// Looks whether much is lost. Over the first relay's link that is for whoever uses it to know. Further on the flow leaves off what passes beside
    /// the link before: then that one shows whether it is the way to the first relay where it is lost.
    fn judge(&self, losses: &mut Losses, now: Instant) {
        let arrivals = self.controller.ack_controller().arrivals();
        let after = self.config.lossy_after;
        let after = if self.hop == 0 { after } else { after / 2 };
        let lossy = losses.look(arrivals, after, now);
        let changes = self.pulse.lossy(lossy);
        if self.hop > 0 && changes && lossy {
            self.flow_leaves_off();
        }
    }

    /// Links of isolation tokens that all moved when the one that they go over is lost would show the relay which of them are one client's. One at rest
    /// moves when it is used, if only to be kept alive, which each is at times of its own; one that carries flows soon, as its relay may have something to send.
    async fn stay_hidden(&self) {
        if self.terms.isolation == Isolation::default() {
            return;
        }
        self.pulse.rest();
        let latest = async {
            match self.flows.load(Relaxed) {
                0 => pending().await,
                _ => sleep(drawn(LATEST_MOVE)).await,
            }
        };
        tokio::select! {
            () = self.pulse.used() => {}
            () = latest => {}
        }
    }

    /// Gives the link a new socket, calmly: a flow that ends as soon as it is opened is not opened faster for that.
    async fn move_on(
        &mut self,
        ended: bool,
        last_move: &mut Option<Instant>,
        silence: &mut Silence,
    ) {
        if ended && last_move.is_some_and(|at| at.elapsed() < LOOK) {
            sleep(LOOK).await;
        }
        *last_move = Some(Instant::now());
        if !self.renew().await && ended {
            self.flow_ended.notify_one();
            sleep(LOOK).await;
            silence.begin(Instant::now());
        }
    }

    /// A slow path is not a dead one: three of its round trips at least.
    fn suspect_after(&self) -> Duration {
        self.config.suspect_after.max(3 * self.connection.rtt())
    }

    /// The hops before this one need their own time to recover; a slow path gets eight round trips.
    fn broken_after(&self) -> Duration {
        let hops = u32::try_from(self.hop)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let patience = self.config.broken_after.max(8 * self.connection.rtt());
        patience.saturating_mul(hops)
    }

    fn flow_leaves_off(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| socket.suspect())
    }

    fn moved(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| socket.moved())
    }

    /// Opens the flow again and moves the connection onto it; tells whether there was one.
    async fn renew(&mut self) -> bool {
        let terms = self.terms.clone().within(self.suspect_after());
        let Ok(flow) = self
            .overlay
            .open_datagrams(&self.peer.address, &terms)
            .await
        else {
            return false;
        };
        flow.carries_quic();
        if self.pulse.is_suspect() {
            flow.suspect();
        }
        let segments = self.config.receive_segments;
        let (ended, bypass, pulse) = (self.flow_ended.clone(), &self.bypass, &self.pulse);
        let socket = VirtualSocket::new(flow, ended, bypass, pulse, segments);
        self.socket = Arc::downgrade(&socket);
        tracing::debug!(hop = self.hop, "a link moves to a new socket");
        self.endpoint.move_to(socket).is_ok()
    }
}

/// A time of up to `most` that nobody can tell.
pub fn drawn(most: Duration) -> Duration {
    // What a map's keys are hashed with is drawn at random.
    let number = RandomState::new().build_hasher().finish();
    let part = u32::try_from(number >> 32).unwrap_or(u32::MAX);
    most.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_relay_can_tell_a_time_that_is_drawn() {
        let most = Duration::from_secs(55);
        let all: Vec<_> = (0..200).map(|_| drawn(most)).collect();
        assert!(all.iter().all(|one| *one <= most));
        for tenth in 0..10 {
            let (from, to) = (most * tenth / 10, most * (tenth + 1) / 10);
            let here = all.iter().filter(|one| (from..=to).contains(*one)).count();
            assert!((1..60).contains(&here), "{here} of 200 in tenth {tenth}");
        }
    }
}
