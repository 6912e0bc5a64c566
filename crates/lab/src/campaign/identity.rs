//! Whose directory it is: results of two campaigns never mix. `campaign` claims a directory before it runs anything, `merge` compares shards.

use std::{fs, io::Write};

use serde::Serialize;

use super::{Directory, plan::Plan, trouble};
use crate::{
    errors::Failure,
    results::store::{Binary, Campaign, Store},
};

/// Makes a new directory ours, or says what in it is not.
pub(crate) fn claim(store: &mut Store, directory: &Directory, plan: &Plan) -> Result<(), Failure> {
    let mut campaign = plan.campaign.clone();
    if let Some(there) = store.campaign()? {
        if let Some(difference) = difference(&there, &campaign) {
            return Err(Failure::new(
                format!("going on in {}", directory.root().display()),
                format!("its results are of another campaign: {difference}"),
                "choose another --out, or use what was used there",
            ));
        }
        extend(&mut campaign, there);
    }
    store.put_campaign(&campaign)?;
    describe(directory, &campaign)
}

/// What of another time stays: programs and subjects that this run does not use, and when it began.
pub(crate) fn extend(campaign: &mut Campaign, there: Campaign) {
    campaign.began = campaign.began.min(there.began);
    campaign.planned = campaign.planned.max(there.planned);
    campaign.repetitions = campaign.repetitions.max(there.repetitions);
    for (subject, fingerprint) in there.fingerprints {
        campaign.fingerprints.entry(subject).or_insert(fingerprint);
    }
    for binary in there.binaries {
        if !campaign
            .binaries
            .iter()
            .any(|ours| ours.name == binary.name)
        {
            campaign.binaries.push(binary);
        }
    }
}

/// In what two campaigns differ, if their results must not mix. Comments, words and the number of repetitions may differ.
pub(crate) fn difference(there: &Campaign, here: &Campaign) -> Option<String> {
    if there.scenario != here.scenario {
        let (there, here) = (&there.scenario, &here.scenario);
        return Some(format!("the scenario is {there} there and {here} here"));
    }
    if there.seed != here.seed {
        let (there, here) = (there.seed, here.seed);
        return Some(format!("the seed is {there} there and {here} here"));
    }
    if there.gate != here.gate {
        return Some("the thresholds of the validity gate have changed".to_owned());
    }
    let changed = |(subject, fingerprint): &(&String, &String)| {
        let there = there.fingerprints.get(*subject);
        there.is_some_and(|there| there != *fingerprint)
    };
    if let Some((subject, _)) = here.fingerprints.iter().find(changed) {
        return Some(format!(
            "the scenario or a file that it uses has changed since, as far as the subject {subject} is concerned"
        ));
    }
    here.binaries.iter().find_map(|binary| other(there, binary))
}

fn other(there: &Campaign, here: &Binary) -> Option<String> {
    let there = there
        .binaries
        .iter()
        .find(|binary| binary.name == here.name)?;
    let short = |binary: &Binary| binary.sha256.chars().take(12).collect::<String>();
    (there.sha256 != here.sha256).then(|| {
        let (name, there, here) = (&here.name, short(there), short(here));
        format!("the program {name} is another one (SHA-256 {there}… there, {here}… here)")
    })
}

/// `campaign.toml`: for readers; `results.sqlite` is what counts.
#[derive(Serialize)]
struct Description<'a> {
    scenario: &'a str,
    seed: String,
    repetitions: u32,
    subjects: &'a [String],
    programs: std::collections::BTreeMap<&'a str, &'a str>,
    source: &'a str,
}

/// Writes `campaign.toml`.
pub(crate) fn describe(directory: &Directory, campaign: &Campaign) -> Result<(), Failure> {
    let programs = campaign.binaries.iter();
    let description = Description {
        scenario: &campaign.scenario,
        seed: campaign.seed.to_string(),
        repetitions: campaign.repetitions,
        subjects: &campaign.subjects,
        programs: programs.map(|b| (&*b.name, &*b.sha256)).collect(),
        source: &campaign.source,
    };
    let text = toml::to_string_pretty(&description).unwrap_or_default();
    let path = directory.root().join("campaign.toml");
    let aside = directory.root().join("attempts").join("campaign.toml");
    let write = || {
        let mut file = fs::File::create(&aside)?;
        writeln!(
            file,
            "# What the results here are of. Nothing reads it back."
        )?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| trouble("writing", &path, &error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::scenario::Gate;

    fn campaign() -> Campaign {
        let binary = Binary {
            name: "hoplite".into(),
            sha256: "a".repeat(64),
            version: String::new(),
        };
        Campaign {
            scenario: "smoke".into(),
            seed: 1,
            fingerprints: BTreeMap::from([("native".into(), "1".into())]),
            binaries: vec![binary],
            ..Campaign::default()
        }
    }

    #[test]
    fn what_differs_is_named() {
        let there = campaign();
        let told = |change: &dyn Fn(&mut Campaign)| {
            let mut here = campaign();
            change(&mut here);
            difference(&there, &here).unwrap_or_default()
        };
        assert_eq!(told(&|_| {}), "");
        assert!(told(&|c| c.scenario = "other".into()).contains("smoke there and other here"));
        assert!(told(&|c| c.seed = 2).contains("1 there and 2 here"));
        assert!(told(&|c| c.binaries[0].sha256 = "b".repeat(64)).contains("hoplite"));
        let gate = |c: &mut Campaign| {
            c.gate = Gate {
                attempts: 9,
                ..Gate::default()
            };
        };
        assert!(told(&gate).contains("gate"));
        let subject = |c: &mut Campaign| {
            c.fingerprints.insert("native".into(), "2".into());
        };
        assert!(told(&subject).contains("native"));
    }

    #[test]
    fn more_repetitions_other_words_and_a_new_subject_may_join() {
        let mut here = campaign();
        here.repetitions = 50;
        here.summary = "other words".into();
        here.fingerprints.insert("tor".into(), "3".into());
        assert_eq!(difference(&campaign(), &here), None);
    }
}
