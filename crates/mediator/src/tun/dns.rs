//! Answers programs' DNS queries: names at once with temporary addresses, so that they travel unresolved to the last relay;
//! special names here; everything else by asking through the overlay. A machine without I/O; its driver is `server`.
//! Paper 003 §6 (optimistic DNS), RFC 1035, RFC 2308, RFC 6761 and its relatives (see `special`).
//!
//! # What is answered how
//! | question | optimistic | pessimistic |
//! |---|---|---|
//! | A, AAAA of a name | a temporary address, at once | what the far end answers |
//! | … while no temporary address is left | what the far end answers | what the far end answers |
//! | … of a name that a flow did not find within 30 s | does not exist | what the far end answers |
//! | … of a name below a search domain | a temporary address if the far end has one, else its answer | what the far end answers |
//! | … of a single label | does not exist | does not exist |
//! | AAAA where the device has no IPv6 | nothing | nothing |
//! | HTTPS, SVCB | nothing, at once | what the far end answers |
//! | PTR of a temporary address | the name | the name |
//! | other types | what the far end answers | what the far end answers |
//! | names in `elsewhere` | as below a search domain, HTTPS nothing | the same |
//!
//! **Search domains.** A resolver library completes names with them and takes the first candidate that exists; if all were
//! answered at once, the first would always win. So candidates are asked for, which costs a round trip, and single labels
//! exist in no case: what they mean on this network must not be told to a relay.
//!
//! **HTTPS and SVCB** are answered with nothing. What could be written without asking has neither ALPN nor ECH, hence tells no
//! more than A and AAAA do; and "clients SHOULD upgrade" to https where such a record exists (RFC 9460 §9.5), which a made-up one
//! would make them do with sites that have no https.
//!
//! **Pessimistic mode** hands out real addresses, and then the address travels, not the name: an address may belong to
//! many names, and which one a program means is not ours to guess. Addresses of this device's own networks are dropped, unless
//! `private` is set: nobody far away knows them, and a program that believed them would be led to a neighbour.

mod config;
mod server;
mod special;
mod stream;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, sync::Arc};

use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{
    HostName,
    dns::{Code, MAX_MESSAGE, Question, RecordType, Unfit},
    special::leads_nowhere,
};
use tokio::time::Instant;

pub use self::config::{Config, Mode};
pub(crate) use self::server::{Server, answer};
use super::{Counters, names::Names};
use crate::users::User;

/// How long a negative answer of ours may be kept, in seconds.
const NEGATIVE: u32 = 30;

/// Which families the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl Families {
    /// Those of the device's addresses; both if they are not known.
    pub(crate) fn of(own: &[IpAddr]) -> Self {
        let has = |is: fn(&IpAddr) -> bool| own.is_empty() || own.iter().any(is);
        Self {
            v4: has(IpAddr::is_ipv4),
            v6: has(IpAddr::is_ipv6),
        }
    }
}

/// How a query came and its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// As a datagram, which has a size.
    Udp,
    /// On a stream.
    Tcp,
}

/// What becomes of a query.
#[derive(Debug)]
pub(crate) enum Answer {
    /// This is the reply.
    Now(Vec<u8>),
    /// Somebody has to be asked; [`Dns::answered`] makes the reply of what is said.
    Ask(Asking),
    /// Nothing: it was no query.
    Drop,
}

/// A question that waits for the far end.
#[derive(Debug)]
pub(crate) struct Asking {
    question: Question,
    carrier: Carrier,
    user: User,
    then: Then,
}

/// What is made of the far end's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The program gets it.
    Pass,
    /// If the name has addresses, a temporary one stands for them; while none is left the program gets the answer.
    Stand,
    /// The same, but while none is left the query fails: a flow to a real address would go another way.
    StandAlone,
}

enum Verdict {
    Reply(Vec<u8>),
    Ask(Then),
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Dns {
    config: Config,
    families: Families,
    names: Arc<Names>,
    counters: Arc<Counters>,
}

impl Dns {
    pub(crate) fn new(
        config: Config,
        families: Families,
        names: Arc<Names>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            config,
            families,
            names,
            counters,
        }
    }

    /// What becomes of a query.
    pub(crate) fn answer(
        &self,
        query: &[u8],
        carrier: Carrier,
        user: User,
        now: Instant,
    ) -> Answer {
        self.counters.dns_queries.add(1);
        let question = match Question::read(query) {
            Ok(question) => question,
            Err(unfit) => {
                self.counters.dns_malformed.add(1);
                return match unfit {
                    Unfit::Answered(reply) => Answer::Now(reply),
                    Unfit::Nothing => Answer::Drop,
                };
            }
        };
        match self.judge(&question, user, now) {
            Verdict::Reply(reply) => Answer::Now(fitted(&question, carrier, reply)),
            Verdict::Ask(then) => Answer::Ask(Asking {
                question,
                carrier,
                user,
                then,
            }),
        }
    }

    /// The reply to a question for which somebody was asked.
    pub(crate) fn answered(
        &self,
        asking: &Asking,
        said: Result<Vec<u8>, Error>,
        now: Instant,
    ) -> Vec<u8> {
        let question = &asking.question;
        let reply = match said {
            Ok(said) => match asking.then {
                Then::Pass => self.adopt(question, &said),
                _ => self.stand(asking, &said, now),
            },
            Err(error) => Some(question.failed(code(&error))),
        };
        let reply = reply.unwrap_or_else(|| question.failed(Code::FAILURE));
        if reply.get(3).is_some_and(|flags| flags & 0x0f == 2) {
            self.counters.dns_failed.add(1);
        }
        fitted(question, asking.carrier, reply)
    }

    fn judge(&self, question: &Question, user: User, now: Instant) -> Verdict {
        if !question.is_internet() {
            return Verdict::Reply(question.failed(Code::REFUSED));
        }
        let text = question.text();
        if is_below(&text, &self.config.elsewhere) {
            return self.elsewhere(question);
        }
        if let Some(reply) = self
            .reverse(question, now)
            .or_else(|| special::answer(question, &text))
        {
            return Verdict::Reply(reply);
        }
        match (self.config.mode, question.kind()) {
            (_, RecordType::AAAA) if !self.families.v6 => empty(question),
            (_, RecordType::A) if !self.families.v4 => empty(question),
            (Mode::Pessimistic, _) => Verdict::Ask(Then::Pass),
            (Mode::Optimistic, RecordType::A | RecordType::AAAA) => {
                self.optimistic(question, &text, user, now)
            }
            (Mode::Optimistic, RecordType::HTTPS | RecordType::SVCB) => empty(question),
            (Mode::Optimistic, _) => Verdict::Ask(Then::Pass),
        }
    }

    fn optimistic(&self, question: &Question, text: &str, user: User, now: Instant) -> Verdict {
        match question.name() {
            // Nobody can open a flow to such a name.
            None => Verdict::Ask(Then::Pass),
            Some(_) if is_below(text, &self.config.search) => Verdict::Ask(Then::Stand),
            Some(name) if self.names.is_missing(&name, now) => {
                Verdict::Reply(question.nothing(Code::NO_NAME, NEGATIVE))
            }
            Some(name) => match self.temporary(question, &name, user, now) {
                Some(reply) => Verdict::Reply(reply),
                None => Verdict::Ask(Then::Pass),
            },
        }
    }

    /// Names that go another way must be known by the time a flow is opened: real addresses are not handed out.
    fn elsewhere(&self, question: &Question) -> Verdict {
        match question.kind() {
            RecordType::AAAA if !self.families.v6 => empty(question),
            RecordType::A if !self.families.v4 => empty(question),
            RecordType::A | RecordType::AAAA => Verdict::Ask(Then::StandAlone),
            RecordType::HTTPS | RecordType::SVCB => empty(question),
            _ => Verdict::Ask(Then::Pass),
        }
    }

    /// The name of a temporary address; `None` if the question is about something else.
    fn reverse(&self, question: &Question, now: Instant) -> Option<Vec<u8>> {
        let (ip, prefix) = question.reverse()?;
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        if prefix != whole || !self.names.is_temporary(ip) {
            return None;
        }
        let name = self.names.name(ip, now);
        Some(match (question.kind(), name) {
            (RecordType::PTR, Some(name)) => question.pointer(&name, self.ttl()),
            (_, Some(_)) => question.nothing(Code::NO_ERROR, NEGATIVE),
            (_, None) => question.nothing(Code::NO_NAME, 0),
        })
    }

    /// The reply with the temporary addresses of a name; `None`, and counted, while none is left.
    fn temporary(
        &self,
        question: &Question,
        name: &HostName,
        user: User,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let pair = self.names.pair(name, user, now);
        if pair.is_none() {
            self.counters.dns_exhausted.add(1);
        }
        Some(question.addresses(pair?.both(), self.ttl()))
    }

    fn stand(&self, asking: &Asking, said: &[u8], now: Instant) -> Option<Vec<u8>> {
        let (question, then) = (&asking.question, asking.then);
        let (code, found) = question.heard(said).ok()?;
        let wanted = |ip: &IpAddr| ip.is_ipv4() == (question.kind() == RecordType::A);
        match code {
            Code::NO_ERROR if found.iter().any(wanted) => {
                match self.temporary(question, &question.name()?, asking.user, now) {
                    None if then == Then::Stand => self.adopt(question, said),
                    reply => reply,
                }
            }
            Code::NO_ERROR | Code::NO_NAME => Some(question.nothing(code, NEGATIVE)),
            code => Some(question.failed(code)),
        }
    }

    /// The far end's answer, as far as it is believed.
    fn adopt(&self, question: &Question, said: &[u8]) -> Option<Vec<u8>> {
        question.adopt(said, |ip| self.is_believed(ip)).ok()
    }

    fn is_believed(&self, ip: IpAddr) -> bool {
        let nowhere = leads_nowhere(ip) && !self.config.private;
        !nowhere && !self.names.is_temporary(ip)
    }

    fn ttl(&self) -> u32 {
        u32::try_from(self.config.ttl.as_secs()).unwrap_or(60)
    }
}

impl Asking {
    /// The message to be asked.
    pub(crate) fn message(&self) -> Vec<u8> {
        self.question.message()
    }

    /// The reply when nobody can be asked now.
    pub(crate) fn given_up(&self) -> Vec<u8> {
        self.question.failed(Code::FAILURE)
    }
}

fn empty(question: &Question) -> Verdict {
    Verdict::Reply(question.nothing(Code::NO_ERROR, NEGATIVE))
}

fn fitted(question: &Question, carrier: Carrier, reply: Vec<u8>) -> Vec<u8> {
    let room = match carrier {
        Carrier::Udp => question.datagram(),
        Carrier::Tcp => MAX_MESSAGE,
    };
    question.fitted(reply, room)
}

/// Whether a name is below one of `domains`, or one of them.
fn is_below(text: &str, domains: &[HostName]) -> bool {
    domains.iter().any(|domain| {
        let rest = text.strip_suffix(domain.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// What a program is told of an overlay's failure.
fn code(error: &Error) -> Code {
    match error.kind() {
        ErrorKind::Forbidden => Code::REFUSED,
        _ => Code::FAILURE,
    }
}
