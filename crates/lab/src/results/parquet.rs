//! Samples as Parquet: one row for each connection of a transfer, every phase a column. `campaign` writes `samples/ID.parquet` for each
//! repetition; `report` reads them and joins them into `transfers.parquet`. DuckDB, pandas and polars read the files as they are.

mod columns;
mod read;

use std::{fs::File, io, path::Path, sync::Arc};

use parquet::{
    basic::Compression,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
};

use self::columns::{Column, columns, schema};
pub use self::read::read;
use super::sample::{Sample, samples};
use crate::trial::{Report, Trial};

/// Samples of one row group: the most that is held in memory while a file is joined from others.
pub const GROUP: usize = 16_384;

/// Writes all samples of a repetition to a new file. Making it durable is the caller's part.
///
/// # Errors
/// What the file system says.
pub fn write(path: &Path, trial: &Trial, report: &Report) -> io::Result<()> {
    let parameters = trial.key.case.keys().cloned().collect();
    let mut file = Writer::create(path, parameters)?;
    file.append(&samples(trial, report))?;
    file.close()
}

/// A file that grows by row groups.
pub struct Writer {
    columns: Vec<Column>,
    file: SerializedFileWriter<File>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.columns.len();
        write!(f, "Writer({columns} columns)")
    }
}

impl Writer {
    /// Begins a file with a column for each of these parameters of the scenario's matrix.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path, parameters: Vec<String>) -> io::Result<Self> {
        let columns = columns(parameters);
        let schema = Arc::new(schema(&columns).map_err(io::Error::other)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("hoplite-lab ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = File::create(path)?;
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties));
        let file = file.map_err(io::Error::other)?;
        Ok(Self { columns, file })
    }

    /// Adds samples.
    ///
    /// # Errors
    /// What the file system says.
    pub fn append(&mut self, samples: &[Sample]) -> io::Result<()> {
        for group in samples.chunks(GROUP) {
            self.group(group).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn group(&mut self, samples: &[Sample]) -> parquet::errors::Result<()> {
        let mut group = self.file.next_row_group()?;
        for column in &self.columns {
            if let Some(mut writer) = group.next_column()? {
                column.write(samples, &mut writer)?;
                writer.close()?;
            }
        }
        group.close().map(|_| ())
    }

    /// Writes the end of the file.
    ///
    /// # Errors
    /// What the file system says.
    pub fn close(self) -> io::Result<()> {
        self.file.close().map(|_| ()).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        results::sample::examples::{bulk, report, transfer, trial},
        workload::TransferError,
    };

    #[test]
    fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.parquet");
        let mut broken = transfer("get", 2, 1);
        broken.phases.deciles.truncate(3);
        broken.phases.last_byte = None;
        broken.error = Some(TransferError {
            kind: "READ".into(),
            why: "reset by \"peer\", ünïcode".into(),
        });
        let mut echo = transfer("echo", 1, 0);
        echo.server = None;
        echo.seen_as = Some("fd77::1".parse().unwrap());
        echo.round_trips = vec![20_000, 21_000, u32::MAX];
        echo.datagrams = [4, 3];
        echo.more = [("jitter_us".to_owned(), 12.5)].into();
        let report = report(vec![transfer("get", 1, 1), broken, echo]);
        let trial = trial(vec![bulk("get", 2_000_000)]);
        write(&path, &trial, &report).unwrap();
        assert_eq!(read(&path).unwrap(), samples(&trial, &report));
    }

    #[test]
    fn a_repetition_without_transfers_is_a_file_without_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.parquet");
        write(&path, &trial(Vec::new()), &report(Vec::new())).unwrap();
        assert_eq!(read(&path).unwrap(), []);
    }

    #[test]
    fn a_cut_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.parquet");
        let trial = trial(vec![bulk("get", 2_000_000)]);
        write(&path, &trial, &report(vec![transfer("get", 1, 1)])).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("run.parquet"), "{error}");
    }

    #[test]
    fn more_samples_than_a_group_holds_make_several_groups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.parquet");
        let trial = trial(vec![bulk("get", 2_000_000)]);
        let many: Vec<_> = (1..=20_000)
            .map(|number| transfer("get", number, 1))
            .collect();
        let many = samples(&trial, &report(many));
        let mut file = Writer::create(&path, vec!["hops".into(), "rate".into()]).unwrap();
        file.append(&many).unwrap();
        file.close().unwrap();
        let back = read(&path).unwrap();
        assert_eq!(back.len(), 20_000);
        assert_eq!(back[19_999].transfer.number, 20_000);
        // This one has no `rate`: an absent parameter stays absent.
        assert_eq!(back[0].key.case, trial.key.case);
    }
}
