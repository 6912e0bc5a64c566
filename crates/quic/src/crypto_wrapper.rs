//! The stack's cryptography traits around another implementation of them, with the hooks in between.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{BufMut, BytesMut};
use hoplite_wire::{quic_frames::Frames, tuning::DEFAULT_MAX_ACK_DELAY, varint};
use parking_lot::Mutex;
use quinn_proto::{
    ConnectError, ConnectionId, Side, TransportError,
    crypto::{
        self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
        UnsupportedVersion,
    },
    transport_parameters::TransportParameters,
};

#[cfg(feature = "without-cipher")]
use super::left_out;
use super::{
    AckController, Begun, Hooks, Observer, Packet, Space, ack_controller::Bounds, held::Held,
};

/// A client's configuration.
pub(super) struct Client {
    inner: Arc<dyn crypto::ClientConfig>,
    hooks: Hooks,
    label: Arc<str>,
}

/// A server's configuration.
pub(super) struct Server {
    inner: Arc<dyn crypto::ServerConfig>,
    hooks: Hooks,
    label: Arc<str>,
}

/// One connection.
struct Session {
    inner: Box<dyn crypto::Session>,
    hooked: Arc<Hooked>,
    /// How many times keys came of the handshake: first those of Handshake packets, then those of 1-RTT packets.
    keys: u8,
}

/// What all keys of one connection share.
struct Hooked {
    hooks: Hooks,
    side: Side,
    label: Arc<str>,
    observer: OnceLock<Option<Arc<dyn Observer>>>,
    held: Option<Arc<Held>>,
    handshake: Handshake,
}

/// The first round trip: from when we spoke to when the peer answered.
#[derive(Default)]
struct Handshake {
    spoke: Mutex<Option<Instant>>,
    over: AtomicBool,
}

/// A key for packets of one space and direction.
struct Key {
    inner: Box<dyn PacketKey>,
    hooked: Arc<Hooked>,
    space: Space,
}

/// The key for 0-RTT packets, of which only what they hold is of interest.
struct EarlyKey {
    inner: Box<dyn PacketKey>,
    held: Arc<Held>,
}

impl Client {
    pub(super) fn new(inner: Arc<dyn crypto::ClientConfig>, hooks: Hooks, label: &str) -> Self {
        let label = label.into();
        Self {
            inner,
            hooks,
            label,
        }
    }
}

impl Server {
    pub(super) fn new(inner: Arc<dyn crypto::ServerConfig>, hooks: Hooks, label: &str) -> Self {
        let label = label.into();
        Self {
            inner,
            hooks,
            label,
        }
    }
}

impl crypto::ClientConfig for Client {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let hooked = Hooked::new(&self.hooks, Side::Client, &self.label);
        let parameters = hooked.ours(parameters);
        let inner = Arc::clone(&self.inner).start_session(version, name, &parameters)?;
        Ok(Session::boxed(inner, hooked))
    }
}

impl crypto::ServerConfig for Server {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let hooked = Hooked::new(&self.hooks, Side::Server, &self.label);
        let parameters = hooked.ours(parameters);
        let inner = Arc::clone(&self.inner).start_session(version, &parameters);
        Session::boxed(inner, hooked)
    }
}

impl Hooked {
    fn new(hooks: &Hooks, side: Side, label: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            hooks: hooks.clone(),
            side,
            label: Arc::clone(label),
            observer: OnceLock::new(),
            held: hooks.window.map(Held::begin),
            handshake: Handshake::default(),
        })
    }

    /// The connection has an id now: the first time this is called, it gets its observer.
    fn begin(&self, id: &ConnectionId) {
        let begun = Begun {
            side: self.side,
            label: &self.label,
            id: *id,
        };
        let watch = self.hooks.watch.as_ref();
        self.observer
            .get_or_init(|| watch.and_then(|watch| watch.observe(&begun)));
    }

    fn ack_controller(&self) -> Option<&AckController> {
        self.hooks.ack_controller.as_deref()
    }

    fn ours(&self, parameters: &TransportParameters) -> TransportParameters {
        let ours = |ack_controller: &AckController| {
            our_parameters(parameters, self.side, ack_controller.bounds())
        };
        self.ack_controller().map_or(*parameters, ours)
    }

    fn theirs(&self, parameters: TransportParameters) -> TransportParameters {
        let theirs = |ack_controller: &AckController| {
            their_parameters(&parameters, self.side, ack_controller.bounds())
        };
        self.ack_controller().map_or(parameters, theirs)
    }

    /// What we say now will be answered. After a Retry (RFC 9000 §8.1.2) it is said again.
    fn speaks(&self) {
        if self.ack_controller().is_some() && !self.handshake.over.load(Ordering::Relaxed) {
            let now = (self.hooks.clock)();
            *self.handshake.spoke.lock() = Some(now);
        }
    }

    /// The first packet that answers has come.
    fn answered(&self) {
        if self.handshake.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let spoke = self.handshake.spoke.lock().take();
        if let (Some(ack_controller), Some(spoke)) = (self.ack_controller(), spoke) {
            ack_controller.round_trip((self.hooks.clock)().saturating_duration_since(spoke));
        }
    }

    fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get()?.as_deref()
    }

    fn pair(
        self: &Arc<Self>,
        keys: KeyPair<Box<dyn PacketKey>>,
        space: Space,
    ) -> KeyPair<Box<dyn PacketKey>> {
        let key = |inner| -> Box<dyn PacketKey> {
            Box::new(Key {
                inner,
                hooked: Arc::clone(self),
                space,
            })
        };
        KeyPair {
            local: key(keys.local),
            remote: key(keys.remote),
        }
    }

    fn keys(self: &Arc<Self>, keys: Keys, space: Space) -> Keys {
        Keys {
            header: keys.header,
            packet: self.pair(keys.packet, space),
        }
    }
}

impl Session {
    fn boxed(inner: Box<dyn crypto::Session>, hooked: Arc<Hooked>) -> Box<dyn crypto::Session> {
        Box::new(Self {
            inner,
            hooked,
            keys: 0,
        })
    }
}

impl crypto::Session for Session {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.hooked.begin(id);
        if side.is_client() {
            self.hooked.speaks();
        }
        self.hooked
            .keys(self.inner.initial_keys(id, side), Space::Initial)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let (header, inner) = self.inner.early_crypto()?;
        Some(match self.hooked.held.clone() {
            Some(held) => (header, Box::new(EarlyKey { inner, held })),
            None => (header, inner),
        })
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let read = self.inner.read_handshake(bytes)?;
        if let Some(held) = self.hooked.held.as_ref().filter(|_| !self.is_handshaking()) {
            held.establish();
        }
        Ok(read)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let theirs = self.inner.transport_parameters()?;
        Ok(theirs.map(|theirs| self.hooked.theirs(theirs)))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let keys = self.inner.write_handshake(out)?;
        if self.keys == 0 && self.hooked.side.is_server() {
            self.hooked.speaks();
        }
        let space = match self.keys {
            0 => Space::Handshake,
            _ => Space::Data,
        };
        self.keys = self.keys.saturating_add(1);
        Some(self.hooked.keys(keys, space))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.inner.next_1rtt_keys()?;
        Some(self.hooked.pair(keys, Space::Data))
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(out, label, context)
    }
}

impl Key {
    /// Only 1-RTT packets are governed.
    fn ack_controller(&self) -> Option<&AckController> {
        let ack_controller = self.hooked.ack_controller();
        ack_controller.filter(|_| self.space == Space::Data)
    }

    fn packet<'a>(&self, number: u64, size: usize, payload: &'a [u8]) -> Packet<'a> {
        Packet {
            space: self.space,
            number,
            size,
            payload,
        }
    }
}

impl Key {
    #[cfg(not(feature = "without-cipher"))]
    fn open(&self, number: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.inner.decrypt(number, header, payload)
    }

    #[cfg(feature = "without-cipher")]
    fn open(&self, number: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        if self.is_in_the_clear() {
            return left_out::open(payload, self.inner.tag_len());
        }
        self.inner.decrypt(number, header, payload)
    }

    #[cfg(feature = "without-cipher")]
    fn is_in_the_clear(&self) -> bool {
        self.space == Space::Data && left_out::is_cipher_left_out()
    }
}

impl PacketKey for Key {
    /// `packet` is header, payload and room for the tag.
    fn encrypt(&self, number: u64, packet: &mut [u8], header: usize) {
        if let Some(observer) = self.hooked.observer() {
            let end = packet.len().saturating_sub(self.inner.tag_len());
            let payload = packet.get(header..end).unwrap_or_default();
            observer.sent(&self.packet(number, packet.len(), payload));
        }
        if let Some(ack_controller) = self.ack_controller() {
            let end = packet.len().saturating_sub(self.inner.tag_len());
            let payload = packet.get(header..end).unwrap_or_default();
            let now = (self.hooked.hooks.clock)();
            ack_controller.sent(number, packet.len(), Frames::new(payload), now);
        }
        #[cfg(feature = "without-cipher")]
        if self.is_in_the_clear() {
            return left_out::seal(packet, self.inner.tag_len());
        }
        self.inner.encrypt(number, packet, header);
    }

    /// What is done to the plaintext comes after it was observed: observers see what was on the wire.
    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let size = header.len() + payload.len();
        self.open(number, header, payload)?;
        if let Some(observer) = self.hooked.observer() {
            observer.received(&self.packet(number, size, payload));
        }
        if self.space != Space::Initial {
            self.hooked.answered();
        }
        // What is refused the stack takes for damaged.
        let held = self
            .hooked
            .held
            .as_ref()
            .filter(|_| self.space == Space::Data);
        if held.is_some_and(|held| !held.has_room(payload)) {
            return Err(CryptoError);
        }
        let received = |controller: &AckController| {
            controller.received(number, payload, self.hooked.hooks.clock)
        };
        if !self.ack_controller().is_none_or(received) {
            return Err(CryptoError);
        }
        if let Some(held) = held {
            held.keep(number, payload, false);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

impl PacketKey for EarlyKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header: usize) {
        self.inner.encrypt(number, packet, header);
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(number, header, payload)?;
        if !self.held.has_room(payload) {
            return Err(CryptoError);
        }
        self.held.keep(number, payload, true);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

// Transport parameters with another max_ack_delay: the stack has no knob for its own, and believes any of the peer's.
// RFC 9000 §18 (their layout), §18.2 (max_ack_delay).

const MAX_ACK_DELAY: u64 = 0x0b;

/// draft-ietf-quic-ack-frequency §3, as of its draft 07.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

/// No peer holds back acknowledgements for longer: with what some may say, a timer would fire only when all is lost anyway.
const MAX_BELIEVED_ACK_DELAY: Duration = Duration::from_secs(1);

/// What we tell the peer. We do not keep the order and the meaningless parameter that the stack adds by chance, because they cannot be copied.
pub(super) fn our_parameters(
    parameters: &TransportParameters,
    side: Side,
    bounds: &Bounds,
) -> TransportParameters {
    with_delay(parameters, !side, |delay| delay.max(bounds.own_delay))
}

/// What the stack is told of the peer.
pub(super) fn their_parameters(
    parameters: &TransportParameters,
    side: Side,
    bounds: &Bounds,
) -> TransportParameters {
    with_delay(parameters, side, |delay| {
        delay.max(bounds.peer_delay).min(MAX_BELIEVED_ACK_DELAY)
    })
}

/// `parameters` with the delay that `change` makes of theirs, as `reader` reads them.
fn with_delay(
    parameters: &TransportParameters,
    reader: Side,
    change: impl FnOnce(Duration) -> Duration,
) -> TransportParameters {
    let mut bytes = Vec::new();
    parameters.write(&mut bytes);
    let Some(before) = max_ack_delay(&bytes) else {
        return *parameters;
    };
    let after = change(before);
    if after == before {
        return *parameters;
    }
    let changed = replaced(&bytes, after);
    let changed = changed.and_then(|bytes| TransportParameters::read(reader, &mut &*bytes).ok());
    changed.unwrap_or(*parameters)
}

/// The parameters with another delay. A min_ack_delay above it would make them invalid: without it, the peer is not asked for any delay.
fn replaced(bytes: &[u8], delay: Duration) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    for parameter in Parameters(bytes) {
        let Parameter { id, value, whole } = parameter?;
        let stays = match id {
            MAX_ACK_DELAY => false,
            MIN_ACK_DELAY => Duration::from_micros(value) <= delay,
            _ => true,
        };
        if stays {
            out.put_slice(whole);
        }
    }
    let delay = u64::try_from(delay.as_millis()).ok()?;
    varint::write(&mut out, MAX_ACK_DELAY);
    varint::write(&mut out, varint::len(delay) as u64);
    varint::write(&mut out, delay);
    Some(out)
}

fn max_ack_delay(bytes: &[u8]) -> Option<Duration> {
    let mut delay = DEFAULT_MAX_ACK_DELAY;
    for parameter in Parameters(bytes) {
        let Parameter { id, value, .. } = parameter?;
        if id == MAX_ACK_DELAY {
            delay = Duration::from_millis(value);
        }
    }
    Some(delay)
}

/// Encoded parameters, one by one; `None` for what cannot be read.
struct Parameters<'a>(&'a [u8]);

struct Parameter<'a> {
    id: u64,
    /// For those that are an integer.
    value: u64,
    whole: &'a [u8],
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Option<Parameter<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.read())
    }
}

impl<'a> Parameters<'a> {
    fn read(&mut self) -> Option<Parameter<'a>> {
        let mut rest = std::mem::take(&mut self.0);
        let all = rest;
        let id = varint::read(&mut rest)?;
        let length = usize::try_from(varint::read(&mut rest)?).ok()?;
        let (mut value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(Parameter {
            id,
            value: varint::read(&mut value).unwrap_or(0),
            whole: all.get(..all.len() - rest.len())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(own: &[(u64, u64)]) -> TransportParameters {
        let mut bytes = vec![];
        for (id, value) in own {
            varint::write(&mut bytes, *id);
            varint::write(&mut bytes, varint::len(*value) as u64);
            varint::write(&mut bytes, *value);
        }
        TransportParameters::read(Side::Server, &mut &*bytes).unwrap()
    }

    fn bytes(parameters: &TransportParameters) -> Vec<u8> {
        let mut bytes = vec![];
        parameters.write(&mut bytes);
        bytes
    }

    fn bounds(own: u64, peer: u64) -> Bounds {
        Bounds {
            own_delay: Duration::from_millis(own),
            peer_delay: Duration::from_millis(peer),
            ..Bounds::default()
        }
    }

    #[test]
    fn only_the_delay_is_changed() {
        let before = parameters(&[(0x04, 77), (0x0b, 30), (0x20, 1200)]);
        let after = our_parameters(&before, Side::Client, &bounds(100, 0));
        let expected = parameters(&[(0x04, 77), (0x0b, 100), (0x20, 1200)]);
        assert_eq!(bytes(&after), bytes(&expected));
        assert_eq!(
            our_parameters(&before, Side::Client, &bounds(30, 0)),
            before
        );
    }

    #[test]
    fn what_we_asked_the_peer_for_is_believed_and_absurd_delays_are_not() {
        let delay_of =
            |parameters: &TransportParameters| max_ack_delay(&bytes(parameters)).unwrap();
        for (said, asked, believed) in [
            (25, 0, 25),
            (25, 250, 250),
            (100, 50, 100),
            (16_383, 0, 1000),
        ] {
            let peer = parameters(&[(MAX_ACK_DELAY, said), (MIN_ACK_DELAY, 1000)]);
            let after = their_parameters(&peer, Side::Server, &bounds(25, asked));
            assert_eq!(delay_of(&after), Duration::from_millis(believed));
        }
    }

    #[test]
    fn a_peer_with_an_absurd_shortest_delay_is_not_asked_for_any() {
        let peer = parameters(&[(MAX_ACK_DELAY, 16_383), (MIN_ACK_DELAY, 16_000_000)]);
        let after = their_parameters(&peer, Side::Server, &bounds(25, 0));
        let expected = parameters(&[(MAX_ACK_DELAY, 1000)]);
        assert_eq!(bytes(&after), bytes(&expected));
    }
}
