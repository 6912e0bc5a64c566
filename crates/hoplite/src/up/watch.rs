//! Watches the interface, routing rules, routes and resolv.conf that we took: removed, set down, deleted or written by others.
//! `session` then looks at all of it, and takes it again. Nothing is polled. The firewall has a watch of its own, [`super::nftables::Watch`].
//!
//! An event is no more than a reason to look: what the kernel could not keep for us (ENOBUFS, netlink(7)) is one as well.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags, LinkMessage},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};
use rustix::{fs::inotify, io::Errno, net::RecvFlags};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep, sleep_until},
};

use super::{cgroups, netlink, plan::Wanted};

/// What happens together is handled together: who flushes a table deletes many routes.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// The pause after which a socket that broke is replaced.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of the largest datagram that the kernel makes of events (NLMSG_GOODSIZE is at most 8 KiB).
const MAX_DATAGRAM: usize = 32 * 1024;

/// What we are told about.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
];

/// What somebody may have done, we ourselves among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meddling {
    /// To the interface, or to rules or routes that matter to ours.
    pub(super) ours: bool,
    /// The device may have another address, or another way out.
    pub(super) moved: bool,
}

/// Watches rules, routes and the interface, from when it is made: before anybody looks, and as long as anything is taken.
pub(super) struct Kernel {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
    name: String,
    /// The interface's number, once there is one; it may be given another name.
    index: Option<u32>,
    /// What was seen and not told yet.
    seen: Meddling,
}

/// What a socket says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// This many bytes of events.
    Events(usize),
    /// Some could not be kept.
    Overrun,
    /// Nothing now.
    Nothing,
    /// Nothing ever again.
    Broken,
}

impl Kernel {
    /// Starts. Needs a tokio runtime.
    pub(super) fn watch(name: &str) -> io::Result<Self> {
        Ok(Self {
            socket: subscribed()?,
            buffer: vec![0; MAX_DATAGRAM],
            name: name.to_owned(),
            index: None,
            seen: Meddling::default(),
        })
    }

    /// The interface has this number from now on.
    pub(super) fn follow(&mut self, index: Option<u32>) {
        self.index = index;
    }

    /// Waits until somebody has done something, and is done with it. May be given up and called again.
    pub(super) async fn meddled(&mut self) -> Meddling {
        while self.seen == Meddling::default() {
            self.hear().await;
        }
        let settled = Instant::now() + DEBOUNCE;
        loop {
            tokio::select! {
                () = sleep_until(settled) => return std::mem::take(&mut self.seen),
                () = self.hear() => {}
            }
        }
    }

    /// Takes in what the kernel says next.
    async fn hear(&mut self) {
        let Ok(mut ready) = self.socket.readable().await else {
            return self.subscribe_again().await;
        };
        let received = rustix::net::recv(
            self.socket.get_ref(),
            &mut *self.buffer,
            RecvFlags::DONTWAIT,
        );
        match said(received.map(|(filled, _)| filled)) {
            Said::Nothing => ready.clear_ready(),
            Said::Overrun => self.seen = Meddling::ANYTHING,
            Said::Broken => {
                drop(ready);
                self.subscribe_again().await;
            }
            Said::Events(bytes) => {
                let events = self.buffer.get(..bytes).unwrap_or_default();
                self.seen.add(meanings(events, &self.name, self.index));
            }
        }
    }

    /// Until it is heard again anything may have happened.
    async fn subscribe_again(&mut self) {
        match subscribed() {
            Ok(socket) => {
                self.socket = socket;
                self.seen = Meddling::ANYTHING;
            }
            Err(error) => tracing::warn!(%error, "changes of the network are not noticed now"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

fn subscribed() -> io::Result<AsyncFd<Socket>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        socket.add_membership(group as u32)?;
    }
    socket.set_non_blocking(true)?;
    #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
    // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

fn said(received: Result<usize, Errno>) -> Said {
    match received {
        Ok(0) => Said::Broken,
        Ok(bytes) => Said::Events(bytes),
        Err(Errno::AGAIN) => Said::Nothing,
        Err(Errno::INTR) => Said::Events(0),
        Err(Errno::NOBUFS) => Said::Overrun,
        Err(_) => Said::Broken,
    }
}

impl Meddling {
    /// All of it must be looked at.
    const ANYTHING: Self = Self {
        ours: true,
        moved: true,
    };

    fn add(&mut self, other: Self) {
        self.ours |= other.ours;
        self.moved |= other.moved;
    }
}

/// Of all events in a datagram. What cannot be read may have been anything.
fn meanings(mut events: &[u8], name: &str, index: Option<u32>) -> Meddling {
    let mut meddling = Meddling::default();
    while !events.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(events) else {
            return Meddling::ANYTHING;
        };
        match &message.payload {
            NetlinkPayload::InnerMessage(event) => meddling.add(meaning(event, name, index)),
            NetlinkPayload::Overrun(_) | NetlinkPayload::Error(_) => return Meddling::ANYTHING,
            _ => {}
        }
        // Each begins at a multiple of four bytes (netlink(7), NLMSG_ALIGN).
        let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
        let next = length.max(1).checked_next_multiple_of(4);
        events = next.and_then(|next| events.get(next..)).unwrap_or_default();
    }
    meddling
}

fn meaning(message: &RouteNetlinkMessage, name: &str, index: Option<u32>) -> Meddling {
    use RouteNetlinkMessage::{
        DelAddress, DelLink, DelRoute, DelRule, NewAddress, NewLink, NewRoute, NewRule,
    };
    let is_ours = |link: &LinkMessage| is_named(link, name) || Some(link.header.index) == index;
    let is_well =
        |link: &LinkMessage| is_named(link, name) && link.header.flags.contains(LinkFlags::Up);
    let mut meddling = Meddling::default();
    match message {
        DelLink(link) => meddling.ours = is_ours(link),
        NewLink(link) => meddling.ours = is_ours(link) && !is_well(link),
        // One of another's may stand before ours.
        NewRule(_) | DelRule(_) => meddling.ours = true,
        DelRoute(route) if netlink::is_ours(route) => meddling.ours = true,
        NewRoute(route) if netlink::is_ours(route) => {}
        DelAddress(address) if Some(address.header.index) == index => meddling.ours = true,
        NewAddress(address) if Some(address.header.index) == index => {}
        NewRoute(_) | DelRoute(_) | NewAddress(_) | DelAddress(_) => meddling.moved = true,
        _ => {}
    }
    meddling
}

fn is_named(link: &LinkMessage, name: &str) -> bool {
    let ours =
        |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(it) if it == name);
    link.attributes.iter().any(ours)
}

/// Watches files by the directories in which they stand, for whoever writes one may replace it; a link with all that it leads to.
pub(super) struct Files {
    events: AsyncFd<OwnedFd>,
    paths: Vec<PathBuf>,
    /// What is watched: in each directory these names.
    places: HashMap<PathBuf, HashSet<OsString>>,
    /// The kernel's number of each.
    watches: HashMap<i32, PathBuf>,
}

/// Links that are followed, as many as the kernel follows (path_resolution(7)).
const LINKS: usize = 40;

impl Files {
    /// Starts. Needs a tokio runtime.
    pub(super) fn watch(paths: Vec<PathBuf>) -> io::Result<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let events = inotify::init(flags)?;
        #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
        // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
        let events = unsafe { AsyncFd::register(events) }?;
        let mut files = Self {
            events,
            paths,
            places: HashMap::new(),
            watches: HashMap::new(),
        };
        files.follow();
        Ok(files)
    }

    /// Waits until one of them has changed.
    pub(super) async fn changed(&mut self) {
        loop {
            let Ok(mut ready) = self.events.readable().await else {
                return std::future::pending().await;
            };
            ready.clear_ready();
            drop(ready);
            if self.read() {
                // A link may lead elsewhere now.
                self.follow();
                return;
            }
        }
    }

    /// Watches where the paths lead now. A directory that cannot be watched is tried again when something changes.
    fn follow(&mut self) {
        // While that is done they may change.
        for _ in 0..3 {
            self.places = places(&self.paths);
            let old = std::mem::take(&mut self.watches);
            for directory in self.places.keys() {
                if let Ok(watch) = inotify::add_watch(&self.events, directory, WHAT) {
                    self.watches.insert(watch, directory.clone());
                }
            }
            for watch in old.into_keys().filter(|it| !self.watches.contains_key(it)) {
                // Of a directory that is gone there is none any more.
                inotify::remove_watch(&self.events, watch).unwrap_or_default();
            }
            if places(&self.paths) == self.places {
                break;
            }
        }
    }

    /// Whether what has happened so far was about them. What was too much to keep may have been (IN_Q_OVERFLOW, inotify(7)).
    fn read(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.events.get_ref(), &mut buffer);
        let mut changed = false;
        while let Ok(event) = events.next() {
            changed |= event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            let Some(directory) = self.watches.get(&event.wd()) else {
                continue;
            };
            changed |= event.events().contains(inotify::ReadFlags::IGNORED);
            let name = event.file_name().map(|it| OsStr::from_bytes(it.to_bytes()));
            let names = self.places.get(directory);
            changed |= name
                .zip(names)
                .is_some_and(|(name, names)| names.contains(name));
        }
        changed
    }
}

/// Watches the control groups that matter, if any do.
pub(super) fn groups(wanted: &Wanted) -> io::Result<Option<Files>> {
    let paths: Vec<_> = wanted.cgroups().map(cgroups::path).collect();
    let watch = (!paths.is_empty()).then(|| Files::watch(paths));
    watch.transpose()
}

/// Resolves when one of them has changed: never, where there is nothing to watch.
pub(super) async fn changed(files: &mut Option<Files>) {
    match files {
        Some(files) => files.changed().await,
        None => std::future::pending().await,
    }
}

/// What happens to a file in its directory.
const WHAT: inotify::WatchFlags = inotify::WatchFlags::MOVED_TO
    .union(inotify::WatchFlags::MOVED_FROM)
    .union(inotify::WatchFlags::CLOSE_WRITE)
    .union(inotify::WatchFlags::CREATE)
    .union(inotify::WatchFlags::DELETE);

/// Where each path and each link on its way stands: the directory, or the last one that exists, and the name in it.
fn places(paths: &[PathBuf]) -> HashMap<PathBuf, HashSet<OsString>> {
    let mut places: HashMap<PathBuf, HashSet<OsString>> = HashMap::new();
    for path in paths {
        let mut path = path.clone();
        for _ in 0..LINKS {
            let Some((directory, name)) = place(&path) else {
                break;
            };
            places.entry(directory).or_default().insert(name);
            let Ok(target) = std::fs::read_link(&path) else {
                break;
            };
            path = path.parent().unwrap_or_else(|| Path::new("/")).join(target);
        }
    }
    places
}

fn place(path: &Path) -> Option<(PathBuf, OsString)> {
    let there = path
        .ancestors()
        .skip(1)
        .find_map(|it| it.canonicalize().ok().map(|real| (it, real)));
    let (written, real) = there?;
    let next = path.strip_prefix(written).ok()?.components().next()?;
    Some((real, next.as_os_str().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_replaced_has_changed_and_its_neighbours_do_not_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("resolv.conf");
        let mut file = Files::watch(vec![path.clone()]).expect("watched");
        std::fs::write(directory.path().join("other"), "").expect("written");
        assert!(!file.read());
        let new = directory.path().join("new");
        std::fs::write(&new, "").expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        file.changed().await;
    }

    #[tokio::test]
    async fn what_a_link_leads_to_is_watched_also_where_it_is_not_there_yet() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let link = |target: &str| std::os::unix::fs::symlink(target, at("new")).expect("linked");
        std::fs::create_dir(at("etc")).expect("made");
        std::os::unix::fs::symlink("../run/a/file", at("etc/resolv.conf")).expect("linked");
        let mut file = Files::watch(vec![at("etc/resolv.conf")]).expect("watched");
        std::fs::create_dir(at("run")).expect("made");
        file.changed().await;
        std::fs::create_dir(at("run/a")).expect("made");
        file.changed().await;
        std::fs::write(at("run/a/file"), "1").expect("written");
        file.changed().await;
        while file.read() {}
        std::fs::write(at("other"), "2").expect("written");
        link("../other");
        std::fs::rename(at("new"), at("etc/resolv.conf")).expect("renamed");
        file.changed().await;
        while file.read() {}
        std::fs::write(at("run/a/file"), "3").expect("written");
        assert!(!file.read(), "it does not lead there any more");
        std::fs::write(at("other"), "4").expect("written");
        file.changed().await;
    }

    #[test]
    fn an_interface_that_is_set_down_or_renamed_was_meddled_with_and_another_was_not() {
        let ours = |message| meaning(&message, "hoplite0", Some(7)).ours;
        let named = |name: &str| {
            let mut link = LinkMessage::default();
            link.attributes = vec![LinkAttribute::IfName(name.into())];
            link
        };
        let mut link = named("hoplite0");
        assert!(ours(RouteNetlinkMessage::NewLink(link.clone())));
        assert!(!ours(RouteNetlinkMessage::NewLink(named("eth0"))));
        link.header.flags = LinkFlags::Up;
        assert!(!ours(RouteNetlinkMessage::NewLink(link.clone())));
        assert!(ours(RouteNetlinkMessage::DelLink(link.clone())));
        let mut renamed = named("other");
        renamed.header.index = 7;
        renamed.header.flags = LinkFlags::Up;
        assert!(ours(RouteNetlinkMessage::NewLink(renamed)));
        let address = RouteNetlinkMessage::NewAddress(Default::default());
        let moved = Meddling {
            moved: true,
            ..Meddling::default()
        };
        assert_eq!(meaning(&address, "hoplite0", Some(7)), moved);
    }

    #[test]
    fn an_overrun_is_no_silence_and_a_socket_that_broke_is_not_waited_for() {
        assert_eq!(said(Err(Errno::NOBUFS)), Said::Overrun);
        assert_eq!(said(Err(Errno::AGAIN)), Said::Nothing);
        assert_eq!(said(Err(Errno::NOTCONN)), Said::Broken);
        assert_eq!(said(Ok(0)), Said::Broken);
    }

    #[test]
    fn what_cannot_be_read_may_have_been_anything() {
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::DelLink(Default::default()));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        assert_eq!(meanings(&bytes, "hoplite0", None), Meddling::default());
        bytes.extend([9; 3]);
        assert_eq!(meanings(&bytes, "hoplite0", None), Meddling::ANYTHING);
    }
}
