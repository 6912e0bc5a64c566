//! What a user sees of a campaign: a bar with the time left on a terminal, JSON lines otherwise. `conduct` tells it what happens.
//! When nobody reads any more the campaign goes on.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{conduct::Tally, gate::Judgement, plan::Place};
use crate::{results::store::Verdict, trial::Key};

/// Octets of a failed attempt's log that are shown; the rest is in `runs/`.
const SHOWN: usize = 2000;

/// A repetition that is over, or an attempt that decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) place: &'a Place,
    pub(crate) attempt: u32,
    pub(crate) judgement: &'a Judgement,
    pub(crate) took: f64,
    pub(crate) left: Option<f64>,
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

    /// An attempt begins.
    pub(crate) fn attempt(&mut self, place: &Place, attempt: u32) {
        if let Self::Bar(bar) = self {
            let again = match attempt {
                1 => String::new(),
                n => format!(" (attempt {n})"),
            };
            bar.set_message(format!("{}{again}", name(&place.key)));
        }
    }

    /// An attempt did not go well, and there will be another one.
    pub(crate) fn again(&mut self, told: &Told<'_>) {
        match self {
            Self::Bar(bar) => bar.println(sentence(told)),
            Self::Lines(_) => self.line(&event("attempt", told)),
        }
        self.log(told);
    }

    /// A repetition is over.
    pub(crate) fn over(&mut self, tally: &Tally, told: &Told<'_>) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(tally.there() as u64);
                bar.set_prefix(left(told.left));
                if told.judgement.verdict != Verdict::Ok {
                    bar.println(sentence(told));
                }
            }
            Self::Lines(_) => {
                let mut line = event("run", told);
                line["n"] = tally.there().into();
                line["of"] = tally.of.into();
                self.line(&line);
            }
        }
        self.log(told);
    }

    /// All repetitions are over.
    pub(crate) fn done(&mut self, out: &Path, tally: &Tally, report: Option<&Path>) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
            let text = format!(
                "{} of {} repetitions ok, {} invalid, {} failed; {} attempts were invalid, {} failed",
                tally.ok,
                tally.of,
                tally.invalid,
                tally.failed,
                tally.invalid_attempts,
                tally.failed_attempts
            );
            let place = report.unwrap_or(out).display();
            speak(&mut io::stdout(), &format!("{text}\n{place}"));
            return;
        }
        self.line(&json!({
            "event": "done", "of": tally.of, "ok": tally.ok, "invalid": tally.invalid, "failed": tally.failed,
            "invalid_attempts": tally.invalid_attempts, "failed_attempts": tally.failed_attempts, "out": out, "report": report,
        }));
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
    fn log(&mut self, told: &Told<'_>) {
        if told.judgement.verdict != Verdict::Failed || told.judgement.log.is_empty() {
            return;
        }
        let log = end(&told.judgement.log);
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

fn event(name: &str, told: &Told<'_>) -> Value {
    let key = &told.place.key;
    json!({
        "event": name, "id": key.id(), "place": told.place.number, "case": key.case, "subject": key.subject,
        "repetition": key.repetition, "attempt": told.attempt, "verdict": told.judgement.verdict,
        "why": told.judgement.why, "took_s": milliseconds(told.took), "eta_s": told.left.map(f64::round),
    })
}

fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn sentence(told: &Told<'_>) -> String {
    format!(
        "{}, attempt {}: {}: {}",
        name(&told.place.key),
        told.attempt,
        told.judgement.verdict,
        told.judgement.why
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

#[cfg(test)]
mod tests {
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
}
