//! How QUIC connection ids are learned from a flow's packets: the machine shows those that have no rule yet.
//! RFC 8999 §5; RFC 9000 §17.2 (at most 20 bytes in version 1; longer ones are not forwarded) and RFC 9369 §3 for the types that are
//! told apart.

use std::time::Duration;

use hoplite_overlay::End;
use hoplite_wire::forwarding::{ConnectionId, long_header_ids};
use tokio::time::Instant;

/// "This is true for the original ciphersuites of QUICv1", says the draft of what scrambling needs; other versions are tunnelled.
const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;
/// The ids of most implementations, ours among them, have this many bytes.
const USUAL: usize = 8;
/// In this many packets in a row the bytes behind the first are the same: they are a connection id, or begin with one.
const REPEATED: u8 = 4;

/// Learns the connection ids of a flow from its packets: from long headers, and from what short headers repeat.
#[derive(Debug)]
pub(super) struct IdLearner {
    /// Whether it is QUIC at all: nothing else may be forwarded.
    quic: bool,
    /// The client's id of the newest handshake.
    own: Option<ConnectionId>,
    asked: Option<Instant>,
    round_trip: Duration,
    client: Side,
    target: Side,
}

/// What is known of one end's ids.
#[derive(Debug)]
struct Side {
    len: usize,
    candidate: Option<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    id: ConnectionId,
    count: u8,
    since: Instant,
}

impl IdLearner {
    pub(super) fn new() -> Self {
        let side = || Side {
            len: USUAL,
            candidate: None,
        };
        Self {
            quic: false,
            own: None,
            asked: None,
            round_trip: Duration::ZERO,
            client: side(),
            target: side(),
        }
    }

    /// The flow carries QUIC, though its handshake was not seen here.
    pub(super) fn is_quic(&mut self) {
        self.quic = true;
    }

    /// How long the target took to answer the first packet of a handshake.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// A packet with a long header that the client sends: its id, if that can be used.
    pub(super) fn sent_long(&mut self, packet: &[u8], now: Instant) -> Option<ConnectionId> {
        let id = ConnectionId::new(source(packet)?.0)?;
        self.quic = true;
        if self.own != Some(id) {
            (self.own, self.asked) = (Some(id), Some(now));
        }
        self.client.len = id.len();
        Some(id)
    }

    /// One that the target sends, if it answers the client's handshake.
    pub(super) fn received_long(&mut self, packet: &[u8], now: Instant) -> Option<ConnectionId> {
        let (source, destination) = source(packet)?;
        let own = self.own.filter(|own| &own[..] == destination);
        own?;
        if let Some(asked) = self.asked.take() {
            self.round_trip = now - asked;
        }
        // Without an id there is nothing by which its packets could be told from others.
        let id = ConnectionId::new(source).filter(|id| !id.is_empty())?;
        self.target.len = id.len();
        Some(id)
    }

    /// A packet with a short header, addressed to `end` under an id that is not known: that id, once it has been repeated, and
    /// since when it is used. An end may use ids that were agreed upon under encryption: quinn's servers begin with that when
    /// the handshake is over. If the real one is longer than what is guessed, its beginning serves as well.
    pub(super) fn short(
        &mut self,
        end: End,
        packet: &[u8],
        now: Instant,
    ) -> Option<(ConnectionId, Instant)> {
        let side = match end {
            End::Client => &mut self.client,
            End::Target => &mut self.target,
        };
        if !self.quic || side.len == 0 {
            return None;
        }
        side.repeats(packet.get(1..=side.len)?, now)
    }
}

impl Side {
    fn repeats(&mut self, bytes: &[u8], now: Instant) -> Option<(ConnectionId, Instant)> {
        match &mut self.candidate {
            Some(seen) if &seen.id[..] == bytes => {
                seen.count += 1;
                let learned = (seen.id, seen.since);
                (seen.count >= REPEATED).then(|| {
                    self.candidate = None;
                    learned
                })
            }
            other => {
                let since = now;
                *other = ConnectionId::new(bytes).map(|id| Candidate {
                    id,
                    count: 1,
                    since,
                });
                None
            }
        }
    }
}

/// The source and destination of a packet of a known version, unless it is a Retry, whose source is used only once.
fn source(packet: &[u8]) -> Option<(&[u8], &[u8])> {
    let ids = long_header_ids(packet)?;
    let kind = packet.first()? >> 4 & 0b11;
    let retry = match ids.version {
        VERSION_1 => 0b11,
        VERSION_2 => 0b00,
        _ => return None,
    };
    (kind != retry).then_some((ids.source, ids.destination))
}
