//! Notices what others do to what we took: the interface removed or set down, our rules and routes deleted, resolv.conf written.
//! `daemon` then takes it again. Nothing is polled.

use std::{
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use rtnetlink::{
    MulticastGroup, new_multicast_connection,
    packet_core::NetlinkPayload,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags, LinkMessage},
    },
};
use rustix::fs::inotify;
use tokio::{io::unix::AsyncFd, task::JoinHandle, time::sleep};

use super::netlink;

/// What happens together is handled together: who flushes a table deletes many routes.
const SETTLE: Duration = Duration::from_millis(100);

/// What somebody did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meddling {
    /// The interface is gone.
    pub(super) gone: bool,
    /// It is down, or rules or routes of ours are gone.
    pub(super) undone: bool,
    /// The device may have another address, or another way out.
    pub(super) moved: bool,
}

/// Watches rules, routes and the interface.
pub(super) struct Kernel {
    events: Box<dyn Stream<Item = Meddling> + Send + Unpin>,
    /// What was seen and not told yet.
    seen: Meddling,
    connection: JoinHandle<()>,
}

impl Kernel {
    /// Starts. Needs a tokio runtime.
    pub(super) fn watch(name: &str) -> io::Result<Self> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
        ];
        let (connection, _, messages) = new_multicast_connection(&groups)?;
        let name = name.to_owned();
        let events = messages.map(move |(message, _)| match message.payload {
            NetlinkPayload::InnerMessage(message) => meaning(&message, &name),
            _ => Meddling::default(),
        });
        Ok(Self {
            events: Box::new(events),
            seen: Meddling::default(),
            connection: tokio::spawn(connection),
        })
    }

    /// Waits until somebody has done something, and is done with it. May be given up and called again.
    pub(super) async fn meddled(&mut self) -> Meddling {
        while self.seen == Meddling::default() {
            match self.events.next().await {
                Some(event) => self.seen.add(event),
                // The kernel says nothing any more: as if nobody did anything.
                None => std::future::pending().await,
            }
        }
        let settled = sleep(SETTLE);
        tokio::pin!(settled);
        loop {
            tokio::select! {
                () = &mut settled => return std::mem::take(&mut self.seen),
                Some(event) = self.events.next() => self.seen.add(event),
            }
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Meddling {
    fn add(&mut self, other: Self) {
        self.gone |= other.gone;
        self.undone |= other.undone;
        self.moved |= other.moved;
    }
}

fn meaning(message: &RouteNetlinkMessage, name: &str) -> Meddling {
    let mut meddling = Meddling::default();
    match message {
        RouteNetlinkMessage::DelLink(link) if is_named(link, name) => meddling.gone = true,
        RouteNetlinkMessage::NewLink(link) if is_named(link, name) => {
            meddling.undone = !link.header.flags.contains(LinkFlags::Up);
        }
        RouteNetlinkMessage::DelRule(rule) => meddling.undone = netlink::is_our_rule(rule),
        RouteNetlinkMessage::DelRoute(route) if netlink::is_ours(route) => meddling.undone = true,
        RouteNetlinkMessage::NewRoute(route) if netlink::is_ours(route) => {}
        RouteNetlinkMessage::NewRoute(_)
        | RouteNetlinkMessage::DelRoute(_)
        | RouteNetlinkMessage::NewAddress(_)
        | RouteNetlinkMessage::DelAddress(_) => meddling.moved = true,
        _ => {}
    }
    meddling
}

fn is_named(link: &LinkMessage, name: &str) -> bool {
    let ours =
        |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(it) if it == name);
    link.attributes.iter().any(ours)
}

/// Watches a file by its directory, for who writes it may replace it.
pub(super) struct File {
    events: AsyncFd<OwnedFd>,
    name: Vec<u8>,
}

impl File {
    /// Starts. Needs a tokio runtime.
    pub(super) fn watch(path: &Path) -> io::Result<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let events = inotify::init(flags)?;
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        let what = inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE;
        inotify::add_watch(&events, directory, what)?;
        #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
        // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
        let events = unsafe { AsyncFd::register(events) }?;
        Ok(Self {
            events,
            name: path
                .file_name()
                .map(OsStr::as_bytes)
                .unwrap_or_default()
                .to_vec(),
        })
    }

    /// Waits until it has changed.
    pub(super) async fn changed(&mut self) {
        loop {
            let Ok(mut ready) = self.events.readable().await else {
                return std::future::pending().await;
            };
            if self.read() {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Whether what has happened so far was about the file.
    fn read(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.events.get_ref(), &mut buffer);
        let mut changed = false;
        while let Ok(event) = events.next() {
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            changed |= name == Some(self.name.as_slice());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_replaced_has_changed_and_its_neighbours_do_not_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("resolv.conf");
        let mut file = File::watch(&path).expect("watched");
        std::fs::write(directory.path().join("other"), "").expect("written");
        assert!(!file.read());
        let new = directory.path().join("new");
        std::fs::write(&new, "").expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        file.changed().await;
    }

    #[test]
    fn an_interface_that_is_set_down_was_meddled_with_and_another_was_not() {
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName("hoplite0".into())];
        let down = RouteNetlinkMessage::NewLink(link.clone());
        assert!(meaning(&down, "hoplite0").undone);
        assert!(!meaning(&down, "eth0").undone);
        link.header.flags = LinkFlags::Up;
        let up = RouteNetlinkMessage::NewLink(link.clone());
        assert!(!meaning(&up, "hoplite0").undone);
        assert!(meaning(&RouteNetlinkMessage::DelLink(link), "hoplite0").gone);
        let address = RouteNetlinkMessage::NewAddress(Default::default());
        let moved = Meddling {
            moved: true,
            ..Meddling::default()
        };
        assert_eq!(meaning(&address, "hoplite0"), moved);
    }
}
