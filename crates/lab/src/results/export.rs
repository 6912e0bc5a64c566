//! Samples in the formats of others: CSV with the columns of OnionPerf's own export and of paper 000's three data sets, and OnionPerf analysis
//! JSON 4.0.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    Sample,
    metrics::seconds,
    sample::{WholeTransfer, whole_transfers},
};
use crate::experiments::workload::{Phases, Transfer};

/// OnionPerf's columns.
pub const ONIONPERF: &str =
    "id,time_to_first_byte,time_to_last_byte,error_code,mbps,label,filesize_bytes,server,start\n";

/// Paper 000's columns for bulk downloads.
pub const BULK: &str = "Scenario,Location,Throughput [Mbit/s]\n";

/// Paper 000's columns for speed tests.
pub const SPEED_TEST: &str = "ping_ms,download_mbps,upload_mbps,organization,server_ip,sponsor,city,browser,iteration,time\n";

/// Paper 000's columns for page loads.
pub const BROWSING: &str =
    "url,timestamp,privacy-relay,metric-plt,metric-domload,metric-paint,Location\n";

/// Our own columns for visits of a browser.
pub const VISITS: &str = "run,subject,case,workload,page,visit,began,egress,seen_as,error,why,page_load_ms,dom_content_loaded_ms,first_contentful_paint_ms,tls_ms,tls_all_ms,handshakes,requests,requests_http1,requests_http2,requests_http3,bytes\n";

/// The size whose last fifth OnionPerf takes its throughput from.
const FIVE_MEBIBYTES: u64 = 5_242_880;

/// A field as RFC 4180 wants it.
#[must_use]
pub fn field(text: &str) -> String {
    let plain = !text.contains([',', '"', '\n', '\r']);
    if plain {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn line(fields: &[String]) -> String {
    let fields: Vec<String> = fields.iter().map(|text| field(text)).collect();
    fields.join(",") + "\n"
}

/// Whether a sample is what TGen calls a stream: one TCP connection with payload.
#[must_use]
pub fn is_stream(sample: &Sample) -> bool {
    let stream = !sample.kind.starts_with("udp-") && sample.kind != "browse";
    sample.transfer.connection != 0 && stream
}

/// OnionPerf's line of a stream; `label` names its data set.
#[must_use]
pub fn onionperf(sample: &Sample, label: &str) -> String {
    let transfer = &sample.transfer;
    let phases = &transfer.phases;
    line(&[
        stream_id(sample),
        told(phases.first_byte.map(seconds)),
        told(phases.last_byte.map(seconds)),
        error_code(transfer),
        told(last_fifth(transfer)),
        label.to_owned(),
        size(transfer).to_string(),
        if is_onion(transfer) {
            "onion"
        } else {
            "public"
        }
        .to_owned(),
        Utc::at(transfer.began).precisely(),
    ])
}

/// Unique within a campaign.
#[must_use]
fn stream_id(sample: &Sample) -> String {
    let transfer = &sample.transfer;
    format!(
        "{}:{}:{}:{}",
        sample.run, transfer.workload, transfer.number, transfer.connection
    )
}

/// Bytes of payload asked for, or moved if the clock decided.
#[must_use]
pub fn size(transfer: &Transfer) -> u64 {
    let larger = |[one, other]: [u64; 2]| one.max(other);
    match larger(transfer.asked) {
        0 => larger(transfer.moved),
        asked => asked,
    }
}

/// Whether the server is an onion service: asked for by name, and it sees its own tor as the client.
#[must_use]
fn is_onion(transfer: &Transfer) -> bool {
    transfer.server.is_none() && transfer.seen_as.is_some_and(|ip| ip.is_loopback())
}

/// As OnionPerf tells it, but that a proxy that is not tor is not called so.
fn error_code(transfer: &Transfer) -> String {
    match &transfer.error {
        None => String::new(),
        Some(error) if error.kind == "PROXY" => "PROXY".to_owned(),
        Some(error) => format!("TGEN/{}", error.kind),
    }
}

/// OnionPerf's throughput in Mbit/s: of the last fifth of 5 MiB.
fn last_fifth(transfer: &Transfer) -> Option<f64> {
    let (from, to) = (transfer.phases.deciles.get(7)?, transfer.phases.last_byte?);
    let time = seconds(to.checked_sub(*from)?);
    let whole = transfer.asked[1] == FIVE_MEBIBYTES && transfer.error.is_none();
    (whole && time > 0.0).then(|| 8.388_608 / time)
}

/// To a millionth: what was measured is not finer.
fn told(value: Option<f64>) -> String {
    let value = value.map(|value| (value * 1e6).round() / 1e6);
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A repetition's lines in paper 000's three files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Paper000 {
    /// Bulk downloads over one connection.
    pub bulk: String,
    /// Speed tests: downloads or uploads over several connections, or by time.
    pub speed_test: String,
    /// Fetches over HTTP, and visits of a browser.
    pub browsing: String,
    /// Visits of a browser, in columns of our own.
    pub visits: String,
}

/// The lines of one repetition; `place` stands for the paper's location.
#[must_use]
pub fn paper_000(samples: &[Sample], place: &str) -> Paper000 {
    let mut lines = Paper000::default();
    let Some(first) = samples.first() else {
        return lines;
    };
    let subject = first.key.subject.clone();
    for sample in samples {
        match sample.kind.as_str() {
            "http" => lines.browsing += &fetch(sample, &subject, place),
            "browse" => {
                lines.browsing += &visit(sample, &subject, place);
                lines.visits += &visit_whole(sample, place);
            }
            _ => {}
        }
    }
    let kinds: BTreeMap<&str, &str> = samples
        .iter()
        .map(|sample| (sample.transfer.workload.as_str(), sample.kind.as_str()))
        .collect();
    let transfers: Vec<Transfer> = samples
        .iter()
        .map(|sample| sample.transfer.clone())
        .collect();
    let (tests, bulks): (Vec<WholeTransfer>, Vec<WholeTransfer>) = whole_transfers(&transfers)
        .into_iter()
        .filter(|whole| !whole.failed)
        .partition(|whole| is_test(whole, &transfers));
    for whole in bulks {
        if kinds.get(whole.workload.as_str()) == Some(&"download") {
            let rate = told(rate(&whole));
            lines.bulk += &line(&[subject.clone(), place.to_owned(), rate]);
        }
    }
    lines.speed_test = speed_test(samples, &tests, &kinds, place);
    lines
}

fn is_test(whole: &WholeTransfer, transfers: &[Transfer]) -> bool {
    let same = |transfer: &&Transfer| {
        transfer.workload == whole.workload && transfer.number == whole.number
    };
    whole.asked == [0, 0] || transfers.iter().filter(same).count() > 1
}

fn fetch(sample: &Sample, subject: &str, place: &str) -> String {
    let transfer = &sample.transfer;
    let time = transfer.phases.last_byte.map(|at| seconds(at) * 1e3);
    line(&[
        format!("{}/{}", transfer.workload, transfer.number),
        Utc::at(transfer.began).precisely(),
        subject.to_owned(),
        told(time),
        String::new(),
        String::new(),
        place.to_owned(),
    ])
}

/// A visit in milliseconds; one that failed has no times.
fn visit(sample: &Sample, subject: &str, place: &str) -> String {
    let transfer = &sample.transfer;
    let time = |name: &str| {
        let time = transfer.more.get(name).filter(|_| transfer.error.is_none());
        told(time.map(|micros| micros / 1e3))
    };
    let page = transfer.more.get("page").copied().unwrap_or_default();
    line(&[
        format!("{}/page{page}", transfer.workload),
        Utc::at(transfer.began).precisely(),
        subject.to_owned(),
        time("page_load_us"),
        time("dom_content_loaded_us"),
        time("first_contentful_paint_us"),
        place.to_owned(),
    ])
}

/// All that is known of a visit, also of one that failed.
fn visit_whole(sample: &Sample, place: &str) -> String {
    let transfer = &sample.transfer;
    let figure = |name: &str| told(transfer.more.get(name).copied());
    let time = |name: &str| told(transfer.more.get(name).map(|micros| micros / 1e3));
    let error = transfer.error.as_ref();
    let tls = whole_transfers(std::slice::from_ref(transfer));
    let tls = tls.first().and_then(|whole| whole.handshake);
    line(&[
        sample.run.clone(),
        sample.key.subject.clone(),
        place.to_owned(),
        transfer.workload.clone(),
        figure("page"),
        figure("visit"),
        Utc::at(transfer.began).precisely(),
        sample.egress.clone(),
        transfer
            .seen_as
            .map(|ip| ip.to_string())
            .unwrap_or_default(),
        error.map(|error| error.kind.clone()).unwrap_or_default(),
        error.map(|error| error.why.clone()).unwrap_or_default(),
        time("page_load_us"),
        time("dom_content_loaded_us"),
        time("first_contentful_paint_us"),
        told(tls.map(|micros| seconds(micros) * 1e3)),
        time("tls_all_us"),
        figure("handshakes"),
        figure("requests"),
        figure("requests_http1"),
        figure("requests_http2"),
        figure("requests_http3"),
        transfer.moved[1].to_string(),
    ])
}

/// Mbit/s, over the payload's time if it was the clock that ended it.
fn rate(whole: &WholeTransfer) -> Option<f64> {
    let from = if whole.asked == [0, 0] {
        whole.first_byte?
    } else {
        0
    };
    let time = seconds(whole.last_byte?.checked_sub(from)?);
    (time > 0.0).then(|| whole.bytes() as f64 * 8.0 / time / 1e6)
}

/// One line for each number that a test of the repetition has: with the server and the egress of its first transfer.
fn speed_test(
    samples: &[Sample],
    tests: &[WholeTransfer],
    kinds: &BTreeMap<&str, &str>,
    place: &str,
) -> String {
    let of = |whole: &WholeTransfer| {
        samples.iter().find(|sample| {
            let transfer = &sample.transfer;
            (&transfer.workload, transfer.number) == (&whole.workload, whole.number)
        })
    };
    let mut numbers: BTreeMap<u32, ([Option<f64>; 2], &Sample)> = BTreeMap::new();
    for whole in tests {
        let side = match kinds.get(whole.workload.as_str()) {
            Some(&"download") => 0,
            Some(&"upload") => 1,
            _ => continue,
        };
        let Some(first) = of(whole) else { continue };
        let (rates, _) = numbers.entry(whole.number).or_insert(([None; 2], first));
        if let Some(slot) = rates.get_mut(side) {
            *slot = rate(whole);
        }
    }
    let row = |([down, up], first): ([Option<f64>; 2], &Sample)| {
        let server = first.transfer.server.map(|ip| ip.to_string());
        line(&[
            String::new(),
            told(down),
            told(up),
            organization(first),
            server.unwrap_or_default(),
            first.target.clone(),
            place.to_owned(),
            "hoplite-lab".to_owned(),
            first.key.repetition.to_string(),
            Utc::at(first.transfer.began).precisely(),
        ])
    };
    numbers.into_values().map(row).collect()
}

/// Whose the address is that the server saw: the subject's, and of a subject with an egress that one's.
fn organization(sample: &Sample) -> String {
    let subject = &sample.key.subject;
    match sample.egress.as_str() {
        "" => subject.clone(),
        own if own == sample.client => subject.clone(),
        egress => format!("{subject} by {egress}"),
    }
}

// Samples as OnionPerf analysis JSON 4.0 (`schema/onionperf-4.0.json` of OnionPerf): a document is one data set, a client one of its sources.
// There is one for each case and subject, for `onionperf visualize --data FILE LABEL` and for scripts of the field.

/// The document of these samples.
#[must_use]
pub fn analysis(samples: &[Sample]) -> Value {
    let mut clients: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| is_stream(sample)) {
        let streams = clients.entry(nickname(&sample.client)).or_default();
        streams.insert(stream_id(sample), stream(sample));
    }
    let client = |(name, streams): (String, Map<String, Value>)| {
        let tgen = json!({ "streams": streams });
        // OnionPerf's own plots look into `tor`'s two parts even if they are empty.
        let tor = json!({ "circuits": {}, "streams": {} });
        let source = json!({ "measurement_ip": "unknown", "tgen": tgen, "tor": tor });
        (name, source)
    };
    let data: Map<String, Value> = clients.into_iter().map(client).collect();
    json!({ "type": "onionperf", "version": "4.0", "data": data })
}

/// Letters, digits and dashes: others are not allowed in a source's name.
fn nickname(host: &str) -> String {
    let allowed = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => character,
        _ => '-',
    };
    let name: String = host.chars().map(allowed).collect();
    if name.is_empty() {
        "client".to_owned()
    } else {
        name
    }
}

fn stream(sample: &Sample) -> Value {
    let transfer = &sample.transfer;
    let success = transfer.error.is_none();
    let end = last_time(&transfer.phases);
    let mut stream = json!({
        "stream_id": stream_id(sample),
        "is_complete": true,
        "is_error": !success,
        "is_success": success,
        "unix_ts_start": transfer.began,
        "unix_ts_end": transfer.began + seconds(end),
        "byte_info": byte_info(transfer),
        "stream_info": stream_info(sample),
        "time_info": time_info(transfer, end),
        "transport_info": transport_info(sample),
    });
    if let (true, Some(stream)) = (success, stream.as_object_mut()) {
        stream.insert("elapsed_seconds".to_owned(), elapsed_seconds(transfer));
    }
    stream
}

/// The latest phase that was reached.
fn last_time(phases: &Phases) -> u64 {
    let all = [
        phases.socket,
        phases.connect,
        phases.proxy_choice,
        phases.proxy_request,
        phases.proxy_response,
        phases.command,
        phases.response,
        phases.first_byte,
        phases.last_byte,
        phases.checksum,
    ];
    let payload = phases.deciles.iter().copied();
    all.into_iter().flatten().chain(payload).max().unwrap_or(0)
}

/// Whether the payload that the phases speak of went to the server.
fn is_upload(transfer: &Transfer) -> bool {
    transfer.asked[1].max(transfer.moved[1]) == 0
}

fn byte_info(transfer: &Transfer) -> Value {
    let [sent, received] = transfer.moved;
    let [to_send, to_receive] = transfer.asked;
    json!({
        "payload-bytes-recv": received.to_string(),
        "payload-bytes-send": sent.to_string(),
        "payload-progress-recv": progress(received, to_receive),
        "payload-progress-send": progress(sent, to_send),
        "total-bytes-recv": received.to_string(),
        "total-bytes-send": sent.to_string(),
    })
}

/// TGen takes nothing of nothing for all of it.
fn progress(done: u64, asked: u64) -> String {
    let share = if asked == 0 {
        1.0
    } else {
        done as f64 / asked as f64
    };
    format!("{:.2}%", share * 100.0)
}

/// Progress belongs to one direction; the other one's objects are there and empty.
fn elapsed_seconds(transfer: &Transfer) -> Value {
    let phases = &transfer.phases;
    let mut shares: Map<String, Value> = (1..10)
        .zip(&phases.deciles)
        .map(|(tenth, at)| (format!("0.{tenth}"), json!(seconds(*at))))
        .collect();
    if let Some(last) = phases.last_byte {
        shares.insert("1.0".to_owned(), json!(seconds(last)));
    }
    let sizes = phases.partial.iter();
    let sizes: Map<String, Value> = sizes
        .map(|(bytes, at)| (bytes.to_string(), json!(seconds(*at))))
        .collect();
    if is_upload(transfer) {
        return json!({
            "payload_bytes_recv": {}, "payload_bytes_send": sizes,
            "payload_progress_recv": {}, "payload_progress_send": shares,
        });
    }
    json!({
        "payload_bytes_recv": sizes, "payload_bytes_send": {},
        "payload_progress_recv": shares, "payload_progress_send": {},
    })
}

fn stream_info(sample: &Sample) -> Value {
    let transfer = &sample.transfer;
    let [send, receive] = transfer.asked;
    let state = if transfer.error.is_none() {
        "SUCCESS"
    } else {
        "ERROR"
    };
    json!({
        "error": error(transfer),
        "id": transfer.number.to_string(),
        "name": sample.client,
        "peername": sample.target,
        "recvsize": receive.to_string(),
        "recvstate": format!("RECV_{state}"),
        "sendsize": send.to_string(),
        "sendstate": format!("SEND_{state}"),
        "vertexid": transfer.workload,
    })
}

fn error(transfer: &Transfer) -> &str {
    transfer.error.as_ref().map_or("NONE", |error| &error.kind)
}

/// Times are strings, and −1 where there is none.
fn time_info(transfer: &Transfer, end: u64) -> Value {
    let phases = &transfer.phases;
    let told = |at: Option<u64>| at.map_or_else(|| "-1".to_owned(), |at| at.to_string());
    let up = is_upload(transfer);
    let [send, receive] = [up, !up].map(|mine| {
        let only = |at: Option<u64>| told(at.filter(|_| mine));
        [phases.first_byte, phases.last_byte, phases.checksum].map(only)
    });
    let began = transfer.began * 1e6;
    json!({
        "created-ts": format!("{began:.0}"),
        "now-ts": format!("{:.0}", began + end as f64),
        "usecs-to-socket-create": told(phases.socket),
        "usecs-to-socket-connect": told(phases.connect),
        "usecs-to-proxy-init": "-1",
        "usecs-to-proxy-choice": told(phases.proxy_choice),
        "usecs-to-proxy-request": told(phases.proxy_request),
        "usecs-to-proxy-response": told(phases.proxy_response),
        "usecs-to-command": told(phases.command),
        "usecs-to-response": told(phases.response),
        "usecs-to-first-byte-recv": receive[0],
        "usecs-to-last-byte-recv": receive[1],
        "usecs-to-checksum-recv": receive[2],
        "usecs-to-first-byte-send": send[0],
        "usecs-to-last-byte-send": send[1],
        "usecs-to-checksum-send": send[2],
    })
}

fn transport_info(sample: &Sample) -> Value {
    let transfer = &sample.transfer;
    let address = transfer
        .server
        .map_or_else(|| "0.0.0.0".to_owned(), |ip| ip.to_string());
    let end = if is_onion(transfer) { ".onion" } else { "" };
    json!({
        "error": error(transfer),
        "fd": "0",
        // Without a port: OnionPerf would look for tor's stream of that port.
        "local": sample.client,
        "proxy": "NULL",
        "remote": format!("{}{end}:{address}:0", sample.target),
        "state": if transfer.error.is_none() { "SUCCESS_EOF" } else { "ERROR" },
    })
}

// Dates of the calendar, in UTC, without a library.

/// A moment in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// Year, month and day.
    pub date: (i64, i64, i64),
    /// Hour, minute and second.
    pub time: (i64, i64, i64),
    /// Microseconds.
    pub micros: i64,
}

impl Utc {
    /// From seconds since 1970; what is before or no number is 1970, what is after 9999 is its last day.
    #[must_use]
    pub fn at(seconds: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float is cut to the range of the integer"
        )]
        let micros = (seconds.clamp(0.0, 253_402_300_799.0) * 1e6).round() as i64;
        let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        Self {
            date: civil(days),
            time: (rest / 3600, rest / 60 % 60, rest % 60),
            micros,
        }
    }

    /// `2026-11-21 10:03:00.250000`, as pandas and OnionPerf write it.
    #[must_use]
    fn precisely(self) -> String {
        let ((year, month, day), (hour, minute, second)) = (self.date, self.time);
        let micros = self.micros;
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
    }

    /// `2026-11-21T10:03:00.250000Z`, as ISO 8601 has it.
    #[must_use]
    pub fn iso(self) -> String {
        self.precisely().replace(' ', "T") + "Z"
    }

    /// `2026-11-21 10:03 UTC`.
    #[must_use]
    pub fn shortly(self) -> String {
        let ((year, month, day), (hour, minute, _)) = (self.date, self.time);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

/// The date this many days after 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2013).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiments::workload::TransferError,
        results::sample::{
            examples::{bulk, report, transfer, trial},
            samples,
        },
    };

    fn sample(transfer: Transfer) -> Sample {
        let trial = trial(vec![bulk("get", 5_242_880)]);
        samples(&trial, &report(vec![transfer])).remove(0)
    }

    #[test]
    fn five_mebibytes_have_the_throughput_of_their_last_fifth() {
        let mut one = transfer("get", 1, 1);
        one.asked = [0, 5_242_880];
        one.phases.deciles = (1..10).map(|tenth| tenth * 200_000).collect();
        let line = onionperf(&sample(one), "tor, \"hops 2\"");
        let run = sample(transfer("get", 1, 1)).run;
        let expected = format!(
            "{run}:get:1:1,0.1,2,,20.97152,\"tor, \"\"hops 2\"\"\",5242880,public,2027-01-15 08:00:00.250000\n"
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn a_broken_stream_has_its_code_and_no_last_byte() {
        let mut one = transfer("get", 1, 1);
        one.phases.last_byte = None;
        one.error = Some(TransferError {
            kind: "READ".into(),
            why: "reset".into(),
        });
        let line = onionperf(&sample(one), "x");
        assert!(line.contains(",0.1,,TGEN/READ,,x,2000000,"), "{line}");
    }

    #[test]
    fn a_visit_is_a_line_with_its_times_and_one_that_failed_with_its_reason() {
        let mut one = sample(transfer("browse", 1, 1));
        one.kind = "browse".into();
        one.transfer.phases.tls = Some(50_000);
        one.transfer.more = [("page", 7.0), ("visit", 2.0), ("page_load_us", 900_000.0)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let lines = paper_000(std::slice::from_ref(&one), "fibre");
        let when = "2027-01-15 08:00:00.250000";
        assert_eq!(
            lines.browsing,
            format!("browse/page7,{when},native,900,,,fibre\n")
        );
        let run = &one.run;
        let known = format!("{run},native,fibre,browse,7,2,{when},client,10.77.0.1,");
        assert_eq!(lines.visits, format!("{known},,900,,,30,,,,,,,2000000\n"));
        assert_eq!(
            lines.visits.matches(',').count(),
            VISITS.matches(',').count()
        );
        one.transfer.error = Some(TransferError {
            kind: "TIMEOUT".into(),
            why: "silence".into(),
        });
        let lines = paper_000(std::slice::from_ref(&one), "fibre");
        assert_eq!(
            lines.browsing,
            format!("browse/page7,{when},native,,,,fibre\n")
        );
        assert!(
            lines
                .visits
                .starts_with(&format!("{known}TIMEOUT,silence,900,"))
        );
        assert!(!is_stream(&one), "it is no stream of TGen's");
    }

    #[test]
    fn several_connections_are_a_speed_test_and_one_is_a_bulk_download() {
        let trial = trial(vec![bulk("get", 4_000_000)]);
        let one = samples(&trial, &report(vec![transfer("get", 1, 1)]));
        let lines = paper_000(&one, "hops 2");
        assert_eq!(lines.bulk, "native,hops 2,8\n");
        assert_eq!(lines.speed_test, "");
        let two = vec![transfer("get", 1, 1), transfer("get", 1, 2)];
        let lines = paper_000(&samples(&trial, &report(two)), "hops 2");
        assert_eq!(lines.bulk, "");
        assert!(
            lines
                .speed_test
                .starts_with(",16,,native,10.77.0.2,server,hops 2,hoplite-lab,1,2027"),
            "{}",
            lines.speed_test
        );
        assert_eq!(
            lines.speed_test.matches(',').count(),
            SPEED_TEST.matches(',').count()
        );
    }

    #[test]
    fn a_speed_test_tells_its_own_server_and_egress_whatever_was_carried_before_it() {
        let trial = trial(vec![bulk("bulk", 1), bulk("test", 4_000_000)]);
        let of_test = |connection| Transfer {
            server: Some([10, 77, 0, 2].into()),
            seen_as: Some([10, 77, 0, 3].into()),
            ..transfer("test", 1, connection)
        };
        let mut other = transfer("bulk", 1, 1);
        other.server = Some([10, 77, 0, 1].into());
        let all = vec![other, of_test(1), of_test(2)];
        let lines = paper_000(&samples(&trial, &report(all)), "here");
        let expected = ",16,,native by relay1,10.77.0.2,server,here,";
        assert!(
            lines.speed_test.starts_with(expected),
            "{}",
            lines.speed_test
        );
    }

    #[test]
    fn an_onion_service_is_told_from_a_public_server() {
        let mut one = transfer("get", 1, 1);
        one.server = None;
        one.seen_as = Some([127, 0, 0, 1].into());
        assert!(is_onion(&one) && !is_onion(&transfer("get", 1, 1)));
    }

    /// The parts of the schema that its `required` lists name, and the patterns of its strings.
    fn check(stream: &Value) {
        let part = |name: &str| stream[name].as_object().unwrap();
        let numbers = [
            "payload-bytes-recv",
            "payload-bytes-send",
            "total-bytes-recv",
            "total-bytes-send",
        ];
        for name in numbers {
            let text = part("byte_info")[name].as_str().unwrap();
            assert!(
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
                "{text}"
            );
        }
        for name in ["payload-progress-recv", "payload-progress-send"] {
            let text = part("byte_info")[name].as_str().unwrap();
            let (whole, rest) = text.split_once('.').unwrap();
            assert!(
                whole.parse::<u64>().is_ok() && rest.ends_with('%'),
                "{text}"
            );
        }
        let times = "created-ts now-ts usecs-to-checksum-recv usecs-to-checksum-send usecs-to-command usecs-to-first-byte-recv \
            usecs-to-first-byte-send usecs-to-last-byte-recv usecs-to-last-byte-send usecs-to-proxy-choice usecs-to-proxy-init \
            usecs-to-proxy-request usecs-to-proxy-response usecs-to-response usecs-to-socket-connect usecs-to-socket-create";
        for name in times.split_whitespace() {
            assert!(
                part("time_info")[name]
                    .as_str()
                    .unwrap()
                    .parse::<i64>()
                    .is_ok(),
                "{name}"
            );
        }
        for name in
            "error id name peername recvsize recvstate sendsize sendstate vertexid".split(' ')
        {
            assert!(part("stream_info")[name].is_string(), "{name}");
        }
        for name in "error fd local proxy remote state".split(' ') {
            assert!(part("transport_info")[name].is_string(), "{name}");
        }
        for name in ["is_complete", "is_error", "is_success"] {
            assert!(stream[name].is_boolean(), "{name}");
        }
        assert!(
            stream["unix_ts_start"].as_f64().unwrap() <= stream["unix_ts_end"].as_f64().unwrap()
        );
    }

    #[test]
    fn a_document_has_all_that_its_schema_asks_for() {
        let mut broken = transfer("get", 2, 1);
        broken.error = Some(TransferError {
            kind: "TIMEOUT".into(),
            why: "silence".into(),
        });
        broken.phases.last_byte = None;
        let trial = trial(vec![bulk("get", 2_000_000)]);
        let samples = samples(&trial, &report(vec![transfer("get", 1, 1), broken]));
        let document = analysis(&samples);
        assert_eq!(
            (&document["type"], &document["version"]),
            (&json!("onionperf"), &json!("4.0"))
        );
        let client = &document["data"]["client"];
        assert!(client["measurement_ip"].is_string());
        assert!(client["tor"]["circuits"].is_object() && client["tor"]["streams"].is_object());
        let streams = client["tgen"]["streams"].as_object().unwrap();
        assert_eq!(streams.len(), 2);
        streams.values().for_each(check);
        let [good, bad] = streams.values().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!(
            good["elapsed_seconds"]["payload_progress_recv"]["1.0"],
            json!(2.0)
        );
        assert_eq!(
            good["elapsed_seconds"]["payload_bytes_recv"]["51200"],
            json!(0.15)
        );
        assert_eq!(
            (&bad["is_error"], &bad["elapsed_seconds"]),
            (&json!(true), &Value::Null)
        );
        assert_eq!(bad["time_info"]["usecs-to-last-byte-recv"], json!("-1"));
    }

    #[test]
    fn a_sum_of_connections_is_no_stream() {
        let trial = trial(vec![bulk("get", 2_000_000)]);
        let samples = samples(&trial, &report(vec![transfer("get", 1, 0)]));
        assert_eq!(analysis(&samples)["data"], json!({}));
    }

    #[test]
    fn a_host_becomes_a_nickname_that_is_allowed() {
        assert_eq!(nickname("client_2.x"), "client-2-x");
        assert_eq!(nickname(""), "client");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(Utc::at(0.0).shortly(), "1970-01-01 00:00 UTC");
        assert_eq!(Utc::at(951_782_400.0).shortly(), "2000-02-29 00:00 UTC");
        let now = Utc::at(1_795_255_380.25);
        assert_eq!(now.precisely(), "2026-11-21 10:03:00.250000");
    }

    #[test]
    fn what_is_no_date_is_the_first_or_the_last_one() {
        assert_eq!(Utc::at(f64::NAN).shortly(), "1970-01-01 00:00 UTC");
        assert_eq!(Utc::at(f64::INFINITY).shortly(), "9999-12-31 23:59 UTC");
    }
}
