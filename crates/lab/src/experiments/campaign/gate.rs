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

    /// Its figures count nowhere.
    pub(crate) fn invalid(why: String) -> Self {
        Self {
            verdict: Verdict::Invalid,
            why,
            log: String::new(),
        }
    }
}

/// Judges a report of these workloads. What fails while the lab stands still says nothing of the subject: such an attempt is invalid.
pub(crate) fn judge(report: &Report, workloads: &[workload::Plan], gate: &Gate) -> Validity {
    let frozen = frozen(&report.emulator, gate);
    let failed = failure(report, workloads);
    if let (Some(failed), true) = (&failed, frozen.is_empty()) {
        return failed.clone();
    }
    let log = failed.as_ref().map(|failed| failed.log.clone());
    let failed = failed.map(|failed| failed.why);
    let reasons = frozen.into_iter().chain(reasons(&report.emulator, gate));
    let why = reasons.chain(failed).collect::<Vec<_>>().join("; ");
    let verdict = if why.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Invalid
    };
    Validity {
        verdict,
        why,
        log: log.unwrap_or_default(),
    }
}

/// How it failed, if it did.
fn failure(report: &Report, workloads: &[workload::Plan]) -> Option<Validity> {
    if let Outcome::Failed { doing, why, log } = &report.outcome {
        return Some(Validity::failed(doing, why, log));
    }
    let wholes = whole_transfers(&report.transfers);
    let mut needed = workloads.iter().filter(|plan| !plan.may_fail);
    let (doing, why) = needed.find_map(|plan| fruitless(plan, report, &wholes))?;
    Some(Validity::failed(&doing, &why, ""))
}

/// Whether the lab itself stood still, or its clock leapt.
fn frozen(health: &EmulatorHealth, gate: &Gate) -> Vec<String> {
    let beyond = |seconds: f64| seconds > gate.frozen || seconds.is_nan();
    let told = |what: &str, seconds: f64| {
        let allowed = gate.frozen;
        beyond(seconds).then(|| format!("{what} {seconds:.1} s, at most {allowed:.1} s allowed"))
    };
    let reasons = [
        told("the lab stood still for", health.stood_s),
        told("the machine's clock leapt by", health.leapt_s),
    ];
    reasons.into_iter().flatten().collect()
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
    let over = |is: f64, limit: f64| is > limit || is.is_nan();
    let share = health.late_share.filter(|is| over(*is, gate.late_share));
    let share = share.map(|is| {
        format!(
            "packets left late: {:.2} % by more than {:.2} ms, at most {:.2} % may",
            is * 100.0,
            gate.late_us / 1000.0,
            gate.late_share * 100.0
        )
    });
    let latest = over(health.late_us_max, gate.late_us_max).then(|| {
        format!(
            "a packet left {:.1} ms late, at most {:.1} ms allowed",
            health.late_us_max / 1000.0,
            gate.late_us_max / 1000.0
        )
    });
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
    let late = [share, latest];
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
            power: Vec::new(),
            worked: 0.0,
            began: 0.0,
            ready_after: 0.0,
            took: 0.0,
        }
    }

    #[test]
    fn an_attempt_on_the_threshold_is_believed() {
        let health = EmulatorHealth {
            late_share: Some(0.01),
            late_us_max: 100_000.0,
            stood_s: 1.0,
            leapt_s: 1.0,
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
            late_share: Some(0.015),
            late_us_max: 120_000.0,
            stood_s: 12.25,
            leapt_s: 3600.0,
            own_drops: 3,
            steal: 0.2,
            cpu_pressure: Some(0.98),
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
        for part in [
            "1.50 % by more than 0.50 ms, at most 1.00 % may",
            "a packet left 120.0 ms late, at most 100.0 ms",
            "the lab stood still for 12.2 s, at most 1.0 s",
            "the machine's clock leapt by 3600.0 s",
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
                late_us_max: 200_000.0,
                real_time,
                ..EmulatorHealth::default()
            };
            judge(&report(health), &[], &Gate::default()).why
        };
        assert!(why(false).contains("no real-time priority: `hoplite-lab doctor`"));
        assert!(!why(true).contains("priority"));
    }

    #[test]
    fn a_figure_that_is_no_number_is_not_believed() {
        let change: [fn(&mut EmulatorHealth); 3] = [
            |health| health.late_share = Some(f64::NAN),
            |health| health.late_us_max = f64::NAN,
            |health| health.stood_s = f64::NAN,
        ];
        for change in change {
            let mut health = EmulatorHealth::default();
            change(&mut health);
            let validity = judge(&report(health), &[], &Gate::default());
            assert_eq!(validity.verdict, Verdict::Invalid);
        }
    }

    /// 500,000 packets in four minutes; of a hundred one was 1.51 ms late, and one packet of all waited 20 ms.
    #[test]
    fn a_long_run_is_judged_by_the_share_of_its_late_packets_and_not_by_its_latest_one() {
        let health = EmulatorHealth {
            late_us_p99: 1510.0,
            late_us_max: 20_000.0,
            late_share: Some(0.0101),
            released: 500_000,
            ..EmulatorHealth::default()
        };
        let verdict = |gate: &Gate| judge(&report(health.clone()), &[], gate).verdict;
        let gate = Gate {
            late_us: 1500.0,
            late_share: 0.02,
            ..Gate::default()
        };
        assert_eq!(verdict(&gate), Verdict::Ok);
        assert_eq!(verdict(&Gate::default()), Verdict::Invalid);
    }

    #[test]
    fn what_failed_while_the_lab_stood_still_is_invalid_and_told_with_both_reasons() {
        let failed = |stood_s, leapt_s| {
            let mut report = report(EmulatorHealth {
                stood_s,
                leapt_s,
                ..EmulatorHealth::default()
            });
            report.outcome = Outcome::Failed {
                doing: "waiting for relay1".into(),
                why: "not ready after 30 s".into(),
                log: "the end of its log".into(),
            };
            judge(&report, &[], &Gate::default())
        };
        assert_eq!(failed(0.2, 0.2).verdict, Verdict::Failed);
        for (stood, leapt, first) in [
            (45.0, 0.0, "the lab stood still"),
            (0.0, 45.0, "the machine's clock"),
        ] {
            let validity = failed(stood, leapt);
            assert_eq!(validity.verdict, Verdict::Invalid);
            assert!(validity.why.starts_with(first), "{}", validity.why);
            assert!(
                validity
                    .why
                    .ends_with("; waiting for relay1: not ready after 30 s"),
                "{}",
                validity.why
            );
            assert_eq!(validity.log, "the end of its log");
        }
    }

    #[test]
    fn transfers_that_stalled_while_the_lab_stood_still_do_not_fail_the_attempt() {
        let mut report = ended(&[Some("STALL")]);
        report.emulator.stood_s = 130.0;
        let validity = judge(&report, &[bulk("download", 1)], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
        assert!(
            validity.why.contains("its only transfer failed"),
            "{}",
            validity.why
        );
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
