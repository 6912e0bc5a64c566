//! Circuits against a hostile peer who has the keys of their layers: a client's whose relays are all of one party, and a relay's whose client and
//! next relay are. They carry on or are closed; what they hold stays bounded, every stream ends with its circuit, and no circuit is forgotten.
//!
//! The first byte says which end and how it was made; then come steps, each a byte and what belongs to it.
#![no_main]

#[path = "circuit/client.rs"]
mod client;
#[path = "circuit/relay.rs"]
mod relay;

use std::{net::SocketAddr, sync::LazyLock};

use bytes::BytesMut;
use hoplite_crypto::onion::{OnionKey, OnionKeys};
use hoplite_onion::{endpoint::Limits, path};
use hoplite_wire::cell::{
    self, Cell, CircuitId, Command,
    relay::{self as message, HEADER, Header, StreamId},
};
use libfuzzer_sys::fuzz_target;

/// Small ones, so that they are reached.
const LIMITS: Limits = Limits {
    streams: 4,
    waiting: 600,
    held: 500_000,
    sending: 16,
    sending_all: 40,
    urgent: 16,
    gone: 4,
};
/// What a circuit's end may own with them, in bytes: four streams whose cells were read into memory twice as large.
const MOST: usize = 4 << 20;

static KEYS: LazyLock<[OnionKeys; 3]> = LazyLock::new(|| [1, 2, 3].map(keys));

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    match input.byte() {
        who @ 0..=127 => client::run(who, &mut input),
        who => relay::run(who, &mut input),
    }
});

fn keys(n: u8) -> OnionKeys {
    let key = OnionKey::from_secret(&[n; 32]).expect("a key");
    OnionKeys::new([n; 20], [n; 32], key, None)
}

/// Relay `n` as others know it.
fn known(n: usize, ntor3: bool) -> path::Relay {
    path::Relay {
        name: "".into(),
        keys: KEYS[n].published(),
        rsa: true,
        addresses: vec![SocketAddr::from(([192, 0, 2, 1], 443))],
        ntor3,
        congestion_control: true,
        half_close: true,
        exit: None,
    }
}

/// What is left of it; behind its end there are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// So many bytes as the next one says.
    fn some(&mut self) -> &[u8] {
        let count = usize::from(self.byte()).min(self.0.len());
        let (some, rest) = self.0.split_at(count);
        self.0 = rest;
        some
    }

    /// A relay message in the clear; its length may be a lie.
    fn body(&mut self) -> BytesMut {
        let (command, stream) = (message::RelayCommand(self.byte()), StreamId(self.byte().into()));
        let lie = self.byte();
        let data = self.some();
        let length = match lie {
            0..=239 => data.len(),
            _ => usize::from(lie) * 260 % 1000,
        };
        body(command, stream, length, data)
    }

    /// A cell of a circuit, of whatever kind.
    fn cell(&mut self) -> Option<Cell> {
        let command = Command(self.byte());
        let data = self.some();
        let cell = Cell::new(CircuitId::new(1), command, |body| {
            body.extend_from_slice(data)
        });
        cell.ok()
    }
}

fn body(command: message::RelayCommand, stream: StreamId, length: usize, data: &[u8]) -> BytesMut {
    let mut body = BytesMut::zeroed(cell::BODY);
    body[HEADER..HEADER + data.len()].copy_from_slice(data);
    let length = u16::try_from(length).expect("less than 1000");
    let header = Header {
        command,
        recognized: 0,
        stream,
        digest: [0; 4],
        length,
    };
    header.write(body.as_mut().try_into().expect("a body"));
    body
}

fn relay_cell(command: Command, body: BytesMut) -> Cell {
    Cell {
        circuit: CircuitId::new(1),
        command,
        body,
    }
}

/// Padding that is the same each time.
fn zeros(bytes: &mut [u8]) {
    bytes.fill(0);
}
