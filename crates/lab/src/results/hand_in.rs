//! Results of many machines in one place: `hoplite-lab hand-in DIR… --to PLACE`, and `run --to PLACE` at the end of a campaign. A place is a
//! database of PostgreSQL or a directory of Parquet files that machines share; both hold the same tables.
//!
//! A repetition is there once, by its campaign, case, subject and number: to hand in again adds nothing. One that is ok takes the place of one
//! that is not, and never the other way. Two that come at once wait for each other. A directory's results are there with all that belongs to
//! them or not at all; what fails is to be done again, and what was handed in before stays as it is.

mod dataset;
mod file;
mod postgres;
mod tables;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use self::{postgres::Database, tables::Entry};
use crate::{
    cli::HandInArgs,
    errors::{Complaint, Failure, printed},
    experiments::campaign::{Lock, difference, extend},
    results::{
        Sample, parquet,
        store::{Attempt, Campaign, Finished, Machine, Run, Store, Verdict},
    },
};

/// Hands in the results of each directory, one after the other.
///
/// # Errors
/// What failed, why, and what to do. The directories before that one are handed in.
pub fn run(args: &HandInArgs) -> Result<(), Failure> {
    let place = Place::parse(&args.to)?;
    let patience = Duration::from_secs(args.patience);
    for directory in &args.dirs {
        let _lock = Lock::share(directory)?;
        let handed_in = hand_in(directory, &place, patience)?;
        let line = if args.json {
            handed_in.json().to_string()
        } else {
            handed_in.to_string()
        };
        printed(writeln!(io::stdout(), "{line}"))?;
    }
    Ok(())
}

/// Hands in a directory that nobody writes to meanwhile.
pub(crate) fn hand_in(
    directory: &Path,
    place: &Place,
    patience: Duration,
) -> Result<HandedIn, Failure> {
    let source = Source::read(directory)?;
    let (campaign, counts) = match place {
        Place::Dataset(path) => dataset::hand_in(path, &source, patience)?,
        Place::Database(database) => postgres::hand_in(database, &source, patience)?,
    };
    Ok(HandedIn {
        from: directory.to_owned(),
        to: place.to_string(),
        campaign,
        counts,
    })
}

/// Where results are handed in.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Database(Box<Database>),
    /// A directory that machines share.
    Dataset(PathBuf),
}

impl Place {
    /// Reads what `--to` says.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text.split_once("://") {
            Some(("postgres" | "postgresql", _)) => {
                Ok(Self::Database(Box::new(Database::parse(text)?)))
            }
            Some(_) => Err(wrong(
                "it is no URL of PostgreSQL",
                "write such as postgres://USER@HOST/DATABASE, or a directory",
            )),
            None => Ok(Self::Dataset(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(database) => database.fmt(f),
            Self::Dataset(path) => path.display().fmt(f),
        }
    }
}

/// It is not shown what stands there: that may be a password.
fn wrong(why: &str, remedy: &str) -> Failure {
    Failure::Wrong(vec![Complaint::new("reading --to", why, remedy)])
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct HandedIn {
    from: PathBuf,
    to: String,
    campaign: String,
    counts: Counts,
}

/// Repetitions of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// That were not there.
    added: usize,
    /// That were there and not ok.
    replaced: usize,
    /// That were there.
    there: usize,
}

impl HandedIn {
    /// A line for scripts.
    pub(crate) fn json(&self) -> Value {
        let Counts {
            added,
            replaced,
            there,
        } = self.counts;
        json!({
            "event": "handed-in", "from": self.from, "to": self.to, "campaign": self.campaign,
            "added": added, "replaced": replaced, "there": there,
        })
    }
}

impl fmt::Display for HandedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            added,
            replaced,
            there,
        } = self.counts;
        write!(
            f,
            "{}: {added} repetitions added, {replaced} in place of one that was not ok, {there} were there: campaign {} in {}",
            self.from.display(),
            self.campaign,
            self.to
        )
    }
}

/// The results of a directory.
#[derive(Debug)]
struct Source {
    root: PathBuf,
    campaign: Campaign,
    machines: Vec<Machine>,
    /// Those that are over, in the campaign's order.
    repetitions: Vec<Repetition>,
}

/// A repetition that is over, with the attempts before the one that counts.
#[derive(Clone, Debug)]
struct Repetition {
    finished: Finished,
    before: Vec<Attempt>,
}

impl Source {
    fn read(root: &Path) -> Result<Self, Failure> {
        let store = Store::read(root)?;
        let campaign = store.campaign()?.ok_or_else(|| {
            Failure::new(
                format!("reading {}", root.display()),
                "no run has come so far there",
                "leave it out",
            )
        })?;
        let repetitions = store.finished()?.into_iter();
        let repetitions: Vec<_> = repetitions
            .map(|(finished, before)| Repetition { finished, before })
            .collect();
        for repetition in &repetitions {
            repetition.check(root)?;
        }
        Ok(Self {
            root: root.to_owned(),
            campaign,
            machines: store.machines()?,
            repetitions,
        })
    }

    /// What of it is to be handed in where `there` is already.
    fn news<'a>(&'a self, there: &HashMap<String, Rank>) -> News<'a> {
        let mut news = News::default();
        for repetition in &self.repetitions {
            let rank = Rank::of(repetition);
            match there.get(&repetition.finished.run.id) {
                None => news.counts.added += 1,
                Some(old) if rank.comes_before(old) => {
                    news.counts.replaced += 1;
                    news.replaced.insert(&repetition.finished.run.id);
                }
                Some(_) => {
                    news.counts.there += 1;
                    continue;
                }
            }
            news.repetitions.push(repetition);
        }
        news
    }

    /// The machines that these attempts were made on.
    fn machines_of<'a>(&'a self, repetitions: &[&Repetition]) -> impl Iterator<Item = &'a Machine> {
        let attempts = repetitions.iter().flat_map(|one| one.attempts());
        let used: HashSet<String> = attempts.map(|attempt| attempt.machine.clone()).collect();
        let machines = self.machines.iter();
        machines.filter(move |machine| used.contains(&machine.id))
    }
}

impl Repetition {
    fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.before.iter().chain([&self.finished.attempt])
    }

    /// A store that somebody has changed by hand would put rows where they do not belong.
    fn check(&self, root: &Path) -> Result<(), Failure> {
        let Run { id, key, .. } = &self.finished.run;
        if *id == key.id() {
            return Ok(());
        }
        Err(Failure::new(
            format!("reading {}", root.display()),
            format!("the id of the repetition {id} is not that of its case, subject and number"),
            "hand in what `hoplite-lab run` or `merge` has written, as it was written",
        ))
    }

    /// Its samples; none if it failed.
    fn samples(&self, root: &Path) -> Result<Vec<Sample>, Failure> {
        let run = &self.finished.run;
        if run.verdict == Verdict::Failed {
            return Ok(Vec::new());
        }
        let path = root.join("samples").join(format!("{}.parquet", run.id));
        let refused = |why: String| {
            Failure::new(
                format!("reading {}", path.display()),
                why,
                "remove it and run the campaign again, which makes this repetition anew; then hand in again",
            )
        };
        let samples = parquet::read(&path).map_err(|error| refused(error.to_string()))?;
        if samples.iter().any(|sample| sample.run != run.id) {
            return Err(refused("it is of another repetition".to_owned()));
        }
        Ok(samples)
    }
}

/// Which of two results of a repetition stays.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank {
    ok: bool,
    /// When the attempt that counts began.
    began: f64,
}

impl Rank {
    fn of(repetition: &Repetition) -> Self {
        Self {
            ok: repetition.finished.run.verdict == Verdict::Ok,
            began: repetition.finished.attempt.began,
        }
    }

    /// An ok one stays, whatever comes; of two that are not ok the later one does, for it knows the attempts before.
    fn comes_before(self, there: &Self) -> bool {
        !there.ok && (self.ok || self.began > there.began)
    }
}

/// What is to be handed in.
#[derive(Debug, Default)]
struct News<'a> {
    repetitions: Vec<&'a Repetition>,
    /// The ids of those that are there and go.
    replaced: HashSet<&'a str>,
    counts: Counts,
}

/// The campaign among those there that these results belong to, with what they add to it: the first that does not differ from it, else a new
/// one. Entries only grow by what does not differ, so that the same results find the same entry for ever.
fn entry_for(campaign: &Campaign, mut there: Vec<Entry>) -> (Entry, bool) {
    there.sort_by(|one, other| {
        let entered = one.entered.total_cmp(&other.entered);
        entered.then_with(|| one.id.cmp(&other.id))
    });
    let mut same = there
        .into_iter()
        .filter(|entry| difference(&entry.campaign, campaign).is_none());
    let Some(found) = same.next() else {
        return (Entry::new(campaign.clone(), now()), true);
    };
    let mut entry = found.clone();
    // The words of the first, and all subjects, programs and repetitions of both.
    extend(&mut entry.campaign, campaign.clone());
    let of = &mut entry.campaign;
    for label in &campaign.subjects {
        if !of.subjects.contains(label) {
            of.subjects.push(label.clone());
        }
    }
    let changed = entry != found;
    (entry, changed)
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// What another version has written is left alone.
fn of_another_version(place: &str) -> Failure {
    Failure::new(
        format!("handing in to {place}"),
        "what is there was written by another version of hoplite-lab",
        "use that version, or name another place",
    )
}

/// Campaigns that were made up.
#[cfg(test)]
mod examples {
    use std::{collections::BTreeMap, fs};

    use super::*;
    use crate::{
        experiments::trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
        results::{
            Metric,
            sample::examples::{bulk, report, transfer, trial},
            store::Binary,
        },
    };

    pub(super) fn campaign(repetitions: u32) -> Campaign {
        Campaign {
            scenario: "example".into(),
            summary: "a test".into(),
            source: "name = \"example\"".into(),
            seed: u64::MAX,
            repetitions,
            fingerprints: BTreeMap::from([("native".into(), "ab".into())]),
            planned: repetitions.into(),
            subjects: vec!["native".into()],
            cases: vec![BTreeMap::from([("hops".into(), "2".into())])],
            began: 1.5,
            binaries: vec![Binary {
                name: "hoplite-lab".into(),
                sha256: "00".into(),
                version: "0.1".into(),
            }],
            ..Campaign::default()
        }
    }

    /// A repetition of it that ended so in its attempt of this number.
    pub(super) fn finished(repetition: u32, attempt: u32, verdict: Verdict) -> Finished {
        let key = Key {
            repetition,
            ..trial(Vec::new()).key
        };
        let metric = |workload: Option<&str>, value| Metric {
            transfer: workload.map(|_| 1),
            workload: workload.map(str::to_owned),
            name: "ttfb_s".into(),
            value,
        };
        let failed = verdict == Verdict::Failed;
        let unless_failed = |n: usize| if failed { 0 } else { n };
        Finished {
            attempt: Attempt {
                run: key.id(),
                number: attempt,
                verdict,
                why: String::new(),
                log: "a log\twith\0all\\that\nthere is".into(),
                set_aside: false,
                machine: "0123456789abcdef".into(),
                began: f64::from(attempt),
                ready_after: 0.5,
                took: 2.0,
                health: EmulatorHealth::default(),
            },
            run: Run {
                id: key.id(),
                key,
                place: repetition.into(),
                seed: u64::MAX,
                verdict,
                attempt,
            },
            metrics: vec![metric(Some("get"), 0.1), metric(None, 0.2)][..unless_failed(2)].to_vec(),
            processes: vec![
                ProcessUse {
                    name: "relay1".into(),
                    host: "relay1".into(),
                    cpu_s: 0.1,
                    life_cpu_s: 0.2,
                    peak_memory: 4096,
                };
                unless_failed(1)
            ],
            links: vec![
                LinkCount {
                    name: "a-b>".into(),
                    packets: 9,
                    drops: BTreeMap::from([("queue".into(), 2)]),
                    ..LinkCount::default()
                };
                unless_failed(1)
            ],
        }
    }

    /// Writes a campaign's directory with these repetitions, each with the attempts that failed before.
    pub(super) fn write(root: &Path, campaign: &Campaign, repetitions: &[Finished]) {
        fs::create_dir_all(root.join("samples")).unwrap();
        let mut store = Store::write(root).unwrap();
        store.put_campaign(campaign).unwrap();
        let machine = Machine {
            id: "0123456789abcdef".into(),
            cores: 2,
            ..Machine::default()
        };
        store.put_machine(&machine).unwrap();
        for one in repetitions {
            let before: Vec<_> = (1..one.attempt.number)
                .map(|number| Attempt {
                    number,
                    began: f64::from(number),
                    verdict: Verdict::Failed,
                    ..one.attempt.clone()
                })
                .collect();
            store.adopt(one, &before).unwrap();
            if one.run.verdict != Verdict::Failed {
                let mut trial = trial(vec![bulk("get", 2_000_000)]);
                trial.key = one.run.key.clone();
                let path = root.join(format!("samples/{}.parquet", one.run.id));
                let transfers = vec![transfer("get", 1, 1), transfer("get", 2, 1)];
                parquet::write(&path, &trial, &report(transfers)).unwrap();
            }
        }
    }

    /// A directory with this many repetitions that are ok.
    pub(super) fn source(root: &Path, repetitions: u32) -> Source {
        let all: Vec<_> = (1..=repetitions)
            .map(|number| finished(number, 1, Verdict::Ok))
            .collect();
        write(root, &campaign(repetitions), &all);
        Source::read(root).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_url_of_postgresql_or_a_directory_and_a_wrong_one_is_not_shown() {
        assert!(matches!(
            Place::parse("/srv/results"),
            Ok(Place::Dataset(_))
        ));
        let url = "postgres://lab:secret@db.test:5433/results";
        assert_eq!(
            Place::parse(url).unwrap().to_string(),
            "postgres://db.test:5433/results"
        );
        for wrong in [
            "mysql://lab:secret@db.test/x",
            "postgres://lab:secret@db.test:no/x",
        ] {
            let failure = Place::parse(wrong).unwrap_err();
            assert!(matches!(failure, Failure::Wrong(_)));
            assert!(!failure.to_string().contains("secret"), "{failure}");
        }
    }

    #[test]
    fn an_ok_result_stays_and_of_others_the_later_one() {
        let rank = |ok, began| Rank { ok, began };
        let comes = |new: Rank, old: Rank| new.comes_before(&old);
        assert!(!comes(rank(true, 2.0), rank(true, 1.0)));
        assert!(!comes(rank(false, 2.0), rank(true, 1.0)));
        assert!(comes(rank(true, 1.0), rank(false, 2.0)));
        assert!(comes(rank(false, 2.0), rank(false, 1.0)));
        assert!(!comes(rank(false, 1.0), rank(false, 1.0)));
    }

    #[test]
    fn results_find_their_campaign_again_whatever_was_handed_in_meanwhile() {
        let whole = examples::campaign(3);
        let mut other_program = whole.clone();
        other_program.binaries[0].sha256 = "11".into();
        let mut more_subjects = whole.clone();
        more_subjects.fingerprints.insert("tor".into(), "cd".into());
        more_subjects.subjects.push("tor".into());
        let (first, is_new) = entry_for(&whole, Vec::new());
        assert!(is_new);
        let (second, is_new) = entry_for(&other_program, vec![first.clone()]);
        assert!(is_new && second.id != first.id);
        let (grown, changed) = entry_for(&more_subjects, vec![second.clone(), first.clone()]);
        assert!(changed);
        assert_eq!(grown.id, first.id);
        assert_eq!(grown.campaign.subjects, ["native", "tor"]);
        let (again, changed) = entry_for(&whole, vec![second, grown.clone()]);
        assert_eq!((again, changed), (grown, false));
    }

    #[test]
    fn a_repetition_whose_id_is_not_its_own_or_whose_samples_are_anothers_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let mut moved = examples::finished(1, 1, Verdict::Ok);
        moved.run.id = "../../../etc/x".into();
        moved.attempt.run = moved.run.id.clone();
        std::fs::create_dir_all(place.path().join("samples")).unwrap();
        let mut store = Store::write(place.path()).unwrap();
        store.put_campaign(&examples::campaign(1)).unwrap();
        store.adopt(&moved, &[]).unwrap();
        let refusal = Source::read(place.path()).unwrap_err().to_string();
        assert!(refusal.contains("is not that of its case"), "{refusal}");

        let place = tempfile::tempdir().unwrap();
        let source = examples::source(place.path(), 2);
        let [one, other] = [0, 1].map(|n: usize| {
            let id = &source.repetitions[n].finished.run.id;
            place.path().join(format!("samples/{id}.parquet"))
        });
        std::fs::copy(&other, &one).unwrap();
        let refusal = source.repetitions[0].samples(place.path()).unwrap_err();
        assert!(
            refusal.to_string().contains("it is of another repetition"),
            "{refusal}"
        );
        std::fs::remove_file(&one).unwrap();
        let refusal = source.repetitions[0].samples(place.path()).unwrap_err();
        assert!(
            refusal.to_string().contains("run the campaign again"),
            "{refusal}"
        );
    }
}
