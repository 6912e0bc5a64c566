//! Which relays make a path: by what they can carry, and never two that one operator may run. Pure; the randomness is handed in.
//! Positions and weights after tor-spec "Path selection and constraints" and dir-spec "Computing bandwidth weights", for two roles instead of flags.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use hoplite_wire::{
    Protocols,
    directory::{Descriptor, Key, List, RelayFlags},
    networks::network,
};

use crate::tor::{self, TorRelay};

/// Gives a number below its argument, which is never 0.
pub type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Choices that are tried before it is given up: constraints that hardly anything fulfils cost no more than that.
const MAX_TRIES: usize = 4096;
/// Shares of relays with both roles are counted in this many parts.
const PARTS: u64 = 1000;
/// Paths are taken to have three positions, one of them the exit.
const POSITIONS: u128 = 3;
/// Where relays are measured, more is not believed of one that is not, in bytes a second: as much as Tor's authorities do.
const UNMEASURED: u64 = 20_000;
/// More is not believed of any relay, so that sums do not overflow: 1 TB/s.
const MAX_BANDWIDTH: u64 = 1 << 40;

/// Where a relay stands on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first: it sees the user.
    Entry,
    /// Between.
    Middle,
    /// Between, or the last, of a circuit of an onion service, for hours or days: a vanguard, an introduction point, a rendezvous point.
    Lasting,
    /// The last: it sees the targets.
    Exit,
}

/// What is asked of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathConstraints {
    /// The number of hops, from 1.
    pub hops: usize,
    /// Ports of targets, as far as they are known: the exit must permit all of them.
    pub ports: Vec<u16>,
    /// The exit's region, if it matters; a country stands for its parts, too.
    pub region: Option<String>,
    /// What the exit must speak.
    pub protocols: Protocols,
    /// The exits to choose from with the weight of each, if these are not all that fit, by their capacity.
    pub exits: Option<Vec<(Key, u64)>>,
    /// The first relay, if it is given: a guard.
    pub entry: Option<Key>,
    /// Relays that failed lately, or must not be used.
    pub avoid: HashSet<Key>,
    /// What must differ between any two relays.
    pub apart: Apart,
    /// Whether only relays with a TLS pin will do (MASQUE), or only those with an onion key (circuits).
    pub overlay: OverlayKind,
    /// Who issues private tokens to the client: a relay that takes tokens must take those of one of them. Without it that is not looked at. Channels of
    /// circuits know no tokens.
    pub issuers: Option<BTreeSet<String>>,
}

/// What carries the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayKind {
    /// Nested hops: relays are known by their pin.
    #[default]
    Masque,
    /// Circuits: relays have an onion key.
    Onion,
}

/// The list allows no path such as is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// No relay fits into this position, whatever stands elsewhere.
    #[error("no relay of the list can be the {} of the path: {}", position_name(*.0), position_remedy(*.0))]
    Nobody(Position),
    /// Those that would fit take private tokens, and of no issuer that the client knows.
    #[error(
        "no relay that can be the {} of the path takes tokens of an issuer that you have: add the [[issuer]] that its relays name, with your account there",
        position_name(*.0)
    )]
    NoTokens(Position),
    /// Relays fit alone, but not together.
    #[error(
        "the relays of the list do not allow a path of this length whose relays differ as asked: take fewer hops, or ask for less with `apart`"
    )]
    Together,
    /// A circuit of an onion service goes from no relay to itself or back to the one before.
    #[error(
        "the list has too few relays for a circuit of an onion service, which goes from none to itself or back, or the explicit path ends where it must not: wait for the next list, or correct the path"
    )]
    Service,
    /// None of the client's first guards goes with the rest. Another entry would see the user without having been chosen for it.
    #[error(
        "none of this client's guards can begin the path: wait for the next list, or ask for less with `apart` or `region`"
    )]
    Unguarded,
    /// A relay of an explicit path is not on the list, or cannot stand where it is put.
    #[error(
        "relay {0} of the explicit path is not on the list, stands twice, or has not the role for its place: correct the path"
    )]
    Explicit(usize),
    /// A relay of an explicit path takes private tokens, and of no issuer that the client knows.
    #[error(
        "relay {0} of the explicit path takes tokens of an issuer that you do not have: add its [[issuer]], with your account there, or take another relay"
    )]
    ExplicitTokens(usize),
}

fn position_name(position: Position) -> &'static str {
    match position {
        Position::Entry => "first relay",
        Position::Middle => "middle",
        Position::Lasting => "relay of an onion service",
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
    /// None if all relays are as likely.
    weights: Option<Weights>,
    /// Of Tor's network: what its consensus says beside descriptors.
    tor: Option<Arc<HashMap<Key, TorRelay>>>,
    /// Of our own lists: the flags that authorities give.
    flags: BTreeMap<Key, RelayFlags>,
    /// Flags that some relay has: where nobody has one, nobody is asked for it.
    given: RelayFlags,
    /// What all clients should do.
    params: BTreeMap<String, i32>,
    /// RSA identities of relays of Tor's network of which nothing else is known.
    undescribed: Arc<HashSet<[u8; 20]>>,
}

impl Network {
    /// The relays of a list that was checked.
    pub fn of(list: &List) -> Self {
        let is_measured = list.opinions.values().any(|one| one.measured.is_some());
        let relays = list.relays.iter().map(|relay| {
            let mut relay = relay.descriptor.clone();
            relay.bandwidth = match list.opinion(&relay.identity).measured {
                Some(measured) => relay.bandwidth.min(measured),
                None if is_measured => relay.bandwidth.min(UNMEASURED),
                None => relay.bandwidth,
            };
            relay
        });
        let relays: Vec<_> = relays.collect();
        let flags = list.opinions.iter();
        let flags: BTreeMap<_, _> = flags.map(|(relay, one)| (*relay, one.flags)).collect();
        let cap = list.params.get("bandwidth-cap").copied();
        let weights = Weights::of(&relays, cap.unwrap_or(u64::MAX));
        Self {
            relays,
            weights: Some(weights),
            tor: None,
            undescribed: Arc::default(),
            given: flags
                .values()
                .copied()
                .fold(RelayFlags::NONE, RelayFlags::with),
            flags,
            params: list.params.iter().map(of_tors_size).collect(),
        }
    }

    /// The relays of a consensus of Tor's authorities that was checked.
    pub fn of_tor(network: &tor::Network) -> Self {
        Self {
            relays: network.descriptors(),
            weights: None,
            tor: Some(Arc::new(tor::positions::relays(network))),
            params: network.params.clone(),
            undescribed: Arc::new(network.undescribed.clone()),
            ..Self::default()
        }
    }

    /// Whether a relay of Tor's network is on the list, by its RSA identity, and only its description is missing: it is not gone. Who hands out
    /// descriptions would else decide who takes its place, by keeping back those that he likes.
    pub(crate) fn is_undescribed(&self, identity: &Key, rsa_id: Option<&[u8; 20]>) -> bool {
        self.relay(identity).is_none() && rsa_id.is_some_and(|id| self.undescribed.contains(id))
    }

    /// SHA-1 of the RSA identity of a relay of Tor's network.
    pub(crate) fn rsa_id(&self, identity: &Key) -> Option<[u8; 20]> {
        self.tor_relay(identity).map(|relay| relay.rsa_id)
    }

    /// As if it was Tor's, with an RSA identity for each relay, and as if it had some more that are not described, for tests.
    #[cfg(test)]
    pub(crate) fn like_tors(self, undescribed: impl IntoIterator<Item = Key>) -> Self {
        let rsa_id = |key: &Key| std::array::from_fn(|place| key.0[place]);
        let relays = self.relays.iter().map(|relay| relay.identity);
        let relays = relays.map(|relay| (relay, TorRelay::plain(rsa_id(&relay))));
        Self {
            tor: Some(Arc::new(relays.collect())),
            undescribed: Arc::new(
                undescribed
                    .into_iter()
                    .map(|relay| rsa_id(&relay))
                    .collect(),
            ),
            ..self
        }
    }

    /// A parameter of the list, or of Tor's consensus, if it gives one; who asks knows its unit and its bounds.
    pub fn param(&self, name: &str) -> Option<i32> {
        self.params.get(name).copied()
    }

    /// What Tor's consensus says of a relay, if that is where it comes from.
    pub fn tor_relay(&self, identity: &Key) -> Option<&TorRelay> {
        self.tor.as_ref()?.get(identity)
    }

    /// Relays that nobody signed a list of, such as those of a file: all are as likely.
    pub fn unsigned(mut relays: Vec<Descriptor>) -> Self {
        relays.sort_by_key(|relay| relay.identity);
        Self {
            relays,
            ..Self::default()
        }
    }

    /// All of them, by identity.
    pub fn relays(&self) -> &[Descriptor] {
        &self.relays
    }

    /// The relay of this identity.
    pub fn relay(&self, identity: &Key) -> Option<&Descriptor> {
        self.relays.get(self.place(identity)?)
    }

    /// The place of the relay of this identity among all of them.
    pub fn place(&self, identity: &Key) -> Option<usize> {
        let place = self
            .relays
            .binary_search_by_key(identity, |relay| relay.identity);
        place.ok()
    }

    /// A path as asked for, first hop first, by weight: the exit is chosen first, as fewest relays can be it.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn select_path(
        &self,
        constraints: &PathConstraints,
        random: Random<'_>,
    ) -> Result<Vec<&Descriptor>, NoPath> {
        let order = order(constraints.hops);
        for position in &order {
            self.somebody(*position, constraints)?;
        }
        let mut chosen = Vec::with_capacity(order.len());
        let mut tries = MAX_TRIES;
        if self.extend(constraints, &order, &mut chosen, random, &mut tries) {
            Ok(in_order(chosen))
        } else {
            Err(NoPath::Together)
        }
    }

    /// Whether there is a relay for this position; why not.
    fn somebody(&self, position: Position, constraints: &PathConstraints) -> Result<(), NoPath> {
        let mut relays = self.relays.iter();
        if relays.any(|relay| self.fits(relay, position, constraints)) {
            return Ok(());
        }
        let paid = PathConstraints {
            issuers: None,
            ..constraints.clone()
        };
        let mut relays = self.relays.iter();
        Err(if relays.any(|relay| self.fits(relay, position, &paid)) {
            NoPath::NoTokens(position)
        } else {
            NoPath::Nobody(position)
        })
    }

    /// The relays that may not stand on a path with this one, itself among them.
    pub fn not_apart(&self, identity: &Key, apart: Apart) -> Vec<Key> {
        let Some(relay) = self.relay(identity) else {
            return Vec::new();
        };
        let others = self.relays.iter();
        let others = others.filter(|other| !self.are_apart(relay, other, apart));
        others.map(|other| other.identity).collect()
    }

    /// One relay for a position, by weight: for guards.
    pub fn one(
        &self,
        position: Position,
        constraints: &PathConstraints,
        random: Random<'_>,
    ) -> Option<&Descriptor> {
        let mut fitting = self.fitting(position, constraints, &[]);
        draw(&mut fitting, random)
    }

    /// Whether this relay is on the list and fits into a position, whatever stands elsewhere.
    pub fn is_fit(
        &self,
        identity: &Key,
        position: Position,
        constraints: &PathConstraints,
    ) -> bool {
        let relay = self.relay(identity);
        relay.is_some_and(|relay| self.fits(relay, position, constraints))
    }

    /// The relays of an explicit path, by identity or by name where that is unique; for experiments. Of `constraints` the overlay and the issuers count.
    ///
    /// # Errors
    /// [`NoPath::Explicit`], [`NoPath::ExplicitTokens`].
    pub fn explicit(
        &self,
        path: &[String],
        constraints: &PathConstraints,
    ) -> Result<Vec<&Descriptor>, NoPath> {
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
            if !role || twice || !is_carried(relay, constraints.overlay) {
                return Err(NoPath::Explicit(place));
            }
            if !takes_tokens_of(relay, constraints) {
                return Err(NoPath::ExplicitTokens(place));
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
        constraints: &PathConstraints,
        order: &[Position],
        chosen: &mut Vec<&'a Descriptor>,
        random: &mut dyn FnMut(u64) -> u64,
        tries: &mut usize,
    ) -> bool {
        let Some((position, rest)) = order.split_first() else {
            return true;
        };
        let mut fitting = self.fitting(*position, constraints, chosen);
        while let Some(relay) = draw(&mut fitting, random) {
            let Some(left) = tries.checked_sub(1) else {
                return false;
            };
            *tries = left;
            chosen.push(relay);
            if self.extend(constraints, rest, chosen, random, tries) {
                return true;
            }
            chosen.pop();
        }
        false
    }

    fn fitting<'a>(
        &'a self,
        position: Position,
        constraints: &PathConstraints,
        chosen: &[&Descriptor],
    ) -> Vec<(&'a Descriptor, u64)> {
        let relays = self.relays.iter();
        let relays = relays.filter(|relay| self.fits(relay, position, constraints));
        let relays = relays.filter(|relay| {
            let mut others = chosen.iter();
            others.all(|other| self.are_apart(relay, other, constraints.apart))
        });
        let exits = constraints.exits.as_ref();
        let exits = exits.filter(|_| position == Position::Exit);
        let weighed = relays.map(|relay| {
            let mut exits = exits.into_iter().flatten();
            let given = exits.find(|(exit, _)| *exit == relay.identity);
            let weight = given.map_or_else(|| self.weight_of(relay, position), |given| given.1);
            (relay, weight)
        });
        some_positive(weighed.collect())
    }

    /// How likely a relay is in a position, beside the others; 0 for one that is not here.
    pub(crate) fn weight(&self, identity: &Key, position: Position) -> u64 {
        let relay = self.relay(identity);
        relay.map_or(0, |relay| self.weight_of(relay, position))
    }

    fn weight_of(&self, relay: &Descriptor, position: Position) -> u64 {
        if let Some(known) = self.tor_relay(&relay.identity) {
            return known.weight(position);
        }
        let weights = self.weights.as_ref();
        weights.map_or(1, |weights| weights.of_relay(relay, position))
    }

    fn fits(&self, relay: &Descriptor, position: Position, constraints: &PathConstraints) -> bool {
        let known = self.tor_relay(&relay.identity);
        fits(relay, position, constraints)
            && self.is_flagged(relay, position, constraints)
            && known.is_none_or(|known| known.may_stand(position) || constraints.hops == 1)
    }

    /// Whether the authorities would have it there: guards first, what is to last stable and fast, and no bad exit last.
    fn is_flagged(
        &self,
        relay: &Descriptor,
        position: Position,
        constraints: &PathConstraints,
    ) -> bool {
        let flags = self.flags.get(&relay.identity).copied().unwrap_or_default();
        let has = |flag| flags.has(flag) || !self.given.has(flag);
        match position {
            Position::Entry => has(RelayFlags::GUARD) || constraints.hops == 1,
            Position::Middle => true,
            Position::Lasting => has(RelayFlags::STABLE) && has(RelayFlags::FAST),
            Position::Exit => !flags.has(RelayFlags::BAD_EXIT),
        }
    }

    /// Whether both may stand on one path.
    pub(crate) fn are_apart(&self, a: &Descriptor, b: &Descriptor, apart: Apart) -> bool {
        let relatives = || {
            let known = self.tor_relay(&a.identity);
            let other = self.tor_relay(&b.identity);
            let both = known.zip(other);
            both.is_some_and(|(known, other)| known.is_family((&b.identity, other)))
        };
        apart.are_apart(a, b) && !(apart.family && relatives())
    }
}

/// A parameter of our list, where numbers may be larger than those of Tor's consensus.
fn of_tors_size((name, value): (&String, &u64)) -> (String, i32) {
    (name.clone(), i32::try_from(*value).unwrap_or(i32::MAX))
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

fn fits(relay: &Descriptor, position: Position, constraints: &PathConstraints) -> bool {
    let permits = |port: &u16| relay.exit.as_ref().is_some_and(|exit| exit.contains(*port));
    let region = || {
        let wanted = constraints.region.as_ref();
        wanted.is_none_or(|wanted| {
            let region = relay.region.as_ref();
            region.is_some_and(|region| is_within(region, wanted))
        })
    };
    let among = || {
        let exits = constraints.exits.as_ref();
        exits.is_none_or(|exits| exits.iter().any(|(exit, _)| *exit == relay.identity))
    };
    let is_given = || {
        constraints
            .entry
            .is_none_or(|entry| entry == relay.identity)
    };
    let role = match position {
        Position::Exit => {
            relay.roles.egress
                && relay.protocols.has(constraints.protocols)
                && constraints.ports.iter().all(permits)
                && region()
                && among()
        }
        Position::Middle | Position::Lasting => relay.roles.ingress,
        Position::Entry => relay.roles.ingress && is_given(),
    };
    // The only relay of a path of one hop is exit and entry.
    let alone = constraints.hops != 1 || is_given();
    role && alone
        && is_carried(relay, constraints.overlay)
        && takes_tokens_of(relay, constraints)
        && !constraints.avoid.contains(&relay.identity)
}

/// Whether the client can have the tokens that the relay takes, or it takes none.
fn takes_tokens_of(relay: &Descriptor, constraints: &PathConstraints) -> bool {
    match (&relay.tokens, &constraints.issuers, constraints.overlay) {
        (Some(tokens), Some(issuers), OverlayKind::Masque) => issuers.contains(&tokens.issuer),
        _ => true,
    }
}

fn is_carried(relay: &Descriptor, overlay: OverlayKind) -> bool {
    match overlay {
        OverlayKind::Masque => relay.pin.is_some(),
        OverlayKind::Onion => relay.onion.is_some(),
    }
}

/// What must differ between any two relays of a path. What is not known of a relay counts as different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// They do not both call the other family.
    pub family: bool,
    /// The operators that they name differ.
    pub operator: bool,
    /// No address of theirs shares 16 bits (IPv4) or 32 (IPv6).
    pub network: bool,
    /// The regions that they name differ.
    pub region: bool,
}

impl Default for Apart {
    fn default() -> Self {
        Self {
            family: true,
            operator: true,
            network: true,
            region: false,
        }
    }
}

impl Apart {
    /// Nothing but that they are two.
    pub fn hardly() -> Self {
        Self {
            family: false,
            operator: false,
            network: false,
            region: false,
        }
    }

    /// Whether both may stand on one path.
    pub(crate) fn are_apart(&self, a: &Descriptor, b: &Descriptor) -> bool {
        let operators = (a.operator.as_ref(), b.operator.as_ref());
        let regions = (a.region.as_ref(), b.region.as_ref());
        let alike = [
            a.identity == b.identity || shared(a, b),
            self.family && are_family(a, b),
            self.operator && is_same(operators),
            self.region && are_one_region(regions),
            self.network && are_neighbours(a, b),
        ];
        !alike.contains(&true)
    }
}

/// One machine, or one key, under two identities.
fn shared(a: &Descriptor, b: &Descriptor) -> bool {
    let pin = a.pin.is_some() && a.pin == b.pin;
    let onion = a.onion.is_some() && a.onion == b.onion;
    pin || onion
        || a.addresses
            .iter()
            .any(|address| b.addresses.contains(address))
}

/// Both must say so: else anybody could keep others off paths by naming them.
fn are_family(a: &Descriptor, b: &Descriptor) -> bool {
    a.family.contains(&b.identity) && b.family.contains(&a.identity)
}

fn is_same((a, b): (Option<&String>, Option<&String>)) -> bool {
    let lower = |text: &String| text.to_ascii_lowercase();
    a.is_some() && a.map(lower) == b.map(lower)
}

/// Whether a region is another, or a part of it: `DE-BE` of `DE`.
fn is_within(region: &str, other: &str) -> bool {
    let begin = region.get(..other.len());
    let rest = region.as_bytes().get(other.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(other))
        && rest.is_none_or(|next| *next == b'-')
}

fn are_one_region((a, b): (Option<&String>, Option<&String>)) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => is_within(a, b) || is_within(b, a),
        _ => false,
    }
}

fn are_neighbours(a: &Descriptor, b: &Descriptor) -> bool {
    let of = |address: &SocketAddr| network(address.ip(), 16, 32);
    let networks: Vec<_> = b.addresses.iter().map(of).collect();
    let mut own = a.addresses.iter();
    own.any(|address| networks.contains(&of(address)))
}

/// How likely a relay is in each position. What both ingress and egress can do is shared out so that neither end of paths is starved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weights {
    /// As an exit, of [`PARTS`]; before it the rest.
    both_as_exit: u64,
    cap: u64,
}

impl Weights {
    fn of(relays: &[Descriptor], cap: u64) -> Self {
        let cap = cap.min(MAX_BANDWIDTH);
        let sum = |ingress: bool, egress: bool| -> u128 {
            let those = relays.iter();
            let those = those.filter(|r| (r.roles.ingress, r.roles.egress) == (ingress, egress));
            those.map(|r| u128::from(r.bandwidth.min(cap))).sum()
        };
        let (exits, both, rest) = (sum(false, true), sum(true, true), sum(true, false));
        let wanted = exits.saturating_add(both).saturating_add(rest) / POSITIONS;
        let missing = wanted.saturating_sub(exits).min(both);
        let parts = missing.saturating_mul(u128::from(PARTS)).checked_div(both);
        let both_as_exit = parts.and_then(|parts| u64::try_from(parts).ok());
        Self {
            both_as_exit: both_as_exit.unwrap_or(0).min(PARTS),
            cap,
        }
    }

    /// The weight of a relay that may stand there.
    fn of_relay(&self, relay: &Descriptor, position: Position) -> u64 {
        let parts = match (relay.roles.ingress && relay.roles.egress, position) {
            (false, _) => PARTS,
            (true, Position::Exit) => self.both_as_exit,
            (true, _) => PARTS.saturating_sub(self.both_as_exit),
        };
        relay.bandwidth.min(self.cap).saturating_mul(parts)
    }
}

/// If none has any weight, all have the same: a path is still made.
fn some_positive<T>(mut weighed: Vec<(T, u64)>) -> Vec<(T, u64)> {
    if weighed.iter().all(|(_, weight)| *weight == 0) {
        weighed.iter_mut().for_each(|(_, weight)| *weight = 1);
    }
    weighed
}

/// Takes one out, each as likely as its weight; those without weight when no other is left.
pub(crate) fn draw<T>(
    weighed: &mut Vec<(T, u64)>,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<T> {
    let total = weighed
        .iter()
        .map(|(_, weight)| u128::from(*weight))
        .sum::<u128>();
    // 8192 relays of 2^40 bytes/s in 1000 parts are less than 2^64.
    let total = u64::try_from(total).unwrap_or(u64::MAX);
    let mut left = if total == 0 {
        0
    } else {
        random(total).min(total.saturating_sub(1))
    };
    let place = weighed.iter().position(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    let place = place.or_else(|| (!weighed.is_empty()).then_some(0))?;
    Some(weighed.swap_remove(place).0)
}
