use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use proptest::prelude::*;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use shake::{ExtendableOutput, Shake256, Update, XofReader};

use hoplite_wire::cell::{Command, relay::SendmeTag};

use super::{
    super::{
        layers::{ClientLayers, MAX_HOPS},
        testing::bytes,
    },
    *,
};

/// A client and its relays.
struct Circuit {
    client: ClientLayers,
    relays: Vec<RelayLayer>,
}

impl Circuit {
    fn new(keys: &[[u8; 72]]) -> Self {
        let layers = keys
            .iter()
            .map(|keys| ClientLayer::relay_of(&Keys::of(keys)));
        let layers = layers.collect::<Result<_, _>>().expect("layers");
        let relays = keys.iter().map(|keys| RelayLayer::of(&Keys::of(keys)));
        Self {
            client: ClientLayers::of_tor1(layers),
            relays: relays.collect::<Result<_, _>>().expect("layers"),
        }
    }

    fn of(hops: usize) -> Self {
        let keys: Vec<_> = (0..hops).map(keys_of).collect();
        Self::new(&keys)
    }

    /// Lets a cell go from relay to relay until one recognises it.
    fn forward(&mut self, body: &mut [u8; BODY]) -> Option<(usize, SendmeTag)> {
        let relays = self.relays.iter_mut().enumerate();
        let mut heard =
            relays.map(|(hop, relay)| Some((hop, SendmeTag::Tor1(relay.forward(body)?))));
        heard.find_map(|found| found)
    }

    /// Lets relay `hop` say something, and the relays before it pass it on.
    fn say(&mut self, hop: usize, body: &mut [u8; BODY]) -> SendmeTag {
        let digest = self.relays[hop].originate(body);
        for relay in self.relays[..hop].iter_mut().rev() {
            relay.backward(body);
        }
        SendmeTag::Tor1(digest)
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
fn the_cells_of_c_tor_come_out_byte_for_byte() {
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
        circuit
            .client
            .encrypt_for(2, Command::RELAY, &mut body)
            .expect("a hop");
        match number {
            0 => assert_eq!(body, bytes(include_str!("tests/cell0.hex"))),
            50 => assert_eq!(body, bytes(include_str!("tests/cell50.hex"))),
            _ => {}
        }
        let heard = circuit.forward(&mut body).expect("recognised");
        assert_eq!((heard.0, without_digest(&body)), (2, sent));
    }
}

/// A client and a service whose circuits are joined by a relay that each reaches by one hop.
fn joined() -> [Circuit; 2] {
    let seed = || Seed::shake256_of(Zeroizing::new([9; 32]), b"test");
    let (mut client, mut service) = (Circuit::new(&[keys_of(1)]), Circuit::new(&[keys_of(2)]));
    let layers = &mut client.client;
    layers.push_service(&seed(), Party::Client).expect("a hop");
    let layers = &mut service.client;
    layers.push_service(&seed(), Party::Service).expect("a hop");
    [client, service]
}

/// Carries a cell from one end through the relay that joined both to the other, who does not see what was sent.
fn across(from: &mut Circuit, to: &mut Circuit, sent: &[u8; BODY], body: &mut [u8; BODY]) {
    assert_eq!(from.forward(body), None, "it is not for the relay");
    let same = body.iter().zip(sent).filter(|(one, other)| one == other);
    assert!(same.count() < 30, "the relay reads it");
    to.relays[0].backward(body);
}

#[test]
fn client_and_service_hear_each_other_and_the_relay_that_joins_them_neither() {
    let [mut client, mut service] = joined();
    for number in 0..40 {
        let (sent, mut body) = (message(number), message(number));
        let digest = client
            .client
            .encrypt_for(1, Command::RELAY, &mut body)
            .expect("a hop");
        across(&mut client, &mut service, &sent, &mut body);
        assert_eq!(service.client.decrypt(&mut body), Some((1, digest)));
        assert_eq!(without_digest(&body), sent);
        let digest = service
            .client
            .encrypt_for(1, Command::RELAY, &mut body)
            .expect("a hop");
        across(&mut service, &mut client, &sent, &mut body);
        assert_eq!(client.client.decrypt(&mut body), Some((1, digest)));
        assert_eq!(without_digest(&body), sent);
    }
}

#[test]
fn what_was_changed_or_turned_back_between_client_and_service_is_recognised_by_nobody() {
    for bit in [0, 8 * 20, 8 * BODY - 1] {
        let [mut client, mut service] = joined();
        let mut body = message(1);
        client
            .client
            .encrypt_for(1, Command::RELAY, &mut body)
            .expect("a hop");
        across(&mut client, &mut service, &message(1), &mut body);
        body[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(service.client.decrypt(&mut body), None);
    }
    let [mut client, _] = joined();
    let mut body = message(1);
    client
        .client
        .encrypt_for(1, Command::RELAY, &mut body)
        .expect("a hop");
    assert_eq!(client.forward(&mut body), None);
    client.relays[0].backward(&mut body);
    assert_eq!(client.client.decrypt(&mut body), None);
}

/// The layer written down anew: SHA3-256 over all that was said, AES-256 block by block.
#[test]
fn the_layer_with_a_service_is_that_of_the_plain_construction() {
    let seed = Seed::shake256_of(Zeroizing::new([9; 32]), b"test");
    let mut keys = [0; 128];
    seed.fill(&mut keys).expect("bytes");
    for (own, hash, key) in [
        (Party::Client, &keys[..32], &keys[64..96]),
        (Party::Service, &keys[32..64], &keys[96..]),
    ] {
        let mut layers = ClientLayers::new();
        layers.push_service(&seed, own).expect("a hop");
        let key = UnboundCipherKey::new(&AES_256, key).expect("a key");
        let key = EncryptingKey::ecb(key).expect("a cipher");
        let mut plain = Plain {
            said: hash.to_vec(),
            key,
            used: 0,
        };
        for number in 0..9 {
            let (mut ours, mut theirs) = (message(number), message(number));
            let digest = layers
                .encrypt_for(0, Command::RELAY, &mut ours)
                .expect("a hop");
            plain.said.extend_from_slice(&theirs);
            let whole = aws_lc_rs::digest::digest(&SHA3_256, &plain.said);
            assert_eq!(digest.as_bytes(), &whole.as_ref()[..20]);
            theirs[5..9].copy_from_slice(&digest.as_bytes()[..4]);
            plain.cipher(&mut theirs);
            assert_eq!(ours, theirs, "cell {number}");
        }
    }
}

/// One of a middle relay: 2 × 504 bytes are AES keys, as the library expands them for both directions of each.
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

// The same layers, written down as the specification says them: every digest over all bytes anew, every key stream block by block.
// Of the primitives AES comes as a block cipher, SHA-1 from another library than the one that is tested.

/// One direction of one hop.
struct Plain {
    said: Vec<u8>,
    key: EncryptingKey,
    used: usize,
}

impl Plain {
    fn new(seed: &[u8], key: &[u8]) -> Self {
        let key = UnboundCipherKey::new(&AES_128, key).expect("a key");
        Self {
            said: seed.to_vec(),
            key: EncryptingKey::ecb(key).expect("a cipher"),
            used: 0,
        }
    }

    fn seal(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.said.extend_from_slice(body);
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &self.said);
        body[5..9].copy_from_slice(&digest.as_ref()[..4]);
        digest.as_ref().try_into().expect("20 bytes")
    }

    fn cipher(&mut self, body: &mut [u8; BODY]) {
        for byte in body {
            let mut block = (self.used as u128 / 16).to_be_bytes();
            let key = &self.key;
            key.less_safe_encrypt(&mut block, EncryptionContext::None)
                .expect("a block");
            *byte ^= block[self.used % 16];
            self.used += 1;
        }
    }
}

/// Forward and backward of each hop.
fn hops(number: usize) -> Vec<(Plain, Plain)> {
    let keys = (0..number).map(keys_of);
    keys.map(|keys| {
        (
            Plain::new(&keys[..20], &keys[40..56]),
            Plain::new(&keys[20..40], &keys[56..]),
        )
    })
    .collect()
}

#[test]
fn every_cell_is_that_of_the_plain_construction_in_both_directions() {
    let mut circuit = Circuit::of(3);
    let mut plain = hops(3);
    for number in 0..40 {
        let hop = number % 3;
        let (mut ours, mut theirs) = (message(number), message(number));
        let digest = circuit.client.encrypt_for(hop, Command::RELAY, &mut ours);
        let plain_digest = SendmeTag::Tor1(plain[hop].0.seal(&mut theirs));
        assert_eq!(digest, Some(plain_digest));
        let way = plain[..=hop].iter_mut().rev();
        way.for_each(|hop| hop.0.cipher(&mut theirs));
        assert_eq!(ours, theirs, "forward, cell {number}");

        let (mut ours, mut theirs) = (message(1000 + number), message(1000 + number));
        let digest = circuit.say(hop, &mut ours);
        assert_eq!(digest, SendmeTag::Tor1(plain[hop].1.seal(&mut theirs)));
        let way = plain[..=hop].iter_mut().rev();
        way.for_each(|hop| hop.1.cipher(&mut theirs));
        assert_eq!(ours, theirs, "backward, cell {number}");
    }
}

// What is sent arrives, at the hop it was meant for and nowhere else; what was changed, repeated or moved is recognised by nobody.

/// A cell on the way: to or from which hop.
#[derive(Clone, Copy, Debug)]
enum Step {
    Forward(usize),
    Backward(usize),
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (1..=MAX_HOPS).prop_flat_map(|hops| {
        let step = prop_oneof![
            (0..hops).prop_map(Step::Forward),
            (0..hops).prop_map(Step::Backward),
        ];
        (Just(hops), prop::collection::vec(step, 1..40))
    })
}

fn forward_all(circuit: &mut Circuit, count: usize, hops: usize) -> Vec<[u8; BODY]> {
    let cells = 0..count;
    cells
        .map(|number| {
            let mut body = message(number);
            circuit
                .client
                .encrypt_for(number % hops, Command::RELAY, &mut body)
                .expect("a hop");
            body
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_cell_arrives_at_its_hop_as_it_was_sent((hops, steps) in steps()) {
        let mut circuit = Circuit::of(hops);
        for (number, step) in steps.into_iter().enumerate() {
            let mut body = message(number);
            let (hop, sent, heard) = match step {
                Step::Forward(hop) => {
                    let sent = circuit.client.encrypt_for(hop, Command::RELAY, &mut body).expect("a hop");
                    (hop, sent, circuit.forward(&mut body))
                }
                Step::Backward(hop) => {
                    let sent = circuit.say(hop, &mut body);
                    (hop, sent, circuit.client.decrypt(&mut body))
                }
            };
            prop_assert_eq!(heard, Some((hop, sent)));
            prop_assert_eq!(without_digest(&body), message(number));
            prop_assert_eq!(&body[5..9], &sent.as_bytes()[..4]);
        }
    }

    #[test]
    fn a_tagged_cell_and_all_that_follow_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, bit in 0..BODY * 8, good in 0usize..5, backward: bool,
    ) {
        let mut circuit = Circuit::of(hops);
        for number in 0..good + 3 {
            let mut body = message(number);
            if backward {
                circuit.say(hops - 1, &mut body);
            } else {
                circuit.client.encrypt_for(hops - 1, Command::RELAY, &mut body).expect("a hop");
            }
            if number == good {
                body[bit / 8] ^= 1 << (bit % 8);
            }
            let heard = if backward { circuit.client.decrypt(&mut body) } else { circuit.forward(&mut body) };
            prop_assert_eq!(heard.is_some(), number < good);
        }
    }

    #[test]
    fn a_replayed_cell_and_all_that_follow_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, good in 1usize..20, which in 0usize..20,
    ) {
        let mut circuit = Circuit::of(hops);
        let cells = forward_all(&mut circuit, good + 2, hops);
        for (number, mut body) in cells.iter().copied().enumerate().take(good) {
            prop_assert_eq!(circuit.forward(&mut body).expect("recognised").0, number % hops);
        }
        let mut again = cells[which % good];
        prop_assert_eq!(circuit.forward(&mut again), None);
        for mut body in cells[good..].iter().copied() {
            prop_assert_eq!(circuit.forward(&mut body), None);
        }
    }

    /// Neither of two cells that changed places, nor what is sent afterwards to the hops that they were for or to hops behind these.
    #[test]
    fn cells_in_another_order_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, good in 0usize..10, later in 1usize..10, more in 0usize..10,
    ) {
        let mut circuit = Circuit::of(hops);
        let mut cells = forward_all(&mut circuit, good + later + 1 + more, hops);
        cells.swap(good, good + later);
        for (number, mut body) in cells.into_iter().enumerate() {
            let behind = |moved: usize| number > moved && number % hops >= moved % hops;
            let moved = number == good || number == good + later;
            let heard = circuit.forward(&mut body);
            prop_assert_eq!(heard.is_none(), moved || behind(good) || behind(good + later), "{}", number);
        }
    }

    #[test]
    fn a_cell_of_another_circuit_is_recognised_by_nobody(hops in 1..=MAX_HOPS, body: [u8; 32]) {
        let mut circuit = Circuit::of(hops);
        let mut cell = [0; BODY];
        stream(&body).read(&mut cell);
        prop_assert_eq!(circuit.forward(&mut cell), None);
        stream(&body).read(&mut cell);
        prop_assert_eq!(circuit.client.decrypt(&mut cell), None);
    }
}
