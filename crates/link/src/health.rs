//! Notices within seconds that a link is dead: something that wants an answer was sent, and none came.
//! A suspect link gets a new socket first (QUIC migration, RFC 9000 §9); one that stays silent is given up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_overlay::{Overlay, Terms};
use quinn::{Connection, Endpoint, FrameStats};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use crate::{Bypass, Config, ConnectionController, dial::Peer, socket::VirtualSocket};

/// How often a link in use is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// What a keep-alive and its answer are at most, in frames each way, with those of three hops more through this one: all speak at once.
const KEPT_ALIVE: u64 = 16;

/// What has been seen of a connection. Fed with its counters, tells for how long it has been silent.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    answers: u64,
    asked: u64,
    since: Option<Instant>,
}

impl Silence {
    /// Takes the numbers of frames received and of frames sent that want an answer.
    pub(crate) fn observe(&mut self, answers: u64, asked: u64, now: Instant) {
        if answers != self.answers {
            (self.answers, self.asked, self.since) = (answers, asked, None);
        } else if asked != self.asked {
            self.since.get_or_insert(now);
        }
    }

    /// For how long a question has been without an answer.
    pub(crate) fn length(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now - since)
    }
}

/// Frames that elicit an acknowledgement (RFC 9002 §2): all but ACK, PADDING and CONNECTION_CLOSE.
fn eliciting(frames: &FrameStats) -> u64 {
    let control =
        frames.crypto + frames.max_data + frames.max_stream_data + frames.max_streams_bidi;
    let streams = frames.stream + frames.reset_stream + frames.stop_sending + frames.data_blocked;
    let path = frames.path_challenge + frames.path_response + frames.new_connection_id;
    control + streams + path + frames.ping + frames.datagram + frames.retire_connection_id
}

/// What the users of a link and its watch tell each other.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Somebody uses the link now: it should be looked at soon.
    used: Notify,
    /// The next packet says so.
    resting: AtomicBool,
    /// That packet has been sent, and nothing has come since.
    listening: AtomicBool,
    /// Something came after that packet.
    heard: Notify,
    /// More happens on the link than that it is kept alive.
    stirred: Notify,
    /// Whether it has been silent for so long that new flows should not wait for it.
    suspect: watch::Sender<bool>,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            used: Notify::new(),
            resting: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            heard: Notify::new(),
            stirred: Notify::new(),
            suspect: watch::Sender::new(false),
        })
    }

    pub(crate) fn is_suspect(&self) -> bool {
        *self.suspect.borrow()
    }

    pub(crate) fn use_now(&self) {
        self.used.notify_one();
    }

    /// A packet is sent. The first one after a rest has the link looked at.
    pub(crate) fn packet(&self) {
        if self.resting.load(Relaxed) && self.resting.swap(false, Relaxed) {
            self.listening.store(true, Relaxed);
            self.use_now();
        }
    }

    /// Something came. What answers the first packet after a rest has the link looked at: no timer has to.
    pub(crate) fn hear(&self) {
        if self.listening.load(Relaxed) && self.listening.swap(false, Relaxed) {
            self.heard.notify_one();
        }
    }

    /// Waits until more happens on the link than that it is kept alive.
    pub(crate) async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// From now on the next packet counts as a use.
    fn rest(&self) {
        self.resting.store(true, Relaxed);
    }

    /// Waits until the link is suspect.
    pub(crate) async fn suspected(&self) {
        let mut suspect = self.suspect.subscribe();
        if suspect.wait_for(|suspect| *suspect).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn set(&self, suspect: bool) {
        self.suspect
            .send_if_modified(|now| std::mem::replace(now, suspect) != suspect);
    }
}

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
        let mut silence = Silence::default();
        let mut last_move: Option<Instant> = None;
        let (mut pause, mut looked) = (LOOK, Instant::now());
        loop {
            let ended = self.wait(pause).await;
            // What is looked at again so soon does not rest yet.
            let rests = self.observe(&mut silence) && looked.elapsed() >= LOOK;
            pause = self.pause(rests);
            looked = Instant::now();
            let silent = silence.length(looked);
            if silent >= self.broken_after() {
                return;
            }
            let suspect = silent >= self.suspect_after();
            self.pulse.set(suspect);
            let calm = last_move.is_none_or(|at| at.elapsed() >= self.suspect_after());
            if ended || (suspect && calm) || self.moved() {
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
                () = self.pulse.used.notified() => next = next.min(Instant::now() + LOOK),
                () = self.pulse.heard.notified() => {
                    // The connection's task has yet to see what came.
                    tokio::task::yield_now().await;
                    return false;
                }
                () = tokio::time::sleep_until(next) => return false,
            }
        }
    }

    /// Reads the counters; tells whether hardly anything has happened and nothing is expected. More than that is told to who waits for it.
    fn observe(&self, silence: &mut Silence) -> bool {
        let before = (silence.answers, silence.asked);
        let stats = self.connection.stats();
        let ack_controller = self.controller.ack_controller();
        ack_controller.round_trip(stats.path.rtt);
        // Datagrams that are not acknowledged are cut out of packets before the stack counts them.
        let answers = answers(&stats.frame_rx) + ack_controller.datagrams();
        silence.observe(answers, eliciting(&stats.frame_tx), Instant::now());
        let news = answers
            .abs_diff(before.0)
            .max(silence.asked.abs_diff(before.1));
        if news > KEPT_ALIVE {
            self.pulse.stirred.notify_waiters();
        }
        news <= KEPT_ALIVE && silence.since.is_none()
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
            silence.since.get_or_insert_with(Instant::now);
        }
    }

    /// A slow road is not a dead one: three of its round trips at least.
    fn suspect_after(&self) -> Duration {
        self.config.suspect_after.max(3 * self.connection.rtt())
    }

    /// The hops before this one need their own time to recover; a slow road gets eight round trips.
    fn broken_after(&self) -> Duration {
        let hops = u32::try_from(self.hop)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let patience = self.config.broken_after.max(8 * self.connection.rtt());
        patience.saturating_mul(hops)
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
        let segments = self.config.receive_segments;
        let (ended, bypass, pulse) = (self.flow_ended.clone(), &self.bypass, &self.pulse);
        let socket = VirtualSocket::new(flow, ended, bypass, pulse, segments);
        self.socket = Arc::downgrade(&socket);
        tracing::debug!(hop = self.hop, "a link moves to a new socket");
        self.endpoint.rebind_abstract(socket).is_ok()
    }
}

fn answers(frames: &FrameStats) -> u64 {
    eliciting(frames) + frames.acks + u64::from(frames.handshake_done)
}

// The health of a connection that the peer dialled: it is not moved, only given up. It is looked at while it is used,
// and by no timer else. [`crate::channel`] has it where the peer is a relay, which does not change its address and is
// dialled again; a client may be back soon.

/// So many looks in a row at which nothing happens make a rest: what is handed to the QUIC stack is on its way by the second.
const CALM: u32 = 2;

/// Watches a connection.
pub(crate) struct Vigil {
    pub(crate) connection: Connection,
    pub(crate) pulse: Arc<Pulse>,
    /// Without any answer for so long it is given up; on a slow road after eight round trips.
    pub(crate) broken_after: Duration,
}

impl Vigil {
    /// Returns when the connection has ended or has been given up (and closed).
    pub(crate) async fn run(self) {
        tokio::select! {
            biased;
            _ = self.connection.closed() => {}
            () = self.follow() => self.connection.close(0u32.into(), b""),
        }
    }

    async fn follow(&self) {
        let (mut silence, mut calm) = (Silence::default(), 0);
        loop {
            calm = if self.observe(&mut silence) {
                calm + 1
            } else {
                0
            };
            let now = Instant::now();
            if silence.length(now) >= self.broken_after.max(8 * self.connection.rtt()) {
                return;
            }
            if calm < CALM {
                sleep(LOOK).await;
            } else {
                self.pulse.rest();
                self.pulse.used.notified().await;
                calm = 0;
            }
        }
    }

    /// Whether hardly anything has happened and nothing is expected.
    fn observe(&self, silence: &mut Silence) -> bool {
        let before = (silence.answers, silence.asked);
        let stats = self.connection.stats();
        let (answers, asked) = (answers(&stats.frame_rx), eliciting(&stats.frame_tx));
        silence.observe(answers, asked, Instant::now());
        let news = answers.abs_diff(before.0).max(asked.abs_diff(before.1));
        news <= KEPT_ALIVE && silence.since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    #[test]
    fn a_question_without_an_answer_is_silence() {
        let (mut silence, now) = (Silence::default(), Instant::now());
        silence.observe(5, 5, now);
        silence.observe(5, 6, now + STEP);
        silence.observe(5, 7, now + 3 * STEP);
        assert_eq!(silence.length(now + 3 * STEP), 2 * STEP);
        silence.observe(6, 7, now + 4 * STEP);
        assert_eq!(silence.length(now + 4 * STEP), Duration::ZERO);
    }

    #[tokio::test]
    async fn only_the_first_packet_after_a_rest_has_the_link_looked_at() {
        let pulse = Pulse::new();
        let used = || futures_util::FutureExt::now_or_never(pulse.used.notified()).is_some();
        pulse.packet();
        assert!(!used());
        pulse.rest();
        assert!(!used());
        pulse.packet();
        assert!(used());
        pulse.packet();
        assert!(!used());
    }

    #[tokio::test]
    async fn only_what_comes_first_after_that_packet_has_it_looked_at_too() {
        let pulse = Pulse::new();
        let heard = || futures_util::FutureExt::now_or_never(pulse.heard.notified()).is_some();
        pulse.packet();
        pulse.hear();
        assert!(!heard(), "the link was in use");
        pulse.rest();
        pulse.hear();
        assert!(!heard(), "nothing was sent");
        pulse.packet();
        assert!(!heard());
        pulse.hear();
        assert!(heard());
        pulse.hear();
        assert!(!heard());
    }

    #[test]
    fn a_link_at_rest_is_not_suspect() {
        let (mut silence, now) = (Silence::default(), Instant::now());
        silence.observe(5, 5, now);
        silence.observe(5, 5, now + 100 * STEP);
        assert_eq!(silence.length(now + 100 * STEP), Duration::ZERO);
    }
}
