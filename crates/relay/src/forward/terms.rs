//! What a client and the relay agree on in the heads of a CONNECT-UDP request: forwarding, and with which transform.
//! The handler asks for it before it answers. draft-ietf-masque-quic-proxy, "Proxy-QUIC-Forwarding Header".

use hoplite_crypto::{NoCipher, Scramble, Transform};
use hoplite_wire::{
    RequestHead, ResponseHead,
    forwarding::{self, Answer, Offer},
};

use super::Road;
use crate::config::Forwarding as Config;

/// What was agreed on for one flow.
pub(crate) struct Terms {
    pub(super) road: Road,
    pub(super) transform: Transform,
    pub(super) ids: usize,
}

/// Completes the answer to a request whose client can be reached by `road`; forwarding is only for HTTP/3, which has one.
pub(crate) fn negotiate(
    config: &Config,
    request: &RequestHead,
    road: Option<Road>,
    head: ResponseHead,
) -> (ResponseHead, Option<Terms>) {
    // "If this header field is not included, none of the functionality in this document can be used."
    let capsules = request.header("capsule-protocol");
    let capsules = capsules.is_some_and(|value| value.starts_with(b"?1"));
    let Some(road) = road.filter(|_| config.enabled && capsules) else {
        return (head, None);
    };
    // "A proxy that does not support port sharing, SHOULD send "Proxy-QUIC-Port-Sharing" with a value of "?0"."
    let offer = request.offer();
    let head = match offer.is_some() || request.port_sharing().is_some() {
        true => head.without_port_sharing(),
        false => head,
    };
    let Some(offer) = offer else {
        return (head, None);
    };
    match select(config, &offer) {
        Some((answer, transform)) => {
            let ids = config.ids_per_flow;
            let terms = Terms {
                road,
                transform,
                ids,
            };
            (head.with_answer(&answer), Some(terms))
        }
        None => (head.with_answer(&Answer::default()), None),
    }
}

fn select(config: &Config, offer: &Offer) -> Option<(Answer, Transform)> {
    use forwarding::Transform as Kind;
    let allowed: &[Kind] = match config.identity {
        true => &[Kind::Scramble, Kind::Identity],
        false => &[Kind::Scramble],
    };
    match offer.select(allowed)? {
        kind @ Kind::Identity => {
            let transform = Some((kind, None));
            Some((Answer { transform }, Transform::Identity))
        }
        Kind::Scramble => scramble(offer).unwrap_or_else(|error| {
            tracing::warn!(%error, "a flow stays tunnelled");
            None
        }),
    }
}

fn scramble(offer: &Offer) -> Result<Option<(Answer, Transform)>, NoCipher> {
    let Some(theirs) = &offer.key else {
        return Ok(None);
    };
    let own = Scramble::fresh_key()?;
    let transform = Transform::scramble(&own, theirs)?;
    let kind = forwarding::Transform::Scramble;
    let answer = Answer {
        transform: Some((kind, Some(own))),
    };
    Ok(Some((answer, transform)))
}
