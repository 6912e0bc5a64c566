//! Reads a circuit's stream, by whoever reads the circuit: what nobody reads stays in the stream's window, and stops that stream alone.
//! And the control stream, whose cells say nothing to us after the handshake.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::cell::{Cell, CircuitId, Command, Reader};
use quinn::{ReadError, RecvStream, VarInt};

use super::{PROTOCOL, code, reason};
use crate::channel::{Counts, Why, hoard::Gauge, tls::destroy};

/// How many pieces are taken from a stream at once: as many packets have a batch of cells.
const PIECES: usize = 16;
/// After so many cells that say nothing, others get their turn first.
const MOST_IGNORED: usize = 64;

/// A stream with its cells.
struct Cells {
    stream: RecvStream,
    reader: Reader,
}

/// A stream that may become a circuit.
pub(super) struct First {
    cells: Cells,
    /// The one that says which circuit it is.
    first: Option<Cell>,
}

/// One circuit's receiving side.
pub(crate) struct Inbound {
    cells: Cells,
    first: Option<Cell>,
    id: CircuitId,
    counts: Arc<Counts>,
    gauge: Arc<Gauge>,
    /// Cells that were read, and whether more had come when the last was.
    read: u64,
    behind: bool,
    ended: bool,
}

/// What comes of reading.
enum Read {
    Cell(Cell),
    /// The stream has ended, between cells or within one.
    End {
        cut: bool,
    },
    /// It was reset, or the connection is gone.
    Reset(Option<u8>),
    Malformed,
}

impl Cells {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        loop {
            match self.reader.next() {
                Ok(Some(cell)) => return Poll::Ready(Read::Cell(cell)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Read::Malformed),
            }
            match ready!(poll_pieces(&mut self.stream, cx)) {
                Ok(Some(octets)) => self.reader.push(octets),
                Ok(None) => {
                    let cut = !self.reader.is_between_cells();
                    return Poll::Ready(Read::End { cut });
                }
                Err(ReadError::Reset(code)) => return Poll::Ready(Read::Reset(reason(code))),
                Err(_) => return Poll::Ready(Read::Reset(None)),
            }
        }
    }
}

/// All that has come, in memory of its own: a stream that rests keeps no buffer.
fn poll_pieces(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BytesMut>, ReadError>> {
    let mut pieces: [Bytes; PIECES] = std::array::from_fn(|_| Bytes::new());
    let count = ready!(pin!(stream.read_chunks(&mut pieces)).poll(cx))?;
    let Some(count) = count else {
        return Poll::Ready(Ok(None));
    };
    let pieces = pieces.iter().take(count);
    let mut octets = BytesMut::with_capacity(pieces.clone().map(Bytes::len).sum());
    pieces.for_each(|piece| octets.extend_from_slice(piece));
    Poll::Ready(Ok(Some(octets)))
}

impl First {
    pub(super) fn of(stream: RecvStream, largest: usize) -> Self {
        let reader = Reader::wide(largest);
        Self {
            cells: Cells { stream, reader },
            first: None,
        }
    }

    /// The id of the circuit that the first cell makes; `None` if it makes none.
    pub(super) async fn read(&mut self) -> Option<CircuitId> {
        let read = poll_fn(|cx| self.cells.poll_next(cx)).await;
        let Read::Cell(cell) = read else {
            return None;
        };
        let id = makes_circuit(cell.command).then_some(cell.circuit);
        self.first = Some(cell);
        id
    }

    pub(super) fn stop(&mut self, code: VarInt) {
        drop(self.cells.stream.stop(code));
    }

    pub(super) fn inbound(self, id: CircuitId, counts: Arc<Counts>, gauge: Arc<Gauge>) -> Inbound {
        Inbound {
            cells: self.cells,
            first: self.first,
            id,
            counts,
            gauge,
            read: 0,
            behind: true,
            ended: false,
        }
    }
}

fn makes_circuit(command: Command) -> bool {
    let makes = [Command::CREATE, Command::CREATE_FAST, Command::CREATE2];
    makes.contains(&command)
}

impl Inbound {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        for _ in 0..MOST_IGNORED {
            if self.ended {
                return Poll::Ready(None);
            }
            let read = self.cells.poll_next(cx);
            self.note(read.is_ready());
            let read = ready!(read);
            if let Some(cell) = self.judge(read) {
                return Poll::Ready(Some(cell));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn note(&mut self, behind: bool) {
        if std::mem::replace(&mut self.behind, behind) != behind {
            self.gauge.is_behind(behind);
        }
        if behind {
            self.read = self.read.wrapping_add(1);
            self.gauge.read(self.read);
        }
    }

    pub(crate) fn buffered(&self) -> usize {
        usize::from(self.first.is_some())
    }

    /// What the circuit gets to see of it.
    fn judge(&mut self, read: Read) -> Option<Cell> {
        match read {
            Read::Cell(cell) if cell.circuit != self.id => self.break_off(),
            Read::Cell(cell) => self.sort(cell),
            Read::Malformed => self.break_off(),
            Read::End { cut } => {
                self.ended = true;
                if cut {
                    self.counts.cut.up();
                }
                None
            }
            Read::Reset(reason) => {
                self.ended = true;
                reason.map(|reason| destroy(self.id, reason))
            }
        }
    }

    fn sort(&mut self, cell: Cell) -> Option<Cell> {
        match cell.command {
            Command::RELAY
            | Command::RELAY_EARLY
            | Command::CREATED
            | Command::CREATED_FAST
            | Command::CREATED2 => return Some(cell),
            Command::DESTROY => {
                self.ended = true;
                return Some(cell);
            }
            Command::PADDING | Command::VPADDING => {}
            command if makes_circuit(command) => self.counts.collisions.up(),
            _ => self.counts.ignored.up(),
        }
        None
    }

    /// A stream that carries what is not its circuit's ends here; the circuit is told like any that the peer destroys.
    fn break_off(&mut self) -> Option<Cell> {
        self.ended = true;
        self.counts.mismatched.up();
        drop(self.cells.stream.stop(code(PROTOCOL)));
        Some(destroy(self.id, PROTOCOL))
    }
}

/// Reads the control stream until it ends.
pub(super) async fn control(stream: &mut RecvStream, reader: &mut Reader, counts: &Counts) -> Why {
    loop {
        loop {
            match reader.next() {
                Ok(Some(cell)) if !cell.circuit.is_channel() => {
                    return Why::Violation("a circuit's cell on the control stream");
                }
                Ok(Some(cell)) if is_padding(cell.command) => {}
                Ok(Some(_)) => counts.ignored.up(),
                Ok(None) => break,
                Err(_) => return Why::Violation("a malformed cell on the control stream"),
            }
        }
        match poll_fn(|cx| poll_pieces(stream, cx)).await {
            Ok(Some(octets)) => reader.push(octets),
            Ok(None) | Err(_) => return Why::Gone,
        }
        tokio::task::yield_now().await;
    }
}

fn is_padding(command: Command) -> bool {
    let padding = [
        Command::PADDING,
        Command::VPADDING,
        Command::PADDING_NEGOTIATE,
    ];
    padding.contains(&command)
}
