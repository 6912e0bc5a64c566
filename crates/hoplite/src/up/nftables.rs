//! The firewall's table as the kernel has it: loaded, held, looked at, and watched, for others may change or flush it any time.
//! What it says is [`super::firewall`]'s; which program writes it is nft(8).
//!
//! It stands twice while a process of ours lives. The table that stays after us belongs to nobody, so `nft flush ruleset` removes it: the watch
//! then has it made again. Its copy belongs to the netlink socket of an nft that we started, and the kernel lets nobody else touch it
//! (NFT_TABLE_F_OWNER, Linux 5.12): between the flush and the new table it alone drops. It goes when we do.

use std::{
    fs, io,
    io::{BufRead, BufReader, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Stdio},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep_until},
};

use super::{child, numbers::FIREWALL};

/// How long to wait after the table could not be made again.
const PAUSE: Duration = Duration::from_secs(1);

/// A table that nobody has.
const DONE: &str = "hoplite-is-done";

/// Octets of a datagram of events; what is longer is cut, and its beginning is enough.
const EVENTS: usize = 1 << 16;

/// What of the firewall stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// It is there as it was loaded.
    Stands,
    /// It is there, but somebody has changed it.
    Changed,
    /// There is none.
    Gone,
    /// There is no nft, or we may not look.
    #[default]
    Unknown,
}

/// The table, and where it is written what the kernel made of it when it was loaded, and what is in its copy.
#[derive(Debug)]
pub(crate) struct Nftables {
    loaded: PathBuf,
    copy: PathBuf,
}

impl Nftables {
    /// What it needs to remember is kept in the directory of what lasts while the machine runs.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self {
            loaded: run_dir.join("firewall"),
            copy: run_dir.join("firewall-copy"),
        }
    }

    /// Loads the table that stays; remembers what it looks like, and what is in its copy.
    pub(crate) fn load(&self, text: &str, copy: &str) -> io::Result<()> {
        // Before somebody is told that there is another table. If neither can be written, the table counts as changed, and nobody holds a copy.
        fs::write(&self.copy, copy).unwrap_or_default();
        child::run("nft", &["-f", "-"], text)?;
        let listed = list(FIREWALL)?;
        fs::write(&self.loaded, listed).unwrap_or_default();
        Ok(())
    }

    /// What is in the copy of the table that was loaded last, be it by another process.
    pub(crate) fn copy(&self) -> String {
        fs::read_to_string(&self.copy).unwrap_or_default()
    }

    /// Removes it. What is not there is gone already, and so where there is no nftables at all.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.forget();
        remove(FIREWALL)
    }

    /// From now on there is none that could be changed.
    pub(crate) fn forget(&self) {
        for path in [&self.loaded, &self.copy] {
            fs::remove_file(path).unwrap_or_default();
        }
    }

    /// What stands of it now.
    pub(crate) fn look(&self) -> Standing {
        if child::run("nft", &["list", "tables"], "").is_err() {
            return Standing::Unknown;
        }
        match (list(FIREWALL), fs::read_to_string(&self.loaded)) {
            (Err(_), _) => Standing::Gone,
            (Ok(now), Ok(loaded)) if now == loaded => Standing::Stands,
            (Ok(_), _) => Standing::Changed,
        }
    }
}

/// A table as nft prints it, without counts and without what comes and goes.
fn list(table: &str) -> io::Result<String> {
    let arguments = ["--stateless", "--terse", "list", "table", "inet", table];
    child::run("nft", &arguments, "")
}

/// Removes a table, if there is one.
pub(crate) fn remove(table: &str) -> io::Result<()> {
    if child::find("nft").is_none() || child::run("nft", &["list", "tables"], "").is_err() {
        return Ok(());
    }
    let text = format!("table inet {table} {{}}\ndelete table inet {table}\n");
    child::run("nft", &["-f", "-"], &text).map(drop)
}

/// A table that nobody else can remove, or none. An older kernel or nft has none of that: then there is only the watch.
#[derive(Debug)]
pub(crate) struct Held {
    table: &'static str,
    owner: Option<Owner>,
}

impl Held {
    /// None yet, of this name.
    pub(crate) fn new(table: &'static str) -> Self {
        Self { table, owner: None }
    }

    /// Holds this; none if it is empty.
    pub(crate) fn hold(&mut self, text: &str) {
        if self.owner.as_mut().is_some_and(|owner| owner.holds(text)) {
            return;
        }
        // The old one's name must be free first.
        self.owner = None;
        if text.is_empty() {
            return;
        }
        match Owner::new(self.table, text) {
            Ok(owner) => self.owner = Some(owner),
            Err(error) => tracing::debug!(%error, "no table of nftables is held"),
        }
    }
}

/// A running nft whose socket owns a table. The table goes with it, and it goes with us: its input ends.
#[derive(Debug)]
struct Owner {
    nft: Child,
    /// What it reads: when that ends, so does it.
    _lines: Option<ChildStdin>,
    text: String,
}

impl Owner {
    fn new(table: &str, text: &str) -> io::Result<Self> {
        let mut nft = child::command_ignoring_sigterm("nft")?
            .arg("--interactive")
            // It keeps a history of its lines there, if it can.
            .env("HOME", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A signal from the terminal is for us.
            .process_group(0)
            .spawn()?;
        let pipes = nft.stdin.take().zip(nft.stderr.take());
        let mut owner = Self {
            nft,
            _lines: None,
            text: text.to_owned(),
        };
        let (mut lines, complaints) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        // One command a line. That there is no such table as the second line wants is said when the first one is done.
        let both = format!("table inet {table} {{ {text} }}\nlist table inet {DONE}\n");
        lines.write_all(both.as_bytes())?;
        owner._lines = Some(lines);
        let mut complaints = BufReader::new(complaints).lines();
        complaints.find(|line| line.as_ref().map_or(true, |line| line.contains(DONE)));
        list(table)?;
        Ok(owner)
    }

    fn holds(&mut self, text: &str) -> bool {
        self.text == text && matches!(self.nft.try_wait(), Ok(None))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It is gone already, or it goes now; neither leaves the table.
        self.nft.kill().unwrap_or_default();
        self.nft.wait().map(drop).unwrap_or_default();
    }
}

/// Tells when somebody may have changed our table. Needs CAP_NET_ADMIN to begin, and nothing after that.
#[derive(Debug)]
pub(crate) struct Watch {
    events: AsyncFd<OwnedFd>,
    again: Option<Instant>,
}

impl Watch {
    /// Starts. Needs a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let protocol = Some(netlink::NETFILTER);
        let events = socket_with(AddressFamily::NETLINK, kind, flags, protocol)?;
        // NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h) is the seventh group.
        bind(&events, &netlink::SocketAddrNetlink::new(0, 1 << 6))?;
        #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
        // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
        let events = unsafe { AsyncFd::register(events) }?;
        Ok(Self {
            events,
            again: None,
        })
    }

    /// Waits until it may be so. Who finds nothing changed has lost nothing. May be given up and called again.
    pub(crate) async fn touched(&mut self) {
        loop {
            let again = async {
                match self.again {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = again => {
                    self.again = None;
                    return;
                }
                ready = self.events.readable() => {
                    let Ok(mut ready) = ready else {
                        // No descriptor that can be waited for: from now on it is looked at from time to time.
                        self.again = Some(Instant::now() + PAUSE);
                        continue;
                    };
                    if read(self.events.get_ref()) {
                        return;
                    }
                    ready.clear_ready();
                }
            }
        }
    }

    /// What was to be done could not be done: it is touched again in a moment.
    pub(crate) fn try_again(&mut self) {
        self.again = Some(Instant::now() + PAUSE);
    }
}

/// The same where there may be nothing to watch.
pub(crate) async fn touched(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.touched().await,
        None => std::future::pending().await,
    }
}

/// Whether one of the events that wait, or one that was lost, may be about our table. Takes all of them.
fn read(events: &OwnedFd) -> bool {
    let mut buffer = vec![0; EVENTS];
    let mut touched = false;
    loop {
        match recv(events, &mut *buffer, RecvFlags::TRUNC) {
            Ok((read, whole)) => {
                touched |= whole > read || is_about_us(buffer.get(..read).unwrap_or_default());
            }
            // More happened than there was room for.
            Err(rustix::io::Errno::NOBUFS) => touched = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return touched,
        }
    }
}

/// Whether a datagram (netlink(7)) has an event of nftables that names our table: in all kinds of them that is the first attribute.
/// What cannot be read may be about us.
fn is_about_us(mut octets: &[u8]) -> bool {
    const HEADERS: usize = 16 + 4;
    /// linux/netfilter/nf_tables.h: the event that ends a transaction has no table.
    const NEW_GENERATION: u16 = 10 << 8 | 15;
    while let Some(header) = octets.first_chunk::<HEADERS>() {
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = octets.get(..length).filter(|it| it.len() >= HEADERS) else {
            return true;
        };
        let attributes = message.get(HEADERS..).unwrap_or_default();
        let kind = u16::from_ne_bytes([k0, k1]);
        if kind != NEW_GENERATION && !names_another(attributes) {
            return true;
        }
        let next = length.next_multiple_of(4);
        octets = octets.get(next..).unwrap_or_default();
    }
    false
}

/// Whether the first attribute is the name of a table of somebody else's.
fn names_another(attributes: &[u8]) -> bool {
    let Some(&[l0, l1, k0, k1]) = attributes.first_chunk::<4>() else {
        return false;
    };
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let name = attributes.get(4..length).unwrap_or_default();
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    let is_name = u16::from_ne_bytes([k0, k1]) == 1 && !name.is_empty();
    is_name && name != FIREWALL.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NFT_MSG_DELTABLE and its like: nlmsghdr, nfgenmsg, the name.
    fn event(kind: u16, table: &str) -> Vec<u8> {
        let name = [table.as_bytes(), b"\0"].concat();
        let length = u16::try_from(4 + name.len()).expect("short");
        let mut body = vec![1, 0, 0, 0];
        body.extend(length.to_ne_bytes());
        body.extend(1_u16.to_ne_bytes());
        body.extend(name);
        body.resize(body.len().next_multiple_of(4), 0);
        let whole = u32::try_from(16 + body.len()).expect("short");
        let mut message = whole.to_ne_bytes().to_vec();
        message.extend((10 << 8 | kind).to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    #[test]
    fn what_happens_to_tables_of_others_does_not_wake_us_and_what_cannot_be_read_does() {
        let others = [
            event(2, "filter"),
            event(7, "hoplite-portal"),
            event(15, ""),
        ]
        .concat();
        assert!(!is_about_us(&others));
        assert!(is_about_us(&[others.clone(), event(2, FIREWALL)].concat()));
        assert!(is_about_us(&event(8, FIREWALL)));
        let mut cut = [others, event(2, "filter")].concat();
        cut.truncate(cut.len() - 8);
        assert!(is_about_us(&cut));
    }
}
