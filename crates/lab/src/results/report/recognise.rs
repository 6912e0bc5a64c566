//! What an observer recognises by the pattern of packets: questions to the classifier of `analysis::fingerprint`, its answers as CSV and as a
//! section of the page.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use super::{
    data::Data,
    page::{PageInput, details, heads, table},
    render::{row, tag, text_tag},
    unwritten,
};
use crate::{
    errors::Failure,
    results::{
        analysis::fingerprint::{Confusion, Example, PREFIX, leave_group_out},
        export::field,
    },
};

/// A question and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// Who or what was watched, which the observer knows.
    pub(super) watched: String,
    /// What is to be recognised.
    pub(super) asked: &'static str,
    /// The possible answers.
    pub(super) classes: Vec<String>,
    pub(super) confusion: Confusion,
}

/// What was seen of one repetition.
#[derive(Clone, Debug)]
struct Observed {
    case: usize,
    subject: usize,
    repetition: u32,
    features: Vec<f64>,
}

/// All questions that the results can answer; none if nobody looked.
pub(super) fn answers(data: &Data) -> Vec<Answer> {
    let seen = seen(data);
    let (mut cases, mut subjects) = (Vec::new(), Vec::new());
    for one in &seen {
        cases.push(one.case);
        subjects.push(one.subject);
    }
    for all in [&mut cases, &mut subjects] {
        all.sort_unstable();
        all.dedup();
    }
    let case_of = |one: &Observed| one.case;
    let subject_of = |one: &Observed| one.subject;
    let tell = |case: usize| data.case_title(case);
    let label = |subject: usize| data.label(subject).to_owned();
    let mut answers = Vec::new();
    for subject in &subjects {
        let of: Vec<&Observed> = seen.iter().filter(|one| one.subject == *subject).collect();
        answers.extend(ask(&of, (label(*subject), "case"), (&case_of, &tell)));
    }
    let all: Vec<&Observed> = seen.iter().collect();
    if subjects.len() > 1 {
        let watched = "any subject".to_owned();
        answers.extend(ask(&all, (watched, "case"), (&case_of, &tell)));
    }
    for case in &cases {
        let of: Vec<&Observed> = seen.iter().filter(|one| one.case == *case).collect();
        answers.extend(ask(&of, (tell(*case), "subject"), (&subject_of, &label)));
    }
    if cases.len() > 1 {
        let watched = "any case".to_owned();
        answers.extend(ask(&all, (watched, "subject"), (&subject_of, &label)));
    }
    answers
}

/// Everything that was seen, in the order of cases, subjects and repetitions.
fn seen(data: &Data) -> Vec<Observed> {
    let mut all: BTreeMap<(usize, usize, u32), Vec<f64>> = BTreeMap::new();
    let measures = data.measures.iter().enumerate();
    let measures = measures.filter(|(_, of)| of.metric.starts_with(PREFIX));
    let measures: Vec<usize> = measures.map(|(measure, _)| measure).collect();
    for (place, points) in &data.groups {
        if !measures.contains(&place.measure) {
            continue;
        }
        for point in points {
            let key = (place.case, place.subject, point.repetition);
            all.entry(key).or_default().push(point.value);
        }
    }
    let whole = |((case, subject, repetition), features): (_, Vec<f64>)| {
        // One that lacks a feature cannot be compared.
        (features.len() == measures.len()).then_some(Observed {
            case,
            subject,
            repetition,
            features,
        })
    };
    all.into_iter().filter_map(whole).collect()
}

/// What is asked about, and what the answers are called.
type Question<'a> = (&'a dyn Fn(&Observed) -> usize, &'a dyn Fn(usize) -> String);

/// The answer to one question; none if there is but one possible.
fn ask(
    of: &[&Observed],
    (watched, asked): (String, &'static str),
    (class, name): Question<'_>,
) -> Option<Answer> {
    let mut classes: Vec<usize> = of.iter().map(|one| class(one)).collect();
    classes.sort_unstable();
    classes.dedup();
    let example = |one: &&Observed| Example {
        class: classes.partition_point(|other| *other < class(one)),
        group: one.repetition,
        features: one.features.clone(),
    };
    let examples: Vec<Example> = of.iter().map(example).collect();
    let confusion = leave_group_out(&examples);
    (classes.len() > 1 && confusion.asked() > 0).then(|| Answer {
        watched,
        asked,
        classes: classes.into_iter().map(name).collect(),
        confusion,
    })
}

/// Writes `recognition.csv`, `confusion.csv` and `fingerprint.csv`, if anybody looked.
///
/// # Errors
/// When the directory cannot be written.
pub(super) fn write(data: &Data, answers: &[Answer], directory: &Path) -> Result<(), Failure> {
    let folder = directory.join("export");
    let files = [
        ("recognition.csv", recognition(answers)),
        ("confusion.csv", confusions(answers)),
        ("fingerprint.csv", features(data)),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        let written = match text.lines().count() {
            0 | 1 => fs::remove_file(&path).or(Ok(())),
            _ => File::create(&path).and_then(|file| {
                let mut file = BufWriter::new(file);
                file.write_all(text.as_bytes())?;
                file.flush()
            }),
        };
        written.map_err(|error| unwritten(&path, &error))?;
    }
    Ok(())
}

fn recognition(answers: &[Answer]) -> String {
    let mut text = "watched,asked,classes,n,right,accuracy,low,high,chance\n".to_owned();
    for answer in answers {
        let found = &answer.confusion;
        let (low, high) = found.interval();
        text += &format!(
            "{},{},{},{},{},{},{low},{high},{}\n",
            field(&answer.watched),
            answer.asked,
            answer.classes.len(),
            found.asked(),
            found.right(),
            found.accuracy(),
            found.chance(),
        );
    }
    text
}

fn confusions(answers: &[Answer]) -> String {
    let mut text = "watched,asked,actual,guessed,count\n".to_owned();
    for answer in answers {
        for (actual, guesses) in answer.classes.iter().zip(&answer.confusion.of) {
            for (guessed, count) in answer.classes.iter().zip(guesses) {
                let names = [&answer.watched, answer.asked, actual, guessed].map(field);
                text += &format!("{},{count}\n", names.join(","));
            }
        }
    }
    text
}

fn features(data: &Data) -> String {
    let names = data.measures.iter().map(|of| &of.metric);
    let names = names.filter_map(|name| name.strip_prefix(PREFIX));
    let names: Vec<String> = names.map(field).collect();
    let mut text = format!("case,subject,repetition,{}\n", names.join(","));
    for one in seen(data) {
        let values: Vec<String> = one.features.iter().map(f64::to_string).collect();
        text += &format!(
            "{},{},{},{}\n",
            field(&data.case_title(one.case)),
            field(data.label(one.subject)),
            one.repetition,
            values.join(",")
        );
    }
    text
}

// The section of the page: accuracies beside chance, and who is mistaken for whom.

/// The section; empty if nobody looked.
pub(super) fn section(source: &PageInput<'_>) -> String {
    if source.answers.is_empty() {
        return String::new();
    }
    let heads = heads(&[
        "Watched",
        "To be recognised",
        "Recognised",
        "95 % interval",
        "Chance",
        "n",
        "",
    ]);
    let lines = source.answers.iter().map(line);
    let matrices: String = source.answers.iter().map(matrix).collect();
    tag("p class=\"note\"", NOTE) + &table("table class=\"numbers\"", &heads, lines) + &matrices
}

const NOTE: &str = "Somebody sees the packets of the client's link, their sizes, directions and times, but nothing in them, and knows the network and what is carried. \
     The three nearest neighbours among the other repetitions vote (standardised features, no totals, nothing tuned). A better classifier may recognise more: \
     what is not recognised here is not proven to be hidden. Intervals are Wilson's; chance is the best guess without a look.";

fn percent(share: f64) -> String {
    format!("{:.1}\u{202f}%", 100.0 * share)
}

fn line(answer: &Answer) -> String {
    let found = &answer.confusion;
    let (low, high) = found.interval();
    let verdict = if low > found.chance() {
        "better than chance"
    } else {
        "not better than chance"
    };
    let asked = format!("{}, one of {}", answer.asked, answer.classes.len());
    let number = |text: &str| text_tag("td class=\"n\"", text);
    row(&[
        text_tag("th scope=\"row\"", &answer.watched),
        text_tag("td class=\"words\"", &asked),
        number(&percent(found.accuracy())),
        number(&format!("{} – {}", percent(low), percent(high))),
        number(&percent(found.chance())),
        number(&found.asked().to_string()),
        text_tag("td class=\"words\"", verdict),
    ])
}

/// Who is taken for whom: a row for what it was, a column for the guess.
fn matrix(answer: &Answer) -> String {
    let mut heads = vec![text_tag("th", "was ↓ guessed →")];
    let names = answer.classes.iter();
    heads.extend(names.map(|name| text_tag("th scope=\"col\"", name)));
    let line = |(name, guesses): (&String, &Vec<usize>)| {
        let all: usize = guesses.iter().sum();
        let mut cells = vec![text_tag("th scope=\"row\"", name)];
        cells.extend(guesses.iter().map(|count| cell(*count, all)));
        row(&cells)
    };
    let lines = answer.classes.iter().zip(&answer.confusion.of).map(line);
    details(
        &format!("{}: which {}?", answer.watched, answer.asked),
        &table("table class=\"numbers\"", &row(&heads), lines),
        false,
    )
}

/// The darker the more of its row.
fn cell(count: usize, all: usize) -> String {
    let share = count as f64 / all.max(1) as f64;
    let style = format!(
        "td class=\"n\" style=\"background:rgba(0,114,178,{:.2})\"",
        0.55 * share
    );
    text_tag(&style, &count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::report::example::{Example as Campaign, data};

    fn watched() -> Data {
        data(&Campaign {
            hops: vec![1, 2, 3],
            watched: true,
            ..Campaign::default()
        })
    }

    #[test]
    fn a_pattern_that_follows_the_hops_is_recognised_and_one_that_does_not_is_not() {
        let answers = answers(&watched());
        let of = |watched: &str, asked: &str| {
            let mut found = answers.iter();
            let found = found.find(|one| one.watched == watched && one.asked == asked);
            found.expect("asked").confusion.clone()
        };
        // The made-up tor's packets follow the hops; those of the others are noise.
        assert_eq!(of("tor", "case").of, [[10, 0, 0], [0, 10, 0], [0, 0, 10]]);
        let (low, _) = of("openvpn", "case").interval();
        assert!(low < 1.0 / 3.0, "{answers:?}");
        assert_eq!(of("any subject", "case").asked(), 120);
        assert_eq!(of("hops 2", "subject").asked(), 40);
        assert!(
            answers.iter().all(|one| one.watched != "hoplite-2"),
            "it is in one case only"
        );
    }

    #[test]
    fn answers_and_features_are_written_for_other_programs_and_gone_when_nobody_looked() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("export")).unwrap();
        let text = |name: &str| fs::read_to_string(dir.path().join("export").join(name));
        let watched = watched();
        write(&watched, &answers(&watched), dir.path()).unwrap();
        let lines = text("recognition.csv").unwrap();
        assert!(lines.contains("\ntor,case,3,30,30,1,0."), "{lines}");
        let lines = text("confusion.csv").unwrap();
        assert!(lines.contains("\ntor,case,hops 1,hops 2,0\n"), "{lines}");
        let lines = text("fingerprint.csv").unwrap();
        assert_eq!(lines.lines().count(), 1 + 3 * 4 * 10);
        let nobody = data(&Campaign::default());
        write(&nobody, &answers(&nobody), dir.path()).unwrap();
        assert!(text("recognition.csv").is_err() && text("fingerprint.csv").is_err());
    }
}
