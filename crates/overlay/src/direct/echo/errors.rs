//! What the network says of echoes that did not arrive: ICMP errors out of a ping socket's error queue, made into packets again.
//! Used by [`super::EchoFlow`]. ip(7) IP_RECVERR, ipv6(7) IPV6_RECVERR; what an error quotes: RFC 792, RFC 4443.

use std::{
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

use hoplite_wire::ip::{self, icmp};

/// What of a message the queue is asked for, in octets: no error quotes more.
const QUOTED: usize = 1280;
/// The width of a control message's length, to which all is aligned.
const WORD: usize = size_of::<usize>();
/// `struct sock_extended_err`; the address of who complains stands behind it.
const EXTENDED: usize = 16;

/// An error about an echo of this socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Type and code as ICMP of the family has them.
    kind: [u8; 2],
    /// The MTU, where that is the matter.
    rest: u32,
    /// Who says so.
    from: IpAddr,
    /// Where the echo was sent.
    to: IpAddr,
    /// The echo as it left, as far as the error quoted it.
    quoted: Vec<u8>,
}

/// Asks the system to keep errors for us.
#[expect(unsafe_code, reason = "the option has no safe wrapper")]
pub(super) fn ask(socket: &socket2::Socket, is_v6: bool) -> io::Result<()> {
    let (level, option) = match is_v6 {
        false => (libc::IPPROTO_IP, libc::IP_RECVERR),
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    let on: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the value is an int that outlives the call, as both options want it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            len,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next error.
///
/// # Errors
/// `WouldBlock` when there is none; `InvalidData` for one that says too little.
#[expect(unsafe_code, reason = "the error queue has no safe wrapper")]
pub(super) fn next(socket: BorrowedFd<'_>) -> io::Result<Told> {
    let (mut name, mut control) = ([0_u64; 16], [0_u64; 64]);
    let mut quoted = vec![0; QUOTED];
    let mut piece = libc::iovec {
        iov_base: quoted.as_mut_ptr().cast(),
        iov_len: quoted.len(),
    };
    // SAFETY: all of it is numbers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = libc::socklen_t::try_from(size_of_val(&name)).map_err(io::Error::other)?;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open; every pointer is to a buffer of the length that stands beside it, and all outlive the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    quoted.truncate(got);
    let told = read(&octets(&name), &octets(&control), quoted);
    told.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn octets(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Makes sense of what the queue gave.
fn read(name: &[u8], control: &[u8], quoted: Vec<u8>) -> Option<Told> {
    let to = address(name)?;
    let extended = extended(control)?;
    let &[_, _, _, _, origin, kind, code, _, a, b, c, d] = extended.get(..12)? else {
        return None;
    };
    let info = u32::from_ne_bytes([a, b, c, d]);
    let (kind, from) = match origin {
        libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => {
            ([kind, code], address(extended.get(EXTENDED..)?)?)
        }
        // The way out carries less: nobody had to say so.
        libc::SO_EE_ORIGIN_LOCAL if info > 0 => (too_big(to), to),
        _ => return None,
    };
    let rest = if kind == too_big(to) { info } else { 0 };
    Some(Told {
        kind,
        rest,
        from,
        to,
        quoted,
    })
}

const fn too_big(to: IpAddr) -> [u8; 2] {
    if to.is_ipv4() { [3, 4] } else { [2, 0] }
}

/// The `sock_extended_err` among the control messages, with what follows it.
fn extended(mut control: &[u8]) -> Option<&[u8]> {
    loop {
        let len = usize::from_ne_bytes(control.get(..WORD)?.try_into().ok()?);
        let (level, kind) = (int(control.get(WORD..)?)?, int(control.get(WORD + 4..)?)?);
        let data = control.get(WORD + 8..len)?;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                return Some(data);
            }
            _ => control = control.get(len.next_multiple_of(WORD)..)?,
        }
    }
}

fn int(octets: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(octets.get(..4)?.try_into().ok()?))
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
fn address(octets: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(octets.get(..2)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let address: [u8; 4] = octets.get(4..8)?.try_into().ok()?;
            Some(Ipv4Addr::from(address).into())
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = octets.get(8..24)?.try_into().ok()?;
            Some(Ipv6Addr::from(address).to_canonical())
        }
        _ => None,
    }
}

impl Told {
    /// The error as a packet to `near`, quoting the echo as that had sent it: with its address and the program's identifier.
    pub(super) fn packet(&self, near: IpAddr, ident: u16) -> Option<Vec<u8>> {
        let mut echo = self.quoted.clone();
        echo.get_mut(4..6)?.copy_from_slice(&ident.to_be_bytes());
        let mut quoted = Vec::with_capacity(40 + echo.len());
        let protocol = ip::icmp_of(near);
        ip::write_header(&mut quoted, near, self.to, protocol, 1, echo.len());
        quoted.extend_from_slice(&echo);
        let same_family = [self.from, self.to]
            .iter()
            .all(|ip| ip.is_ipv4() == near.is_ipv4());
        same_family.then(|| icmp::error(self.from, near, self.kind, self.rest, &quoted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn sockaddr(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(ip) => [&2_u16.to_ne_bytes()[..], &[0, 0], &ip.octets(), &[0; 8]].concat(),
            IpAddr::V6(ip) => [&10_u16.to_ne_bytes()[..], &[0; 6], &ip.octets(), &[0; 4]].concat(),
        }
    }

    fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let len = WORD + 8 + data.len();
        let mut out = [
            &len.to_ne_bytes()[..],
            &level.to_ne_bytes(),
            &kind.to_ne_bytes(),
            data,
        ]
        .concat();
        out.resize(len.next_multiple_of(WORD), 0);
        out
    }

    fn extended_error(origin: u8, kind: [u8; 2], info: u32, from: &[u8]) -> Vec<u8> {
        let head = [0, 0, 0, 0, origin, kind[0], kind[1], 0];
        [&head[..], &info.to_ne_bytes(), &[0; 4], from].concat()
    }

    #[test]
    fn a_routers_complaint_becomes_a_packet_that_quotes_the_echo() {
        let (router, to, near) = (ip("192.0.2.1"), ip("203.0.113.9"), ip("192.0.0.8"));
        let other = control(libc::IPPROTO_IP, libc::IP_TTL, &64_i32.to_ne_bytes());
        let error = extended_error(libc::SO_EE_ORIGIN_ICMP, [11, 0], 0, &sockaddr(router));
        let controls = [other, control(libc::IPPROTO_IP, libc::IP_RECVERR, &error)].concat();
        let echo = vec![8, 0, 1, 2, 0x99, 0x99, 0, 3, b'x'];
        let told = read(&sockaddr(to), &controls, echo).expect("an error");
        let packet = told.packet(near, 7).expect("a packet");
        let packet = ip::parse(&packet).expect("a packet");
        assert!(packet.checksum_is_right());
        assert_eq!((packet.source, packet.destination), (router, near));
        assert_eq!(packet.payload[..2], [11, 0]);
        let quoted = ip::parse(&packet.payload[8..]).expect("a packet");
        assert_eq!((quoted.source, quoted.destination), (near, to));
        assert_eq!(quoted.payload, [8, 0, 1, 2, 0, 7, 0, 3, b'x']);
    }

    #[test]
    fn a_way_out_that_is_too_small_is_told_with_its_size() {
        let (to, near) = (ip("2001:db8::9"), ip("100::8"));
        let error = extended_error(libc::SO_EE_ORIGIN_LOCAL, [0, 0], 1280, &[]);
        let controls = control(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &error);
        let told = read(&sockaddr(to), &controls, vec![128; 8]).expect("an error");
        let packet = told.packet(near, 7).expect("a packet");
        let packet = ip::parse(&packet).expect("a packet");
        assert_eq!((packet.source, packet.payload[0]), (to, 2));
        assert_eq!(packet.payload[4..8], 1280_u32.to_be_bytes());
    }

    proptest! {
        #[test]
        fn whatever_the_queue_gives_there_is_no_panic(name: Vec<u8>, control: Vec<u8>, quoted: Vec<u8>) {
            drop(read(&name, &control, quoted.clone()));
            let named = sockaddr(ip("192.0.2.1"));
            if let Some(told) = read(&named, &control, quoted) {
                drop(told.packet(ip("192.0.0.8"), 1));
            }
        }
    }
}
