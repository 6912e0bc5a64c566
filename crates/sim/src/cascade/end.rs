//! One end of one connection: the stack's endpoint with its connection, and what the product hooks into it. Beside it what is transferred between
//! two of them.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::{ALPN_H3, Certificates, Trust, client_tls, server_tls};
use hoplite_quic::{
    ClientConfig, ConnectionController, Dir, EndpointConfig, Hooks, PathStats, ServerConfig,
    StreamId, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
    proto::{Connection, ConnectionHandle, DatagramEvent, Endpoint, Event},
};

use super::{Failed, books::Books, clock};
use crate::run::{Unmade, identity};

/// What stands before the payload in an HTTP datagram: the request's number and the context, both 0 (RFC 9297 §2.1, RFC 9298 §5).
const HEAD: [u8; 2] = [0, 0];

/// Bytes of datagrams that may wait for their reader.
pub(super) const INBOX: usize = 2 << 20;

/// Bytes of datagrams that wait for a tunnel: a relay's default (`limits.datagram_buffer`).
const DATAGRAM_QUEUE: usize = 512 << 10;

/// The windows of streams, which shall not be what limits.
const WINDOW: u32 = 64 << 20;

/// As often a tunnel's round trip is told to who governs its acknowledgements, in datagrams received.
const ROUND_TRIP_AFTER: u32 = 16;

/// What all connections share.
pub(super) struct Cryptography {
    near: Arc<QuicClientConfig>,
    far: Arc<QuicServerConfig>,
    books: Arc<Books>,
}

impl Cryptography {
    pub(super) fn new(books: &Arc<Books>) -> Result<Self, Unmade> {
        let identity = identity()?;
        let certificates = Certificates::new(&identity).map_err(wrong)?;
        let far = server_tls(certificates, &[ALPN_H3]).map_err(wrong)?;
        let near = client_tls(&Trust::Pins(vec![identity.pin()]), &[ALPN_H3]).map_err(wrong)?;
        Ok(Self {
            near: Arc::new(QuicClientConfig::try_from(near).map_err(wrong)?),
            far: Arc::new(QuicServerConfig::try_from(far).map_err(wrong)?),
            books: Arc::clone(books),
        })
    }

    fn hooks(&self, node: usize, controller: Option<&ConnectionController>) -> Hooks {
        let hooks = Hooks {
            watch: Some(self.books.watch(node, controller.is_some())),
            clock,
            ..Hooks::default()
        };
        controller.map_or_else(|| hooks.clone(), |controller| controller.hooks(&hooks))
    }
}

fn wrong(error: impl std::fmt::Display) -> Unmade {
    Unmade::Certificate(error.to_string())
}

/// One end.
pub(super) struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    controller: Option<ConnectionController>,
    pub(super) connected: bool,
    /// Why the connection is no more.
    pub(super) lost: Option<String>,
    received: u32,
}

fn transport(mtu: usize, controller: Option<&ConnectionController>) -> Arc<TransportConfig> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let mut config = TransportConfig::default();
    config
        .initial_mtu(mtu)
        .min_mtu(mtu)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .datagram_send_buffer_size(DATAGRAM_QUEUE)
        .datagram_receive_buffer_size(Some(INBOX));
    if let Some(controller) = controller {
        controller.configure_transport(&mut config);
    }
    Arc::new(config)
}

impl End {
    /// The client's, which begins.
    pub(super) fn dialling(
        cryptography: &Cryptography,
        (now, to): (Instant, SocketAddr),
        (node, mtu): (usize, usize),
        controller: Option<ConnectionController>,
        seed: [u8; 32],
    ) -> Result<Self, Failed> {
        let hooks = cryptography.hooks(0, controller.as_ref());
        let near = Arc::clone(&cryptography.near);
        let mut config = ClientConfig::new(hooks.client(near, &format!("hop{node}")));
        config.transport_config(transport(mtu, controller.as_ref()));
        let mut end = Self::new(None, controller, seed);
        let begun = end.endpoint.connect(now, config, to, "relay.example");
        end.connection = Some(begun.map_err(|error| Failed::Connect(error.to_string()))?);
        Ok(end)
    }

    /// A relay's or the server's, which waits.
    pub(super) fn listening(
        cryptography: &Cryptography,
        node: usize,
        mtu: usize,
        controller: Option<ConnectionController>,
        seed: [u8; 32],
    ) -> Self {
        let hooks = cryptography.hooks(node, controller.as_ref());
        let far = Arc::clone(&cryptography.far);
        let mut config = ServerConfig::with_crypto(hooks.server(far, "relay"));
        config.transport_config(transport(mtu, controller.as_ref()));
        Self::new(Some(config), controller, seed)
    }

    fn new(
        server: Option<ServerConfig>,
        controller: Option<ConnectionController>,
        seed: [u8; 32],
    ) -> Self {
        let config = Arc::new(EndpointConfig::default());
        Self {
            endpoint: Endpoint::new(config, server.map(Arc::new), true, Some(seed)),
            connection: None,
            controller,
            connected: false,
            lost: None,
            received: 0,
        }
    }

    /// The largest UDP payload that goes through this tunnel.
    pub(super) fn carries(&mut self) -> usize {
        let connection = self.connection.as_mut().map(|(_, connection)| connection);
        let largest = connection.and_then(|connection| connection.datagrams().max_size());
        largest.unwrap_or_default().saturating_sub(HEAD.len())
    }

    /// A stream begins that wants congestion control.
    pub(super) fn stream_begins(&self) {
        if let Some(controller) = &self.controller {
            controller.stream_begins();
        }
    }

    pub(super) fn timeout(&mut self) -> Option<Instant> {
        self.connection.as_mut()?.1.poll_timeout()
    }

    /// The timers that are due.
    pub(super) fn fire(&mut self, now: Instant) {
        if let Some((_, connection)) = &mut self.connection
            && connection.poll_timeout().is_some_and(|time| time <= now)
        {
            connection.handle_timeout(now);
        }
    }

    /// A packet has come; what it carries in datagrams.
    pub(super) fn handle(&mut self, now: Instant, packet: &[u8]) -> Vec<Bytes> {
        let (from, mut answer) = (self.remote(), Vec::new());
        let packet = BytesMut::from(packet);
        match self
            .endpoint
            .handle(now, from, None, None, packet, &mut answer)
        {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) if self.connection.is_none() => {
                match self.endpoint.accept(incoming, now, &mut answer, None) {
                    Ok(begun) => self.connection = Some(begun),
                    Err(error) => self.lost = Some(error.cause.to_string()),
                }
            }
            _ => {}
        }
        self.look();
        self.datagrams()
    }

    /// The other end; whoever dials does it from one address.
    fn remote(&self) -> SocketAddr {
        let connection = self.connection.as_ref();
        connection.map_or_else(
            || SocketAddr::from(([10, 0, 0, 1], 1)),
            |(_, connection)| connection.remote_address(),
        )
    }

    /// What the stack has to say.
    fn look(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason.to_string()),
                _ => {}
            }
        }
    }

    fn datagrams(&mut self) -> Vec<Bytes> {
        let mut all = Vec::new();
        let Some((_, connection)) = &mut self.connection else {
            return all;
        };
        while let Some(datagram) = connection.datagrams().recv() {
            all.push(datagram);
        }
        if let Some(controller) = &self.controller {
            let ack_controller = controller.ack_controller();
            ack_controller.take_datagrams(&mut all, usize::MAX);
            self.received = self.received.wrapping_add(1);
            if self.received.is_multiple_of(ROUND_TRIP_AFTER) {
                ack_controller.round_trip(connection.rtt());
            }
        }
        all.retain(|datagram| datagram.len() >= HEAD.len());
        all.iter_mut()
            .for_each(|datagram| *datagram = datagram.slice(HEAD.len()..));
        all
    }

    /// Whether one more packet finds room in the tunnel.
    pub(super) fn has_room(&mut self) -> bool {
        let connection = self.connection.as_mut().map(|(_, connection)| connection);
        connection.is_some_and(|connection| connection.datagrams().send_buffer_space() > 1500)
    }

    /// Sends a payload through the tunnel; whether there was room.
    pub(super) fn push(&mut self, payload: &[u8]) -> bool {
        let Some((_, connection)) = &mut self.connection else {
            return false;
        };
        let datagram = Bytes::from([&HEAD[..], payload].concat());
        connection.datagrams().send(datagram, false).is_ok()
    }

    /// The next packet, if one may be sent now.
    pub(super) fn transmit(&mut self, now: Instant, books: &Books) -> Option<Bytes> {
        self.look();
        let (_, connection) = self.connection.as_mut()?;
        let mut packet = Vec::new();
        let _transmit = connection.poll_transmit(now, 1, &mut packet)?;
        books.name(&packet);
        Some(packet.into())
    }

    /// What its stack counts of its path: packets that were sent and that are believed lost, and how often that was taken for congestion.
    pub(super) fn path(&self) -> PathStats {
        let connection = self.connection.as_ref();
        connection.map_or_else(PathStats::default, |(_, connection)| {
            connection.stats().path
        })
    }
}

/// A request and its answer on one stream.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    began: Option<Instant>,
    asks: Side,
    answers: Side,
    stream: Option<StreamId>,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// What one side has to say.
#[derive(Debug, Default)]
struct Side {
    left: u64,
    said: bool,
    /// All of the other's has come.
    heard: bool,
}

impl Exchange {
    pub(super) fn new(began: Instant, asked: u64, answered: u64) -> Self {
        let side = |left| Side {
            left,
            ..Side::default()
        };
        Self {
            began: Some(began),
            asks: side(asked),
            answers: side(answered),
            ..Self::default()
        }
    }

    /// The whole of the larger part has come.
    pub(super) const fn is_over(&self) -> bool {
        self.last.is_some()
    }

    /// Seconds to the first byte and to the last one.
    pub(super) fn times(&self) -> (f64, f64) {
        let since = |at: Option<Instant>| {
            let time = at.zip(self.began).map(|(at, began)| at - began);
            time.unwrap_or(Duration::MAX).as_secs_f64()
        };
        (since(self.first), since(self.last))
    }

    /// Writes and reads what can be; whether that was anything.
    pub(super) fn go_on(&mut self, now: Instant, near: &mut End, far: &mut End) -> bool {
        if self.began.is_none() || !near.connected || !far.connected {
            return false;
        }
        let (Some((_, near)), Some((_, far))) = (&mut near.connection, &mut far.connection) else {
            return false;
        };
        if self.stream.is_none() {
            self.stream = near.streams().open(Dir::Bi);
        }
        let Some(stream) = self.stream else {
            return false;
        };
        let uploads = self.answers.left == 0 && !self.answers.said;
        let mut any = self.asks.say(near, stream);
        let _stream = far.streams().accept(Dir::Bi);
        let came = self.answers.hear(far, stream);
        any |= came > 0;
        let mut bytes = if uploads { came } else { 0 };
        if self.answers.heard {
            any |= self.answers.say(far, stream);
        }
        let back = self.asks.hear(near, stream);
        any |= back > 0;
        bytes += if uploads { 0 } else { back };
        if bytes > 0 {
            self.first.get_or_insert(now);
        }
        let over = if uploads {
            self.answers.heard
        } else {
            self.asks.heard
        };
        if over {
            self.last.get_or_insert(now);
        }
        any
    }
}

/// What is written at once.
const ZEROS: &[u8] = &[0; 1 << 16];

impl Side {
    fn say(&mut self, connection: &mut Connection, stream: StreamId) -> bool {
        let mut any = false;
        while self.left > 0 {
            let most = usize::try_from(self.left).unwrap_or(usize::MAX);
            let part = ZEROS.get(..most.min(ZEROS.len())).unwrap_or(ZEROS);
            match connection.send_stream(stream).write(part) {
                Ok(written) if written > 0 => {
                    any = true;
                    self.left -= u64::try_from(written).unwrap_or(self.left);
                }
                _ => return any,
            }
        }
        if !self.said {
            self.said = connection.send_stream(stream).finish().is_ok();
            any |= self.said;
        }
        any
    }

    /// How many bytes have come.
    fn hear(&mut self, connection: &mut Connection, stream: StreamId) -> u64 {
        let mut came = 0;
        let mut incoming = connection.recv_stream(stream);
        let Ok(mut chunks) = incoming.read(true) else {
            return 0;
        };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => came += u64::try_from(chunk.bytes.len()).unwrap_or(0),
                Ok(None) => {
                    self.heard = true;
                    break;
                }
                Err(_) => break,
            }
        }
        // What it says is sent with the next packet anyway.
        let _more = chunks.finalize();
        came
    }
}
