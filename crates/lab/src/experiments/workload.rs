//! What is carried: downloads, uploads, speed tests, requests, datagrams, schedules, HTTP fetches, visits of a browser; each transfer with its phases, and how it failed
//! if it did, in TGen's words where it has one.
//! The types are the contract; [`run`] are the processes (`hoplite-lab __work`, `__serve`), [`transfer`] and [`message`] are what they say to each
//! other over TCP and UDP.

pub mod browse;
pub mod message;
mod progress;
pub mod run;
pub mod transfer;

use std::{collections::BTreeMap, fmt, io, net::IpAddr, path::PathBuf, time::Duration};

use hoplite_workload::web::Spoilt;
use serde::{Deserialize, Serialize};

use self::browse::{Browse, Surroundings};

/// One workload with every number resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the scenario calls it; in the results beside every transfer.
    pub name: String,
    /// Workloads of the same group run together, groups one after the other.
    pub group: String,
    /// `world` starts it so long after its group has begun; `__work` itself does not wait.
    pub at: Duration,
    /// The host that asks.
    pub from: String,
    /// The host that serves.
    pub to: String,
    /// The host that knows the server's name, where the client has that and not its address: looking it up is part of a transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolver: Option<String>,
    /// The hosts that may serve, if there are several: each transfer asks `to`, the first of them, where it is seen from, and takes the nearest to there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<String>,
    /// Whether it goes beside the subject, straight over the network (cross traffic).
    pub direct: bool,
    /// Whether all its transfers may fail: a scenario that measures just that. Else an attempt in which they do has failed.
    #[serde(default)]
    pub may_fail: bool,
    /// What its figures are called: workloads with one such name are one in the report. `None` is its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_as: Option<String>,
    /// What it does.
    pub kind: Kind,
    /// A transfer that moves no byte for this long has failed (`STALL`).
    #[serde(default = "stall")]
    pub stall: Duration,
    /// A transfer that takes so long has failed (`TIMEOUT`).
    #[serde(default = "timeout")]
    pub timeout: Duration,
}

impl Plan {
    /// The default of [`Plan::stall`]: tor gives a stream two minutes to open.
    pub const STALL: Duration = Duration::from_secs(120);
    /// The default of [`Plan::timeout`]: 5 MiB over EDGE took up to ten minutes in paper 002.
    pub const TIMEOUT: Duration = Duration::from_secs(1800);
}

fn stall() -> Duration {
    Plan::STALL
}

fn timeout() -> Duration {
    Plan::TIMEOUT
}

/// What a workload does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kind {
    /// This many transfers of `bytes` each from the server, one after another, each on `connections` connections at once.
    Download(Bulk),
    /// This many transfers towards the server.
    Upload(Bulk),
    /// Small requests and answers on one connection: `count` times `request` bytes out and `response` back, at least one each;
    /// each has 4 bytes of framing.
    Request {
        /// Bytes asked with.
        request: u64,
        /// Bytes answered with.
        response: u64,
        /// How often.
        count: u32,
        /// Pause between an answer and the next request.
        pause: Duration,
    },
    /// Datagrams that are sent back: round trips and loss.
    UdpEcho {
        /// Bytes of payload; at least 40, for they carry a number and times.
        size: u16,
        /// How many.
        count: u32,
        /// From one to the next.
        interval: Duration,
    },
    /// Datagrams one way at a constant rate: loss, delay variation, goodput.
    UdpRate {
        /// Bytes of payload; at least 40.
        size: u16,
        /// Bits per second of payload.
        rate: u64,
        /// For so long.
        time: Duration,
        /// From the server to the client instead.
        down: bool,
    },
    /// TGen's weighted choice: each transfer draws a row by weight, then waits.
    Schedule {
        /// What may be drawn.
        choices: Vec<Choice>,
        /// How many transfers.
        count: u32,
    },
    /// Fetches over HTTP.
    Http {
        /// 1, 2 or 3.
        version: u8,
        /// Bytes of each body.
        bytes: u64,
        /// How many fetches.
        count: u32,
        /// How many at once (HTTP/1.1: connections; 2 and 3: streams of one connection).
        parallel: u16,
        /// Whether every fetch has a connection of its own.
        fresh: bool,
        /// Whether the bodies go to the server instead; version 3 only.
        #[serde(default)]
        upload: bool,
        /// How both ends of a connection carry; version 3 only.
        #[serde(default)]
        tuning: Tuning,
    },
    /// Visits of a browser to pages.
    Browse(Browse),
}

/// How both ends of an HTTP/3 connection carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Of both directions.
    pub congestion: Congestion,
    /// Bytes of a UDP payload, always; 0 searches for what the path carries, from 1200 on.
    pub packet: u16,
}

/// A congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// Loss-based: RFC 9438.
    #[default]
    Cubic,
    /// Model-based, from rate and delay: draft-cardwell-iccrg-bbr-congestion-control, version 1.
    Bbr,
    /// Loss-based: RFC 9002 §7.
    Newreno,
}

/// A bulk transfer: by size, or by time if `bytes` is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// Size of each; 0 means for `time`.
    pub bytes: u64,
    /// How long, if not by size.
    pub time: Duration,
    /// Connections at once that share the size or the time.
    pub connections: u16,
    /// How many in a row; each on fresh connections with a fresh isolation token.
    pub count: u32,
    /// Pause between them.
    pub pause: Duration,
}

/// A row of a TGen schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Bytes to the server.
    pub sendsize: u64,
    /// Bytes from it.
    pub recvsize: u64,
    /// Wait after it.
    pub pause: Duration,
    /// Relative to the other rows.
    pub weight: f64,
}

/// How a client reaches its server: what `world` tells a `__work` process on stdin, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// What to do.
    pub plan: Plan,
    /// The way in.
    pub way: Way,
    /// Host of the target as the way in wants it: an address, or a name such as an onion address.
    pub target: String,
    /// Whether `target` is a domain, and each connection goes to a name of its own below it, which nobody has asked for before.
    #[serde(default)]
    pub fresh_names: bool,
    /// If there are several servers: for each address that the target may see, the server that is nearest to it. Downloads and uploads ask the target first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nearest: BTreeMap<IpAddr, IpAddr>,
    /// Ports of the server.
    pub ports: Ports,
    /// Seeds payloads and schedules.
    pub seed: u64,
    /// Where the client's qlogs go, if wanted; the server's go where QLOGDIR says.
    pub qlog: Option<PathBuf>,
    /// The interface that connections over TCP to anything but a proxy are bound to, whatever the routes say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// What a browser needs; told for `browse` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surroundings: Option<Surroundings>,
}

/// The door that a subject opens for programs on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "kebab-case")]
pub enum Way {
    /// The host's own sockets (also when the subject is a TUN).
    Direct,
    /// SOCKS5 with user name and password as the isolation token; UDP ASSOCIATE if `udp`.
    Socks {
        /// Where it listens.
        address: std::net::SocketAddr,
        /// Whether it carries UDP.
        udp: bool,
    },
    /// An HTTP proxy: CONNECT.
    Http {
        /// Where it listens.
        address: std::net::SocketAddr,
    },
}

/// Where a server listens: fixed, for each host is alone in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The transfer protocol over TCP.
    pub transfer: u16,
    /// Datagrams: echo and rate.
    pub udp: u16,
    /// HTTP/1.1 in clear text.
    pub http: u16,
    /// HTTP/1.1 and 2 over TLS on TCP, HTTP/3 on UDP; a self-signed certificate.
    pub https: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            transfer: 8000,
            udp: 8001,
            http: 8080,
            https: 8443,
        }
    }
}

/// One transfer, as it was seen by its client. `__work` prints one line of JSON for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The workload's name.
    pub workload: String,
    /// From 1, within the workload; connections of one bulk transfer share it.
    pub number: u32,
    /// Which of its connections, from 1; 0 sums up all of them, after the last, where there are several.
    pub connection: u16,
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// `host:port` of the target and its address if it was given one.
    pub server: Option<IpAddr>,
    /// The address that the server saw the transfer come from, as it told the client.
    pub seen_as: Option<IpAddr>,
    /// Bytes of payload asked for: to the server and from it (0 if by time).
    pub asked: [u64; 2],
    /// Bytes of payload that went to the server and came from it, checked at their receiver: by a hash, datagrams one by one.
    pub moved: [u64; 2],
    /// Microseconds from `began` to each phase that was reached.
    pub phases: Phases,
    /// Round trips in microseconds (`request`, `udp-echo`), in order; lost ones are absent.
    pub round_trips: Vec<u32>,
    /// Datagrams sent and received (`udp-echo`, `udp-rate`).
    pub datagrams: [u64; 2],
    /// Named by kind, if it failed.
    pub error: Option<TransferError>,
    /// Further figures of a kind of workload, by name:
    /// - `udp-echo` and `udp-rate`: `duplicates`, `reordered` (RFC 4737), `corrupt` (changed on the way: any byte of it);
    /// - `udp-rate`: `jitter_us` (RFC 3550), one-way `delay_us_min`, `_p50`, `_p90`, `_p99`, `_max`;
    /// - `udp-echo`: the same of each direction, `up_delay_us_min`, `_p50`, `_p99`, `_max`, and `down_delay_us_…`;
    /// - `schedule`: `choice`, the row that was drawn, from 1;
    /// - `browse`: `page`, `visit` (from 1), `objects` (of the page), `requests`, `requests_http1`, `_http2`, `_http3`, `handshakes` (of TLS), `egresses` (addresses
    ///   that servers saw), `page_load_us`, `dom_content_loaded_us`, `first_contentful_paint_us`, `tls_all_us` (mean over the handshakes); its phases are the
    ///   document's, `last_byte` that of the last object;
    /// - of a transfer in both directions, whose phases are those of what was received: `send_first_byte_us` and `send_last_byte_us`;
    /// - of a transfer that broke off: `unchecked_sent` and `unchecked_received`, bytes that moved and were not checked.
    pub more: BTreeMap<String, f64>,
}

/// Microseconds from the beginning of the transfer; `None` was not reached or does not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// The socket exists.
    pub socket: Option<u64>,
    /// TCP (or QUIC) to the proxy or the target stands.
    pub connect: Option<u64>,
    /// The SOCKS greeting is answered.
    pub proxy_choice: Option<u64>,
    /// The proxy was asked for the target.
    pub proxy_request: Option<u64>,
    /// The proxy has answered.
    pub proxy_response: Option<u64>,
    /// TLS with the target stands (HTTPS only).
    pub tls: Option<u64>,
    /// The request was sent.
    pub command: Option<u64>,
    /// The answer's head has come.
    pub response: Option<u64>,
    /// First byte of payload: received, or sent if nothing is to be received.
    pub first_byte: Option<u64>,
    /// When 0.1, 0.2, … 0.9 of the payload had passed (nine values; fewer if it broke off), as its receiver saw it:
    /// an upload's are the server's, for what a sender writes may wait in buffers. OnionPerf's partial sizes come beside them.
    pub deciles: Vec<u64>,
    /// When 10 KiB, 20, 50, 100, 200, 500 KiB, 1, 2, 5 MiB had passed: (bytes, microseconds).
    pub partial: Vec<(u64, u64)>,
    /// Last byte of payload, at its receiver.
    pub last_byte: Option<u64>,
    /// The hash was compared.
    pub checksum: Option<u64>,
}

/// Why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferError {
    /// `CONNECT`, `PROXY`, `TLS`, `AUTH` (the answer is not that of our server), `READ`, `WRITE`, `CLOSED` (the peer ended too early),
    /// `STALL`, `TIMEOUT`, `CHECKSUM`, `MISC`: in TGen's words where it has one. Of a monitor also `BUDGET`, `INTERFACE`, `KILLED`, `CLOCK`, `DISK`.
    pub kind: String,
    /// In words, for a reader.
    pub why: String,
}

/// Whose turn it was when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection to the proxy or the target.
    Connect,
    /// The proxy said no, or spoke something else.
    Proxy,
    /// No TLS or QUIC session with the server.
    Tls,
    /// The answer is not that of our server, or it refused.
    Auth,
    /// Reading failed.
    Read,
    /// Writing failed.
    Write,
    /// The peer ended before all was said.
    Closed,
    /// No byte moved for too long.
    Stall,
    /// The whole took too long.
    Timeout,
    /// What arrived is not what was sent.
    Checksum,
    /// A monitor's: more than was reserved in its budget, or no room in it.
    Budget,
    /// A monitor's: its interface is not there.
    Interface,
    /// A monitor's: the program ended within it.
    Killed,
    /// A monitor's: the clock was set.
    Clock,
    /// A monitor's: nothing could be written.
    Disk,
    /// Our own mistake, or an order that this way in cannot carry.
    Misc,
}

impl Fault {
    fn word(self) -> &'static str {
        match self {
            Self::Connect => "CONNECT",
            Self::Proxy => "PROXY",
            Self::Tls => "TLS",
            Self::Auth => "AUTH",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Closed => "CLOSED",
            Self::Stall => "STALL",
            Self::Timeout => "TIMEOUT",
            Self::Checksum => "CHECKSUM",
            Self::Budget => "BUDGET",
            Self::Interface => "INTERFACE",
            Self::Killed => "KILLED",
            Self::Clock => "CLOCK",
            Self::Disk => "DISK",
            Self::Misc => "MISC",
        }
    }

    /// A failure of this kind, and why in words.
    pub(crate) fn because(self, why: impl fmt::Display) -> TransferError {
        TransferError {
            kind: self.word().into(),
            why: why.to_string(),
        }
    }

    /// What a socket reports while this was done: a peer that is gone is `CLOSED` whoever notices it.
    pub(crate) fn of(self, error: &io::Error) -> TransferError {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        );
        match (gone, self) {
            (true, Self::Read | Self::Write) => Self::Closed.because(error),
            _ => self.because(error),
        }
    }
}

impl From<Spoilt> for TransferError {
    fn from(spoilt: Spoilt) -> Self {
        let fault = match spoilt {
            Spoilt::Long => Fault::Read,
            Spoilt::Short => Fault::Closed,
            Spoilt::Hash => Fault::Checksum,
        };
        fault.because(spoilt)
    }
}

/// Nothing moved for `limit`.
pub(crate) fn stalled(limit: Duration) -> TransferError {
    Fault::Stall.because(format_args!("no byte moved for {limit:?}"))
}

/// The peer ended too early.
pub(crate) fn closed() -> TransferError {
    Fault::Closed.because("the other end closed the connection before the transfer was over")
}
