//! Echo requests (RFC 792) as `ping` sends them: the far kernel answers, and ours stamps the answer as it comes. So the network is measured,
//! not how soon a process is woken up. `round_trip` uses it.

use std::{
    io::{self, Read},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::AsRawFd,
    time::{Duration, SystemTime},
};

use socket2::{Domain, Protocol, Socket, Type};

const REQUEST: u8 = 8;
const ANSWER: u8 = 0;
/// Every request of ours has it: a raw socket hears all.
const IDENTITY: u16 = 0x686f;
const SIZE: usize = 16;
/// `linux/sockios.h`: when the last packet came that this socket gave; asking for the first time switches the stamps on.
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;

/// Asks one host.
#[derive(Debug)]
pub(super) struct Pinger {
    socket: Socket,
    to: SocketAddr,
    number: u16,
}

impl Pinger {
    /// Must be made inside the host that asks. After `patience` an answer is lost.
    pub(super) fn new(to: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
        socket.set_read_timeout(Some(patience))?;
        stamp(&socket).ok();
        Ok(Self {
            socket,
            to,
            number: 0,
        })
    }

    /// One round trip; None if it was lost.
    pub(super) fn trip(&mut self) -> io::Result<Option<Duration>> {
        self.number = self.number.wrapping_add(1);
        let sent = SystemTime::now();
        self.socket
            .send_to(&request(self.number), &self.to.into())?;
        match self.hear() {
            Ok(came) => Ok(came.duration_since(sent).ok()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When the answer to the last request came; late answers to earlier ones are passed over.
    fn hear(&mut self) -> io::Result<SystemTime> {
        let mut packet = [0; 128];
        loop {
            let size = (&self.socket).read(&mut packet)?;
            if answers(packet.get(..size).unwrap_or_default(), self.number) {
                return stamp(&self.socket);
            }
        }
    }
}

fn request(number: u16) -> [u8; SIZE] {
    let mut request = [0; SIZE];
    request[0] = REQUEST;
    request[4..6].copy_from_slice(&IDENTITY.to_be_bytes());
    request[6..8].copy_from_slice(&number.to_be_bytes());
    let sum = checksum(&request);
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    request
}

/// RFC 1071, for a whole number of 16-bit words.
fn checksum(octets: &[u8; SIZE]) -> u16 {
    let words = octets.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from(folded & 0xffff).map_or(0, |sum| !sum)
}

/// Whether an IPv4 packet answers the request of that number.
fn answers(packet: &[u8], number: u16) -> bool {
    let header = packet
        .first()
        .map_or(0, |first| usize::from(first & 15) * 4);
    let Some(&[kind, _, _, _, a, b, c, d, ..]) = packet.get(header..) else {
        return false;
    };
    kind == ANSWER && u16::from_be_bytes([a, b]) == IDENTITY && u16::from_be_bytes([c, d]) == number
}

/// When the kernel got the packet that was read last.
fn stamp(socket: &Socket) -> io::Result<SystemTime> {
    let mut stamp = MaybeUninit::<libc::timespec>::zeroed();
    #[expect(unsafe_code, reason = "no safe wrapper asks for a packet's time")]
    // SAFETY: the descriptor is open, and the kernel writes one timespec, for which there is room; zeroes are a valid one too.
    let (answer, stamp) = unsafe {
        let answer = libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS, stamp.as_mut_ptr());
        (answer, stamp.assume_init())
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(stamp.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(stamp.tv_nsec).unwrap_or(0);
    Ok(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_the_request_counts() {
        let mut packet = [[0x45; 20].as_slice(), &request(7)].concat();
        assert!(!answers(&packet, 7), "a request is no answer");
        packet[20] = ANSWER;
        assert!(answers(&packet, 7));
        assert!(!answers(&packet, 8));
        assert!((0..packet.len()).all(|size| size >= 28 || !answers(&packet[..size], 7)));
    }

    #[test]
    fn the_sum_over_a_request_is_zero() {
        assert_eq!(checksum(&request(0xfedc)), 0);
    }
}
