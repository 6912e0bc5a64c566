//! Words to the user: answers on stdout, remarks on stderr, plain tables; and how a command fails: what failed, why, what to do about it, and the exit
//! code. The only place of the crate that writes to either. A closed or full stderr is nobody's failure; a closed stdout ends the command.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// How long a line to stderr may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes a line to stdout.
pub(crate) fn answer(line: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", line.as_ref())
        .and_then(|()| out.flush())
        .map_err(|error| {
            Failure::new(
                "writing to the standard output",
                error,
                "check where it goes",
            )
        })
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::new("writing JSON", error, "please report this"))?;
    answer(line)
}

/// Writes a line to stderr. If that fails, nothing happens; if nobody reads there, it is given up.
pub(crate) fn remark(line: impl AsRef<str>) {
    let line = format!("{}\n", line.as_ref());
    let (done, written) = mpsc::sync_channel(1);
    let write = move || {
        drop(io::stderr().write_all(line.as_bytes()));
        done.send(()).unwrap_or_default();
    };
    if thread::Builder::new()
        .name("remark".into())
        .spawn(write)
        .is_ok()
    {
        written.recv_timeout(WRITE_TIMEOUT).unwrap_or_default();
    }
}

/// What is going on, on a terminal only: the next line of any kind takes its place.
pub(crate) fn passing(line: impl AsRef<str>) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        drop(write!(err, "\r\x1b[K{}\r", line.as_ref()).and_then(|()| err.flush()));
    }
}

/// Where questions go, which end without a line break.
pub(crate) fn questions() -> impl Write {
    io::stderr()
}

/// Why a command ends without success. Displays as `hoplite: what failed: why: what to do`, one line per problem.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the configuration is wrong: exit code 2.
    Wrong(Vec<Complaint>),
    /// It was right, and still failed: exit code 1.
    Failed(Complaint),
}

/// One line for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Complaint {
    /// What failed, as an activity: "listening for SOCKS".
    pub(crate) doing: String,
    /// Why.
    pub(crate) why: String,
    /// What the user can do.
    pub(crate) remedy: String,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(
        doing: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Failed(Complaint::new(doing, why, remedy))
    }

    /// A wrong command line, with exit code 2.
    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        let remedy = "see 'hoplite --help'";
        Self::Wrong(vec![Complaint::new(
            "reading the command line",
            why,
            remedy,
        )])
    }

    /// A file that cannot be read or written.
    pub(crate) fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check who owns it, or run as a user who may use it",
            io::ErrorKind::StorageFull => "make room on the disk",
            _ => "check the path and the disk",
        };
        Self::new(format!("{doing} {}", path.display()), error, remedy)
    }

    /// A configuration file that cannot be read: the user named it, so it counts as wrong usage.
    pub(crate) fn no_config(path: &Path, error: &io::Error) -> Self {
        let doing = format!(
            "reading the configuration {}",
            PathBuf::from(path).display()
        );
        let remedy = "check the path given with --config";
        Self::Wrong(vec![Complaint::new(doing, error, remedy)])
    }

    /// Its lines, for another process to say.
    pub(crate) fn complaints(&self) -> Vec<Complaint> {
        match self {
            Self::Wrong(complaints) => complaints.clone(),
            Self::Failed(complaint) => vec![complaint.clone()],
        }
    }

    /// The exit code (docs/command-line.md).
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Wrong(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl Complaint {
    /// One line for the user.
    pub(crate) fn new(
        doing: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            doing: doing.into(),
            why: why.to_string(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hoplite: {}: {}: {}", self.doing, self.why, self.remedy)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(complaint) => complaint.fmt(f),
            Self::Wrong(complaints) => {
                for (i, complaint) in complaints.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { "\n" })?;
                    complaint.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

impl From<Complaint> for Failure {
    fn from(complaint: Complaint) -> Self {
        Self::Failed(complaint)
    }
}

impl From<Vec<Complaint>> for Failure {
    fn from(complaints: Vec<Complaint>) -> Self {
        Self::Wrong(complaints)
    }
}

/// Bytes as hexadecimal digits, as Tor writes a fingerprint.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headings.
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self {
            rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, without a line break at its end.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let right: Vec<bool> = (0..columns).map(|i| self.is_numeric(i)).collect();
        let widths: Vec<usize> = (0..columns).map(|i| self.width(i)).collect();
        let lines = self.rows.iter().map(|row| line(row, &widths, &right));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows
            .iter()
            .filter_map(move |row| Some(row.get(column)?.as_str()))
    }

    fn width(&self, column: usize) -> usize {
        self.cells(column)
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    }

    fn is_numeric(&self, column: usize) -> bool {
        let number = |cell: &str| {
            cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        self.cells(column).skip(1).all(number)
    }
}

fn line(row: &[String], widths: &[usize], right: &[bool]) -> String {
    let cells = row
        .iter()
        .zip(widths)
        .zip(right)
        .map(|((cell, &width), &right)| {
            if right {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod table_tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(&["hops", "proto", "Gbit/s"]);
        table.row(vec!["0".into(), "tcp".into(), "12.50".into()]);
        table.row(vec!["10".into(), "udp".into(), "-".into()]);
        let expected = "hops  proto  Gbit/s\n   0  tcp     12.50\n  10  udp         -";
        assert_eq!(table.render(), expected);
    }
}
