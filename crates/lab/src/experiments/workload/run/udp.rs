//! Datagrams as a client sends them: constant rates, and echoes, which tell round trips, loss, order, and the delay of each direction, for all hosts
//! share one clock. Straight, or through a SOCKS5 association with its header in front of each datagram (RFC 1928 §7).

pub(crate) mod server;
mod stream;
#[cfg(test)]
mod tests;

use std::{cell::Cell, io, net::UdpSocket as StdSocket, sync::Arc, time::Duration};

use hoplite_wire::socks::{DatagramView, Endpoint};
use tokio::{
    net::{TcpStream, UdpSocket},
    time::{Instant, sleep_until, timeout},
};

use self::stream::{Pace, Report, Tally, quantiles};
use super::{
    client::{Out, Random},
    connect,
    record::{Record, monotonic_ns, monotonic_us},
};
use crate::experiments::workload::{
    Fault, Order, TransferError,
    message::{self, Head, Hello, Kind, SMALLEST, Stream},
    progress::Passed,
    stalled,
};

/// After the last datagram at least so much time is given to those that are still on their way.
const STRAGGLERS: Duration = Duration::from_millis(1500);

/// The first wait for an answer to a question; doubled each time up to a second.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How many datagrams of which size make a rate for a time.
fn stream(size: u16, rate: u64, time: Duration) -> Stream {
    let size = size.max(SMALLEST);
    let interval = (u128::from(size) * 8 * 1_000_000_000 / u128::from(rate.max(1))).max(1);
    let count = (time.as_nanos() / interval).clamp(1, u128::from(Stream::MOST));
    Stream {
        size,
        count: u32::try_from(count).unwrap_or(Stream::MOST),
        interval: u64::try_from(interval).unwrap_or(u64::MAX),
    }
}

/// Sends at a constant rate, or receives.
pub(crate) async fn rate(order: &Order, out: Out<'_>) -> io::Result<()> {
    let crate::experiments::workload::Kind::UdpRate {
        size,
        rate,
        time,
        down,
    } = order.plan.kind
    else {
        return Ok(());
    };
    let stream = stream(size, rate, time);
    let bytes = u64::from(stream.count) * u64::from(stream.size);
    let asked = if down { [0, bytes] } else { [bytes, 0] };
    let mut record = Record::start(asked);
    let limit = order.plan.timeout.saturating_add(time);
    let running = async {
        let session = Session::open(order, &mut record).await?;
        if down {
            session.greet(Hello::Send(stream), &mut record).await?;
            return session.receive(stream, &mut record).await;
        }
        session.greet(Hello::Receive(stream), &mut record).await?;
        session.send(stream, &mut record).await
    };
    let outcome = timeout(limit, running)
        .await
        .unwrap_or_else(|_| Err(late(limit)));
    out(record.transfer(order, 1, 1, outcome))
}

fn late(limit: Duration) -> TransferError {
    Fault::Timeout.because(format_args!("the workload was not over after {limit:?}"))
}

/// Echoes.
pub(crate) async fn echo(order: &Order, stream: Stream, out: Out<'_>) -> io::Result<()> {
    let bytes = u64::from(stream.count) * u64::from(stream.size);
    let mut record = Record::start([bytes, bytes]);
    let takes = Duration::from_nanos(stream.interval).saturating_mul(stream.count);
    let limit = order.plan.timeout.saturating_add(takes);
    let running = async {
        let session = Session::open(order, &mut record).await?;
        session.greet(Hello::Echo, &mut record).await?;
        exchange_echoes(&session, stream, &mut record).await
    };
    let outcome = timeout(limit, running)
        .await
        .unwrap_or_else(|_| Err(late(limit)));
    out(record.transfer(order, 1, 1, outcome))
}

/// Echoes of at least the smallest size, at most as many as can be counted.
pub(crate) fn echoes(size: u16, count: u32, interval: Duration) -> Stream {
    Stream {
        size: size.max(SMALLEST),
        count: count.min(Stream::MOST),
        interval: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// A flow and the token that marks its datagrams.
struct Session {
    flow: Arc<Flow>,
    token: u64,
    stall: Duration,
    /// Datagrams that somebody has changed on their way: here they could not be read, or the server said so.
    changed: Cell<u64>,
}

impl Session {
    async fn open(order: &Order, record: &mut Record) -> Result<Self, TransferError> {
        let mut random = Random::stream(order.seed, &order.plan.name, 1);
        let token = random.login();
        let flow = connect::open_datagrams(order, order.ports.udp, &token, record).await?;
        Ok(Self {
            flow: Arc::new(flow),
            // Not from the seed alone: the same order may come to the same server again.
            token: random.next() ^ monotonic_ns(),
            stall: order.plan.stall,
            changed: Cell::new(0),
        })
    }

    fn head(&self, kind: Kind, number: u32) -> Head {
        Head {
            kind,
            token: self.token,
            number,
            sent: monotonic_ns(),
            turned: 0,
        }
    }

    /// Says hello until the server answers: the way may have to be opened first.
    async fn greet(&self, purpose: Hello, record: &mut Record) -> Result<(), TransferError> {
        record.phases.command = Some(record.clock.us());
        let hello = self.head(Kind::Hello, 0).emit(&purpose.emit());
        let seen = self.ask(&hello, Kind::Welcome).await?;
        record.phases.response = Some(record.clock.us());
        record.seen_as = message::address(&seen);
        Ok(())
    }

    /// Sends `question` until an answer of kind `wanted` comes; its body.
    async fn ask(&self, question: &[u8], wanted: Kind) -> Result<Vec<u8>, TransferError> {
        let until = Instant::now() + self.stall;
        let mut wait = ASK_AGAIN;
        while Instant::now() < until {
            self.flow.offer(question).map_err(|error| refused(&error))?;
            let answer = timeout(wait, self.next(Some(wanted))).await;
            if let Ok(answer) = answer {
                return answer.map(|(_, body)| body);
            }
            wait = (wait * 2).min(Duration::from_secs(1));
        }
        Err(stalled(self.stall))
    }

    /// The next datagram that is ours, of a kind if one is wanted.
    async fn next(&self, wanted: Option<Kind>) -> Result<(Head, Vec<u8>), TransferError> {
        let mut buffer = vec![0; 65_536];
        loop {
            let payload = self.flow.receive(&mut buffer).await;
            let payload = payload.map_err(|error| refused(&error))?;
            if let Some((head, body)) = self.ours(payload, wanted) {
                return Ok((head, body.to_vec()));
            }
        }
    }

    /// What is of this session, and of a kind if one is wanted. Others may be late ones of a session before; what nobody can have sent is counted.
    fn ours<'a>(&self, payload: &'a [u8], wanted: Option<Kind>) -> Option<(Head, &'a [u8])> {
        let read = Head::parse(payload);
        if read.is_none_or(|(head, _)| head.kind == Kind::Changed) {
            self.changed.set(self.changed.get() + 1);
        }
        let (head, body) = read?;
        let fits = wanted.is_none_or(|kind| kind == head.kind);
        (head.token == self.token && fits).then_some((head, body))
    }

    /// Sends at the stream's pace on a thread of its own: timers of the runtime are too coarse.
    fn pace(&self, stream: Stream, kind: Kind) -> tokio::task::JoinHandle<io::Result<u32>> {
        let (flow, head) = (Arc::clone(&self.flow), self.head(kind, 0));
        tokio::task::spawn_blocking(move || Pace::new(stream, head).run(|bytes| flow.send(bytes)))
    }

    async fn send(&self, stream: Stream, record: &mut Record) -> Result<(), TransferError> {
        let first = monotonic_us();
        let sent = self.pace(stream, Kind::Data).await;
        let sent = sent.map_err(|why| Fault::Misc.because(why))?;
        let sent = sent.map_err(|error| refused(&error))?;
        record.datagrams[0] = u64::from(sent);
        record
            .sent
            .add(u64::from(sent) * u64::from(stream.size), first);
        sleep_until(Instant::now() + STRAGGLERS).await;
        let finish = self.head(Kind::Finish, sent).emit(&[]);
        let report = self.ask(&finish, Kind::Report).await?;
        let report = Report::parse(&report);
        let report =
            report.ok_or_else(|| Fault::Auth.because("the server's report cannot be read"))?;
        let report = self.with_changed(report);
        tell(&report, record);
        record.moved[0] = report.bytes;
        record.arrived = Some(passed(&report));
        verdict(&report)
    }

    /// A receiver's report, and what neither end could read.
    fn with_changed(&self, mut report: Report) -> Report {
        report.corrupt += self.changed.get();
        report
    }

    async fn receive(&self, stream: Stream, record: &mut Record) -> Result<(), TransferError> {
        let mut tally = Tally::new(stream);
        let takes = Duration::from_nanos(stream.interval).saturating_mul(stream.count);
        let sent = self.collect(&mut tally, takes, record).await;
        let report = self.with_changed(tally.report());
        record.datagrams[0] = u64::from(sent?.unwrap_or(stream.count));
        tell(&report, record);
        record.moved[1] = report.bytes;
        verdict(&report)
    }

    /// Asks the server to begin and takes what comes, until it says that it has ended or everything should have come.
    async fn collect(
        &self,
        tally: &mut Tally,
        takes: Duration,
        record: &mut Record,
    ) -> Result<Option<u32>, TransferError> {
        let begin = self.head(Kind::Begin, 0).emit(&[]);
        let (mut again, mut wait) = (Instant::now(), ASK_AGAIN);
        let mut end = again + takes + self.stall;
        let (mut buffer, mut sent) = (vec![0; 65_536], None);
        loop {
            let unanswered = tally.is_empty() && sent.is_none();
            tokio::select! {
                () = sleep_until(end) => return Ok(sent),
                () = sleep_until(again), if unanswered => {
                    self.flow.offer(&begin).map_err(|error| refused(&error))?;
                    again = Instant::now() + wait;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
                payload = self.flow.receive(&mut buffer) => {
                    let now = monotonic_ns();
                    let payload = payload.map_err(|error| refused(&error))?;
                    match self.ours(payload, None) {
                        Some((head, _)) if head.kind == Kind::Data => {
                            if tally.is_empty() {
                                end = Instant::now() + takes + STRAGGLERS * 2;
                            }
                            record.received.add(tally.take(&head, payload, now), now / 1000);
                        }
                        Some((head, _)) if head.kind == Kind::Finish && sent.is_none() => {
                            sent = Some(head.number);
                            end = Instant::now() + STRAGGLERS;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// What a socket reports: a port that is closed, where the way tells.
fn refused(error: &io::Error) -> TransferError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Fault::Connect.because(error),
        _ => Fault::Read.of(error),
    }
}

fn passed(report: &Report) -> Passed {
    Passed {
        bytes: report.bytes,
        first: report.first,
        last: report.last,
        ..Passed::default()
    }
}

/// A report's figures join the record.
fn tell(report: &Report, record: &mut Record) {
    record.datagrams[1] = report.received;
    for (name, value) in report.figures() {
        record.tell(name, value);
    }
}

/// Lost datagrams are a result. None at all, or changed ones, are a failure.
fn verdict(report: &Report) -> Result<(), TransferError> {
    match (report.received, report.corrupt) {
        (0, 0) => Err(Fault::Read.because("no datagram arrived")),
        (_, 0) => Ok(()),
        (_, changed) => {
            Err(Fault::Checksum.because(format_args!("{changed} datagrams were changed")))
        }
    }
}

/// What has come back.
#[derive(Debug, Default)]
struct Echoes {
    trips: Vec<Option<u32>>,
    there: Vec<u32>,
    back: Vec<u32>,
    next: u32,
    longest: u32,
    received: u32,
    duplicates: u32,
    reordered: u32,
    corrupt: u32,
}

/// Sends all and waits for the last ones.
async fn exchange_echoes(
    session: &Session,
    stream: Stream,
    record: &mut Record,
) -> Result<(), TransferError> {
    let mut echoes = Echoes::new(stream.count);
    let outcome = collect_echoes(session, stream, &mut echoes, record).await;
    let changed = u32::try_from(session.changed.get()).unwrap_or(u32::MAX);
    echoes.corrupt = echoes.corrupt.saturating_add(changed);
    let bytes = u64::from(echoes.received) * u64::from(stream.size);
    record.moved = [bytes, bytes];
    let (received, corrupt) = (echoes.received, echoes.corrupt);
    echoes.tell(record);
    outcome?;
    match (received, corrupt) {
        (0, 0) if stream.count > 0 => Err(Fault::Read.because("no datagram came back")),
        (_, 0) => Ok(()),
        (_, changed) => {
            Err(Fault::Checksum.because(format_args!("{changed} datagrams were changed")))
        }
    }
}

async fn collect_echoes(
    session: &Session,
    stream: Stream,
    echoes: &mut Echoes,
    record: &mut Record,
) -> Result<(), TransferError> {
    let mut sending = session.pace(stream, Kind::Echo);
    let (mut buffer, mut over) = (vec![0; 65_536], None);
    while over.is_none() || echoes.received < stream.count {
        let end = over.map(|over: Instant| over + echoes.patience(session.stall));
        tokio::select! {
            sent = &mut sending, if over.is_none() => {
                let sent = sent.map_err(|why| Fault::Misc.because(why))?;
                let sent = sent.map_err(|error| refused(&error))?;
                record.datagrams[0] = u64::from(sent);
                record.sent.add(u64::from(sent) * u64::from(stream.size), monotonic_ns() / 1000);
                over = Some(Instant::now());
            }
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => break,
            payload = session.flow.receive(&mut buffer) => {
                let now = monotonic_ns();
                let payload = payload.map_err(|error| refused(&error))?;
                if let Some((head, _)) = session.ours(payload, Some(Kind::Echoed)) {
                    let bytes = echoes.take(&head, head.is_intact(stream.size, payload), now);
                    record.received.add(bytes * u64::from(stream.size), now / 1000);
                }
            }
        }
    }
    Ok(())
}

impl Echoes {
    fn new(count: u32) -> Self {
        Self {
            trips: vec![None; usize::try_from(count).unwrap_or(0)],
            ..Self::default()
        }
    }

    /// How long the last ones are waited for: three times the longest round trip, or until the way counts as dead if there was none.
    fn patience(&self, stall: Duration) -> Duration {
        match self.longest {
            0 => stall,
            longest => {
                (Duration::from_micros(longest.into()) * 3).clamp(STRAGGLERS.min(stall), stall)
            }
        }
    }

    /// Takes one in; 1 if it counts.
    fn take(&mut self, head: &Head, intact: bool, now: u64) -> u64 {
        let trip = usize::try_from(head.number)
            .ok()
            .and_then(|number| self.trips.get_mut(number));
        let Some(trip) = trip.filter(|_| intact) else {
            self.corrupt += 1;
            return 0;
        };
        if trip.is_some() {
            self.duplicates += 1;
            return 0;
        }
        *trip = Some(micros(head.sent, now));
        self.longest = self.longest.max(micros(head.sent, now)).max(1);
        self.there.push(micros(head.sent, head.turned));
        self.back.push(micros(head.turned, now));
        self.received += 1;
        if head.number < self.next {
            self.reordered += 1
        } else {
            self.next = head.number.saturating_add(1)
        }
        1
    }

    fn tell(self, record: &mut Record) {
        record.datagrams[1] = u64::from(self.received);
        record.tell("duplicates", self.duplicates.into());
        record.tell("reordered", self.reordered.into());
        record.tell("corrupt", self.corrupt.into());
        record.round_trips = self.trips.into_iter().flatten().collect();
        if self.received == 0 {
            return;
        }
        for (way, delays) in [("up", self.there), ("down", self.back)] {
            let [shortest, median, _, p99, longest] = quantiles(delays);
            for (name, delay) in [
                ("min", shortest),
                ("p50", median),
                ("p99", p99),
                ("max", longest),
            ] {
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                record.tell(&format!("{way}_delay_us_{name}"), delay as f64);
            }
        }
    }
}

fn micros(from: u64, to: u64) -> u32 {
    u32::try_from(to.saturating_sub(from) / 1000).unwrap_or(u32::MAX)
}

/// Whether the kernel has no room for a datagram just now.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// The flow. An association lives as long as its control connection.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) socket: UdpSocket,
    /// The same socket, for senders on threads of their own.
    sender: StdSocket,
    /// In front of each datagram; empty without a proxy.
    header: Vec<u8>,
    _control: Option<TcpStream>,
}

impl Flow {
    /// Takes a connected socket over that does not block.
    pub(crate) fn new(
        socket: StdSocket,
        association: Option<(TcpStream, Endpoint)>,
    ) -> io::Result<Self> {
        let mut header = Vec::new();
        let _control = association.map(|(control, target)| {
            target.emit_datagram_header(&mut header);
            control
        });
        Ok(Self {
            sender: socket.try_clone()?,
            socket: UdpSocket::from_std(socket)?,
            header,
            _control,
        })
    }

    /// Sends one datagram. From any thread; a full queue of the kernel is `WouldBlock`.
    pub(crate) fn send(&self, payload: &[u8]) -> io::Result<()> {
        let sent = if self.header.is_empty() {
            self.sender.send(payload)
        } else {
            self.sender.send(&[&self.header, payload].concat())
        };
        sent.map(drop)
    }

    /// Sends one datagram that will be sent again if it is lost: a full queue loses it.
    fn offer(&self, payload: &[u8]) -> io::Result<()> {
        self.send(payload)
            .or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
    }

    /// The next datagram.
    pub(crate) async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            let len = self.socket.recv(buffer).await?;
            if let Some(from) = self.payload_at(&buffer[..len]) {
                return Ok(&buffer[from..len]);
            }
        }
    }

    /// Where the payload of a datagram begins; `None` for what is no datagram of the association.
    fn payload_at(&self, datagram: &[u8]) -> Option<usize> {
        if self.header.is_empty() {
            return Some(0);
        }
        let view = DatagramView::parse(datagram).ok()?;
        (view.fragment == 0).then_some(view.header.len())
    }
}
