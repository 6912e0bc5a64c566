//! Results as Parquet files in a directory that machines share. DuckDB, pandas and polars read them as they are.
//!
//! ```text
//! PLACE/campaign/ID.parquet         one row
//!       machine/ID.parquet          one row
//!       part/CAMPAIGN/PART/         repetitions with all that they left: run, attempt, metric, process, link, sample
//!       aside/                      what is under way; swept at every start
//!       lock                        who writes here
//! ```
//!
//! A part is written aside and renamed: whoever reads sees all of it or nothing. The repetitions of a directory that are ok are one part, and no
//! part is ever changed. One that is not ok is a part of its own, which goes when an ok one comes.

use std::{
    collections::HashMap,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Counts, Rank, Repetition, Source, entry_for,
    file::{self, Writer},
    of_another_version,
    tables::{self, Entry, Part, Row, Table, number, words},
};
use crate::{
    errors::Failure,
    experiments::campaign::{Lock, entries, hexadecimal, remove, sync},
    results::store::{Machine, Verdict},
};

/// Hands in a directory's results, and says to which campaign there.
pub(super) fn hand_in(
    place: &Path,
    source: &Source,
    patience: Duration,
) -> Result<(String, Counts), Failure> {
    let dataset = Dataset::open(place, patience)?;
    let (entry, changed) = entry_for(&source.campaign, dataset.campaigns()?);
    let there = dataset.there(&entry.id)?;
    let ranks = there.iter().map(|(id, (rank, _))| (id.clone(), *rank));
    let news = source.news(&ranks.collect());
    for machine in source.machines_of(&news.repetitions) {
        dataset.machine(machine)?;
    }
    if changed {
        dataset.campaign(&entry)?;
    }
    let parts = dataset.write(&entry.id, source, &news.repetitions)?;
    for id in &news.replaced {
        if let Some((_, part)) = there.get(*id) {
            dataset.take_out(part)?;
        }
    }
    for part in &parts {
        dataset.put(&entry.id, part)?;
    }
    Ok((entry.id, news.counts))
}

/// A directory that is ours for now.
struct Dataset {
    root: PathBuf,
    lock: Lock,
}

/// What is there of a campaign, by the repetition's id: which result it is, and in which part.
type There = HashMap<String, (Rank, PathBuf)>;

impl Dataset {
    fn open(place: &Path, patience: Duration) -> Result<Self, Failure> {
        // It is not made: where shared storage is not mounted, results would go to this machine's own disk.
        if !place.is_dir() {
            return Err(Failure::new(
                format!("handing in to {}", place.display()),
                "there is no such directory",
                "mount the shared storage, or make the directory if it is new",
            ));
        }
        let root = fs::canonicalize(place).map_err(|error| failure("finding", place, &error))?;
        let lock = Lock::wait(&root, "hand-in", patience)?;
        let dataset = Self { root, lock };
        for part in ["campaign", "machine", "part", "aside"] {
            let path = dataset.root.join(part);
            fs::create_dir_all(&path).map_err(|error| failure("making", &path, &error))?;
        }
        for left in entries(&dataset.aside())? {
            remove(&left)?;
        }
        Ok(dataset)
    }

    fn aside(&self) -> PathBuf {
        self.root.join("aside")
    }

    fn parts(&self, campaign: &str) -> PathBuf {
        self.root.join("part").join(campaign)
    }

    fn campaigns(&self) -> Result<Vec<Entry>, Failure> {
        let paths = entries(&self.root.join("campaign"))?;
        let read = |path: &PathBuf| {
            let rows = read(path)?;
            let entry = rows.first().and_then(Entry::read);
            entry.ok_or_else(|| of_another_version(&path.display().to_string()))
        };
        paths.iter().map(read).collect()
    }

    fn there(&self, campaign: &str) -> Result<There, Failure> {
        let mut there = There::new();
        for part in entries(&self.parts(campaign))? {
            let path = part.join("run.parquet");
            for row in read(&path)? {
                let rank = || {
                    let ok = words(&row, "verdict")? == Verdict::Ok.word();
                    let began = number(&row, "began")?;
                    Some((words(&row, "id")?, Rank { ok, began }))
                };
                let (id, rank) =
                    rank().ok_or_else(|| of_another_version(&path.display().to_string()))?;
                there.insert(id, (rank, part.clone()));
            }
        }
        Ok(there)
    }

    fn campaign(&self, entry: &Entry) -> Result<(), Failure> {
        self.one_row("campaign", &entry.id, &tables::campaigns(), entry.row())
    }

    /// Once: it never changes.
    fn machine(&self, machine: &Machine) -> Result<(), Failure> {
        let id = &machine.id;
        // It becomes a file's name, and may come from a store that somebody else made.
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(Failure::new(
                "handing in a machine",
                format!("{id:?} is no machine's id"),
                "hand in what `hoplite-lab run` or `merge` has written, as it was written",
            ));
        }
        if self.root.join(format!("machine/{id}.parquet")).exists() {
            return Ok(());
        }
        self.one_row("machine", id, &tables::machines(), tables::machine(machine))
    }

    fn one_row(&self, folder: &str, id: &str, table: &Table, row: Row) -> Result<(), Failure> {
        let name = format!("{id}.parquet");
        let (aside, folder) = (self.aside().join(&name), self.root.join(folder));
        let write = || {
            let mut file = Writer::create(&aside, table)?;
            file.append(vec![row])?;
            file.close()
        };
        write().map_err(|error| failure("writing", &aside, &error))?;
        self.place(&aside, &folder.join(name))
    }

    /// Writes parts aside: one of all repetitions that are ok, and one of each that is not.
    fn write(
        &self,
        campaign: &str,
        source: &Source,
        news: &[&Repetition],
    ) -> Result<Vec<PathBuf>, Failure> {
        let ok = |one: &&Repetition| one.finished.run.verdict == Verdict::Ok;
        let (ok, others): (Vec<&Repetition>, Vec<_>) = news.iter().copied().partition(ok);
        let all = (!ok.is_empty()).then_some(ok);
        let parts = all
            .into_iter()
            .chain(others.into_iter().map(|one| vec![one]));
        parts
            .map(|part| self.write_part(campaign, source, &part))
            .collect()
    }

    fn write_part(
        &self,
        campaign: &str,
        source: &Source,
        repetitions: &[&Repetition],
    ) -> Result<PathBuf, Failure> {
        let folder = self.aside().join(name(repetitions));
        fs::create_dir_all(&folder).map_err(|error| failure("making", &folder, &error))?;
        for part in Part::ALL {
            let table = part.table();
            let path = folder.join(format!("{}.parquet", table.name));
            let wrong = |error: io::Error| failure("writing", &path, &error);
            let mut file = Writer::create(&path, &table).map_err(wrong)?;
            for one in repetitions {
                let rows = part.rows(campaign, one, &source.root)?;
                file.append(rows).map_err(wrong)?;
            }
            file.close().map_err(wrong)?;
        }
        sync(&folder).map_err(|error| failure("writing", &folder, &error))?;
        Ok(folder)
    }

    fn put(&self, campaign: &str, part: &Path) -> Result<(), Failure> {
        let folder = self.parts(campaign);
        fs::create_dir_all(&folder).map_err(|error| failure("making", &folder, &error))?;
        self.place(part, &folder.join(part.file_name().unwrap_or_default()))
    }

    /// Takes the result of one repetition out, which an ok one replaces.
    fn take_out(&self, part: &Path) -> Result<(), Failure> {
        let runs = read(&part.join("run.parquet"))?.len();
        if runs != 1 {
            return Err(of_another_version(&part.display().to_string()));
        }
        let gone = self.aside().join("replaced");
        self.place(part, &gone)?;
        remove(&gone)
    }

    /// Renames within the directory, if it is still the one that was opened.
    fn place(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let holds = self.lock.holds(&self.root);
        if !holds.map_err(|error| failure("looking at", &self.root, &error))? {
            return Err(failure("writing to", &self.root, &gone()));
        }
        let parent = |path: &Path| path.parent().unwrap_or(&self.root).to_owned();
        fs::rename(from, to)
            .and_then(|()| sync(&parent(to)))
            .and_then(|()| sync(&parent(from)))
            .map_err(|error| failure("writing", to, &error))
    }
}

fn gone() -> io::Error {
    io::Error::new(
        ErrorKind::StaleNetworkFileHandle,
        "another file system is there than at the beginning",
    )
}

/// Of a part: made of the ids that are in it.
fn name(repetitions: &[&Repetition]) -> String {
    let ids: Vec<&str> = repetitions
        .iter()
        .map(|one| one.finished.run.id.as_str())
        .collect();
    let hash = ring::digest::digest(&ring::digest::SHA256, ids.join(" ").as_bytes());
    let head: Vec<u8> = hash.as_ref().iter().take(8).copied().collect();
    hexadecimal(&head)
}

fn read(path: &Path) -> Result<Vec<tables::Named>, Failure> {
    file::read(path).map_err(|error| failure("reading", path, &error))
}

fn failure(doing: &str, path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free some space there"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "make it writable, or name another place"
        }
        ErrorKind::NotFound
        | ErrorKind::StaleNetworkFileHandle
        | ErrorKind::NotConnected
        | ErrorKind::TimedOut
        | ErrorKind::HostUnreachable => "mount the shared storage again",
        _ => "see to it",
    };
    let remedy = format!(
        "{remedy}; then hand in again by `hoplite-lab hand-in`: what was handed in before is safe, and nothing comes twice"
    );
    Failure::new(format!("{doing} {}", path.display()), error, remedy)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::{
        hand_in::examples::{campaign, finished, source, write},
        store::{Campaign, Finished},
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Shared {
        place: tempfile::TempDir,
    }

    impl Shared {
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            fs::create_dir(place.path().join("shared")).unwrap();
            Self { place }
        }

        fn path(&self) -> PathBuf {
            self.place.path().join("shared")
        }

        /// A campaign's directory of this name.
        fn source(&self, name: &str, campaign: &Campaign, repetitions: &[Finished]) -> Source {
            let root = self.place.path().join(name);
            write(&root, campaign, repetitions);
            Source::read(&root).unwrap()
        }

        fn hand_in(&self, source: &Source) -> Result<[usize; 3], Failure> {
            let (_, counts) = hand_in(&self.path(), source, PATIENCE)?;
            Ok([counts.added, counts.replaced, counts.there])
        }

        /// All rows of a table, of all parts.
        fn rows(&self, table: &str) -> Vec<tables::Named> {
            let mut rows = Vec::new();
            for campaign in entries(&self.path().join("part")).unwrap() {
                for part in entries(&campaign).unwrap() {
                    rows.extend(read(&part.join(format!("{table}.parquet"))).unwrap());
                }
            }
            rows
        }

        /// Each run's verdict by number, and that everything else belongs to one of these.
        fn verdicts(&self) -> BTreeMap<String, String> {
            let mut verdicts = BTreeMap::new();
            for row in self.rows("run") {
                let id = words(&row, "id").unwrap();
                let twice = verdicts.insert(id, words(&row, "verdict").unwrap());
                assert_eq!(twice, None);
            }
            for table in ["attempt", "metric", "process", "link", "sample"] {
                for row in self.rows(table) {
                    assert!(verdicts.contains_key(&words(&row, "run").unwrap()));
                }
            }
            verdicts
        }

        /// Every file with what is in it.
        fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
            let (mut files, mut open) = (BTreeMap::new(), vec![self.path()]);
            while let Some(path) = open.pop() {
                if path.is_dir() {
                    open.extend(entries(&path).unwrap());
                } else if !path.ends_with("lock") {
                    files.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
            files
        }
    }

    fn ok(repetition: u32) -> Finished {
        finished(repetition, 1, Verdict::Ok)
    }

    #[test]
    fn to_hand_in_again_changes_not_a_byte() {
        let shared = Shared::new();
        let failed = finished(3, 2, Verdict::Failed);
        let source = shared.source("one", &campaign(3), &[ok(1), ok(2), failed]);
        assert_eq!(shared.hand_in(&source).unwrap(), [3, 0, 0]);
        let before = shared.files();
        assert_eq!(before.len(), 2 + 2 * 6);
        assert_eq!(shared.hand_in(&source).unwrap(), [0, 0, 3]);
        assert_eq!(shared.files(), before);
        for (table, rows) in [
            ("attempt", 4),
            ("metric", 4),
            ("process", 2),
            ("link", 2),
            ("sample", 4),
        ] {
            assert_eq!(shared.rows(table).len(), rows, "{table}");
        }
    }

    #[test]
    fn shards_come_together_and_what_two_have_comes_once() {
        let shared = Shared::new();
        let one = shared.source("one", &campaign(3), &[ok(1), ok(2)]);
        let two = shared.source("two", &campaign(3), &[ok(2), ok(3)]);
        assert_eq!(shared.hand_in(&one).unwrap(), [2, 0, 0]);
        assert_eq!(shared.hand_in(&two).unwrap(), [1, 0, 1]);
        assert_eq!(shared.verdicts().len(), 3);
        assert_eq!(entries(&shared.path().join("campaign")).unwrap().len(), 1);
        assert_eq!(entries(&shared.path().join("machine")).unwrap().len(), 1);
    }

    #[test]
    fn an_ok_repetition_takes_the_place_of_one_that_is_not_and_never_the_other_way() {
        let shared = Shared::new();
        let bad = [
            finished(1, 3, Verdict::Failed),
            finished(2, 5, Verdict::Invalid),
            ok(3),
        ];
        let bad = shared.source("bad", &campaign(3), &bad);
        let good = shared.source("good", &campaign(3), &[ok(1), ok(2), ok(3)]);
        shared.hand_in(&bad).unwrap();
        assert_eq!(shared.hand_in(&good).unwrap(), [0, 2, 1]);
        assert!(shared.verdicts().values().all(|verdict| verdict == "ok"));
        assert_eq!(shared.rows("attempt").len(), 3);
        let before = shared.files();
        assert_eq!(shared.hand_in(&bad).unwrap(), [0, 0, 3]);
        assert_eq!(shared.files(), before);
    }

    #[test]
    fn campaigns_of_other_programs_stand_beside_each_other() {
        let shared = Shared::new();
        let mut newer = campaign(1);
        newer.binaries[0].sha256 = "11".into();
        let one = shared.source("one", &campaign(1), &[ok(1)]);
        let two = shared.source("two", &newer, &[ok(1)]);
        assert_eq!(shared.hand_in(&one).unwrap(), [1, 0, 0]);
        assert_eq!(shared.hand_in(&two).unwrap(), [1, 0, 0]);
        assert_eq!(shared.hand_in(&one).unwrap(), [0, 0, 1]);
        assert_eq!(entries(&shared.path().join("campaign")).unwrap().len(), 2);
    }

    #[test]
    fn two_that_come_at_once_wait_for_each_other() {
        let shared = Shared::new();
        let sources: Vec<_> = (1..=6)
            .map(|n| shared.source(&n.to_string(), &campaign(6), &[ok(n), ok(1 + n % 6)]))
            .collect();
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(|| shared.hand_in(source).unwrap());
            }
        });
        assert_eq!(shared.verdicts().len(), 6);
        assert_eq!(shared.rows("sample").len(), 12);
        assert_eq!(entries(&shared.path().join("campaign")).unwrap().len(), 1);
    }

    #[test]
    fn who_has_waited_long_enough_is_told_who_is_there() {
        let shared = Shared::new();
        let source = source(&shared.place.path().join("one"), 1);
        let _held = Lock::take(&shared.path(), "hand-in").unwrap();
        let refusal = hand_in(&shared.path(), &source, Duration::ZERO).unwrap_err();
        assert!(
            refusal
                .to_string()
                .contains("another run is writing there (pid"),
            "{refusal}"
        );
        assert!(entries(&shared.path()).unwrap().len() == 1);
    }

    #[test]
    fn what_was_left_in_the_middle_is_swept_and_nothing_of_it_counts() {
        let shared = Shared::new();
        let source = source(&shared.place.path().join("one"), 2);
        let left = shared.path().join("aside/0123456789abcdef");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("run.parquet"), "half").unwrap();
        assert_eq!(shared.hand_in(&source).unwrap(), [2, 0, 0]);
        assert_eq!(
            entries(&shared.path().join("aside")).unwrap(),
            [""; 0].map(PathBuf::from)
        );
    }

    #[test]
    fn a_sample_that_cannot_be_read_adds_nothing() {
        let shared = Shared::new();
        let source = source(&shared.place.path().join("one"), 2);
        let id = &source.repetitions[1].finished.run.id;
        let path = source.root.join(format!("samples/{id}.parquet"));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let refusal = shared.hand_in(&source).unwrap_err().to_string();
        assert!(
            refusal.contains(id.as_str()) && refusal.contains("run the campaign again"),
            "{refusal}"
        );
        assert!(shared.rows("run").is_empty());
        fs::write(&path, whole).unwrap();
        assert_eq!(shared.hand_in(&source).unwrap(), [2, 0, 0]);
    }

    #[test]
    fn a_place_that_is_not_there_is_not_made() {
        let shared = Shared::new();
        let source = source(&shared.place.path().join("one"), 1);
        let nowhere = shared.place.path().join("not/mounted");
        let refusal = hand_in(&nowhere, &source, PATIENCE)
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("mount the shared storage"), "{refusal}");
        assert!(!nowhere.exists());
    }

    #[test]
    fn another_file_system_in_the_same_place_is_noticed() {
        let shared = Shared::new();
        let dataset = Dataset::open(&shared.path(), PATIENCE).unwrap();
        let from = dataset.aside().join("x");
        fs::write(&from, "x").unwrap();
        fs::rename(shared.path(), shared.place.path().join("was")).unwrap();
        fs::create_dir_all(shared.path().join("aside")).unwrap();
        fs::write(shared.path().join("lock"), "").unwrap();
        fs::write(&from, "x").unwrap();
        let refusal = dataset
            .place(&from, &shared.path().join("y"))
            .unwrap_err()
            .to_string();
        assert!(
            refusal.contains("mount the shared storage again"),
            "{refusal}"
        );
        assert!(!shared.path().join("y").exists());
    }

    #[test]
    fn what_another_version_wrote_is_left_alone() {
        let shared = Shared::new();
        let source = source(&shared.place.path().join("one"), 1);
        shared.hand_in(&source).unwrap();
        let path = entries(&shared.path().join("campaign")).unwrap().remove(0);
        let mut row = Entry::new(campaign(1), 1.0).row();
        row[1] = tables::Value::Whole(tables::FORMAT + 1);
        let mut file = Writer::create(&path, &tables::campaigns()).unwrap();
        file.append(vec![row]).unwrap();
        file.close().unwrap();
        let before = shared.files();
        let refusal = shared.hand_in(&source).unwrap_err().to_string();
        assert!(
            refusal.contains("another version") && refusal.contains("another place"),
            "{refusal}"
        );
        assert_eq!(shared.files(), before);
    }

    #[test]
    fn a_machine_with_a_path_for_its_name_is_refused() {
        let shared = Shared::new();
        let dataset = Dataset::open(&shared.path(), PATIENCE).unwrap();
        for id in ["", "../x", "a/b"] {
            let machine = Machine {
                id: id.into(),
                ..Machine::default()
            };
            assert!(dataset.machine(&machine).is_err(), "{id}");
        }
    }
}
