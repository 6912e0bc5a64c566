//! Samples as CSV: with the columns of OnionPerf's own export, and with those of paper 000's three data sets. `report` writes them.

use std::collections::BTreeMap;

use super::{
    Sample,
    date::Utc,
    sample::{Whole, wholes},
};
use crate::workload::Transfer;

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
    sample.transfer.connection != 0 && !sample.kind.starts_with("udp-")
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
pub fn stream_id(sample: &Sample) -> String {
    let transfer = &sample.transfer;
    format!(
        "{}:{}:{}:{}",
        sample.run, transfer.workload, transfer.number, transfer.connection
    )
}

/// Octets of payload asked for, or moved if the clock decided.
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
pub fn is_onion(transfer: &Transfer) -> bool {
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

/// Microseconds in seconds.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
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
    /// Fetches over HTTP.
    pub browsing: String,
}

/// The lines of one repetition; `place` stands for the paper's location.
#[must_use]
pub fn paper_000(samples: &[Sample], place: &str) -> Paper000 {
    let mut lines = Paper000::default();
    let Some(first) = samples.first() else {
        return lines;
    };
    let subject = first.key.subject.clone();
    for sample in samples.iter().filter(|sample| sample.kind == "http") {
        lines.browsing += &fetch(sample, &subject, place);
    }
    let kinds: BTreeMap<&str, &str> = samples
        .iter()
        .map(|sample| (sample.transfer.workload.as_str(), sample.kind.as_str()))
        .collect();
    let transfers: Vec<Transfer> = samples
        .iter()
        .map(|sample| sample.transfer.clone())
        .collect();
    let (tests, bulks): (Vec<Whole>, Vec<Whole>) = wholes(&transfers)
        .into_iter()
        .filter(|whole| !whole.failed)
        .partition(|whole| is_test(whole, &transfers));
    for whole in bulks {
        if kinds.get(whole.workload.as_str()) == Some(&"download") {
            let rate = told(rate(&whole));
            lines.bulk += &line(&[subject.clone(), place.to_owned(), rate]);
        }
    }
    lines.speed_test = speed_test(first, &tests, &kinds, place);
    lines
}

fn is_test(whole: &Whole, transfers: &[Transfer]) -> bool {
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

/// Mbit/s, over the payload's time if it was the clock that ended it.
fn rate(whole: &Whole) -> Option<f64> {
    let from = if whole.asked == [0, 0] {
        whole.first_byte?
    } else {
        0
    };
    let time = seconds(whole.last_byte?.checked_sub(from)?);
    (time > 0.0).then(|| whole.octets() as f64 * 8.0 / time / 1e6)
}

/// One line for each number that a test of the repetition has.
fn speed_test(
    first: &Sample,
    tests: &[Whole],
    kinds: &BTreeMap<&str, &str>,
    place: &str,
) -> String {
    let mut numbers: BTreeMap<u32, [Option<f64>; 2]> = BTreeMap::new();
    for whole in tests {
        let side = match kinds.get(whole.workload.as_str()) {
            Some(&"download") => 0,
            Some(&"upload") => 1,
            _ => continue,
        };
        let rates = numbers.entry(whole.number).or_default();
        if let Some(slot) = rates.get_mut(side) {
            *slot = rate(whole);
        }
    }
    let server = first.transfer.server.map(|ip| ip.to_string());
    let began = Utc::at(first.transfer.began).precisely();
    let row = |[down, up]: [Option<f64>; 2]| {
        line(&[
            String::new(),
            told(down),
            told(up),
            first.key.subject.clone(),
            server.clone().unwrap_or_default(),
            first.key.scenario.clone(),
            place.to_owned(),
            "hoplite-lab".to_owned(),
            first.key.repetition.to_string(),
            began.clone(),
        ])
    };
    numbers.into_values().map(row).collect()
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
                .starts_with(",16,,native,10.77.0.2,example,hops 2,hoplite-lab,1,2027"),
            "{}",
            lines.speed_test
        );
        assert_eq!(
            lines.speed_test.matches(',').count(),
            SPEED_TEST.matches(',').count()
        );
    }

    #[test]
    fn an_onion_service_is_told_from_a_public_server() {
        let mut one = transfer("get", 1, 1);
        one.server = None;
        one.seen_as = Some([127, 0, 0, 1].into());
        assert!(is_onion(&one) && !is_onion(&transfer("get", 1, 1)));
    }
}
