//! The drop log: `drops.csv`, one line for each dropped packet with its cause. `recorder` writes it.

use std::{fs::File, io, io::Write, path::Path};

use super::{packet::View, watch::Cause};

/// Its columns: nanoseconds since the emulator's start, the link, `>` (forward) or `<`, why, octets of IP, whose packet.
const HEADER: &str = "time_ns,link,direction,cause,size,flow\n";

/// Creates the log.
///
/// # Errors
/// The file cannot be made or written.
pub(super) fn create(directory: &Path) -> io::Result<File> {
    let mut file = File::create(directory.join("drops.csv"))?;
    file.write_all(HEADER.as_bytes())?;
    Ok(file)
}

/// Appends a drop on the direction that begins at `end` of the link.
pub(super) fn append(
    buffer: &mut Vec<u8>,
    now: u64,
    link: &str,
    end: usize,
    cause: Cause,
    packet: &[u8],
) {
    let arrow = if end == 0 { '>' } else { '<' };
    let flow = View::parse(packet)
        .map(|view| view.flow().to_string())
        .unwrap_or_default();
    let link = quoted(link);
    let line = format!(
        "{now},{link},{arrow},{},{},{flow}\n",
        cause.name(),
        packet.len()
    );
    buffer.extend(line.as_bytes());
}

/// RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}
