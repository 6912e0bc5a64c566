//! HTTP/3 frames: an incremental reader that hands out DATA payloads as they come, and the writers.
//! `masque::h3` keeps one reader per control or request stream.
//! RFC 9114 §7.2; PRIORITY_UPDATE: RFC 9218 §7.2.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Code, Settings};
use crate::varint::{self, HeadReader};

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const CANCEL_PUSH: u64 = 0x03;
pub(super) const SETTINGS: u64 = 0x04;
const PUSH_PROMISE: u64 = 0x05;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
const PRIORITY_UPDATE_REQUEST: u64 = 0xf_0700;
const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

/// Which kind of stream a reader reads: it decides which frames are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The peer's control stream.
    Control,
    /// A request stream, either direction.
    Request,
}

/// A frame, or a piece of a DATA frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Some payload of a DATA frame, never empty; frame boundaries mean nothing.
    Data(Bytes),
    /// A whole field section.
    Headers(Bytes),
    /// The peer's settings.
    Settings(Settings),
    /// The identifier of the first request, or push, that is not handled any more.
    Goaway(u64),
    /// The peer would take pushes up to this identifier.
    MaxPushId(u64),
    /// A push is no longer wanted.
    CancelPush(u64),
}

/// Cuts a stream into frames. Unknown frames are skipped without being kept; known ones other than DATA are kept up to a
/// limit, above which the reader fails with [`Code::EXCESSIVE_LOAD`].
#[derive(Debug)]
pub struct FrameReader {
    place: Place,
    limit: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Head(HeadReader),
    Data {
        left: u64,
    },
    Skip {
        left: u64,
    },
    Keep {
        kind: u64,
        left: usize,
        kept: BytesMut,
    },
}

impl FrameReader {
    /// A reader at the start of a stream. `limit`: the largest payload kept, in octets.
    pub fn new(place: Place, limit: usize) -> Self {
        Self {
            place,
            limit,
            state: State::Head(HeadReader::default()),
        }
    }

    /// The next frame out of `input`; `None` when all of it is taken and more is needed.
    ///
    /// # Errors
    /// The code with which the connection is to be closed; the reader must not be used again.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Frame>, Code> {
        loop {
            match &mut self.state {
                State::Head(head) => {
                    let Some((kind, length)) = head.read(input) else {
                        return Ok(None);
                    };
                    self.state = self.begin(kind, length)?;
                }
                State::Data { left: 0 } | State::Skip { left: 0 } => {
                    self.state = State::Head(HeadReader::default())
                }
                State::Keep {
                    kind,
                    left: 0,
                    kept,
                } => {
                    let (kind, payload) = (*kind, std::mem::take(kept).freeze());
                    self.state = State::Head(HeadReader::default());
                    return Self::finish(kind, payload).map(Some);
                }
                _ if input.is_empty() => return Ok(None),
                State::Data { left } => return Ok(Some(Frame::Data(take(input, left)))),
                State::Skip { left } => drop(take(input, left)),
                State::Keep { left, kept, .. } => {
                    let now = input.len().min(*left);
                    kept.put(input.split_to(now));
                    *left = left.saturating_sub(now);
                }
            }
        }
    }

    /// Whether the stream may end here: "Each frame's payload MUST contain exactly the fields" (RFC 9114 §7.1).
    pub fn is_between_frames(&self) -> bool {
        match &self.state {
            State::Head(head) => !head.has_part(),
            State::Data { left } | State::Skip { left } => *left == 0,
            State::Keep { .. } => false,
        }
    }

    fn begin(&self, kind: u64, length: u64) -> Result<State, Code> {
        let known = match (kind, self.place) {
            (DATA, Place::Request) => return Ok(State::Data { left: length }),
            (HEADERS, Place::Request) => true,
            (SETTINGS | GOAWAY | MAX_PUSH_ID | CANCEL_PUSH, Place::Control) => true,
            (PRIORITY_UPDATE_REQUEST | PRIORITY_UPDATE_PUSH, Place::Control) => false,
            // "A client MUST treat receipt of a PUSH_PROMISE frame that contains a larger push ID than the client has
            // advertised as a connection error of H3_ID_ERROR": nobody here advertises any, and a server never gets one.
            (PUSH_PROMISE, Place::Request) => return Err(Code::ID_ERROR),
            // 0x02, 0x06, 0x08, 0x09: frames of HTTP/2 without a counterpart, RFC 9114 §7.2.8.
            (0x00..=0x09 | MAX_PUSH_ID | PRIORITY_UPDATE_REQUEST | PRIORITY_UPDATE_PUSH, _) => {
                return Err(Code::FRAME_UNEXPECTED);
            }
            _ => false,
        };
        match usize::try_from(length) {
            _ if !known => Ok(State::Skip { left: length }),
            Ok(left) if left <= self.limit => Ok(State::Keep {
                kind,
                left,
                kept: BytesMut::new(),
            }),
            _ => Err(Code::EXCESSIVE_LOAD),
        }
    }

    fn finish(kind: u64, payload: Bytes) -> Result<Frame, Code> {
        Ok(match kind {
            HEADERS => Frame::Headers(payload),
            SETTINGS => Frame::Settings(Settings::parse(&payload)?),
            GOAWAY => Frame::Goaway(only_integer(payload)?),
            MAX_PUSH_ID => Frame::MaxPushId(only_integer(payload)?),
            _ => Frame::CancelPush(only_integer(payload)?),
        })
    }
}

fn take(input: &mut Bytes, left: &mut u64) -> Bytes {
    let now = usize::try_from(*left)
        .unwrap_or(usize::MAX)
        .min(input.len());
    *left = left.saturating_sub(now as u64);
    input.split_to(now)
}

fn only_integer(mut payload: Bytes) -> Result<u64, Code> {
    let value = varint::read(&mut payload).ok_or(Code::FRAME_ERROR)?;
    match payload.has_remaining() {
        true => Err(Code::FRAME_ERROR),
        false => Ok(value),
    }
}

pub(super) fn write_head(out: &mut impl BufMut, kind: u64, length: usize) {
    varint::write(out, kind);
    varint::write(out, length as u64);
}

/// Writes the head of a DATA frame; `length` octets of payload must follow.
pub fn write_data_head(out: &mut impl BufMut, length: usize) {
    write_head(out, DATA, length);
}

/// Writes a HEADERS frame around an encoded field section.
pub fn write_headers(out: &mut impl BufMut, section: &[u8]) {
    write_head(out, HEADERS, section.len());
    out.put_slice(section);
}

/// Writes a GOAWAY frame.
pub fn write_goaway(out: &mut impl BufMut, id: u64) {
    write_head(out, GOAWAY, varint::len(id));
    varint::write(out, id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(&mut out, kind, payload.len());
        out.extend_from_slice(payload);
        out
    }

    fn read_all(place: Place, octets: &[u8], piece: usize) -> Result<(Vec<Frame>, bool), Code> {
        let (mut reader, mut frames) = (FrameReader::new(place, 64), Vec::new());
        for chunk in octets.chunks(piece.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(frame) = reader.next(&mut input)? {
                match (frames.last_mut(), frame) {
                    (Some(Frame::Data(all)), Frame::Data(more)) => {
                        *all = [&all[..], &more[..]].concat().into()
                    }
                    (_, frame) => frames.push(frame),
                }
            }
        }
        Ok((frames, reader.is_between_frames()))
    }

    #[test]
    fn frames_on_the_wrong_stream_are_refused() {
        let cases = [
            (Place::Control, DATA, Code::FRAME_UNEXPECTED),
            (Place::Control, HEADERS, Code::FRAME_UNEXPECTED),
            (Place::Control, PUSH_PROMISE, Code::FRAME_UNEXPECTED),
            (Place::Control, 0x02, Code::FRAME_UNEXPECTED),
            (Place::Request, SETTINGS, Code::FRAME_UNEXPECTED),
            (Place::Request, GOAWAY, Code::FRAME_UNEXPECTED),
            (Place::Request, MAX_PUSH_ID, Code::FRAME_UNEXPECTED),
            (Place::Request, 0x06, Code::FRAME_UNEXPECTED),
            (
                Place::Request,
                PRIORITY_UPDATE_REQUEST,
                Code::FRAME_UNEXPECTED,
            ),
            (Place::Request, PUSH_PROMISE, Code::ID_ERROR),
        ];
        for (place, kind, code) in cases {
            assert_eq!(
                read_all(place, &raw(kind, &[0]), 9),
                Err(code),
                "{kind:#x} {place:?}"
            );
        }
    }

    #[test]
    fn a_field_section_above_the_limit_is_refused_before_it_arrives() {
        assert_eq!(
            read_all(Place::Request, &[0x01, 0x40, 0x41], 9),
            Err(Code::EXCESSIVE_LOAD)
        );
    }

    #[test]
    fn unknown_frames_of_any_size_are_skipped_and_data_is_not_limited() {
        let octets = [
            raw(0x21, &[7; 300]),
            raw(DATA, &[1; 200]),
            raw(PRIORITY_UPDATE_REQUEST + 2, b""),
        ]
        .concat();
        let expected = vec![Frame::Data(Bytes::from_static(&[1; 200]))];
        for piece in [1, 7, 1000] {
            assert_eq!(
                read_all(Place::Request, &octets, piece),
                Ok((expected.clone(), true))
            );
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_noticed() {
        for cut in [
            &[0x40][..],
            &[0x01],
            &[0x01, 3, 0],
            &[0x00, 2, 1],
            &[0x21, 2, 1],
        ] {
            assert!(
                !read_all(Place::Request, cut, 9).expect("no error yet").1,
                "{cut:?}"
            );
        }
    }

    #[test]
    fn goaway_with_a_tail_or_without_a_number_is_refused() {
        for payload in [&[1, 2][..], &[], &[0x40]] {
            assert_eq!(
                read_all(Place::Control, &raw(GOAWAY, payload), 9),
                Err(Code::FRAME_ERROR)
            );
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(section in proptest::collection::vec(any::<u8>(), 0..64), data in proptest::collection::vec(any::<u8>(), 1..500), piece in 1_usize..600) {
            let mut out = Vec::new();
            write_headers(&mut out, &section);
            write_data_head(&mut out, data.len());
            out.extend_from_slice(&data);
            let expected = vec![Frame::Headers(section.into()), Frame::Data(data.into())];
            prop_assert_eq!(read_all(Place::Request, &out, piece), Ok((expected, true)));
        }

        #[test]
        fn goaway_is_read_back(id in 0..=varint::MAX, piece in 1_usize..10) {
            let mut out = Vec::new();
            write_goaway(&mut out, id);
            prop_assert_eq!(read_all(Place::Control, &out, piece), Ok((vec![Frame::Goaway(id)], true)));
        }

        #[test]
        fn any_octets_are_read_without_a_panic(octets: Vec<u8>, piece in 1_usize..40, control: bool) {
            let place = if control { Place::Control } else { Place::Request };
            drop(read_all(place, &octets, piece));
        }
    }
}
