//! A batch, sorted by the way that its packets take, with their ids replaced; its buffers are used again.
//! The flow's driver fills it under the machine's lock, seals it outside, and sends it.

use hoplite_crypto::Transform;
use hoplite_link::coalesce::{MOST_OCTETS, MOST_SEGMENTS};
use hoplite_overlay::Batch;

use super::ConnectionId;

/// What the transform needs behind the id.
const SAMPLE: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Sorted {
    tunnelled: Vec<u8>,
    forwarded: Vec<u8>,
    /// The size of each forwarded packet and of its alias.
    pieces: Vec<(usize, usize)>,
}

impl Sorted {
    pub(super) fn clear(&mut self) {
        self.tunnelled.clear();
        self.forwarded.clear();
        self.pieces.clear();
    }

    /// How many packets go forwarded.
    pub(super) fn forwarded(&self) -> usize {
        self.pieces.len()
    }

    /// The next packet, or packets of one size, of the batch are tunnelled.
    pub(super) fn tunnel(&mut self, packets: &[u8]) {
        self.tunnelled.extend_from_slice(packets);
    }

    /// The next packet is forwarded; `false` if it is too short for that.
    pub(super) fn forward(&mut self, packet: &[u8], id_len: usize, alias: ConnectionId) -> bool {
        let Some((first, rest)) = packet.split_first() else {
            return false;
        };
        let Some(rest) = rest.get(id_len..).filter(|rest| rest.len() >= SAMPLE) else {
            return false;
        };
        self.forwarded.push(*first);
        self.forwarded.extend_from_slice(alias.octets());
        self.forwarded.extend_from_slice(rest);
        let size = 1 + alias.len() + rest.len();
        self.pieces.push((size, alias.len()));
        true
    }

    /// "When sending packets, the packet transform is applied after replacing a CID with a VCID."
    pub(super) fn seal(&mut self, transform: &Transform) {
        let mut rest = &mut self.forwarded[..];
        for (size, id_len) in &self.pieces {
            let Some((packet, after)) = rest.split_at_mut_checked(*size) else {
                return;
            };
            // It is long enough: see `forward`.
            transform.seal(packet, *id_len).ok();
            rest = after;
        }
    }

    /// What is tunnelled: packets of `segment` octets, the last one maybe shorter.
    pub(super) fn to_tunnel(&self, segment: usize) -> Option<Batch<'_>> {
        let contents = &self.tunnelled[..];
        (!contents.is_empty()).then_some(Batch { contents, segment })
    }

    /// What is forwarded, in batches that one system call can send.
    pub(super) fn to_forward(&self) -> Runs<'_> {
        Runs {
            contents: &self.forwarded,
            pieces: &self.pieces,
        }
    }
}

/// Batches of equal packets, each with a shorter one at its end where there is one.
pub(super) struct Runs<'a> {
    contents: &'a [u8],
    pieces: &'a [(usize, usize)],
}

impl<'a> Iterator for Runs<'a> {
    type Item = Batch<'a>;

    fn next(&mut self) -> Option<Batch<'a>> {
        let (segment, _) = *self.pieces.first()?;
        let (mut octets, mut count) = (0, 0);
        for (size, _) in self.pieces.iter().take(MOST_SEGMENTS) {
            if *size > segment || octets + size > MOST_OCTETS.max(segment) {
                break;
            }
            octets += size;
            count += 1;
            if *size < segment {
                break;
            }
        }
        self.pieces = self.pieces.get(count..)?;
        let (contents, rest) = self.contents.split_at_checked(octets)?;
        self.contents = rest;
        Some(Batch { contents, segment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(sizes: &[usize]) -> Sorted {
        let mut sorted = Sorted::default();
        let alias = ConnectionId::new(b"virtually").expect("short");
        for size in sizes {
            assert!(sorted.forward(&vec![7; *size], 8, alias));
        }
        sorted
    }

    fn runs(sizes: &[usize]) -> Vec<(usize, usize)> {
        let sorted = forwarded(sizes);
        let run = |batch: Batch<'_>| (batch.contents.len(), batch.segment);
        sorted.to_forward().map(run).collect()
    }

    #[test]
    fn packets_of_one_size_stay_together_and_a_shorter_one_ends_the_run() {
        let expected = [(3 * 101, 101), (101 + 51, 101), (61, 61), (101, 101)];
        assert_eq!(runs(&[100, 100, 100, 100, 50, 60, 100])[1..], expected[2..]);
        assert_eq!(runs(&[100, 100, 100, 100, 50])[0], (4 * 101 + 51, 101));
    }

    #[test]
    fn a_run_is_no_longer_than_what_one_call_sends() {
        assert_eq!(runs(&[100; 65]), [(64 * 101, 101), (101, 101)]);
        assert_eq!(runs(&[1499; 44]), [(43 * 1500, 1500), (1500, 1500)]);
    }

    #[test]
    fn the_id_is_replaced_and_the_rest_is_kept() {
        let mut sorted = Sorted::default();
        let packet: Vec<u8> = (0..40).collect();
        let alias = ConnectionId::new(b"virtually").expect("short");
        assert!(sorted.forward(&packet, 8, alias));
        sorted.seal(&Transform::Identity);
        let expected = [&[0][..], b"virtually", &packet[9..]].concat();
        let runs: Vec<_> = sorted
            .to_forward()
            .map(|run| run.contents.to_vec())
            .collect();
        assert_eq!(runs, [expected]);
    }

    #[test]
    fn a_packet_without_16_octets_behind_its_id_is_not_forwarded() {
        let alias = ConnectionId::new(b"virtually").expect("short");
        for size in 0..25 {
            let taken = Sorted::default().forward(&vec![7; size], 8, alias);
            assert!(!taken, "{size}");
        }
    }
}
