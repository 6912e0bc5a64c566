//! Whose a flow is: the kernel is asked for the socket with its ends, and tells the user who opened it and the control group of the program.
//! It is asked for each new flow, and for each datagram to the resolver. sock_diag(7), `include/uapi/linux/inet_diag.h`; the control group is
//! told since Linux 5.8. Asking for one socket needs no right.
//!
//! The kernel answers before the call that asks returns: nobody waits, and nothing is under way between two questions. It looks for the
//! socket where it looks for that of a packet, so that a question costs about what a packet does.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::Range,
    os::fd::OwnedFd,
};

use hoplite_wire::ip;
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, netlink, recv, send,
    socket_with,
};

use super::{FlowKey, SocketOwners};
use crate::users::User;

/// linux/sock_diag.h and linux/netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// linux/inet_diag.h.
const INET_DIAG_CGROUP_ID: u16 = 21;
/// Bytes of struct nlmsghdr, of one with struct inet_diag_req_v2, and of one with struct inet_diag_msg.
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;
const ANSWER: usize = HEADER + 72;
/// TCP_TIME_WAIT and TCP_LISTEN of net/tcp_states.h: such a socket opened no flow with these ends.
const OWNERLESS_STATES: [u8; 2] = [6, 10];

/// The kernel's answer, by sock_diag(7).
pub(crate) struct SockDiag {
    netlink: OwnedFd,
    /// The number of the last question.
    sequence: Mutex<u32>,
    /// The protocols that it can be asked about.
    protocols: Vec<u8>,
    subordinate: SubordinateUids,
}

/// The uids that users may take in user namespaces of their own (subuid(5)). Who has some opens sockets as each of them, and is one user all the same.
#[derive(Debug, Default)]
struct SubordinateUids(Vec<Range<u32>>);

impl SubordinateUids {
    /// As they are now.
    fn of_system() -> Self {
        let text = std::fs::read_to_string("/etc/subuid");
        text.map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut fields = line.split(':').skip(1);
            let mut number = || fields.next()?.trim().parse::<u32>().ok();
            let (first, count) = (number()?, number()?);
            Some(first..first.saturating_add(count))
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// The uid for all of the range that this one is in, if it is in one.
    fn whole(&self, uid: u32) -> u32 {
        let range = self.0.iter().find(|range| range.contains(&uid));
        range.map_or(uid, |range| range.start)
    }
}

impl SockDiag {
    /// In the network namespace of this thread; `None` where the kernel does not answer.
    pub(crate) fn open() -> Option<Self> {
        let opened = Self::connected().and_then(Self::tried);
        match opened {
            Ok(sockets) => Some(sockets),
            Err(error) => {
                tracing::debug!(%error, "whose flows are cannot be asked: they share by their source addresses");
                None
            }
        }
    }

    /// A connected one takes messages from the kernel alone.
    fn connected() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let netlink = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(netlink::SOCK_DIAG),
        )?;
        connect(&netlink, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self {
            netlink,
            sequence: Mutex::default(),
            protocols: vec![ip::TCP, ip::UDP],
            subordinate: SubordinateUids::of_system(),
        })
    }

    /// A kernel without the module for a protocol says that there is no such socket, after it has looked for the module each time. So it is
    /// asked for sockets that there are.
    fn tried(mut self) -> io::Result<Self> {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (tcp, udp) = (TcpListener::bind(any)?, UdpSocket::bind(any)?);
        let here = [(ip::TCP, tcp.local_addr()?), (ip::UDP, udp.local_addr()?)];
        self.protocols = Vec::new();
        for (protocol, program) in here {
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
            let key = FlowKey { program, target };
            if let Reply::Socket { .. } = self.ask(protocol, key)? {
                self.protocols.push(protocol);
            }
        }
        if self.protocols.is_empty() {
            Err(io::ErrorKind::Unsupported.into())
        } else {
            Ok(self)
        }
    }

    fn ask(&self, protocol: u8, key: FlowKey) -> io::Result<Reply> {
        let mut sequence = self.sequence.lock();
        *sequence = sequence.wrapping_add(1);
        send(
            &self.netlink,
            &request(protocol, key, *sequence),
            SendFlags::empty(),
        )?;
        loop {
            let mut buf = [0; 512];
            let (_, len) = recv(&self.netlink, &mut buf, RecvFlags::empty())?;
            let bytes = buf.get(..len).unwrap_or_default();
            if let Some(reply) = read(bytes, *sequence) {
                return Ok(reply);
            }
        }
    }
}

impl SocketOwners for SockDiag {
    fn user(&self, protocol: u8, key: FlowKey) -> Option<User> {
        if !self.protocols.contains(&protocol) {
            return None;
        }
        match self.ask(protocol, key) {
            Ok(Reply::Socket { state, uid, group }) => {
                let opened = protocol != ip::TCP || !OWNERLESS_STATES.contains(&state);
                opened.then(|| User::local(self.subordinate.whole(uid), group))
            }
            Ok(Reply::Nothing) => None,
            Err(error) => {
                tracing::trace!(%error, "the kernel does not tell whose a flow is");
                None
            }
        }
    }
}

/// The kernel's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Socket {
        state: u8,
        uid: u32,
        group: u64,
    },
    /// There is none, or it does not say.
    Nothing,
}

/// The question: struct nlmsghdr, then struct inet_diag_req_v2.
fn request(protocol: u8, key: FlowKey, sequence: u32) -> [u8; REQUEST] {
    let mut out = Writer([0; REQUEST], 0);
    let len = u32::try_from(REQUEST).unwrap_or_default();
    out.put(&len.to_ne_bytes());
    out.put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.put(&NLM_F_REQUEST.to_ne_bytes());
    out.put(&sequence.to_ne_bytes());
    out.put(&[0; 4]);
    let family = match key.program {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let [family, _] = family.as_raw().to_le_bytes();
    // No attributes beyond those that come anyway, and all states.
    out.put(&[family, protocol, 0, 0]);
    out.put(&u32::MAX.to_ne_bytes());
    // Of UDP it wants to know for whom a datagram from the one to the other would be: udp_dump_one in net/ipv4/udp_diag.c.
    let (source, destination) = match protocol {
        ip::UDP => (key.target, key.program),
        _ => (key.program, key.target),
    };
    out.put(&source.port().to_be_bytes());
    out.put(&destination.port().to_be_bytes());
    out.put(&address_bytes(source.ip()));
    out.put(&address_bytes(destination.ip()));
    // Any interface, and INET_DIAG_NOCOOKIE.
    out.put(&[0; 4]);
    out.put(&[0xff; 8]);
    out.0
}

struct Writer([u8; REQUEST], usize);

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.1 + bytes.len();
        if let Some(field) = self.0.get_mut(self.1..end) {
            field.copy_from_slice(bytes);
        }
        self.1 = end;
    }
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The answer to the question of that number, if it is that: struct nlmsghdr, struct inet_diag_msg, attributes; or an error.
fn read(message: &[u8], sequence: u32) -> Option<Reply> {
    let len = usize::try_from(u32_at(message, 0)?).ok()?;
    let message = message.get(..len.min(message.len()))?;
    if u32_at(message, 8)? != sequence {
        return None;
    }
    let uid = u32_at(message, HEADER + 64);
    let (Some(SOCK_DIAG_BY_FAMILY), Some(&state), Some(uid)) =
        (u16_at(message, 4), message.get(HEADER + 1), uid)
    else {
        return Some(Reply::Nothing);
    };
    let attributes = message.get(ANSWER..).unwrap_or_default();
    let group = group(attributes).unwrap_or(0);
    Some(Reply::Socket { state, uid, group })
}

/// What these bytes say as the answer to the question of that number, if they are that: of a socket its state, user and control group, or that there is none.
#[cfg(feature = "testing")]
pub fn read_socket_owner(message: &[u8], sequence: u32) -> Option<Option<(u8, u32, u64)>> {
    read(message, sequence).map(|reply| match reply {
        Reply::Socket { state, uid, group } => Some((state, uid, group)),
        Reply::Nothing => None,
    })
}

/// The number of the control group among attributes: struct nlattr is length and type, and each begins at a multiple of four bytes.
fn group(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let len = usize::from(u16_at(attributes, 0)?);
        if u16_at(attributes, 2)? == INET_DIAG_CGROUP_ID {
            let number = attributes.get(4..len)?.first_chunk()?;
            return Some(u64::from_ne_bytes(*number));
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*field))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*field))
}

impl fmt::Debug for SockDiag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SockDiag")
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_has_subordinate_uids_is_one_user_by_all_of_them() {
        let text =
            "ann:100000:65536\n# none\nbob:165536:2:\n\nbob:x:9\ncarol:7\nhuge:4294967000:65536\n";
        let subordinate = SubordinateUids::parse(text);
        let whole = |uid| subordinate.whole(uid);
        assert_eq!([100_000, 100_001, 165_535].map(whole), [100_000; 3]);
        assert_eq!([165_536, 165_537].map(whole), [165_536; 2]);
        assert_eq!(whole(4_294_967_200), 4_294_967_000);
        for own in [0, 7, 1000, 99_999, 165_538, u32::MAX] {
            assert_eq!(whole(own), own);
        }
    }

    fn answer(sequence: u32, state: u8, uid: u32, attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut out = vec![0; ANSWER];
        out[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        out[8..12].copy_from_slice(&sequence.to_ne_bytes());
        out[HEADER + 1] = state;
        out[HEADER + 64..HEADER + 68].copy_from_slice(&uid.to_ne_bytes());
        for (kind, value) in attributes {
            let len = u16::try_from(value.len() + 4).expect("short");
            out.extend([len.to_ne_bytes(), kind.to_ne_bytes()].concat());
            out.extend(value);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        let len = u32::try_from(out.len()).expect("short");
        out[..4].copy_from_slice(&len.to_ne_bytes());
        out
    }

    fn tcp(program: &TcpStream) -> FlowKey {
        FlowKey {
            program: program.local_addr().expect("bound"),
            target: program.peer_addr().expect("connected"),
        }
    }

    #[test]
    fn the_user_of_a_connection_and_of_a_datagram_is_found_without_any_right() {
        let Some(sockets) = SockDiag::open() else {
            return;
        };
        let here = rustix::process::geteuid().as_raw();
        for (host, any) in [("127.0.0.1:0", "0.0.0.0:0"), ("[::1]:0", "[::]:0")] {
            let Ok(listener) = TcpListener::bind(host) else {
                continue;
            };
            let there = listener.local_addr().expect("bound");
            let program = TcpStream::connect(there).expect("connects");
            let found = sockets.user(ip::TCP, tcp(&program)).expect("it is there");
            assert!(found == User::local(here, found.group));
            let datagrams = UdpSocket::bind(any).expect("binds");
            let port = datagrams.local_addr().expect("bound").port();
            let key = FlowKey {
                program: SocketAddr::new(there.ip(), port),
                target: SocketAddr::new(there.ip(), 9),
            };
            assert_eq!(sockets.user(ip::UDP, key), Some(found));
        }
    }

    #[test]
    fn who_listens_at_a_port_has_not_opened_what_comes_from_it() {
        let Some(sockets) = SockDiag::open() else {
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let key = FlowKey {
            program: listener.local_addr().expect("bound"),
            target: "203.0.113.9:443".parse().expect("an address"),
        };
        assert_eq!(sockets.user(ip::TCP, key), None);
    }

    #[test]
    fn a_flow_that_no_socket_opened_is_nobodys() {
        let Some(sockets) = SockDiag::open() else {
            return;
        };
        let key = FlowKey {
            program: "198.51.100.7:1".parse().expect("an address"),
            target: "203.0.113.9:443".parse().expect("an address"),
        };
        for protocol in [ip::TCP, ip::UDP] {
            assert_eq!(sockets.user(protocol, key), None);
        }
    }

    #[test]
    fn an_error_is_no_socket_and_the_answer_to_another_question_none() {
        let mut error = vec![0; HEADER + 20];
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        error[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        error[..4].copy_from_slice(&36_u32.to_ne_bytes());
        assert_eq!(read(&error, 7), Some(Reply::Nothing));
        assert_eq!(read(&error, 8), None);
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read_whatever_else_it_tells(
            sequence: u32, state: u8, uid: u32, group: u64,
            before in prop::collection::vec((0_u16..21, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            told: bool,
        ) {
            let mut attributes = before;
            if told {
                attributes.push((INET_DIAG_CGROUP_ID, group.to_ne_bytes().to_vec()));
            }
            let group = if told { group } else { 0 };
            let expected = Reply::Socket { state, uid, group };
            prop_assert_eq!(read(&answer(sequence, state, uid, &attributes), sequence), Some(expected));
        }

        #[test]
        fn any_bytes_are_an_answer_or_none(
            sequence: u32, bytes: Vec<u8>, mut changed in prop::collection::vec((0_usize..160, any::<u8>()), 0..8), cut in 0_usize..160,
        ) {
            read(&bytes, sequence);
            let mut whole = answer(sequence, 1, 1, &[(8, vec![0]), (INET_DIAG_CGROUP_ID, vec![1; 8])]);
            for (at, byte) in changed.drain(..) {
                let len = whole.len();
                whole[at % len] = byte;
            }
            read(&whole, sequence);
            read(whole.get(..cut).unwrap_or(&whole), sequence);
        }
    }
}
