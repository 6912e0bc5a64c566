//! Observes connections and writes one qlog file for each: size, frames and time of every packet, no payloads, no keys.
//! draft-ietf-quic-qlog-main-schema (JSON text sequences, RFC 7464), draft-ietf-quic-qlog-quic-events.
//!
//! The packet path only writes into memory; a thread carries it to the disk. A connection has [`MAX_QUEUED`] bytes of memory for it: when
//! the disk is slow or full, events are dropped and counted, and the traffic goes on.

use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hoplite_wire::quic_frames::{Ack, Content, Frame, kind};
use parking_lot::Mutex;
use quinn_proto::Side;

use crate::{Begun, Observer, Packet, Space, Watch};

/// Bytes of events of one connection that may wait for the disk; further events are dropped.
const MAX_QUEUED: usize = 256 << 10;

/// With this many bytes waiting the thread is woken before its time.
const WAKE_AT: usize = 64 << 10;

/// Connections that are written at once; further ones are not.
const MAX_FILES: usize = 1024;

/// How often events are carried to the disk.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// How long [`Qlog::flush`] waits for a disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A directory of qlog files. Cheap to clone; every clone writes there.
#[derive(Clone)]
pub struct Qlog(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    /// Where all files' times begin: files of one process can be put beside each other.
    reference: Instant,
    /// What the wall clock showed then.
    wall: SystemTime,
    count: AtomicU64,
    files: Mutex<Vec<Arc<File>>>,
    /// Held while files are written.
    sweep: Mutex<()>,
    thread: OnceLock<Thread>,
}

/// One connection's observer.
struct Writer {
    shared: Arc<Shared>,
    file: Arc<File>,
}

impl Qlog {
    /// Writes into `directory`, which is made if it is not there.
    ///
    /// # Errors
    /// The directory cannot be made or written, or there is no thread.
    pub fn start(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            reference: Instant::now(),
            wall: SystemTime::now(),
            count: AtomicU64::new(0),
            files: Mutex::default(),
            sweep: Mutex::default(),
            thread: OnceLock::new(),
        });
        let weak = Arc::downgrade(&shared);
        let thread = thread::Builder::new()
            .name("qlog".into())
            .spawn(move || carry(&weak))?;
        drop(shared.thread.set(thread.thread().clone()));
        Ok(Self(shared))
    }

    /// Waits until all that was observed so far is in the files, for two seconds at most: call it before the process ends.
    pub fn flush(&self) {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::clone(&self.0);
        let sweep = move || {
            shared.sweep();
            tell.try_send(()).unwrap_or_default();
        };
        if thread::Builder::new()
            .name("qlog-end".into())
            .spawn(sweep)
            .is_ok()
        {
            told.recv_timeout(FLUSH_TIMEOUT).unwrap_or_default();
        }
    }
}

/// Runs in the thread, until nobody holds the directory any more.
fn carry(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.sweep();
        drop(shared);
        thread::park_timeout(WRITE_INTERVAL);
    }
}

impl Shared {
    /// Writes what waits, and forgets files whose connection has ended.
    fn sweep(&self) {
        let _one = self.sweep.lock();
        let files = self.files.lock().clone();
        let mut ended = Vec::new();
        for file in files {
            // This list's and the clone's reference: its observer is gone, nothing more will come.
            let last = Arc::strong_count(&file) <= 2;
            file.write();
            if last {
                ended.push(file);
            }
        }
        if !ended.is_empty() {
            let stays = |file: &Arc<File>| !ended.iter().any(|other| Arc::ptr_eq(file, other));
            self.files.lock().retain(stays);
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn open(&self, connection: &Begun<'_>) -> Option<Arc<File>> {
        let mut files = self.files.lock();
        if files.len() >= MAX_FILES {
            tracing::debug!("a connection has no qlog: {MAX_FILES} are written already");
            return None;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let began = self.wall + self.reference.elapsed();
        let side = match connection.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        let name = file_name(milliseconds(began), number, side, connection.label);
        let head = head_event(connection, side, &rfc3339(self.wall));
        let file = Arc::new(File::new(self.directory.join(name), head));
        files.push(Arc::clone(&file));
        Some(file)
    }
}

/// `<milliseconds since 1970>-<number>-client|server-<label>.sqlog`.
fn file_name(began: u128, number: u64, side: &str, label: &str) -> String {
    let label: String = label.chars().filter(|c| is_plain(*c)).collect();
    format!("{began}-{number}-{side}-{label}.sqlog")
}

impl Watch for Qlog {
    fn observe(&self, connection: &Begun<'_>) -> Option<Arc<dyn Observer>> {
        let file = self.0.open(connection)?;
        let shared = Arc::clone(&self.0);
        Some(Arc::new(Writer { shared, file }))
    }
}

impl Writer {
    fn event(&self, direction: Direction, packet: &Packet<'_>) {
        let reference = self.shared.reference;
        let time = || reference.elapsed();
        let wake = self.file.append(time, |out, time| {
            packet_event(out, direction, time, packet);
        });
        if wake {
            self.shared.wake();
        }
    }
}

impl Observer for Writer {
    fn sent(&self, packet: &Packet<'_>) {
        self.event(Direction::Sent, packet);
    }

    fn received(&self, packet: &Packet<'_>) {
        self.event(Direction::Received, packet);
    }
}

impl fmt::Debug for Qlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Qlog").field(&self.0.directory).finish()
    }
}

// The records of a qlog file: its head, packets with their frames, and a word about what was dropped.
// Numbers and fixed words only, so that no text needs escaping but the label, which is checked.

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Sent,
    Received,
}

/// The head of a file. `side` is the vantage point, `wall` what the wall clock showed at the time 0 of all events.
fn head_event(connection: &Begun<'_>, side: &str, wall: &str) -> Vec<u8> {
    let label: String = connection.label.chars().filter(|c| is_plain(*c)).collect();
    let id: String = connection
        .id
        .iter()
        .map(|byte| format!("{byte:02x}"))
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
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_. ".contains(c)
}

/// A packet.
fn packet_event(out: &mut Vec<u8>, way: Direction, time: Duration, packet: &Packet<'_>) {
    // A vector takes everything.
    drop(write_packet(out, way, time, packet));
}

/// This many events are missing here.
fn dropped_event(out: &mut Vec<u8>, time: Duration, count: u64) {
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
    match frame_name(frame.kind) {
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
            for (field, value) in frame_fields(frame.kind).iter().zip(values) {
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
        if low == high {
            write!(out, "{comma}[{low}]")?
        } else {
            write!(out, "{comma}[{low},{high}]")?
        }
    }
    out.push(b']');
    if let Some([ect0, ect1, ce]) = ack.ecn {
        write!(out, ",\"ect0\":{ect0},\"ect1\":{ect1},\"ce\":{ce}")?;
    }
    Ok(())
}

/// What the draft calls a frame.
fn frame_name(kind: u64) -> Option<&'static str> {
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
fn frame_fields(kind: u64) -> &'static [&'static str] {
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

// One connection's file: events wait in memory, and a thread writes them. A file that cannot be written is given up, with one warning.

/// A file and what waits for it.
struct File {
    path: PathBuf,
    waiting: Mutex<Waiting>,
    /// Only the thread that writes takes it.
    disk: Mutex<Disk>,
}

struct Waiting {
    bytes: Vec<u8>,
    /// Events that found no room since the last one that did.
    dropped: u64,
}

enum Disk {
    New,
    Open(fs::File),
    GivenUp,
}

impl File {
    /// A file that begins with `head`; it is made when it is first written.
    fn new(path: PathBuf, head: Vec<u8>) -> Self {
        Self {
            path,
            waiting: Mutex::new(Waiting {
                bytes: head,
                dropped: 0,
            }),
            disk: Mutex::new(Disk::New),
        }
    }

    /// Adds an event if there is room. True if so much waits now that the thread should be woken.
    /// The time is taken here, in the lock: times in a file never go back.
    fn append(
        &self,
        time: impl FnOnce() -> Duration,
        event: impl FnOnce(&mut Vec<u8>, Duration),
    ) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.bytes.len();
        if before >= MAX_QUEUED {
            waiting.dropped += 1;
            return false;
        }
        let time = time();
        if let dropped @ 1.. = std::mem::take(&mut waiting.dropped) {
            dropped_event(&mut waiting.bytes, time, dropped);
        }
        event(&mut waiting.bytes, time);
        before < WAKE_AT && waiting.bytes.len() >= WAKE_AT
    }

    /// Carries what waits to the disk.
    fn write(&self) {
        let mut disk = self.disk.lock();
        let bytes = self.take();
        if bytes.is_empty() {
            return;
        }
        if let Err(error) = self.write_to(&mut disk, &bytes) {
            let path = self.path.display();
            tracing::warn!("a qlog is given up: {path}: {error}: make room on the disk");
            *disk = Disk::GivenUp;
        }
    }

    /// What waits.
    fn take(&self) -> Vec<u8> {
        let mut waiting = self.waiting.lock();
        std::mem::take(&mut waiting.bytes)
    }

    fn write_to(&self, disk: &mut Disk, bytes: &[u8]) -> io::Result<()> {
        if let Disk::New = disk {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true);
            // It tells when who sent how much: nobody else's business.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            *disk = Disk::Open(options.open(&self.path)?);
        }
        match disk {
            Disk::Open(file) => file.write_all(bytes),
            Disk::New | Disk::GivenUp => Ok(()),
        }
    }
}

// The wall clock in two notations.

const DAY: u64 = 86_400;

/// Milliseconds since 1970.
fn milliseconds(time: SystemTime) -> u128 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis()
}

/// As in RFC 3339, with microseconds.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, micros) = (second / 3600, second / 60 % 60, since.subsec_micros());
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{micros:06}Z",
        second % 60
    )
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + carry, month, of_month)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{Hooks, tests::pair::Pair};

    fn hooks(qlog: &Qlog) -> Hooks {
        Hooks {
            watch: Some(Arc::new(qlog.clone())),
            ..Hooks::default()
        }
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// The records of a JSON text sequence: each begins with RS and ends with a line feed (RFC 7464 §2.2).
    fn records(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.ends_with('\n'));
        let records = text.strip_prefix('\u{1e}').unwrap().split('\u{1e}');
        let parse = |record: &str| serde_json::from_str(record).expect(record);
        records.map(parse).collect()
    }

    /// A short conversation, written.
    fn written(directory: &Path) -> (Pair, Vec<Vec<Value>>) {
        let qlog = Qlog::start(directory).unwrap();
        let mut pair = Pair::connect(&hooks(&qlog), &hooks(&qlog));
        pair.send(0, 30, Duration::from_millis(1));
        pair.run(Duration::from_millis(100));
        qlog.flush();
        let logs = files(directory).iter().map(|path| records(path)).collect();
        (pair, logs)
    }

    #[test]
    fn each_connection_has_a_file_that_says_who_wrote_it() {
        let directory = tempfile::tempdir().unwrap();
        let (_pair, logs) = written(directory.path());
        let names = files(directory.path());
        let ends = |i: usize, end: &str| names[i].to_string_lossy().ends_with(end);
        assert!(
            ends(0, "-1-client-near.sqlog") && ends(1, "-2-server-far.sqlog"),
            "{names:?}"
        );
        let [near, far] = [&logs[0][0], &logs[1][0]];
        assert_eq!(near["serialization_format"], "application/qlog+json-seq");
        let group = |head: &Value| head["trace"]["common_fields"]["group_id"].clone();
        assert_eq!(group(near), group(far));
        assert!(group(near).as_str().unwrap().len() >= 16);
        assert_eq!(near["trace"]["vantage_point"]["type"], "client");
        assert_eq!(far["trace"]["vantage_point"]["name"], "far");
        let reference = &near["trace"]["common_fields"]["reference_time"];
        assert_eq!(reference["clock_type"], "monotonic");
        assert!(
            reference["wall_clock_time"]
                .as_str()
                .unwrap()
                .ends_with('Z')
        );
    }

    #[test]
    fn every_packet_stands_in_the_file_with_its_size_and_its_frames() {
        let directory = tempfile::tempdir().unwrap();
        let (pair, logs) = written(directory.path());
        for (end, log) in logs.iter().enumerate() {
            let sent = log
                .iter()
                .filter(|event| event["name"] == "quic:packet_sent");
            let bytes: u64 = sent
                .map(|event| event["data"]["raw"]["length"].as_u64().unwrap())
                .sum();
            assert_eq!(bytes, pair.sent[end].iter().sum::<usize>() as u64);
        }
        let far = &logs[1];
        let frames = far
            .iter()
            .skip(1)
            .flat_map(|event| event["data"]["frames"].as_array().unwrap());
        let datagrams: Vec<_> = frames
            .clone()
            .filter(|frame| frame["frame_type"] == "datagram")
            .collect();
        assert_eq!(datagrams.len(), 30);
        // Type and two bytes of length.
        assert!(
            datagrams
                .iter()
                .all(|frame| frame["raw"]["length"] == 1003
                    && frame["raw"]["payload_length"] == 1000)
        );
        let ack = frames
            .clone()
            .rfind(|frame| frame["frame_type"] == "ack")
            .unwrap();
        assert!(
            ack["acked_ranges"][0][0].is_u64() && ack["ack_delay"].is_f64(),
            "{ack}"
        );
        assert!(
            frames
                .clone()
                .any(|frame| frame["frame_type"] == "crypto" && frame["length"].is_u64())
        );
        let unknown = frames
            .clone()
            .filter(|frame| frame["frame_type"] == "unknown");
        assert_eq!(unknown.count(), 0);
    }

    #[test]
    fn times_in_a_file_never_go_back() {
        let directory = tempfile::tempdir().unwrap();
        let (_pair, logs) = written(directory.path());
        for log in logs {
            let times: Vec<f64> = log
                .iter()
                .skip(1)
                .map(|event| event["time"].as_f64().unwrap())
                .collect();
            assert!(times.is_sorted() && times.len() > 30);
        }
    }

    #[test]
    fn a_file_holds_no_byte_of_what_was_carried() {
        let directory = tempfile::tempdir().unwrap();
        let qlog = Qlog::start(directory.path()).unwrap();
        let mut pair = Pair::connect(&hooks(&qlog), &hooks(&qlog));
        let secret = "correct horse battery staple";
        pair.connection(0)
            .datagrams()
            .send(secret.into(), false)
            .unwrap();
        pair.run(Duration::from_millis(100));
        qlog.flush();
        let encoded: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        for path in files(directory.path()) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("\"length\":28"), "it was seen");
            assert!(!text.contains("horse") && !text.contains(&encoded));
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_label_cannot_break_out_of_the_file_or_of_the_json() {
        let begun = Begun {
            side: Side::Client,
            label: "a\"b\n\u{1e}c",
            id: quinn_proto::ConnectionId::new(&[1, 2]),
        };
        let head = head_event(&begun, "client", "now");
        let text = String::from_utf8(head).unwrap();
        let head: Value = serde_json::from_str(text.trim_start_matches('\u{1e}')).unwrap();
        assert_eq!(head["title"], "abc");
        assert_eq!(
            file_name(1, 2, "client", "../../etc/x"),
            "1-2-client-....etcx.sqlog"
        );
    }

    #[test]
    fn a_directory_that_vanishes_does_not_stop_the_traffic() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("qlog");
        let qlog = Qlog::start(&directory).unwrap();
        fs::remove_dir(&directory).unwrap();
        let mut pair = Pair::connect(&hooks(&qlog), &hooks(&qlog));
        pair.send(0, 2000, Duration::from_micros(100));
        pair.run(Duration::from_millis(100));
        qlog.flush();
        assert_eq!(pair.stats(1).frame_rx.datagram, 2000);
    }

    #[test]
    fn events_that_the_disk_is_too_slow_for_are_counted_not_kept() {
        let file = File::new("/nonexistent/never".into(), Vec::new());
        let time = || Duration::from_millis(1);
        let event = |out: &mut Vec<u8>, _| out.extend([b'x'; 1024]);
        let kept = MAX_QUEUED / 1024;
        for _ in 0..kept + 7 {
            file.append(time, event);
        }
        assert_eq!(file.take().len(), MAX_QUEUED);
        file.append(time, event);
        let text = String::from_utf8(file.take()).unwrap();
        let (warning, rest) = text.split_once('\n').unwrap();
        assert!(warning.contains("\"7 events are missing here"), "{warning}");
        assert_eq!(rest.len(), 1024);
    }

    #[test]
    fn a_connection_that_ended_leaves_a_whole_file_and_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let qlog = Qlog::start(directory.path()).unwrap();
        let pair = Pair::connect(&hooks(&qlog), &hooks(&qlog));
        assert_eq!(qlog.0.files.lock().len(), 2);
        drop(pair);
        qlog.flush();
        assert_eq!(qlog.0.files.lock().len(), 0);
        assert_eq!(files(directory.path()).len(), 2);
    }

    #[test]
    fn days_have_their_dates() {
        let at = |seconds, micros: u32| rfc3339(UNIX_EPOCH + Duration::new(seconds, micros * 1000));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399, 7), "2000-02-28T23:59:59.000007Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_735_689_599, 999_999), "2024-12-31T23:59:59.999999Z");
        assert_eq!(at(1_772_323_200, 0), "2026-03-01T00:00:00.000000Z");
    }
}
