//! One stream at one end of a circuit: its two queues, its flow control, how it was answered and how it ended.
//! [`super::Endpoint`] owns it; [`super::io`] reads and writes it. tor-spec "Opening streams and transferring data", "Closing streams".

use std::{collections::VecDeque, net::IpAddr, sync::Arc, task::Waker};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hoplite_channel::Tally;
use hoplite_overlay::Error;
use hoplite_wire::cell::{
    BODY,
    relay::{End, EndReason, Format},
};

use super::{Broken, Late, Limits, RelayCommand, legs::Coming, message::Unpredictable};
use crate::{
    channel::CircuitBacklog,
    failure,
    flow_control::{
        Control,
        stream::{FlowControlMessage, Incoming, Outgoing, Taken},
    },
};

/// Cells that wait as one piece, fewer than a SENDME of a stream acknowledges.
const PIECE: u32 = 32;

/// A good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The stream is open.
    Connected,
    /// The UDP stream is open.
    ConnectedUdp,
    /// The name's addresses.
    Addresses(Vec<IpAddr>),
}

/// What a stream has to send.
#[derive(Debug)]
pub(super) enum Produced {
    /// A body with bytes behind room for the header, and whether there is more.
    Cell(BytesMut, bool),
    /// Something, when the circuit's window opens.
    Later,
    /// That this side has ended.
    End,
    Nothing,
}

/// Bytes that wait for the reader.
#[derive(Debug)]
struct Piece {
    bytes: BytesMut,
    cells: u32,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) outgoing: Outgoing,
    incoming: Incoming,
    half_close: bool,
    at_exit: bool,
    answer: Option<Result<Answer, Error>>,
    /// Bytes of the header of DATA.
    header: usize,
    /// Bodies with room for the header; only the last has room for more.
    sending: VecDeque<BytesMut>,
    /// How many those are, of all of the circuit.
    queued: Share,
    /// How long the last of them may become.
    full: usize,
    waiting: VecDeque<Piece>,
    /// How many bytes those are, of all of the circuit, and with them what the reader was handed last.
    held: Share,
    handed: usize,
    in_turn: bool,
    /// This side has finished; END follows what is queued.
    finished: bool,
    end_sent: bool,
    ended: Option<End>,
    /// It was ended here, while neither its reader nor the peer had; what still comes is thrown away.
    cut: bool,
    /// And so much may still come, at a client.
    late: Option<Late>,
    /// Nobody holds the handle any more.
    dropped: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl Stream {
    /// `held` and `queued` are its shares of what waits.
    pub(super) fn new(
        control: Control,
        format: Format,
        limits: &Limits,
        half_close: bool,
        [held, queued]: [Share; 2],
    ) -> Self {
        Self {
            outgoing: Outgoing::new(control),
            incoming: Incoming::new(control, limits.waiting),
            half_close,
            at_exit: false,
            answer: None,
            header: format.header(RelayCommand::DATA),
            sending: VecDeque::new(),
            queued,
            full: 0,
            waiting: VecDeque::new(),
            held,
            handed: 0,
            in_turn: false,
            finished: false,
            end_sent: false,
            ended: None,
            cut: false,
            late: None,
            dropped: false,
            reader: None,
            writer: None,
        }
    }

    pub(super) fn at_exit(mut self) -> Self {
        self.at_exit = true;
        self
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn answer(&mut self, answer: Result<Answer, Error>) {
        self.answer = Some(answer);
        self.wake();
    }

    pub(super) fn said(&self) -> Option<&Result<Answer, Error>> {
        self.answer.as_ref()
    }

    pub(super) fn receive(&mut self, data: &[u8]) -> Result<Option<FlowControlMessage>, Broken> {
        if self.cut {
            return Ok(None);
        }
        if self.ended.is_some() {
            return Err(Broken::Unexpected(RelayCommand::DATA));
        }
        let say = self.incoming.received(data.len())?;
        if data.is_empty() || self.dropped {
            let bytes = data.len();
            let taken = self.incoming.taken(Taken { cells: 1, bytes });
            return Ok(say.or(taken));
        }
        self.keep(data);
        wake(&mut self.reader);
        Ok(say)
    }

    /// A copy: whoever reads may stop at any time, and must not hold the large buffer of the channel that a cell came in.
    fn keep(&mut self, data: &[u8]) {
        self.held.add(data.len());
        if let Some(last) = self.waiting.back_mut()
            && last.cells < PIECE
        {
            last.bytes.extend_from_slice(data);
            last.cells += 1;
            return;
        }
        self.waiting.push_back(Piece {
            bytes: BytesMut::from(data),
            cells: 1,
        });
    }

    /// What waits longest, and what is to be said for it.
    pub(super) fn fetch(&mut self) -> Option<(Bytes, Option<FlowControlMessage>)> {
        // Whoever asks for more has nothing left of the last.
        self.held.take(std::mem::take(&mut self.handed));
        let piece = self.waiting.pop_front()?;
        self.handed = piece.bytes.len();
        let say = self.incoming.taken(Taken {
            cells: piece.cells,
            bytes: piece.bytes.len(),
        });
        Some((piece.bytes.freeze(), say))
    }

    /// Copies of what waits as much as fits; it stays. How much.
    pub(super) fn peek(&self, into: &mut [u8]) -> usize {
        let most = into.len();
        let mut rest = into;
        for piece in &self.waiting {
            let fits = piece.bytes.len().min(rest.len());
            rest.put(piece.bytes.chunk().take(fits));
        }
        most - rest.len()
    }

    /// Takes of what waits longest, at most so much: how much that was, and what is to be said for it.
    pub(super) fn consume(&mut self, most: usize) -> Option<(usize, Option<FlowControlMessage>)> {
        let piece = self.waiting.front_mut()?;
        let bytes = piece.bytes.len().min(most);
        piece.bytes.advance(bytes);
        let cells = if piece.bytes.is_empty() {
            self.waiting.pop_front().map_or(0, |piece| piece.cells)
        } else {
            0
        };
        self.held.take(bytes);
        Some((bytes, self.incoming.taken(Taken { cells, bytes })))
    }

    /// The peer has ended its side, or all of it.
    pub(super) fn end(&mut self, end: End) {
        if self.answer.is_none() && !self.at_exit {
            self.answer = Some(Err(failure::ended(end.reason)));
        }
        // A second END takes back the first, orderly one: the peer has dropped the stream.
        self.ended = Some(end);
        if !self.is_writable() {
            self.unqueue();
        }
        self.wake();
    }

    /// Ends it, and lets go of all that waits. It stays until its handle is dropped: so it counts as long as somebody serves it.
    pub(super) fn cut(&mut self, reason: EndReason, late: Option<Late>) {
        self.late = self.late.or(late);
        self.cut = true;
        self.waiting.clear();
        self.held.take(usize::MAX);
        self.unqueue();
        self.end(End::new(reason));
    }

    /// Whether the peer may say so now: once, and once more to take back an orderly end.
    pub(super) fn may_end(&self, end: End) -> bool {
        self.ended.is_none_or(|ended| {
            self.half_close && ended.reason == EndReason::DONE && end.reason != EndReason::DONE
        })
    }

    /// What may still come when it is forgotten now.
    pub(super) fn late(&self, circuit: Coming) -> Late {
        self.late.unwrap_or_else(|| Late::new(self, circuit))
    }

    /// What may still come on it, if it was cut.
    pub(super) fn cut_off(&mut self) -> Option<&mut Late> {
        self.late.as_mut()
    }

    /// How the peer has ended it.
    pub(super) fn ended(&self) -> Option<End> {
        self.ended
    }

    /// Whether the peer ends its side alone.
    pub(super) fn knows_half_close(&self) -> bool {
        self.half_close
    }

    /// DATA cells that the peer may still send, where the stream has a window.
    pub(super) fn window(&self) -> Option<u32> {
        match self.incoming {
            Incoming::Window { allowed, .. } => Some(allowed),
            Incoming::Xon { .. } => None,
        }
    }

    /// The circuit has closed.
    pub(super) fn close(&mut self) {
        self.unqueue();
        self.wake();
    }

    fn unqueue(&mut self) {
        self.sending.clear();
        self.queued.take(usize::MAX);
    }

    /// Bytes that wait for its reader.
    pub(super) fn held(&self) -> usize {
        self.held.own()
    }

    /// Why reading ends, once nothing waits: `Ok` is an orderly end.
    pub(super) fn read_end(&self) -> Option<Result<(), Error>> {
        let end = self.ended?;
        let orderly = match (self.at_exit, self.half_close) {
            _ if self.cut => false,
            // A client of C tor gives no other reason than MISC.
            (true, false) => true,
            _ => end.reason == EndReason::DONE,
        };
        Some(if orderly {
            Ok(())
        } else {
            Err(failure::ended(end.reason))
        })
    }

    /// Whether bytes may still be sent.
    pub(super) fn is_writable(&self) -> bool {
        match self.ended {
            None => true,
            Some(_) if self.cut => false,
            Some(end) => self.half_close && end.reason == EndReason::DONE,
        }
    }

    /// Whether the peer has not reset the stream.
    fn is_allowed(&self) -> bool {
        !self.half_close || self.is_writable()
    }

    /// Whether all is said and answered, if this side has finished, and cannot tell the peer without ending his.
    pub(super) fn lingers(&self) -> Option<bool> {
        let waits = self.finished && !self.half_close && !self.at_exit && self.ended.is_none();
        waits.then(|| self.sending.is_empty() && self.is_answered())
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes what there is room for into bodies, of which there may be `most`.
    pub(super) fn write(
        &mut self,
        mut bytes: &[u8],
        most: usize,
        unpredictable: &mut Unpredictable,
    ) -> usize {
        let before = bytes.len();
        while !bytes.is_empty() {
            let Some(room) = self.room(most, unpredictable) else {
                break;
            };
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some(body) = self.sending.back_mut() {
                body.extend_from_slice(now);
            }
            bytes = later;
        }
        before - bytes.len()
    }

    /// Room in the last body; begins another if there is none and the queue is not full.
    fn room(&mut self, most: usize, unpredictable: &mut Unpredictable) -> Option<usize> {
        let last = self.sending.back();
        let room = last.map_or(0, |body| self.full.saturating_sub(body.len()));
        if room > 0 {
            return Some(room);
        }
        if self.sending.len() >= most {
            return None;
        }
        self.full = unpredictable.begin();
        let mut body = BytesMut::with_capacity(BODY);
        body.resize(self.header, 0);
        self.sending.push_back(body);
        self.queued.add(1);
        Some(self.full.saturating_sub(self.header))
    }

    /// How much [`write`](Self::write) takes now, and no more than that.
    pub(super) fn may_write(&self, most: usize) -> usize {
        let last = self.sending.back();
        let room = last.map_or(0, |body| self.full.saturating_sub(body.len()));
        let bodies = most.saturating_sub(self.sending.len());
        room + bodies * (BODY - self.header)
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// The handle is gone. Answers whether the stream is to be reset: not both sides had ended.
    pub(super) fn drop_handle(&mut self) -> bool {
        self.dropped = true;
        self.waiting.clear();
        self.held.take(usize::MAX);
        let alone = self.at_exit && !self.half_close;
        !(self.finished && (self.ended.is_some() || alone))
    }

    /// Whether nobody holds the handle any more.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Whether the peer has forgotten it already: he knows no half-closed streams, or was told.
    pub(super) fn is_told(&self) -> bool {
        self.ended.is_some() && (self.cut || !self.half_close)
    }

    /// Nothing is left to be done.
    pub(super) fn is_over(&self) -> bool {
        let sent = self.end_sent || !self.is_writable();
        self.dropped && sent && self.ended.is_some()
    }

    /// Whether it was not in the turn already.
    pub(super) fn enter_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.in_turn, true)
    }

    pub(super) fn leave_turn(&mut self) {
        self.in_turn = false;
    }

    pub(super) fn queues_nothing(&self) -> bool {
        self.sending.is_empty()
    }

    pub(super) fn produce(&mut self, may_send: bool) -> Produced {
        // An exit sends nothing before CONNECTED; a client may, after BEGIN ("optimistic data").
        if self.at_exit && self.answer.is_none() {
            return Produced::Nothing;
        }
        if self.sending.is_empty() {
            return self.produce_end();
        }
        if !self.outgoing.may_send() {
            return Produced::Nothing;
        }
        if !may_send {
            return Produced::Later;
        }
        let Some(body) = self.sending.pop_front() else {
            return Produced::Nothing;
        };
        self.queued.take(1);
        self.outgoing.sent(body.len().saturating_sub(self.header));
        wake(&mut self.writer);
        let more = !self.sending.is_empty() || (self.finished && !self.end_sent);
        Produced::Cell(body, more)
    }

    /// Where the other end knows no half-closed streams, END would cut off what it still has to say.
    fn produce_end(&mut self) -> Produced {
        let may_end = self.half_close || self.ended.is_some() || self.at_exit;
        if !self.finished || self.end_sent || !may_end {
            return Produced::Nothing;
        }
        self.end_sent = true;
        let told = self.is_told();
        if !self.half_close {
            // There END ends both sides.
            self.end(self.ended.unwrap_or(End::new(EndReason::DONE)));
        }
        if told || !self.is_allowed() {
            Produced::Nothing
        } else {
            Produced::End
        }
    }

    pub(super) fn owned(&self) -> usize {
        let sending: usize = self.sending.iter().map(BytesMut::capacity).sum();
        let waiting: usize = self
            .waiting
            .iter()
            .map(|piece| piece.bytes.capacity())
            .sum();
        let queues = self.sending.capacity() * size_of::<BytesMut>()
            + self.waiting.capacity() * size_of::<Piece>();
        size_of::<Self>() + sending + waiting + queues
    }

    fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

pub(super) fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

// What the streams of one circuit's end hold together: each has a share of the sum, and gives it back when it goes.
// The channel sees the sums too, in its [`CircuitBacklog`].

/// The sum of all shares.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    kept: Arc<CircuitBacklog>,
    which: fn(&CircuitBacklog) -> &Tally,
    /// Its shares alone: others may count to the same backlog.
    shares: Arc<Tally>,
}

/// One stream's.
#[derive(Debug)]
pub(super) struct Share {
    sum: Sum,
    own: usize,
}

impl Sum {
    /// Of bytes that came on the circuit.
    pub(super) fn received(kept: &Arc<CircuitBacklog>) -> Self {
        Self {
            kept: Arc::clone(kept),
            which: |kept| &kept.received,
            shares: Arc::default(),
        }
    }

    /// Of cells that are to be sent on it.
    pub(super) fn sending(kept: &Arc<CircuitBacklog>) -> Self {
        Self {
            kept: Arc::clone(kept),
            which: |kept| &kept.sending,
            shares: Arc::default(),
        }
    }

    fn tallies(&self) -> [&Tally; 2] {
        [(self.which)(&self.kept), &self.shares]
    }

    pub(super) fn total(&self) -> usize {
        usize::try_from(self.shares.waiting()).unwrap_or(usize::MAX)
    }

    /// A share of nothing yet.
    pub(super) fn share(&self) -> Share {
        Share {
            sum: self.clone(),
            own: 0,
        }
    }
}

impl Share {
    pub(super) fn own(&self) -> usize {
        self.own
    }

    pub(super) fn add(&mut self, more: usize) {
        self.own += more;
        let tallies = self.sum.tallies();
        tallies.iter().for_each(|tally| tally.came(more as u64));
    }

    /// At most as much as there is.
    pub(super) fn take(&mut self, less: usize) {
        let less = less.min(self.own);
        self.own -= less;
        let tallies = self.sum.tallies();
        tallies.iter().for_each(|tally| tally.left(less as u64));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.take(self.own);
    }
}
