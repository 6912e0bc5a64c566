//! Whether traffic flows: a question to the last relay and its answer, before anybody says "up".
//!
//! The target is a name that cannot exist (RFC 6761 §6.4): the last relay says so itself and asks nobody. That answer has gone the whole way,
//! with the token that the relay wants to see.

use std::time::Duration;

use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_wire::Target;
use tokio::time::{Instant, sleep, timeout_at};

use crate::errors::Failure;

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Tries until it works, or can never work, or `patience` is over; then the last failure is the answer.
pub(super) async fn flows(overlay: &dyn Overlay, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    let mut last = Error::new(ErrorKind::TimedOut, "waiting for the first answer");
    loop {
        match timeout_at(deadline, once(overlay)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if is_final(&error) => return Err(error),
            Ok(Err(error)) => last = error,
            Err(_) => return Err(last),
        }
        if Instant::now() + PAUSE >= deadline {
            return Err(last);
        }
        sleep(PAUSE).await;
    }
}

async fn once(overlay: &dyn Overlay) -> Result<(), Error> {
    let nowhere: Result<Target, _> = "probe.invalid:443".parse();
    let nowhere =
        nowhere.map_err(|error| Error::new(ErrorKind::Bug, "probing").caused_by(error))?;
    let terms = Terms::default().within(ATTEMPT);
    match overlay.open_stream(&nowhere, &terms).await {
        Ok(_) => Ok(()),
        Err(error) if has_answered(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the last relay has spoken, and would serve us.
fn has_answered(error: &Error) -> bool {
    match (error.kind(), error.reason()) {
        (ErrorKind::TargetFailed, _) => true,
        (ErrorKind::Forbidden, reason) => reason == Some(Reason::Policy),
        _ => false,
    }
}

/// Whether trying again cannot help.
fn is_final(error: &Error) -> bool {
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity | Reason::Authentication)) => true,
        (kind, _) => matches!(kind, ErrorKind::Unsupported | ErrorKind::Bug),
    }
}

/// Why nothing flows, with what to do; `missing` is the first relay without a connection, and its place.
pub(super) fn failure(error: &Error, missing: Option<(usize, String)>) -> Failure {
    let doing = "bringing the device up";
    if let (ErrorKind::TimedOut, Some((place, name))) = (error.kind(), missing) {
        let first = if place == 0 { "first " } else { "" };
        let why = format!("the {first}relay, {name:?}, does not answer");
        let remedy = "check your network and the relay's address, or choose another path";
        return Failure::new(doing, why, remedy);
    }
    let remedy = match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity)) => {
            "correct the pin or the onion key, or ask the operator whether it is new"
        }
        (_, Some(Reason::Authentication)) => "correct the token",
        (ErrorKind::EntryUnreachable, _) => {
            "check your network and the first relay's address, or choose another first relay"
        }
        (ErrorKind::PathFailed, _) => "choose another path, or ask the operators",
        _ => "try again, or choose another path",
    };
    Failure::new(doing, error, remedy)
}

#[cfg(test)]
mod tests {
    use std::{
        net::IpAddr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use hoplite_overlay::{Datagrams, Opening, Stream};

    use super::*;

    /// Fails with each of these in turn, and then with the last of them for ever.
    #[derive(Debug)]
    struct Failing(Vec<Error>, AtomicUsize);

    impl Overlay for Failing {
        fn open_stream<'a>(&'a self, _: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
            let turn = self.1.fetch_add(1, Ordering::Relaxed);
            let error = self.0[turn.min(self.0.len() - 1)].clone();
            Box::pin(async { Err(error) })
        }

        fn open_datagrams<'a>(
            &'a self,
            _: &'a Target,
            _: &'a Terms,
        ) -> Opening<'a, Box<dyn Datagrams>> {
            unimplemented!("not probed")
        }

        fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
            unimplemented!("not probed")
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "probing")
    }

    async fn probed(errors: Vec<Error>) -> (Result<(), Error>, usize) {
        let overlay = Failing(errors, AtomicUsize::new(0));
        let result = flows(&overlay, Duration::from_secs(5)).await;
        (result, overlay.1.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_is_silent_at_first_is_tried_again_until_the_last_relay_answers() {
        let answer = error(ErrorKind::TargetFailed).because(Reason::NameNotFound);
        let errors = vec![
            error(ErrorKind::EntryUnreachable),
            error(ErrorKind::PathFailed),
            answer,
        ];
        let (result, attempts) = probed(errors).await;
        assert!(result.is_ok() && attempts == 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_token_is_told_at_once_and_a_dead_path_when_patience_is_over() {
        let refused = error(ErrorKind::Forbidden).because(Reason::Authentication);
        let (result, attempts) = probed(vec![refused]).await;
        let reason = result.expect_err("refused").reason();
        assert_eq!((reason, attempts), (Some(Reason::Authentication), 1));
        let (result, attempts) = probed(vec![error(ErrorKind::EntryUnreachable)]).await;
        let kind = result.expect_err("dead").kind();
        assert!(kind == ErrorKind::EntryUnreachable && attempts > 5);
    }
}
