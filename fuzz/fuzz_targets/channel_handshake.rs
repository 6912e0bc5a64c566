//! The link handshake, both ends, with somebody between them who reads, holds back, cuts, changes and adds what they send. They come to an end;
//! whoever is known at the end is who it is, and of what both ends were shown before the proof nothing was changed.
//!
//! The first byte says who they are; then come steps of what the one between does: the low bit of each is whose bytes are meant.
#![no_main]

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, LazyLock},
};

use bytes::BytesMut;
use hoplite_channel::{
    Config,
    handshake::{Around, Binding, Established, Handshake, Us},
};
use hoplite_crypto::onion::identity::RelayIdentity;
use hoplite_wire::cell::{self, Cell, CircuitId, Command, Reader};
use libfuzzer_sys::fuzz_target;

const NOW: u64 = 1_798_761_600;
const CERTIFICATE: [u8; 32] = [6; 32];
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));

static IDENTITIES: LazyLock<[Arc<RelayIdentity>; 2]> = LazyLock::new(|| [1, 2].map(identity));

fn identity(secret: u8) -> Arc<RelayIdentity> {
    Arc::new(RelayIdentity::from_secret(&[secret; 32], NOW).expect("an identity"))
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = bytes.iter().copied();
    let Some(who) = input.next() else { return };
    let mut between = Between::new(who);
    while between.step(&mut input) {}
    between.check();
});

/// One end, what it sent and was given, and how it fared.
struct End {
    handshake: Option<Handshake>,
    exporter: u8,
    established: Option<Established>,
    sent: Vec<u8>,
    got: Vec<u8>,
    /// Sent, and held back.
    held: BytesMut,
}

/// The initiator and the responder.
struct Between([End; 2]);

impl End {
    fn new(handshake: Handshake, exporter: u8) -> Self {
        let mut end = Self {
            handshake: Some(handshake),
            exporter,
            established: None,
            sent: Vec::new(),
            got: Vec::new(),
            held: BytesMut::new(),
        };
        end.collect();
        end
    }

    fn collect(&mut self) {
        let sent = self.handshake.as_mut().and_then(Handshake::transmit);
        if let Some(bytes) = sent {
            self.sent.extend_from_slice(&bytes);
            self.held.unsplit(bytes);
        }
    }

    /// An end that has refused, or is done, hears nothing more.
    fn receive(&mut self, bytes: &[u8]) {
        if self.established.is_some() {
            return;
        }
        let Some(mut handshake) = self.handshake.take() else {
            return;
        };
        self.got.extend_from_slice(bytes);
        let exporter = self.exporter;
        let around = Around {
            now: NOW,
            exporter: &|label, context| exported(exporter, label, context),
        };
        if let Ok(established) = handshake.receive(bytes.into(), around) {
            self.established = established;
            self.handshake = Some(handshake);
            self.collect();
        }
    }
}

/// Depends on the connection, the label and the context; no hash, but nobody here is to find a collision.
fn exported(connection: u8, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
    let mut out = [connection; 32];
    let mixed = label.iter().chain(context).enumerate();
    mixed.for_each(|(place, byte)| out[place % 32] = out[place % 32].rotate_left(3) ^ byte);
    Some(out)
}

impl Between {
    fn new(who: u8) -> Self {
        let bit = |n: u8| who >> n & 1 == 1;
        let [one, other] = &*IDENTITIES;
        let us = |identity: Option<&Arc<RelayIdentity>>| Us {
            identity: identity.cloned(),
            addresses: vec![THERE],
        };
        let (binding, config) = (binding(CERTIFICATE), Config::default());
        let first = us((!bit(0)).then_some(if bit(1) { other } else { one }));
        let expected = bit(2).then(|| (if bit(3) { one } else { other }).peer().ed25519);
        let seen = self::binding(if bit(4) { [7; 32] } else { CERTIFICATE });
        let initiator = Handshake::initiator(first, expected, seen, &config);
        let responder = Handshake::responder(us(Some(other)), binding, &config);
        Self([
            End::new(initiator, 0),
            End::new(responder, u8::from(bit(5))),
        ])
    }

    /// Does what the next bytes say; answers whether there may be more.
    fn step(&mut self, input: &mut impl Iterator<Item = u8>) -> bool {
        let Some(what) = input.next() else {
            return false;
        };
        let [one, other] = &mut self.0;
        let (from, to) = if what & 1 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let mut next = || usize::from(input.next().unwrap_or(0));
        match what >> 1 & 7 {
            0 | 1 => {
                let bytes = from.held.split();
                to.receive(&bytes);
            }
            2 => {
                let bytes = from.held.split_to(next().min(from.held.len()));
                to.receive(&bytes);
            }
            3 => {
                let (place, bits) = (next() << 8 | next(), next() as u8);
                if let Some(byte) = from.held.get_mut(place) {
                    *byte ^= bits;
                }
            }
            4 => drop(from.held.split_to(next().min(from.held.len()))),
            5 => from.held.truncate(next()),
            6 => {
                let count = next();
                let bytes: Vec<u8> = input.take(count).collect();
                to.receive(&bytes);
            }
            _ => {
                let (circuit, command, count) = (next(), next() as u8, next() << 8 | next());
                let body: Vec<u8> = input.take(count).collect();
                to.receive(&framed(circuit, command, &body));
            }
        }
        true
    }

    fn check(self) {
        let [initiator, responder] = self.0;
        let known = |end: &End| end.established.as_ref().and_then(|done| done.peer);
        if let Some(peer) = known(&initiator) {
            assert!(IDENTITIES.iter().any(|one| one.peer() == peer));
        }
        if let Some(peer) = known(&responder) {
            assert!(IDENTITIES[0].peer() == peer);
            assert!(unchanged(
                &initiator,
                &responder,
                Command::AUTHENTICATE,
                false
            ));
            assert!(unchanged(
                &responder,
                &initiator,
                Command::AUTH_CHALLENGE,
                true
            ));
        }
        [initiator, responder].into_iter().for_each(rest);
    }
}

fn binding(certificate: [u8; 32]) -> Binding {
    Binding {
        certificate,
        remote: Some(THERE),
    }
}

/// A cell as nobody would send it, or one that does not fit its frame: nothing.
fn framed(circuit: usize, command: u8, body: &[u8]) -> BytesMut {
    let circuit = CircuitId::new(u32::try_from(circuit).expect("a byte"));
    let cell = Cell::new(circuit, Command(command), |out| out.extend_from_slice(body));
    let mut out = BytesMut::new();
    let written = cell.and_then(|cell| cell::write(&cell, &mut out));
    written.map(|()| out).unwrap_or_default()
}

/// What one sent before `until`, or with it, is what the other got.
fn unchanged(from: &End, to: &End, until: Command, with: bool) -> bool {
    let mut reader = Reader::new(cell::LARGEST_VARIABLE);
    reader.push(from.sent.as_slice().into());
    let mut length = 0;
    while let Ok(Some(cell)) = reader.next() {
        let own = reader.head().len() + cell.body.len();
        length += if cell.command == until && !with {
            0
        } else {
            own
        };
        if cell.command == until {
            return to.got.starts_with(&from.sent[..length]);
        }
    }
    false
}

/// What came behind NETINFO is read as a channel would.
fn rest(end: End) {
    if let (Some(handshake), Some(_)) = (end.handshake, end.established) {
        let mut reader = handshake.into_reader();
        while let Ok(Some(_)) = reader.next() {}
    }
}
