//! A client's tokens that are not spent yet, in SQLite: taken out before they are shown, so that none is shown twice, whatever happens to the process.

use std::path::Path;

use hoplite_wire::privacy_pass::PrivateToken;
use rusqlite::{Connection, OptionalExtension, params};
use zeroize::Zeroizing;

use crate::private_file::{self, FileError};

/// The schema's version, in `user_version`.
const VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE token (number INTEGER PRIMARY KEY, challenge BLOB NOT NULL, key BLOB NOT NULL, token BLOB NOT NULL);
CREATE INDEX by_challenge ON token (challenge, number);
";

/// Why there is no token to be had of the stock.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<rusqlite::Error> for StockError {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error.into())
    }
}

/// One file. Several processes may have it open: a token is given to one of them.
#[derive(Debug)]
pub struct Stock(Connection);

impl Stock {
    /// Opens a file, and makes it if it is not there, for this user alone: tokens are money.
    ///
    /// # Errors
    /// [`StockError`].
    pub fn open(path: &Path) -> Result<Self, StockError> {
        let connection = private_file::open(path, VERSION, SCHEMA)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // What was spent is not left in the file for others to find.
        connection.pragma_update(None, "secure_delete", true)?;
        Ok(Self(connection))
    }

    /// Puts tokens into it.
    ///
    /// # Errors
    /// [`StockError`]: then none of them is in it.
    pub fn put(&mut self, tokens: &[PrivateToken]) -> Result<(), StockError> {
        let transaction = self.0.transaction()?;
        {
            let mut put = transaction
                .prepare("INSERT INTO token (challenge, key, token) VALUES (?1, ?2, ?3)")?;
            for token in tokens {
                let (challenge, key) = (token.challenge_digest(), token.key_id());
                put.execute(params![challenge, key, token.encode().as_slice()])?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Takes out a token for this challenge, the oldest first; none if it has none.
    ///
    /// # Errors
    /// [`StockError`]: then nothing was taken.
    pub fn take(&mut self, challenge: &[u8; 32]) -> Result<Option<PrivateToken>, StockError> {
        let mut take = self.0.prepare_cached(
            "DELETE FROM token WHERE number = (SELECT min(number) FROM token WHERE challenge = ?1) RETURNING token",
        )?;
        // To the statement's end: SQLite gives the row before it commits, and what it could not commit (a full disk) is still in the file.
        let bytes = take.query_one([challenge], |row| row.get(0).map(Zeroizing::new));
        let bytes: Option<Zeroizing<Vec<u8>>> = bytes.optional()?;
        Ok(bytes.and_then(|bytes| PrivateToken::decode(&bytes).ok()))
    }

    /// How many there are for this challenge.
    ///
    /// # Errors
    /// [`StockError`].
    pub fn count(&self, challenge: &[u8; 32]) -> Result<usize, StockError> {
        let count = "SELECT count(*) FROM token WHERE challenge = ?1";
        Ok(self.0.query_row(count, [challenge], |row| row.get(0))?)
    }

    /// How many there are, whatever they are for.
    ///
    /// # Errors
    /// [`StockError`].
    pub fn total(&self) -> Result<usize, StockError> {
        let count = "SELECT count(*) FROM token";
        Ok(self.0.query_row(count, [], |row| row.get(0))?)
    }

    /// Forgets those of all keys but these: no relay takes them any more. How many were forgotten.
    ///
    /// # Errors
    /// [`StockError`].
    pub fn retain(&mut self, keys: &[[u8; 32]]) -> Result<usize, StockError> {
        let transaction = self.0.transaction()?;
        let mut known: Vec<[u8; 32]> = Vec::new();
        {
            let mut rows = transaction.prepare("SELECT DISTINCT key FROM token")?;
            for key in rows.query_map([], |row| row.get(0))? {
                known.push(key?);
            }
        }
        let mut forgotten = 0;
        for key in known.iter().filter(|key| !keys.contains(key)) {
            forgotten += transaction.execute("DELETE FROM token WHERE key = ?1", [key])?;
        }
        transaction.commit()?;
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, os::unix::fs::PermissionsExt};

    use hoplite_wire::privacy_pass::{Authenticator, TokenInput};

    use super::*;

    fn token(number: u8, challenge: u8, key: u8) -> PrivateToken {
        let input = TokenInput {
            nonce: [number; 32],
            challenge_digest: [challenge; 32],
            key_id: [key; 32],
        };
        // Of both types.
        let authenticator = match number % 2 {
            0 => Authenticator::Voprf([0; 48]),
            _ => Authenticator::BlindRsa([0; 256]),
        };
        PrivateToken::new(input, authenticator)
    }

    #[test]
    fn what_the_file_still_has_is_not_given_when_it_cannot_be_taken_out() {
        let place = tempfile::tempdir().expect("a directory");
        let mut stock = Stock::open(&place.path().join("stock.sqlite")).expect("opens");
        stock.put(&[token(1, 1, 1)]).expect("put");
        // As on a full disk, the row is given and the end of the statement fails.
        let held = "PRAGMA foreign_keys = ON; CREATE TABLE held (number REFERENCES token DEFERRABLE INITIALLY DEFERRED); INSERT INTO held SELECT number FROM token";
        stock.0.execute_batch(held).expect("held");
        stock.take(&[1; 32]).expect_err("it is still there");
        assert_eq!(stock.count(&[1; 32]).expect("a stock"), 1);
        stock.0.execute_batch("DELETE FROM held").expect("let go");
        assert_eq!(stock.take(&[1; 32]).expect("a stock"), Some(token(1, 1, 1)));
    }

    #[test]
    fn each_token_is_given_once_by_whoever_has_the_file_open() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("stock.sqlite");
        let mut stocks = [(); 2].map(|()| Stock::open(&file).expect("opens"));
        let tokens: Vec<_> = (0..40).map(|n| token(n, 1, 1)).collect();
        stocks[0].put(&tokens).expect("put");
        stocks[1].put(&[token(99, 2, 1)]).expect("put");
        let mut seen = HashSet::new();
        for n in 0..40 {
            let taken = stocks[n % 2].take(&[1; 32]).expect("a stock");
            assert!(seen.insert(*taken.expect("a token").nonce()));
        }
        assert_eq!(stocks[0].take(&[1; 32]).expect("a stock"), None);
        assert_eq!(stocks[0].count(&[2; 32]).expect("a stock"), 1);
        let taken = stocks[0].take(&[2; 32]).expect("a stock");
        assert_eq!(taken, Some(token(99, 2, 1)));
    }

    #[test]
    fn what_no_relay_takes_any_more_is_forgotten() {
        let place = tempfile::tempdir().expect("a directory");
        let mut stock = Stock::open(&place.path().join("stock.sqlite")).expect("opens");
        let tokens = [token(1, 1, 1), token(2, 1, 2), token(3, 2, 1)];
        stock.put(&tokens).expect("put");
        assert_eq!(stock.retain(&[[2; 32]]).expect("a stock"), 2);
        assert_eq!(stock.count(&[1; 32]).expect("a stock"), 1);
        assert_eq!(stock.total().expect("a stock"), 1);
    }

    #[test]
    fn nobody_else_reads_the_file_or_its_journal_and_no_token_is_left_in_it() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("stock.sqlite");
        let mut stock = Stock::open(&file).expect("opens");
        stock.put(&[token(0xa7, 1, 1)]).expect("put");
        for entry in std::fs::read_dir(place.path()).expect("a directory") {
            let mode = entry
                .expect("a file")
                .metadata()
                .expect("a file")
                .permissions()
                .mode();
            assert_eq!(mode & 0o077, 0);
        }
        stock.take(&[1; 32]).expect("a stock").expect("a token");
        drop(stock);
        let left = std::fs::read(&file).expect("a file");
        assert!(!left.windows(32).any(|bytes| bytes == [0xa7; 32]));
    }
}
