//! What stays of an attempt's files: what the scenario keeps, and always the logs of one that failed, bounded.
//! `conduct` calls it before the attempt's directory goes.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::directory::{entries, remove, trouble};
use crate::{errors::Failure, results::store::Verdict, trial::Keep};

/// Octets of each log of a failed attempt that stay: its end.
const LOG: u64 = 256 << 10;

/// Logs of a failed attempt that stay.
const LOGS: usize = 64;

/// Moves what stays from an attempt's directory to `to`; makes nothing if nothing stays.
pub(crate) fn keep(from: &Path, to: &Path, what: &Keep, verdict: Verdict) -> Result<(), Failure> {
    // An earlier process may have come this far with the same attempt, and no further.
    remove(to)?;
    let failed = verdict == Verdict::Failed;
    if failed {
        shorten(from)?;
    }
    let staying = staying(from, what, failed)?;
    if staying.is_empty() {
        return Ok(());
    }
    let aside = from.join(".kept");
    for file in staying {
        let place = aside.join(file.strip_prefix(from).unwrap_or(&file));
        move_to(&file, &place)?;
    }
    move_to(&aside, to)
}

fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent)
        .and_then(|()| fs::rename(from, to))
        .map_err(|error| trouble("keeping", to, &error))
}

fn staying(from: &Path, what: &Keep, failed: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut staying: Vec<PathBuf> = entries(&from.join("pcap"))?
        .into_iter()
        .filter(|capture| wanted(capture, &what.pcap))
        .collect();
    let mut also = |name: &str, wanted: bool| {
        let path = from.join(name);
        if wanted && path.exists() {
            staying.push(path);
        }
    };
    also("qlog", what.qlog);
    also("drops.csv", what.drops);
    also("logs", what.logs || failed);
    also("world.log", what.logs || failed);
    Ok(staying)
}

/// `LINK.pcap`, and `LINK.far.pcap` of the link's other end.
fn wanted(capture: &Path, links: &[String]) -> bool {
    let name = capture.file_stem().unwrap_or_default().to_string_lossy();
    let link = name.strip_suffix(".far").unwrap_or(&name);
    links.iter().any(|wanted| wanted == "*" || wanted == link)
}

/// Keeps the ends of the logs.
fn shorten(from: &Path) -> Result<(), Failure> {
    let mut logs = entries(&from.join("logs"))?;
    logs.sort();
    for log in logs.iter().skip(LOGS) {
        remove(log)?;
    }
    logs.truncate(LOGS);
    logs.push(from.join("world.log"));
    for log in logs.iter().filter(|log| log.is_file()) {
        shorten_one(log).map_err(|error| trouble("keeping", log, &error))?;
    }
    Ok(())
}

fn shorten_one(log: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(log)?;
    let length = file.metadata()?.len();
    let Some(gone) = length.checked_sub(LOG).filter(|gone| *gone > 0) else {
        return Ok(());
    };
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(gone))?;
    file.take(LOG).read_to_end(&mut end)?;
    let mut file = File::create(log)?;
    writeln!(file, "({gone} octets before this were cut)")?;
    file.write_all(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = directory.path().join("from").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("pcap/a-b.pcap", "1");
        put("pcap/b-c.pcap", "2");
        put("pcap/b-c.far.pcap", "2");
        put("qlog/relay1/x.sqlog", "3");
        put("logs/relay1.log", &"x".repeat(300 << 10));
        put("world.log", "5");
        put("relay1.toml", "6");
        directory
    }

    fn kept(what: &Keep, verdict: Verdict) -> Vec<String> {
        let directory = attempt();
        let to = directory.path().join("runs/ID/1");
        keep(&directory.path().join("from"), &to, what, verdict).unwrap();
        let mut found = Vec::new();
        let mut open = vec![to.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(entries(&path).unwrap());
            } else if path.exists() {
                let size = fs::metadata(&path).unwrap().len();
                assert!(size < 260 << 10 || verdict == Verdict::Ok);
                let name = path.strip_prefix(&to).unwrap().display().to_string();
                found.push(name);
            }
        }
        found.sort();
        found
    }

    #[test]
    fn nothing_stays_of_an_attempt_that_went_well_unless_it_is_wanted() {
        assert_eq!(kept(&Keep::default(), Verdict::Ok), [""; 0]);
        let what = Keep {
            pcap: vec!["b-c".into()],
            qlog: true,
            ..Keep::default()
        };
        let names = ["pcap/b-c.far.pcap", "pcap/b-c.pcap", "qlog/relay1/x.sqlog"];
        assert_eq!(kept(&what, Verdict::Ok), names);
    }

    #[test]
    fn logs_of_a_failed_attempt_always_stay_cut_to_their_ends() {
        let names = ["logs/relay1.log", "world.log"];
        assert_eq!(kept(&Keep::default(), Verdict::Failed), names);
    }

    #[test]
    fn a_star_keeps_every_capture() {
        let what = Keep {
            pcap: vec!["*".into()],
            ..Keep::default()
        };
        assert_eq!(kept(&what, Verdict::Ok).len(), 3);
    }
}
