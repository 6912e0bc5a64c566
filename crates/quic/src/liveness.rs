//! Notices that a connection is dead: something that wants an answer was sent, and none came. Looks cost wake-ups, so a connection at rest is
//! looked at when it is used again ([`Pulse`]). [`Vigil`] gives up a connection that the peer dialled; whoever dialled one may move it first.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use quinn_proto::{ConnectionStats, FrameStats};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use crate::Connection;

/// How often a connection in use is looked at.
pub const LOOK: Duration = Duration::from_millis(500);
/// What a keep-alive and its answer are at most, in frames each way, with those of three connections more that it carries: all speak at once.
const MAX_KEEP_ALIVE: u64 = 16;
/// What a keep-alive and its answer are, with those of a connection that it carries.
const KEEP_ALIVE: u64 = 4;
/// After so long without more than that a connection is still.
const STILL: Duration = Duration::from_secs(2);

/// What has been seen of a connection. Fed with its counters, tells for how long it has been silent.
#[derive(Debug, Default)]
pub struct Silence {
    answers: u64,
    asked: u64,
    since: Option<Instant>,
    /// When more happened last than that it was kept alive.
    moved: Option<Instant>,
}

impl Silence {
    /// Takes the counters of the connection, with `cut_out` datagrams received that the stack never counted. Answers whether more has happened
    /// than that it is kept alive.
    pub fn look(&mut self, stats: &ConnectionStats, cut_out: u64, now: Instant) -> bool {
        let before = (self.answers, self.asked);
        let answers = answers(&stats.frame_rx) + cut_out;
        let asked = eliciting(&stats.frame_tx);
        self.observe(answers, asked, now);
        let news = answers.abs_diff(before.0).max(asked.abs_diff(before.1));
        if news > KEEP_ALIVE {
            self.moved = Some(now);
        }
        news > MAX_KEEP_ALIVE
    }

    /// Whether its flows have been at rest for a while, and nothing is on its way.
    pub fn is_still(&self, now: Instant) -> bool {
        let rests = self.moved.is_some_and(|at| now - at >= STILL);
        rests && !self.is_waiting()
    }

    /// Takes the numbers of frames received and of frames sent that want an answer.
    fn observe(&mut self, answers: u64, asked: u64, now: Instant) {
        if answers != self.answers {
            (self.answers, self.asked, self.since) = (answers, asked, None);
        } else if asked != self.asked {
            self.since.get_or_insert(now);
        }
    }

    /// A question has been asked that no counter shows.
    pub fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Whether a question is without an answer.
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// For how long a question has been without an answer.
    pub fn length(&self, now: Instant) -> Duration {
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

/// What the users of a connection and its watch tell each other.
#[derive(Debug)]
pub struct Pulse {
    /// Somebody uses it now: it should be looked at soon.
    used: Notify,
    /// The next packet says so.
    resting: AtomicBool,
    /// That packet has been sent, and nothing has come since.
    listening: AtomicBool,
    /// Something came after that packet.
    heard: Notify,
    /// More happens than that it is kept alive.
    stirred: Notify,
    /// Whether it has been silent for so long that new flows should not wait for it.
    suspect: watch::Sender<bool>,
    /// Whether so much is lost for so long that another way may carry more.
    lossy: watch::Sender<bool>,
}

impl Pulse {
    /// Of a connection in use.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            used: Notify::new(),
            resting: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            heard: Notify::new(),
            stirred: Notify::new(),
            suspect: watch::Sender::new(false),
            lossy: watch::Sender::new(false),
        })
    }

    /// Whether new flows should not wait for it.
    pub fn is_suspect(&self) -> bool {
        *self.suspect.borrow()
    }

    /// Somebody is about to use it: it is looked at soon.
    pub fn use_now(&self) {
        self.used.notify_one();
    }

    /// A packet is sent. The first one after a rest has the connection looked at.
    pub fn packet(&self) {
        if self.resting.load(Relaxed) && self.resting.swap(false, Relaxed) {
            self.listening.store(true, Relaxed);
            self.use_now();
        }
    }

    /// Something came. What answers the first packet after a rest has the connection looked at: no timer has to.
    pub fn hear(&self) {
        if self.listening.load(Relaxed) && self.listening.swap(false, Relaxed) {
            self.heard.notify_one();
        }
    }

    /// Waits until somebody uses it.
    pub async fn used(&self) {
        self.used.notified().await;
    }

    /// Waits until the first packet after a rest has been answered.
    pub async fn heard(&self) {
        self.heard.notified().await;
    }

    /// More happens than that it is kept alive.
    pub fn stir(&self) {
        self.stirred.notify_waiters();
    }

    /// Waits until more happens than that it is kept alive.
    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// From now on the next packet counts as a use.
    pub fn rest(&self) {
        self.resting.store(true, Relaxed);
    }

    /// Waits until it is suspect.
    pub async fn suspected(&self) {
        until(&self.suspect).await;
    }

    /// It is suspect, or no longer.
    pub fn suspect(&self, suspect: bool) {
        set(&self.suspect, suspect);
    }

    /// Much of what the peer sends is lost, or no longer. Whether that is new.
    pub fn lossy(&self, lossy: bool) -> bool {
        set(&self.lossy, lossy)
    }

    /// Waits until much of what the peer sends is lost.
    pub async fn loses_much(&self) {
        until(&self.lossy).await;
    }
}

fn set(state: &watch::Sender<bool>, is_so: bool) -> bool {
    state.send_if_modified(|now| std::mem::replace(now, is_so) != is_so)
}

async fn until(state: &watch::Sender<bool>) {
    if state.subscribe().wait_for(|now| *now).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn answers(frames: &FrameStats) -> u64 {
    eliciting(frames) + frames.acks + u64::from(frames.handshake_done)
}

// A connection that the peer dialled is not moved, only given up. It is looked at while it is used, and by no timer
// else. Good for a peer that does not change its address and dials again; a client may be back soon.

/// This many looks in a row at which nothing happens make a rest: what is handed to the QUIC stack is on its way by the second.
const CALM_LOOKS: u32 = 2;

/// Watches a connection.
#[derive(Debug)]
pub struct Vigil {
    /// The connection.
    pub connection: Connection,
    /// Told when it is used.
    pub pulse: Arc<Pulse>,
    /// Without any answer for this long it is given up; on a slow path after eight round trips.
    pub broken_after: Duration,
}

impl Vigil {
    /// Returns when the connection has ended or has been given up (and closed).
    pub async fn run(self) {
        tokio::select! {
            biased;
            _ = self.connection.closed() => {}
            () = self.follow() => self.connection.close(0u32.into(), b""),
        }
    }

    async fn follow(&self) {
        let (mut silence, mut calm) = (Silence::default(), 0);
        loop {
            calm = if self.is_calm(&mut silence) {
                calm + 1
            } else {
                0
            };
            let now = Instant::now();
            if silence.length(now) >= self.broken_after.max(8 * self.connection.rtt()) {
                return;
            }
            if calm < CALM_LOOKS {
                sleep(LOOK).await;
            } else {
                self.pulse.rest();
                self.pulse.used().await;
                calm = 0;
            }
        }
    }

    /// Whether hardly anything has happened and nothing is expected.
    fn is_calm(&self, silence: &mut Silence) -> bool {
        let stirs = silence.look(&self.connection.stats(), 0, Instant::now());
        !stirs && !silence.is_waiting()
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
