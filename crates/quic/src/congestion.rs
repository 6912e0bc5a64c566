//! Congestion control that can be exchanged while a connection runs, or left out: what a tunnel carries controls itself, and two controllers
//! in one path hinder each other. [`crate::ConnectionController`] turns the switch, the QUIC stack asks the controller. RFC 9002 §7, RFC 9438, BBR.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_wire::tuning::Congestion;
use parking_lot::{Mutex, MutexGuard};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};

/// Bytes in flight without control: more than any path holds, and above `u32::MAX`, so that the QUIC stack does not pace either.
pub(crate) const NO_WINDOW: u64 = 1 << 40;

/// Bytes in flight to begin with (RFC 9002 §7.2), until the stack's next packet builds the controller.
const INITIAL_WINDOW: u64 = 12_000;

/// Which control one connection has now. Shared by its owner and its controllers.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    position: Mutex<Position>,
    /// How many streams run that want control.
    streams: AtomicUsize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    congestion: Congestion,
    /// Without a stream, automatic control is none: what is sent is not acknowledged.
    spare: bool,
}

impl Switch {
    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock()
    }

    /// From the next packet on.
    pub(crate) fn set(&self, congestion: Congestion, spare: bool) {
        *self.position() = Position { congestion, spare };
    }

    pub(crate) fn stream_begins(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stream_ends(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a loss by chance says nothing: what one flow, or one circuit, loses shall not narrow the window of all.
    fn forgives(&self) -> bool {
        self.position().congestion == Congestion::Auto
    }

    /// Never [`Congestion::Auto`].
    fn now(&self) -> Congestion {
        let Position { congestion, spare } = *self.position();
        let streams = self.streams.load(Ordering::Relaxed);
        match congestion {
            Congestion::Auto if spare && streams == 0 => Congestion::Off,
            Congestion::Auto => Congestion::Cubic,
            chosen => chosen,
        }
    }
}

/// Builds the controllers of one connection: one for each path that it takes.
pub(crate) struct Factory(pub(crate) Arc<Switch>);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let mut controller = Switched {
            switch: Arc::clone(&self.0),
            kind: Congestion::Off,
            inner: None,
            mtu,
            chance: Chance::default(),
        };
        controller.follow(now);
        Box::new(controller)
    }
}

/// A controller that follows the switch. One that is switched to begins anew, as on a path that it does not know.
struct Switched {
    switch: Arc<Switch>,
    /// What `inner` is.
    kind: Congestion,
    /// None is no control.
    inner: Option<Box<dyn Controller>>,
    mtu: u16,
    chance: Chance,
}

impl Switched {
    fn follow(&mut self, now: Instant) -> Option<&mut Box<dyn Controller>> {
        let kind = self.switch.now();
        if kind != self.kind {
            self.kind = kind;
            self.inner = new(kind).map(|factory| factory.build(now, self.mtu));
        }
        self.inner.as_mut()
    }
}

fn new(kind: Congestion) -> Option<Arc<dyn ControllerFactory>> {
    match kind {
        Congestion::Auto | Congestion::Cubic => Some(Arc::new(CubicConfig::default())),
        Congestion::Bbr => Some(Arc::new(BbrConfig::default())),
        Congestion::NewReno => Some(Arc::new(NewRenoConfig::default())),
        Congestion::Off => None,
    }
}

impl Controller for Switched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        if let Some(inner) = self.follow(now) {
            inner.on_sent(now, bytes, last_packet_number);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.chance.acked(bytes, rtt.get(), rtt.min());
        if let Some(inner) = self.follow(now) {
            inner.on_ack(now, sent, bytes, app_limited, rtt);
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        if let Some(inner) = self.follow(now) {
            inner.on_end_acks(now, in_flight, app_limited, largest);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        // ECN tells of a queue, and has lost nothing.
        let by_chance = lost > 0 && self.chance.lost(lost);
        if by_chance && !persistent && self.switch.forgives() {
            return;
        }
        if let Some(inner) = self.follow(now) {
            inner.on_congestion_event(now, sent, persistent, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu;
        if let Some(inner) = &mut self.inner {
            inner.on_mtu_update(mtu);
        }
    }

    /// Until a controller that was switched to is built, the window is that of a new one.
    fn window(&self) -> u64 {
        match (self.switch.now(), &self.inner) {
            (Congestion::Off, _) => NO_WINDOW,
            (kind, Some(inner)) if kind == self.kind => inner.window(),
            _ => INITIAL_WINDOW,
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let inner = self.inner.as_ref();
        let mut metrics = inner.map(|inner| inner.metrics()).unwrap_or_default();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            switch: Arc::clone(&self.switch),
            kind: self.kind,
            inner: self.inner.as_ref().map(|inner| inner.clone_box()),
            mtu: self.mtu,
            chance: self.chance,
        })
    }

    fn initial_window(&self) -> u64 {
        match &self.inner {
            Some(inner) => inner.initial_window(),
            None => NO_WINDOW,
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

// Which losses say nothing of congestion: few, while no queue stands on the path. CUBIC takes every loss for
// congestion, and keeps a dozen packets in flight on a path that loses one in a hundred, whatever it carries; all flows
// of a tunnel, or circuits of a channel, would share that dozen. The queue is told by the round trip, as HyStart++ does (RFC 9406
// §4.2); few is what BBR calls so (draft-ietf-ccwg-bbr, `BBR.LossThresh`); the two together are TCP Veno's idea (Fu
// and Liew 2003). No clock.

/// A queue stands where the round trip is longer than the shortest by this part of it, and by so much at least and at most.
const QUEUE_DIVISOR: u32 = 8;
const QUEUE_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// One byte of this many may be lost.
const LOSS_DIVISOR: u64 = 50;
/// Of the last this many bytes, or twice that: some 350 packets.
const LOSS_SAMPLE: u64 = 500_000;

/// What is known of one path.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    queue: bool,
    /// Bytes that came, and that did not; what is old is halved again and again.
    acked: u64,
    lost: u64,
}

impl Chance {
    /// This many bytes came; the round trip is `rtt` now and was `least` at the shortest.
    fn acked(&mut self, bytes: u64, rtt: Duration, least: Duration) {
        let (from, to) = QUEUE_BOUNDS;
        self.queue = rtt > least.saturating_add((least / QUEUE_DIVISOR).clamp(from, to));
        self.acked = self.acked.saturating_add(bytes);
        if self.acked > 2 * LOSS_SAMPLE {
            self.acked /= 2;
            self.lost /= 2;
        }
    }

    /// This many bytes were lost. Answers whether by chance.
    fn lost(&mut self, bytes: u64) -> bool {
        self.lost = self.lost.saturating_add(bytes);
        !self.queue && self.lost <= self.acked.max(LOSS_SAMPLE) / LOSS_DIVISOR
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn controller() -> (Arc<Switch>, Box<dyn Controller>, Instant) {
        let (switch, now) = (Arc::<Switch>::default(), Instant::now());
        let controller = Arc::new(Factory(Arc::clone(&switch))).build(now, 1200);
        (switch, controller, now)
    }

    #[test]
    fn control_ends_with_the_last_stream_and_begins_with_the_next() {
        let (switch, mut controller, now) = controller();
        assert_eq!(controller.window(), INITIAL_WINDOW);
        switch.set(Congestion::Auto, true);
        assert_eq!(controller.window(), NO_WINDOW);
        controller.on_sent(now, 1 << 20, 1);
        switch.stream_begins();
        assert_eq!(controller.window(), INITIAL_WINDOW);
        controller.on_sent(now, 1200, 2);
        controller.on_congestion_event(now + Duration::from_secs(1), now, true, 1 << 20);
        assert!(controller.window() < INITIAL_WINDOW);
        switch.stream_begins();
        switch.stream_ends();
        assert!(controller.window() < INITIAL_WINDOW, "one still runs");
        switch.stream_ends();
        assert_eq!(controller.window(), NO_WINDOW);
    }

    #[test]
    fn what_is_chosen_stays_whether_streams_run_or_not() {
        let (switch, mut controller, now) = controller();
        for congestion in [Congestion::Cubic, Congestion::Bbr, Congestion::NewReno] {
            switch.set(congestion, true);
            controller.on_sent(now, 1200, 1);
            assert!((1..NO_WINDOW).contains(&controller.window()));
            assert_eq!(controller.window(), controller.clone_box().window());
        }
        switch.set(Congestion::Off, false);
        switch.stream_begins();
        assert_eq!(controller.window(), NO_WINDOW);
    }

    #[test]
    fn automatic_control_forgives_a_loss_by_chance_and_nothing_else() {
        let later = Duration::from_secs(1);
        for (congestion, persistent, lost, forgiven) in [
            (Congestion::Auto, false, 1200, true),
            (Congestion::Cubic, false, 1200, false),
            (Congestion::Auto, true, 1200, false),
            (Congestion::Auto, false, 1 << 20, false),
            // ECN.
            (Congestion::Auto, false, 0, false),
        ] {
            let (switch, mut controller, now) = controller();
            switch.set(congestion, false);
            let before = controller.window();
            controller.on_congestion_event(now + later, now, persistent, lost);
            let case = (congestion, persistent, lost);
            assert_eq!(controller.window() == before, forgiven, "{case:?}");
        }
    }

    #[test]
    fn a_controller_that_was_switched_to_begins_anew() {
        let (switch, mut controller, now) = controller();
        controller.on_sent(now, 1200, 1);
        controller.on_congestion_event(now + Duration::from_secs(1), now, true, 1200);
        let shrunk = controller.window();
        switch.set(Congestion::Off, false);
        controller.on_sent(now, 1200, 2);
        switch.set(Congestion::Cubic, false);
        controller.on_sent(now, 1200, 3);
        assert!(controller.window() > shrunk);
    }
}

#[cfg(test)]
mod chance_tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);
    const PACKET: u64 = 1400;

    /// How many of 100,000 packets' losses are taken for congestion, if one of this many is lost.
    fn congested(one_of: u64, rtt: Duration) -> usize {
        let mut chance = Chance::default();
        let taken = (1..100_000).filter(|number| {
            chance.acked(PACKET, rtt, RTT);
            number % one_of == 0 && !chance.lost(PACKET)
        });
        taken.count()
    }

    #[test]
    fn one_packet_in_a_hundred_is_lost_by_chance_and_one_in_twenty_is_not() {
        assert_eq!(congested(100, RTT), 0);
        assert!(congested(20, RTT) > 4_900);
    }

    #[test]
    fn behind_a_queue_every_loss_is_congestion() {
        let queued = RTT + Duration::from_millis(6);
        assert_eq!(congested(100, queued), 999);
        assert_eq!(congested(100, RTT + Duration::from_millis(5)), 0);
    }

    #[test]
    fn on_short_and_long_paths_a_queue_is_a_millisecond_and_sixteen() {
        let ms = Duration::from_millis;
        for (least, queue) in [(ms(1), ms(1)), (ms(300), ms(16))] {
            for (rtt, by_chance) in [(least + queue, true), (least + queue + ms(1), false)] {
                let mut chance = Chance::default();
                chance.acked(PACKET, rtt, least);
                assert_eq!(chance.lost(PACKET), by_chance, "{rtt:?}");
            }
        }
    }

    #[test]
    fn a_burst_of_losses_is_congestion_from_the_first_round_trip_on() {
        let mut chance = Chance::default();
        chance.acked(PACKET, RTT, RTT);
        assert!(!chance.lost(10 * PACKET));
    }
}
