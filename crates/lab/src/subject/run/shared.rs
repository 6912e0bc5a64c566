//! What is made once and kept over a campaign: keys, certificates. It is whole or it does not count.
//!
//! A plan with such steps has a directory of its own, named by what its steps do: `ID/`, beside `ID.lock` (held while it is made) and
//! `ID.done` (written last, with what the steps said). Without `ID.done` the directory is emptied and made again.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use ring::digest;
use rustix::fs::{FlockOperation, flock};

use super::{Plan, Run, Step, fill::Values, site::Site};
use crate::subject;

/// The campaign's part of a subject.
#[derive(Debug)]
pub(super) struct Kept {
    /// `{shared}`.
    pub(super) dir: PathBuf,
    /// What the steps said that are done for good; `None` while they are still to be run.
    pub(super) said: Option<BTreeMap<String, String>>,
    done: PathBuf,
    lock: Option<File>,
}

impl Kept {
    /// Takes what is there, or clears away what is half made. Waits while another process is making it.
    pub(super) fn open(plan: &Plan, site: &dyn Site, shared: &Path) -> io::Result<Self> {
        fs::create_dir_all(shared)?;
        if !plan.steps.iter().any(lasts) {
            return Ok(Self {
                dir: shared.to_owned(),
                said: Some(BTreeMap::new()),
                done: PathBuf::new(),
                lock: None,
            });
        }
        let id = identity(plan, site);
        let beside = |end: &str| shared.join(format!("{id}{end}"));
        let lock = File::create(beside(".lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let (dir, done) = (beside(""), beside(".done"));
        let said = remembered(&done)?;
        if said.is_none() {
            clear(&dir)?;
        }
        let lock = said.is_none().then_some(lock);
        Ok(Self {
            dir,
            said,
            done,
            lock,
        })
    }

    /// All of it is made: from now on it counts.
    pub(super) fn complete(&mut self, said: &BTreeMap<String, String>) -> io::Result<()> {
        let new = self.done.with_extension("new");
        fs::write(&new, serde_json::to_vec(said)?)?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &self.done)?;
        self.said = Some(said.clone());
        self.lock = None;
        Ok(())
    }
}

/// Whether what the step makes is kept.
pub(super) fn lasts(step: &Step) -> bool {
    step.run == Run::OncePerCampaign
}

fn remembered(done: &Path) -> io::Result<Option<BTreeMap<String, String>>> {
    match fs::read(done) {
        // One that cannot be read is not ours: it is made again.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(dir)
}

/// Depends on what the steps do: their commands with addresses filled in, and the files that these name; a command that names the whole
/// directory may read any of them.
fn identity(plan: &Plan, site: &dyn Site) -> String {
    let symbol = |step: &Step| (step.name.clone(), format!("{{out:{}}}", step.name));
    let values = Values {
        dir: Path::new("{dir}"),
        shared: "{shared}".into(),
        site,
        out: plan.steps.iter().map(symbol).collect(),
    };
    let fill = |text: &String| values.fill(text).unwrap_or_else(|_| text.clone());
    let mut whole = String::new();
    for step in plan.steps.iter().filter(|step| lasts(step)) {
        let command: Vec<String> = step.command.iter().map(fill).collect();
        let env: Vec<String> = step.env.values().map(fill).collect();
        let names: Vec<&String> = step.env.keys().collect();
        whole += &format!("{:?}\n", (&step.name, &step.host, command, names, env));
        for file in &plan.files {
            if step.command.iter().any(|word| reads(word, file, plan)) {
                whole += &format!("{:?}\n", (&file.path, fill(&file.text)));
            }
        }
    }
    let hash = digest::digest(&digest::SHA256, whole.as_bytes());
    let head = hash.as_ref().iter().take(8);
    head.map(|octet| format!("{octet:02x}")).collect()
}

/// Whether a word of a command leads to a file.
fn reads(word: &str, file: &subject::File, plan: &Plan) -> bool {
    let names = |file: &subject::File| word.contains(&format!("{{dir}}/{}", file.path));
    names(file) || (word.contains("{dir}") && !plan.files.iter().any(names))
}
