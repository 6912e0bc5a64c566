//! Tor's documents in a client's file: the consensus that is used, the certificates of those who have signed it, and the microdescriptors that it
//! names; a directory cache's file has earlier consensuses, too. The tables are made when they are first needed; whoever does not know them leaves them alone.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{Store, StoreError};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS tor_document (name TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tor_earlier (number INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tor_microdescriptor (digest BLOB NOT NULL PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
";
const CONSENSUS: &str = "consensus";
const CERTIFICATES: &str = "certificates";

/// What is kept of Tor's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TorDocuments {
    /// The consensus.
    pub consensus: String,
    /// Key certificates of those who have signed it, one behind the other.
    pub certificates: String,
    /// Microdescriptors, each with its SHA-256: in no order, and as many bytes as there are.
    pub microdescriptors: Vec<([u8; 32], String)>,
}

impl Store {
    /// Tor's documents, if there are any.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn tor_documents(&mut self) -> Result<Option<TorDocuments>, StoreError> {
        self.transaction(|transaction| {
            transaction.execute_batch(TABLES)?;
            let Some(consensus) = document(transaction, CONSENSUS)? else {
                return Ok(None);
            };
            let certificates = document(transaction, CERTIFICATES)?;
            let mut all = transaction.prepare("SELECT digest, text FROM tor_microdescriptor")?;
            let all = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(Some(TorDocuments {
                consensus,
                certificates: certificates.unwrap_or_default(),
                microdescriptors: all.collect::<rusqlite::Result<_>>()?,
            }))
        })
    }

    /// The consensus, if there is one: without all that belongs to it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn tor_consensus(&self) -> Result<Option<String>, StoreError> {
        Ok(document(&self.connection, CONSENSUS)?)
    }

    /// The numbers of earlier consensuses, the latest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn tor_earlier(&self) -> Result<Vec<i64>, StoreError> {
        let sql = "SELECT number FROM tor_earlier ORDER BY number DESC";
        let mut numbers = self.connection.prepare(sql)?;
        let numbers = numbers.query_map([], |row| row.get(0))?;
        Ok(numbers.collect::<rusqlite::Result<_>>()?)
    }

    /// An earlier consensus, by its number.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn tor_earlier_consensus(&self, number: i64) -> Result<Option<String>, StoreError> {
        let sql = "SELECT text FROM tor_earlier WHERE number = ?1";
        let found = self
            .connection
            .query_row(sql, [number], |row| row.get(0))
            .optional();
        Ok(found?)
    }

    /// The consensus that is kept becomes an earlier one, of which there are `most` at most; the oldest go.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_tor_earlier(&mut self, most: usize) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            transaction.execute_batch(TABLES)?;
            let sql = "INSERT INTO tor_earlier (text) SELECT text FROM tor_document WHERE name = ?1";
            transaction.execute(sql, [CONSENSUS])?;
            let sql = "DELETE FROM tor_earlier WHERE number NOT IN (SELECT number FROM tor_earlier ORDER BY number DESC LIMIT ?1)";
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            transaction.execute(sql, [most]).map(drop)
        })
    }

    /// Keeps a consensus and the certificates for it instead of those before, and these microdescriptors, each with its SHA-256, beside those that
    /// are kept and `named`; others go. All of it or nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_tor_documents<'a>(
        &mut self,
        (consensus, certificates): (&str, &str),
        microdescriptors: impl Iterator<Item = ([u8; 32], &'a str)>,
        named: &HashSet<[u8; 32]>,
    ) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            transaction.execute_batch(TABLES)?;
            let sql = "INSERT OR REPLACE INTO tor_document (name, text) VALUES (?1, ?2)";
            transaction.execute(sql, [CONSENSUS, consensus])?;
            transaction.execute(sql, [CERTIFICATES, certificates])?;
            forget_others(transaction, named)?;
            let sql = "INSERT OR REPLACE INTO tor_microdescriptor (digest, text) VALUES (?1, ?2)";
            let mut insert = transaction.prepare(sql)?;
            for (digest, text) in microdescriptors {
                insert.execute(params![digest, text])?;
            }
            Ok(())
        })
    }
}

fn document(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT text FROM tor_document WHERE name = ?1";
    connection
        .query_row(sql, [name], |row| row.get(0))
        .optional()
}

fn forget_others(transaction: &Transaction<'_>, named: &HashSet<[u8; 32]>) -> rusqlite::Result<()> {
    let mut kept = transaction.prepare("SELECT digest FROM tor_microdescriptor")?;
    let kept = kept.query_map([], |row| row.get::<_, [u8; 32]>(0))?;
    let kept = kept.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut forget = transaction.prepare("DELETE FROM tor_microdescriptor WHERE digest = ?1")?;
    for digest in kept.iter().filter(|digest| !named.contains(*digest)) {
        forget.execute([digest])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_there_after_a_restart_and_microdescriptors_that_nobody_names_are_not() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("cache.sqlite");
        let digest = |n: u8| [n; 32];
        {
            let mut store = Store::open(&path).expect("made");
            assert_eq!(store.tor_documents().expect("read"), None);
            let named = [digest(1), digest(2)].into();
            let texts = [(digest(1), "one"), (digest(2), "two")];
            store
                .keep_tor_documents(("c", "k"), texts.into_iter(), &named)
                .expect("kept");
        }
        let mut store = Store::open(&path).expect("opened");
        let kept = store.tor_documents().expect("read").expect("kept");
        let both = [(digest(1), "one".into()), (digest(2), "two".into())];
        assert_eq!(kept.microdescriptors, both);
        let named = [digest(2), digest(3)].into();
        let texts = [(digest(3), "three")];
        store
            .keep_tor_documents(("d", "l"), texts.into_iter(), &named)
            .expect("kept");
        let kept = store.tor_documents().expect("read").expect("kept");
        let expected = TorDocuments {
            consensus: "d".into(),
            certificates: "l".into(),
            microdescriptors: vec![(digest(2), "two".into()), (digest(3), "three".into())],
        };
        assert_eq!(kept, expected);
    }
    #[test]
    fn as_many_earlier_consensuses_are_kept_as_are_wanted_and_the_oldest_go() {
        let mut store = Store::in_memory().expect("made");
        for text in ["a", "b", "c", "d"] {
            store.keep_tor_earlier(2).expect("kept");
            let none = std::iter::empty();
            store
                .keep_tor_documents((text, ""), none, &HashSet::new())
                .expect("kept");
        }
        let numbers = store.tor_earlier().expect("read");
        let texts = numbers.iter().map(|number| {
            let text = store.tor_earlier_consensus(*number).expect("read");
            text.expect("there")
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(store.tor_consensus().expect("read").as_deref(), Some("d"));
    }
}
