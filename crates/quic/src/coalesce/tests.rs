use std::net::{Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use quinn_udp::Transmit;

use super::{Coalescer, MOST_BYTES, MOST_SEGMENTS, Pushed};

/// One datagram as the network sees it.
type Datagram = (SocketAddr, Vec<u8>);

fn destination(host: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, host), 443).into()
}

fn transmit(host: u8, contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
    Transmit {
        destination: destination(host),
        ecn: None,
        contents,
        segment_size,
        src_ip: None,
    }
}

fn datagrams(transmit: &Transmit<'_>) -> Vec<Datagram> {
    let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
    let payloads = transmit.contents.chunks(segment.max(1));
    payloads
        .map(|payload| (transmit.destination, payload.to_vec()))
        .collect()
}

fn send(batch: &mut Coalescer, sent: &mut Vec<Vec<Datagram>>) {
    sent.extend(batch.batch().map(|transmit| datagrams(&transmit)));
    batch.clear();
}

/// Pushes all and answers with the batches that were sent.
fn run(transmits: &[Transmit<'_>]) -> Vec<Vec<Datagram>> {
    let (mut batch, mut sent) = (Coalescer::default(), Vec::new());
    for transmit in transmits {
        if batch.push(transmit) == Pushed::Full {
            send(&mut batch, &mut sent);
            assert_eq!(batch.push(transmit), Pushed::Kept);
        }
    }
    send(&mut batch, &mut sent);
    sent
}

proptest! {
    #[test]
    fn boundaries_order_and_bytes_survive(
        list in prop::collection::vec(
            (1..3_u8, 1..=10_usize, 0..4_usize, prop::option::of(1..1200_usize)), 1..60)
    ) {
        let sizes = [30, 1200, 1252, 1452];
        let contents: Vec<Vec<u8>> = list.iter().enumerate().map(|(at, &(_, count, size, last))| {
            let bytes = sizes[size] * (count - 1) + last.unwrap_or(sizes[size]).min(sizes[size]);
            (0..bytes).map(|byte| u8::try_from((byte * 7 + at) % 256).unwrap()).collect()
        }).collect();
        let transmits: Vec<Transmit<'_>> = list.iter().zip(&contents).map(|(&(host, count, size, _), contents)|
            transmit(host, contents, (count > 1).then_some(sizes[size]))).collect();

        let sent = run(&transmits);
        let wanted: Vec<Datagram> = transmits.iter().flat_map(datagrams).collect();
        prop_assert!(sent.concat() == wanted, "the datagrams differ");
        for batch in sent {
            prop_assert!(batch.len() <= MOST_SEGMENTS);
            prop_assert!(batch.iter().map(|(_, payload)| payload.len()).sum::<usize>() <= MOST_BYTES);
        }
    }
}

#[test]
fn full_segments_for_one_destination_go_together() {
    let ten = vec![1; 12_000];
    let sent = run(&vec![transmit(1, &ten, Some(1200)); 10]);
    let counts: Vec<usize> = sent.iter().map(Vec::len).collect();
    assert_eq!(counts, [50, 50]);
}

#[test]
fn a_batch_holds_at_most_64_datagrams() {
    let ten = vec![1; 1000];
    let sent = run(&vec![transmit(1, &ten, Some(100)); 13]);
    let counts: Vec<usize> = sent.iter().map(Vec::len).collect();
    assert_eq!(counts, [60, 60, 10]);
}

#[test]
fn a_shorter_last_segment_closes_the_batch() {
    let (long, short) = (vec![1; 2400], vec![2; 2000]);
    let list = [
        transmit(1, &long, Some(1200)),
        transmit(1, &short, Some(1200)),
        transmit(1, &long, Some(1200)),
    ];
    let counts: Vec<usize> = run(&list).iter().map(Vec::len).collect();
    assert_eq!(counts, [4, 2]);
}

#[test]
fn several_shorter_datagrams_do_not_become_one() {
    let (long, short) = (vec![1; 2400], vec![2; 60]);
    let list = [
        transmit(1, &long, Some(1200)),
        transmit(1, &short, Some(30)),
    ];
    let counts: Vec<usize> = run(&list).iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 2]);
}

#[test]
fn nothing_follows_a_probe_of_the_mtu() {
    let (probe, short) = (vec![1; 1452], vec![2; 40]);
    let sent = run(&[transmit(1, &probe, None), transmit(1, &short, None)]);
    assert_eq!(sent.len(), 2);
}

#[test]
fn a_changed_ecn_mark_or_source_starts_a_batch() {
    let contents = vec![1; 1200];
    let plain = transmit(1, &contents, None);
    let marked = Transmit {
        ecn: Some(quinn_udp::EcnCodepoint::Ect0),
        ..plain.clone()
    };
    let elsewhere = Transmit {
        src_ip: Some(Ipv4Addr::LOCALHOST.into()),
        ..plain.clone()
    };
    assert_eq!(run(&[plain, marked, elsewhere]).len(), 3);
}

#[test]
fn without_segmentation_every_datagram_goes_alone() {
    let contents = vec![1; 1200];
    let mut batch = Coalescer::default();
    batch.limit(1);
    assert_eq!(batch.push(&transmit(1, &contents, None)), Pushed::Kept);
    assert_eq!(batch.push(&transmit(1, &contents, None)), Pushed::Full);
}
