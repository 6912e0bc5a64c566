//! What one circuit's end may hold, whatever its peer and its programs do.

use tokio::io::AsyncWrite;

use super::*;
use crate::flow::{stream::XOFF, vegas::LARGEST};

fn pair(limits: Limits) -> Pair {
    let edge = |role| Shared::new(Edge::new(role, VEGAS, limits, zeros));
    Pair {
        client: edge(Role::Client),
        exit: edge(Role::Exit),
        digests: (0, 0),
    }
}

/// Full cells of octets, as a peer sends them that keeps to no window.
fn flood(to: &Shared, stream: u16, cells: usize) {
    for _ in 0..cells {
        let data = Message::Data(&[7; cell::DATA]);
        told(to, stream, &data).expect("within what one stream may hold");
        while to.lock().next_message().is_some() {}
    }
}

#[tokio::test]
async fn the_stream_that_holds_most_ends_when_all_hold_too_much_and_the_others_go_on() {
    for at_exit in [true, false] {
        let mut pair = pair(Limits {
            held: 300 * cell::DATA,
            ..Limits::default()
        });
        let streams: Vec<_> = (0..3).map(|_| pair.stream(HALF_CLOSE)).collect();
        let (near, far): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let (end, mut handles) = match at_exit {
            true => (Arc::clone(&pair.exit), far),
            false => (Arc::clone(&pair.client), near),
        };
        flood(&end, 1, 90);
        flood(&end, 2, 150);
        flood(&end, 3, 60);
        assert!(end.lock().next_message().is_none(), "what may be held");
        told(&end, 1, &Message::Data(b"one more")).expect("no fault");
        let said = end.lock().next_message().expect("the peer is told");
        let header = Header::read(said.body.as_ref().try_into().expect("a body"));
        assert_eq!((header.command, header.stream.0), (Command::END, 2));
        assert!(handles[1].read_u8().await.is_err(), "its reader is told");
        assert!(handles[1].write_u8(1).await.is_err());
        assert_eq!(end.lock().streams(), 3, "it counts while somebody has it");
        told(&end, 2, &Message::Data(b"late")).expect("it was on its way");
        drop(handles.remove(1));
        if !at_exit {
            let late = (0..).take_while(|_| told(&end, 2, &Message::Data(b"late")).is_ok());
            assert!(
                late.count() <= 2 * (124 + 301),
                "no more than was under way"
            );
            end.lock().urgent.clear();
        }
        assert_eq!(end.lock().streams(), 2);
        assert!(end.lock().next_message().is_none(), "told once");
        for handle in &mut handles {
            handle.read_exact(&mut [0; 1000]).await.expect("kept");
        }
        flood(&end, 3, 140);
        let read = handles[1].read_exact(&mut [0; 140 * cell::DATA]).await;
        read.expect("what was read makes room");
    }
}

#[tokio::test]
async fn a_reader_who_waits_is_woken_when_its_stream_is_ended() {
    let mut pair = pair(Limits {
        held: 100 * cell::DATA,
        ..Limits::default()
    });
    let (_near, mut far) = pair.stream(HALF_CLOSE);
    let waits = tokio::spawn(async move {
        let mut all = Vec::new();
        // It reads nothing of what comes, and then wants to write.
        while now(|cx| std::pin::Pin::new(&mut far).poll_write(cx, &[1; 4096]))
            .await
            .is_some()
        {}
        far.write_all(&[1; 4096]).await.expect_err("ended");
        far.read_to_end(&mut all).await.expect_err("ended")
    });
    tokio::task::yield_now().await;
    flood_until_ended(&pair.exit);
    waits.await.expect("ends");
}

fn flood_until_ended(end: &Shared) {
    for _ in 0..101 {
        told(end, 1, &Message::Data(&[7; cell::DATA])).expect("no fault");
    }
    assert_eq!(end.lock().held.total(), 0);
}

#[tokio::test]
async fn with_many_streams_to_send_for_each_keeps_few_cells_and_all_come_through() {
    let limits = Limits {
        sending_all: 300,
        ..Limits::default()
    };
    let mut pair = pair(limits);
    let streams: Vec<_> = (0..50).map(|_| pair.stream(HALF_CLOSE)).collect();
    let (mut near, mut far): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
    let mut written = vec![0; near.len()];
    for (handle, written) in near.iter_mut().zip(&mut written) {
        let chunk = [1; 100_000];
        *written = now(|cx| std::pin::Pin::new(&mut *handle).poll_write(cx, &chunk))
            .await
            .expect("each may send")
            .expect("open");
    }
    let cells = pair.client.lock().sending.total();
    assert!(cells >= 300 + 45 * FEW, "{cells}: each has its few");
    assert!(cells <= 300 + limits.sending + 50 * FEW, "{cells}");
    for n in 0..50 {
        pair.settle();
        let mut got = vec![0; written[n]];
        far[n].read_exact(&mut got).await.expect("arrived");
        pair.settle();
        near[n].write_all(b"and more").await.expect("taken");
    }
    assert!(pair.client.lock().sending.total() <= 50);
}

#[test]
fn streams_opened_and_given_up_while_nothing_leaves_do_not_gather_without_end() {
    let pair = pair(Limits::default());
    let target = "192.0.2.1:80".parse().expect("valid");
    let mut opened = 0;
    for _ in 0..100_000 {
        let begun = pair.client.lock().begin(&target, HALF_CLOSE);
        let Ok(id) = begun else { break };
        drop(Handle::new(&pair.client, id));
        opened += 1;
    }
    assert!((512..2000).contains(&opened), "{opened}");
    assert!(pair.client.lock().owned() < 1 << 20);
    while pair.client.lock().next_message().is_some() {}
    let begun = pair.client.lock().begin(&target, HALF_CLOSE);
    begun.expect("there is room again");
}

#[test]
fn the_largest_window_fits_into_what_a_reader_who_stands_still_may_have_waiting() {
    let cells = usize::try_from(LARGEST).expect("small");
    let octets = cells * cell::DATA + usize::try_from(XOFF).expect("small");
    let limits = Limits::default();
    assert!(usize::try_from(limits.waiting).expect("small") * cell::DATA > octets);
    assert!(limits.held > octets);
    // Beside DATA there are acknowledgements of the other direction, and a few messages for each stream.
    let beside = cells / 31 + 8 * limits.streams;
    let inbox = hoplite_link::channel::Config::default().inbox;
    assert!(inbox > cells + beside, "{inbox} cells at a relay");
}
