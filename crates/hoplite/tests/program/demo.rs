//! The demo as CI and a new user run it, with a small download.

use std::process::{Command, Stdio};

use serde_json::Value;

fn demo(overlay: &str, hops: &str) -> (Option<i32>, Vec<Value>) {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["demo", "--json", "--mib", "1", "--overlay", overlay])
        .args(["--hops", hops])
        .env_remove("HOPLITE_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    (output.status.code(), lines.collect())
}

fn all_work(hops: &[u8]) {
    let list: Vec<String> = hops.iter().map(u8::to_string).collect();
    let (code, lines) = demo("masque", &list.join(","));
    assert!(lines.iter().all(|line| line["ok"] == true), "{lines:?}");
    assert_eq!(code, Some(0));
    let expected = hops
        .iter()
        .flat_map(|hops| [(*hops, "tcp"), (*hops, "udp")]);
    let told = lines
        .iter()
        .map(|line| (line["hops"].clone(), line["proto"].clone()));
    assert!(
        told.eq(expected.map(|(hops, proto)| (hops.into(), proto.into()))),
        "{lines:?}"
    );
    for line in &lines {
        for key in ["ttfb_ms", "goodput_bps", "cpu_s_per_gb"] {
            assert!(
                line[key].as_f64().is_some_and(|value| value > 0.0),
                "{key}: {line}"
            );
        }
    }
}

#[test]
fn traffic_without_a_relay_arrives_and_is_accounted_for() {
    all_work(&[0]);
}

#[test]
fn traffic_through_one_to_three_relays_arrives_and_is_accounted_for() {
    all_work(&[1, 2, 3]);
}

#[test]
fn circuits_carry_the_download_and_refuse_the_datagrams() {
    let (code, lines) = demo("onion", "1,3");
    assert!(lines.iter().all(|line| line["ok"] == true), "{lines:?}");
    assert_eq!((code, lines.len()), (Some(0), 4));
    for line in &lines {
        let tcp = line["proto"] == "tcp";
        let measured = line["goodput_bps"].as_f64().is_some_and(|bps| bps > 0.0);
        assert_eq!((tcp, !tcp), (measured, line["refused"] == true), "{line}");
    }
}
