//! Cuts what a channel brings into cells, without copying their bodies.
//! `link::channel` has one for each direction that it reads. tor-spec: "Cell Packet format".

use bytes::{Buf, BytesMut};

use super::{BODY, Cell, CircuitId, Command, Malformed};

/// The largest cell of variable length that is taken by default, in octets: a CERTS cell has about 2,000.
pub const LARGEST_VARIABLE: usize = 16_384;

/// Cuts octets into cells. Only a cell that came in pieces is copied, at most one for each [`push`](Self::push);
/// so it holds one cell besides what was pushed and not taken yet.
#[derive(Debug)]
pub struct Reader {
    input: BytesMut,
    /// The beginning of a cell whose rest has not come.
    begun: BytesMut,
    wide: bool,
    largest: usize,
    head: (usize, [u8; 7]),
}

/// What a cell's head says.
#[derive(Clone, Copy)]
struct Frame {
    circuit: CircuitId,
    command: Command,
    head: usize,
    body: usize,
}

impl Frame {
    fn whole(&self) -> usize {
        self.head.saturating_add(self.body)
    }
}

impl Reader {
    /// For a new channel: circuit ids have two octets up to and including the first VERSIONS cell, four after it.
    /// `largest` bounds the body of a cell of variable length.
    pub fn new(largest: usize) -> Self {
        Self {
            input: BytesMut::new(),
            begun: BytesMut::new(),
            wide: false,
            largest,
            head: (0, [0; 7]),
        }
    }

    /// For octets behind the VERSIONS cell, or a stream that has none.
    pub fn wide(largest: usize) -> Self {
        Self {
            wide: true,
            ..Self::new(largest)
        }
    }

    /// Takes what has been read. Take all cells before the next push: else this copies.
    pub fn push(&mut self, octets: BytesMut) {
        if self.input.is_empty() {
            self.input = octets;
        } else {
            self.input.unsplit(octets);
        }
    }

    /// The next cell. `None` when more is needed.
    ///
    /// # Errors
    /// [`Malformed`] for a cell that is larger than allowed, ever after: the channel is of no more use.
    #[expect(
        clippy::should_implement_trait,
        reason = "None is not the end: more may be pushed"
    )]
    pub fn next(&mut self) -> Result<Option<Cell>, Malformed> {
        if !self.begun.is_empty() {
            return self.finish_begun();
        }
        let Some(frame) = self.frame(&self.input)? else {
            self.begin();
            return Ok(None);
        };
        if self.input.len() < frame.whole() {
            self.begin();
            return Ok(None);
        }
        let octets = self.input.split_to(frame.whole());
        Ok(Some(self.cell(frame, octets)))
    }

    /// Whether the channel may end here, and not inside a cell.
    pub fn is_between_cells(&self) -> bool {
        self.pending() == 0
    }

    /// Octets that were pushed and are not handed out yet.
    pub fn pending(&self) -> usize {
        self.begun.len().saturating_add(self.input.len())
    }

    /// The octets before the body of the last cell, as they came: hashes of the link handshake are over whole cells.
    pub fn head(&self) -> &[u8] {
        self.head.1.get(..self.head.0).unwrap_or_default()
    }

    fn finish_begun(&mut self) -> Result<Option<Cell>, Malformed> {
        loop {
            let wanted = match self.frame(&self.begun)? {
                Some(frame) if self.begun.len() == frame.whole() => {
                    let octets = std::mem::take(&mut self.begun);
                    return Ok(Some(self.cell(frame, octets)));
                }
                Some(frame) => frame.whole(),
                None => self.begun.len().saturating_add(1),
            };
            if self.input.is_empty() {
                return Ok(None);
            }
            let missing = wanted.saturating_sub(self.begun.len());
            let piece = self.input.split_to(missing.min(self.input.len()));
            self.begun.extend_from_slice(&piece);
        }
    }

    /// Copies the beginning of a cell away, so that the rest of the buffer can be used again.
    fn begin(&mut self) {
        if !self.input.is_empty() {
            self.begun = BytesMut::with_capacity(super::LEN.max(self.input.len()));
            self.begun.extend_from_slice(&self.input);
        }
        self.input = BytesMut::new();
    }

    fn cell(&mut self, frame: Frame, mut octets: BytesMut) -> Cell {
        self.head.0 = frame.head;
        let kept = self.head.1.iter_mut().zip(&octets);
        kept.take(frame.head).for_each(|(to, from)| *to = *from);
        self.wide |= frame.command == Command::VERSIONS;
        octets.advance(frame.head);
        Cell {
            circuit: frame.circuit,
            command: frame.command,
            body: octets,
        }
    }

    /// What the cell at the front of `octets` is, once its head is there.
    fn frame(&self, octets: &[u8]) -> Result<Option<Frame>, Malformed> {
        let mut front = octets;
        let circuit = match self.wide {
            true => front.try_get_u32(),
            false => front.try_get_u16().map(u32::from),
        };
        let (Ok(circuit), Ok(command)) = (circuit, front.try_get_u8()) else {
            return Ok(None);
        };
        let body = match Command(command).is_variable() {
            true => front.try_get_u16().map(usize::from),
            false => Ok(BODY),
        };
        let Ok(body) = body else { return Ok(None) };
        if Command(command).is_variable() && body > self.largest {
            return Err(Malformed("length of a cell"));
        }
        Ok(Some(Frame {
            circuit: CircuitId(circuit),
            command: Command(command),
            head: octets.len().saturating_sub(front.len()),
            body,
        }))
    }
}
