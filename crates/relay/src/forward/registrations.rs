//! Which connection ids of one flow are registered, and what stands for them between client and relay.
//! No clock and no I/O: [`super::Forwarding`] hands it the client's capsules and does what it answers.
//! draft-ietf-masque-quic-proxy, "Connection ID Capsules", "Detecting Conflicts", "Proxy Considerations".
//!
//! Each flow has its own socket towards the target, so that ids can conflict within a flow only.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use hoplite_quic::server::AliasId;
use hoplite_wire::forwarding::{Capsule, ConnectionId, MAX_CID_SIZE};
use ring::rand::{SecureRandom, SystemRandom};

/// "The initial maximum is 1".
const INITIAL_MAX_CONNECTION_IDS: u64 = 1;
/// A client VCID has at least this many bytes, so that nobody guesses it.
const SHORTEST_ALIAS: usize = 8;

/// An id of `len` bytes that nobody can guess; `None` when it would be too long, or the system has no randomness.
pub(crate) fn random_id(len: usize) -> Option<ConnectionId> {
    let mut bytes = [0; MAX_CID_SIZE];
    let bytes = bytes.get_mut(..len)?;
    SystemRandom::new().fill(bytes).ok()?;
    ConnectionId::new(bytes)
}

/// An answer may wait for long: it does not keep the packet that the id came in.
fn copy(id: &[u8]) -> Bytes {
    Bytes::copy_from_slice(id)
}

/// Makes the ids that stand for others.
pub(crate) trait IdSource {
    /// What an id holds as long as it is registered.
    type Place;
    /// A place for one more id; `None` when the client or all of them have too many.
    fn place(&mut self) -> Option<Self::Place>;
    /// For packets from the client.
    fn target(&mut self) -> AliasId;
    /// For packets to the client, `len` bytes long; `None` when there is none.
    fn client(&mut self, len: usize) -> Option<ConnectionId>;
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The client is told.
    Send(Capsule),
    /// From now on the client's packets with the alias go to the target with the id.
    Enter { alias: AliasId, id: ConnectionId },
    /// The alias has ended.
    Leave(AliasId),
    /// [`Registrations::clients`] has changed.
    Clients,
    /// A registration was refused; to be counted.
    Refused(Refusal),
    /// The client broke a rule: its request is reset.
    Break(Refusal),
}

/// Why the client's wish is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Longer than an id of QUIC version 1.
    TooLong,
    /// Equal to or a prefix of another id of the flow.
    Conflict,
    /// Beyond MAX_CONNECTION_IDS.
    Limit,
    /// The client has as many ids in all its flows as it may, or all clients have.
    Full,
    /// A capsule that only a proxy sends, or one that cannot be read.
    Malformed,
    /// An acknowledgement of an id that is not, or not any more, registered so; ignored.
    Stale,
}

/// The table of one flow: at most as many ids as it was made for.
#[derive(Debug)]
pub(crate) struct Registrations<P> {
    /// How many the client has sent: the next one's sequence number.
    received: u64,
    /// The largest sequence number that the client may use.
    maximum: u64,
    clients: Vec<Client<P>>,
    targets: Vec<Target<P>>,
}

/// An id in packets from the target.
#[derive(Debug)]
struct Client<P> {
    _place: P,
    id: ConnectionId,
    /// What the client has acknowledged.
    acknowledged: Option<ConnectionId>,
    /// What it has been offered since.
    offered: Option<ConnectionId>,
}

/// An id in packets to the target.
#[derive(Debug)]
struct Target<P> {
    _place: P,
    id: ConnectionId,
    alias: AliasId,
    /// What it was before the last renewal: its packets may still be under way.
    previous: Option<AliasId>,
}

impl<P> Registrations<P> {
    /// An empty table for `ids` ids; there are always two.
    pub(crate) fn new(ids: usize) -> Self {
        let ids = u64::try_from(ids).unwrap_or(u64::MAX);
        Self {
            received: 0,
            maximum: ids.saturating_sub(1).max(INITIAL_MAX_CONNECTION_IDS),
            clients: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// What the client is told at first.
    pub(crate) fn greeting(&self) -> Option<Capsule> {
        (self.maximum > INITIAL_MAX_CONNECTION_IDS).then(|| self.permit())
    }

    /// Each id that the client receives packets for, and what it is changed to.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (ConnectionId, ConnectionId)> {
        let acknowledged = |client: &Client<P>| Some((client.id, client.acknowledged?));
        self.clients.iter().filter_map(acknowledged)
    }

    /// Whether nothing is registered.
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.targets.is_empty()
    }

    /// Takes a capsule of the client's.
    pub(crate) fn handle(
        &mut self,
        capsule: Capsule,
        mint: &mut impl IdSource<Place = P>,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        match capsule {
            Capsule::RegisterClientCid { id } => self.register_client(&id, mint, &mut steps),
            Capsule::RegisterTargetCid { id, .. } => self.register_target(&id, mint, &mut steps),
            Capsule::AckClientVcid { id, virtual_id, .. } => {
                self.acknowledge(&id, &virtual_id, &mut steps);
            }
            Capsule::CloseClientCid { id } => self.close_client(&id, &mut steps),
            Capsule::CloseTargetCid { id } => self.close_target(&id, &mut steps),
            // "MUST only be sent by a proxy."
            Capsule::AckClientCid { .. }
            | Capsule::AckTargetCid { .. }
            | Capsule::MaxConnectionIds { .. } => steps.push(Step::Break(Refusal::Malformed)),
        }
        steps
    }

    /// The client has another address: nothing is carried on there under ids that were seen elsewhere.
    /// "In the event of active migration, the proxy removes forwarding rules".
    pub(crate) fn moved(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.is_empty() {
            return steps;
        }
        let freed = self.clients.len() + self.targets.len();
        for client in std::mem::take(&mut self.clients) {
            let id = client.id.to_bytes();
            steps.push(Step::Send(Capsule::CloseClientCid { id }));
        }
        for target in std::mem::take(&mut self.targets) {
            target.leave(&mut steps);
            let id = target.id.to_bytes();
            steps.push(Step::Send(Capsule::CloseTargetCid { id }));
        }
        steps.push(Step::Clients);
        self.free(freed, &mut steps);
        steps
    }

    fn permit(&self) -> Capsule {
        Capsule::MaxConnectionIds {
            sequence: self.maximum,
        }
    }

    /// Places are free again: "proxy SHOULD send MAX_CONNECTION_IDS capsules allowing the client additional … registrations".
    fn free(&mut self, places: usize, steps: &mut Vec<Step>) {
        let places = u64::try_from(places).unwrap_or(u64::MAX);
        self.maximum = self.maximum.saturating_add(places);
        steps.push(Step::Send(self.permit()));
    }

    /// Takes a place for a registration.
    fn count(&mut self, steps: &mut Vec<Step>) -> bool {
        // "The client MUST NOT send a registration capsule with a sequence number greater than what the proxy advertises".
        let within = self.received <= self.maximum;
        if within {
            self.received += 1;
        } else {
            steps.push(Step::Break(Refusal::Limit));
        }
        within
    }

    fn refuse(&mut self, why: Refusal, answer: Capsule, steps: &mut Vec<Step>) {
        steps.extend([Step::Refused(why), Step::Send(answer)]);
        self.free(1, steps);
    }

    fn register_client(
        &mut self,
        wanted: &[u8],
        mint: &mut impl IdSource<Place = P>,
        steps: &mut Vec<Step>,
    ) {
        if !self.count(steps) {
            return;
        }
        let close = || Capsule::CloseClientCid { id: copy(wanted) };
        // "the proxy MUST choose a client VCID that is at least as long as the original client CID"
        let alias = mint.client(wanted.len().max(SHORTEST_ALIAS));
        let (Some(id), Some(alias)) = (ConnectionId::new(wanted), alias) else {
            return self.refuse(Refusal::TooLong, close(), steps);
        };
        let acknowledge = Step::Send(Capsule::AckClientCid {
            id: copy(wanted),
            virtual_id: alias.to_bytes(),
        });
        if let Some(known) = self.clients.iter_mut().find(|client| client.id == id) {
            known.offered = Some(alias);
            steps.push(acknowledge);
            return self.free(1, steps);
        }
        if self.clients.iter().any(|c| c.id.conflicts_with(&id)) {
            return self.refuse(Refusal::Conflict, close(), steps);
        }
        let Some(place) = mint.place() else {
            return self.refuse(Refusal::Full, close(), steps);
        };
        self.clients.push(Client {
            _place: place,
            id,
            acknowledged: None,
            offered: Some(alias),
        });
        steps.push(acknowledge);
    }

    /// "The proxy MUST NOT send forwarded mode packets to the client prior to receiving this acknowledgement."
    fn acknowledge(&mut self, id: &[u8], alias: &[u8], steps: &mut Vec<Step>) {
        let client = self.clients.iter_mut().find(|client| *client.id == *id);
        match client {
            Some(client) if client.offered.as_deref() == Some(alias) => {
                client.acknowledged = client.offered.take();
                steps.push(Step::Clients);
            }
            _ => steps.push(Step::Refused(Refusal::Stale)),
        }
    }

    /// What is not registered any more was closed by both sides at once.
    fn close_client(&mut self, id: &[u8], steps: &mut Vec<Step>) {
        let at = self.clients.iter().position(|client| *client.id == *id);
        if let Some(at) = at {
            self.clients.swap_remove(at);
            steps.push(Step::Clients);
            self.free(1, steps);
        }
    }

    fn register_target(
        &mut self,
        wanted: &[u8],
        mint: &mut impl IdSource<Place = P>,
        steps: &mut Vec<Step>,
    ) {
        if !self.count(steps) {
            return;
        }
        let close = || Capsule::CloseTargetCid { id: copy(wanted) };
        let Some(id) = ConnectionId::new(wanted) else {
            return self.refuse(Refusal::TooLong, close(), steps);
        };
        let known = self.targets.iter().position(|target| target.id == id);
        let place = match known {
            Some(_) => None,
            None => match mint.place() {
                Some(place) => Some(place),
                None => return self.refuse(Refusal::Full, close(), steps),
            },
        };
        let alias = mint.target();
        steps.push(Step::Enter { alias, id });
        steps.push(Step::Send(Capsule::AckTargetCid {
            id: copy(wanted),
            virtual_id: copy(&alias),
            // None: a packet that crosses the end of its rule must not end the connection inside.
            reset_token: Bytes::new(),
        }));
        if let Some(known) = known.and_then(|at| self.targets.get_mut(at)) {
            let previous = known.previous.replace(known.alias);
            known.alias = alias;
            steps.extend(previous.map(Step::Leave));
            return self.free(1, steps);
        }
        self.targets.extend(place.map(|place| Target {
            _place: place,
            id,
            alias,
            previous: None,
        }));
    }

    fn close_target(&mut self, id: &[u8], steps: &mut Vec<Step>) {
        let at = self.targets.iter().position(|target| *target.id == *id);
        if let Some(at) = at {
            self.targets.swap_remove(at).leave(steps);
            self.free(1, steps);
        }
    }
}

impl<P> Target<P> {
    fn leave(&self, steps: &mut Vec<Step>) {
        let aliases = [Some(self.alias), self.previous];
        steps.extend(aliases.into_iter().flatten().map(Step::Leave));
    }
}
