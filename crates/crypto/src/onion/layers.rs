//! The layers of relay cells of one circuit, each by what its hop agreed to: [`tor1`] or [`cgo`], in any order.
//! A circuit has a [`RelayLayer`] at a relay and [`ClientLayers`] at its client. tor-spec, "Routing relay cells"; proposal 359.

use std::fmt;

pub use hoplite_wire::cell::BODY;
use hoplite_wire::cell::{
    Command,
    relay::{Format, SendmeTag},
};

use super::{
    Refused, Seed, cgo,
    tor1::{self, Party},
};

/// The relays that a circuit of ours may have.
pub const MAX_HOPS: usize = 8;

/// How the relay cells of a hop are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayCrypto {
    /// AES-128-CTR and a running SHA-1: what every relay has.
    #[default]
    Tor1,
    /// Counter Galois Onion (`Relay=6`).
    Cgo,
}

impl RelayCrypto {
    /// How relay messages stand in its cells.
    pub const fn format(self) -> Format {
        match self {
            Self::Tor1 => Format::V0,
            Self::Cgo => Format::V1,
        }
    }

    /// Bytes of a handshake's seed that its keys take.
    pub(super) const fn keys(self) -> usize {
        match self {
            Self::Tor1 => tor1::KEYS,
            Self::Cgo => cgo::KEYS,
        }
    }
}

/// A relay's end of one circuit's layer. Cells must be given in the order in which they came.
pub struct RelayLayer(Relay);

enum Relay {
    Tor1(Box<tor1::RelayLayer>),
    Cgo(Box<cgo::RelayLayer>),
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed, crypto: RelayCrypto) -> Result<Self, Refused> {
        Ok(Self(match crypto {
            RelayCrypto::Tor1 => Relay::Tor1(Box::new(tor1::RelayLayer::new(seed)?)),
            RelayCrypto::Cgo => Relay::Cgo(Box::new(cgo::RelayLayer::new(seed)?)),
        }))
    }

    /// How relay messages stand in its cells.
    pub fn format(&self) -> Format {
        match self.0 {
            Relay::Tor1(_) => Format::V0,
            Relay::Cgo(_) => Format::V1,
        }
    }

    /// Takes the layer off a cell with this command from the client. With a tag: it is for this relay. `None`: it goes on to the next, or, at the
    /// last, the circuit is to be closed.
    pub fn forward(&mut self, command: Command, body: &mut [u8; BODY]) -> Option<SendmeTag> {
        match &mut self.0 {
            Relay::Tor1(layer) => layer.forward(body).map(SendmeTag::Tor1),
            Relay::Cgo(layer) => layer.forward(command, body).map(SendmeTag::Cgo),
        }
    }

    /// Puts the layer on a RELAY cell that came from the next relay.
    pub fn backward(&mut self, body: &mut [u8; BODY]) {
        match &mut self.0 {
            Relay::Tor1(layer) => layer.backward(body),
            Relay::Cgo(layer) => layer.backward(Command::RELAY, body),
        }
    }

    /// Makes a RELAY cell for the client out of a body in the clear, and fills in what stands before or in its header.
    pub fn originate(&mut self, body: &mut [u8; BODY]) -> SendmeTag {
        match &mut self.0 {
            Relay::Tor1(layer) => SendmeTag::Tor1(layer.originate(body)),
            Relay::Cgo(layer) => SendmeTag::Cgo(layer.originate(Command::RELAY, body)),
        }
    }
}

/// A client's end of the layers of one circuit. Hops are counted from 0, the guard.
#[derive(Default)]
pub struct ClientLayers(Vec<Client>);

enum Client {
    Tor1(Box<tor1::ClientLayer>),
    Cgo(Box<cgo::ClientLayer>),
}

impl ClientLayers {
    /// No hop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of these layers.
    #[cfg(test)]
    pub(super) fn of_tor1(layers: Vec<tor1::ClientLayer>) -> Self {
        Self(layers.into_iter().map(Box::new).map(Client::Tor1).collect())
    }

    /// Adds the layer of the next hop.
    ///
    /// # Errors
    /// [`Refused::System`]; [`Refused::Unacceptable`]: there are [`MAX_HOPS`] already, or an onion service's.
    pub fn push(&mut self, seed: &Seed, crypto: RelayCrypto) -> Result<(), Refused> {
        if self.0.len() >= MAX_HOPS || self.leads_to_service() {
            return Err(Refused::Unacceptable);
        }
        self.0.push(match crypto {
            RelayCrypto::Tor1 => Client::Tor1(Box::new(tor1::ClientLayer::relay(seed)?)),
            RelayCrypto::Cgo => Client::Cgo(Box::new(cgo::ClientLayer::new(seed)?)),
        });
        Ok(())
    }

    /// Adds the layer between a client and an onion service, behind all relays; `own` says which of them has these layers. It is tor1's with SHA3-256
    /// over relays of any kind.
    ///
    /// # Errors
    /// [`Refused::System`]; [`Refused::Unacceptable`]: there is one already.
    pub fn push_service(&mut self, seed: &Seed, own: Party) -> Result<(), Refused> {
        if self.leads_to_service() {
            return Err(Refused::Unacceptable);
        }
        let layer = tor1::ClientLayer::service(seed, own)?;
        self.0.push(Client::Tor1(Box::new(layer)));
        Ok(())
    }

    fn leads_to_service(&self) -> bool {
        match self.0.last() {
            Some(Client::Tor1(layer)) => matches!(**layer, tor1::ClientLayer::Service(_)),
            Some(Client::Cgo(_)) | None => false,
        }
    }

    /// How many hops there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no hop.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How relay messages stand in the cells of `hop`. Version 0 if there is no such hop.
    pub fn format(&self, hop: usize) -> Format {
        match self.0.get(hop) {
            Some(Client::Cgo(_)) => Format::V1,
            Some(Client::Tor1(_)) | None => Format::V0,
        }
    }

    /// Forgets the hops behind the first `hops`: the circuit was truncated.
    pub fn truncate(&mut self, hops: usize) {
        self.0.truncate(hops);
    }

    /// Makes a cell with this command for `hop` out of a body in the clear: fills in what stands before or in its header, and enciphers it for each
    /// hop on the way. `None`, and nothing done, if there is no such hop.
    pub fn encrypt_for(
        &mut self,
        hop: usize,
        command: Command,
        body: &mut [u8; BODY],
    ) -> Option<SendmeTag> {
        let (target, before) = self.0.get_mut(..=hop)?.split_last_mut()?;
        let tag = target.originate(command, body);
        for layer in before.iter_mut().rev() {
            layer.forward(command, body);
        }
        Some(tag)
    }

    /// Deciphers a RELAY cell that came: which hop said it, and its tag. `None`: nobody did, and the circuit is to be closed.
    pub fn decrypt(&mut self, body: &mut [u8; BODY]) -> Option<(usize, SendmeTag)> {
        let layers = self.0.iter_mut().enumerate();
        layers
            .map(|(hop, layer)| Some((hop, layer.backward(body)?)))
            .find_map(|found| found)
    }
}

impl Client {
    /// A cell for this hop.
    fn originate(&mut self, command: Command, body: &mut [u8; BODY]) -> SendmeTag {
        match self {
            Self::Tor1(layer) => SendmeTag::Tor1(layer.originate(body)),
            Self::Cgo(layer) => SendmeTag::Cgo(layer.originate(command, body)),
        }
    }

    /// A cell for a hop behind this one.
    fn forward(&mut self, command: Command, body: &mut [u8; BODY]) {
        match self {
            Self::Tor1(layer) => layer.forward(body),
            Self::Cgo(layer) => layer.forward(command, body),
        }
    }

    /// A cell that came: with a tag if this hop said it.
    fn backward(&mut self, body: &mut [u8; BODY]) -> Option<SendmeTag> {
        match self {
            Self::Tor1(layer) => layer.backward(body).map(SendmeTag::Tor1),
            Self::Cgo(layer) => layer.backward(Command::RELAY, body).map(SendmeTag::Cgo),
        }
    }
}

impl fmt::Debug for RelayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayLayer(hidden)")
    }
}

impl fmt::Debug for ClientLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientLayers({} hops)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use proptest::prelude::*;
    use zeroize::Zeroizing;

    use super::*;

    const EARLY: Command = Command::RELAY_EARLY;

    fn seed(hop: usize) -> Seed {
        let key = [u8::try_from(hop).expect("few"); 32];
        Seed::shake256(Zeroizing::new(key), b"test", 0)
    }

    /// A client, and relays with these kinds of layers.
    fn circuit(kinds: &[RelayCrypto]) -> (ClientLayers, Vec<RelayLayer>) {
        let (mut client, mut relays) = (ClientLayers::new(), Vec::new());
        for (hop, crypto) in kinds.iter().enumerate() {
            client.push(&seed(hop), *crypto).expect("a hop");
            assert_eq!(client.format(hop), crypto.format());
            relays.push(RelayLayer::new(&seed(hop), *crypto).expect("a layer"));
        }
        (client, relays)
    }

    /// A message in the format of its hop, filled to the end.
    fn message(format: Format, fill: u8) -> [u8; BODY] {
        let mut body = [fill; BODY];
        match format {
            Format::V0 => body[1..9].fill(0),
            Format::V1 => body[..16].fill(0),
        }
        body
    }

    /// What the encryption does not set.
    fn said(format: Format, body: &[u8; BODY]) -> Vec<u8> {
        match format {
            Format::V0 => [&body[..5], &body[9..]].concat(),
            Format::V1 => body[16..].to_vec(),
        }
    }

    fn kinds() -> impl Strategy<Value = Vec<RelayCrypto>> {
        let one = prop::sample::select(vec![RelayCrypto::Tor1, RelayCrypto::Cgo]);
        prop::collection::vec(one, 1..=MAX_HOPS)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn cells_find_their_hop_both_ways_over_layers_of_any_kinds(kinds in kinds(), cells in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..24)) {
            let (mut client, mut relays) = circuit(&kinds);
            for (hop, forth, fill) in cells {
                let hop = hop.index(kinds.len());
                let format = kinds[hop].format();
                let mut body = message(format, fill);
                let before = said(format, &body);
                if forth {
                    let sent = client.encrypt_for(hop, EARLY, &mut body);
                    for relay in &mut relays[..hop] {
                        prop_assert_eq!(relay.forward(EARLY, &mut body), None);
                    }
                    let heard = relays[hop].forward(EARLY, &mut body);
                    prop_assert!(sent.is_some() && heard == sent);
                } else {
                    let sent = relays[hop].originate(&mut body);
                    for relay in relays[..hop].iter_mut().rev() {
                        relay.backward(&mut body);
                    }
                    prop_assert_eq!(client.decrypt(&mut body), Some((hop, sent)));
                }
                prop_assert_eq!(said(format, &body), before);
            }
        }
    }

    /// How many bytes of the message of the second of two cells come out at the last relay as they were sent, if the guard flips a bit of the first one.
    fn survives(crypto: RelayCrypto) -> (Option<SendmeTag>, usize, Option<SendmeTag>, usize) {
        let (mut client, mut relays) = circuit(&[crypto; 3]);
        let mut cell = |flips: bool| {
            let sent = message(crypto.format(), 0x2a);
            let mut body = sent;
            client
                .encrypt_for(2, Command::RELAY, &mut body)
                .expect("a hop");
            let mut tag = None;
            for (hop, relay) in relays.iter_mut().enumerate() {
                tag = relay.forward(Command::RELAY, &mut body);
                if hop == 0 && flips {
                    body[200] ^= 0x10;
                }
            }
            let same = body.iter().zip(&sent).filter(|(a, b)| a == b).count();
            (tag, same)
        };
        let (first, second) = (cell(true), cell(false));
        (first.0, first.1, second.0, second.1)
    }

    /// Proposal 359: what tor1 lacks. With tor1 a guard and an exit of one hand know each other by the bit.
    #[test]
    fn a_guards_flipped_bit_is_one_bit_at_the_exit_with_tor1_and_noise_for_ever_with_cgo() {
        let (tag, same, ..) = survives(RelayCrypto::Tor1);
        assert_eq!(tag, None);
        // Its digest, and the bit.
        assert!(same >= BODY - 5, "{same}");
        let (first, same, second, after) = survives(RelayCrypto::Cgo);
        assert_eq!((first, second), (None, None));
        // Of 509 random bytes two are right by chance, and never 20.
        assert!(same < 20 && after < 20, "{same} {after}");
    }

    #[test]
    fn a_circuit_has_at_most_eight_hops_and_one_service_behind_them() {
        let mut client = ClientLayers::new();
        for hop in 0..MAX_HOPS {
            client.push(&seed(hop), RelayCrypto::Cgo).expect("a hop");
        }
        let beyond = client.push(&seed(8), RelayCrypto::Cgo);
        assert_eq!(beyond, Err(Refused::Unacceptable));
        client
            .push_service(&seed(9), Party::Client)
            .expect("a service");
        let again = client.push_service(&seed(9), Party::Client);
        assert_eq!(again, Err(Refused::Unacceptable));
        assert_eq!(client.len(), MAX_HOPS + 1);
        assert_eq!(client.format(MAX_HOPS), Format::V0);
        client.truncate(3);
        assert_eq!(client.len(), 3);
        let mut body = message(Format::V1, 1);
        for hop in [3, usize::MAX] {
            assert_eq!(client.encrypt_for(hop, EARLY, &mut body), None);
        }
        assert_eq!(body, message(Format::V1, 1));
    }

    #[test]
    fn layers_can_move_between_threads_and_say_nothing_of_their_keys() {
        fn moves<T: Send + 'static>(_: &T) {}
        let (client, relays) = circuit(&[RelayCrypto::Tor1, RelayCrypto::Cgo]);
        moves(&client);
        moves(&relays);
        assert_eq!(format!("{client:?}"), "ClientLayers(2 hops)");
        assert_eq!(format!("{:?}", relays[1]), "RelayLayer(hidden)");
    }

    // What a cell costs with either kind: `cargo test --release -p hoplite-crypto speed -- --ignored --nocapture`. It measures and asserts nothing.

    const WAYS: [&str; 5] = [
        "a relay passes a cell on",
        "a relay passes a cell back",
        "a client passes a cell on",
        "a relay says a cell, the client hears it",
        "a client says a cell, the relay hears it",
    ];

    /// Nanoseconds for each cell of a thousand.
    fn cost(mut one: impl FnMut(&mut [u8; BODY])) -> f64 {
        let mut body = [1; BODY];
        let start = Instant::now();
        for _ in 0..1_000 {
            one(black_box(&mut body));
        }
        start.elapsed().as_secs_f64() * 1e6
    }

    fn costs(crypto: RelayCrypto) -> [f64; WAYS.len()] {
        let (mut client, mut relays) = circuit(&[crypto; 2]);
        let relay = &mut relays[0];
        let on = cost(|body| assert_eq!(relay.forward(EARLY, body), None));
        let back = cost(|body| relay.backward(body));
        let client_on = cost(|body| client.0[0].forward(EARLY, body));
        let (mut client, mut relays) = circuit(&[crypto]);
        let relay = &mut relays[0];
        let heard_back = cost(|body| {
            let said = relay.originate(body);
            assert_eq!(client.decrypt(body), Some((0, said)));
        });
        let heard_forth = cost(|body| {
            let said = client.encrypt_for(0, EARLY, body);
            assert_eq!(relay.forward(EARLY, body), said);
        });
        [on, back, client_on, heard_back, heard_forth]
    }

    #[test]
    #[ignore = "it measures: run it alone, in release"]
    fn speed() {
        let mut least = [[f64::INFINITY; 2]; WAYS.len()];
        for _ in 0..500 {
            let (tor1, cgo) = (costs(RelayCrypto::Tor1), costs(RelayCrypto::Cgo));
            for (least, now) in least.iter_mut().zip(tor1.into_iter().zip(cgo)) {
                *least = [least[0].min(now.0), least[1].min(now.1)];
            }
        }
        println!("{:42} tor1   CGO  CGO/tor1", "nanoseconds, at best");
        for (what, [tor1, cgo]) in WAYS.iter().zip(least) {
            println!("{what:41} {tor1:5.0} {cgo:5.0} {:9.2}", cgo / tor1);
        }
    }
}
