//! Who has a place for a connection at an authority. There is always one for a newcomer: when all are taken, the address with the most connections,
//! the newcomer's counted, gives way by the one over which nothing has come or gone for longest; between equals the stillest of all does. So who
//! holds many idle connections from a few addresses displaces his own, and who takes one from each of many keeps a place only as long as something
//! moves on it. What it costs to be displaced is to ask again.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    /// Its address, IPv6: /64.
    pub(super) address: IpAddr,
    /// Another authority: its places are beside those of all.
    pub(super) is_authority: bool,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    all: usize,
    per_client: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers connections, and moments at which something moved.
    next: u64,
    held: HashMap<u64, Held>,
    clients: HashMap<Client, usize>,
    /// Those of no authority.
    strangers: usize,
}

#[derive(Debug)]
struct Held {
    client: Client,
    /// When something moved last.
    moved: u64,
    told: Arc<Notify>,
}

/// A connection's place; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    id: u64,
    told: Arc<Notify>,
}

impl Places {
    /// So many in all, and of one client; both at least one.
    pub(super) fn new(all: usize, per_client: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            per_client,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a newcomer a place; another connection may lose its.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Place {
        let mut state = self.state();
        let own = state.of(client).saturating_add(1);
        let displaced = if own > self.per_client {
            state.stillest(|held| held == client)
        } else if !client.is_authority && state.strangers >= self.all {
            let count = |one: Client| state.of(one).saturating_add((one == client).into());
            let strangers = state.clients.keys().filter(|one| !one.is_authority);
            let most = strangers.map(|one| count(*one)).max();
            state.stillest(|held| !held.is_authority && Some(count(held)) == most)
        } else {
            None
        };
        if let Some(displaced) = displaced.and_then(|id| state.leave(id)) {
            displaced.told.notify_one();
        }
        let (id, told) = state.enter(client);
        Place {
            places: Arc::clone(self),
            id,
            told,
        }
    }
}

impl State {
    fn of(&self, client: Client) -> usize {
        self.clients.get(&client).copied().unwrap_or(0)
    }

    /// The connection over which nothing has moved for longest, of these clients.
    fn stillest(&self, of: impl Fn(Client) -> bool) -> Option<u64> {
        let those = self.held.iter().filter(|(_, held)| of(held.client));
        let stillest = those.min_by_key(|(_, held)| held.moved);
        stillest.map(|(id, _)| *id)
    }

    fn tick(&mut self) -> u64 {
        self.next = self.next.saturating_add(1);
        self.next
    }

    fn enter(&mut self, client: Client) -> (u64, Arc<Notify>) {
        let (id, told) = (self.tick(), Arc::new(Notify::new()));
        let held = Held {
            client,
            moved: id,
            told: Arc::clone(&told),
        };
        self.held.insert(id, held);
        *self.clients.entry(client).or_default() += 1;
        self.strangers += usize::from(!client.is_authority);
        (id, told)
    }

    fn leave(&mut self, id: u64) -> Option<Held> {
        let held = self.held.remove(&id)?;
        match self.of(held.client).saturating_sub(1) {
            0 => self.clients.remove(&held.client),
            left => self.clients.insert(held.client, left),
        };
        self.strangers -= usize::from(!held.client.is_authority);
        Some(held)
    }
}

impl Place {
    /// Resolves when somebody else has been given the place.
    pub(super) async fn lost(&self) {
        self.told.notified().await;
    }

    fn moved(&self) {
        let mut state = self.places.state();
        let now = state.tick();
        if let Some(held) = state.held.get_mut(&self.id) {
            held.moved = now;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().leave(self.id);
    }
}

/// A connection's octets: each that comes or goes is told to its place.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    place: Arc<Place>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, place: Arc<Place>) -> Self {
        Self { stream, place }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            self.place.moved();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, octets))?;
        self.place.moved();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(n: u8) -> Client {
        Client {
            address: IpAddr::from([10, 0, 0, n]),
            is_authority: false,
        }
    }

    fn has_lost(place: &Place) -> bool {
        !place.places.state().held.contains_key(&place.id)
    }

    #[test]
    fn a_newcomer_takes_the_stillest_place_of_the_address_with_the_most() {
        let places = Places::new(5, 3);
        let quiet = places.enter(stranger(1));
        let mallory = [2; 4].map(|n| places.enter(stranger(n)));
        assert!(has_lost(&mallory[0]), "one address has at most its share");
        let other = places.enter(stranger(3));
        mallory[1].moved();
        let newcomer = places.enter(stranger(4));
        let lost = mallory.each_ref().map(has_lost);
        assert_eq!(lost, [true, false, true, false]);
        assert!(![&quiet, &other, &newcomer].into_iter().any(has_lost));
    }

    #[test]
    fn one_connection_each_of_many_addresses_keeps_no_place_idle() {
        let places = Places::new(3, 3);
        let held = [1, 2, 3].map(|n| places.enter(stranger(n)));
        held[0].moved();
        let newcomer = places.enter(stranger(4));
        assert_eq!(held.each_ref().map(has_lost), [false, true, false]);
        // A second one of the same address displaces its first, and nobody else's.
        let second = places.enter(stranger(4));
        assert!(has_lost(&newcomer) && !has_lost(&second));
        assert_eq!(held.each_ref().map(has_lost), [false, true, false]);
    }

    #[test]
    fn authorities_have_places_that_no_stranger_takes_and_take_none_of_theirs() {
        let places = Places::new(1, 2);
        let authority = Client {
            is_authority: true,
            ..stranger(1)
        };
        let stranger_at_it = places.enter(stranger(1));
        let own = [authority; 3].map(|client| places.enter(client));
        assert_eq!(own.each_ref().map(has_lost), [true, false, false]);
        assert!(!has_lost(&stranger_at_it));
        let other = places.enter(stranger(2));
        assert!(has_lost(&stranger_at_it) && !has_lost(&other) && !has_lost(&own[1]));
    }

    #[test]
    fn places_that_are_given_back_are_free_and_forgotten() {
        let places = Places::new(2, 2);
        let held = [1, 2, 3].map(|n| places.enter(stranger(n)));
        drop(held);
        let state = places.state();
        assert!(state.held.is_empty() && state.clients.is_empty() && state.strangers == 0);
    }
}
