use std::collections::BTreeMap;

use super::*;
use crate::{
    experiments::{
        scenario::{Finding, Gate},
        trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
    },
    results::Metric,
};

fn case() -> BTreeMap<String, String> {
    BTreeMap::from([("hops".to_owned(), "2".to_owned())])
}

fn campaign() -> Campaign {
    Campaign {
        scenario: "smoke".into(),
        summary: "a minute".into(),
        source: "name = \"smoke\"".into(),
        seed: u64::MAX,
        repetitions: 3,
        baseline: Some("native".into()),
        fingerprints: BTreeMap::from([("native".into(), "ab".into())]),
        planned: 6,
        subjects: vec!["native".into(), "hoplite".into()],
        families: BTreeMap::from([("hoplite-2".into(), "hoplite-{hops}".into())]),
        cases: vec![case()],
        began: 1.5,
        binaries: vec![Binary {
            name: "hoplite".into(),
            sha256: "00".into(),
            version: "0.1".into(),
        }],
        gate: Gate {
            late_us: 750.5,
            attempts: 3,
            ..Gate::default()
        },
        findings: vec![Finding {
            text: "13 %".into(),
            metric: Some("ack_share".into()),
            case: case(),
            subject: Some("hoplite".into()),
            value: Some(0.13),
            relative_to_case: case(),
            statistic: Some("p95".into()),
            goal: true,
            ..Finding::default()
        }],
    }
}

fn attempt(run: &str, number: u32, verdict: Verdict) -> Attempt {
    Attempt {
        run: run.to_owned(),
        number,
        verdict,
        why: String::new(),
        log: String::new(),
        set_aside: false,
        machine: "m".into(),
        began: f64::from(number),
        ready_after: 0.5,
        took: 2.0,
        health: EmulatorHealth {
            late_us_p99: 80.0,
            released: 12,
            load: [0.5, 0.25],
            cpu_pressure: Some(0.125),
            late_share: Some(0.25),
            stood_s: 0.5,
            leapt_s: 1.5,
            ..EmulatorHealth::default()
        },
    }
}

fn finished(repetition: u32, number: u32, verdict: Verdict) -> Finished {
    let key = Key {
        scenario: "smoke".into(),
        case: case(),
        subject: "hoplite".into(),
        repetition,
    };
    let metric = |workload: Option<&str>, value| Metric {
        transfer: workload.map(|_| 1),
        workload: workload.map(str::to_owned),
        name: "ttfb_s".into(),
        value,
    };
    Finished {
        attempt: attempt(&key.id(), number, verdict),
        run: Run {
            id: key.id(),
            key,
            place: repetition.into(),
            seed: 7,
            verdict,
            attempt: number,
        },
        metrics: vec![metric(Some("download"), 0.1), metric(None, 0.2)],
        processes: vec![ProcessUse {
            name: "relay1".into(),
            host: "relay1".into(),
            cpu_s: 0.1,
            life_cpu_s: 0.2,
            peak_memory: 4096,
        }],
        links: vec![LinkCount {
            name: "a-b>".into(),
            packets: 9,
            drops: BTreeMap::from([("queue".into(), 2)]),
            ..LinkCount::default()
        }],
    }
}

#[test]
fn what_goes_in_comes_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::write(directory.path()).unwrap();
    assert_eq!(store.campaign().unwrap(), None);
    store.put_campaign(&campaign()).unwrap();
    let one = finished(1, 2, Verdict::Ok);
    let before = attempt(&one.run.id, 1, Verdict::Invalid);
    store.put_attempt(&before).unwrap();
    store.finish(&one).unwrap();
    let store = Store::read(directory.path()).unwrap();
    assert_eq!(store.campaign().unwrap(), Some(campaign()));
    assert_eq!(store.finished().unwrap(), [(one, vec![before])]);
}

#[test]
fn a_repetition_is_there_once_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::write(directory.path()).unwrap();
    store.put_campaign(&campaign()).unwrap();
    store.finish(&finished(1, 1, Verdict::Ok)).unwrap();
    // The same repetition again: refused, and not even its attempt is left behind.
    assert!(store.finish(&finished(1, 2, Verdict::Ok)).is_err());
    assert_eq!(store.attempts().unwrap().len(), 1);
    assert_eq!(store.metrics().unwrap().len(), 2);
}

#[test]
fn figures_that_are_not_finite_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::write(directory.path()).unwrap();
    store.put_campaign(&campaign()).unwrap();
    let mut one = finished(1, 1, Verdict::Ok);
    one.metrics[0].value = f64::NAN;
    one.attempt.health.steal = f64::NAN;
    store.finish(&one).unwrap();
    assert_eq!(store.metrics().unwrap().len(), 1);
}

#[test]
fn repetitions_that_did_not_go_well_can_be_taken_back_and_their_attempts_stay_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::write(directory.path()).unwrap();
    store.put_campaign(&campaign()).unwrap();
    store.finish(&finished(1, 1, Verdict::Ok)).unwrap();
    store.finish(&finished(2, 1, Verdict::Failed)).unwrap();
    store.finish(&finished(3, 1, Verdict::Invalid)).unwrap();
    assert_eq!(store.take_back().unwrap(), 2);
    assert_eq!(store.runs().unwrap().len(), 1);
    assert_eq!(store.links().unwrap().len(), 1);
    let aside: Vec<bool> = store
        .attempts()
        .unwrap()
        .iter()
        .map(|a| a.set_aside)
        .collect();
    assert_eq!(aside, [false, true, true]);
}

#[test]
fn a_store_of_the_first_version_is_read_and_does_not_know_what_was_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::write(directory.path()).unwrap();
    store.put_campaign(&campaign()).unwrap();
    store.finish(&finished(1, 1, Verdict::Ok)).unwrap();
    let older = "ALTER TABLE attempt DROP COLUMN cpu_pressure; ALTER TABLE finding DROP COLUMN relative_to_case;
        ALTER TABLE finding DROP COLUMN statistic; ALTER TABLE finding DROP COLUMN goal;
        ALTER TABLE link RENAME COLUMN bytes TO octets; ALTER TABLE attempt DROP COLUMN late_share;
        ALTER TABLE attempt DROP COLUMN stood_s; ALTER TABLE attempt DROP COLUMN leapt_s;
        ALTER TABLE campaign DROP COLUMN families; DELETE FROM gate WHERE name IN ('late_share', 'frozen');
        UPDATE gate SET name = 'late_us_p99' WHERE name = 'late_us'; PRAGMA user_version = 1";
    store.connection.execute_batch(older).unwrap();
    drop(store);
    for open in [Store::read, Store::write, Store::read] {
        let store = open(directory.path()).unwrap();
        let mut campaign = store.campaign().unwrap().unwrap();
        let finding = campaign.findings.remove(0);
        assert_eq!((finding.statistic, finding.goal), (None, false));
        // What was its 99th percentile is one packet in a hundred.
        assert_eq!(
            (campaign.gate.late_us, campaign.gate.late_share),
            (750.5, 0.01)
        );
        assert_eq!(campaign.families.len(), 0);
        let attempts = store.attempts().unwrap();
        assert_eq!(attempts.len(), 1);
        let health = &attempts[0].health;
        assert_eq!((health.cpu_pressure, health.late_share), (None, None));
        assert_eq!((health.stood_s, health.leapt_s), (0.0, 0.0));
    }
}

#[test]
fn a_store_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::write(directory.path()).unwrap();
    store
        .connection
        .pragma_update(None, "user_version", 9)
        .unwrap();
    drop(store);
    let refusal = Store::write(directory.path()).unwrap_err().to_string();
    assert!(refusal.contains("version 9"), "{refusal}");
}

#[test]
fn a_directory_without_results_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = Store::read(directory.path()).unwrap_err().to_string();
    assert!(refusal.contains("there are no results"), "{refusal}");
    assert!(!directory.path().join(FILE).exists());
}
