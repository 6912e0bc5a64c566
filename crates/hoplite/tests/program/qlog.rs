//! What `QLOGDIR` leaves behind: a file for each connection and end, whole when the process has ended.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    client::{relay, started, target, through_socks},
    common::Running,
};

/// The only file in a directory, and its records.
fn log(directory: &Path) -> (PathBuf, Vec<Value>) {
    let entries = fs::read_dir(directory).expect("there");
    let files: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let text = fs::read_to_string(&files[0]).expect("text");
    let records = text.split('\u{1e}').skip(1);
    let records = records.map(|record| serde_json::from_str(record).expect(record));
    (files[0].clone(), records.collect())
}

fn packets<'a>(log: &'a [Value], event: &'a str) -> impl Iterator<Item = &'a Value> {
    let of = move |record: &&Value| record["name"] == event;
    let data = |record: &Value| record["data"]["header"]["packet_type"] == "1RTT";
    log.iter().filter(of).filter(move |record| data(record))
}

#[test]
fn both_ends_of_a_hop_record_the_same_packets() {
    let directory = tempfile::tempdir().expect("directory");
    let [near, far] = ["client", "relay"].map(|name| directory.path().join("qlog").join(name));
    let mut relay = relay(directory.path(), Some(&far));
    fs::write(directory.path().join("client.token"), "secret").expect("written");
    let file = directory.path().join("client.toml");
    let mut client = Running::recorded("client", &file, Some(&near));
    client.line_with("QLOGDIR is set");
    let (mut client, socks, _) = started(client);
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
    for process in [&mut client, &mut relay] {
        process.signal(Signal::TERM);
        assert_eq!(process.wait_for_end().code(), Some(0));
    }
    let ((near_name, near), (far_name, far)) = (log(&near), log(&far));
    assert!(
        near_name.to_string_lossy().ends_with("-client-hop1.sqlog"),
        "{near_name:?}"
    );
    assert!(
        far_name.to_string_lossy().ends_with("-server-relay.sqlog"),
        "{far_name:?}"
    );
    let group = |log: &[Value]| log[0]["trace"]["common_fields"]["group_id"].clone();
    assert_eq!(group(&near), group(&far));
    // The last packets may be on their way when an end stops, and the very last leave after its records.
    let sent: Vec<_> = packets(&near, "quic:packet_sent")
        .map(|e| e["data"].clone())
        .collect();
    let received: Vec<_> = packets(&far, "quic:packet_received")
        .map(|e| e["data"].clone())
        .collect();
    let number = |packet: &Value| packet["header"]["packet_number"].as_u64();
    let last = sent.iter().map(number).max().expect("some");
    let known = |packet: &&Value| number(packet) <= last;
    let recorded: Vec<_> = received.iter().filter(known).collect();
    assert!(!recorded.is_empty());
    for packet in recorded {
        assert!(sent.contains(packet), "{packet} is not in {sent:#?}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(
        &file,
        "listen = [\"127.0.0.1:0\"]\n[[auth.token]]\ntoken = \"t\"\n",
    )
    .expect("written");
    let mut relay = Running::recorded("relay", &file, Some(&file.join("qlog")));
    let line = relay.line_with("recording packets into");
    assert!(line.contains("correct QLOGDIR, or unset it"), "{line}");
    assert_eq!(relay.wait_for_end().code(), Some(1));
}
