//! An issuer: its keys, one for each epoch, and how many tokens its accounts have had today. It learns how many somebody asks for, and never which
//! they are or where they are spent. State without sockets or clock; times are seconds since 1970.

use std::{path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_wire::privacy_pass::TokenType;
use ring::hmac;
use rusqlite::{Connection, OptionalExtension, params};
use zeroize::Zeroizing;

use crate::{
    Holder, IssuerKey, KeyDirectory, KeyError, ListedKey, VerifierKeys,
    private_file::{self, FileError},
};

/// The schema's version, in `user_version`.
const VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE key (epoch INTEGER PRIMARY KEY, pem TEXT NOT NULL);
CREATE TABLE issued (account TEXT NOT NULL, day INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (account, day)) WITHOUT ROWID;
";
/// What came later; a file without it is given it, and a program that does not know it passes it over.
const LATER: &str = "
CREATE TABLE IF NOT EXISTS pepper (value BLOB NOT NULL);
INSERT INTO pepper SELECT randomblob(32) WHERE NOT EXISTS (SELECT 1 FROM pepper);
";
const DAY: u64 = 24 * 3600;

/// Why an issuer cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key cannot be made.
    #[error("a new key cannot be made: {0}")]
    Key(#[from] KeyError),
    /// A key in its file is none.
    #[error(
        "the key of epoch {0} in the file is damaged: remove the file, and tokens of that key are worth nothing"
    )]
    Damaged(u64),
}

impl From<rusqlite::Error> for IssuerError {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error.into())
    }
}

/// What an account may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance<'a> {
    /// Its name, for the operator alone.
    pub account: &'a str,
    /// Tokens in a day (UTC).
    pub per_day: u32,
}

/// An account has had what it may have today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all tokens of today are given out; there are more in {again_in} seconds")]
pub struct Refused {
    /// Seconds until there are more.
    pub again_in: u64,
}

/// One issuer, and its file.
#[derive(Debug)]
pub struct Issuer {
    file: Connection,
    /// Seconds.
    epoch: u64,
    /// Of the last epoch, this one and the next, as far as there are any.
    keys: Vec<(u64, Arc<IssuerKey>)>,
    /// Without it whoever has the file would find a holder's name by trying all.
    pepper: hmac::Key,
}

impl Issuer {
    /// Opens a file, and makes it if it is not there, for this user alone: it has the secret keys. An epoch lasts so many seconds.
    ///
    /// # Errors
    /// [`IssuerError`].
    pub fn open(path: &Path, epoch: u64) -> Result<Self, IssuerError> {
        let file = private_file::open(path, VERSION, SCHEMA)?;
        file.pragma_update(None, "synchronous", "FULL")?;
        file.pragma_update(None, "secure_delete", true)?;
        file.execute_batch(LATER)?;
        let pepper = "SELECT value FROM pepper";
        let pepper = file.query_row(pepper, [], |row| row.get(0).map(Zeroizing::new))?;
        let pepper: Zeroizing<Vec<u8>> = pepper;
        let mut issuer = Self {
            file,
            epoch: epoch.max(1),
            keys: Vec::new(),
            pepper: hmac::Key::new(hmac::HMAC_SHA256, &pepper),
        };
        issuer.keys = issuer.kept()?;
        Ok(issuer)
    }

    fn kept(&self) -> Result<Vec<(u64, Arc<IssuerKey>)>, IssuerError> {
        // Of whichever type: `pem` has its name from blind RSA.
        let mut rows = self
            .file
            .prepare("SELECT epoch, pem FROM key ORDER BY epoch")?;
        let rows = rows.query_map([], |row| Ok((row.get(0)?, Zeroizing::new(row.get(1)?))))?;
        rows.map(|row| {
            let (epoch, text): (u64, Zeroizing<String>) = row?;
            let key = IssuerKey::from_text(&text).map_err(|_| IssuerError::Damaged(epoch))?;
            Ok((epoch, Arc::new(key)))
        })
        .collect()
    }

    /// The first epoch for which a key is needed now and which has none: this one, or the next, so that relays know it before it is used.
    pub fn wanted(&self, now: u64) -> Option<u64> {
        let epoch = now / self.epoch;
        let has = |wanted: u64| self.keys.iter().any(|(epoch, _)| *epoch == wanted);
        [epoch, epoch.saturating_add(1)]
            .into_iter()
            .find(|wanted| !has(*wanted))
    }

    /// The type of tokens that are made in this epoch, if it has a key: that which was set when it was published.
    pub fn token_type(&self, now: u64) -> Option<TokenType> {
        let epoch = now / self.epoch;
        let mut keys = self.keys.iter();
        let key = keys.find(|(of, _)| *of == epoch);
        key.map(|(_, key)| key.public().token_type())
    }

    /// Takes a key for an epoch, which was made beside it because that takes a second; forgets those whose time has passed.
    ///
    /// # Errors
    /// [`IssuerError`]: then it has the key neither here nor in the file.
    pub fn take(&mut self, epoch: u64, key: IssuerKey, now: u64) -> Result<(), IssuerError> {
        let text = key.to_text()?;
        let first = (now / self.epoch).saturating_sub(1);
        let transaction = self.file.transaction()?;
        transaction.execute("DELETE FROM key WHERE epoch < ?1", [first])?;
        let insert = "INSERT OR REPLACE INTO key (epoch, pem) VALUES (?1, ?2)";
        transaction.execute(insert, params![epoch, text.as_str()])?;
        transaction.commit()?;
        self.keys
            .retain(|(other, _)| *other >= first && *other != epoch);
        self.keys.push((epoch, Arc::new(key)));
        self.keys.sort_by_key(|(epoch, _)| *epoch);
        Ok(())
    }

    /// Seconds until the next epoch begins.
    pub fn until_next(&self, now: u64) -> u64 {
        self.epoch - now % self.epoch
    }

    /// What it publishes: this epoch's key, then the last one's, whose tokens are still taken, and the next one's.
    pub fn directory(&self, request_uri: &str, now: u64) -> KeyDirectory {
        let epoch = now / self.epoch;
        let mut keys: Vec<_> = self.published(epoch).collect();
        keys.sort_by_key(|(of, _)| (*of > epoch, epoch.abs_diff(*of)));
        let listed = |(of, key): &(u64, Arc<IssuerKey>)| ListedKey {
            key: key.public().clone(),
            not_before: of.saturating_mul(self.epoch),
        };
        KeyDirectory {
            request_uri: request_uri.to_owned(),
            keys: keys.into_iter().map(listed).collect(),
        }
    }

    /// The same with what relays of its own operator verify tokens with: its secret keys of the VOPRF.
    pub fn verifier_keys(&self, request_uri: &str, now: u64) -> VerifierKeys {
        let keys = self.published(now / self.epoch);
        let secrets = keys.map(|(_, key)| Arc::clone(key)).collect();
        // None is missing: it has all of them.
        VerifierKeys::new(self.directory(request_uri, now), secrets).unwrap_or_default()
    }

    fn published(&self, epoch: u64) -> impl Iterator<Item = &(u64, Arc<IssuerKey>)> {
        self.keys
            .iter()
            .filter(move |(of, _)| of.abs_diff(epoch) <= 1)
    }

    /// The key of this type and truncated id, if it is in use: this epoch's or, for who asked before it began, the last one's.
    pub fn key(&self, token_type: TokenType, truncated_id: u8, now: u64) -> Option<Arc<IssuerKey>> {
        let epoch = now / self.epoch;
        let mut keys: Vec<_> = self
            .published(epoch)
            .filter(|(of, _)| *of <= epoch)
            .collect();
        keys.reverse();
        let found = keys.into_iter().find(|(_, key)| {
            let public = key.public();
            public.token_type() == token_type && public.truncated_id() == truncated_id
        });
        found.map(|(_, key)| Arc::clone(key))
    }

    /// What the holder of an OpenID Connect bearer is called in the file: the same one the same every time, and nobody's name.
    pub fn pseudonym(&self, holder: &Holder) -> String {
        // A length before the first part: no two pairs are written alike.
        let (issuer, name) = (&holder.issuer, &holder.name);
        let told = format!("{}:{issuer}{name}", issuer.len());
        let tag = hmac::sign(&self.pepper, told.as_bytes());
        format!("openid:{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Gives an account as many of the tokens that it asks for as it may still have today: they count from now on, whatever becomes of them.
    ///
    /// # Errors
    /// The file's, outside; inside, [`Refused`] if there is none left.
    pub fn grant(
        &mut self,
        allowance: &Allowance<'_>,
        asked: u32,
        now: u64,
    ) -> Result<Result<u32, Refused>, IssuerError> {
        let day = now / DAY;
        let transaction = self.file.transaction()?;
        transaction.execute("DELETE FROM issued WHERE day < ?1", [day])?;
        let had = "SELECT tokens FROM issued WHERE account = ?1 AND day = ?2";
        let had = transaction.query_row(had, params![allowance.account, day], |row| row.get(0));
        let had: u32 = had.optional()?.unwrap_or(0);
        let granted = asked.min(allowance.per_day.saturating_sub(had));
        if granted == 0 {
            return Ok(Err(Refused {
                again_in: DAY - now % DAY,
            }));
        }
        let count = "INSERT OR REPLACE INTO issued (account, day, tokens) VALUES (?1, ?2, ?3)";
        let all = had.saturating_add(granted);
        transaction.execute(count, params![allowance.account, day, all])?;
        transaction.commit()?;
        Ok(Ok(granted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 7 * DAY;
    const NOW: u64 = 100 * EPOCH + 5;

    fn issuer(place: &tempfile::TempDir) -> Issuer {
        Issuer::open(&place.path().join("issuer.sqlite"), EPOCH).expect("opens")
    }

    fn place() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    /// Makes what keys are wanted.
    fn rotate(issuer: &mut Issuer, now: u64) {
        rotate_to(issuer, TokenType::Voprf, now);
    }

    fn rotate_to(issuer: &mut Issuer, token_type: TokenType, now: u64) {
        while let Some(epoch) = issuer.wanted(now) {
            let key = IssuerKey::generate(token_type).expect("a key");
            issuer.take(epoch, key, now).expect("kept");
        }
    }

    #[test]
    fn keys_outlive_the_process_and_each_epoch_has_its_own() {
        let place = place();
        let mut first = issuer(&place);
        assert_eq!(first.wanted(NOW), Some(100));
        rotate(&mut first, NOW);
        let listed = first.directory("/ask", NOW);
        assert_eq!(listed.keys.len(), 2);
        let id = |now: u64, directory: &KeyDirectory| *directory.current(now).expect("a key").id();
        drop(first);
        let mut again = issuer(&place);
        assert_eq!(again.wanted(NOW), None);
        assert_eq!(again.directory("/ask", NOW), listed);
        let later = NOW + EPOCH;
        assert_ne!(id(NOW, &listed), id(later, &again.directory("/ask", later)));
        rotate(&mut again, later);
        let listed = again.directory("/ask", later);
        let begins: Vec<_> = listed.keys.iter().map(|listed| listed.not_before).collect();
        assert_eq!(begins, [101 * EPOCH, 100 * EPOCH, 102 * EPOCH]);
        rotate(&mut again, later + EPOCH);
        assert_eq!(again.directory("/ask", later + EPOCH).keys.len(), 3);
    }

    #[test]
    fn a_key_signs_in_its_epoch_and_a_while_after_and_never_before() {
        let mut issuer = issuer(&place());
        rotate(&mut issuer, NOW);
        let listed = issuer.directory("/ask", NOW);
        let [this, next] = listed.keys.as_slice() else {
            panic!("{listed:?}")
        };
        let (this, next) = (this.key.truncated_id(), next.key.truncated_id());
        let has = |id, now| issuer.key(TokenType::Voprf, id, now).is_some();
        assert!(has(this, NOW) && has(this, NOW + EPOCH));
        assert!(!has(this, NOW + 2 * EPOCH));
        assert!(this == next || !has(next, NOW), "not yet");
        assert!(has(next, NOW + EPOCH));
        assert!(issuer.key(TokenType::BlindRsa, this, NOW).is_none());
    }

    #[test]
    fn another_type_of_tokens_begins_with_the_next_key_that_is_made_and_the_old_ones_go_on() {
        let place = place();
        let mut issuer = issuer(&place);
        rotate_to(&mut issuer, TokenType::BlindRsa, NOW);
        // The next epoch's key is published already: relays have it.
        let later = NOW + EPOCH;
        rotate_to(&mut issuer, TokenType::Voprf, later);
        assert_eq!(issuer.token_type(later), Some(TokenType::BlindRsa));
        let switched = later + EPOCH;
        rotate_to(&mut issuer, TokenType::Voprf, switched);
        assert_eq!(issuer.token_type(switched), Some(TokenType::Voprf));
        let keys = issuer.verifier_keys("/ask", switched);
        let types = keys.directory().keys.iter();
        let types: Vec<_> = types.map(|listed| listed.key.token_type()).collect();
        let (voprf, rsa) = (TokenType::Voprf, TokenType::BlindRsa);
        assert_eq!(types, [voprf, rsa, voprf]);
        let read = VerifierKeys::parse(&keys.to_json()).expect("for relays");
        assert_eq!(read, keys);
        let current = |now| issuer.directory("/ask", now).current(now).cloned();
        for (now, token_type) in [(later, rsa), (switched, voprf)] {
            let key = current(now).expect("a key");
            assert_eq!(key.token_type(), token_type);
            let found = issuer.key(token_type, key.truncated_id(), now);
            assert_eq!(found.expect("in use").public(), &key);
        }
    }

    #[test]
    fn nobody_is_told_the_secret_keys_in_the_directory() {
        let mut issuer = issuer(&place());
        rotate(&mut issuer, NOW);
        let keys = issuer.verifier_keys("/ask", NOW);
        assert_eq!(keys.to_json().matches("secret-key").count(), 2);
        assert!(!keys.directory().to_json().contains("secret"));
        assert_eq!(keys.directory(), &issuer.directory("/ask", NOW));
    }

    #[test]
    fn an_account_has_what_it_may_have_each_day_also_after_a_restart() {
        let place = place();
        let account = |name| Allowance {
            account: name,
            per_day: 100,
        };
        let mut first = issuer(&place);
        assert_eq!(first.grant(&account("ann"), 60, NOW).expect("kept"), Ok(60));
        drop(first);
        let mut again = issuer(&place);
        assert_eq!(again.grant(&account("ann"), 60, NOW).expect("kept"), Ok(40));
        let refused = again.grant(&account("ann"), 1, NOW).expect("kept");
        assert_eq!(refused, Err(Refused { again_in: DAY - 5 }));
        assert_eq!(again.grant(&account("bob"), 1, NOW).expect("kept"), Ok(1));
        assert_eq!(
            again.grant(&account("ann"), 1, NOW + DAY).expect("kept"),
            Ok(1)
        );
    }

    #[test]
    fn a_holder_has_one_pseudonym_at_each_issuer_and_no_name_in_its_file() {
        let places = [place(), place()];
        let holder = |issuer: &str, name: &str| Holder {
            issuer: issuer.into(),
            name: name.into(),
        };
        let ann = holder("https://login.test", "ann.person");
        let mut first = issuer(&places[0]);
        let called = first.pseudonym(&ann);
        let allowance = Allowance {
            account: &called,
            per_day: 5,
        };
        assert_eq!(first.grant(&allowance, 5, NOW).expect("kept"), Ok(5));
        for other in [
            holder("https://login.test", "ann.persons"),
            holder("https://login.testann", ".person"),
        ] {
            assert_ne!(first.pseudonym(&other), called);
        }
        drop(first);
        assert_eq!(issuer(&places[0]).pseudonym(&ann), called);
        assert_ne!(
            issuer(&places[1]).pseudonym(&ann),
            called,
            "nobody can try all names"
        );
        for file in std::fs::read_dir(places[0].path()).expect("a directory") {
            let bytes = std::fs::read(file.expect("a file").path()).expect("a file");
            assert!(!bytes.windows(10).any(|part| part == b"ann.person"));
        }
    }
}
