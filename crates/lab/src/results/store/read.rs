//! Reading the store, in the order in which it was written.

use rusqlite::{OptionalExtension, Row, types::Type};
use serde::de::DeserializeOwned;

use super::{Attempt, Binary, Campaign, Finished, Machine, Run, Store, Verdict, failure};
use crate::{
    errors::Failure,
    results::Metric,
    scenario::{Finding, Gate},
    trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
};

const ATTEMPT: &str = "SELECT run, number, verdict, why, log, set_aside, machine, began, ready_after, took, late_us_p50, late_us_p99, late_us_max,
    released, own_drops, stalls, emulator_cpu_s, real_time, load_before, load_after, steal, cpu_pressure FROM attempt";

impl Store {
    /// What was asked for; `None` if no run has come so far.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn campaign(&self) -> Result<Option<Campaign>, Failure> {
        let sql = "SELECT scenario, summary, source, seed, repetitions, baseline, fingerprints, planned, subjects, cases, began FROM campaign";
        let found = self.connection.query_row(sql, [], campaign).optional();
        let Some(mut campaign) = found.map_err(|error| failure(&self.path, "reading", &error))?
        else {
            return Ok(None);
        };
        campaign.binaries = self.all(
            "SELECT name, sha256, version FROM binary ORDER BY name",
            binary,
        )?;
        campaign.gate = self.gate()?;
        campaign.findings = self.all(
            "SELECT text, metric, workload, parameters, subject, relative_to, value, low, high, unit, relative_to_case, statistic, goal FROM finding ORDER BY rowid",
            finding,
        )?;
        Ok(Some(campaign))
    }

    /// The machines that attempts ran on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn machines(&self) -> Result<Vec<Machine>, Failure> {
        self.all(
            "SELECT id, kernel, architecture, cpu, cores, memory, governor, real_time, sysctls FROM machine ORDER BY rowid",
            machine,
        )
    }

    /// Every repetition that is over, in the campaign's order.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn runs(&self) -> Result<Vec<Run>, Failure> {
        self.all(
            "SELECT id, parameters, subject, repetition, place, seed, verdict, attempt, (SELECT scenario FROM campaign) FROM run ORDER BY place",
            run,
        )
    }

    /// Every attempt, also those of repetitions that are not over, in the order in which they began.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn attempts(&self) -> Result<Vec<Attempt>, Failure> {
        self.all(&format!("{ATTEMPT} ORDER BY began, rowid"), attempt)
    }

    /// The attempts at one repetition, in order.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn attempts_of(&self, run: &str) -> Result<Vec<Attempt>, Failure> {
        let read = || {
            let sql = format!("{ATTEMPT} WHERE run = ?1 ORDER BY number");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let rows = statement.query_map([run], attempt)?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|error| failure(&self.path, "reading", &error))
    }

    /// Every figure, with its run's id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn metrics(&self) -> Result<Vec<(String, Metric)>, Failure> {
        self.all(
            "SELECT run, workload, transfer, name, value FROM metric ORDER BY rowid",
            |row| {
                Ok((
                    row.get(0)?,
                    Metric {
                        workload: row.get(1)?,
                        transfer: row.get(2)?,
                        name: row.get(3)?,
                        value: row.get(4)?,
                    },
                ))
            },
        )
    }

    /// What every process used, with its run's id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn processes(&self) -> Result<Vec<(String, ProcessUse)>, Failure> {
        self.all(
            "SELECT run, name, host, cpu_s, life_cpu_s, peak_memory FROM process ORDER BY rowid",
            |row| {
                Ok((
                    row.get(0)?,
                    ProcessUse {
                        name: row.get(1)?,
                        host: row.get(2)?,
                        cpu_s: row.get(3)?,
                        life_cpu_s: row.get(4)?,
                        peak_memory: whole(row, 5)?,
                    },
                ))
            },
        )
    }

    /// What happened on every link, with its run's id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn links(&self) -> Result<Vec<(String, LinkCount)>, Failure> {
        self.all(
            "SELECT run, name, packets, octets, drops, duplicated, corrupted, marked FROM link ORDER BY rowid",
            |row| Ok((row.get(0)?, link(row)?)),
        )
    }

    /// All repetitions with all that they left, each with the attempts before the one that counts.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn finished(&self) -> Result<Vec<(Finished, Vec<Attempt>)>, Failure> {
        let mut attempts = by_run(self.attempts()?.into_iter().map(|a| (a.run.clone(), a)));
        let mut metrics = by_run(self.metrics()?);
        let mut processes = by_run(self.processes()?);
        let mut links = by_run(self.links()?);
        let mut all = Vec::new();
        for run in self.runs()? {
            let (mut last, before): (Vec<_>, Vec<_>) = attempts
                .remove(&run.id)
                .unwrap_or_default()
                .into_iter()
                .partition(|attempt| attempt.number == run.attempt);
            let Some(attempt) = last.pop() else {
                continue;
            };
            let finished = Finished {
                metrics: metrics.remove(&run.id).unwrap_or_default(),
                processes: processes.remove(&run.id).unwrap_or_default(),
                links: links.remove(&run.id).unwrap_or_default(),
                run,
                attempt,
            };
            all.push((finished, before));
        }
        Ok(all)
    }

    /// A threshold that the store does not know (it is older than that) has its default.
    fn gate(&self) -> Result<Gate, Failure> {
        let mut thresholds = serde_json::to_value(Gate::default()).unwrap_or_default();
        let stored = self.all("SELECT name, value FROM gate", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, f64>(1)?))
        })?;
        for (name, value) in stored {
            if let Some(threshold) = thresholds.get_mut(&name) {
                *threshold = number(threshold, value);
            }
        }
        Ok(serde_json::from_value(thresholds).unwrap_or_default())
    }

    fn all<T>(
        &self,
        sql: &str,
        row: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Failure> {
        let read = || {
            let mut statement = self.connection.prepare(sql)?;
            let rows = statement.query_map([], &row)?;
            rows.collect::<rusqlite::Result<Vec<T>>>()
        };
        read().map_err(|error| failure(&self.path, "reading", &error))
    }
}

fn by_run<T>(
    rows: impl IntoIterator<Item = (String, T)>,
) -> std::collections::HashMap<String, Vec<T>> {
    let mut map = std::collections::HashMap::<_, Vec<T>>::new();
    for (run, row) in rows {
        map.entry(run).or_default().push(row);
    }
    map
}

fn campaign(row: &Row<'_>) -> rusqlite::Result<Campaign> {
    Ok(Campaign {
        scenario: row.get(0)?,
        summary: row.get(1)?,
        source: row.get(2)?,
        seed: parsed(row, 3)?,
        repetitions: row.get(4)?,
        baseline: row.get(5)?,
        fingerprints: json(row, 6)?,
        planned: whole(row, 7)?,
        subjects: json(row, 8)?,
        cases: json(row, 9)?,
        began: row.get(10)?,
        ..Campaign::default()
    })
}

fn binary(row: &Row<'_>) -> rusqlite::Result<Binary> {
    Ok(Binary {
        name: row.get(0)?,
        sha256: row.get(1)?,
        version: row.get(2)?,
    })
}

fn finding(row: &Row<'_>) -> rusqlite::Result<Finding> {
    Ok(Finding {
        text: row.get(0)?,
        metric: row.get(1)?,
        workload: row.get(2)?,
        case: json(row, 3)?,
        subject: row.get(4)?,
        relative_to: row.get(5)?,
        value: row.get(6)?,
        low: row.get(7)?,
        high: row.get(8)?,
        unit: row.get(9)?,
        relative_to_case: json(row, 10)?,
        statistic: row.get(11)?,
        goal: row.get(12)?,
    })
}

fn machine(row: &Row<'_>) -> rusqlite::Result<Machine> {
    Ok(Machine {
        id: row.get(0)?,
        kernel: row.get(1)?,
        architecture: row.get(2)?,
        cpu: row.get(3)?,
        cores: whole(row, 4)?,
        memory: whole(row, 5)?,
        governor: row.get(6)?,
        real_time: row.get(7)?,
        sysctls: json(row, 8)?,
    })
}

fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    Ok(Run {
        id: row.get(0)?,
        key: Key {
            scenario: row.get(8)?,
            case: json(row, 1)?,
            subject: row.get(2)?,
            repetition: row.get(3)?,
        },
        place: whole(row, 4)?,
        seed: parsed(row, 5)?,
        verdict: parsed(row, 6)?,
        attempt: row.get(7)?,
    })
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        run: row.get(0)?,
        number: row.get(1)?,
        verdict: parsed::<Verdict>(row, 2)?,
        why: row.get(3)?,
        log: row.get(4)?,
        set_aside: row.get(5)?,
        machine: row.get(6)?,
        began: row.get(7)?,
        ready_after: row.get(8)?,
        took: row.get(9)?,
        health: health(row)?,
    })
}

fn health(row: &Row<'_>) -> rusqlite::Result<EmulatorHealth> {
    Ok(EmulatorHealth {
        late_us_p50: row.get(10)?,
        late_us_p99: row.get(11)?,
        late_us_max: row.get(12)?,
        released: whole(row, 13)?,
        own_drops: whole(row, 14)?,
        stalls: whole(row, 15)?,
        cpu_s: row.get(16)?,
        real_time: row.get(17)?,
        load: [row.get(18)?, row.get(19)?],
        steal: row.get(20)?,
        cpu_pressure: row.get(21)?,
    })
}

fn link(row: &Row<'_>) -> rusqlite::Result<LinkCount> {
    Ok(LinkCount {
        name: row.get(1)?,
        packets: whole(row, 2)?,
        octets: whole(row, 3)?,
        drops: json(row, 4)?,
        duplicated: whole(row, 5)?,
        corrupted: whole(row, 6)?,
        marked: whole(row, 7)?,
    })
}

fn whole(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let count: i64 = row.get(column)?;
    u64::try_from(count).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, count))
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| misread(column, error.to_string()))
}

fn parsed<T: std::str::FromStr<Err: ToString>>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|error: T::Err| misread(column, error.to_string()))
}

fn misread(column: usize, why: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why.into())
}

/// As a whole number where the default is one.
fn number(like: &serde_json::Value, value: f64) -> serde_json::Value {
    if like.is_f64() {
        return value.into();
    }
    format!("{value:.0}")
        .parse::<u64>()
        .unwrap_or(u64::MAX)
        .into()
}
