//! `[limits]`: how much of everything a relay gives, to one client and to all. Zero means no limit where it says so. Of what is counted in
//! all, no client has more than is left free for others; of `bandwidth`, each has an equal share where all want more than there is.
//! A client is who holds a token; without tokens it is an IPv4 address or an IPv6 /56. Neither is stored in the clear.

use std::time::Duration;

use hoplite_config::above_zero;
use serde::Deserialize;

use super::ConfigError;

/// The keys that a running relay takes. The others are what its sockets, its sessions and its circuits were made with, and wait until it is started again.
pub const RELOADED_LIMITS: [&str; 20] = [
    "limits.connections",
    "limits.connections_per_client",
    "limits.waiting",
    "limits.waiting_per_client",
    "limits.unvalidated_handshakes",
    "limits.unvalidated_handshakes_per_client",
    "limits.requests",
    "limits.requests_per_client",
    "limits.udp_tunnels",
    "limits.abandoned",
    "limits.bandwidth",
    "limits.bandwidth_per_client",
    "limits.queries_per_client",
    "limits.lookups",
    "limits.query",
    "limits.first_request",
    "limits.idle_stream",
    "limits.connect",
    "limits.drain",
    "limits.memory",
];

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Open connections of all clients; a newcomer takes the place of one without a request, else of one of the client that has most, or is refused.
    pub connections: usize,
    /// Open connections from one address (an IPv6 /56). An egress sees all users of an ingress at the ingress's
    /// address: keep it high there.
    pub connections_per_client: usize,
    /// Connections of all clients that have not had a request admitted yet, their handshakes included: a newcomer takes the place of the oldest of
    /// the address with the most of them. They are fewer where they could take more than a third of `memory`, with twice as many that leave.
    pub waiting: usize,
    /// Connections from one address (an IPv6 /56) that have not had a request admitted yet: a newcomer takes the place of its oldest.
    pub waiting_per_client: usize,
    /// Unfinished QUIC handshakes on each shard with addresses that are not proven; above it clients prove theirs first (Retry, RFC 9000 §8.1.2), which
    /// costs them a round trip. 0: all do.
    pub unvalidated_handshakes: usize,
    /// Unfinished QUIC handshakes on each shard with one address (an IPv6 /56) that is not proven.
    pub unvalidated_handshakes_per_client: usize,
    /// Open requests (tunnels) of all clients; each holds a socket.
    pub requests: usize,
    /// Open requests of one client; more are answered 429.
    pub requests_per_client: usize,
    /// Open UDP tunnels of all clients, each of which holds one of the host's ports; more are answered 429. 0: seven eighths of those that the
    /// system gives out (`net.ipv4.ip_local_port_range`), so that the resolver has some.
    pub udp_tunnels: usize,
    /// Open requests on one connection; the transport makes clients wait for the next.
    pub requests_per_connection: u32,
    /// Requests that a client may break off each second on one connection before they are answered, and this many at once; malformed ones and streams without
    /// a use count too. Above it the connection is closed (ENHANCE_YOUR_CALM, H3_EXCESSIVE_LOAD): a device whose program scans ports stays far below. 0 is no
    /// limit.
    pub abandoned: u32,
    /// Payload of all clients, both ways together, in bit/s; 0 is no limit. Of it each client that has a request open has an equal share,
    /// and what others leave.
    pub bandwidth: u64,
    /// Payload of one client, both ways together, in bit/s; 0 is no limit.
    pub bandwidth_per_client: u64,
    /// DNS queries of one client in a second, a second's worth of them at once; and as many targets of its tunnels that are names, counted apart,
    /// so that a program that asks for thousands keeps no other one's flow from opening. More are answered 429. 0 is no limit.
    pub queries_per_client: u32,
    /// Look-ups under way, of all clients; each holds a socket.
    pub lookups: usize,
    /// The largest DNS query, in bytes, at least 512.
    pub query: usize,
    /// How long a client's handshake and first settings may take, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub handshake: Duration,
    /// How long a connection may be open until a first request is admitted on it, or a first circuit begun, in seconds; 0 is for ever. Clients keep
    /// one or two in reserve, and open them again.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub first_request: Duration,
    /// How long a connection without any packet is kept, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_connection: Duration,
    /// How long a TCP tunnel without any byte is kept, in seconds; 0 is for ever.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_stream: Duration,
    /// How long a UDP tunnel without any datagram is kept, in seconds; 0 is for ever. RFC 9298 §3.1 wants at
    /// least two minutes.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_datagrams: Duration,
    /// How long a name may take to resolve, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub resolve: Duration,
    /// How long a target may take to accept a TCP connection, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub connect: Duration,
    /// How long what is open may go on once the relay drains, in seconds; then it is closed. 0: at once. What stops the relay (systemd, Kubernetes,
    /// Nomad) must wait for longer.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub drain: Duration,
    /// The largest header section of a request, in bytes as RFC 9114 §4.2.2 counts; HTTP/1.1 reads 8192 in any
    /// case.
    pub header: usize,
    /// What connections of all clients may take of memory, in bytes: 64 KiB each, what their streams may send before it is read, and what waits for them.
    /// They have little of it at first and more as they move more; when it is short, whoever has most makes room. 0: a quarter of the machine's memory, or of what the
    /// process may use of it.
    pub memory: u64,
    /// Received stream data kept for one connection whose targets read slowly, in bytes, at most: when that much waits, no further flow of the
    /// connection can begin.
    pub connection_window: u32,
    /// Received stream data kept for one tunnel whose target reads slowly, in bytes, at most, and no more of it than the connection has. Over HTTP/2 it is
    /// 1 MiB at most; with circuits over QUIC, `[onion] stream_window` stands in its place.
    pub stream_window: u32,
    /// What may wait for one connection's client, in bytes, at most.
    pub send_window: u32,
    /// Datagrams waiting to be sent to one client, in bytes; the newest are dropped.
    pub datagram_buffer: usize,
    /// How many threads serve; 0 is one for each core.
    pub shards: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            connections_per_client: 4_096,
            waiting: 8_192,
            waiting_per_client: 1_024,
            unvalidated_handshakes: 128,
            unvalidated_handshakes_per_client: 32,
            requests: 262_144,
            requests_per_client: 32_768,
            udp_tunnels: 0,
            requests_per_connection: 16_384,
            abandoned: 5000,
            bandwidth: 0,
            bandwidth_per_client: 0,
            queries_per_client: 1000,
            lookups: 4096,
            query: 2048,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(300),
            idle_connection: Duration::from_secs(60),
            idle_stream: Duration::from_secs(1800),
            idle_datagrams: Duration::from_secs(180),
            resolve: Duration::from_secs(5),
            connect: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            header: 16_384,
            memory: 0,
            connection_window: 64 << 20,
            stream_window: 8 << 20,
            send_window: 64 << 20,
            datagram_buffer: 512 << 10,
            shards: 0,
        }
    }
}

impl Limits {
    /// How many threads serve.
    pub fn threads(&self) -> usize {
        match self.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
        .min(256)
    }

    /// These, with what a running relay takes of `new` ([`RELOADED_LIMITS`]).
    pub(crate) fn reloaded(&self, new: &Self) -> Self {
        Self {
            requests_per_connection: self.requests_per_connection,
            handshake: self.handshake,
            idle_connection: self.idle_connection,
            idle_datagrams: self.idle_datagrams,
            resolve: self.resolve,
            header: self.header,
            connection_window: self.connection_window,
            stream_window: self.stream_window,
            send_window: self.send_window,
            datagram_buffer: self.datagram_buffer,
            shards: self.shards,
            ..new.clone()
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("limits.connections", self.connections == 0),
            (
                "limits.connections_per_client",
                self.connections_per_client == 0,
            ),
            ("limits.waiting", self.waiting == 0),
            ("limits.waiting_per_client", self.waiting_per_client == 0),
            ("limits.requests", self.requests == 0),
            ("limits.requests_per_client", self.requests_per_client == 0),
            (
                "limits.requests_per_connection",
                self.requests_per_connection == 0,
            ),
            ("limits.lookups", self.lookups == 0),
            ("limits.handshake", self.handshake.is_zero()),
            ("limits.idle_connection", self.idle_connection.is_zero()),
            ("limits.resolve", self.resolve.is_zero()),
            ("limits.connect", self.connect.is_zero()),
        ];
        above_zero(&zeros)?;
        let small = [
            ("limits.header", self.header < 1024, "1024"),
            ("limits.query", self.query < 512, "512"),
            (
                "limits.memory",
                (1..16 << 20).contains(&self.memory),
                "16777216",
            ),
            (
                "limits.connection_window",
                self.connection_window < 65_536,
                "65536",
            ),
            ("limits.stream_window", self.stream_window < 65_536, "65536"),
            ("limits.send_window", self.send_window < 65_536, "65536"),
            (
                "limits.datagram_buffer",
                self.datagram_buffer < 16_384,
                "16384",
            ),
        ];
        match small.iter().find(|(_, small, _)| *small) {
            Some((key, _, least)) => Err(ConfigError::new(
                key,
                format!("expected at least {least} bytes"),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_be_taken_is_taken_and_nothing_else() {
        let example = include_str!("../../../../examples/relay.toml");
        let (_, table) = example.split_once("\n[limits]\n").expect("there");
        let table = table.split("\n[").next().expect("there");
        let keys = table.lines().filter_map(|line| {
            let (key, _) = line.strip_prefix("# ").unwrap_or(line).split_once(" = ")?;
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            key.chars().all(plain).then_some(key)
        });
        let keys: Vec<_> = keys.collect();
        assert_eq!(keys.len(), 31, "{keys:?}");
        let old = Limits::default();
        for key in keys {
            let new: Limits = toml::from_str(&format!("{key} = 77777")).expect(key);
            assert_ne!(new, old, "{key}");
            let taken = old.reloaded(&new) == new;
            let told = RELOADED_LIMITS.contains(&format!("limits.{key}").as_str());
            assert_eq!(taken, told, "{key}");
        }
    }
}
