//! The validity gate: whether an attempt may be believed. `conduct` repeats those that may not, with the same seed.

use crate::{
    results::store::Verdict,
    scenario::Gate,
    trial::{EmulatorHealth, Outcome, Report},
};

/// What is thought of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// Empty if it is ok.
    pub(crate) why: String,
    /// The end of the guilty process's log, if it failed.
    pub(crate) log: String,
}

impl Judgement {
    /// It has no figures.
    pub(crate) fn failed(doing: &str, why: &str, log: &str) -> Self {
        Self {
            verdict: Verdict::Failed,
            why: format!("{doing}: {why}"),
            log: log.to_owned(),
        }
    }
}

/// Judges a report.
pub(crate) fn judge(report: &Report, gate: &Gate) -> Judgement {
    if let Outcome::Failed { doing, why, log } = &report.outcome {
        return Judgement::failed(doing, why, log);
    }
    let why = reasons(&report.emulator, gate).join("; ");
    let verdict = if why.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Invalid
    };
    Judgement {
        verdict,
        why,
        log: String::new(),
    }
}

fn reasons(health: &EmulatorHealth, gate: &Gate) -> Vec<String> {
    let over = |what: &str, is: f64, limit: f64| {
        (is > limit || is.is_nan()).then(|| {
            format!(
                "packets left late: {what} {:.2} ms, at most {:.2} ms allowed",
                is / 1000.0,
                limit / 1000.0
            )
        })
    };
    let lost = (health.own_drops > 0)
        .then(|| format!("the emulator itself lost {} packets", health.own_drops));
    let stolen = (health.steal > gate.steal).then(|| {
        format!(
            "the machine's host took {:.1} % of its time, at most {:.1} % allowed",
            health.steal * 100.0,
            gate.steal * 100.0
        )
    });
    [
        over("99th percentile", health.late_us_p99, gate.late_us_p99),
        over("maximum", health.late_us_max, gate.late_us_max),
        lost,
        stolen,
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(emulator: EmulatorHealth) -> Report {
        Report {
            outcome: Outcome::Done,
            transfers: Vec::new(),
            processes: Vec::new(),
            links: Vec::new(),
            emulator,
            began: 0.0,
            ready_after: 0.0,
            took: 0.0,
        }
    }

    #[test]
    fn an_attempt_on_the_threshold_is_believed() {
        let health = EmulatorHealth {
            late_us_p99: 500.0,
            late_us_max: 5000.0,
            ..EmulatorHealth::default()
        };
        let judgement = judge(&report(health), &Gate::default());
        assert_eq!(judgement.verdict, Verdict::Ok);
        assert_eq!(judgement.why, "");
    }

    #[test]
    fn every_reason_not_to_believe_an_attempt_is_named() {
        let health = EmulatorHealth {
            late_us_p99: 810.0,
            late_us_max: 5001.0,
            own_drops: 3,
            steal: 0.2,
            ..EmulatorHealth::default()
        };
        let judgement = judge(&report(health), &Gate::default());
        assert_eq!(judgement.verdict, Verdict::Invalid);
        for part in [
            "99th percentile 0.81 ms",
            "maximum 5.00 ms",
            "lost 3 packets",
            "took 20.0 %",
        ] {
            assert!(judgement.why.contains(part), "{}", judgement.why);
        }
    }

    #[test]
    fn a_lateness_that_is_no_number_is_not_believed() {
        let health = EmulatorHealth {
            late_us_p99: f64::NAN,
            ..EmulatorHealth::default()
        };
        let judgement = judge(&report(health), &Gate::default());
        assert_eq!(judgement.verdict, Verdict::Invalid);
    }
}
