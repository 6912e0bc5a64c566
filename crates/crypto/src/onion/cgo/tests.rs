use proptest::prelude::*;
use shake::{ExtendableOutput, Shake256, Update, XofReader};

use super::{super::testing::hex, *};

const RELAY: Command = Command::RELAY;

/// A direction in the middle of its life.
fn direction<B: BlockCipher>([keys, nonce, last]: [&str; 3]) -> Direction<B> {
    let mut direction = Direction::new(&state(&[keys, nonce]));
    direction.last = *tag_of(&hex(last));
    direction
}

/// The blocks of a state.
fn state(texts: &[&str]) -> State {
    let bytes = hex(&texts.concat());
    bytes.as_chunks().0.try_into().expect("keys and a nonce")
}

/// What the next keys and the next nonce are made of.
fn renewal<B: BlockCipher>(direction: &mut Direction<B>, nonce: &Block) -> State {
    let counter = direction.counter(nonce);
    *direction.key_stream(&counter, RENEWAL).blocks()
}

fn tag_of(bytes: &[u8]) -> &Tag {
    bytes.try_into().expect("a tag")
}

fn body_of(bytes: &[u8]) -> [u8; BODY] {
    bytes.try_into().expect("a body")
}

/// A message in the clear, as a body.
fn message(text: &str) -> [u8; BODY] {
    body_of(&[vec![0; TAG], hex(text)].concat())
}

/// Keys cannot be read; what is alike after this was alike before.
fn what_it_does<B: BlockCipher>(direction: &mut Direction<B>) -> (Block, Block, State, [u8; BODY]) {
    let mut body = [7; BODY];
    direction.apply(RELAY, &mut body);
    let renewal = renewal(direction, &[9; BLOCK]);
    (direction.nonce, direction.last, renewal, body)
}

fn assert_is<B: BlockCipher>(direction: &mut Direction<B>, expected: [&str; 3]) {
    assert_eq!(
        what_it_does(direction),
        what_it_does(&mut self::direction::<B>(expected))
    );
}

fn command(text: &str) -> Command {
    Command(hex(text)[0])
}

/// A layer of which the other direction does not matter.
fn relay([forward, backward]: [[&str; 3]; 2]) -> RelayLayer {
    RelayLayer {
        forward: direction(forward),
        backward: direction(backward),
    }
}

#[test]
fn the_vectors_of_the_proposal() {
    let rows = include_str!("vectors.txt").lines();
    let rows = rows.filter(|row| !row.is_empty() && !row.starts_with('#'));
    let mut seen = 0;
    for row in rows {
        let fields: Vec<_> = row.split(' ').collect();
        match *fields.as_slice() {
            ["uiv", "encrypt", keys, tweak, input, output] => {
                uiv::<Aes128Enc>(keys, tweak, input, output);
            }
            ["uiv", "decrypt", keys, tweak, input, output] => {
                uiv::<Aes128Dec>(keys, tweak, input, output);
            }
            ["renew", keys, nonce, new_keys, new_nonce] => {
                let mut before = direction::<Aes128Enc>([keys, nonce, nonce]);
                let nonce = before.nonce;
                let renewed = renewal(&mut before, &nonce);
                assert_eq!(renewed, state(&[new_keys, new_nonce]));
            }
            ["relay", way, k, n, t, ad, input, k2, n2, t2, output] => {
                let (before, after) = ([k, n, t], [k2, n2, t2]);
                let mut layer = relay([before; 2]);
                let mut body = body_of(&hex(input));
                if way == "forward" {
                    layer.forward(command(ad), &mut body);
                    assert_is(&mut layer.forward, after);
                } else {
                    layer.backward(command(ad), &mut body);
                    assert_is(&mut layer.backward, after);
                }
                assert_eq!(body[..], hex(output));
            }
            ["relay_originates", k, n, t, ad, text, k2, n2, t2, output] => {
                let mut layer = relay([[k, n, t]; 2]);
                let mut body = message(text);
                let tag = layer.originate(command(ad), &mut body);
                assert_eq!(body[..], hex(output));
                assert_eq!(body[..TAG], tag);
                assert_is(&mut layer.backward, [k2, n2, t2]);
            }
            ["client_originates", hop, ad, text, output, ref states @ ..] => {
                client_originates(hop, ad, text, output, states);
            }
            _ => unreachable!("a row of another kind"),
        }
        seen += 1;
    }
    assert_eq!(seen, 27);
}

fn uiv<B: BlockCipher>(keys: &str, tweak: &str, input: &str, output: &str) {
    let (last, command) = tweak.split_at(2 * TAG);
    let mut direction = direction::<B>([keys, &"00".repeat(BLOCK), last]);
    let mut body = body_of(&hex(input));
    direction.apply(self::command(command), &mut body);
    assert_eq!(body[..], hex(output));
}

fn client_originates(hop: &str, ad: &str, text: &str, output: &str, states: &[&str]) {
    let hop: usize = hop.parse().expect("a number");
    let states: Vec<[&str; 3]> = states.as_chunks().0.to_vec();
    let mut layers: Vec<_> = states
        .iter()
        .step_by(2)
        .map(|state| ClientLayer {
            forward: direction(*state),
            backward: direction(*state),
        })
        .collect();
    let mut body = message(text);
    let (target, before) = layers[..hop].split_last_mut().expect("a hop");
    target.originate(command(ad), &mut body);
    for layer in before.iter_mut().rev() {
        layer.forward(command(ad), &mut body);
    }
    assert_eq!(body[..], hex(output));
    for (layer, after) in layers.iter_mut().zip(states.iter().skip(1).step_by(2)) {
        assert_is(&mut layer.forward, *after);
    }
}

/// A client and its relays.
struct Circuit {
    client: Vec<ClientLayer>,
    relays: Vec<RelayLayer>,
}

impl Circuit {
    fn of(hops: u8) -> Self {
        let seed = |hop: u8| Seed::shake256_of(Zeroizing::new([hop; 32]), b"");
        Self {
            client: (0..hops)
                .map(|hop| ClientLayer::new(&seed(hop)).expect("a layer"))
                .collect(),
            relays: (0..hops)
                .map(|hop| RelayLayer::new(&seed(hop)).expect("a layer"))
                .collect(),
        }
    }

    fn encrypt_for(&mut self, hop: usize, command: Command, body: &mut [u8; BODY]) -> Tag {
        let (target, before) = self.client[..=hop].split_last_mut().expect("a hop");
        let tag = target.originate(command, body);
        for layer in before.iter_mut().rev() {
            layer.forward(command, body);
        }
        tag
    }

    /// From the relay `from` on, to the one that recognises it.
    fn forward(
        &mut self,
        from: usize,
        command: Command,
        body: &mut [u8; BODY],
    ) -> Option<(usize, Tag)> {
        let relays = self.relays.iter_mut().enumerate().skip(from);
        let mut heard = relays.map(|(hop, relay)| Some((hop, relay.forward(command, body)?)));
        heard.find_map(|found| found)
    }

    fn say(&mut self, hop: usize, body: &mut [u8; BODY]) -> Tag {
        let (speaker, before) = self.relays[..=hop].split_last_mut().expect("a hop");
        let tag = speaker.originate(RELAY, body);
        for relay in before.iter_mut().rev() {
            relay.backward(RELAY, body);
        }
        tag
    }

    fn decrypt(&mut self, body: &mut [u8; BODY]) -> Option<(usize, Tag)> {
        let layers = self.client.iter_mut().enumerate();
        let mut heard = layers.map(|(hop, layer)| Some((hop, layer.backward(RELAY, body)?)));
        heard.find_map(|found| found)
    }
}

/// Anything, with room for the tag before it.
fn any_body(number: u64) -> [u8; BODY] {
    let mut body = [0; BODY];
    let mut hash = Shake256::default();
    hash.update(&number.to_be_bytes());
    hash.finalize_xof().read(&mut body[TAG..]);
    body
}

proptest! {
    #[test]
    fn whoever_is_meant_reads_it_and_nobody_else_and_both_have_the_same_tag(
        talk in proptest::collection::vec((any::<bool>(), 0..4usize, any::<bool>()), 1..40),
    ) {
        let mut circuit = Circuit::of(4);
        for (number, (is_forth, hop, is_early)) in talk.into_iter().enumerate() {
            let clear = any_body(number as u64);
            let mut body = clear;
            if is_forth {
                let command = if is_early { Command::RELAY_EARLY } else { RELAY };
                let sent = circuit.encrypt_for(hop, command, &mut body);
                prop_assert_ne!(&body[TAG..], &clear[TAG..]);
                prop_assert_eq!(circuit.forward(0, command, &mut body), Some((hop, sent)));
            } else {
                let sent = circuit.say(hop, &mut body);
                prop_assert_ne!(&body[TAG..], &clear[TAG..]);
                prop_assert_eq!(circuit.decrypt(&mut body), Some((hop, sent)));
            }
            prop_assert_eq!(&body[TAG..], &clear[TAG..]);
        }
    }

    #[test]
    fn a_relay_that_flips_a_bit_tells_no_other_one_anything(at in 0..BODY * 8, first in 0..3usize) {
        let mut circuit = Circuit::of(3);
        let clear = any_body(1);
        let mut body = clear;
        circuit.encrypt_for(2, RELAY, &mut body);
        for relay in &mut circuit.relays[..first] {
            relay.forward(RELAY, &mut body);
        }
        body[at / 8] ^= 1 << (at % 8);
        prop_assert_eq!(circuit.forward(first, RELAY, &mut body), None);
        let same = body.iter().zip(&clear).skip(TAG).filter(|(a, b)| a == b).count();
        prop_assert!(same < 40, "{same} bytes of {} are as they were", BODY);
        let mut next = any_body(2);
        circuit.encrypt_for(2, RELAY, &mut next);
        prop_assert_eq!(circuit.forward(0, RELAY, &mut next), None, "the circuit is over");
    }
}

#[test]
fn a_cell_under_another_command_is_noise() {
    let mut circuit = Circuit::of(2);
    let mut body = any_body(1);
    circuit.encrypt_for(1, Command::RELAY_EARLY, &mut body);
    assert_eq!(circuit.forward(0, RELAY, &mut body), None);
}

#[test]
fn what_came_before_cannot_be_read_by_the_keys_of_now() {
    let mut circuit = Circuit::of(1);
    let mut first = any_body(1);
    circuit.encrypt_for(0, RELAY, &mut first);
    let recorded = first;
    let before = what_it_does(&mut circuit.relays[0].forward);
    circuit.forward(0, RELAY, &mut first).expect("for it");
    let after = what_it_does(&mut circuit.relays[0].forward);
    assert_ne!(before.2, after.2);
    circuit.relays[0].forward.last = [0; TAG];
    let mut again = recorded;
    assert_eq!(circuit.relays[0].forward(RELAY, &mut again), None);
    assert_ne!(again, first);
}

#[test]
fn nothing_of_a_layer_is_printed() {
    let circuit = Circuit::of(1);
    assert_eq!(
        format!("{:?}{:?}", circuit.client[0], circuit.relays[0]),
        "cgo::ClientLayer(hidden)cgo::RelayLayer(hidden)"
    );
}
