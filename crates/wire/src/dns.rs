//! DNS messages: a question read out of a query, replies written, addresses read out of a reply.
//! RFC 1035 §4, RFC 6891 (EDNS), RFC 2308 (negative answers). The codec is hickory-proto's; here is its only door.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{fmt, net::IpAddr};

pub use hickory_proto::rr::{Record, RecordType};
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData,
        rdata::{PTR, SOA, svcb::SvcParamValue},
    },
};

use crate::HostName;

/// The largest message: two bytes of length stand before it on a stream (RFC 1035 §4.2.2).
pub const MAX_MESSAGE: usize = 65_535;

/// The media type of a message (RFC 8484 §6).
pub const MEDIA_TYPE: &str = "application/dns-message";

/// Where a relay is asked: the path that most resolvers have.
pub const PATH: &str = "/dns-query";

/// What a datagram holds without EDNS (RFC 1035 §4.2.1), and the least with it.
const MAX_PAYLOAD_WITHOUT_EDNS: u16 = 512;

/// What we send and take in a datagram: more would be fragmented somewhere.
const MAX_PAYLOAD: u16 = 1232;

/// A header alone.
const HEADER: usize = 12;

/// More records than any honest query has.
const MAX_RECORDS: u16 = 16;

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
    edns: Option<Asked>,
}

/// What the asker says of itself (RFC 6891).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    /// What fits into a datagram for it.
    payload: u16,
    dnssec: bool,
}

/// Why bytes are no question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Too short, or an answer: it gets none.
    #[error("no DNS query")]
    Nothing,
    /// A query that is answered with these bytes.
    #[error("a DNS query that cannot be read, or of a kind that nobody answers")]
    Answered(Vec<u8>),
}

impl Question {
    /// Reads a query.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn read(bytes: &[u8]) -> Result<Self, Unfit> {
        let header = Header::read(bytes).ok_or(Unfit::Nothing)?;
        let refuse = |code| Err(Unfit::Answered(header.refusal(code)));
        if header.operation != 0 {
            return refuse(Code::NOT_IMPLEMENTED);
        }
        if header.questions != 1 || header.records > MAX_RECORDS {
            return refuse(Code::FORMAT);
        }
        let Ok(message) = Message::from_vec(bytes) else {
            return refuse(Code::FORMAT);
        };
        let Some(query) = message.queries.first() else {
            return refuse(Code::FORMAT);
        };
        let edns = message.edns.as_ref().map(|edns| Asked {
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
            edns: Some(Asked {
                payload: MAX_PAYLOAD,
                dnssec: false,
            }),
        }
    }

    /// The message that asks it, without anything that tells one asker from another: its id is 0, "DNS clients […] SHOULD use a
    /// DNS ID of 0 in every DNS request" (RFC 8484 §4.1), and of EDNS only the size is left, and whether signatures are wanted.
    pub fn message(&self) -> Vec<u8> {
        self.message_with_id(0)
    }

    /// The message that asks it with an id, for a resolver that is asked by datagram.
    pub fn message_with_id(&self, id: u16) -> Vec<u8> {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.add_query(self.query.clone());
        let dnssec = self.edns.is_some_and(|edns| edns.dnssec);
        message.set_edns(edns(dnssec));
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
        // An escaped byte is none of a host's name.
        HostName::new(&self.text()).ok()
    }

    /// The name as the codec has it.
    pub fn owner(&self) -> &Name {
        &self.query.name
    }

    /// The name in lower case without the last dot; other bytes are escaped.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.query.name.len());
        for (n, label) in self.query.name.iter().enumerate() {
            if n > 0 {
                text.push('.');
            }
            label.iter().for_each(|byte| push(&mut text, *byte));
        }
        text
    }

    /// The address and the length of the prefix that a name below `in-addr.arpa` or `ip6.arpa` is about.
    pub fn reverse(&self) -> Option<(IpAddr, u8)> {
        let net = self.query.name.parse_arpa_name().ok()?;
        Some((net.addr(), net.prefix_len()))
    }

    /// The largest reply by datagram that the asker takes and that we send, in bytes.
    pub fn datagram(&self) -> usize {
        let payload = self
            .edns
            .map_or(MAX_PAYLOAD_WITHOUT_EDNS, |edns| edns.payload);
        usize::from(payload.clamp(MAX_PAYLOAD_WITHOUT_EDNS, MAX_PAYLOAD))
    }
}

/// A byte of a label, as RFC 1035 §5.1 writes it.
fn push(text: &mut String, byte: u8) {
    match byte {
        b'-' | b'_' => text.push(byte.into()),
        byte if byte.is_ascii_alphanumeric() => text.push(byte.to_ascii_lowercase().into()),
        byte => text.push_str(&format!("\\{byte:03}")),
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
    /// `None` for bytes that are to get no answer.
    fn read(bytes: &[u8]) -> Option<Self> {
        let [i, j, flags, _, q, r, a, b, c, d, e, f] = *bytes.first_chunk::<HEADER>()?;
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

// Replies to a question, written here or taken over from somebody who was asked.
// RFC 1035 §4.1, RFC 2308 §3 (why a negative answer has a SOA), RFC 6891 §6.1 and §7.

/// What we say of ourselves.
fn edns(dnssec: bool) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_PAYLOAD).set_dnssec_ok(dnssec);
    edns
}

impl Question {
    /// The addresses of the wanted family, each for `ttl` seconds.
    pub fn addresses(&self, addresses: impl IntoIterator<Item = IpAddr>, ttl: u32) -> Vec<u8> {
        let data = addresses.into_iter().map(|ip| match ip {
            IpAddr::V4(ip) => RData::A(ip.into()),
            IpAddr::V6(ip) => RData::AAAA(ip.into()),
        });
        let record = |data: RData| Record::from_rdata(self.query.name.clone(), ttl, data);
        let wanted = data.filter(|data| data.record_type() == self.kind());
        self.records(Code::NO_ERROR, wanted.map(record).collect(), Vec::new())
    }

    /// The name that an address stands for, for `ttl` seconds.
    pub fn pointer(&self, name: &HostName, ttl: u32) -> Vec<u8> {
        let data = RData::PTR(PTR(absolute(name)));
        let record = Record::from_rdata(self.query.name.clone(), ttl, data);
        self.records(Code::NO_ERROR, vec![record], Vec::new())
    }

    /// Nothing: the name does not exist, or it has no such record. "Negative responses without SOA records SHOULD NOT be
    /// cached" (RFC 2308 §5): this one may be, for `ttl` seconds.
    pub fn nothing(&self, code: Code, ttl: u32) -> Vec<u8> {
        let name = || self.query.name.clone();
        let soa = SOA::new(name(), name(), 1, 3600, 600, 86_400, ttl);
        let soa = Record::from_rdata(name(), ttl, RData::SOA(soa));
        self.records(code, Vec::new(), vec![soa])
    }

    /// A failure, which nobody keeps.
    pub fn failed(&self, code: Code) -> Vec<u8> {
        self.records(code, Vec::new(), Vec::new())
    }

    /// A reply with these records.
    pub fn records(&self, code: Code, answers: Vec<Record>, authorities: Vec<Record>) -> Vec<u8> {
        let mut reply = self.reply(code);
        reply.answers = answers;
        reply.authorities = authorities;
        self.write(&reply)
    }

    /// `reply` as it may go into `room` bytes: whole, or cut down to the question with a mark that says so (RFC 2181 §9).
    pub fn fitted(&self, reply: Vec<u8>, room: usize) -> Vec<u8> {
        if reply.len() <= room {
            return reply;
        }
        let code = reply.get(3).map_or(0, |byte| byte & 0x0f);
        let mut cut = self.reply(Code(code.into()));
        cut.metadata.truncation = true;
        self.write(&cut)
    }

    /// A reply without records.
    fn reply(&self, code: Code) -> Message {
        let mut reply = Message::new(self.id, MessageType::Response, OpCode::Query);
        let head = &mut reply.metadata;
        head.recursion_desired = self.recursion;
        head.recursion_available = true;
        head.checking_disabled = self.checking_disabled;
        head.response_code = ResponseCode::from((code.0 >> 4).to_be_bytes()[1], low(code));
        reply.add_query(self.query.clone());
        // "If an OPT record is present in a received request, compliant responders MUST include an OPT record".
        if let Some(asked) = self.edns {
            reply.set_edns(edns(asked.dnssec));
        }
        reply
    }

    /// Records that do not fit into any message are a failure.
    fn write(&self, reply: &Message) -> Vec<u8> {
        match reply.to_vec() {
            Ok(bytes) if bytes.len() <= MAX_MESSAGE => bytes,
            _ => self.reply(Code::FAILURE).to_vec().unwrap_or_default(),
        }
    }
}

fn low(code: Code) -> u8 {
    code.0.to_be_bytes()[1] & 0x0f
}

// What somebody else answered: whether it answers the question, which addresses it has, and how it is passed on.
// A resolver is believed about names, and not about addresses that lead back to the asker's own network ("DNS rebinding").

/// Why a reply is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbelieved {
    /// It cannot be read.
    #[error("the reply is malformed")]
    Malformed,
    /// It answers something else.
    #[error("the reply is to another question")]
    Other,
}

impl Question {
    /// The addresses in a reply, of both families, behind whatever aliases.
    ///
    /// # Errors
    /// See [`Unbelieved`].
    pub fn heard(&self, reply: &[u8]) -> Result<(Code, Vec<IpAddr>), Unbelieved> {
        let reply = self.check(reply)?;
        let addresses = reply.answers.iter().filter_map(|r| r.data.ip_addr());
        Ok((reply.metadata.response_code.into(), addresses.collect()))
    }

    /// The reply as if it were ours: with the asker's id, spelling and form of EDNS, and without addresses that `fine` does not
    /// hold for. Where that leaves nothing of the answer, it is refused.
    ///
    /// # Errors
    /// See [`Unbelieved`].
    pub fn adopt(
        &self,
        reply: &[u8],
        fine: impl Fn(IpAddr) -> bool,
    ) -> Result<Vec<u8>, Unbelieved> {
        let heard = self.check(reply)?;
        let mut reply = self.reply(heard.metadata.response_code.into());
        reply.metadata.authentic_data = heard.metadata.authentic_data;
        reply.metadata.truncation = heard.metadata.truncation;
        let had = has_addresses(&heard.answers);
        reply.answers = believed(heard.answers, &fine);
        reply.authorities = believed(heard.authorities, &fine);
        reply.additionals = believed(heard.additionals, &fine);
        if had && !has_addresses(&reply.answers) {
            return Ok(self.failed(Code::REFUSED));
        }
        Ok(self.write(&reply))
    }

    /// "a client […] should check that the question section matches" (RFC 5452 §4.2).
    fn check(&self, reply: &[u8]) -> Result<Message, Unbelieved> {
        // One question, so that nobody makes room for thousands that are not there.
        if reply.get(4..6) != Some(&[0, 1]) {
            return Err(Unbelieved::Malformed);
        }
        let reply = Message::from_vec(reply).map_err(|_| Unbelieved::Malformed)?;
        // An update's records may be empty where those of a reply to a query may not (RFC 2136 §2.4).
        let ours =
            reply.queries.first() == Some(&self.query) && reply.metadata.op_code == OpCode::Query;
        if ours && reply.metadata.message_type == MessageType::Response {
            Ok(reply)
        } else {
            Err(Unbelieved::Other)
        }
    }
}

/// Drops records with addresses that are not fine. `relay` does the same with what its resolver says.
pub fn believed(records: Vec<Record>, fine: impl Fn(IpAddr) -> bool) -> Vec<Record> {
    let keeps = |record: &Record| addresses(record).into_iter().all(&fine);
    records.into_iter().filter(keeps).collect()
}

fn has_addresses(records: &[Record]) -> bool {
    let is_one = |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    records.iter().any(is_one)
}

/// The addresses that a record names: its own, or the hints of RFC 9460 §7.3.
fn addresses(record: &Record) -> Vec<IpAddr> {
    let binding = match &record.data {
        RData::SVCB(binding) => binding,
        RData::HTTPS(https) => &https.0,
        data => return data.ip_addr().into_iter().collect(),
    };
    let hints = |value: &SvcParamValue| -> Vec<IpAddr> {
        match value {
            SvcParamValue::Ipv4Hint(hint) => hint.0.iter().map(|ip| ip.0.into()).collect(),
            SvcParamValue::Ipv6Hint(hint) => hint.0.iter().map(|ip| ip.0.into()).collect(),
            _ => Vec::new(),
        }
    };
    let values = binding.svc_params.iter();
    values.flat_map(|(_, value)| hints(value)).collect()
}

#[cfg(test)]
mod tests;
