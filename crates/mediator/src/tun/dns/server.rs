//! Drives [`super::Dns`]: asks through the overlay what the machine cannot answer, for a bounded number of queries at once. When there are so
//! many, a user that has fewer of them than another takes the place of that one's oldest.
//! The router gives it datagrams to port 53 of the device's resolver; connections come by [`Room::open_stream`].

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hoplite_overlay::{Overlay, Stream, Terms};
use hoplite_wire::ip;
use tokio::{sync::Notify, time::Instant};

use super::{Answer, Asking, Carrier, Config, Dns, Families, stream};
use crate::{
    tun::{
        Counters, Ends, Room,
        names::Names,
        port::{Outgoing, udp_headers},
    },
    users::{Place, Places, Rings, User},
};

/// The device's resolver.
pub(crate) struct Server {
    dns: Dns,
    overlay: Arc<dyn Overlay>,
    /// How many queries may be asked at once, and whose are.
    most: usize,
    places: Arc<Places>,
    asked: Mutex<Rings<Weak<Asked>>>,
    counters: Arc<Counters>,
}

/// A query that is being asked, until it has an answer or has made room for another.
struct Asked {
    place: Mutex<Option<Place>>,
    made_room: Notify,
}

/// Answers a program's datagrams to the device's resolver, each now or later: `queries` cut every `segment` octets.
pub(crate) fn answer(room: &Arc<Room>, ends: Ends, queries: &[u8], segment: usize) {
    let user = room.user(ip::UDP, ends);
    for query in queries.chunks(segment.max(1)) {
        let back = Arc::clone(room);
        room.dns.datagram(query, user, move |reply| {
            let mut headers = Vec::new();
            udp_headers(&mut headers, ends.target, ends.program, reply.len());
            back.port.send(Outgoing::udp(&headers, [reply, &[]], None));
        });
    }
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
            most: config.asked,
            places: Arc::default(),
            asked: Mutex::default(),
            counters,
        })
    }

    /// Answers a datagram: `reply` is called once, at once or later, or not at all if there is nothing to answer.
    pub(crate) fn datagram(
        self: &Arc<Self>,
        query: &[u8],
        user: User,
        reply: impl FnOnce(&[u8]) + Send + 'static,
    ) {
        match self.dns.answer(query, Carrier::Udp, user, Instant::now()) {
            Answer::Now(octets) => reply(&octets),
            Answer::Drop => {}
            Answer::Ask(asking) => match self.place(user) {
                None => reply(&asking.given_up()),
                Some(place) => {
                    let server = Arc::clone(self);
                    tokio::spawn(async move { reply(&server.ask(&asking, place).await) });
                }
            },
        }
    }

    /// Answers a query that came on a stream; `None` if there is nothing to answer.
    pub(super) async fn query(&self, query: &[u8], user: User) -> Option<Vec<u8>> {
        match self.dns.answer(query, Carrier::Tcp, user, Instant::now()) {
            Answer::Now(octets) => Some(octets),
            Answer::Drop => None,
            Answer::Ask(asking) => Some(match self.place(user) {
                None => asking.given_up(),
                Some(place) => self.ask(&asking, place).await,
            }),
        }
    }

    /// The resolver's end of a user's new TCP connection.
    pub(crate) fn stream(self: &Arc<Self>, user: User) -> Stream {
        stream::open(Arc::clone(self), user)
    }

    /// A place among the queries that are being asked; the storm that finds none is counted.
    fn place(&self, user: User) -> Option<Arc<Asked>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.places.len() >= self.most {
            self.counters.dns_crowded.add(1);
            let giver = self.places.gives(user).filter(|giver| *giver != user)?;
            make_room(&mut asked, giver)?;
        }
        let new = Arc::new(Asked {
            place: Mutex::new(Some(self.places.take(user))),
            made_room: Notify::new(),
        });
        asked.tidy(self.most.saturating_mul(2), |asked| {
            asked.strong_count() > 0
        });
        asked.push(user, Arc::downgrade(&new));
        Some(new)
    }

    async fn ask(&self, asking: &Asking, place: Arc<Asked>) -> Vec<u8> {
        self.counters.dns_asked.add(1);
        let terms = Terms::default().within(self.dns.config.patience);
        let message = asking.message();
        let asked = terms.run("asking a resolver", self.overlay.query(&message, &terms));
        tokio::select! {
            biased;
            said = asked => self.dns.answered(asking, said, Instant::now()),
            () = place.made_room.notified() => asking.given_up(),
        }
    }
}

/// The oldest of a user's queries fails at once.
fn make_room(asked: &mut Rings<Weak<Asked>>, user: User) -> Option<()> {
    while let Some(oldest) = asked.pop(user) {
        let Some(oldest) = oldest.upgrade() else {
            continue;
        };
        let mut place = oldest.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.take().is_some() {
            oldest.made_room.notify_one();
            return Some(());
        }
    }
    None
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}
