//! `hoplite directory statistics`: gathers what the relays of a network tell of their days, from Tor's authorities and from ours, into a file of SQLite, and
//! prints and draws the totals with what their noise leaves uncertain. Meant to be run once a day or more often: what was told twice counts once.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use hoplite_directory::{
    fetch,
    statistics::{NetworkStatistics, Total, told_to_tor, told_to_us},
};
use hoplite_overlay::Direct;
use hoplite_wire::Target;
use serde_json::json;

use crate::{process, say, say::Failure};

mod drawing;

/// Bytes of what one authority tells: as many as 16,384 relays' documents of 4,096 bytes.
const ANSWER: usize = 64 << 20;
/// How long an authority may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The file, which is made if absent.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// The DirPort of an authority of Tor's that is asked, host:port; several times. It has checked what relays say, and is believed.
    #[arg(long, value_name = "ADDRESS")]
    tor: Vec<Target>,
    /// An authority of ours that is asked, host:port; several times. Relays' signatures are checked.
    #[arg(long, value_name = "ADDRESS")]
    authority: Vec<Target>,
    /// Draw the totals into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let stored = |error| {
        let doing = format!("keeping the statistics in {}", options.file.display());
        Failure::new(doing, error, "choose another --file")
    };
    let mut statistics = NetworkStatistics::open(&options.file).map_err(stored)?;
    let sources = options.tor.iter().map(|at| (at, true));
    let sources: Vec<_> = sources
        .chain(options.authority.iter().map(|at| (at, false)))
        .collect();
    let mut failed = 0_usize;
    for (number, (authority, is_tor)) in (1_usize..).zip(&sources) {
        match ask(authority, *is_tor) {
            Ok(text) => {
                let (told, wrong) = if *is_tor {
                    told_to_tor(&text)
                } else {
                    told_to_us(&text)
                };
                let new = statistics.add(&told).map_err(stored)?;
                let relays = told.len();
                say::remark(format!(
                    "hoplite: authority {number}: {relays} relays, {new} new figures, {wrong} documents that cannot be used"
                ));
            }
            Err(failure) => {
                failed = failed.saturating_add(1);
                say::remark(failure.to_string());
            }
        }
    }
    if failed > 0 && failed == sources.len() {
        let remedy = "try again, or name others";
        return Err(Failure::new(
            "asking the authorities",
            "none has answered",
            remedy,
        ));
    }
    let totals = statistics.totals().map_err(stored)?;
    if let Some(path) = &options.plot {
        draw(path, &totals)?;
    }
    totals.iter().try_for_each(|total| tell(total, json))
}

fn ask(authority: &Target, is_tor: bool) -> Result<String, Failure> {
    let path = if is_tor {
        "/tor/extra/all"
    } else {
        "/hoplite/statistics"
    };
    let overlay = Direct::new();
    let answer = fetch(&overlay, authority, path, ANSWER, PATIENCE);
    process::current_thread_runtime()?
        .block_on(answer)
        .map_err(|error| {
            let doing = format!("asking {authority} for relays' statistics");
            Failure::new(doing, error, "name another authority")
        })
}

fn draw(path: &Path, totals: &[Total]) -> Result<(), Failure> {
    fs::write(path, drawing::svg(totals))
        .map_err(|error| Failure::file("writing the drawing", path, &error))
}

fn tell(total: &Total, json: bool) -> Result<(), Failure> {
    let Total {
        figure,
        day,
        relays,
        value,
        low,
        high,
    } = total;
    let day = drawing::date(*day);
    if json {
        return say::json(&json!({
            "figure": figure, "day": day, "relays": relays, "value": value, "low": low.round(), "high": high.round(),
        }));
    }
    say::answer(format!(
        "{day}  {figure:<34} {value:>20}  {low:.0} to {high:.0}, {relays} relays"
    ))
}
