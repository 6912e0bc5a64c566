//! A CONNECT-IP flow once it is open: packets both ways, each judged; addresses and routes told at the beginning and when asked.
//! The CONNECT-IP handler runs it. RFC 9484 §4.7, §6, §7: nothing that happens to one packet ends the flow.

use std::{
    cell::RefCell,
    future::poll_fn,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Exchange, Flow};
use hoplite_overlay::{Batch, Packets, Received};
use hoplite_wire::{
    connect_ip::{Capsule, LEAST_MTU, Malformed, Numbered},
    ip::icmp,
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};

use super::{Shared, splice::watch};
use crate::{
    ip::{Lease, Opened, PacketFilter, Rate, Refused},
    limits::{Account, HeldPart, Pace},
    metrics::PacketDrops,
};

/// What one receive call may bring.
const BUFFER: usize = 65_536;
/// Batches taken before others get their turn.
const BATCH_BUDGET: usize = 16;
/// How often a client may ask for addresses; it gets the same each time. A flow that asks more often is broken off.
const REQUESTS: usize = 16;

thread_local! {
    /// Shared by all flows of a shard: what was received is passed on before anybody else may run.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Carries packets until the client closes the flow or breaks a rule, or nothing has passed for long.
pub(crate) async fn carry(
    shared: &Arc<Shared>,
    (pace, account, part): (Pace, Option<Arc<Account>>, HeldPart),
    opened: Opened,
    exchange: Exchange,
) {
    let Opened {
        packets,
        filter,
        lease,
    } = opened;
    let (asked, requests) = mpsc::channel(REQUESTS);
    let flow = Arc::new(Open {
        shared: shared.clone(),
        packets,
        filter,
        pace,
        rate: Mutex::new(Rate::new(shared.ip.echoes_per_second(), Instant::now())),
        passed: AtomicU64::new(0),
        account,
        lease,
    });
    let sink = ToNetwork {
        flow: flow.clone(),
        asked,
        part,
    };
    let client = exchange.datagrams(Arc::new(sink));
    client.carry_packets();
    let lease = &flow.lease;
    let mut first = vec![lease.assigned(), lease.routes()];
    // "DNS_ASSIGN capsules are not sent before the corresponding ROUTE_ADVERTISEMENT capsule."
    first.extend(lease.network());
    if !first.iter().all(|capsule| client.send_ip_capsule(capsule)) {
        return client.reset();
    }
    tokio::select! {
        _ = client.closed() => (),
        () = flow.down(&client) => client.reset(),
        () = answer(requests, lease, &client) => {
            shared.metrics.ip.broken.inc();
            client.reset_for_breach();
        }
        () = watch(shared.limits().idle_datagrams, &flow.passed) => (),
    }
}

/// Answers requests for addresses; ends when there were too many.
async fn answer(mut requests: mpsc::Receiver<Vec<Numbered>>, lease: &Lease, client: &Flow) {
    for _ in 0..REQUESTS {
        let Some(wanted) = requests.recv().await else {
            // The sink has gone: so will the flow.
            return std::future::pending().await;
        };
        if !client.send_ip_capsule(&lease.answer(&wanted)) {
            return;
        }
    }
}

/// What both directions share.
struct Open {
    shared: Arc<Shared>,
    packets: Box<dyn Packets>,
    filter: PacketFilter,
    pace: Pace,
    rate: Mutex<Rate>,
    passed: AtomicU64,
    /// Where packets come on streams: whose windows they move.
    account: Option<Arc<Account>>,
    /// Given back after the packets, so that nobody else has the addresses while they are still received here.
    lease: Lease,
}

/// From the client to the network.
struct ToNetwork {
    flow: Arc<Open>,
    asked: mpsc::Sender<Vec<Numbered>>,
    part: HeldPart,
}

impl Open {
    fn dropped(&self) -> &PacketDrops {
        &self.shared.metrics.ip.dropped
    }

    fn up(&self, packet: &[u8]) {
        let dropped = self.dropped();
        let passed = match self.filter.outgoing(packet) {
            Ok(passed) => passed,
            Err(why) => {
                of(dropped, why).inc();
                return;
            }
        };
        if !self.shared.egress.permits_address(passed.to) {
            dropped.policy.inc();
        } else if !self.admits(packet.len(), passed.is_icmp) {
            dropped.rate.inc();
        } else {
            self.send_up(packet);
        }
    }

    fn send_up(&self, packet: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(())) = self.packets.poll_send(&mut cx, Batch::one(packet)) {
            self.passed.fetch_add(1, Ordering::Relaxed);
            let metrics = &self.shared.metrics;
            metrics.ip.to_target.inc();
            metrics.bytes_to_target.ip.inc_by(packet.len() as u64);
            if let Some(account) = &self.account {
                account.read(packet.len());
            }
        }
    }

    fn admits(&self, bytes: usize, is_icmp: bool) -> bool {
        let mut rate = self.rate.lock();
        let echoes = !is_icmp || (rate.admits(Instant::now()) && self.pace.admits_echo());
        echoes && self.pace.admits(bytes)
    }

    /// From the network to the client; ends when the egress fails.
    async fn down(&self, client: &Flow) {
        loop {
            for _ in 0..BATCH_BUDGET {
                if poll_fn(|cx| self.poll_batch(client, cx)).await.is_err() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn poll_batch(&self, client: &Flow, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        RECEIVED.with_borrow_mut(|buffer| match self.packets.poll_recv(cx, buffer) {
            Poll::Ready(Ok(received)) => {
                self.pass(client, buffer, received);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(())),
            Poll::Pending => Poll::Pending,
        })
    }

    fn pass(&self, client: &Flow, buffer: &[u8], received: Received) {
        let batch = Batch {
            contents: buffer.get(..received.len).unwrap_or_default(),
            segment: received.segment.max(1),
        };
        for packet in batch.payloads() {
            if !self.filter.takes(packet) {
                self.dropped().unwanted.inc();
            } else if !self.pace.admits(packet.len()) {
                self.dropped().rate.inc();
            } else {
                self.send(client, packet);
            }
        }
    }

    fn send(&self, client: &Flow, packet: &[u8]) {
        self.passed.fetch_add(1, Ordering::Relaxed);
        let metrics = &self.shared.metrics;
        let sent = client.send(Batch::one(packet));
        if sent.accepted > 0 {
            metrics.ip.to_client.inc();
            metrics.bytes_to_client.ip.inc_by(packet.len() as u64);
        }
        let dropped = self.dropped();
        dropped.client_full.inc_by(sent.full as u64);
        if sent.too_large > 0 {
            dropped.too_large_for_client.inc();
            self.tell_size(packet, client.max_payload().max(LEAST_MTU));
        }
    }

    /// "For packets that cannot fit within the MTU of the outgoing link, send Packet Too Big": to who sent it, by the egress.
    fn tell_size(&self, packet: &[u8], mtu: usize) {
        if let Some(told) = icmp::too_big(packet, mtu) {
            let mut cx = Context::from_waker(Waker::noop());
            drop(self.packets.poll_send(&mut cx, Batch::one(&told)));
        }
    }
}

fn of(dropped: &PacketDrops, why: Refused) -> &crate::metrics::Count {
    match why {
        Refused::Malformed => &dropped.malformed,
        Refused::Source => &dropped.source,
        Refused::Route => &dropped.route,
        Refused::Fragment => &dropped.fragment,
        Refused::Options => &dropped.options,
        Refused::Message => &dropped.message,
    }
}

impl DatagramSink for ToNetwork {
    fn push(&self, packet: Bytes) {
        self.flow.up(&packet);
    }

    fn flush(&self) {}

    fn holds(&self, bytes: usize) -> bool {
        self.part.is(bytes)
    }

    /// Clients may assign addresses to us and advertise routes: we use neither, nobody here sends packets of its own.
    fn ip_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let fine = match capsule {
            Ok(Capsule::AddressRequest(wanted)) => self.asked.try_send(wanted).is_ok(),
            // "IP proxies will ignore any DNS configuration sent by the client."
            Ok(
                Capsule::AddressAssign(_)
                | Capsule::RouteAdvertisement(_)
                | Capsule::DnsAssign(_)
                | Capsule::Pref64(_),
            ) => true,
            Err(Malformed) => false,
        };
        if fine {
            return ControlFlow::Continue(());
        }
        self.flow.shared.metrics.ip.broken.inc();
        ControlFlow::Break(())
    }
}
