//! The job files of `deploy/lab`: what they ask the lab for, without a cluster.

#![expect(
    clippy::unwrap_used,
    reason = "tests: whoever cannot go on says so by a panic"
)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/lab")
        .join(name)
}

/// A program that only writes down how it was called, and ends with the code in $CODE.
fn stand_in(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let text = "#!/bin/sh\necho \"$(basename \"$0\") $*\" >> \"$CALLS\"\necho 7\nexit ${CODE:-0}\n";
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

struct Script {
    directory: tempfile::TempDir,
    lab: PathBuf,
}

impl Script {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lab = stand_in(directory.path(), "hoplite-lab");
        stand_in(directory.path(), "sbatch");
        Self { directory, lab }
    }

    fn run(&self, arguments: &[&str], env: &[(&str, &str)]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.directory.path().display());
        Command::new("bash")
            .arg(file("slurm-array.sh"))
            .args(arguments)
            .env("PATH", path)
            .env("LAB", &self.lab)
            .env("CALLS", self.directory.path().join("calls"))
            .env("SCENARIO", "smoke")
            .env("OUT", self.directory.path().join("out"))
            .envs(env.iter().copied())
            .output()
            .unwrap()
    }

    /// What was called, with the directory left out.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("calls")).unwrap_or_default();
        let text = text.replace(&format!("{}/", self.directory.path().display()), "");
        text.lines().map(str::to_owned).collect()
    }
}

const TASK: [(&str, &str); 3] = [
    ("SLURM_ARRAY_TASK_ID", "3"),
    ("SLURM_ARRAY_TASK_MIN", "1"),
    ("SLURM_ARRAY_TASK_COUNT", "8"),
];

#[test]
fn a_task_of_a_slurm_array_runs_its_shard_in_a_directory_of_its_own() {
    let script = Script::new();
    let ended = script.run(&["shard", "--retry"], &TASK);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        script.calls(),
        ["hoplite-lab run smoke --out out.shards/3 --shard 3/8 --json --retry"]
    );
}

#[test]
fn a_task_of_a_part_of_the_array_has_its_own_shard_still() {
    let script = Script::new();
    let env = [
        ("SLURM_ARRAY_TASK_ID", "5"),
        ("SLURM_ARRAY_TASK_MIN", "2"),
        ("SLURM_ARRAY_TASK_COUNT", "2"),
        ("SHARDS", "8"),
    ];
    assert!(script.run(&["shard"], &env).status.success());
    assert_eq!(
        script.calls(),
        ["hoplite-lab run smoke --out out.shards/5 --shard 5/8 --json"]
    );
}

#[test]
fn a_task_ends_as_its_shard_did() {
    let script = Script::new();
    let env = [TASK[0], TASK[1], TASK[2], ("CODE", "1")];
    assert_eq!(script.run(&["shard"], &env).status.code(), Some(1));
}

#[test]
fn submitting_asks_for_all_shards_and_joins_them_after_the_last() {
    let script = Script::new();
    let ended = script.run(&["submit"], &[("SHARDS", "8")]);
    assert!(ended.status.success(), "{ended:?}");
    let calls = script.calls();
    assert!(
        calls[0].contains("--array=1-8") && calls[0].ends_with("slurm-array.sh shard"),
        "{calls:?}"
    );
    assert!(
        calls[1].contains("--dependency=afterok:7") && calls[1].ends_with("slurm-array.sh join"),
        "{calls:?}"
    );
    assert!(calls[1].contains("--kill-on-invalid-dep=yes"), "{calls:?}");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said, "shards: job 7, join: job 7\n");
    script.run(&["submit"], &[("SHARDS", "8"), ("TASKS", "2,5")]);
    assert!(script.calls()[2].contains("--array=2,5 "));
}

#[test]
fn joining_takes_every_shard() {
    let script = Script::new();
    for number in ["1", "2"] {
        fs::create_dir_all(script.directory.path().join("out.shards").join(number)).unwrap();
    }
    assert!(script.run(&["join"], &[]).status.success());
    assert_eq!(
        script.calls(),
        [
            "hoplite-lab merge out.shards/1 out.shards/2 --out out",
            "hoplite-lab report out"
        ]
    );
}

#[test]
fn a_wrong_call_is_told_how_it_is_done() {
    let ended = Script::new().run(&["sumbit"], &[]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("usage"));
}

#[test]
fn the_kubernetes_jobs_are_yaml_and_run_as_many_shards_as_they_complete() {
    let script = "import sys, yaml\n\
                  jobs = list(yaml.safe_load_all(open(sys.argv[1])))\n\
                  spec = jobs[0]['spec']\n\
                  assert spec['completionMode'] == 'Indexed'\n\
                  command = spec['template']['spec']['containers'][0]['command'][-1]\n\
                  assert '\"$n/%d\"' % spec['completions'] in command, command\n\
                  assert jobs[1]['spec']['suspend']\n";
    let parser = Command::new("python3").args(["-c", "import yaml"]).output();
    if !parser.is_ok_and(|parser| parser.status.success()) {
        println!("skipped: no YAML parser here (python3 with yaml)");
        return;
    }
    let mut command = Command::new("python3");
    command
        .args(["-c", script])
        .arg(file("kubernetes-job.yaml"));
    let ended = command.output().unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}
