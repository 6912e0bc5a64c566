use tempfile::TempDir;

use super::{
    example::{Example, data, directory},
    *,
};
use crate::results::parquet;

/// A directory with the results of an example campaign.
fn example(repetitions: u32) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let example = Example {
        repetitions,
        ..Example::default()
    };
    directory(&example, dir.path());
    dir
}

fn args(dir: &Path) -> ReportArgs {
    ReportArgs {
        dir: dir.to_owned(),
        json: false,
        baseline: None,
    }
}

#[test]
fn a_directory_becomes_a_page_with_its_figures_and_exports() {
    let dir = example(6);
    run(&args(dir.path())).unwrap();
    let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(text("report.html").starts_with("<!doctype html>"));
    assert!(text("figures/box-goodput-get.svg").starts_with("<svg xmlns="));
    assert!(dir.path().join("figures/box-goodput-get.png").exists());
    assert_eq!(text("export/onionperf.csv").lines().count(), 1 + 4 * 6);
    let document: Value =
        serde_json::from_str(&text("export/tor.onionperf.analysis.json")).unwrap();
    assert_eq!(
        document["data"]["client"]["tgen"]["streams"]
            .as_object()
            .unwrap()
            .len(),
        6
    );
    let joined = parquet::read(&dir.path().join("transfers.parquet")).unwrap();
    assert_eq!(joined.len(), 4 * 6);
}

#[test]
fn a_subject_that_left_by_several_relays_has_its_figures_by_each() {
    let dir = tempfile::tempdir().unwrap();
    let example = Example {
        rotating: true,
        ..Example::default()
    };
    directory(&example, dir.path());
    let (data, judgement, _) = make(dir.path(), None).unwrap();
    let lines = lines(&data, &judgement);
    let n = |metric: &str, subject: &str| {
        let same = |line: &&Value| line["metric"] == metric && line["subject"] == subject;
        let mut of = lines.iter().filter(same);
        of.find(|line| line["p95"].is_number())
            .map(|line| line["n"].as_u64().unwrap())
    };
    assert_eq!(n("goodput_bps", "hoplite-2"), Some(10));
    assert_eq!(n("goodput_bps:relay1", "hoplite-2"), Some(5));
    assert_eq!(n("goodput_bps:relay2", "hoplite-2"), Some(5));
    assert_eq!(n("goodput_bps:relay1", "tor"), None, "seen as itself");
    assert_eq!(n("goodput_bps", "native"), Some(10));
    let judged = |line: &&Value| line["p_holm"].is_number();
    let by_relay = |line: &Value| line["metric"].as_str().unwrap().contains(":relay");
    assert!(
        !lines.iter().filter(judged).any(by_relay),
        "nobody is better by a part"
    );
    let figures = dir.path().join("figures");
    assert!(figures.join("ecdf-by-egress-goodput-get.svg").exists());
    let plain = example_figures(&Example::default());
    assert!(!plain.iter().any(|name| name.contains("by-egress")));
}

/// Files of the figures of an example.
fn example_figures(example: &Example) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    directory(example, dir.path());
    make(dir.path(), None).unwrap();
    let files = fs::read_dir(dir.path().join("figures")).unwrap();
    files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_report_is_the_same_every_time() {
    let dir = example(6);
    let once = || {
        run(&args(dir.path())).unwrap();
        fs::read(dir.path().join("report.html")).unwrap()
    };
    assert!(once() == once());
}

#[test]
fn a_sample_file_that_is_gone_is_told_and_the_rest_is_reported() {
    let dir = example(2);
    let mut samples = fs::read_dir(dir.path().join("samples")).unwrap();
    fs::write(samples.next().unwrap().unwrap().path(), "not Parquet").unwrap();
    run(&args(dir.path())).unwrap();
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("1 sample file cannot be read"));
}

#[test]
fn a_baseline_that_is_no_subject_is_refused_with_those_that_are() {
    let dir = example(1);
    let wrong = ReportArgs {
        baseline: Some("i2p".into()),
        ..args(dir.path())
    };
    let refusal = run(&wrong).unwrap_err().to_string();
    assert!(
        refusal.contains("no subject is called i2p: name one of native"),
        "{refusal}"
    );
}

#[test]
fn a_directory_without_results_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = run(&args(dir.path())).unwrap_err().to_string();
    assert!(refusal.contains("no results"), "{refusal}");
}

/// Makes an example to look at: `REPORT_EXAMPLE=DIR cargo test -p hoplite-lab example_to_look_at`.
#[test]
fn an_example_to_look_at_is_made_where_the_environment_says() {
    let Some(dir) = std::env::var_os("REPORT_EXAMPLE").map(PathBuf::from) else {
        return;
    };
    for (name, example) in [
        ("one-case", Example::default()),
        (
            "matrix",
            Example {
                hops: vec![1, 2, 3, 4],
                rates: vec!["10Mbit", "50Mbit"],
                ..Example::default()
            },
        ),
        (
            "watched",
            Example {
                hops: vec![1, 2, 3],
                watched: true,
                ..Example::default()
            },
        ),
        (
            "broken",
            Example {
                repetitions: 3,
                broken: Some("tor"),
                ..Example::default()
            },
        ),
    ] {
        let dir = dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        directory(&example, &dir);
        run(&args(&dir)).unwrap();
    }
}

#[test]
fn a_line_has_the_keys_that_scripts_rely_on() {
    let data = data(&Example::default());
    let lines = lines(&data, &judge(&data, data.subject("native")));
    let line = lines
        .iter()
        .find(|line| line["metric"] == "ttfb_s" && line["subject"] == "tor")
        .unwrap();
    assert_eq!(
        (&line["scenario"], &line["case"]["hops"]),
        (&json!("example"), &json!("2"))
    );
    for key in ["n", "invalid", "failed", "median", "lo", "hi", "p95", "p99"] {
        assert!(line[key].is_number(), "{key} of {line}");
    }
    let ratio = lines
        .iter()
        .find(|line| line["baseline"] == "native" && line["metric"] == "ttfb_s")
        .unwrap();
    assert!(
        ratio["ratio"].is_number() && ratio["verdict"].is_string(),
        "{ratio}"
    );
    let goal = lines.iter().find(|line| line["goal"].is_string()).unwrap();
    assert!(
        goal["value"].is_number() && goal["verdict"].is_string(),
        "{goal}"
    );
}
