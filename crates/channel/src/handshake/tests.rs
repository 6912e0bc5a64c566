//! The machine alone: both ends in one process, bytes carried by hand, time and exporter made up.

use std::{net::IpAddr, sync::Arc};

use bytes::{BufMut, BytesMut};
use hoplite_crypto::onion::identity::RelayIdentity;
use hoplite_wire::cell::{self, Cell, CircuitId, Command};

use super::{Around, Binding, Established, Handshake, Refused, Us};
use crate::Config;

const NOW: u64 = 1_790_000_000;
const YEAR: u64 = 365 * 24 * 60 * 60;
const CERTIFICATE: [u8; 32] = [0xce; 32];
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

fn us(secret: u8) -> Us {
    Us {
        identity: Some(Arc::new(
            RelayIdentity::from_secret(&[secret; 32], NOW).unwrap(),
        )),
        addresses: vec![THERE],
    }
}

fn id(secret: u8) -> [u8; 32] {
    us(secret).identity.unwrap().peer().ed25519
}

fn binding() -> Binding {
    Binding {
        certificate: CERTIFICATE,
        remote: Some(THERE),
    }
}

/// An exporter that depends on all that it should: the connection, the label, the context.
fn exported(connection: u8, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
    let all = [&[connection], label, context].concat();
    let hash = ring::digest::digest(&ring::digest::SHA256, &all);
    hash.as_ref().try_into().ok()
}

/// One end, with its surroundings.
struct End {
    handshake: Handshake,
    now: u64,
    connection: u8,
    outcome: Option<Result<Established, Refused>>,
}

impl End {
    fn new(handshake: Handshake) -> Self {
        Self {
            handshake,
            now: NOW,
            connection: 1,
            outcome: None,
        }
    }

    fn initiator(us: Us, expected: Option<[u8; 32]>) -> Self {
        let config = Config::default();
        Self::new(Handshake::initiator(us, expected, binding(), &config))
    }

    fn responder(us: Us) -> Self {
        Self::new(Handshake::responder(us, binding(), &Config::default()))
    }

    fn receive(&mut self, bytes: &[u8]) {
        let connection = self.connection;
        let around = Around {
            now: self.now,
            exporter: &|label, context| exported(connection, label, context),
        };
        if self.outcome.is_none() {
            let received = self.handshake.receive(bytes.into(), around);
            self.outcome = received.transpose();
        }
    }

    fn transmit(&mut self) -> BytesMut {
        self.handshake.transmit().unwrap_or_default()
    }

    fn refused(self) -> Refused {
        self.outcome.unwrap().unwrap_err()
    }
}

/// Carries bytes until neither end says more, `size` at a time.
fn carry(a: &mut End, b: &mut End, size: usize) {
    loop {
        let (ab, ba) = (a.transmit(), b.transmit());
        if ab.is_empty() && ba.is_empty() {
            return;
        }
        ab.chunks(size).for_each(|piece| b.receive(piece));
        ba.chunks(size).for_each(|piece| a.receive(piece));
    }
}

fn bytes(circuit: u32, command: Command, body: &[u8]) -> BytesMut {
    let cell = Cell::new(CircuitId::new(circuit), command, |out| out.put_slice(body));
    let mut out = BytesMut::new();
    cell::write(&cell.unwrap(), &mut out).unwrap();
    out
}

/// A responder that has said all it has to say, to an initiator whose VERSIONS alone it knows.
fn greeted() -> (End, End) {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    b.receive(&a.transmit());
    let answer = b.transmit();
    a.receive(&answer);
    (a, b)
}

#[test]
fn two_relays_know_each_other_however_their_bytes_are_cut() {
    for size in [1, 7, 514, 100_000] {
        let (mut a, mut b) = (End::initiator(us(1), Some(id(9))), End::responder(us(9)));
        carry(&mut a, &mut b, size);
        let (a, b) = (a.outcome.unwrap().unwrap(), b.outcome.unwrap().unwrap());
        assert_eq!(a.peer.unwrap().ed25519, id(9));
        assert_eq!(b.peer.unwrap().ed25519, id(1));
        assert_eq!((a.version, b.version), (5, 5));
        assert_eq!(
            (a.ahead, a.ours, a.theirs),
            (Some(0), Some(THERE), vec![THERE])
        );
    }
}

#[test]
fn a_client_proves_nothing_and_tells_nothing() {
    let (mut a, mut b) = (End::initiator(Us::default(), None), End::responder(us(9)));
    carry(&mut a, &mut b, 514);
    let b = b.outcome.unwrap().unwrap();
    assert_eq!((b.peer.is_none(), b.ahead, b.theirs), (true, None, vec![]));
    assert!(a.outcome.unwrap().unwrap().peer.is_some());
}

#[test]
fn an_initiator_refuses_a_responder_that_is_another_or_itself() {
    let (mut a, mut b) = (End::initiator(us(1), Some(id(8))), End::responder(us(9)));
    carry(&mut a, &mut b, 514);
    assert!(matches!(a.refused(), Refused::Identity(_)));
    assert!(b.outcome.is_none(), "nothing was told");
    let (mut a, mut b) = (End::initiator(us(9), None), End::responder(us(9)));
    carry(&mut a, &mut b, 514);
    assert!(matches!(a.refused(), Refused::Ourselves));
}

#[test]
fn certificates_that_expired_are_refused_by_either_end() {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    a.now = NOW + YEAR;
    carry(&mut a, &mut b, 514);
    assert!(matches!(a.refused(), Refused::Identity(_)));
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    b.receive(&a.transmit());
    a.receive(&b.transmit());
    b.now = NOW + YEAR;
    carry(&mut a, &mut b, 514);
    assert!(matches!(b.refused(), Refused::Identity(_)));
}

#[test]
fn certificates_for_another_tls_certificate_are_refused() {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    a.handshake.binding.certificate = [1; 32];
    carry(&mut a, &mut b, 514);
    assert!(matches!(a.refused(), Refused::Identity(_)));
}

#[test]
fn a_proof_from_another_connection_is_refused() {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    a.connection = 2;
    carry(&mut a, &mut b, 514);
    assert!(matches!(b.refused(), Refused::Identity(_)));
}

#[test]
fn a_proof_over_another_conversation_is_refused() {
    let (mut a, mut b) = greeted();
    b.receive(&bytes(0, Command::VPADDING, b"not from the initiator"));
    b.receive(&a.transmit());
    assert!(matches!(b.refused(), Refused::Identity(_)));
}

#[test]
fn padding_and_unknown_variable_cells_are_ignored_and_signed() {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    b.receive(&a.transmit());
    let strange = bytes(0, Command(200), b"from the future");
    let (versions, rest) = {
        let mut all = b.transmit();
        (all.split_to(9), all)
    };
    b.handshake.sent = {
        let mut log = super::Log::new();
        log.add(&versions);
        log.add(&strange);
        log.add(rest.get(..rest.len() - 514).unwrap());
        b.handshake.challenged = Some(log.so_far());
        log
    };
    [versions, strange, rest]
        .iter()
        .for_each(|piece| a.receive(piece));
    let mut answer = a.transmit();
    b.receive(&answer.split_to(0));
    b.receive(&answer);
    assert_eq!(b.outcome.unwrap().unwrap().peer.unwrap().ed25519, id(1));
    assert_eq!(a.outcome.unwrap().unwrap().ignored, 1);
}

#[test]
fn cells_of_circuits_before_netinfo_are_refused() {
    for command in [Command::CREATE2, Command::RELAY, Command::DESTROY] {
        for circuit in [0, 7] {
            let (_, mut b) = greeted();
            b.receive(&bytes(circuit, command, b""));
            assert!(matches!(b.refused(), Refused::Unexpected(_)));
        }
    }
}

#[test]
fn whatever_comes_before_versions_is_refused() {
    let mut b = End::responder(us(9));
    b.receive(b"GET / HTTP/1.1\r\nHost: relay.example\r\n\r\n");
    b.receive(&[b'x'; 1024]);
    assert!(b.outcome.unwrap().is_err());
    let mut b = End::responder(us(9));
    b.receive(&bytes(0, Command::VERSIONS, &[0, 3]));
    assert!(matches!(b.refused(), Refused::Versions));
}

#[test]
fn versions_come_once_and_parts_in_their_order() {
    let (_, mut b) = greeted();
    // With four bytes of circuit id now: a cell of variable length.
    b.receive(&[0, 0, 0, 0, 7, 0, 2, 0, 5]);
    assert!(matches!(
        b.refused(),
        Refused::Unexpected(Command::VERSIONS)
    ));
    let (_, mut b) = greeted();
    b.receive(&bytes(0, Command::AUTHENTICATE, &[0, 3, 0, 0]));
    assert!(matches!(
        b.refused(),
        Refused::Unexpected(Command::AUTHENTICATE)
    ));
    let mut a = End::initiator(us(1), None);
    a.receive(&bytes(0, Command::VERSIONS, &[0, 5]));
    a.receive(&bytes(0, Command::NETINFO, b""));
    assert!(matches!(a.refused(), Refused::Unexpected(Command::NETINFO)));
}

#[test]
fn too_many_cells_before_netinfo_are_refused() {
    let (_, mut b) = greeted();
    for _ in 0..Config::default().greetings {
        b.receive(&bytes(0, Command::VPADDING, b""));
    }
    assert!(matches!(b.refused(), Refused::TooMany));
}

#[test]
fn cells_that_are_too_large_are_refused_before_they_are_there() {
    let (_, mut b) = greeted();
    b.receive(&[0, 0, 0, 0, 129, 0xff, 0xff]);
    assert!(matches!(b.refused(), Refused::Malformed(_)));
}

#[test]
fn what_follows_netinfo_waits_for_the_channel() {
    let (mut a, mut b) = (End::initiator(us(1), None), End::responder(us(9)));
    b.receive(&a.transmit());
    a.receive(&b.transmit());
    let mut last = a.transmit();
    last.extend_from_slice(&bytes(0x8000_0001, Command::CREATE2, b"hello"));
    b.receive(&last);
    assert!(b.outcome.unwrap().is_ok());
    let cell = b.handshake.into_reader().next().unwrap().unwrap();
    assert_eq!(
        (cell.command, cell.circuit.number()),
        (Command::CREATE2, 0x8000_0001)
    );
}

#[test]
fn no_byte_of_the_proof_can_be_another() {
    let (mut a, _) = greeted();
    let proof = a.transmit();
    // The random bytes at the end of NETINFO's cell are padding; the proof itself is what stands before it.
    let length = proof.len() - 514;
    for place in (7..length).step_by(5) {
        let (mut a, mut b) = greeted();
        let mut answer = a.transmit();
        answer[place] ^= 0x10;
        b.receive(&answer);
        let outcome = b.outcome.take();
        let known = outcome.and_then(Result::ok).and_then(|done| done.peer);
        assert!(known.is_none(), "byte {place} of {length}");
    }
}
