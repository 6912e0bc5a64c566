//! Fills in what only the world knows: `{dir}`, `{shared}`, `{ip:HOST}`, `{ip6:HOST}`, `{out:STEP}`, `{file:PATH}`.
//! Any other brace is a brace: `scenario` has resolved all expressions before.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use super::site::Site;

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
    for (at, octet) in from.bytes().enumerate() {
        match octet {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some((from.get(..at)?, from.get(at + 1..)?)),
            b'}' => depth -= 1,
            b'\n' => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{super::here::Here, *};

    fn filled(text: &str) -> Result<String, Gap> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("name"), "abc.onion\n").unwrap();
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
}
