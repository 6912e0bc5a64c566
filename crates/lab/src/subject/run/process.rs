//! One process of a subject: started in its host, with its logs.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::site::{Program, Site};
use crate::{log, netns};

/// What is run, with nothing left to fill in.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    /// For the names of its logs.
    pub(super) name: &'a str,
    /// Where.
    pub(super) host: &'a str,
    /// The program and its arguments.
    pub(super) command: &'a [String],
    /// Added to the environment.
    pub(super) env: &'a BTreeMap<String, String>,
    /// Where it runs and where `logs/` is.
    pub(super) dir: &'a Path,
    /// Whether stdout goes to a file of its own, `NAME.out`.
    pub(super) apart: bool,
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) inner: netns::Process,
    /// What it writes to stderr, and to stdout unless that goes apart.
    pub(super) log: PathBuf,
    /// What it writes to stdout.
    pub(super) out: PathBuf,
}

impl Process {
    /// Starts it.
    pub(super) fn start(site: &dyn Site, launch: &Launch<'_>) -> io::Result<Self> {
        if launch.command.is_empty() {
            let why = "its command is empty";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let logs = launch.dir.join("logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{}.log", launch.name));
        let out = match launch.apart {
            true => logs.join(format!("{}.out", launch.name)),
            false => log.clone(),
        };
        let program = Program {
            command: launch.command,
            env: launch.env,
            dir: launch.dir,
            out: fresh(&out)?,
            log: appended(&log)?,
        };
        Ok(Self {
            name: launch.name.to_owned(),
            host: launch.host.to_owned(),
            inner: site.spawn(launch.host, program)?,
            log,
            out,
        })
    }

    /// How it ended, if it has.
    pub(super) fn end(&self) -> Option<netns::Exit> {
        self.inner.exit()
    }

    /// Whether nothing of its group is left.
    pub(super) fn gone(&self) -> bool {
        let left = self.group().map(test_kill_process_group);
        self.end().is_some() && !matches!(left, Some(Ok(())))
    }

    /// Sends a signal to the whole group, also when its first process has ended. A group that is gone does not mind.
    pub(super) fn signal(&self, signal: Signal) {
        self.group().map(|group| kill_process_group(group, signal));
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.inner.pid).ok()?)
    }

    /// The end of what it wrote.
    pub(super) fn tail(&self) -> String {
        let log = log::tail(&self.log);
        match self.out == self.log {
            true => log,
            false => {
                let both = format!("{}\n{log}", log::tail(&self.out));
                both.trim().to_owned()
            }
        }
    }
}

fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Empty, and written to at its end: a daemon may write its log through two descriptors.
fn fresh(path: &Path) -> io::Result<File> {
    File::create(path)?;
    appended(path)
}
