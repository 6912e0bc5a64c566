//! Samples as OnionPerf analysis JSON 4.0 (`schema/onionperf-4.0.json` of OnionPerf): a document is one data set, a client one of its sources.
//! `report` writes one for each case and subject, for `onionperf visualize --data FILE LABEL` and for scripts of the field.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    Sample,
    csv::{is_onion, is_stream, stream_id},
};
use crate::workload::{Phases, Transfer};

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
        .map(|(octets, at)| (octets.to_string(), json!(seconds(*at))))
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

/// Microseconds in seconds.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        results::sample::{
            examples::{bulk, report, transfer, trial},
            samples,
        },
        workload::TransferError,
    };

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
                !text.is_empty() && text.bytes().all(|octet| octet.is_ascii_digit()),
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
}
