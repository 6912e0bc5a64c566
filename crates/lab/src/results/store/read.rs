//! Reading the store, in the order in which it was written.

use rusqlite::{OptionalExtension, Row, types::Type};
use serde::de::DeserializeOwned;

use super::{Attempt, Binary, Campaign, Finished, Machine, Run, Store, Verdict, failure};
use crate::{
    errors::Failure,
    experiments::{
        scenario::{Finding, Gate},
        trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
    },
    results::Metric,
};

impl Store {
    /// What was asked for; `None` if no run has come so far.
    pub fn campaign(&self) -> Result<Option<Campaign>, Failure> {
        let sql = "SELECT * FROM campaign";
        let found = self.connection.query_row(sql, [], campaign).optional();
        let Some(mut campaign) = found.map_err(|error| failure(&self.path, "reading", &error))?
        else {
            return Ok(None);
        };
        campaign.binaries = self.all("SELECT * FROM binary ORDER BY name", binary)?;
        campaign.gate = self.gate()?;
        campaign.findings = self.all("SELECT * FROM finding ORDER BY rowid", finding)?;
        Ok(Some(campaign))
    }

    /// The machines that attempts ran on.
    pub fn machines(&self) -> Result<Vec<Machine>, Failure> {
        self.all("SELECT * FROM machine ORDER BY rowid", machine)
    }

    /// Every repetition that is over, in the campaign's order.
    pub fn runs(&self) -> Result<Vec<Run>, Failure> {
        self.all(
            "SELECT *, (SELECT scenario FROM campaign) AS scenario FROM run ORDER BY place",
            run,
        )
    }

    /// Every attempt, also those of repetitions that are not over, in the order in which they began.
    pub fn attempts(&self) -> Result<Vec<Attempt>, Failure> {
        self.all("SELECT * FROM attempt ORDER BY began, rowid", attempt)
    }

    /// The attempts at one repetition, in order.
    pub fn attempts_of(&self, run: &str) -> Result<Vec<Attempt>, Failure> {
        let read = || {
            let sql = "SELECT * FROM attempt WHERE run = ?1 ORDER BY number";
            let mut statement = self.connection.prepare_cached(sql)?;
            let rows = statement.query_map([run], attempt)?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|error| failure(&self.path, "reading", &error))
    }

    /// Every figure, with its run's id.
    pub fn metrics(&self) -> Result<Vec<(String, Metric)>, Failure> {
        self.all("SELECT * FROM metric ORDER BY rowid", |row| {
            Ok((
                row.get("run")?,
                Metric {
                    workload: row.get("workload")?,
                    transfer: row.get("transfer")?,
                    name: row.get("name")?,
                    value: row.get("value")?,
                },
            ))
        })
    }

    /// What every process used, with its run's id.
    pub fn processes(&self) -> Result<Vec<(String, ProcessUse)>, Failure> {
        self.all("SELECT * FROM process ORDER BY rowid", |row| {
            Ok((
                row.get("run")?,
                ProcessUse {
                    name: row.get("name")?,
                    host: row.get("host")?,
                    cpu_s: row.get("cpu_s")?,
                    life_cpu_s: row.get("life_cpu_s")?,
                    peak_memory: whole(row, "peak_memory")?,
                },
            ))
        })
    }

    /// What happened on every link, with its run's id.
    pub fn links(&self) -> Result<Vec<(String, LinkCount)>, Failure> {
        self.all("SELECT * FROM link ORDER BY rowid", |row| {
            Ok((row.get("run")?, link(row)?))
        })
    }

    /// All repetitions with all that they left, each with the attempts before the one that counts.
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
        let stored = self.all("SELECT * FROM gate", |row| {
            Ok((row.get::<_, String>("name")?, row.get::<_, f64>("value")?))
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
        scenario: row.get("scenario")?,
        summary: row.get("summary")?,
        source: row.get("source")?,
        seed: parsed(row, "seed")?,
        repetitions: row.get("repetitions")?,
        baseline: row.get("baseline")?,
        fingerprints: json(row, "fingerprints")?,
        planned: whole(row, "planned")?,
        subjects: json(row, "subjects")?,
        families: json(row, "families")?,
        cases: json(row, "cases")?,
        began: row.get("began")?,
        ..Campaign::default()
    })
}

fn binary(row: &Row<'_>) -> rusqlite::Result<Binary> {
    Ok(Binary {
        name: row.get("name")?,
        sha256: row.get("sha256")?,
        version: row.get("version")?,
    })
}

fn finding(row: &Row<'_>) -> rusqlite::Result<Finding> {
    Ok(Finding {
        text: row.get("text")?,
        metric: row.get("metric")?,
        workload: row.get("workload")?,
        case: json(row, "parameters")?,
        subject: row.get("subject")?,
        relative_to: row.get("relative_to")?,
        value: row.get("value")?,
        low: row.get("low")?,
        high: row.get("high")?,
        unit: row.get("unit")?,
        relative_to_case: json(row, "relative_to_case")?,
        statistic: row.get("statistic")?,
        goal: row.get("goal")?,
    })
}

fn machine(row: &Row<'_>) -> rusqlite::Result<Machine> {
    Ok(Machine {
        id: row.get("id")?,
        kernel: row.get("kernel")?,
        architecture: row.get("architecture")?,
        cpu: row.get("cpu")?,
        cores: whole(row, "cores")?,
        memory: whole(row, "memory")?,
        governor: row.get("governor")?,
        real_time: row.get("real_time")?,
        sysctls: json(row, "sysctls")?,
    })
}

fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    Ok(Run {
        id: row.get("id")?,
        key: Key {
            scenario: row.get("scenario")?,
            case: json(row, "parameters")?,
            subject: row.get("subject")?,
            repetition: row.get("repetition")?,
        },
        place: whole(row, "place")?,
        seed: parsed(row, "seed")?,
        verdict: parsed(row, "verdict")?,
        attempt: row.get("attempt")?,
    })
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        run: row.get("run")?,
        number: row.get("number")?,
        verdict: parsed::<Verdict>(row, "verdict")?,
        why: row.get("why")?,
        log: row.get("log")?,
        set_aside: row.get("set_aside")?,
        machine: row.get("machine")?,
        began: row.get("began")?,
        ready_after: row.get("ready_after")?,
        took: row.get("took")?,
        health: health(row)?,
    })
}

fn health(row: &Row<'_>) -> rusqlite::Result<EmulatorHealth> {
    Ok(EmulatorHealth {
        late_us_p50: row.get("late_us_p50")?,
        late_us_p99: row.get("late_us_p99")?,
        late_us_max: row.get("late_us_max")?,
        late_share: row.get("late_share")?,
        released: whole(row, "released")?,
        own_drops: whole(row, "own_drops")?,
        stalls: whole(row, "stalls")?,
        cpu_s: row.get("emulator_cpu_s")?,
        real_time: row.get("real_time")?,
        load: [row.get("load_before")?, row.get("load_after")?],
        steal: row.get("steal")?,
        cpu_pressure: row.get("cpu_pressure")?,
        stood_s: row.get("stood_s")?,
        leapt_s: row.get("leapt_s")?,
    })
}

fn link(row: &Row<'_>) -> rusqlite::Result<LinkCount> {
    Ok(LinkCount {
        name: row.get("name")?,
        packets: whole(row, "packets")?,
        bytes: whole(row, "bytes")?,
        drops: json(row, "drops")?,
        duplicated: whole(row, "duplicated")?,
        corrupted: whole(row, "corrupted")?,
        marked: whole(row, "marked")?,
    })
}

fn whole(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    let count: i64 = row.get(column)?;
    u64::try_from(count).map_err(|_| misread(row, column, format!("{count} is no count")))
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| misread(row, column, error.to_string()))
}

fn parsed<T: std::str::FromStr<Err: ToString>>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|error: T::Err| misread(row, column, error.to_string()))
}

fn misread(row: &Row<'_>, column: &str, why: String) -> rusqlite::Error {
    let place = row.as_ref().column_index(column).unwrap_or_default();
    rusqlite::Error::FromSqlConversionFailure(place, Type::Text, why.into())
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
