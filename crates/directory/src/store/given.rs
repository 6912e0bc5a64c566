//! The lists that an authority, or a relay that keeps them for clients, has given: after a restart it tells the differences to them, too. Of a file of its own;
//! the table is made when it is first needed.

use super::{Store, StoreError};
use crate::list_cache::{EARLIER, EARLIER_BYTES};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS given_list (number INTEGER PRIMARY KEY, text TEXT NOT NULL)";
/// Those that are beyond so many, or beyond so many bytes, from the latest on.
const FORGET: &str = "DELETE FROM given_list WHERE number IN (SELECT number FROM (
    SELECT number, ROW_NUMBER() OVER latest AS place, SUM(LENGTH(text)) OVER latest AS bytes
    FROM given_list WINDOW latest AS (ORDER BY number DESC)) WHERE place > 1 AND (place > ?1 OR bytes > ?2))";

impl Store {
    /// All of them, the latest last.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn given_lists(&mut self) -> Result<Vec<String>, StoreError> {
        self.transaction(|transaction| transaction.execute_batch(TABLE))?;
        self.texts("SELECT text FROM given_list ORDER BY number")
    }

    /// Keeps one more, and no more than there is told the difference to.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_given_list(&mut self, text: &str) -> Result<(), StoreError> {
        self.transaction(|transaction| {
            transaction.execute_batch(TABLE)?;
            transaction.execute("INSERT INTO given_list (text) VALUES (?1)", [text])?;
            let most = [EARLIER.saturating_add(1), EARLIER_BYTES];
            let [count, bytes] = most.map(|most| i64::try_from(most).unwrap_or(i64::MAX));
            transaction.execute(FORGET, [count, bytes]).map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_there_after_a_restart_and_no_more_than_are_of_use() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("lists");
        let open = || Store::open(&path).expect("opened");
        assert_eq!(open().given_lists().expect("read"), [""; 0]);
        let name = |n: usize| format!("list {n}\n");
        (0..30).for_each(|n| open().keep_given_list(&name(n)).expect("kept"));
        let kept: Vec<_> = (5..30).map(name).collect();
        assert_eq!(open().given_lists().expect("read"), kept);
        let large = "x".repeat(EARLIER_BYTES - 20);
        open().keep_given_list(&large).expect("kept");
        let lengths = |lists: Vec<String>| lists.iter().map(String::len).collect::<Vec<_>>();
        let lists = open().given_lists().expect("read");
        assert_eq!(lengths(lists), [8, 8, EARLIER_BYTES - 20]);
        let larger = "x".repeat(EARLIER_BYTES + 1);
        open().keep_given_list(&larger).expect("kept");
        let lists = open().given_lists().expect("read");
        assert_eq!(lengths(lists), [larger.len()], "the last is always there");
    }
}
