//! What an observer is told is what went over the wire, and a policy changes how often one acknowledges.

pub(crate) mod pair;

use std::{sync::Arc, time::Duration};

use hoplite_wire::quic_frames::{Content, kind};
use parking_lot::Mutex;
use quinn_proto::Side;

use self::pair::Pair;
use super::*;

/// Writes everything down.
#[derive(Default)]
struct Notes {
    begun: Mutex<Vec<(Side, String, ConnectionId)>>,
    packets: Mutex<Vec<Note>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Note {
    end: usize,
    sent: bool,
    space: Space,
    number: u64,
    size: usize,
    /// Type and size of each frame.
    frames: Vec<(u64, usize)>,
    /// Payload lengths of the DATAGRAM frames.
    datagrams: Vec<usize>,
}

struct NotesOf {
    notes: Arc<Notes>,
    end: usize,
}

impl NotesOf {
    fn note(&self, sent: bool, packet: &Packet<'_>) {
        let frames: Vec<_> = packet.frames().map(|frame| frame.unwrap()).collect();
        let datagram = |content: &Content<'_>| match content {
            Content::Datagram(data) => Some(data.len()),
            _ => None,
        };
        self.notes.packets.lock().push(Note {
            end: self.end,
            sent,
            space: packet.space,
            number: packet.number,
            size: packet.size,
            frames: frames
                .iter()
                .map(|frame| (frame.kind, frame.size))
                .collect(),
            datagrams: frames
                .iter()
                .filter_map(|frame| datagram(&frame.content))
                .collect(),
        });
    }
}

impl Observer for NotesOf {
    fn sent(&self, packet: &Packet<'_>) {
        self.note(true, packet);
    }

    fn received(&self, packet: &Packet<'_>) {
        self.note(false, packet);
    }
}

struct Watcher(Arc<Notes>);

impl Watch for Watcher {
    fn observe(&self, connection: &Begun<'_>) -> Option<Arc<dyn Observer>> {
        let end = usize::from(connection.side == Side::Server);
        let begun = (connection.side, connection.label.to_owned(), connection.id);
        self.0.begun.lock().push(begun);
        let notes = Arc::clone(&self.0);
        Some(Arc::new(NotesOf { notes, end }))
    }
}

fn watching(notes: &Arc<Notes>) -> Hooks {
    Hooks {
        watch: Some(Arc::new(Watcher(Arc::clone(notes)))),
        ..Hooks::default()
    }
}

/// Hooks with an ACK controller that may come to every delay.
pub(crate) fn governed(policy: &str, after: u16) -> Hooks {
    let ack_controller = AckController::new(Bounds {
        own_delay: Duration::from_millis(250),
        ..Bounds::default()
    });
    ack_controller.set(policy.parse().unwrap(), after);
    Hooks {
        ack_controller: Some(ack_controller),
        clock: pair::now,
        ..Hooks::default()
    }
}

fn after(milliseconds: u64) -> Hooks {
    governed(&format!("{milliseconds}ms"), 0)
}

/// Acknowledgements that each end sent for 1000 datagrams of the other, one each 100 µs.
fn acknowledgements(client: &Hooks, server: &Hooks) -> [u64; 2] {
    let mut pair = Pair::connect(client, server);
    let mut counts = [0; 2];
    for (end, count) in counts.iter_mut().enumerate() {
        // The first packet carries the request to the stack.
        pair.send(1 - end, 1, Duration::from_millis(200));
        let before = pair.stats(end).frame_tx.acks;
        pair.send(1 - end, 1000, Duration::from_micros(100));
        pair.run(Duration::from_millis(200));
        *count = pair.stats(end).frame_tx.acks - before;
    }
    assert_eq!((pair.lost(0), pair.lost(1)), (None, None));
    counts
}

#[test]
fn without_hooks_nothing_is_wrapped() {
    let inner = pair::server_crypto();
    let with = |hooks: &Hooks| hooks.server(Arc::clone(&inner), "far");
    assert!(Arc::ptr_eq(&with(&Hooks::default()), &inner));
    assert!(!Arc::ptr_eq(&with(&after(1)), &inner));
    assert!(!Arc::ptr_eq(&with(&watching(&Arc::default())), &inner));
}

#[test]
fn each_end_acknowledges_as_its_own_policy_says() {
    let default = Hooks::default();
    let [client, server] = acknowledgements(&default, &default);
    assert!(
        (495..=505).contains(&client),
        "every second packet: {client}"
    );
    assert!(
        (495..=505).contains(&server),
        "every second packet: {server}"
    );
    // 100 ms of packets, one answer for each millisecond begun; a packet number that was skipped asks for one more.
    let [client, server] = acknowledgements(&after(1), &default);
    assert!((85..=105).contains(&client), "one per 1.1 ms: {client}");
    assert!(
        (495..=505).contains(&server),
        "the other end as before: {server}"
    );
    let [client, server] = acknowledgements(&default, &after(25));
    assert!(
        (495..=505).contains(&client),
        "the other end as before: {client}"
    );
    assert!((4..=10).contains(&server), "one per 25 ms: {server}");
}

#[test]
fn the_round_trip_is_still_measured_right_with_late_acknowledgements() {
    let mut pair = Pair::connect(&Hooks::default(), &after(25));
    pair.send(0, 2000, Duration::from_micros(500));
    let rtt = pair.connection(0).rtt();
    let range = Duration::from_millis(49)..Duration::from_millis(60);
    assert!(range.contains(&rtt), "{rtt:?}");
}

#[test]
fn what_one_end_was_told_to_send_the_other_was_told_to_receive() {
    let notes = Arc::new(Notes::default());
    let mut pair = Pair::connect(&watching(&notes), &watching(&notes));
    pair.send(0, 20, Duration::from_millis(1));
    pair.send(1, 5, Duration::from_millis(1));
    pair.run(Duration::from_millis(200));
    let packets = notes.packets.lock();
    for from in [0, 1] {
        let of = |end: usize, sent: bool| -> Vec<Note> {
            let all = packets
                .iter()
                .filter(|note| note.end == end && note.sent == sent);
            let data = all.filter(|note| note.space == Space::Data);
            data.map(|note| Note {
                end: 0,
                sent: true,
                ..note.clone()
            })
            .collect()
        };
        let (sent, received) = (of(from, true), of(1 - from, false));
        assert!(sent.len() > 5, "{sent:?}");
        assert_eq!(sent, received);
        let payload = |note: &Note| note.frames.iter().map(|(_, size)| size).sum::<usize>();
        // First byte, 8 of the connection id, 1..=4 of the number, 16 of the tag.
        assert!(
            sent.iter()
                .all(|note| (26..=29).contains(&(note.size - payload(note))))
        );
    }
    let datagrams = |end| {
        packets
            .iter()
            .filter(move |note| note.end == end && note.sent)
            .flat_map(|note| &note.datagrams)
    };
    assert!(datagrams(0).eq(&[1000; 20]) && datagrams(1).eq(&[1000; 5]));
}

#[test]
fn sizes_add_up_to_what_went_over_the_wire_handshake_included() {
    let notes = Arc::new(Notes::default());
    let mut pair = Pair::connect(&watching(&notes), &watching(&notes));
    pair.send(0, 20, Duration::from_millis(1));
    let packets = notes.packets.lock();
    for end in [0, 1] {
        let sent = packets.iter().filter(|note| note.end == end && note.sent);
        let told: usize = sent.map(|note| note.size).sum();
        assert_eq!(told, pair.sent[end].iter().sum::<usize>());
    }
    let spaces = |space| {
        packets
            .iter()
            .filter(move |note| note.space == space)
            .count()
    };
    assert!(spaces(Space::Initial) > 2 && spaces(Space::Handshake) > 2);
}

#[test]
fn both_ends_know_a_connection_by_the_same_id() {
    let notes = Arc::new(Notes::default());
    Pair::connect(&watching(&notes), &watching(&notes));
    let begun = notes.begun.lock();
    assert_eq!(begun.len(), 2);
    assert_eq!((begun[0].0, begun[0].1.as_str()), (Side::Client, "near"));
    assert_eq!((begun[1].0, begun[1].1.as_str()), (Side::Server, "far"));
    assert_eq!(begun[0].2, begun[1].2);
}

#[test]
fn packets_are_told_after_key_updates_too() {
    let notes = Arc::new(Notes::default());
    let mut pair = Pair::connect(&watching(&notes), &watching(&notes));
    for end in [0, 1] {
        pair.connection(end).force_key_update();
        pair.send(0, 20, Duration::from_millis(5));
        pair.run(Duration::from_millis(200));
    }
    let packets = notes.packets.lock();
    let received = packets.iter().filter(|note| note.end == 1 && !note.sent);
    assert_eq!(received.map(|note| note.datagrams.len()).sum::<usize>(), 40);
}

#[test]
fn an_observer_never_sees_the_request_that_the_local_stack_gets() {
    let notes = Arc::new(Notes::default());
    let hooks = || Hooks {
        watch: watching(&notes).watch,
        ..after(1)
    };
    let mut pair = Pair::connect(&hooks(), &hooks());
    pair.send(0, 20, Duration::from_millis(1));
    let packets = notes.packets.lock();
    let frames = packets.iter().flat_map(|note| &note.frames);
    assert!(
        frames
            .clone()
            .all(|(frame, _)| *frame != kind::ACK_FREQUENCY)
    );
    assert!(frames.count() > 40);
}
