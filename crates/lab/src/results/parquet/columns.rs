//! Which columns there are, and how each is taken from a sample.

use std::sync::Arc;

use parquet::{
    basic::{ConvertedType, LogicalType, Repetition, Type as Physical},
    data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::Result,
    file::writer::SerializedColumnWriter,
    schema::types::{Type, TypePtr},
};

use crate::{results::Sample, workload::Phases};

/// The sizes whose completion times have a column, `partial_OCTETS_us`: OnionPerf's, as `workload` tells them.
pub(super) const PARTIAL: [u64; 9] = [
    10_240, 20_480, 51_200, 102_400, 204_800, 512_000, 1_048_576, 2_097_152, 5_242_880,
];

/// A column: its name and how its value is found.
pub(super) struct Column {
    pub(super) name: String,
    value: Value,
}

type Get<T> = Box<dyn Fn(&Sample) -> Option<T> + Send>;

type GetAll = Box<dyn Fn(&Sample) -> Vec<u64> + Send>;

enum Value {
    Text(Get<String>),
    Whole(Get<u64>),
    Real(Get<f64>),
    /// A list of whole numbers, never null.
    Wholes(GetAll),
}

/// All columns of a campaign whose matrix has these parameters.
pub(super) fn columns(parameters: Vec<String>) -> Vec<Column> {
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
    column(name, Value::Text(Box::new(get)))
}

fn whole(name: &str, get: impl Fn(&Sample) -> Option<u64> + Send + 'static) -> Column {
    column(name, Value::Whole(Box::new(get)))
}

fn column(name: &str, value: Value) -> Column {
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
            Value::Real(Box::new(|sample| Some(sample.transfer.began))),
        ),
        text("server", |sample| {
            sample.transfer.server.map(|ip| ip.to_string())
        }),
        text("seen_as", |sample| {
            sample.transfer.seen_as.map(|ip| ip.to_string())
        }),
        whole("asked_sent", |sample| Some(sample.transfer.asked[0])),
        whole("asked_received", |sample| Some(sample.transfer.asked[1])),
        whole("moved_sent", |sample| Some(sample.transfer.moved[0])),
        whole("moved_received", |sample| Some(sample.transfer.moved[1])),
    ]
}

/// The phases that are one time each, by name.
pub(super) type Phase = (&'static str, fn(&mut Phases) -> &mut Option<u64>);

/// In the order in which they happen.
pub(super) const PHASES: [Phase; 11] = [
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

fn partial(octets: u64) -> Column {
    let name = format!("partial_{octets}_us");
    whole(&name, move |sample| {
        let mut partial = sample.transfer.phases.partial.iter();
        partial.find(|part| part.0 == octets).map(|part| part.1)
    })
}

fn last_columns() -> Vec<Column> {
    vec![
        column("round_trips_us", Value::Wholes(Box::new(round_trips))),
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
pub(super) fn schema(columns: &[Column]) -> Result<Type> {
    let fields: Result<Vec<TypePtr>> = columns.iter().map(Column::field).collect();
    Type::group_type_builder("sample")
        .with_fields(fields?)
        .build()
}

impl Column {
    fn field(&self) -> Result<TypePtr> {
        let field = match self.value {
            Value::Text(_) => Type::primitive_type_builder(&self.name, Physical::BYTE_ARRAY)
                .with_converted_type(ConvertedType::UTF8)
                .with_logical_type(Some(LogicalType::String)),
            Value::Whole(_) => Type::primitive_type_builder(&self.name, Physical::INT64),
            Value::Real(_) => Type::primitive_type_builder(&self.name, Physical::DOUBLE),
            Value::Wholes(_) => return list(&self.name),
        };
        let field = field.with_repetition(Repetition::OPTIONAL).build()?;
        Ok(Arc::new(field))
    }

    /// Writes its value of every sample.
    pub(super) fn write(
        &self,
        samples: &[Sample],
        writer: &mut SerializedColumnWriter<'_>,
    ) -> Result<()> {
        match &self.value {
            Value::Text(get) => {
                let (values, levels) = flat(samples, |sample| {
                    get(sample).map(|text| ByteArray::from(text.into_bytes()))
                });
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Value::Whole(get) => {
                let (values, levels) = flat(samples, |sample| get(sample).map(signed));
                writer
                    .typed::<Int64Type>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Value::Real(get) => {
                let (values, levels) = flat(samples, get);
                writer
                    .typed::<DoubleType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Value::Wholes(get) => {
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
fn list(name: &str) -> Result<TypePtr> {
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

/// As Parquet's signed integer: every octet count and time fits; a seed keeps its bits.
fn signed(value: u64) -> i64 {
    i64::from_ne_bytes(value.to_ne_bytes())
}
