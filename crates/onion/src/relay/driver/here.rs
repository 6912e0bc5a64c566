//! What a relay does with a message that is for itself: it extends or truncates the circuit, or hands it to its end of the streams.
//! Part of [`super::Driver`]. tor-spec "EXTEND and EXTENDED cells", "Tearing down circuits".

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use bytes::BytesMut;
use hoplite_wire::cell::{
    Cell,
    circuit::{DestroyReason, Extend2},
    relay::{self, Header},
};

use super::{Driver, Ended, Next};
use crate::{
    edge::{Edge, Moment, Role, io::Shared},
    relay::{exit, hop::dial, next_relay},
};

impl Driver {
    /// A message for this relay.
    pub(super) fn here(
        &mut self,
        mut cell: Cell,
        digest: [u8; 20],
        early: bool,
        cx: &Context<'_>,
    ) -> Result<(), Ended> {
        let body = cell
            .fixed()
            .map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let header = Header::read(body);
        let data = header
            .data(body)
            .map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        match header.command {
            relay::Command::EXTEND2 => self.extend(data, early),
            relay::Command::TRUNCATE => self.truncate(),
            relay::Command::DROP => Ok(()),
            // The old EXTEND is not spoken here, and whoever sends it waits for an answer.
            relay::Command::EXTEND => Err(DestroyReason::PROTOCOL.into()),
            _ => self.stream_message(cell.body, digest, cx),
        }
    }

    fn stream_message(
        &mut self,
        body: BytesMut,
        digest: [u8; 20],
        cx: &Context<'_>,
    ) -> Result<(), Ended> {
        let at = Moment {
            now: self.now,
            blocked: self.pressure.holds(self.now),
        };
        let shared = self.edge.get_or_insert_with(|| {
            let limits = self.relay.config.limits;
            let edge = Edge::new(Role::Exit, self.control, limits, crate::random);
            Shared::new(edge.counted(&self.back.sender.kept()))
        });
        let mut edge = shared.lock();
        edge.set_driver(cx.waker());
        let handled = edge.handle(body, digest, at);
        handled.map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        while let Some((id, asked)) = edge.next_asked() {
            let (relay, shared) = (Arc::clone(&self.relay), Arc::clone(shared));
            match self.from.admit_stream() {
                Some(place) => {
                    self.tasks
                        .spawn(exit::serve(relay, place, shared, id, asked));
                }
                None => exit::refuse(&relay, &mut edge, id, &asked),
            }
        }
        Ok(())
    }

    fn extend(&mut self, data: &[u8], early: bool) -> Result<(), Ended> {
        // "Upon receiving EXTEND2 in a RELAY cell, an OR MUST tear down the circuit", and so if there is a next relay already.
        if !early || !matches!(self.next, Next::None | Next::Lost) {
            return Err(DestroyReason::PROTOCOL.into());
        }
        let extend = Extend2::parse(data).map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let own = self.relay.keys().published().ed25519;
        let admits = &*self.relay.next;
        let relay = next_relay(&extend, &own, self.from.peer(), admits).map_err(|_| {
            self.relay.counters.not_extended.fetch_add(1, Relaxed);
            Ended::from(DestroyReason::PROTOCOL)
        })?;
        let mut create = Vec::with_capacity(data.len());
        extend.create.write(&mut create);
        let origin = self.back.sender.origin();
        let extending = dial(Arc::clone(&self.relay), relay, create, origin);
        self.next = Next::Extending(Box::pin(extending));
        Ok(())
    }

    pub(super) fn poll_extending(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Next::Extending(extending) = &mut self.next else {
            return Ok(false);
        };
        let (circuit, created) = match extending.as_mut().poll(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(extended)) => extended,
            Poll::Ready(Err(reason)) => {
                self.relay.counters.not_extended.fetch_add(1, Relaxed);
                // The client alone can read it: DESTROY would show the relays on the way why.
                return self.lost(reason);
            }
        };
        self.relay.counters.extended.fetch_add(1, Relaxed);
        self.next = Next::Open(circuit);
        self.replies.push_back((relay::Command::EXTENDED2, created));
        Ok(true)
    }

    fn truncate(&mut self) -> Result<(), Ended> {
        if let Next::Open(next) = std::mem::replace(&mut self.next, Next::None) {
            next.sender.destroy(DestroyReason::REQUESTED);
        }
        self.lost(DestroyReason::REQUESTED).map(drop)
    }
}
