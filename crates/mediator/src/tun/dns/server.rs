//! Drives [`super::Dns`]: asks through the overlay what the machine cannot answer, for a bounded number of queries at once.
//! The router gives it datagrams to port 53 of the device's resolver; connections come by [`super::Resolving`].

use std::{fmt, sync::Arc};

use hoplite_overlay::{Overlay, Stream, Terms};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{Answer, Asking, Carrier, Config, Dns, Families, stream};
use crate::tun::{
    Counters, Ends, Room,
    names::Names,
    port::{Outgoing, udp_headers},
};

/// The device's resolver.
pub(crate) struct Server {
    dns: Dns,
    overlay: Arc<dyn Overlay>,
    /// How many queries may still be asked.
    places: Arc<Semaphore>,
    counters: Arc<Counters>,
}

/// Answers a program's datagram to the device's resolver, now or later.
pub(crate) fn answer(room: &Arc<Room>, ends: Ends, query: &[u8]) {
    let back = Arc::clone(room);
    room.dns.datagram(query, move |reply| {
        let mut headers = Vec::new();
        udp_headers(&mut headers, ends.target, ends.program, reply.len());
        back.port.send(Outgoing::udp(&headers, [reply, &[]], None));
    });
}

impl Server {
    pub(crate) fn new(
        config: &Config,
        families: Families,
        names: &Arc<Names>,
        overlay: &Arc<dyn Overlay>,
        counters: &Arc<Counters>,
    ) -> Arc<Self> {
        let (names, counters) = (Arc::clone(names), Arc::clone(counters));
        Arc::new(Self {
            dns: Dns::new(config.clone(), families, names, Arc::clone(&counters)),
            overlay: Arc::clone(overlay),
            places: Arc::new(Semaphore::new(config.asked.min(Semaphore::MAX_PERMITS))),
            counters,
        })
    }

    /// Answers a datagram: `reply` is called once, at once or later, or not at all if there is nothing to answer.
    pub(crate) fn datagram(
        self: &Arc<Self>,
        query: &[u8],
        reply: impl FnOnce(&[u8]) + Send + 'static,
    ) {
        match self.dns.answer(query, Carrier::Udp, Instant::now()) {
            Answer::Now(octets) => reply(&octets),
            Answer::Drop => {}
            Answer::Ask(asking) => match self.place() {
                None => reply(&asking.given_up()),
                Some(place) => {
                    let server = Arc::clone(self);
                    tokio::spawn(async move { reply(&server.ask(&asking, place).await) });
                }
            },
        }
    }

    /// Answers a query that came on a stream; `None` if there is nothing to answer.
    pub(super) async fn query(&self, query: &[u8]) -> Option<Vec<u8>> {
        match self.dns.answer(query, Carrier::Tcp, Instant::now()) {
            Answer::Now(octets) => Some(octets),
            Answer::Drop => None,
            Answer::Ask(asking) => Some(match self.place() {
                None => asking.given_up(),
                Some(place) => self.ask(&asking, place).await,
            }),
        }
    }

    /// The resolver's end of a new TCP connection.
    pub(crate) fn stream(self: &Arc<Self>) -> Stream {
        stream::open(Arc::clone(self))
    }

    /// A place among the queries that are being asked; the storm that finds none is counted.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            self.counters.dns_crowded.add(1);
        }
        place
    }

    async fn ask(&self, asking: &Asking, _place: OwnedSemaphorePermit) -> Vec<u8> {
        self.counters.dns_asked.add(1);
        let terms = Terms::default().within(self.dns.config.patience);
        let message = asking.message();
        let said = terms.run("asking a resolver", self.overlay.query(&message, &terms));
        self.dns.answered(asking, said.await, Instant::now())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}
