//! The report of a campaign (`hoplite-lab report DIR`): one HTML page that works from a file and offline, its figures as files, JSON lines for
//! scripts, and the samples in the formats of the field.
//!
//! ```text
//! store ──▶ data ──▶ compare ──▶ page, json
//!             │          └─────▶ figures: scene ──▶ svg, png
//! features ─▶ recognise ─▶ page, CSV
//! samples ──▶ export: Parquet, CSV, OnionPerf
//! ```

mod axis;
mod beside;
mod boxplot;
mod compare;
mod data;
mod ecdf;
#[cfg(test)]
mod example;
mod export;
mod figures;
mod html;
mod json;
mod lines;
mod metric;
mod number;
mod page;
mod png;
mod recognise;
mod scene;
mod series;
mod svg;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use self::{
    compare::{Judgement, judge},
    data::Data,
};
use crate::{cli::ReportArgs, errors::Failure, results::store::Store};

/// Makes the report of a campaign, also of one that is still running.
///
/// # Errors
/// When there are no results, or the directory cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (data, judgement, path) = make(&args.dir, args.baseline.as_deref())?;
    let text = match args.json {
        true => json_lines(&data, &judgement),
        false => format!("{}\n", path.display()),
    };
    say(&text)
}

/// Makes it without a word, and says where it is: the end of a campaign.
///
/// # Errors
/// Those of [`run`].
pub fn write(directory: &Path) -> Result<PathBuf, Failure> {
    make(directory, None).map(|(.., path)| path)
}

fn make(directory: &Path, asked: Option<&str>) -> Result<(Data, Judgement, PathBuf), Failure> {
    let store = Store::read(directory)?;
    let mut data = Data::read(&store)?;
    let baseline = baseline(&data, asked)?;
    let judgement = judge(&data, baseline);
    let found = export::write(&data, directory)?;
    data.failed = found.failed;
    let figures = figures::figures(&data, &judgement);
    figures::write(&figures, directory)?;
    let answers = recognise::answers(&data);
    recognise::write(&data, &answers, directory)?;
    let page = page::page(&page::Source {
        answers: &answers,
        data: &data,
        judgement: &judgement,
        figures: &figures,
        unread: &found.unread,
    });
    let path = write_page(directory, &page)?;
    Ok((data, judgement, path))
}

/// The one asked for, else the scenario's, else `native`, else the first; none if there are no subjects.
fn baseline(data: &Data, asked: Option<&str>) -> Result<Option<usize>, Failure> {
    if let Some(asked) = asked {
        let subjects = data.subjects.join(", ");
        let found = data.subject(asked).ok_or_else(|| {
            let remedy = format!("name one of {subjects}");
            let complaint = crate::errors::Complaint::new(
                "taking --baseline",
                format!("no subject is called {asked}"),
                remedy,
            );
            Failure::Wrong(vec![complaint])
        })?;
        return Ok(Some(found));
    }
    let named = data
        .campaign
        .baseline
        .as_deref()
        .and_then(|name| data.subject(name));
    let native = || data.subject("native");
    let first = || (!data.subjects.is_empty()).then_some(0);
    Ok(named.or_else(native).or_else(first))
}

/// A reader never sees half a page.
fn write_page(directory: &Path, page: &str) -> Result<PathBuf, Failure> {
    let path = directory.join("report.html");
    let draft = directory.join(".report.html.new");
    fs::write(&draft, page)
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(|error| unwritten(&path, &error))?;
    Ok(path)
}

fn json_lines(data: &Data, judgement: &Judgement) -> String {
    let lines = json::lines(data, judgement).into_iter();
    lines.map(|line| format!("{line}\n")).collect()
}

/// A reader that has seen enough closes the pipe: that is no failure.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "writing to stdout",
            error,
            "check where it goes",
        )),
        _ => Ok(()),
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull => "free some space and run it again: results are untouched",
        io::ErrorKind::PermissionDenied => "make the directory writable, or copy it first",
        _ => "check the directory and run it again: results are untouched",
    };
    Failure::new(format!("writing {}", path.display()), error, remedy)
}

#[cfg(test)]
mod tests;
