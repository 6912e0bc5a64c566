//! What a user sees of a campaign: a bar with the time left on a terminal, JSON lines otherwise.
//! When nobody reads any more the campaign goes on.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write},
    path::Path,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{
    conduct::Tally,
    gate::Validity,
    plan::{LeftOut, Planned},
    refused::{self, Refused},
};
use crate::{
    experiments::trial::Key,
    results::{hand_in::HandedIn, store::Verdict},
};

/// Bytes of a failed attempt's log that are shown; the rest is in `runs/`.
const SHOWN: usize = 2000;

/// A repetition that is over, or an attempt that decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) place: &'a Planned,
    pub(crate) attempt: u32,
    pub(crate) validity: &'a Validity,
    pub(crate) took: f64,
    pub(crate) left: Option<f64>,
}

/// What is to be said when all is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) refused: &'a [Refused],
    /// Whether the gate was open: what was run is no measurement then.
    pub(crate) open: bool,
}

/// Where it is shown.
pub(crate) enum Progress {
    Bar(ProgressBar),
    /// Lines of JSON, and beside them the logs of failed attempts.
    Lines([Box<dyn Write + Send>; 2]),
}

impl Progress {
    pub(crate) fn to_stdout(json: bool) -> Self {
        if json || !io::stdout().is_terminal() {
            return Self::Lines([Box::new(io::stdout()), Box::new(io::stderr())]);
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {prefix}{msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    /// It begins, or goes on.
    pub(crate) fn start(&mut self, scenario: &str, out: &Path, tally: &Tally) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(tally.of as u64);
                bar.set_position(tally.there() as u64);
                if tally.there() > 0 {
                    let (there, of) = (tally.there(), tally.of);
                    bar.println(format!("{there} of {of} repetitions are there"));
                }
                bar.enable_steady_tick(Duration::from_secs(1));
            }
            Self::Lines(_) => self.line(&json!({
                "event": "start", "scenario": scenario, "out": out, "of": tally.of, "there": tally.there(),
            })),
        }
    }

    /// Subjects that are not run, before it begins.
    pub(crate) fn left_out(&mut self, subjects: &[LeftOut]) {
        for subject in subjects {
            match self {
                Self::Bar(bar) => bar.println(subject.to_string()),
                Self::Lines(_) => self.line(&subject.json()),
            }
        }
    }

    /// An attempt begins.
    pub(crate) fn attempt(&mut self, place: &Planned, attempt: u32) {
        if let Self::Bar(bar) = self {
            let again = match attempt {
                1 => String::new(),
                n => format!(" (attempt {n})"),
            };
            bar.set_message(format!("{}{again}", name(&place.key)));
        }
    }

    /// An attempt did not go well, and there will be another one.
    pub(crate) fn again(&mut self, event: &Event<'_>) {
        match self {
            Self::Bar(bar) => bar.println(sentence(event)),
            Self::Lines(_) => self.line(&event_json("attempt", event)),
        }
        self.log(event);
    }

    /// A repetition is over.
    pub(crate) fn over(&mut self, tally: &Tally, event: &Event<'_>) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(tally.there() as u64);
                bar.set_prefix(left(event.left));
                if event.validity.verdict != Verdict::Ok {
                    bar.println(sentence(event));
                }
            }
            Self::Lines(_) => {
                let mut line = event_json("run", event);
                line["n"] = tally.there().into();
                line["of"] = tally.of.into();
                self.line(&line);
            }
        }
        self.log(event);
    }

    /// All repetitions are over.
    pub(crate) fn done(&mut self, out: &Path, closing: &Closing<'_>, report: Option<&Path>) {
        let Closing {
            tally,
            refused,
            open,
        } = *closing;
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
            let open = if open {
                "; the validity gate was open: this is no measurement"
            } else {
                ""
            };
            let text = format!(
                "{} of {} repetitions ok, {} invalid, {} failed; {} attempts were invalid, {} failed{open}{}",
                tally.ok,
                tally.of,
                tally.invalid,
                tally.failed,
                tally.invalid_attempts,
                tally.failed_attempts,
                refused::told(refused)
            );
            let place = report.unwrap_or(out).display();
            speak(&mut io::stdout(), &format!("{place}\n{text}"));
            return;
        }
        self.line(&json!({
            "event": "done", "of": tally.of, "ok": tally.ok, "invalid": tally.invalid, "failed": tally.failed,
            "invalid_attempts": tally.invalid_attempts, "failed_attempts": tally.failed_attempts, "refused": refused,
            "gate_open": open, "out": out, "report": report,
        }));
    }

    /// Its results are where those of other machines are.
    pub(crate) fn handed_in(&mut self, handed_in: &HandedIn) {
        match self {
            Self::Bar(_) => speak(&mut io::stdout(), &handed_in.to_string()),
            Self::Lines(_) => self.line(&handed_in.json()),
        }
    }

    /// It ends before that.
    pub(crate) fn interrupted(&mut self, tally: &Tally) {
        match self {
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines(_) => {
                self.line(&json!({ "event": "interrupted", "n": tally.there(), "of": tally.of }))
            }
        }
    }

    /// Shows the log of an attempt that failed.
    fn log(&mut self, event: &Event<'_>) {
        if event.validity.verdict != Verdict::Failed || event.validity.log.is_empty() {
            return;
        }
        let log = end(&event.validity.log);
        let text = format!("--- the end of its log ---\n{log}\n---");
        match self {
            Self::Bar(bar) => bar.println(text),
            Self::Lines([_, to]) => speak(to, &text),
        }
    }

    fn line(&mut self, line: &Value) {
        if let Self::Lines([to, _]) = self {
            speak(to, &line.to_string());
        }
    }
}

/// Nobody who reads is no reason to end a campaign.
fn speak(to: &mut dyn Write, text: &str) {
    writeln!(to, "{text}").and_then(|()| to.flush()).ok();
}

fn event_json(name: &str, event: &Event<'_>) -> Value {
    let key = &event.place.key;
    json!({
        "event": name, "id": key.id(), "place": event.place.number, "case": key.case, "subject": key.subject,
        "repetition": key.repetition, "attempt": event.attempt, "verdict": event.validity.verdict,
        "why": event.validity.why, "took_s": milliseconds(event.took), "eta_s": event.left.map(f64::round),
    })
}

fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn sentence(event: &Event<'_>) -> String {
    format!(
        "{}, attempt {}: {}: {}",
        name(&event.place.key),
        event.attempt,
        event.validity.verdict,
        event.validity.why
    )
}

/// A repetition in words: `hops=2 rate=10Mbit, hoplite-2, repetition 3`.
pub(crate) fn name(key: &Key) -> String {
    let case: Vec<_> = key.case.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let case = case.join(" ");
    let comma = if case.is_empty() { "" } else { ", " };
    let (subject, repetition) = (&key.subject, key.repetition);
    format!("{case}{comma}{subject}, repetition {repetition}")
}

fn left(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else {
        return String::new();
    };
    let minutes = (seconds / 60.0).ceil();
    match minutes {
        m if m < 1.0 => String::new(),
        m if m < 120.0 => format!("about {m} min left · "),
        m => format!("about {:.1} h left · ", m / 60.0),
    }
}

fn end(log: &str) -> &str {
    let cut = log.len().saturating_sub(SHOWN);
    let start = (cut..=log.len()).find(|at| log.is_char_boundary(*at));
    start.and_then(|start| log.get(start..)).unwrap_or(log)
}

// How long the rest will take: each repetition as long as those of its case and subject took, else those of its subject, else all.

/// A mean under way.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.sum += seconds;
        self.count += 1.0;
    }

    fn value(self) -> f64 {
        self.sum / self.count
    }
}

/// What is known about durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    pairs: HashMap<Key, Mean>,
    subjects: HashMap<String, Mean>,
    all: Mean,
}

impl Estimate {
    /// A repetition took so long, with all its attempts.
    pub(crate) fn add(&mut self, key: &Key, seconds: f64) {
        self.pairs.entry(pair(key)).or_default().add(seconds);
        let subject = self.subjects.entry(key.subject.clone());
        subject.or_default().add(seconds);
        self.all.add(seconds);
    }

    /// Seconds for all of these; `None` as long as nothing is known.
    pub(crate) fn left<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Option<f64> {
        (self.all.count > 0.0).then(|| {
            keys.map(|key| self.one(key))
                .fold(0.0, |all, one| all + one)
        })
    }

    /// Seconds for one; not a number as long as nothing is known.
    pub(crate) fn one(&self, key: &Key) -> f64 {
        let pair = self.pairs.get(&pair(key));
        let known = pair.or_else(|| self.subjects.get(&key.subject));
        known.unwrap_or(&self.all).value()
    }
}

fn pair(key: &Key) -> Key {
    Key {
        repetition: 0,
        ..key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn time_left_is_told_in_words() {
        assert_eq!(left(None), "");
        assert_eq!(left(Some(61.0)), "about 2 min left · ");
        assert_eq!(left(Some(9000.0)), "about 2.5 h left · ");
    }

    #[test]
    fn the_end_of_a_log_is_cut_between_characters() {
        let log = "ä".repeat(SHOWN);
        assert_eq!(end(&log).chars().count(), SHOWN / 2);
        assert_eq!(end("short"), "short");
    }

    fn key(hops: &str, subject: &str, repetition: u32) -> Key {
        Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), hops.into())]),
            subject: subject.into(),
            repetition,
        }
    }

    #[test]
    fn a_repetition_is_expected_to_take_as_long_as_its_like() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.left([key("1", "a", 1)].iter()), None);
        estimate.add(&key("1", "a", 1), 10.0);
        estimate.add(&key("1", "b", 1), 30.0);
        let left = |key| estimate.left([key].iter());
        assert_eq!(left(key("1", "a", 2)), Some(10.0));
        assert_eq!(left(key("2", "b", 1)), Some(30.0));
        assert_eq!(left(key("2", "c", 1)), Some(20.0));
    }
}
