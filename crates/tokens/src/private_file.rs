//! A SQLite file for this user alone, whatever the umask.

#[cfg(unix)]
use std::{
    fs::Permissions,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
};
use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    time::Duration,
};

use rusqlite::Connection;

/// How long another process may hold the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a file of tokens cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// SQLite says so.
    #[error("{0}: make room on its disk, and let this user write the file and its directory")]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be made, or kept from others.
    #[error("{0}: let this user write the file and its directory")]
    Private(#[from] io::Error),
    /// Another version has written it.
    #[error(
        "its schema has version {found}, this program knows {known}: use the program that wrote it, or another file"
    )]
    Version {
        /// The file's.
        found: i64,
        /// Ours.
        known: i64,
    },
}

/// Opens a file, and makes it if it is not there. SQLite gives its journal the mode of the file.
pub(crate) fn open(path: &Path, version: i64, schema: &str) -> Result<Connection, FileError> {
    make(path)?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(LOCK_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let transaction = connection.transaction()?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found == 0 {
        transaction.execute_batch(schema)?;
        transaction.pragma_update(None, "user_version", version)?;
    } else if found != version {
        return Err(FileError::Version {
            found,
            known: version,
        });
    }
    transaction.commit()?;
    Ok(connection)
}

/// Makes it, if it is not there, for this user alone. Where files have no mode it is open to whom its directory is.
fn make(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    options.mode(0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}
