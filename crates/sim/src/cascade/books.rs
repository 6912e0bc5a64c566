//! What crosses the client's link and what it is: each layer's packets are seen in the clear as they are sent, and what a packet carries inside is
//! found again by its last bytes. So a packet of the link is known down to the innermost connection, as the paper's section 5.2 wants it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use hoplite_quic::{Begun, Observer, Packet, Watch};
use hoplite_wire::quic_frames::{Content, kind};
use parking_lot::Mutex;

use super::{
    Outcome,
    line::{UDP_HEADERS, Way},
};

/// What is in one packet, through all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Inside {
    /// There is something else than acknowledgements.
    other: bool,
    /// ACK frames of tunnels, and their bytes.
    frames: u64,
    frame_bytes: u64,
    /// Bytes of the end-to-end connection's acknowledgements: of its frames, or of its whole packets where they are all that is in them.
    end_ack_bytes: u64,
    /// Bytes that its packets would be without tunnels, and how many of them carry data.
    end_bytes: u64,
    data_packets: u64,
}

impl Inside {
    fn add(&mut self, inner: Self) {
        self.other |= inner.other;
        self.frames += inner.frames;
        self.frame_bytes += inner.frame_bytes;
        self.end_ack_bytes += inner.end_ack_bytes;
        self.end_bytes += inner.end_bytes;
        self.data_packets += inner.data_packets;
    }
}

/// What has crossed the link one way.
#[derive(Clone, Copy, Debug, Default)]
struct Crossed {
    bytes: u64,
    /// Of packets with nothing but acknowledgements, of frames in others, less what the end-to-end connection's would be.
    ack_bytes: i64,
    frames: u64,
    data_packets: u64,
    end_bytes: u64,
}

/// The last bytes of a packet: its authentication tag.
type Key = [u8; 16];

/// One cascade's.
#[derive(Debug)]
pub(super) struct Books {
    state: Mutex<State>,
    /// Packets that each node has encrypted or decrypted since it was asked.
    work: Vec<AtomicU32>,
    counts: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// What was encrypted since a packet was last taken.
    open: Inside,
    /// What is in the packets that are on their way.
    inside: HashMap<Key, Inside>,
    crossed: [Crossed; 2],
}

fn key(packet: &[u8]) -> Option<Key> {
    packet.last_chunk().copied()
}

fn bytes(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Books {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            work: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            counts: AtomicBool::new(false),
        })
    }

    /// Who watches the connections of one node; `tunnel`: they are tunnels, not the end-to-end connection.
    pub(super) fn watch(self: &Arc<Self>, node: usize, tunnel: bool) -> Arc<dyn Watch> {
        Arc::new(Scribe {
            books: Arc::clone(self),
            node,
            tunnel,
        })
    }

    /// From now on the link's packets count.
    pub(super) fn begin(&self) {
        self.counts.store(true, Relaxed);
    }

    /// How many packets a node has worked on since it was last asked.
    pub(super) fn take_work(&self, node: usize) -> u32 {
        self.work.get(node).map_or(0, |work| work.swap(0, Relaxed))
    }

    /// What was just encrypted is this packet.
    pub(super) fn name(&self, packet: &[u8]) {
        let mut state = self.state.lock();
        let open = std::mem::take(&mut state.open);
        if let Some(key) = key(packet) {
            state.inside.insert(key, open);
        }
    }

    /// It was dropped.
    pub(super) fn forget(&self, packet: &[u8]) {
        if let Some(key) = key(packet) {
            self.state.lock().inside.remove(&key);
        }
    }

    /// It crosses the client's link.
    pub(super) fn count(&self, way: Way, packet: &Bytes) {
        let mut state = self.state.lock();
        let Some(inside) = key(packet).and_then(|key| state.inside.remove(&key)) else {
            return;
        };
        if !self.counts.load(Relaxed) {
            return;
        }
        let [up, down] = &mut state.crossed;
        let crossed = match way {
            Way::Up => up,
            Way::Down => down,
        };
        let size = bytes(packet.len() + UDP_HEADERS);
        crossed.bytes += size;
        let acks = if inside.other {
            inside.frame_bytes
        } else {
            size - inside.end_ack_bytes.min(size)
        };
        crossed.ack_bytes += acks.cast_signed();
        crossed.frames += inside.frames;
        crossed.data_packets += inside.data_packets;
        crossed.end_bytes += inside.end_bytes;
    }

    pub(super) fn outcome(&self) -> Outcome {
        let [up, down] = self.state.lock().crossed;
        let (all, frames) = (up.bytes + down.bytes, up.frames + down.frames);
        let end = up.end_bytes + down.end_bytes;
        Outcome {
            up_bytes: up.bytes,
            down_bytes: down.bytes,
            ack_share: share(up.ack_bytes + down.ack_bytes, all),
            ack_share_up: share(up.ack_bytes, up.bytes),
            ack_share_down: share(down.ack_bytes, down.bytes),
            overhead_share: share(all.cast_signed() - end.cast_signed(), all),
            ack_frames_per_packet: share(frames.cast_signed(), up.data_packets + down.data_packets),
            ..Outcome::default()
        }
    }

    fn sent(&self, packet: &Packet<'_>, tunnel: bool) {
        let mut state = self.state.lock();
        let mut inside = Inside::default();
        for frame in packet.frames().flatten() {
            match frame.content {
                Content::Padding => {}
                Content::Ack(_) if tunnel => {
                    inside.frames += 1;
                    inside.frame_bytes += bytes(frame.size);
                }
                Content::Ack(_) => inside.end_ack_bytes += bytes(frame.size),
                Content::Datagram(data) if tunnel => {
                    let inner = key(data).and_then(|key| state.inside.remove(&key));
                    inside.add(inner.unwrap_or_default());
                }
                _ => {
                    inside.other = true;
                    let data = kind::STREAM..=kind::STREAM_LAST;
                    inside.data_packets |= u64::from(!tunnel && data.contains(&frame.kind));
                }
            }
        }
        if !tunnel {
            // The headers below it count once for each UDP datagram; a handshake's are few.
            inside.end_bytes = bytes(packet.size + UDP_HEADERS);
            if !inside.other {
                inside.end_ack_bytes = inside.end_bytes;
            }
        }
        state.open.add(inside);
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
pub(super) fn share(part: i64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        part as f64 / all as f64
    }
}

/// Watches one node's connections.
#[derive(Clone)]
struct Scribe {
    books: Arc<Books>,
    node: usize,
    tunnel: bool,
}

impl Scribe {
    fn worked(&self) {
        if let Some(work) = self.books.work.get(self.node) {
            work.fetch_add(1, Relaxed);
        }
    }
}

impl Watch for Scribe {
    fn observe(&self, _: &Begun<'_>) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(self.clone()))
    }
}

impl Observer for Scribe {
    fn sent(&self, packet: &Packet<'_>) {
        self.worked();
        self.books.sent(packet, self.tunnel);
    }

    fn received(&self, _: &Packet<'_>) {
        self.worked();
    }
}
