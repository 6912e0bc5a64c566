//! Answers a client's DNS question by the relay's own resolver. What the policy would not connect to is not told either.
//! `serve::dns` asks it. RFC 1035, RFC 2308; RFC 8482 (who asks for everything gets nothing), RFC 6303 (local reverse zones).

use std::{net::IpAddr, time::Duration};

use hickory_resolver::proto::rr::RecordType;
use hoplite_wire::{
    dns::{Code, Question, Record, believed},
    special,
};
use tokio::time::Instant;

use super::Egress;
use crate::{
    limits::Asker,
    metrics::{self, Metrics},
    resolve::{Found, ResolveError},
};

/// How long a negative answer of ours may be kept, in seconds.
const NEGATIVE: u32 = 300;

/// A reply, and what is said about it.
pub(crate) struct Answered {
    pub(crate) reply: Vec<u8>,
    /// How long it may be kept.
    pub(crate) fresh: Duration,
    /// The word for the metrics.
    pub(crate) outcome: &'static str,
}

impl Egress {
    /// Answers `question`, which was admitted.
    pub(crate) async fn answer(
        &self,
        question: &Question,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Answered {
        if let Some(refused) = self.refused(question) {
            return refused;
        }
        let Ok(_place) = asker.look_up() else {
            return failure(question, Code::FAILURE, "connection_limit_reached");
        };
        let start = Instant::now();
        let found = self
            .resolver
            .records(question.owner(), question.kind())
            .await;
        metrics::observe(&metrics.resolve, start.elapsed());
        match found {
            Ok(found) => self.told(question, found),
            Err(ResolveError::TimedOut) => failure(question, Code::FAILURE, "dns_timeout"),
            Err(_) => failure(question, Code::FAILURE, "dns_error"),
        }
    }

    /// The answer to what is never looked up.
    fn refused(&self, question: &Question) -> Option<Answered> {
        let text = question.text();
        if !question.is_internet() || is_of_no_use(question.kind()) {
            return Some(failure(question, Code::NOT_IMPLEMENTED, "not_supported"));
        }
        if special::is_nobody(&text) || special::is_localhost(&text) {
            let reply = question.nothing(Code::NO_NAME, NEGATIVE);
            return Some(answered(reply, NEGATIVE, "name_not_found"));
        }
        let inside = question
            .reverse()
            .is_some_and(|(ip, _)| !self.policy.tells(ip));
        let refuses = inside || !self.policy.looks_up(&text);
        refuses.then(|| failure(question, Code::REFUSED, "refused"))
    }

    fn told(&self, question: &Question, found: Found) -> Answered {
        let Found {
            code,
            answers,
            authorities,
            fresh,
        } = found;
        let had = !answers.is_empty();
        let answers = believed(answers, |ip: IpAddr| self.policy.tells(ip));
        if had && !answers.iter().any(|r| r.record_type() == question.kind()) && hides(question) {
            return failure(question, Code::REFUSED, "refused");
        }
        let fresh = answers
            .iter()
            .map(|r: &Record| r.ttl)
            .min()
            .unwrap_or(fresh);
        let outcome = match code {
            Code::NO_NAME => "name_not_found",
            _ => "ok",
        };
        answered(question.records(code, answers, authorities), fresh, outcome)
    }
}

/// Whether an answer without the wanted records means that the policy dropped them.
fn hides(question: &Question) -> bool {
    matches!(question.kind(), RecordType::A | RecordType::AAAA)
}

/// Whole zones, everything at once, and what is no record of a name.
fn is_of_no_use(kind: RecordType) -> bool {
    use RecordType::{ANY, AXFR, IXFR, OPT, TSIG, ZERO};
    matches!(kind, ANY | AXFR | IXFR | OPT | TSIG | ZERO)
}

fn failure(question: &Question, code: Code, outcome: &'static str) -> Answered {
    answered(question.failed(code), 0, outcome)
}

fn answered(reply: Vec<u8>, fresh: u32, outcome: &'static str) -> Answered {
    let fresh = Duration::from_secs(fresh.into());
    Answered {
        reply,
        fresh,
        outcome,
    }
}
