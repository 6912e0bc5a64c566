//! Shards: which part of a campaign a machine runs (`--shard I/N`), and how the parts are joined again (`hoplite-lab merge`).
//! All subjects of a case's repetition stay together: they are compared, so they run on the same machine, interleaved.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{Directory, Lock, describe, difference, entries, extend, io_failure, remove, sync};
use crate::{
    cli::MergeArgs,
    errors::{Failure, printed},
    experiments::trial::Key,
    results::store::{Attempt, Campaign, Finished, Store, Verdict},
};

/// The i-th of n parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1.
    pub(crate) number: usize,
    /// How many there are.
    pub(crate) of: usize,
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "it is not I/N with 1 ≤ I ≤ N";
        let (number, of) = text.split_once('/').ok_or(FORM)?;
        let number = number.parse().map_err(|_| FORM)?;
        let of = of.parse().map_err(|_| FORM)?;
        if number < 1 || number > of {
            return Err(FORM);
        }
        Ok(Self { number, of })
    }
}

impl Shard {
    /// Says for each of all the keys, in order, whether it belongs here. Groups are dealt out in turn, so that no shard has more than one group
    /// above another; the keys' order is a seeded shuffle, so each has its share of every case.
    pub(crate) fn filter(self, keys: &[Key]) -> Vec<bool> {
        let mut groups = HashMap::new();
        keys.iter()
            .map(|key| {
                let next = groups.len();
                let group = *groups.entry((&key.case, key.repetition)).or_insert(next);
                group % self.of == self.number - 1
            })
            .collect()
    }
}

// The joined directory is like any other: `report` reads it, `run` goes on in it.
//
// It is written beside its final place and renamed: either all of it is there or nothing. One that was interrupted begins again.

/// A shard that nobody writes to meanwhile.
struct ShardResults {
    path: PathBuf,
    store: Store,
    campaign: Campaign,
    _lock: Option<Lock>,
}

/// A repetition, the attempts before its last one, and the shard that it is in.
type Repetition<'a> = (Finished, Vec<Attempt>, &'a ShardResults);

/// Joins shards.
///
/// # Errors
/// When they are not of one campaign, one is being written, or the file system refuses. Then nothing has changed.
pub fn merge(args: &MergeArgs) -> Result<(), Failure> {
    vacant(&args.out)?;
    let shards = args.shards.iter().map(|path| open(path));
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let campaign = joined(&shards)?;
    let (found, doubled) = gather(&shards)?;
    let aside = aside(&args.out);
    write(&aside, &shards, &campaign, &found)?;
    fs::rename(&aside, &args.out)
        .and_then(|()| sync(parent(&args.out)))
        .map_err(|error| io_failure("making", &args.out, &error))?;
    let line = format!(
        "{} of {} repetitions from {} shards, {doubled} of them twice: {}",
        found.len(),
        campaign.planned,
        shards.len(),
        args.out.display()
    );
    printed(writeln!(io::stdout(), "{line}"))
}

/// A merge never changes results that are there.
fn vacant(out: &Path) -> Result<(), Failure> {
    if entries(out)?.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("making {}", out.display()),
        "there is something in it",
        "choose another --out",
    ))
}

fn aside(out: &Path) -> PathBuf {
    let mut name = out.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".tmp");
    out.with_file_name(name)
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or(path);
    if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    }
}

fn open(path: &Path) -> Result<ShardResults, Failure> {
    let lock = Lock::share(path)?;
    let store = Store::read(path)?;
    let campaign = store.campaign()?.ok_or_else(|| {
        Failure::new(
            format!("reading {}", path.display()),
            "no run has come so far there",
            "leave it out",
        )
    })?;
    Ok(ShardResults {
        path: path.to_owned(),
        store,
        campaign,
        _lock: lock,
    })
}

/// The campaign that they are all of.
fn joined(shards: &[ShardResults]) -> Result<Campaign, Failure> {
    let Some((first, others)) = shards.split_first() else {
        return Ok(Campaign::default());
    };
    let mut campaign = first.campaign.clone();
    for shard in others {
        if let Some(difference) = difference(&campaign, &shard.campaign) {
            return Err(Failure::new(
                format!(
                    "joining {} (there) and {} (here)",
                    first.path.display(),
                    shard.path.display()
                ),
                format!("they are of different campaigns: {difference}"),
                "join only shards of the same campaign",
            ));
        }
        extend(&mut campaign, shard.campaign.clone());
    }
    Ok(campaign)
}

/// Every repetition once, and how many were there more than once: an ok one before one that is not, else the first.
fn gather(shards: &[ShardResults]) -> Result<(Vec<Repetition<'_>>, usize), Failure> {
    let mut best = HashMap::<String, Repetition<'_>>::new();
    let mut doubled = HashSet::new();
    for shard in shards {
        for (finished, before) in shard.store.finished()? {
            let id = finished.run.id.clone();
            let ok = finished.run.verdict == Verdict::Ok;
            match best.get(&id) {
                None => {}
                Some((there, ..)) => {
                    doubled.insert(id.clone());
                    if there.run.verdict == Verdict::Ok || !ok {
                        continue;
                    }
                }
            }
            best.insert(id, (finished, before, shard));
        }
    }
    let sorted = best.into_values().map(|found| (found.0.run.place, found));
    let sorted: BTreeMap<_, _> = sorted
        .map(|(place, found)| ((place, found.0.run.id.clone()), found))
        .collect();
    Ok((sorted.into_values().collect(), doubled.len()))
}

fn write(
    aside: &Path,
    shards: &[ShardResults],
    campaign: &Campaign,
    found: &[Repetition<'_>],
) -> Result<(), Failure> {
    let directory = Directory::open(aside)?;
    let _lock = Lock::take(aside, "merge")?;
    clear(aside)?;
    let directory = Directory::open(directory.root())?;
    let mut store = Store::write(aside)?;
    store.put_campaign(campaign)?;
    for shard in shards {
        for machine in shard.store.machines()? {
            store.put_machine(&machine)?;
        }
    }
    for (finished, before, shard) in found {
        copy(shard, &directory, finished)?;
        store.adopt(finished, before)?;
    }
    unfinished(&mut store, &directory, shards)?;
    describe(&directory, campaign)?;
    sync(&aside.join("samples"))
        .and_then(|()| sync(aside))
        .map_err(|error| io_failure("writing", aside, &error))
}

/// Removes what an interrupted merge has left.
fn clear(aside: &Path) -> Result<(), Failure> {
    let left = entries(aside)?;
    let mut left = left.iter().filter(|path| !path.ends_with("lock"));
    left.try_for_each(|path| remove(path))
}

/// Attempts at repetitions that are not over anywhere: they count when somebody goes on.
fn unfinished(
    store: &mut Store,
    directory: &Directory,
    shards: &[ShardResults],
) -> Result<(), Failure> {
    let mut over: HashSet<String> = store.runs()?.into_iter().map(|run| run.id).collect();
    for shard in shards {
        let attempts = shard.store.attempts()?;
        let open = attempts
            .iter()
            .filter(|attempt| !over.contains(&attempt.run));
        let mut here = HashSet::new();
        for attempt in open {
            store.put_attempt(attempt)?;
            let to = directory.kept(&attempt.run, attempt.number);
            copy_tree(&kept(shard, &attempt.run, attempt.number), &to)?;
            here.insert(attempt.run.clone());
        }
        over.extend(here);
    }
    Ok(())
}

fn kept(shard: &ShardResults, run: &str, attempt: u32) -> PathBuf {
    shard.path.join("runs").join(run).join(attempt.to_string())
}

fn copy(shard: &ShardResults, directory: &Directory, finished: &Finished) -> Result<(), Failure> {
    let id = &finished.run.id;
    if finished.run.verdict != Verdict::Failed {
        let from = shard.path.join("samples").join(format!("{id}.parquet"));
        copy_file(&from, &directory.samples(id))?;
    }
    for attempt in entries(&shard.path.join("runs").join(id))? {
        let name = attempt.file_name().unwrap_or_default();
        let to = directory.root().join("runs").join(id).join(name);
        copy_tree(&attempt, &to)?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to)
        .and_then(|_| sync(to))
        .map_err(|error| io_failure("copying", from, &error))
}

/// Copies files and directories; nothing else is ever kept.
fn copy_tree(from: &Path, to: &Path) -> Result<(), Failure> {
    if from.is_dir() {
        fs::create_dir_all(to).map_err(|error| io_failure("making", to, &error))?;
    }
    for entry in entries(from)? {
        let to = to.join(entry.file_name().unwrap_or_default());
        if entry.is_dir() {
            copy_tree(&entry, &to)?;
        } else if entry.is_file() {
            copy_file(&entry, &to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn keys() -> Vec<Key> {
        let key = |n: u32| Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), (n % 3).to_string())]),
            subject: if n.is_multiple_of(2) { "a" } else { "b" }.into(),
            repetition: 1 + n / 6,
        };
        (0..30).map(key).collect()
    }

    #[test]
    fn shards_cover_everything_once_and_keep_what_is_compared_together() {
        let keys = keys();
        let shards: Vec<_> = (1..=4)
            .map(|number| Shard { number, of: 4 }.filter(&keys))
            .collect();
        let owner = |i: usize| {
            let owners: Vec<_> = (0..4).filter(|s: &usize| shards[*s][i]).collect();
            assert_eq!(owners.len(), 1);
            owners[0]
        };
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                if a.case == b.case && a.repetition == b.repetition {
                    assert_eq!(owner(i), owner(j));
                }
            }
        }
        let sizes: Vec<_> = shards
            .iter()
            .map(|s| s.iter().filter(|mine| **mine).count())
            .collect();
        assert!(sizes.iter().all(|size| (6..=8).contains(size)), "{sizes:?}");
    }

    #[test]
    fn a_shard_is_two_numbers_in_order() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/4"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
