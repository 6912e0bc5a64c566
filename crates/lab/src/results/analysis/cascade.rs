//! What nested tunnels cost on the first hop, and how much of that are acknowledgements: paper 001 §5.2.
//! A scenario asks for it with `analysis = "cascade"`; the figures join the repetition's metrics.
//!
//! Everything is seen from the client, where all connections of a path begin: the capture of its link tells the bytes, the qlogs of its
//! processes tell what was in them. Each UDP payload in the capture is matched to the packets of hop 1, each DATAGRAM frame of hop 1 to the
//! packets of hop 2, and so on down to the end-to-end connection (`matching`). Then acknowledgements are counted from inside out.
//!
//! - **T**, what all shares are shares of, is the bytes of every IP packet in the capture, both ways, IP headers included. Handshakes of the
//!   tunnels and their search for the path's packet size are part of it, as they are in the paper's captures; `setup_share` tells how much
//!   of T had passed before the first end-to-end packet.
//! - **End-to-end bytes** are what the same end-to-end packets take as plain UDP/IP packets.
//! - **An acknowledging packet** is a 1-RTT packet with only ACK, PADDING and DATAGRAM frames, where the DATAGRAM frames contain acknowledging
//!   packets only. On the first hop it counts with all its IP packet; inside another packet with its DATAGRAM frame. Of all other packets
//!   their ACK frames count. The end-to-end connection's own are taken off, measured in the same way as plain packets: without a tunnel
//!   nothing is left.
//!
//! What is lost on the way after the capture is counted; what is lost before it is not.
//!
//! A path of which a hop runs over TLS and TCP, because that won the race to its relay, has no QUIC there whose acknowledgements could be counted:
//! the attempt is another experiment than the one that was asked for, through no fault of the subject, and is said to be so ([`Analysed::Unlike`]).

mod matching;
mod qlog;

use std::path::Path;

use self::{
    matching::{Content, Matched},
    qlog::{Frame, Layers, Packet, Unread},
};
use super::{Analysed, Capture, PacketDirection, Vantage};
use crate::errors::Failure;

/// Of the bytes on the link this many may be unexplained by the qlogs before the analysis refuses.
const MOST_UNMATCHED: f64 = 0.05;

/// Where more of the bytes on the link are TCP's, hop 1 runs over TCP.
const MOST_TCP: f64 = 0.5;

/// Where more of the end-to-end packets went over streams of the last tunnel than in its datagrams, what is between the two runs over TCP.
const MOST_IN_STREAMS: f64 = 0.5;

const WAYS: [PacketDirection; 2] = [PacketDirection::Out, PacketDirection::In];

/// What is being done, for messages.
pub(super) const DOING: &str = "analysing the cascade of acknowledgements";

fn failed(why: impl std::fmt::Display, remedy: &str) -> Failure {
    Failure::new(DOING, why, remedy)
}

/// The figures of a repetition, by name; none of a subject without tunnels, which has no overhead to compare.
pub(super) fn of_files(seen: &Vantage, qlogs: &Path) -> Result<Analysed, Failure> {
    of_records(&seen.read()?, Layers::read(qlogs))
}

fn of_records(capture: &Capture, layers: Result<Layers, Unread>) -> Result<Analysed, Failure> {
    // With an end-to-end connection over QUIC, TCP on the link is a tunnel's.
    let over_tcp = capture.tcp_share() > MOST_TCP;
    match layers {
        Ok(_) | Err(Unread::NoHop(_)) if over_tcp => Ok(tcp_won("hop 1", &tcp_told(capture))),
        // The client's process writes of all hops: one that it does not know of had no QUIC.
        Err(Unread::NoHop(hop)) if hop > 1 => {
            let seen = "it has no QUIC connection, and one further in has";
            Ok(tcp_won(&format!("hop {hop}"), seen))
        }
        Err(unread) => Err(unread.into()),
        Ok(layers) => of_layers(capture, &layers),
    }
}

fn of_layers(capture: &Capture, layers: &Layers) -> Result<Analysed, Failure> {
    let counts = counted(capture, layers);
    let figures = figures(&counts)?;
    // The link is explained, and what is in it is not in datagrams.
    let in_streams = counts.in_streams_share();
    if layers.hops() > 0 && in_streams > MOST_IN_STREAMS {
        let share = 100.0 * in_streams;
        let seen = format!("{share:.1} % of the end-to-end packets went over streams");
        return Ok(tcp_won("a further hop", &seen));
    }
    Ok(Analysed::Figures(if layers.hops() == 0 {
        Vec::new()
    } else {
        figures
    }))
}

fn tcp_told(capture: &Capture) -> String {
    let share = 100.0 * capture.tcp_share();
    format!("{share:.1} % of the bytes on the link are TCP's")
}

fn tcp_won(hop: &str, seen: &str) -> Analysed {
    Analysed::Unlike(format!(
        "TCP won the race to a relay: {hop} did not run over QUIC ({seen}), so that there is no cascade to analyse"
    ))
}

fn counted(capture: &Capture, layers: &Layers) -> CascadeCounts {
    let ways = WAYS.map(|way| Matched::new(capture, layers, way));
    CascadeCounts::new(capture, layers, &ways)
}

fn figures(counts: &CascadeCounts) -> Result<Vec<(String, f64)>, Failure> {
    if counts.unmatched_share() > MOST_UNMATCHED {
        let share = 100.0 * counts.unmatched_share();
        let why = format!(
            "{share:.1} % of the bytes on the link are in no qlog ({})",
            counts.unmatched_where()
        );
        return Err(failed(
            why,
            "see that all processes write qlog, and that nothing else uses the link",
        ));
    }
    Ok(counts.figures())
}

/// Acknowledgements that `hops` tunnels add to each end-to-end data packet when every `ratio`-th packet is acknowledged, each in a packet of
/// its own: f_r(n) of paper 001 §3.
#[must_use]
pub fn theory(ratio: f64, hops: f64) -> f64 {
    // The sum of (1 + 1/r)^i over i = 1..n, over r, is that of a geometric series.
    let growth = 1.0 + 1.0 / ratio;
    growth * (growth.powf(hops) - 1.0)
}

// Counting, from the end-to-end connection outwards.

/// What was counted.
#[derive(Debug, Default)]
struct CascadeCounts {
    hops: usize,
    /// T: bytes of all IP packets.
    total: usize,
    /// Bytes of the end-to-end packets as plain UDP/IP packets.
    inner: usize,
    /// Bytes of end-to-end acknowledgements as plain UDP/IP packets.
    inner_acks: usize,
    /// Bytes on the first hop that acknowledge anything on any layer.
    acks: usize,
    /// IP packets that only acknowledge, and their bytes.
    ack_packets: usize,
    ack_packet_bytes: usize,
    /// Bytes on the first hop before the first end-to-end packet.
    setup: usize,
    /// End-to-end packets with stream data.
    data_packets: usize,
    /// End-to-end packets, and those of them that no datagram carried.
    inner_packets: usize,
    in_streams: usize,
    /// ACK frames of each tunnel, and their bytes.
    ack_frames: Vec<usize>,
    ack_frame_bytes: Vec<usize>,
    /// Datagrams that each tunnel carried, and those that passed its hop forwarded.
    tunnelled: Vec<usize>,
    forwarded: Vec<usize>,
    /// Bytes that each tunnel adds to what it carries.
    own: Vec<usize>,
    /// Bytes of IP packets whose content is not wholly known, and of carriers on each layer that nothing was found for.
    unmatched: usize,
    /// Bytes of packets that are not UDP.
    other: usize,
    lost: Vec<usize>,
}

/// What is known of a packet, or of all packets in one carrier.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Whether it only acknowledges.
    only_acks: bool,
    /// Bytes in it that acknowledge.
    acks: usize,
    /// Whether all its content was found.
    whole: bool,
    /// Whether an end-to-end packet is in it.
    inner: bool,
}

impl CascadeCounts {
    fn new(capture: &Capture, layers: &Layers, ways: &[Matched; 2]) -> Self {
        let hops = layers.hops();
        let mut counts = Self {
            hops,
            total: capture.bytes(),
            ack_frames: vec![0; hops],
            ack_frame_bytes: vec![0; hops],
            tunnelled: vec![0; hops],
            forwarded: vec![0; hops],
            own: vec![0; hops],
            lost: vec![0; hops + 1],
            ..Self::default()
        };
        let known = [0, 1].map(|i| counts.direction(capture, layers, WAYS[i], &ways[i]));
        counts.first_hop(capture, &known);
        counts
    }

    /// From inside out; answers what is known of each UDP packet.
    fn direction(
        &mut self,
        capture: &Capture,
        layers: &Layers,
        way: PacketDirection,
        matched: &Matched,
    ) -> Vec<Known> {
        let all: Vec<&[Packet]> = layers.0.iter().map(|layer| layer.packets(way)).collect();
        let mut known = vec![Vec::new(); all.len()];
        let carried = |contents: &[Content], known: &[Vec<Known>]| -> Vec<Known> {
            contents
                .iter()
                .map(|content| join(*content, known))
                .collect()
        };
        for (number, packets) in all.iter().enumerate().rev() {
            let contents = matched
                .layers
                .get(number + 1)
                .map_or(&[][..], Vec::as_slice);
            let carriers = carried(contents, &known);
            known[number] = know(packets, &carriers, number == self.hops);
            if number < self.hops {
                self.tunnel(number, packets, contents, &all);
            }
        }
        self.inner(all[self.hops], matched, &known, capture.headers());
        for (depth, contents) in matched.layers.iter().enumerate() {
            self.lost[depth] += contents.iter().filter(|content| content.count == 0).count();
            self.passed(depth, contents);
        }
        if self.hops > 0 {
            self.on_link(capture, way, &matched.layers[0], &all);
        }
        carried(&matched.layers[0], &known)
    }

    /// What the link adds to what it carries: headers, and what a relay's connection ids are longer. It is told as hop 1's.
    fn on_link(
        &mut self,
        capture: &Capture,
        way: PacketDirection,
        contents: &[Content],
        all: &[&[Packet]],
    ) {
        let payloads = capture.udp(way).zip(contents);
        for ((payload, _), content) in payloads.filter(|(_, content)| content.count > 0) {
            let more = payload.saturating_sub(size(all[content.layer], *content));
            self.own[0] += capture.headers() + more;
        }
    }

    /// Datagrams by hop: a packet of layer j has passed hops 1 to j; what carries it at depth d is hop d's (the link is hop 0's), and the hops
    /// between forwarded it.
    fn passed(&mut self, depth: usize, contents: &[Content]) {
        if let Some(hop) = depth.checked_sub(1) {
            self.tunnelled[hop] += contents.len();
        }
        for content in contents.iter().filter(|content| content.count > 0) {
            for hop in &mut self.forwarded[depth..content.layer.max(depth)] {
                *hop += 1;
            }
        }
    }

    /// The end-to-end connection as it would be without tunnels. A packet that no datagram carried went over a stream of the last tunnel (as a
    /// capsule, RFC 9297 §3), or was dropped before it was sent: it counts, but is in no acknowledging packet.
    fn inner(
        &mut self,
        packets: &[Packet],
        matched: &Matched,
        known: &[Vec<Known>],
        headers: usize,
    ) {
        let mut carried = vec![false; packets.len()];
        let is_inner = |content: &&Content| content.count > 0 && content.layer == self.hops;
        let contents = matched.layers.iter().flatten();
        let contents: Vec<&Content> = contents.filter(is_inner).collect();
        for content in contents {
            carried[content.packets()].fill(true);
            let bytes = size(packets, *content) + headers;
            self.inner += bytes;
            let joined = join(*content, known);
            self.inner_acks += if joined.only_acks { bytes } else { joined.acks };
        }
        let others = packets
            .iter()
            .zip(&carried)
            .filter(|(_, carried)| !**carried);
        for (packet, _) in others {
            self.inner += packet.size + headers;
            self.in_streams += 1;
        }
        self.inner_packets += packets.len();
        let has_data = |packet: &&Packet| packet.data && packet.frames.contains(&Frame::Stream);
        self.data_packets += packets.iter().filter(has_data).count();
    }

    /// The packets of a tunnel, without what is carried in them.
    fn tunnel(
        &mut self,
        number: usize,
        packets: &[Packet],
        carried: &[Content],
        all: &[&[Packet]],
    ) {
        let frames = packets.iter().flat_map(|packet| &packet.frames);
        for frame in frames.clone() {
            if let Frame::Ack(bytes) = frame {
                self.ack_frames[number] += 1;
                self.ack_frame_bytes[number] += bytes;
            }
        }
        let payloads = frames.filter_map(|frame| match frame {
            Frame::Datagram(_, payload) => Some(*payload),
            _ => None,
        });
        // A payload that was not recognised is still payload.
        let bytes = |(payload, content): (usize, &Content)| match content.count {
            0 => payload,
            _ => size(all[content.layer], *content),
        };
        let payload: usize = payloads.zip(carried).map(bytes).sum();
        let all: usize = packets.iter().map(|packet| packet.size).sum();
        self.own[number] += all.saturating_sub(payload);
    }

    /// What the capture shows, in its order.
    fn first_hop(&mut self, capture: &Capture, known: &[Vec<Known>; 2]) {
        let mut next = known.each_ref().map(|known| known.iter());
        let mut begun = false;
        for packet in &capture.packets {
            let side = usize::from(packet.way == PacketDirection::In);
            let known = packet.payload.and_then(|_| next[side].next());
            if packet.payload.is_none() {
                self.other += packet.bytes;
            }
            begun |= known.is_some_and(|known| known.inner);
            if !begun {
                self.setup += packet.bytes;
            }
            match known {
                Some(known) if known.only_acks => {
                    self.acks += packet.bytes;
                    self.ack_packets += 1;
                    self.ack_packet_bytes += packet.bytes;
                }
                Some(known) => self.acks += known.acks,
                None => {}
            }
            if !known.is_some_and(|known| known.whole) {
                self.unmatched += packet.bytes;
            }
        }
    }

    fn share(&self, bytes: f64) -> f64 {
        bytes / (self.total.max(1) as f64)
    }

    fn in_streams_share(&self) -> f64 {
        self.in_streams as f64 / self.inner_packets.max(1) as f64
    }

    fn unmatched_share(&self) -> f64 {
        self.share(self.unmatched as f64)
    }

    /// Where carriers stayed empty, in words.
    fn unmatched_where(&self) -> String {
        let other = 100.0 * self.share(self.other as f64);
        let place = |(number, count): (usize, &usize)| match number {
            0 => format!("{count} UDP packets on the link"),
            hop => format!("{count} datagrams of hop {hop}"),
        };
        let places = self.lost.iter().enumerate().map(place);
        let other = std::iter::once(format!("{other:.1} % are not UDP"));
        let places: Vec<_> = other.chain(places).collect();
        places.join(", ")
    }

    /// By name. Shares are of all bytes on the first hop.
    fn figures(&self) -> Vec<(String, f64)> {
        let (total, inner) = (self.total as f64, self.inner as f64);
        let acks = self.acks as f64 - self.inner_acks as f64;
        let frames: usize = self.ack_frames.iter().sum();
        let fixed = [
            ("overhead_share", self.share(total - inner)),
            ("ack_share", self.share(acks)),
            (
                "ack_frames_per_packet",
                frames as f64 / self.data_packets.max(1) as f64,
            ),
            ("ack_frames_theory", theory(2.0, self.hops as f64)),
            ("first_hop_bytes", total),
            ("e2e_bytes", inner),
            ("e2e_ack_bytes", self.inner_acks as f64),
            ("ack_bytes", acks),
            ("ack_only_packets", self.ack_packets as f64),
            ("setup_bytes", self.setup as f64),
            ("setup_share", self.share(self.setup as f64)),
            ("data_packets", self.data_packets as f64),
            ("packets_in_streams", self.in_streams as f64),
            ("unmatched_share", self.unmatched_share()),
        ];
        let fixed = fixed.into_iter();
        let mut all: Vec<_> = fixed
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        all.extend(self.averages());
        all.extend(of_hops("layer_bytes", &self.own));
        all.extend(of_hops("ack_frames", &self.ack_frames));
        all
    }

    /// Averages and shares, where there is anything to average.
    fn averages(&self) -> Vec<(String, f64)> {
        let mean = |sum: usize, count: usize| (count > 0).then(|| sum as f64 / count as f64);
        let bytes: usize = self.ack_frame_bytes.iter().sum();
        let frames: usize = self.ack_frames.iter().sum();
        let mut all = vec![
            ("ack_frame_bytes".to_owned(), mean(bytes, frames)),
            (
                "ack_packet_bytes".to_owned(),
                mean(self.ack_packet_bytes, self.ack_packets),
            ),
        ];
        for hop in 0..self.hops {
            let (forwarded, frames) = (self.forwarded[hop], self.ack_frames[hop]);
            let bytes = mean(self.ack_frame_bytes[hop], frames);
            all.push((format!("ack_frame_bytes:hop{}", hop + 1), bytes));
            let share = mean(forwarded, forwarded + self.tunnelled[hop]);
            all.push((format!("forwarded_share:hop{}", hop + 1), share));
        }
        let known = |(name, value): (String, Option<f64>)| Some((name, value?));
        all.into_iter().filter_map(known).collect()
    }
}

/// A figure for each hop.
fn of_hops(name: &str, values: &[usize]) -> Vec<(String, f64)> {
    let named = values.iter().enumerate();
    named
        .map(|(i, value)| (format!("{name}:hop{}", i + 1), *value as f64))
        .collect()
}

/// The bytes of a carrier's packets.
fn size(packets: &[Packet], content: Content) -> usize {
    packets[content.packets()]
        .iter()
        .map(|packet| packet.size)
        .sum()
}

/// What is known of each packet of a layer; `carriers` is what is known of its DATAGRAM frames, in order.
fn know(packets: &[Packet], carriers: &[Known], inner: bool) -> Vec<Known> {
    let mut carriers = carriers.iter();
    packets
        .iter()
        .map(|packet| know_one(packet, &mut carriers, inner))
        .collect()
}

fn know_one<'a>(
    packet: &Packet,
    carriers: &mut impl Iterator<Item = &'a Known>,
    inner: bool,
) -> Known {
    let mut known = Known {
        only_acks: packet.data,
        acks: 0,
        whole: true,
        inner,
    };
    let mut any = false;
    for frame in &packet.frames {
        match frame {
            Frame::Padding => {}
            Frame::Ack(size) => {
                known.acks += size;
                any = true;
            }
            Frame::Datagram(size, _) if !inner => {
                known.add(*size, carriers.next());
                any = true;
            }
            Frame::Datagram(..) | Frame::Stream | Frame::Other => known.only_acks = false,
        }
    }
    known.only_acks &= any;
    known
}

impl Known {
    /// A DATAGRAM frame of this size in the packet. It is there for an acknowledgement alone, or has some in it.
    fn add(&mut self, size: usize, content: Option<&Self>) {
        let only = content.is_some_and(|content| content.only_acks);
        self.acks += match content {
            Some(content) if !only => content.acks,
            Some(_) => size,
            None => 0,
        };
        self.only_acks &= only;
        self.whole &= content.is_some_and(|content| content.whole);
        self.inner |= content.is_some_and(|content| content.inner);
    }
}

/// All packets of a carrier taken together.
fn join(content: Content, known: &[Vec<Known>]) -> Known {
    let of_layer = known.get(content.layer).map_or(&[][..], Vec::as_slice);
    let packets = of_layer.get(content.packets()).unwrap_or_default();
    let nothing = packets.is_empty();
    Known {
        only_acks: !nothing && packets.iter().all(|packet| packet.only_acks),
        acks: packets.iter().map(|packet| packet.acks).sum(),
        whole: !nothing && packets.iter().all(|packet| packet.whole),
        inner: packets.iter().any(|packet| packet.inner),
    }
}

#[cfg(test)]
mod tests;
