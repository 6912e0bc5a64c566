//! Drives one circuit of a client: cells from the channel to the machine, and back while the channel takes them.
//! [`build`] starts it as a task; [`Live`] is what the pool keeps of it.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hoplite_overlay::Error;
use hoplite_wire::cell::circuit::DestroyReason;
use tokio::{
    sync::{SetOnce, oneshot},
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{Circuit, Config, Progress, signs::Signs};
use crate::{
    channel::{self, Channel},
    edge::{Edge, Moment, Role, io::Shared},
    failure,
    flow::{Control, pressure::Pressure},
    path::Relay,
};

/// Cells handled in one direction before the other has its turn, and how often before other tasks have theirs.
const BATCH: usize = 32;
const TURNS: usize = 2;
/// How long the peer of a circuit that takes no more cells may need to say why.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A circuit that is built. Dropped, it lets its streams end, and closes then.
pub struct Live {
    shared: Arc<Shared>,
    built: Instant,
    path: Vec<Relay>,
    ended: Ended,
}

/// Set when a circuit has ended: to the hop that it has lost after all had been there, from 0, if it was that.
pub(super) type Ended = Arc<SetOnce<Option<usize>>>;

struct Driver {
    circuit: Circuit,
    channel: channel::Circuit,
    shared: Arc<Shared>,
    built: Option<oneshot::Sender<Result<(), (Error, usize)>>>,
    idle: Option<Pin<Box<Sleep>>>,
    /// While it has streams: when it is to be asked for a sign of life.
    signs: Option<(Signs, Pin<Box<Sleep>>)>,
    config: Config,
    /// How many hops it has, for whoever waits.
    reached: Arc<AtomicUsize>,
    pressure: Pressure,
    /// Of the present turn.
    now: Instant,
    ended: Ended,
    /// It takes no more cells; by then it has said why, or never will.
    ending: Option<Pin<Box<Sleep>>>,
}

/// Builds a circuit over `path`, whose first relay is at the other end of `channel`. Dropping the future gives it up.
///
/// # Errors
/// Why it did not come about, and the hop that is to blame, from 0.
pub async fn build(
    channel: &dyn Channel,
    path: Vec<Relay>,
    config: &Config,
) -> Result<Live, (Error, usize)> {
    build_telling(channel, path, config, &Arc::default()).await
}

/// The same; how many hops it has is told in `reached`.
pub(super) async fn build_telling(
    channel: &dyn Channel,
    path: Vec<Relay>,
    config: &Config,
    reached: &Arc<AtomicUsize>,
) -> Result<Live, (Error, usize)> {
    let opened = channel.open().await;
    let circuit = opened.map_err(|_| (failure::channel_closed(true), 0))?;
    let machine = Circuit::new(
        circuit.id,
        path.clone(),
        config.congestion_control,
        crate::random,
    );
    let edge = Edge::new(Role::Client, Control::Fixed, config.limits, crate::random);
    let shared = Shared::new(edge.counted(&circuit.sender.kept()));
    let ((tell, built), ended) = (oneshot::channel(), Ended::default());
    let driver = Driver {
        circuit: machine.map_err(|error| (error, 0))?,
        channel: circuit,
        shared: Arc::clone(&shared),
        built: Some(tell),
        idle: None,
        signs: None,
        config: config.clone(),
        reached: Arc::clone(reached),
        pressure: Pressure::default(),
        now: Instant::now(),
        ended: Arc::clone(&ended),
        ending: None,
    };
    let live = Live {
        shared,
        built: Instant::now(),
        path,
        ended,
    };
    tokio::spawn(driver.run());
    match built.await {
        Ok(Ok(())) => Ok(live),
        Ok(Err(failed)) => Err(failed),
        Err(_) => Err((failure::channel_closed(true), 0)),
    }
}

impl Live {
    /// Where its streams are.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// When building it began.
    pub fn since(&self) -> Instant {
        self.built
    }

    /// The relays that it goes through.
    pub fn path(&self) -> &[Relay] {
        &self.path
    }

    /// Whether its exit connects to `port`, as far as is known.
    pub fn permits(&self, port: u16) -> bool {
        self.path.last().is_none_or(|exit| exit.permits(port))
    }

    /// The hop that it has lost since it was built, from 0.
    pub fn lost(&self) -> Option<usize> {
        self.ended.get().copied().flatten()
    }

    /// For who waits for its end.
    pub(super) fn ended(&self) -> Ended {
        Arc::clone(&self.ended)
    }

    /// Whether its exit knows half-closed streams.
    pub fn half_close(&self) -> bool {
        self.path.last().is_some_and(|exit| exit.half_close)
    }

    /// Whether it takes another stream.
    pub fn is_usable(&self) -> bool {
        let edge = self.shared.lock();
        edge.closed().is_none() && !edge.has_no_room()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.lock().retire();
    }
}

impl Driver {
    async fn run(mut self) {
        let mut error = poll_fn(|cx| self.poll(cx)).await;
        let lost = self.circuit.lost(&error);
        if let Some(hop) = lost {
            error = failure::lost(&error, self.circuit.path(), hop);
        }
        self.shared.lock().close(error.clone());
        // It ends once.
        self.ended.set(lost).ok();
        if let Some(built) = self.built.take() {
            drop(built.send(Err((error, self.circuit.failing()))));
        }
        // tor-spec "Tearing down circuits": a client gives no reason.
        self.channel.sender.destroy(DestroyReason::NONE);
    }

    /// Runs until the circuit ends, and answers with why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.now = Instant::now();
        for _ in 0..TURNS {
            let sent = match self.send(cx) {
                Ok(sent) => sent,
                Err(error) => return self.last_words(cx, error),
            };
            let received = match self.receive(cx) {
                Ok(received) => received,
                Err(error) => return Poll::Ready(error),
            };
            if received > 0
                && let Some((signs, _)) = &mut self.signs
            {
                signs.heard(self.now);
            }
            if sent < BATCH && received == 0 {
                match self.stand_still(cx) {
                    Ok(true) => continue,
                    Ok(false) => return self.rest(cx),
                    Err(error) => return Poll::Ready(error),
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The channel takes nothing any more; what comes until it ends may say why.
    fn last_words(&mut self, cx: &mut Context<'_>, error: Error) -> Poll<Error> {
        let ending = self
            .ending
            .get_or_insert_with(|| Box::pin(sleep(LAST_WORDS)));
        if ending.as_mut().poll(cx).is_ready() {
            return Poll::Ready(error);
        }
        for _ in 0..TURNS {
            match self.receive(cx) {
                Ok(1..) => {}
                Ok(0) => return Poll::Pending,
                Err(error) => return Poll::Ready(error),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends cells while there are any and the channel takes them. One lock of the edge for all of them.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<usize, Error> {
        let shared = Arc::clone(&self.shared);
        let mut edge = shared.lock();
        for sent in 0..BATCH {
            let ready = match self.channel.sender.poll_ready(cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(channel::Closed)) => return Err(self.closed()),
                Poll::Pending => false,
            };
            self.pressure.note(ready, self.now);
            if !ready {
                return Ok(sent);
            }
            match self.circuit.next(&mut edge, self.now) {
                Some(cell) => self.channel.sender.send(cell),
                None => {
                    edge.set_driver(cx.waker());
                    return Ok(sent);
                }
            }
        }
        Ok(BATCH)
    }

    /// Takes cells while there are any and the edge has room for what they bring about.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<usize, Error> {
        let shared = Arc::clone(&self.shared);
        let mut edge = shared.lock();
        let at = Moment {
            now: self.now,
            blocked: self.pressure.holds(self.now),
        };
        for received in 0..BATCH {
            if edge.is_full() {
                return Ok(received);
            }
            let cell = match self.channel.receiver.poll_recv(cx) {
                Poll::Pending => return Ok(received),
                Poll::Ready(None) => return Err(self.closed()),
                Poll::Ready(Some(cell)) => cell,
            };
            let progress = self.circuit.handle(cell, &mut edge, at)?;
            self.reached.store(self.circuit.hops().0, Relaxed);
            if progress == Progress::Built
                && let Some(built) = self.built.take()
            {
                drop(built.send(Ok(())));
            }
        }
        Ok(BATCH)
    }

    /// Asks for a sign of life if that is due; answers whether there is something to send.
    fn stand_still(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        if !self.circuit.is_built() || self.shared.lock().streams() == 0 {
            self.signs = None;
            return Ok(false);
        }
        let now = self.now;
        let (signs, sleep) = self.signs.get_or_insert_with(|| {
            let signs = Signs::new(now);
            (signs, Box::pin(sleep_until(signs.due().unwrap_or(now))))
        });
        while let Some(due) = signs.due() {
            // What came since it was set has moved it.
            let set = sleep.deadline();
            if set > due || (set < due && sleep.is_elapsed()) {
                sleep.as_mut().reset(due);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            if sleep.deadline() == due {
                signs.ask(now.max(due));
                self.circuit.pad()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn closed(&self) -> Error {
        failure::channel_closed(self.circuit.hops().0 == 0)
    }

    /// Nothing is to be done: ends if nobody needs the circuit any more.
    fn rest(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut edge = self.shared.lock();
        edge.set_driver(cx.waker());
        let (streams, retired) = (edge.streams(), edge.is_retired());
        drop(edge);
        // Whoever builds may have given it up.
        let given_up = self
            .built
            .as_mut()
            .is_some_and(|built| built.poll_closed(cx).is_ready());
        if given_up || (retired && streams == 0) {
            return Poll::Ready(failure::retired());
        }
        if streams > 0 || !self.circuit.is_built() {
            self.idle = None;
            return Poll::Pending;
        }
        let lasts = self.config.idle;
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(lasts)));
        idle.as_mut().poll(cx).map(|()| failure::retired())
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Live")
    }
}
