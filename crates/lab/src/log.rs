//! Logs of processes, which may be long: their end for whoever reads why an attempt failed, and whether a text stands in them, without reading
//! anything twice.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// What is shown of a log at most.
const TAIL: u64 = 8 * 1024;

/// Read at once while looking for a text.
const CHUNK: u64 = 64 * 1024;

/// The end of a file, whole lines if possible; empty if it cannot be read.
#[must_use]
pub(crate) fn tail(path: &Path) -> String {
    end(path).unwrap_or_default()
}

fn end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = match (from, text.split_once('\n')) {
        (1.., Some((_, whole))) => whole,
        _ => &text,
    };
    Ok(whole.trim_end().to_owned())
}

/// Looks for a text in a file that grows.
#[derive(Debug)]
pub(crate) struct Search {
    text: Vec<u8>,
    at: u64,
    kept: Vec<u8>,
}

impl Search {
    /// Nothing was read yet.
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.as_bytes().to_vec(),
            at: 0,
            kept: Vec::new(),
        }
    }

    /// Whether the text stands in what the file has grown by (or in the whole file if it was begun anew). A file that is not there has no text.
    pub(crate) fn found(&mut self, path: &Path) -> io::Result<bool> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        if file.metadata()?.len() < self.at {
            self.at = 0;
            self.kept.clear();
        }
        file.seek(SeekFrom::Start(self.at))?;
        loop {
            let read = (&mut file).take(CHUNK).read_to_end(&mut self.kept)?;
            self.at += read as u64;
            if contains(&self.kept, &self.text) {
                return Ok(true);
            }
            let overlap = self.text.len().saturating_sub(1);
            self.kept.drain(..self.kept.len().saturating_sub(overlap));
            if read == 0 {
                return Ok(false);
            }
        }
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|window| window == text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_end_of_a_long_log_is_whole_lines_and_bounded() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for line in 0..100_000 {
            writeln!(file, "line {line}").unwrap();
        }
        let end = tail(file.path());
        assert!(end.len() as u64 <= TAIL && end.ends_with("line 99999"));
        assert!(end.starts_with("line "), "{end:.20}");
        assert_eq!(tail(Path::new("/nonexistent/log")), "");
    }

    #[test]
    fn a_log_of_one_endless_line_or_of_no_text_has_an_end_too() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0xff; 20_000]).unwrap();
        assert!(!tail(file.path()).is_empty());
    }

    #[test]
    fn a_text_is_found_although_it_comes_in_two_pieces() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let mut search = Search::new("Bootstrapped 100%");
        assert!(
            !Search::new("x")
                .found(Path::new("/nonexistent/log"))
                .unwrap()
        );
        file.write_all(b"Bootstrapped 75%\nBootstr").unwrap();
        assert!(!search.found(&path).unwrap());
        file.write_all(b"apped 100% (done)").unwrap();
        assert!(search.found(&path).unwrap());
    }

    #[test]
    fn a_file_that_was_begun_anew_is_read_anew() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a long beginning").unwrap();
        let mut search = Search::new("up");
        assert!(!search.found(file.path()).unwrap());
        std::fs::write(file.path(), "up").unwrap();
        assert!(search.found(file.path()).unwrap());
    }
}
