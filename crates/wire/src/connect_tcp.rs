//! TCP proxying by template: the capsules that carry a TCP stream's bytes and its end, by whichever draft the client names.
//! draft-ietf-httpbis-connect-tcp, the texts -08 to -12 (§3, "Closing Connections", "IANA Considerations"); the head of a
//! capsule: RFC 9297 §3.2. The path is a [`Template`](crate::Template)'s.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{Buf, BufMut, Bytes};

use crate::varint::{self, HeadReader};

/// The drafts that are spoken, by their upgrade tokens. The types of the capsules are provisional and change with the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    /// -08 to -11, which used the token that is to be registered: what deployed software speaks.
    D08,
    /// -12: "implementations SHALL use the value 'connect-tcp-12'".
    D12,
}

impl Draft {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::D08, Self::D12];

    /// The draft whose upgrade token this is; case does not matter in HTTP/1.1 (RFC 9110 §7.8), nor here.
    pub fn of(token: &str) -> Option<Self> {
        let named = |draft: &Self| draft.token().eq_ignore_ascii_case(token);
        Self::ALL.into_iter().find(named)
    }

    /// The upgrade token, which is the `:protocol` of an Extended CONNECT.
    pub const fn token(self) -> &'static str {
        match self {
            Self::D08 => "connect-tcp",
            Self::D12 => "connect-tcp-12",
        }
    }

    const fn data(self) -> u64 {
        match self {
            Self::D08 => 0x2028_d7f0,
            Self::D12 => 0x2028_d7f2,
        }
    }

    const fn final_data(self) -> u64 {
        match self {
            Self::D08 => 0x2028_d7f1,
            Self::D12 => 0x2028_d7f3,
        }
    }

    /// Writes the head of a DATA capsule for a payload of `len` bytes, which follows.
    pub fn write_data_head(self, out: &mut impl BufMut, len: usize) {
        varint::write(out, self.data());
        varint::write(out, len as u64);
    }

    /// Writes an empty FINAL_DATA capsule: "semantically equivalent to TCP FIN".
    pub fn write_end(self, out: &mut impl BufMut) {
        varint::write(out, self.final_data());
        varint::write(out, 0);
    }
}

/// How many bytes stand before a payload at most.
pub const OVERHEAD: usize = 16;

/// A DATA capsule follows FINAL_DATA, or a second FINAL_DATA does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a capsule of TCP payload stands behind the last one")]
pub struct AfterEnd;

/// Takes the capsules off a stream of TCP payload. It keeps no payload: "Recipients SHOULD begin forwarding payload from
/// a DATA or FINAL_DATA capsule without waiting to receive the entire capsule." Other capsules are skipped, however large.
#[derive(Debug)]
pub struct Reader {
    draft: Draft,
    state: State,
    /// FINAL_DATA has begun.
    last: bool,
}

#[derive(Debug)]
enum State {
    Head(HeadReader),
    Payload(u64),
    Skip(u64),
}

impl Reader {
    /// For a stream of this draft.
    pub fn new(draft: Draft) -> Self {
        Self {
            draft,
            state: State::Head(HeadReader::default()),
            last: false,
        }
    }

    /// The next payload out of `input`, never empty and not copied. `None` when all of `input` is taken and more is needed.
    ///
    /// # Errors
    /// "After sending a FINAL_DATA capsule, an endpoint MUST NOT send any more DATA or FINAL_DATA capsules".
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, AfterEnd> {
        loop {
            match &mut self.state {
                State::Payload(0) | State::Skip(0) => {
                    self.state = State::Head(HeadReader::default());
                }
                State::Head(head) => match head.read(input) {
                    Some((kind, length)) => self.begin(kind, length)?,
                    None => return Ok(None),
                },
                _ if input.is_empty() => return Ok(None),
                State::Payload(left) => {
                    let now = within(*left, input.len());
                    *left = left.saturating_sub(now as u64);
                    return Ok(Some(input.split_to(now)));
                }
                State::Skip(left) => {
                    let now = within(*left, input.len());
                    *left = left.saturating_sub(now as u64);
                    input.advance(now);
                }
            }
        }
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<(), AfterEnd> {
        let is_last = kind == self.draft.final_data();
        if !is_last && kind != self.draft.data() {
            self.state = State::Skip(length);
            return Ok(());
        }
        if self.last {
            return Err(AfterEnd);
        }
        self.last = is_last;
        self.state = State::Payload(length);
        Ok(())
    }

    /// Whether the sender has finished: all of FINAL_DATA is there.
    pub fn has_ended(&self) -> bool {
        self.last && !matches!(self.state, State::Payload(1..))
    }
}

fn within(left: u64, there: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capsule::raw;
    use proptest::prelude::*;

    /// What is read from `bytes` in pieces, and whether it has ended.
    fn read(draft: Draft, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, bool), AfterEnd> {
        let (mut reader, mut payload) = (Reader::new(draft), Vec::new());
        for chunk in bytes.chunks(piece.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(part) = reader.next(&mut input)? {
                assert!(!part.is_empty());
                payload.extend_from_slice(&part);
            }
        }
        Ok((payload, reader.has_ended()))
    }

    #[test]
    fn a_payload_is_handed_on_before_its_capsule_is_complete_and_unknown_capsules_are_skipped() {
        let begun = [
            &raw(0x1234, &[9; 70_000])[..],
            &raw(0x2028_d7f2, b"abc")[..7],
        ]
        .concat();
        assert_eq!(read(Draft::D12, &begun, 9), Ok((b"ab".to_vec(), false)));
        let of_another = raw(0x2028_d7f0, b"abc");
        assert_eq!(read(Draft::D12, &of_another, 9), Ok((vec![], false)));
    }

    #[test]
    fn the_end_is_the_end_of_final_data_and_nothing_of_the_stream_may_follow() {
        let last = raw(0x2028_d7f1, b"bye");
        assert_eq!(read(Draft::D08, &last[..7], 9), Ok((b"by".to_vec(), false)));
        assert_eq!(read(Draft::D08, &last, 1), Ok((b"bye".to_vec(), true)));
        let more = |kind| [last.clone(), raw(kind, b"")].concat();
        assert_eq!(read(Draft::D08, &more(0x2028_d7f0), 9), Err(AfterEnd));
        assert_eq!(read(Draft::D08, &more(0x2028_d7f1), 9), Err(AfterEnd));
        assert_eq!(
            read(Draft::D08, &more(0x21), 9),
            Ok((b"bye".to_vec(), true))
        );
    }

    #[test]
    fn an_endless_capsule_is_carried_and_never_kept() {
        let mut bytes = Vec::new();
        varint::write(&mut bytes, 0x2028_d7f3);
        varint::write(&mut bytes, varint::MAX);
        bytes.extend([7; 10_000]);
        assert_eq!(read(Draft::D12, &bytes, 100), Ok((vec![7; 10_000], false)));
    }

    #[test]
    fn a_token_names_its_draft_whatever_its_case() {
        for draft in Draft::ALL {
            assert_eq!(Draft::of(draft.token()), Some(draft));
            assert_eq!(Draft::of(&draft.token().to_uppercase()), Some(draft));
        }
        assert_eq!(Draft::of("connect-tcp-99"), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8), piece in 1_usize..1000, draft in proptest::sample::select(&Draft::ALL[..])) {
            let mut out = Vec::new();
            for payload in &payloads {
                let before = out.len();
                draft.write_data_head(&mut out, payload.len());
                prop_assert!(out.len() - before <= OVERHEAD);
                out.extend_from_slice(payload);
            }
            prop_assert_eq!(read(draft, &out, piece), Ok((payloads.concat(), false)));
            draft.write_end(&mut out);
            prop_assert_eq!(read(draft, &out, piece), Ok((payloads.concat(), true)));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, piece in 1_usize..40) {
            for draft in Draft::ALL {
                drop(read(draft, &bytes, piece));
            }
        }
    }
}
