//! Reads samples back, by the names of the columns: a file of an older version may have fewer.

use std::{collections::BTreeMap, fs::File, io, path::Path};

use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, Row},
};

use super::columns::{PARTIAL, PHASES};
use crate::{
    results::Sample,
    trial::Key,
    workload::{Phases, Transfer, TransferError},
};

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
        let partial = |octets| Some((octets, self.whole(&format!("partial_{octets}_us"))?));
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
