//! TCP flows.

use std::sync::Arc;

use bytes::Bytes;
use hoplite_wire::ip::{Packet, tcp::Segment};
use tokio::time::Instant;

use super::{Ends, Room};

/// The flows.
#[derive(Debug)]
pub(crate) struct Table {
    room: Arc<Room>,
}

impl Table {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self { room }
    }

    /// A segment from a program. `octets` are the whole packet.
    pub(crate) fn received(
        &mut self,
        _: Ends,
        _: &Packet<'_>,
        _: &Segment<'_>,
        _: &Bytes,
        _: Instant,
    ) {
        self.room.counters.other_dropped.add(1);
    }

    /// After a batch of packets.
    pub(crate) fn flush(&mut self, _: Instant) {}
}
