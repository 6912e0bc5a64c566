//! The scanner's own target: a source and a sink of bytes over HTTP/1.1, and the scanner's end of it. An exit sees a GET or a POST of some size to a web
//! server, as many are.
//!
//! What is transferred nobody can foretell, and each transfer has a name that is good for once. So an exit cannot make the bytes up instead of getting them,
//! nor say that it has delivered what it has not; and who finds the target is served nothing. Both ends are in one process, which is what they know of each
//! other by ([`Expected`]).

use std::{collections::HashMap, fmt, io, sync::Arc, time::Duration};

use hoplite_crypto::Keystream;
use hoplite_overlay::{ErrorKind, Overlay, Terms};
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout, timeout_at},
};

use super::{Direction, Failure, Rates, Step, Transfers};

/// Bytes of a request's or an answer's head.
const HEAD: usize = 2048;
/// Bytes that are read or written at once.
const CHUNK: usize = 16 << 10;
/// How long a circuit and the first stream over it may take.
const OPEN: Duration = Duration::from_secs(60);
/// How long a request's head may take to come: who sends none holds no place for longer.
const ASK: Duration = Duration::from_secs(10);
/// How long who was refused may take to hang up.
const HANG_UP: Duration = Duration::from_secs(1);
/// How long a transfer may take; what has come by then counts.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long all of a circuit's transfers may take: few are measured at once, so whoever takes as long as he may keeps others from being measured.
const MEASUREMENT: Duration = Duration::from_secs(120);
/// Transfers that are expected at once; more are not begun.
const EXPECTED: usize = 1024;

type Name = [u8; 16];

/// The transfers that are to come, between the target and who measures.
#[derive(Clone, Default)]
pub struct Expected(Arc<Mutex<HashMap<Name, Transfer>>>);

#[derive(Clone)]
struct Transfer {
    direction: Direction,
    bytes: u64,
    /// What is transferred.
    content: Keystream,
    /// What the target has seen of an upload.
    sunk: Arc<Mutex<Sunk>>,
}

#[derive(Clone, Copy, Default)]
struct Sunk {
    first: Option<Instant>,
    last: Option<Instant>,
    bytes: u64,
    is_forged: bool,
}

impl Sunk {
    fn note(&mut self, got: &[u8], is_right: bool, now: Instant) {
        // What came with the first piece had been on its way before.
        if self.first.is_some() {
            self.bytes = self.bytes.saturating_add(len(got));
        } else if !got.is_empty() {
            self.first = Some(now);
        }
        self.last = Some(now);
        self.is_forged |= !is_right;
    }
}

/// A transfer is expected as long as this lives.
struct Ticket {
    expected: Expected,
    name: Name,
    transfer: Transfer,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.expected.0.lock().remove(&self.name);
    }
}

impl Expected {
    /// None without randomness, or if too much is expected.
    fn expect(&self, direction: Direction, bytes: u64) -> Option<Ticket> {
        let mut name = [0; 16];
        Keystream::fresh()?.fill(&mut name);
        let transfer = Transfer {
            direction,
            bytes,
            content: Keystream::fresh()?,
            sunk: Arc::default(),
        };
        let mut all = self.0.lock();
        if all.len() >= EXPECTED {
            return None;
        }
        all.insert(name, transfer.clone());
        drop(all);
        Some(Ticket {
            expected: self.clone(),
            name,
            transfer,
        })
    }

    /// Once.
    fn take(&self, name: &Name, direction: Direction) -> Option<Transfer> {
        let mut all = self.0.lock();
        let is_so = all.get(name)?.direction == direction;
        is_so.then(|| all.remove(name)).flatten()
    }
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expected({})", self.0.lock().len())
    }
}

// The target's end.

/// Answers one request of whoever has connected. Time is bounded, and nothing but what is expected is served; `is_expected` is called when that is asked for.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    expected: &Expected,
    is_expected: impl FnOnce(),
) {
    // Who hangs up, or is too slow, is nothing to a target.
    let answer = answer(stream, expected, is_expected);
    let answered = timeout(PATIENCE.saturating_mul(2), answer).await;
    answered.unwrap_or(Ok(())).unwrap_or_default();
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    expected: &Expected,
    is_expected: impl FnOnce(),
) -> io::Result<()> {
    let asking = timeout(ASK, head(&mut stream)).await;
    let (head, mut rest) = asking.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let asked = parse_request(&head).and_then(|(direction, name)| expected.take(&name, direction));
    let Some(mut transfer) = asked else {
        let refusal = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(refusal.as_bytes()).await?;
        return finish(&mut stream, HANG_UP).await;
    };
    is_expected();
    match transfer.direction {
        Direction::Down => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                transfer.bytes
            );
            stream.write_all(head.as_bytes()).await?;
            pour(&mut stream, &mut transfer).await?;
        }
        Direction::Up => {
            sink(&mut stream, &mut transfer, std::mem::take(&mut rest)).await?;
            let done = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
            stream.write_all(done.as_bytes()).await?;
        }
    }
    finish(&mut stream, PATIENCE).await
}

/// Says that nothing more comes, and waits until the other end has it all: what is closed before may be lost on its way.
async fn finish(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    patience: Duration,
) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0; 512];
    let closed = async {
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    };
    timeout(patience, closed).await.unwrap_or(Ok(()))
}

/// Writes all of it.
async fn pour(stream: &mut (impl AsyncWrite + Unpin), transfer: &mut Transfer) -> io::Result<()> {
    let (mut left, mut chunk) = (transfer.bytes, vec![0; CHUNK]);
    while left > 0 {
        let now = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        let Some(chunk) = chunk.get_mut(..now) else {
            break;
        };
        transfer.content.fill(chunk);
        stream.write_all(chunk).await?;
        left = left.saturating_sub(u64::try_from(now).unwrap_or(left));
    }
    stream.flush().await
}

/// Reads all of it, compares, and notes when it came.
async fn sink(
    stream: &mut (impl AsyncRead + Unpin),
    transfer: &mut Transfer,
    mut got: Vec<u8>,
) -> io::Result<()> {
    let mut check = Check::new(transfer);
    loop {
        let is_right = check.take(&got);
        transfer.sunk.lock().note(&got, is_right, Instant::now());
        if check.left == 0 || !is_right {
            return Ok(());
        }
        got.resize(CHUNK, 0);
        let read = stream.read(&mut got).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got.truncate(read);
    }
}

/// Compares what comes with what was to come.
struct Check {
    content: Keystream,
    left: u64,
    wanted: Vec<u8>,
}

impl Check {
    fn new(transfer: &Transfer) -> Self {
        Self {
            content: transfer.content.clone(),
            left: transfer.bytes,
            wanted: Vec::new(),
        }
    }

    fn take(&mut self, got: &[u8]) -> bool {
        self.wanted.resize(got.len(), 0);
        self.content.fill(&mut self.wanted);
        let left = self.left.checked_sub(len(got));
        self.left = left.unwrap_or(0);
        left.is_some() && self.wanted == got
    }
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A head until its empty line, and what came behind it.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut piece = [0; 512];
        let read = stream.read(&mut piece).await?;
        if read == 0 || head.len() > HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(piece.get(..read).unwrap_or_default());
        let new = head.get(from..).unwrap_or_default();
        if let Some(end) = new.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = head.split_off(from.saturating_add(end).saturating_add(4));
            let head = String::from_utf8(head);
            let head = head.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            return Ok((head, rest));
        }
    }
}

/// `GET /name HTTP/1.1` and so on.
fn parse_request(head: &str) -> Option<(Direction, Name)> {
    let mut words = head.lines().next()?.split(' ');
    let direction = match words.next()? {
        "GET" => Direction::Down,
        "POST" => Direction::Up,
        _ => return None,
    };
    let digits = words.next()?.strip_prefix('/')?;
    let name = (digits.len() == 32).then(|| u128::from_str_radix(digits, 16))?;
    Some((direction, name.ok()?.to_be_bytes()))
}

fn request(ticket: &Ticket, target: &Target) -> String {
    let name = u128::from_be_bytes(ticket.name);
    let (method, length) = match ticket.transfer.direction {
        Direction::Down => ("GET", String::new()),
        Direction::Up => {
            let bytes = ticket.transfer.bytes;
            ("POST", format!("Content-Length: {bytes}\r\n"))
        }
    };
    format!(
        "{method} /{name:032x} HTTP/1.1\r\nHost: {target}\r\n{length}Accept: */*\r\nConnection: close\r\n\r\n"
    )
}

// The scanner's end.

/// Measures a circuit, over streams of the overlay that it is. All streams are to go over one circuit.
///
/// # Errors
/// [`Failure`].
pub async fn measure(
    circuit: &dyn Overlay,
    target: &Target,
    expected: &Expected,
) -> Result<Rates, Failure> {
    let mut transfers = Transfers::default();
    let until = Instant::now() + MEASUREMENT;
    loop {
        match transfers.step() {
            Step::Done(rates) => return Ok(rates),
            Step::Transfer(direction, bytes) => {
                let ticket = expected.expect(direction, bytes);
                let ticket = ticket.ok_or(Failure::Stream)?;
                let (moved, time) = transfer(circuit, target, &ticket, until).await?;
                transfers.took(moved, time);
            }
        }
    }
}

/// How many bytes came after the first of them, and in which time.
async fn transfer(
    circuit: &dyn Overlay,
    target: &Target,
    ticket: &Ticket,
    until: Instant,
) -> Result<(u64, Duration), Failure> {
    let left = until.saturating_duration_since(Instant::now());
    let terms = Terms::default().within(OPEN.min(left));
    let opened = circuit.open_stream(target, &terms).await;
    let mut stream = opened.map_err(|error| match error.kind() {
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed => Failure::Circuit,
        _ => Failure::Stream,
    })?;
    let request = request(ticket, target);
    let asked = timeout_at(until, stream.write_all(request.as_bytes())).await;
    let asked = asked.map_err(|_| Failure::Stream)?;
    asked.map_err(|_| Failure::Stream)?;
    match ticket.transfer.direction {
        Direction::Down => download(&mut stream, &ticket.transfer, until).await,
        Direction::Up => upload(&mut stream, &ticket.transfer, until).await,
    }
}

async fn download(
    stream: &mut (impl AsyncRead + Unpin),
    transfer: &Transfer,
    until: Instant,
) -> Result<(u64, Duration), Failure> {
    let answered = timeout_at(until.min(Instant::now() + OPEN), head(stream)).await;
    let answered = answered.map_err(|_| Failure::Stream)?;
    let (head, mut got) = answered.map_err(|_| Failure::Stream)?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(Failure::Stream);
    }
    let began = Instant::now();
    let until = until.min(began + PATIENCE);
    let (mut check, mut moved) = (Check::new(transfer), 0u64);
    if !check.take(&got) {
        return Err(Failure::Forged);
    }
    while check.left > 0 {
        got.resize(CHUNK, 0);
        let Ok(read) = timeout_at(until, stream.read(&mut got)).await else {
            break;
        };
        let read = read.ok().filter(|read| *read > 0);
        got.truncate(read.ok_or(Failure::Stream)?);
        if !check.take(&got) {
            return Err(Failure::Forged);
        }
        moved = moved.saturating_add(len(&got));
    }
    Ok((moved, began.elapsed()))
}

/// What the target has seen of it counts.
async fn upload(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    transfer: &Transfer,
    until: Instant,
) -> Result<(u64, Duration), Failure> {
    let mut sending = transfer.clone();
    let sent = timeout_at(until.min(Instant::now() + PATIENCE), async {
        pour(stream, &mut sending).await?;
        head(stream).await
    });
    let sent = sent.await;
    let sunk = *transfer.sunk.lock();
    if sunk.is_forged {
        return Err(Failure::Forged);
    }
    match sent {
        // It takes long, or all has come.
        Err(_) | Ok(Ok(_)) => {
            let times = sunk.first.zip(sunk.last);
            let (first, last) = times.ok_or(Failure::Stream)?;
            Ok((sunk.bytes, last.duration_since(first)))
        }
        Ok(Err(_)) => Err(Failure::Stream),
    }
}

#[cfg(test)]
mod tests;
