//! `results.sqlite`: a campaign's runs and their figures. `campaign` writes it, `report` and `merge` read it. The schema is
//! `store/schema.sql`, described in `docs/results.md`.
//!
//! A rollback journal, not a write-ahead log: campaigns live on clusters' network file systems, where shared memory does not work, and one file is
//! all there is to copy. `synchronous = EXTRA` makes a commit outlive a kill and a power cut. A repetition is one transaction.

mod read;
mod rows;
mod write;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub use self::rows::{Attempt, Binary, Campaign, Finished, Machine, Run, Verdict};
use crate::errors::Failure;

/// The database's name inside a campaign's directory.
pub const FILE: &str = "results.sqlite";

/// Kept in `user_version`; older ones are brought up to it, others are refused.
const VERSION: i64 = 3;

/// What makes a store of each version, from 1, one of the next.
const UPGRADES: [&str; 2] = [
    "ALTER TABLE attempt ADD COLUMN cpu_pressure REAL",
    "ALTER TABLE finding ADD COLUMN relative_to_case TEXT NOT NULL DEFAULT '{}';
     ALTER TABLE finding ADD COLUMN statistic TEXT;
     ALTER TABLE finding ADD COLUMN goal INTEGER NOT NULL DEFAULT 0",
];

/// How long a reader and the campaign wait for each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens a directory's store for reading: what `report` does, also while a campaign is running.
    ///
    /// # Errors
    /// When there is none, or it is of another version.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        if !path.is_file() {
            return Err(Failure::new(
                format!("reading {}", path.display()),
                "there are no results",
                "name a directory that `hoplite-lab run` has written",
            ));
        }
        // Not read-only: a kill may have left a journal that the first reader must roll back.
        let mut store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        store.upgrade()?;
        store.expect_version()?;
        Ok(store)
    }

    /// Opens a directory's store for writing and makes it if it is not there.
    ///
    /// # Errors
    /// When it cannot be written, or is of another version.
    pub fn write(directory: &Path) -> Result<Self, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut store = Self::connect(directory.join(FILE), flags)?;
        if store.version()? == 0 {
            store.make()?;
        }
        store.upgrade()?;
        store.expect_version()?;
        Ok(store)
    }

    fn connect(path: PathBuf, flags: OpenFlags) -> Result<Self, Failure> {
        let connection = Connection::open_with_flags(&path, flags)
            .and_then(|connection| {
                connection.busy_timeout(PATIENCE)?;
                connection.pragma_update(None, "synchronous", "EXTRA")?;
                connection.pragma_update(None, "foreign_keys", true)?;
                Ok(connection)
            })
            .map_err(|error| failure(&path, "opening", &error))?;
        Ok(Self { connection, path })
    }

    fn make(&mut self) -> Result<(), Failure> {
        self.transaction("making", |transaction| {
            transaction.execute_batch(include_str!("store/schema.sql"))?;
            transaction.pragma_update(None, "user_version", VERSION)
        })
    }

    /// Brings a store of an older version up to date: what it did not record is not known.
    fn upgrade(&mut self) -> Result<(), Failure> {
        if !(1..VERSION).contains(&self.version()?) {
            return Ok(());
        }
        self.transaction("bringing up to date", |transaction| {
            // Another process may have been first.
            let found: i64 =
                transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let done = usize::try_from(found - 1).unwrap_or(UPGRADES.len());
            for step in UPGRADES.iter().skip(done) {
                transaction.execute_batch(step)?;
            }
            transaction.pragma_update(None, "user_version", VERSION)
        })
    }

    fn version(&self) -> Result<i64, Failure> {
        self.connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|error| failure(&self.path, "reading", &error))
    }

    fn expect_version(&self) -> Result<(), Failure> {
        let found = self.version()?;
        if found == VERSION {
            return Ok(());
        }
        Err(Failure::new(
            format!("reading {}", self.path.display()),
            format!("its schema has version {found}, this hoplite-lab knows {VERSION}"),
            "use the hoplite-lab that wrote it",
        ))
    }

    /// All of `work`, or nothing of it.
    fn transaction<T>(
        &mut self,
        doing: &str,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let path = self.path.clone();
        let all = || {
            let transaction = self.connection.transaction()?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        all().map_err(|error| failure(&path, doing, &error))
    }
}

/// What SQLite said, with what to do about it.
fn failure(path: &Path, doing: &str, error: &rusqlite::Error) -> Failure {
    let remedy = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
            "free some space and run the same command again: what was stored before is safe"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "wait until the other program that has it open is done"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "make the directory writable"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "restore it from a copy, or choose another --out"
        }
        _ => "please report this",
    };
    Failure::new(format!("{doing} {}", path.display()), error, remedy)
}

#[cfg(test)]
mod tests;
