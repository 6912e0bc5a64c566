//! Whether the directory lists this relay at addresses that are none of its own: another machine runs with a copy of its keys, which of the two clients
//! go to is whose descriptor is the later one, and circuits to the other fail. Authorities of Tor and ours alike list one relay by one key, and tell neither.
//!
//! A machine of its own for each directory, without I/O. A relay that has moved is listed where it was until authorities have its new descriptor and have
//! reached it there, so at first that alone is no sign.

use std::net::SocketAddr;

use tracing::warn;

/// How many documents one after the other have a relay that has just started where it was before.
const MOVING: u32 = 2;

/// What this relay has seen of itself in one directory.
pub(crate) struct ListedElsewhere {
    own: Vec<SocketAddr>,
    /// Whether it was listed where it is, since it started.
    was_here: bool,
    /// Documents in a row that have it elsewhere.
    elsewhere: u32,
}

impl ListedElsewhere {
    /// `own`: the addresses that the relay tells the directory.
    pub(crate) fn new(own: &[SocketAddr]) -> Self {
        Self {
            own: own.to_vec(),
            was_here: false,
            elsewhere: 0,
        }
    }

    /// A later document was believed: it has the relay at these addresses, or not at all. Says whether the operator is to be told now, once until the relay
    /// is listed where it is again.
    fn is_to_be_told(&mut self, listed: Option<&[SocketAddr]>) -> bool {
        let Some(listed) = listed else {
            return false;
        };
        if listed.iter().any(|address| self.own.contains(address)) {
            (self.was_here, self.elsewhere) = (true, 0);
            return false;
        }
        self.elsewhere = self.elsewhere.saturating_add(1);
        self.elsewhere == if self.was_here { 1 } else { MOVING }
    }

    /// Tells the operator, if he is to be told.
    pub(crate) fn heard(&mut self, listed: Option<&[SocketAddr]>) {
        if self.is_to_be_told(listed) {
            warn!(
                "the directory lists this relay at addresses that are not its own: if it has not moved, another machine runs with a copy of its keys, and clients cannot use both: stop one, or give it keys of its own"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Vec<SocketAddr> {
        vec![address.parse().expect("an address")]
    }

    /// For each document, whether the operator is told.
    fn told<'a>(own: &str, listed: impl IntoIterator<Item = Option<&'a str>>) -> Vec<bool> {
        let mut seen = ListedElsewhere::new(&at(own));
        let listed = listed.into_iter().map(|one| one.map(at));
        listed
            .map(|one| seen.is_to_be_told(one.as_deref()))
            .collect()
    }

    #[test]
    fn two_machines_with_one_key_are_told_whenever_the_other_one_has_won() {
        let (here, there) = (Some("192.0.2.1:443"), Some("198.51.100.1:443"));
        let listed = [here, there, there, here, there];
        assert_eq!(
            told("192.0.2.1:443", listed),
            [false, true, false, false, true]
        );
    }

    #[test]
    fn who_has_moved_is_listed_where_it_was_for_a_while_and_not_told_so() {
        let (here, before) = (Some("192.0.2.1:443"), Some("198.51.100.1:443"));
        assert_eq!(told("192.0.2.1:443", [before, here, here]), [false; 3]);
        // The second machine, which started last and was never listed where it is.
        assert_eq!(told("192.0.2.1:443", [before, before]), [false, true]);
    }

    #[test]
    fn who_is_not_listed_is_nowhere_else_and_another_port_is_another_address() {
        assert_eq!(told("192.0.2.1:443", [None, None, None]), [false; 3]);
        let listed = [Some("192.0.2.1:443"), None, Some("192.0.2.1:444")];
        assert_eq!(told("192.0.2.1:443", listed), [false, false, true]);
    }

    #[test]
    fn one_of_several_addresses_is_enough() {
        let own = [at("192.0.2.1:443"), at("[2001:db8::1]:443")].concat();
        let mut seen = ListedElsewhere::new(&own);
        assert!(!seen.is_to_be_told(Some(&at("[2001:db8::1]:443"))));
        assert!(!seen.is_to_be_told(Some(&own)));
        assert!(seen.is_to_be_told(Some(&at("[2001:db8::2]:443"))));
    }
}
