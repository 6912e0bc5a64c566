//! What a campaign is to run: which repetitions, in which order, and what they are of. Made from a scenario and the command line, before anything
//! is written.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt, fs,
    io::{self, Write},
    path::Path,
};

use ring::digest;

use super::{expected::Times, identity, shard::Shard};
use crate::{
    cli::RunArgs,
    errors::{Complaint, Failure, printed},
    experiments::{
        scenario::{
            Scenario,
            subject_file::{Needs, Places},
        },
        trial::{Keep, Key, Trial},
    },
    results::store::{Campaign, Store},
};

/// A repetition and its place in the campaign's order.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// From 1, over all shards.
    pub(crate) number: u64,
    pub(crate) key: Key,
    /// Seconds that it is expected to take.
    pub(crate) seconds: f64,
}

/// What is to be run here.
#[derive(Clone, Debug)]
pub(crate) struct CampaignPlan {
    pub(crate) campaign: Campaign,
    pub(crate) places: Vec<Planned>,
    pub(crate) keep: Keep,
    /// Everything is kept of every attempt.
    pub(crate) keep_all: bool,
    /// Optional subjects that cannot be run on this machine, and that nobody asked for.
    pub(crate) left_out: Vec<LeftOut>,
}

/// A subject that is not run, because programs are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Its label.
    pub(crate) subject: String,
    /// What is missing.
    pub(crate) missing: Vec<Needs>,
}

impl LeftOut {
    /// Of a scenario's optional subjects those of which a program is missing.
    fn find(scenario: &Scenario) -> Vec<Self> {
        let places = Places::find(false).ok();
        let lacks = |(label, needs): (&String, &Vec<Needs>)| {
            let mut missing = needs.clone();
            missing.retain(|needs| needs.find(places.as_ref()).is_none());
            (!missing.is_empty()).then(|| Self {
                subject: label.clone(),
                missing,
            })
        };
        scenario.optional().iter().filter_map(lacks).collect()
    }

    /// As a line of JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let missing = self.missing.iter().map(|needs| {
            let install = Some(&needs.install).filter(|install| !install.is_empty());
            serde_json::json!({ "program": needs.command, "install": install })
        });
        serde_json::json!({
            "event": "left-out", "subject": self.subject, "missing": missing.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing.iter().map(|needs| {
            let install = match needs.install.as_str() {
                "" => "no command installs it",
                install => install,
            };
            format!("{} is not installed: {install}", needs.command)
        });
        let missing: Vec<String> = missing.collect();
        write!(f, "left out: {}: {}", self.subject, missing.join("; "))
    }
}

impl CampaignPlan {
    /// Chooses what the command line asks for.
    pub(crate) fn make(scenario: &Scenario, args: &RunArgs) -> Result<Self, Failure> {
        let keys = scenario.keys();
        let shard = args.shard.as_deref().unwrap_or("1/1");
        let shard: Shard = shard
            .parse()
            .map_err(|why| wrong(format!("reading --shard {shard}"), why, "write such as 1/4"))?;
        let mut choice = Selection::new(&keys, args)?;
        // Who asks for a subject by name is told by the attempt what it lacks.
        let mut left_out = Vec::new();
        if args.subjects.is_empty() {
            left_out = LeftOut::find(scenario);
            choice.leave_out(&left_out);
        }
        let times = Times::known(scenario, args.times.as_deref())?;
        // Over all keys, whatever is chosen of them: what is left out may be run later, and is then of the same shard.
        let places = (1..)
            .zip(&keys)
            .zip(shard.filter(&keys, |key| times.of(key)))
            .filter(|((_, key), mine)| *mine && choice.holds(key))
            .map(|((number, key), _)| Planned {
                number,
                key: key.clone(),
                seconds: times.of(key),
            })
            .collect();
        Ok(Self {
            campaign: campaign(scenario, &keys, &choice.subjects)?,
            places,
            keep: scenario.keep.clone(),
            keep_all: args.keep,
            left_out,
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
        har: true,
        drops: true,
        logs: true,
    }
}

pub(super) fn wrong(doing: String, why: impl fmt::Display, remedy: &str) -> Failure {
    Failure::Wrong(vec![Complaint::new(doing, why, remedy)])
}

/// What a scenario says about itself.
fn about(scenario: &Scenario) -> Campaign {
    Campaign {
        scenario: scenario.name.clone(),
        summary: scenario.summary.clone(),
        source: scenario.source.clone(),
        seed: scenario.seed,
        repetitions: scenario.repetitions,
        baseline: scenario.baseline.clone(),
        subjects: scenario.labels(),
        families: scenario.families(),
        cases: scenario.cases(),
        gate: scenario.gate.clone(),
        findings: scenario.findings.clone(),
        ..Campaign::default()
    }
}

fn campaign(
    scenario: &Scenario,
    keys: &[Key],
    subjects: &BTreeSet<String>,
) -> Result<Campaign, Failure> {
    let mut campaign = about(scenario);
    campaign.planned = keys.len() as u64;
    let mut names = BTreeSet::new();
    let mut hashes = BTreeMap::<String, digest::Context>::new();
    let chosen = firsts(keys).filter(|key| subjects.contains(&key.subject));
    // Whatever number of repetitions is asked for, all turns are what the results are of.
    let each = chosen.flat_map(|key| {
        (1..=scenario.turns()).map(move |repetition| Key {
            repetition,
            ..key.clone()
        })
    });
    for key in each {
        let trial = scenario.trial(&key, Path::new("attempt"), Path::new("shared"))?;
        names.extend(identity::started_by(&trial.subject));
        let hash = hashes.entry(key.subject.clone());
        let new = || digest::Context::new(&digest::SHA256);
        hash.or_insert_with(new).update(meaning(trial)?.as_bytes());
    }
    campaign.fingerprints = hashes
        .into_iter()
        .map(|(subject, hash)| (subject, identity::hexadecimal(hash.finish().as_ref())))
        .collect();
    campaign.binaries = identity::identify(&names, &scenario.needs())?;
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
pub(crate) fn show(plan: &CampaignPlan, out: &Path, json: bool) -> Result<(), Failure> {
    let there = match fs::exists(out.join(crate::results::store::FILE)) {
        Ok(true) => super::over(&Store::read(out)?)?,
        _ => HashSet::new(),
    };
    let mut stdout = io::stdout().lock();
    printed(write_plan(&mut stdout, plan, &there, out, json))
}

fn write_plan(
    to: &mut dyn Write,
    plan: &CampaignPlan,
    there: &HashSet<String>,
    out: &Path,
    json: bool,
) -> io::Result<()> {
    for left_out in &plan.left_out {
        if json {
            writeln!(to, "{}", left_out.json())?;
        } else {
            writeln!(to, "{left_out}")?;
        }
    }
    for place in &plan.places {
        let Planned {
            number,
            key,
            seconds,
        } = place;
        let done = there.contains(&key.id());
        if json {
            let line = serde_json::json!({
                "event": "plan", "n": number, "id": key.id(), "case": key.case, "subject": key.subject,
                "repetition": key.repetition, "there": done, "expected_s": (seconds * 1000.0).round() / 1000.0,
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
    let ours = |place: &&Planned| there.contains(&place.key.id());
    let count = plan.places.iter().filter(ours).count();
    let (of, out) = (plan.places.len(), out.display());
    let seconds = |place: &Planned| place.seconds;
    let all: f64 = plan.places.iter().map(seconds).sum();
    let left = plan.places.iter().filter(|place| !ours(place));
    let left: f64 = left.map(seconds).sum();
    writeln!(
        to,
        "{count} of {of} repetitions are there ({out}); all are expected to take {all:.0} s, the others {left:.0} s"
    )
}

// Which subjects and cases the command line asks for: `--subjects`, `--case`. The rest may be run later, into the same directory.

/// What is run.
#[derive(Debug)]
pub(super) struct Selection {
    /// Labels.
    pub(super) subjects: BTreeSet<String>,
    /// For each parameter that was named, the values that are wanted.
    cases: BTreeMap<String, BTreeSet<String>>,
}

impl Selection {
    /// What is asked for, if the scenario has it.
    pub(super) fn new(keys: &[Key], args: &RunArgs) -> Result<Self, Failure> {
        Ok(Self {
            subjects: subjects(keys, &args.subjects)?,
            cases: cases(keys, &args.case)?,
        })
    }

    /// Does without these subjects.
    fn leave_out(&mut self, left_out: &[LeftOut]) {
        let out = |label: &String| left_out.iter().any(|one| one.subject == *label);
        self.subjects.retain(|label| !out(label));
    }

    /// Whether a repetition belongs to it.
    pub(super) fn holds(&self, key: &Key) -> bool {
        let mut asked = self.cases.iter();
        self.subjects.contains(&key.subject)
            && asked.all(|(name, wanted)| {
                let value = key.case.get(name);
                value.is_some_and(|value| wanted.contains(value))
            })
    }
}

fn subjects(keys: &[Key], asked: &[String]) -> Result<BTreeSet<String>, Failure> {
    let all: BTreeSet<String> = keys.iter().map(|key| key.subject.clone()).collect();
    if asked.is_empty() {
        return Ok(all);
    }
    if let Some(unknown) = asked.iter().find(|label| !all.contains(*label)) {
        let why = "the scenario has no subject of that label";
        return Err(wrong(
            format!("reading --subjects {unknown}"),
            why,
            &choose_from(all),
        ));
    }
    Ok(asked.iter().cloned().collect())
}

fn cases(keys: &[Key], asked: &[String]) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let mut known = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, value) in keys.iter().flat_map(|key| &key.case) {
        known.entry(name.clone()).or_default().insert(value.clone());
    }
    let mut wanted = BTreeMap::<String, BTreeSet<String>>::new();
    for text in asked {
        let (name, value) = one(text, &known)?;
        wanted.entry(name).or_default().insert(value);
    }
    Ok(wanted)
}

/// A parameter and its value, both of which the matrix has.
fn one(
    text: &str,
    known: &BTreeMap<String, BTreeSet<String>>,
) -> Result<(String, String), Failure> {
    let refused =
        |why: &str, remedy: &str| Err(wrong(format!("reading --case {text}"), why, remedy));
    let Some((name, value)) = text.split_once('=') else {
        return refused("it is no PARAMETER=VALUE", "write such as hops=2");
    };
    let Some(values) = known.get(name) else {
        let names = choose_from(known.keys().cloned());
        return refused(
            "the scenario's [matrix] has no parameter of that name",
            &names,
        );
    };
    if !values.contains(value) {
        return refused(
            &format!("{name} has no such value"),
            &choose_from(values.iter().cloned()),
        );
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn choose_from(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().collect();
    format!("choose from: {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        let pairs = [("1", "10Mbit"), ("1", "50Mbit"), ("2", "10Mbit")];
        let key = |(hops, rate): (&str, &str)| Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), hops.into()), ("rate".into(), rate.into())]),
            subject: "native".into(),
            repetition: 1,
        };
        pairs.map(key).into()
    }

    fn held(asked: &[&str]) -> Vec<bool> {
        let asked: Vec<String> = asked.iter().map(|text| (*text).to_owned()).collect();
        let choice = Selection {
            subjects: BTreeSet::from(["native".to_owned()]),
            cases: cases(&keys(), &asked).unwrap(),
        };
        keys().iter().map(|key| choice.holds(key)).collect()
    }

    #[test]
    fn results_are_of_all_turns_of_a_rotation_however_few_repetitions_are_asked_for() {
        let fingerprints = |last: &str| {
            let text = format!(
                r#"
                name = "turns"
                repetitions = 1
                rotation.size = ["1kB", "1kB", "{last}"]
                host = [{{ name = "client" }}, {{ name = "server" }}]
                link = [{{ ends = ["client", "server"] }}]
                subject = [{{ use = "native" }}]
                workload = [{{ kind = "download", bytes = "{{size}}" }}]
                "#
            );
            let scenario = crate::experiments::scenario::parse("turns.toml", &text).unwrap();
            let subjects = BTreeSet::from(["native".to_owned()]);
            let made = campaign(&scenario, &scenario.keys(), &subjects);
            made.unwrap().fingerprints
        };
        assert_eq!(fingerprints("1kB"), fingerprints("1kB"));
        assert_ne!(fingerprints("1kB"), fingerprints("2kB"));
    }

    #[test]
    fn values_of_one_parameter_are_alternatives_and_parameters_all_hold() {
        assert_eq!(held(&[]), [true, true, true]);
        assert_eq!(held(&["hops=1"]), [true, true, false]);
        assert_eq!(held(&["hops=1", "hops=2"]), [true, true, true]);
        assert_eq!(held(&["hops=1", "rate=50Mbit"]), [false, true, false]);
    }

    const OPTIONAL: &str = r#"
name = "s"
repetitions = 2
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
[[subject]]
use = "native"
[[subject]]
file = "rare.toml"
optional = true
[[workload]]
kind = "request"
"#;
    const RARE: &str = r#"
name = "rare"
[parameters]
really = true
[[needs]]
command = "no-such-program-7"
install = "cargo install it"
[[needs]]
command = "no-such-program-8"
install = ""
when = "{really}"
[[needs]]
command = "sh"
install = "apt-get install dash"
"#;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn made(scenario: &str, words: &[&str]) -> CampaignPlan {
        use clap::Parser;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.toml");
        fs::write(&path, scenario).unwrap();
        fs::write(directory.path().join("rare.toml"), RARE).unwrap();
        let scenario = crate::experiments::scenario::load(&path).unwrap();
        let line = Line::parse_from(["run", "s"].iter().chain(words));
        CampaignPlan::make(&scenario, &line.run).unwrap()
    }

    fn subjects_of(plan: &CampaignPlan) -> Vec<&str> {
        let mut all: Vec<&str> = plan.places.iter().map(|p| p.key.subject.as_str()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn an_optional_subject_without_its_program_is_left_out_and_told_with_what_installs_it() {
        let plan = made(OPTIONAL, &[]);
        assert_eq!(subjects_of(&plan), ["native", "native"]);
        assert_eq!(plan.campaign.fingerprints.len(), 1);
        let [left_out] = plan.left_out.as_slice() else {
            panic!("{:?}", plan.left_out);
        };
        assert_eq!(
            left_out.to_string(),
            "left out: rare: no-such-program-7 is not installed: cargo install it; \
             no-such-program-8 is not installed: no command installs it"
        );
        assert_eq!(
            left_out.json()["missing"][1],
            serde_json::json!({ "program": "no-such-program-8", "install": null })
        );
        let mut shown = Vec::new();
        write_plan(&mut shown, &plan, &HashSet::new(), Path::new("out"), false).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.starts_with("left out: rare: "), "{shown}");
    }

    #[test]
    fn an_optional_subject_is_run_where_it_is_asked_for_and_where_its_programs_are() {
        let plan = made(OPTIONAL, &["--subjects", "rare"]);
        assert_eq!(subjects_of(&plan), ["rare", "rare"]);
        assert_eq!(plan.left_out, []);
        let there = OPTIONAL.replace(
            "[[subject]]\nfile",
            "[[subject]]\nlabel = \"usual\"\nwith = { really = false }\nfile",
        );
        let plan = made(&there, &[]);
        assert_eq!(
            plan.left_out[0].missing.len(),
            1,
            "what is not needed with its parameters"
        );
    }

    #[test]
    fn a_subject_that_one_use_requires_is_not_left_out() {
        let twice = OPTIONAL.replace("optional = true\n", "");
        assert_eq!(subjects_of(&made(&twice, &[])).len(), 4);
        let cases = OPTIONAL.replace(
            "optional = true\n",
            "optional = \"{hops == 1}\"\n[matrix]\nhops = [1, 2]\n",
        );
        assert_eq!(subjects_of(&made(&cases, &[])).len(), 8);
    }

    #[test]
    fn a_case_that_the_scenario_does_not_have_is_refused_with_those_that_it_has() {
        let said = |text: &str| cases(&keys(), &[text.to_owned()]).unwrap_err().to_string();
        assert!(said("hops").contains("write such as hops=2"));
        assert!(said("hop=1").contains("choose from: hops, rate"));
        assert!(said("hops=3").contains("choose from: 1, 2"));
    }
}
