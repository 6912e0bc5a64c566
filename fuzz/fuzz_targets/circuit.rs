//! Circuits against a hostile peer who has the keys of their layers: a client's whose relays are all of one party, and a relay's whose client and
//! next relay are. They carry on or are closed; what they hold stays bounded, every stream ends with its circuit, and no circuit is forgotten.
//!
//! The first byte says which end and how it was made; then come steps, each a byte and what belongs to it.
#![no_main]

#[path = "circuit/client.rs"]
mod client;
#[path = "circuit/relay.rs"]
mod relay;

use std::{net::SocketAddr, sync::LazyLock, time::Duration};

use bytes::BytesMut;
use hoplite_crypto::onion::{OnionKey, OnionKeys};
use hoplite_onion::{endpoint::Limits, path};
use hoplite_wire::{
    Protocols,
    cell::{
        self, Cell, CircuitId, Command,
        relay::{self as message, Format, StreamId},
    },
};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// Small ones, so that they are reached.
const LIMITS: Limits = Limits {
    streams: 4,
    waiting: 600,
    held: 500_000,
    sending: 16,
    sending_all: 40,
    urgent: 16,
    gone: 4,
    early: 16,
    share: Duration::ZERO,
};
/// What a circuit's end may own with them, in bytes: four streams whose cells were read into memory twice as large.
const MOST: usize = 4 << 20;

/// Streams that a program has ended wait for a while; the clock of these stands still.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
});
static KEYS: LazyLock<[OnionKeys; 3]> = LazyLock::new(|| [1, 2, 3].map(keys));

fuzz_target!(|bytes: &[u8]| {
    let _timers = RUNTIME.enter();
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
fn known(n: usize, ntor3: bool, protocols: Protocols) -> path::Relay {
    path::Relay {
        name: "".into(),
        keys: KEYS[n].published(),
        rsa: true,
        addresses: vec![SocketAddr::from(([192, 0, 2, 1], 443))],
        ntor3,
        congestion_control: true,
        protocols,
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

    /// A relay message; its length may be a lie.
    fn said(&mut self) -> Said {
        let (command, stream) = (message::RelayCommand(self.byte()), StreamId(self.byte().into()));
        let lie = self.byte();
        let data = self.some().to_vec();
        let length = match lie {
            0..=239 => data.len(),
            _ => usize::from(lie) * 260 % 1000,
        };
        Said {
            command,
            stream,
            length,
            data,
        }
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

/// A relay message, with whatever length it claims.
struct Said {
    command: message::RelayCommand,
    stream: StreamId,
    length: usize,
    data: Vec<u8>,
}

impl Said {
    fn new(command: message::RelayCommand, stream: StreamId, data: &[u8]) -> Self {
        Self {
            command,
            stream,
            length: data.len(),
            data: data.to_vec(),
        }
    }

    /// In the clear.
    fn body(&self, format: Format) -> BytesMut {
        let mut body = BytesMut::zeroed(cell::BODY);
        let length = u16::try_from(self.length).expect("less than 1000");
        let (stream, length) = (self.stream.0.to_be_bytes(), length.to_be_bytes());
        let (command, at_stream, at_length) = match format {
            Format::V0 => (0, 3, 9),
            Format::V1 => (16, 19, 17),
        };
        body[command] = self.command.0;
        body[at_stream..at_stream + 2].copy_from_slice(&stream);
        body[at_length..at_length + 2].copy_from_slice(&length);
        let header = format.header(self.command);
        body[header..header + self.data.len()].copy_from_slice(&self.data);
        body
    }
}

fn relay_cell(command: Command, body: BytesMut) -> Cell {
    Cell {
        circuit: CircuitId::new(1),
        command,
        stream: StreamId::CIRCUIT,
        body,
    }
}

/// Padding that is the same each time.
fn zeros(bytes: &mut [u8]) {
    bytes.fill(0);
}
