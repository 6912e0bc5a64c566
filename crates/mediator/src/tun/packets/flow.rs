//! One flow of packets of one protocol to one target: opens, then moves packets both ways until it is idle or fails. A task of its own.

use std::{
    cell::RefCell,
    future::poll_fn,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_overlay::{Batch, Error, Packets, Reason};
use hoplite_wire::{
    Host,
    connect_ip::{Route, Scope},
    ip::{self, ICMP, ICMPV6, icmp::Unreachable},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Key, refuse,
    rewrite::{self, Idents, Pair},
};
use crate::tun::{Room, config::Privacy, icmp, names::Meaning, port::Outgoing};

/// How long a flow that failed answers for itself, so that a program that insists does not make us open flows without a pause.
const HOLD_OFF: Duration = Duration::from_secs(1);
/// What every packet leaves with where anonymity comes first.
const HOP_LIMIT: u8 = 64;
/// Any port: `names` speaks of targets of TCP and UDP.
const ANY_PORT: u16 = 1;
/// What one receive call may bring.
const BUFFER: usize = 65_535;

thread_local! {
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// The flow.
pub(super) struct Flow {
    room: Arc<Room>,
    key: Key,
    idents: Idents,
}

impl Flow {
    pub(super) fn new(room: Arc<Room>, key: Key) -> Self {
        room.counters.packets_opened.add(1);
        Self {
            room,
            key,
            idents: Idents::default(),
        }
    }

    /// Runs until it is over; then its place may be given to another.
    pub(super) async fn run(mut self, mut waiting: mpsc::Receiver<Bytes>) {
        let now = Instant::now();
        let _kept = self.room.names.hold(self.key.target, now);
        let address = SocketAddr::new(self.key.target, ANY_PORT);
        let failed = match self.room.names.meaning(address, now) {
            Meaning::Target(target) => self.serve(&target.host, &mut waiting).await,
            Meaning::Expired => {
                self.room.counters.expired.add(1);
                Some(Unreachable::Host)
            }
        };
        if let Some(why) = failed {
            self.refuse_for_a_while(why, &mut waiting).await;
        }
    }

    /// Answers what to tell the program, if it has to be told something.
    async fn serve(
        &mut self,
        host: &Host,
        waiting: &mut mpsc::Receiver<Bytes>,
    ) -> Option<Unreachable> {
        let mut scope = Scope::flow(host, self.key.protocol);
        if matches!(host, Host::Name(_)) && self.is_icmp() {
            // A name's temporary addresses are of both families, it may be of one: echoes of either will do.
            scope.protocol = None;
        }
        let terms = self.room.terms();
        let opening = self.room.overlay.open_packets(&scope, &terms);
        let opened = terms.run("opening a flow of packets", opening).await;
        let ended = match opened {
            Ok(packets) => self.carry(&*packets, waiting).await,
            Err(error) => Err(error),
        };
        let error = ended.err()?;
        self.room.counters.failed(&error);
        if error.reason() == Some(Reason::NameNotFound) {
            self.room.names.fail(self.key.target, Instant::now());
        }
        Some(icmp::unreachable_for(&error))
    }

    async fn refuse_for_a_while(&self, why: Unreachable, waiting: &mut mpsc::Receiver<Bytes>) {
        let until = Instant::now() + HOLD_OFF;
        while let Ok(Some(packet)) = timeout_at(until, waiting.recv()).await {
            refuse(&self.room, &packet, why);
        }
    }

    async fn carry(
        &mut self,
        packets: &dyn Packets,
        waiting: &mut mpsc::Receiver<Bytes>,
    ) -> Result<(), Error> {
        let limit = self.room.config.flows.idle_packets;
        let mut until = Instant::now() + limit;
        loop {
            tokio::select! {
                packet = waiting.recv() => match packet {
                    Some(packet) => self.up(packets, &packet).await?,
                    None => return Ok(()),
                },
                received = poll_fn(|cx| self.poll_down(cx, packets)) => received?,
                () = sleep_until(until) => return Ok(()),
            }
            until = Instant::now() + limit;
        }
    }

    /// The ends as the far end sees them: the address that it assigned, and the target's, which of a name the routes tell.
    fn theirs(&self, packets: &dyn Packets) -> Option<Pair> {
        let (target, routes) = (self.key.target, packets.routes());
        let itself = routes.iter().any(|route| route.contains(target));
        let singles = || routes.iter().filter_map(Route::single);
        let found = || {
            let same = singles().find(|far| far.is_ipv4() == target.is_ipv4());
            same.or_else(|| singles().next().filter(|_| self.is_icmp()))
        };
        let far = if itself { Some(target) } else { found() }?;
        let near = packets.source(far)?;
        Some(Pair { near, far })
    }

    fn is_icmp(&self) -> bool {
        matches!(self.key.protocol, ICMP | ICMPV6)
    }

    async fn up(&mut self, packets: &dyn Packets, octets: &[u8]) -> Result<(), Error> {
        let Ok(packet) = ip::parse(octets) else {
            return Ok(());
        };
        let Some(theirs) = self.theirs(packets) else {
            refuse(&self.room, octets, Unreachable::Network);
            return Ok(());
        };
        let hop_limit = match self.room.config.device.privacy {
            Privacy::Anonymity => HOP_LIMIT,
            Privacy::Compatibility => packet.hop_limit.saturating_sub(1),
        };
        if hop_limit == 0 {
            icmp::tell_time_exceeded(&self.room, octets);
            return Ok(());
        }
        let Some(whole) = rewrite::up(&packet, theirs, hop_limit, &mut self.idents) else {
            refuse(&self.room, octets, Unreachable::Network);
            return Ok(());
        };
        if whole.len() > packets.mtu() {
            let own = packet.header_len + packet.payload.len();
            let mtu = (packets.mtu() + own).saturating_sub(whole.len());
            icmp::tell_too_big(&self.room, octets, mtu);
            return Ok(());
        }
        self.room.counters.other_up.add(1);
        poll_fn(|cx| packets.poll_send(cx, Batch::one(&whole))).await
    }

    fn poll_down(&self, cx: &mut Context<'_>, packets: &dyn Packets) -> Poll<Result<(), Error>> {
        RECEIVED.with_borrow_mut(|buffer| {
            let received = ready!(packets.poll_recv(cx, buffer))?;
            let batch = Batch {
                contents: buffer.get(..received.len).unwrap_or_default(),
                segment: received.segment.max(1),
            };
            for octets in batch.payloads() {
                if self.down(packets, octets).is_none() {
                    self.room.counters.other_dropped.add(1);
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    fn down(&self, packets: &dyn Packets, octets: &[u8]) -> Option<()> {
        let packet = ip::parse(octets).ok()?;
        let ours = Pair {
            near: self.key.program,
            far: self.key.target,
        };
        let theirs = self.theirs(packets)?;
        let whole = rewrite::down(&packet, theirs, ours, &self.idents)?;
        self.room.port.send(Outgoing::whole(&whole));
        self.room.counters.other_down.add(1);
        Some(())
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.room.counters.packets_closed.add(1);
    }
}
