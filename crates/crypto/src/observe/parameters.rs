//! Transport parameters with another max_ack_delay: the stack has no knob for its own, and believes any of the peer's.
//! RFC 9000 §18 (their layout), §18.2 (max_ack_delay).

use std::time::Duration;

use bytes::BufMut;
use hoplite_wire::varint;
use quinn_proto::{Side, transport_parameters::TransportParameters};

use super::governor::{Bounds, USUAL_DELAY};

const MAX_ACK_DELAY: u64 = 0x0b;
/// draft-ietf-quic-ack-frequency §3, as of its draft 07.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

/// No peer holds back acknowledgements for longer: with what some may say, a timer would fire only when all is lost anyway.
const LONGEST: Duration = Duration::from_secs(1);

/// What we tell the peer. We do not keep the order and the meaningless parameter that the stack adds by chance, because they cannot be copied.
pub(super) fn ours(
    parameters: &TransportParameters,
    side: Side,
    bounds: &Bounds,
) -> TransportParameters {
    with_delay(parameters, !side, |delay| delay.max(bounds.own_delay))
}

/// What the stack is told of the peer.
pub(super) fn theirs(
    parameters: &TransportParameters,
    side: Side,
    bounds: &Bounds,
) -> TransportParameters {
    with_delay(parameters, side, |delay| {
        delay.max(bounds.peer_delay).min(LONGEST)
    })
}

/// The same, with the delay that `change` makes of it, as `reader` reads them.
fn with_delay(
    parameters: &TransportParameters,
    reader: Side,
    change: impl FnOnce(Duration) -> Duration,
) -> TransportParameters {
    let mut octets = Vec::new();
    parameters.write(&mut octets);
    let Some(before) = delay(&octets) else {
        return *parameters;
    };
    let after = change(before);
    if after == before {
        return *parameters;
    }
    let changed = replaced(&octets, after);
    let changed = changed.and_then(|octets| TransportParameters::read(reader, &mut &*octets).ok());
    changed.unwrap_or(*parameters)
}

/// The parameters with another delay. A min_ack_delay above it would make them invalid: without it, the peer is not asked for any delay.
fn replaced(octets: &[u8], delay: Duration) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(octets.len() + 8);
    for parameter in Parameters(octets) {
        let Parameter { id, value, whole } = parameter?;
        let stays = match id {
            MAX_ACK_DELAY => false,
            MIN_ACK_DELAY => Duration::from_micros(value) <= delay,
            _ => true,
        };
        if stays {
            out.put_slice(whole);
        }
    }
    let delay = u64::try_from(delay.as_millis()).ok()?;
    varint::write(&mut out, MAX_ACK_DELAY);
    varint::write(&mut out, varint::len(delay) as u64);
    varint::write(&mut out, delay);
    Some(out)
}

fn delay(octets: &[u8]) -> Option<Duration> {
    let mut delay = USUAL_DELAY;
    for parameter in Parameters(octets) {
        let Parameter { id, value, .. } = parameter?;
        if id == MAX_ACK_DELAY {
            delay = Duration::from_millis(value);
        }
    }
    Some(delay)
}

/// Encoded parameters, one by one; `None` for what cannot be read.
struct Parameters<'a>(&'a [u8]);

struct Parameter<'a> {
    id: u64,
    /// For those that are an integer.
    value: u64,
    whole: &'a [u8],
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Option<Parameter<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.read())
    }
}

impl<'a> Parameters<'a> {
    fn read(&mut self) -> Option<Parameter<'a>> {
        let mut rest = std::mem::take(&mut self.0);
        let all = rest;
        let id = varint::read(&mut rest)?;
        let length = usize::try_from(varint::read(&mut rest)?).ok()?;
        let (mut value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(Parameter {
            id,
            value: varint::read(&mut value).unwrap_or(0),
            whole: all.get(..all.len() - rest.len())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(own: &[(u64, u64)]) -> TransportParameters {
        let mut octets = vec![];
        for (id, value) in own {
            varint::write(&mut octets, *id);
            varint::write(&mut octets, varint::len(*value) as u64);
            varint::write(&mut octets, *value);
        }
        TransportParameters::read(Side::Server, &mut &*octets).unwrap()
    }

    fn octets(parameters: &TransportParameters) -> Vec<u8> {
        let mut octets = vec![];
        parameters.write(&mut octets);
        octets
    }

    fn bounds(own: u64, peer: u64) -> Bounds {
        Bounds {
            own_delay: Duration::from_millis(own),
            peer_delay: Duration::from_millis(peer),
            ..Bounds::default()
        }
    }

    #[test]
    fn only_the_delay_is_changed() {
        let before = parameters(&[(0x04, 77), (0x0b, 30), (0x20, 1200)]);
        let after = ours(&before, Side::Client, &bounds(100, 0));
        let expected = parameters(&[(0x04, 77), (0x0b, 100), (0x20, 1200)]);
        assert_eq!(octets(&after), octets(&expected));
        assert_eq!(ours(&before, Side::Client, &bounds(30, 0)), before);
    }

    #[test]
    fn what_we_asked_the_peer_for_is_believed_and_absurd_delays_are_not() {
        let delay_of = |parameters: &TransportParameters| delay(&octets(parameters)).unwrap();
        for (said, asked, believed) in [
            (25, 0, 25),
            (25, 250, 250),
            (100, 50, 100),
            (16_383, 0, 1000),
        ] {
            let peer = parameters(&[(MAX_ACK_DELAY, said), (MIN_ACK_DELAY, 1000)]);
            let after = theirs(&peer, Side::Server, &bounds(25, asked));
            assert_eq!(delay_of(&after), Duration::from_millis(believed));
        }
    }

    #[test]
    fn a_peer_with_an_absurd_shortest_delay_is_not_asked_for_any() {
        let peer = parameters(&[(MAX_ACK_DELAY, 16_383), (MIN_ACK_DELAY, 16_000_000)]);
        let after = theirs(&peer, Side::Server, &bounds(25, 0));
        let expected = parameters(&[(MAX_ACK_DELAY, 1000)]);
        assert_eq!(octets(&after), octets(&expected));
    }
}
