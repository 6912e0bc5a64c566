//! What goes in. Each function is one transaction.

use rusqlite::{Transaction, params};

use super::{Attempt, Campaign, Finished, Machine, Run, Store};
use crate::{
    errors::Failure,
    results::Metric,
    scenario::{Finding, Gate},
    trial::{LinkCount, ProcessUse},
};

impl Store {
    /// Writes down what is asked for, instead of what was there: a campaign may gain repetitions. The caller has compared them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_campaign(&mut self, campaign: &Campaign) -> Result<(), Failure> {
        self.transaction("writing the campaign into", |transaction| {
            put_campaign(transaction, campaign)?;
            put_details(transaction, campaign)
        })
    }

    /// Writes down a machine, once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_machine(&mut self, machine: &Machine) -> Result<(), Failure> {
        self.transaction("writing the machine into", |transaction| {
            put_machine(transaction, machine)
        })
    }

    /// Writes down an attempt that decides nothing: another one follows.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_attempt(&mut self, attempt: &Attempt) -> Result<(), Failure> {
        self.transaction("writing an attempt into", |transaction| {
            put_attempt(transaction, attempt)
        })
    }

    /// Writes down a repetition with all that it leaves, its last attempt too. Its samples are in place already.
    ///
    /// # Errors
    /// When it cannot be written; then nothing of it is there.
    pub fn finish(&mut self, finished: &Finished) -> Result<(), Failure> {
        self.transaction("writing a repetition into", |transaction| {
            put_attempt(transaction, &finished.attempt)?;
            put_finished(transaction, finished)
        })
    }

    /// Writes down a repetition from another store, with all its attempts. Its samples are in place already.
    ///
    /// # Errors
    /// When it cannot be written; then nothing of it is there.
    pub fn adopt(&mut self, finished: &Finished, before: &[Attempt]) -> Result<(), Failure> {
        self.transaction("writing a repetition into", |transaction| {
            for attempt in before {
                put_attempt(transaction, attempt)?;
            }
            put_attempt(transaction, &finished.attempt)?;
            put_finished(transaction, finished)
        })
    }

    /// Takes back all repetitions that failed or stayed invalid, so that they are run again. Their attempts stay, set aside.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn take_back(&mut self) -> Result<usize, Failure> {
        self.transaction("taking repetitions back from", |transaction| {
            transaction.execute(
                "UPDATE attempt SET set_aside = 1 WHERE run IN (SELECT id FROM run WHERE verdict <> 'ok')",
                [],
            )?;
            transaction.execute("DELETE FROM run WHERE verdict <> 'ok'", [])
        })
    }

    /// Takes back one repetition, whatever its verdict.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forget(&mut self, run: &str) -> Result<(), Failure> {
        self.transaction("taking a repetition back from", |transaction| {
            transaction.execute("UPDATE attempt SET set_aside = 1 WHERE run = ?1", [run])?;
            transaction.execute("DELETE FROM run WHERE id = ?1", [run])?;
            Ok(())
        })
    }
}

fn put_campaign(transaction: &Transaction<'_>, campaign: &Campaign) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT OR REPLACE INTO campaign (only, scenario, summary, source, seed, repetitions, baseline, fingerprints, planned, subjects, cases, began)
         VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            campaign.scenario,
            campaign.summary,
            campaign.source,
            campaign.seed.to_string(),
            campaign.repetitions,
            campaign.baseline,
            json(&campaign.fingerprints),
            whole(campaign.planned),
            json(&campaign.subjects),
            json(&campaign.cases),
            campaign.began,
        ],
    )?;
    Ok(())
}

fn put_details(transaction: &Transaction<'_>, campaign: &Campaign) -> rusqlite::Result<()> {
    transaction.execute_batch("DELETE FROM binary; DELETE FROM gate; DELETE FROM finding;")?;
    for binary in &campaign.binaries {
        transaction.execute(
            "INSERT INTO binary (name, sha256, version) VALUES (?1, ?2, ?3)",
            params![binary.name, binary.sha256, binary.version],
        )?;
    }
    put_gate(transaction, &campaign.gate)?;
    for finding in &campaign.findings {
        put_finding(transaction, finding)?;
    }
    Ok(())
}

/// Each threshold under its name in the scenario, so that one more needs no other schema.
fn put_gate(transaction: &Transaction<'_>, gate: &Gate) -> rusqlite::Result<()> {
    let thresholds = serde_json::to_value(gate).unwrap_or_default();
    for (name, value) in thresholds.as_object().into_iter().flatten() {
        transaction.execute(
            "INSERT INTO gate (name, value) VALUES (?1, ?2)",
            params![name, value.as_f64()],
        )?;
    }
    Ok(())
}

fn put_finding(transaction: &Transaction<'_>, finding: &Finding) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO finding (text, metric, workload, parameters, subject, relative_to, value, low, high, unit,
           relative_to_case, statistic, goal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            finding.text,
            finding.metric,
            finding.workload,
            json(&finding.case),
            finding.subject,
            finding.relative_to,
            finding.value,
            finding.low,
            finding.high,
            finding.unit,
            json(&finding.relative_to_case),
            finding.statistic,
            finding.goal,
        ],
    )?;
    Ok(())
}

fn put_machine(transaction: &Transaction<'_>, machine: &Machine) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT OR IGNORE INTO machine (id, kernel, architecture, cpu, cores, memory, governor, real_time, sysctls)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            machine.id,
            machine.kernel,
            machine.architecture,
            machine.cpu,
            whole(machine.cores),
            whole(machine.memory),
            machine.governor,
            machine.real_time,
            json(&machine.sysctls),
        ],
    )?;
    Ok(())
}

fn put_attempt(transaction: &Transaction<'_>, attempt: &Attempt) -> rusqlite::Result<()> {
    let health = &attempt.health;
    transaction.execute(
        "INSERT INTO attempt (run, number, verdict, why, log, set_aside, machine, began, ready_after, took, late_us_p50, late_us_p99,
           late_us_max, released, own_drops, stalls, emulator_cpu_s, real_time, load_before, load_after, steal,
           cpu_pressure)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)",
        params![
            attempt.run,
            attempt.number,
            attempt.verdict.word(),
            attempt.why,
            attempt.log,
            attempt.set_aside,
            attempt.machine,
            real(attempt.began),
            real(attempt.ready_after),
            real(attempt.took),
            real(health.late_us_p50),
            real(health.late_us_p99),
            real(health.late_us_max),
            whole(health.released),
            whole(health.own_drops),
            whole(health.stalls),
            real(health.cpu_s),
            health.real_time,
            real(health.load[0]),
            real(health.load[1]),
            real(health.steal),
            health.cpu_pressure.filter(|share| share.is_finite()),
        ],
    )?;
    Ok(())
}

fn put_finished(transaction: &Transaction<'_>, finished: &Finished) -> rusqlite::Result<()> {
    let id = &finished.run.id;
    put_run(transaction, &finished.run)?;
    put_metrics(transaction, id, &finished.metrics)?;
    for process in &finished.processes {
        put_process(transaction, id, process)?;
    }
    for link in &finished.links {
        put_link(transaction, id, link)?;
    }
    Ok(())
}

fn put_run(transaction: &Transaction<'_>, run: &Run) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO run (id, parameters, subject, repetition, place, seed, verdict, attempt) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            run.id,
            json(&run.key.case),
            run.key.subject,
            run.key.repetition,
            whole(run.place),
            run.seed.to_string(),
            run.verdict.word(),
            run.attempt,
        ],
    )?;
    Ok(())
}

fn put_metrics(
    transaction: &Transaction<'_>,
    run: &str,
    metrics: &[Metric],
) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO metric (run, workload, transfer, name, value) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for metric in metrics.iter().filter(|metric| metric.value.is_finite()) {
        statement.execute(params![
            run,
            metric.workload,
            metric.transfer,
            metric.name,
            metric.value
        ])?;
    }
    Ok(())
}

fn put_process(
    transaction: &Transaction<'_>,
    run: &str,
    process: &ProcessUse,
) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO process (run, name, host, cpu_s, life_cpu_s, peak_memory) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    statement.execute(params![
        run,
        process.name,
        process.host,
        real(process.cpu_s),
        real(process.life_cpu_s),
        whole(process.peak_memory),
    ])?;
    Ok(())
}

fn put_link(transaction: &Transaction<'_>, run: &str, link: &LinkCount) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO link (run, name, packets, octets, drops, duplicated, corrupted, marked) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    statement.execute(params![
        run,
        link.name,
        whole(link.packets),
        whole(link.octets),
        json(&link.drops),
        whole(link.duplicated),
        whole(link.corrupted),
        whole(link.marked),
    ])?;
    Ok(())
}

/// SQLite has 63 bits; no count of ours comes near.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// SQLite takes NaN for NULL, which these columns refuse.
fn real(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Maps and lists of texts and numbers have no way to fail.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
