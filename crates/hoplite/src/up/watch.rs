//! Notices what others do to what we took: the interface removed or set down, our rules and routes deleted, resolv.conf written.
//! `session` then looks at all of it, and takes it again. Nothing is polled.
//!
//! An event is no more than a reason to look: what the kernel could not keep for us (ENOBUFS, netlink(7)) is one as well.

use std::{
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
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

use super::netlink;

/// What happens together is handled together: who flushes a table deletes many routes.
const SETTLE: Duration = Duration::from_millis(100);

/// The pause after which a socket that broke is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// Octets of the largest datagram that the kernel makes of events (NLMSG_GOODSIZE is at most 8 KiB).
const LARGEST: usize = 32 * 1024;

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
    /// This many octets of events.
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
            buffer: vec![0; LARGEST],
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
        let settled = Instant::now() + SETTLE;
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
            Said::Events(octets) => {
                let events = self.buffer.get(..octets).unwrap_or_default();
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
        sleep(PAUSE).await;
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
        Ok(octets) => Said::Events(octets),
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
        // Each begins at a multiple of four octets (netlink(7), NLMSG_ALIGN).
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
        let mut octets = vec![0; message.buffer_len()];
        message.serialize(&mut octets);
        assert_eq!(meanings(&octets, "hoplite0", None), Meddling::default());
        octets.extend([9; 3]);
        assert_eq!(meanings(&octets, "hoplite0", None), Meddling::ANYTHING);
    }
}
