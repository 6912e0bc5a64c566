//! The statistics of a network, added up: what each relay tells of its days, by C tor's authorities' extra-info documents or by documents of our own, kept
//! in SQLite, and the totals of each day with what the relays' noise leaves uncertain of them.
//!
//! Relays hide each figure by noise of a stated scale ([`hoplite_wire::tor::extra_info::Noise`]). Of a sum of independent noises the variances add up, so
//! that the totals of many relays are far more certain than any relay's own. C tor's relays state noise of what they tell of onion services alone; what they
//! round is taken as it is.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use hoplite_crypto::signing::is_signed;
use hoplite_wire::{
    directory::Key,
    relay_statistics::RelayStatistics,
    tor::extra_info::{ByPort, Noise, Statistics, Told},
};
use rusqlite::{Connection, params};

use crate::{RelayKey, StoreError, check::signer, store};

const DAY: u64 = 24 * 3600;

/// By how many standard deviations the interval goes to either side that the truth is in with 95 %: for the noise of one relay (Laplace: ln 20 / √2), and
/// for that of many, whose sum is closer to a normal distribution (1.96), with more.
const DEVIATIONS: f64 = 2.12;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS figures (
    relay TEXT NOT NULL,     -- its RSA identity in hexadecimal, or ed25519:…
    figure TEXT NOT NULL,    -- the line's keyword, and what of it
    day INTEGER NOT NULL,    -- days since 1970: the middle of its interval
    ends INTEGER NOT NULL,   -- seconds since 1970
    value INTEGER NOT NULL,  -- as told
    scale INTEGER NOT NULL,  -- of its Laplace noise; 0: none is stated
    PRIMARY KEY (relay, figure, ends)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_day ON figures (figure, day);
";

/// One figure of one relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The keyword of its line, and what of it: `exit-streams-opened.443`.
    pub name: String,
    /// When its interval ended, in seconds since 1970.
    pub ends: u64,
    /// The seconds of its interval.
    pub length: u64,
    /// As the relay tells it.
    pub value: i64,
    /// Of its noise; 0 where none is stated.
    pub scale: u64,
}

/// What all relays told of a day.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// As [`Figure::name`].
    pub figure: String,
    /// Days since 1970.
    pub day: u64,
    /// Relays that told it.
    pub relays: u64,
    /// Their sum.
    pub value: i64,
    /// The truth is no less than this, and no more than that, with 95 %.
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// The relay's own statement, signed, as authorities of ours take it.
pub fn sign_statistics(key: &RelayKey, published: u64, statistics: Statistics) -> String {
    let told = RelayStatistics {
        identity: key.identity(),
        published,
        statistics,
    };
    let (certificate, signature) = key.sign(&told.text());
    told.with(certificate.as_deref(), &signature)
}

/// Reads one and checks its signature; `None`: it cannot be read, or somebody else has written it.
pub fn check_statistics(text: &str) -> Option<RelayStatistics> {
    checked(RelayStatistics::parse(text).ok()?)
}

fn checked(read: hoplite_wire::relay_statistics::Signed<'_>) -> Option<RelayStatistics> {
    let (identity, published) = (&read.told.identity, read.told.published);
    let by = signer(identity, read.certificate.as_deref(), published)?;
    let is_own = is_signed(&by, read.signed.as_bytes(), &read.signature.0);
    is_own.then_some(read.told)
}

/// What a text of an authority of ours tells, of each relay whose signature is right; and how many others were in it.
pub fn told_to_us(text: &str) -> (Vec<(String, Statistics)>, usize) {
    let (mut told, mut wrong) = (Vec::new(), 0_usize);
    for read in RelayStatistics::parse_all(text) {
        match read.ok().and_then(checked) {
            Some(read) => told.push((read.identity.to_string(), read.statistics)),
            None => wrong = wrong.saturating_add(1),
        }
    }
    (told, wrong)
}

/// What `/tor/extra/all` of an authority of Tor's tells, which has checked the signatures; and how many documents cannot be read.
pub fn told_to_tor(text: &str) -> (Vec<(String, Statistics)>, usize) {
    let (mut told, mut wrong) = (Vec::new(), 0_usize);
    for read in Told::parse_all(text) {
        match read {
            Ok(read) => {
                let id = read.rsa_id.iter().map(|byte| format!("{byte:02X}"));
                told.push((id.collect(), read.statistics));
            }
            Err(_) => wrong = wrong.saturating_add(1),
        }
    }
    (told, wrong)
}

/// Why an authority does not take what a relay tells, in words for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It cannot be read, or its signature is wrong.
    #[error("these are no statistics that the relay they name has signed")]
    Unsigned,
    /// The authority has not tested the relay, or does not know it.
    #[error(
        "statistics are taken of relays whose descriptor has passed its test: hand them in again later"
    )]
    Unknown,
    /// It is from the future, or no newer than what is here.
    #[error(
        "statistics that are as new, or newer, are here already, or these are of the future: check the clock"
    )]
    Stale,
}

/// So long what was written out for one is given to all who ask, in seconds.
const WRITTEN: u64 = 60;

/// What an authority has been told last by each relay. It is in memory alone: relays tell it each hour.
#[derive(Debug, Default)]
pub struct ToldStatistics {
    told: BTreeMap<Key, (u64, String)>,
    /// All of it as it was written out last, and when, in seconds since 1970.
    written: Option<(u64, Bytes)>,
}

impl ToldStatistics {
    /// Takes what one relay tells; `knows` says whether a relay has passed its test, of which there is a bounded number.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn take(
        &mut self,
        text: String,
        (now, skew): (u64, u64),
        knows: impl Fn(&Key) -> bool,
    ) -> Result<(), NotTaken> {
        let told = check_statistics(&text).ok_or(NotTaken::Unsigned)?;
        if !knows(&told.identity) {
            return Err(NotTaken::Unknown);
        }
        let before = self
            .told
            .get(&told.identity)
            .map(|(published, _)| *published);
        let is_new = before.is_none_or(|before| before < told.published);
        if !is_new || told.published > now.saturating_add(skew) {
            return Err(NotTaken::Stale);
        }
        if before.is_none() {
            self.told.retain(|relay, _| knows(relay));
        }
        self.told.insert(told.identity, (told.published, text));
        Ok(())
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        let each = self.told.values().map(|(_, text)| text.len());
        let all = each.fold(0, usize::saturating_add);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// All of it, as it was a minute ago at the latest: it is large, and whoever asks within that time shares it.
    pub fn text(&mut self, now: u64) -> Bytes {
        let written = self.written.take();
        let written = written.filter(|(at, _)| at.abs_diff(now) < WRITTEN);
        let (at, text) = written.unwrap_or_else(|| {
            let all = self.told.values().map(|(_, text)| text.as_str());
            (now, Bytes::from(all.collect::<String>()))
        });
        // The first that comes is there at once.
        self.written = Some((at, text.clone())).filter(|(_, text)| !text.is_empty());
        text
    }
}

/// The figures of a network.
#[derive(Debug)]
pub struct NetworkStatistics {
    connection: Connection,
}

impl NetworkStatistics {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(store::LOCK_TIMEOUT)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection })
    }

    /// Takes in what a relay tells; of a figure that is there already the first one stays. Answers how many are new.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing of it is stored.
    pub fn add(&mut self, told: &[(String, Statistics)]) -> Result<usize, StoreError> {
        let transaction = self.connection.transaction()?;
        let mut new = 0_usize;
        {
            let mut insert = transaction.prepare(
                "INSERT OR IGNORE INTO figures (relay, figure, day, ends, value, scale) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?;
            for (relay, statistics) in told {
                for figure in figures(statistics) {
                    let day = figure.ends.saturating_sub(figure.length / 2) / DAY;
                    let numbers = [day, figure.ends, figure.scale].map(whole);
                    let [day, ends, scale] = numbers;
                    let row = params![relay, figure.name, day, ends, figure.value, scale];
                    new = new.saturating_add(insert.execute(row)?);
                }
            }
        }
        transaction.commit()?;
        Ok(new)
    }

    /// The totals of each day, by figure and day.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn totals(&self) -> Result<Vec<Total>, StoreError> {
        let mut query = self.connection.prepare(
            "SELECT figure, day, COUNT(DISTINCT relay), TOTAL(value), TOTAL(2.0 * scale * scale), \
             TOTAL(CASE WHEN figure NOT LIKE 'hidserv-%' AND value < 3 * scale THEN 0.5 * scale ELSE 0 END) \
             FROM figures GROUP BY figure, day ORDER BY figure, day",
        )?;
        let totals = query.query_map([], |row| {
            let (value, variance): (f64, f64) = (row.get(3)?, row.get(4)?);
            // What would be below zero is told as zero, so that small figures add up to too much: to half the scale each, at most.
            let surplus: f64 = row.get(5)?;
            let margin = DEVIATIONS * variance.sqrt();
            Ok(Total {
                figure: row.get(0)?,
                day: row.get::<_, i64>(1)?.unsigned_abs(),
                relays: row.get::<_, i64>(2)?.unsigned_abs(),
                value: rounded(value),
                low: value - margin - surplus,
                high: value + margin,
            })
        })?;
        Ok(totals.collect::<Result<_, _>>()?)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float becomes the nearest whole number that there is"
)]
const fn rounded(value: f64) -> i64 {
    value as i64
}

/// SQLite's numbers have a sign.
fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// All figures that a relay tells.
pub fn figures(told: &Statistics) -> Vec<Figure> {
    let mut all = Figures {
        noise: &told.noise,
        figures: Vec::new(),
    };
    let histories = [
        ("read-history", &told.read),
        ("write-history", &told.written),
    ];
    for (name, history) in histories {
        let Some(history) = history else { continue };
        let back = history.bytes.iter().rev().zip(0..);
        for (bytes, before) in back {
            let before: u64 = before;
            let ends = history.last.end;
            let ends = ends.saturating_sub(before.saturating_mul(history.last.length));
            all.push(name, "", (ends, history.last.length), *bytes);
        }
    }
    if let Some((interval, used)) = &told.directions {
        let at = (interval.end, interval.length);
        let classes = [
            ("below", used.below),
            ("read", used.read),
            ("write", used.written),
            ("both", used.both),
        ];
        for (class, count) in classes {
            all.push("conn-bi-direct", class, at, count);
        }
    }
    if let Some((interval, circuits)) = told.circuits {
        all.push(
            "hoplite-circuits",
            "",
            (interval.end, interval.length),
            circuits,
        );
    }
    if let Some(exit) = &told.exit {
        let at = (exit.interval.end, exit.interval.length);
        all.by_port("exit-kibibytes-written", at, &exit.kibibytes_written);
        all.by_port("exit-kibibytes-read", at, &exit.kibibytes_read);
        all.by_port("exit-streams-opened", at, &exit.streams);
    }
    if let Some(services) = &told.onion_services {
        let at = (services.interval.end, services.interval.length);
        let figures = [
            ("hidserv-rend-v3-relayed-cells", services.rendezvous_cells),
            ("hidserv-dir-v3-onions-seen", services.onions_seen),
        ];
        for (name, figure) in figures {
            if let Some(figure) = figure {
                all.put(name.to_owned(), at, figure.value, figure.noise.scale());
            }
        }
    }
    if let Some(padding) = &told.padding {
        let at = (padding.interval.end, padding.interval.length);
        all.push("padding-counts", "write-pad", at, padding.written);
        all.push("padding-counts", "read-pad", at, padding.read);
    }
    if let Some(directory) = &told.directory {
        let at = (directory.interval.end, directory.interval.length);
        all.push("dirreq-v3-reqs", "", at, directory.consensuses);
    }
    all.figures
}

struct Figures<'a> {
    noise: &'a [(String, Noise)],
    figures: Vec<Figure>,
}

impl Figures<'_> {
    fn push(&mut self, keyword: &str, part: &str, at: (u64, u64), value: u64) {
        let name = match part {
            "" => keyword.to_owned(),
            part => format!("{keyword}.{part}"),
        };
        let noise = self.noise.iter().find(|(named, _)| named == keyword);
        let scale = noise.map_or(0, |(_, noise)| noise.scale());
        self.put(name, at, whole(value), scale);
    }

    fn by_port(&mut self, keyword: &str, at: (u64, u64), figures: &ByPort) {
        for (port, value) in figures {
            let port = port.map_or_else(|| "other".to_owned(), |port| port.to_string());
            self.push(keyword, &port, at, *value);
        }
    }

    fn put(&mut self, name: String, (ends, length): (u64, u64), value: i64, scale: u64) {
        self.figures.push(Figure {
            name,
            ends,
            length,
            value,
            scale,
        });
    }
}

#[cfg(test)]
mod tests {
    use hoplite_crypto::{SigningKey, onion::offline::CertifiedSigningKey};
    use hoplite_wire::tor::extra_info::{
        Epsilon, History, Interval, Obfuscated, OnionServiceStatistics,
    };

    use super::*;

    fn relay_key() -> RelayKey {
        RelayKey::Identity(SigningKey::generate().expect("a key"))
    }

    /// A midnight.
    const NOW: u64 = 1_795_737_600;

    fn statistics(days: &[u64], circuits: u64) -> Statistics {
        let last = Interval {
            end: NOW,
            length: DAY,
        };
        let noise = Noise {
            delta_f: 30,
            epsilon: Epsilon::TOR,
            bin_size: 1,
        };
        Statistics {
            read: Some(History {
                last,
                bytes: days.to_vec(),
            }),
            circuits: Some((last, circuits)),
            onion_services: Some(OnionServiceStatistics {
                interval: last,
                rendezvous_cells: None,
                onions_seen: Some(Obfuscated { value: -5, noise }),
            }),
            noise: vec![("hoplite-circuits".into(), noise)],
            ..Statistics::default()
        }
    }

    fn opened() -> (tempfile::TempDir, NetworkStatistics) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = NetworkStatistics::open(&directory.path().join("statistics")).expect("opened");
        (directory, store)
    }

    fn total<'a>(totals: &'a [Total], figure: &str, day: u64) -> &'a Total {
        let found = totals
            .iter()
            .find(|total| total.figure == figure && total.day == day);
        found.expect("a total")
    }

    #[test]
    fn days_of_all_relays_are_added_up_and_uncertainty_grows_by_its_square() {
        let (_directory, mut store) = opened();
        let relays: Vec<_> = (0..4)
            .map(|n| (format!("r{n}"), statistics(&[10, 20], 100)))
            .collect();
        store.add(&relays).expect("stored");
        let totals = store.totals().expect("read");
        let yesterday = NOW / DAY - 1;
        let bytes = total(&totals, "read-history", yesterday);
        assert_eq!((bytes.value, bytes.relays), (80, 4));
        assert_eq!((bytes.low, bytes.high), (80.0, 80.0));
        assert_eq!(total(&totals, "read-history", yesterday - 1).value, 40);
        let circuits = total(&totals, "hoplite-circuits", yesterday);
        assert_eq!(circuits.value, 400);
        // A scale of 100 each: 141 of deviation, and twice that of four relays.
        let right = DEVIATIONS * 2.0 * (2.0_f64).sqrt() * 100.0;
        assert!((circuits.high - 400.0 - right).abs() < 1.0, "{circuits:?}");
        // And each of them may be a zero that was below it.
        let low = 400.0 - right - 4.0 * 50.0;
        assert!((circuits.low - low).abs() < 1.0, "{circuits:?}");
        assert_eq!(
            total(&totals, "hidserv-dir-v3-onions-seen", yesterday).value,
            -20
        );
    }

    #[test]
    fn what_is_told_twice_counts_once() {
        let (_directory, mut store) = opened();
        let told = [("r".to_owned(), statistics(&[1, 2, 3], 4))];
        let new = store.add(&told).expect("stored");
        assert_eq!(new, 5);
        assert_eq!(store.add(&told).expect("stored"), 0);
        let changed = [("r".to_owned(), statistics(&[1, 2, 9], 4))];
        assert_eq!(store.add(&changed).expect("stored"), 0, "the first stays");
        let yesterday = NOW / DAY - 1;
        let totals = store.totals().expect("read");
        assert_eq!(total(&totals, "read-history", yesterday).value, 3);
    }

    #[test]
    fn an_authority_keeps_the_last_of_each_relay_that_it_knows() {
        let (known, stranger) = (relay_key(), relay_key());
        let mut told = ToldStatistics::default();
        let knows = |relay: &Key| *relay == known.identity();
        let mut take = |key: &RelayKey, published| {
            let text = sign_statistics(key, published, statistics(&[1], published));
            told.take(text, (NOW, 60), knows)
        };
        assert_eq!(take(&known, NOW - 5), Ok(()));
        assert_eq!(take(&known, NOW), Ok(()));
        assert_eq!(take(&known, NOW), Err(NotTaken::Stale), "replayed");
        assert_eq!(take(&known, NOW - 1), Err(NotTaken::Stale), "rolled back");
        assert_eq!(
            take(&known, NOW + 61),
            Err(NotTaken::Stale),
            "of the future"
        );
        assert_eq!(take(&stranger, NOW), Err(NotTaken::Unknown));
        let text = String::from_utf8(told.text(NOW).into()).expect("text");
        assert_eq!(told_to_us(&text).0.len(), 1);
        let changed = text.replace("published 1", "published 2");
        assert_eq!(
            told.take(changed, (NOW, 60), knows),
            Err(NotTaken::Unsigned)
        );
        // Who is forgotten goes when the next comes.
        let text = sign_statistics(&stranger, NOW, statistics(&[1], 2));
        let other = stranger.identity();
        assert_eq!(told.take(text, (NOW, 60), |relay| *relay == other), Ok(()));
        assert_eq!(told.told.len(), 1);
    }

    #[test]
    fn who_asks_within_a_minute_shares_what_was_written_for_the_first() {
        let mut told = ToldStatistics::default();
        assert!(told.text(NOW).is_empty());
        let take = |told: &mut ToldStatistics| {
            let text = sign_statistics(&relay_key(), NOW, statistics(&[1], NOW));
            assert_eq!(told.take(text, (NOW, 60), |_| true), Ok(()));
        };
        take(&mut told);
        let first = told.text(NOW);
        assert!(!first.is_empty(), "the first is there at once");
        take(&mut told);
        let again = told.text(NOW + 59);
        assert_eq!(again.as_ptr(), first.as_ptr(), "nothing is copied");
        let later = told.text(NOW + 60);
        assert_eq!(later.len(), 2 * first.len());
        assert_eq!(told.bytes(), later.len() as u64);
    }

    #[test]
    fn only_what_a_relay_has_signed_itself_is_believed() {
        let key = relay_key();
        let text = sign_statistics(&key, NOW, statistics(&[1], 2));
        let told = check_statistics(&text).expect("its own");
        assert_eq!(
            (told.identity, told.statistics),
            (key.identity(), statistics(&[1], 2))
        );
        let changed = text.replace("published 1", "published 2");
        assert_eq!(check_statistics(&changed), None);
        let other = relay_key().identity().to_string();
        let stolen = text.replace(&key.identity().to_string(), &other);
        assert_eq!(check_statistics(&stolen), None);
        let (told, wrong) = told_to_us(&[text.as_str(), &changed, &stolen].concat());
        assert_eq!((told.len(), wrong), (1, 2));
    }
    #[test]
    fn a_relay_whose_identity_is_elsewhere_signs_by_a_key_of_that_identity() {
        let master = SigningKey::generate().expect("a key");
        let key = CertifiedSigningKey::issue(&master, NOW, 3600).expect("issued");
        let key = RelayKey::Certified(key);
        let text = sign_statistics(&key, NOW, statistics(&[1], 2));
        let told = check_statistics(&text).expect("its own");
        assert_eq!(told.identity.0, master.public());
        let late = sign_statistics(&key, NOW + 7201, statistics(&[1], 2));
        assert_eq!(check_statistics(&late), None, "the certificate was over");
        let another = relay_key().identity().to_string();
        let stolen = text.replace(&told.identity.to_string(), &another);
        assert_eq!(check_statistics(&stolen), None);
        let (before, after) = text.split_once("certificate ").expect("one");
        let (_, signature) = after.split_once('\n').expect("a line");
        assert_eq!(check_statistics(&format!("{before}{signature}")), None);
    }
}
