//! DNS messages, as the rooms above need them: a question read out of a query, replies written, addresses read out of a reply.
//! `mediator` answers programs with it, `masque` and `overlay::direct` ask with it, `relay` reads what its clients ask.
//! RFC 1035 §4, RFC 6891 (EDNS), RFC 2308 (negative answers). The codec is hickory-proto's; here is its only door.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod heard;
mod reply;
#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr};

pub use hickory_proto::rr::{Record, RecordType};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name},
};

pub use self::heard::{Unbelieved, believed};
use crate::HostName;

/// The largest message: two octets of length stand before it on a stream (RFC 1035 §4.2.2).
pub const MAX_MESSAGE: usize = 65_535;
/// The media type of a message (RFC 8484 §6).
pub const MEDIA_TYPE: &str = "application/dns-message";
/// Where a relay is asked: the path that most resolvers have.
pub const PATH: &str = "/dns-query";
/// What a datagram holds without EDNS (RFC 1035 §4.2.1), and the least with it.
const PLAIN: u16 = 512;
/// What we send and take in a datagram: more would be fragmented somewhere.
const LARGEST: u16 = 1232;
/// A header alone.
const HEADER: usize = 12;
/// More records than any honest query has.
const RECORDS: u16 = 16;

/// How a question was answered (RFC 1035 §4.1.1, RFC 6895 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u16);

impl Code {
    /// It was answered, perhaps with nothing.
    pub const NO_ERROR: Self = Self(0);
    /// The query could not be read.
    pub const FORMAT: Self = Self(1);
    /// The resolver failed.
    pub const FAILURE: Self = Self(2);
    /// The name does not exist.
    pub const NO_NAME: Self = Self(3);
    /// Such queries are not answered by anybody here.
    pub const NOT_IMPLEMENTED: Self = Self(4);
    /// This one is not answered.
    pub const REFUSED: Self = Self(5);
    /// EDNS of a version that is not known.
    const VERSION: Self = Self(16);
}

/// What is asked. `Debug` hides the name.
#[derive(Clone, PartialEq, Eq)]
pub struct Question {
    id: u16,
    recursion: bool,
    checking_disabled: bool,
    query: Query,
    edns: Option<Edns>,
}

/// What the asker says of itself (RFC 6891).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Edns {
    /// What fits into a datagram for it.
    payload: u16,
    dnssec: bool,
}

/// Why octets are no question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Too short, or an answer: it gets none.
    #[error("no DNS query")]
    Nothing,
    /// A query that is answered with these octets.
    #[error("a DNS query that cannot be read, or of a kind that nobody answers")]
    Answered(Vec<u8>),
}

impl Question {
    /// Reads a query.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn read(octets: &[u8]) -> Result<Self, Unfit> {
        let header = Header::read(octets).ok_or(Unfit::Nothing)?;
        let refuse = |code| Err(Unfit::Answered(header.refusal(code)));
        if header.operation != 0 {
            return refuse(Code::NOT_IMPLEMENTED);
        }
        if header.questions != 1 || header.records > RECORDS {
            return refuse(Code::FORMAT);
        }
        let Ok(message) = Message::from_vec(octets) else {
            return refuse(Code::FORMAT);
        };
        let Some(query) = message.queries.first() else {
            return refuse(Code::FORMAT);
        };
        let edns = message.edns.as_ref().map(|edns| Edns {
            payload: edns.max_payload(),
            dnssec: edns.flags().dnssec_ok,
        });
        let question = Self {
            id: message.metadata.id,
            recursion: message.metadata.recursion_desired,
            checking_disabled: message.metadata.checking_disabled,
            query: query.clone(),
            edns,
        };
        match message.version() {
            0 => Ok(question),
            _ => Err(Unfit::Answered(question.failed(Code::VERSION))),
        }
    }

    /// A question of our own.
    pub fn new(name: &HostName, kind: RecordType) -> Self {
        Self {
            id: 0,
            recursion: true,
            checking_disabled: false,
            query: Query::query(absolute(name), kind),
            edns: Some(Edns {
                payload: LARGEST,
                dnssec: false,
            }),
        }
    }

    /// The message that asks it, without anything that tells one asker from another: its id is 0, "DNS clients […] SHOULD use a
    /// DNS ID of 0 in every DNS request" (RFC 8484 §4.1), and of EDNS only the size is left, and whether signatures are wanted.
    pub fn message(&self) -> Vec<u8> {
        self.message_with_id(0)
    }

    /// The same with an id, for a resolver that is asked by datagram.
    pub fn message_with_id(&self, id: u16) -> Vec<u8> {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.add_query(self.query.clone());
        let dnssec = self.edns.is_some_and(|edns| edns.dnssec);
        message.set_edns(reply::edns(dnssec));
        message.to_vec().unwrap_or_default()
    }

    /// The id, which the reply repeats.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Which records are wanted.
    pub fn kind(&self) -> RecordType {
        self.query.query_type
    }

    /// Whether it is about the Internet, and not about the server's version, for example.
    pub fn is_internet(&self) -> bool {
        self.query.query_class == DNSClass::IN
    }

    /// The name, if a host may have it.
    pub fn name(&self) -> Option<HostName> {
        // An escaped octet is none of a host's name.
        HostName::new(&self.text()).ok()
    }

    /// The name as the codec has it.
    pub fn owner(&self) -> &Name {
        &self.query.name
    }

    /// The name in lower case without the last dot; other octets are escaped.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.query.name.len());
        for (n, label) in self.query.name.iter().enumerate() {
            if n > 0 {
                text.push('.');
            }
            label.iter().for_each(|octet| push(&mut text, *octet));
        }
        text
    }

    /// The address and the length of the prefix that a name below `in-addr.arpa` or `ip6.arpa` is about.
    pub fn reverse(&self) -> Option<(IpAddr, u8)> {
        let net = self.query.name.parse_arpa_name().ok()?;
        Some((net.addr(), net.prefix_len()))
    }

    /// The largest reply by datagram that the asker takes and that we send, in octets.
    pub fn datagram(&self) -> usize {
        let payload = self.edns.map_or(PLAIN, |edns| edns.payload);
        usize::from(payload.clamp(PLAIN, LARGEST))
    }
}

/// An octet of a label, as RFC 1035 §5.1 writes it.
fn push(text: &mut String, octet: u8) {
    match octet {
        b'-' | b'_' => text.push(octet.into()),
        octet if octet.is_ascii_alphanumeric() => text.push(octet.to_ascii_lowercase().into()),
        octet => text.push_str(&format!("\\{octet:03}")),
    }
}

/// The name as the codec has it; it ends at the root.
fn absolute(name: &HostName) -> Name {
    let labels = name.as_str().split('.').map(str::as_bytes);
    Name::from_labels(labels).unwrap_or_default()
}

/// The fixed part of a query (RFC 1035 §4.1.1).
struct Header {
    id: [u8; 2],
    operation: u8,
    recursion: bool,
    questions: u16,
    records: u16,
}

impl Header {
    /// `None` for octets that are to get no answer.
    fn read(octets: &[u8]) -> Option<Self> {
        let [i, j, flags, _, q, r, a, b, c, d, e, f] = *octets.first_chunk::<HEADER>()?;
        let is_answer = flags & 0x80 != 0;
        let records = [[a, b], [c, d], [e, f]].map(u16::from_be_bytes);
        (!is_answer).then(|| Self {
            id: [i, j],
            operation: flags >> 3 & 0x0f,
            recursion: flags & 1 != 0,
            questions: u16::from_be_bytes([q, r]),
            records: records.into_iter().fold(0, u16::saturating_add),
        })
    }

    /// A reply that is a header alone.
    fn refusal(&self, code: Code) -> Vec<u8> {
        let [i, j] = self.id;
        let flags = 0x80 | self.operation << 3 | u8::from(self.recursion);
        let code = code.0.to_be_bytes()[1] & 0x0f;
        vec![i, j, flags, 0x80 | code, 0, 0, 0, 0, 0, 0, 0, 0]
    }
}

impl From<ResponseCode> for Code {
    fn from(code: ResponseCode) -> Self {
        Self(code.into())
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({})", self.kind())
    }
}
