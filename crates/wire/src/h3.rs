//! HTTP/3 without its connection: frames, settings, error codes.
//! RFC 9114, with RFC 9220 (Extended CONNECT) and RFC 9297 (HTTP Datagrams).

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name that the standard gives it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::varint::{self, HeadReader};

/// Kinds of unidirectional streams, RFC 9114 §6.2 and RFC 9204 §4.2.
pub mod stream {
    /// Carries settings and GOAWAY.
    pub const CONTROL: u64 = 0x00;
    /// Carries a pushed response; nobody here asks for one.
    pub const PUSH: u64 = 0x01;
    /// Carries insertions into the dynamic table; ours has room for none.
    pub const QPACK_ENCODER: u64 = 0x02;
    /// Carries acknowledgements of insertions.
    pub const QPACK_DECODER: u64 = 0x03;
}

// The error codes that close a connection or reset a stream.
// RFC 9114 §8.1, RFC 9204 §6, RFC 9297 §5.2, RFC 9298 has none of its own.

/// An HTTP/3 error code; unknown ones are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

codes! {
    /// Nothing is wrong.
    NO_ERROR = 0x100, "H3_NO_ERROR";
    /// A breach for which there is no better code.
    GENERAL_PROTOCOL_ERROR = 0x101, "H3_GENERAL_PROTOCOL_ERROR";
    /// Our own mistake.
    INTERNAL_ERROR = 0x102, "H3_INTERNAL_ERROR";
    /// A stream that must not be opened, or not twice.
    STREAM_CREATION_ERROR = 0x103, "H3_STREAM_CREATION_ERROR";
    /// A control or QPACK stream ended.
    CLOSED_CRITICAL_STREAM = 0x104, "H3_CLOSED_CRITICAL_STREAM";
    /// A frame that is not allowed here or now.
    FRAME_UNEXPECTED = 0x105, "H3_FRAME_UNEXPECTED";
    /// A frame whose layout or size is wrong.
    FRAME_ERROR = 0x106, "H3_FRAME_ERROR";
    /// The peer asks too much of us.
    EXCESSIVE_LOAD = 0x107, "H3_EXCESSIVE_LOAD";
    /// An identifier that was misused.
    ID_ERROR = 0x108, "H3_ID_ERROR";
    /// Settings that contradict the rules.
    SETTINGS_ERROR = 0x109, "H3_SETTINGS_ERROR";
    /// The control stream does not begin with settings.
    MISSING_SETTINGS = 0x10a, "H3_MISSING_SETTINGS";
    /// The server did not look at the request: it may be sent again.
    REQUEST_REJECTED = 0x10b, "H3_REQUEST_REJECTED";
    /// The request is no longer wanted.
    REQUEST_CANCELLED = 0x10c, "H3_REQUEST_CANCELLED";
    /// The stream ended before the request did.
    REQUEST_INCOMPLETE = 0x10d, "H3_REQUEST_INCOMPLETE";
    /// A malformed message.
    MESSAGE_ERROR = 0x10e, "H3_MESSAGE_ERROR";
    /// The TCP connection behind a CONNECT was reset.
    CONNECT_ERROR = 0x10f, "H3_CONNECT_ERROR";
    /// Use another version of HTTP.
    VERSION_FALLBACK = 0x110, "H3_VERSION_FALLBACK";
    /// A field section that cannot be read.
    QPACK_DECOMPRESSION_FAILED = 0x200, "QPACK_DECOMPRESSION_FAILED";
    /// An instruction on the encoder stream that cannot be obeyed.
    QPACK_ENCODER_STREAM_ERROR = 0x201, "QPACK_ENCODER_STREAM_ERROR";
    /// An instruction on the decoder stream that cannot be obeyed.
    QPACK_DECODER_STREAM_ERROR = 0x202, "QPACK_DECODER_STREAM_ERROR";
    /// An HTTP Datagram that names no possible stream.
    DATAGRAM_ERROR = 0x33, "H3_DATAGRAM_ERROR";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// SETTINGS: what each end announces once, at the start of its control stream.
// RFC 9114 §7.2.4, RFC 9204 §5, RFC 9220 §3, RFC 9297 §2.1.1.

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;

const MAX_FIELD_SECTION_SIZE: u64 = 0x06;

const QPACK_BLOCKED_STREAMS: u64 = 0x07;

const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;

const H3_DATAGRAM: u64 = 0x33;

/// The id of H3_DATAGRAM in draft 04 of RFC 9297; some clients still send both.
const H3_DATAGRAM_DRAFT: u64 = 0xff_d277;

/// No specification has it, and nobody else does: how the ends of a tunnel tune their connection (see [`crate::tuning`]).
const TUNING: u64 = 0x2a71_5c3e_90d6_4b18;

/// 0x1f * N + 0x21: must be ignored, so that ignoring stays possible (RFC 9114 §7.2.4.1).
const GREASE: u64 = 0x1f * 0x0451 + 0x21;

/// The settings that matter here; others are ignored. The QPACK dynamic table is never used, whatever the peer offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// QUIC DATAGRAM frames carry HTTP Datagrams.
    pub datagrams: bool,
    /// The server takes Extended CONNECT.
    pub extended_connect: bool,
    /// The largest field section that the sender of the settings accepts, in bytes as RFC 9114 §4.2.2 counts.
    pub max_field_section: Option<u64>,
    /// What the sender wishes or grants; see [`crate::tuning`].
    pub tuning: Option<u64>,
}

impl Settings {
    /// Reads the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// [`Code::FRAME_ERROR`] when it is cut short, [`Code::SETTINGS_ERROR`] when its content breaks a rule.
    pub fn parse(mut payload: &[u8]) -> Result<Self, Code> {
        let (mut settings, mut seen) = (Self::default(), Vec::new());
        while !payload.is_empty() {
            let id = varint::read(&mut payload).ok_or(Code::FRAME_ERROR)?;
            let value = varint::read(&mut payload).ok_or(Code::FRAME_ERROR)?;
            seen.push(id);
            settings.set(id, value)?;
        }
        // "The same setting identifier MUST NOT occur more than once in the SETTINGS frame."
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair.first() == pair.last()) {
            Err(Code::SETTINGS_ERROR)
        } else {
            Ok(settings)
        }
    }

    fn set(&mut self, id: u64, value: u64) -> Result<(), Code> {
        match id {
            H3_DATAGRAM => self.datagrams |= flag(value)?,
            H3_DATAGRAM_DRAFT => self.datagrams |= value == 1,
            ENABLE_CONNECT_PROTOCOL => self.extended_connect = flag(value)?,
            MAX_FIELD_SECTION_SIZE => self.max_field_section = Some(value),
            TUNING => self.tuning = Some(value),
            // "Setting identifiers that were defined in [HTTP/2] where there is no corresponding HTTP/3 setting
            // have also been reserved. […] their receipt MUST be treated as a connection error of type H3_SETTINGS_ERROR."
            0x00 | 0x02..=0x05 => return Err(Code::SETTINGS_ERROR),
            _ => {}
        }
        Ok(())
    }

    /// Writes the SETTINGS frame, with one setting and one frame after it that mean nothing.
    pub fn write(&self, out: &mut BytesMut) {
        let mut payload = BytesMut::new();
        let mut put = |id, value| {
            varint::write(&mut payload, id);
            varint::write(&mut payload, value);
        };
        put(QPACK_MAX_TABLE_CAPACITY, 0);
        put(QPACK_BLOCKED_STREAMS, 0);
        put(H3_DATAGRAM, self.datagrams.into());
        if self.extended_connect {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        if let Some(size) = self.max_field_section {
            put(MAX_FIELD_SECTION_SIZE, size);
        }
        if let Some(tuning) = self.tuning {
            put(TUNING, tuning);
        }
        put(GREASE, 0);
        write_head(out, SETTINGS, payload.len());
        out.put_slice(&payload);
        write_head(out, GREASE, 0);
    }
}

fn flag(value: u64) -> Result<bool, Code> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::SETTINGS_ERROR),
    }
}

// HTTP/3 frames: an incremental reader that hands out DATA payloads as they come, and the writers.
// One reader for each control or request stream.
// RFC 9114 §7.2; PRIORITY_UPDATE: RFC 9218 §7.2.

const DATA: u64 = 0x00;

const HEADERS: u64 = 0x01;

const CANCEL_PUSH: u64 = 0x03;

const SETTINGS: u64 = 0x04;

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
    /// A reader at the start of a stream. `limit`: the largest payload kept, in bytes.
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
    if payload.has_remaining() {
        Err(Code::FRAME_ERROR)
    } else {
        Ok(value)
    }
}

fn write_head(out: &mut impl BufMut, kind: u64, length: usize) {
    varint::write(out, kind);
    varint::write(out, length as u64);
}

/// Writes the head of a DATA frame; `length` bytes of payload must follow.
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
    use proptest::prelude::*;

    use super::*;

    fn payload(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in pairs {
            varint::write(&mut out, *id);
            varint::write(&mut out, *value);
        }
        out
    }

    #[test]
    fn unknown_settings_and_the_draft_id_of_datagrams_are_understood() {
        let settings =
            Settings::parse(&payload(&[(0xffd277, 1), (0x1234_5678, 9)])).expect("valid");
        assert!(settings.datagrams && !settings.extended_connect);
    }

    #[test]
    fn settings_that_break_a_rule_are_refused() {
        for pairs in [
            &[(0x33, 2)][..],
            &[(0x02, 0)],
            &[(0x04, 9)],
            &[(8, 7)],
            &[(6, 1), (6, 1)],
        ] {
            assert_eq!(
                Settings::parse(&payload(pairs)),
                Err(Code::SETTINGS_ERROR),
                "{pairs:?}"
            );
        }
        assert_eq!(Settings::parse(&[0x33]), Err(Code::FRAME_ERROR));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(datagrams: bool, extended_connect: bool, size in proptest::option::of(0..=varint::MAX), tuning in proptest::option::of(0..=varint::MAX)) {
            let settings = Settings { datagrams, extended_connect, max_field_section: size, tuning };
            let mut out = BytesMut::new();
            settings.write(&mut out);
            let mut input = out.freeze();
            let mut reader = FrameReader::new(Place::Control, 1024);
            prop_assert_eq!(reader.next(&mut input), Ok(Some(Frame::Settings(settings))));
            prop_assert_eq!(reader.next(&mut input), Ok(None));
            prop_assert!(reader.is_between_frames());
        }

        #[test]
        fn any_bytes_are_read_as_settings_without_a_panic(bytes: Vec<u8>) {
            prop_assert!(Settings::parse(&bytes).is_ok() || !bytes.is_empty());
        }
    }

    fn raw(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(&mut out, kind, payload.len());
        out.extend_from_slice(payload);
        out
    }

    fn read_all(place: Place, bytes: &[u8], piece: usize) -> Result<(Vec<Frame>, bool), Code> {
        let (mut reader, mut frames) = (FrameReader::new(place, 64), Vec::new());
        for chunk in bytes.chunks(piece.max(1)) {
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
        let bytes = [
            raw(0x21, &[7; 300]),
            raw(DATA, &[1; 200]),
            raw(PRIORITY_UPDATE_REQUEST + 2, b""),
        ]
        .concat();
        let expected = vec![Frame::Data(Bytes::from_static(&[1; 200]))];
        for piece in [1, 7, 1000] {
            assert_eq!(
                read_all(Place::Request, &bytes, piece),
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
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, piece in 1_usize..40, control: bool) {
            let place = if control { Place::Control } else { Place::Request };
            drop(read_all(place, &bytes, piece));
        }
    }
}
