//! The server's half of HTTP/1.1, 2 and 3. A client that breaks the rules loses its connection alone.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use hoplite_quic::Qlog;
use hoplite_wire::{
    ResponseHead,
    h3::{Frame, write_data_head, write_headers},
};
use hoplite_workload::web::{Body, Check, accept, asked, length, response, serve_http1};
use quinn::{
    Endpoint, EndpointConfig, Incoming as IncomingQuic, TokioRuntime,
    crypto::rustls::QuicServerConfig,
};
use rustls::ServerConfig;
use socket2::{Protocol, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;

use super::h3::{self, requested_tuning, size, transport};
use crate::experiments::workload::{
    Fault, TransferError, Tuning,
    progress::Progress,
    run::{
        record::monotonic_us,
        server::{bound, listen},
    },
    transfer::Verdict,
};

/// QUIC connections that are served at once; others are refused.
const CONNECTIONS: usize = 1024;

/// Streams of one HTTP/2 connection at once.
const STREAMS: u32 = 256;

/// A QUIC client that is silent for this long has gone.
const IDLE: Duration = Duration::from_secs(1800);

/// The three listeners.
pub(crate) struct Server {
    http: TcpListener,
    https: TcpListener,
    quic: Endpoint,
    config: quinn::ServerConfig,
    tls: Arc<ServerConfig>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Server {
    /// Opens the ports; 0 takes any, the same one for TCP and UDP.
    pub(crate) fn bind(http: u16, https: u16, qlog: Option<&Qlog>) -> Result<Self, Error> {
        let [tcp, quic] = super::server_tls_configs()?;
        let http = listen(http)?;
        let (config, tls) = (config_of(quic, qlog)?, tcp);
        let (https, quic) = both(https, &config)?;
        Ok(Self {
            http,
            https,
            quic,
            config,
            tls,
        })
    }

    pub(crate) fn ports(&self) -> io::Result<[u16; 2]> {
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        Ok([port(&self.http)?, port(&self.https)?])
    }

    /// Serves for ever.
    pub(crate) async fn run(self) {
        let acceptor = TlsAcceptor::from(self.tls);
        let clear = accept(self.http, serve_http1);
        let secure = accept(self.https, move |stream, peer| {
            let acceptor = acceptor.clone();
            async move { secure(acceptor, stream, peer).await }
        });
        tokio::join!(clear, secure, accept_quic(self.quic, self.config));
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

/// What QUIC serves with, unless a client wishes for something else.
fn config_of(tls: Arc<ServerConfig>, qlog: Option<&Qlog>) -> Result<quinn::ServerConfig, Error> {
    let tls = QuicServerConfig::try_from(tls)?;
    let hooked = h3::hooks(qlog).server(Arc::new(tls), h3::LABEL);
    let mut config = quinn::ServerConfig::with_crypto(hooked);
    config.transport_config(transport(Tuning::default(), IDLE));
    Ok(config)
}

/// TCP and QUIC on the same port. A port that was chosen for TCP may be taken for UDP: then another one is tried.
fn both(port: u16, config: &quinn::ServerConfig) -> Result<(TcpListener, Endpoint), Error> {
    let mut tries = if port == 0 { 16 } else { 1 };
    loop {
        let tcp = listen(port)?;
        let chosen = tcp.local_addr()?.port();
        tries -= 1;
        match bound(Type::DGRAM, Protocol::UDP, chosen) {
            Ok(socket) => {
                hoplite_overlay::direct::udp::enlarge_buffers(&socket);
                let (settings, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
                let quic = Endpoint::new(settings, Some(config.clone()), socket.into(), runtime)?;
                return Ok((tcp, quic));
            }
            Err(error) if tries == 0 => return Err(error.into()),
            Err(_) => {}
        }
    }
}

async fn secure(acceptor: TlsAcceptor, stream: TcpStream, peer: SocketAddr) {
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a TLS handshake failed"),
    };
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => serve_http2(stream, peer).await,
        _ => serve_http1(stream, peer).await,
    }
}

/// HTTP/2.
async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let response = response(request.uri().path(), peer);
        // At most `STREAMS` at once: h2 refuses the rest.
        tokio::spawn(async move {
            if let Err(error) = push(response, respond).await {
                tracing::debug!(%error, "an HTTP/2 stream ended early");
            }
        });
    }
}

async fn push(
    response: http::Response<Body>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, mut body) = response.into_parts();
    let response = http::Response::from_parts(head, ());
    if body.is_over() {
        return respond.send_response(response, true).map(drop);
    }
    let mut stream = respond.send_response(response, false)?;
    while let Some(mut piece) = body.next() {
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len());
            let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let room = room.transpose()?.unwrap_or(0).min(piece.len());
            let now = piece.split_to(room);
            stream.send_data(now, piece.is_empty() && body.is_over())?;
        }
    }
    Ok(())
}

/// HTTP/3.
async fn accept_quic(endpoint: Endpoint, config: quinn::ServerConfig) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some(incoming) = endpoint.accept().await {
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let config = config.clone();
        tokio::spawn(async move {
            if let Err(error) = serve_http3(incoming, config).await {
                tracing::debug!(%error, "a QUIC connection ended early");
            }
            drop(permit);
        });
    }
}

async fn serve_http3(
    incoming: IncomingQuic,
    mut config: quinn::ServerConfig,
) -> Result<(), quinn::ConnectionError> {
    config.transport_config(transport(requested_tuning(&incoming.orig_dst_cid()), IDLE));
    let connection = incoming.accept_with(Arc::new(config))?.await?;
    let _control = h3::control(&connection).await?;
    let streams = h3::ignore_streams(connection.clone());
    let peer = connection.remote_address();
    let requests = async {
        loop {
            let (to, from) = connection.accept_bi().await?;
            // At most as many as QUIC allows at once: 100.
            tokio::spawn(async move {
                if let Err(error) = serve(to, from, peer).await {
                    tracing::debug!(why = error.why, "an HTTP/3 stream ended early");
                }
            });
        }
    };
    tokio::select! {
        outcome = requests => outcome,
        () = streams => Ok(()),
    }
}

/// Takes an upload.
async fn take(
    frames: &mut h3::Frames,
    (bytes, seed): (u64, u64),
) -> Result<Verdict, TransferError> {
    let (mut check, mut progress) = (Check::new(bytes, seed), Progress::new(bytes));
    while let Some(frame) = frames.next().await? {
        if let Frame::Data(data) = frame {
            progress.add(check.take(&data)?, monotonic_us());
        }
    }
    Ok(Verdict {
        right: check.finish().is_ok(),
        passed: progress.passed(),
    })
}

async fn serve(
    mut to: quinn::SendStream,
    from: quinn::RecvStream,
    peer: SocketAddr,
) -> Result<(), TransferError> {
    let failed = |error: quinn::WriteError| Fault::Write.because(error);
    let mut frames = h3::Frames::new(from, IDLE);
    let request = frames.request().await?;
    let asked = request.path.as_deref().and_then(asked);
    let mut out = BytesMut::new();
    let head = ResponseHead::new(if asked.is_some() { 200 } else { 404 });
    let head = head.with("x-seen-as", peer.ip().to_canonical().to_string());
    write_headers(&mut out, &head.encode());
    let Some((bytes, seed)) = asked else {
        to.write_all(&out).await.map_err(failed)?;
        return to.finish().map_err(|error| Fault::Write.because(error));
    };
    if request.method == "PUT" {
        let verdict = take(&mut frames, (bytes, seed)).await?.emit();
        write_data_head(&mut out, verdict.len());
        out.extend_from_slice(&verdict);
        to.write_all(&out).await.map_err(failed)?;
        return to.finish().map_err(|error| Fault::Write.because(error));
    }
    write_data_head(&mut out, size(length(bytes)));
    to.write_all(&out).await.map_err(failed)?;
    for piece in Body::new(bytes, seed) {
        to.write_chunk(piece).await.map_err(failed)?;
    }
    to.finish().map_err(|error| Fault::Write.because(error))
}
