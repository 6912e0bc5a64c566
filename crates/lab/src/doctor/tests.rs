//! What users see of missing programs.

use super::*;
use crate::scenario::subject_file::Needs;

fn needs(command: &str, version: &[&str]) -> Needs {
    Needs {
        command: command.into(),
        install: "apt-get install it".into(),
        version: version.iter().map(|word| (*word).to_owned()).collect(),
    }
}

fn look(command: &str, version: &[&str]) -> Check {
    programs::look("tor", &needs(command, version), true, None)
}

#[test]
fn a_program_that_is_there_tells_its_version() {
    let check = look("sh", &["sh", "-c", "echo; echo '  sh 5.2  '; echo more"]);
    assert_eq!((check.state, check.found.as_str()), (State::Ok, "sh 5.2"));
    assert_eq!(check.remedy, "");
    let check = look("sh", &["sh", "-c", "echo on stderr >&2; exit 1"]);
    assert_eq!(check.found, "on stderr");
}

#[test]
fn a_program_without_a_version_is_told_by_its_path() {
    assert!(look("sh", &[]).found.ends_with("/sh"));
    assert!(look("sh", &["no-such-program-7"]).found.ends_with("/sh"));
}

#[test]
fn a_program_that_is_missing_is_told_with_the_command_that_installs_it() {
    let check = look("no-such-program-7", &[]);
    assert_eq!(check.state, State::Missing);
    assert_eq!(check.remedy, "apt-get install it");
    let failure = verdict("smoke", &[check]).unwrap_err();
    assert_eq!(failure.exit_code(), std::process::ExitCode::from(1));
    let text = failure.to_string();
    assert!(
        text.contains("missing: no-such-program-7: apt-get install it"),
        "{text}"
    );
}

#[test]
fn a_directory_or_a_plain_file_is_no_program() {
    assert_eq!(look("/tmp", &[]).state, State::Missing);
    let plain = tempfile::NamedTempFile::new().unwrap();
    let path = plain.path().to_str().unwrap();
    assert_eq!(look(path, &[]).state, State::Missing);
}

#[test]
fn what_no_subject_of_the_scenario_needs_does_not_fail_it() {
    let mut check = look("no-such-program-7", &[]);
    check.needed = false;
    let good = look("sh", &[]);
    assert!(verdict("smoke", &[good.clone(), check.clone()]).is_ok());
    let mut out = Vec::new();
    table::write(&mut out, &[check]).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("tor (not needed here)\n  missing"),
        "{text}"
    );
    assert!(text.ends_with("-> apt-get install it\n"), "{text}");
}

#[test]
fn a_machine_that_is_poor_is_told_but_does_not_fail() {
    let poor = Check {
        of: "machine".into(),
        check: "processors".into(),
        state: State::Poor,
        needed: false,
        found: "1".into(),
        remedy: "use two".into(),
    };
    assert!(verdict("smoke", std::slice::from_ref(&poor)).is_ok());
    assert!(
        serde_json::to_string(&poor)
            .unwrap()
            .contains("\"state\":\"poor\"")
    );
}

#[test]
fn a_scenario_that_is_wrong_is_told_before_anything_is_looked_for() {
    let args = DoctorArgs {
        scenario: Some("smoek".into()),
        json: false,
    };
    let refusal = run(&args).unwrap_err().to_string();
    for part in ["reading the scenario smoek: ", "did you mean \"smoke\"?"] {
        assert!(refusal.contains(part), "{refusal}");
    }
}
