//! What a campaign is to run: which repetitions, in which order, and what they are of.
//! Made from a scenario and the command line, before anything is written.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    io::{self, Write},
    path::Path,
};

use ring::digest;

use super::{choice::Choice, programs, shard::Shard};
use crate::{
    cli::RunArgs,
    errors::{Complaint, Failure},
    results::store::{Campaign, Store},
    scenario::{
        Scenario,
        subject_file::{Needs, Places},
    },
    trial::{Keep, Key, Trial},
};

/// Where repetitions come from: a scenario, or in tests a few lines.
pub(crate) trait Source {
    /// What it says about itself.
    fn about(&self) -> Campaign;
    /// What its subjects need.
    fn needs(&self) -> Vec<Needs>;
    /// What is kept of each attempt.
    fn keep(&self) -> Keep;
    /// All repetitions in order.
    fn keys(&self) -> Vec<Key>;
    /// What one means.
    fn trial(&self, key: &Key, directory: &Path, shared: &Path) -> Result<Trial, Failure>;
}

impl Source for Scenario {
    fn about(&self) -> Campaign {
        Campaign {
            scenario: self.name.clone(),
            summary: self.summary.clone(),
            source: self.source.clone(),
            seed: self.seed,
            repetitions: self.repetitions,
            baseline: self.baseline.clone(),
            subjects: self.labels(),
            cases: self.cases(),
            gate: self.gate.clone(),
            findings: self.findings.clone(),
            ..Campaign::default()
        }
    }

    fn needs(&self) -> Vec<Needs> {
        Self::needs(self).into_iter().cloned().collect()
    }

    fn keep(&self) -> Keep {
        self.keep.clone()
    }

    fn keys(&self) -> Vec<Key> {
        Self::keys(self)
    }

    fn trial(&self, key: &Key, directory: &Path, shared: &Path) -> Result<Trial, Failure> {
        Self::trial(self, key, directory, shared)
    }
}

/// A repetition and its place in the campaign's order.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// From 1, over all shards.
    pub(crate) number: u64,
    pub(crate) key: Key,
}

/// What is to be run here.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) campaign: Campaign,
    pub(crate) places: Vec<Place>,
    pub(crate) keep: Keep,
    /// Everything is kept of every attempt.
    pub(crate) keep_all: bool,
}

impl Plan {
    /// Chooses what the command line asks for.
    pub(crate) fn make(source: &dyn Source, args: &RunArgs) -> Result<Self, Failure> {
        let keys = source.keys();
        let shard = args.shard.as_deref().unwrap_or("1/1");
        let shard: Shard = shard
            .parse()
            .map_err(|why| wrong(format!("reading --shard {shard}"), why, "write such as 1/4"))?;
        let choice = Choice::new(&keys, args)?;
        let places = (1..)
            .zip(&keys)
            .zip(shard.filter(&keys))
            .filter(|((_, key), mine)| *mine && choice.holds(key))
            .map(|((number, key), _)| Place {
                number,
                key: key.clone(),
            })
            .collect();
        Ok(Self {
            campaign: campaign(source, &keys, &choice.subjects)?,
            places,
            keep: source.keep(),
            keep_all: args.keep,
        })
    }

    /// What is kept of an attempt's files.
    pub(crate) fn keeps(&self, last: bool) -> Keep {
        match (self.keep_all, last) {
            (true, _) => everything(self.keep.snaplen),
            (false, true) => self.keep.clone(),
            (false, false) => Keep::default(),
        }
    }
}

/// All that can be recorded.
pub(crate) fn everything(snaplen: u32) -> Keep {
    Keep {
        pcap: vec!["*".to_owned()],
        snaplen,
        qlog: true,
        drops: true,
        logs: true,
    }
}

pub(super) fn wrong(doing: String, why: impl std::fmt::Display, remedy: &str) -> Failure {
    Failure::Wrong(vec![Complaint::new(doing, why, remedy)])
}

fn campaign(
    source: &dyn Source,
    keys: &[Key],
    subjects: &BTreeSet<String>,
) -> Result<Campaign, Failure> {
    let mut campaign = source.about();
    campaign.planned = keys.len() as u64;
    let mut names = BTreeSet::new();
    let mut hashes = BTreeMap::<String, digest::Context>::new();
    for key in firsts(keys).filter(|key| subjects.contains(&key.subject)) {
        let trial = source.trial(key, Path::new("attempt"), Path::new("shared"))?;
        names.extend(programs::of(&trial.subject));
        let hash = hashes.entry(key.subject.clone());
        let new = || digest::Context::new(&digest::SHA256);
        hash.or_insert_with(new).update(meaning(trial)?.as_bytes());
    }
    campaign.fingerprints = hashes
        .into_iter()
        .map(|(subject, hash)| (subject, programs::hexadecimal(hash.finish().as_ref())))
        .collect();
    campaign.binaries = programs::identify(&names, &source.needs())?;
    campaign.began = super::now();
    Ok(campaign)
}

/// The first repetition of each case with each subject, sorted: the order of runs has no say.
fn firsts(keys: &[Key]) -> impl Iterator<Item = &Key> {
    let sorted: BTreeSet<&Key> = keys.iter().filter(|key| key.repetition == 1).collect();
    sorted.into_iter()
}

/// What decides about a repetition, in words. What is recorded of it meanwhile does not, nor where our programs stand.
fn meaning(trial: Trial) -> Result<String, Failure> {
    let bare = Trial {
        record: Keep::default(),
        ..trial
    };
    let text = serde_json::to_string(&bare).unwrap_or_default();
    let places = Places::find(false)?;
    let quoted = |path: &str| serde_json::to_string(path).unwrap_or_default();
    let bare = |path: &str| quoted(path).trim_matches('"').to_owned();
    let text = text.replace(&bare(&places.lab), "{lab}");
    Ok(text.replace(&bare(&places.hoplite), "{hoplite}"))
}

/// Says what would be run, and changes nothing.
pub(crate) fn show(plan: &Plan, out: &Path, json: bool) -> Result<(), Failure> {
    let there = match fs::exists(out.join(crate::results::store::FILE)) {
        Ok(true) => super::over(&Store::read(out)?)?,
        _ => HashSet::new(),
    };
    let mut stdout = io::stdout().lock();
    write_plan(&mut stdout, plan, &there, out, json)
        .map_err(|error| Failure::new("writing the plan", error, "see to where stdout goes"))
}

fn write_plan(
    to: &mut dyn Write,
    plan: &Plan,
    there: &HashSet<String>,
    out: &Path,
    json: bool,
) -> io::Result<()> {
    for place in &plan.places {
        let Place { number, key } = place;
        let done = there.contains(&key.id());
        if json {
            let line = serde_json::json!({
                "event": "plan", "n": number, "id": key.id(), "case": key.case, "subject": key.subject,
                "repetition": key.repetition, "there": done,
            });
            writeln!(to, "{line}")?;
        } else {
            let done = if done { "  (is there)" } else { "" };
            writeln!(to, "{number:>6}  {}{done}", super::progress::name(key))?;
        }
    }
    if json {
        return Ok(());
    }
    let ours = |place: &&Place| there.contains(&place.key.id());
    let count = plan.places.iter().filter(ours).count();
    let (of, out) = (plan.places.len(), out.display());
    writeln!(to, "{count} of {of} repetitions are there ({out})")
}
