//! What every overlay with a resolver at its far end must do; one without says that it is unsupported.
//! Part of [`super`]. The only name asked for is one of RFC 6761 §6.4, which needs no network to be answered.

use hoplite_wire::{
    HostName,
    dns::{Code, Question, RecordType},
};

use super::{Subject, soon};
use crate::{Error, ErrorKind, Reason, Terms};

impl Subject {
    /// `None` if the overlay has no resolver.
    async fn ask(&self, message: &[u8]) -> Option<Result<Vec<u8>, Error>> {
        let terms = Terms::default();
        let answer = soon("asking", self.overlay.query(message, &terms)).await;
        let unsupported = |error: &Error| error.kind() == ErrorKind::Unsupported;
        (!answer.as_ref().is_err_and(unsupported)).then_some(answer)
    }
}

fn nobody() -> Question {
    let name = HostName::new("Nobody.invalid").expect("valid");
    Question::new(&name, RecordType::A)
}

/// A program that asks is told by id and question which of its queries an answer is for.
pub async fn a_resolver_repeats_id_and_question(subject: &Subject) {
    let question = nobody();
    let Some(answer) = subject.ask(&question.message_with_id(0x1234)).await else {
        return;
    };
    let answer = answer.expect("an answer");
    assert_eq!(answer.get(..2), Some(&[0x12, 0x34][..]), "another id");
    question.heard(&answer).expect("an answer to the question");
}

/// That nobody has the name is an answer to a query, and a failure of a look-up.
pub async fn a_resolver_says_that_a_name_does_not_exist(subject: &Subject) {
    let question = nobody();
    let Some(answer) = subject.ask(&question.message()).await else {
        return;
    };
    let heard = question.heard(&answer.expect("an answer"));
    assert_eq!(heard, Ok((Code::NO_NAME, Vec::new())));
    let terms = Terms::default();
    let looked_up = subject.overlay.resolve("nobody.invalid", &terms);
    let error = soon("resolving", looked_up).await.expect_err("nobody");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
}

/// What is no query gets an error, in either form, and the next one its answer.
pub async fn a_resolver_is_not_upset_by_rubbish(subject: &Subject) {
    for rubbish in [&b""[..], b"x", &[0xff; 40], &[0; 12], &[7; 5000]] {
        let Some(answer) = subject.ask(rubbish).await else {
            return;
        };
        let code = answer.ok().and_then(|answer| Some(answer.get(3)? & 0x0f));
        assert_ne!(code, Some(0), "rubbish was answered");
    }
    let question = nobody();
    let answer = subject.ask(&question.message()).await.expect("supported");
    question.heard(&answer.expect("an answer")).expect("well");
}
