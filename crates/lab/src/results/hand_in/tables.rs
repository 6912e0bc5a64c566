//! The tables that results are handed in as: the same in PostgreSQL and in Parquet files. They are those of `results.sqlite` for many campaigns
//! side by side, and the samples. `docs/results.md` describes every column.

use std::{collections::BTreeMap, path::Path};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use super::Repetition;
use crate::{
    errors::Failure,
    experiments::{
        campaign::hexadecimal,
        scenario::{Finding, Gate},
        trial::LinkCount,
    },
    results::{
        Sample,
        parquet::{Cell, Cells},
        store::{Attempt, Binary, Campaign, Machine},
    },
};

/// In the column `format` of every campaign; what has another one is left alone.
pub(super) const FORMAT: i64 = 1;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Text that is JSON.
    Json,
    Whole,
    Real,
    Truth,
    /// A list of whole numbers.
    Wholes,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Text(String),
    Json(String),
    Whole(i64),
    Real(f64),
    Truth(bool),
    Wholes(Vec<i64>),
}

/// Values in the order of their table's columns.
pub(super) type Row = Vec<Value>;

/// A row by the names of its columns.
pub(super) type Named = BTreeMap<String, Value>;

/// A table: its name, and the names and kinds of its columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: Vec<(String, Kind)>,
}

impl Table {
    fn new(name: &'static str, columns: &[(&str, Kind)]) -> Self {
        let own = |(name, kind): &(&str, Kind)| ((*name).to_owned(), *kind);
        let columns = columns.iter().map(own).collect();
        Self { name, columns }
    }
}

/// The table of campaigns.
pub(super) fn campaigns() -> Table {
    Table::new(
        "campaign",
        &[
            ("id", Kind::Text),
            ("format", Kind::Whole),
            ("entered", Kind::Real),
            ("scenario", Kind::Text),
            ("summary", Kind::Text),
            ("source", Kind::Text),
            ("seed", Kind::Text),
            ("repetitions", Kind::Whole),
            ("planned", Kind::Whole),
            ("baseline", Kind::Text),
            ("began", Kind::Real),
            ("subjects", Kind::Json),
            ("cases", Kind::Json),
            ("families", Kind::Json),
            ("fingerprints", Kind::Json),
            ("binaries", Kind::Json),
            ("gate", Kind::Json),
            ("findings", Kind::Json),
        ],
    )
}

/// A campaign among those that were handed in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) id: String,
    /// When it was handed in for the first time, in seconds since 1970.
    pub(super) entered: f64,
    pub(super) campaign: Campaign,
}

impl Entry {
    /// A campaign that is not there yet. Its id is made of what results of other campaigns differ in.
    pub(super) fn new(campaign: Campaign, entered: f64) -> Self {
        let Campaign {
            scenario,
            seed,
            gate,
            fingerprints,
            binaries,
            ..
        } = &campaign;
        let text = serde_json::to_string(&(scenario, seed, gate, fingerprints, binaries))
            .unwrap_or_default();
        let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let head: Vec<u8> = hash.as_ref().iter().take(8).copied().collect();
        // It becomes a directory's name, and may come from a store that somebody else made.
        let fits = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let name: String = scenario.chars().take(63).map(fits).collect();
        Self {
            id: format!("{name}-{}", hexadecimal(&head)),
            entered,
            campaign,
        }
    }

    pub(super) fn row(&self) -> Row {
        let of = &self.campaign;
        vec![
            text(&self.id),
            Value::Whole(FORMAT),
            real(self.entered),
            text(&of.scenario),
            text(&of.summary),
            text(&of.source),
            text(&of.seed.to_string()),
            whole(of.repetitions),
            whole(of.planned),
            option(of.baseline.as_deref().map(text)),
            real(of.began),
            json(&of.subjects),
            json(&of.cases),
            json(&of.families),
            json(&of.fingerprints),
            json(&of.binaries),
            json(&of.gate),
            json(&of.findings),
        ]
    }

    /// A row that was read; `None` if this program does not know what it means.
    pub(super) fn read(row: &Named) -> Option<Self> {
        if row.get("format") != Some(&Value::Whole(FORMAT)) {
            return None;
        }
        Some(Self {
            id: words(row, "id")?,
            entered: number(row, "entered")?,
            campaign: Campaign {
                scenario: words(row, "scenario")?,
                summary: words(row, "summary")?,
                source: words(row, "source")?,
                seed: words(row, "seed")?.parse().ok()?,
                repetitions: count(row, "repetitions")?,
                planned: count(row, "planned")?,
                baseline: words(row, "baseline"),
                began: number(row, "began")?,
                subjects: parsed(row, "subjects")?,
                cases: parsed(row, "cases")?,
                families: parsed(row, "families")?,
                fingerprints: parsed(row, "fingerprints")?,
                binaries: parsed::<Vec<Binary>>(row, "binaries")?,
                gate: parsed::<Gate>(row, "gate")?,
                findings: parsed::<Vec<Finding>>(row, "findings")?,
            },
        })
    }
}

/// The table of machines: one for all campaigns.
pub(super) fn machines() -> Table {
    Table::new(
        "machine",
        &[
            ("id", Kind::Text),
            ("kernel", Kind::Text),
            ("architecture", Kind::Text),
            ("cpu", Kind::Text),
            ("cores", Kind::Whole),
            ("memory", Kind::Whole),
            ("governor", Kind::Text),
            ("real_time", Kind::Truth),
            ("sysctls", Kind::Json),
        ],
    )
}

pub(super) fn machine(machine: &Machine) -> Row {
    vec![
        text(&machine.id),
        text(&machine.kernel),
        text(&machine.architecture),
        text(&machine.cpu),
        whole(machine.cores),
        whole(machine.memory),
        option(machine.governor.as_deref().map(text)),
        Value::Truth(machine.real_time),
        json(&machine.sysctls),
    ]
}

/// A table whose rows belong to repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Comes first: the rows of the others refer to it.
    Run,
    Attempt,
    Metric,
    Process,
    Link,
    Sample,
}

impl Part {
    pub(super) const ALL: [Self; 6] = [
        Self::Run,
        Self::Attempt,
        Self::Metric,
        Self::Process,
        Self::Link,
        Self::Sample,
    ];

    pub(super) fn table(self) -> Table {
        match self {
            Self::Run => Table::new("run", &RUN),
            Self::Attempt => Table::new("attempt", &ATTEMPT),
            Self::Metric => Table::new("metric", &METRIC),
            Self::Process => Table::new("process", &PROCESS),
            Self::Link => Table::new("link", &LINK),
            Self::Sample => samples(),
        }
    }

    /// The rows that a repetition leaves here. `root` is the directory of its campaign, `id` that campaign's id.
    pub(super) fn rows(
        self,
        id: &str,
        repetition: &Repetition,
        root: &Path,
    ) -> Result<Vec<Row>, Failure> {
        let run = &repetition.finished.run.id;
        let of = |rest: Vec<Value>| [vec![text(id), text(run)], rest].concat();
        let finished = &repetition.finished;
        Ok(match self {
            Self::Run => vec![run_row(id, repetition)],
            Self::Attempt => repetition.attempts().map(|one| of(attempt(one))).collect(),
            Self::Metric => {
                let row = |metric: &crate::results::Metric| {
                    of(vec![
                        option(metric.workload.as_deref().map(text)),
                        option(metric.transfer.map(whole)),
                        text(&metric.name),
                        real(metric.value),
                    ])
                };
                finished.metrics.iter().map(row).collect()
            }
            Self::Process => {
                let row = |process: &crate::experiments::trial::ProcessUse| {
                    of(vec![
                        text(&process.name),
                        text(&process.host),
                        real(process.cpu_s),
                        real(process.life_cpu_s),
                        whole(process.peak_memory),
                    ])
                };
                finished.processes.iter().map(row).collect()
            }
            Self::Link => finished
                .links
                .iter()
                .map(|link| of(link_row(link)))
                .collect(),
            Self::Sample => {
                let cells = Cells::default();
                let samples = repetition.samples(root)?;
                samples
                    .iter()
                    .map(|sample| of(sample_row(&cells, sample)))
                    .collect()
            }
        })
    }
}

const RUN: [(&str, Kind); 10] = [
    ("campaign", Kind::Text),
    ("id", Kind::Text),
    ("parameters", Kind::Json),
    ("subject", Kind::Text),
    ("repetition", Kind::Whole),
    ("place", Kind::Whole),
    ("seed", Kind::Text),
    ("verdict", Kind::Text),
    ("attempt", Kind::Whole),
    ("began", Kind::Real),
];

fn run_row(id: &str, repetition: &Repetition) -> Row {
    let run = &repetition.finished.run;
    vec![
        text(id),
        text(&run.id),
        json(&run.key.case),
        text(&run.key.subject),
        whole(run.key.repetition),
        whole(run.place),
        text(&run.seed.to_string()),
        text(run.verdict.word()),
        whole(run.attempt),
        real(repetition.finished.attempt.began),
    ]
}

const ATTEMPT: [(&str, Kind); 23] = [
    ("campaign", Kind::Text),
    ("run", Kind::Text),
    ("number", Kind::Whole),
    ("verdict", Kind::Text),
    ("why", Kind::Text),
    ("log", Kind::Text),
    ("set_aside", Kind::Truth),
    ("machine", Kind::Text),
    ("began", Kind::Real),
    ("ready_after", Kind::Real),
    ("took", Kind::Real),
    ("late_us_p50", Kind::Real),
    ("late_us_p99", Kind::Real),
    ("late_us_max", Kind::Real),
    ("released", Kind::Whole),
    ("own_drops", Kind::Whole),
    ("stalls", Kind::Whole),
    ("emulator_cpu_s", Kind::Real),
    ("real_time", Kind::Truth),
    ("load_before", Kind::Real),
    ("load_after", Kind::Real),
    ("steal", Kind::Real),
    ("cpu_pressure", Kind::Real),
];

fn attempt(attempt: &Attempt) -> Vec<Value> {
    let health = &attempt.health;
    vec![
        whole(attempt.number),
        text(attempt.verdict.word()),
        text(&attempt.why),
        text(&attempt.log),
        Value::Truth(attempt.set_aside),
        text(&attempt.machine),
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
        Value::Truth(health.real_time),
        real(health.load[0]),
        real(health.load[1]),
        real(health.steal),
        option(health.cpu_pressure.map(real)),
    ]
}

const METRIC: [(&str, Kind); 6] = [
    ("campaign", Kind::Text),
    ("run", Kind::Text),
    ("workload", Kind::Text),
    ("transfer", Kind::Whole),
    ("name", Kind::Text),
    ("value", Kind::Real),
];

const PROCESS: [(&str, Kind); 7] = [
    ("campaign", Kind::Text),
    ("run", Kind::Text),
    ("name", Kind::Text),
    ("host", Kind::Text),
    ("cpu_s", Kind::Real),
    ("life_cpu_s", Kind::Real),
    ("peak_memory", Kind::Whole),
];

const LINK: [(&str, Kind); 9] = [
    ("campaign", Kind::Text),
    ("run", Kind::Text),
    ("name", Kind::Text),
    ("packets", Kind::Whole),
    ("bytes", Kind::Whole),
    ("drops", Kind::Json),
    ("duplicated", Kind::Whole),
    ("corrupted", Kind::Whole),
    ("marked", Kind::Whole),
];

fn link_row(link: &LinkCount) -> Vec<Value> {
    vec![
        text(&link.name),
        whole(link.packets),
        whole(link.bytes),
        json(&link.drops),
        whole(link.duplicated),
        whole(link.corrupted),
        whole(link.marked),
    ]
}

/// What `samples/ID.parquet` has of a transfer; what it says of the repetition is in `run`.
fn samples() -> Table {
    let mut table = Table::new("sample", &[("campaign", Kind::Text), ("run", Kind::Text)]);
    let columns = Cells::default().columns();
    table.columns.extend(columns.map(|(name, cell)| {
        let kind = match cell {
            Cell::Text(_) => Kind::Text,
            Cell::Whole(_) => Kind::Whole,
            Cell::Real(_) => Kind::Real,
            Cell::Wholes(_) => Kind::Wholes,
        };
        (name, kind)
    }));
    table
}

fn sample_row(cells: &Cells, sample: &Sample) -> Vec<Value> {
    let value = |cell| match cell {
        Cell::Text(value) => option(value.as_deref().map(text)),
        Cell::Whole(value) => option(value.map(whole)),
        Cell::Real(value) => option(value.map(real)),
        Cell::Wholes(values) => Value::Wholes(values.into_iter().map(signed).collect()),
    };
    cells.of(sample).map(value).collect()
}

// Values into rows, and back.

/// Without NUL, which PostgreSQL takes in no text: logs of programs have it.
fn text(value: &str) -> Value {
    Value::Text(value.replace('\0', "\u{fffd}"))
}

fn option(value: Option<Value>) -> Value {
    value.unwrap_or(Value::Null)
}

fn whole(value: impl Into<u64>) -> Value {
    Value::Whole(signed(value.into()))
}

/// No count of ours comes near 63 bits.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What is not finite is not known.
fn real(value: f64) -> Value {
    if value.is_finite() {
        Value::Real(value)
    } else {
        Value::Null
    }
}

fn json(value: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    without_nul(&mut value);
    Value::Json(value.to_string())
}

fn without_nul(value: &mut Json) {
    match value {
        Json::String(text) => *text = text.replace('\0', "\u{fffd}"),
        Json::Array(values) => values.iter_mut().for_each(without_nul),
        Json::Object(fields) => fields.iter_mut().for_each(|(_, value)| without_nul(value)),
        _ => {}
    }
}

pub(super) fn words(row: &Named, column: &str) -> Option<String> {
    match row.get(column)? {
        Value::Text(text) | Value::Json(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn number(row: &Named, column: &str) -> Option<f64> {
    match row.get(column)? {
        Value::Real(value) => Some(*value),
        _ => None,
    }
}

fn count<T: TryFrom<i64>>(row: &Named, column: &str) -> Option<T> {
    match row.get(column)? {
        Value::Whole(value) => T::try_from(*value).ok(),
        _ => None,
    }
}

fn parsed<T: DeserializeOwned>(row: &Named, column: &str) -> Option<T> {
    serde_json::from_str(&words(row, column)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::hand_in::examples;

    fn named(table: &Table, row: Row) -> Named {
        let names = table.columns.iter().map(|(name, _)| name.clone());
        names.zip(row).collect()
    }

    fn fits(table: &Table, row: &[Value]) {
        assert_eq!(row.len(), table.columns.len(), "{}", table.name);
        for ((name, kind), value) in table.columns.iter().zip(row) {
            let fits = match value {
                Value::Null => true,
                Value::Text(_) => *kind == Kind::Text,
                Value::Json(_) => *kind == Kind::Json,
                Value::Whole(_) => *kind == Kind::Whole,
                Value::Real(_) => *kind == Kind::Real,
                Value::Truth(_) => *kind == Kind::Truth,
                Value::Wholes(_) => *kind == Kind::Wholes,
            };
            assert!(fits, "{}.{name} is {kind:?} and has {value:?}", table.name);
        }
    }

    #[test]
    fn every_row_has_a_value_of_its_kind_for_each_column() {
        let place = tempfile::tempdir().unwrap();
        let source = examples::source(place.path(), 2);
        fits(
            &campaigns(),
            &Entry::new(source.campaign.clone(), 1.5).row(),
        );
        fits(&machines(), &machine(&source.machines[0]));
        for part in Part::ALL {
            let rows = part
                .rows("c", &source.repetitions[0], place.path())
                .unwrap();
            assert!(!rows.is_empty(), "{part:?}");
            for row in &rows {
                fits(&part.table(), row);
            }
        }
    }

    #[test]
    fn a_campaign_that_was_written_is_read_back() {
        let place = tempfile::tempdir().unwrap();
        let campaign = examples::source(place.path(), 1).campaign;
        let entry = Entry::new(campaign, 1_800_000_000.25);
        assert_eq!(Entry::read(&named(&campaigns(), entry.row())), Some(entry));
    }

    #[test]
    fn a_campaign_of_another_format_or_with_what_is_not_known_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let entry = Entry::new(examples::source(place.path(), 1).campaign, 1.0);
        let change = |column: &str, value: Value| {
            let mut row = named(&campaigns(), entry.row());
            row.insert(column.into(), value);
            Entry::read(&row)
        };
        assert_eq!(change("format", Value::Whole(FORMAT + 1)), None);
        assert_eq!(change("gate", Value::Json("{\"new\": 1}".into())), None);
        assert_eq!(change("seed", Value::Text("many".into())), None);
        assert!(change("format", Value::Whole(FORMAT)).is_some());
    }

    #[test]
    fn an_id_is_of_what_results_differ_in_and_fit_for_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let campaign = examples::source(place.path(), 1).campaign;
        let id = |change: &dyn Fn(&mut Campaign)| {
            let mut other = campaign.clone();
            change(&mut other);
            Entry::new(other, 0.0).id
        };
        assert_eq!(id(&|c| c.summary = "other words".into()), id(&|_| {}));
        assert_ne!(id(&|c| c.seed -= 1), id(&|_| {}));
        assert_ne!(id(&|c| c.binaries[0].sha256 = "9".into()), id(&|_| {}));
        let hostile = id(&|c| c.scenario = "../../etc/x\0y".into());
        assert!(hostile.starts_with("______etc_x_y-"), "{hostile}");
    }

    #[test]
    fn no_text_has_nul_in_it() {
        assert_eq!(text("a\0b"), Value::Text("a\u{fffd}b".into()));
        let case = BTreeMap::from([("k".to_owned(), vec!["\0", "\\u0000"])]);
        let Value::Json(found) = json(&case) else {
            unreachable!("json is JSON")
        };
        assert_eq!(found, "{\"k\":[\"\u{fffd}\",\"\\\\u0000\"]}");
    }
}
