//! Replies to a question, written here or taken over from somebody who was asked.
//! RFC 1035 §4.1, RFC 2308 §3 (why a negative answer has a SOA), RFC 6891 §6.1 and §7.

use std::net::IpAddr;

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::{
        RData, Record,
        rdata::{PTR, SOA},
    },
};

use super::{Code, LARGEST, MAX_MESSAGE, Question, absolute};
use crate::HostName;

/// What we say of ourselves.
pub(super) fn edns(dnssec: bool) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(LARGEST).set_dnssec_ok(dnssec);
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

    /// `reply` as it may go into `room` octets: whole, or cut down to the question with a mark that says so (RFC 2181 §9).
    pub fn fitted(&self, reply: Vec<u8>, room: usize) -> Vec<u8> {
        if reply.len() <= room {
            return reply;
        }
        let code = reply.get(3).map_or(0, |octet| octet & 0x0f);
        let mut cut = self.reply(Code(code.into()));
        cut.metadata.truncation = true;
        self.write(&cut)
    }

    /// A reply without records.
    pub(super) fn reply(&self, code: Code) -> Message {
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
    pub(super) fn write(&self, reply: &Message) -> Vec<u8> {
        match reply.to_vec() {
            Ok(octets) if octets.len() <= MAX_MESSAGE => octets,
            _ => self.reply(Code::FAILURE).to_vec().unwrap_or_default(),
        }
    }
}

fn low(code: Code) -> u8 {
    code.0.to_be_bytes()[1] & 0x0f
}
