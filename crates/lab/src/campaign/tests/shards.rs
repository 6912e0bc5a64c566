//! Shards of a campaign, joined: as if one machine had run all of it.

use super::*;
use crate::{cli::MergeArgs, results::merge::merge};

fn shard(out: &Path, number: usize, few: &Few, fake: &mut Fake) {
    let args = RunArgs {
        shard: Some(format!("{number}/3")),
        ..arguments()
    };
    run_in(out, few, &args, fake).ok();
}

fn join(shards: &[&Path], out: &Path) -> Result<(), Failure> {
    merge(&MergeArgs {
        shards: shards.iter().map(|path| path.to_path_buf()).collect(),
        out: out.to_owned(),
    })
}

#[test]
fn joined_shards_are_the_whole_campaign() {
    let place = place();
    let few = Few::default();
    let failing = few.keys()[2].id();
    let mut fake = Fake::saying(&[(&failing, "fff"), (&few.keys()[5].id(), "io")]);
    let parts = [1, 2, 3].map(|n| place.path().join(n.to_string()));
    for (number, part) in (1..).zip(&parts) {
        shard(part, number, &few, &mut fake);
    }
    let mut ran = fake.ran.clone();
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), 8);
    let out = place.path().join("all");
    join(&[&parts[0], &parts[1], &parts[2]], &out).unwrap();
    soundly_done(&out, &few, &fake);
    assert!(
        out.join(format!("runs/{failing}/3/logs/relay1.log"))
            .is_file()
    );
    assert!(!place.path().join("all.tmp").exists());
    // Nothing is left to do there.
    let mut again = Fake::default();
    run_in(&out, &few, &arguments(), &mut again).unwrap_err();
    assert_eq!(again.ran, [""; 0]);
}

#[test]
fn a_repetition_that_is_in_two_shards_counts_once_and_an_ok_one_first() {
    let place = place();
    let few = Few::default();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    let mut bad = Fake::saying(&[(&few.keys()[0].id(), "fff")]);
    run_in(&a, &few, &arguments(), &mut bad).unwrap_err();
    let mut good = Fake::default();
    shard(&b, 1, &few, &mut good);
    let out = place.path().join("all");
    join(&[&a, &b], &out).unwrap();
    soundly_done(&out, &few, &good);
    assert!(
        open(&out)
            .runs()
            .unwrap()
            .iter()
            .all(|run| run.verdict == Verdict::Ok)
    );
}

#[test]
fn attempts_at_repetitions_that_are_not_over_are_taken_along() {
    let place = place();
    let few = Few::default();
    let part = place.path().join("part");
    let mut fake = Fake::saying(&[(&few.keys()[0].id(), "iio")]);
    fake.stop_at = Some(3);
    run_in(&part, &few, &arguments(), &mut fake).unwrap_err();
    let out = place.path().join("all");
    join(&[&part], &out).unwrap();
    fake.stop_at = None;
    fake.stop = Stop::default();
    run_in(&out, &few, &arguments(), &mut fake).unwrap();
    soundly_done(&out, &few, &fake);
}

#[test]
fn an_interrupted_merge_begins_again() {
    let place = place();
    let few = Few::default();
    let part = place.path().join("part");
    let mut fake = Fake::default();
    run_in(&part, &few, &arguments(), &mut fake).unwrap();
    let left = place.path().join("all.tmp");
    fs::create_dir_all(left.join("samples")).unwrap();
    fs::write(left.join("samples/0123456789abcdef.parquet"), "half").unwrap();
    fs::copy(part.join("results.sqlite"), left.join("results.sqlite")).unwrap();
    let out = place.path().join("all");
    join(&[&part], &out).unwrap();
    soundly_done(&out, &few, &fake);
}

#[test]
fn what_is_of_another_campaign_or_in_use_is_not_joined() {
    let place = place();
    let few = Few::default();
    let [a, b, out] = ["a", "b", "all"].map(|name| place.path().join(name));
    run_in(&a, &few, &arguments(), &mut Fake::default()).unwrap();
    let other = Few {
        seed: 7,
        ..Few::default()
    };
    run_in(&b, &other, &arguments(), &mut Fake::default()).unwrap();
    let refusal = join(&[&a, &b], &out).unwrap_err().to_string();
    assert!(
        refusal.contains("the seed is 1 there and 7 here"),
        "{refusal}"
    );
    let held = Lock::take(&a, "run").unwrap();
    let refusal = join(&[&a], &out).unwrap_err().to_string();
    assert!(
        refusal.contains("another run is writing there"),
        "{refusal}"
    );
    drop(held);
    let refusal = join(&[&a], &b).unwrap_err().to_string();
    assert!(refusal.contains("choose another --out"), "{refusal}");
    assert!(!out.exists());
}
