//! What is done to the packets of a batch: their ids are exchanged, in place where both are of one length.
//! Both directions of [`super::Forwarding`] use it. draft-ietf-masque-quic-proxy, "Sending With Forwarded Mode".

use hoplite_crypto::Transform;

/// What the scramble transform needs behind the id.
const BLOCK: usize = 16;

/// The shortest packet, in bytes, that can be transformed with an id of `id` bytes.
pub(super) fn shortest(transform: &Transform, id: usize) -> usize {
    match transform {
        Transform::Identity => 1 + id,
        Transform::Scramble(_) => 1 + id + BLOCK,
    }
}

/// How many bytes of a batch of `len` are packets of at least `least`: only the last packet may be shorter than the others.
pub(super) fn usable(len: usize, segment: usize, least: usize) -> usize {
    let last = len % segment;
    match len.min(segment) < least {
        true => 0,
        false if last < least => len - last,
        false => len,
    }
}

/// Whether a packet has a short header with `id`.
pub(super) fn has_id(packet: &[u8], id: &[u8]) -> bool {
    let head = packet.split_first();
    head.is_some_and(|(first, rest)| first & 0x80 == 0 && rest.starts_with(id))
}

/// Puts `id` in place of the first `old` bytes behind the first one of each packet. Returns the packets and their size.
/// Each has more than `old` bytes. If its length changes, they are copied to `room` once.
pub(super) fn readdress<'a>(
    contents: &'a mut [u8],
    segment: usize,
    old: usize,
    id: &[u8],
    room: &'a mut Vec<u8>,
) -> (&'a mut [u8], usize) {
    if id.len() == old {
        for packet in contents.chunks_mut(segment) {
            if let Some(place) = packet.get_mut(1..=old) {
                place.copy_from_slice(id);
            }
        }
        return (contents, segment);
    }
    room.clear();
    for packet in contents.chunks(segment) {
        if let (Some(first), Some(rest)) = (packet.get(..1), packet.get(1 + old..)) {
            room.extend_from_slice(first);
            room.extend_from_slice(id);
            room.extend_from_slice(rest);
        }
    }
    (room, segment + id.len() - old)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of these sizes, each with the id `old`.
    fn batch(old: &[u8], sizes: &[usize]) -> Vec<u8> {
        let packet = |(at, size): (usize, &usize)| {
            let mut packet = vec![0x40 | u8::try_from(at).unwrap()];
            packet.extend_from_slice(old);
            packet.resize(*size, 7);
            packet
        };
        sizes.iter().enumerate().flat_map(packet).collect()
    }

    #[test]
    fn ids_of_any_lengths_are_exchanged_in_every_packet() {
        for (old, new) in [(8, 8), (8, 0), (0, 8), (20, 8), (8, 20)] {
            let (old, new) = (vec![1; old], vec![2; new]);
            let sizes = [30, 30, 25];
            let mut contents = batch(&old, &sizes);
            let wanted = batch(&new, &sizes.map(|size| size + new.len() - old.len()));
            let mut room = Vec::new();
            let (got, segment) = readdress(&mut contents, 30, old.len(), &new, &mut room);
            assert_eq!(got, wanted);
            assert_eq!(segment, 30 + new.len() - old.len());
        }
    }

    #[test]
    fn an_id_of_the_same_length_is_exchanged_in_place() {
        let mut contents = batch(&[1; 8], &[30, 30]);
        let mut room = Vec::new();
        readdress(&mut contents, 30, 8, &[2; 8], &mut room);
        assert_eq!(room.capacity(), 0);
        assert_eq!(contents, batch(&[2; 8], &[30, 30]));
    }

    #[test]
    fn a_last_packet_that_is_too_short_is_left_off() {
        assert_eq!(usable(60, 30, 25), 60);
        assert_eq!(usable(70, 30, 25), 60);
        assert_eq!(usable(85, 30, 25), 85);
        assert_eq!(usable(24, 24, 25), 0);
        assert_eq!(usable(25, 30, 25), 25);
        assert_eq!(usable(0, 30, 25), 0);
    }

    #[test]
    fn only_short_headers_have_an_id() {
        assert!(has_id(b"\x40abc", b"ab") && has_id(b"\x00abc", b"abc"));
        assert!(has_id(b"\x40", b"") && !has_id(b"", b""));
        assert!(!has_id(b"\xc0abc", b"ab") && !has_id(b"\x40abc", b"abcd"));
    }
}
