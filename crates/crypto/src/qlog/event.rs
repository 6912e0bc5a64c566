//! The records of a qlog file: its head, packets with their frames, and a word about what was dropped.
//! Numbers and fixed words only, so that no text needs escaping but the label, which is checked.

use std::{
    fmt,
    io::{self, Write},
    time::Duration,
};

use hoplite_wire::quic::{Ack, Content, Frame, kind};

use crate::observe::{Begun, Packet, Space};

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Sent,
    Received,
}

/// The head of a file. `side` is the vantage point, `wall` what the wall clock showed at the time 0 of all events.
pub(super) fn head(connection: &Begun<'_>, side: &str, wall: &str) -> Vec<u8> {
    let label: String = connection.label.chars().filter(|c| is_plain(*c)).collect();
    let id: String = connection
        .id
        .iter()
        .map(|octet| format!("{octet:02x}"))
        .collect();
    let mut out = Vec::with_capacity(1024);
    let head = format!(
        "\u{1e}{{\"file_schema\":\"urn:ietf:params:qlog:file:sequential\",\
         \"serialization_format\":\"application/qlog+json-seq\",\"title\":\"{label}\",\
         \"trace\":{{\"common_fields\":{{\"group_id\":\"{id}\",\"time_format\":\"relative_to_epoch\",\
         \"reference_time\":{{\"clock_type\":\"monotonic\",\"epoch\":\"unknown\",\"wall_clock_time\":\"{wall}\"}}}},\
         \"vantage_point\":{{\"name\":\"{label}\",\"type\":\"{side}\"}},\
         \"event_schemas\":[\"urn:ietf:params:qlog:events:quic-12\",\"urn:ietf:params:qlog:events:loglevel-13\"]}}}}\n"
    );
    out.extend_from_slice(head.as_bytes());
    out
}

/// What may stand in a label: it needs no escape in JSON and leads nowhere in a path.
pub(super) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_. ".contains(c)
}

/// A packet.
pub(super) fn packet(out: &mut Vec<u8>, way: Direction, time: Duration, packet: &Packet<'_>) {
    // A vector takes everything.
    drop(write_packet(out, way, time, packet));
}

/// So many events are missing here.
pub(super) fn dropped(out: &mut Vec<u8>, time: Duration, count: u64) {
    let time = Milliseconds(time);
    // A vector takes everything.
    drop(writeln!(
        out,
        "\u{1e}{{\"time\":{time},\"name\":\"loglevel:warning\",\"data\":{{\"message\":\
         \"{count} events are missing here: they came faster than the disk took them\"}}}}"
    ));
}

/// With three decimals.
struct Milliseconds(Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:03}",
            self.0.as_millis(),
            self.0.subsec_micros() % 1000
        )
    }
}

fn write_packet(
    out: &mut Vec<u8>,
    way: Direction,
    time: Duration,
    packet: &Packet<'_>,
) -> io::Result<()> {
    let name = match way {
        Direction::Sent => "packet_sent",
        Direction::Received => "packet_received",
    };
    let kind = match packet.space {
        Space::Initial => "initial",
        Space::Handshake => "handshake",
        Space::Data => "1RTT",
    };
    let time = Milliseconds(time);
    write!(
        out,
        "\u{1e}{{\"time\":{time},\"name\":\"quic:{name}\",\"data\":{{\"header\":{{\"packet_type\":\"{kind}\",\
         \"packet_number\":{}}},\"raw\":{{\"length\":{},\"payload_length\":{}}},\"frames\":[",
        packet.number,
        packet.size,
        packet.payload.len()
    )?;
    for (i, frame) in packet.frames().enumerate() {
        out.extend_from_slice(if i == 0 { b"{" } else { b",{" });
        match frame {
            Ok(frame) => write_frame(out, &frame)?,
            Err(_) => out.extend_from_slice(b"\"frame_type\":\"unknown\""),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}}\n");
    Ok(())
}

fn write_frame(out: &mut Vec<u8>, frame: &Frame<'_>) -> io::Result<()> {
    match name(frame.kind) {
        Some(name) => write!(out, "\"frame_type\":\"{name}\"")?,
        None => write!(
            out,
            "\"frame_type\":\"unknown\",\"frame_type_bytes\":{}",
            frame.kind
        )?,
    }
    write_content(out, frame)?;
    let payload = match frame.content {
        Content::Crypto { data, .. } | Content::Stream { data, .. } | Content::Datagram(data) => {
            data.len()
        }
        Content::Padding => frame.size,
        _ => return write!(out, ",\"raw\":{{\"length\":{}}}", frame.size),
    };
    write!(
        out,
        ",\"raw\":{{\"length\":{},\"payload_length\":{payload}}}",
        frame.size
    )
}

fn write_content(out: &mut Vec<u8>, frame: &Frame<'_>) -> io::Result<()> {
    match frame.content {
        Content::Padding | Content::Opaque => Ok(()),
        Content::Ack(ack) => write_ack(out, &ack),
        Content::Crypto { offset, data } => {
            write!(out, ",\"offset\":{offset},\"length\":{}", data.len())
        }
        Content::Stream {
            id,
            offset,
            data,
            fin,
        } => {
            write!(
                out,
                ",\"stream_id\":{id},\"offset\":{offset},\"length\":{},\"fin\":{fin}",
                data.len()
            )
        }
        Content::Datagram(data) => write!(out, ",\"length\":{}", data.len()),
        Content::Close { error } => write!(out, ",\"error_code\":{error}"),
        Content::Numbers(values) => {
            for (field, value) in fields(frame.kind).iter().zip(values) {
                write!(out, ",\"{field}\":{value}")?;
            }
            Ok(())
        }
    }
}

/// The delay is told in milliseconds, of units of 8 µs: the default of RFC 9000 §18.2, which everybody here keeps.
fn write_ack(out: &mut Vec<u8>, ack: &Ack<'_>) -> io::Result<()> {
    let delay = Milliseconds(Duration::from_micros(ack.delay.saturating_mul(8)));
    write!(out, ",\"ack_delay\":{delay},\"acked_ranges\":[")?;
    for (i, (low, high)) in ack.ranges().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        match low == high {
            true => write!(out, "{comma}[{low}]")?,
            false => write!(out, "{comma}[{low},{high}]")?,
        }
    }
    out.push(b']');
    if let Some([ect0, ect1, ce]) = ack.ecn {
        write!(out, ",\"ect0\":{ect0},\"ect1\":{ect1},\"ce\":{ce}")?;
    }
    Ok(())
}

/// What the draft calls a frame.
fn name(kind: u64) -> Option<&'static str> {
    Some(match kind {
        kind::PADDING => "padding",
        kind::PING => "ping",
        kind::ACK | kind::ACK_ECN => "ack",
        0x04 => "reset_stream",
        0x05 => "stop_sending",
        kind::CRYPTO => "crypto",
        kind::NEW_TOKEN => "new_token",
        kind::STREAM..=kind::STREAM_LAST => "stream",
        0x10 => "max_data",
        0x11 => "max_stream_data",
        0x12 | 0x13 => "max_streams",
        0x14 => "data_blocked",
        0x15 => "stream_data_blocked",
        0x16 | 0x17 => "streams_blocked",
        kind::NEW_CONNECTION_ID => "new_connection_id",
        0x19 => "retire_connection_id",
        kind::PATH_CHALLENGE => "path_challenge",
        kind::PATH_RESPONSE => "path_response",
        kind::CONNECTION_CLOSE | kind::APPLICATION_CLOSE => "connection_close",
        0x1e => "handshake_done",
        kind::IMMEDIATE_ACK => "immediate_ack",
        kind::DATAGRAM | kind::DATAGRAM_LEN => "datagram",
        kind::ACK_FREQUENCY => "ack_frequency",
        _ => return None,
    })
}

/// The names of a frame's integers, in their order.
fn fields(kind: u64) -> &'static [&'static str] {
    match kind {
        0x04 => &["stream_id", "error_code", "final_size"],
        0x05 => &["stream_id", "error_code"],
        0x10 | 0x12 | 0x13 => &["maximum"],
        0x11 => &["stream_id", "maximum"],
        0x14 | 0x16 | 0x17 => &["limit"],
        0x15 => &["stream_id", "limit"],
        0x19 => &["sequence_number"],
        kind::ACK_FREQUENCY => &[
            "sequence_number",
            "ack_eliciting_threshold",
            "request_max_ack_delay",
            "reordering_threshold",
        ],
        _ => &[],
    }
}
