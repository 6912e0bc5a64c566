//! A day of a monitor as OnionPerf's analysis JSON: the streams as campaigns export them, with the port that OnionPerf finds tor's streams by, and
//! `tor` with what the control port told.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{control::Told, days::Measured};
use crate::{
    experiments::trial::Key,
    results::{Sample, export},
};

/// The document of a day: `name` is its only source, `subject` stands in the samples' names.
pub(crate) fn document(name: &str, subject: &str, samples: &[Measured], told: &[Told]) -> Value {
    let all: Vec<Sample> = samples
        .iter()
        .map(|one| sample(name, subject, one))
        .collect();
    let mut document = export::analysis(&all);
    let Some(data) = document.get_mut("data").and_then(Value::as_object_mut) else {
        return document;
    };
    let ports = ports_of_tor(told);
    for source in data.values_mut() {
        let streams = source
            .pointer_mut("/tgen/streams")
            .and_then(Value::as_object_mut);
        for stream in streams.into_iter().flat_map(Map::values_mut) {
            tell_port(name, samples, &ports, stream);
        }
        if let Some(tor) = source.get_mut("tor") {
            *tor = of_tor(told);
        }
    }
    document
}

/// Where streams began that tor told of.
fn ports_of_tor(told: &[Told]) -> BTreeSet<u16> {
    let port = |one: &Told| match one {
        Told::Stream(stream) => stream.source.as_ref()?.rsplit_once(':')?.1.parse().ok(),
        Told::Circuit(_) => None,
    };
    told.iter().filter_map(port).collect()
}

/// Where a stream's connection began: OnionPerf looks for tor's stream of the same port, and ends with an error where there is none.
fn tell_port(name: &str, samples: &[Measured], ports: &BTreeSet<u16>, stream: &mut Value) {
    let number = stream.pointer("/stream_info/id").and_then(Value::as_str);
    let number = number.and_then(|number| number.parse::<u64>().ok());
    // Samples are in the order of their numbers, but where a clock was set back.
    let sample = samples.iter().find(|one| Some(one.number) == number);
    let port = sample
        .and_then(|sample| sample.local)
        .filter(|port| ports.contains(port));
    if let (Some(port), Some(local)) = (port, stream.pointer_mut("/transport_info/local")) {
        *local = json!(format!("{name}:127.0.0.1:{port}"));
    }
}

fn of_tor(told: &[Told]) -> Value {
    let (mut circuits, mut streams) = (Map::new(), Map::new());
    for one in told {
        match one {
            Told::Circuit(circuit) => {
                circuits.insert(circuit.circuit_id.to_string(), json!(circuit))
            }
            Told::Stream(stream) => streams.insert(stream.stream_id.to_string(), json!(stream)),
        };
    }
    json!({ "circuits": circuits, "streams": streams })
}

fn sample(name: &str, subject: &str, one: &Measured) -> Sample {
    Sample {
        run: "monitor".into(),
        key: Key {
            scenario: "monitor".into(),
            case: [].into(),
            subject: subject.into(),
            repetition: 1,
        },
        seed: 0,
        client: name.into(),
        target: "server".into(),
        kind: "download".into(),
        egress: String::new(),
        transfer: one.transfer.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        monitor::control::{Circuit, Stream},
        results::sample::examples::transfer,
    };

    pub(in crate::monitor) fn measured(number: u64) -> Measured {
        Measured {
            number,
            charged: 2_100_000,
            local: Some(40_000),
            transfer: transfer("2MB", u32::try_from(number).unwrap(), 1),
        }
    }

    #[test]
    fn a_stream_has_the_port_by_which_onionperf_finds_tors() {
        let stream = Stream {
            stream_id: 12,
            circuit_id: Some("5".into()),
            source: Some("127.0.0.1:40000".into()),
            ..Stream::default()
        };
        let circuit = Circuit {
            circuit_id: 5,
            ..Circuit::default()
        };
        let told = [Told::Stream(stream), Told::Circuit(circuit)];
        let document = document("wwan0", "tor", &[measured(1)], &told);
        let source = &document["data"]["wwan0"];
        let local = &source["tgen"]["streams"]["monitor:2MB:1:1"]["transport_info"]["local"];
        assert_eq!(local, "wwan0:127.0.0.1:40000");
        assert_eq!(source["tor"]["streams"]["12"]["circuit_id"], "5");
        assert_eq!(source["tor"]["circuits"]["5"]["circuit_id"], 5);
    }

    #[test]
    fn a_stream_that_tor_does_not_know_has_no_port() {
        let other = Stream {
            source: Some("127.0.0.1:40001".into()),
            ..Stream::default()
        };
        for told in [vec![], vec![Told::Stream(other)]] {
            let document = document("wwan0", "native", &[measured(1)], &told);
            let local = &document["data"]["wwan0"]["tgen"]["streams"]["monitor:2MB:1:1"]["transport_info"]
                ["local"];
            let local = local.as_str().unwrap();
            assert!(!local.contains(':'), "{local}");
        }
    }
}
