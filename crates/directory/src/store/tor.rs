//! Tor's documents in a client's file: the consensus that is used, the certificates of those who have signed it, and the microdescriptors that it
//! names. The tables are made when they are first needed; whoever does not know them leaves them alone.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, Transaction, params};

use super::{Store, StoreError};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS tor_document (name TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
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
    /// Microdescriptors, one behind the other.
    pub microdescriptors: String,
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
            let mut all = transaction.prepare("SELECT text FROM tor_microdescriptor")?;
            let all = all.query_map([], |row| row.get::<_, String>(0))?;
            Ok(Some(TorDocuments {
                consensus,
                certificates: certificates.unwrap_or_default(),
                microdescriptors: all.collect::<rusqlite::Result<String>>()?,
            }))
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

fn document(transaction: &Transaction<'_>, name: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT text FROM tor_document WHERE name = ?1";
    transaction
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
        assert_eq!(kept.microdescriptors, "onetwo");
        let named = [digest(2), digest(3)].into();
        let texts = [(digest(3), "three")];
        store
            .keep_tor_documents(("d", "l"), texts.into_iter(), &named)
            .expect("kept");
        let kept = store.tor_documents().expect("read").expect("kept");
        let expected = TorDocuments {
            consensus: "d".into(),
            certificates: "l".into(),
            microdescriptors: "twothree".into(),
        };
        assert_eq!(kept, expected);
    }
}
