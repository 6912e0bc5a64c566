//! Samples as Parquet: one row for each connection of a transfer, every phase a column. Each repetition has its `samples/ID.parquet`; a report
//! joins them into `transfers.parquet`. DuckDB, pandas and polars read the files as they are.

use std::{collections::BTreeMap, fs::File, io, path::Path, sync::Arc};

use parquet::{
    basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical},
    data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::Result,
    file::{
        properties::WriterProperties,
        reader::{FileReader, SerializedFileReader},
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    record::{Field, Row},
    schema::types::{Type, TypePtr},
};

use super::sample::{Sample, samples};
use crate::experiments::{
    trial::{Key, Report, Trial},
    workload::{Phases, Transfer, TransferError},
};

/// Samples of one row group: the most that is held in memory while a file is joined from others.
const GROUP: usize = 16_384;

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

    fn group(&mut self, samples: &[Sample]) -> Result<()> {
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

// Which columns there are, and how each is taken from a sample.

/// The sizes whose completion times have a column, `partial_BYTES_us`: OnionPerf's, as `workload` tells them.
const PARTIAL: [u64; 9] = [
    10_240, 20_480, 51_200, 102_400, 204_800, 512_000, 1_048_576, 2_097_152, 5_242_880,
];

/// A column: its name and how its value is found.
struct Column {
    name: String,
    value: Getter,
}

type Get<T> = Box<dyn Fn(&Sample) -> Option<T> + Send>;

type GetAll = Box<dyn Fn(&Sample) -> Vec<u64> + Send>;

enum Getter {
    Text(Get<String>),
    Whole(Get<u64>),
    Real(Get<f64>),
    /// A list of whole numbers, never null.
    Wholes(GetAll),
}

/// All columns of a campaign whose matrix has these parameters.
fn columns(parameters: Vec<String>) -> Vec<Column> {
    let mut columns = run_columns();
    columns.extend(parameters.into_iter().map(parameter));
    columns.extend(transfer_columns());
    columns.extend(phase_columns());
    columns.extend((0..9).map(decile));
    columns.extend(PARTIAL.into_iter().map(partial));
    columns.extend(last_columns());
    columns
}

fn text(name: &str, get: impl Fn(&Sample) -> Option<String> + Send + 'static) -> Column {
    column(name, Getter::Text(Box::new(get)))
}

fn whole(name: &str, get: impl Fn(&Sample) -> Option<u64> + Send + 'static) -> Column {
    column(name, Getter::Whole(Box::new(get)))
}

fn column(name: &str, value: Getter) -> Column {
    Column {
        name: name.to_owned(),
        value,
    }
}

fn run_columns() -> Vec<Column> {
    vec![
        text("run", |sample| Some(sample.run.clone())),
        text("scenario", |sample| Some(sample.key.scenario.clone())),
        text("subject", |sample| Some(sample.key.subject.clone())),
        whole("repetition", |sample| Some(sample.key.repetition.into())),
        whole("seed", |sample| Some(sample.seed)),
    ]
}

fn parameter(name: String) -> Column {
    let column = format!("case_{name}");
    text(&column, move |sample| sample.key.case.get(&name).cloned())
}

fn transfer_columns() -> Vec<Column> {
    vec![
        text("workload", |sample| Some(sample.transfer.workload.clone())),
        text("kind", |sample| Some(sample.kind.clone())),
        text("client", |sample| Some(sample.client.clone())),
        text("target", |sample| Some(sample.target.clone())),
        whole("number", |sample| Some(sample.transfer.number.into())),
        whole("connection", |sample| {
            Some(sample.transfer.connection.into())
        }),
        column(
            "began",
            Getter::Real(Box::new(|sample| Some(sample.transfer.began))),
        ),
        text("server", |sample| {
            sample.transfer.server.map(|ip| ip.to_string())
        }),
        text("seen_as", |sample| {
            sample.transfer.seen_as.map(|ip| ip.to_string())
        }),
        text("egress", |sample| Some(sample.egress.clone())),
        whole("asked_sent", |sample| Some(sample.transfer.asked[0])),
        whole("asked_received", |sample| Some(sample.transfer.asked[1])),
        whole("moved_sent", |sample| Some(sample.transfer.moved[0])),
        whole("moved_received", |sample| Some(sample.transfer.moved[1])),
    ]
}

/// The phases that are one time each, by name.
type Phase = (&'static str, fn(&mut Phases) -> &mut Option<u64>);

/// In the order in which they happen.
const PHASES: [Phase; 11] = [
    ("socket_us", |phases| &mut phases.socket),
    ("connect_us", |phases| &mut phases.connect),
    ("proxy_choice_us", |phases| &mut phases.proxy_choice),
    ("proxy_request_us", |phases| &mut phases.proxy_request),
    ("proxy_response_us", |phases| &mut phases.proxy_response),
    ("tls_us", |phases| &mut phases.tls),
    ("command_us", |phases| &mut phases.command),
    ("response_us", |phases| &mut phases.response),
    ("first_byte_us", |phases| &mut phases.first_byte),
    ("last_byte_us", |phases| &mut phases.last_byte),
    ("checksum_us", |phases| &mut phases.checksum),
];

fn phase_columns() -> Vec<Column> {
    let column = |(name, field): Phase| {
        whole(name, move |sample: &Sample| {
            *field(&mut sample.transfer.phases.clone())
        })
    };
    PHASES.into_iter().map(column).collect()
}

fn decile(place: usize) -> Column {
    let name = format!("decile_{}_us", place + 1);
    whole(&name, move |sample| {
        sample.transfer.phases.deciles.get(place).copied()
    })
}

fn partial(bytes: u64) -> Column {
    let name = format!("partial_{bytes}_us");
    whole(&name, move |sample| {
        let mut partial = sample.transfer.phases.partial.iter();
        partial.find(|part| part.0 == bytes).map(|part| part.1)
    })
}

fn last_columns() -> Vec<Column> {
    vec![
        column("round_trips_us", Getter::Wholes(Box::new(round_trips))),
        whole("datagrams_sent", |sample| {
            Some(sample.transfer.datagrams[0])
        }),
        whole("datagrams_received", |sample| {
            Some(sample.transfer.datagrams[1])
        }),
        text("error", |sample| {
            sample
                .transfer
                .error
                .as_ref()
                .map(|error| error.kind.clone())
        }),
        text("error_why", |sample| {
            sample
                .transfer
                .error
                .as_ref()
                .map(|error| error.why.clone())
        }),
        text("more", |sample| {
            serde_json::to_string(&sample.transfer.more).ok()
        }),
    ]
}

fn round_trips(sample: &Sample) -> Vec<u64> {
    let all = sample.transfer.round_trips.iter();
    all.map(|micros| u64::from(*micros)).collect()
}

/// The schema of these columns.
fn schema(columns: &[Column]) -> Result<Type> {
    let fields: Result<Vec<TypePtr>> = columns.iter().map(Column::field).collect();
    Type::group_type_builder("sample")
        .with_fields(fields?)
        .build()
}

impl Column {
    fn field(&self) -> Result<TypePtr> {
        let field = match self.value {
            Getter::Text(_) => Type::primitive_type_builder(&self.name, Physical::BYTE_ARRAY)
                .with_converted_type(ConvertedType::UTF8)
                .with_logical_type(Some(LogicalType::String)),
            Getter::Whole(_) => Type::primitive_type_builder(&self.name, Physical::INT64),
            Getter::Real(_) => Type::primitive_type_builder(&self.name, Physical::DOUBLE),
            Getter::Wholes(_) => return list(&self.name),
        };
        let field = field.with_repetition(Repetition::OPTIONAL).build()?;
        Ok(Arc::new(field))
    }

    /// Writes its value of every sample.
    fn write(&self, samples: &[Sample], writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        match &self.value {
            Getter::Text(get) => {
                let (values, levels) = flat(samples, |sample| {
                    get(sample).map(|text| ByteArray::from(text.into_bytes()))
                });
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Getter::Whole(get) => {
                let (values, levels) = flat(samples, |sample| get(sample).map(signed));
                writer
                    .typed::<Int64Type>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Getter::Real(get) => {
                let (values, levels) = flat(samples, get);
                writer
                    .typed::<DoubleType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Getter::Wholes(get) => {
                let (values, levels, repeats) = nested(samples, get);
                writer
                    .typed::<Int64Type>()
                    .write_batch(&values, Some(&levels), Some(&repeats))?;
            }
        }
        Ok(())
    }
}

/// `required group NAME (LIST) { repeated group list { required int64 element; } }`
pub(crate) fn list(name: &str) -> Result<TypePtr> {
    let element = Type::primitive_type_builder("element", Physical::INT64)
        .with_repetition(Repetition::REQUIRED)
        .build()?;
    let repeated = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element)])
        .build()?;
    let list = Type::group_type_builder(name)
        .with_repetition(Repetition::REQUIRED)
        .with_converted_type(ConvertedType::LIST)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(repeated)])
        .build()?;
    Ok(Arc::new(list))
}

/// Values, and for each sample whether it has one (1) or not (0).
fn flat<T>(samples: &[Sample], get: impl Fn(&Sample) -> Option<T>) -> (Vec<T>, Vec<i16>) {
    let all: Vec<Option<T>> = samples.iter().map(get).collect();
    let levels = all.iter().map(|value| i16::from(value.is_some())).collect();
    (all.into_iter().flatten().collect(), levels)
}

/// Values of lists, and for each whether it is there (1; an empty list has one 0) and whether it goes on with the list before it (1).
fn nested(samples: &[Sample], get: impl Fn(&Sample) -> Vec<u64>) -> (Vec<i64>, Vec<i16>, Vec<i16>) {
    let (mut values, mut levels, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
    for list in samples.iter().map(get) {
        levels.extend(list.iter().map(|_| 1));
        repeats.extend((0..list.len()).map(|place| i16::from(place > 0)));
        if list.is_empty() {
            levels.push(0);
            repeats.push(0);
        }
        values.extend(list.into_iter().map(signed));
    }
    (values, levels, repeats)
}

/// As Parquet's signed integer: every byte count and time fits; a seed keeps its bits.
fn signed(value: u64) -> i64 {
    i64::from_ne_bytes(value.to_ne_bytes())
}

// Samples as rows of other tables.

/// A value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Words.
    Text(Option<String>),
    /// A whole number.
    Whole(Option<u64>),
    /// A number.
    Real(Option<f64>),
    /// A list of whole numbers.
    Wholes(Vec<u64>),
}

/// The columns of a transfer, without those that say which repetition it is of.
pub(crate) struct Cells(Vec<Column>);

impl Default for Cells {
    fn default() -> Self {
        let mut all = columns(Vec::new());
        Self(all.split_off(run_columns().len()))
    }
}

impl Cells {
    /// Their names, each with an empty value of its kind.
    pub(crate) fn columns(self) -> impl Iterator<Item = (String, Cell)> {
        let empty = |value| match value {
            Getter::Text(_) => Cell::Text(None),
            Getter::Whole(_) => Cell::Whole(None),
            Getter::Real(_) => Cell::Real(None),
            Getter::Wholes(_) => Cell::Wholes(Vec::new()),
        };
        let columns = self.0.into_iter();
        columns.map(move |column| (column.name, empty(column.value)))
    }

    /// The values of a sample, in their order.
    pub(crate) fn of(&self, sample: &Sample) -> impl Iterator<Item = Cell> {
        self.0.iter().map(move |column| match &column.value {
            Getter::Text(get) => Cell::Text(get(sample)),
            Getter::Whole(get) => Cell::Whole(get(sample)),
            Getter::Real(get) => Cell::Real(get(sample)),
            Getter::Wholes(get) => Cell::Wholes(get(sample)),
        })
    }
}

// Reads samples back, by the names of the columns: a file of an older version may have fewer.

/// All samples of a file.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn read(path: &Path) -> io::Result<Vec<Sample>> {
    rows(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn rows(path: &Path) -> io::Result<Vec<Sample>> {
    let file = SerializedFileReader::new(File::open(path)?).map_err(io::Error::other)?;
    let rows = file.get_row_iter(None).map_err(io::Error::other)?;
    rows.map(|row| {
        row.map(|row| Fields::of(row).sample())
            .map_err(io::Error::other)
    })
    .collect()
}

/// A row by name.
struct Fields(BTreeMap<String, Field>);

impl Fields {
    fn of(row: Row) -> Self {
        Self(row.into_columns().into_iter().collect())
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name) {
            Some(Field::Str(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn whole(&self, name: &str) -> Option<u64> {
        match self.0.get(name) {
            Some(Field::Long(value)) => Some(u64::from_ne_bytes(value.to_ne_bytes())),
            _ => None,
        }
    }

    fn small<T: TryFrom<u64> + Default>(&self, name: &str) -> T {
        let value = self.whole(name).map(T::try_from);
        value.and_then(Result::ok).unwrap_or_default()
    }

    fn pair(&self, [one, two]: [&str; 2]) -> [u64; 2] {
        let value = |name| self.whole(name).unwrap_or_default();
        [value(one), value(two)]
    }

    fn sample(&self) -> Sample {
        let text = |name| self.text(name).unwrap_or_default();
        Sample {
            run: text("run"),
            key: self.key(),
            seed: self.whole("seed").unwrap_or_default(),
            client: text("client"),
            target: text("target"),
            kind: text("kind"),
            egress: text("egress"),
            transfer: self.transfer(),
        }
    }

    fn key(&self) -> Key {
        let parameter = |(name, field): (&String, &Field)| match (name.strip_prefix("case_"), field)
        {
            (Some(name), Field::Str(value)) => Some((name.to_owned(), value.clone())),
            _ => None,
        };
        Key {
            scenario: self.text("scenario").unwrap_or_default(),
            case: self.0.iter().filter_map(parameter).collect(),
            subject: self.text("subject").unwrap_or_default(),
            repetition: self.small("repetition"),
        }
    }

    fn transfer(&self) -> Transfer {
        let address = |name| self.text(name).and_then(|text| text.parse().ok());
        let more = self.text("more").unwrap_or_default();
        Transfer {
            workload: self.text("workload").unwrap_or_default(),
            number: self.small("number"),
            connection: self.small("connection"),
            began: match self.0.get("began") {
                Some(Field::Double(seconds)) => *seconds,
                _ => 0.0,
            },
            server: address("server"),
            seen_as: address("seen_as"),
            asked: self.pair(["asked_sent", "asked_received"]),
            moved: self.pair(["moved_sent", "moved_received"]),
            phases: self.phases(),
            round_trips: self.round_trips(),
            datagrams: self.pair(["datagrams_sent", "datagrams_received"]),
            error: self.error(),
            more: serde_json::from_str(&more).unwrap_or_default(),
        }
    }

    fn phases(&self) -> Phases {
        let mut phases = Phases::default();
        for (name, field) in PHASES {
            *field(&mut phases) = self.whole(name);
        }
        let decile = |tenth| self.whole(&format!("decile_{tenth}_us"));
        phases.deciles = (1..10).map_while(decile).collect();
        let partial = |bytes| Some((bytes, self.whole(&format!("partial_{bytes}_us"))?));
        phases.partial = PARTIAL.into_iter().filter_map(partial).collect();
        phases
    }

    fn round_trips(&self) -> Vec<u32> {
        let Some(Field::ListInternal(list)) = self.0.get("round_trips_us") else {
            return Vec::new();
        };
        let value = |field: &Field| match field {
            Field::Long(value) => u32::try_from(*value).ok(),
            _ => None,
        };
        list.elements().iter().filter_map(value).collect()
    }

    fn error(&self) -> Option<TransferError> {
        let kind = self.text("error")?;
        let why = self.text("error_why").unwrap_or_default();
        Some(TransferError { kind, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiments::workload::TransferError,
        results::sample::examples::{bulk, report, transfer, trial},
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
