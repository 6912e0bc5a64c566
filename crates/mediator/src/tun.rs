//! The transparent front end: every packet that a program sends into a TUN device becomes part of a flow through the overlay.
//! The binary's `up` makes the device and the routes into it and hands over its descriptor; a phone does the same. Paper 003 (ANONguard) §5.
//! One thread: the router takes packets in, each flow is a task that writes its own packets back.
//!
//! # Not in this room
//! Interfaces, routes, firewalls (`hoplite`), the headers of packets (`wire::ip`), what carries the flows (`overlay`).

pub mod config;
pub mod counters;
mod cut;
mod device;
pub mod dns;
mod icmp;
pub mod names;
mod packets;
mod policy;
mod port;
mod router;
mod tcp;
#[cfg(test)]
mod testing;
mod udp;

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc};

use hoplite_overlay::{Overlay, Terms};
use tokio::time::Instant;

pub use self::{
    config::Config,
    counters::{Counters, Snapshot},
    device::Device,
};
use self::{
    device::Pool,
    dns::{Families, Resolving, Server},
    names::Names,
    port::Port,
    router::Router,
};
use crate::budget::Budget;

/// How many packets are read before the flows have their turn.
const BATCH: usize = 64;

/// What every flow needs.
#[derive(Debug)]
pub(crate) struct Room {
    /// What carries flows; those to port 53 of the device's resolver end in it.
    pub(crate) overlay: Arc<dyn Overlay>,
    /// The device's resolver.
    pub(crate) dns: Arc<Server>,
    /// Where packets for programs go.
    pub(crate) port: Arc<dyn Port>,
    /// What the addresses mean that programs were told.
    pub(crate) names: Arc<Names>,
    /// What TCP flows hold, and what UDP flows.
    pub(crate) tcp_memory: Arc<Budget>,
    pub(crate) udp_memory: Arc<Budget>,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
}

/// The ends of a flow as its packets say.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    /// The source of the program's packets.
    pub(crate) program: SocketAddr,
    /// Their destination.
    pub(crate) target: SocketAddr,
}

/// The front end.
#[derive(Debug)]
pub struct Transparent {
    device: Arc<Device>,
    room: Arc<Room>,
}

impl Room {
    /// With no name known yet. The configuration has been checked.
    pub(crate) fn new(
        config: Config,
        overlay: Arc<dyn Overlay>,
        port: Arc<dyn Port>,
        counters: Arc<Counters>,
    ) -> Self {
        let (dns, own) = (&config.dns, &config.device.addresses);
        let names = Names::new(&dns.pools(), own, dns.terms()).serving(&dns.resolvers);
        let names = Arc::new(names);
        let dns = Server::new(dns, Families::of(own), &names, &overlay, &counters);
        Self {
            overlay: Resolving::new(overlay, Arc::clone(&dns), &config.dns),
            dns,
            port,
            names,
            tcp_memory: Budget::new(config.flows.memory),
            udp_memory: Budget::new(config.flows.udp_memory),
            config,
            counters,
        }
    }

    /// The terms of a flow that is opened now.
    pub(crate) fn terms(&self) -> Terms {
        Terms::default().within(self.config.flows.opening)
    }
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ends(hidden)")
    }
}

impl Transparent {
    /// Nothing moves before [`Self::serve`]. The configuration has been checked.
    pub fn new(config: Config, overlay: Arc<dyn Overlay>, device: Device) -> Self {
        let device = Arc::new(device);
        let port = Arc::clone(&device) as Arc<dyn Port>;
        let room = Arc::new(Room::new(config, overlay, port, device.counters()));
        Self { device, room }
    }

    /// What is counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.room.counters)
    }

    /// Serves until `shutdown` resolves; then all flows are dropped, which resets them at the far end.
    ///
    /// # Errors
    /// The device is gone: somebody removed the interface.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let mut router = Router::new(&self.room);
        let mut pool = Pool::default();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                turn = self.turn(&mut router, &mut pool) => turn?,
            }
            // The flows' tasks run on this thread too.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for packets and takes some.
    async fn turn(&self, router: &mut Router, pool: &mut Pool) -> io::Result<()> {
        let mut ready = self.device.readable().await?;
        let now = Instant::now();
        for _ in 0..BATCH {
            match self.device.read(pool) {
                Ok(Some(incoming)) => router.take(&incoming, now),
                Ok(None) => self.room.counters.malformed.add(1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        router.flush(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
