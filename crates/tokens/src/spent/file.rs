//! Marks in SQLite, for this process and others that have the file open.
//!
//! One thread writes; those that come while it does share one transaction. What was marked in the last moments before the machine lost its power
//! may be forgotten; what was before, and whatever happens to the process, is not.

use std::{path::Path, sync::Arc, thread, time::Instant};

use rusqlite::{Connection, params};
use tokio::sync::mpsc;

use super::{Asker, KEPT, Mark, SpentError};
use crate::private_file::{self, FileError};

/// The schema's version, in `user_version`.
const VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE key (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, seen INTEGER NOT NULL);
CREATE TABLE spent (key INTEGER NOT NULL, nonce BLOB NOT NULL, PRIMARY KEY (key, nonce)) WITHOUT ROWID;
";
/// How many are marked in one transaction.
const BATCH: usize = 256;
/// After so many seconds it is noted again that a key was seen.
const DAY: u64 = 24 * 3600;

/// Opens the file, and a thread that writes it as long as somebody can ask.
pub(super) fn open(
    path: &Path,
    (keys, now): (&[[u8; 32]], u64),
    queue: usize,
) -> Result<mpsc::Sender<(Mark, Asker)>, SpentError> {
    let mut connection = private_file::open(path, VERSION, SCHEMA)?;
    connection
        .pragma_update(None, "synchronous", "NORMAL")
        .map_err(FileError::from)?;
    forget(&mut connection, keys, now).map_err(FileError::from)?;
    let (asking, asked) = mpsc::channel(queue);
    let mut writer = Writer {
        connection,
        opened: (now, Instant::now()),
    };
    thread::Builder::new()
        .name("spent-tokens".into())
        .spawn(move || writer.run(asked))
        .map_err(|error| SpentError::Thread(Arc::new(error)))?;
    Ok(asking)
}

struct Writer {
    connection: Connection,
    /// In seconds since 1970, and by the clock that goes on.
    opened: (u64, Instant),
}

impl Writer {
    /// Seconds since 1970.
    fn now(&self) -> u64 {
        let (at, opened) = self.opened;
        at.saturating_add(opened.elapsed().as_secs())
    }

    /// Until nobody can ask any more. Whoever's mark could not be written hears nothing, which is no admission.
    fn run(&mut self, mut asked: mpsc::Receiver<(Mark, Asker)>) {
        let mut batch = Vec::new();
        while asked.blocking_recv_many(&mut batch, BATCH) > 0 {
            let (marks, askers): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
            if let Ok(fresh) = self.mark(&marks) {
                for (asker, fresh) in askers.into_iter().zip(fresh) {
                    asker.tell(Ok(fresh));
                }
            }
        }
    }

    /// Which of them were not marked before.
    fn mark(&mut self, marks: &[Mark]) -> rusqlite::Result<Vec<bool>> {
        let now = self.now();
        let transaction = self.connection.transaction()?;
        let mut fresh = Vec::new();
        {
            let mut key = transaction
                .prepare_cached("INSERT OR IGNORE INTO key (id, seen) VALUES (?1, ?2)")?;
            // Whoever spends a token of it has it verified: it is among the issuer's keys.
            let mut seen = transaction
                .prepare_cached("UPDATE key SET seen = ?2 WHERE id = ?1 AND seen < ?3")?;
            let mut last = None;
            let mut spend = transaction.prepare_cached(
                "INSERT OR IGNORE INTO spent (key, nonce) SELECT number, ?2 FROM key WHERE id = ?1",
            )?;
            for mark in marks {
                let mut spend = || spend.execute(params![mark.key, mark.nonce]);
                // A key is new once in a week: then nothing could be spent of it.
                let first = spend()? == 1;
                let is_fresh = first || key.execute(params![mark.key, now])? == 1 && spend()? == 1;
                if is_fresh && last.replace(mark.key) != Some(mark.key) {
                    seen.execute(params![mark.key, now, now.saturating_sub(DAY)])?;
                }
                fresh.push(is_fresh);
            }
        }
        transaction.commit()?;
        Ok(fresh)
    }
}

/// Forgets with a key what it has signed.
fn forget(connection: &mut Connection, keys: &[[u8; 32]], now: u64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let (now, before) = (now, now.saturating_sub(KEPT));
    for key in keys {
        let seen = "INSERT INTO key (id, seen) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET seen = ?2";
        transaction.execute(seen, params![key, now])?;
    }
    // Where no key is known, nobody knows which have gone.
    if !keys.is_empty() {
        let gone = "SELECT number FROM key WHERE seen < ?1";
        let forget = format!("DELETE FROM spent WHERE key IN ({gone})");
        transaction.execute(&forget, [before])?;
        transaction.execute("DELETE FROM key WHERE seen < ?1", [before])?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::token, *};
    use crate::{AlreadySpent, SpentOptions, SpentTokens};

    #[tokio::test]
    async fn a_token_is_spent_once_also_after_a_restart_and_by_another_process() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("spent.sqlite");
        let first =
            SpentTokens::open(&file, &[[1; 32]], 1000, SpentOptions::default()).expect("opens");
        assert_eq!(first.spend(&token(1, 1)).await.expect("kept"), Ok(()));
        let again = first.spend(&token(1, 1)).await.expect("kept");
        assert_eq!(again, Err(AlreadySpent));
        let other =
            SpentTokens::open(&file, &[[1; 32]], 1000, SpentOptions::default()).expect("opens");
        let there = other.spend(&token(1, 1)).await.expect("kept");
        assert_eq!(there, Err(AlreadySpent));
        assert_eq!(
            other.spend(&token(1, 2)).await.expect("kept"),
            Ok(()),
            "another key"
        );
    }

    #[tokio::test]
    async fn of_many_who_spend_one_token_at_once_one_is_admitted() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("spent.sqlite");
        let stores = [(); 2].map(|()| {
            SpentTokens::open(&file, &[[1; 32]], 1000, SpentOptions::default()).expect("opens")
        });
        for number in 0..20 {
            let asked = (0..50).map(|n| {
                let store = stores[n % 2].clone();
                tokio::spawn(async move { store.spend(&token(number, 1)).await.expect("kept") })
            });
            let mut admitted = 0;
            for asked in asked.collect::<Vec<_>>() {
                admitted += usize::from(asked.await.expect("no panic").is_ok());
            }
            assert_eq!(admitted, 1);
        }
    }

    #[tokio::test]
    async fn what_was_spent_of_a_key_is_forgotten_a_month_after_it() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("spent.sqlite");
        let open = |keys: &[[u8; 32]], now| {
            SpentTokens::open(&file, keys, now, SpentOptions::default()).expect("opens")
        };
        let both = [[1; 32], [2; 32]];
        let store = open(&both, 1000);
        for key in [1, 2] {
            let spent = store.spend(&token(7, key)).await.expect("kept");
            assert_eq!(spent, Ok(()));
        }
        let soon = open(&[[2; 32]], 1000 + KEPT);
        let again = soon.spend(&token(7, 1)).await.expect("kept");
        assert_eq!(again, Err(AlreadySpent));
        let later = open(&[[2; 32]], 1001 + KEPT);
        assert_eq!(later.spend(&token(7, 1)).await.expect("kept"), Ok(()));
        let again = later.spend(&token(7, 2)).await.expect("kept");
        assert_eq!(again, Err(AlreadySpent));
    }
    #[tokio::test]
    async fn nothing_is_forgotten_while_no_key_is_known_nor_of_one_that_was_used_lately() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("spent.sqlite");
        let open = |keys: &[[u8; 32]], now| {
            SpentTokens::open(&file, keys, now, SpentOptions::default()).expect("opens")
        };
        let store = open(&[[1; 32]], 1000);
        assert_eq!(store.spend(&token(7, 1)).await.expect("kept"), Ok(()));
        // The file of keys is gone, and they have not been fetched yet.
        let later = 2000 + KEPT;
        drop(open(&[], later));
        let store = open(&[[1; 32]], later);
        let again = store.spend(&token(7, 1)).await.expect("kept");
        assert_eq!(again, Err(AlreadySpent));
        // A relay that has run for long takes a token, and then the key is missing by mistake.
        let mut writer = Writer {
            connection: private_file::open(&file, VERSION, SCHEMA).expect("opens"),
            opened: (later + KEPT, Instant::now()),
        };
        let fresh = writer.mark(&[Mark::of(&token(8, 1))]).expect("written");
        assert_eq!(fresh, [true]);
        drop(open(&[[2; 32]], later + KEPT + 1));
        let store = open(&[[1; 32]], later + KEPT + 1);
        let again = store.spend(&token(7, 1)).await.expect("kept");
        assert_eq!(again, Err(AlreadySpent));
    }
}
