//! Times, windows and sizes of a link. The defaults suit a fast path of up to 100 ms; windows of longer ones may be made to grow with what moves.

use std::time::{Duration, Instant};

use hoplite_quic::{
    Connection, ConnectionController, Hooks, MtuDiscoveryConfig, SharedBudget, TransportConfig,
    VarInt, WhenBlocked, WindowBounds,
};
use hoplite_wire::tuning::TuningRequest;
use serde::Deserialize;

use crate::socket::overhead;

/// The smallest UDP payload that QUIC works with (RFC 9000 §14).
pub(crate) const LEAST_MTU: usize = 1200;

/// A queue that overflows may look as if the path had begun to drop large packets (RFC 8899 §4.3): the connection goes back to the least size.
/// After so long it looks for the right one again, at both ends of a hop. In between, what a tunnel carries does not fit into its datagrams.
pub const MTU_SUSPENDED: Duration = Duration::from_millis(100);

/// After so long a connection looks whether larger packets pass now: they do when they begin to be forwarded.
const MTU_AGAIN: Duration = Duration::from_secs(10);

/// How many bytes may wait to be sent or acknowledged, of all streams of a link: at first, and at most.
const SEND_WINDOW: (u64, u64) = (8 << 20, 64 << 20);

/// How links behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long QUIC is ahead of its fallback, TLS over TCP, in the race to a relay: as with happy eyeballs (RFC 8305 §5 has 250 ms).
    pub head_start: Duration,
    /// Without any answer for this long, the link is given a new socket.
    pub suspect_after: Duration,
    /// When a fifth of what the first relay sends has been lost for this long, whoever uses the link is told: another way may carry more.
    pub lossy_after: Duration,
    /// Without any answer for this long, the link is given up. A hop further on waits as much longer as there are hops before it.
    pub broken_after: Duration,
    /// How often a link at rest is looked at: whether the device has another address, most of all. Who is told of that looks sooner.
    pub rest: Duration,
    /// How often a link at rest speaks, so that address translators keep its binding: most do for 30 s and more. Links speak together,
    /// every 5 s of the process's time at most: 24 s means 25.
    pub keep_alive: Duration,
    /// When a silent peer is forgotten.
    pub idle: Duration,
    /// The largest UDP payload that MTU discovery tries, in bytes.
    pub largest_payload: usize,
    /// Through how many of the hops before this one its packets are tunnelled for certain, and the smaller for it.
    /// Through the others they may be forwarded.
    pub tunnelled_below: usize,
    /// How many bytes of one stream the peer may send ahead of its reader, while the connection's window has room. It has an eighth more than is on its way,
    /// as the stack tells the peer of eighths; and while nobody reads the stream, so much of the connection's window is lost to the others.
    pub stream_window: u32,
    /// How many bytes of all streams the peer may send ahead of their readers, at first: two hundred streams may stand still before
    /// the others have to wait until those are given up.
    pub connection_window: u32,
    /// The same, at most: so wide it becomes with what moves, and where streams stand still, for the sake of the others. `None`: windows stay as they are.
    pub widest_window: Option<u64>,
    /// How much wider than at first the windows of all links may be that share this.
    pub window_budget: SharedBudget,
    /// How many datagrams one receive call may bring. The QUIC stack sets aside room for 32 such calls: 2 MiB of addresses for 44 of them.
    pub receive_segments: usize,
    /// How many bytes of datagrams may wait to be sent; when it is full the sender is pushed back.
    pub datagram_queue: usize,
    /// How many streams the peer may have open at once.
    pub streams: u32,
    /// When both ends acknowledge, and their congestion control: what the relay is asked for.
    pub tuning_request: TuningRequest,
    /// How large packets are.
    pub pad: Pad,
    /// Whether the link only carries the link to the next relay.
    pub carries_next_hop: bool,
    /// What the QUIC stack draws from where it spreads packet numbers, sizes and times; keys and ids are never drawn from it.
    /// `None`: from the system. Given only where a run is to be repeated exactly (`sim`).
    pub seed: Option<[u8; 32]>,
    /// Who sees the packets; a hop is labelled `hop1`, `hop2` and so on.
    pub hooks: Hooks,
}

/// How large QUIC packets are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pad {
    /// As large as what is in them.
    #[default]
    Off,
    /// As large as the path carries, so that sizes tell nothing to who watches it (RFC 9000 §21.14).
    Full,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            head_start: Duration::from_millis(250),
            suspect_after: Duration::from_millis(1500),
            lossy_after: Duration::from_secs(2),
            broken_after: Duration::from_secs(4),
            rest: Duration::from_secs(2),
            keep_alive: Duration::from_secs(24),
            idle: Duration::from_secs(45),
            largest_payload: 1452,
            tunnelled_below: 0,
            stream_window: 1_250_000,
            connection_window: 256 << 20,
            widest_window: None,
            window_budget: SharedBudget::new(256 << 20),
            receive_segments: 44,
            datagram_queue: 1 << 20,
            streams: 0,
            tuning_request: TuningRequest::default(),
            pad: Pad::Off,
            carries_next_hop: false,
            seed: None,
            hooks: Hooks {
                clock,
                ..Hooks::default()
            },
        }
    }
}

/// The runtime's clock, which tests may stop: that of the QUIC stack.
fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Config {
    /// What steers a connection that begins.
    pub(crate) fn controller(&self) -> ConnectionController {
        let request = self.tuning_request.for_hop(self.carries_next_hop);
        ConnectionController::client(request, 2 * self.datagram_queue)
    }

    /// The QUIC parameters of a link at depth `hop`, over a path that carries `carried` bytes now.
    pub fn transport(&self, hop: usize, carried: usize) -> TransportConfig {
        let largest = self.largest();
        let initial = carried.clamp(LEAST_MTU, largest);
        let initial = if hop == 0 { LEAST_MTU } else { initial };
        let mut transport = TransportConfig::default();
        self.sizes(&mut transport, initial, largest);
        self.windows(&mut transport);
        transport
            .pad_to_mtu(self.pad == Pad::Full)
            // It would show the round trip from end to end to whoever stands between (RFC 9000 §17.4).
            .allow_spin(false)
            .keep_alive_interval(Some(self.keep_alive))
            .max_idle_timeout(self.idle.try_into().ok())
            .max_concurrent_bidi_streams(self.streams.into())
            .max_concurrent_uni_streams(16u32.into());
        transport
    }

    /// Has the windows of a connection that was made with this grow, as far as they may; and streams that nobody reads given up where there is no room for
    /// the others.
    pub(crate) fn adapt_windows(&self, connection: &Connection) {
        let first = u64::from(self.connection_window);
        let (widest, send) = match self.widest_window {
            Some(widest) => (widest.max(first), SEND_WINDOW),
            None => (first, (SEND_WINDOW.0, SEND_WINDOW.0)),
        };
        let receive = (first, widest);
        let bounds = WindowBounds { receive, send };
        connection.adapt_windows(bounds, self.window_budget.clone(), WhenBlocked::GiveUp);
    }

    /// The largest UDP payload of a link, in bytes.
    pub(crate) fn largest(&self) -> usize {
        let tunnels = overhead(self.tunnelled_below);
        self.largest_payload.saturating_sub(tunnels).max(LEAST_MTU)
    }

    fn sizes(&self, transport: &mut TransportConfig, initial: usize, largest: usize) {
        let mtu = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        let mut discovery = MtuDiscoveryConfig::default();
        // Both ends look for the exact limit: what the client's end reports as carried comes back, too.
        discovery
            .upper_bound(mtu(largest))
            .minimum_change(1)
            .interval(MTU_AGAIN)
            .black_hole_cooldown(MTU_SUSPENDED);
        transport
            .initial_mtu(mtu(initial))
            .mtu_discovery_config(Some(discovery));
    }

    fn windows(&self, transport: &mut TransportConfig) {
        transport
            .stream_receive_window(VarInt::from_u32(self.stream_window))
            .receive_window(VarInt::from_u32(self.connection_window))
            .send_window(SEND_WINDOW.0)
            .datagram_send_buffer_size(self.datagram_queue)
            .datagram_receive_buffer_size(Some(2 * self.datagram_queue));
    }
}
