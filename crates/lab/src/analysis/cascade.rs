//! What nested tunnels cost on the first hop, and how much of that are acknowledgements: paper 001 §5.2.
//! `analyse` runs it after an attempt whose scenario has `analysis = "cascade"`; the figures join the repetition's metrics.
//!
//! Everything is seen from the client, where all connections of a path begin: the capture of its link tells the octets, the qlogs of its
//! processes tell what was in them. Each UDP payload in the capture is matched to the packets of hop 1, each DATAGRAM frame of hop 1 to the
//! packets of hop 2, and so on down to the end-to-end connection (`matching`). Then acknowledgements are counted from inside out (`count`).
//!
//! - **T**, what all shares are shares of, is the octets of every IP packet in the capture, both ways, IP headers included. Handshakes of the
//!   tunnels and their search for the path's packet size are part of it, as they are in the paper's captures; `setup_share` tells how much
//!   of T had passed before the first end-to-end packet.
//! - **End-to-end octets** are what the same end-to-end packets take as plain UDP/IP packets.
//! - **An acknowledging packet** is a 1-RTT packet with only ACK, PADDING and DATAGRAM frames, where the DATAGRAM frames contain acknowledging
//!   packets only. On the first hop it counts with all its IP packet; inside another packet with its DATAGRAM frame. Of all other packets
//!   their ACK frames count. The end-to-end connection's own are taken off, measured in the same way as plain packets: without a tunnel
//!   nothing is left.
//!
//! What is lost on the way after the capture is counted; what is lost before it is not.

mod count;
mod log;
mod matching;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::{
    count::Counts,
    log::{Layers, Packet},
    matching::Matched,
};
use super::{
    Seen,
    capture::{Capture, Way},
};
use crate::errors::Failure;

/// Of the octets on the link so many may be unexplained by the qlogs before the analysis refuses.
const MOST_UNMATCHED: f64 = 0.05;

const WAYS: [Way; 2] = [Way::Out, Way::In];

/// What is being done, for messages.
pub(super) const DOING: &str = "analysing the cascade of acknowledgements";

fn failed(why: impl std::fmt::Display, remedy: &str) -> Failure {
    Failure::new(DOING, why, remedy)
}

/// The figures of a repetition, by name; none of a subject without tunnels, which has no overhead to compare.
pub(super) fn of_files(seen: &Seen, qlogs: &Path) -> Result<Vec<(String, f64)>, Failure> {
    let capture = seen.read()?;
    let layers = Layers::read(qlogs)?;
    let figures = figures(&capture, &layers)?;
    Ok(if layers.hops() == 0 {
        Vec::new()
    } else {
        figures
    })
}

fn figures(capture: &Capture, layers: &Layers) -> Result<Vec<(String, f64)>, Failure> {
    let ways = WAYS.map(|way| Matched::new(capture, layers, way));
    let counts = Counts::new(capture, layers, &ways);
    if counts.unmatched_share() > MOST_UNMATCHED {
        let share = 100.0 * counts.unmatched_share();
        let why = format!(
            "{share:.1} % of the octets on the link are in no qlog ({})",
            counts.unmatched_where()
        );
        return Err(failed(
            why,
            "see that hop 1 runs over QUIC (else much is not UDP: on a slow machine TCP wins the race) and that all processes write qlog",
        ));
    }
    Ok(counts.figures())
}

/// Acknowledgements that `hops` tunnels add to each end-to-end data packet when every `ratio`-th packet is acknowledged, each in a packet of
/// its own: f_r(n) of paper 001 §3.
#[must_use]
pub fn theory(ratio: f64, hops: usize) -> f64 {
    let mut power = 1.0;
    let mut sum = 0.0;
    for _ in 0..hops {
        power *= 1.0 + 1.0 / ratio;
        sum += power;
    }
    sum / ratio
}
