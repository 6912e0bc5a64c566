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
    /// Says for each of all the keys, in order, whether it belongs here; `seconds` is what one is expected to take.
    ///
    /// Each group goes to the shard that has the least to do so far, within a repetition of the campaign the longest group first: no shard then
    /// has more to do than another by more than the longest group takes. Repetitions that are added later move none of those before them. The
    /// keys' order is a seeded shuffle, and decides where groups take the same time: so no case always meets the same machine.
    pub(crate) fn filter(self, keys: &[Key], seconds: impl Fn(&Key) -> f64) -> Vec<bool> {
        let mut loads = vec![0.0; self.of];
        let mut ours = HashSet::new();
        for round in rounds(keys, seconds) {
            for (group, seconds) in round {
                let number = least(&loads);
                if let Some(load) = loads.get_mut(number) {
                    *load += seconds;
                }
                if number == self.number - 1 {
                    ours.insert(group);
                }
            }
        }
        keys.iter().map(|key| ours.contains(&group(key))).collect()
    }
}

/// What stays together: the subjects of one case's repetition.
type Group<'a> = (&'a BTreeMap<String, String>, u32);

fn group(key: &Key) -> Group<'_> {
    (&key.case, key.repetition)
}

/// The groups of each repetition of the campaign, with what they take: the longest first, and those that take the same in the keys' order.
fn rounds(keys: &[Key], seconds: impl Fn(&Key) -> f64) -> Vec<Vec<(Group<'_>, f64)>> {
    let mut places = HashMap::new();
    let mut rounds = BTreeMap::<u32, Vec<(Group<'_>, f64)>>::new();
    for key in keys {
        let round = rounds.entry(key.repetition).or_default();
        let place = *places.entry(group(key)).or_insert(round.len());
        if place == round.len() {
            round.push((group(key), 0.0));
        }
        if let Some((_, all)) = round.get_mut(place) {
            // A time that is no number would make the order depend on who asks.
            *all += Some(seconds(key))
                .filter(|time| time.is_finite())
                .unwrap_or(1.0);
        }
    }
    let mut rounds: Vec<_> = rounds.into_values().collect();
    for round in &mut rounds {
        round.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    }
    rounds
}

/// The place of the smallest, the first of them.
fn least(loads: &[f64]) -> usize {
    let order = |(_, one): &(usize, &f64), (_, other): &(usize, &f64)| one.total_cmp(other);
    let least = loads.iter().enumerate().min_by(order);
    least.map_or(0, |(place, _)| place)
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

    use proptest::prelude::*;

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

    /// Each group's shard, from 0; fails unless every key is in exactly one, with all of its group.
    fn dealt(keys: &[Key], of: usize, seconds: &dyn Fn(&Key) -> f64) -> Vec<usize> {
        let shards: Vec<_> = (1..=of)
            .map(|number| Shard { number, of }.filter(keys, seconds))
            .collect();
        let owner = |i: usize| {
            let owners: Vec<_> = (0..of).filter(|s: &usize| shards[*s][i]).collect();
            assert_eq!(owners.len(), 1, "{:?}", keys[i]);
            owners[0]
        };
        let owners: Vec<_> = (0..keys.len()).map(owner).collect();
        for (a, of_a) in keys.iter().zip(&owners) {
            for (b, of_b) in keys.iter().zip(&owners) {
                assert!(group(a) != group(b) || of_a == of_b, "{a:?} {b:?}");
            }
        }
        owners
    }

    fn loads(keys: &[Key], of: usize, seconds: &dyn Fn(&Key) -> f64) -> Vec<f64> {
        let mut loads = vec![0.0; of];
        for (key, owner) in keys.iter().zip(dealt(keys, of, seconds)) {
            loads[owner] += seconds(key);
        }
        loads
    }

    #[test]
    fn shards_cover_everything_once_and_keep_what_is_compared_together() {
        let loads = loads(&keys(), 4, &|_| 1.0);
        assert!(
            loads.iter().all(|load| (6.0..=8.0).contains(load)),
            "{loads:?}"
        );
    }

    #[test]
    fn a_case_that_takes_long_is_made_up_for_by_others() {
        // One case in three takes ten times as long, and by turns every second group would be one of it.
        let slow = |key: &Key| if key.case["hops"] == "0" { 10.0 } else { 1.0 };
        let loads = loads(&keys(), 2, &slow);
        let apart = (loads[0] - loads[1]).abs();
        assert!(
            apart <= 20.0,
            "more than the longest group apart: {loads:?}"
        );
        let all: f64 = loads.iter().sum();
        assert_eq!(all, keys().iter().map(slow).sum::<f64>());
    }

    #[test]
    fn repetitions_that_are_added_later_leave_the_others_where_they_are() {
        let keys = keys();
        let slow =
            |key: &Key| f64::from(key.repetition) + if key.case["hops"] == "1" { 3.5 } else { 0.5 };
        let fewer: Vec<Key> = keys
            .iter()
            .filter(|key| key.repetition <= 3)
            .cloned()
            .collect();
        let before = dealt(&fewer, 3, &slow);
        let after = dealt(&keys, 3, &slow);
        let kept = keys
            .iter()
            .zip(after)
            .filter(|(key, _)| key.repetition <= 3);
        assert_eq!(kept.map(|(_, owner)| owner).collect::<Vec<_>>(), before);
    }

    proptest! {
        #[test]
        fn no_shard_has_more_to_do_than_another_by_more_than_the_longest_group(
            times in prop::collection::vec(0.1f64..1000.0, 3), of in 1usize..9
        ) {
            let seconds = |key: &Key| times[key.case["hops"].parse::<usize>().unwrap()];
            let keys = keys();
            let loads = loads(&keys, of, &seconds);
            let longest = rounds(&keys, seconds).concat().into_iter().map(|(_, time)| time).fold(0.0, f64::max);
            let most = loads.iter().copied().fold(0.0, f64::max);
            let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(most - least <= longest + 1e-6, "{loads:?}, {longest}");
        }
    }

    #[test]
    fn a_shard_is_two_numbers_in_order() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/4"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
