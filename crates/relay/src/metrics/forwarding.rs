//! What forwarded mode counts. Part of [`super::Metrics`]; forwarded payloads are also among all payloads there.

use super::{CauseLabel, Count, Level, Registrar};
use prometheus_client::encoding::EncodeLabelSet;

/// All that forwarded flows count.
#[derive(Debug)]
pub struct Forwarding {
    /// Rules in force: target aliases and acknowledged client ids.
    pub rules_open: Level,
    /// What clients asked for in vain.
    pub refused: Refused,
    /// Forwarded from clients to targets.
    pub to_target: Passed,
    /// Forwarded from targets to clients.
    pub to_client: Passed,
    /// Not forwarded.
    pub dropped: Dropped,
}

/// Datagrams and their bytes.
#[derive(Clone, Debug)]
pub struct Passed {
    /// How many.
    pub datagrams: Count,
    /// Their payload.
    pub octets: Count,
}

/// Why a registration was refused, or a client's request reset.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The id is longer than those of QUIC version 1.
    pub too_long: Count,
    /// The id is the beginning of another one of the flow, or the other way round.
    pub conflict: Count,
    /// More registrations than allowed, or capsules than the client reads: reset.
    pub limit: Count,
    /// The client has as many ids in all its flows as it may, or all clients have.
    pub full: Count,
    /// A capsule that cannot be read, or that only relays send: reset.
    pub malformed: Count,
    /// An acknowledgement of what is not registered any more; ignored.
    pub stale: Count,
}

/// Why a packet was not forwarded.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// Its rule has ended.
    pub unknown_id: Count,
    /// It came from another address than its client's.
    pub wrong_address: Count,
    /// Too short for the transform.
    pub too_short: Count,
    /// The socket towards the target took no more.
    pub target_full: Count,
    /// The socket towards the client took no more.
    pub client_full: Count,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

impl Passed {
    /// Counts a batch.
    pub(crate) fn count(&self, datagrams: u64, octets: u64) {
        self.datagrams.inc_by(datagrams);
        self.octets.inc_by(octets);
    }
}

impl Forwarding {
    pub(super) fn new(r: &mut Registrar) -> Self {
        let (to_target, to_client) = passed(r);
        Self {
            rules_open: r.level("forwarding_rules_open", "Rules of forwarded mode in force"),
            refused: refused(r),
            to_target,
            to_client,
            dropped: dropped(r),
        }
    }
}

fn passed(r: &mut Registrar) -> (Passed, Passed) {
    let datagrams = r.family("forwarded_datagrams", "UDP payloads that were forwarded");
    let octets = r.family("forwarded_octets", "Payload octets that were forwarded");
    let of = |direction| {
        let label = DirectionLabel { direction };
        Passed {
            datagrams: datagrams.get_or_create_owned(&label),
            octets: octets.get_or_create_owned(&label),
        }
    };
    (of("to_target"), of("to_client"))
}

fn refused(r: &mut Registrar) -> Refused {
    let family = r.family("forwarding_refusals", "Registrations refused");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    Refused {
        too_long: of("too_long"),
        conflict: of("conflict"),
        limit: of("limit"),
        full: of("full"),
        malformed: of("malformed"),
        stale: of("stale"),
    }
}

fn dropped(r: &mut Registrar) -> Dropped {
    let family = r.family("forwarded_dropped", "UDP payloads that were not forwarded");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    Dropped {
        unknown_id: of("unknown_id"),
        wrong_address: of("wrong_address"),
        too_short: of("too_short"),
        target_full: of("target_full"),
        client_full: of("client_full"),
    }
}
