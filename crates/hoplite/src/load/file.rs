//! A web server with one file of any size, and a download of it that is checked by its digest.
//! `demo` uses both; the server is hyper's, the content differs at every offset, so that no swapped or lost part goes unnoticed.

use std::{
    convert::Infallible,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ring::digest::{Context, SHA256};

use super::stop::Worker;

/// The block that the content is cut from, and the size of a piece. The stride has no divisor in common with the block.
const BLOCK: usize = 1 << 20;
const PIECE: usize = 64 << 10;
const STRIDE: usize = 4099;

/// A running web server: `GET /N` answers N octets.
#[derive(Debug)]
pub(crate) struct WebServer {
    address: SocketAddr,
    _worker: Worker,
}

/// A download that arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Downloaded {
    /// From the request to the first octet of the content.
    pub(crate) first_octet: Duration,
    /// From the request to the last octet.
    pub(crate) whole: Duration,
    /// SHA-256 of the content.
    pub(crate) digest: Vec<u8>,
}

/// The content of any file; a longer one begins with the shorter.
#[derive(Clone, Debug)]
pub(crate) struct Content(Bytes);

impl Content {
    /// Octets without a pattern (a xorshift generator), always the same ones.
    pub(crate) fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        Self((0..BLOCK / 8).flat_map(next).collect::<Vec<u8>>().into())
    }

    /// The pieces of a file of `size` octets.
    fn pieces(&self, size: u64) -> impl Iterator<Item = Bytes> + Send + use<> {
        let block = self.0.clone();
        let room = BLOCK - PIECE;
        (0..size.div_ceil(PIECE as u64)).map(move |i| {
            let left = size - i * PIECE as u64;
            let at = usize::try_from(i % room as u64).unwrap_or_default() * STRIDE % room;
            let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            block.slice(at..at + length)
        })
    }

    /// SHA-256 of a file of `size` octets.
    pub(crate) fn digest(&self, size: u64) -> Vec<u8> {
        let mut context = Context::new(&SHA256);
        self.pieces(size).for_each(|piece| context.update(&piece));
        context.finish().as_ref().to_vec()
    }
}

impl WebServer {
    /// Listens on loopback.
    pub(crate) fn start(content: Content) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker = Worker::start(move |stop| {
            runtime.block_on(async {
                tokio::select! {
                    _ = accept(listener, content) => {}
                    () = stop.reached() => {}
                }
            });
        })?;
        Ok(Self {
            address,
            _worker: worker,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, content: Content) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let content = content.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| std::future::ready(answer(&content, &request)));
            drop(
                http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), answer)
                    .await,
            );
        });
    }
}

type Body =
    StreamBody<stream::Iter<Box<dyn Iterator<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

fn answer(content: &Content, request: &Request<Incoming>) -> Result<Response<Body>, http::Error> {
    let size = request.uri().path().trim_start_matches('/').parse::<u64>();
    let (status, size) = size.map_or((StatusCode::NOT_FOUND, 0), |size| (StatusCode::OK, size));
    let frames = content.pieces(size).map(|piece| Ok(Frame::data(piece)));
    let frames: Box<dyn Iterator<Item = _> + Send> = Box::new(frames);
    Response::builder()
        .status(status)
        .header(http::header::CONTENT_LENGTH, size)
        .body(StreamBody::new(stream::iter(frames)))
}

/// Downloads `size` octets over a connection that `connect` opens; `arrived` hears of every part.
pub(crate) fn download(
    connect: impl FnOnce() -> io::Result<TcpStream>,
    size: u64,
    mut arrived: impl FnMut(usize),
) -> io::Result<Downloaded> {
    let start = Instant::now();
    let mut stream = connect()?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(
        stream,
        "GET /{size} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n"
    )?;
    let mut stream = BufReader::with_capacity(256 << 10, stream);
    read_head(&mut stream)?;
    let (mut context, mut left, mut first_octet) = (Context::new(&SHA256), size, Duration::ZERO);
    while left > 0 {
        let part = stream.fill_buf()?;
        let length = part.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(part) = part.get(..length).filter(|part| !part.is_empty()) else {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the download ended early",
            ));
        };
        if left == size {
            first_octet = start.elapsed();
        }
        context.update(part);
        arrived(length);
        left -= length as u64;
        stream.consume(length);
    }
    let digest = context.finish().as_ref().to_vec();
    Ok(Downloaded {
        first_octet,
        whole: start.elapsed(),
        digest,
    })
}

/// Reads up to the empty line; anything but 200 is an error.
fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    let mut lines = stream.take(16 << 10).lines();
    let status = lines.next().transpose()?.unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(format!(
            "the web server answers {status:?}"
        )));
    }
    for line in lines {
        if line?.is_empty() {
            return Ok(());
        }
    }
    Err(io::Error::other("the web server's answer has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "the web server is tested without a proxy"
    )]
    fn fetch(address: SocketAddr, size: u64) -> io::Result<Downloaded> {
        download(|| TcpStream::connect(address), size, drop)
    }

    #[test]
    fn a_file_arrives_as_it_was_made() {
        let content = Content::new();
        let server = WebServer::start(content.clone()).expect("listens");
        for size in [1, 65_536, 3_000_001] {
            let got = fetch(server.address(), size).expect("arrives");
            assert_eq!(got.digest, content.digest(size), "{size}");
        }
    }

    #[test]
    fn swapped_pieces_have_another_digest() {
        let content = Content::new();
        let pieces: Vec<Bytes> = content.pieces(10 * PIECE as u64).collect();
        let different = pieces
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len();
        assert_eq!(different, pieces.len());
    }
}
