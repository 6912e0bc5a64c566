//! One authenticated channel to one relay, which carries circuits of cells: over QUIC, a stream for each circuit, or over TLS as Tor does.
//! `onion` speaks over it at both ends; [`Channels`] keeps one for each pair of relays.
//! tor-spec: "Channels" (link protocols 4 and 5), "Cell Packet format"; Tang and Goldberg, "An improved algorithm for Tor circuit scheduling".
//!
//! What a slow circuit does to the others is what this is about:
//! - **QUIC**: nothing. A circuit that nobody reads stops its own stream when that one's window is full; one that the peer does not drain
//!   fills its own queue. Circuits share the connection (its congestion window, the QUIC stack's lock), but no queue and no task.
//! - **TLS**: they share one stream of bytes, so the reader never waits for a circuit: one whose queue is full is destroyed. The writer
//!   takes the quietest circuit first.
//!
//! [`Rival`] names other ways, which the lab measures beside these.
//!
//! # Not in this room
//! What cells mean to a circuit (`onion`), certificates and proofs (`crypto::onion`), whom to dial (`directory`), who may connect (`relay`).

mod budget;
mod config;
mod establish;
pub mod ewma;
pub mod handshake;
mod ids;
mod padding;
mod queue;
mod quic;
mod recent;
mod registry;
mod shares;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod traffic;
mod unread;

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_crypto::onion::identity::PeerId;
use hoplite_link::LinkKind;
use hoplite_link::QuicLink;
use hoplite_quic::{WindowBudget, liveness::Pulse};
use hoplite_wire::{Host, Target, cell::CircuitId};
use tokio::{
    sync::{SetOnce, mpsc},
    time::Instant,
};

use self::handshake::Established;
pub use self::{
    config::{CircuitBacklog, Config, Count, Counts, FAILED_DIAL_TTL, Rate, Rival, Tally},
    establish::{ChannelDialer, ChannelServer, How, Whom},
    padding::{PaddingMode, PaddingParameters, QuietTimes},
    queue::{Receiver, Rejected, Sender},
    recent::Recent,
    registry::Channels,
    shares::{Handle, Origin, Share, Shares},
    table::{Listing, QUIC_RETRY_AT_MOST},
};

/// Why a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// We closed it, or nobody held it any more.
    #[error("it was closed here")]
    Ours,
    /// The peer closed it, or the path to it broke.
    #[error("the peer or the path to it is gone")]
    Gone,
    /// The peer took nothing for too long.
    #[error("the peer takes nothing")]
    Stuck,
    /// The peer did what the protocol forbids.
    #[error("the peer broke the protocol: {0}")]
    Violation(&'static str),
}

/// Why there is no circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The channel has ended: dial again.
    #[error("the channel has ended: {0}")]
    Channel(Why),
    /// It carries as many circuits as it may: end one, or take another relay.
    #[error("the channel carries as many circuits as it may")]
    Full,
}

/// A channel. Clones are the same one. It ends by [`close`](Self::close), or when neither a clone nor a circuit of it is left.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    established: Established,
    /// We dialled it.
    initiator: bool,
    /// Where it was dialled, if it was.
    target: Option<Target>,
    /// The address of the connection when it was made; of one that was dialled by a name it is not known.
    remote: Option<IpAddr>,
    transport: Transport,
    arrivals: tokio::sync::Mutex<mpsc::Receiver<Circuit>>,
    hold: Hold,
    standing: Standing,
    /// Who has the circuits that were begun here for others.
    shares: Shares,
}

/// Whether what is new should go over a channel. Clones are of the same channel, and do not hold it open.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<StandingInner>);

#[derive(Debug, Default)]
struct StandingInner {
    is_superseded: AtomicBool,
    /// Of a QUIC connection that we dialled.
    pulse: Option<Arc<Pulse>>,
}

impl Standing {
    fn of(link: Option<&QuicLink>) -> Self {
        Self(Arc::new(StandingInner {
            is_superseded: AtomicBool::new(false),
            pulse: link.map(QuicLink::pulse).cloned(),
        }))
    }

    /// Whether another channel has taken its place for all that is new: it ends with the circuits that it has.
    pub fn is_superseded(&self) -> bool {
        self.0.is_superseded.load(Relaxed)
    }

    /// Whether the peer has not answered for suspiciously long ([`hoplite_link::Config::suspect_after`]). It may answer again.
    pub fn is_suspect(&self) -> bool {
        self.0
            .pulse
            .as_ref()
            .is_some_and(|pulse| pulse.is_suspect())
    }
}

/// Tells when much is lost over a channel that we dialled over QUIC. Does not hold it open.
struct LossWatch {
    ending: Ending,
    pulse: Option<Arc<Pulse>>,
    hold: Weak<HoldInner>,
}

impl LossWatch {
    fn of(channel: &Channel) -> Self {
        let Hold(hold) = &channel.0.hold;
        Self {
            ending: hold.ending.clone(),
            pulse: channel.0.standing.0.pulse.clone(),
            hold: Arc::downgrade(hold),
        }
    }

    /// Waits until it is so, and answers with the round trip; with nothing when the channel has ended.
    async fn lost_much(&self) -> Option<Duration> {
        let pulse = self.pulse.as_ref()?;
        tokio::select! {
            biased;
            _ = self.ending.wait() => None,
            () = pulse.loses_much() => {
                let hold = self.hold.upgrade()?;
                Some(hold.link.as_ref()?.connection().rtt())
            }
        }
    }
}

/// What carries the circuits.
enum Transport {
    Quic(quic::Transport),
    /// All of them on one stream of bytes: over TLS.
    OneStream(tls::Transport, LinkKind),
}

/// A circuit's place on a channel. The onion layer says DESTROY before it drops both ends; else the channel does.
#[derive(Debug)]
pub struct Circuit {
    /// Its id on this channel.
    pub id: CircuitId,
    /// Towards the peer.
    pub sender: Sender,
    /// From the peer.
    pub receiver: Receiver,
}

impl Channel {
    /// Who the peer is, if it said so: a client does not.
    pub fn peer(&self) -> Option<&PeerId> {
        self.0.established.peer.as_ref()
    }

    /// What it runs over.
    pub fn kind(&self) -> LinkKind {
        match self.0.transport {
            Transport::Quic(_) => LinkKind::Quic,
            Transport::OneStream(_, kind) => kind,
        }
    }

    /// What was agreed and said in the link handshake.
    pub fn established(&self) -> &Established {
        &self.0.established
    }

    /// Whether it may be used by whoever asks for the peer at `address`. Somebody who passes bytes on between us and the peer has its identity, and an
    /// address of his own; the peer does not say that this is one of its. tor-spec, "Canonical connections": "the IP matches the requested IP", or
    /// "the OR knows that the IP of the connection it's using is canonical because it was listed in the NETINFO cell".
    pub fn is_canonical(&self, address: IpAddr) -> bool {
        self.is_peer_address_confirmed() || self.remote() == Some(address.to_canonical())
    }

    /// Whether it may be used by whoever asks for the peer at `target`; one with a name is served where just that was dialled.
    fn serves(&self, target: &Target) -> bool {
        match &target.host {
            Host::Ip(address) => self.is_canonical(*address),
            Host::Name(_) => {
                self.is_peer_address_confirmed() || self.0.target.as_ref() == Some(target)
            }
        }
    }

    /// Whether the peer, who has shown who it is, says that the address of the connection is one of its own.
    fn is_peer_address_confirmed(&self) -> bool {
        let claims = &self.0.established.theirs;
        let listed = |remote| claims.iter().any(|claim| claim.to_canonical() == remote);
        self.peer().is_some() && self.remote().is_some_and(listed)
    }

    /// The address of the connection, as it is now: a peer that dialled us over QUIC may have moved (RFC 9000 §9), or somebody made it so who
    /// passes its packets on (§9.3.3). What we dialled stays where it was dialled.
    pub fn remote(&self) -> Option<IpAddr> {
        match &self.0.transport {
            Transport::Quic(transport) if !self.is_ours() => Some(transport.remote()),
            _ => self.0.remote,
        }
    }

    /// Begins a circuit: its id is chosen, the peer learns of it by the first cell. Waits while QUIC has no stream to give.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn open(&self) -> Result<Circuit, Closed> {
        match &self.0.transport {
            Transport::Quic(transport) => transport.open(&self.0.hold).await,
            Transport::OneStream(transport, _) => transport.open(&self.0.hold),
        }
    }

    /// Begins a circuit on behalf of somebody's that is to go on here: where the channel has no place left, one of whoever has most of them is ended.
    /// Somebody whose circuits left no room for others here lately may have few of them.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn open_for(&self, origin: &Origin) -> Result<Circuit, Closed> {
        let now = Instant::now();
        let each = match &self.0.transport {
            Transport::Quic(transport) => transport.may_have(origin.who, now),
            Transport::OneStream(..) => usize::MAX,
        };
        let share = self.0.shares.take(origin, each, now);
        let share = share.ok_or(Closed::Full)?;
        let mut circuit = self.open().await?;
        circuit.sender.is_for(origin, share);
        Ok(circuit)
    }

    /// The next circuit that the peer begins; `None` when the channel has ended. Its first cell is there already.
    /// Circuits that nobody accepts are refused beyond [`Config::arrivals`].
    pub async fn accept(&self) -> Option<Circuit> {
        self.0.arrivals.lock().await.recv().await
    }

    /// Waits for the end.
    pub async fn closed(&self) -> Why {
        self.0.hold.ending().wait().await
    }

    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.0.hold.ending().why().is_none()
    }

    /// Ends it, with all circuits.
    pub fn close(&self) {
        self.0.hold.ending().end(Why::Ours);
    }

    /// The device's network may have changed: if it is dead, that should be noticed soon. Over TLS nothing is asked of the peer.
    pub fn network_changed(&self) {
        if let Some(link) = &self.0.hold.0.link {
            link.use_now();
        }
    }

    /// Has a channel over QUIC that began [`narrow`](Config::narrow) windows so wide that no circuit takes another's: the peer may stuff in so much that
    /// nobody can read.
    pub fn widen(&self) {
        if let Transport::Quic(transport) = &self.0.transport {
            transport.widen();
        }
    }

    /// Has the windows of a channel over QUIC that began [`narrow`](Config::narrow) grow with what moves, and where circuits stand still, as far as
    /// there is room in the budget.
    pub fn adapt_windows(&self, budget: impl WindowBudget + 'static) {
        if let Transport::Quic(transport) = &self.0.transport {
            transport.adapt_windows(budget);
        }
    }

    /// Bytes of cells that it has carried, both ways.
    pub fn carried(&self) -> u64 {
        match &self.0.transport {
            Transport::Quic(transport) => transport.carried(),
            Transport::OneStream(transport, _) => transport.carried(),
        }
    }

    /// Whether what is new should go over it.
    pub fn standing(&self) -> &Standing {
        &self.0.standing
    }

    /// How many circuits it carries.
    pub fn circuits(&self) -> usize {
        match &self.0.transport {
            Transport::Quic(transport) => transport.circuits(),
            Transport::OneStream(transport, _) => transport.circuits(),
        }
    }

    fn supersede(&self) {
        self.0.standing.0.is_superseded.store(true, Relaxed);
    }

    fn is_ours(&self) -> bool {
        self.0.initiator
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Held by each clone of a channel and by each circuit; the channel ends with the last.
#[derive(Clone)]
struct Hold(Arc<HoldInner>);

struct HoldInner {
    ending: Ending,
    /// The watch over a QUIC connection that we dialled ends with it.
    link: Option<QuicLink>,
}

impl Hold {
    fn new(ending: Ending, link: Option<QuicLink>) -> Self {
        Self(Arc::new(HoldInner { ending, link }))
    }

    fn ending(&self) -> &Ending {
        &self.0.ending
    }
}

impl Drop for HoldInner {
    fn drop(&mut self) {
        self.ending.end(Why::Ours);
    }
}

/// Whether and why a channel has ended. The first reason counts. Whoever waits is woken in the order of waiting.
#[derive(Clone, Debug)]
struct Ending(Arc<SetOnce<Why>>);

impl Ending {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn end(&self, why: Why) {
        // A later reason is not told.
        self.0.set(why).ok();
    }

    fn why(&self) -> Option<Why> {
        self.0.get().copied()
    }

    async fn wait(&self) -> Why {
        *self.0.wait().await
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("kind", &self.kind())
            .field("known", &self.peer().is_some())
            .finish_non_exhaustive()
    }
}
