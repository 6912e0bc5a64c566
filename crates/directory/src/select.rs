//! Which relays make a path: by what they can carry, and never two that one operator may run. Pure; the randomness is handed in.
//! Positions and weights after tor-spec "Path selection and constraints" and dir-spec "Computing bandwidth weights", for two roles instead of flags.

mod apart;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::HashSet;

use hoplite_wire::directory::{Descriptor, Key, List};

pub use apart::Apart;
use weights::Weights;

/// Gives a number below its argument, which is never 0.
pub type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Choices that are tried before it is given up: constraints that hardly anything fulfils cost no more than that.
const TRIES: usize = 4096;

/// Where a relay stands on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first: it sees the user.
    Entry,
    /// Between.
    Middle,
    /// The last: it sees the targets.
    Exit,
}

/// What is asked of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The number of hops, from 1.
    pub hops: usize,
    /// Ports of targets, as far as they are known: the exit must permit all of them.
    pub ports: Vec<u16>,
    /// The exit's region, if it matters.
    pub region: Option<String>,
    /// The first relay, if it is given: a guard.
    pub entry: Option<Key>,
    /// Relays that failed lately, or must not be used.
    pub avoid: HashSet<Key>,
    /// What must differ between any two relays.
    pub apart: Apart,
    /// Whether only relays with a TLS pin will do (MASQUE), or only those with an onion key (circuits).
    pub carrier: Carrier,
}

/// What carries the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Nested hops: relays are known by their pin.
    #[default]
    Masque,
    /// Circuits: relays have an onion key.
    Onion,
}

/// The list allows no path such as wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// No relay fits into this position, whatever stands elsewhere.
    #[error("no relay of the list can be the {} of the path: {}", position_name(*.0), position_remedy(*.0))]
    Nobody(Position),
    /// Relays fit alone, but not together.
    #[error(
        "the relays of the list do not allow a path of this length whose relays differ as asked: take fewer hops, or ask for less with `apart`"
    )]
    Together,
    /// None of the client's guards goes with the rest. Another entry would see the user without having been chosen for it.
    #[error(
        "none of this client's guards can begin the path: wait for the next list, or ask for less with `apart` or `region`"
    )]
    Unguarded,
    /// A relay of an explicit path is not on the list, or cannot stand where it is put.
    #[error(
        "relay {0} of the explicit path is not on the list, stands twice, or has not the role for its place: correct the path"
    )]
    Explicit(usize),
}

fn position_name(position: Position) -> &'static str {
    match position {
        Position::Entry => "first relay",
        Position::Middle => "middle",
        Position::Exit => "last relay",
    }
}

fn position_remedy(position: Position) -> &'static str {
    match position {
        Position::Exit => "ask for another port or region, or wait for the next list",
        _ => "wait for the next list, or use relays of your own",
    }
}

/// Relays to choose from, with what a choice needs worked out once for each list.
#[derive(Clone, Debug, Default)]
pub struct Network {
    relays: Vec<Descriptor>,
    weights: Weights,
}

impl Network {
    /// The relays of a list that was checked.
    pub fn of(list: &List) -> Self {
        let relays: Vec<_> = list
            .relays
            .iter()
            .map(|relay| relay.descriptor.clone())
            .collect();
        let cap = list.params.get("bandwidth-cap").copied();
        let weights = Weights::of(&relays, cap.unwrap_or(u64::MAX));
        Self { relays, weights }
    }

    /// All of them, by identity.
    pub fn relays(&self) -> &[Descriptor] {
        &self.relays
    }

    /// The relay of this identity.
    pub fn relay(&self, identity: &Key) -> Option<&Descriptor> {
        let place = self
            .relays
            .binary_search_by_key(identity, |relay| relay.identity);
        self.relays.get(place.ok()?)
    }

    /// A path as wished, first hop first, by weight: the exit is chosen first, as fewest relays can be it.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn path(&self, wish: &Wish, random: Random<'_>) -> Result<Vec<&Descriptor>, NoPath> {
        let order = order(wish.hops);
        for position in &order {
            if !self.relays.iter().any(|relay| fits(relay, *position, wish)) {
                return Err(NoPath::Nobody(*position));
            }
        }
        let mut chosen = Vec::with_capacity(order.len());
        let mut tries = TRIES;
        match self.extend(wish, &order, &mut chosen, random, &mut tries) {
            true => Ok(in_order(chosen)),
            false => Err(NoPath::Together),
        }
    }

    /// One relay for a position, by weight: for guards.
    pub fn one(&self, position: Position, wish: &Wish, random: Random<'_>) -> Option<&Descriptor> {
        let mut fitting = self.fitting(position, wish, &[]);
        weights::draw(&mut fitting, random)
    }

    /// Whether this relay is on the list and fits into a position, whatever stands elsewhere.
    pub fn is_fit(&self, identity: &Key, position: Position, wish: &Wish) -> bool {
        let relay = self.relay(identity);
        relay.is_some_and(|relay| fits(relay, position, wish))
    }

    /// The relays of an explicit path, by identity or by name where that is unique; for experiments. Only roles are checked.
    ///
    /// # Errors
    /// [`NoPath::Explicit`].
    pub fn explicit(&self, path: &[String], carrier: Carrier) -> Result<Vec<&Descriptor>, NoPath> {
        let mut chosen = Vec::<&Descriptor>::with_capacity(path.len());
        for (place, name) in path.iter().enumerate() {
            let relay = self.named(name).ok_or(NoPath::Explicit(place))?;
            let last = place.saturating_add(1) == path.len();
            let role = if last {
                relay.roles.egress
            } else {
                relay.roles.ingress
            };
            let twice = chosen.iter().any(|other| other.identity == relay.identity);
            if !role || twice || !is_carried(relay, carrier) {
                return Err(NoPath::Explicit(place));
            }
            chosen.push(relay);
        }
        Ok(chosen)
    }

    fn named(&self, name: &str) -> Option<&Descriptor> {
        if let Ok(identity) = name.parse() {
            return self.relay(&identity);
        }
        let mut named = self.relays.iter().filter(|relay| relay.name == name);
        named.next().filter(|_| named.next().is_none())
    }

    /// Depth first: when the rest does not work out, another relay is drawn here.
    fn extend<'a>(
        &'a self,
        wish: &Wish,
        order: &[Position],
        chosen: &mut Vec<&'a Descriptor>,
        random: &mut dyn FnMut(u64) -> u64,
        tries: &mut usize,
    ) -> bool {
        let Some((position, rest)) = order.split_first() else {
            return true;
        };
        let mut fitting = self.fitting(*position, wish, chosen);
        while let Some(relay) = weights::draw(&mut fitting, random) {
            let Some(left) = tries.checked_sub(1) else {
                return false;
            };
            *tries = left;
            chosen.push(relay);
            if self.extend(wish, rest, chosen, random, tries) {
                return true;
            }
            chosen.pop();
        }
        false
    }

    fn fitting<'a>(
        &'a self,
        position: Position,
        wish: &Wish,
        chosen: &[&Descriptor],
    ) -> Vec<(&'a Descriptor, u64)> {
        let relays = self.relays.iter();
        let relays = relays.filter(|relay| fits(relay, position, wish));
        let relays = relays.filter(|relay| {
            let mut others = chosen.iter();
            others.all(|other| wish.apart.are_apart(relay, other))
        });
        let weighed = relays.map(|relay| (relay, self.weights.of_relay(relay, position)));
        weights::some_positive(weighed.collect())
    }
}

/// In which order positions are filled: exit, entry, then the rest.
fn order(hops: usize) -> Vec<Position> {
    let ends = [Position::Exit, Position::Entry];
    let middles = std::iter::repeat_n(Position::Middle, hops.saturating_sub(2));
    ends.into_iter().take(hops).chain(middles).collect()
}

/// From the order of choosing to the order of the path.
fn in_order(mut chosen: Vec<&Descriptor>) -> Vec<&Descriptor> {
    let exit = usize::from(!chosen.is_empty());
    chosen.rotate_left(exit);
    chosen
}

fn fits(relay: &Descriptor, position: Position, wish: &Wish) -> bool {
    let permits = |port: &u16| relay.exit.as_ref().is_some_and(|exit| exit.contains(*port));
    let region = || wish.region.is_none() || wish.region == relay.region;
    let is_given = || wish.entry.is_none_or(|entry| entry == relay.identity);
    let role = match position {
        Position::Exit => relay.roles.egress && wish.ports.iter().all(permits) && region(),
        Position::Middle => relay.roles.ingress,
        Position::Entry => relay.roles.ingress && is_given(),
    };
    // The only relay of a path of one hop is exit and entry.
    let alone = wish.hops != 1 || is_given();
    role && alone && is_carried(relay, wish.carrier) && !wish.avoid.contains(&relay.identity)
}

fn is_carried(relay: &Descriptor, carrier: Carrier) -> bool {
    match carrier {
        Carrier::Masque => relay.pin.is_some(),
        Carrier::Onion => relay.onion.is_some(),
    }
}
