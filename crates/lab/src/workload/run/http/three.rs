//! HTTP/3 as a client: streams of one QUIC connection, straight or through a SOCKS5 association. RFC 9114, RFC 9204.
//! QUIC is quinn with its defaults (CUBIC unless `tuning` says otherwise, an acknowledgement every second packet or 25 ms) and windows
//! as large as browsers have them; frames and fields are `wire::h3` and `wire::message`. Also what both ends share.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::{Qlog, observe::Hooks};
use hoplite_wire::{
    RequestHead, ResponseHead,
    h3::{Code, Frame, FrameReader, Place, Settings, stream, write_data_head, write_headers},
    varint,
};
use quinn::{
    Connection, ConnectionError, Endpoint, EndpointConfig, ReadError, RecvStream, SendStream,
    TokioRuntime, VarInt, WriteError, crypto::rustls::QuicClientConfig,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::{
    Fetch, association,
    body::{Body, Check, length},
    connection, finish, head, take, tls,
    tuning::{first_id, transport},
};
use crate::workload::{
    Tuning,
    run::{
        Kind, Order, TransferError, clock::monotonic_us, door::Token, patience::patiently,
        record::Record, tcp, trouble::Fault,
    },
    transfer::VERDICT,
};

/// Octets of a field section.
pub(super) const FIELDS: usize = 16 * 1024;

/// What qlog files call the connection from end to end.
pub(super) const LABEL: &str = "end";

/// A connection; it is closed when its last holder goes.
#[derive(Clone)]
pub(super) struct Three(Arc<Inner>);

struct Inner {
    connection: Connection,
    _endpoint: Endpoint,
    _control: SendStream,
    _streams: Arc<connection::Task>,
    stall: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(&self.connection);
    }
}

impl Three {
    pub(super) async fn open(
        order: &Order,
        port: u16,
        (token, qlog): (&Token, Option<&Qlog>),
        record: &mut Record,
    ) -> Result<Self, TransferError> {
        let stall = order.plan.stall;
        let (socket, peer) = association::open(order, port, token, record).await?;
        let runtime = Arc::new(TokioRuntime);
        let config = EndpointConfig::default();
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, runtime);
        let endpoint = endpoint.map_err(|error| Fault::Connect.because(error))?;
        let name = connection::name(order, port)?.to_str().into_owned();
        let connecting = endpoint.connect_with(config_of(qlog, order)?, peer, &name);
        let connecting = connecting.map_err(|why| Fault::Misc.because(why))?;
        let connection = patiently(stall, connecting).await?;
        let connection = connection.map_err(|error| not_connected(&error))?;
        let now = record.clock.us();
        record.phases.connect.get_or_insert(now);
        record.phases.tls = Some(now);
        let control = control(&connection).await.map_err(|error| of(&error))?;
        let streams = connection::Task::spawn(ignore_streams(connection.clone()));
        Ok(Self(Arc::new(Inner {
            connection,
            _endpoint: endpoint,
            _control: control,
            _streams: streams,
            stall,
        })))
    }

    pub(super) async fn fetch(
        &self,
        fetch: &Fetch,
        record: &mut Record,
    ) -> Result<(), TransferError> {
        let limit = self.0.stall;
        let opening = patiently(limit, self.0.connection.open_bi()).await?;
        let (mut to, from) = opening.map_err(|error| of(&error))?;
        let mut out = BytesMut::new();
        write_headers(&mut out, &request(fetch).encode());
        if fetch.upload {
            write_data_head(&mut out, size(length(fetch.octets)));
        }
        let written = patiently(limit, to.write_all(&out)).await?;
        written.map_err(|error| unwritten(&error))?;
        record.phases.command = Some(record.clock.us());
        if fetch.upload {
            send(&mut to, fetch, (limit, record)).await?;
        }
        to.finish().map_err(|error| Fault::Write.because(error))?;
        // What was written waits in buffers: only the transfer's whole time bounds the answer to an upload.
        let limit = if fetch.upload { Duration::MAX } else { limit };
        let mut frames = Frames::new(from, limit);
        answer(&mut frames, record).await?;
        if fetch.upload {
            return verdict(&mut frames, record).await;
        }
        let mut check = Check::new(fetch.octets);
        while let Some(frame) = frames.next().await? {
            if let Frame::Data(data) = frame {
                take(&mut check, &data, record)?;
            }
        }
        finish(check, record)
    }
}

/// A size as the platform counts.
pub(super) fn size(octets: u64) -> usize {
    usize::try_from(octets).unwrap_or(usize::MAX)
}

/// The body of an upload.
async fn send(
    to: &mut SendStream,
    fetch: &Fetch,
    (limit, record): (Duration, &mut Record),
) -> Result<(), TransferError> {
    let mut body = Body::new(fetch.octets, fetch.seed);
    while let Some(piece) = body.next() {
        let octets = piece.len() as u64;
        let written = patiently(limit, to.write_chunk(piece)).await?;
        written.map_err(|error| unwritten(&error))?;
        let hash = if body.is_over() { length(0) } else { 0 };
        let payload = octets.saturating_sub(hash);
        record.sent.add(payload, monotonic_us());
    }
    Ok(())
}

/// What the server says of an upload.
async fn verdict(frames: &mut Frames, record: &mut Record) -> Result<(), TransferError> {
    let mut said = BytesMut::new();
    while let Some(frame) = frames.next().await? {
        if let Frame::Data(data) = frame {
            said.extend_from_slice(&data);
        }
        if said.len() > VERDICT {
            return Err(Fault::Auth.because("the verdict is too long"));
        }
    }
    tcp::judge(&said, record)
}

fn request(fetch: &Fetch) -> RequestHead {
    RequestHead {
        method: if fetch.upload { "PUT" } else { "GET" }.into(),
        protocol: None,
        scheme: Some("https".into()),
        authority: fetch.authority.clone(),
        path: Some(fetch.path.clone()),
        headers: Vec::new(),
    }
}

async fn answer(frames: &mut Frames, record: &mut Record) -> Result<(), TransferError> {
    let Some(Frame::Headers(section)) = frames.next().await? else {
        return Err(Fault::Auth.because("the answer does not begin with a head"));
    };
    let answer = ResponseHead::decode(&section, FIELDS).map_err(|why| Fault::Auth.because(why))?;
    head(answer.status, answer.header("x-seen-as"), record)
}

fn config_of(qlog: Option<&Qlog>, order: &Order) -> Result<quinn::ClientConfig, TransferError> {
    let tuning = match order.plan.kind {
        Kind::Http { tuning, .. } => tuning,
        _ => Tuning::default(),
    };
    let tls = QuicClientConfig::try_from(tls::client(3)?);
    let tls = tls.map_err(|why| Fault::Misc.because(why))?;
    let mut config = quinn::ClientConfig::new(hooks(qlog).client(Arc::new(tls), LABEL));
    config.transport_config(transport(tuning, order.plan.stall));
    if tuning != Tuning::default() {
        let mut random = [0; 16];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| Fault::Misc.because("the system gives no random octets"))?;
        config.initial_dst_cid_provider(Arc::new(move || first_id(tuning, random)));
    }
    Ok(config)
}

/// What writes the qlog files, if any are wanted.
pub(super) fn hooks(qlog: Option<&Qlog>) -> Hooks {
    Hooks {
        watch: qlog.map(|qlog| Arc::new(qlog.clone()) as _),
        ..Hooks::default()
    }
}

/// Opens our control stream with our settings; it must stay open.
pub(super) async fn control(connection: &Connection) -> Result<SendStream, ConnectionError> {
    let mut control = connection.open_uni().await?;
    let mut out = BytesMut::new();
    varint::write(&mut out, stream::CONTROL);
    Settings::default().write(&mut out);
    if let Err(error) = control.write_all(&out).await {
        tracing::debug!(%error, "the settings were not sent");
    }
    Ok(control)
}

/// Reads what the peer says on unidirectional streams and forgets it: nothing there changes a fetch. We do not check it, because both
/// ends are ours.
pub(super) async fn ignore_streams(connection: Connection) {
    while let Ok(stream) = connection.accept_uni().await {
        // At most as many as QUIC allows at once.
        tokio::spawn(ignore(stream));
    }
}

async fn ignore(mut stream: RecvStream) {
    while let Ok(Some(_)) = stream.read_chunk(FIELDS, true).await {}
}

/// Ends a connection well.
pub(super) fn close(connection: &Connection) {
    let code = VarInt::from_u64(Code::NO_ERROR.0).unwrap_or_default();
    connection.close(code, b"");
}

/// The frames of a request stream as they come.
pub(super) struct Frames {
    stream: RecvStream,
    reader: FrameReader,
    input: Bytes,
    stall: Duration,
}

impl Frames {
    pub(super) fn new(stream: RecvStream, stall: Duration) -> Self {
        Self {
            stream,
            reader: FrameReader::new(Place::Request, FIELDS),
            input: Bytes::new(),
            stall,
        }
    }

    /// The next one; `None` at the stream's end.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, TransferError> {
        loop {
            let frame = self.reader.next(&mut self.input);
            if let Some(frame) = frame.map_err(|code| Fault::Read.because(code))? {
                return Ok(Some(frame));
            }
            let chunk = patiently(self.stall, self.stream.read_chunk(usize::MAX, true)).await?;
            match chunk.map_err(|error| unread(&error))? {
                Some(chunk) => self.input = chunk.bytes,
                None if self.reader.is_between_frames() => return Ok(None),
                None => return Err(Fault::Closed.because("the stream ended within a frame")),
            }
        }
    }
}

fn not_connected(error: &ConnectionError) -> TransferError {
    match error {
        ConnectionError::TimedOut => Fault::Connect.because(error),
        _ => Fault::Tls.because(error),
    }
}

fn of(error: &ConnectionError) -> TransferError {
    match error {
        ConnectionError::TimedOut => Fault::Stall.because("the QUIC connection timed out"),
        _ => Fault::Closed.because(error),
    }
}

fn unread(error: &ReadError) -> TransferError {
    match error {
        ReadError::ConnectionLost(error) => of(error),
        ReadError::Reset(_) => Fault::Closed.because(error),
        _ => Fault::Read.because(error),
    }
}

fn unwritten(error: &WriteError) -> TransferError {
    match error {
        WriteError::ConnectionLost(error) => of(error),
        WriteError::Stopped(_) => Fault::Closed.because(error),
        _ => Fault::Write.because(error),
    }
}
