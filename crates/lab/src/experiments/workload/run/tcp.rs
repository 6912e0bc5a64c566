//! The transfer protocol over a connection: reading and writing with stall limits, for both ends, and the client's half.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::sleep,
};

use super::record::{Record, monotonic_us, patiently};
use crate::experiments::workload::{
    Fault, TransferError, closed,
    progress::Progress,
    transfer::{ANSWER, Answer, Head, Receiver, Sender, Status, VERDICT, Verdict},
};

/// Bytes that one read may take.
const BUFFER: usize = 256 * 1024;

/// How a client transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// What it asks for.
    pub(crate) head: Head,
    /// Between an answer and the next request, in rounds.
    pub(crate) pause: Duration,
    /// How long nothing may move.
    pub(crate) stall: Duration,
}

impl Job {
    /// Bytes of payload asked for, to the server and from it; 0 if by time.
    pub(crate) fn asked(&self) -> [u64; 2] {
        let times = u64::from(self.head.rounds.max(1));
        [self.head.up, self.head.down].map(|size| size.unwrap_or(0).saturating_mul(times))
    }
}

/// A connection's reading side with what was read ahead.
pub(crate) struct Reading<R> {
    stream: R,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    stall: Duration,
}

impl<R: AsyncRead + Unpin> Reading<R> {
    pub(crate) fn new(stream: R, stall: Duration) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            from: 0,
            to: 0,
            stall,
        }
    }

    /// Waits until there is something to take.
    async fn fill(&mut self) -> Result<(), TransferError> {
        if self.from < self.to {
            return Ok(());
        }
        self.buffer.resize(BUFFER, 0);
        match patiently(self.stall, self.stream.read(&mut self.buffer)).await? {
            Ok(0) => Err(closed()),
            Ok(len) => {
                (self.from, self.to) = (0, len);
                Ok(())
            }
            Err(error) => Err(Fault::Read.of(&error)),
        }
    }

    /// The next `N` bytes.
    pub(crate) async fn exact<const N: usize>(&mut self) -> Result<[u8; N], TransferError> {
        let (mut out, mut have) = ([0; N], 0);
        while have < N {
            self.fill().await?;
            let now = (self.to - self.from).min(N - have);
            out[have..have + now].copy_from_slice(&self.buffer[self.from..self.from + now]);
            self.from += now;
            have += now;
        }
        Ok(out)
    }

    /// Takes payload until `receiver` has `until` bytes, or its end if that is `None`.
    pub(crate) async fn receive(
        &mut self,
        receiver: &mut Receiver,
        until: Option<u64>,
        progress: &mut Progress,
    ) -> Result<(), TransferError> {
        let enough = |receiver: &Receiver| match until {
            Some(until) => receiver.bytes() >= until,
            None => receiver.verdict().is_some(),
        };
        while !enough(receiver) {
            self.fill().await?;
            let (before, now) = (receiver.bytes(), monotonic_us());
            self.from += receiver.take(&self.buffer[self.from..self.to])?;
            progress.add(receiver.bytes() - before, now);
        }
        Ok(())
    }
}

/// Writes all of `bytes`.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    stall: Duration,
) -> Result<(), TransferError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match patiently(stall, stream.write(rest)).await? {
            Ok(0) => return Err(Fault::Write.of(&io::ErrorKind::WriteZero.into())),
            Ok(len) => rest = rest.get(len..).unwrap_or_default(),
            Err(error) => return Err(Fault::Write.of(&error)),
        }
    }
    Ok(())
}

/// Writes one size of payload; the end too, if this is the `last` of it.
pub(crate) async fn send_size(
    stream: &mut (impl AsyncWrite + Unpin),
    sender: &mut Sender,
    size: u64,
    last: bool,
    (progress, stall): (&mut Progress, Duration),
) -> Result<(), TransferError> {
    let mut left = size;
    while left > 0 {
        let (bytes, payload) = sender.frame(left, last);
        write(stream, bytes, stall).await?;
        progress.add(payload, monotonic_us());
        left -= payload;
    }
    Ok(())
}

/// Writes payload until `time` microseconds are over, and its end.
async fn send_for(
    stream: &mut (impl AsyncWrite + Unpin),
    sender: &mut Sender,
    time: u64,
    (progress, stall): (&mut Progress, Duration),
) -> Result<(), TransferError> {
    let until = monotonic_us().saturating_add(time);
    while monotonic_us() < until {
        let (bytes, payload) = sender.frame(u64::MAX, false);
        write(stream, bytes, stall).await?;
        progress.add(payload, monotonic_us());
    }
    write(stream, sender.end(), stall).await
}

/// One whole payload of a side: by size, or by time if the size is 0.
pub(crate) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    size: Option<u64>,
    head: &Head,
    (progress, stall): (&mut Progress, Duration),
) -> Result<(), TransferError> {
    let mut sender = Sender::new(head.seed);
    match size {
        None => Ok(()),
        Some(0) => send_for(stream, &mut sender, head.time, (progress, stall)).await,
        Some(size) => send_size(stream, &mut sender, size, true, (progress, stall)).await,
    }
}

/// A receiver for a side: no more than it asked for, if it said how much.
pub(crate) fn receiver(size: u64, head: &Head) -> Receiver {
    let limit = match size {
        0 => u64::MAX,
        size => size.saturating_mul(u64::from(head.rounds.max(1))),
    };
    Receiver::new(limit, head.seed)
}

/// The client's half of a transfer, from the head to the verdict.
pub(crate) async fn exchange(
    stream: &mut TcpStream,
    job: &Job,
    record: &mut Record,
) -> Result<(), TransferError> {
    let (reading, mut writing) = stream.split();
    let mut reading = Reading::new(reading, job.stall);
    write(&mut writing, &job.head.emit(), job.stall).await?;
    record.phases.command = Some(record.clock.us());
    let answer = Answer::parse(&reading.exact::<ANSWER>().await?);
    accept(answer.map_err(|why| Fault::Auth.because(why))?, job, record)?;
    match job.head.rounds {
        0 => both(&mut reading, &mut writing, job, record).await?,
        _ => rounds(&mut reading, &mut writing, job, record).await?,
    }
    if job.head.up.is_some() {
        verdict(&mut reading, record).await?;
    }
    record.phases.checksum = Some(record.clock.us());
    Ok(())
}

fn accept(answer: Answer, job: &Job, record: &mut Record) -> Result<(), TransferError> {
    record.phases.response = Some(record.clock.us());
    if answer.status != Status::Fine {
        return Err(Fault::Auth.because("the server could not read what was asked for"));
    }
    if answer.token != job.head.token {
        return Err(Fault::Auth.because("the answer belongs to another transfer"));
    }
    record.seen_as = Some(answer.seen_as);
    Ok(())
}

async fn both(
    reading: &mut Reading<ReadHalf<'_>>,
    writing: &mut WriteHalf<'_>,
    job: &Job,
    record: &mut Record,
) -> Result<(), TransferError> {
    let head = &job.head;
    let (sent, received) = (&mut record.sent, &mut record.received);
    let sending = send(writing, head.up, head, (sent, job.stall));
    let receiving = async {
        let Some(size) = head.down else {
            return Ok(None);
        };
        let mut receiver = receiver(size, head);
        reading.receive(&mut receiver, None, received).await?;
        Ok(Some(receiver))
    };
    let ((), receiver) = futures_util::future::try_join(sending, receiving).await?;
    receiver.map_or(Ok(()), |receiver| check(&receiver, record))
}

/// What was received counts if its hash is right and it is as much as was asked for.
fn check(receiver: &Receiver, record: &mut Record) -> Result<(), TransferError> {
    let asked = record.asked[1];
    if receiver.verdict() != Some(true) {
        return Err(Fault::Checksum.because("the hash of what was received is wrong"));
    }
    if asked != 0 && receiver.bytes() != asked {
        let bytes = receiver.bytes();
        return Err(Fault::Checksum.because(format_args!("{bytes} of {asked} bytes came")));
    }
    record.moved[1] = receiver.bytes();
    Ok(())
}

async fn rounds(
    reading: &mut Reading<ReadHalf<'_>>,
    writing: &mut WriteHalf<'_>,
    job: &Job,
    record: &mut Record,
) -> Result<(), TransferError> {
    let (up, down) = (job.head.up.unwrap_or(1), job.head.down.unwrap_or(1));
    let mut sender = Sender::new(job.head.seed);
    let mut receiver = receiver(down, &job.head);
    for round in 1..=job.head.rounds {
        let (began, last) = (monotonic_us(), round == job.head.rounds);
        let sent = (&mut record.sent, job.stall);
        send_size(writing, &mut sender, up, last, sent).await?;
        let until = u64::from(round).saturating_mul(down);
        let received = &mut record.received;
        reading
            .receive(&mut receiver, Some(until), received)
            .await?;
        let took = monotonic_us().saturating_sub(began);
        record
            .round_trips
            .push(u32::try_from(took).unwrap_or(u32::MAX));
        if !last {
            sleep(job.pause).await;
        }
    }
    let received = &mut record.received;
    reading.receive(&mut receiver, None, received).await?;
    check(&receiver, record)
}

/// Waits for the server's verdict on what was sent. Only the transfer's whole time bounds it: buffers on the way may hold it back.
async fn verdict(
    reading: &mut Reading<ReadHalf<'_>>,
    record: &mut Record,
) -> Result<(), TransferError> {
    reading.stall = Duration::MAX;
    judge(&reading.exact::<VERDICT>().await?, record)
}

/// What the server's verdict means for a transfer.
pub(crate) fn judge(said: &[u8], record: &mut Record) -> Result<(), TransferError> {
    let verdict = Verdict::parse(said);
    let verdict = verdict.map_err(|why| Fault::Auth.because(why))?;
    let (came, sent) = (verdict.passed.bytes, record.sent.bytes());
    if !verdict.right || came != sent {
        let why = format_args!(
            "the server received {came} of {sent} bytes, hash right: {}",
            verdict.right
        );
        return Err(Fault::Checksum.because(why));
    }
    record.moved[0] = came;
    record.arrived = Some(believable(verdict, record));
    Ok(())
}

/// The server's times, unless it is on a machine with another clock: then the end is when the verdict came.
fn believable(verdict: Verdict, record: &Record) -> crate::experiments::workload::progress::Passed {
    let now = monotonic_us();
    let began = now.saturating_sub(record.clock.us());
    let mut passed = verdict.passed;
    let within = |stamp: &Option<u64>| stamp.is_some_and(|stamp| (began..=now).contains(&stamp));
    if !(within(&passed.first) && within(&passed.last)) {
        passed.last = Some(now);
        passed.deciles.clear();
        passed.partial.clear();
    }
    passed
}
