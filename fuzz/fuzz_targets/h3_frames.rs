//! Frames of both kinds of streams, and HTTP Datagrams: however bytes are cut, the reader comes to the same end.
#![no_main]

use bytes::Bytes;
use hoplite_wire::{
    h3::{Code, Frame, FrameReader, Place},
    http_datagram,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for place in [Place::Control, Place::Request] {
        assert_eq!(read(place, bytes, bytes.len()), read(place, bytes, 3));
    }
    if let Some((id, rest)) = http_datagram::split(Bytes::copy_from_slice(bytes)) {
        assert_eq!(id % 4, 0);
        drop(http_datagram::udp(rest));
    }
});

/// All frames, DATA joined, and how the stream ended.
fn read(place: Place, bytes: &[u8], size: usize) -> (Vec<Frame>, Vec<u8>, Result<bool, Code>) {
    let (mut reader, mut frames, mut data) = (FrameReader::new(place, 128), Vec::new(), Vec::new());
    for chunk in bytes.chunks(size.max(1)) {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match reader.next(&mut input) {
                Ok(Some(Frame::Data(payload))) => data.extend_from_slice(&payload),
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(code) => return (frames, data, Err(code)),
            }
        }
    }
    (frames, data, Ok(reader.is_between_frames()))
}
