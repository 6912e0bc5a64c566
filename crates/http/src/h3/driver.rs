//! What runs beside the requests of a connection: control streams, unidirectional streams, arriving requests, waiting datagrams.
//! Each session runs one.
//! RFC 9114 §6 (streams), §7.2 (frames of the control stream), RFC 9204 §4.2 (QPACK streams).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use hoplite_quic::ConnectionController;
use hoplite_wire::{
    ResponseHead,
    h3::{self, Code, Frame, FrameReader, Place, Settings},
    http_head::HeadError,
    varint,
};
use tokio::sync::mpsc;

use super::{
    DataReceiver, DataSender, H3Error, add, quic,
    session::Ticket,
    session::{Arrived, Inner},
    var,
};

/// An empty frame of a reserved type, which means nothing "and can be sent on any stream where frames are allowed" (RFC 9114 §7.2.8).
const RESERVED_FRAME: [u8; 2] = [0x21, 0];

/// The largest control frame that is kept.
const CONTROL_LIMIT: usize = 4096;

/// Runs until the connection is lost.
pub(super) async fn run(inner: Arc<Inner>, arrived: mpsc::Sender<Arrived>) {
    tokio::select! {
        _ = inner.conn.closed() => {}
        _ = control(&inner) => {}
        () = unidirectional(&inner) => {}
        () = requests(&inner, arrived) => {}
        () = inner.outbox.run(&inner) => {}
    }
    inner.conn.closed().await;
    inner.outbox.clear();
}

/// Our control stream: settings, and GOAWAY when draining.
async fn control(inner: &Inner) -> Result<(), H3Error> {
    let mut stream = inner.conn.open_uni().await?;
    let mut out = BytesMut::new();
    varint::write(&mut out, h3::stream::CONTROL);
    our_settings(inner).write(&mut out);
    stream.write_all(&out).await?;
    let stopped = stream.stopped();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = inner.drain.notified() => break,
            () = inner.ping.notified() => stream.write_all(&RESERVED_FRAME).await?,
            () = inner.takes_more[0].notified() => {
                // No bytes: they are taken when any would be.
                stream.write(&[]).await?;
                inner.takes_more[1].notify_one();
            }
            // "If either control stream is closed at any point, this MUST be treated as a connection error".
            _ = &mut stopped => {
                inner.fail(Code::CLOSED_CRITICAL_STREAM, "the control stream was stopped");
                break;
            }
        }
    }
    let first = inner.routes().drain();
    inner.idle.notify_waiters();
    out.clear();
    h3::write_goaway(&mut out, first);
    stream.write_all(&out).await?;
    inner.conn.closed().await;
    Ok(())
}

fn our_settings(inner: &Inner) -> Settings {
    Settings {
        datagrams: true,
        extended_connect: inner.is_server(),
        max_field_section: Some(inner.config.max_field_section as u64),
        tuning: inner
            .config
            .controller
            .as_ref()
            .map(ConnectionController::tuning_setting),
    }
}

/// Which streams the peer has opened that it may open only once.
#[derive(Debug, Default)]
struct Seen {
    control: AtomicBool,
    encoder: AtomicBool,
    decoder: AtomicBool,
}

/// Takes the peer's unidirectional streams; QUIC bounds how many are open.
async fn unidirectional(inner: &Arc<Inner>) {
    let seen = Arc::new(Seen::default());
    while let Ok(stream) = inner.conn.accept_uni().await {
        let (inner, seen) = (Arc::clone(inner), Arc::clone(&seen));
        tokio::spawn(async move {
            if let Err(H3Error::Protocol(code, what)) =
                one_unidirectional(&inner, &seen, stream).await
            {
                inner.fail(code, what);
            }
        });
    }
}

async fn one_unidirectional(
    inner: &Inner,
    seen: &Seen,
    mut stream: quic::RecvStream,
) -> Result<(), H3Error> {
    let kind = stream_kind(&mut stream).await;
    let Some((kind, rest)) = kind.inspect_err(|_| inner.abandon())? else {
        inner.abandon();
        return Ok(());
    };
    let result = match kind {
        h3::stream::CONTROL => {
            only_once(&seen.control)?;
            peer_control(inner, &mut stream, rest).await
        }
        h3::stream::QPACK_ENCODER => {
            only_once(&seen.encoder)?;
            peer_encoder(&mut stream, rest).await
        }
        h3::stream::QPACK_DECODER => {
            only_once(&seen.decoder)?;
            drain_stream(&mut stream).await
        }
        // Only servers push, and nobody here allows it.
        h3::stream::PUSH if inner.is_server() => {
            return Err(breach(
                Code::STREAM_CREATION_ERROR,
                "a client's push stream",
            ));
        }
        h3::stream::PUSH => return Err(breach(Code::ID_ERROR, "a push that was not allowed")),
        _ => {
            inner.abandon();
            stream.stop(var(Code::STREAM_CREATION_ERROR)).ok();
            return Ok(());
        }
    };
    match result {
        Ok(()) | Err(H3Error::Reset(_)) => Err(breach(
            Code::CLOSED_CRITICAL_STREAM,
            "a control or QPACK stream was closed",
        )),
        error => error,
    }
}

fn breach(code: Code, what: &'static str) -> H3Error {
    H3Error::Protocol(code, what)
}

fn only_once(seen: &AtomicBool) -> Result<(), H3Error> {
    if seen.swap(true, Ordering::Relaxed) {
        Err(breach(
            Code::STREAM_CREATION_ERROR,
            "a second stream of its kind",
        ))
    } else {
        Ok(())
    }
}

/// The kind of a unidirectional stream and what came with it; `None` when it ends before that.
async fn stream_kind(stream: &mut quic::RecvStream) -> Result<Option<(u64, Bytes)>, H3Error> {
    let mut head = BytesMut::new();
    while let Some(chunk) = next_chunk(stream).await? {
        head.put(chunk);
        let mut rest = head.clone().freeze();
        if let Some(kind) = varint::read(&mut rest) {
            return Ok(Some((kind, rest)));
        }
    }
    Ok(None)
}

async fn next_chunk(stream: &mut quic::RecvStream) -> Result<Option<Bytes>, H3Error> {
    Ok(stream
        .read_chunk(usize::MAX, true)
        .await?
        .map(|chunk| chunk.bytes))
}

/// The peer's control stream; returns when it ends, which it must not.
async fn peer_control(
    inner: &Inner,
    stream: &mut quic::RecvStream,
    rest: Bytes,
) -> Result<(), H3Error> {
    let mut reader = FrameReader::new(Place::Control, CONTROL_LIMIT);
    let mut next = Some(rest);
    while let Some(mut input) = next {
        loop {
            match reader.next(&mut input) {
                Ok(Some(frame)) => control_frame(inner, &frame)?,
                Ok(None) => break,
                Err(code) => {
                    return Err(breach(
                        code,
                        "a control frame that is not allowed or badly laid out",
                    ));
                }
            }
        }
        next = next_chunk(stream).await?;
    }
    Ok(())
}

fn control_frame(inner: &Inner, frame: &Frame) -> Result<(), H3Error> {
    let first = inner.settings.borrow().is_none();
    match frame {
        Frame::Settings(settings) if first => {
            if let Some(controller) = &inner.config.controller {
                controller.agree_tuning(settings.tuning);
            }
            inner.settings.send_replace(Some(*settings));
            Ok(())
        }
        _ if first => Err(breach(
            Code::MISSING_SETTINGS,
            "a control stream without settings",
        )),
        Frame::Goaway(id) if inner.is_server() => goaway(inner, *id),
        Frame::Goaway(id) if id % 4 == 0 => goaway(inner, *id),
        Frame::Goaway(_) | Frame::CancelPush(_) => {
            Err(breach(Code::ID_ERROR, "an identifier that does not exist"))
        }
        Frame::MaxPushId(_) if inner.is_server() => Ok(()),
        _ => Err(breach(
            Code::FRAME_UNEXPECTED,
            "a frame that is not allowed now",
        )),
    }
}

/// "an endpoint MUST NOT increase the value they send in GOAWAY".
/// What a client announces concerns pushes, hence nobody here: only its order is checked.
fn goaway(inner: &Inner, id: u64) -> Result<(), H3Error> {
    if inner.goaway.fetch_min(id, Ordering::AcqRel) < id {
        Err(breach(Code::ID_ERROR, "a GOAWAY that takes back another"))
    } else {
        Ok(())
    }
}

/// The peer may set the capacity to the zero that we allow, and nothing else.
async fn peer_encoder(stream: &mut quic::RecvStream, rest: Bytes) -> Result<(), H3Error> {
    const SET_CAPACITY_0: u8 = 0x20;
    let mut next = Some(rest);
    while let Some(bytes) = next {
        if bytes.iter().any(|byte| *byte != SET_CAPACITY_0) {
            return Err(breach(
                Code::QPACK_ENCODER_STREAM_ERROR,
                "an insertion into a table without room",
            ));
        }
        next = next_chunk(stream).await?;
    }
    Ok(())
}

async fn drain_stream(stream: &mut quic::RecvStream) -> Result<(), H3Error> {
    while next_chunk(stream).await?.is_some() {}
    Ok(())
}

/// Takes the peer's bidirectional streams: requests at the server, a breach at the client.
async fn requests(inner: &Arc<Inner>, arrived: mpsc::Sender<Arrived>) {
    while let Ok((mut send, mut recv)) = inner.conn.accept_bi().await {
        if !inner.is_server() {
            inner.fail(
                Code::STREAM_CREATION_ERROR,
                "a bidirectional stream from a server",
            );
            return;
        }
        let id = quic::VarInt::from(send.id()).into_inner();
        if !inner.routes().arrive(id) {
            inner.abandon();
            send.reset(var(Code::REQUEST_REJECTED)).ok();
            recv.stop(var(Code::REQUEST_REJECTED)).ok();
            continue;
        }
        let ticket = Ticket::new(inner, id);
        let sender = DataSender::new(send, Arc::clone(&ticket), None);
        let receiver = DataReceiver::new(recv, ticket, None);
        tokio::spawn(arrive(Arc::clone(inner), sender, receiver, arrived.clone()));
    }
}

/// Reads the head of one request and passes it on.
async fn arrive(
    inner: Arc<Inner>,
    mut sender: DataSender,
    mut receiver: DataReceiver,
    arrived: mpsc::Sender<Arrived>,
) {
    let head = tokio::time::timeout(inner.config.head_timeout, receiver.request()).await;
    let refusal = match head {
        Ok(Ok(Some(Ok(head)))) => {
            // It fails only when the connection is lost or nobody accepts any more: the halves then reset the stream.
            let whole = Box::new((head, sender, receiver));
            arrived.send(whole).await.ok();
            return;
        }
        Ok(Ok(Some(Err(error)))) => return refuse(&inner, error, &mut sender, &mut receiver).await,
        Ok(Ok(None)) => Code::REQUEST_INCOMPLETE,
        Ok(Err(H3Error::Protocol(code, _))) => code,
        Ok(Err(_)) => Code::REQUEST_CANCELLED,
        Err(_) => Code::REQUEST_INCOMPLETE,
    };
    add(&inner.config.counters.malformed, 1);
    inner.abandon();
    sender.reset(refusal);
    receiver.stop(refusal);
}

async fn refuse(
    inner: &Inner,
    error: HeadError,
    sender: &mut DataSender,
    receiver: &mut DataReceiver,
) {
    add(&inner.config.counters.malformed, 1);
    inner.abandon();
    if error == HeadError::TooLarge {
        receiver.stop(Code::NO_ERROR);
        if sender
            .write_head(&ResponseHead::new(431).encode())
            .await
            .is_ok()
        {
            sender.finish().await.ok();
        }
    } else if let H3Error::Protocol(code, _) = receiver.refuse_head(error) {
        sender.reset(code);
    }
}
