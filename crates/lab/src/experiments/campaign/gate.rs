//! The validity gate: whether an attempt may be believed. Those that may not are repeated with the same seed.

use std::collections::BTreeMap;

use crate::{
    experiments::{
        scenario::Gate,
        trial::{EmulatorHealth, Outcome, Report},
        workload::{self, TransferError},
    },
    results::{
        sample::{WholeTransfer, whole_transfers},
        store::Verdict,
    },
};

/// What a user can do about a late emulator beside using another machine.
const NO_PRIORITY: &str =
    "the emulator had no real-time priority: `hoplite-lab doctor` tells how to allow it";

/// What is thought of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) verdict: Verdict,
    /// Empty if it is ok.
    pub(crate) why: String,
    /// The end of the guilty process's log, if it failed.
    pub(crate) log: String,
}

impl Validity {
    /// It has no figures.
    pub(crate) fn failed(doing: &str, why: &str, log: &str) -> Self {
        Self {
            verdict: Verdict::Failed,
            why: format!("{doing}: {why}"),
            log: log.to_owned(),
        }
    }
}

/// Judges a report of these workloads.
pub(crate) fn judge(report: &Report, workloads: &[workload::Plan], gate: &Gate) -> Validity {
    if let Outcome::Failed { doing, why, log } = &report.outcome {
        return Validity::failed(doing, why, log);
    }
    let wholes = whole_transfers(&report.transfers);
    let mut needed = workloads.iter().filter(|plan| !plan.may_fail);
    if let Some((doing, why)) = needed.find_map(|plan| fruitless(plan, report, &wholes)) {
        return Validity::failed(&doing, &why, "");
    }
    let why = reasons(&report.emulator, gate).join("; ");
    let verdict = if why.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Invalid
    };
    Validity {
        verdict,
        why,
        log: String::new(),
    }
}

/// What was being done and why it came to nothing, if no transfer of a workload succeeded. One whose transfers failed in part has figures, and
/// the share of those that failed is one of them.
fn fruitless(
    plan: &workload::Plan,
    report: &Report,
    wholes: &[WholeTransfer],
) -> Option<(String, String)> {
    let own = || wholes.iter().filter(|whole| whole.workload == plan.name);
    let (count, fruitless) = (own().count(), own().all(|whole| whole.failed));
    let error = most_frequent(plan, report).filter(|_| fruitless)?;
    let how_many = match count {
        1 => "its only transfer".to_owned(),
        count => format!("all of its {count} transfers"),
    };
    let why = format!(
        "{how_many} failed, most often {}: {}",
        error.kind, error.why
    );
    Some((format!("running the workload {}", plan.name), why))
}

/// The first error of the kind that was there most often.
fn most_frequent<'a>(plan: &workload::Plan, report: &'a Report) -> Option<&'a TransferError> {
    let mut kinds: BTreeMap<&str, (usize, &TransferError)> = BTreeMap::new();
    let own = report
        .transfers
        .iter()
        .filter(|transfer| transfer.workload == plan.name);
    for error in own.filter_map(|transfer| transfer.error.as_ref()) {
        kinds.entry(&error.kind).or_insert((0, error)).0 += 1;
    }
    let most = kinds.into_values().max_by_key(|(count, _)| *count);
    most.map(|(_, error)| error)
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
    let lost = (health.own_drops > 0).then(|| {
        format!(
            "the emulator itself lost {} packets, or could not record them",
            health.own_drops
        )
    });
    let stolen = (health.steal > gate.steal).then(|| {
        format!(
            "the machine's host took {:.1} % of its time, at most {:.1} % allowed",
            health.steal * 100.0,
            gate.steal * 100.0
        )
    });
    let late = [
        over("99th percentile", health.late_us_p99, gate.late_us_p99),
        over("maximum", health.late_us_max, gate.late_us_max),
    ];
    let is_late = late.iter().any(Option::is_some);
    let priority = (is_late && !health.real_time).then(|| NO_PRIORITY.to_owned());
    let reasons = late
        .into_iter()
        .chain([priority, lost, stolen, starved(health, gate)]);
    reasons.flatten().collect()
}

/// Whether others than the emulator had to wait; a kernel that does not tell is not judged by it.
fn starved(health: &EmulatorHealth, gate: &Gate) -> Option<String> {
    let share = health.cpu_pressure.filter(|is| *is > gate.cpu_pressure)?;
    Some(format!(
        "programs waited for a processor in {:.1} % of the time, at most {:.1} % allowed",
        share * 100.0,
        gate.cpu_pressure * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::examples::{bulk, transfer};

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
            steal: 0.05,
            cpu_pressure: Some(Gate::default().cpu_pressure),
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
        assert_eq!(validity.why, "");
    }

    #[test]
    fn every_reason_not_to_believe_an_attempt_is_named() {
        let health = EmulatorHealth {
            late_us_p99: 810.0,
            late_us_max: 5001.0,
            own_drops: 3,
            steal: 0.2,
            cpu_pressure: Some(0.98),
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
        for part in [
            "99th percentile 0.81 ms",
            "maximum 5.00 ms",
            "lost 3 packets",
            "took 20.0 %",
            "waited for a processor in 98.0 %",
        ] {
            assert!(validity.why.contains(part), "{}", validity.why);
        }
    }

    #[test]
    fn a_late_emulator_without_real_time_priority_is_told_with_what_helps() {
        let why = |real_time| {
            let health = EmulatorHealth {
                late_us_max: 9000.0,
                real_time,
                ..EmulatorHealth::default()
            };
            judge(&report(health), &[], &Gate::default()).why
        };
        assert!(why(false).contains("no real-time priority: `hoplite-lab doctor`"));
        assert!(!why(true).contains("priority"));
    }

    #[test]
    fn a_lateness_that_is_no_number_is_not_believed() {
        let health = EmulatorHealth {
            late_us_p99: f64::NAN,
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
    }

    /// A report in which the transfers of `download` ended so; `None` went well.
    fn ended(errors: &[Option<&str>]) -> Report {
        let mut report = report(EmulatorHealth::default());
        let numbered = errors.iter().zip(1..);
        report.transfers = numbered
            .map(|(error, number)| {
                let mut transfer = transfer("download", number, 0);
                transfer.error = error.map(|kind| TransferError {
                    kind: kind.into(),
                    why: format!("{kind} in words"),
                });
                transfer
            })
            .collect();
        report
    }

    #[test]
    fn a_workload_without_a_transfer_that_succeeded_fails_the_attempt_and_says_how() {
        let report = ended(&[Some("CLOSED"), Some("STALL"), Some("STALL")]);
        let plans = [bulk("other", 1), bulk("download", 1)];
        let validity = judge(&report, &plans, &Gate::default());
        assert_eq!(validity.verdict, Verdict::Failed);
        assert_eq!(
            validity.why,
            "running the workload download: all of its 3 transfers failed, most often STALL: STALL in words"
        );
        let only = judge(&ended(&[Some("TLS")]), &plans, &Gate::default());
        assert!(
            only.why.contains("its only transfer failed"),
            "{}",
            only.why
        );
    }

    #[test]
    fn a_workload_of_which_some_transfers_failed_is_data() {
        let report = ended(&[Some("STALL"), None, Some("STALL")]);
        let validity = judge(&report, &[bulk("download", 1)], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
    }

    #[test]
    fn a_workload_that_may_fail_may_fail_altogether() {
        let mut plan = bulk("download", 1);
        plan.may_fail = true;
        let validity = judge(&ended(&[Some("STALL")]), &[plan], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
    }
}
