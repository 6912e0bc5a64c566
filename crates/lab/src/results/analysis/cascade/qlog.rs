//! Reads the qlogs of the client's processes: for each connection layer what was sent and received, packet by packet.
//! draft-ietf-quic-qlog-main-schema (JSON text sequences), draft-ietf-quic-qlog-quic-events; as `hoplite` and the HTTP/3 workloads write them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{PacketDirection, failed};
use crate::errors::Failure;

/// Where to look when something is missing.
const REMEDY: &str = "set [keep] qlog = true, and use a workload of kind http with version 3";

/// Why there are no layers.
#[derive(Debug)]
pub(super) enum Unread {
    /// One hop of those that the logs know has none.
    NoHop(usize),
    /// They cannot be read, or there is no end-to-end connection.
    Failed(Failure),
}

impl From<Unread> for Failure {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::NoHop(number) => {
                let why = format!("there is no qlog of the connection to hop {number}");
                failed(why, REMEDY)
            }
            Unread::Failed(failure) => failure,
        }
    }
}

impl From<Failure> for Unread {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The connections of a path as the client has them, hop 1 first, the end-to-end connection last.
#[derive(Debug, Default)]
pub(super) struct Layers(pub(super) Vec<Layer>);

/// All packets of one layer; if it has several connections, of all of them.
#[derive(Debug, Default)]
pub(super) struct Layer {
    sent: Vec<Packet>,
    received: Vec<Packet>,
}

/// One packet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packet {
    /// Seconds since 1970.
    pub(super) time: f64,
    /// Bytes on the wire.
    pub(super) size: usize,
    /// Whether it is a 1-RTT packet, and therefore the last of its UDP datagram.
    pub(super) data: bool,
    /// What is in it.
    pub(super) frames: Vec<Frame>,
}

/// One frame, with its bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Padding,
    Ack(usize),
    /// Its bytes, and those of its payload.
    Datagram(usize, usize),
    /// STREAM with payload.
    Stream,
    Other,
}

impl Layer {
    pub(super) fn packets(&self, way: PacketDirection) -> &[Packet] {
        match way {
            PacketDirection::Out => &self.sent,
            PacketDirection::In => &self.received,
        }
    }

    fn sort(&mut self) {
        for packets in [&mut self.sent, &mut self.received] {
            packets.sort_by(|a, b| a.time.total_cmp(&b.time));
        }
    }
}

impl Layers {
    /// How many tunnels are nested.
    pub(super) fn hops(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// Reads all logs below a directory: one directory for each process.
    pub(super) fn read(directory: &Path) -> Result<Self, Unread> {
        let mut logs = Vec::new();
        for process in entries(directory)? {
            if process.is_dir() {
                logs.extend(entries(&process)?);
            }
        }
        logs.retain(|path| path.extension().is_some_and(|ending| ending == "sqlog"));
        let texts = logs.iter().map(|path| {
            let text = fs::read_to_string(path);
            text.map_err(|error| failed(format!("{}: {error}", path.display()), REMEDY))
        });
        let texts: Vec<String> = texts.collect::<Result<_, Failure>>()?;
        Self::of(&texts)
    }

    /// Takes the texts of the logs, in any order.
    pub(super) fn of(texts: &[String]) -> Result<Self, Unread> {
        let (mut hops, mut inner) = (Vec::<Option<Layer>>::new(), None::<Layer>);
        for text in texts {
            let mut records = text
                .split('\u{1e}')
                .filter(|record| !record.trim().is_empty());
            let Some(head) = records.next() else { continue };
            let head: Head = parse(head)?;
            let point = head.trace.vantage_point;
            if point.kind != "client" {
                continue;
            }
            let place = match hop(&point.name) {
                Some(number) => {
                    if hops.len() < number {
                        hops.resize_with(number, || None);
                    }
                    &mut hops[number - 1]
                }
                None => &mut inner,
            };
            let reference = wall(&head.trace.common_fields.reference_time.wall_clock_time);
            let reference =
                reference.ok_or_else(|| failed("a qlog does not say when it began", REMEDY))?;
            place.get_or_insert_default().add(records, reference)?;
        }
        if inner.is_none() {
            let why = "there is no qlog of an end-to-end QUIC connection";
            return Err(failed(why, REMEDY).into());
        }
        if let Some(place) = hops.iter().position(Option::is_none) {
            return Err(Unread::NoHop(place + 1));
        }
        hops.push(inner);
        let mut layers: Vec<Layer> = hops.into_iter().flatten().collect();
        layers.iter_mut().for_each(Layer::sort);
        Ok(Self(layers))
    }
}

/// The number of a tunnel: its label is `hop1`, `hop2` and so on. Every other label is an end-to-end connection.
fn hop(label: &str) -> Option<usize> {
    let number = label.strip_prefix("hop")?.parse().ok()?;
    (1..=64).contains(&number).then_some(number)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
        entries.collect()
    };
    let mut paths =
        read().map_err(|error| failed(format!("{}: {error}", directory.display()), REMEDY))?;
    paths.sort();
    Ok(paths)
}

impl Layer {
    /// A record at the end that was cut short is left out: its process was killed while it wrote.
    fn add<'a>(
        &mut self,
        records: impl Iterator<Item = &'a str>,
        reference: f64,
    ) -> Result<(), Failure> {
        for record in records.filter(|record| record.ends_with('\n')) {
            let event: Event = parse(record)?;
            let packets = match event.name.as_str() {
                "quic:packet_sent" => &mut self.sent,
                "quic:packet_received" => &mut self.received,
                _ => continue,
            };
            packets.push(Packet {
                time: reference + event.time / 1000.0,
                size: event.data.raw.length,
                data: event.data.header.packet_type == "1RTT",
                frames: event.data.frames.iter().map(LoggedFrame::frame).collect(),
            });
        }
        Ok(())
    }
}

fn parse<'a, T: Deserialize<'a>>(record: &'a str) -> Result<T, Failure> {
    serde_json::from_str(record)
        .map_err(|error| failed(format!("a qlog cannot be read: {error}"), REMEDY))
}

/// Seconds since 1970 of `2026-11-21T10:00:00.000000Z`.
pub(super) fn wall(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    // Years begin in March here, so that the leap day is the last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

#[derive(Deserialize)]
struct Head {
    trace: Trace,
}

#[derive(Deserialize)]
struct Trace {
    common_fields: CommonFields,
    vantage_point: VantagePoint,
}

#[derive(Deserialize)]
struct CommonFields {
    reference_time: ReferenceTime,
}

#[derive(Deserialize)]
struct ReferenceTime {
    wall_clock_time: String,
}

#[derive(Deserialize)]
struct VantagePoint {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Event {
    time: f64,
    name: String,
    #[serde(default)]
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    header: Header,
    raw: Raw,
    frames: Vec<LoggedFrame>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    packet_type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Raw {
    length: usize,
    payload_length: usize,
}

#[derive(Deserialize)]
struct LoggedFrame {
    frame_type: String,
    #[serde(default)]
    raw: Raw,
}

impl LoggedFrame {
    fn frame(&self) -> Frame {
        match self.frame_type.as_str() {
            "padding" => Frame::Padding,
            "ack" => Frame::Ack(self.raw.length),
            "datagram" => Frame::Datagram(self.raw.length, self.raw.payload_length),
            "stream" if self.raw.payload_length > 0 => Frame::Stream,
            _ => Frame::Other,
        }
    }
}
