//! The same for a connection that the peer dialled: it is not moved, only given up. It is looked at while it is used, and by no timer else.
//! [`crate::channel`] has it where the peer is a relay, which does not change its address and is dialled again; a client may be back soon.

use std::{sync::Arc, time::Duration};

use quinn::Connection;
use tokio::time::{Instant, sleep};

use super::{KEPT_ALIVE, LOOK, Pulse, Silence, answers, eliciting};

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
            calm = match self.observe(&mut silence) {
                true => calm + 1,
                false => 0,
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
