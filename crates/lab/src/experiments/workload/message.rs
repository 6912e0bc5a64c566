//! What clients and servers of the lab say to each other over UDP. Every parser is total; `None` is "not ours, or changed on its way".
//! A head of 40 bytes, then a body; numbers are big-endian, times are nanoseconds of the machine's monotonic clock.
//!
//! ```text
//! 0  "HLDG"   4  version   5  kind   6  0, 0   8  token   16  number   20  check   24  sent   32  turned round
//! ```
//! A session: hello (again until) welcome; then echo and echoed, or data and finish → report, or begin → data and finish.
//! Bodies of echoes and data are filled with bytes that depend on the number, and compared. The check covers all else: the head, without which a
//! changed time would be a delay and a changed number a loss, and every other body. A server that gets what it cannot read answers `changed`, in
//! no more bytes than came; both ends hear nobody else on their ports.

use std::net::{IpAddr, Ipv6Addr};

use hoplite_workload::splitmix::mix;

use super::transfer::mapped;

/// The smallest datagram: a head.
pub(crate) const SMALLEST: u16 = 40;

const MAGIC: &[u8; 4] = b"HLDG";
/// 2: the head is checked.
const VERSION: u8 = 2;
/// Where the check stands.
const CHECK: std::ops::Range<usize> = 20..24;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client comes; the body says what for.
    Hello = 1,
    /// It is welcome; the body is the address that it is seen as.
    Welcome = 2,
    /// To be sent back.
    Echo = 3,
    /// Sent back.
    Echoed = 4,
    /// One of a stream.
    Data = 5,
    /// The stream has ended; its number is how many there were.
    Finish = 6,
    /// What came of it.
    Report = 7,
    /// The server is to begin its stream.
    Begin = 8,
    /// What came was not readable.
    Changed = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Welcome,
        Self::Echo,
        Self::Echoed,
        Self::Data,
        Self::Finish,
        Self::Report,
        Self::Begin,
        Self::Changed,
    ];

    /// Whether its body is filled, and compared with what was filled in.
    fn is_filled(self) -> bool {
        matches!(self, Self::Echo | Self::Echoed | Self::Data)
    }
}

/// Of a datagram of that kind, its own place taken as 0: of the head alone where the body is compared anyway, else of all of it.
fn check(kind: Kind, datagram: &[u8]) -> [u8; 4] {
    let end = if kind.is_filled() {
        usize::from(SMALLEST)
    } else {
        datagram.len()
    };
    let covered = datagram.get(..end).unwrap_or(datagram);
    let mut state = covered.len() as u64;
    for (place, chunk) in covered.chunks(8).enumerate() {
        let mut word = [0; 8];
        word.iter_mut()
            .zip(chunk)
            .for_each(|(to, from)| *to = *from);
        let word = u64::from_be_bytes(word);
        let own = if place * 8 + 4 == CHECK.start {
            u64::from(u32::MAX)
        } else {
            0
        };
        state = mix(state ^ (word & !own));
    }
    let [.., a, b, c, d] = state.to_be_bytes();
    [a, b, c, d]
}

/// The head of each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub token: u64,
    /// Which of a stream, from 0.
    pub number: u32,
    /// When it was sent first.
    pub sent: u64,
    /// When the server sent it back.
    pub turned: u64,
}

impl Head {
    /// The head and the body of a datagram.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = datagram.split_at_checked(SMALLEST.into())?;
        let kind = *head.get(5)?;
        if head.get(..4)? != MAGIC || *head.get(4)? != VERSION {
            return None;
        }
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        if head.get(CHECK)? != check(kind, datagram) {
            return None;
        }
        let head = Self {
            kind,
            token: number(head, 8)?,
            number: u32::try_from(number(head, 16)? >> 32).ok()?,
            sent: number(head, 24)?,
            turned: number(head, 32)?,
        };
        Some((head, body))
    }

    /// A datagram with this head.
    #[must_use]
    pub fn emit(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(usize::from(SMALLEST) + body.len());
        self.write(&mut out);
        out.extend_from_slice(body);
        self.seal(&mut out);
        out
    }

    fn seal(&self, datagram: &mut [u8]) {
        let check = check(self.kind, datagram);
        if let Some(place) = datagram.get_mut(CHECK) {
            place.copy_from_slice(&check);
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.extend([VERSION, self.kind as u8, 0, 0]);
        out.extend(self.token.to_be_bytes());
        out.extend((u64::from(self.number) << 32).to_be_bytes());
        out.extend(self.sent.to_be_bytes());
        out.extend(self.turned.to_be_bytes());
    }

    /// A datagram of `size` bytes in all, filled.
    pub(crate) fn fill(&self, size: u16, out: &mut Vec<u8>) {
        out.clear();
        self.write(out);
        let size = usize::from(size.max(SMALLEST));
        let words = Filling::of(self);
        while out.len() < size {
            let word = words.at(out.len()).to_be_bytes();
            let left = size - out.len();
            out.extend(word.iter().take(left));
        }
        self.seal(out);
    }

    /// Whether a datagram of this head, which was checked when it was read, is `size` bytes long and filled as it was sent.
    pub(crate) fn is_intact(&self, size: u16, datagram: &[u8]) -> bool {
        let words = Filling::of(self);
        let body = datagram.get(usize::from(SMALLEST)..).unwrap_or_default();
        let right = |(i, chunk): (usize, &[u8])| {
            let word = words.at(usize::from(SMALLEST) + i * 8).to_be_bytes();
            word.starts_with(chunk)
        };
        datagram.len() == usize::from(size) && body.chunks(8).enumerate().all(right)
    }
}

struct Filling(u64);

impl Filling {
    fn of(head: &Head) -> Self {
        Self(mix(head.token ^ u64::from(head.number)))
    }

    fn at(&self, place: usize) -> u64 {
        mix(self.0 ^ place as u64)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let (word, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u64::from_be_bytes(*word))
}

/// Datagrams at a constant pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Bytes of each.
    pub size: u16,
    /// How many.
    pub count: u32,
    /// Nanoseconds from one to the next.
    pub interval: u64,
}

impl Stream {
    /// More than so many are not counted: 2 MiB of marks.
    pub const MOST: u32 = 1 << 24;
}

/// What a client comes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Echoes.
    Echo,
    /// The server is to receive this.
    Receive(Stream),
    /// The server is to send this.
    Send(Stream),
}

impl Hello {
    /// Reads a hello's body.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let stream = || {
            let sizes = number(body, 8)?;
            let stream = Stream {
                size: u16::try_from(sizes >> 48).ok()?,
                count: u32::try_from(sizes & 0xffff_ffff).ok()?,
                interval: number(body, 16)?,
            };
            let fine = stream.size >= SMALLEST && (1..=Stream::MOST).contains(&stream.count);
            fine.then_some(stream)
        };
        match number(body, 0)? {
            0 => Some(Self::Echo),
            1 => stream().map(Self::Receive),
            2 => stream().map(Self::Send),
            _ => None,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (what, stream) = match self {
            Self::Echo => (0_u64, None),
            Self::Receive(stream) => (1, Some(stream)),
            Self::Send(stream) => (2, Some(stream)),
        };
        let sizes = |stream: &Stream| u64::from(stream.size) << 48 | u64::from(stream.count);
        let rest = stream.map(|stream| [sizes(stream), stream.interval]);
        let numbers = [what].into_iter().chain(rest.into_iter().flatten());
        numbers.flat_map(u64::to_be_bytes).collect()
    }
}

/// The body of a welcome.
pub(crate) fn emit_address(ip: IpAddr) -> [u8; 16] {
    mapped(ip).octets()
}

/// The address in the body of a welcome.
pub(crate) fn address(body: &[u8]) -> Option<IpAddr> {
    let bytes: [u8; 16] = body.try_into().ok()?;
    Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
}
