//! The control port of C tor, or the control socket of Hoplite's circuits, which speaks as much of its protocol (control-spec, sections 3.1, 3.5 and
//! 4.1.1 to 4.1.3): what circuits and streams did and when, in the form that OnionPerf's analysis JSON has them in. A state machine that lines go into,
//! and a driver that reads them.
//!
//! We do not keep what OnionPerf keeps of everybody: a system tor has other users. Of streams only those are told that began at a port of ours,
//! and of circuits only those that carried one.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::Path,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt,
        BufReader, split,
    },
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};

use super::config::Control;

/// What is followed at once, circuits and streams each; the oldest make room.
const FOLLOWED: usize = 1024;
/// Events of one of them.
const EVENTS: usize = 64;
/// Streams that have ended and belong to nobody yet: a transfer is told after its stream has ended.
const ENDED: usize = 256;
/// The longest line, in bytes.
const LINE: u64 = 16 * 1024;

/// Something that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Told {
    /// A circuit that carried a stream of ours.
    Circuit(Circuit),
    /// A stream of ours.
    Stream(Stream),
}

/// A circuit, in OnionPerf's names. Times are seconds, `unix` since 1970, others since its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Circuit {
    pub(crate) circuit_id: u64,
    pub(super) unix_ts_start: f64,
    pub(super) unix_ts_end: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buildtime_seconds: Option<f64>,
    pub(super) elapsed_seconds: Vec<(String, f64)>,
    /// Each hop, and when the circuit had been extended to it: the build time by hop.
    pub(super) path: Vec<(String, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_reason_local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_reason_remote: Option<String>,
}

/// A stream, in OnionPerf's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    pub(crate) stream_id: u64,
    pub(crate) circuit_id: Option<String>,
    pub(super) unix_ts_start: f64,
    pub(super) unix_ts_end: f64,
    pub(super) elapsed_seconds: Vec<(String, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_reason_local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_reason_remote: Option<String>,
}

impl Circuit {
    /// As if it had ended with its last event.
    fn so_far(&self) -> Self {
        let last = self.elapsed_seconds.last().map_or(0.0, |last| last.1);
        Self {
            unix_ts_end: self.unix_ts_start + last,
            ..self.clone()
        }
    }
}

/// An event: `650 CIRC 5 EXTENDED …` as words, and those of them that are `KEY=value`.
struct Event<'a> {
    kind: &'a str,
    id: u64,
    status: &'a str,
    plain: Vec<&'a str>,
    keys: BTreeMap<&'a str, &'a str>,
}

impl<'a> Event<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.strip_prefix("650 ")?.split_ascii_whitespace();
        let (kind, id, status) = (words.next()?, words.next()?, words.next()?);
        let (mut plain, mut keys) = (Vec::new(), BTreeMap::new());
        for word in words {
            // A hop is "$FINGERPRINT=name" in old versions: no key has a '$'.
            match word.split_once('=').filter(|(key, _)| !key.contains('$')) {
                Some((key, value)) => drop(keys.insert(key, value)),
                None => plain.push(word),
            }
        }
        let id = id.parse().ok()?;
        Some(Self {
            kind,
            id,
            status,
            plain,
            keys,
        })
    }

    fn key(&self, name: &str) -> Option<String> {
        self.keys.get(name).map(|value| (*value).to_owned())
    }
}

#[derive(Debug, Default)]
struct Followed<T> {
    value: T,
    ours: bool,
    purpose: String,
}

/// Follows circuits and streams.
#[derive(Debug, Default)]
pub struct Tracker {
    circuits: BTreeMap<u64, Followed<Circuit>>,
    streams: BTreeMap<u64, Followed<Stream>>,
    ended: VecDeque<Stream>,
    told: Vec<Told>,
}

impl Tracker {
    /// A line of tor's that came at `at`, in seconds since 1970. What is no event of circuits or streams is passed over.
    pub fn line(&mut self, line: &str, at: f64) {
        let Some(event) = Event::parse(line) else {
            return;
        };
        match event.kind {
            "CIRC" => self.circuit(&event, at),
            "STREAM" => self.stream(&event, at),
            _ => {}
        }
    }

    fn circuit(&mut self, event: &Event<'_>, at: f64) {
        let followed = self.circuits.entry(event.id).or_default();
        followed.purpose = event
            .key("PURPOSE")
            .unwrap_or_else(|| std::mem::take(&mut followed.purpose));
        let circuit = &mut followed.value;
        if circuit.elapsed_seconds.is_empty() {
            (circuit.circuit_id, circuit.unix_ts_start) = (event.id, at);
        }
        let since = at - circuit.unix_ts_start;
        note(
            &mut circuit.elapsed_seconds,
            &followed.purpose,
            event.status,
            since,
        );
        match event.status {
            "EXTENDED" => {
                let hops = event.plain.first().copied().unwrap_or_default();
                if let (Some(hop), true) = (hops.rsplit(',').next(), circuit.path.len() < EVENTS) {
                    circuit.path.push((hop.to_owned(), since));
                }
            }
            "BUILT" => drop(circuit.buildtime_seconds.get_or_insert(since)),
            "FAILED" | "CLOSED" => {
                circuit.unix_ts_end = at;
                if event.status == "FAILED" {
                    circuit.failure_reason_local = event.key("REASON");
                    circuit.failure_reason_remote = event.key("REMOTE_REASON");
                }
                if let Some(over) = self.circuits.remove(&event.id).filter(|one| one.ours) {
                    self.told.push(Told::Circuit(over.value));
                }
            }
            _ => {}
        }
        while self.circuits.len() > FOLLOWED {
            self.circuits.pop_first();
        }
    }

    fn stream(&mut self, event: &Event<'_>, at: f64) {
        let followed = self.streams.entry(event.id).or_default();
        followed.purpose = event
            .key("PURPOSE")
            .unwrap_or_else(|| std::mem::take(&mut followed.purpose));
        let stream = &mut followed.value;
        if stream.elapsed_seconds.is_empty() {
            (stream.stream_id, stream.unix_ts_start) = (event.id, at);
            stream.source = event.key("SOURCE_ADDR");
        }
        note(
            &mut stream.elapsed_seconds,
            &followed.purpose,
            event.status,
            at - stream.unix_ts_start,
        );
        if let Some(circuit) = event.plain.first().filter(|circuit| **circuit != "0") {
            stream.circuit_id = Some((*circuit).to_owned());
        }
        stream.target = event.plain.get(1).map(|target| (*target).to_owned());
        if event.status == "FAILED" {
            stream.failure_reason_local = event.key("REASON");
            stream.failure_reason_remote = event.key("REMOTE_REASON");
        }
        if matches!(event.status, "FAILED" | "CLOSED") {
            stream.unix_ts_end = at;
            if let Some(over) = self.streams.remove(&event.id) {
                self.over(over);
            }
        }
        while self.streams.len() > FOLLOWED {
            self.streams.pop_first();
        }
    }

    fn over(&mut self, over: Followed<Stream>) {
        if over.ours {
            self.told.push(Told::Stream(over.value));
            return;
        }
        self.ended.push_back(over.value);
        while self.ended.len() > ENDED {
            self.ended.pop_front();
        }
    }

    /// The streams that began at this port of the machine are ours, and so are their circuits. Those are told as far as they have come: one stays
    /// open for minutes after its stream, over the end of the day perhaps. They are told again when they close.
    pub fn claim(&mut self, port: u16) {
        let end = format!(":{port}");
        let mine = |stream: &Stream| {
            stream
                .source
                .as_ref()
                .is_some_and(|from| from.ends_with(&end))
        };
        let mut circuits = Vec::new();
        for followed in self.streams.values_mut().filter(|one| mine(&one.value)) {
            followed.ours = true;
            circuits.extend(followed.value.circuit_id.clone());
        }
        for stream in std::mem::take(&mut self.ended) {
            if mine(&stream) {
                circuits.extend(stream.circuit_id.clone());
                self.told.push(Told::Stream(stream));
            } else {
                self.ended.push_back(stream);
            }
        }
        for id in circuits.iter().filter_map(|id| id.parse::<u64>().ok()) {
            if let Some(circuit) = self.circuits.get_mut(&id) {
                circuit.ours = true;
                self.told.push(Told::Circuit(circuit.value.so_far()));
            }
        }
    }

    /// Another tor comes: what has not ended never will.
    fn forget(&mut self) {
        let told = self.take();
        *self = Self {
            told,
            ..Self::default()
        };
    }

    /// What has ended since this was asked last.
    pub fn take(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }
}

fn note(events: &mut Vec<(String, f64)>, purpose: &str, status: &str, since: f64) {
    if events.len() < EVENTS {
        let purpose = if purpose.is_empty() { "None" } else { purpose };
        events.push((format!("{purpose}:{status}"), since));
    }
}

// The driver.

/// Longer than that nobody takes to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Follows a subject for ever, and connects again when it is away. `now` is the time in seconds since 1970.
pub(crate) async fn follow(
    control: &Control,
    cookie: Option<&Path>,
    tracker: &Mutex<Tracker>,
    now: impl Fn() -> f64,
) {
    loop {
        if let Err(why) = listen(control, cookie, tracker, &now).await {
            tracing::warn!(%why, "nothing is told of circuits: check subject.control and subject.cookie");
        }
        // Another tor counts its circuits anew.
        tracker.lock().forget();
        sleep(Duration::from_secs(10)).await;
    }
}

async fn listen(
    control: &Control,
    cookie: Option<&Path>,
    tracker: &Mutex<Tracker>,
    now: &impl Fn() -> f64,
) -> io::Result<()> {
    match control {
        Control::Port(address) => {
            #[expect(
                clippy::disallowed_methods,
                reason = "the control port of the file is the only one that is asked"
            )]
            let connecting = TcpStream::connect(address);
            let stream = timeout(ANSWER_TIMEOUT, connecting).await??;
            hear(stream, cookie, tracker, now).await
        }
        Control::Socket(path) => {
            let stream = timeout(ANSWER_TIMEOUT, UnixStream::connect(path)).await??;
            hear(stream, cookie, tracker, now).await
        }
    }
}

async fn hear(
    stream: impl AsyncRead + AsyncWrite,
    cookie: Option<&Path>,
    tracker: &Mutex<Tracker>,
    now: &impl Fn() -> f64,
) -> io::Result<()> {
    let (reading, mut writing) = split(stream);
    let mut reading = BufReader::new(reading);
    let cookie = cookie.map(std::fs::read).transpose()?.unwrap_or_default();
    // 32 bytes, as tor writes it; anything else is not sent to whoever listens there.
    if !matches!(cookie.len(), 0 | 32) {
        return Err(io::Error::other("the cookie has not 32 bytes"));
    }
    let hex: String = cookie.iter().map(|byte| format!("{byte:02x}")).collect();
    for command in [
        format!("AUTHENTICATE {hex}\r\n"),
        "SETEVENTS CIRC STREAM\r\n".to_owned(),
    ] {
        writing.write_all(command.as_bytes()).await?;
        let answer = timeout(ANSWER_TIMEOUT, next(&mut reading)).await??;
        if answer != "250 OK" {
            return Err(io::Error::other("it refused"));
        }
    }
    loop {
        let line = next(&mut reading).await?;
        tracker.lock().line(&line, now());
    }
}

/// The next line without its end.
async fn next(reading: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    reading.take(LINE).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8_lossy(&line);
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(tracker: &mut Tracker, lines: &[&str]) {
        for (at, line) in (100_u32..).zip(lines) {
            tracker.line(line, f64::from(at));
        }
    }

    const BUILT: [&str; 5] = [
        "650 CIRC 5 LAUNCHED BUILD_FLAGS=NEED_CAPACITY PURPOSE=GENERAL",
        "650 CIRC 5 EXTENDED $AA~one PURPOSE=GENERAL",
        "650 CIRC 5 EXTENDED $AA~one,$BB~two PURPOSE=GENERAL",
        "650 CIRC 5 EXTENDED $AA~one,$BB~two,$CC~three PURPOSE=GENERAL",
        "650 CIRC 5 BUILT $AA~one,$BB~two,$CC~three PURPOSE=GENERAL",
    ];

    const STREAM: [&str; 4] = [
        "650 STREAM 9 NEW 0 192.0.2.10:8000 SOURCE_ADDR=127.0.0.1:40000 PURPOSE=USER",
        "650 STREAM 9 SENTCONNECT 5 192.0.2.10:8000",
        "650 STREAM 9 SUCCEEDED 5 192.0.2.10:8000",
        "650 STREAM 9 CLOSED 5 192.0.2.10:8000 REASON=DONE",
    ];

    #[test]
    fn a_circuit_has_the_time_of_each_hop_and_a_stream_its_circuit() {
        let mut tracker = Tracker::default();
        feed(&mut tracker, &[&BUILT[..], &STREAM[..]].concat());
        assert_eq!(tracker.take(), [], "nobody has claimed it");
        tracker.claim(40_000);
        feed(&mut tracker, &["650 CIRC 5 CLOSED $AA~one REASON=FINISHED"]);
        let told = tracker.take();
        let [
            Told::Stream(stream),
            Told::Circuit(open),
            Told::Circuit(circuit),
        ] = &told[..]
        else {
            unreachable!("{told:?}")
        };
        assert_eq!(stream.circuit_id.as_deref(), Some("5"));
        assert_eq!(stream.elapsed_seconds[2], ("USER:SUCCEEDED".into(), 2.0));
        assert_eq!(circuit.buildtime_seconds, Some(4.0));
        let hops: Vec<(&str, f64)> = circuit
            .path
            .iter()
            .map(|(hop, at)| (hop.as_str(), *at))
            .collect();
        assert_eq!(
            hops,
            [("$AA~one", 1.0), ("$BB~two", 2.0), ("$CC~three", 3.0)]
        );
        assert_eq!((open.path.len(), open.unix_ts_end), (3, 104.0));
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Told>>(&json).unwrap(), told);
    }

    #[test]
    fn what_others_do_through_the_same_tor_is_not_kept() {
        let mut tracker = Tracker::default();
        feed(&mut tracker, &[&BUILT[..], &STREAM[..]].concat());
        tracker.claim(4_000);
        tracker.claim(40_001);
        feed(&mut tracker, &["650 CIRC 5 CLOSED REASON=FINISHED"]);
        assert_eq!(tracker.take(), []);
    }

    #[test]
    fn a_stream_that_runs_can_be_claimed_and_its_failure_has_both_reasons() {
        let mut tracker = Tracker::default();
        feed(&mut tracker, &STREAM[..2]);
        tracker.claim(40_000);
        feed(
            &mut tracker,
            &["650 STREAM 9 FAILED 5 192.0.2.10:8000 REASON=END REMOTE_REASON=EXITPOLICY"],
        );
        let told = tracker.take();
        let [Told::Stream(stream)] = &told[..] else {
            unreachable!("{told:?}")
        };
        assert_eq!(stream.failure_reason_remote.as_deref(), Some("EXITPOLICY"));
    }

    #[test]
    fn what_is_followed_has_a_bound() {
        let mut tracker = Tracker::default();
        for id in 0..5000 {
            tracker.line(&format!("650 STREAM {id} NEW 0 x:1"), 1.0);
            tracker.line(&format!("650 STREAM {id} CLOSED 0 x:1"), 1.0);
            tracker.line(&format!("650 STREAM 1{id} NEW 0 x:1"), 1.0);
            tracker.line(&format!("650 CIRC {id} LAUNCHED"), 1.0);
            tracker.line("650 CIRC 9999 EXTENDED $AA~one", 1.0);
        }
        let followed = [tracker.circuits.len(), tracker.streams.len()];
        assert_eq!(followed, [FOLLOWED; 2]);
        assert_eq!(tracker.ended.len(), ENDED);
        let circuit = &tracker.circuits[&9999].value;
        assert_eq!(
            [circuit.path.len(), circuit.elapsed_seconds.len()],
            [EVENTS; 2]
        );
    }

    proptest! {
        #[test]
        fn no_line_panics(
            lines in proptest::collection::vec(
                "(650 )?(CIRC|STREAM) [0-9]{1,2} (NEW|EXTENDED|BUILT|CLOSED|FAILED) .{0,40}", 0..40)
        ) {
            let mut tracker = Tracker::default();
            for line in &lines {
                tracker.line(line, 1.0);
                tracker.claim(1);
            }
        }
    }
}
