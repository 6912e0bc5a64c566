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

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
};

use hoplite_quic::{Connection, ConnectionError, RecvStream, SendStream};
use hoplite_wire::cell::{Cell, CircuitId, Command, Reader, relay::StreamId};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::{Cells, Context, Read, Shared, Stop, Waiting};

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
            opening: None,
            runs: VecDeque::new(),
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
        taken: 0,
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
    /// The lane of the first run.
    opening: Option<Opening>,
    /// Cells that wait, those that follow each other on one lane together.
    runs: VecDeque<(StreamId, Waiting)>,
}

type Opening = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

impl LanesOut {
    /// Takes a cell. RELAY cells are numbered in the order in which they come.
    pub(super) fn push(&mut self, mut cell: Cell) {
        if is_numbered(&cell) {
            cell.circuit = CircuitId::new(self.next);
            self.next = self.next.wrapping_add(1);
        }
        match self.runs.back_mut() {
            Some((stream, run)) if *stream == cell.stream => run.push(&cell),
            _ => {
                let mut run = Waiting::default();
                run.push(&cell);
                self.runs.push_back((cell.stream, run));
            }
        }
    }

    /// How many bytes wait.
    pub(super) fn waits(&self) -> usize {
        self.runs.iter().map(|(_, run)| run.len()).sum()
    }

    /// Has the lanes take what waits, and opens those that are not there; what is the circuit's own goes by `own`.
    pub(super) fn poll_write(
        &mut self,
        own: &mut SendStream,
        cx: &mut Context<'_>,
        taken: &mut u64,
    ) -> Poll<Result<(), Stop>> {
        while let Some((stream, mut run)) = self.runs.pop_front() {
            let written = match self.poll_lane(stream, cx) {
                Poll::Ready(Ok(lane)) => run.poll_write(lane.unwrap_or(own), cx, taken),
                Poll::Ready(Err(stop)) => Poll::Ready(Err(stop)),
                Poll::Pending => Poll::Pending,
            };
            if !run.is_empty() {
                self.runs.push_front((stream, run));
            }
            ready!(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// The lane of a stream, opened if there is none; `None`: it goes by the circuit's own stream.
    fn poll_lane(
        &mut self,
        stream: StreamId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<&mut SendStream>, Stop>> {
        if stream != StreamId::CIRCUIT && !self.lanes.contains_key(&stream) {
            let (connection, id) = (self.connection.clone(), self.id);
            let opening = self.opening.get_or_insert_with(|| {
                Box::pin(async move {
                    let mut lane = connection.open_uni().await?;
                    // What breaks it is told by what is written next.
                    drop(lane.write_all(&id.number().to_be_bytes()).await);
                    Ok(lane)
                })
            });
            let lane = ready!(opening.as_mut().poll(cx));
            self.opening = None;
            let Ok(lane) = lane else {
                return Poll::Ready(Err(Stop::Theirs));
            };
            drop(lane.set_priority(self.priority));
            self.lanes.insert(stream, lane);
        }
        Poll::Ready(Ok(self.lanes.get_mut(&stream)))
    }

    pub(super) fn set_priority(&mut self, priority: i32) {
        self.priority = priority;
        for lane in self.lanes.values() {
            drop(lane.set_priority(priority));
        }
    }
}
