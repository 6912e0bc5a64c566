//! A client and a server connection over a network in memory, in virtual time: 25 ms one way, nothing lost unless a test says so.

use std::{
    cell::Cell,
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionHandle, ConnectionStats, DatagramEvent,
    Endpoint, EndpointConfig, Event, ServerConfig, TransportConfig,
    congestion::CubicConfig,
    crypto::{
        self,
        rustls::{QuicClientConfig, QuicServerConfig},
    },
};

use hoplite_crypto::{ALPN_H3, Certificates, Identity, Trust, client_tls, server_tls};

use crate::Hooks;

const DELAY: Duration = Duration::from_millis(25);
const ADDRESSES: [&str; 2] = ["10.0.0.1:1", "10.0.0.2:2"];

thread_local! {
    /// The time of the pair that this test runs.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The clock for hooks.
pub(crate) fn now() -> Instant {
    NOW.get().unwrap()
}

/// What the network does to the packets of an end.
#[derive(Clone, Copy, Default)]
pub(crate) struct Harm {
    /// Of a thousand packets, so many are lost.
    pub(crate) lost: u64,
    /// Of a thousand packets, this many arrive twice.
    pub(crate) doubled: u64,
    /// Larger packets are lost; 0 is no limit.
    pub(crate) largest: usize,
}

/// One end.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    connected: bool,
    lost: Option<String>,
}

/// Both ends; 0 is the client.
pub(crate) struct Pair {
    ends: [End; 2],
    now: Instant,
    /// When, to whom, what.
    flying: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Sizes of the UDP payloads that each end sent.
    pub(crate) sent: [Vec<usize>; 2],
    /// How many packets the network has lost.
    pub(crate) lost_packets: [u64; 2],
    /// Datagrams that the stack of each end handed out.
    pub(crate) handed_out: [Vec<Bytes>; 2],
    /// How each end's packets fare.
    pub(crate) harm: [Harm; 2],
    /// This end sends nothing now.
    pub(crate) held: Option<usize>,
    random: u64,
    number: u64,
}

impl End {
    fn new(address: &str, server: Option<ServerConfig>, seed: u8) -> Self {
        let config = Arc::new(EndpointConfig::default());
        Self {
            endpoint: Endpoint::new(config, server.map(Arc::new), true, Some([seed; 32])),
            connection: None,
            address: address.parse().unwrap(),
            connected: false,
            lost: None,
        }
    }
}

/// No congestion window, and no pacing: what is sent leaves at once.
fn transport(asks: Option<AckFrequencyConfig>) -> Arc<TransportConfig> {
    let mut congestion = CubicConfig::default();
    congestion.initial_window(1 << 40);
    let mut config = TransportConfig::default();
    config
        .ack_frequency_config(asks)
        .initial_mtu(1452)
        .mtu_discovery_config(None)
        .congestion_controller_factory(Arc::new(congestion))
        .datagram_receive_buffer_size(Some(1 << 24));
    Arc::new(config)
}

/// A server's cryptography that nothing is hooked into.
pub(crate) fn server_crypto() -> Arc<dyn crypto::ServerConfig> {
    let made = Identity::generate(&["relay.example".to_owned()]).unwrap();
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
    server_of(&identity)
}

fn server_of(identity: &Identity) -> Arc<dyn crypto::ServerConfig> {
    let tls = server_tls(Certificates::new(identity).unwrap(), &[ALPN_H3]).unwrap();
    Arc::new(QuicServerConfig::try_from(tls).unwrap())
}

pub(crate) fn configs(
    client: &Hooks,
    server: &Hooks,
    asks: Option<AckFrequencyConfig>,
) -> (ClientConfig, ServerConfig) {
    let made = Identity::generate(&["relay.example".to_owned()]).unwrap();
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
    let mut far = ServerConfig::with_crypto(server.server(server_of(&identity), "far"));
    far.transport_config(transport(None));
    let tls = client_tls(&Trust::Pins(vec![identity.pin()]), &[ALPN_H3]).unwrap();
    let near = Arc::new(QuicClientConfig::try_from(tls).unwrap());
    let mut near = ClientConfig::new(client.client(near, "near"));
    near.transport_config(transport(asks));
    (near, far)
}

impl Pair {
    /// Connects; half a second has passed then.
    pub(crate) fn connect(client: &Hooks, server: &Hooks) -> Self {
        Self::begin(configs(client, server, None))
    }

    /// The same; the client asks the server to acknowledge otherwise.
    pub(crate) fn connect_asking(client: &Hooks, server: &Hooks, asks: AckFrequencyConfig) -> Self {
        Self::begin(configs(client, server, Some(asks)))
    }

    fn begin((near, far): (ClientConfig, ServerConfig)) -> Self {
        let mut ends = [
            End::new(ADDRESSES[0], None, 1),
            End::new(ADDRESSES[1], Some(far), 2),
        ];
        let (now, to) = (Instant::now(), ends[1].address);
        NOW.set(Some(now));
        let begun = ends[0].endpoint.connect(now, near, to, "relay.example");
        ends[0].connection = Some(begun.unwrap());
        let mut pair = Self {
            ends,
            now,
            flying: VecDeque::new(),
            sent: Default::default(),
            lost_packets: [0; 2],
            handed_out: Default::default(),
            harm: Default::default(),
            held: None,
            random: 7,
            number: 0,
        };
        pair.run(Duration::from_millis(500));
        assert!(pair.ends[0].connected && pair.ends[1].connected);
        pair
    }

    pub(crate) fn connection(&mut self, end: usize) -> &mut Connection {
        &mut self.ends[end].connection.as_mut().unwrap().1
    }

    pub(crate) fn stats(&mut self, end: usize) -> ConnectionStats {
        self.connection(end).stats()
    }

    /// Why an end lost its connection.
    pub(crate) fn lost(&self, end: usize) -> Option<&str> {
        self.ends[end].lost.as_deref()
    }

    /// A number below 1000, the same ones in every run.
    fn dice(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % 1000
    }

    /// Sends this many datagrams of 1000 bytes from an end, one per `every`; each is another one.
    pub(crate) fn send(&mut self, end: usize, count: usize, every: Duration) {
        self.send_sized(end, count, every, |_| 1000);
    }

    /// Sends this many datagrams, each as large as `size` makes of a number below 1000.
    pub(crate) fn send_sized(
        &mut self,
        end: usize,
        count: usize,
        every: Duration,
        size: impl Fn(u64) -> u64,
    ) {
        for _ in 0..count {
            let size = size(self.dice()).try_into().unwrap();
            let mut datagram = vec![7; size];
            datagram[..8].copy_from_slice(&self.number.to_be_bytes());
            self.number += 1;
            // One that the path seems to be too small for is not sent.
            self.connection(end)
                .datagrams()
                .send(datagram.into(), false)
                .ok();
            self.run(every);
        }
    }

    /// Lets so much time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.flush();
            let timers = self
                .ends
                .iter_mut()
                .filter_map(|end| end.connection.as_mut()?.1.poll_timeout());
            let arrival = self.flying.front().map(|(time, ..)| *time);
            let Some(next) = timers.chain(arrival).min().filter(|next| *next <= end) else {
                self.at(end);
                return;
            };
            self.at(self.now.max(next));
            self.fire();
            while let Some((_, to, packet)) =
                self.flying.pop_front_if(|(time, ..)| *time <= self.now)
            {
                self.deliver(to, &packet);
            }
        }
    }

    fn at(&mut self, now: Instant) {
        self.now = now;
        NOW.set(Some(now));
    }

    fn fire(&mut self) {
        for end in &mut self.ends {
            let Some((_, connection)) = &mut end.connection else {
                continue;
            };
            if connection
                .poll_timeout()
                .is_some_and(|time| time <= self.now)
            {
                connection.handle_timeout(self.now);
            }
        }
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) {
        let from = self.ends[1 - to].address;
        let (end, mut out) = (&mut self.ends[to], Vec::new());
        let packet = BytesMut::from(packet);
        match end
            .endpoint
            .handle(self.now, from, None, None, packet, &mut out)
        {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                let (_, connection) = end.connection.as_mut().unwrap();
                connection.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = end.endpoint.accept(incoming, self.now, &mut out, None);
                end.connection = Some(accepted.map_err(|error| error.cause).unwrap());
            }
            _ => {}
        }
    }

    fn flush(&mut self) {
        let mut leaving = Vec::new();
        for (i, end) in self.ends.iter_mut().enumerate() {
            let Some((handle, connection)) = &mut end.connection else {
                continue;
            };
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = end.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            while let Some(event) = connection.poll() {
                match event {
                    Event::Connected => end.connected = true,
                    Event::ConnectionLost { reason } => end.lost = Some(reason.to_string()),
                    _ => {}
                }
            }
            while let Some(datagram) = connection.datagrams().recv() {
                self.handed_out[i].push(datagram);
            }
            if self.held == Some(i) {
                continue;
            }
            let mut out = Vec::new();
            while let Some(transmit) = connection.poll_transmit(self.now, 1, &mut out) {
                let packet = out.split_off(0);
                self.sent[i].push(transmit.size);
                leaving.push((i, packet));
            }
        }
        for (from, packet) in leaving {
            self.fly(from, packet);
        }
    }

    fn fly(&mut self, from: usize, packet: Vec<u8>) {
        let harm = self.harm[from];
        let too_large = harm.largest != 0 && packet.len() > harm.largest;
        if self.dice() < harm.lost || too_large {
            self.lost_packets[from] += 1;
            return;
        }
        let twice = self.dice() < harm.doubled;
        for packet in std::iter::repeat_n(packet, 1 + usize::from(twice)) {
            self.flying.push_back((self.now + DELAY, 1 - from, packet));
        }
    }
}
