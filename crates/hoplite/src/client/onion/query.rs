//! Questions to a resolver, where circuits carry them: addresses of names, which the exit resolves (RELAY_RESOLVE). Tor has nothing for others.
//! [`super::telling`] asks it for the device's resolver. RFC 1035 §4.1.1 has the codes.

use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_wire::dns::{Code, Question, RecordType, Unfit};

/// For how many seconds an answer may be kept: exits say nothing of it.
const LASTS: u32 = 60;

/// The answer to `message`.
pub(super) async fn answer(
    below: &dyn Overlay,
    message: &[u8],
    terms: &Terms,
) -> Result<Vec<u8>, Error> {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(Unfit::Answered(reply)) => return Ok(reply),
        Err(Unfit::Nothing) => {
            return Err(Error::new(ErrorKind::Bug, "asking what is no question"));
        }
    };
    let has_addresses = matches!(question.kind(), RecordType::A | RecordType::AAAA);
    let Some(name) = question.name().filter(|_| has_addresses) else {
        return Ok(question.failed(Code::NOT_IMPLEMENTED));
    };
    match below.resolve(name.as_str(), terms).await {
        Ok(found) => Ok(question.addresses(found, LASTS)),
        Err(error) if error.reason() == Some(Reason::NameNotFound) => {
            Ok(question.nothing(Code::NO_NAME, LASTS))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hoplite_overlay::{Datagrams, Opening, Stream};
    use hoplite_wire::{HostName, Target};

    use super::*;

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

    /// An exit that knows one name.
    #[derive(Debug)]
    struct Exit;

    impl Overlay for Exit {
        fn open_stream<'a>(&'a self, _: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
            unimplemented!("not asked")
        }

        fn open_datagrams<'a>(
            &'a self,
            _: &'a Target,
            _: &'a Terms,
        ) -> Opening<'a, Box<dyn Datagrams>> {
            unimplemented!("not asked")
        }

        fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
            let unknown = Error::new(ErrorKind::TargetFailed, "testing");
            Box::pin(async move {
                match name {
                    "target.example" => Ok(vec![FAR]),
                    _ => Err(unknown.because(Reason::NameNotFound)),
                }
            })
        }
    }

    async fn asked(name: &str, kind: RecordType) -> (Code, Vec<IpAddr>) {
        let question = Question::new(&HostName::new(name).expect("a name"), kind);
        let reply = answer(&Exit, &question.message(), &Terms::default()).await;
        question.heard(&reply.expect("answered")).expect("believed")
    }

    #[tokio::test]
    async fn addresses_come_from_the_exit_and_other_records_from_nobody() {
        let found = asked("target.example", RecordType::A).await;
        assert_eq!(found, (Code::NO_ERROR, vec![FAR]));
        let found = asked("target.example", RecordType::AAAA).await;
        assert_eq!(found, (Code::NO_ERROR, Vec::new()));
        let found = asked("nowhere.example", RecordType::A).await;
        assert_eq!(found, (Code::NO_NAME, Vec::new()));
        let found = asked("target.example", RecordType::MX).await;
        assert_eq!(found, (Code::NOT_IMPLEMENTED, Vec::new()));
    }
}
