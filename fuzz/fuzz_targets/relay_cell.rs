//! Relay messages: the body of a cell, decrypted to anything. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::cell::{
    BODY,
    relay::{self, Format, Header, Message},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut body = [0; BODY];
    body.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    read(Format::V0, &body);
    read(Format::V1, &body);
});

fn read(format: Format, body: &[u8; BODY]) {
    let Ok(header) = Header::read(format, body) else {
        assert_eq!(format, Format::V1);
        return;
    };
    let Ok(data) = header.data(body) else {
        assert!(usize::from(header.length) > format.most(header.command));
        return;
    };
    let Ok(message) = Message::parse(header.command, data) else {
        return;
    };
    assert_eq!(message.command(), header.command);
    let mut out = Vec::new();
    message.write(&mut out);
    let mut again = [0xff; BODY];
    let written = relay::write(format, &mut again, message.command(), header.stream, &out);
    written.expect("it came in a cell");
    let header = Header::read(format, &again).expect("it was written");
    let data = header.data(&again).expect("it was written");
    assert_eq!(Message::parse(header.command, data), Ok(message));
}
