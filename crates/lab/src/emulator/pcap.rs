//! Captures of a link, as tcpdump at its ends would take them: `pcap/LINK.pcap` at the first end, `pcap/LINK.far.pcap` at the second.
//! Each has the packets that leave there when they enter the link, before loss and queue, and those that arrive there when they are
//! delivered. What is in one and not in the other was lost; the difference of times is queueing, delay and jitter.
//! The format is libpcap's (draft-ietf-opsawg-pcap) with nanoseconds and LINKTYPE_RAW. `recorder` writes them.

use std::{fs, fs::File, io, io::Write, path::Path};

/// The magic number of captures with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_RAW: packets begin with their IP header.
const RAW: u32 = 101;
/// What `snaplen = 0` means: whole packets.
const WHOLE: u32 = 65_535;
const SECOND: u64 = 1_000_000_000;

/// The octets of each packet that are kept.
#[must_use]
pub fn snaplen(asked: u32) -> u32 {
    if asked == 0 { WHOLE } else { asked.min(WHOLE) }
}

/// Creates the capture of a link's end, with its header.
///
/// # Errors
/// The file cannot be made or written.
pub fn create(directory: &Path, link: &str, end: usize, asked: u32) -> io::Result<File> {
    let directory = directory.join("pcap");
    fs::create_dir_all(&directory)?;
    let far = if end == 0 { "" } else { ".far" };
    let mut file = File::create(directory.join(format!("{}{far}.pcap", file_name(link))))?;
    file.write_all(&header(snaplen(asked)))?;
    Ok(file)
}

/// A link's name with everything that is awkward in a file name replaced by `_`.
#[must_use]
pub fn file_name(link: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+>".contains(c);
    link.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

fn header(snaplen: u32) -> Vec<u8> {
    let mut header = MAGIC.to_le_bytes().to_vec();
    header.extend([2, 0, 4, 0]);
    header.extend([0; 8]);
    header.extend(snaplen.to_le_bytes());
    header.extend(RAW.to_le_bytes());
    header
}

/// Appends a packet seen at `at` nanoseconds since 1970.
pub fn append(buffer: &mut Vec<u8>, at: u64, packet: &[u8], snaplen: u32) {
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    let kept = packet
        .len()
        .min(usize::try_from(snaplen).unwrap_or(usize::MAX));
    for value in [at / SECOND, at % SECOND, kept as u64, packet.len() as u64] {
        buffer.extend(word(value));
    }
    buffer.extend(packet.iter().take(kept));
}
