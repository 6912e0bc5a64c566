//! Messages of onion services, as relays, clients and services read them. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::cell::{
    datagram,
    onion_service::{
        EstablishIntro, Introduce, IntroduceStatus, Introduction, Rendezvous1, begin,
        establish_rendezvous, write_begin,
    },
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut out = Vec::new();
    if let Ok(read) = EstablishIntro::parse(bytes) {
        EstablishIntro::write_authenticated(&read.auth_key, read.rate, &mut out);
        out.extend(read.mac);
        out.extend([0, 64]);
        out.extend(read.signature);
        let again = EstablishIntro::parse(&out).expect("it was written");
        assert_eq!((again.auth_key, again.rate), (read.auth_key, read.rate));
        assert!(read.signed.starts_with(read.authenticated));
        assert!(bytes.starts_with(read.signed));
    }
    if let Ok(read) = Introduce::parse(bytes) {
        out.clear();
        read.write(&mut out);
        assert_eq!(Introduce::parse(&out), Ok(read));
    }
    if let Ok(read) = Rendezvous1::parse(bytes) {
        out.clear();
        read.write(&mut out);
        assert_eq!(out, bytes);
    }
    if let Ok(read) = Introduction::parse(bytes) {
        let written = read.write();
        assert_eq!(Introduction::parse(&written), Ok(read));
    }
    if let Ok(port) = begin(bytes) {
        out.clear();
        write_begin(port, &mut out);
        assert_eq!(begin(&out), Ok(port));
    }
    if let Ok(port) = datagram::port(bytes) {
        out.clear();
        datagram::write_port(port, &mut out);
        assert_eq!(datagram::port(&out), Ok(port));
    }
    let _ = (IntroduceStatus::parse(bytes), establish_rendezvous(bytes));
});
