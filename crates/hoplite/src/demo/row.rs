//! One line of the demo: how a transfer through so many hops went. JSON for scripts (the CLI contract), a table for people.

use std::time::Duration;

use serde::Serialize;

use crate::table::Table;

/// What was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Proto {
    Tcp,
    Udp,
}

/// The figures of a transfer that worked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    ttfb_ms: f64,
    goodput_bps: f64,
    /// Client and relays together.
    cpu_s_per_gb: f64,
}

/// One transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    hops: u8,
    proto: Proto,
    ok: bool,
    #[serde(flatten)]
    outcome: Option<Outcome>,
    /// The overlay cannot carry it, and said so: what it should do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Outcome {
    /// From what was measured.
    pub(super) fn new(first: Duration, octets: u64, time: Duration, cpu: &[(String, f64)]) -> Self {
        let spent: f64 = cpu.iter().map(|(_, spent)| spent).sum();
        let octets = octets as f64;
        Self {
            ttfb_ms: rounded(first.as_secs_f64() * 1e3),
            goodput_bps: (octets * 8.0 / time.as_secs_f64()).round(),
            cpu_s_per_gb: rounded(spent / (octets / 1e9)),
        }
    }
}

impl Row {
    /// A transfer that worked or did not.
    pub(super) fn new(hops: u8, proto: Proto, outcome: Result<Outcome, String>) -> Self {
        let ok = outcome.is_ok();
        let (outcome, error) = match outcome {
            Ok(outcome) => (Some(outcome), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            hops,
            proto,
            ok,
            outcome,
            refused: false,
            error,
        }
    }

    /// A transfer that was refused at once, as it should be.
    pub(super) fn refused(hops: u8, proto: Proto) -> Self {
        Self {
            refused: true,
            ok: true,
            ..Self::new(hops, proto, Err("refused: circuits carry TCP".into()))
        }
    }

    /// Whether it worked.
    pub(super) fn ok(&self) -> bool {
        self.ok
    }

    fn cells(&self) -> Vec<String> {
        let proto = match self.proto {
            Proto::Tcp => "tcp download",
            Proto::Udp => "udp echo",
        };
        let mut cells = vec![self.hops.to_string(), proto.to_owned()];
        match &self.outcome {
            Some(outcome) => cells.extend([
                format!("{:.2}", outcome.ttfb_ms),
                format!("{:.2}", outcome.goodput_bps / 1e9),
                format!("{:.2}", outcome.cpu_s_per_gb),
                "ok".to_owned(),
            ]),
            None => {
                cells.extend(std::iter::repeat_n("-".to_owned(), 3));
                cells.push(self.error.clone().unwrap_or_default());
            }
        }
        cells
    }
}

/// What people read.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&["hops", "what", "first octet ms", "Gbit/s", "CPU s/GB", ""]);
    rows.iter().for_each(|row| table.row(row.cells()));
    let note = "CPU: client and relays together, the load generator left out; warm path, loopback.";
    format!("{}\n{note}", table.render())
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_have_the_keys_of_the_contract() {
        let cpu = [("client".to_owned(), 1.0), ("relay1".to_owned(), 0.5)];
        let outcome = Outcome::new(
            Duration::from_millis(2),
            500_000_000,
            Duration::from_secs(2),
            &cpu,
        );
        let line = serde_json::to_value(Row::new(2, Proto::Tcp, Ok(outcome))).expect("JSON");
        let expected = serde_json::json!({"hops": 2, "proto": "tcp", "ok": true, "ttfb_ms": 2.0, "goodput_bps": 2e9, "cpu_s_per_gb": 3.0});
        assert_eq!(line, expected);
    }

    #[test]
    fn what_is_refused_as_it_should_be_has_no_figures_and_is_no_failure() {
        let row = Row::refused(3, Proto::Udp);
        let line = serde_json::to_value(&row).expect("JSON");
        assert!(row.ok() && line["refused"] == true && line.get("ttfb_ms").is_none());
        assert!(table(&[row]).contains("refused: circuits carry TCP"));
    }

    #[test]
    fn a_failed_transfer_says_why() {
        let row = Row::new(1, Proto::Udp, Err("no datagram came back".into()));
        let text = table(std::slice::from_ref(&row));
        assert!(
            !row.ok() && text.contains("no datagram came back"),
            "{text}"
        );
    }
}
