use proptest::prelude::*;

use super::*;

fn read(payload: &[u8]) -> Result<Vec<Frame<'_>>, Malformed> {
    Frames::new(payload).collect()
}

fn ranges(payload: &[u8]) -> Vec<(u64, u64)> {
    match read(payload).expect("frames").as_slice() {
        [
            Frame {
                content: Content::Ack(ack),
                ..
            },
        ] => ack.ranges().collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_ranges_of_an_acknowledgement_are_counted_down_from_its_largest() {
    // Largest 20, delay 3, one more range, first 2: 18..=20. Gap 3, length 4: 20-2-3-2 = 13, 9..=13.
    assert_eq!(ranges(&[2, 20, 3, 1, 2, 3, 4]), [(18, 20), (9, 13)]);
    // With ECN counts.
    assert_eq!(ranges(&[3, 7, 0, 0, 7, 1, 2, 3]), [(0, 7)]);
}

#[test]
fn an_acknowledgement_below_packet_zero_is_malformed() {
    assert_eq!(read(&[2, 5, 0, 0, 6]), Err(Malformed));
    assert_eq!(read(&[2, 5, 0, 1, 1, 3, 0]), Err(Malformed));
    assert_eq!(read(&[2, 5, 0, 1, 1, 2, 1]), Err(Malformed));
}

#[test]
fn an_acknowledgement_that_claims_many_ranges_ends_where_the_packet_does() {
    let mut payload = vec![2, 20, 0];
    varint::write(&mut payload, varint::MAX);
    payload.extend([0, 0, 0]);
    assert_eq!(read(&payload), Err(Malformed));
}

#[test]
fn padding_between_frames_is_one_frame_of_its_length() {
    let frames = read(&[0, 0, 0, 1, 0]).expect("frames");
    let told: Vec<_> = frames
        .iter()
        .map(|frame| (frame.kind, frame.size))
        .collect();
    assert_eq!(told, [(0, 3), (1, 1), (0, 1)]);
}

#[test]
fn a_datagram_without_length_takes_the_rest_of_the_packet() {
    let frames = read(&[1, 0x30, 1, 0, 1]).expect("frames");
    assert_eq!(frames[1].size, 4);
    assert_eq!(frames[1].content, Content::Datagram(&[1, 0, 1]));
    let frames = read(&[0x31, 2, 9, 9, 1]).expect("frames");
    assert_eq!((frames[0].size, frames.len()), (4, 2));
}

#[test]
fn stream_frames_are_read_with_and_without_offset_and_length() {
    let stream = |payload: &'static [u8]| read(payload).expect("frames")[0].content;
    let expected = |offset, data, fin| Content::Stream {
        id: 4,
        offset,
        data,
        fin,
    };
    assert_eq!(stream(&[0x08, 4, 7, 7]), expected(0, &[7, 7], false));
    assert_eq!(stream(&[0x0b, 4, 1, 7, 1]), expected(0, &[7], true));
    assert_eq!(
        stream(&[0x0e, 4, 5, 2, 7, 8, 1]),
        expected(5, &[7, 8], false)
    );
}

#[test]
fn a_frame_that_is_cut_short_is_malformed() {
    let cut: [&[u8]; 9] = [
        &[0x40],
        &[0x31, 3, 0, 0],
        &[0x0a, 4, 2, 1],
        &[0x06, 0],
        &[0x1a, 0, 0, 0],
        &[0x18, 0, 0, 8, 1, 2],
        &[0x1c, 0, 0, 4, b'b'],
        &[0x40, 0xaf, 1, 2, 3],
        &[0x07, 9],
    ];
    for payload in cut {
        assert_eq!(read(payload), Err(Malformed), "{payload:?}");
    }
}

#[test]
fn a_type_that_nobody_negotiated_ends_the_reading() {
    let mut frames = Frames::new(&[1, 0x21, 1, 1]);
    assert!(frames.next().is_some_and(|frame| frame.is_ok()));
    assert_eq!(frames.next(), Some(Err(Malformed)));
    assert_eq!(frames.next(), None);
}

#[test]
fn what_is_asked_with_ack_frequency_is_read_back() {
    let frame = AckFrequency {
        sequence: 1 << 40,
        threshold: 1 << 30,
        delay: 1000,
        reordering: 1,
    };
    let mut payload = Vec::new();
    frame.write(&mut payload);
    assert_eq!(payload[..2], [0x40, 0xaf]);
    let read = read(&payload).expect("frames");
    assert_eq!(read[0].size, payload.len());
    let numbers = [1 << 40, 1 << 30, 1000, 1];
    assert_eq!(read[0].content, Content::Numbers(numbers));
}

/// A frame as the test writes it.
#[derive(Clone, Debug)]
enum Drawn {
    Padding(u8),
    Ack(u64, Vec<(u64, u64)>, Option<[u64; 3]>),
    Crypto(u64, Vec<u8>),
    Stream(u64, u64, Vec<u8>, bool),
    Datagram(Vec<u8>),
    Numbers(u64, [u64; 4]),
    Close(u64, Vec<u8>),
    NewConnectionId(Vec<u8>),
    Path([u8; 8]),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..64_u64, 0..=varint::MAX]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let integral = vec![
        0x01, 0x04, 0x05, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x19, 0x1e, 0x1f, 0xaf,
    ];
    prop_oneof![
        (1_u8..30).prop_map(Drawn::Padding),
        (
            number(),
            prop::collection::vec((0..50_u64, 0..50_u64), 1..9),
            prop::option::of([number(), number(), number()])
        )
            .prop_map(|(delay, ranges, ecn)| Drawn::Ack(delay, ranges, ecn)),
        (number(), bytes()).prop_map(|(offset, data)| Drawn::Crypto(offset, data)),
        (number(), number(), bytes(), any::<bool>())
            .prop_map(|(id, offset, data, fin)| Drawn::Stream(id, offset, data, fin)),
        bytes().prop_map(Drawn::Datagram),
        (
            prop::sample::select(integral),
            [number(), number(), number(), number()]
        )
            .prop_map(|(kind, values)| Drawn::Numbers(kind, values)),
        (number(), bytes()).prop_map(|(error, why)| Drawn::Close(error, why)),
        prop::collection::vec(any::<u8>(), 0..21).prop_map(Drawn::NewConnectionId),
        any::<[u8; 8]>().prop_map(Drawn::Path),
    ]
}

fn with_length(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::write(out, bytes.len() as u64);
    out.extend(bytes);
}

fn all(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|n| varint::write(out, *n));
}

/// The ranges that a drawn acknowledgement means, the highest first; `draws` are gap below and length of each.
fn meant(draws: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut top: u64 = draws.iter().map(|(gap, length)| gap + length + 2).sum();
    let range = |(gap, length): &(u64, u64)| {
        let range = (top - length, top);
        top = top.saturating_sub(length + gap + 2);
        range
    };
    draws.iter().map(range).collect()
}

fn write_ack(out: &mut Vec<u8>, delay: u64, draws: &[(u64, u64)], ecn: Option<[u64; 3]>) {
    let ranges = meant(draws);
    let (low, high) = ranges[0];
    all(out, &[if ecn.is_some() { 3 } else { 2 }, high, delay]);
    all(out, &[ranges.len() as u64 - 1, high - low]);
    for pair in ranges.windows(2) {
        let ((above, _), (low, high)) = (pair[0], pair[1]);
        all(out, &[above - high - 2, high - low]);
    }
    all(out, ecn.as_ref().map_or(&[], |counts| counts.as_slice()));
}

fn write(out: &mut Vec<u8>, frame: &Drawn) {
    match frame {
        Drawn::Padding(count) => out.extend(std::iter::repeat_n(0, usize::from(*count))),
        Drawn::Ack(delay, draws, ecn) => write_ack(out, *delay, draws, *ecn),
        Drawn::Crypto(offset, data) => {
            all(out, &[6, *offset]);
            with_length(out, data);
        }
        Drawn::Stream(id, offset, data, fin) => {
            all(out, &[0x0e | u64::from(*fin), *id, *offset]);
            with_length(out, data);
        }
        Drawn::Datagram(data) => {
            all(out, &[0x31]);
            with_length(out, data);
        }
        Drawn::Numbers(kind, values) => {
            all(out, &[*kind]);
            all(out, &values[..integers(*kind).expect("it is integral")]);
        }
        Drawn::Close(error, why) => {
            all(out, &[0x1c, *error, 0]);
            with_length(out, why);
        }
        Drawn::NewConnectionId(id) => {
            all(out, &[0x18, 1, 0]);
            with_length(out, id);
            out.extend([0; 16]);
        }
        Drawn::Path(data) => {
            all(out, &[0x1a]);
            out.extend(data);
        }
    }
}

fn agrees(frame: &Frame<'_>, drawn: &Drawn) -> bool {
    match (drawn, frame.content) {
        (Drawn::Padding(_), content) => content == Content::Padding,
        (Drawn::Ack(delay, draws, ecn), Content::Ack(ack)) => {
            let same = ack.ranges().collect::<Vec<_>>() == meant(draws);
            same && ack.delay == *delay && ack.ecn == *ecn
        }
        (Drawn::Crypto(at, bytes), Content::Crypto { offset, data }) => {
            (*at, bytes.as_slice()) == (offset, data)
        }
        (
            Drawn::Stream(stream, at, bytes, end),
            Content::Stream {
                id,
                offset,
                data,
                fin,
            },
        ) => (*stream, *at, bytes.as_slice(), *end) == (id, offset, data, fin),
        (Drawn::Datagram(bytes), Content::Datagram(data)) => bytes == data,
        (Drawn::Numbers(kind, values), Content::Numbers(read)) => {
            let count = integers(*kind).expect("it is integral");
            frame.kind == *kind && values[..count] == read[..count]
        }
        (Drawn::Close(code, _), Content::Close { error }) => *code == error,
        (Drawn::NewConnectionId(_) | Drawn::Path(_), content) => content == Content::Opaque,
        _ => false,
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(drawn in prop::collection::vec(drawn(), 0..12)) {
        // Neighbouring paddings are told as one.
        let mut drawn = drawn;
        drawn.dedup_by(|a, b| matches!((a, b), (Drawn::Padding(_), Drawn::Padding(_))));
        let (mut payload, mut sizes) = (Vec::new(), Vec::new());
        for frame in &drawn {
            let before = payload.len();
            write(&mut payload, frame);
            sizes.push(payload.len() - before);
        }
        let read = read(&payload).expect("frames");
        prop_assert_eq!(read.iter().map(|frame| frame.size).collect::<Vec<_>>(), sizes);
        for (frame, drawn) in read.iter().zip(&drawn) {
            prop_assert!(agrees(frame, drawn), "{:?} was read of {:?}", frame, drawn);
        }
    }

    #[test]
    fn whatever_the_bytes_sizes_add_up_and_nothing_panics(payload: Vec<u8>) {
        let (mut total, mut whole) = (0, true);
        for frame in Frames::new(&payload) {
            match frame {
                Ok(frame) => {
                    prop_assert!(frame.size > 0);
                    total += frame.size;
                    if let Content::Ack(ack) = frame.content {
                        prop_assert!(ack.ranges().all(|(low, high)| low <= high));
                    }
                }
                Err(Malformed) => whole = false,
            }
        }
        prop_assert!(total <= payload.len());
        prop_assert!(!whole || total == payload.len());
    }
}
