use proptest::prelude::*;

use super::*;

/// A datagram of a size, as a payload.
fn datagram(size: usize) -> Vec<u8> {
    let mut payload = vec![0x30];
    payload.resize(size, 7);
    payload
}

fn send(folder: &mut Folder, numbers: std::ops::Range<u64>, size: usize) {
    numbers.for_each(|number| folder.sent(number, size, Sending::of(Frames::new(&datagram(size)))));
}

fn told(folder: &mut Folder, ranges: &[Range], marks: Option<[u64; 3]>) -> Vec<Range> {
    let mut payload = BytesMut::new();
    write(ranges, 3, marks, &mut payload);
    folder.fold(&mut payload);
    let ack = first(&payload).unwrap();
    assert_eq!(ack.delay, 3);
    ack.ranges().collect()
}

#[test]
fn of_many_lost_datagrams_the_first_is_told_and_no_other_of_the_same_round_trip() {
    let mut folder = Folder::default();
    send(&mut folder, 0..100, 1300);
    let ranges = [(40, 50), (30, 35), (10, 20), (0, 5)];
    assert_eq!(told(&mut folder, &ranges, None), [(7, 50), (0, 5)]);
    let ranges = [(70, 80), (40, 50)];
    assert_eq!(told(&mut folder, &ranges, None), [(40, 80)]);
    // These were sent after the first had been told: another event.
    send(&mut folder, 100..200, 1300);
    let ranges = [(120, 130), (70, 105)];
    assert_eq!(told(&mut folder, &ranges, None), [(107, 130), (70, 105)]);
}

#[test]
fn what_is_sent_again_if_lost_is_told_as_it_is() {
    let mut folder = Folder::default();
    send(&mut folder, 0..1, 1300);
    // PING; then a number that the stack left out.
    (1..20).for_each(|number| folder.sent(number, 1300, Sending::of(Frames::new(&[0x01]))));
    send(&mut folder, 21..30, 1300);
    let ranges = [(25, 29), (0, 0)];
    assert_eq!(told(&mut folder, &ranges, None), [(22, 29), (0, 0)]);
}

#[test]
fn a_path_that_takes_no_large_packets_any_more_is_told_as_it_is() {
    let mut folder = Folder::default();
    send(&mut folder, 0..10, 1300);
    send(&mut folder, 10..40, 1400);
    send(&mut folder, 40..50, 1300);
    send(&mut folder, 50..60, 1310);
    send(&mut folder, 60..70, 1300);
    let ranges = [(60, 69), (40, 49), (0, 9)];
    assert_eq!(
        told(&mut folder, &ranges, None),
        [(51, 69), (40, 49), (0, 9)]
    );
}

#[test]
fn what_may_only_be_late_is_not_decided() {
    let mut folder = Folder::default();
    send(&mut folder, 0..20, 1300);
    assert_eq!(told(&mut folder, &[(9, 9), (0, 7)], None), [(9, 9), (0, 7)]);
    assert_eq!(told(&mut folder, &[(0, 10)], None), [(0, 10)]);
    assert_eq!(
        told(&mut folder, &[(19, 19), (13, 15), (0, 11)], None),
        [(19, 19), (13, 16), (0, 11)],
        "12 is told as lost, and 17 and 18 may be late"
    );
}

#[test]
fn what_a_peer_no_longer_tells_of_was_told_before_or_is_lost() {
    let mut folder = Folder::default();
    send(&mut folder, 0..60, 1300);
    assert_eq!(told(&mut folder, &[(0, 20)], None), [(0, 20)]);
    assert_eq!(told(&mut folder, &[(21, 30)], None), [(21, 30)]);
    assert_eq!(told(&mut folder, &[(35, 40)], None), [(32, 40)]);
}

#[test]
fn marks_are_counted_for_what_is_told_as_acknowledged() {
    let mut folder = Folder::default();
    send(&mut folder, 0..20, 1300);
    let mut payload = BytesMut::new();
    write(
        &[(10, 15), (6, 7), (0, 2)],
        0,
        Some([10, 0, 1]),
        &mut payload,
    );
    folder.fold(&mut payload);
    let ack = first(&payload).unwrap();
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [(4, 15), (0, 2)]);
    assert_eq!(ack.ecn, Some([14, 0, 1]));
    let mut payload = BytesMut::new();
    write(&[(10, 17)], 0, Some([12, 0, 1]), &mut payload);
    folder.fold(&mut payload);
    assert_eq!(first(&payload).unwrap().ecn, Some([16, 0, 1]));
}

proptest! {
    #[test]
    fn nothing_is_acknowledged_that_was_not_sent_and_nothing_is_left_out(
        sent in proptest::collection::vec((1_u64..3, 1000_usize..1400, any::<bool>()), 1..300),
        acks_of in proptest::collection::vec(proptest::collection::vec((0_u64..5, 0_u64..9), 1..20), 1..5),
        bytes: Vec<u8>,
    ) {
        let mut folder = Folder::default();
        let (mut number, mut known) = (0, std::collections::BTreeSet::new());
        for (step, size, lasting) in sent {
            number += step;
            known.insert(number);
            let payload = if lasting { vec![0x01] } else { datagram(size) };
            folder.sent(number, size, Sending::of(Frames::new(&payload)));
        }
        for steps in acks_of {
            let (mut ranges, mut next) = (vec![], 0);
            for (gap, length) in steps {
                ranges.insert(0, (next, next + length));
                next += length + 2 + gap;
            }
            let told = told(&mut folder, &ranges, None);
            prop_assert_eq!(told[0].1, ranges[0].1);
            let within = |ranges: &[Range], number: u64| ranges.iter().any(|(lowest, highest)| (*lowest..=*highest).contains(&number));
            for number in 0..=next {
                prop_assert!(!within(&ranges, number) || within(&told, number));
                prop_assert!(within(&ranges, number) || !within(&told, number) || known.contains(&number));
            }
        }
        folder.fold(&mut BytesMut::from(&bytes[..]));
    }
}

fn acks(payload: &[u8]) -> Vec<(Vec<Range>, u64, Option<[u64; 3]>)> {
    let frames = Frames::new(payload).map(|frame| frame.unwrap().content);
    frames
        .map(|content| match content {
            Content::Ack(ack) => (ack.ranges().collect(), ack.delay, ack.ecn),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn payload(ranges: &[Range], marks: Option<[u64; 3]>) -> BytesMut {
    let mut out = BytesMut::new();
    write(ranges, 10, marks, &mut out);
    out
}

#[test]
fn an_acknowledgement_of_many_losses_becomes_several_of_one_the_oldest_first() {
    let (mut unfolder, start) = (Unfolder::default(), Instant::now());
    for number in 0..100_u32 {
        unfolder.sent(number.into(), start + number * Duration::from_millis(1));
    }
    let old = [(0, 50)];
    unfolder.unfold(&mut payload(&old, Some([51, 0, 0])));
    let ranges = [(90, 99), (85, 88), (82, 83), (60, 80), (0, 55)];
    let mut told = payload(&ranges, Some([89, 0, 2]));
    unfolder.unfold(&mut told);
    // Packet 80 was sent 19 ms before the last, packet 55 too long before.
    let one = |range| vec![range];
    assert_eq!(
        acks(&told),
        [
            (vec![(60, 80), (0, 55)], 10 + 19_000 / 8, Some([77, 0, 0])),
            (one((82, 83)), 10 + 16_000 / 8, Some([79, 0, 0])),
            (one((85, 88)), 10 + 11_000 / 8, Some([83, 0, 0])),
            (ranges.to_vec(), 10, Some([89, 0, 2])),
        ]
    );
}

#[test]
fn few_losses_and_losses_that_were_told_before_are_left_alone() {
    let mut unfolder = Unfolder::default();
    unfolder.sent(0, Instant::now());
    let ranges = [(40, 50), (30, 35), (20, 25)];
    for told in [
        &ranges[..],
        &[(60, 70), (40, 50), (30, 35), (20, 25), (0, 3)],
    ] {
        let before = payload(told, None);
        let mut after = before.clone();
        unfolder.unfold(&mut after);
        assert_eq!(before, after);
    }
}

#[test]
fn a_peer_that_tells_of_very_many_losses_is_told_on_in_so_many_parts_at_most() {
    let mut unfolder = Unfolder::default();
    unfolder.sent(0, Instant::now());
    unfolder.sent(2000, Instant::now() + NOTE_INTERVAL);
    let ranges: Vec<Range> = (0..600).rev().map(|at| (3 * at, 3 * at)).collect();
    let mut told = payload(&ranges, None);
    unfolder.unfold(&mut told);
    let parts = acks(&told);
    assert_eq!(parts.len(), MAX_PARTS);
    assert_eq!(parts[0].0.len(), 600 - MAX_PARTS + 1);
}

proptest! {
    #[test]
    fn no_packet_is_acknowledged_that_was_not_and_parts_only_grow(steps in proptest::collection::vec((0_u64..5, 0_u64..5), 1..40), bytes: Vec<u8>) {
        let (mut ranges, mut next) = (vec![], 0);
        for (gap, length) in steps {
            ranges.insert(0, (next, next + length));
            next += length + 2 + gap;
        }
        let (mut unfolder, now) = (Unfolder::default(), Instant::now());
        unfolder.sent(0, now);
        unfolder.sent(next, now + NOTE_INTERVAL);
        let mut told = payload(&ranges, None);
        unfolder.unfold(&mut told);
        let parts = acks(&told);
        prop_assert!(parts.iter().all(|(part, ..)| part.iter().all(|range| ranges.contains(range))));
        prop_assert!(parts.is_sorted_by_key(|(part, ..)| part[0].1));
        prop_assert_eq!(&parts.last().unwrap().0, &ranges);
        unfolder.unfold(&mut BytesMut::from(&bytes[..]));
    }
}
