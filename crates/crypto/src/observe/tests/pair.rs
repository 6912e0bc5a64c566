//! A client and a server connection over a network in memory, in virtual time: 25 ms one way, nothing lost.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionStats, DatagramEvent, Endpoint,
    EndpointConfig, Event, ServerConfig, TransportConfig,
    congestion::CubicConfig,
    crypto::{
        self,
        rustls::{QuicClientConfig, QuicServerConfig},
    },
};

use crate::{ALPN_H3, Certificates, Identity, Trust, client_tls, observe::Hooks, server_tls};

const DELAY: Duration = Duration::from_millis(25);
const ADDRESSES: [&str; 2] = ["10.0.0.1:1", "10.0.0.2:2"];

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
fn transport() -> Arc<TransportConfig> {
    let mut congestion = CubicConfig::default();
    congestion.initial_window(1 << 40);
    let mut config = TransportConfig::default();
    config
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

fn configs(client: &Hooks, server: &Hooks) -> (ClientConfig, ServerConfig) {
    let made = Identity::generate(&["relay.example".to_owned()]).unwrap();
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
    let mut far = ServerConfig::with_crypto(server.server(server_of(&identity), "far"));
    far.transport_config(transport());
    let tls = client_tls(&Trust::Pins(vec![identity.pin()]), &[ALPN_H3]).unwrap();
    let near = Arc::new(QuicClientConfig::try_from(tls).unwrap());
    let mut near = ClientConfig::new(client.client(near, "near"));
    near.transport_config(transport());
    (near, far)
}

impl Pair {
    /// Connects; half a second has passed then.
    pub(crate) fn connect(client: &Hooks, server: &Hooks) -> Self {
        let (near, far) = configs(client, server);
        let mut ends = [
            End::new(ADDRESSES[0], None, 1),
            End::new(ADDRESSES[1], Some(far), 2),
        ];
        let (now, to) = (Instant::now(), ends[1].address);
        let begun = ends[0].endpoint.connect(now, near, to, "relay.example");
        ends[0].connection = Some(begun.unwrap());
        let mut pair = Self {
            ends,
            now,
            flying: VecDeque::new(),
            sent: Default::default(),
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

    /// Sends so many datagrams of 1000 octets from an end, one per `every`.
    pub(crate) fn send(&mut self, end: usize, count: usize, every: Duration) {
        for _ in 0..count {
            let datagram = Bytes::from(vec![7; 1000]);
            self.connection(end)
                .datagrams()
                .send(datagram, false)
                .unwrap();
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
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            self.fire();
            while let Some((_, to, packet)) =
                self.flying.pop_front_if(|(time, ..)| *time <= self.now)
            {
                self.deliver(to, &packet);
            }
        }
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
            while connection.datagrams().recv().is_some() {}
            let mut out = Vec::new();
            while let Some(transmit) = connection.poll_transmit(self.now, 1, &mut out) {
                let packet = out.split_off(0);
                self.sent[i].push(transmit.size);
                self.flying.push_back((self.now + DELAY, 1 - i, packet));
            }
        }
    }
}
