//! What is computed from results and records: statistics, the cascade of acknowledgements, the fingerprint of a connection, and the captures that
//! these two begin with; rounds in which clients stalled. Functions over values and over files of one attempt.

pub mod cascade;
pub(crate) mod fingerprint;
mod stalled;
pub mod statistics;

use std::{
    fs::File,
    io::{self, BufReader, ErrorKind, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use super::sample::whole_transfers;
use crate::{
    errors::Failure,
    experiments::trial::{Analysis, Report, Trial},
};

/// What records come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Analysed {
    /// Figures by name.
    Figures(Vec<(String, f64)>),
    /// They are of something else than what is analysed, in which the subject was free: why, in words. Another attempt may be like it.
    Unlike(String),
}

/// The figures of a repetition that its trial asks for, by name.
///
/// # Errors
/// The capture or the qlogs are missing, are broken, or do not belong together.
pub fn analyse(trial: &Trial, report: &Report) -> Result<Analysed, Failure> {
    let mut figures = Vec::new();
    for analysis in &trial.analyses {
        let found = match analysis {
            Analysis::Cascade { link } => {
                let seen = Vantage::of(trial, link, cascade::DOING)?;
                cascade::of_files(&seen, &trial.directory.join("qlog"))?
            }
            Analysis::Fingerprint { link } => {
                let seen = Vantage::of(trial, link, fingerprint::DOING)?;
                Analysed::Figures(fingerprint::of_files(&seen, began(report))?)
            }
            Analysis::Stalled { above } => {
                Analysed::Figures(stalled::rounds(&whole_transfers(&report.transfers), *above))
            }
        };
        match found {
            Analysed::Figures(found) => figures.extend(found),
            unlike @ Analysed::Unlike(_) => return Ok(unlike),
        }
    }
    Ok(Analysed::Figures(figures))
}

/// When the first transfer began, in seconds since 1970.
fn began(report: &Report) -> f64 {
    let begins = report.transfers.iter().map(|transfer| transfer.began);
    begins.fold(f64::INFINITY, f64::min)
}

/// Where packets were seen, and who the client is.
struct Vantage {
    doing: &'static str,
    capture: PathBuf,
    client: [IpAddr; 2],
}

impl Vantage {
    fn of(trial: &Trial, link: &str, doing: &'static str) -> Result<Self, Failure> {
        Ok(Self {
            doing,
            client: client_of(trial, link, doing)?,
            capture: trial.directory.join("pcap").join(format!("{link}.pcap")),
        })
    }

    fn read(&self) -> Result<Capture, Failure> {
        Capture::read(&self.capture, &self.client).map_err(|error| {
            Failure::new(
                self.doing,
                error,
                "keep the capture: [keep] pcap = [\"LINK\"]",
            )
        })
    }
}

/// The addresses of the host at an end of the link: the one that asks, if both are hosts.
fn client_of(trial: &Trial, link: &str, doing: &str) -> Result<[IpAddr; 2], Failure> {
    let missing = |why: String| Failure::new(doing, why, "correct `link` in [[analysis]]");
    let found = trial.topology.links.iter().find(|known| known.name == link);
    let ends = &found
        .ok_or_else(|| missing(format!("there is no link {link:?}")))?
        .ends;
    let addresses = trial.topology.addresses();
    let asks = |end: &&String| trial.workloads.iter().any(|plan| plan.from == **end);
    let asking = ends.iter().find(asks).unwrap_or(&ends[0]);
    let addresses = addresses
        .get(asking)
        .ok_or_else(|| missing(format!("{asking:?} is no host")))?;
    Ok([addresses.v4.into(), addresses.v6.into()])
}

// The capture of a link: for each packet its time, its direction, its bytes and those of its UDP payload.
// The pcap format (draft-ietf-opsawg-pcap), link type RAW: packets begin with their IP header.

/// One direction, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketDirection {
    Out,
    In,
}

/// Packets begin with IPv4 or IPv6; 101 is LINKTYPE_RAW, 12 what some systems write for it.
const RAW: [u32; 2] = [101, 12];

/// No packet is larger.
const LARGEST: u32 = 1 << 18;

/// Protocol numbers of TCP and UDP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// All packets of a link, in their order.
#[derive(Debug, Default)]
struct Capture {
    packets: Vec<Captured>,
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Captured {
    /// Seconds since 1970.
    time: f64,
    way: PacketDirection,
    /// Bytes of the IP packet.
    bytes: usize,
    /// Bytes of its UDP payload, if it is UDP.
    payload: Option<usize>,
    /// Whether it is TCP.
    tcp: bool,
}

impl Capture {
    /// Reads the file; what has one of the client's addresses as its source goes out.
    fn read(path: &Path, client: &[IpAddr; 2]) -> io::Result<Self> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = BufReader::new(File::open(path).map_err(named)?);
        Self::parse(&mut file, client).map_err(named)
    }

    fn parse(input: &mut impl Read, client: &[IpAddr; 2]) -> io::Result<Self> {
        let mut head = [0; 24];
        input.read_exact(&mut head)?;
        let numbers = Numbers::of(&head)?;
        if !RAW.contains(&numbers.at(&head, 20)) {
            return Err(wrong("its packets do not begin with an IP header"));
        }
        let (mut packets, mut data) = (Vec::new(), Vec::new());
        while let Some(record) = record(input, &numbers)? {
            data.resize(record.captured as usize, 0);
            input.read_exact(&mut data)?;
            packets.extend(packet(&data, &record, client));
        }
        Ok(Self { packets })
    }

    /// The bytes of all packets.
    fn bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.bytes).sum()
    }

    /// The share of them that is TCP's.
    fn tcp_share(&self) -> f64 {
        let of = self.packets.iter().filter(|packet| packet.tcp);
        let bytes: usize = of.map(|packet| packet.bytes).sum();
        bytes as f64 / self.bytes().max(1) as f64
    }

    /// The UDP packets of one direction: their payloads' bytes and their times.
    fn udp(&self, way: PacketDirection) -> impl Iterator<Item = (usize, f64)> {
        let of = self.packets.iter().filter(move |packet| packet.way == way);
        of.filter_map(|packet| Some((packet.payload?, packet.time)))
    }

    /// Bytes of the IP and UDP headers that most packets have.
    fn headers(&self) -> usize {
        let of = |headers| {
            let has = |packet: &&Captured| {
                packet
                    .payload
                    .is_some_and(|payload| packet.bytes - payload == headers)
            };
            self.packets.iter().filter(has).count()
        };
        if of(48) > of(28) { 48 } else { 28 }
    }
}

/// What stands before a packet.
struct Record {
    time: f64,
    /// Bytes that were captured, and on the wire.
    captured: u32,
    whole: u32,
}

fn record(input: &mut impl Read, numbers: &Numbers) -> io::Result<Option<Record>> {
    let mut head = [0; 16];
    match input.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let (captured, whole) = (numbers.at(&head, 8), numbers.at(&head, 12));
    let part = f64::from(numbers.at(&head, 4)) / numbers.second;
    let time = f64::from(numbers.at(&head, 0)) + part;
    if captured <= LARGEST && whole <= LARGEST {
        Ok(Some(Record {
            time,
            captured,
            whole,
        }))
    } else {
        Err(wrong("a packet is larger than packets are"))
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// The byte order of a file, and the parts of a second that it counts.
struct Numbers {
    big: bool,
    second: f64,
}

impl Numbers {
    /// By the magic number, of files with nanoseconds or microseconds.
    fn of(head: &[u8]) -> io::Result<Self> {
        let magics = [(0xa1b2_3c4d, 1e9), (0xa1b2_c3d4, 1e6)];
        let orders = [false, true].into_iter();
        let mut all = orders.flat_map(|big| magics.map(|(magic, second)| (big, magic, second)));
        all.find_map(|(big, magic, second)| {
            let numbers = Self { big, second };
            (numbers.at(head, 0) == magic).then_some(numbers)
        })
        .ok_or_else(|| wrong("it is no pcap file"))
    }

    fn at(&self, bytes: &[u8], place: usize) -> u32 {
        let mut number = [0; 4];
        if let Some(found) = bytes.get(place..place + 4) {
            number.copy_from_slice(found);
        }
        if self.big {
            u32::from_be_bytes(number)
        } else {
            u32::from_le_bytes(number)
        }
    }
}

/// Less of it may have been captured than was on the wire.
fn packet(data: &[u8], record: &Record, client: &[IpAddr; 2]) -> Option<Captured> {
    let bytes = record.whole as usize;
    let (source, protocol, header) = match data.first()? >> 4 {
        4 => {
            let source: [u8; 4] = data.get(12..16)?.try_into().ok()?;
            let header = usize::from(data.first()? & 0x0f) * 4;
            (Ipv4Addr::from(source).into(), *data.get(9)?, header)
        }
        6 => {
            let source: [u8; 16] = data.get(8..24)?.try_into().ok()?;
            (IpAddr::from(Ipv6Addr::from(source)), *data.get(6)?, 40)
        }
        _ => return None,
    };
    let way = if client.contains(&source) {
        PacketDirection::Out
    } else {
        PacketDirection::In
    };
    let payload = (protocol == UDP).then(|| bytes.checked_sub(header + UDP_HEADER));
    Some(Captured {
        time: record.time,
        way,
        bytes,
        payload: payload.flatten(),
        tcp: protocol == TCP,
    })
}
