//! Control groups (v2) that the file names: whether they are there, and those made that must be, before a program is in them.
//!
//! A group that is excluded may come late: until then it is blocked like all others. One whose programs alone are taken may not, for what begins
//! in it would go past: it is made, and is again when somebody removes it. nftables knows groups by their number and not by their path.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::config::client::takeover::Cgroup;

/// Where nft(8) looks for them.
const HIERARCHY: &str = "/sys/fs/cgroup";

/// Those that we have made.
#[derive(Debug)]
pub(super) struct Groups {
    hierarchy: PathBuf,
    /// Where they are listed, a path a line, the outermost first.
    made: PathBuf,
}

/// Where it stands.
pub(super) fn path(group: &Cgroup) -> PathBuf {
    Path::new(HIERARCHY).join(group.path())
}

/// The kernel's numbers of those that exist.
pub(super) fn numbers<'a>(groups: impl Iterator<Item = &'a Cgroup>) -> HashMap<Cgroup, u64> {
    let number = |group: &Cgroup| Some((group.clone(), fs::metadata(path(group)).ok()?.ino()));
    groups.filter_map(number).collect()
}

impl Groups {
    /// What it needs to remember is kept in the directory of what lasts while the machine runs.
    pub(super) fn new(run_dir: &Path) -> Self {
        Self {
            hierarchy: HIERARCHY.into(),
            made: run_dir.join("groups"),
        }
    }

    /// Makes those that are missing, and remembers which.
    pub(super) fn make(&self, groups: &[Cgroup]) -> io::Result<()> {
        // What is mounted elsewhere, or not at all, would be a directory like any other.
        if !self.hierarchy.join("cgroup.procs").exists() {
            let missing = format!("there is none in {}", self.hierarchy.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, missing));
        }
        for group in groups {
            let whole = self.hierarchy.join(group.path());
            let above = whole.ancestors().take(group.level());
            let mut missing: Vec<_> = above.filter(|path| !path.exists()).collect();
            while let Some(path) = missing.pop() {
                self.remember(path)?;
                match fs::create_dir(path) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn remember(&self, path: &Path) -> io::Result<()> {
        let mut made = fs::read_to_string(&self.made).unwrap_or_default();
        let path = path.display().to_string();
        if made.lines().any(|line| line == path) {
            return Ok(());
        }
        made.push_str(&path);
        made.push('\n');
        fs::write(&self.made, made)
    }

    /// Removes those that were made and are empty; who has put a program into one keeps it.
    pub(super) fn remove(&self) -> io::Result<()> {
        let Ok(made) = fs::read_to_string(&self.made) else {
            return Ok(());
        };
        for path in made.lines().rev().map(Path::new) {
            if path.starts_with(&self.hierarchy) {
                fs::remove_dir(path).unwrap_or_default();
            }
        }
        fs::remove_file(&self.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_made_are_removed_again_and_no_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let (hierarchy, run) = (
            directory.path().join("cgroup"),
            directory.path().join("run"),
        );
        fs::create_dir_all(hierarchy.join("user.slice")).expect("made");
        fs::create_dir(&run).expect("made");
        let groups = Groups {
            hierarchy: hierarchy.clone(),
            made: run.join("groups"),
        };
        let wanted = ["user.slice/a.slice/b.slice", "c.slice"];
        let wanted = wanted.map(|path| path.parse().expect("a path"));
        groups.make(&wanted).expect_err("no hierarchy");
        fs::write(hierarchy.join("cgroup.procs"), "").expect("written");
        groups.make(&wanted).expect("made");
        fs::remove_dir(hierarchy.join("c.slice")).expect("there");
        groups.make(&wanted).expect("made again");
        assert!(hierarchy.join("user.slice/a.slice/b.slice").is_dir());
        fs::create_dir(hierarchy.join("c.slice/mine")).expect("made");
        groups.remove().expect("removed");
        let left = |path: &str| hierarchy.join(path).exists();
        assert!(left("user.slice") && !left("user.slice/a.slice") && left("c.slice/mine"));
        groups.remove().expect("nothing to do");
    }
}
