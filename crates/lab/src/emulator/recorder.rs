//! Captures and the drop log of an emulator: formats on its thread, writes on another. `driver` hands it to the network as its watcher.
//! The way to the writer is bounded; what does not fit is not recorded, and counted.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use super::{
    drops, pcap,
    watch::{Cause, Watch},
};
use crate::{topology::Topology, trial::Keep};

/// Octets that are handed over at once.
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
    octets: Vec<u8>,
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
                    files.push(pcap::create(directory, &link.name, end, keep.snaplen)?);
                }
            }
        }
        let drops = keep.drops.then_some(files.len());
        if keep.drops {
            fs::create_dir_all(directory)?;
            files.push(drops::create(directory)?);
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
        let snaplen = pcap::snaplen(keep.snaplen);
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
            self.append(file, |buffer| pcap::append(buffer, at, packet, snaplen));
        }
    }
}

impl Open {
    fn block(&mut self, file: usize) -> Block {
        Block {
            file,
            octets: std::mem::take(&mut self.buffer),
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
            drops::append(buffer, now, &name, direction % 2, cause, packet)
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
            .is_some_and(|file| file.write_all(&block.octets).is_ok());
        if !written {
            *slot = None;
            lost += block.records;
        }
    }
    lost
}
