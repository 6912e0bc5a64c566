//! What is shipped: every scenario and subject under `scenarios/` and `subjects/`.

use super::{library::SUBJECTS, *};

#[test]
fn every_shipped_scenario_loads_and_every_case_of_it_resolves_with_every_subject() {
    for (name, text) in SCENARIOS {
        let scenario = load(Path::new(name)).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(scenario.name, name, "it is found by its name");
        assert!(
            !scenario.summary.is_empty() && text.starts_with("# "),
            "{name} says what it is about"
        );
        let first = scenario
            .keys()
            .into_iter()
            .filter(|key| key.repetition == 1);
        for key in first {
            let used = scenario
                .checked
                .resolve(
                    scenario
                        .checked
                        .cases
                        .iter()
                        .find(|case| case.values == key.case)
                        .expect("there"),
                )
                .expect("resolves");
            assert!(
                used.uses.iter().any(|used| used.label == key.subject),
                "{key:?}"
            );
        }
    }
}

#[test]
fn every_file_of_the_directories_is_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names = |directory: &str| -> Vec<String> {
        let paths = library::tomls(&root.join(directory));
        let stem = |path: &PathBuf| {
            let stem = path.file_stem().expect("a name");
            stem.to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = paths.iter().map(stem).collect();
        names.sort_unstable(); // paths sort otherwise: "a-b.toml" comes before "a.toml"
        names
    };
    let sorted = |list: &[(&str, &str)]| -> Vec<String> {
        let mut names: Vec<String> = list.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names("scenarios"), sorted(&SCENARIOS));
    assert_eq!(names("subjects"), sorted(&SUBJECTS));
}

#[test]
fn every_shipped_subject_is_right_and_found_by_its_name() {
    let subjects = built_in_subjects();
    let names: Vec<&str> = subjects
        .iter()
        .map(|subject| subject.name.as_str())
        .collect();
    assert_eq!(names, SUBJECTS.map(|(name, _)| name));
    assert!(subjects.iter().all(|subject| !subject.summary.is_empty()));
}

#[test]
fn every_seed_of_the_fuzzer_is_a_right_scenario_or_subject() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/lab_scenario");
    for entry in fs::read_dir(directory)
        .expect("there")
        .map(|entry| entry.expect("readable"))
    {
        let text = fs::read_to_string(entry.path()).expect("text");
        let scenario = parse("seed", &text).map(|scenario| scenario.runs());
        assert!(
            scenario.is_ok() || SubjectFile::parse("seed", &text).is_ok(),
            "{:?}: {scenario:?}",
            entry.path()
        );
    }
}
