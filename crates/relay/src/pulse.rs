//! Whether every shard still runs its tasks: for a watchdog, which restarts a relay that hangs.

use tokio::sync::{mpsc, watch};

/// What a shard hears: whom to answer.
type Asked = Option<mpsc::Sender<()>>;

/// Asks the shards of a relay.
#[derive(Clone, Debug)]
pub struct Pulse(watch::Sender<Asked>);

/// A shard's end of it.
pub(crate) struct Beat(watch::Receiver<Asked>);

impl Pulse {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// The end of one more shard, which is asked until it drops it.
    pub(crate) fn shard(&self) -> Beat {
        Beat(self.0.subscribe())
    }

    /// Ready when every shard has run a task since this was called: not while one of them hangs. Shards that have ended are not asked.
    pub async fn beat(&self) {
        let shards = self.0.receiver_count();
        let (answer, mut answers) = mpsc::channel(shards.max(1));
        self.0.send_replace(Some(answer));
        for _ in 0..shards {
            answers.recv().await;
        }
    }
}

impl Beat {
    /// Answers as long as the relay is there.
    pub(crate) async fn answer(mut self) {
        while self.0.changed().await.is_ok() {
            let asked = self.0.borrow_and_update().clone();
            if let Some(asked) = asked {
                // There is room for one answer of each shard; who asks no more has dropped the other end.
                asked.try_send(()).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_beats_when_all_shards_answer_and_not_while_one_hangs() {
        let pulse = Pulse::new();
        tokio::spawn(pulse.shard().answer());
        tokio::spawn(pulse.shard().answer());
        pulse.beat().await;
        pulse.beat().await;
        let hangs = pulse.shard();
        let late = timeout(Duration::from_secs(60), pulse.beat()).await;
        assert!(late.is_err(), "a shard that hangs has answered");
        drop(hangs);
        pulse.beat().await;
    }
}
