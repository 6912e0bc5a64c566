//! A CONNECT-IP flow at the client's end: packets go to the relay and come from it, addresses and routes are what its capsules say last.
//! The hop opens it for [`hoplite_overlay::Overlay::open_packets`]; it stands when an address is assigned and routes are told.
//! RFC 9484 §4.7, §6 and §7.1.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Flow};
use hoplite_overlay::{Batch, Error, ErrorKind, Packets, Received};
use hoplite_wire::{
    RequestHead,
    connect_ip::{Capsule, LEAST_MTU, Malformed, Numbered, Prefix, Route},
};
use tokio::sync::watch;

use crate::{
    connection::{Connection, Lease},
    inbox::Inbox,
};

/// An open flow.
pub(crate) struct PacketTunnel {
    flow: Arc<Flow>,
    inbox: Arc<Inbox>,
    told: watch::Receiver<Told>,
    /// Ends with the tunnel: tells the reader that the relay has closed the flow.
    watch: tokio::task::JoinHandle<()>,
    lease: Lease,
}

/// What the relay has told.
#[derive(Debug, Default)]
struct Told {
    addresses: Option<Vec<Prefix>>,
    routes: Option<Vec<Route>>,
}

/// Where the connection puts what arrives in a flow.
struct Arriving {
    inbox: Arc<Inbox>,
    told: watch::Sender<Told>,
}

impl PacketTunnel {
    /// Asks for the flow and for addresses, and waits for these; what arrives meanwhile waits too, up to `queue` bytes.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        head: &RequestHead,
        queue: usize,
    ) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::new(queue));
        let (told, heard) = watch::channel(Told::default());
        let arriving = Arriving {
            inbox: inbox.clone(),
            told,
        };
        let (flow, lease) = connection.packets(head, Arc::new(arriving)).await?;
        if !flow.send_ip_capsule(&wanted()) {
            tracing::trace!("a flow of packets ended before it asked for an address");
        }
        let watch = tokio::spawn(tell_end(flow.clone(), inbox.clone()));
        let mut tunnel = Self {
            flow,
            inbox,
            told: heard,
            watch,
            lease,
        };
        tunnel.settled().await?;
        Ok(tunnel)
    }

    async fn settled(&mut self) -> Result<(), Error> {
        let flow = self.flow.clone();
        let told = self.told.wait_for(Told::is_complete);
        tokio::select! {
            told = told => told.map(drop).map_err(|_| closed()),
            _ = flow.closed() => Err(closed()),
        }
    }
}

/// "The endpoint that is expecting an address assignment MUST send an ADDRESS_REQUEST capsule": one of each family.
fn wanted() -> Capsule {
    let families: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let entry = |(number, family): (u64, IpAddr)| Numbered {
        request: number,
        prefix: Prefix::none(family),
    };
    Capsule::AddressRequest((1..).zip(families).map(entry).collect())
}

fn closed() -> Error {
    Error::new(
        ErrorKind::PathFailed,
        "receiving packets from a relay: it closed the flow",
    )
}

async fn tell_end(flow: Arc<Flow>, inbox: Arc<Inbox>) {
    drop(flow.closed().await);
    inbox.end(closed());
}

impl Told {
    fn is_complete(&self) -> bool {
        let has_address = self.addresses.as_ref().is_some_and(|own| !own.is_empty());
        has_address && self.routes.is_some()
    }
}

impl DatagramSink for Arriving {
    fn push(&self, payload: Bytes) {
        self.inbox.push(payload, None);
    }

    fn flush(&self) {
        self.inbox.wake();
    }

    /// Requests of the relay are passed over: a client has no addresses to give, and needs no packets that are sent to any. We do not use
    /// the nameservers and NAT64 prefixes that it tells, because our flows are of one protocol and names go to the overlay: "Endpoints MUST
    /// ignore DNS_ASSIGN capsules unless it has reason to trust its peer and is expecting DNS configuration from it."
    fn ip_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        match capsule {
            Ok(Capsule::AddressAssign(entries)) => {
                let given = entries.iter().map(|entry| entry.prefix);
                let given = given.filter(|prefix| !prefix.is_none()).collect();
                self.told.send_modify(|told| told.addresses = Some(given));
            }
            Ok(Capsule::RouteAdvertisement(routes)) => {
                self.told.send_modify(|told| told.routes = Some(routes));
            }
            Ok(Capsule::AddressRequest(_) | Capsule::DnsAssign(_) | Capsule::Pref64(_)) => {}
            Err(Malformed) => {
                self.inbox.end(Error::new(
                    ErrorKind::PathFailed,
                    "receiving packets from a relay: it sent a malformed capsule",
                ));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Packets for PacketTunnel {
    fn addresses(&self) -> Vec<Prefix> {
        self.told.borrow().addresses.clone().unwrap_or_default()
    }

    fn routes(&self) -> Vec<Route> {
        self.told.borrow().routes.clone().unwrap_or_default()
    }

    fn mtu(&self) -> usize {
        self.flow.max_payload().max(LEAST_MTU)
    }

    fn poll_send(&self, cx: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>> {
        ready!(self.flow.poll_send(cx, packets))?;
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.inbox
            .poll_recv(cx, buf)
            .map_ok(|(received, _)| received)
    }

    fn moved(&self) -> bool {
        self.lease.is_superseded()
    }
}

impl Drop for PacketTunnel {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl fmt::Debug for PacketTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketTunnel({} dropped)", self.inbox.dropped())
    }
}
