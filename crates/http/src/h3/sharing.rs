//! Small payloads of any flow, and small pieces of any stream, wait a bounded time for each other, so that they share one packet of the connection.
//! Where packets have one size (`pad = "full"`), each that is saved is a whole one. Byrenheid et al., section 6: "the mediator can wait a certain amount
//! of time for further packets and if successful, encapsulate the dynamic data of multiple packets within one mix packet".
//!
//! A [`Rhythm`] says of one flow what it carries, a [`Packet`] when the next packet of the connection leaves. Neither has a clock, nor holds a byte:
//! `datagrams` keeps what waits, `exchange` lets streams wait. Both ends of a hop do the same, each by its own [`Share`].

use std::time::Duration;

use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected},
};
use tokio::time::Instant;

/// How long what is small may wait, by what it belongs to; zero: it leaves at once, and takes along what waits. It is the table `share` of `[tunnel]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Share {
    /// Datagrams of a flow in which small ones go both ways without a pause: speech, games.
    #[serde(deserialize_with = "wait")]
    pub call: Duration,
    /// Small datagrams of a flow in which large ones come, and none go: mostly acknowledgements.
    #[serde(deserialize_with = "wait")]
    pub answers: Duration,
    /// Small datagrams of all other flows, and small IP packets.
    #[serde(deserialize_with = "wait")]
    pub other: Duration,
    /// Small pieces of TCP flows.
    #[serde(deserialize_with = "wait")]
    pub streams: Duration,
}

/// The longest wait that can be asked for, in seconds: a program would take more for a fault of the network.
const MAX_WAIT: f64 = 1.0;

fn wait<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(input)?;
    let wrong = || de::Error::invalid_value(Unexpected::Float(seconds), &"seconds, from 0 to 1");
    if !(0.0..=MAX_WAIT).contains(&seconds) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

impl Share {
    /// Whether anything waits at all.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// What a payload of a flow that carries this may wait.
    pub(super) fn of(&self, class: Class) -> Duration {
        match class {
            Class::Call => self.call,
            Class::Answers => self.answers,
            Class::Other => self.other,
        }
    }
}

/// What a flow carries, as far as sizes and times tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Call,
    Answers,
    Other,
}

/// From here on a payload is large, in bytes.
const LARGE: usize = 600;
/// This many large payloads make a download.
const DOWNLOAD: u32 = 2;
/// This many payloads each way, none long after the one before, make a call.
const CALL: u32 = 4;
/// What is longer ago tells nothing of now: ten packets of speech, a round trip of most paths.
const LATELY: Duration = Duration::from_millis(200);

/// What goes and comes in one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    sent: Run,
    received: Run,
    large_sent: Run,
    large_received: Run,
}

/// How many payloads came, each of them lately after the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    count: u32,
    last: Option<Instant>,
}

impl Run {
    fn add(&mut self, now: Instant) {
        self.count = self.lasting(now).saturating_add(1);
        self.last = Some(now);
    }

    /// Its length, if it goes on.
    fn lasting(&self, now: Instant) -> u32 {
        match self.last {
            Some(last) if now.saturating_duration_since(last) <= LATELY => self.count,
            _ => 0,
        }
    }
}

impl Rhythm {
    /// A payload of this many bytes has come.
    pub(super) fn handle_received(&mut self, bytes: usize, now: Instant) {
        self.received.add(now);
        if bytes >= LARGE {
            self.large_received.add(now);
        }
    }

    /// A payload of this many bytes goes; what the flow is that it belongs to.
    pub(super) fn handle_sent(&mut self, bytes: usize, now: Instant) -> Class {
        self.sent.add(now);
        if bytes >= LARGE {
            self.large_sent.add(now);
        }
        let takes = self.large_received.lasting(now) >= DOWNLOAD;
        let gives = self.large_sent.lasting(now) > 0;
        let speaks = self.sent.lasting(now) >= CALL && self.received.lasting(now) >= CALL;
        match (takes, gives, speaks) {
            (true, false, _) => Class::Answers,
            (_, _, true) => Class::Call,
            _ => Class::Other,
        }
    }
}

/// What a packet has to spare for an acknowledgement, which goes before what shares it, in bytes.
const ACKNOWLEDGEMENT: usize = 32;
/// After so many waits in a row in which nobody else came, only every [`TRIAL`]th chance is waited for: a lone call is not made slower for nothing.
const VAIN: u32 = 4;
const TRIAL: u32 = 8;

/// The packet that is being filled. Tell it of all that goes by [`handle`](Self::handle), and call [`leave`](Self::leave) when what waits leaves: after
/// [`Verdict::Fills`] and [`Verdict::Leaves`], and at [`due`](Self::due).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packet {
    bytes: usize,
    count: u32,
    due: Option<Instant>,
    /// Waits in a row that were for nothing, and chances since then.
    vain: u32,
    chances: u32,
    /// How many packets have left.
    number: u64,
}

/// What becomes of something small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It waits.
    Waits,
    /// It was the last that fits: all leave.
    Fills,
    /// It does not fit: what waits leaves, and it waits for the next packet, which has begun.
    Begins,
    /// It does not wait: all leave, it behind them.
    Leaves,
}

impl Packet {
    /// Something of so many bytes on the wire, which may wait so long, goes; a packet holds `room` bytes of such.
    pub(super) fn handle(
        &mut self,
        bytes: usize,
        wait: Duration,
        room: usize,
        now: Instant,
    ) -> Verdict {
        let room = room.saturating_sub(ACKNOWLEDGEMENT);
        if wait.is_zero() || bytes.saturating_mul(2) > room || !self.hopes() {
            // Whoever waits has not waited for nothing.
            self.count += u32::from(self.count > 0);
            return Verdict::Leaves;
        }
        if self.bytes + bytes > room {
            self.leave();
            self.add(bytes, now + wait);
            return Verdict::Begins;
        }
        self.add(bytes, now + wait);
        if self.bytes + bytes > room {
            return Verdict::Fills;
        }
        Verdict::Waits
    }

    /// Whether it makes sense to wait.
    fn hopes(&mut self) -> bool {
        if self.count > 0 || self.vain < VAIN {
            return true;
        }
        self.chances += 1;
        self.chances.is_multiple_of(TRIAL)
    }

    fn add(&mut self, bytes: usize, due: Instant) {
        self.bytes += bytes;
        self.count += 1;
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// When what waits leaves; `None`: nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// It leaves, and the next one begins.
    pub(super) fn leave(&mut self) {
        match self.count {
            0 => return,
            1 => self.vain = self.vain.saturating_add(1).min(VAIN),
            _ => (self.vain, self.chances) = (0, 0),
        }
        *self = Self {
            vain: self.vain,
            chances: self.chances,
            number: self.number + 1,
            ..Self::default()
        };
    }

    /// The number of the packet that is being filled: who waits for it to leave sees by that when it has.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 1200;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_wait_ends_when_the_most_hurried_has_to_leave() {
        let (mut packet, start) = (Packet::default(), Instant::now());
        assert_eq!(packet.handle(100, ms(20), ROOM, start), Verdict::Waits);
        assert_eq!(packet.due(), Some(start + ms(20)));
        assert_eq!(
            packet.handle(100, ms(5), ROOM, start + ms(1)),
            Verdict::Waits
        );
        assert_eq!(packet.due(), Some(start + ms(6)));
        assert_eq!(
            packet.handle(100, ms(20), ROOM, start + ms(2)),
            Verdict::Waits
        );
        assert_eq!(packet.due(), Some(start + ms(6)));
        packet.leave();
        assert_eq!((packet.due(), packet.number()), (None, 1));
    }

    #[test]
    fn what_is_large_or_may_not_wait_leaves() {
        let (mut packet, now) = (Packet::default(), Instant::now());
        assert_eq!(packet.handle(585, ms(5), ROOM, now), Verdict::Leaves);
        assert_eq!(
            packet.handle(584, Duration::ZERO, ROOM, now),
            Verdict::Leaves
        );
        assert_eq!(packet.due(), None);
        assert_eq!(packet.handle(584, ms(5), ROOM, now), Verdict::Waits);
    }

    #[test]
    fn a_packet_that_is_full_leaves_before_its_time() {
        let (mut packet, now) = (Packet::default(), Instant::now());
        assert_eq!(packet.handle(400, ms(5), ROOM, now), Verdict::Waits);
        assert_eq!(packet.handle(500, ms(5), ROOM, now), Verdict::Fills);
        packet.leave();
        assert_eq!(packet.handle(500, ms(5), ROOM, now), Verdict::Waits);
        assert_eq!(packet.handle(100, ms(5), ROOM, now), Verdict::Waits);
        assert_eq!(
            packet.handle(580, ms(5), ROOM, now + ms(1)),
            Verdict::Begins
        );
        assert_eq!(packet.due(), Some(now + ms(6)), "the next one's");
    }

    #[test]
    fn whoever_waits_alone_again_and_again_waits_seldom_until_somebody_comes() {
        let (mut packet, now) = (Packet::default(), Instant::now());
        let waited = |packet: &mut Packet| {
            let verdict = packet.handle(100, ms(5), ROOM, now);
            packet.leave();
            verdict == Verdict::Waits
        };
        let waits = |packet: &mut Packet| (0..64).filter(|_| waited(packet)).count();
        // Four, and then one of eight.
        assert_eq!(waits(&mut packet), 4 + 60 / 8);
        while packet.handle(100, ms(5), ROOM, now) != Verdict::Waits {}
        assert_eq!(packet.handle(100, ms(5), ROOM, now), Verdict::Waits);
        packet.leave();
        assert_eq!(waits(&mut packet), 4 + 60 / 8);
    }

    /// A flow in which every so many milliseconds one of so many bytes goes, and one comes; what the last is that goes within a second.
    fn class(sent: (u64, usize), received: (u64, usize)) -> Class {
        let (mut rhythm, start) = (Rhythm::default(), Instant::now());
        let mut class = Class::Other;
        for at in 0..1000 {
            if at % received.0 == 0 {
                rhythm.handle_received(received.1, start + ms(at));
            }
            if at % sent.0 == 0 {
                class = rhythm.handle_sent(sent.1, start + ms(at));
            }
        }
        class
    }

    #[test]
    fn a_flow_is_what_goes_and_comes_in_it() {
        assert_eq!(class((20, 172), (20, 172)), Class::Call, "speech");
        assert_eq!(class((5, 1100), (5, 1100)), Class::Call, "pictures as well");
        assert_eq!(class((2, 35), (1, 1200)), Class::Answers, "a download");
        assert_eq!(
            class((300, 60), (20, 172)),
            Class::Other,
            "one speaks alone"
        );
        assert_eq!(class((20, 172), (999, 60)), Class::Other, "nobody answers");
        assert_eq!(class((400, 60), (400, 500)), Class::Other, "questions");
    }

    #[test]
    fn a_download_that_has_ended_is_none() {
        let (mut rhythm, start) = (Rhythm::default(), Instant::now());
        for at in [0, 1] {
            rhythm.handle_received(1200, start + ms(at));
        }
        assert_eq!(rhythm.handle_sent(35, start + ms(200)), Class::Answers);
        assert_eq!(rhythm.handle_sent(35, start + ms(202)), Class::Other);
    }

    proptest! {
        /// Whatever goes, a packet never holds more than it can, and nothing waits longer than it may.
        #[test]
        fn a_packet_holds_no_more_than_fits_for_no_longer_than_it_may(
            goes in proptest::collection::vec((0_u64..30, 1_usize..1500, 0_u64..40), 1..200),
            room in 0_usize..1500,
        ) {
            let (mut packet, mut now) = (Packet::default(), Instant::now());
            let mut held: Vec<(usize, Instant)> = Vec::new();
            for (pause, bytes, wait) in goes {
                now += ms(pause);
                if packet.due().is_some_and(|due| due <= now) {
                    packet.leave();
                    held.clear();
                }
                match packet.handle(bytes, ms(wait), room, now) {
                    Verdict::Waits => held.push((bytes, now + ms(wait))),
                    Verdict::Begins => held = vec![(bytes, now + ms(wait))],
                    Verdict::Fills => {
                        let sum: usize = held.iter().map(|(bytes, _)| bytes).sum();
                        prop_assert!(sum + bytes <= room);
                        packet.leave();
                        held.clear();
                    }
                    Verdict::Leaves => {
                        packet.leave();
                        held.clear();
                    }
                }
                let sum: usize = held.iter().map(|(bytes, _)| bytes).sum();
                prop_assert!(sum <= room);
                prop_assert_eq!(packet.due(), held.iter().map(|(_, limit)| *limit).min());
            }
        }
    }

    #[test]
    fn waits_are_seconds() {
        let read = |text: &str| Share::deserialize(table(text));
        assert_eq!(read("0.005").expect("five milliseconds").call, ms(5));
        assert!(read("1.5").is_err() && read("-1").is_err());
    }

    /// A table with the key `call`.
    fn table(
        text: &str,
    ) -> de::value::MapDeserializer<
        'static,
        std::vec::IntoIter<(&'static str, f64)>,
        de::value::Error,
    > {
        let value: f64 = text.parse().expect("a number");
        de::value::MapDeserializer::new(vec![("call", value)].into_iter())
    }
}
