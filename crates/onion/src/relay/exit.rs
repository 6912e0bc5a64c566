//! What an exit does for a client: connects to targets, resolves names, and carries bytes between stream and target.
//! [`super::driver`] starts a task for each. tor-spec "Opening streams and transferring data", "Remote hostname lookup".

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};
use hoplite_wire::{
    Host, Target,
    cell::relay::{Answer, ConnectUdp, End, EndReason, Flags, Resolved, StreamId, Value},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    Asking, Relay,
    exit_counters::{CircuitShare, Metered},
};
use crate::{
    channel::{AdmittedStream, LookUp},
    endpoint::{
        Asked, Endpoint, HALF_CLOSE,
        io::{AT_ONCE, FILLS, Handle, Shared},
        udp::{self, UdpHandle},
    },
    failure,
};

/// Addresses of a name that are tried.
const TRIED: usize = 3;
/// Answers to one RESOLVE, so that they fit a cell.
const ANSWERS: usize = 16;
/// For how many seconds a client may keep an answer.
const RESOLVED_TTL: u32 = 60;

/// The circuit that a stream is on.
pub(super) struct Circuit {
    /// Its end.
    pub(super) shared: Arc<Shared>,
    /// How much of what is counted is of it.
    pub(super) share: Arc<CircuitShare>,
    /// Whose it is.
    pub(super) asking: Asking,
}

/// Does what a client asks for, until the stream has ended; `place` is held as long.
pub(super) async fn serve(
    relay: Arc<Relay>,
    place: Box<dyn AdmittedStream>,
    circuit: Circuit,
    id: StreamId,
    asked: Asked,
) {
    let Circuit {
        shared,
        share,
        asking,
    } = circuit;
    if let Asked::Udp(connect) = &asked {
        return serve_udp(
            &relay,
            &*place,
            UdpHandle::new(&shared, id),
            connect,
            &shared,
        )
        .await;
    }
    let mut handle = Handle::new(&shared, id);
    let port = match &asked {
        Asked::Stream(begin) => Some(begin.target.port),
        _ => None,
    };
    let (opened, half_close) = match asked {
        Asked::Name(name) => {
            let found = look_up(&relay, &*place, &name).await;
            return tell(&mut shared.lock(), id, found);
        }
        Asked::Directory => (directory(&relay, asking).await, false),
        // An exit's end never says so.
        Asked::Port(_) | Asked::UdpPort(_) | Asked::Udp(_) => {
            (Err(End::new(EndReason::TORPROTOCOL)), false)
        }
        Asked::Stream(begin) => {
            let half_close = begin.flags.has(HALF_CLOSE);
            let (target, flags) = (&begin.target, begin.flags);
            let opened = connect(&relay, &*place, target, flags, open_stream).await;
            (opened.map(|(ip, stream)| (Some(ip), stream)), half_close)
        }
    };
    let (address, target) = match opened {
        Ok(opened) => opened,
        Err(end) => return shared.lock().refuse(id, end),
    };
    relay.counters.streams.fetch_add(1, Relaxed);
    shared.lock().connected(id, address);
    let target = Metered::new(target, port, &relay, share);
    if carry(&mut handle, target, half_close).await.is_err() {
        // If the client has ended it before, there is nobody to be told.
        shared.lock().refuse(id, End::new(EndReason::CONNRESET));
    }
}

/// There is no place for it.
pub(super) fn refuse(relay: &Relay, endpoint: &mut Endpoint, id: StreamId, asked: &Asked) {
    relay.counters.limited.fetch_add(1, Relaxed);
    match asked {
        Asked::Name(_) => tell(endpoint, id, Err(limited())),
        _ => {
            endpoint.refuse(id, End::new(EndReason::RESOURCELIMIT));
        }
    }
}

fn limited() -> Error {
    Error::new(ErrorKind::TargetFailed, "serving a client").because(Reason::Limit)
}

type Opened = Result<(Option<IpAddr>, Stream), End>;

async fn directory(relay: &Relay, asking: Asking) -> Opened {
    let directory = relay.directory.as_ref();
    let directory = directory.ok_or(End::new(EndReason::NOTDIRECTORY))?;
    match directory.open(asking).await {
        Ok(stream) => Ok((None, stream)),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Err(End::new(EndReason::NOTDIRECTORY))
        }
        Err(error) => Err(End::new(failure::end_of(&error))),
    }
}

/// How a target's address is reached.
type Open<T> = for<'a> fn(&'a dyn Overlay, &'a Target, &'a Terms) -> Opening<'a, T>;

fn open_stream<'a>(
    out: &'a dyn Overlay,
    target: &'a Target,
    terms: &'a Terms,
) -> Opening<'a, Stream> {
    out.open_stream(target, terms)
}

fn open_datagrams<'a>(
    out: &'a dyn Overlay,
    target: &'a Target,
    terms: &'a Terms,
) -> Opening<'a, Box<dyn Datagrams>> {
    out.open_datagrams(target, terms)
}

/// Opens what is asked for to the first address of `target` that it can be opened to.
async fn connect<T>(
    relay: &Relay,
    place: &dyn AdmittedStream,
    target: &Target,
    flags: Flags,
    open: Open<T>,
) -> Result<(IpAddr, T), End> {
    let out = relay.out.as_ref().ok_or(End::new(EndReason::EXITPOLICY))?;
    let terms = Terms::default().within(relay.config.patience);
    let port = target.port;
    if let Host::Name(name) = &target.host
        && !relay.policy.admits_name(name.as_str(), port)
    {
        return Err(End::new(EndReason::EXITPOLICY));
    }
    let found = addresses(&**out, place, target, &terms).await;
    let found = found.map_err(|error| End::new(failure::end_of(&error)))?;
    let admitted = |ip: &IpAddr| relay.policy.admits(SocketAddr::new(*ip, port));
    let mut wanted: Vec<IpAddr> = found.iter().copied().filter(admitted).collect();
    if wanted.is_empty() {
        let address = found.first().map(|ip| (*ip, RESOLVED_TTL));
        let reason = EndReason::EXITPOLICY;
        return Err(End { reason, address });
    }
    choose(&mut wanted, flags);
    let mut last = End::new(EndReason::EXITPOLICY);
    for ip in wanted.into_iter().take(TRIED) {
        let target = Target::from(SocketAddr::new(ip, port));
        match open(&**out, &target, &terms).await {
            Ok(opened) => return Ok((ip, opened)),
            Err(error) => last = End::new(failure::end_of(&error)),
        }
    }
    Err(last)
}

/// Which of the addresses will do, and in which order.
fn choose(addresses: &mut Vec<IpAddr>, flags: Flags) {
    addresses.retain(|ip| match ip {
        IpAddr::V4(_) => !flags.has(Flags::IPV4_NOT_OKAY),
        IpAddr::V6(_) => flags.has(Flags::IPV6_OKAY),
    });
    let v6_first = flags.has(Flags::IPV6_PREFERRED);
    addresses.sort_by_key(|ip| ip.is_ipv6() != v6_first);
}

async fn addresses(
    out: &dyn Overlay,
    place: &dyn AdmittedStream,
    target: &Target,
    terms: &Terms,
) -> Result<Vec<IpAddr>, Error> {
    match &target.host {
        Host::Ip(ip) => Ok(vec![*ip]),
        Host::Name(name) => {
            let _place = place.look_up(LookUp::Connect).ok_or_else(limited)?;
            out.resolve(name.as_str(), terms).await
        }
    }
}

/// The answer to RESOLVE.
fn tell(endpoint: &mut Endpoint, id: StreamId, found: Result<Vec<IpAddr>, Error>) {
    let answer = |value| Answer {
        value,
        seconds: RESOLVED_TTL,
    };
    let answers = match found {
        Ok(mut found) => {
            // "IPv4 addresses SHOULD come first."
            found.sort_by_key(IpAddr::is_ipv6);
            let answers = found.into_iter().take(ANSWERS);
            answers.map(|ip| answer(Value::Ip(ip))).collect()
        }
        Err(error) if error.reason() == Some(Reason::NameNotFound) => {
            vec![answer(Value::Permanent)]
        }
        Err(_) => vec![answer(Value::Transient)],
    };
    endpoint.resolved(id, Resolved(answers));
}

async fn look_up(
    relay: &Relay,
    place: &dyn AdmittedStream,
    name: &str,
) -> Result<Vec<IpAddr>, Error> {
    let nobody = || {
        let error = Error::new(ErrorKind::TargetFailed, "resolving a name");
        error.because(Reason::NameNotFound)
    };
    let out = relay.out.as_ref().ok_or_else(nobody)?;
    // Names of addresses (in-addr.arpa) are not looked up: their answers would be PTR records.
    if name.ends_with(".arpa") {
        return Err(nobody());
    }
    let terms = Terms::default().within(relay.config.patience);
    let host: Host = name.parse().map_err(|_| nobody())?;
    match host {
        Host::Ip(ip) => Ok(vec![ip]),
        Host::Name(name) => {
            let _place = place.look_up(LookUp::Resolve).ok_or_else(limited)?;
            out.resolve(name.as_str(), &terms).await
        }
    }
}

/// Carries both directions. Where the client knows no half-closed streams, the first end is the end of both.
async fn carry(client: &mut Handle, target: Metered, half_close: bool) -> io::Result<()> {
    let mut carried = Carried {
        client,
        target,
        up: Way::Open,
        down: Way::Open,
        rest: BytesMut::new(),
    };
    poll_fn(|cx| {
        let up = carried.poll_up(cx)?;
        if !half_close && up.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let down = carried.poll_down(cx)?;
        if down.is_ready() && (up.is_ready() || !half_close) {
            return Poll::Ready(Ok(()));
        }
        // The client may take back an orderly end.
        carried.client.is_not_reset(cx)?;
        Poll::Pending
    })
    .await
}

/// A stream and its target. Thousands of them stand, so they hold no bytes: what one side does not take stays at the other, in the circuit's end, where
/// it counts, or with the target.
struct Carried<'a> {
    client: &'a mut Handle,
    target: Metered,
    up: Way,
    down: Way,
    /// What was read of the target and is not in cells: little.
    rest: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// All has come, and the other side is not told yet.
    Over,
    Ended,
}

impl Carried<'_> {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.up == Way::Open {
            match self.client.poll_write_to(cx, Pin::new(&mut self.target))? {
                Poll::Ready(0) => self.up = Way::Over,
                Poll::Ready(_) => {}
                Poll::Pending => {
                    // There may be nothing to wait for: who writes next flushes again.
                    let _flushed = Pin::new(&mut self.target).poll_flush(cx)?;
                    return Poll::Pending;
                }
            }
        }
        if self.up == Way::Over {
            ready!(Pin::new(&mut self.target).poll_shutdown(cx))?;
            self.up = Way::Ended;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.rest.is_empty() {
                let written = Pin::new(&mut *self.client).poll_write(cx, &self.rest)?;
                match written {
                    Poll::Ready(written) => self.rest.advance(written),
                    // A small piece may wait for more to share its cell with.
                    Poll::Pending if self.down == Way::Open && self.rest.len() < FILLS => {
                        ready!(self.poll_read(cx, FILLS - self.rest.len()))?;
                    }
                    Poll::Pending => return Poll::Pending,
                }
                continue;
            }
            match self.down {
                Way::Open => {
                    let most = ready!(self.client.poll_may_write(cx))?;
                    ready!(self.poll_read(cx, most.min(AT_ONCE)))?;
                }
                Way::Over => {
                    ready!(Pin::new(&mut *self.client).poll_shutdown(cx))?;
                    self.down = Way::Ended;
                }
                Way::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads of the target, and puts in cells what can be.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<()>> {
        let mut piece = [0; AT_ONCE];
        let mut read = ReadBuf::new(&mut piece[..most]);
        ready!(Pin::new(&mut self.target).poll_read(cx, &mut read))?;
        let mut bytes = read.filled();
        if bytes.is_empty() {
            self.down = Way::Over;
        } else if self.rest.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut *self.client).poll_write(cx, bytes)?
        {
            bytes.advance(written);
        }
        self.rest.extend_from_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

// UDP streams. Proposal 339.

async fn serve_udp(
    relay: &Relay,
    place: &dyn AdmittedStream,
    client: UdpHandle,
    asked: &ConnectUdp,
    shared: &Shared,
) {
    let (target, id) = (&asked.target, client.id());
    if !relay.config.datagrams {
        return shared.lock().refuse(id, End::new(EndReason::EXITPOLICY));
    }
    let Some(_port) = place.udp_port() else {
        relay.counters.limited.fetch_add(1, Relaxed);
        return shared.lock().refuse(id, End::new(EndReason::RESOURCELIMIT));
    };
    let opened = connect(relay, place, target, asked.flags, open_datagrams).await;
    let (ip, flow) = match opened {
        Ok(opened) => opened,
        Err(end) => return shared.lock().refuse(id, end),
    };
    relay.counters.streams.fetch_add(1, Relaxed);
    shared
        .lock()
        .connected_udp(id, SocketAddr::new(ip, target.port));
    if let Err(error) = udp::carry(&client, &*flow, relay.config.idle_datagrams).await {
        // If the client has ended it before, there is nobody to be told.
        shared.lock().refuse(id, End::new(failure::end_of(&error)));
    }
}
