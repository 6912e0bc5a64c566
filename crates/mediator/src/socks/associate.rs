//! UDP ASSOCIATE: a socket for one program, and a flow for each target that it sends to.
//! The SOCKS session runs it until the program closes its TCP connection. RFC 1928 §4, §6, §7.
//!
//! Only the program's own datagrams are taken: from the address of its TCP connection, and from the port that it announced,
//! or the first that it sends from.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::Poll,
};

use hoplite_overlay::{Batch, Isolation};
use hoplite_wire::{
    Host,
    socks::{DatagramView, Endpoint, ReplyCode},
};
use tokio::{
    io::AsyncReadExt,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use crate::{
    app::{App, Used},
    datagrams::{FLOOR, Pushed},
    front::Room,
    users::User,
};

use super::{
    fail,
    flow::{Flow, Sender},
    reply, scratch,
    socket::{Arrived, Socket},
};

/// How many receive calls are made before other tasks have their turn.
const TURN: usize = 16;

/// Serves one association.
pub(super) async fn serve(
    mut app: App,
    announced: Endpoint,
    isolation: Isolation,
    room: Arc<Room>,
) {
    let mut association = match Association::new(&app, &announced, isolation, &room).await {
        Ok(association) => association,
        Err(error) => {
            tracing::warn!(%error, "no socket for a UDP association: raise the limit of open files (ulimit -n)");
            return fail(app, ReplyCode::GeneralFailure).await;
        }
    };
    let Ok(bound) = association.socket.local_addr() else {
        return fail(app, ReplyCode::GeneralFailure).await;
    };
    if reply(&mut app, ReplyCode::Succeeded, bound.into())
        .await
        .is_err()
    {
        return;
    }
    room.counters.associations.add(1);
    tokio::select! {
        error = association.run() => tracing::debug!(%error, "an association's socket failed"),
        // "A UDP association terminates when the TCP connection that the UDP ASSOCIATE request arrived on terminates."
        () = silence(&mut app) => {}
    }
    app.close().await;
}

/// Until the program closes; what it sends meanwhile has no meaning.
async fn silence(app: &mut App) {
    let mut ignored = [0; 64];
    while app.read(&mut ignored).await.is_ok_and(|n| n > 0) {}
}

struct Association {
    room: Arc<Room>,
    socket: Arc<Socket>,
    isolation: Isolation,
    /// The address of the program's TCP connection.
    peer: IpAddr,
    /// That connection rests while datagrams move.
    used: Used,
    /// The port that the program sends from, once it is known.
    port: Option<u16>,
    /// By the header of the datagrams: at most `limits.datagram_flows`, the one used least lately makes room.
    flows: HashMap<Box<[u8]>, Place>,
    tasks: JoinSet<()>,
}

struct Place {
    sender: Sender,
    task: AbortHandle,
}

impl Association {
    async fn new(
        app: &App,
        announced: &Endpoint,
        isolation: Isolation,
        room: &Arc<Room>,
    ) -> io::Result<Self> {
        let peer = app.peer_addr()?.ip().to_canonical();
        Ok(Self {
            room: Arc::clone(room),
            socket: Arc::new(Socket::bind(app.local_addr()?).await?),
            isolation,
            peer,
            used: app.used(),
            port: announced_port(announced, peer),
            flows: HashMap::new(),
            tasks: JoinSet::new(),
        })
    }

    async fn run(&mut self) -> io::Error {
        let socket = Arc::clone(&self.socket);
        poll_fn(|cx| {
            let now = Instant::now();
            for _ in 0..TURN {
                let turn = scratch::with(|scratch| {
                    socket.poll_recv(cx, scratch, |arrived| self.take(&arrived, now))
                });
                match turn {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => return Poll::Pending,
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    fn take(&mut self, arrived: &Arrived<'_>, now: Instant) {
        if self.forward(arrived, now).is_none() {
            self.room.counters.datagrams_dropped.add(1);
        }
    }

    /// Queues one datagram; `None` drops it.
    fn forward(&mut self, arrived: &Arrived<'_>, now: Instant) -> Option<()> {
        if !self.is_ours(arrived.source) {
            return None;
        }
        let view = DatagramView::parse(arrived.datagram).ok()?;
        // "[...] MUST drop any datagram whose FRAG field is other than X'00'"
        if view.fragment != 0 {
            return None;
        }
        self.port = Some(arrived.source.port());
        self.used.touch();
        let sender = match self.flows.get(view.header) {
            Some(place) if !place.task.is_finished() => &place.sender,
            _ => self.open(&view, arrived.source)?,
        };
        let contents = view.payload;
        let segment = contents.len().max(1);
        let pushed = sender.push(Batch { contents, segment }, now);
        (pushed == Pushed::Dropped(0)).then_some(())
    }

    fn is_ours(&self, source: SocketAddr) -> bool {
        source.ip().to_canonical() == self.peer
            && self.port.is_none_or(|port| port == source.port())
    }

    fn open(&mut self, view: &DatagramView<'_>, program: SocketAddr) -> Option<&Sender> {
        let target = view.endpoint.endpoint().ok()?.target().ok()?;
        self.make_room();
        let memory = &self.room.datagram_memory;
        let account = memory.open(User::at(self.peer), target.host.clone(), FLOOR)?;
        let sender = Sender::new(account);
        let flow = Flow {
            room: Arc::clone(&self.room),
            socket: Arc::clone(&self.socket),
            program,
            header: view.header.into(),
            sender: sender.clone(),
        };
        let task = self.tasks.spawn(flow.run(target, self.isolation.clone()));
        let place = self.flows.entry(view.header.into());
        let place = place.insert_entry(Place { sender, task });
        Some(&place.into_mut().sender)
    }

    /// Forgets the flows that are over; when that does not help, the one that was used least lately.
    fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.flows.len() < self.room.limits.datagram_flows {
            return;
        }
        self.flows.retain(|_, place| !place.task.is_finished());
        if self.flows.len() < self.room.limits.datagram_flows {
            return;
        }
        let oldest = self
            .flows
            .iter()
            .min_by_key(|(_, place)| place.sender.used());
        let Some(header) = oldest.map(|(header, _)| header.clone()) else {
            return;
        };
        if let Some(place) = self.flows.remove(&header) {
            place.task.abort();
        }
    }
}

/// The port that the program says it will send from. Some programs announce their target instead: that is no source.
fn announced_port(announced: &Endpoint, peer: IpAddr) -> Option<u16> {
    match announced.host {
        Host::Ip(ip) if ip == peer || ip.is_unspecified() => {
            Some(announced.port).filter(|port| *port != 0)
        }
        _ => None,
    }
}
