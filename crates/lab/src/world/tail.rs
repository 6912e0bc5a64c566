//! The end of a log, for whoever reads why an attempt failed.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// What is shown of a log at most, in octets.
const TAIL: u64 = 8 * 1024;

/// The end of a file; empty if it cannot be read.
pub(super) fn tail(path: &Path) -> String {
    end(path).unwrap_or_default()
}

fn end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut octets = Vec::new();
    file.take(TAIL).read_to_end(&mut octets)?;
    Ok(String::from_utf8_lossy(&octets).trim_end().to_owned())
}
