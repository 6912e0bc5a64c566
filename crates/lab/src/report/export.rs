//! Samples in the formats of others: `transfers.parquet`, OnionPerf's CSV and analysis JSON, paper 000's CSVs.
//! Samples are read repetition by repetition; those of one case and subject are in memory at once, for OnionPerf's documents.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use super::{data::Data, figures::slug, unwritten};
use crate::{
    errors::Failure,
    results::{Sample, csv, onionperf, parquet, store::Verdict},
};

/// Transfers that failed, by case, subject and workload, and files that are missing or cannot be read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) failed: BTreeMap<(usize, usize, String), usize>,
    pub(super) unread: Vec<String>,
}

/// Writes all exports into a campaign's directory.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(data: &Data, directory: &Path) -> Result<Found, Failure> {
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
    found: Found,
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
            onionperf: begin("onionperf.csv", csv::ONIONPERF)?,
            bulk: begin("bulk.csv", csv::BULK)?,
            speed_test: begin("speedtest.csv", csv::SPEED_TEST)?,
            browsing: begin("browsing.csv", csv::BROWSING)?,
            found: Found::default(),
        })
    }

    fn group(
        &mut self,
        data: &Data,
        directory: &Path,
        (case, subject): (usize, usize),
    ) -> io::Result<()> {
        let label = data.label(subject);
        let place = data.tell(case);
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
        serde_json::to_writer(file, &onionperf::analysis(&all)).map_err(io::Error::from)
    }

    fn repetition(&mut self, samples: &[Sample], title: &str, place: &str) -> io::Result<()> {
        for sample in samples.iter().filter(|sample| csv::is_stream(sample)) {
            self.onionperf
                .write_all(csv::onionperf(sample, title).as_bytes())?;
        }
        let lines = csv::paper_000(samples, place);
        self.bulk.write_all(lines.bulk.as_bytes())?;
        self.speed_test.write_all(lines.speed_test.as_bytes())?;
        self.browsing.write_all(lines.browsing.as_bytes())
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

    fn close(mut self) -> io::Result<Found> {
        self.parquet.close()?;
        for file in [
            &mut self.onionperf,
            &mut self.bulk,
            &mut self.speed_test,
            &mut self.browsing,
        ] {
            file.flush()?;
        }
        Ok(self.found)
    }
}
