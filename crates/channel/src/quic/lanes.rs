//! A stream of QUIC for each end-to-end stream of a circuit, beside the circuit's own, on every hop: [`Rival::StreamPerStream`](crate::Rival), for
//! experiments alone. A lane is a unidirectional stream; it begins with the circuit's id, then come cells. Whoever serves the channel counts a
//! circuit's streams by its lanes, which is why this is no way to carry circuits.
//! Ku and Li, "QuicTor: Tor running on QUIC protocol"; Sabée, "Adding QUIC support to the Tor network", section 4.4.
//!
//! A circuit's layers are put on and taken off in one order. So RELAY cells, whose circuit is known from where they come, have a number where their
//! circuit's id stands otherwise, and each hop takes them in the order of the numbers: a packet that is lost delays what follows it in the circuit,
//! whatever lane it is on. The thesis does not say how QuicTor does without.
//!
//! A lane ends with its circuit: of the end of a stream a relay in the middle is not told.

use std::{collections::HashMap, sync::Arc, task::Poll};

use bytes::Bytes;
use hoplite_quic::{Connection, RecvStream, SendStream};
use hoplite_wire::cell::{Cell, CircuitId, Command, Reader, relay::StreamId};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::{Cells, Context, Read, Shared, Stop};

/// How many lanes a peer may have open on a channel; with one more a circuit waits until others have ended.
pub(super) const MOST_LANES: u32 = 4096;
/// How many lanes may be on their way to a circuit that reads nothing; the next ones wait.
const ARRIVALS: usize = 16;
/// RELAY cells are counted from here, in each direction of a circuit.
const FIRST: u32 = 1;

/// Whether a cell has a number instead of its circuit's id. What makes and ends a circuit has none, and waits for nothing.
fn is_numbered(cell: &Cell) -> bool {
    [Command::RELAY, Command::RELAY_EARLY].contains(&cell.command)
}

/// Where the lanes go that the peer opens.
#[derive(Default)]
pub(super) struct Lanes(Mutex<HashMap<CircuitId, mpsc::Sender<Cells>>>);

impl Lanes {
    /// A circuit begins: its lanes from the peer, and to it.
    pub(super) fn enter(
        &self,
        id: CircuitId,
        connection: &Connection,
    ) -> (Box<LanesIn>, Box<LanesOut>) {
        let (sender, arriving) = mpsc::channel(ARRIVALS);
        let mut circuits = self.0.lock();
        circuits.retain(|_, circuit| !circuit.is_closed());
        circuits.insert(id, sender);
        let from = LanesIn {
            arriving,
            opened: 0,
            next: FIRST,
            own: None,
            lanes: Vec::new(),
        };
        let to = LanesOut {
            connection: connection.clone(),
            id,
            next: FIRST,
            priority: 0,
            lanes: HashMap::new(),
        };
        (Box::new(from), Box::new(to))
    }

    fn of(&self, id: CircuitId) -> Option<mpsc::Sender<Cells>> {
        self.0.lock().get(&id).cloned()
    }
}

/// Hands the peer's lanes to their circuits, until the channel ends.
pub(super) async fn accept(shared: Arc<Shared>) {
    let mut arriving = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = shared.ending.wait() => return,
            Some(_) = arriving.join_next() => {}
            // Not more of them than MOST_LANES.
            opened = shared.connection.accept_uni() => match opened {
                Ok(stream) => drop(arriving.spawn(welcome(Arc::clone(&shared), stream))),
                Err(_) => return,
            },
        }
    }
}

/// What belongs to no circuit is dropped, which stops it.
async fn welcome(shared: Arc<Shared>, mut stream: RecvStream) {
    let mut id = [0; 4];
    let read = timeout(shared.config.handshake, stream.read_exact(&mut id)).await;
    let id = CircuitId::new(u32::from_be_bytes(id));
    let circuit = shared.lanes.as_ref().and_then(|lanes| lanes.of(id));
    let (Ok(Ok(())), Some(circuit)) = (read, circuit) else {
        return shared.counts.no_circuits.up();
    };
    let cells = Cells {
        stream,
        reader: Reader::wide(shared.config.largest_variable),
        flow: Arc::clone(&shared.flow),
    };
    // Where the circuit has ended meanwhile, so does the lane.
    drop(circuit.send(cells).await);
}

/// One circuit's lanes from the peer.
pub(super) struct LanesIn {
    arriving: mpsc::Receiver<Cells>,
    opened: u16,
    /// The number of the cell whose turn it is.
    next: u32,
    /// A cell of the circuit's own stream that waits for its turn.
    own: Option<Cell>,
    lanes: Vec<Lane>,
}

/// Nothing is read behind a cell that waits for its turn: it stays in the lane's window.
struct Lane {
    stream: StreamId,
    cells: Cells,
    first: Option<Cell>,
}

impl LanesIn {
    /// The circuit's next cell, from its own stream or a lane.
    pub(super) fn poll_next(
        &mut self,
        own: &mut Cells,
        id: CircuitId,
        cx: &mut Context<'_>,
    ) -> Poll<Read> {
        if self.own.is_none()
            && let Poll::Ready(read) = own.poll_next(cx)
        {
            match read {
                Read::Cell(cell) if is_numbered(&cell) => self.own = Some(cell),
                read => return Poll::Ready(read),
            }
        }
        self.arrive(cx);
        if let Err(malformed) = self.look(cx) {
            return Poll::Ready(malformed);
        }
        match self.take_turn() {
            Some(mut cell) => {
                cell.circuit = id;
                self.next = self.next.wrapping_add(1);
                Poll::Ready(Read::Cell(cell))
            }
            None => Poll::Pending,
        }
    }

    fn arrive(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(cells)) = self.arriving.poll_recv(cx) {
            // Which of the client's streams it is, is for whoever opened it to know.
            self.opened = self.opened.wrapping_add(1).max(1);
            self.lanes.push(Lane {
                stream: StreamId(self.opened),
                cells,
                first: None,
            });
        }
    }

    /// Reads the first cell of each lane, and forgets lanes that have ended.
    fn look(&mut self, cx: &mut Context<'_>) -> Result<(), Read> {
        let mut malformed = false;
        self.lanes.retain_mut(|lane| {
            if lane.first.is_some() {
                return true;
            }
            match lane.cells.poll_next(cx) {
                Poll::Ready(Read::Cell(cell)) => {
                    malformed |= !is_numbered(&cell);
                    lane.first = Some(cell);
                    true
                }
                Poll::Ready(Read::Malformed) => {
                    malformed = true;
                    false
                }
                Poll::Ready(Read::End { .. } | Read::Reset(_)) => false,
                Poll::Pending => true,
            }
        });
        if malformed {
            Err(Read::Malformed)
        } else {
            Ok(())
        }
    }

    fn take_turn(&mut self) -> Option<Cell> {
        let next = self.next;
        let has_turn = |cell: &mut Cell| cell.circuit.number() == next;
        if let Some(cell) = self.own.take_if(has_turn) {
            return Some(cell);
        }
        self.lanes.iter_mut().find_map(|lane| {
            let mut cell = lane.first.take_if(has_turn)?;
            cell.stream = lane.stream;
            Some(cell)
        })
    }
}

/// One circuit's lanes to the peer.
pub(super) struct LanesOut {
    connection: Connection,
    id: CircuitId,
    next: u32,
    priority: i32,
    lanes: HashMap<StreamId, SendStream>,
}

impl LanesOut {
    /// Numbers cells in the order in which they leave.
    pub(super) fn number(&mut self, cells: &mut [Cell]) {
        for cell in cells.iter_mut().filter(|cell| is_numbered(cell)) {
            cell.circuit = CircuitId::new(self.next);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Opens the lane of a stream, if it has none; the circuit's own stream is none.
    pub(super) async fn open(&mut self, stream: StreamId) -> Result<(), Stop> {
        if stream == StreamId::CIRCUIT || self.lanes.contains_key(&stream) {
            return Ok(());
        }
        let lane = self.connection.open_uni().await;
        let mut lane = lane.map_err(|_| Stop::Theirs)?;
        drop(lane.set_priority(self.priority));
        let head = Bytes::copy_from_slice(&self.id.number().to_be_bytes());
        lane.write_chunk(head).await.map_err(|_| Stop::Theirs)?;
        self.lanes.insert(stream, lane);
        Ok(())
    }

    /// The lane of a stream; `None`: it goes by the circuit's own stream.
    pub(super) fn lane(&mut self, stream: StreamId) -> Option<&mut SendStream> {
        self.lanes.get_mut(&stream)
    }

    pub(super) fn set_priority(&mut self, priority: i32) {
        self.priority = priority;
        for lane in self.lanes.values() {
            drop(lane.set_priority(priority));
        }
    }
}
