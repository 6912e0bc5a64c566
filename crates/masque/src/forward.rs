//! Forwarded mode at the client: QUIC packets with a short header pass a relay without being encrypted for it once more.
//! [`crate::Hop`] offers it for every UDP flow; whose QUIC runs in the flow does not matter, the connection ids are learned from its packets.
//! draft-ietf-masque-quic-proxy; what may be known of any QUIC packet: RFC 8999.
//!
//! [`Machine`] decides and does nothing. Its driver is called with `now` and does what it is told, in order.
//!
//! # Not in this room
//! The capsules and fields (`wire::forwarding`), the transforms (`crypto::scramble`), the way past the link (`link::Bypass`),
//! the relay's end (`relay::forward`).

mod driver;
mod ids;
mod machine;
mod rule;
#[cfg(test)]
mod tests;

pub(crate) use driver::Forwarder;
use machine::{Action, Below, Machine, Route};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hoplite_crypto::{self as crypto, NoCipher, Scramble};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{
    ResponseHead,
    forwarding::{Offer, Transform},
};
use serde::Deserialize;

use crate::Config;

/// Whether packets that need not be encrypted for a relay pass it forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Forwarded wherever the relay grants it.
    #[default]
    Auto,
    /// Forwarded wherever the relay grants it; the log says where it is refused.
    Forwarded,
    /// Never.
    Tunnelled,
}

/// Datagrams of a hop's UDP flows since it was made, by the way that they passed the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Sent beside the connection.
    pub forwarded_sent: u64,
    /// Received beside it.
    pub forwarded_received: u64,
    /// Sent inside it.
    pub tunnelled_sent: u64,
    /// Received inside it.
    pub tunnelled_received: u64,
    /// Could neither be sent nor restored.
    pub lost: u64,
}

/// Shared by a hop and its flows.
#[derive(Debug)]
pub(crate) struct Negotiation {
    mode: Mode,
    transform: Transform,
    /// How many connection ids of one flow are kept; the packets of others are tunnelled.
    pub(super) ids: usize,
    refusal_told: AtomicBool,
    pub(super) forwarded_sent: AtomicU64,
    pub(super) forwarded_received: AtomicU64,
    tunnelled_sent: AtomicU64,
    tunnelled_received: AtomicU64,
    pub(super) lost: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl Negotiation {
    /// `mode` is the hop's.
    pub(crate) fn new(mode: Mode, config: &Config) -> Self {
        Self {
            mode,
            transform: config.transform,
            ids: config.forwarded_ids,
            refusal_told: AtomicBool::default(),
            forwarded_sent: AtomicU64::default(),
            forwarded_received: AtomicU64::default(),
            tunnelled_sent: AtomicU64::default(),
            tunnelled_received: AtomicU64::default(),
            lost: AtomicU64::default(),
        }
    }

    pub(crate) fn passed(&self) -> Passed {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Passed {
            forwarded_sent: read(&self.forwarded_sent),
            forwarded_received: read(&self.forwarded_received),
            tunnelled_sent: read(&self.tunnelled_sent),
            tunnelled_received: read(&self.tunnelled_received),
            lost: read(&self.lost),
        }
    }

    pub(crate) fn sent_tunnelled(&self, datagrams: usize) {
        count(&self.tunnelled_sent, datagrams);
    }

    pub(crate) fn received_tunnelled(&self, datagrams: usize) {
        count(&self.tunnelled_received, datagrams);
    }

    /// What a request offers; `None` where nothing is wanted. Each flow has a key of its own.
    pub(crate) fn offer(&self) -> Result<Option<Offer>, Error> {
        if self.mode == Mode::Tunnelled {
            return Ok(None);
        }
        let key = match self.transform {
            Transform::Identity => None,
            Transform::Scramble => Some(Scramble::fresh_key().map_err(no_cipher)?),
        };
        Ok(Some(Offer {
            transforms: vec![self.transform],
            key,
        }))
    }

    /// What the relay made of the offer; `None`: everything is tunnelled.
    pub(crate) fn agreed(
        &self,
        offer: &Offer,
        response: &ResponseHead,
    ) -> Result<Option<crypto::Transform>, Error> {
        let answer = response.answer(&offer.transforms).map_err(|error| {
            Error::new(ErrorKind::PathFailed, "asking a relay to forward").caused_by(error)
        })?;
        match (answer.transform, &offer.key) {
            (Some((Transform::Identity, _)), _) => Ok(Some(crypto::Transform::Identity)),
            (Some((Transform::Scramble, Some(peer))), Some(own)) => {
                let pair = crypto::Transform::scramble(own, &peer);
                pair.map(Some).map_err(no_cipher)
            }
            _ => {
                self.refused();
                Ok(None)
            }
        }
    }

    /// Forwarded mode was refused, or cannot be had over TCP. Said once, to who asked for it.
    pub(crate) fn refused(&self) {
        let asked = self.mode == Mode::Forwarded;
        if asked && !self.refusal_told.swap(true, Ordering::Relaxed) {
            tracing::warn!("a relay does not forward: its flows are tunnelled");
        }
    }
}

fn no_cipher(error: NoCipher) -> Error {
    Error::new(ErrorKind::Bug, "preparing forwarded mode").caused_by(error)
}
