//! ECN through CONNECT-UDP: each end says in a field which context ids stand for which mark of a packet, so that a mark costs no byte.
//! Heads carry it: [`RequestHead::with_ecn_contexts`], [`ResponseHead::with_ecn_contexts`].
//! draft-ietf-masque-connect-udp-ecn-dscp-02; RFC 3168 §5, RFC 9298 §4, RFC 9651.
//!
//! DSCP, which the same field tells, is neither set nor told here: a packet of any class leaves as one of the default class.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use crate::{RequestHead, ResponseHead, forwarding::field::inner_lists, http_head::Header, varint};

/// The field.
pub const FIELD: &str = "ecn-dscp-context-id";

/// Lists, one for each class, that an end may tell: ids of so many fit into a byte each.
const MOST_LISTS: usize = 8;

/// The ids for packets that are not ECN-capable, ECT(1), ECT(0) and CE: each at the place that its code point says.
type Ids = [u64; 4];

/// "Client-allocated" ids are even, those of a proxy odd (RFC 9298 §4); 0 is that of payloads without a mark.
const CLIENT: [u8; 4] = [0, 2, 4, 6];
const PROXY: [u8; 4] = [0, 1, 3, 5];

/// What stands before a payload whose packet bears, or is to bear, this code point; without `contexts` no mark passes.
pub fn head(contexts: Option<&EcnContexts>, code_point: Option<u8>) -> [u8; 1] {
    let place = usize::from(code_point.unwrap_or_default() & 3);
    let id = contexts.and_then(|contexts| contexts.own.get(place));
    [id.copied().unwrap_or_default()]
}

/// What both ends of a flow have said: an id may be used in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EcnContexts {
    /// Each of them is one byte on the wire.
    own: [u8; 4],
    peer: Vec<Ids>,
}

impl EcnContexts {
    /// The code point that a context id stands for, whoever said so; `None`: it is none of these.
    pub fn code_point(&self, context: u64) -> Option<u8> {
        let own = self.own.map(u64::from);
        let mut all = std::iter::once(&own).chain(&self.peer);
        let place = all.find_map(|ids| ids.iter().position(|id| *id == context))?;
        u8::try_from(place).ok()
    }

    /// `None` without the field, or if it is not what it should be: then no marks pass.
    fn agreed(own: [u8; 4], headers: &[Header]) -> Option<Self> {
        let mut peer = Vec::new();
        for (_, value) in headers.iter().filter(|(name, _)| name == FIELD) {
            for list in inner_lists(value)? {
                let [_class, ids @ ..] = <[u64; 5]>::try_from(list).ok()?;
                let fits = peer.len() < MOST_LISTS && are_ids(ids, own);
                fits.then(|| peer.push(ids))?;
            }
        }
        (!peer.is_empty()).then_some(Self { own, peer })
    }
}

/// Whether they are ids of the other end's: all of them different, and but for payloads without a mark none of ours.
fn are_ids(ids: Ids, own: [u8; 4]) -> bool {
    let [plain, marked @ ..] = ids;
    let [.., ours] = own;
    let theirs = |id: &u64| *id <= varint::MAX && *id % 2 != u64::from(ours % 2) && *id != 0;
    let [one, zero, congested] = marked;
    let differ = one != zero && zero != congested && congested != one && !marked.contains(&plain);
    marked.iter().all(theirs) && (plain == 0 || theirs(&plain)) && differ
}

/// The field's value, for the default class.
fn write(ids: [u8; 4]) -> String {
    let [plain, one, zero, congested] = ids;
    format!("(0 {plain} {one} {zero} {congested})")
}

impl RequestHead {
    /// Adds the field: the client's context ids.
    #[must_use]
    pub fn with_ecn_contexts(self) -> Self {
        self.with(FIELD, write(CLIENT))
    }

    /// The proxy's end: what the client said, and what [`ResponseHead::with_ecn_contexts`] answers.
    pub fn ecn_contexts(&self) -> Option<EcnContexts> {
        EcnContexts::agreed(PROXY, &self.headers)
    }
}

impl ResponseHead {
    /// Adds the field: the proxy's context ids.
    #[must_use]
    pub fn with_ecn_contexts(self) -> Self {
        self.with(FIELD, write(PROXY))
    }

    /// The client's end, which has asked for it: what the proxy answered.
    pub fn ecn_contexts(&self) -> Option<EcnContexts> {
        EcnContexts::agreed(CLIENT, &self.headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_datagram::UDP_HEAD;
    use proptest::prelude::*;

    fn request(values: &[&str]) -> RequestHead {
        let head = RequestHead::connect_udp("relay", "/");
        values
            .iter()
            .fold(head, |head, value| head.with(FIELD, *value))
    }

    #[test]
    fn both_ends_understand_each_other_in_every_mark() {
        let client = ResponseHead::new(200).with_ecn_contexts().ecn_contexts();
        let proxy = request(&[]).with_ecn_contexts().ecn_contexts();
        let (client, proxy) = (client.expect("agreed"), proxy.expect("agreed"));
        for code_point in 0..4 {
            for (from, to) in [(&client, &proxy), (&proxy, &client)] {
                let [id] = head(Some(from), Some(code_point));
                assert_eq!(to.code_point(id.into()), Some(code_point));
            }
        }
        assert_eq!(client.code_point(8), None);
        for unmarked in [head(Some(&client), None), head(None, Some(3))] {
            assert_eq!(unmarked, UDP_HEAD);
        }
    }

    #[test]
    fn lists_of_other_classes_in_one_line_or_in_several_are_read() {
        for values in [
            &["(46 8 10 12 14), (0 0 2 4 6)"][..],
            &["(46 8 10 12 14)", "(0 0 2 4 6)"],
            &["(46,8,10,12,14), (0,0,2,4,6)"],
        ] {
            let agreed = request(values).ecn_contexts().expect("agreed");
            let [default, forwarding] = [6, 8].map(|id| agreed.code_point(id));
            assert_eq!((default, forwarding), (Some(3), Some(0)), "{values:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_the_others_ids_is_no_agreement() {
        for value in [
            "",
            "()",
            "(0 0 2 4)",
            "(0 0 2 4 6 8)",
            "(0 0 2 4 -6)",
            "(0 0 1 3 5)",
            "(0 0 2 2 4)",
            "(0 2 2 4 6)",
            "(0 0 0 4 6)",
            "(0 0 2 4 6",
            "0 0 2 4 6",
            "?1",
            "(0 0 2 4 6) x",
            "(0 0 2 4 4611686018427387904)",
            "(0 0 2 4 \"6\")",
            "(0 0 2 4 6.5)",
        ] {
            assert_eq!(request(&[value]).ecn_contexts(), None, "{value}");
        }
        let many = vec!["(0 0 2 4 6)"; MOST_LISTS + 1];
        assert_eq!(request(&many).ecn_contexts(), None);
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_a_panic(value: Vec<u8>, digits in "[(), 0-9;=]{0,40}") {
            for value in [value, digits.into_bytes()] {
                let head = ResponseHead::new(200).with(FIELD, value);
                if let Some(agreed) = head.ecn_contexts() {
                    prop_assert!((0..8).filter_map(|id| agreed.code_point(id)).count() >= 4);
                }
            }
        }
    }
}
