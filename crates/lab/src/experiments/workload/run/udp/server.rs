//! The server's half of the datagrams: welcomes, echoes, counts what comes, sends what is asked for.
//! Sessions are bounded: the one that was silent longest gives way.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, UdpSocket as StdSocket},
    sync::Arc,
};

use hoplite_overlay::direct::udp::enlarge_buffers;
use socket2::{Protocol, Type};
use tokio::{net::UdpSocket, sync::Semaphore};

use super::stream::{Pace, Tally};
use crate::experiments::workload::{
    message::{Head, Hello, Kind, SMALLEST, Stream, emit_address},
    run::{record::monotonic_ns, server::bound},
};

/// How many sessions are remembered.
const SESSIONS: usize = 256;

/// How many streams are sent at once; a client that asks for one more is not answered, and asks again.
const SENDERS: usize = 64;

/// How often the end of a stream is told, for it may be lost.
const FINISHES: u32 = 5;

/// The socket and what clients have said on it.
#[derive(Debug)]
pub(crate) struct Server {
    socket: UdpSocket,
    sender: Arc<StdSocket>,
    sessions: HashMap<u64, Session>,
    senders: Arc<Semaphore>,
}

#[derive(Debug)]
struct Session {
    purpose: Purpose,
    heard: u64,
}

#[derive(Debug)]
enum Purpose {
    Receive(Tally),
    Send { stream: Stream, begun: bool },
}

/// What a datagram asks for.
enum Action {
    Nothing,
    Answer(Vec<u8>),
    Begin(Stream),
}

impl Server {
    /// Opens the port; 0 takes any.
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        let socket = bound(Type::DGRAM, Protocol::UDP, port)?;
        enlarge_buffers(&socket);
        socket.set_nonblocking(true)?;
        let socket = StdSocket::from(socket);
        Ok(Self {
            sender: Arc::new(socket.try_clone()?),
            socket: UdpSocket::from_std(socket)?,
            sessions: HashMap::new(),
            senders: Arc::new(Semaphore::new(SENDERS)),
        })
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Serves for ever.
    pub(crate) async fn run(mut self) {
        let mut buffer = vec![0; 65_536];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((len, peer)) => self.serve(&mut buffer[..len], peer),
                // A peer that is gone: the socket lives on.
                Err(error) => tracing::debug!(%error, "a datagram was not received"),
            }
        }
    }

    fn serve(&mut self, datagram: &mut [u8], peer: SocketAddr) {
        let now = monotonic_ns();
        let Some((head, body)) = Head::parse(datagram) else {
            return self.tell_changed(datagram.len(), peer);
        };
        if head.kind == Kind::Echo {
            let turned = Head {
                kind: Kind::Echoed,
                turned: now,
                ..head
            };
            let answer = turned.emit(body);
            return self.answer(&answer, peer);
        }
        match self.handle(&head, body, datagram, (peer, now)) {
            Action::Nothing => {}
            Action::Answer(answer) => self.answer(&answer, peer),
            Action::Begin(stream) => self.begin(&head, stream, peer),
        }
    }

    /// Whose it was cannot be known: whoever sent it counts it. Nobody is sent more than he has sent.
    fn tell_changed(&self, came: usize, peer: SocketAddr) {
        if came < usize::from(SMALLEST) {
            return;
        }
        let changed = Head {
            kind: Kind::Changed,
            token: 0,
            number: 0,
            sent: monotonic_ns(),
            turned: 0,
        };
        self.answer(&changed.emit(&[]), peer);
    }

    fn handle(
        &mut self,
        head: &Head,
        body: &[u8],
        datagram: &[u8],
        (peer, now): (SocketAddr, u64),
    ) -> Action {
        let answer = |kind, body: &[u8]| Action::Answer(Head { kind, ..*head }.emit(body));
        if head.kind == Kind::Hello {
            let Some(hello) = Hello::parse(body) else {
                return Action::Nothing;
            };
            self.remember(head.token, hello, now);
            return answer(Kind::Welcome, &emit_address(peer.ip().to_canonical()));
        }
        let Some(session) = self.sessions.get_mut(&head.token) else {
            return Action::Nothing;
        };
        session.heard = now;
        match (&mut session.purpose, head.kind) {
            (Purpose::Receive(tally), Kind::Data) => {
                tally.take(head, datagram, now);
                Action::Nothing
            }
            (Purpose::Receive(tally), Kind::Finish) => answer(Kind::Report, &tally.report().emit()),
            (Purpose::Send { stream, begun }, Kind::Begin) if !*begun => Action::Begin(*stream),
            _ => Action::Nothing,
        }
    }

    /// A hello that comes again changes nothing.
    fn remember(&mut self, token: u64, hello: Hello, now: u64) {
        let purpose = match hello {
            _ if self.sessions.contains_key(&token) => return,
            Hello::Echo => return,
            Hello::Receive(stream) => Purpose::Receive(Tally::new(stream)),
            Hello::Send(stream) => {
                let begun = false;
                Purpose::Send { stream, begun }
            }
        };
        if self.sessions.len() >= SESSIONS {
            let silent = self
                .sessions
                .iter()
                .min_by_key(|(_, session)| session.heard);
            let silent = silent.map(|(token, _)| *token);
            silent.and_then(|token| self.sessions.remove(&token));
        }
        let heard = now;
        self.sessions.insert(token, Session { purpose, heard });
    }

    fn answer(&self, datagram: &[u8], peer: SocketAddr) {
        if let Err(error) = self.sender.send_to(datagram, peer) {
            tracing::debug!(%error, "an answer was not sent");
        }
    }

    /// Sends a stream on a thread of its own.
    fn begin(&mut self, head: &Head, stream: Stream, peer: SocketAddr) {
        let Ok(permit) = Arc::clone(&self.senders).try_acquire_owned() else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(&head.token) {
            session.purpose = Purpose::Send {
                stream,
                begun: true,
            };
        }
        let (socket, head) = (Arc::clone(&self.sender), *head);
        tokio::task::spawn_blocking(move || {
            send(&socket, peer, head, stream);
            drop(permit);
        });
    }
}

fn send(socket: &StdSocket, peer: SocketAddr, head: Head, stream: Stream) {
    let kind = Kind::Data;
    let sending = Pace::new(stream, Head { kind, ..head });
    let sent = sending.run(|bytes| socket.send_to(bytes, peer).map(drop));
    let Ok(number) = sent else {
        return;
    };
    let kind = Kind::Finish;
    let finish = Head {
        kind,
        number,
        ..head
    }
    .emit(&[]);
    for _ in 0..FINISHES {
        std::thread::sleep(std::time::Duration::from_millis(100));
        if socket.send_to(&finish, peer).is_err() {
            return;
        }
    }
}
