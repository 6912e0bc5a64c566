//! The machine against a program's TCP over a bad queue, against anything at all, and case by case.

mod cases;
mod program;
mod world;

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use self::{
    program::{Dice, Habits, Letter},
    world::{Target, Weather, World},
};
use super::{Flags, Header, Machine, Settings, floor_for};

fn weather() -> impl Strategy<Value = Weather> {
    (0_usize..15, 0_usize..15, 1_u64..50_000).prop_map(|(lost, repeated, jitter)| Weather {
        lost,
        repeated,
        jitter: Duration::from_micros(jitter),
    })
}

fn habits() -> impl Strategy<Value = Habits> {
    let sends = prop_oneof![Just(0_usize), 1_usize..200_000];
    let scale = prop::option::of(0_u8..15);
    let mss = prop::option::of(prop_oneof![88_u16..200, Just(1460), 1000_u16..]);
    let iss = prop_oneof![any::<u32>(), (u32::MAX - 100_000)..];
    let all = (
        sends,
        2000_usize..300_000,
        scale,
        mss,
        iss,
        1_usize..65_000,
        any::<bool>(),
    );
    all.prop_map(
        |(sends, capacity, scale, mss, iss, largest, finishes_last)| Habits {
            sends,
            // A window that can be told.
            capacity: capacity.max(2 << scale.unwrap_or(0)),
            scale,
            mss,
            iss,
            largest: largest.max(sends / 500),
            finishes_last,
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let isn = prop_oneof![any::<u32>(), (u32::MAX - 100_000)..];
    (
        isn,
        16_384_usize..2_000_000,
        prop_oneof![Just(1460_u16), 500_u16..],
    )
        .prop_map(|(isn, window, mss)| Settings {
            isn,
            window,
            floor: floor_for(window),
            mss,
            default_mss: 536,
            idle: Duration::ZERO,
        })
}

fn target() -> impl Strategy<Value = Target> {
    let sends = prop_oneof![Just(0_usize), 1_usize..200_000];
    (sends, any::<bool>()).prop_map(|(sends, finishes_last)| Target {
        sends,
        finishes_last,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn octets_arrive_whole_and_in_order_over_a_queue_that_loses_repeats_and_reorders(
        seed: u64, weather in weather(), habits in habits(), settings in settings(), mut target in target(),
    ) {
        // Somebody must finish first.
        target.finishes_last &= !habits.finishes_last;
        World::new(seed, weather, habits, settings, target).run();
    }
}

/// What anybody may do to a machine.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// A segment with these differences to the expected places, flags, window and octets.
    Segment(i32, i32, u8, u16, usize),
    Wild(u32, u32, u8, u16, usize),
    Push(usize),
    Consume(usize),
    Finish,
    Discard,
    Stall,
    Wait(u64),
    Reset,
    /// The budget allows so many octets of memory more.
    Allow(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let near = || prop_oneof![Just(0), -3..3_i32, -100_000..100_000_i32];
    let flags = || prop_oneof![4 => Just(16_u8), 2 => Just(17), 1 => any::<u8>()];
    let len = || prop_oneof![Just(0_usize), 1_usize..2000, 0_usize..65_000];
    prop_oneof![
        8 => (near(), near(), flags(), any::<u16>(), len())
            .prop_map(|(seq, ack, flags, window, len)| Deed::Segment(seq, ack, flags, window, len)),
        1 => (any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(), len())
            .prop_map(|(seq, ack, flags, window, len)| Deed::Wild(seq, ack, flags, window, len)),
        2 => len().prop_map(Deed::Push),
        2 => len().prop_map(Deed::Consume),
        1 => Just(Deed::Stall),
        2 => prop_oneof![Just(0), 0_usize..10_000, 0_usize..300_000].prop_map(Deed::Allow),
        2 => (0_u64..20_000).prop_map(Deed::Wait),
        1 => prop_oneof![Just(Deed::Finish), Just(Deed::Discard), Just(Deed::Reset)],
    ]
}

fn letter(seq: u32, ack: u32, flags: u8, window: u16, len: usize) -> Letter {
    let header = Header {
        sequence: seq,
        acknowledgment: ack,
        flags: Flags(flags),
        window,
        ..Header::default()
    };
    let payload = vec![7; len];
    Letter { header, payload }
}

fn hear(machine: &mut Machine, letter: &Letter, now: Instant) {
    let payload = Bytes::copy_from_slice(&letter.payload);
    machine.segment(&letter.segment(), payload, now);
}

fn do_one(machine: &mut Machine, deed: Deed, now: &mut Instant) {
    match deed {
        Deed::Segment(seq, ack, flags, window, len) => {
            let seq = machine.receive.next().0.wrapping_add_signed(seq);
            let ack = machine.send.highest().0.wrapping_add_signed(ack);
            hear(machine, &letter(seq, ack, flags, window, len), *now);
        }
        Deed::Wild(seq, ack, flags, window, len) => {
            hear(machine, &letter(seq, ack, flags, window, len), *now);
        }
        Deed::Push(len) => machine.push(&vec![1; len.min(machine.room())]),
        Deed::Consume(len) => machine.consume(len),
        Deed::Finish => machine.finish(*now),
        Deed::Discard => machine.discard(),
        Deed::Stall => machine.stall(*now),
        Deed::Wait(milliseconds) => {
            *now += Duration::from_millis(milliseconds);
            machine.expire(*now);
        }
        Deed::Reset => machine.reset(),
        Deed::Allow(more) => machine.allow(more),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_comes_nothing_panics_and_every_bound_is_kept(
        settings in settings(), habits in habits(), deeds in prop::collection::vec(deed(), 0..60),
    ) {
        let mut now = Instant::now();
        let program = program::Program::new(habits, now);
        let syn = program.out.first().expect("a SYN").clone();
        let mut machine = Machine::new(&syn.segment(), settings);
        machine.accept(now);
        // Together they hold what was allowed last, or what they held then; each has its floor besides.
        let mut most = usize::MAX;
        for deed in deeds {
            do_one(&mut machine, deed, &mut now);
            if let Deed::Allow(more) = deed {
                most = machine.memory().saturating_add(2 * more);
            }
            prop_assert!(machine.memory() <= most.max(2 * settings.floor), "{} of {most}", machine.memory());
            prop_assert!(machine.memory() >= machine.readable());
            let mut sent = 0;
            while let Some(packet) = machine.transmit(now) {
                let (payload, segment) = machine.payload(&packet);
                let len = payload[0].len() + payload[1].len();
                prop_assert_eq!(len, packet.portion.map_or(0, |portion| portion.len));
                prop_assert!(len <= 65_400);
                prop_assert!(segment.is_some() || len <= usize::from(settings.mss));
                sent += 1;
                prop_assert!(sent <= settings.window / 64 + 100, "it does not stop");
            }
            prop_assert!(machine.readable() <= settings.window);
            prop_assert!(machine.send.unsent() <= settings.window);
            prop_assert!(machine.ended().is_none() || machine.timeout().is_none());
        }
    }
}

#[test]
fn dice_are_the_same_for_the_same_seed() {
    let (mut a, mut b) = (Dice(3), Dice(3));
    assert!((0..100).all(|_| a.below(1000) == b.below(1000)));
}
