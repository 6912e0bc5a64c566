//! Campaigns that are killed, at every point and at random ones, and disks that are full: nothing is lost, nothing is there twice.

use std::{
    cell::Cell,
    env,
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::*;

/// Set in a child that runs a campaign to be killed, or to fill its disk: the directory.
const CHILD: &str = "HOPLITE_LAB_TEST_CAMPAIGN";

/// Set in a child that fills its disk: octets that it leaves free.
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

/// Runs until so many steps were made; true if it came to its end before.
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

/// Fills the disk during the third attempt, but for so many octets.
fn fill(filler: PathBuf, leave: usize) -> impl FnMut(&crate::trial::Trial) {
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
    let name = "campaign::tests::faults::child_that_runs_a_campaign";
    command
        .args([name, "--exact", "--nocapture"])
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
