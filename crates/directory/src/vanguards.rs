//! Vanguards: the few relays behind the guard through which all circuits of onion services go, so that who makes a service or its client build
//! circuits without end, and counts who stands next to relays of his own, finds these few and not the guard. Proposal 333 (lite) and proposal 292
//! (full, with the sizes and times of Tor's addon for it). The store keeps them, the caller hands in the time.
//!
//! ```text
//!                          lite                 full
//! client, rendezvous       G L2 R               G L2 L3 R
//! client, introduction     G L2 M I             G L2 L3 M I
//! client, HSDir            G L2 M H             G L2 L3 M H
//! service, rendezvous      G L2 M R             G L2 L3 M R
//! service, introduction    G L2 M I             G L2 L3 I
//! service, HSDir           G L2 M H             G L2 L3 H
//! ```
//!
//! Any relay of a layer goes with any of the next, as likely as the others. Neither family, operator, network nor region keeps two apart (292,
//! "Path restriction changes"): or who names the last relay would change what stands before it, and see by that what it is. All that is asked is
//! what relays insist on: no circuit goes from a relay to itself, or back to where it has just come from. So the guard may be the last relay, and
//! is no other guard for that; full, it may stand next to it, too.
//!
//! Unlike C tor's, the vanguards of lite outlive the process: a service that is made to crash draws no others.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use hoplite_wire::{
    ServicePurpose,
    directory::{Descriptor, Key},
};

use crate::path_selection::{Network, PathConstraints, Position, Random};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Relays that are drawn for one path: then there is none.
const MAX_TRIES: usize = 256;
/// Vanguards that are kept: those of both layers, and no more of a file than that.
const MAX_VANGUARDS: usize = 12;

/// How many layers of vanguards there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VanguardsMode {
    /// The second layer, for who uses services, and services that are up for hours or days.
    #[default]
    Lite,
    /// A second layer that stays longer and a third: for services that are up for weeks. Circuits are one relay longer.
    Full,
}

/// A circuit of an onion service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCircuit<'a> {
    /// What it is for.
    pub purpose: ServicePurpose,
    /// Where it ends.
    pub end: ServiceEnd<'a>,
}

/// The last relay of a circuit of an onion service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceEnd<'a> {
    /// This one, which somebody else has chosen. The list need not have it.
    Given(Key),
    /// Any other than these.
    OtherThan(&'a [Key]),
    /// One that somebody else will name: the path is without it. None of the last two relays can be it.
    ToCome,
}

/// Behind which relay a vanguard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Behind the guard.
    Second,
    /// Behind one of the second layer.
    Third,
}

/// One vanguard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vanguard {
    /// Who it is.
    pub identity: Key,
    /// SHA-1 of its RSA identity, of a relay of Tor's network: by it the consensus names also those that are not described.
    pub rsa_id: Option<[u8; 20]>,
    /// Where it stands.
    pub layer: Layer,
    /// When another takes its place, in seconds since 1970.
    pub until: u64,
}

/// A client's vanguards, those of the second layer first.
#[derive(Clone, Debug, Default)]
pub struct Vanguards {
    mode: VanguardsMode,
    kept: Vec<Vanguard>,
}

/// How many there are of a layer, and how long each stays, in seconds.
struct Size {
    number: usize,
    least: u64,
    most: u64,
}

impl VanguardsMode {
    fn layers(self) -> &'static [Layer] {
        match self {
            Self::Lite => &[Layer::Second],
            Self::Full => &[Layer::Second, Layer::Third],
        }
    }

    /// `guard-hs-l2-number`, `guard-hs-l2-lifetime-min` and `-max`, and those of the addon.
    fn size(self, layer: Layer) -> Size {
        let (number, least, most) = match (self, layer) {
            (Self::Lite, _) => (4, DAY, 12 * DAY),
            (Self::Full, Layer::Second) => (4, DAY, 45 * DAY),
            (Self::Full, Layer::Third) => (8, HOUR, 48 * HOUR),
        };
        Size {
            number,
            least,
            most,
        }
    }

    /// What stands between the guard and the last relay. A relay of no layer stands before a last one that somebody else may have chosen, and who would
    /// else see vanguards one after another.
    fn between(self, purpose: ServicePurpose) -> Vec<Hop> {
        let layers = self.layers().iter().copied().map(Hop::Vanguard);
        let is_covered = match (self, purpose) {
            (_, ServicePurpose::ClientRendezvous) => false,
            (Self::Lite, _) => true,
            (
                Self::Full,
                ServicePurpose::ClientIntroduction
                | ServicePurpose::ClientHsDir
                | ServicePurpose::ServiceRendezvous,
            ) => true,
            (Self::Full, ServicePurpose::ServiceIntroduction | ServicePurpose::ServiceHsDir) => {
                false
            }
        };
        layers.chain(is_covered.then_some(Hop::Middle)).collect()
    }
}

/// One place of a path behind the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    Vanguard(Layer),
    Middle,
    /// One of our choice.
    Last,
}

impl Vanguards {
    /// Those that the store has kept.
    pub fn new(mode: VanguardsMode, kept: Vec<Vanguard>) -> Self {
        let kept = kept.into_iter().take(MAX_VANGUARDS).collect();
        Self { mode, kept }
    }

    /// What the store should keep.
    pub fn kept(&self) -> Vec<Vanguard> {
        self.kept.clone()
    }

    /// The path of such a circuit from `guard` on, without a last relay that is given. `constraints` says what each of its relays must be, and which are
    /// avoided where no vanguard stands; vanguards themselves are never avoided: or a guard that has circuits through all but one of them fail would
    /// choose that one. Nothing: the list allows no such path.
    pub(crate) fn path<'a>(
        &mut self,
        network: &'a Network,
        constraints: &PathConstraints,
        guard: &'a Descriptor,
        circuit: ServiceCircuit<'_>,
        (now, random): (u64, Random<'_>),
    ) -> Option<Vec<&'a Descriptor>> {
        self.renew(network, constraints, now, random);
        let mut hops = self.mode.between(circuit.purpose);
        let given = match circuit.end {
            ServiceEnd::Given(last) => Some(last),
            ServiceEnd::ToCome => None,
            ServiceEnd::OtherThan(_) => {
                hops.push(Hop::Last);
                None
            }
        };
        // Only where it is so near; elsewhere the guard may be the last relay.
        if hops.len() < 2 && given == Some(guard.identity) {
            return None;
        }
        let not_last = match circuit.end {
            ServiceEnd::OtherThan(others) => others,
            ServiceEnd::Given(_) | ServiceEnd::ToCome => &[],
        };
        let choice = Choice {
            network,
            constraints,
            vanguards: self,
            given,
            not_last,
        };
        let (mut path, mut tries) = (vec![guard], MAX_TRIES);
        let found = choice.lengthen(&mut path, &hops, random, &mut tries);
        found.then_some(path)
    }

    /// Has others take the place of those whose time is over, or that are no longer on the list; not of those that are only not described.
    fn renew(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
        random: Random<'_>,
    ) {
        let constraints = PathConstraints {
            avoid: HashSet::new(),
            ..constraints.clone()
        };
        let (mode, layers) = (self.mode, self.mode.layers());
        for one in &mut self.kept {
            one.rsa_id = network.rsa_id(&one.identity).or(one.rsa_id);
        }
        self.kept.retain(|one| {
            layers.contains(&one.layer)
                && mode.size(one.layer).is_kept(one.until, now)
                && (network.is_fit(&one.identity, Position::Lasting, &constraints)
                    || network.is_undescribed(&one.identity, one.rsa_id.as_ref()))
        });
        for &layer in layers {
            self.fill(layer, network, &constraints, now, random);
        }
    }

    fn fill(
        &mut self,
        layer: Layer,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
        random: Random<'_>,
    ) {
        let size = self.mode.size(layer);
        let mut members: HashSet<Key> = self.of(layer).collect();
        while members.len() < size.number {
            let constraints = PathConstraints {
                avoid: members.clone(),
                ..constraints.clone()
            };
            let Some(new) = network.one(Position::Lasting, &constraints, random) else {
                return;
            };
            members.insert(new.identity);
            self.kept.push(Vanguard {
                identity: new.identity,
                rsa_id: network.rsa_id(&new.identity),
                layer,
                until: now.saturating_add(size.lifetime(random)),
            });
        }
    }

    fn of(&self, layer: Layer) -> impl Iterator<Item = Key> {
        let those = self.kept.iter().filter(move |one| one.layer == layer);
        those.map(|one| one.identity)
    }
}

impl Size {
    /// max(X, X) of proposal 292, "Rotation distributions": rather long than short.
    fn lifetime(&self, random: Random<'_>) -> u64 {
        let span = self.most.saturating_sub(self.least).saturating_add(1);
        let longer = random(span).max(random(span));
        self.least.saturating_add(longer)
    }

    /// Whether it stays. One that would stay for longer than any does was chosen when the clock was far ahead.
    fn is_kept(&self, until: u64, now: u64) -> bool {
        until > now && until.saturating_sub(now) <= self.most
    }
}

/// What one path is chosen by.
struct Choice<'a, 'b> {
    network: &'a Network,
    constraints: &'b PathConstraints,
    vanguards: &'b Vanguards,
    given: Option<Key>,
    not_last: &'b [Key],
}

impl<'a> Choice<'a, '_> {
    /// Depth first: when the rest does not work out, another relay is drawn here.
    fn lengthen(
        &self,
        path: &mut Vec<&'a Descriptor>,
        hops: &[Hop],
        random: Random<'_>,
        tries: &mut usize,
    ) -> bool {
        let Some((hop, rest)) = hops.split_first() else {
            return true;
        };
        let mut unfit = self.unfit(path, rest.len());
        while let Some(relay) = self.one(*hop, &unfit, random) {
            let Some(left) = tries.checked_sub(1) else {
                return false;
            };
            *tries = left;
            path.push(relay);
            if self.lengthen(path, rest, random, tries) {
                return true;
            }
            path.pop();
            unfit.insert(relay.identity);
        }
        false
    }

    /// Who must not be the next relay of this path, behind which `rest` are to be chosen: the two before it, and the last one if that is one of the two
    /// behind it.
    fn unfit(&self, path: &[&Descriptor], rest: usize) -> HashSet<Key> {
        let before = path.iter().rev().take(2).map(|relay| relay.identity);
        let behind = self.given.filter(|_| rest < 2);
        before.chain(behind).collect()
    }

    fn one(&self, hop: Hop, unfit: &HashSet<Key>, random: Random<'_>) -> Option<&'a Descriptor> {
        match hop {
            Hop::Vanguard(layer) => {
                let members = self.vanguards.of(layer);
                let is_fine = |one: &Key| !unfit.contains(one) && self.network.relay(one).is_some();
                let members: Vec<Key> = members.filter(is_fine).collect();
                let number = u64::try_from(members.len()).ok().filter(|n| *n > 0)?;
                let chosen = members.get(usize::try_from(random(number)).ok()?)?;
                self.network.relay(chosen)
            }
            Hop::Middle => self.weighed(Position::Middle, unfit.iter().copied(), random),
            Hop::Last => {
                let others = self.not_last.iter().chain(unfit);
                self.weighed(Position::Lasting, others.copied(), random)
            }
        }
    }

    /// One of all relays, by weight; around those that failed lately where that can be.
    fn weighed(
        &self,
        position: Position,
        unfit: impl Iterator<Item = Key> + Clone,
        random: Random<'_>,
    ) -> Option<&'a Descriptor> {
        let failed = self.constraints.avoid.iter().copied();
        let all: [HashSet<Key>; 2] = [failed.chain(unfit.clone()).collect(), unfit.collect()];
        all.into_iter().find_map(|avoid| {
            let constraints = PathConstraints {
                avoid,
                ..self.constraints.clone()
            };
            self.network.one(position, &constraints, random)
        })
    }
}
