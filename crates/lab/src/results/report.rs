//! The report of a campaign (`hoplite-lab report DIR`): one HTML page that works from a file and offline, its figures as files, JSON lines for
//! scripts, and the samples in the formats of the field.
//!
//! ```text
//! store ──▶ data ──▶ compare ──▶ page, json
//!             ▲          └─────▶ figures: scene ──▶ svg, png
//!             └ by egress
//! samples ──▶ ┴ export: Parquet, CSV, OnionPerf
//! features ─▶ recognise ─▶ page, CSV
//! ```

mod compare;
mod data;
mod egress;
#[cfg(test)]
mod example;
mod figures;
mod findings;
mod lines;
mod metric;
pub(crate) mod months;
mod page;
pub mod plot;
mod plots;
mod recognise;
mod render;
mod scene;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use self::{
    compare::{Judgement, Ratio, Summary, judge},
    data::{Data, GroupKey},
    egress::Egresses,
    figures::slug,
    findings::Ours,
};
use crate::{
    cli::ReportArgs,
    errors::{Failure, printed},
    experiments::scenario::Finding,
    results::{
        Sample,
        analysis::statistics::Statistic,
        export, parquet,
        store::{Store, Verdict},
    },
};

/// Makes the report of a campaign, also of one that is still running.
///
/// # Errors
/// When there are no results, or the directory cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (data, judgement, path) = make(&args.dir, args.baseline.as_deref())?;
    let text = if args.json {
        json_lines(&data, &judgement)
    } else {
        format!("{}\n", path.display())
    };
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Makes it without a word, and says where it is: the end of a campaign.
///
/// # Errors
/// Those of [`run`].
pub fn write(directory: &Path) -> Result<PathBuf, Failure> {
    make(directory, None).map(|(.., path)| path)
}

fn make(directory: &Path, asked: Option<&str>) -> Result<(Data, Judgement, PathBuf), Failure> {
    let store = Store::read(directory)?;
    let mut data = Data::read(&store)?;
    let baseline = baseline(&data, asked)?;
    let found = write_exports(&data, directory)?;
    if found.egresses.differ() {
        let mut metrics = store.metrics()?;
        metrics.extend(found.egresses.parts(&metrics, &data.runs));
        data = data.with(metrics);
    }
    let judgement = judge(&data, baseline);
    data.failed = found.failed;
    let figures = figures::figures(&data, &judgement);
    figures::write(&figures, directory)?;
    let answers = recognise::answers(&data);
    recognise::write(&data, &answers, directory)?;
    let page = page::page(&page::PageInput {
        answers: &answers,
        data: &data,
        judgement: &judgement,
        figures: &figures,
        unread: &found.unread,
    });
    let path = write_page(directory, &page)?;
    Ok((data, judgement, path))
}

/// The one asked for, else the scenario's, else `native`, else the first; none if there are no subjects.
fn baseline(data: &Data, asked: Option<&str>) -> Result<Option<usize>, Failure> {
    if let Some(asked) = asked {
        let subjects = data.subjects.join(", ");
        let found = data.subject_or_family(asked).ok_or_else(|| {
            let remedy = format!("name one of {subjects}");
            let complaint = crate::errors::Complaint::new(
                "taking --baseline",
                format!("no subject is called {asked}"),
                remedy,
            );
            Failure::Wrong(vec![complaint])
        })?;
        return Ok(Some(found));
    }
    let named = data
        .campaign
        .baseline
        .as_deref()
        .and_then(|name| data.subject_or_family(name));
    let native = || data.subject("native");
    let first = || (!data.subjects.is_empty()).then_some(0);
    Ok(named.or_else(native).or_else(first))
}

/// A reader never sees half a page.
fn write_page(directory: &Path, page: &str) -> Result<PathBuf, Failure> {
    let path = directory.join("report.html");
    let draft = directory.join(".report.html.new");
    fs::write(&draft, page)
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(|error| unwritten(&path, &error))?;
    Ok(path)
}

fn json_lines(data: &Data, judgement: &Judgement) -> String {
    let lines = lines(data, judgement).into_iter();
    lines.map(|line| format!("{line}\n")).collect()
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull => "free some space and run it again: results are untouched",
        io::ErrorKind::PermissionDenied => "make the directory writable, or copy it first",
        _ => "check the directory and run it again: results are untouched",
    };
    Failure::new(format!("writing {}", path.display()), error, remedy)
}

// Samples in the formats of others: `transfers.parquet`, OnionPerf's CSV and analysis JSON, paper 000's CSVs.
// Samples are read repetition by repetition; those of one case and subject are in memory at once, for OnionPerf's documents.

/// Transfers that failed, by case, subject and workload; by which hosts they left; and files that are missing or cannot be read.
#[derive(Debug, Default)]
struct Exported {
    failed: BTreeMap<(usize, usize, String), usize>,
    egresses: Egresses,
    unread: Vec<String>,
}

/// Writes all exports into a campaign's directory.
///
/// # Errors
/// When it cannot be written.
fn write_exports(data: &Data, directory: &Path) -> Result<Exported, Failure> {
    let exported = || {
        let mut exports = Exports::create(data, directory)?;
        for (case, subject) in data.counts.keys() {
            exports.group(data, directory, (*case, *subject))?;
        }
        exports.close()
    };
    exported().map_err(|error: io::Error| unwritten(directory, &error))
}

struct Exports {
    parquet: parquet::Writer,
    onionperf: BufWriter<File>,
    bulk: BufWriter<File>,
    speed_test: BufWriter<File>,
    browsing: BufWriter<File>,
    visits: BufWriter<File>,
    found: Exported,
}

impl Exports {
    fn create(data: &Data, directory: &Path) -> io::Result<Self> {
        let folder = directory.join("export");
        fs::create_dir_all(&folder)?;
        let begin = |name: &str, columns: &str| {
            let mut file = BufWriter::new(File::create(folder.join(name))?);
            file.write_all(columns.as_bytes())?;
            io::Result::Ok(file)
        };
        let mut parameters: Vec<String> = data
            .cases
            .iter()
            .flat_map(|case| case.keys().cloned())
            .collect();
        parameters.sort();
        parameters.dedup();
        Ok(Self {
            parquet: parquet::Writer::create(&directory.join("transfers.parquet"), parameters)?,
            onionperf: begin("onionperf.csv", export::ONIONPERF)?,
            bulk: begin("bulk.csv", export::BULK)?,
            speed_test: begin("speedtest.csv", export::SPEED_TEST)?,
            browsing: begin("browsing.csv", export::BROWSING)?,
            visits: begin("visits.csv", export::VISITS)?,
            found: Exported::default(),
        })
    }

    fn group(
        &mut self,
        data: &Data,
        directory: &Path,
        (case, subject): (usize, usize),
    ) -> io::Result<()> {
        let label = data.label(subject);
        let place = data.case_title(case);
        let title = if place.is_empty() {
            label.to_owned()
        } else {
            format!("{label}, {place}")
        };
        let mut all = Vec::new();
        let runs = data
            .runs
            .iter()
            .filter(|run| run.verdict == Verdict::Ok && run.key.subject == label);
        for run in runs.filter(|run| data.case(&run.key.case) == Some(case)) {
            let path = directory
                .join("samples")
                .join(format!("{}.parquet", run.id));
            match parquet::read(&path) {
                Ok(samples) => {
                    self.repetition(&samples, &title, &place)?;
                    self.count(&samples, (case, subject));
                    samples
                        .iter()
                        .for_each(|sample| self.found.egresses.note(sample));
                    all.extend(samples);
                }
                Err(error) => self.found.unread.push(error.to_string()),
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        // One row group for many repetitions: each has its own dictionaries.
        self.parquet.append(&all)?;
        let name = format!("{}.onionperf.analysis.json", slug(&title));
        let file = BufWriter::new(File::create(directory.join("export").join(name))?);
        serde_json::to_writer(file, &export::analysis(&all)).map_err(io::Error::from)
    }

    fn repetition(&mut self, samples: &[Sample], title: &str, place: &str) -> io::Result<()> {
        for sample in samples.iter().filter(|sample| export::is_stream(sample)) {
            self.onionperf
                .write_all(export::onionperf(sample, title).as_bytes())?;
        }
        let lines = export::paper_000(samples, place);
        self.bulk.write_all(lines.bulk.as_bytes())?;
        self.speed_test.write_all(lines.speed_test.as_bytes())?;
        self.browsing.write_all(lines.browsing.as_bytes())?;
        self.visits.write_all(lines.visits.as_bytes())
    }

    /// A transfer with a sum over its connections counts once.
    fn count(&mut self, samples: &[Sample], (case, subject): (usize, usize)) {
        let mut failed: Vec<(&str, u32)> = samples
            .iter()
            .filter(|sample| sample.transfer.error.is_some())
            .map(|sample| (sample.transfer.workload.as_str(), sample.transfer.number))
            .collect();
        failed.sort_unstable();
        failed.dedup();
        for (workload, _) in failed {
            let place = (case, subject, workload.to_owned());
            *self.found.failed.entry(place).or_default() += 1;
        }
    }

    fn close(mut self) -> io::Result<Exported> {
        self.parquet.close()?;
        for file in [
            &mut self.onionperf,
            &mut self.bulk,
            &mut self.speed_test,
            &mut self.browsing,
            &mut self.visits,
        ] {
            file.flush()?;
        }
        Ok(self.found)
    }
}

// The report as JSON lines: one for each case, subject and measure, one for each ratio to the baseline, then one for each figure that a goal is about.

/// All lines.
fn lines(data: &Data, judgement: &Judgement) -> Vec<Value> {
    let summaries = judgement.summaries.iter();
    let mut lines: Vec<Value> = summaries
        .map(|(place, summary)| median(data, *place, summary))
        .collect();
    let ratios = judgement.ratios.iter();
    lines.extend(ratios.map(|(place, found)| ratio(data, judgement, *place, found)));
    let goals = data.campaign.findings.iter().filter(|finding| finding.goal);
    lines.extend(goals.flat_map(|finding| {
        let ours = findings::ours(data, judgement, finding).into_iter();
        ours.map(move |ours| goal(data, finding, &ours))
    }));
    lines
}

fn goal(data: &Data, finding: &Finding, ours: &Ours) -> Value {
    let more = json!({
        "goal": finding.text,
        "relative_to": finding.relative_to,
        "relative_to_case": finding.relative_to_case,
        "statistic": finding.statistic,
        "asked": [finding.low, finding.high],
        "value": ours.value,
        "lo": ours.low,
        "hi": ours.high,
        "n": ours.n,
        "verdict": findings::judged(data, finding, ours).words(),
    });
    with(place(data, ours.place), more)
}

/// What every line says of its place.
fn place(data: &Data, place: GroupKey) -> Value {
    let measure = data.measures.get(place.measure);
    json!({
        "scenario": data.campaign.scenario,
        "case": data.cases.get(place.case),
        "subject": data.label(place.subject),
        "workload": measure.and_then(|measure| measure.workload.as_deref()),
        "metric": measure.map(|measure| measure.metric.as_str()),
        "gate_open": data.campaign.gate.is_open(),
    })
}

fn with(mut line: Value, more: Value) -> Value {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}

fn median(data: &Data, at: GroupKey, summary: &Summary) -> Value {
    let counts = data
        .counts
        .get(&(at.case, at.subject))
        .copied()
        .unwrap_or_default();
    let measure = data.measures.get(at.measure);
    let quantity = measure.map(|measure| measure.meaning.quantity);
    let statistic = measure.map(|measure| match measure.meaning.statistic {
        Statistic::Mean => "mean",
        _ => "median",
    });
    let more = json!({
        "unit": quantity.map(metric::Quantity::stored),
        "n": summary.n,
        "repetitions": summary.repetitions,
        "invalid": counts.invalid,
        "failed": counts.failed,
        "failed_transfers": data.failed_transfers(at),
        "median": summary.median,
        // Of what `lo`, `hi` and ratios are.
        "statistic": statistic,
        "mean": (statistic == Some("mean")).then_some(summary.center),
        "lo": summary.interval.map(|interval| interval.low),
        "hi": summary.interval.map(|interval| interval.high),
        "p95": summary.p95,
        "p99": summary.p99,
    });
    with(place(data, at), more)
}

fn ratio(data: &Data, judgement: &Judgement, at: GroupKey, found: &Ratio) -> Value {
    let comparison = &found.comparison;
    let baseline = judgement.baseline;
    let baseline = baseline.and_then(|subject| data.in_case((at.measure, at.case), subject));
    let more = json!({
        "baseline": baseline.map(|baseline| data.label(baseline.subject)),
        "ratio": comparison.ratio,
        "lo": comparison.interval.map(|interval| interval.low),
        "hi": comparison.interval.map(|interval| interval.high),
        "pairs": comparison.pairs,
        "p": comparison.p,
        "p_holm": found.corrected,
        "verdict": found.standing.words(),
    });
    with(place(data, at), more)
}

#[cfg(test)]
mod tests;
