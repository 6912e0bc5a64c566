//! Relay messages as bodies of cells, before they are encrypted.
//! Made by [`super::Endpoint`]. tor-spec "Relay cells".

use bytes::BytesMut;
use hoplite_wire::cell::{
    BODY,
    relay::{self, Format, Header, Message, RelayCommand, Sendme, StreamId},
};

/// A body to be encrypted and sent.
#[derive(Debug)]
pub struct Outbound {
    /// The body, with zeros where the encryption sets something.
    pub body: BytesMut,
    /// The stream that it is for, or the circuit.
    pub stream: StreamId,
    /// It counts towards the circuit's window: its tag is to be told.
    pub counted: bool,
    /// It is a SENDME of the circuit.
    pub(super) acknowledges: bool,
}

/// A message; one that does not fit a cell (a list of answers that is too long) is cut.
pub(super) fn control(
    format: Format,
    message: &Message<'_>,
    stream: StreamId,
    random: fn(&mut [u8]),
) -> Outbound {
    let command = message.command();
    let mut data = Vec::with_capacity(32);
    message.write(&mut data);
    data.truncate(format.most(command));
    let mut body = BytesMut::zeroed(BODY);
    if let Ok(fixed) = body.as_mut().try_into()
        && let Ok(padding) = relay::write(format, fixed, command, stream, &data)
    {
        random(padding);
    }
    Outbound {
        body,
        stream,
        counted: false,
        acknowledges: stream == StreamId::CIRCUIT
            && matches!(message, Message::Sendme(Sendme::V1(_))),
    }
}

/// DATA or DATAGRAM, which count to the circuit's window: `body` has the bytes behind room for the header.
pub(super) fn counted(
    format: Format,
    command: RelayCommand,
    mut body: BytesMut,
    stream: StreamId,
    random: fn(&mut [u8]),
) -> Outbound {
    let filled = body.len();
    body.resize(BODY, 0);
    // "The padding is four zero-valued bytes, followed by as many random bytes as will fit."
    if let Some(padding) = body.get_mut(filled + 4..) {
        random(padding);
    }
    let length = filled.saturating_sub(format.header(command));
    let header = Header {
        format,
        command,
        stream,
        length: u16::try_from(length).unwrap_or(0),
    };
    if let Ok(fixed) = body.as_mut().try_into() {
        // It has a stream, and no more bytes than fit.
        let _written = header.write(fixed);
    }
    Outbound {
        body,
        stream,
        counted: true,
        acknowledges: false,
    }
}

// When a DATA cell of a circuit leaves room for random bytes, so that nobody who has not seen its cells can say
// their digests in a SENDME. Proposal 289 §3.4 ("unpredictable cells"): which cells those are could tell one
// implementation from another, so it is done as C tor does it. A cell that is not full has its random bytes anyway;
// where none such has left in 50 to 99 cells (half of `CIRCWINDOW_INCREMENT`, and a random part of the other), the
// next leaves room for them.

/// `CIRCWINDOW_INCREMENT / 2`.
const HALF: u16 = 50;
/// Bytes of a body that leaves room: for four zeros and 16 random bytes (`RELAY_PAYLOAD_LENGTH_FOR_RANDOM_SENDMES`).
pub(super) const SHORT: usize = BODY - 4 - 16;

/// Counts the DATA cells of one circuit's end.
#[derive(Debug)]
pub(super) struct Unpredictable {
    /// Cells until one must have left room.
    left: u16,
    /// One has.
    has: bool,
    random: fn(&mut [u8]),
}

impl Unpredictable {
    pub(super) fn new(random: fn(&mut [u8])) -> Self {
        let mut new = Self {
            left: 0,
            has: false,
            random,
        };
        new.reset();
        new
    }

    fn reset(&mut self) {
        let mut bytes = [0; 2];
        (self.random)(&mut bytes);
        self.left = HALF + u16::from_be_bytes(bytes) % HALF;
        self.has = false;
    }

    /// How long the next body may become, its header counted.
    pub(super) fn begin(&mut self) -> usize {
        let must = self.left == 0 && !self.has;
        if self.left == 0 {
            self.reset();
        }
        self.left -= 1;
        if must { SHORT } else { BODY }
    }

    /// A body of such a length leaves. One that had to be short has its room for what came before it, not for what comes.
    pub(super) fn sent(&mut self, length: usize) {
        self.has |= length < SHORT;
    }

    /// A body has left that had room for random bytes whatever was in it.
    pub(super) fn left_room(&mut self) {
        self.has = true;
    }
}

#[cfg(test)]
mod unpredictable_tests {
    use super::*;

    fn random(bytes: &mut [u8]) {
        crate::random(bytes);
    }

    /// After how many full cells each short one came, of this many.
    fn gaps(cells: usize, mut partial: impl FnMut(usize) -> bool) -> Vec<usize> {
        let mut unpredictable = Unpredictable::new(random);
        let (mut gaps, mut since) = (Vec::new(), 0);
        for n in 0..cells {
            let length = unpredictable.begin();
            since += 1;
            if length == SHORT {
                gaps.push(std::mem::take(&mut since));
            }
            unpredictable.sent(if partial(n) { 12 } else { length });
        }
        gaps
    }

    #[test]
    fn full_cells_leave_room_after_50_to_99_others_and_never_by_the_same_count() {
        let gaps = gaps(100_000, |_| false);
        let [first, rest @ ..] = &gaps[..] else {
            panic!("none");
        };
        assert!((51..=100).contains(first), "{first}");
        assert!(rest.iter().all(|gap| (50..=99).contains(gap)));
        for gap in 50..=99 {
            assert!(rest.contains(&gap), "{gap}");
        }
    }

    #[test]
    fn who_sends_a_cell_that_is_not_full_now_and_then_never_shortens_one() {
        assert!(gaps(100_000, |n| n % 50 == 7).is_empty());
    }
}
