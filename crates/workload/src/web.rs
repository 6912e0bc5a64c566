//! Files over HTTP: the server and its bodies, and a download that is checked.
//!
//! `GET /BYTES/SEED` answers with this many bytes of payload and behind them the SHA-256 of the seed (8 bytes, big-endian) and the payload: a body that
//! is whole, and another one than was asked for, is found wrong too. `x-seen-as` in the answer is the address that the client came from. Every version of HTTP carries the same bytes; the server here speaks HTTP/1.1 (RFC 9112), hyper does the work.
//!
//! Payload is pseudo-random, so that nobody compresses it, and cheap, so that it is not what is measured. A block of 1 MiB that each
//! process makes once is sent in rotation from a place that the seed chooses; the first bytes of each piece are mixed with a counter and
//! the seed, so that no piece is like another.

use std::{
    convert::Infallible,
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ring::digest::{Context, Digest, SHA256, SHA256_OUTPUT_LEN};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};

use crate::{load::Worker, splitmix::mix};

/// The largest piece that is filled at once, in bytes.
pub const PIECE: usize = 64 * 1024;

const BLOCK: usize = 1024 * 1024;

/// A stream of payload. The same seed and the same cuts make the same bytes.
#[derive(Clone, Debug)]
pub struct Payload {
    seed: u64,
    pieces: u64,
    place: usize,
}

impl Payload {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let place = usize::try_from(mix(seed) % BLOCK as u64).unwrap_or_default();
        Self {
            seed,
            pieces: 0,
            place,
        }
    }

    /// Fills `out`, at most [`PIECE`] bytes of it.
    pub fn fill(&mut self, out: &mut [u8]) {
        let len = out.len().min(PIECE);
        let (Some(out), Some(from)) = (
            out.get_mut(..len),
            block().get(self.place..self.place.saturating_add(len)),
        ) else {
            return;
        };
        out.copy_from_slice(from);
        let stamp = mix(self.seed ^ self.pieces.rotate_left(32)).to_le_bytes();
        for (byte, with) in out.iter_mut().zip(stamp) {
            *byte ^= with;
        }
        self.pieces = self.pieces.wrapping_add(1);
        self.place = self.place.wrapping_add(len) % BLOCK;
    }
}

/// Makes the block, so that no transfer waits for it.
pub fn prepare_payload() {
    block();
}

/// The block, with a piece of it repeated behind its end.
fn block() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| {
        let words = (0..(BLOCK as u64 / 8)).flat_map(|i| mix(i.wrapping_add(1)).to_le_bytes());
        let mut block: Vec<u8> = words.collect();
        block.extend_from_within(..PIECE);
        block
    })
}

/// Bytes of the hash.
const HASH: u64 = SHA256_OUTPUT_LEN as u64;

/// Bytes of a whole body.
#[must_use]
pub const fn length(bytes: u64) -> u64 {
    bytes.saturating_add(HASH)
}

/// The hash of a body: computed while it is drawn, or before.
enum Hash {
    Begun(Context),
    Known(Digest),
}

/// The file whose hash is known before it is drawn: its size, its seed, and the hash.
static PREPARED: OnceLock<(u64, u64, Digest)> = OnceLock::new();

/// Begins the hash of the payload of a seed, which covers the seed: what is whole but another's is wrong.
#[must_use]
pub fn begin_hash(seed: u64) -> Context {
    let mut hash = Context::new(&SHA256);
    hash.update(&seed.to_be_bytes());
    hash
}

impl Hash {
    fn of(bytes: u64, seed: u64) -> Self {
        match PREPARED.get() {
            Some((size, of, hash)) if (*size, *of) == (bytes, seed) => Self::Known(*hash),
            _ => Self::Begun(begin_hash(seed)),
        }
    }

    fn finish(self) -> Digest {
        match self {
            Self::Begun(context) => context.finish(),
            Self::Known(hash) => hash,
        }
    }
}

/// Hashes one file of this process beforehand, the first that is asked for, so that drawing it costs no more than its bytes.
fn prepare_file(bytes: u64, seed: u64) {
    PREPARED.get_or_init(|| {
        let (mut payload, mut hash) = (Payload::new(seed), begin_hash(seed));
        let (mut left, mut piece) = (bytes, vec![0; PIECE]);
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let piece = piece.get_mut(..len).unwrap_or_default();
            payload.fill(piece);
            hash.update(piece);
            left -= len as u64;
        }
        (bytes, seed, hash.finish())
    });
}

/// A body that is drawn piece by piece.
pub struct Body {
    payload: Payload,
    hash: Option<Hash>,
    left: u64,
    buffer: BytesMut,
}

impl Body {
    /// A body of this many bytes of payload.
    #[must_use]
    pub fn new(bytes: u64, seed: u64) -> Self {
        Self {
            payload: Payload::new(seed),
            hash: Some(Hash::of(bytes, seed)),
            left: bytes,
            buffer: BytesMut::new(),
        }
    }

    /// No body at all.
    fn none() -> Self {
        Self {
            hash: None,
            ..Self::new(0, 0)
        }
    }

    /// Whether nothing more comes.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.hash.is_none()
    }
}

impl Iterator for Body {
    type Item = Bytes;

    /// The next piece; the hash is on the last one.
    fn next(&mut self) -> Option<Bytes> {
        self.hash.as_ref()?;
        let len = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE);
        self.buffer.resize(len, 0);
        self.payload.fill(&mut self.buffer);
        self.left -= len as u64;
        if let Some(Hash::Begun(hash)) = &mut self.hash {
            hash.update(&self.buffer);
        }
        if self.left == 0 {
            let hash = self.hash.take()?.finish();
            self.buffer.extend_from_slice(hash.as_ref());
        }
        Some(self.buffer.split().freeze())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.is_over() { 0 } else { length(self.left) })
    }
}

/// A body that is checked as it comes.
pub struct Check {
    hash: Context,
    bytes: u64,
    left: u64,
    told: Vec<u8>,
}

impl Check {
    /// A body of this many bytes of the payload of a seed.
    #[must_use]
    pub fn new(bytes: u64, seed: u64) -> Self {
        Self {
            hash: begin_hash(seed),
            bytes,
            left: bytes,
            told: Vec::with_capacity(SHA256_OUTPUT_LEN),
        }
    }

    /// Takes what came; answers with how many bytes of it are payload.
    ///
    /// # Errors
    /// [`Spoilt::Long`].
    pub fn take(&mut self, input: &[u8]) -> Result<u64, Spoilt> {
        let payload = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(input.len());
        let (payload, rest) = input.split_at(payload);
        self.hash.update(payload);
        self.left -= payload.len() as u64;
        if self.told.len() + rest.len() > SHA256_OUTPUT_LEN {
            return Err(Spoilt::Long);
        }
        self.told.extend_from_slice(rest);
        Ok(payload.len() as u64)
    }

    /// Bytes that were right.
    ///
    /// # Errors
    /// [`Spoilt::Short`], [`Spoilt::Hash`].
    pub fn finish(self) -> Result<u64, Spoilt> {
        if self.told.len() < SHA256_OUTPUT_LEN {
            return Err(Spoilt::Short);
        }
        if self.hash.finish().as_ref() == self.told {
            Ok(self.bytes)
        } else {
            Err(Spoilt::Hash)
        }
    }
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Spoilt {
    /// It goes on behind its hash.
    #[error("more came than was asked for")]
    Long,
    /// It ends before its hash does.
    #[error("the body ended too early")]
    Short,
    /// It is not what was sent, or not what was asked for.
    #[error("the hash of the body is wrong")]
    Hash,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes left)", self.left)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({} bytes left)", self.left)
    }
}

// The server.

/// Connections that are served at once on each port; others wait in the kernel's backlog.
const CONNECTIONS: usize = 1024;

/// Hands each connection to `serve`, at most 1024 at once.
pub async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, SocketAddr) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a connection that was gone already: neither lasts.
                tracing::debug!(%error, "a connection was not accepted");
                sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let serving = serve(stream, peer);
        tokio::spawn(async move {
            serving.await;
            drop(permit);
        });
    }
}

/// What a path asks for: `/BYTES/SEED`.
#[must_use]
pub fn asked(path: &str) -> Option<(u64, u64)> {
    let (bytes, seed) = path.strip_prefix('/')?.split_once('/')?;
    Some((bytes.parse().ok()?, seed.parse().ok()?))
}

/// The answer to a path, for HTTP/1.1 and 2.
pub fn response(path: &str, peer: SocketAddr) -> http::Response<Body> {
    let mut response = http::Response::new(Body::none());
    let headers = response.headers_mut();
    if let Ok(seen_as) = peer.ip().to_canonical().to_string().parse() {
        headers.insert("x-seen-as", seen_as);
    }
    match asked(path) {
        Some((bytes, seed)) => {
            headers.insert("content-length", length(bytes).into());
            *response.body_mut() = Body::new(bytes, seed);
        }
        None => *response.status_mut() = http::StatusCode::NOT_FOUND,
    }
    response
}

/// Serves one connection in HTTP/1.1.
pub async fn serve_http1(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, peer: SocketAddr) {
    let serve = service_fn(move |request: http::Request<Incoming>| async move {
        Ok::<_, Infallible>(response(request.uri().path(), peer))
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), serve);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "an HTTP/1.1 connection ended early");
    }
}

/// A server on loopback, on a thread of its own.
#[derive(Debug)]
pub struct WebServer {
    address: SocketAddr,
    _worker: Worker,
}

impl WebServer {
    /// Listens. A file of `size` bytes is ready; of any other, hashing is part of sending.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(size: u64) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        prepare_file(size, size);
        let worker = Worker::start(move |stop| {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    () = accept(listener, serve_http1) => {}
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
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

// The client.

/// A download whose hash was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downloaded {
    /// From the request to the first byte of the body.
    pub first_byte: Duration,
    /// From the request to the last byte.
    pub whole: Duration,
}

/// Downloads `size` bytes over a connection that `connect` opens; `arrived` hears of every part.
///
/// # Errors
/// The operating system's, or [`Spoilt`].
pub fn download(
    connect: impl FnOnce() -> io::Result<StdStream>,
    size: u64,
    mut arrived: impl FnMut(u64),
) -> io::Result<Downloaded> {
    let start = Instant::now();
    let mut stream = connect()?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(
        stream,
        "GET /{size}/{size} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n"
    )?;
    let mut stream = BufReader::with_capacity(256 << 10, stream);
    read_head(&mut stream)?;
    let (mut check, mut first_byte) = (Check::new(size, size), None);
    loop {
        let part = stream.fill_buf()?;
        if part.is_empty() {
            break;
        }
        first_byte.get_or_insert_with(|| start.elapsed());
        arrived(check.take(part).map_err(io::Error::other)?);
        let length = part.len();
        stream.consume(length);
    }
    let whole = start.elapsed();
    check.finish().map_err(io::Error::other)?;
    Ok(Downloaded {
        first_byte: first_byte.unwrap_or(whole),
        whole,
    })
}

/// Reads up to the empty line; anything but 200 is an error.
fn read_head(stream: &mut BufReader<StdStream>) -> io::Result<()> {
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

    #[test]
    fn the_same_seed_makes_the_same_bytes_and_another_seed_others() {
        let draw = |seed| {
            let (mut payload, mut out) = (Payload::new(seed), vec![0; 3 * PIECE]);
            out.chunks_mut(PIECE).for_each(|piece| payload.fill(piece));
            out
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn no_piece_is_like_another_after_the_block_has_turned() {
        let (mut payload, mut seen) = (Payload::new(7), std::collections::BTreeSet::new());
        for _ in 0..64 {
            let mut piece = vec![0; PIECE];
            payload.fill(&mut piece);
            assert!(seen.insert(piece));
        }
    }

    fn drawn(bytes: u64) -> Vec<u8> {
        Body::new(bytes, 9).flatten().collect()
    }

    #[test]
    fn a_body_of_any_size_is_found_right_however_it_is_cut() {
        for bytes in [0, 1, 65_535, 65_536, 200_000] {
            let body = drawn(bytes);
            for cut in [1, 7, 1000, 1_000_000] {
                let mut check = Check::new(bytes, 9);
                let payload: u64 = body
                    .chunks(cut)
                    .map(|piece| check.take(piece).unwrap())
                    .sum();
                assert_eq!(payload, bytes);
                assert_eq!(check.finish(), Ok(bytes));
            }
        }
    }

    #[test]
    fn a_body_that_was_changed_or_cut_or_is_too_long_is_found_wrong() {
        let check = |body: &[u8]| {
            let mut check = Check::new(1000, 9);
            check.take(body)?;
            check.finish()
        };
        let mut body = drawn(1000);
        assert_eq!(check(&body[..1031]), Err(Spoilt::Short));
        body[500] ^= 1;
        assert_eq!(check(&body), Err(Spoilt::Hash));
        body.push(0);
        assert_eq!(check(&body), Err(Spoilt::Long));
    }

    #[test]
    fn a_body_that_is_whole_and_another_one_than_was_asked_for_is_found_wrong() {
        let mut check = Check::new(1000, 8);
        check.take(&drawn(1000)).unwrap();
        assert_eq!(check.finish(), Err(Spoilt::Hash));
    }

    #[test]
    fn swapped_pieces_have_another_digest() {
        let mut body = drawn(10 * PIECE as u64);
        body[..2 * PIECE].rotate_left(PIECE);
        let mut check = Check::new(10 * PIECE as u64, 9);
        check.take(&body).unwrap();
        assert_eq!(check.finish(), Err(Spoilt::Hash));
    }

    #[test]
    fn a_file_arrives_as_it_was_made() {
        let server = WebServer::start(65_536).expect("listens");
        for size in [1, 65_536, 3_000_001] {
            let mut bytes = 0;
            let connect = || StdStream::connect(server.address());
            download(connect, size, |n| bytes += n).expect("arrives");
            assert_eq!(bytes, size);
        }
    }
}
