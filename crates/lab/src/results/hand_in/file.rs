//! A table as one Parquet file: written row by row, and read back by the names of its columns.

use std::{fs::File, io, path::Path, sync::Arc};

use parquet::{
    basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::{ParquetError, Result},
    file::{
        properties::WriterProperties,
        reader::{FileReader, SerializedFileReader},
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    record::Field,
    schema::types::Type,
};

use super::tables::{Kind, Named, Row, Table, Value};
use crate::results::parquet::list;

/// Rows of one row group: the most that is held in memory.
const GROUP: usize = 4096;

/// A file that grows by rows.
pub(super) struct Writer {
    kinds: Vec<Kind>,
    rows: Vec<Row>,
    file: SerializedFileWriter<File>,
    /// The same file, to sync it.
    handle: File,
}

impl Writer {
    /// Begins a file.
    pub(super) fn create(path: &Path, table: &Table) -> io::Result<Self> {
        let fields = table.columns.iter().map(|(name, kind)| field(name, *kind));
        let fields: Result<Vec<_>> = fields.map(|field| field.map(Arc::new)).collect();
        let schema = fields.and_then(|fields| {
            let group = Type::group_type_builder(table.name);
            group.with_fields(fields).build()
        });
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("hoplite-lab ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = Arc::new(schema.map_err(said)?);
        let file = File::create(path)?;
        let handle = file.try_clone()?;
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties));
        Ok(Self {
            kinds: table.columns.iter().map(|(_, kind)| *kind).collect(),
            rows: Vec::new(),
            file: file.map_err(said)?,
            handle,
        })
    }

    /// Adds rows.
    pub(super) fn append(&mut self, rows: Vec<Row>) -> io::Result<()> {
        for row in rows {
            self.rows.push(row);
            if self.rows.len() >= GROUP {
                self.group().map_err(said)?;
            }
        }
        Ok(())
    }

    fn group(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.file.next_row_group()?;
        for (place, kind) in self.kinds.iter().enumerate() {
            if let Some(mut writer) = group.next_column()? {
                let values = rows
                    .iter()
                    .map(|row| row.get(place).unwrap_or(&Value::Null));
                column(*kind, values, &mut writer)?;
                writer.close()?;
            }
        }
        group.close().map(|_| ())
    }

    /// Writes the end of the file, and makes it outlive a power cut.
    pub(super) fn close(mut self) -> io::Result<()> {
        if !self.rows.is_empty() {
            self.group().map_err(said)?;
        }
        self.file.finish().map_err(said)?;
        self.handle.sync_all()
    }
}

/// What the file system said, if it was that.
fn said(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

fn field(name: &str, kind: Kind) -> Result<Type> {
    let field = match kind {
        Kind::Text | Kind::Json => Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
            .with_converted_type(ConvertedType::UTF8)
            .with_logical_type(Some(LogicalType::String)),
        Kind::Whole => Type::primitive_type_builder(name, Physical::INT64),
        Kind::Real => Type::primitive_type_builder(name, Physical::DOUBLE),
        Kind::Truth => Type::primitive_type_builder(name, Physical::BOOLEAN),
        Kind::Wholes => return list(name).map(Arc::unwrap_or_clone),
    };
    field.with_repetition(Repetition::OPTIONAL).build()
}

fn column<'a>(
    kind: Kind,
    values: impl Iterator<Item = &'a Value>,
    writer: &mut SerializedColumnWriter<'_>,
) -> Result<()> {
    match kind {
        Kind::Text | Kind::Json => {
            let (values, levels) = flat(values, |value| match value {
                Value::Text(text) | Value::Json(text) => Some(ByteArray::from(text.as_str())),
                _ => None,
            });
            let writer = writer.typed::<ByteArrayType>();
            writer.write_batch(&values, Some(&levels), None)?;
        }
        Kind::Whole => {
            let (values, levels) = flat(values, |value| match value {
                Value::Whole(whole) => Some(*whole),
                _ => None,
            });
            let writer = writer.typed::<Int64Type>();
            writer.write_batch(&values, Some(&levels), None)?;
        }
        Kind::Real => {
            let (values, levels) = flat(values, |value| match value {
                Value::Real(real) => Some(*real),
                _ => None,
            });
            let writer = writer.typed::<DoubleType>();
            writer.write_batch(&values, Some(&levels), None)?;
        }
        Kind::Truth => {
            let (values, levels) = flat(values, |value| match value {
                Value::Truth(truth) => Some(*truth),
                _ => None,
            });
            let writer = writer.typed::<BoolType>();
            writer.write_batch(&values, Some(&levels), None)?;
        }
        Kind::Wholes => {
            let (values, levels, repeats) = nested(values);
            let writer = writer.typed::<Int64Type>();
            writer.write_batch(&values, Some(&levels), Some(&repeats))?;
        }
    }
    Ok(())
}

/// Values, and for each row whether it has one (1) or not (0).
fn flat<'a, T>(
    rows: impl Iterator<Item = &'a Value>,
    get: impl Fn(&Value) -> Option<T>,
) -> (Vec<T>, Vec<i16>) {
    let all: Vec<Option<T>> = rows.map(get).collect();
    let levels = all.iter().map(|value| i16::from(value.is_some())).collect();
    (all.into_iter().flatten().collect(), levels)
}

/// Values of lists, and for each whether it is there (1; an empty list has one 0) and whether it goes on with the list before it (1).
fn nested<'a>(rows: impl Iterator<Item = &'a Value>) -> (Vec<i64>, Vec<i16>, Vec<i16>) {
    let (mut values, mut levels, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let list = match row {
            Value::Wholes(list) => list.as_slice(),
            _ => &[],
        };
        levels.extend(list.iter().map(|_| 1));
        repeats.extend((0..list.len()).map(|place| i16::from(place > 0)));
        if list.is_empty() {
            levels.push(0);
            repeats.push(0);
        }
        values.extend(list);
    }
    (values, levels, repeats)
}

/// All rows of a file, as far as their columns are of kinds of ours.
pub(super) fn read(path: &Path) -> io::Result<Vec<Named>> {
    let file = SerializedFileReader::new(File::open(path)?).map_err(said)?;
    let rows = file.get_row_iter(None).map_err(said)?;
    let named = |row: parquet::record::Row| -> Named {
        let columns = row.into_columns().into_iter();
        columns.map(|(name, field)| (name, value(field))).collect()
    };
    rows.map(|row| row.map(named).map_err(said)).collect()
}

fn value(field: Field) -> Value {
    match field {
        Field::Str(text) => Value::Text(text),
        Field::Long(whole) => Value::Whole(whole),
        Field::Double(real) => Value::Real(real),
        Field::Bool(truth) => Value::Truth(truth),
        Field::ListInternal(list) => {
            let whole = |field: &Field| match field {
                Field::Long(whole) => Some(*whole),
                _ => None,
            };
            Value::Wholes(list.elements().iter().filter_map(whole).collect())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let kinds = [
            ("text", Kind::Text),
            ("whole", Kind::Whole),
            ("real", Kind::Real),
            ("truth", Kind::Truth),
            ("wholes", Kind::Wholes),
        ];
        Table {
            name: "t",
            columns: kinds.map(|(name, kind)| (name.to_owned(), kind)).into(),
        }
    }

    fn row(number: i64) -> Row {
        if number % 3 == 0 {
            let mut row = vec![Value::Null; 4];
            row.push(Value::Wholes(Vec::new()));
            return row;
        }
        vec![
            Value::Text(format!("ünï \"{number}\"")),
            Value::Whole(-number),
            Value::Real(number as f64 / 7.0),
            Value::Truth(number % 2 == 0),
            Value::Wholes((0..number % 5).collect()),
        ]
    }

    #[test]
    fn rows_come_back_as_they_were_over_several_groups() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("t.parquet");
        let mut file = Writer::create(&path, &table()).unwrap();
        let rows: Vec<Row> = (0..10_000).map(row).collect();
        for part in rows.chunks(999) {
            file.append(part.to_vec()).unwrap();
        }
        file.close().unwrap();
        let names = table().columns;
        let back = read(&path).unwrap();
        assert_eq!(back.len(), rows.len());
        for (row, back) in rows.into_iter().zip(back) {
            let named: Named = names
                .iter()
                .map(|(name, _)| name.clone())
                .zip(row)
                .collect();
            assert_eq!(back, named);
        }
    }

    #[test]
    fn a_table_without_rows_is_a_file_without_rows() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("t.parquet");
        Writer::create(&path, &table()).unwrap().close().unwrap();
        assert_eq!(read(&path).unwrap(), []);
    }

    #[test]
    fn what_the_file_system_said_is_still_known() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(said(full.into()).kind(), io::ErrorKind::StorageFull);
    }
}
