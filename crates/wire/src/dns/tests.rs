use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// `Name. A? IN`, as a stub resolver writes it: id 0x1234, recursion desired.
fn plain(name: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0x12, 0x34, 0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).expect("short"));
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    out
}

/// A query with EDNS.
fn extended(name: &str, kind: u16, payload: u16, version: u8) -> Vec<u8> {
    let mut out = plain(name, kind);
    out[11] = 1;
    let [high, low] = payload.to_be_bytes();
    out.extend_from_slice(&[0, 0, 41, high, low, 0, version, 0x80, 0, 0, 0]);
    out
}

fn read(bytes: &[u8]) -> Question {
    Question::read(bytes).expect("a question")
}

fn parsed(reply: &[u8]) -> Message {
    Message::from_vec(reply).expect("a message")
}

fn all(_: IpAddr) -> bool {
    true
}

#[test]
fn a_question_is_read_as_it_was_asked() {
    let question = read(&plain("WWW.Example.org", 1));
    assert_eq!(question.id(), 0x1234);
    assert_eq!(question.kind(), RecordType::A);
    let name = question.name().expect("a host's");
    assert_eq!(name.as_str(), "www.example.org");
    assert_eq!(question.text(), "www.example.org");
    assert_eq!(question.datagram(), 512);
    assert!(question.is_internet());
}

#[test]
fn the_reply_repeats_id_and_spelling_and_has_the_wanted_family_only() {
    let question = read(&plain("WWW.Example.org", 28));
    let reply = parsed(&question.addresses([V4, V6], 60));
    assert_eq!(reply.metadata.id, 0x1234);
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    assert!(reply.metadata.recursion_available && reply.metadata.recursion_desired);
    assert_eq!(reply.queries[0].name.to_ascii(), "WWW.Example.org.");
    let told: Vec<_> = reply
        .answers
        .iter()
        .map(|r| (r.data.ip_addr(), r.ttl))
        .collect();
    assert_eq!(told, [(Some(V6), 60)]);
    assert!(reply.edns.is_none());
}

#[test]
fn who_speaks_edns_is_answered_in_it() {
    let question = read(&extended("a.example", 1, 4096, 0));
    assert_eq!(question.datagram(), 1232, "no more than passes everywhere");
    let reply = parsed(&question.addresses([V4], 60));
    assert_eq!(reply.edns.expect("EDNS").max_payload(), 1232);
    assert_eq!(read(&extended("a.example", 1, 100, 0)).datagram(), 512);
}

#[test]
fn an_unknown_version_of_edns_is_told_so() {
    let unfit = Question::read(&extended("a.example", 1, 1232, 1)).expect_err("version 1");
    let Unfit::Answered(reply) = unfit else {
        unreachable!("it has an answer");
    };
    let code = u16::from(parsed(&reply).metadata.response_code);
    assert_eq!(code, 16, "BADVERS");
}

#[test]
fn what_is_no_question_gets_no_answer_or_an_error() {
    let code = |bytes: &[u8]| match Question::read(bytes) {
        Err(Unfit::Answered(reply)) => Some(reply[3] & 0x0f),
        Err(Unfit::Nothing) => None,
        Ok(_) => Some(255),
    };
    let query = plain("a.example", 1);
    assert_eq!(code(&query), Some(255));
    assert_eq!(code(b""), None);
    assert_eq!(code(&query[..11]), None);
    assert_eq!(code(&query[..15]), Some(1), "cut off");
    let changed = |at: usize, byte: u8| {
        let mut query = query.clone();
        query[at] = byte;
        query
    };
    assert_eq!(code(&changed(2, 0x81)), None, "an answer");
    assert_eq!(code(&changed(2, 0x29)), Some(4), "an update");
    assert_eq!(code(&changed(5, 0)), Some(1), "no question");
    assert_eq!(code(&changed(5, 2)), Some(1), "two questions");
    assert_eq!(code(&changed(4, 255)), Some(1), "very many questions");
    assert_eq!(code(&changed(12, 0xc0)), Some(1), "a name that is a loop");
}

#[test]
fn a_negative_answer_may_be_kept_for_as_long_as_it_says() {
    let question = read(&plain("a.example", 65));
    let reply = parsed(&question.nothing(Code::NO_NAME, 30));
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    let RData::SOA(soa) = &reply.authorities[0].data else {
        unreachable!("a SOA");
    };
    assert_eq!((soa.minimum, reply.authorities[0].ttl), (30, 30));
}

#[test]
fn a_reply_that_does_not_fit_is_cut_and_marked() {
    let question = read(&plain("a.example", 1));
    let many = (0..=255).map(|n| IpAddr::from([192, 0, 2, n]));
    let whole = question.addresses(many, 60);
    assert!(whole.len() > 512);
    assert_eq!(question.fitted(whole.clone(), MAX_MESSAGE), whole);
    let cut = question.fitted(whole, question.datagram());
    assert!(cut.len() <= 512);
    let cut = parsed(&cut);
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    assert_eq!(cut.queries.len(), 1);
}

#[test]
fn what_is_asked_in_our_name_tells_nothing_of_the_asker() {
    let mut query = extended("A.example", 1, 4096, 0);
    // A cookie (RFC 7873).
    let at = query.len() - 1;
    query[at] = 12;
    query.extend_from_slice(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    let asked = parsed(&read(&query).message());
    assert_eq!(asked.metadata.id, 0);
    let edns = asked.edns.expect("EDNS");
    assert!(edns.options().as_ref().is_empty(), "no cookie goes on");
    assert!(edns.flags().dnssec_ok);
}

#[test]
fn a_reply_is_adopted_only_for_its_own_question() {
    let asker = read(&plain("a.EXAMPLE", 1));
    let reply = read(&asker.message()).addresses([V4], 77);
    let adopted = asker.adopt(&reply, all).expect("its own");
    assert_eq!(parsed(&adopted).metadata.id, 0x1234);
    assert_eq!(asker.heard(&reply), Ok((Code::NO_ERROR, vec![V4])));
    for other in [plain("b.example", 1), plain("a.example", 28)] {
        assert_eq!(read(&other).heard(&reply), Err(Unbelieved::Other));
    }
    let query = asker.message();
    assert_eq!(asker.heard(&query), Err(Unbelieved::Other), "no answer");
    assert_eq!(asker.heard(&reply[..20]), Err(Unbelieved::Malformed));
}

#[test]
fn addresses_that_are_not_fine_are_dropped_and_an_answer_of_nothing_else_is_refused() {
    let asker = read(&plain("a.example", 1));
    let inside = IpAddr::from([192, 168, 0, 1]);
    let fine = |ip| ip != inside;
    let mixed = asker.addresses([inside, V4], 60);
    let adopted = asker.adopt(&mixed, fine).expect("read");
    assert_eq!(asker.heard(&adopted), Ok((Code::NO_ERROR, vec![V4])));
    let adopted = asker
        .adopt(&asker.addresses([inside], 60), fine)
        .expect("read");
    assert_eq!(asker.heard(&adopted), Ok((Code::REFUSED, vec![])));
}

#[test]
fn reverse_names_are_read_as_addresses() {
    let reverse = |name: &str| read(&plain(name, 12)).reverse();
    let v4 = IpAddr::from([198, 18, 3, 4]);
    assert_eq!(reverse("4.3.18.198.in-addr.arpa"), Some((v4, 32)));
    let net = IpAddr::from([10, 0, 0, 0]);
    assert_eq!(reverse("10.in-addr.arpa"), Some((net, 8)));
    let one = "1.".to_owned() + &"0.".repeat(31) + "IP6.arpa";
    assert_eq!(reverse(&one), Some((V6, 128)));
    assert_eq!(reverse("www.example"), None);
}

#[test]
fn debug_output_does_not_name_the_name() {
    let question = read(&plain("secret.example", 1));
    assert!(!format!("{question:?}").contains("secret"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        if let Ok(question) = Question::read(&bytes) {
            prop_assert!(Question::read(&question.message()).is_ok());
        }
        let asker = read(&plain("a.example", 1));
        drop(asker.adopt(&bytes, all));
    }

    #[test]
    fn any_damage_to_a_query_or_reply_is_read_without_a_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let question = read(&extended("a.b.example", 65, 1232, 0));
        for mut bytes in [question.message(), question.nothing(Code::NO_NAME, 5), question.addresses([V4], 1)] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.index(bytes.len()) + 1);
            drop(Question::read(&bytes));
            drop(question.adopt(&bytes, all));
        }
    }

    #[test]
    fn names_survive_the_way_through_a_message(name in "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){1,4}") {
        let name = HostName::new(&name).expect("valid");
        let question = Question::new(&name, RecordType::AAAA);
        prop_assert_eq!(read(&question.message()).name(), Some(name));
    }
}
#[test]
fn a_reply_to_an_update_is_no_reply_to_a_query() {
    let question = Question::new(&HostName::new("a.example").expect("valid"), RecordType::A);
    let mut reply = question.addresses([V4], 60);
    let opcode = &mut reply[2];
    assert_eq!(*opcode >> 3 & 0x0f, 0, "a query's");
    *opcode |= 5 << 3;
    assert_eq!(question.heard(&reply), Err(Unbelieved::Other));
    assert_eq!(question.adopt(&reply, |_| true), Err(Unbelieved::Other));
}
