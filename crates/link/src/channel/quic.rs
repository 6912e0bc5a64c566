//! A channel over QUIC: a control stream for circuit id 0 (the first bidirectional stream, the initiator's), and a bidirectional stream for each
//! circuit, whose cells keep their 514 octets. On the way of a cell circuits share nothing of ours: each has its stream with its window, its queue
//! and its writing task; whoever reads a circuit reads its stream. What they share is QUIC's: the congestion window and the stack itself.
//! RFC 9000 §2, §4 (streams, flow control); tor-spec: "Cell Packet format".

mod inbound;
mod outbound;
pub(super) mod room;
#[cfg(test)]
pub(super) mod tests;

use std::{
    net::IpAddr,
    sync::{Arc, Weak},
};

use hoplite_wire::cell::{CircuitId, Reader};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

pub(super) use self::inbound::Inbound;
use self::{
    inbound::First,
    outbound::Outbound,
    room::{Room, streams_at_first},
};
use super::{
    Circuit, Closed, Config, Counts, Ending, Guarded, Held, Hold, Why,
    ewma::Scale,
    hoard::Gauge,
    ids::{Ids, NoId},
    lane::{self, lane},
    traffic::{Keeper, Place, Receiver, Sender, Source},
};
use crate::{
    QuicLink, congestion,
    health::{Pulse, Vigil},
};

/// A stream that is reset for the reason of a DESTROY cell has this code and the reason.
const RESET: u32 = 0x100;
/// DESTROY: the peer broke the protocol.
const PROTOCOL: u8 = 1;
/// DESTROY: no room.
const RESOURCE_LIMIT: u8 = 5;
/// The control stream goes before all circuits.
const FIRST: i32 = 1;

/// What a channel and its tasks share. Nothing of it is locked on the way of a cell.
struct Shared {
    connection: Connection,
    ids: Arc<Guarded<Ids>>,
    counts: Arc<Counts>,
    config: Config,
    scale: Scale,
    ending: Ending,
    /// Told when cells are sent on a connection that a relay dialled. One that we dialled has its own.
    pulse: Option<Arc<Pulse>>,
}

/// What a channel keeps of it.
pub(super) struct Carrier(Arc<Shared>);

/// What a circuit has before it has a stream.
struct Berth {
    place: Arc<Place>,
    lane: (lane::Tx, lane::Rx),
    gauge: Arc<Gauge>,
}

/// What the tasks need besides.
pub(super) struct Road {
    pub(super) connection: Connection,
    /// What watches over it, where we dialled.
    pub(super) link: Option<QuicLink>,
    pub(super) control: (SendStream, RecvStream),
    /// With what was read behind the handshake.
    pub(super) reader: Reader,
    /// Whether the peer said who it is.
    pub(super) known: bool,
    pub(super) arrivals: mpsc::Sender<Circuit>,
}

/// Starts the tasks, and lets the peer open streams.
pub(super) fn start(
    road: Road,
    ids: Ids,
    config: &Config,
    counts: &Arc<Counts>,
) -> (Carrier, Hold) {
    let ending = Ending::new();
    let accepted = road.known && road.link.is_none();
    let hold = Hold::new(ending.clone(), road.link);
    let shared = Arc::new(Shared {
        connection: road.connection,
        ids: Arc::new(Guarded::new(ids)),
        counts: Arc::clone(counts),
        config: config.clone(),
        scale: Scale::new(Instant::now(), config.half_life),
        ending,
        pulse: accepted.then(Pulse::new),
    });
    shared.widen(road.known);
    congestion::forgive(&shared.connection);
    shared.watch();
    let door = Door {
        shared: Arc::clone(&shared),
        hold: Arc::downgrade(&hold.0),
        arrivals: road.arrivals,
    };
    let room = Room::new(config.most_circuits(road.known));
    tokio::spawn(door.run(room));
    tokio::spawn(control(Arc::clone(&shared), road.control, road.reader));
    (Carrier(shared), hold)
}

impl Carrier {
    pub(super) async fn open(&self, hold: &Hold) -> Result<Circuit, Closed> {
        let shared = &self.0;
        let id = shared.ids.lock().choose().ok_or(Closed::Full)?;
        // From here on the id is released by the place, also if this is given up.
        let berth = shared.berth(id, hold.clone());
        let (send, receive) = tokio::select! {
            biased;
            why = shared.ending.wait() => return Err(Closed::Channel(why)),
            opened = shared.connection.open_bi() => opened.map_err(|_| Closed::Channel(Why::Gone))?,
        };
        let first = First::of(receive, shared.config.largest_variable);
        Ok(shared.circuit(berth, hold, send, first))
    }

    pub(super) fn circuits(&self) -> usize {
        self.0.ids.lock().len()
    }

    /// Where the peer is now, as the connection sees it.
    pub(super) fn remote(&self) -> IpAddr {
        self.0.connection.remote_address().ip().to_canonical()
    }
}

impl Shared {
    /// Streams for the peer's first circuits, and a window so wide that no circuit takes another's.
    fn widen(&self, known: bool) {
        let streams = streams_at_first(self.config.most_circuits(known));
        let window = self.config.whole_window(known);
        let largest = VarInt::MAX.into_inner();
        let credit = VarInt::from_u64(window.min(largest)).unwrap_or(VarInt::MAX);
        self.connection.set_send_window(window);
        self.connection.set_receive_window(credit);
        self.connection
            .set_max_concurrent_bi_streams(streams.into());
        self.connection.set_max_concurrent_uni_streams(0u32.into());
    }

    /// A relay that dialled us and is gone is noticed while we send to it.
    fn watch(&self) {
        let Some(pulse) = self.pulse.clone() else {
            return;
        };
        let vigil = Vigil {
            connection: self.connection.clone(),
            pulse,
            broken_after: self.config.broken_after,
        };
        tokio::spawn(vigil.run());
    }

    fn berth(&self, id: CircuitId, hold: Hold) -> Berth {
        let (to, queue) = lane(self.config.outbox);
        let gauge = Arc::new(Gauge::quic(self.config.window, to.watch()));
        self.counts.enter(&gauge, &self.config);
        let keeper = Keeper::Quic(Arc::clone(&self.ids));
        Berth {
            place: Place::new(id, keeper, hold, Arc::clone(&gauge)),
            lane: (to, queue),
            gauge,
        }
    }

    fn circuit(&self, berth: Berth, hold: &Hold, send: SendStream, first: First) -> Circuit {
        let Berth {
            place,
            lane: (to, queue),
            gauge,
        } = berth;
        let outbound = Outbound {
            stream: send,
            queue,
            scale: self.scale,
            linger: self.config.linger,
            counts: Arc::clone(&self.counts),
            gauge: Arc::clone(&gauge),
            written: 0,
            pulse: self.pulse.clone(),
            // The last cells are still on their way when nobody holds the circuit any more.
            _hold: hold.clone(),
        };
        tokio::spawn(outbound.run(place.id));
        let inbound = first.inbound(place.id, Arc::clone(&self.counts), gauge);
        Circuit {
            id: place.id,
            sender: Sender::new(to, Arc::clone(&place)),
            receiver: Receiver::new(Source::Stream(Box::new(inbound)), place),
        }
    }
}

/// Takes in the circuits that the peer begins.
#[derive(Clone)]
struct Door {
    shared: Arc<Shared>,
    hold: Weak<Held>,
    arrivals: mpsc::Sender<Circuit>,
}

impl Door {
    async fn run(self, mut room: Room) {
        let mut guests = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                _ = self.shared.ending.wait() => return,
                Some(_) = guests.join_next() => {}
                // Not more of them than the peer may have streams.
                opened = self.shared.connection.accept_bi() => match opened {
                    Ok((send, receive)) => {
                        guests.spawn(self.clone().welcome(send, receive));
                        self.make(&mut room, guests.len());
                    }
                    Err(_) => return,
                },
            }
        }
    }

    /// Makes room for further streams; so many of those that are open are no circuits yet.
    fn make(&self, room: &mut Room, guests: usize) {
        let open = self.shared.ids.lock().len().saturating_add(guests);
        if let Some(streams) = room.more(open) {
            let connection = &self.shared.connection;
            connection.set_max_concurrent_bi_streams(streams.into());
        }
    }

    /// A stream is a circuit from its first cell on.
    async fn welcome(self, mut send: SendStream, receive: RecvStream) {
        let mut first = First::of(receive, self.shared.config.largest_variable);
        let read = timeout(self.shared.config.handshake, first.read()).await;
        let Ok(Some(id)) = read else {
            self.shared.counts.no_circuits.up();
            drop(send.reset(code(PROTOCOL)));
            return;
        };
        if let Err(reason) = self.admit(id, send, first) {
            tracing::trace!(reason, "a circuit was refused");
        }
    }

    fn admit(&self, id: CircuitId, mut send: SendStream, mut first: First) -> Result<(), u8> {
        let counts = &self.shared.counts;
        let claimed = self.shared.ids.lock().claim(id);
        let refused = match claimed {
            Ok(()) => return self.announce(id, send, first),
            Err(NoId::Taken) => (PROTOCOL, &counts.collisions),
            Err(NoId::NotTheirs) => (PROTOCOL, &counts.wrong_ids),
            Err(NoId::TooMany) => (RESOURCE_LIMIT, &counts.too_many),
        };
        let (reason, count) = refused;
        count.up();
        drop(send.reset(code(reason)));
        first.stop(code(reason));
        Err(reason)
    }

    fn announce(&self, id: CircuitId, send: SendStream, first: First) -> Result<(), u8> {
        let Some(hold) = self.hold.upgrade().map(Hold) else {
            self.shared.ids.lock().release(id);
            return Ok(());
        };
        let berth = self.shared.berth(id, hold.clone());
        let circuit = self.shared.circuit(berth, &hold, send, first);
        self.arrivals.try_send(circuit).map_err(|refused| {
            self.shared.counts.too_many.up();
            refused.into_inner().sender.destroy(RESOURCE_LIMIT);
            RESOURCE_LIMIT
        })
    }
}

/// Reads the control stream until the channel ends, and ends the connection with it.
async fn control(shared: Arc<Shared>, streams: (SendStream, RecvStream), mut reader: Reader) {
    let (send, mut receive) = streams;
    drop(send.set_priority(FIRST));
    let why = tokio::select! {
        biased;
        why = inbound::control(&mut receive, &mut reader, &shared.counts) => why,
        why = shared.ending.wait() => why,
        _ = shared.connection.closed() => Why::Gone,
    };
    if matches!(why, Why::Violation(_)) {
        shared.counts.violations.up();
    }
    shared.ending.end(why);
    shared.connection.close(0u32.into(), b"");
}

/// How a stream is reset for the reason of a DESTROY cell.
fn code(reason: u8) -> VarInt {
    VarInt::from_u32(RESET | u32::from(reason))
}

/// The reason of a DESTROY cell that a stream was reset for, if it was for one.
fn reason(code: VarInt) -> Option<u8> {
    let code = code.into_inner().checked_sub(RESET.into())?;
    u8::try_from(code).ok()
}
