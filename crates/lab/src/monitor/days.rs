//! What a monitor keeps of one interface, in a directory of its own: the state that a restart needs, a file of samples for each day of UTC, one
//! of what tor told of circuits and streams. The program may be killed, and the disk be full, at any moment:
//!
//! - the state is replaced as a whole, after it has reached the disk;
//! - a sample is a line; one that is not whole is cut off, when it could not be written or when the program starts again;
//! - a number is either open in the state or in a day's file: the reservation is saved before the transfer, its end after the line;
//! - a day that is over is compressed into a new file, which takes its name, and only then is its first file removed. Lines that are in both
//!   because the program was killed in between are taken once.
//!
//! ```text
//! NAME/state.json   NAME/2026-11-26.jsonl   NAME/2026-11-26.tor.jsonl          the day that runs
//! NAME/2026-11-25.jsonl.gz   …tor.jsonl.gz   …onionperf.analysis.json          a day that is over
//! ```

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{analysis, control::Told, interface::Counter, schedule::State};
use crate::experiments::workload::Transfer;

/// One transfer, or why there was none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// From 1 on, over restarts.
    pub(crate) number: u64,
    /// Bytes that it was charged with, both ways.
    pub(crate) charged: u64,
    /// The port of its connection on this machine, by which tor's streams are found.
    pub(crate) local: Option<u16>,
    /// What its client saw.
    pub(crate) transfer: Transfer,
}

/// Counts for metrics, over restarts: they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Transfers that succeeded.
    pub(crate) succeeded: u64,
    /// Samples that say why there is none.
    pub(crate) failed: u64,
    /// Payload that came and was right, in bytes.
    pub(crate) payload: u64,
}

/// What a restart needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// The schedule's.
    pub(crate) schedule: State,
    /// What the interface had counted when this was written.
    pub(crate) counter: Option<Counter>,
    /// So far.
    pub(crate) totals: Totals,
    /// What time it was, in seconds since 1970.
    pub(crate) seen: u64,
}

/// The directory of one interface.
#[derive(Debug)]
pub(crate) struct Days {
    directory: PathBuf,
    _lock: Option<File>,
}

const SAMPLES: &str = ".jsonl";
const TOR: &str = ".tor.jsonl";

/// Lines that are longer are none of ours.
const LINE: u64 = 1 << 20;

impl Days {
    /// Opens it, makes it if it is not there, and cuts off lines that are not whole. Nobody else may have it open.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::WouldBlock`] if another monitor has it.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let days = Self {
            directory,
            _lock: Some(lock),
        };
        for name in days.names()? {
            if name.ends_with(SAMPLES) {
                cut(&days.directory.join(name))?;
            }
        }
        Ok(days)
    }

    /// For reading alone: whoever has it open may go on.
    pub(crate) fn look(directory: PathBuf) -> Self {
        Self {
            directory,
            _lock: None,
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What was kept; nothing at the first time.
    ///
    /// # Errors
    /// It cannot be read: without it nobody knows what was spent.
    pub(crate) fn kept(&self) -> io::Result<Kept> {
        match fs::read(self.directory.join("state.json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
            read => serde_json::from_slice(&read?).map_err(io::Error::other),
        }
    }

    /// Keeps it, on the disk when this returns.
    ///
    /// # Errors
    /// The operating system's; what was kept before stands.
    pub(crate) fn keep(&self, kept: &Kept) -> io::Result<()> {
        let bytes = serde_json::to_vec(kept)?;
        replace(&self.directory.join("state.json"), |file| {
            file.write_all(&bytes)
        })
    }

    /// Adds a sample to a day.
    ///
    /// # Errors
    /// The operating system's; the file is as it was.
    pub(crate) fn add(&self, day: &str, sample: &Measured) -> io::Result<()> {
        self.append(&format!("{day}{SAMPLES}"), &[sample])
    }

    /// Adds what tor told to a day.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    pub(crate) fn add_told(&self, day: &str, told: &[Told]) -> io::Result<()> {
        if told.is_empty() {
            return Ok(());
        }
        self.append(&format!("{day}{TOR}"), told)
    }

    fn append(&self, name: &str, lines: &[impl Serialize]) -> io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let path = self.directory.join(name);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        if written.is_err() {
            file.set_len(before)?;
        }
        written
    }

    /// Whether a sample of this number is there already, among the days from `day` on and those that run.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn has(&self, number: u64, day: &str) -> io::Result<bool> {
        for name in self.names()? {
            let base = name.strip_suffix(".gz").unwrap_or(&name);
            let mine = base.ends_with(SAMPLES) && !base.ends_with(TOR);
            if mine && (name.ends_with(SAMPLES) || base >= day) {
                let samples: Vec<Measured> = read(&self.directory.join(&name))?;
                if samples.iter().any(|sample| sample.number == number) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Closes the days before `today`: compressed, with OnionPerf's analysis beside. Answers with how many there were.
    ///
    /// # Errors
    /// The operating system's; what could not be closed is as it was.
    pub(crate) fn close(&self, today: &str, name: &str, subject: &str) -> io::Result<usize> {
        let names = self.names()?;
        let over = |file: &&String| file.ends_with(SAMPLES) && file.as_str() < today;
        let mut days = BTreeSet::new();
        for file in names.iter().filter(over) {
            compress(&self.directory.join(file))?;
            days.extend(file.split('.').next());
        }
        for day in &days {
            let (samples, told) = self.day(day)?;
            let document = analysis::document(name, subject, &samples, &told);
            let path = self
                .directory
                .join(format!("{day}.onionperf.analysis.json"));
            replace(&path, |file| {
                serde_json::to_writer(file, &document).map_err(io::Error::from)
            })?;
        }
        // Only now: a day whose analysis could not be written is closed once more.
        for file in names.iter().filter(over) {
            fs::remove_file(self.directory.join(file))?;
        }
        Ok(days.len())
    }

    /// All of a day, closed or not.
    fn day(&self, day: &str) -> io::Result<(Vec<Measured>, Vec<Told>)> {
        Ok((
            read(&self.directory.join(format!("{day}{SAMPLES}.gz")))?,
            read(&self.directory.join(format!("{day}{TOR}.gz")))?,
        ))
    }

    /// The samples of all days from `day` on.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn since(&self, day: &str) -> io::Result<Vec<Measured>> {
        let mut samples = Vec::new();
        for name in self.names()? {
            let base = name.strip_suffix(".gz").unwrap_or(&name);
            if base.ends_with(SAMPLES) && !base.ends_with(TOR) && base >= day {
                samples.extend(read::<Measured>(&self.directory.join(&name))?);
            }
        }
        Ok(samples)
    }
}

/// Writes a file beside and puts it in place when it is on the disk: nobody sees half of it.
///
/// # Errors
/// The operating system's; what was there stands.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    let written = File::create(&draft).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
    });
    if written.is_err() {
        // What is left of the draft takes room that the disk may not have.
        drop(fs::remove_file(&draft));
    }
    written
}

/// Cuts off a last line that is not whole.
fn cut(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LINE);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    (&mut file).take(LINE).read_to_end(&mut end)?;
    let whole = end
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let whole = from + whole as u64;
    if whole < length {
        file.set_len(whole)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Puts the lines of a file into its compressed one, each once.
fn compress(path: &Path) -> io::Result<()> {
    let mut packed = path.as_os_str().to_owned();
    packed.push(".gz");
    let packed = PathBuf::from(packed);
    let mut seen = BTreeSet::new();
    replace(&packed, |file| {
        let mut out = GzEncoder::new(file, Compression::default());
        for part in [&packed, path] {
            for line in lines(part)? {
                let line = line?;
                if seen.insert(line.clone()) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        out.finish().map(drop)
    })
}

type Lines = Box<dyn Iterator<Item = io::Result<String>>>;

/// The lines of a file, compressed or not; none if it is not there.
fn lines(path: &Path) -> io::Result<Lines> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Box::new(std::iter::empty()));
        }
        file => file?,
    };
    if path.extension().is_some_and(|end| end == "gz") {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file)).lines()));
    }
    Ok(Box::new(BufReader::new(file).lines()))
}

/// What a file holds; lines that are something else are left out.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let mut all = Vec::new();
    for line in lines(path)? {
        all.extend(serde_json::from_str::<T>(&line?));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::analysis::tests::measured;

    fn open(directory: &Path) -> Days {
        Days::open(directory.join("eth0")).unwrap()
    }

    #[test]
    fn a_day_that_is_over_is_compressed_with_its_analysis_and_one_that_runs_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let days = open(directory.path());
        days.add("2026-11-25", &measured(1)).unwrap();
        days.add("2026-11-25", &measured(2)).unwrap();
        days.add("2026-11-26", &measured(3)).unwrap();
        assert_eq!(days.close("2026-11-26", "eth0", "native").unwrap(), 1);
        let names = days.names().unwrap();
        let expected = [
            "2026-11-25.jsonl.gz",
            "2026-11-25.onionperf.analysis.json",
            "2026-11-26.jsonl",
            "lock",
        ];
        assert_eq!(names, expected);
        assert_eq!(days.since("2026-11-25").unwrap().len(), 3);
        assert_eq!(days.since("2026-11-26").unwrap(), [measured(3)]);
        assert!(days.has(2, "2026-11-25").unwrap() && !days.has(4, "2026-11-01").unwrap());
    }

    #[test]
    fn a_kill_while_a_day_is_closed_leaves_each_sample_once() {
        let directory = tempfile::tempdir().unwrap();
        let days = open(directory.path());
        days.add("2026-11-25", &measured(1)).unwrap();
        days.add("2026-11-25", &measured(2)).unwrap();
        // As if killed before the day's first file was removed; then a clock that was set back adds to a day that is closed.
        compress(&directory.path().join("eth0/2026-11-25.jsonl")).unwrap();
        days.close("2026-11-26", "eth0", "native").unwrap();
        days.add("2026-11-25", &measured(3)).unwrap();
        days.close("2026-11-26", "eth0", "native").unwrap();
        let numbers = days.since("2026-11-25").unwrap();
        let numbers: Vec<u64> = numbers.iter().map(|sample| sample.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }

    #[test]
    fn half_a_line_is_cut_off_when_the_program_starts_again() {
        let directory = tempfile::tempdir().unwrap();
        let days = open(directory.path());
        days.add("2026-11-25", &measured(1)).unwrap();
        drop(days);
        let path = directory.path().join("eth0/2026-11-25.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"number\":2,\"char").unwrap();
        let days = open(directory.path());
        days.add("2026-11-25", &measured(2)).unwrap();
        assert_eq!(
            days.since("2026-11-25").unwrap(),
            [measured(1), measured(2)]
        );
    }

    #[test]
    fn a_second_monitor_is_refused_and_a_state_that_cannot_be_read_is_no_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let days = open(directory.path());
        let refused = Days::open(directory.path().join("eth0")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(days.kept().unwrap(), Kept::default());
        days.keep(&Kept::default()).unwrap();
        assert_eq!(days.kept().unwrap(), Kept::default());
        fs::write(directory.path().join("eth0/state.json"), "{").unwrap();
        assert!(days.kept().is_err());
    }

    #[test]
    fn a_disk_that_is_full_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        fs::write(&path, "before").unwrap();
        let full = |_: &mut File| Err(io::ErrorKind::StorageFull.into());
        assert!(replace(&path, full).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no draft"
        );
    }
}
