//! Which echo identifier of a program has which socket: the kernel gives each ping socket an identifier of its own, as a NAT would.
//! Bounded: the entry that was used longest ago makes room. Used by [`super::EchoFlow`]; without sockets in its tests.

use std::time::Duration;

use tokio::time::Instant;

/// The identifiers of one flow, each with its socket `S`.
#[derive(Debug)]
pub(super) struct Idents<S> {
    entries: Vec<Entry<S>>,
    bound: usize,
    idle: Duration,
}

/// What tells programs apart: the family and the identifier that the program chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ident {
    pub(super) is_v6: bool,
    pub(super) number: u16,
}

#[derive(Debug)]
struct Entry<S> {
    ident: Ident,
    used: Instant,
    socket: S,
}

impl<S> Idents<S> {
    /// At most `bound` identifiers; one that was not used for `idle` is forgotten when another comes.
    pub(super) fn new(bound: usize, idle: Duration) -> Self {
        Self {
            entries: Vec::new(),
            bound: bound.max(1),
            idle,
        }
    }

    /// The socket of `ident`, which counts as used.
    pub(super) fn find(&mut self, ident: Ident, now: Instant) -> Option<&S> {
        let entry = self.entries.iter_mut().find(|entry| entry.ident == ident)?;
        entry.used = now;
        Some(&entry.socket)
    }

    /// Enters `ident`, which is not there yet; who must go, goes.
    pub(super) fn enter(&mut self, ident: Ident, socket: S, now: Instant) {
        let idle = self.idle;
        self.entries
            .retain(|entry| now.saturating_duration_since(entry.used) < idle);
        if self.entries.len() >= self.bound {
            let oldest = self
                .entries
                .iter()
                .enumerate()
                .min_by_key(|(_, entry)| entry.used);
            if let Some((index, _)) = oldest {
                self.entries.swap_remove(index);
            }
        }
        self.entries.push(Entry {
            ident,
            used: now,
            socket,
        });
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Ident, &S)> {
        self.entries
            .iter()
            .map(|entry| (entry.ident, &entry.socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn ident(number: u16) -> Ident {
        Ident {
            is_v6: false,
            number,
        }
    }

    #[test]
    fn an_identifier_keeps_its_socket_and_families_are_told_apart() {
        let (mut idents, now) = (Idents::new(4, IDLE), Instant::now());
        idents.enter(ident(7), "four", now);
        let six = Ident {
            is_v6: true,
            ..ident(7)
        };
        assert_eq!(idents.find(six, now), None);
        idents.enter(six, "six", now);
        assert_eq!(idents.find(ident(7), now), Some(&"four"));
        assert_eq!(idents.find(six, now), Some(&"six"));
    }

    #[test]
    fn the_idle_go_first_and_then_the_oldest() {
        let (mut idents, start) = (Idents::new(2, IDLE), Instant::now());
        idents.enter(ident(1), (), start);
        idents.enter(ident(2), (), start + IDLE);
        assert_eq!(idents.find(ident(1), start), None, "idle");
        idents.enter(ident(3), (), start + IDLE);
        assert!(idents.find(ident(2), start + IDLE * 3 / 2).is_some());
        idents.enter(ident(4), (), start + IDLE * 7 / 4);
        assert_eq!(idents.find(ident(3), start + IDLE), None, "the oldest");
        assert_eq!(idents.iter().count(), 2);
    }

    proptest! {
        #[test]
        fn however_many_come_the_bound_holds_and_the_last_is_there(numbers in prop::collection::vec(any::<u16>(), 1..200), bound in 1_usize..20) {
            let (mut idents, now) = (Idents::new(bound, IDLE), Instant::now());
            for number in numbers {
                if idents.find(ident(number), now).is_none() {
                    idents.enter(ident(number), number, now);
                }
                prop_assert_eq!(idents.find(ident(number), now), Some(&number));
                prop_assert!(idents.iter().count() <= bound);
            }
        }
    }
}
