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

use super::{Worker, datagrams::Socket};

/// The block that the content is cut from, and the size of a piece. The stride has no divisor in common with the block.
const BLOCK: usize = 1 << 20;
const PIECE: usize = 64 << 10;
const STRIDE: usize = 4099;

/// A running web server: `GET /N` answers N bytes.
#[derive(Debug)]
pub(crate) struct WebServer {
    address: SocketAddr,
    _worker: Worker,
}

/// A download that arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Downloaded {
    /// From the request to the first byte of the content.
    pub(crate) first_octet: Duration,
    /// From the request to the last byte.
    pub(crate) whole: Duration,
    /// SHA-256 of the content.
    pub(crate) digest: Vec<u8>,
}

/// The content of any file; a longer one begins with the shorter.
#[derive(Clone, Debug)]
pub(crate) struct Content(Bytes);

impl Content {
    /// Bytes without a pattern (a xorshift generator), always the same ones.
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

    /// The pieces of a file of `size` bytes.
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

    /// SHA-256 of a file of `size` bytes.
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

/// Downloads `size` bytes over a connection that `connect` opens; `arrived` hears of every part.
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

// A UDP echo through the SOCKS port: round trips one by one, then many datagrams under way. `demo` uses it and checks
// every answer's content.

/// Payload of each datagram, in bytes: fits every path of up to four hops.
const PAYLOAD: usize = 1000;
/// How many are under way at once.
const UNDER_WAY: usize = 32;
/// So long without an answer, and what is under way is lost.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Echoed {
    /// Answers with the right content.
    pub(crate) answers: usize,
    /// Payload of the answers, in bytes.
    pub(crate) octets: u64,
    /// How long it took altogether.
    pub(crate) time: Duration,
}

/// A UDP association that talks to one echo server.
pub(crate) struct Echo {
    socket: Socket,
    association: super::Association,
    packet: Vec<u8>,
    number: u64,
}

impl Echo {
    /// Asks the proxy for an association, and waits for the first answer.
    pub(crate) fn open(proxy: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        let SocketAddr::V4(server) = server else {
            return Err(io::Error::other("the echo server listens on IPv4"));
        };
        let association = super::associate(proxy)?;
        let socket = Socket::new(association.socket.try_clone()?)?;
        let mut packet = super::udp_header(server).to_vec();
        packet.resize(super::UDP_HEADER + PAYLOAD, 0);
        let mut echo = Self {
            socket,
            association,
            packet,
            number: 0,
        };
        let start = Instant::now();
        while echo.round_trip()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("no UDP datagram came back"));
            }
        }
        Ok(echo)
    }

    /// The time of one round trip, or nothing if it was lost.
    pub(crate) fn round_trip(&mut self) -> io::Result<Option<Duration>> {
        let start = Instant::now();
        self.send(1)?;
        let answers = self.receive(1)?;
        Ok((answers > 0).then(|| start.elapsed()))
    }

    /// Sends `count` datagrams and counts what comes back.
    pub(crate) fn stream(&mut self, count: usize) -> io::Result<Echoed> {
        let (start, mut answers, mut sent, mut lost) = (Instant::now(), 0, 0, 0);
        while answers + lost < count {
            let room = UNDER_WAY
                .saturating_sub(sent - answers - lost)
                .min(count - sent);
            self.send(room)?;
            sent += room;
            match self.receive(UNDER_WAY)? {
                0 => lost = sent - answers,
                n => answers = (answers + n).min(sent),
            }
            lost = lost.min(sent - answers);
        }
        Ok(Echoed {
            answers,
            octets: (answers * PAYLOAD) as u64,
            time: start.elapsed(),
        })
    }

    fn send(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.number += 1;
            let content = self.packet.iter_mut().skip(super::UDP_HEADER);
            fill(content, self.number);
            self.socket
                .send(self.association.relay, &self.packet, self.packet.len())?;
        }
        Ok(())
    }

    /// Counts the right answers that are there, or waits a while for the first.
    fn receive(&mut self, most: usize) -> io::Result<usize> {
        let (start, mut right) = (Instant::now(), 0);
        while right == 0 && start.elapsed() < SILENCE {
            self.socket.receive(SILENCE, |_, datagram| {
                right += usize::from(datagram.get(super::UDP_HEADER..).is_some_and(is_right));
            })?;
        }
        Ok(right.min(most))
    }
}

/// A number, then bytes that follow from it.
fn fill<'a>(content: impl Iterator<Item = &'a mut u8>, number: u64) {
    for (i, octet) in content.enumerate() {
        *octet = octet_at(number, i);
    }
}

fn octet_at(number: u64, i: usize) -> u8 {
    match i {
        0..8 => number.to_be_bytes()[i],
        _ => number.wrapping_mul(31).to_le_bytes()[0].wrapping_add(i.to_le_bytes()[0]),
    }
}

fn is_right(payload: &[u8]) -> bool {
    let number = payload
        .first_chunk()
        .map(|number| u64::from_be_bytes(*number));
    let right = |number| {
        payload
            .iter()
            .enumerate()
            .all(|(i, &octet)| octet == octet_at(number, i))
    };
    payload.len() == PAYLOAD && number.is_some_and(right)
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

#[cfg(test)]
mod echo_tests {
    use super::*;

    #[test]
    fn a_changed_answer_is_not_right() {
        let mut payload = [0; PAYLOAD];
        fill(payload.iter_mut(), 1234);
        assert!(is_right(&payload));
        payload[500] ^= 1;
        assert!(!is_right(&payload) && !is_right(&payload[..999]));
    }
}
