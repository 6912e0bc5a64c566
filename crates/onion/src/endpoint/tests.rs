//! Two ends of a circuit without layers between: what one says, the other is handed, and a digest is a counter.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake},
    time::Duration,
};

use bytes::BytesMut;
use hoplite_overlay::ErrorKind;
use hoplite_wire::cell::{
    conflux::DesiredUx,
    relay::{Connected, End, EndReason, Format, Header, Message, Sendme, SendmeTag},
};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{sleep, timeout},
};

use super::{
    io::{Handle, Shared},
    *,
};
use crate::{
    failure,
    flow_control::{stream::XOFF, vegas::LARGEST},
};

const VEGAS: Control = Control::Vegas { increment: 31 };

/// A client's end and an exit's, and how many cells went each way.
struct Pair {
    client: Arc<Shared>,
    exit: Arc<Shared>,
    digests: (u32, u32),
}

fn digest(n: u32) -> SendmeTag {
    let mut digest = [7; 20];
    digest[..4].copy_from_slice(&n.to_be_bytes());
    SendmeTag::Tor1(digest)
}

fn zeros(bytes: &mut [u8]) {
    bytes.fill(0);
}

fn at() -> Arrival {
    Arrival {
        leg: LegId::FIRST,
        now: Instant::now(),
        blocked: false,
    }
}

/// One cell from one end to the other.
fn pass(from: &Shared, to: &Shared, count: &mut u32) -> Result<bool, Broken> {
    if to.lock().is_full(LegId::FIRST) {
        return Ok(false);
    }
    let Some(message) = from.lock().next_message(LegId::FIRST) else {
        return Ok(false);
    };
    *count += 1;
    if message.counted {
        from.lock()
            .sealed(LegId::FIRST, digest(*count), Instant::now());
    }
    to.lock()
        .handle_message(message.body, digest(*count), at())?;
    Ok(true)
}

impl Pair {
    fn new(control: Control) -> Self {
        let endpoint = |role| Shared::new(Endpoint::new(role, control, Limits::default(), zeros));
        Self {
            client: endpoint(Role::Client),
            exit: endpoint(Role::Relay),
            digests: (0, 0),
        }
    }

    /// Moves cells until none moves.
    fn settle(&mut self) {
        loop {
            let up = pass(&self.client, &self.exit, &mut self.digests.0).expect("honest");
            let down = pass(&self.exit, &self.client, &mut self.digests.1).expect("honest");
            if !up && !down {
                return;
            }
        }
    }

    /// An open stream: the client's handle and the exit's.
    fn stream(&mut self, flags: Flags) -> (Handle, Handle) {
        let target = "192.0.2.1:80".parse().expect("valid");
        let id = self.client.lock().begin(&target, flags).expect("room");
        let near = Handle::new(&self.client, id);
        self.settle();
        let (asked, what) = self.exit.lock().next_asked().expect("asked for");
        assert_eq!(asked, id);
        assert!(matches!(what, Asked::Stream(begin) if begin.target == target));
        let far = Handle::new(&self.exit, id);
        self.exit.lock().connected(id, None);
        self.settle();
        (near, far)
    }
}

/// What a call answers at once.
async fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    poll_fn(|cx| match poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Writes until nothing more is taken; says how much that was.
async fn fill(pair: &mut Pair, handle: &mut Handle) -> usize {
    use tokio::io::AsyncWrite;
    let chunk = [1; 4096];
    let mut written = 0;
    loop {
        let taken = now(|cx| Pin::new(&mut *handle).poll_write(cx, &chunk)).await;
        match taken {
            Some(count) => written += count.expect("open"),
            None => {
                let before = (pair.digests.0, pair.digests.1);
                pair.settle();
                if before == (pair.digests.0, pair.digests.1) {
                    return written;
                }
            }
        }
    }
}

#[tokio::test]
async fn bytes_arrive_in_order_and_an_end_behind_them() {
    for control in [Control::Fixed, VEGAS] {
        let mut pair = Pair::new(control);
        let (mut near, mut far) = pair.stream(HALF_CLOSE);
        near.write_all(b"question").await.expect("taken");
        near.shutdown().await.expect("taken");
        pair.settle();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.expect("an orderly end");
        assert_eq!(got, b"question");
        far.write_all(b"answer").await.expect("half open");
        far.shutdown().await.expect("taken");
        pair.settle();
        got.clear();
        near.read_to_end(&mut got).await.expect("an orderly end");
        assert_eq!(got, b"answer");
        drop((near, far));
        pair.settle();
        assert_eq!(pair.client.lock().streams() + pair.exit.lock().streams(), 0);
    }
}

#[tokio::test]
async fn a_stream_that_nobody_reads_stops_at_its_window_and_no_other_stream() {
    for (control, cells) in [(Control::Fixed, 500), (VEGAS, 501)] {
        let mut pair = Pair::new(control);
        let (mut stalled, unread) = pair.stream(HALF_CLOSE);
        let (mut near, mut far) = pair.stream(HALF_CLOSE);
        let written = fill(&mut pair, &mut stalled).await;
        assert!(written > (cells - 10) * 480, "{written}");
        assert!(written < (cells + 1000) * 498, "{written}");
        for _ in 0..50 {
            near.write_all(&[3; 20_000]).await.expect("taken");
            pair.settle();
            far.read_exact(&mut [0; 20_000]).await.expect("arrived");
            pair.settle();
        }
        drop(unread);
    }
}

#[tokio::test]
async fn what_a_target_does_not_take_stays_where_it_counts_and_all_comes_in_the_end() {
    const TAKES: usize = 1000;
    for control in [Control::Fixed, VEGAS] {
        let mut pair = Pair::new(control);
        let (mut near, mut far) = pair.stream(HALF_CLOSE);
        let (mut target, mut reader) = tokio::io::duplex(TAKES);
        let mut write_to = async |far: &mut Handle| {
            let written = now(|cx| far.poll_write_to(cx, Pin::new(&mut target))).await;
            written.map(|written| written.expect("open"))
        };
        for n in 0..50 {
            let sent: Vec<u8> = (n..)
                .take(20_000)
                .map(|n: u32| n.to_le_bytes()[0])
                .collect();
            near.write_all(&sent).await.expect("the window opens again");
            pair.settle();
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let counted = pair.exit.lock().streams[&far.id().0].held();
                assert_eq!(counted, sent.len() - got.len());
                assert_eq!(write_to(&mut far).await, Some(TAKES));
                assert_eq!(write_to(&mut far).await, None);
                let mut taken = [0; TAKES];
                reader.read_exact(&mut taken).await.expect("open");
                got.extend(taken);
                pair.settle();
                // What a task may do at a stretch is bounded.
                tokio::task::yield_now().await;
            }
            assert!(got == sent);
        }
        near.shutdown().await.expect("taken");
        pair.settle();
        assert_eq!(write_to(&mut far).await, Some(0), "the end");
    }
}

#[tokio::test]
async fn a_stream_that_is_given_up_does_not_wait_for_a_target_that_takes_nothing() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, mut far) = pair.stream(HALF_CLOSE);
    let (mut target, _unread) = tokio::io::duplex(1);
    near.write_all(&[7; 2000]).await.expect("taken");
    pair.settle();
    let writing = tokio::spawn(async move {
        loop {
            poll_fn(|cx| far.poll_write_to(cx, Pin::new(&mut target))).await?;
        }
    });
    tokio::task::yield_now().await;
    drop(near);
    pair.settle();
    let ended = timeout(Duration::from_secs(60), writing).await;
    let ended: std::io::Result<()> = ended.expect("in time").expect("no panic");
    ended.expect_err("given up");
}

#[tokio::test]
async fn a_dropped_stream_is_reset_at_the_other_end() {
    let mut pair = Pair::new(VEGAS);
    let (near, mut far) = pair.stream(HALF_CLOSE);
    drop(near);
    pair.settle();
    assert!(far.read_u8().await.is_err());
    let (mut near, far) = pair.stream(HALF_CLOSE);
    drop(far);
    pair.settle();
    let error = near.read_u8().await.expect_err("reset");
    assert!(Error::from_io(&error).is_some(), "{error}");
}

#[tokio::test]
async fn what_a_client_wrote_before_its_early_end_arrives() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, mut far) = pair.stream(HALF_CLOSE);
    far.shutdown().await.expect("taken");
    pair.settle();
    near.write_all(&[5; 50_000]).await.expect("taken");
    near.shutdown().await.expect("taken");
    drop(near);
    pair.settle();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.expect("an orderly end");
    assert_eq!(got.len(), 50_000);
}

#[tokio::test]
async fn towards_a_client_that_knows_no_half_closed_streams_the_last_bytes_arrive_before_the_end() {
    let mut pair = Pair::new(Control::Fixed);
    let (mut near, mut far) = pair.stream(Flags::IPV6_OKAY);
    far.write_all(&[5; 50_000]).await.expect("taken");
    far.shutdown().await.expect("taken");
    drop(far);
    pair.settle();
    let mut got = Vec::new();
    near.read_to_end(&mut got).await.expect("an orderly end");
    assert_eq!(got.len(), 50_000);
    drop(near);
    pair.settle();
    assert_eq!(pair.client.lock().streams() + pair.exit.lock().streams(), 0);
}

/// The server keeps the connection: nothing but END has it close it.
#[tokio::test(start_paused = true)]
async fn towards_an_exit_that_knows_no_half_closed_streams_a_stream_ends_when_nothing_more_comes() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, mut far) = pair.stream(Flags::IPV6_OKAY);
    near.write_all(b"question").await.expect("taken");
    near.shutdown().await.expect("taken");
    let mut got = Vec::new();
    for answers in 1..=3 {
        pair.settle();
        far.write_all(b"answer").await.expect("half open");
        pair.settle();
        near.read_buf(&mut got).await.expect("answered");
        assert_eq!(got.len(), answers * 6, "none is lost");
        sleep(Duration::from_secs(4)).await;
    }
    let end = timeout(Duration::from_secs(60), near.read(&mut [0])).await;
    assert_eq!(end.expect("soon").expect("an orderly end"), 0);
    drop(near);
    pair.settle();
    drop(far);
    assert_eq!(pair.client.lock().streams() + pair.exit.lock().streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_finishes_before_it_is_answered_waits_for_as_long_as_the_answer_takes() {
    let mut pair = Pair::new(VEGAS);
    let target = "example.com:80".parse().expect("valid");
    let begun = pair.client.lock().begin(&target, Flags::IPV6_OKAY);
    let id = begun.expect("room");
    let mut near = Handle::new(&pair.client, id);
    near.shutdown().await.expect("taken");
    pair.settle();
    let mut byte = [0];
    let waiting = timeout(Duration::from_secs(60), near.read(&mut byte));
    assert!(waiting.await.is_err(), "nothing is known of it yet");
    pair.exit.lock().next_asked().expect("asked for");
    pair.exit.lock().connected(id, None);
    pair.settle();
    assert_eq!(near.read(&mut byte).await.expect("an orderly end"), 0);
}

#[tokio::test]
async fn bytes_may_follow_begin_at_once_and_wait_for_the_target() {
    let mut pair = Pair::new(VEGAS);
    let target = "example.com:80".parse().expect("valid");
    let id = pair.client.lock().begin(&target, HALF_CLOSE).expect("room");
    let mut near = Handle::new(&pair.client, id);
    near.write_all(b"early").await.expect("taken");
    pair.settle();
    pair.exit.lock().next_asked().expect("asked for");
    let mut far = Handle::new(&pair.exit, id);
    assert!(now(|cx| near.poll_said(cx)).await.is_none());
    pair.exit.lock().connected(id, None);
    pair.settle();
    let mut got = [0; 5];
    far.read_exact(&mut got).await.expect("arrived");
    assert_eq!(&got, b"early");
    now(|cx| near.poll_said(cx))
        .await
        .expect("answered")
        .expect("open");
}

#[tokio::test]
async fn a_refusal_says_why() {
    let mut pair = Pair::new(VEGAS);
    let target = "example.com:80".parse().expect("valid");
    let id = pair.client.lock().begin(&target, HALF_CLOSE).expect("room");
    let mut near = Handle::new(&pair.client, id);
    pair.settle();
    pair.exit
        .lock()
        .refuse(id, End::new(EndReason::CONNECTREFUSED));
    pair.settle();
    let said = now(|cx| near.poll_said(cx)).await.expect("answered");
    assert_eq!(said.expect_err("refused").kind(), ErrorKind::TargetFailed);
}

#[tokio::test]
async fn every_stream_of_a_closed_circuit_ends_with_its_error() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, _far) = pair.stream(HALF_CLOSE);
    pair.client.lock().close(failure::channel_closed(false));
    let error = near.read_u8().await.expect_err("closed");
    assert_eq!(
        Error::from_io(&error).map(Error::kind),
        Some(ErrorKind::PathFailed)
    );
    near.write_all(b"?").await.expect_err("closed");
    let target = "192.0.2.1:80".parse().expect("valid");
    pair.client
        .lock()
        .begin(&target, HALF_CLOSE)
        .expect_err("closed");
}

#[tokio::test]
async fn a_closed_circuit_keeps_no_stream_that_its_program_has_left_to_be_sent() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, mut far) = pair.stream(HALF_CLOSE);
    far.shutdown().await.expect("taken");
    pair.settle();
    near.write_all(&[5; 5_000]).await.expect("taken");
    near.shutdown().await.expect("taken");
    drop(near);
    assert_eq!(pair.client.lock().streams(), 1, "its bytes are to be sent");
    pair.client.lock().close(failure::channel_closed(false));
    assert_eq!(pair.client.lock().streams(), 0);
}

#[tokio::test]
async fn an_exit_refuses_more_streams_than_its_limit_and_keeps_the_circuit() {
    let mut pair = Pair::new(VEGAS);
    let limits = Limits {
        streams: 2,
        ..Limits::default()
    };
    pair.exit = Shared::new(Endpoint::new(Role::Relay, VEGAS, limits, zeros));
    let _kept = [pair.stream(HALF_CLOSE), pair.stream(HALF_CLOSE)];
    let target = "192.0.2.1:80".parse().expect("valid");
    let id = pair.client.lock().begin(&target, HALF_CLOSE).expect("room");
    let mut third = Handle::new(&pair.client, id);
    pair.settle();
    assert!(pair.exit.lock().next_asked().is_none());
    let said = now(|cx| third.poll_said(cx)).await.expect("answered");
    assert_eq!(said.expect_err("refused").kind(), ErrorKind::Forbidden);
}

/// A message as the peer's layers would hand it over.
fn told(to: &Shared, stream: u16, message: &Message<'_>) -> Result<(), Broken> {
    let outbound = message::control(Format::V0, message, StreamId(stream), zeros);
    to.lock().handle_message(outbound.body, digest(0), at())
}

#[tokio::test]
async fn what_the_protocol_forbids_breaks_the_circuit() {
    let unseen = Message::Sendme(Sendme::V1(SendmeTag::Tor1([9; 20])));
    let begin = Message::Begin(Begin {
        target: "192.0.2.1:80".parse().expect("valid"),
        flags: Flags::default(),
    });
    for control in [Control::Fixed, VEGAS] {
        let mut pair = Pair::new(control);
        let (_near, _far) = pair.stream(HALF_CLOSE);
        let (client, exit) = (&pair.client, &pair.exit);
        let many = Err(Broken::Flow(Violation::SendmeTooMany));
        assert_eq!(told(client, 0, &unseen), many);
        assert_eq!(told(exit, 0, &unseen), many);
        assert_eq!(told(client, 1, &unseen), many);
        assert_eq!(
            told(client, 99, &Message::Data(b"?")),
            Err(Broken::UnknownStream)
        );
        assert_eq!(
            told(client, 99, &Message::Connected(Connected(None))),
            Err(Broken::UnknownStream)
        );
        let twice = Err(Broken::Unexpected(RelayCommand::CONNECTED));
        assert_eq!(told(client, 1, &Message::Connected(Connected(None))), twice);
        assert_eq!(told(exit, 1, &Message::Connected(Connected(None))), twice);
        assert_eq!(
            told(client, 5, &begin),
            Err(Broken::Unexpected(RelayCommand::BEGIN))
        );
        assert_eq!(
            told(exit, 1, &begin),
            Err(Broken::Unexpected(RelayCommand::BEGIN))
        );
        assert_eq!(
            told(exit, 0, &begin),
            Err(Broken::Unexpected(RelayCommand::BEGIN))
        );
        assert_eq!(
            told(client, 0, &Message::Truncate),
            Err(Broken::Unexpected(RelayCommand::TRUNCATE))
        );
    }
}

#[tokio::test]
async fn what_an_exit_does_not_understand_is_ignored() {
    let pair = Pair::new(VEGAS);
    let unknown = Message::Unknown(RelayCommand(200), b"later");
    assert_eq!(told(&pair.exit, 0, &unknown), Ok(()));
    assert_eq!(told(&pair.exit, 77, &Message::Data(b"late")), Ok(()));
}

#[tokio::test]
async fn a_wrong_digest_breaks_the_circuit() {
    let mut pair = Pair::new(VEGAS);
    let (mut near, _far) = pair.stream(HALF_CLOSE);
    near.write_all(&[1; 40 * 498]).await.expect("taken");
    let mut endpoint = pair.client.lock();
    while let Some(message) = endpoint.next_message(LegId::FIRST) {
        if message.counted {
            endpoint.sealed(LegId::FIRST, digest(1), Instant::now());
        }
    }
    drop(endpoint);
    let wrong = Message::Sendme(Sendme::V1(digest(2)));
    let broken = Err(Broken::Flow(Violation::WrongTag));
    assert_eq!(told(&pair.client, 0, &wrong), broken);
}

/// How many DATA cells come on streams, in turn, until the circuit breaks; everything that this end says leaves.
fn late_cells(client: &Shared, streams: &[u16]) -> usize {
    let mut late = 0;
    loop {
        let stream = streams[late % streams.len()];
        match told(client, stream, &Message::Data(b"late")) {
            Ok(()) => late += 1,
            Err(broken) => {
                assert_eq!(broken, Broken::UnknownStream);
                return late;
            }
        }
        while client.lock().next_message(LegId::FIRST).is_some() {}
    }
}

#[tokio::test]
async fn on_streams_that_were_given_up_comes_no_more_than_what_was_under_way() {
    // What a stream's window had left.
    let mut pair = Pair::new(Control::Fixed);
    let (near, mut far) = pair.stream(HALF_CLOSE);
    far.write_all(&[1; 10 * 498]).await.expect("taken");
    pair.settle();
    let id = near.id().0;
    drop(near);
    assert_eq!(late_cells(&pair.client, &[id]), 490);
    // What all had left together, where streams have no windows: a sender that begins has 124 cells, and grows with what is acknowledged.
    let mut pair = Pair::new(VEGAS);
    let streams = [0; 40].map(|_| pair.stream(HALF_CLOSE));
    let ids = streams.each_ref().map(|(near, _)| near.id().0);
    drop(streams);
    assert_eq!(late_cells(&pair.client, &ids), 2 * 124);
}

#[tokio::test]
async fn on_a_stream_that_was_given_up_an_answer_and_an_end_come_once_and_no_acknowledgement_of_nothing()
 {
    let end = |reason| Message::End(End::new(reason));
    let connected = Message::Connected(Connected(None));
    for control in [Control::Fixed, VEGAS] {
        let given_up = |half_close| {
            let pair = Pair::new(control);
            let target = "192.0.2.1:80".parse().expect("valid");
            let id = pair.client.lock().begin(&target, half_close);
            let id = id.expect("room");
            drop(Handle::new(&pair.client, id));
            (pair, id.0)
        };
        let (pair, id) = given_up(HALF_CLOSE);
        told(&pair.client, id, &connected).expect("it was on its way");
        told(&pair.client, id, &connected).expect_err("twice");
        let (pair, id) = given_up(HALF_CLOSE);
        told(&pair.client, id, &end(EndReason::DONE)).expect("it was on its way");
        told(&pair.client, id, &Message::Data(b"late")).expect_err("behind END");
        told(&pair.client, id, &end(EndReason::MISC)).expect("a reset");
        told(&pair.client, id, &end(EndReason::MISC)).expect_err("a third");
        let (pair, id) = given_up(Flags::IPV6_OKAY);
        told(&pair.client, id, &end(EndReason::MISC)).expect("it was on its way");
        told(&pair.client, id, &end(EndReason::MISC)).expect_err("twice");
        for nothing in [
            Message::Sendme(Sendme::V0),
            Message::Xon(Xon { kbps: 0 }),
            Message::Xoff(Xoff),
        ] {
            let (pair, id) = given_up(HALF_CLOSE);
            told(&pair.client, id, &nothing).expect_err("nothing was sent");
        }
    }
}

fn header_of(format: Format, message: &Outbound) -> Header {
    let body = message.body.as_ref().try_into().expect("a body");
    Header::read(format, body).expect("as it should be")
}

/// The lengths of the DATA that a client sends, and the ids of its streams.
async fn seen_of(control: Control, format: Format) -> (Vec<u16>, Vec<u16>) {
    let mut pair = Pair::new(control);
    let [client, exit] = [Role::Client, Role::Relay].map(|role| {
        let endpoint = Endpoint::new(role, control, Limits::default(), crate::random);
        Shared::new(endpoint.with_format(format))
    });
    (pair.client, pair.exit) = (client, exit);
    let (mut near, _far) = pair.stream(HALF_CLOSE);
    let (other, _other) = pair.stream(HALF_CLOSE);
    let ids = vec![near.id().0, other.id().0];
    let full = format.most(RelayCommand::DATA);
    near.write_all(&vec![1; 120 * full]).await.expect("taken");
    let mut lengths = Vec::new();
    while let Some(message) = pair.client.lock().next_message(LegId::FIRST) {
        let header = header_of(format, &message);
        if header.command == RelayCommand::DATA {
            lengths.push(header.length);
        }
    }
    (lengths, ids)
}

/// As C tor does: an exit cannot tell which of the two it serves by the lengths of full cells, nor by the ids of streams.
#[tokio::test]
async fn what_an_exit_sees_of_a_client_is_what_c_tor_would_send() {
    let mut firsts = std::collections::BTreeSet::new();
    for n in 0..50 {
        let (format, full) = [(Format::V0, 498), (Format::V1, 488)][n % 2];
        let (lengths, ids) = seen_of(VEGAS, format).await;
        let short = lengths.iter().position(|length| *length != full);
        assert!(short.is_some_and(|n| (50..=99).contains(&n)), "{short:?}");
        assert_eq!(lengths[short.expect("one")], full - 20);
        firsts.insert(ids[0]);
        assert_eq!(
            ids[1],
            ids[0].checked_add(1).unwrap_or(1),
            "one after the other"
        );
    }
    assert!(firsts.len() > 40, "{firsts:?}");
}

proptest! {
    /// Whatever a peer sends: no panic, and what is owned stays bounded.
    #[test]
    fn whatever_comes_is_survived(
        cells in proptest::collection::vec((any::<u8>(), 0u16..4, 0u16..600, any::<u8>()), 0..200),
        exit: bool,
        fixed: bool,
        version_1: bool,
    ) {
        let format = if version_1 { Format::V1 } else { Format::V0 };
        let role = if exit { Role::Relay } else { Role::Client };
        let control = if fixed { Control::Fixed } else { VEGAS };
        let endpoint = Endpoint::new(role, control, Limits::default(), zeros);
        let mut endpoint = endpoint.with_format(format);
        for (command, stream, length, fill) in cells {
            let mut body = BytesMut::zeroed(cell::BODY);
            let command = RelayCommand(command % 48);
            body[format.header(command)..].fill(fill);
            let header = Header { format, command, stream: StreamId(stream), length: 0 };
            if header.write(body.as_mut().try_into().expect("a body")).is_err() {
                continue;
            }
            // It may be a lie.
            let at_length = if version_1 { 17 } else { 9 };
            body[at_length..at_length + 2].copy_from_slice(&length.to_be_bytes());
            let broken = endpoint.handle_message(body, digest(0), at()).is_err();
            prop_assert!(!broken || endpoint.streams() <= 4);
            while let Some((id, _)) = endpoint.next_asked() {
                endpoint.connected(id, None);
            }
            while endpoint.next_message(LegId::FIRST).is_some() {}
        }
        prop_assert!(endpoint.owned() < 300_000, "{}", endpoint.owned());
    }
}

fn pair(limits: Limits) -> Pair {
    let endpoint = |role| Shared::new(Endpoint::new(role, VEGAS, limits, zeros));
    Pair {
        client: endpoint(Role::Client),
        exit: endpoint(Role::Relay),
        digests: (0, 0),
    }
}

/// Full cells of bytes, as a peer sends them that keeps to no window.
fn flood(to: &Shared, stream: u16, cells: usize) {
    for _ in 0..cells {
        let data = Message::Data(&[7; cell::DATA]);
        told(to, stream, &data).expect("within what one stream may hold");
        while to.lock().next_message(LegId::FIRST).is_some() {}
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
        let (end, mut handles) = if at_exit {
            (Arc::clone(&pair.exit), far)
        } else {
            (Arc::clone(&pair.client), near)
        };
        flood(&end, 1, 90);
        flood(&end, 2, 150);
        flood(&end, 3, 60);
        assert!(
            end.lock().next_message(LegId::FIRST).is_none(),
            "what may be held"
        );
        told(&end, 1, &Message::Data(b"one more")).expect("no fault");
        let said = end
            .lock()
            .next_message(LegId::FIRST)
            .expect("the peer is told");
        let header = header_of(Format::V0, &said);
        assert_eq!((header.command, header.stream.0), (RelayCommand::END, 2));
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
            while let Some(said) = end.lock().next_message(LegId::FIRST) {
                let header = header_of(Format::V0, &said);
                assert_eq!(header.command, RelayCommand::SENDME, "told once");
            }
        }
        assert_eq!(end.lock().streams(), 2);
        assert!(end.lock().next_message(LegId::FIRST).is_none(), "told once");
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
        while now(|cx| Pin::new(&mut far).poll_write(cx, &[1; 4096]))
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
        *written = now(|cx| Pin::new(&mut *handle).poll_write(cx, &chunk))
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
    while pair.client.lock().next_message(LegId::FIRST).is_some() {}
    let begun = pair.client.lock().begin(&target, HALF_CLOSE);
    begun.expect("there is room again");
}

/// An exit's end of a Conflux set with two legs, and where their channels count.
fn exit_of_two_legs() -> (Arc<Shared>, [Arc<CircuitBacklog>; 2]) {
    let kept: [Arc<CircuitBacklog>; 2] = Default::default();
    let nonce = Nonce([5; 32]);
    let mut end = Endpoint::of_set(Side::Exit, nonce.clone(), Limits::default(), zeros);
    let link = Link {
        nonce,
        last_sent: 0,
        last_received: 0,
        wish: DesiredUx::NO_OPINION,
    };
    for kept in &kept {
        let leg = end.add_leg(VEGAS, kept);
        end.answer_link(leg, &link, Instant::now()).expect("asked");
        let ack = Message::Unknown(RelayCommand::CONFLUX_LINKED_ACK, &[]);
        let ack = message::control(Format::V0, &ack, StreamId::CIRCUIT, zeros);
        let at = Arrival { leg, ..at() };
        end.handle_message(ack.body, digest(0), at)
            .expect("asked for");
        while end.next_message(leg).is_some() {}
    }
    (Shared::new(end), kept)
}

fn told_on(to: &Shared, leg: u16, stream: u16, message: &Message<'_>) -> Result<(), Broken> {
    let outbound = message::control(Format::V0, message, StreamId(stream), zeros);
    let at = Arrival {
        leg: LegId(leg),
        ..at()
    };
    to.lock().handle_message(outbound.body, digest(0), at)
}

/// On the second leg of a set come as many messages as may be early, each of which asks for an answer; then what they wait for, on the first.
#[test]
fn answers_to_what_came_early_do_not_gather_without_end() {
    let (exit, [first, second]) = exit_of_two_legs();
    let switch = Message::Unknown(RelayCommand::CONFLUX_SWITCH, &[0, 0, 0, 1]);
    told_on(&exit, 1, 0, &switch).expect("allowed");
    let unreadable = Message::Unknown(RelayCommand::BEGIN, b"?");
    let early = 20_000;
    for _ in 0..early {
        told_on(&exit, 1, 3, &unreadable).expect("as many may be early");
    }
    let each = second.received.waiting() / early;
    assert!(each >= 128, "{each} bytes count of one that is hardly any");
    assert_eq!(exit.lock().urgent.len(), 0);
    let end = Message::End(End::new(EndReason::DONE));
    assert_eq!(told_on(&exit, 0, 9, &end), Err(Broken::Unanswered));
    let waiting = exit.lock().urgent.len();
    assert!((256..2000).contains(&waiting), "{waiting}");
    assert_eq!(first.sending.waiting(), waiting as u64, "the channel knows");
    exit.lock().close(failure::broken(Broken::Unanswered));
    assert_eq!(first.sending.waiting(), 0);
    drop(exit);
    assert_eq!(second.received.waiting(), 0);
}

#[tokio::test]
async fn streams_that_end_while_the_circuits_window_is_closed_leave_nothing_behind() {
    let mut pair = Pair::new(VEGAS);
    let (_near, mut far) = pair.stream(HALF_CLOSE);
    far.write_all(&[7; 1000]).await.expect("taken");
    // So much is under way that nothing more may leave.
    for _ in 0..200 {
        let mut exit = pair.exit.lock();
        exit.sealed(LegId::FIRST, digest(1), Instant::now());
    }
    let target: hoplite_wire::Target = "192.0.2.1:80".parse().expect("valid");
    let tell = |message: &Message<'_>| {
        let told = message::control(Format::V0, message, StreamId(77), zeros);
        let handled = pair.exit.lock().handle_message(told.body, digest(0), at());
        handled.expect("allowed");
    };
    for _ in 0..1000 {
        tell(&Message::Begin(Begin {
            target: target.clone(),
            flags: HALF_CLOSE,
        }));
        let (id, _) = pair.exit.lock().next_asked().expect("asked for");
        pair.exit.lock().connected(id, None);
        let mut handle = Handle::new(&pair.exit, id);
        handle.write_all(&[7; 1000]).await.expect("taken");
        let send = || pair.exit.lock().next_message(LegId::FIRST).is_some();
        while send() {}
        tell(&Message::End(End::new(EndReason::MISC)));
    }
    let endpoint = pair.exit.lock();
    assert!(endpoint.later.len() <= 2, "{}", endpoint.later.len());
}

/// Else readers who hold nothing would be ended for it.
#[test]
fn what_came_early_on_the_first_leg_takes_nothing_of_what_readers_may_have_waiting() {
    let (exit, [first, _]) = exit_of_two_legs();
    let switch = Message::Unknown(RelayCommand::CONFLUX_SWITCH, &[0, 0, 0, 1]);
    told_on(&exit, 0, 0, &switch).expect("allowed");
    for _ in 0..100 {
        told_on(&exit, 0, 3, &Message::Data(&[1; 400])).expect("early");
    }
    assert!(first.received.waiting() > 40_000);
    assert_eq!(exit.lock().held.total(), 0);
}

#[test]
fn as_many_answers_at_once_as_streams_may_ask_for_break_nothing() {
    let (exit, [first, _]) = exit_of_two_legs();
    let switch = Message::Unknown(RelayCommand::CONFLUX_SWITCH, &[0, 0, 0, 1]);
    told_on(&exit, 1, 0, &switch).expect("allowed");
    for stream in 1..=1000 {
        let unreadable = Message::Unknown(RelayCommand::BEGIN, b"?");
        told_on(&exit, 1, stream, &unreadable).expect("early");
    }
    let end = Message::End(End::new(EndReason::DONE));
    told_on(&exit, 0, 2000, &end).expect("the next of all");
    assert_eq!(first.sending.waiting(), 1000);
    let mut answers = 0;
    while exit.lock().next_message(LegId(0)).is_some()
        || exit.lock().next_message(LegId(1)).is_some()
    {
        answers += 1;
    }
    assert!((1000..1010).contains(&answers), "{answers}, and SWITCHes");
    assert_eq!(first.sending.waiting(), 0);
}

/// A cell comes in a large buffer of its channel, which it would keep whole.
#[tokio::test]
async fn a_reader_that_stands_still_keeps_no_buffer_of_a_channel() {
    let mut pair = Pair::new(VEGAS);
    let (_near, mut far) = pair.stream(HALF_CLOSE);
    let data = message::control(Format::V0, &Message::Data(b"x"), StreamId(1), zeros);
    let mut buffer = BytesMut::with_capacity(1 << 15);
    buffer.extend_from_slice(&data.body);
    let body = buffer.split();
    pair.exit
        .lock()
        .handle_message(body, digest(1), at())
        .expect("allowed");
    buffer.reserve(1 << 14);
    assert!(buffer.try_reclaim(1 << 15), "nobody else has it");
    let mut got = [0];
    far.read_exact(&mut got).await.expect("it came");
}

#[test]
fn the_largest_window_fits_into_what_a_reader_who_stands_still_may_have_waiting() {
    let cells = usize::try_from(LARGEST).expect("small");
    let bytes = cells * cell::DATA + usize::try_from(XOFF).expect("small");
    let limits = Limits::default();
    assert!(usize::try_from(limits.waiting).expect("small") * cell::DATA > bytes);
    assert!(limits.held > bytes);
    // Beside DATA there are acknowledgements of the other direction, and a few messages for each stream.
    let beside = cells / 31 + 8 * limits.streams;
    let inbox = hoplite_channel::Config::default().inbox;
    assert!(inbox > cells + beside, "{inbox} cells at a relay");
    // Each leg of a set has one, and two readers may stand still.
    let (of_set, legs) = (limits.of_set(), conflux::LEGS);
    assert!(usize::try_from(of_set.waiting).expect("small") * cell::DATA > legs * bytes);
    assert!(of_set.held > legs * bytes);
}

/// Who is woken, and how often.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_leg_of_which_nothing_more_was_read_hears_of_it_when_the_other_has_sent_what_waited() {
    let (exit, _) = exit_of_two_legs();
    let unreadable = Message::Unknown(RelayCommand::BEGIN, b"?");
    for stream in 1..=300 {
        told_on(&exit, 0, stream, &unreadable).expect("answered");
    }
    let mut exit = exit.lock();
    let is_first = exit.next_message(LegId(0)).is_some();
    let (turn, other) = if is_first { (0, 1) } else { (1, 0) };
    let (turn, other) = (LegId(turn), LegId(other));
    assert!(exit.is_full(other));
    let woken = Arc::<Woken>::default();
    exit.set_driver(other, &Arc::clone(&woken).into());
    let times = || woken.0.load(Ordering::Relaxed);
    while exit.is_full(other) {
        assert_eq!(times(), 0);
        exit.next_message(turn).expect("it has the turn");
    }
    assert_eq!(times(), 1);
}

#[tokio::test]
async fn streams_that_wait_for_the_circuits_window_are_looked_at_when_it_opens_and_not_for_each_cell()
 {
    let mut pair = Pair::new(VEGAS);
    let mut streams: Vec<_> = (0..40).map(|_| pair.stream(HALF_CLOSE)).collect();
    for (_, far) in &mut streams {
        far.write_all(&[7; 10 * cell::DATA]).await.expect("taken");
    }
    // All that the window allows has left, and nothing is acknowledged.
    let mut endpoint = pair.exit.lock();
    let mut counted = 0;
    while let Some(message) = endpoint.next_message(LegId::FIRST) {
        if message.counted {
            endpoint.sealed(LegId::FIRST, digest(1), Instant::now());
            counted += 1;
        }
    }
    assert_eq!(counted, 124);
    assert_eq!((endpoint.turn.len(), endpoint.later.len()), (0, 40));
    // An acknowledgement: they go on in their turn, until the window is closed again.
    let sendme = Message::Sendme(Sendme::V1(digest(1)));
    let sendme = message::control(Format::V0, &sendme, StreamId::CIRCUIT, zeros);
    endpoint
        .handle_message(sendme.body, digest(2), at())
        .expect("awaited");
    let mut again = std::collections::BTreeSet::new();
    while let Some(message) = endpoint.next_message(LegId::FIRST) {
        endpoint.sealed(LegId::FIRST, digest(1), Instant::now());
        again.insert(message.body.get(3..5).expect("a stream").to_vec());
    }
    assert!(again.len() > 30, "{}", again.len());
    assert_eq!((endpoint.turn.len(), endpoint.later.len()), (0, 40));
}

// The ends of a circuit between a client and an onion service.

fn met(control: Control) -> Pair {
    let pair = Pair::new(Control::Fixed);
    pair.client.lock().meet(Role::Client, control);
    pair.exit.lock().meet(Role::Service, control);
    pair
}

/// What the service is told next, at once.
async fn asked(pair: &Pair) -> Option<Result<(StreamId, u16), Error>> {
    let asked = now(|cx| pair.exit.lock().poll_asked(cx)).await?;
    Some(asked.map(|(id, asked)| match asked {
        Asked::Port(port) => (id, port),
        other => unreachable!("{other:?} of a service"),
    }))
}

#[tokio::test]
async fn a_client_asks_a_service_for_ports_and_streams_go_both_ways() {
    for control in [Control::Fixed, VEGAS] {
        let mut pair = met(control);
        let id = pair.client.lock().begin_port(80).expect("room");
        let mut near = Handle::new(&pair.client, id);
        assert!(asked(&pair).await.is_none());
        pair.settle();
        let told = asked(&pair).await.expect("asked for").expect("open");
        assert_eq!(told, (id, 80));
        let mut far = Handle::new(&pair.exit, id);
        pair.exit.lock().connected(id, None);
        for _ in 0..50 {
            near.write_all(&[3; 20_000]).await.expect("taken");
            far.write_all(&[4; 20_000]).await.expect("taken");
            pair.settle();
            far.read_exact(&mut [0; 20_000]).await.expect("arrived");
            near.read_exact(&mut [0; 20_000]).await.expect("arrived");
            pair.settle();
        }
    }
}

#[tokio::test]
async fn a_client_that_asks_a_service_for_anything_else_is_closed() {
    let target = "192.0.2.1:80".parse().expect("valid");
    let pair = met(VEGAS);
    // A name and flags are passed over.
    let begin = Message::Begin(Begin {
        target,
        flags: Flags::IPV6_OKAY,
    });
    let said = |stream, message: &Message<'_>| {
        message::control(Format::V0, message, StreamId(stream), zeros).body
    };
    let hears = |body| pair.exit.lock().handle_message(body, digest(0), at());
    assert_eq!(hears(said(7, &begin)), Ok(()));
    let told = asked(&pair).await.expect("asked for").expect("open");
    assert_eq!(told, (StreamId(7), 80));
    hears(said(7, &begin)).expect_err("there already");
    for message in [
        Message::BeginDir,
        Message::Resolve(Resolve("example.com")),
        Message::Unknown(RelayCommand::BEGIN, b"no port"),
        Message::Connected(Connected(None)),
    ] {
        hears(said(8, &message)).expect_err("not of a service");
    }
}

#[tokio::test]
async fn a_client_with_too_many_streams_is_refused_the_next_without_a_reason() {
    let mut pair = met(VEGAS);
    pair.exit.lock().limits.streams = 2;
    let mut handles = Vec::new();
    for _ in 0..3 {
        let id = pair.client.lock().begin_port(80).expect("room");
        handles.push(Handle::new(&pair.client, id));
    }
    pair.settle();
    for handle in &mut handles[..2] {
        assert!(now(|cx| handle.poll_said(cx)).await.is_none());
    }
    let refused = now(|cx| handles[2].poll_said(cx)).await.expect("refused");
    let error = refused.expect_err("refused");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::TargetFailed, None)
    );
}

#[tokio::test]
async fn whoever_waits_for_a_stream_is_told_that_the_circuit_has_closed() {
    let pair = met(VEGAS);
    let waits = tokio::spawn({
        let exit = Arc::clone(&pair.exit);
        async move { poll_fn(|cx| exit.lock().poll_asked(cx)).await }
    });
    tokio::task::yield_now().await;
    pair.exit.lock().close(failure::late());
    let told = hoplite_testing::soon(waits).await.expect("no panic");
    assert_eq!(told.expect_err("closed").kind(), ErrorKind::TimedOut);
}

/// What leaves one end in cells now: how many of them carry data.
fn data_cells(from: &Shared) -> usize {
    let mut endpoint = from.lock();
    std::iter::from_fn(|| endpoint.next_message(LegId::FIRST)).count()
}

/// Small pieces that a program writes every so often, each as soon as the stream takes it, and in how many cells they leave.
async fn cells_of_pieces(share: u64, pieces: usize, pause: u64) -> (usize, Duration) {
    let mut pair = pair(Limits {
        share: Duration::from_millis(share),
        ..Limits::default()
    });
    let (mut near, _far) = pair.stream(HALF_CLOSE);
    let (mut program, mut source) = tokio::io::duplex(1 << 16);
    let began = Instant::now();
    let copy = tokio::spawn(async move { tokio::io::copy(&mut source, &mut near).await });
    let writes = tokio::spawn(async move {
        for _ in 0..pieces {
            program.write_all(&[7; 40]).await.expect("written");
            sleep(Duration::from_millis(pause)).await;
        }
        began.elapsed()
    });
    let (mut cells, mut last) = (0, Duration::ZERO);
    while !copy.is_finished() {
        let now = data_cells(&pair.client);
        if now > 0 {
            (cells, last) = (cells + now, began.elapsed());
        }
        sleep(Duration::from_millis(1)).await;
    }
    let said = writes.await.expect("written");
    // The end of the stream is a message of its own, behind all.
    cells += data_cells(&pair.client);
    assert!(last <= said + Duration::from_millis(share + 2));
    (cells, last)
}

#[tokio::test(start_paused = true)]
async fn small_pieces_of_a_stream_share_cells_and_wait_no_longer_than_they_may() {
    let (each, _) = cells_of_pieces(0, 40, 5).await;
    let (shared, _) = cells_of_pieces(20, 40, 5).await;
    println!("40 pieces of 40 bytes, one in 5 ms: {each} cells; they wait 20 ms: {shared}");
    assert!(each >= 40, "{each} cells");
    assert!(shared <= each / 2, "{shared} of {each} cells");
}

#[tokio::test(start_paused = true)]
async fn a_piece_that_fills_a_cell_does_not_wait_nor_does_what_follows_a_wait() {
    let mut pair = pair(Limits {
        share: Duration::from_millis(20),
        ..Limits::default()
    });
    let (mut near, _far) = pair.stream(HALF_CLOSE);
    let began = Instant::now();
    near.write_all(&[7; 488]).await.expect("written");
    assert_eq!(
        (data_cells(&pair.client), began.elapsed()),
        (1, Duration::ZERO)
    );
    near.write_all(&[7; 40]).await.expect("written");
    near.write_all(&[7; 40]).await.expect("written");
    let took = began.elapsed().as_millis();
    assert!((20..=22).contains(&took), "{took} ms");
    assert_eq!(data_cells(&pair.client), 1, "both in one");
}
