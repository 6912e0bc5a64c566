//! What somebody else answered: whether it answers the question, which addresses it has, and how it is passed on.
//! A resolver is believed about names, and not about addresses that lead back to the asker's own network ("DNS rebinding").

use std::net::IpAddr;

use hickory_proto::{
    op::{Message, MessageType},
    rr::{RData, Record, RecordType, rdata::svcb::SvcParamValue},
};

use super::{Code, Question};

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
        let ours = reply.queries.first() == Some(&self.query);
        match ours && reply.metadata.message_type == MessageType::Response {
            true => Ok(reply),
            false => Err(Unbelieved::Other),
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
