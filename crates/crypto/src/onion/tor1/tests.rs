//! The layers against C tor's vectors and against a plain construction; what arrives, and what is recognised by nobody.

use proptest::prelude::*;
use shake::{ExtendableOutput, Shake256, Update, XofReader};

use super::*;
use crate::onion::testing::octets;

mod plain;
mod properties;
mod speed;

/// A client and its relays.
struct Circuit {
    client: ClientLayers,
    relays: Vec<RelayLayer>,
}

impl Circuit {
    fn new(keys: &[[u8; 72]]) -> Self {
        let layers = keys.iter().map(|keys| ClientLayer::new(&Keys::of(keys)));
        let layers = layers.collect::<Result<_, _>>().expect("layers");
        let relays = keys.iter().map(|keys| RelayLayer::of(&Keys::of(keys)));
        Self {
            client: ClientLayers(layers),
            relays: relays.collect::<Result<_, _>>().expect("layers"),
        }
    }

    fn of(hops: usize) -> Self {
        let keys: Vec<_> = (0..hops).map(keys_of).collect();
        Self::new(&keys)
    }

    /// Lets a cell go from relay to relay until one recognises it.
    fn forward(&mut self, body: &mut [u8; BODY]) -> Option<(usize, Digest)> {
        let relays = self.relays.iter_mut().enumerate();
        let mut heard = relays.map(|(hop, relay)| Some((hop, relay.forward(body)?)));
        heard.find_map(|found| found)
    }

    /// Lets relay `hop` say something, and the relays before it pass it on.
    fn say(&mut self, hop: usize, body: &mut [u8; BODY]) -> Digest {
        let digest = self.relays[hop].originate(body);
        for relay in self.relays[..hop].iter_mut().rev() {
            relay.backward(body);
        }
        digest
    }
}

/// Any keys, other ones for each hop.
fn keys_of(hop: usize) -> [u8; 72] {
    let mut keys = [0; 72];
    stream(&hop.to_le_bytes()[..1]).read(&mut keys);
    keys
}

fn stream(seed: &[u8]) -> impl XofReader + use<> {
    let mut state = Shake256::default();
    state.update(seed);
    state.finalize_xof()
}

/// A body that a circuit sends: recognized and digest fields are zero.
fn message(number: usize) -> [u8; BODY] {
    let mut body = [0; BODY];
    stream(&number.to_be_bytes()).read(&mut body);
    body[1..3].fill(0);
    body[5..9].fill(0);
    body
}

/// What arrives is what was sent, but for the digest, which is filled in.
fn without_digest(body: &[u8; BODY]) -> [u8; BODY] {
    let mut body = *body;
    body[5..9].fill(0);
    body
}

/// C tor's src/test/test_relaycrypt.c; its output is in Arti's tor-proto 0.47.0, testdata/cell_crypt.rs, with the bodies made as in
/// crypto/cell/tor1.rs, `testvec`. Here are the first and the fifty-first of its cells.
#[test]
fn the_cells_of_c_tor_come_out_octet_for_octet() {
    let keys = [
        b"    'My public key is in this signed x509 object', said Tom assertively.",
        b"'Let's chart the pedal phlanges in the tomb', said Tom cryptographically",
        b"     'Segmentation fault bugs don't _just happen_', said Tom seethingly.",
    ];
    let mut circuit = Circuit::new(&keys.map(|keys| *keys));
    let mut data = stream(b"'You mean to tell me that there's a version of Sha-3 with no limit on the output length?', said Tom shakily.");
    for number in 0..=50 {
        let mut body = [0; BODY];
        (body[0], body[4]) = (2, 1);
        body[9..11].copy_from_slice(&498u16.to_be_bytes());
        data.read(&mut body[11..]);
        let sent = body;
        circuit.client.encrypt_for(2, &mut body).expect("a hop");
        match number {
            0 => assert_eq!(body, octets(include_str!("tests/cell0.hex"))),
            50 => assert_eq!(body, octets(include_str!("tests/cell50.hex"))),
            _ => {}
        }
        let heard = circuit.forward(&mut body).expect("recognised");
        assert_eq!((heard.0, without_digest(&body)), (2, sent));
    }
}

#[test]
fn a_circuit_has_at_most_eight_hops_and_says_nothing_to_others() {
    let seed = Seed::shake256(zeroize::Zeroizing::new([1; 32]), b"test", 0);
    let mut client = ClientLayers::new();
    for _ in 0..MAX_HOPS {
        client.push(&seed).expect("a hop");
    }
    assert_eq!(client.push(&seed), Err(Refused::Unacceptable));
    client.truncate(3);
    assert_eq!(client.len(), 3);
    let mut body = message(0);
    for hop in [3, usize::MAX] {
        assert_eq!(client.encrypt_for(hop, &mut body), None);
    }
    assert_eq!(body, message(0));
    assert!(client.encrypt_for(2, &mut body).is_some());
}

/// One of a middle relay: 2 × 504 octets are AES keys, as the library expands them for both directions of each.
#[test]
fn a_relays_layer_takes_little_memory_and_nothing_on_the_heap() {
    assert!(
        size_of::<RelayLayer>() <= 1280,
        "{}",
        size_of::<RelayLayer>()
    );
}

#[test]
fn layers_can_move_between_threads_and_say_nothing_of_their_keys() {
    fn moves<T: Send + 'static>(_: &T) {}
    let circuit = Circuit::of(2);
    moves(&circuit.client);
    moves(&circuit.relays);
    assert_eq!(format!("{:?}", circuit.client), "ClientLayers(2 hops)");
    assert_eq!(format!("{:?}", circuit.relays[0]), "RelayLayer(hidden)");
}
