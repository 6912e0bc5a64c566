use std::{path::PathBuf, sync::Arc, time::Duration};

use serde_json::Value;

use super::*;
use crate::observe::{Hooks, tests::pair::Pair};

fn hooks(qlog: &Qlog) -> Hooks {
    Hooks {
        watch: Some(Arc::new(qlog.clone())),
        ..Hooks::default()
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The records of a JSON text sequence: each begins with RS and ends with a line feed (RFC 7464 §2.2).
fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
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
        let octets: u64 = sent
            .map(|event| event["data"]["raw"]["length"].as_u64().unwrap())
            .sum();
        assert_eq!(octets, pair.sent[end].iter().sum::<usize>() as u64);
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
    // Type and two octets of length.
    assert!(
        datagrams
            .iter()
            .all(|frame| frame["raw"]["length"] == 1003 && frame["raw"]["payload_length"] == 1000)
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
fn a_file_holds_no_octet_of_what_was_carried() {
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
    let encoded: String = secret.bytes().map(|octet| format!("{octet:02x}")).collect();
    for path in files(directory.path()) {
        let text = std::fs::read_to_string(&path).unwrap();
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
    let head = event::head(&begun, "client", "now");
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
    std::fs::remove_dir(&directory).unwrap();
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
    let kept = MOST_WAITING / 1024;
    for _ in 0..kept + 7 {
        file.append(time, event);
    }
    assert_eq!(file.take().len(), MOST_WAITING);
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
    assert_eq!(qlog.0.files().len(), 2);
    drop(pair);
    qlog.flush();
    assert_eq!(qlog.0.files().len(), 0);
    assert_eq!(files(directory.path()).len(), 2);
}
