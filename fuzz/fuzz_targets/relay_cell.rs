//! Relay messages: the body of a cell, decrypted to anything. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::cell::{
    BODY, DATA,
    relay::{self, Header, Message},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut body = [0; BODY];
    body.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let header = Header::read(&body);
    let Ok(data) = header.data(&body) else {
        assert!(usize::from(header.length) > DATA);
        return;
    };
    let Ok(message) = Message::parse(header.command, data) else {
        return;
    };
    assert_eq!(message.command(), header.command);
    let mut out = Vec::new();
    message.write(&mut out);
    let mut again = [0xff; BODY];
    relay::write(&mut again, message.command(), header.stream, &out).expect("it came in a cell");
    let header = Header::read(&again);
    let data = header.data(&again).expect("it was written");
    assert_eq!(Message::parse(header.command, data), Ok(message));
});
