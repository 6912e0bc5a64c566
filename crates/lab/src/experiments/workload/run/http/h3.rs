//! HTTP/3 as a client: streams of one QUIC connection, straight or through a SOCKS5 association. RFC 9114, RFC 9204. Also what both ends share.
//!
//! QUIC is quinn with its defaults (CUBIC unless the workload's `tuning` says otherwise, an acknowledgement every second packet or 25 ms) and
//! windows as large as browsers have them; frames and fields are `wire::h3` and `wire::message`. Under it is the host's own socket, or one
//! whose datagrams carry the header of a SOCKS5 association (RFC 1928 §7); segmentation offload goes through: each segment gets its header.
//!
//! The server learns the client's congestion control and packet size before the handshake, from the connection id that the client draws for its
//! first packet (RFC 9000 §7.2): it is random but for a mark and the wish. Only our own server reads it; nobody else's does.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_quic::{Hooks, Qlog};
use hoplite_wire::{
    RequestHead, ResponseHead,
    h3::{Code, Frame, FrameReader, Place, Settings, stream, write_data_head, write_headers},
    socks::DatagramView,
    varint,
};
use hoplite_workload::{
    socks::Login,
    web::{Body, length},
};
use quinn::{
    AsyncUdpSocket, Connection, ConnectionError, ConnectionId, Endpoint, EndpointConfig,
    IdleTimeout, MtuDiscoveryConfig, ReadError, RecvStream, Runtime, SendStream, TokioRuntime,
    TransportConfig, UdpPoller, VarInt, WriteError,
    congestion::{BbrConfig, CubicConfig, NewRenoConfig},
    crypto::rustls::QuicClientConfig,
    udp::{RecvMeta, Transmit},
};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;

use super::{
    CONNECTION_WINDOW, Fetch, STREAM_WINDOW, Task, client_tls, finish, head, server_name, take,
};
use crate::experiments::workload::{
    Congestion, Fault, Kind, Order, TransferError, Tuning,
    run::{
        connect,
        record::{Record, monotonic_us, patiently},
        tcp,
    },
    transfer::VERDICT,
};

/// Bytes of a field section.
pub(super) const FIELDS: usize = 16 * 1024;

/// What qlog files call the connection from end to end.
pub(super) const LABEL: &str = "end";

/// A connection; it is closed when its last holder goes.
#[derive(Clone)]
pub(super) struct Http3(Arc<Inner>);

struct Inner {
    connection: Connection,
    _endpoint: Endpoint,
    _control: SendStream,
    _streams: Arc<Task>,
    stall: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(&self.connection);
    }
}

impl Http3 {
    pub(super) async fn open(
        order: &Order,
        port: u16,
        (token, qlog): (&Login, Option<&Qlog>),
        record: &mut Record,
    ) -> Result<Self, TransferError> {
        let stall = order.plan.stall;
        let (socket, peer) = open_socket(order, port, token, record).await?;
        let runtime = Arc::new(TokioRuntime);
        let config = EndpointConfig::default();
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, runtime);
        let endpoint = endpoint.map_err(|error| Fault::Connect.because(error))?;
        let name = server_name(order, port)?.to_str().into_owned();
        let connecting = endpoint.connect_with(config_of(qlog, order)?, peer, &name);
        let connecting = connecting.map_err(|why| Fault::Misc.because(why))?;
        let connection = patiently(stall, connecting).await?;
        let connection = connection.map_err(|error| not_connected(&error))?;
        let now = record.clock.us();
        record.phases.connect.get_or_insert(now);
        record.phases.tls = Some(now);
        let control = control(&connection).await.map_err(|error| of(&error))?;
        let streams = Task::spawn(ignore_streams(connection.clone()));
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
            write_data_head(&mut out, size(length(fetch.bytes)));
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
        let mut check = fetch.check();
        while let Some(frame) = frames.next().await? {
            if let Frame::Data(data) = frame {
                take(&mut check, &data, record)?;
            }
        }
        finish(check, record)
    }
}

/// A size as the platform counts.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The body of an upload.
async fn send(
    to: &mut SendStream,
    fetch: &Fetch,
    (limit, record): (Duration, &mut Record),
) -> Result<(), TransferError> {
    let mut body = Body::new(fetch.bytes, fetch.seed);
    while let Some(piece) = body.next() {
        let bytes = piece.len() as u64;
        let written = patiently(limit, to.write_chunk(piece)).await?;
        written.map_err(|error| unwritten(&error))?;
        let hash = if body.is_over() { length(0) } else { 0 };
        let payload = bytes.saturating_sub(hash);
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
    let tls = QuicClientConfig::try_from(client_tls(3)?);
    let tls = tls.map_err(|why| Fault::Misc.because(why))?;
    let mut config = quinn::ClientConfig::new(hooks(qlog).client(Arc::new(tls), LABEL));
    config.transport_config(transport(tuning, order.plan.stall));
    if tuning != Tuning::default() {
        let mut random = [0; 16];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| Fault::Misc.because("the system gives no random bytes"))?;
        config.initial_dst_cid_provider(Arc::new(move || initial_connection_id(tuning, random)));
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

    /// The head of a request.
    pub(super) async fn request(&mut self) -> Result<RequestHead, TransferError> {
        let Some(Frame::Headers(section)) = self.next().await? else {
            return Err(Fault::Read.because("a request without a head"));
        };
        RequestHead::decode(&section, FIELDS).map_err(|why| Fault::Read.because(why))
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

/// An address for a server that only the proxy knows by name. RFC 5737.
const NAMELESS: [u8; 4] = [192, 0, 2, 1];

/// A socket, and where QUIC believes the server is.
async fn open_socket(
    order: &Order,
    port: u16,
    token: &Login,
    record: &mut Record,
) -> Result<(Arc<dyn AsyncUdpSocket>, SocketAddr), TransferError> {
    let failed = |error: io::Error| Fault::Connect.because(error);
    let way = connect::open_association(order, port, token, record).await?;
    let socket = TokioRuntime.wrap_udp_socket(way.socket).map_err(failed)?;
    let Some((control, target)) = way.association else {
        return Ok((socket, way.peer));
    };
    let believed = target
        .clone()
        .target()
        .ok()
        .and_then(|target| target.socket_addr());
    let server = believed.unwrap_or_else(|| SocketAddr::from((NAMELESS, port)));
    let mut header = Vec::new();
    target.emit_datagram_header(&mut header);
    let relayed = Relayed {
        inner: socket,
        proxy: way.peer,
        server,
        header,
        _control: control,
    };
    Ok((Arc::new(relayed), server))
}

/// A socket whose datagrams go through an association.
#[derive(Debug)]
struct Relayed {
    inner: Arc<dyn AsyncUdpSocket>,
    proxy: SocketAddr,
    server: SocketAddr,
    header: Vec<u8>,
    _control: TcpStream,
}

impl AsyncUdpSocket for Relayed {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit
            .segment_size
            .unwrap_or(transmit.contents.len())
            .max(1);
        let contents = wrap(&self.header, transmit.contents, segment);
        self.inner.try_send(&Transmit {
            destination: self.proxy,
            ecn: transmit.ecn,
            contents: &contents,
            segment_size: transmit.segment_size.map(|size| size + self.header.len()),
            src_ip: None,
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.inner.poll_recv(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter_mut().zip(meta.iter_mut()).take(count) {
            (meta.len, meta.stride) = unwrap(buffer, meta.len, meta.stride);
            meta.addr = self.server;
            meta.dst_ip = None;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    /// "No" even where the kernel may: what the proxy sends on is never split, and packets that are too large must be seen as lost.
    fn may_fragment(&self) -> bool {
        false
    }
}

/// Puts the header in front of every segment.
fn wrap(header: &[u8], contents: &[u8], segment: usize) -> Vec<u8> {
    let segments = contents.len().div_ceil(segment);
    let mut out = Vec::with_capacity(contents.len() + segments * header.len());
    for piece in contents.chunks(segment) {
        out.extend_from_slice(header);
        out.extend_from_slice(piece);
    }
    out
}

/// Takes the header off every segment, in place; the new length and stride. What is no datagram of the association goes.
/// Segments whose headers have another length than the first one's go too: they would not fit the stride.
fn unwrap(buffer: &mut [u8], len: usize, stride: usize) -> (usize, usize) {
    let (mut to, mut header, stride) = (0, None, stride.max(1));
    for start in (0..len).step_by(stride) {
        let end = (start + stride).min(len);
        let Some(own) = buffer.get(start..end).and_then(header_of) else {
            continue;
        };
        if *header.get_or_insert(own) != own {
            continue;
        }
        buffer.copy_within(start + own..end, to);
        to += end - start - own;
    }
    (to, stride.saturating_sub(header.unwrap_or(0)).max(1))
}

/// The length of a whole datagram's header. One that carries nothing is none: QUIC has no use for it.
fn header_of(datagram: &[u8]) -> Option<usize> {
    let view = DatagramView::parse(datagram).ok()?;
    let whole = view.fragment == 0 && !view.payload.is_empty();
    whole.then_some(view.header.len())
}

/// What a first connection id with a wish begins with.
const MARK: [u8; 4] = *b"hlab";

/// Bytes of such an id: mark, congestion control, packet size, and enough random ones.
const LENGTH: usize = 16;

/// QUIC's first packet size, and the smallest that it may have (RFC 9000 §14.1).
const SMALLEST: u16 = 1200;

/// How a connection carries.
pub(super) fn transport(tuning: Tuning, idle: Duration) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.stream_receive_window(STREAM_WINDOW.into());
    config.receive_window(CONNECTION_WINDOW.into());
    config.send_window(CONNECTION_WINDOW.into());
    config.initial_mtu(tuning.packet.max(SMALLEST));
    let search = (tuning.packet == 0).then(MtuDiscoveryConfig::default);
    config.mtu_discovery_config(search);
    config.max_idle_timeout(IdleTimeout::try_from(idle).ok());
    match tuning.congestion {
        Congestion::Cubic => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
        Congestion::Bbr => config.congestion_controller_factory(Arc::new(BbrConfig::default())),
        Congestion::Newreno => {
            config.congestion_controller_factory(Arc::new(NewRenoConfig::default()))
        }
    };
    Arc::new(config)
}

/// A first connection id with this wish; `random` fills the rest.
fn initial_connection_id(tuning: Tuning, random: [u8; LENGTH]) -> ConnectionId {
    let mut id = random;
    let (head, _) = id.split_at_mut(7);
    head[..4].copy_from_slice(&MARK);
    head[4] = tuning.congestion as u8;
    head[5..].copy_from_slice(&tuning.packet.to_be_bytes());
    ConnectionId::new(&id)
}

/// The wish of a client, if it has one.
pub(super) fn requested_tuning(id: &ConnectionId) -> Tuning {
    let &[a, b, c, d, congestion, high, low, ..] = &**id else {
        return Tuning::default();
    };
    if [a, b, c, d] != MARK {
        return Tuning::default();
    }
    let all = [Congestion::Cubic, Congestion::Bbr, Congestion::Newreno];
    let congestion = all.get(usize::from(congestion)).copied();
    Tuning {
        congestion: congestion.unwrap_or_default(),
        packet: u16::from_be_bytes([high, low]),
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::socks::Endpoint;

    use super::*;

    fn header(address: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let address: SocketAddr = address.parse().unwrap();
        Endpoint::from(address).emit_datagram_header(&mut out);
        out
    }

    #[test]
    fn segments_are_wrapped_one_by_one_and_come_out_as_they_went_in() {
        let contents: Vec<u8> = (0..=255).cycle().take(2500).collect();
        let header = header("10.77.0.1:443");
        let mut wrapped = wrap(&header, &contents, 1000);
        assert_eq!(wrapped.len(), 2500 + 3 * header.len());
        let len = wrapped.len();
        let (len, stride) = unwrap(&mut wrapped, len, 1000 + header.len());
        assert_eq!((len, stride), (2500, 1000));
        assert_eq!(wrapped[..len], contents);
    }

    #[test]
    fn fragments_and_nonsense_are_dropped() {
        let mut datagram = wrap(&header("[fd77::1]:443"), &[7; 10], 10);
        datagram[2] = 1;
        let len = datagram.len();
        assert_eq!(unwrap(&mut datagram, len, len).0, 0);
        assert_eq!(unwrap(&mut [9; 30], 30, 30).0, 0);
        assert_eq!(unwrap(&mut [], 0, 0).0, 0);
    }

    #[test]
    fn a_wish_comes_out_of_the_first_connection_id_as_it_went_in() {
        for congestion in [Congestion::Cubic, Congestion::Bbr, Congestion::Newreno] {
            for packet in [0, 1200, 1350] {
                let tuning = Tuning { congestion, packet };
                assert_eq!(
                    requested_tuning(&initial_connection_id(tuning, [0xee; LENGTH])),
                    tuning
                );
            }
        }
    }

    #[test]
    fn an_id_of_somebody_else_is_no_wish() {
        for id in [&b""[..], b"hla", b"hlab\x01", b"HLAB\x01\x04\xb0and more"] {
            assert_eq!(requested_tuning(&ConnectionId::new(id)), Tuning::default());
        }
        let unknown = requested_tuning(&ConnectionId::new(b"hlab\x09\0\0"));
        assert_eq!(unknown, Tuning::default());
    }
}
