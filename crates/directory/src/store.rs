//! What outlives the process, in SQLite: a client's list and guards, an authority's descriptors. Each change is one transaction: all of it or nothing.

mod given;
mod tor;

use std::{
    fs::{DirBuilder, OpenOptions, Permissions},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use hoplite_wire::directory::Key;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, params};

use crate::{Candidate, Guard, Layer, PathBias, Vanguard};

pub use tor::TorDocuments;

/// The schema's version, in `user_version`.
const VERSION: i64 = 7;
/// What makes a new file, and what makes of each version the next.
const CHANGES: [&str; 7] = [
    include_str!("store/schema.sql"),
    include_str!("store/from1.sql"),
    include_str!("store/from2.sql"),
    include_str!("store/from3.sql"),
    include_str!("store/from4.sql"),
    include_str!("store/from5.sql"),
    include_str!("store/from6.sql"),
];
/// How long another process may hold the file.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Lists that prove a split: the two of the last one.
const PROOFS: i64 = 2;

/// One file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// One change of an authority's store, for [`Store::write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A relay's descriptor instead of its last one.
    Descriptor(Key, String),
    /// Since when a relay whose descriptor is there passes its tests, in seconds since 1970.
    Since(Key, u64),
    /// A relay is forgotten.
    Forget(Key),
    /// The list that is published.
    List(String),
}

/// Why the store cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite says so.
    #[error("{0}: {remedy}", remedy = remedy(.0))]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be made, or kept from others.
    #[error("{0}: let this user write the file and its directory")]
    Private(#[from] std::io::Error),
    /// Another version has written it.
    #[error(
        "its schema has version {0}, this program knows {VERSION}: use the program that wrote it, or another file"
    )]
    Version(i64),
}

fn remedy(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
            "make room on the disk: what was stored before is safe"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program has it open: stop that one"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "let this user write the file and its directory"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "remove it: a new one is made, but what protects from old lists starts anew"
        }
        _ => "please report this",
    }
}

/// SQLite gives its journal the mode of the file.
fn make_private(path: &Path) -> std::io::Result<()> {
    if let Some(directory) = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
    {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    match mode & 0o077 {
        0 => Ok(()),
        // One that an earlier version made.
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    }
}

impl Store {
    /// Opens a file, and makes it and its directory if they are not there: for this user alone, whatever the umask. A client's guards tell
    /// by whom it is seen.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        make_private(path)?;
        Self::of(Connection::open(path)?)
    }

    /// One that is forgotten with the process.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn in_memory() -> Result<Self, StoreError> {
        Self::of(Connection::open_in_memory()?)
    }

    fn of(connection: Connection) -> Result<Self, StoreError> {
        connection.busy_timeout(LOCK_TIMEOUT)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let mut store = Self { connection };
        store.transaction(|transaction| {
            let found: i64 =
                transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let since = match found {
                0 => 0..1,
                1..VERSION => usize::try_from(found).unwrap_or(CHANGES.len())..CHANGES.len(),
                _ => return Ok(()),
            };
            let mut changes = CHANGES.get(since).unwrap_or_default().iter();
            changes.try_for_each(|change| transaction.execute_batch(change))?;
            transaction.pragma_update(None, "user_version", VERSION)
        })?;
        let found: i64 = store
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found == VERSION {
            Ok(store)
        } else {
            Err(StoreError::Version(found))
        }
    }

    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let transaction = self.connection.transaction()?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// The list that is kept, and whether another for its time was seen.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn list(&self) -> Result<Option<(String, bool)>, StoreError> {
        let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found = self
            .connection
            .query_row("SELECT text, split FROM list", [], row);
        Ok(found.optional()?)
    }

    /// The last list before that one which nothing spoke against.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn before(&self) -> Result<Option<String>, StoreError> {
        let sql = "SELECT text FROM before";
        let found = self.connection.query_row(sql, [], |row| row.get(0));
        Ok(found.optional()?)
    }

    /// Keeps a list instead of the one that is kept; that becomes the one before, if nothing spoke against it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_list(&mut self, text: &str) -> Result<(), StoreError> {
        let before =
            "INSERT OR REPLACE INTO before (one, text) SELECT 1, text FROM list WHERE split = 0";
        let sql = "INSERT OR REPLACE INTO list (one, text, split) VALUES (1, ?1, 0)";
        self.transaction(|transaction| {
            transaction.execute(before, [])?;
            transaction.execute(sql, [text]).map(drop)
        })
    }

    /// Keeps two lists that prove a split; the kept one is used no more, but the one before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_split(&mut self, kept: &str, other: &str) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            transaction.execute("UPDATE list SET split = 1", [])?;
            transaction.execute("INSERT INTO proof (text) VALUES (?1), (?2)", [kept, other])?;
            let old = "DELETE FROM proof WHERE id <= (SELECT max(id) FROM proof) - ?1";
            transaction.execute(old, [PROOFS]).map(drop)
        })
    }

    /// The lists that prove the last split.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn proofs(&self) -> Result<Vec<String>, StoreError> {
        self.texts("SELECT text FROM proof ORDER BY id")
    }

    /// The guards, in their order.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn guards(&self) -> Result<Vec<Guard>, StoreError> {
        let sql = "SELECT identity, chosen, confirmed, unlisted, circuits, built, uses, used, barred, rsa_id \
                   FROM guard ORDER BY place";
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], guard)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Keeps these guards instead of those before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_guards(&mut self, guards: &[Guard]) -> Result<(), StoreError> {
        let sql = "INSERT INTO guard (place, identity, chosen, confirmed, unlisted, circuits, built, uses, used, barred, rsa_id) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        self.transaction(|transaction| {
            transaction.execute("DELETE FROM guard", [])?;
            let mut insert = transaction.prepare(sql)?;
            for (place, guard) in (0i64..).zip(guards) {
                let (confirmed, unlisted) =
                    (guard.confirmed.map(signed), guard.unlisted.map(signed));
                insert.execute(params![
                    place,
                    guard.identity.0,
                    signed(guard.chosen),
                    confirmed,
                    unlisted,
                    guard.bias.circuits,
                    guard.bias.built,
                    guard.bias.uses,
                    guard.bias.used,
                    guard.bias.barred,
                    guard.rsa_id
                ])?;
            }
            Ok(())
        })
    }

    /// The vanguards.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn vanguards(&self) -> Result<Vec<Vanguard>, StoreError> {
        let sql = "SELECT identity, layer, until, rsa_id FROM vanguard ORDER BY place";
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            let found = layer(row.get(1)?);
            let (identity, until) = (Key(row.get(0)?), row.get::<_, i64>(2)?);
            let rsa_id = row.get(3)?;
            Ok(found.map(|layer| Vanguard {
                identity,
                rsa_id,
                layer,
                until: u64::try_from(until).unwrap_or(0),
            }))
        })?;
        let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Keeps these vanguards instead of those before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_vanguards(&mut self, vanguards: &[Vanguard]) -> Result<(), StoreError> {
        let sql = "INSERT INTO vanguard (place, identity, layer, until, rsa_id) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.transaction(|transaction| {
            transaction.execute("DELETE FROM vanguard", [])?;
            let mut insert = transaction.prepare(sql)?;
            for (place, one) in (0i64..).zip(vanguards) {
                let (layer, until) = (layer_number(one.layer), signed(one.until));
                insert.execute(params![place, one.identity.0, layer, until, one.rsa_id])?;
            }
            Ok(())
        })
    }

    /// The exits of which the client takes its, and how far they are.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        let sql = "SELECT identity, millis, since FROM candidate ORDER BY place";
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            Ok(Candidate {
                identity: Key(row.get(0)?),
                millis: row.get(1)?,
                since: u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0),
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Keeps these instead of those before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_candidates(&mut self, candidates: &[Candidate]) -> Result<(), StoreError> {
        let sql = "INSERT INTO candidate (place, identity, millis, since) VALUES (?1, ?2, ?3, ?4)";
        self.transaction(|transaction| {
            transaction.execute("DELETE FROM candidate", [])?;
            let mut insert = transaction.prepare(sql)?;
            for (place, one) in (0i64..).zip(candidates) {
                let since = signed(one.since);
                insert.execute(params![place, one.identity.0, one.millis, since])?;
            }
            Ok(())
        })
    }

    /// The descriptors that an authority has gathered, each with the time since when its relay passes its tests.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn descriptors(&self) -> Result<Vec<(String, Option<u64>)>, StoreError> {
        let sql = "SELECT text, since FROM descriptor";
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            let since: Option<i64> = row.get(1)?;
            Ok((
                row.get(0)?,
                since.and_then(|since| u64::try_from(since).ok()),
            ))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Writes all of these at once, or nothing: one wait for the disk, however many they are.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            changes
                .iter()
                .try_for_each(|change| change.write(transaction))
        })
    }

    fn texts(&self, sql: &str) -> Result<Vec<String>, StoreError> {
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

fn keep_list(transaction: &Transaction<'_>, text: &str) -> rusqlite::Result<()> {
    let before =
        "INSERT OR REPLACE INTO before (one, text) SELECT 1, text FROM list WHERE split = 0";
    let sql = "INSERT OR REPLACE INTO list (one, text, split) VALUES (1, ?1, 0)";
    transaction.execute(before, [])?;
    transaction.execute(sql, [text]).map(drop)
}

impl Change {
    fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        match self {
            Self::Descriptor(identity, text) => {
                let sql = "INSERT INTO descriptor (identity, text) VALUES (?1, ?2) \
                           ON CONFLICT (identity) DO UPDATE SET text = excluded.text";
                let mut insert = transaction.prepare_cached(sql)?;
                insert.execute(params![identity.0, text]).map(drop)
            }
            Self::Since(identity, since) => {
                let sql = "UPDATE descriptor SET since = ?2 WHERE identity = ?1";
                let mut update = transaction.prepare_cached(sql)?;
                update
                    .execute(params![identity.0, signed(*since)])
                    .map(drop)
            }
            Self::Forget(identity) => {
                let sql = "DELETE FROM descriptor WHERE identity = ?1";
                let mut delete = transaction.prepare_cached(sql)?;
                delete.execute([identity.0]).map(drop)
            }
            Self::List(text) => keep_list(transaction, text),
        }
    }
}

fn guard(row: &Row<'_>) -> rusqlite::Result<Guard> {
    let time = |column: usize| -> rusqlite::Result<Option<u64>> {
        let seconds: Option<i64> = row.get(column)?;
        Ok(seconds.and_then(|seconds| u64::try_from(seconds).ok()))
    };
    Ok(Guard {
        identity: Key(row.get(0)?),
        rsa_id: row.get(9)?,
        chosen: time(1)?.unwrap_or(0),
        confirmed: time(2)?,
        unlisted: time(3)?,
        bias: PathBias {
            circuits: row.get(4)?,
            built: row.get(5)?,
            uses: row.get(6)?,
            used: row.get(7)?,
            barred: row.get(8)?,
        },
    })
}

/// As the store has it.
fn layer(number: u8) -> Option<Layer> {
    match number {
        2 => Some(Layer::Second),
        3 => Some(Layer::Third),
        _ => None,
    }
}

fn layer_number(layer: Layer) -> u8 {
    match layer {
        Layer::Second => 2,
        Layer::Third => 3,
    }
}

/// SQLite's integers are signed.
fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(n: u8, confirmed: Option<u64>) -> Guard {
        Guard {
            identity: Key([n; 32]),
            rsa_id: None,
            chosen: 7,
            confirmed,
            unlisted: None,
            bias: PathBias::default(),
        }
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache.sqlite");
        let bias = PathBias {
            circuits: 5,
            built: 4,
            uses: 3,
            used: 2,
            barred: true,
        };
        let suspected = Guard {
            rsa_id: Some([5; 20]),
            bias,
            ..guard(9, Some(3))
        };
        let guards = [suspected, guard(1, None)];
        let vanguard = |layer| Vanguard {
            identity: Key([4; 32]),
            rsa_id: (layer == Layer::Third).then_some([6; 20]),
            layer,
            until: 6,
        };
        let vanguards = [Layer::Second, Layer::Third].map(vanguard);
        let candidate = |millis| Candidate {
            identity: Key([3; 32]),
            millis,
            since: 5,
        };
        let candidates = [candidate(Some(u32::MAX)), candidate(None)];
        {
            let mut store = Store::open(&path).expect("made");
            assert_eq!(store.list().expect("read"), None);
            store.keep_list("first").expect("kept");
            store.keep_list("second").expect("kept");
            store.keep_guards(&guards).expect("kept");
            store.keep_candidates(&candidates).expect("kept");
            store.keep_vanguards(&vanguards).expect("kept");
            let descriptor = |text: &str| Change::Descriptor(Key([1; 32]), text.into());
            let changes = [descriptor("old"), descriptor("new")];
            store.write(&changes).expect("kept");
            let since = [
                Change::Since(Key([1; 32]), 7),
                Change::Since(Key([2; 32]), 8),
            ];
            store.write(&since).expect("kept");
            store.write(&[descriptor("newer")]).expect("kept");
        }
        let mut store = Store::open(&path).expect("opened");
        assert_eq!(store.list().expect("read"), Some(("second".into(), false)));
        assert_eq!(store.guards().expect("read"), guards);
        assert_eq!(store.candidates().expect("read"), candidates);
        assert_eq!(store.vanguards().expect("read"), vanguards);
        let descriptors = store.descriptors().expect("read");
        assert_eq!(descriptors, [("newer".to_owned(), Some(7))]);
        let changes = [Change::Forget(Key([1; 32])), Change::List("third".into())];
        store.write(&changes).expect("forgotten");
        assert_eq!(store.list().expect("read"), Some(("third".into(), false)));
        assert_eq!(store.before().expect("read"), Some("second".into()));
        assert!(store.descriptors().expect("read").is_empty());
    }

    #[test]
    fn a_split_leaves_its_proof_and_only_the_last_one() {
        let mut store = Store::in_memory().expect("made");
        store.keep_list("a").expect("kept");
        store.keep_split("a", "b").expect("kept");
        store.keep_split("c", "d").expect("kept");
        assert_eq!(store.list().expect("read"), Some(("a".into(), true)));
        assert_eq!(store.proofs().expect("read"), ["c", "d"]);
        store.keep_list("e").expect("kept");
        assert_eq!(store.list().expect("read"), Some(("e".into(), false)));
    }

    #[test]
    fn others_read_neither_the_file_nor_its_journal_nor_one_that_an_earlier_version_left_open() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("made").join("cache.sqlite");
        let mode =
            |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let mut store = Store::open(&path).expect("made");
        assert_eq!(
            (mode(path.parent().expect("one")), mode(&path)),
            (0o700, 0o600)
        );
        let journal = path.with_file_name("cache.sqlite-journal");
        let transaction = store.connection.transaction().expect("begun");
        transaction
            .execute("INSERT INTO proof (text) VALUES ('a')", [])
            .expect("written");
        assert_eq!(mode(&journal), 0o600);
        drop(transaction);
        drop(store);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        drop(Store::open(&path).expect("opened"));
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn guards_of_the_first_version_are_kept_in_their_order() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache.sqlite");
        let old = Connection::open(&path).expect("made");
        let first = include_str!("store/schema.sql").replace("confirmed", "failed");
        let first = first.replace("CREATE TABLE before", "CREATE TABLE absent");
        let first = first.replace("CREATE TABLE candidate", "CREATE TABLE missing");
        let first = first.replace("CREATE TABLE vanguard", "CREATE TABLE lacking");
        let first = first.replace(", since INTEGER) WITHOUT", ") WITHOUT");
        let (begin, rest) = first.split_once(", circuits").expect("counts");
        let (_, end) = rest.split_once(");").expect("an end");
        let first = format!("{begin});{end}");
        old.execute_batch(&first).expect("made");
        let insert = "INSERT INTO guard VALUES (?1, ?2, 7, ?3, NULL)";
        old.execute(insert, params![0, [9u8; 32], 3]).expect("kept");
        old.execute(insert, params![1, [1u8; 32], None::<i64>])
            .expect("kept");
        old.pragma_update(None, "user_version", 1).expect("set");
        drop(old);
        for _ in 0..2 {
            let store = Store::open(&path).expect("opened");
            let expected = [guard(9, None), guard(1, Some(7))];
            assert_eq!(store.guards().expect("read"), expected);
        }
    }

    #[test]
    fn a_file_that_is_no_store_is_told_from_one_of_another_version() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache.sqlite");
        std::fs::write(
            &path,
            "this is no database, only a text that is long enough to be taken for one".repeat(20),
        )
        .expect("written");
        let error = Store::open(&path).expect_err("no store").to_string();
        assert!(error.contains("remove it"), "{error}");
        std::fs::remove_file(&path).expect("removed");
        let store = Store::open(&path).expect("made");
        store
            .connection
            .pragma_update(None, "user_version", 99)
            .expect("set");
        drop(store);
        let error = Store::open(&path).expect_err("another version").to_string();
        assert!(error.contains("version 99"), "{error}");
    }
}
