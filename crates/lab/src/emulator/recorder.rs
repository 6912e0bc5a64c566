//! Captures and the drop log of an emulator: formats on its thread, writes on another. The way to the writer is bounded; what does not fit is not
//! recorded, and counted.
//!
//! A link is captured as tcpdump at its ends would: `pcap/LINK.pcap` at the first end, `pcap/LINK.far.pcap` at the second. Each has the packets
//! that leave there when they enter the link, before loss and queue, and those that arrive there when they are delivered. What is in one and not
//! in the other was lost; the difference of times is queueing, delay and jitter. The format is libpcap's (draft-ietf-opsawg-pcap) with
//! nanoseconds and LINKTYPE_RAW. `drops.csv` has a line for each dropped packet with its cause.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use super::{
    network::{Cause, Watch},
    packet,
};
use crate::{experiments::trial::Keep, topology::Topology};

/// Bytes that are handed over at once.
const BLOCK: usize = 64 << 10;
/// Blocks on their way to the writer: 64 MiB.
const BLOCKS: usize = 1024;

/// What records a network's work to files.
#[derive(Debug)]
pub(super) struct Recorder {
    files: Vec<Open>,
    /// For each end of each link (`2 · link + end`), its capture among `files`.
    captures: Vec<Option<usize>>,
    drops: Option<usize>,
    names: Vec<String>,
    snaplen: u32,
    /// Nanoseconds since 1970 at the network's time 0.
    epoch: u64,
    lost: u64,
    writer: Option<(SyncSender<Block>, JoinHandle<u64>)>,
}

/// A file's records that are not handed over yet.
#[derive(Debug, Default)]
struct Open {
    buffer: Vec<u8>,
    records: u64,
}

#[derive(Debug)]
struct Block {
    file: usize,
    bytes: Vec<u8>,
    records: u64,
}

impl Recorder {
    /// Makes the files that `keep` wants, in `directory`.
    ///
    /// # Errors
    /// A file or the writer's thread cannot be made.
    pub(super) fn new(
        topology: &Topology,
        keep: &Keep,
        directory: &Path,
        epoch: u64,
    ) -> io::Result<Self> {
        let (mut files, mut captures) = (Vec::new(), Vec::new());
        for link in &topology.links {
            let wanted = keep
                .pcap
                .iter()
                .any(|name| name == "*" || *name == link.name);
            for end in 0..2 {
                captures.push(wanted.then_some(files.len()));
                if wanted {
                    files.push(create_capture(directory, &link.name, end, keep.snaplen)?);
                }
            }
        }
        let drops = keep.drops.then_some(files.len());
        if keep.drops {
            fs::create_dir_all(directory)?;
            files.push(create_drop_log(directory)?);
        }
        let open = files.iter().map(|_| Open::default()).collect();
        let names = topology
            .links
            .iter()
            .map(|link| link.name.clone())
            .collect();
        let writer = if files.is_empty() {
            None
        } else {
            Some(start_writer(files)?)
        };
        let snaplen = snaplen(keep.snaplen);
        Ok(Self {
            files: open,
            captures,
            drops,
            names,
            snaplen,
            epoch,
            lost: 0,
            writer,
        })
    }

    /// Whether anything is recorded.
    #[must_use]
    pub(super) fn is_active(&self) -> bool {
        self.writer.is_some()
    }

    /// Hands over what has gathered; now and then, so that little is missing after a kill.
    pub(super) fn flush(&mut self) {
        for file in 0..self.files.len() {
            self.hand_over(file);
        }
    }

    /// Writes everything and closes the files; says how many records are missing.
    pub(super) fn finish(mut self) -> u64 {
        let Some((sender, writer)) = self.writer.take() else {
            return 0;
        };
        for (file, open) in self.files.iter_mut().enumerate() {
            let block = open.block(file);
            let records = block.records;
            if sender.send(block).is_err() {
                self.lost += records;
            }
        }
        drop(sender);
        self.lost + writer.join().unwrap_or(1)
    }

    fn append(&mut self, file: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(open) = self.files.get_mut(file) else {
            return;
        };
        write(&mut open.buffer);
        open.records += 1;
        if open.buffer.len() >= BLOCK {
            self.hand_over(file);
        }
    }

    fn hand_over(&mut self, file: usize) {
        let block = self.files[file].block(file);
        let (records, writer) = (block.records, self.writer.as_ref());
        let sent = writer.is_some_and(|(sender, _)| sender.try_send(block).is_ok());
        self.lost += if sent { 0 } else { records };
    }

    fn capture(&mut self, now: u64, end: usize, packet: &[u8]) {
        let at = self.epoch.saturating_add(now);
        if let Some(file) = self.captures.get(end).copied().flatten() {
            let snaplen = self.snaplen;
            self.append(file, |buffer| append_packet(buffer, at, packet, snaplen));
        }
    }
}

impl Open {
    fn block(&mut self, file: usize) -> Block {
        Block {
            file,
            bytes: std::mem::take(&mut self.buffer),
            records: std::mem::take(&mut self.records),
        }
    }
}

impl Watch for Recorder {
    fn entered(&mut self, now: u64, direction: usize, packet: &[u8]) {
        self.capture(now, direction, packet);
    }

    fn left(&mut self, now: u64, direction: usize, packet: &[u8]) {
        self.capture(now, direction ^ 1, packet);
    }

    fn dropped(&mut self, now: u64, direction: usize, cause: Cause, packet: &[u8]) {
        let (Some(file), Some(name)) = (self.drops, self.names.get(direction / 2)) else {
            return;
        };
        let name = name.clone();
        self.append(file, |buffer| {
            append_drop(buffer, now, &name, direction % 2, cause, packet)
        });
    }
}

fn start_writer(files: Vec<File>) -> io::Result<(SyncSender<Block>, JoinHandle<u64>)> {
    let (sender, receiver) = sync_channel(BLOCKS);
    let thread = thread::Builder::new().name("recorder".to_owned());
    Ok((sender, thread.spawn(move || write_all(files, &receiver))?))
}

/// Writes blocks until there are no more; counts the records that could not be written. After a file's first error nothing follows
/// in it, so that it ends where it broke off.
fn write_all(files: Vec<File>, blocks: &Receiver<Block>) -> u64 {
    let mut files: Vec<Option<File>> = files.into_iter().map(Some).collect();
    let mut lost = 0;
    for block in blocks {
        let Some(slot) = files.get_mut(block.file) else {
            continue;
        };
        let written = slot
            .as_mut()
            .is_some_and(|file| file.write_all(&block.bytes).is_ok());
        if !written {
            *slot = None;
            lost += block.records;
        }
    }
    lost
}

/// The magic number of captures with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_RAW: packets begin with their IP header.
const RAW: u32 = 101;
/// What `snaplen = 0` means: whole packets.
const WHOLE: u32 = 65_535;
const SECOND: u64 = 1_000_000_000;

/// The bytes of each packet that are kept.
#[must_use]
fn snaplen(asked: u32) -> u32 {
    if asked == 0 { WHOLE } else { asked.min(WHOLE) }
}

/// Creates the capture of a link's end, with its header.
///
/// # Errors
/// The file cannot be made or written.
fn create_capture(directory: &Path, link: &str, end: usize, asked: u32) -> io::Result<File> {
    let directory = directory.join("pcap");
    fs::create_dir_all(&directory)?;
    let far = if end == 0 { "" } else { ".far" };
    let mut file = File::create(directory.join(format!("{}{far}.pcap", file_name(link))))?;
    file.write_all(&header(snaplen(asked)))?;
    Ok(file)
}

/// A link's name with everything that is awkward in a file name replaced by `_`.
#[must_use]
fn file_name(link: &str) -> String {
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
fn append_packet(buffer: &mut Vec<u8>, at: u64, packet: &[u8], snaplen: u32) {
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    let kept = packet
        .len()
        .min(usize::try_from(snaplen).unwrap_or(usize::MAX));
    for value in [at / SECOND, at % SECOND, kept as u64, packet.len() as u64] {
        buffer.extend(word(value));
    }
    buffer.extend(packet.iter().take(kept));
}

/// Its columns: nanoseconds since the emulator's start, the link, `>` (forward) or `<`, why, bytes of IP, whose packet.
const HEADER: &str = "time_ns,link,direction,cause,size,flow\n";

/// Creates the log.
///
/// # Errors
/// The file cannot be made or written.
fn create_drop_log(directory: &Path) -> io::Result<File> {
    let mut file = File::create(directory.join("drops.csv"))?;
    file.write_all(HEADER.as_bytes())?;
    Ok(file)
}

/// Appends a drop on the direction that begins at `end` of the link.
fn append_drop(
    buffer: &mut Vec<u8>,
    now: u64,
    link: &str,
    end: usize,
    cause: Cause,
    packet: &[u8],
) {
    let arrow = if end == 0 { '>' } else { '<' };
    let flow = packet::flow(packet);
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
