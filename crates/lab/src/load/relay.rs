//! What a relay's own metrics say of a load: processor time, memory, and which limit it turned somebody away by.

use std::{collections::BTreeMap, time::Duration};

use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_wire::Target;
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::errors::{Complaint, Failure};

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that is read of its answer, in bytes.
const LARGEST: u64 = 4 << 20;
const PREFIX: &str = "hoplite_relay_";

/// Where a relay's metrics are.
pub(super) struct Exporter {
    at: Target,
    path: String,
}

/// What they say at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    cpu: f64,
    memory: f64,
    refused: BTreeMap<String, f64>,
}

/// What a load cost the relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Processor seconds for each GB of goodput, if there was any.
    pub(super) cpu_s_per_gb: Option<f64>,
    /// Processor milliseconds of each client in a second.
    pub(super) cpu_ms_per_client_s: f64,
    /// Resident memory before and at the end, in bytes.
    pub(super) memory: [f64; 2],
    /// Whom it turned away, by limit or cause.
    pub(super) refused: BTreeMap<String, f64>,
}

impl Exporter {
    /// Reads `http://HOST:PORT[/metrics]`.
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let rest = url.strip_prefix("http://");
        let parsed = rest.and_then(|rest| {
            let (at, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
            let path = if path.is_empty() { "metrics" } else { path };
            let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
            Some((at.parse().ok().filter(|_| is_plain)?, format!("/{path}")))
        });
        let (at, path) = parsed.ok_or_else(|| {
            let why = format!("{url:?} is no URL of a relay's metrics");
            let remedy = "give it as http://127.0.0.1:9090/metrics";
            Failure::Wrong(vec![Complaint::new("reading --metrics", why, remedy)])
        })?;
        Ok(Self { at, path })
    }

    /// Asks the relay.
    pub(super) async fn read(&self) -> Result<Reading, Failure> {
        let failed = |why: String| {
            let doing = format!("reading the relay's metrics at {}", self.at);
            let remedy = "set `[metrics] listen` in the relay's file, and give --metrics what is reached from here (by an SSH tunnel, if it is elsewhere); what it is asked by is an address, `localhost`, or in its `[metrics] hosts`";
            Failure::new(doing, why, remedy)
        };
        let asked = timeout(PATIENCE, self.ask()).await;
        let text = asked.map_err(|_| failed("it did not answer".to_owned()))?;
        let reading = Reading::parse(&text.map_err(failed)?);
        reading.ok_or_else(|| failed("that is no relay's answer".to_owned()))
    }

    async fn ask(&self) -> Result<String, String> {
        let direct = Direct::new();
        let stream = direct.open_stream(&self.at, &Terms::default()).await;
        let mut stream = stream.map_err(|error| error.to_string())?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.path, self.at
        );
        let mut answer = Vec::new();
        let asked = async {
            stream.write_all(request.as_bytes()).await?;
            (&mut stream).take(LARGEST).read_to_end(&mut answer).await
        };
        asked.await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Reading {
    fn parse(text: &str) -> Option<Self> {
        let (mut cpu, mut memory, mut refused) = (None, None, BTreeMap::new());
        for line in text.lines().filter_map(|line| line.strip_prefix(PREFIX)) {
            let Some((name, value)) = line.trim_end().rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let (name, label) = name.split_once('{').unwrap_or((name, ""));
            let cause = label.split('"').nth(1).unwrap_or_default();
            match name {
                "process_cpu_seconds_total" => cpu = Some(value),
                "process_resident_memory_bytes" => memory = Some(value),
                "limit_refusals_total" => {
                    refused.insert(format!("limit {cause}"), value);
                }
                "connections_ended_total" => {
                    refused.insert(format!("ended: {cause}"), value);
                }
                _ => {}
            }
        }
        Some(Self {
            cpu: cpu?,
            memory: memory?,
            refused,
        })
    }
}

/// What passed between readings: memory and refusals since `before`, processor time from the beginning to the end.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn cost(
    before: &Option<Reading>,
    begin: &Option<Reading>,
    end: &Option<Reading>,
    bytes: u64,
    (clients, took): (u32, Duration),
) -> Option<Cost> {
    let (before, begin, end) = (before.as_ref()?, begin.as_ref()?, end.as_ref()?);
    let cpu = end.cpu - begin.cpu;
    let new = end.refused.iter().filter_map(|(cause, count)| {
        let more = count - before.refused.get(cause).unwrap_or(&0.0);
        (more > 0.0).then(|| (cause.clone(), more))
    });
    Some(Cost {
        cpu_s_per_gb: (bytes > 0).then(|| cpu * 1e9 / bytes as f64),
        cpu_ms_per_client_s: cpu * 1e3 / f64::from(clients) / took.as_secs_f64(),
        memory: [before.memory, end.memory],
        refused: new.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "HTTP/1.1 200 OK\r\n\r\n# TYPE x counter\nhoplite_relay_limit_refusals_total{limit=\"connections\"} 3\nhoplite_relay_process_cpu_seconds_total 1.5\nhoplite_relay_process_resident_memory_bytes 1000000\n# EOF\n";

    #[test]
    fn what_passed_between_two_readings_is_told_by_gigabyte_client_and_cause() {
        let before = Reading::parse(SAID);
        let after = SAID
            .replace("} 3", "} 5")
            .replace("1.5", "3.5")
            .replace("1000000", "3000000");
        let after = Reading::parse(&after);
        let took = Duration::from_secs(10);
        let cost = cost(&before, &before, &after, 500_000_000, (20, took)).unwrap();
        assert_eq!(cost.cpu_s_per_gb, Some(4.0));
        assert_eq!(cost.cpu_ms_per_client_s, 10.0);
        assert_eq!(cost.memory, [1e6, 3e6]);
        assert_eq!(cost.refused, [("limit connections".to_owned(), 2.0)].into());
        assert_eq!(Reading::parse("HTTP/1.1 404 Not Found\r\n\r\n"), None);
    }

    #[test]
    fn a_url_that_is_none_is_told() {
        assert_eq!(
            Exporter::parse("http://127.0.0.1:9090").unwrap().path,
            "/metrics"
        );
        for wrong in [
            "127.0.0.1:9090",
            "https://127.0.0.1:9090/",
            "http://nowhere/metrics",
            "http://a:1/x y",
        ] {
            assert!(Exporter::parse(wrong).is_err(), "{wrong}");
        }
    }
}
