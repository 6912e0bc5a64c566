//! Fills in what only the world knows: `{dir}`, `{shared}`, `{ip:HOST}`, `{ip6:HOST}`, `{out:STEP}`, `{file:PATH}`; and writes the subject's
//! files with it, below the attempt's directory and nowhere else, each as soon as all of its text is known.
//! Any other brace is a brace: `scenario` has resolved all expressions before.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use super::process::Site;
use crate::experiments::subject;

/// What a file may bring into a command line or a target at most.
const FILE_LIMIT: u64 = 64 * 1024;

/// What placeholders stand for.
pub(super) struct Values<'a> {
    /// `{dir}`.
    pub(super) dir: &'a Path,
    /// `{shared}`.
    pub(super) shared: PathBuf,
    /// Where hosts are.
    pub(super) site: &'a dyn Site,
    /// What the steps that are over wrote to stdout.
    pub(super) out: BTreeMap<String, String>,
}

/// Why a text cannot be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// The step of this name has not run yet.
    NotYet(String),
    /// It never will be.
    Never(String),
}

impl Gap {
    /// In words.
    pub(super) fn why(&self) -> String {
        match self {
            Self::NotYet(step) => {
                format!("{{out:{step}}} is not known: no step {step:?} has ended before")
            }
            Self::Never(why) => why.clone(),
        }
    }
}

impl Values<'_> {
    /// `text` with every placeholder filled in; they may nest.
    pub(super) fn fill(&self, text: &str) -> Result<String, Gap> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, from)) = rest.split_once('{') {
            filled.push_str(before);
            match placeholder(from) {
                Some((inner, after)) => {
                    filled.push_str(&self.value(&self.fill(inner)?)?);
                    rest = after;
                }
                None => {
                    filled.push('{');
                    rest = from;
                }
            }
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Each of `texts`.
    pub(super) fn all(&self, texts: &[String]) -> Result<Vec<String>, Gap> {
        texts.iter().map(|text| self.fill(text)).collect()
    }

    fn value(&self, inner: &str) -> Result<String, Gap> {
        let (kind, name) = inner.split_once(':').unwrap_or((inner, ""));
        let addresses = || {
            let none = || Gap::Never(format!("{{{inner}}}: there is no host {name:?}"));
            self.site.addresses(name).ok_or_else(none)
        };
        match kind {
            "dir" => Ok(self.dir.display().to_string()),
            "shared" => Ok(self.shared.display().to_string()),
            "ip" => Ok(addresses()?.v4.to_string()),
            "ip6" => Ok(addresses()?.v6.to_string()),
            "out" => {
                let out = self.out.get(name).cloned();
                out.ok_or_else(|| Gap::NotYet(name.to_owned()))
            }
            _ => self.content(name),
        }
    }

    fn content(&self, path: &str) -> Result<String, Gap> {
        let path = self.dir.join(path);
        let never = |error| Gap::Never(format!("reading {}: {error}", path.display()));
        let mut text = String::new();
        let file = File::open(&path).map_err(never)?;
        file.take(FILE_LIMIT)
            .read_to_string(&mut text)
            .map_err(never)?;
        Ok(text.trim().to_owned())
    }
}

/// What is between the brace that was just passed and the one that closes it, and what comes after; `None` if it is no placeholder.
fn placeholder(from: &str) -> Option<(&str, &str)> {
    let known = from.starts_with("dir}") || from.starts_with("shared}");
    let named = ["ip:", "ip6:", "out:", "file:"];
    if !known && !named.iter().any(|kind| from.starts_with(kind)) {
        return None;
    }
    let mut depth = 0usize;
    for (at, byte) in from.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some((from.get(..at)?, from.get(at + 1..)?)),
            b'}' => depth -= 1,
            b'\n' => return None,
            _ => {}
        }
    }
    None
}

/// Why a file was not written.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// Which.
    pub(super) path: String,
    /// Why.
    pub(super) why: String,
}

/// Writes those of `waiting` that can be filled by now; the others stay.
pub(super) fn write_known(
    waiting: &mut Vec<subject::File>,
    values: &Values<'_>,
) -> Result<(), Unwritten> {
    let mut later = Vec::new();
    for file in waiting.drain(..) {
        let unwritten = |why: String| Unwritten {
            path: file.path.clone(),
            why,
        };
        match values.fill(&file.text) {
            Ok(text) => write(values.dir, &file, &text).map_err(|e| unwritten(e.to_string()))?,
            Err(Gap::NotYet(_)) => later.push(file),
            Err(gap) => return Err(unwritten(gap.why())),
        }
    }
    *waiting = later;
    Ok(())
}

fn write(dir: &Path, file: &subject::File, text: &str) -> io::Result<()> {
    let path = dir.join(below(&file.path)?);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = file.mode & 0o777;
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&path)?;
    open.set_permissions(Permissions::from_mode(mode))?;
    open.write_all(text.as_bytes())
}

/// `path`, if it can only lie below where it begins.
pub(super) fn below(path: &str) -> io::Result<PathBuf> {
    let path = PathBuf::from(path);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if path.components().all(plain) && path.file_name().is_some() {
        Ok(path)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it must lie below the attempt's directory: neither absolute, nor with '.' or '..'",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiments::subject::run::tests::Here;

    fn filled(text: &str) -> Result<String, Gap> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("name"), "abc.onion\n").unwrap();
        let out = BTreeMap::from([("keygen".into(), "sha256:x".into())]);
        let values = Values {
            dir: dir.path(),
            shared: "/shared".into(),
            site: &Here,
            out,
        };
        let text = values.fill(text)?;
        Ok(text.replace(&dir.path().display().to_string(), "DIR"))
    }

    #[test]
    fn every_placeholder_is_filled_and_other_braces_stay() {
        let text = "{dir}/a {shared} {ip:here} [{ip6:here}] {out:keygen} {file:name} {file:{dir}/name} { x } {} {other} {";
        let expected =
            "DIR/a /shared 127.0.0.1 [::1] sha256:x abc.onion abc.onion { x } {} {other} {";
        assert_eq!(filled(text).unwrap(), expected);
    }

    #[test]
    fn what_is_unknown_is_named() {
        assert_eq!(filled("{out:later}"), Err(Gap::NotYet("later".into())));
        let why = |text| filled(text).unwrap_err().why();
        assert!(why("{ip:nowhere}").contains("no host \"nowhere\""));
        assert!(why("{file:absent}").contains("absent"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_filled_without_a_panic(text in "[{}a:]{0,12}(ip:here|dir|out:|file:)?[{}]{0,4}") {
            filled(&text).ok();
        }
    }

    fn file(path: &str, text: &str) -> subject::File {
        subject::File {
            path: path.into(),
            text: text.into(),
            mode: 0o600,
        }
    }

    fn values(dir: &Path) -> Values<'_> {
        Values {
            dir,
            shared: dir.join("shared"),
            site: &Here,
            out: BTreeMap::new(),
        }
    }

    #[test]
    fn nothing_is_written_outside_the_directory() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("attempt");
        fs::create_dir(&dir).unwrap();
        for path in ["../x", "/tmp/x", "a/../../x", "", ".", "./x", ".."] {
            let error = write_known(&mut vec![file(path, "")], &values(&dir)).unwrap_err();
            assert!(
                error.why.contains("below the attempt's directory"),
                "{path:?}: {error:?}"
            );
        }
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_link_that_lies_there_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::os::unix::fs::symlink(&victim, dir.path().join("x")).unwrap();
        assert!(write_known(&mut vec![file("x", "")], &values(dir.path())).is_err());
        assert!(!victim.exists());
    }

    #[test]
    fn a_file_is_written_with_its_mode_once_its_text_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let mut values = values(dir.path());
        let mut waiting = vec![
            file("a/b.toml", "pin = {out:keygen}"),
            file("c", "{ip:here}"),
        ];
        write_known(&mut waiting, &values).unwrap();
        assert_eq!(waiting.len(), 1);
        values.out.insert("keygen".into(), "p".into());
        write_known(&mut waiting, &values).unwrap();
        let path = dir.path().join("a/b.toml");
        assert_eq!(fs::read_to_string(&path).unwrap(), "pin = p");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
