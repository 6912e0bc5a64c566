//! One case after the other, by what a program sees.

use super::*;
use crate::tun::tcp::connection::{CloseReason, OutgoingSegment, Seq};
use hoplite_wire::ip::tcp::Options;

const ISS: u32 = 1000;
const IRS: u32 = u32::MAX;

struct Case {
    connection: Connection,
    now: Instant,
    /// The next byte of the program, and the next that it expects.
    seq: u32,
    ack: u32,
}

fn syn() -> Letter {
    let mut syn = letter(IRS, 0, Flags::SYN.0, 65_535, 0);
    syn.header.options = Options {
        mss: Some(1400),
        window_scale: Some(4),
        ..Options::default()
    };
    syn
}

fn settings() -> Settings {
    Settings {
        isn: ISS,
        window: 1 << 20,
        floor: memory_floor(1 << 20),
        mss: 1460,
        default_mss: 536,
        idle: Duration::ZERO,
    }
}

impl Case {
    /// The SYN has come, and is answered.
    fn answered() -> Self {
        let now = Instant::now();
        let mut connection = Connection::new(&syn().segment(), settings());
        connection.accept(now);
        Self {
            connection,
            now,
            seq: IRS.wrapping_add(1),
            ack: ISS + 1,
        }
    }

    fn open() -> Self {
        let mut case = Self::answered();
        assert_eq!(case.flags(), [Flags::SYN | Flags::ACK]);
        case.ack();
        assert!(case.connection.is_open());
        case
    }

    fn hear(&mut self, flags: Flags, payload: &[u8]) {
        self.hear_window(flags, payload, 65_535);
    }

    fn hear_window(&mut self, flags: Flags, payload: &[u8], window: u16) {
        let mut heard = letter(self.seq, self.ack, flags.0, window, 0);
        heard.payload = payload.to_vec();
        hear(&mut self.connection, &heard, self.now);
        let fin = u32::from(flags.contains(Flags::FIN));
        let len = u32::try_from(payload.len()).expect("small");
        self.seq = self.seq.wrapping_add(len + fin);
    }

    fn ack(&mut self) {
        self.hear(Flags::ACK, b"");
    }

    fn all(&mut self) -> Vec<OutgoingSegment> {
        std::iter::from_fn(|| self.connection.transmit(self.now)).collect()
    }

    /// The flags of all packets that leave now.
    fn flags(&mut self) -> Vec<Flags> {
        let all = self.all();
        all.iter().map(|packet| packet.header.flags).collect()
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
        self.connection.expire(self.now);
    }

    /// Waits for the connection's own deadline.
    fn wait_for_timer(&mut self) {
        self.now = self.connection.timeout().expect("armed");
        self.connection.expire(self.now);
    }
}

const ACK: &[Flags] = &[Flags::ACK];

#[test]
fn a_syn_is_answered_with_our_options_and_again_until_it_is_confirmed() {
    let mut case = Case::answered();
    let first = case.all().remove(0).header;
    let expected = Options {
        mss: Some(1460),
        window_scale: Some(5),
        ..Options::default()
    };
    assert_eq!((first.options, first.window), (expected, 65_535));
    assert_eq!((first.sequence, first.acknowledgment), (ISS, 0));
    hear(&mut case.connection, &syn(), case.now);
    assert_eq!(case.flags(), [Flags::SYN | Flags::ACK]);
    case.wait(200);
    assert_eq!(case.flags(), [Flags::SYN | Flags::ACK]);
    while case.connection.ended().is_none() {
        case.wait_for_timer();
    }
    assert_eq!(case.connection.ended(), Some(CloseReason::Broken));
    assert!(case.connection.timeout().is_none());
}

#[test]
fn a_program_that_offers_no_scaling_gets_windows_of_sixteen_bits() {
    let mut plain = syn();
    plain.header.options = Options::default();
    let mut connection = Connection::new(&plain.segment(), settings());
    connection.accept(Instant::now());
    let answer = connection
        .transmit(Instant::now())
        .expect("an answer")
        .header;
    assert_eq!(answer.options.window_scale, None);
    assert_eq!(connection.send.mss(), 536);
}

#[test]
fn a_held_syn_is_not_answered_and_its_refusal_is_a_reset_that_the_program_believes() {
    let now = Instant::now();
    let mut connection = Connection::new(&syn().segment(), settings());
    hear(&mut connection, &syn(), now);
    assert!(connection.transmit(now).is_none() && connection.timeout().is_none());
    connection.reset();
    let reset = connection.transmit(now).expect("a reset").header;
    assert_eq!(reset.flags, Flags::RST | Flags::ACK);
    assert_eq!((reset.sequence, reset.acknowledgment), (0, 0));
    assert!(connection.transmit(now).is_none());
}

#[test]
fn a_confirmation_of_something_else_is_answered_by_a_reset() {
    let mut case = Case::answered();
    case.all();
    case.ack += 5;
    case.ack();
    let resets = case.all();
    assert_eq!(resets[0].header.sequence, case.ack);
    assert!(resets[0].header.flags.contains(Flags::RST));
    assert!(!case.connection.is_open() && case.connection.ended().is_none());
}

#[test]
fn a_batch_of_segments_is_acknowledged_once() {
    let mut case = Case::open();
    for _ in 0..10 {
        case.hear(Flags::ACK | Flags::URG, b"0123456789");
    }
    assert_eq!(case.connection.readable(), 100);
    let acks = case.all();
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].header.acknowledgment, case.seq);
}

#[test]
fn a_keep_alive_is_answered() {
    let mut case = Case::open();
    for bytes in [&b""[..], b"x"] {
        let mut alive = letter(case.seq.wrapping_sub(1), case.ack, 16, 9, 0);
        alive.payload = bytes.to_vec();
        hear(&mut case.connection, &alive, case.now);
        assert_eq!(case.flags(), ACK);
    }
    assert_eq!(case.connection.readable(), 0);
}

#[test]
fn a_probe_of_a_closed_window_is_answered_and_its_byte_not_taken() {
    let mut case = Case::open();
    let before = case.seq;
    case.hear(Flags::ACK, b"x");
    assert_eq!(case.flags(), ACK);
    case.hear(Flags::ACK, &vec![0; 2 << 20]);
    let taken = u32::try_from(case.connection.readable()).expect("small");
    assert!(taken > 1_000_000);
    case.seq = before.wrapping_add(taken);
    let closed = case.all();
    assert_eq!((closed.len(), closed[0].header.window), (1, 0));
    let heard = letter(case.seq, case.ack, 16, 9, 1);
    hear(&mut case.connection, &heard, case.now);
    let answer = case.all().remove(0).header;
    assert_eq!((answer.acknowledgment, answer.window), (case.seq, 0));
    case.connection.consume(1 << 19);
    let update = case.all();
    assert_eq!(update.len(), 1);
    assert!(update[0].header.window > 0);
}

#[test]
fn only_a_reset_with_the_next_number_is_believed() {
    let mut case = Case::open();
    let right = case.seq;
    for wrong in [right.wrapping_add(1), right.wrapping_add(60_000)] {
        case.seq = wrong;
        case.hear(Flags::RST, b"");
        assert_eq!(case.flags(), ACK, "a challenge");
    }
    for outside in [right.wrapping_sub(1), right.wrapping_add(1 << 30)] {
        case.seq = outside;
        case.hear(Flags::RST, b"");
        assert!(case.flags().is_empty());
    }
    assert!(case.connection.is_open());
    case.seq = right;
    case.hear(Flags::RST, b"");
    assert_eq!(case.connection.ended(), Some(CloseReason::Broken));
}

#[test]
fn a_syn_in_an_open_connection_is_challenged() {
    let mut case = Case::open();
    case.hear(Flags::SYN, b"");
    assert_eq!(case.flags(), ACK);
    assert!(case.connection.is_open());
}

#[test]
fn an_impossible_acknowledgement_is_challenged_and_its_bytes_are_dropped() {
    let mut case = Case::open();
    case.ack += 1;
    case.hear(Flags::ACK, b"abc");
    assert_eq!(case.flags(), ACK);
    assert_eq!(case.connection.readable(), 0);
}

#[test]
fn the_target_may_finish_first_and_the_program_goes_on() {
    let mut case = Case::open();
    case.connection.push(b"bye");
    case.connection.finish(case.now);
    assert_eq!(case.flags(), [Flags::ACK | Flags::PSH | Flags::FIN]);
    case.ack += 4;
    case.hear(Flags::ACK, b"more");
    assert_eq!(case.flags(), ACK);
    case.hear(Flags::ACK | Flags::FIN, b"end");
    assert_eq!(case.flags(), ACK);
    assert!(!case.connection.read_ended() && case.connection.ended().is_none());
    case.connection.consume(7);
    assert!(case.connection.read_ended());
    case.wait(999);
    case.seq = case.seq.wrapping_sub(1);
    case.hear(Flags::ACK | Flags::FIN, b"");
    assert_eq!(case.flags(), ACK, "its end once more");
    case.wait(999);
    assert!(case.connection.ended().is_none());
    case.wait(1);
    assert_eq!(case.connection.ended(), Some(CloseReason::Complete));
}

#[test]
fn the_program_may_finish_first_and_the_target_goes_on() {
    let mut case = Case::open();
    case.hear(Flags::ACK | Flags::FIN, b"request");
    assert_eq!(case.flags(), ACK);
    case.connection.push(b"answer");
    assert_eq!(case.flags(), [Flags::ACK | Flags::PSH]);
    case.connection.finish(case.now);
    assert_eq!(case.flags(), [Flags::ACK | Flags::PSH | Flags::FIN]);
    case.ack += 7;
    case.ack();
    assert_eq!(case.connection.ended(), Some(CloseReason::Complete));
    assert_eq!(
        case.connection.readable(),
        7,
        "the overlay may still take it"
    );
}

#[test]
fn both_may_finish_at_once() {
    let mut case = Case::open();
    case.connection.finish(case.now);
    case.all();
    case.hear(Flags::ACK | Flags::FIN, b"");
    assert_eq!(case.flags(), ACK);
    assert!(case.connection.ended().is_none());
    case.ack += 1;
    case.ack();
    assert!(case.connection.ended().is_none());
    case.wait_for_timer();
    assert_eq!(case.connection.ended(), Some(CloseReason::Complete));
}

#[test]
fn a_new_syn_takes_the_place_of_a_connection_that_is_over() {
    let mut case = Case::open();
    assert!(!case.connection.gives_way_to(&syn().segment()));
    case.connection.finish(case.now);
    case.all();
    case.ack += 1;
    case.hear(Flags::ACK | Flags::FIN, b"");
    let later = letter(case.seq.wrapping_add(9), 0, Flags::SYN.0, 9, 0);
    assert!(case.connection.gives_way_to(&later.segment()));
    assert!(!case.connection.gives_way_to(&syn().segment()));
}

#[test]
fn a_closed_window_is_probed_for_what_waits_until_it_opens() {
    let mut case = Case::open();
    case.hear_window(Flags::ACK, b"", 0);
    assert!(case.connection.timeout().is_none(), "nothing waits");
    case.connection.stall(case.now);
    for _ in 0..100 {
        case.wait_for_timer();
        let probe = case.all().remove(0).header;
        assert_eq!(Seq(probe.sequence).plus(1), Seq(case.ack));
        case.hear_window(Flags::ACK, b"", 0);
    }
    case.hear_window(Flags::ACK, b"", 10);
    assert!(case.connection.can_send_again() && case.connection.timeout().is_none());
    assert_eq!(case.connection.room(), 160);
}

#[test]
fn a_program_that_is_gone_is_given_up_with_a_reset() {
    let mut case = Case::open();
    case.connection.push(b"anybody there?");
    case.all();
    let start = case.now;
    while case.connection.ended().is_none() {
        case.wait_for_timer();
    }
    assert!((100..200).contains(&(case.now - start).as_secs()));
    assert_eq!(case.connection.ended(), Some(CloseReason::Broken));
    assert!(case.flags()[0].contains(Flags::RST));
}

#[test]
fn what_a_target_does_not_want_is_acknowledged_and_forgotten() {
    let mut case = Case::open();
    case.hear(Flags::ACK, b"abc");
    case.connection.discard();
    for _ in 0..100 {
        case.hear(Flags::ACK, &[0; 60_000]);
        assert_eq!(case.connection.readable(), 0);
        let ack = case.all().remove(0).header;
        assert_eq!(ack.acknowledgment, case.seq);
        assert!(ack.window > 10_000);
    }
    case.hear(Flags::ACK | Flags::FIN, b"");
    assert!(case.connection.read_ended());
}
