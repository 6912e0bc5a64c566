//! The files of a subject: below the attempt's directory and nowhere else, each as soon as all of its text is known.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use super::fill::{Gap, Values};
use crate::subject::File;

/// Why a file was not written.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// Which.
    pub(super) path: String,
    /// Why.
    pub(super) why: String,
}

/// Writes those of `waiting` that can be filled by now; the others stay.
pub(super) fn write_known(waiting: &mut Vec<File>, values: &Values<'_>) -> Result<(), Unwritten> {
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

fn write(dir: &Path, file: &File, text: &str) -> io::Result<()> {
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
    match path.components().all(plain) && path.file_name().is_some() {
        true => Ok(path),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it must lie below the attempt's directory: neither absolute, nor with '.' or '..'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::here::Here, *};

    fn file(path: &str, text: &str) -> File {
        File {
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
