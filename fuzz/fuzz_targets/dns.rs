//! Every parser of `wire::dns`: queries of programs and clients, replies of resolvers. What is asked on is read again as the same
//! question, what is replied answers it, and no reply by datagram is too large for it.
#![no_main]

use std::net::IpAddr;

use hoplite_wire::{
    HostName,
    dns::{Code, Question, RecordType, Unfit},
    special::is_or_carries_special,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Question::read(bytes) {
        Ok(question) => query(&question),
        Err(Unfit::Answered(reply)) => assert!(reply.len() >= 12),
        Err(Unfit::Nothing) => {}
    }
    // The input as a reply to a question that it may well answer: seeds do.
    let name = HostName::new("a.example").expect("valid");
    for kind in [RecordType::A, RecordType::HTTPS] {
        reply(&Question::new(&name, kind), bytes);
    }
});

fn query(question: &Question) {
    let again = Question::read(&question.message()).expect("what was written is read");
    assert_eq!(again.text(), question.text());
    assert_eq!(again.kind(), question.kind());
    let addresses = (0..=255).map(|n| IpAddr::from([192, 0, 2, n]));
    for whole in [
        question.addresses(addresses, 60),
        question.nothing(Code::NO_NAME, 30),
        question.failed(Code::FAILURE),
    ] {
        question.heard(&whole).expect("an answer to the question");
        let cut = question.fitted(whole, question.datagram());
        assert!(cut.len() <= question.datagram());
    }
    drop((question.name(), question.reverse()));
}

fn reply(question: &Question, bytes: &[u8]) {
    let Ok(adopted) = question.adopt(bytes, |ip| !is_or_carries_special(ip)) else {
        return;
    };
    let (_, addresses) = question.heard(&adopted).expect("what was adopted is read");
    assert!(addresses.into_iter().all(|ip| !is_or_carries_special(ip)));
}
