//! What a host of the in-memory network does: listen, receive datagrams, open flows.
//! Made by [`super::Network`].

use std::{
    fmt,
    future::{pending, poll_fn},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hoplite_wire::{
    Host, HostName, Target,
    connect_ip::Scope,
    dns::{Code, Question, Unfit},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{
    BACKLOG, Fault, Network, What,
    inbox::{Inbox, Letter},
    packets::MemoryPackets,
    pipe::{MemoryStream, Pipe},
};
use crate::{
    Batch, Datagrams, Error, ErrorKind, Opening, Overlay, Packets, Reason, Received, Stream, Terms,
};

/// Accepts streams at one address until it is dropped.
pub struct Listener {
    network: Network,
    address: SocketAddr,
    accepted: mpsc::Receiver<Stream>,
}

/// Receives and sends datagrams at one address until it is dropped.
pub struct Socket {
    network: Network,
    address: SocketAddr,
    inbox: Arc<Inbox>,
}

/// The overlay by which one host opens flows to the others.
#[derive(Debug, Clone)]
pub struct MemoryOverlay {
    network: Network,
    host: IpAddr,
}

struct MemoryDatagrams {
    socket: Socket,
    there: SocketAddr,
}

impl Network {
    /// The overlay by which `host` opens flows.
    pub fn overlay(&self, host: IpAddr) -> MemoryOverlay {
        self.state().hosts.push(host);
        MemoryOverlay {
            network: self.clone(),
            host,
        }
    }

    /// Listens for streams at a free port of `host`.
    pub fn listen(&self, host: IpAddr) -> Listener {
        let address = self.state().free_port(host);
        self.listen_at(address)
    }

    /// Listens for streams at `address`; whoever listened there before hears no more.
    pub fn listen_at(&self, address: SocketAddr) -> Listener {
        let (sender, accepted) = mpsc::channel(BACKLOG);
        let mut state = self.state();
        state.hosts.push(address.ip());
        state.listeners.insert(address, sender);
        drop(state);
        Listener {
            network: self.clone(),
            address,
            accepted,
        }
    }

    /// Receives datagrams at a free port of `host`.
    pub fn bind(&self, host: IpAddr) -> Socket {
        let address = self.state().free_port(host);
        self.bind_at(address)
    }

    /// Receives datagrams at `address`; whoever received there before does no more.
    pub fn bind_at(&self, address: SocketAddr) -> Socket {
        let inbox = Arc::new(Inbox::new());
        let mut state = self.state();
        state.hosts.push(address.ip());
        state.inboxes.insert(address, Arc::downgrade(&inbox));
        drop(state);
        Socket {
            network: self.clone(),
            address,
            inbox,
        }
    }

    /// Both ends of a stream from `from`; the far one is still to be accepted.
    fn pair(&self, from: IpAddr, there: SocketAddr) -> (MemoryStream, MemoryStream) {
        let here = self.state().free_port(from);
        let (up, down) = (Pipe::new(), Pipe::new());
        let end = |here, there, incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>| MemoryStream {
            network: self.clone(),
            here,
            there,
            incoming: Arc::clone(incoming),
            outgoing: Arc::clone(outgoing),
            current: Bytes::new(),
            timer: None,
            read_ended: false,
            write_ended: false,
            answer: None,
        };
        let ends = (end(here, there, &down, &up), end(there, here, &up, &down));
        let mut state = self.state();
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state
            .pipes
            .extend([Arc::downgrade(&up), Arc::downgrade(&down)]);
        drop(state);
        ends
    }

    /// Hands the far end of a stream to whoever listens there.
    fn deliver(&self, far: MemoryStream) -> Result<(), Error> {
        let listener = self.state().listeners.get(&far.here).cloned();
        let taken = listener.is_some_and(|listener| listener.try_send(Stream::new(far)).is_ok());
        match taken {
            true => Ok(()),
            false => Err(target_failed(Reason::Refused)),
        }
    }

    fn carry(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        self.note(from, to, What::Datagram(payload.len()));
        let mut state = self.state();
        if payload.len() > state.road.max_payload || state.fault != Fault::None || state.loses() {
            return;
        }
        let road = state.road;
        let inbox = |address| state.inboxes.get(address).and_then(Weak::upgrade);
        match (inbox(&to), inbox(&from)) {
            (Some(receiver), _) => {
                receiver.put(&road, Letter::From(from, Bytes::copy_from_slice(payload)));
            }
            (None, Some(sender)) => sender.put(&road, Letter::Refused),
            (None, None) => {}
        }
    }

    /// What a resolver that knows this network's names says.
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let question = match Question::read(message) {
            Ok(question) => question,
            Err(Unfit::Answered(reply)) => return Ok(reply),
            Err(Unfit::Nothing) => return Err(target_failed(Reason::ResolverFailed)),
        };
        let found = question.name().map(|name| self.find(&Host::Name(name)));
        Ok(match found {
            Some(Ok(ip)) => question.addresses([ip], 60),
            _ => question.nothing(Code::NO_NAME, 60),
        })
    }

    pub(super) fn find(&self, host: &Host) -> Result<IpAddr, Error> {
        let state = self.state();
        match host {
            Host::Name(name) => state
                .names
                .get(name)
                .copied()
                .ok_or_else(|| target_failed(Reason::NameNotFound)),
            Host::Ip(ip) if state.hosts.contains(ip) => Ok(*ip),
            Host::Ip(_) => Err(target_failed(Reason::HostUnreachable)),
        }
    }
}

impl Listener {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next stream; pending for ever once another listener has taken its place.
    pub async fn accept(&mut self) -> Stream {
        match self.accepted.recv().await {
            Some(stream) => stream,
            None => pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepted.close();
        let mut state = self.network.state();
        let ours = |sender: &mpsc::Sender<Stream>| sender.is_closed();
        if state.listeners.get(&self.address).is_some_and(ours) {
            state.listeners.remove(&self.address);
        }
    }
}

impl Socket {
    /// Where it receives.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next datagram and who sent it.
    pub async fn recv(&self) -> (Bytes, SocketAddr) {
        loop {
            let letter = poll_fn(|cx| self.inbox.poll_take(cx)).await;
            if let Letter::From(sender, payload) = letter {
                return (payload, sender);
            }
        }
    }

    /// Sends a datagram.
    pub fn send(&self, payload: &[u8], to: SocketAddr) {
        self.network.carry(self.address, to, payload);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.network.state();
        let inboxes = &mut state.inboxes;
        let ours = |inbox: &Weak<Inbox>| inbox.as_ptr() == Arc::as_ptr(&self.inbox);
        if inboxes.get(&self.address).is_some_and(ours) {
            inboxes.remove(&self.address);
        }
    }
}

impl MemoryOverlay {
    async fn stream(&self, target: &Target) -> Result<Stream, Error> {
        let there = self.ask(target)?;
        if self.is_silent(there) {
            return pending().await;
        }
        let latency = self.network.state().road.latency;
        sleep(latency * 2).await;
        let (near, far) = self.network.pair(self.host, there);
        self.network.deliver(far)?;
        Ok(Stream::new(near))
    }

    /// The same, at once: what is written follows the request, and a failure is told when it would be known.
    fn early(&self, target: &Target, terms: &Terms) -> Stream {
        let asked = self.ask(target);
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), target.port);
        let there = asked.as_ref().map_or(nowhere, |there| *there);
        let (mut near, far) = self.network.pair(self.host, there);
        let (mut say, answer) = oneshot::channel();
        near.answer = Some(answer);
        let (network, silent) = (self.network.clone(), self.is_silent(there));
        tokio::spawn(async move {
            if silent {
                say.closed().await;
                return drop(far);
            }
            let latency = network.state().road.latency;
            sleep(latency).await;
            let said = asked.and_then(|_| network.deliver(far));
            sleep(latency).await;
            drop(say.send(said));
        });
        Stream::early(near, terms.deadline)
    }

    /// Says to the eavesdropper that a stream is being opened; answers with where to.
    fn ask(&self, target: &Target) -> Result<SocketAddr, Error> {
        let there = SocketAddr::new(self.network.find(&target.host)?, target.port);
        let here = SocketAddr::new(self.host, 0);
        self.network.note(here, there, What::Open);
        match self.network.state().fault {
            Fault::Down => Err(target_failed(Reason::HostUnreachable)),
            _ => Ok(there),
        }
    }

    fn is_silent(&self, there: SocketAddr) -> bool {
        let state = self.network.state();
        state.fault == Fault::Silent || state.silent.contains(&there)
    }
}

impl Overlay for MemoryOverlay {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        match terms.early {
            true => Box::pin(async move { Ok(self.early(target, terms)) }),
            false => Box::pin(terms.run("connecting", self.stream(target))),
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let there = SocketAddr::new(self.network.find(&target.host)?, target.port);
            let socket = self.network.bind(self.host);
            Ok(Box::new(MemoryDatagrams { socket, there }) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let name = HostName::new(name).map_err(|_| target_failed(Reason::NameNotFound))?;
            Ok(vec![self.network.find(&Host::Name(name))?])
        })
    }

    fn open_packets<'a>(&'a self, scope: &'a Scope, _: &'a Terms) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(async move {
            let flow = MemoryPackets::open(&self.network, self.host, scope)?;
            Ok(Box::new(flow) as Box<dyn Packets>)
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], _: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(async move { self.network.answer(message) })
    }
}

impl Datagrams for MemoryDatagrams {
    fn max_payload(&self) -> usize {
        self.socket.network.state().road.max_payload
    }

    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        for payload in batch.payloads() {
            self.socket.send(payload, self.there);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        loop {
            let payload = match ready!(self.socket.inbox.poll_take(cx)) {
                Letter::Refused => return Poll::Ready(Err(target_failed(Reason::Refused))),
                Letter::From(sender, _) if sender != self.there => continue,
                Letter::From(_, payload) => payload,
            };
            let Some(filled) = buf.get_mut(..payload.len()) else {
                continue;
            };
            filled.copy_from_slice(&payload);
            return Poll::Ready(Ok(Received {
                len: payload.len(),
                segment: payload.len().max(1),
            }));
        }
    }
}

pub(super) fn target_failed(reason: Reason) -> Error {
    Error::new(ErrorKind::TargetFailed, "opening a flow in memory").because(reason)
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl fmt::Debug for MemoryDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDatagrams")
    }
}
