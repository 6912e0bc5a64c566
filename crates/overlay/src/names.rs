//! A look-up made of two queries, for overlays that can ask a resolver.
//! RFC 8305 §3: both families are asked at once.

use std::net::IpAddr;

use futures_util::future::join;
use hoplite_wire::{
    HostName,
    dns::{Code, Question, RecordType},
};

use crate::{Error, ErrorKind, Overlay, Reason, Terms};

/// The addresses of `name` by [`Overlay::query`], IPv6 first.
///
/// # Errors
/// The overlay's; [`Reason::NameNotFound`] if there are none, [`Reason::ResolverFailed`] or [`Reason::Policy`] if the resolver
/// says so.
pub async fn look_up(
    overlay: &dyn Overlay,
    name: &HostName,
    terms: &Terms,
) -> Result<Vec<IpAddr>, Error> {
    let v6 = family(overlay, name, RecordType::AAAA, terms);
    let v4 = family(overlay, name, RecordType::A, terms);
    let (mut found, more) = match join(v6, v4).await {
        (Ok(v6), Ok(v4)) => (v6, v4),
        (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => (found, Vec::new()),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    found.extend(more);
    if found.is_empty() {
        Err(failed(Reason::NameNotFound))
    } else {
        Ok(found)
    }
}

async fn family(
    overlay: &dyn Overlay,
    name: &HostName,
    kind: RecordType,
    terms: &Terms,
) -> Result<Vec<IpAddr>, Error> {
    let question = Question::new(name, kind);
    let reply = overlay.query(&question.message(), terms).await?;
    match question.heard(&reply) {
        Ok((Code::NO_ERROR | Code::NO_NAME, found)) => Ok(found),
        Ok((Code::REFUSED, _)) => {
            let error = Error::new(ErrorKind::Forbidden, "resolving a name");
            Err(error.because(Reason::Policy))
        }
        Ok(_) => Err(failed(Reason::ResolverFailed)),
        Err(error) => Err(failed(Reason::ResolverFailed).caused_by(error)),
    }
}

fn failed(reason: Reason) -> Error {
    Error::new(ErrorKind::TargetFailed, "resolving a name").because(reason)
}
