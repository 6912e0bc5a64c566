//! Campaigns with an executor that only says so: what is stored, what survives a kill, what is refused.

mod fake;

use std::{
    cell::Cell,
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use proptest::prelude::*;

use self::fake::{Fake, Few, lines, open, place, silent, soundly_done};
use super::{shard::merge, *};
use crate::{cli::MergeArgs, experiments::trial::Key, results::store::Verdict};

fn arguments() -> RunArgs {
    RunArgs {
        scenario: "few".into(),
        out: None,
        repetitions: None,
        seed: None,
        shard: None,
        times: None,
        subjects: Vec::new(),
        case: Vec::new(),
        keep: false,
        retry: false,
        resume: false,
        to: None,
        patience: 0,
        dry_run: false,
        json: true,
    }
}

/// One `run` in a directory.
fn run_in(out: &Path, few: &Few, args: &RunArgs, fake: &mut Fake) -> Result<(), Failure> {
    run_to(out, few, args, fake, &|_| Ok(()), silent())
}

fn run_to(
    out: &Path,
    few: &Few,
    args: &RunArgs,
    fake: &mut Fake,
    step: Checkpoint<'_>,
    progress: Progress,
) -> Result<(), Failure> {
    let scenario = few.scenario();
    let plan = CampaignPlan::make(&scenario, args)?;
    let begun = OpenCampaign::new(plan, out, args.retry)?;
    let stop = fake.stop.clone();
    let around = Hooks {
        stop: &stop,
        step,
        report: &|directory| Ok(directory.join("report.html")),
        hand_in: &|directory| {
            let place = args.to.as_deref().map(Place::parse).transpose()?;
            let patience = Duration::from_secs(args.patience);
            place
                .map(|place| hand_in::hand_in(directory, &place, patience))
                .transpose()
        },
    };
    begun.conduct(&scenario, fake, progress, &around)
}

#[test]
fn every_repetition_is_run_once_in_the_scenarios_order() {
    let out = place();
    let few = Few::default();
    let mut fake = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    let ids: Vec<_> = few.keys().iter().map(Key::id).collect();
    assert_eq!(fake.ran, ids);
    soundly_done(out.path(), &few, &fake);
    // A second time there is nothing left to do.
    let mut again = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut again).unwrap();
    assert_eq!(again.ran, [""; 0]);
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn an_attempt_that_may_not_be_believed_is_repeated_and_counted() {
    let out = place();
    let few = Few::default();
    let target = few.keys()[1].id();
    let mut fake = Fake::saying(&[(&target, "iio")]);
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    soundly_done(out.path(), &few, &fake);
    let attempts = open(out.path()).attempts_of(&target).unwrap();
    let verdicts: Vec<_> = attempts.iter().map(|a| a.verdict.word()).collect();
    assert_eq!(verdicts, ["invalid", "invalid", "ok"]);
    assert!(attempts[0].why.contains("late"), "{}", attempts[0].why);
    // The same seed each time, but its own directory.
    let trials: Vec<_> = fake
        .trials
        .iter()
        .filter(|t| t.key.id() == target)
        .collect();
    assert!(trials.iter().all(|trial| trial.seed == trials[0].seed));
    assert_ne!(trials[0].directory, trials[1].directory);
}

#[test]
fn a_repetition_that_is_never_believed_is_stored_as_invalid() {
    let out = place();
    let few = Few::default();
    let target = few.keys()[0].id();
    let mut fake = Fake::saying(&[(&target, "iiiiiiiii")]);
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert!(
        ended
            .to_string()
            .contains("of 8 repetitions 0 failed and 1 stayed invalid"),
        "{ended}"
    );
    soundly_done(out.path(), &few, &fake);
    let attempts = open(out.path()).attempts_of(&target).unwrap();
    assert_eq!(attempts.len(), 5);
}

#[test]
fn what_fails_in_a_lab_that_stands_still_is_repeated_as_invalid_and_costs_no_retry() {
    let out = place();
    let few = Few::default();
    let once = few.keys()[0].id();
    let mut fake = Fake::saying(&[(&once, "zzzo")]);
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    soundly_done(out.path(), &few, &fake);
    let attempts = open(out.path()).attempts_of(&once).unwrap();
    let verdicts: Vec<_> = attempts.iter().map(|a| a.verdict.word()).collect();
    assert_eq!(verdicts, ["invalid", "invalid", "invalid", "ok"]);
    assert_eq!(
        attempts[0].why,
        "the lab stood still for 40.0 s, at most 1.0 s allowed; waiting for relay1: it ended"
    );
    assert_eq!(attempts[0].health.stood_s, 40.0);
    let out = place();
    let mut always = Fake::saying(&[(&once, "zzzzzzzz")]);
    let ended = run_in(out.path(), &few, &arguments(), &mut always).unwrap_err();
    assert!(
        ended.to_string().contains("0 failed and 1 stayed invalid"),
        "{ended}"
    );
}

#[test]
fn the_last_line_tells_who_was_refused_three_times_and_why() {
    let few = Few::default();
    let keys = few.keys();
    let subject = |key: &Key| key.subject.clone();
    let other = keys
        .iter()
        .position(|key| subject(key) != subject(&keys[0]));
    let (bad, twice) = (keys[0].id(), keys[other.unwrap()].id());
    // Two refusals are no news.
    for (says, verdict) in [
        ("fff", "failed"),
        ("iiio", "invalid"),
        ("iffio", "invalid or failed"),
    ] {
        let out = place();
        let mut fake = Fake::saying(&[(&bad, says), (&twice, "iio")]);
        let (to, said) = lines();
        let ended = run_to(out.path(), &few, &arguments(), &mut fake, &|_| Ok(()), to);
        let done = said().pop().unwrap();
        assert_eq!(done["event"], "done");
        let refused = done["refused"].as_array().unwrap();
        assert_eq!(refused.len(), 1, "{done}");
        assert_eq!(refused[0]["subject"], subject(&keys[0]));
        let attempts = says.trim_end_matches('o').len();
        assert_eq!(refused[0]["attempts"], attempts);
        let why = refused[0]["why"].as_str().unwrap();
        let cause = if says.starts_with('f') {
            "waiting for relay1: it ended"
        } else {
            "packets left late: 5.00 %"
        };
        assert!(why.starts_with(cause), "{why}");
        let Err(failure) = ended else {
            assert_ne!(says, "fff");
            continue;
        };
        let line = failure.to_string();
        let told = format!("({attempts} attempts at one repetition {verdict}: {cause})");
        assert!(
            line.contains("1 failed and 0 stayed invalid; refused 3 times or more: "),
            "{line}"
        );
        assert!(line.contains(&told), "{line}");
    }
}

#[test]
fn a_failed_attempt_is_retried_and_its_log_stays() {
    let out = place();
    let few = Few::default();
    let (once, always) = (few.keys()[0].id(), few.keys()[2].id());
    let mut fake = Fake::saying(&[(&once, "fo"), (&always, "ffffff")]);
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert!(
        ended.to_string().contains("1 failed and 0 stayed invalid"),
        "{ended}"
    );
    soundly_done(out.path(), &few, &fake);
    let log = |run: &str, n: u32| out.path().join(format!("runs/{run}/{n}/logs/relay1.log"));
    assert!(log(&once, 1).is_file() && !log(&once, 2).exists());
    assert!((1..=3).all(|n| log(&always, n).is_file()));
    let attempts = open(out.path()).attempts_of(&always).unwrap();
    assert_eq!(attempts.len(), 3);
    assert_eq!(attempts[0].log, "relay1 says why");
    assert!(
        !out.path()
            .join(format!("samples/{always}.parquet"))
            .exists()
    );
}

#[test]
fn an_attempt_whose_transfers_all_failed_is_retried_and_one_whose_transfers_failed_in_part_is_data()
{
    let out = place();
    let few = Few::default();
    let (once, always, part) = (few.keys()[0].id(), few.keys()[1].id(), few.keys()[2].id());
    let says = [
        (once.as_str(), "bo"),
        (always.as_str(), "bbb"),
        (part.as_str(), "s"),
    ];
    let mut fake = Fake::saying(&says);
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    let told = ended.to_string();
    assert!(told.contains("1 failed and 0 stayed invalid"), "{told}");
    let store = open(out.path());
    let attempts = store.attempts_of(&always).unwrap();
    let verdicts: Vec<_> = attempts.iter().map(|a| a.verdict.word()).collect();
    assert_eq!(verdicts, ["failed"; 3]);
    let why = "running the workload download: all of its 2 transfers failed, most often CONNECT: connection refused";
    assert!(attempts.iter().all(|a| a.why == why), "{}", attempts[0].why);
    let over = store.runs().unwrap();
    assert_eq!(over.len(), few.keys().len());
    let failed = |run: &str| {
        let metrics = store.metrics().unwrap();
        let share = |(id, m): &(String, crate::results::Metric)| {
            (id == run && m.name == "failed_share").then_some(m.value)
        };
        metrics.iter().find_map(share)
    };
    assert_eq!(
        (failed(&once), failed(&part), failed(&always)),
        (Some(0.0), Some(0.5), None)
    );
}

#[test]
fn retry_repeats_what_failed_or_stayed_invalid_and_nothing_else() {
    let out = place();
    let few = Few::default();
    let (a, b) = (few.keys()[0].id(), few.keys()[3].id());
    let mut fake = Fake::saying(&[(&a, "fff"), (&b, "iiiii")]);
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    let mut again = Fake::default();
    let plain = run_in(out.path(), &few, &arguments(), &mut again).unwrap_err();
    assert!(plain.to_string().contains("--retry"), "{plain}");
    assert_eq!(again.ran, [""; 0]);
    let args = RunArgs {
        retry: true,
        ..arguments()
    };
    run_in(out.path(), &few, &args, &mut again).unwrap();
    assert_eq!(again.ran, [a.as_str(), b.as_str()]);
    let store = open(out.path());
    assert_eq!(store.attempts_of(&a).unwrap().len(), 4);
    assert_eq!(store.attempts_of(&b).unwrap().len(), 6);
    soundly_done(out.path(), &few, &again);
}

#[test]
fn what_the_scenario_keeps_stays_and_nothing_else() {
    let few = Few::default();
    let keep = |keep: bool| {
        let out = place();
        let args = RunArgs {
            keep,
            ..arguments()
        };
        run_in(out.path(), &few, &args, &mut Fake::default()).unwrap();
        let place = out.path().join(format!("runs/{}/1", few.keys()[0].id()));
        [
            "pcap/a-b.pcap",
            "pcap/b-c.pcap",
            "logs/relay1.log",
            "relay1.toml",
        ]
        .map(|name| place.join(name).exists())
    };
    assert_eq!(keep(false), [true, false, false, false]);
    assert_eq!(keep(true), [true, true, true, false]);
}

#[test]
fn results_of_two_campaigns_never_mix() {
    let out = place();
    let few = Few::default();
    run_in(out.path(), &few, &arguments(), &mut Fake::default()).unwrap();
    let refused = |few: &Few| {
        let mut fake = Fake::default();
        let failure = run_in(out.path(), few, &arguments(), &mut fake).unwrap_err();
        assert_eq!(fake.ran, [""; 0]);
        failure.to_string()
    };
    let seed = Few {
        seed: 9,
        ..Few::default()
    };
    assert!(refused(&seed).contains("the seed is 1 there and 9 here"));
    let bytes = Few {
        bytes: 9,
        ..Few::default()
    };
    assert!(refused(&bytes).contains("the subject hoplite"));
    // More repetitions are more of the same.
    let more = Few {
        repetitions: 3,
        ..Few::default()
    };
    let mut fake = Fake::default();
    run_in(out.path(), &more, &arguments(), &mut fake).unwrap();
    assert_eq!(fake.ran.len(), 4);
}

#[test]
fn a_second_run_in_the_same_directory_is_refused_and_harms_nothing() {
    let out = place();
    let few = Few::default();
    let held = Lock::take(out.path(), "run").unwrap();
    let refusal = run_in(out.path(), &few, &arguments(), &mut Fake::default()).unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("another run is writing there (pid"),
        "{refusal}"
    );
    drop(held);
    let mut fake = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn only_the_subjects_that_are_asked_for_run() {
    let out = place();
    let few = Few::default();
    let args = |label: &str| RunArgs {
        subjects: vec![label.to_owned()],
        ..arguments()
    };
    let mut fake = Fake::default();
    run_in(out.path(), &few, &args("native"), &mut fake).unwrap();
    assert!(
        fake.trials
            .iter()
            .all(|trial| trial.key.subject == "native")
    );
    let refusal = run_in(out.path(), &few, &args("nativ"), &mut Fake::default()).unwrap_err();
    assert!(
        refusal.to_string().contains("choose from: hoplite, native"),
        "{refusal}"
    );
    // The rest comes later.
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn an_interrupted_campaign_stores_nothing_of_the_attempt_under_way() {
    let out = place();
    let few = Few::default();
    let mut fake = Fake {
        stop_at: Some(3),
        ..Fake::default()
    };
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert!(
        ended
            .to_string()
            .contains("interrupted; 2 of 8 repetitions are there"),
        "{ended}"
    );
    assert_eq!(
        fs::read_dir(out.path().join("attempts")).unwrap().count(),
        0
    );
    assert_eq!(open(out.path()).attempts().unwrap().len(), 2);
    let mut fake = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    assert_eq!(fake.ran.len(), 6);
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn a_machine_that_can_run_no_attempt_ends_the_campaign_with_its_own_words() {
    let out = place();
    let few = Few::default();
    let first = few.keys()[0].id();
    let mut fake = Fake::saying(&[(&first, "x")]);
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert_eq!(
        ended.to_string(),
        "hoplite-lab: opening /dev/net/tun: not there: load the module tun"
    );
    assert_eq!(open(out.path()).attempts().unwrap(), []);
    // Once attempts have worked a single one that cannot begin is one that failed; two in a row end it.
    let (second, fourth) = (few.keys()[1].id(), few.keys()[3].id());
    let mut fake = Fake::saying(&[(&second, "xo"), (&fourth, "xx")]);
    let ended = run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert!(ended.to_string().contains("/dev/net/tun"));
    let store = open(out.path());
    assert_eq!(store.attempts_of(&second).unwrap().len(), 2);
    assert_eq!(store.runs().unwrap().len(), 3);
}

#[test]
fn each_line_says_what_happened_and_how_far_it_is() {
    let out = place();
    let few = Few::default();
    let mut fake = Fake::saying(&[(&few.keys()[0].id(), "io")]);
    let (to, said) = lines();
    run_to(out.path(), &few, &arguments(), &mut fake, &|_| Ok(()), to).unwrap();
    let said = said();
    let events: Vec<_> = said
        .iter()
        .map(|line| line["event"].as_str().unwrap())
        .collect();
    assert_eq!(events[..3], ["start", "attempt", "run"]);
    assert_eq!(events.last(), Some(&"done"));
    assert_eq!(said[0]["of"], 8);
    let run = &said[2];
    for (name, value) in [("n", 1), ("of", 8), ("repetition", 1), ("attempt", 2)] {
        assert_eq!(run[name], value, "{name}");
    }
    assert_eq!(run["verdict"], "ok");
    assert!(run["took_s"].is_number() && run["eta_s"].is_number() && run["case"].is_object());
    let done = said.last().unwrap();
    assert_eq!(
        done["report"],
        done["out"].as_str().unwrap().to_owned() + "/report.html"
    );
    assert_eq!(
        (&done["ok"], &done["invalid_attempts"]),
        (&8.into(), &1.into())
    );
}

#[test]
fn a_repetition_whose_samples_somebody_removed_is_run_again() {
    let out = place();
    let few = Few::default();
    run_in(out.path(), &few, &arguments(), &mut Fake::default()).unwrap();
    let id = few.keys()[4].id();
    fs::remove_file(out.path().join(format!("samples/{id}.parquet"))).unwrap();
    let mut fake = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap();
    assert_eq!(fake.ran, [id]);
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn campaign_toml_says_what_the_results_are_of() {
    let out = place();
    run_in(
        out.path(),
        &Few::default(),
        &arguments(),
        &mut Fake::default(),
    )
    .unwrap();
    let text = fs::read_to_string(out.path().join("campaign.toml")).unwrap();
    let table: BTreeMap<String, toml::Value> = toml::from_str(&text).unwrap();
    assert_eq!(table["scenario"].as_str(), Some("few"));
    assert_eq!(
        table["source"].as_str(),
        Some(&*Few::default().scenario().source)
    );
    assert_eq!(table["programs"].as_table().unwrap().len(), 1);
}

#[test]
fn what_belongs_to_no_stored_repetition_is_swept_away_at_the_start() {
    let out = place();
    let few = Few::default();
    let fake = Fake::default();
    run_in(out.path(), &few, &arguments(), &mut Fake::default()).unwrap();
    let orphans = [
        "samples/0123456789abcdef.parquet",
        "runs/0123456789abcdef/1/logs/x.log",
        "attempts/0123456789abcdef-1/relay1.toml",
    ];
    for orphan in orphans {
        let orphan = out.path().join(orphan);
        fs::create_dir_all(orphan.parent().unwrap()).unwrap();
        fs::write(orphan, "half").unwrap();
    }
    run_in(out.path(), &few, &arguments(), &mut Fake::default()).unwrap();
    assert!(
        orphans
            .iter()
            .all(|orphan| !out.path().join(orphan).exists())
    );
    soundly_done(out.path(), &few, &fake);
}

#[test]
fn samples_go_with_the_repetition_that_is_taken_back() {
    let out = place();
    let few = Few::default();
    let target = few.keys()[0].id();
    let mut fake = Fake::saying(&[(&target, "iiiiifff")]);
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    assert!(
        out.path()
            .join(format!("samples/{target}.parquet"))
            .is_file()
    );
    let args = RunArgs {
        retry: true,
        ..arguments()
    };
    run_in(out.path(), &few, &args, &mut fake).unwrap_err();
    soundly_done(out.path(), &few, &fake);
}

// Campaigns that are killed, at every point and at random ones, and disks that are full: nothing is lost, nothing is there twice.

/// Set in a child that runs a campaign to be killed, or to fill its disk: the directory.
const CHILD: &str = "HOPLITE_LAB_TEST_CAMPAIGN";

/// Set in a child that fills its disk: bytes that it leaves free.
const LEAVE: &str = "HOPLITE_LAB_TEST_LEAVE";

fn troubled(few: &Few) -> Fake {
    let keys = few.keys();
    Fake::saying(&[
        (&keys[0].id(), "io"),
        (&keys[1].id(), "fo"),
        (&keys[2].id(), "fff"),
        (&keys[5].id(), "iiiii"),
    ])
}

/// Runs until this many steps were made; true if it came to its end before.
fn run_for(out: &Path, few: &Few, steps: usize) -> bool {
    let left = Cell::new(steps);
    let step = |_: &'static str| {
        let Some(less) = left.get().checked_sub(1) else {
            return Err(Failure::new("running", "killed", "go on"));
        };
        left.set(less);
        Ok(())
    };
    let sink = silent();
    match run_to(out, few, &arguments(), &mut troubled(few), &step, sink) {
        Ok(()) => true,
        Err(failure) => {
            let text = failure.to_string();
            assert!(
                text.contains("stayed invalid") || text.contains("killed"),
                "{text}"
            );
            text.contains("stayed invalid")
        }
    }
}

#[test]
fn a_campaign_that_is_killed_at_any_point_goes_on_without_loss() {
    let few = Few::default();
    let mut steps = 0;
    loop {
        let out = place();
        let done = run_for(out.path(), &few, steps);
        assert!(run_for(out.path(), &few, usize::MAX));
        soundly_done(out.path(), &few, &troubled(&few));
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 40, "only {steps} steps");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_campaign_that_is_killed_again_and_again_goes_on_without_loss(steps in prop::collection::vec(0usize..25, 1..20)) {
        let few = Few::default();
        let out = place();
        for steps in steps {
            run_for(out.path(), &few, steps);
        }
        assert!(run_for(out.path(), &few, usize::MAX));
        soundly_done(out.path(), &few, &troubled(&few));
    }
}

/// Not a test of its own: the process that others of this file kill.
#[test]
fn child_that_runs_a_campaign() {
    let Some(out) = env::var_os(CHILD) else {
        return;
    };
    let few = Few::default();
    let mut fake = troubled(&few);
    if let Some(leave) = env::var(LEAVE).ok().and_then(|leave| leave.parse().ok()) {
        fake.meanwhile = Some(Box::new(fill(Path::new(&out).join("filler"), leave)));
    }
    match run_in(Path::new(&out), &few, &arguments(), &mut fake) {
        Ok(()) => {}
        Err(failure) if failure.to_string().contains("stayed invalid") => {}
        Err(failure) => panic!("{failure}"),
    }
}

/// Fills the disk during the third attempt, but for this many bytes.
fn fill(filler: PathBuf, leave: usize) -> impl FnMut(&Trial) {
    let mut attempts = 0;
    move |_| {
        attempts += 1;
        if attempts == 3 {
            let mut file = File::create(&filler).unwrap();
            let mut length = 0;
            for size in [1 << 16, 1 << 10] {
                while file.write_all(&vec![1; size]).is_ok() {
                    length += size;
                }
            }
            file.set_len(length.saturating_sub(leave) as u64).unwrap();
        }
    }
}

fn child(command: &mut Command, out: &Path) -> std::process::Child {
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::child_that_runs_a_campaign");
    command
        .args([&name, "--exact", "--nocapture"])
        .env(CHILD, out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_campaign_whose_process_is_killed_at_random_times_goes_on_without_loss() {
    let out = place();
    let few = Few::default();
    let mut random = 12345u64;
    let mut kills = 0;
    for round in 0..400 {
        let mut child = child(&mut Command::new(env::current_exe().unwrap()), out.path());
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Longer each time, so that it comes to its end on a slow machine too.
        let patience = Duration::from_micros((random >> 33) % (20_000 + round * 3_000));
        thread::sleep(patience);
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        if ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(said.contains("1 passed"), "the child ran nothing: {said}");
            break;
        }
        assert_eq!(
            ended.status.code(),
            None,
            "{}",
            String::from_utf8_lossy(&ended.stdout)
        );
        kills += 1;
    }
    println!("{kills} kills");
    let mut fake = troubled(&few);
    run_in(out.path(), &few, &arguments(), &mut fake).unwrap_err();
    soundly_done(out.path(), &few, &fake);
}

/// A campaign on a small disk of its own, in namespaces of its own; then the same again when there is room. `None` if it cannot be had here.
fn on_a_small_disk(leave: usize) -> Option<String> {
    let out = place();
    let disk = out.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=24m none \"$1\" || { echo no tmpfs; exit 77; }; shift; mkdir \"$1\"; shift; \
                  \"$@\"; rm -f \"$HOPLITE_LAB_TEST_CAMPAIGN/filler\"; cp -r \"$HOPLITE_LAB_TEST_CAMPAIGN/.\" \"$COPY\"";
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(&disk)
        .arg(disk.join("out"));
    command.arg(env::current_exe().unwrap());
    let copy = out.path().join("copy");
    command.env("COPY", &copy).env(LEAVE, leave.to_string());
    let ended = child(&mut command, &disk.join("out"))
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned()
        + &String::from_utf8_lossy(&ended.stderr);
    if !copy.exists() {
        println!("skipped: {said}");
        return None;
    }
    let few = Few::default();
    let before = open(&copy).runs().unwrap();
    let mut fake = troubled(&few);
    run_in(&copy, &few, &arguments(), &mut fake).unwrap_err();
    soundly_done(&copy, &few, &fake);
    for run in before {
        assert!(!fake.ran.contains(&run.id), "{run:?} was run again");
    }
    Some(said)
}

#[test]
fn a_full_disk_loses_nothing_and_says_what_to_do() {
    for leave in [0, 4 << 10, 20 << 10, 64 << 10, 1 << 20] {
        let Some(said) = on_a_small_disk(leave) else {
            return;
        };
        assert!(
            said.contains("free some space and run the same command again"),
            "{leave}: {said}"
        );
    }
}

// Shards of a campaign, joined: as if one machine had run all of it.

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
    let first = RunArgs {
        shard: Some("1/3".into()),
        ..arguments()
    };
    let first = CampaignPlan::make(&few.scenario(), &first).unwrap();
    let mut bad = Fake::saying(&[(&first.places[0].key.id(), "fff")]);
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

#[test]
fn shards_by_measured_times_are_even_and_cover_everything() {
    let place = place();
    let few = Few {
        repetitions: 6,
        ..Few::default()
    };
    // An earlier campaign, in which one case took five attempts each time.
    let slow = |key: &Key| key.case["hops"] == "1";
    let earlier = Few::default();
    let keys = earlier.keys();
    let says: Vec<_> = keys.iter().filter(|key| slow(key)).map(Key::id).collect();
    let says: Vec<_> = says.iter().map(|id| (id.as_str(), "iiiio")).collect();
    let times = place.path().join("earlier");
    run_in(&times, &earlier, &arguments(), &mut Fake::saying(&says)).unwrap();
    let plan = |number: usize, times: Option<&Path>| {
        let args = RunArgs {
            shard: Some(format!("{number}/2")),
            times: times.map(Path::to_owned),
            ..arguments()
        };
        CampaignPlan::make(&few.scenario(), &args).unwrap().places
    };
    let plans = [1, 2].map(|number| plan(number, Some(&times)));
    assert_eq!(plans[0].len() + plans[1].len(), few.keys().len());
    let seconds = |n: usize| plans[n].iter().map(|place| place.seconds).sum::<f64>();
    // Two subjects, five attempts of a second: the longest group takes ten.
    assert!((seconds(0) - seconds(1)).abs() <= 10.0);
    assert_eq!(seconds(0) + seconds(1), 6.0 * 2.0 * (5.0 + 1.0));
    assert!(plan(1, None).iter().all(|place| place.seconds < 5.0));
}

#[test]
fn times_of_another_scenario_or_of_none_are_refused() {
    let place = place();
    let told = |times: &Path| {
        let args = RunArgs {
            times: Some(times.to_owned()),
            ..arguments()
        };
        let refused = CampaignPlan::make(&Few::default().scenario(), &args);
        refused.unwrap_err().to_string()
    };
    assert!(told(&place.path().join("none")).contains("there are no results"));
    let other = place.path().join("other");
    fs::create_dir(&other).unwrap();
    Store::write(&other)
        .unwrap()
        .put_campaign(&store::Campaign {
            scenario: "other".into(),
            ..store::Campaign::default()
        })
        .unwrap();
    assert!(
        told(&other).contains("its results are of other"),
        "{}",
        told(&other)
    );
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    drop(Store::write(&empty).unwrap());
    assert!(told(&empty).contains("no repetition is over there"));
}

#[test]
fn only_to_go_on_is_refused_where_nothing_has_begun() {
    let place = place();
    let args = RunArgs {
        scenario: "smoke".into(),
        out: Some(place.path().join("not/mounted")),
        resume: true,
        ..arguments()
    };
    let refusal = run(&args).unwrap_err().to_string();
    assert!(refusal.contains("leave --resume out to begin"), "{refusal}");
    assert!(!place.path().join("not").exists());
}

#[test]
fn shards_that_hand_in_at_their_end_are_together_the_whole_campaign() {
    let place = place();
    let few = Few::default();
    let shared = place.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let (progress, said) = lines();
    let mut progress = Some(progress);
    for number in 1..=3 {
        let args = RunArgs {
            shard: Some(format!("{number}/3")),
            to: Some(shared.display().to_string()),
            patience: 60,
            ..arguments()
        };
        let out = place.path().join(number.to_string());
        let to = progress.take().unwrap_or_else(silent);
        run_to(&out, &few, &args, &mut Fake::default(), &|_| Ok(()), to).unwrap();
    }
    let said = said();
    let last = said.last().unwrap();
    assert_eq!(
        (&last["event"], &last["there"]),
        (&"handed-in".into(), &0.into())
    );
    assert!(last["added"].as_u64().unwrap() > 0);
    // What was merged of them adds nothing.
    let all = place.path().join("all");
    let parts = [1, 2, 3].map(|number| place.path().join(number.to_string()));
    join(&[&parts[0], &parts[1], &parts[2]], &all).unwrap();
    let to = Place::parse(&shared.display().to_string()).unwrap();
    let again = hand_in::hand_in(&all, &to, Duration::ZERO).unwrap().json();
    assert_eq!((&again["added"], &again["there"]), (&0.into(), &8.into()));
}

#[test]
fn results_that_cannot_be_handed_in_are_told_and_stay() {
    let out = place();
    let few = Few::default();
    let args = RunArgs {
        to: Some(out.path().join("not/mounted").display().to_string()),
        ..arguments()
    };
    let mut fake = Fake::default();
    let refusal = run_in(out.path(), &few, &args, &mut fake).unwrap_err();
    assert!(
        refusal.to_string().contains("mount the shared storage"),
        "{refusal}"
    );
    soundly_done(out.path(), &few, &fake);
}
