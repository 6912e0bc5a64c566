//! Which addresses lead to this host, told by rtnetlink(7) and kept up to date.
//! The policy asks about each target: what a firewall hides from the Internet, or what serves this host alone, is not for whoever comes
//! through the relay.
//!
//! They are those of its interfaces, and what its table of local routes delivers here besides: whole prefixes (127.0.0.0/8, "AnyIP"), the
//! broadcast addresses of its networks and its anycast addresses, at which its programs receive as well. Other tables are left out: what
//! they deliver here is for marked packets, as TPROXY has it. Whatever changes, and whatever may have been missed, means to look at
//! everything again; until that is done the old ones hold.

use std::{
    collections::HashSet,
    fmt, io,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::SocketAddrNetlink, recv, send, socket_with, sockopt,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

/// What one receive call may bring: the kernel fills 32 KiB of a dump at a time.
const BUFFER: usize = 65_536;
/// How long the kernel may take for a part of an answer, which it has at hand.
const NETLINK_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the kernel did not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often a dump is begun again that something changed under.
const MAX_DUMPS: usize = 16;

/// linux/netlink.h: a message's header, its types and flags.
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const INTERRUPTED: u16 = 0x10;

/// linux/rtnetlink.h: messages about addresses and routes, and the groups that are told of changes, of both families.
const NEW_ADDRESS: u16 = 20;
const DELETED_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// How long `struct ifaddrmsg` and `struct rtmsg` are, and their attributes: IFA_ADDRESS, of the other end where there is one, IFA_LOCAL,
/// RTA_DST.
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
/// RT_TABLE_LOCAL, and the types of routes that are delivered here: local, broadcast, anycast.
const TABLE_LOCAL: u8 = 255;
const DELIVERED: [u8; 3] = [2, 3, 4];
/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];
/// What is answered where there is nothing of the kind.
const NONE: [i32; 3] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::ENOENT];

/// The addresses of this host, as they were when something last changed.
pub(crate) struct HostAddresses(ArcSwap<Found>);

/// Tells when addresses of this host may have changed.
#[derive(Debug)]
pub(crate) struct Changes(OwnedFd);

/// Mostly whole addresses; prefixes are few.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    hosts: HashSet<IpAddr>,
    nets: Vec<IpNet>,
}

/// One message of the kernel's.
#[derive(Debug)]
struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

impl HostAddresses {
    /// The addresses that the host has now, and what tells of changes from now on.
    ///
    /// # Errors
    /// The kernel does not tell: a sandbox without AF_NETLINK.
    pub(crate) fn look() -> io::Result<(Self, Changes)> {
        let changes = open(SocketFlags::NONBLOCK, GROUPS)?;
        let found = Found::read()?;
        Ok((Self(ArcSwap::from_pointee(found)), Changes(changes)))
    }

    /// Those of a host that has no others.
    #[cfg(test)]
    pub(crate) fn only(nets: &[IpNet]) -> Self {
        let mut found = Found::default();
        nets.iter().for_each(|net| found.add(*net));
        Self(ArcSwap::from_pointee(found))
    }

    /// Whether this host receives what is sent to this address, given in its canonical form.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        let found = self.0.load();
        ip.is_loopback()
            || ip.is_unspecified()
            || found.hosts.contains(&ip)
            || found.nets.iter().any(|net| net.contains(&ip))
    }

    /// Whether this host receives what is sent to any address of this prefix.
    pub(crate) fn has_all(&self, prefix: &IpNet) -> bool {
        let found = self.0.load();
        let hosts = found.hosts.iter().map(|ip| IpNet::from(*ip));
        let all = hosts.chain(found.nets.iter().copied()).collect();
        IpNet::aggregate(&all)
            .iter()
            .any(|net| net.contains(prefix))
    }

    /// Keeps them up to date. Never ends.
    pub(crate) async fn follow(&self, changes: Changes) {
        #[expect(unsafe_code, reason = "no safe way to wait for a descriptor")]
        // SAFETY: an OwnedFd is open and the same descriptor for as long as it lives, and the AsyncFd owns it.
        let watched = unsafe { AsyncFd::register_with_interest(changes.0, Interest::READABLE) };
        let (mut stale, mut told) = (false, false);
        loop {
            let waited = match &watched {
                Ok(_) if stale => Ok(()),
                Ok(watched) => changed(watched).await,
                Err(_) => Err(io::ErrorKind::Unsupported.into()),
            };
            let looked = Found::read().map(|found| self.0.store(found.into()));
            let done = waited.and(looked);
            stale = done.is_err();
            if let Err(error) = done {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "this host's addresses cannot be watched: what was known of them holds, and is looked at again and again");
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Resolves when an address or a route to this host has come or gone, or when that may have been missed.
async fn changed(socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut ready = socket.readable().await?;
        let mut news = false;
        loop {
            match recv(socket.get_ref(), &mut buffer, RecvFlags::empty()) {
                Ok((len, _)) => {
                    let bytes = buffer.get(..len).unwrap_or_default();
                    news |= messages(bytes).any(|message| message.is_news());
                }
                Err(Errno::AGAIN) => break ready.clear_ready(),
                Err(Errno::INTR) => {}
                // Messages were lost for want of room (netlink(7)): nobody knows which.
                Err(Errno::NOBUFS) => news = true,
                Err(error) => return Err(error.into()),
            }
        }
        if news {
            return Ok(());
        }
    }
}

impl Found {
    fn read() -> io::Result<Self> {
        let socket = open(SocketFlags::empty(), 0)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(NETLINK_TIMEOUT))?;
        filters(&socket);
        let mut found = Self::default();
        for family in FAMILIES {
            found.dump(&socket, &addresses_of(family))?;
            found.dump(&socket, &local_routes_of(family))?;
        }
        Ok(found)
    }

    /// All that the kernel has of one kind. What is there already is added once.
    fn dump(&mut self, socket: &OwnedFd, request: &[u8]) -> io::Result<()> {
        for _ in 0..MAX_DUMPS {
            send(socket, request, SendFlags::empty())?;
            if self.receive(socket)? {
                return Ok(());
            }
        }
        Err(io::Error::other("the routes do not stand still"))
    }

    /// The answer to a request; whether nothing changed under it.
    fn receive(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER];
        let mut whole = true;
        loop {
            let len = match recv(socket, &mut buffer, RecvFlags::empty()) {
                Ok((len, _)) => len,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in messages(buffer.get(..len).unwrap_or_default()) {
                whole &= message.flags & INTERRUPTED == 0;
                match message.kind {
                    DONE => return Ok(whole),
                    // A family that the kernel does not have, or a table that is not there yet, is refused and has no addresses.
                    ERROR => return message.error().map_or(Ok(true), Err),
                    _ => message
                        .delivered()
                        .into_iter()
                        .for_each(|net| self.add(net)),
                }
            }
        }
    }

    fn add(&mut self, net: IpNet) {
        if net.prefix_len() == net.max_prefix_len() {
            self.hosts.insert(net.addr());
        } else if !self.nets.contains(&net) {
            self.nets.push(net);
        }
    }
}

impl<'a> Message<'a> {
    /// Whether it tells of something that leads here.
    fn is_news(&self) -> bool {
        match self.kind {
            NEW_ADDRESS | DELETED_ADDRESS => true,
            NEW_ROUTE | DELETED_ROUTE => self.is_local_route(),
            _ => false,
        }
    }

    /// What is delivered here, by what it tells that there is.
    fn delivered(&self) -> Option<IpNet> {
        let family = *self.body.first()?;
        match self.kind {
            NEW_ADDRESS => {
                let of = |kind| self.attribute(ADDRESS, kind);
                let ip = address(family, of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?)?;
                Some(ip.into())
            }
            NEW_ROUTE if self.is_local_route() => {
                let ip = address(family, self.attribute(ROUTE, RTA_DST)?)?;
                IpNet::new(ip, *self.body.get(1)?).ok()
            }
            _ => None,
        }
    }

    /// `rtm_table` and `rtm_type` of a `struct rtmsg`.
    fn is_local_route(&self) -> bool {
        match self.body {
            [_, _, _, _, table, _, _, kind, ..] => {
                *table == TABLE_LOCAL && DELIVERED.contains(kind)
            }
            _ => false,
        }
    }

    /// The value of the first attribute of a type, behind a structure of this length.
    fn attribute(&self, behind: usize, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.body.get(behind..)?;
        loop {
            let &[a, b, c, d, ..] = rest else {
                return None;
            };
            let len = usize::from(u16::from_ne_bytes([a, b]));
            let value = rest.get(4..len)?;
            // Two bits of a type are flags (NLA_TYPE_MASK).
            if u16::from_ne_bytes([c, d]) & 0x3fff == wanted {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    /// What the kernel complains of, if that is more than the want of a family.
    fn error(&self) -> Option<io::Error> {
        let code = self
            .body
            .first_chunk()
            .map(|code| i32::from_ne_bytes(*code));
        match code {
            Some(0) => None,
            Some(code) if NONE.contains(&code.saturating_neg()) => None,
            Some(code) => Some(io::Error::from_raw_os_error(code.saturating_neg())),
            None => Some(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match (family, bytes.len()) {
        (2, 4) => bytes.first_chunk::<4>().copied().map(IpAddr::from),
        (10, 16) => bytes.first_chunk::<16>().copied().map(IpAddr::from),
        _ => None,
    }
}

/// The messages of what one receive call brought; what is cut off is left out.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let [a, b, c, d, e, f, g, h, ..] = *header;
        let len = usize::try_from(u32::from_ne_bytes([a, b, c, d])).ok()?;
        let message = Message {
            kind: u16::from_ne_bytes([e, f]),
            flags: u16::from_ne_bytes([g, h]),
            body: bytes.get(HEADER..len)?,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn addresses_of(family: u8) -> [u8; HEADER + ADDRESS] {
    let mut request = request(GET_ADDRESS);
    request[HEADER] = family;
    request
}

fn local_routes_of(family: u8) -> [u8; HEADER + ROUTE] {
    let mut request = request(GET_ROUTE);
    request[HEADER] = family;
    request[HEADER + 4] = TABLE_LOCAL;
    request
}

/// Asks for everything of a kind.
fn request<const LEN: usize>(kind: u16) -> [u8; LEN] {
    let mut request = [0; LEN];
    let len = u32::try_from(LEN).unwrap_or_default();
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    request
}

fn open(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags | SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// NETLINK_GET_STRICT_CHK: the kernel itself leaves out routes of other tables, of which a router may have a million. Where it cannot
/// (before 4.20), they are left out here.
#[expect(unsafe_code, reason = "the option has no safe wrapper")]
fn filters(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default();
    // SAFETY: the descriptor is open, and the option's value is an int that outlives the call.
    let _set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            (&raw const on).cast(),
            size,
        )
    };
}

impl fmt::Debug for HostAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.0.load();
        write!(f, "HostAddresses({} addresses)", found.hosts.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    /// A message with an attribute that is none of ours, and one with an address.
    fn message(kind: u16, head: &[u8], attribute: u16, to: &[u8]) -> Vec<u8> {
        let mut body = head.to_vec();
        body.extend([5, 0, 15, 0, 255, 0, 0, 0]);
        let size = u16::try_from(to.len() + 4).expect("short");
        body.extend(size.to_ne_bytes());
        body.extend(attribute.to_ne_bytes());
        body.extend(to);
        let len = u32::try_from(HEADER + body.len()).expect("short");
        let mut message = len.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    fn route(kind: u16, family: u8, len: u8, (table, rtm_type): (u8, u8), to: &[u8]) -> Vec<u8> {
        let head = [family, len, 0, 0, table, 2, 0, rtm_type, 0, 0, 0, 0];
        message(kind, &head, RTA_DST, to)
    }

    fn read(bytes: &[u8]) -> Vec<IpNet> {
        messages(bytes).filter_map(|m| m.delivered()).collect()
    }

    #[test]
    fn loopback_is_found_as_the_prefix_that_is_delivered_here() {
        let (local, _changes) = HostAddresses::look().expect("told");
        let found = local.0.load();
        let loopback: IpNet = "127.0.0.0/8".parse().expect("a prefix");
        assert!(found.nets.contains(&loopback), "{local:?}");
        assert!(local.has(ip("127.9.9.9")) && local.has(ip("::1")) && local.has(ip("0.0.0.0")));
        assert!(!local.has(ip("1.1.1.1")) && !local.has(ip("2606:4700::1111")));
    }

    #[test]
    fn a_prefix_is_this_hosts_when_each_of_its_addresses_is() {
        let nets = [
            "192.0.2.0/25",
            "192.0.2.128/26",
            "192.0.2.192/32",
            "192.0.2.193/32",
            "2001:db8::/64",
        ];
        let local = HostAddresses::only(&nets.map(|net| net.parse().expect(net)));
        for (prefix, is_here) in [
            ("192.0.2.0/25", true),
            ("192.0.2.64/27", true),
            ("192.0.2.192/31", true),
            ("192.0.2.192/30", false),
            ("192.0.2.0/24", false),
            ("2001:db8::5/128", true),
            ("2001:db8::/63", false),
        ] {
            assert_eq!(
                local.has_all(&prefix.parse().expect(prefix)),
                is_here,
                "{prefix}"
            );
        }
    }

    #[test]
    fn routes_to_elsewhere_and_for_marked_packets_are_no_news_and_no_address() {
        let to = [192, 0, 2, 1];
        let all = [
            route(NEW_ROUTE, 2, 32, (254, 1), &to),
            route(NEW_ROUTE, 2, 32, (255, 5), &to),
            route(NEW_ROUTE, 2, 0, (100, 2), &[0; 4]),
            route(NEW_ROUTE, 2, 32, (255, 2), &to),
            route(NEW_ROUTE, 2, 32, (255, 3), &[192, 0, 2, 255]),
            route(DELETED_ROUTE, 2, 24, (255, 2), &[198, 51, 100, 0]),
            message(
                NEW_ADDRESS,
                &[10, 64, 0, 0, 1, 0, 0, 0],
                IFA_ADDRESS,
                &[1; 16],
            ),
        ]
        .concat();
        let found: Vec<String> = read(&all).iter().map(ToString::to_string).collect();
        let wanted = [
            "192.0.2.1/32",
            "192.0.2.255/32",
            "101:101:101:101:101:101:101:101/128",
        ];
        assert_eq!(found, wanted);
        let news: Vec<bool> = messages(&all).map(|message| message.is_news()).collect();
        assert_eq!(news, [false, false, false, true, true, true, true]);
    }

    proptest! {
        #[test]
        fn nothing_that_a_kernel_could_say_is_a_panic(bytes: Vec<u8>, family in prop::sample::select(vec![2_u8, 10, 7]), len: u8, to: Vec<u8>) {
            read(&bytes);
            let whole = route(NEW_ROUTE, family, len, (255, 2), &to[..to.len().min(64)]);
            for end in 0..whole.len() {
                read(&whole[..end]);
            }
            for net in read(&whole) {
                prop_assert!(net.prefix_len() == len);
            }
            drop(messages(&bytes).map(|message| message.error()).collect::<Vec<_>>());
        }
    }
}
