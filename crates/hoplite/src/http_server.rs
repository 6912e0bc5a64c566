//! How much of a server of plain HTTP whoever asks may have: places for connections, and what may be asked for within a minute. By address (IPv6: /64) and
//! in all; the quiet come first. The authorities, relays that keep the list, the issuer and the scanner's target serve behind it.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::ready,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hoplite_wire::{content_coding::Encoding, networks::network};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
    time::{Instant, timeout},
};

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// Its address, IPv6: /64.
    pub(crate) address: IpAddr,
    /// One whom the server knows: another authority, or the holder of an account. Their places are beside those of strangers.
    pub(crate) is_known: bool,
}

/// Who has a place for a connection at a server. There is always one for a newcomer: when all are taken, the address with the most connections,
/// the newcomer's counted, gives way by the one over which nothing has come or gone for longest; between equals the stillest of all does. So who
/// holds many idle connections from a few addresses displaces his own, and who takes one from each of many keeps a place only as long as something
/// moves on it. What it costs to be displaced is to ask again. Those who are known, from the beginning or by what they have shown, have as many places as
/// all strangers, and give way to one another alone.
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    per_client: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers connections, and moments at which something moved.
    next: u64,
    held: HashMap<u64, OpenConnection>,
    clients: HashMap<Client, usize>,
    /// Those of nobody who is known.
    strangers: usize,
}

#[derive(Debug)]
struct OpenConnection {
    client: Client,
    /// When something moved last.
    moved: u64,
    told: Arc<Notify>,
}

/// A connection's place; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    client: Client,
    id: u64,
    told: Arc<Notify>,
}

impl Places {
    /// This many of strangers, as many of those who are known, and of one client; both at least one.
    pub(crate) fn new(all: usize, per_client: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            per_client,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives a newcomer a place; another connection may lose its.
    pub(crate) fn enter(self: &Arc<Self>, client: Client) -> Place {
        let mut state = self.state();
        state.make_room(client, self.all, self.per_client);
        let (id, told) = (state.tick(), Arc::new(Notify::new()));
        state.put(
            id,
            OpenConnection {
                client,
                moved: id,
                told: Arc::clone(&told),
            },
        );
        Place {
            places: Arc::clone(self),
            client,
            id,
            told,
        }
    }
}

impl State {
    fn of(&self, client: Client) -> usize {
        self.clients.get(&client).copied().unwrap_or(0)
    }

    /// For one more of this client, who has to go goes.
    fn make_room(&mut self, client: Client, all: usize, per_client: usize) {
        let own = self.of(client).saturating_add(1);
        let known = self.held.len().saturating_sub(self.strangers);
        let taken = if client.is_known {
            known
        } else {
            self.strangers
        };
        let displaced = if own > per_client {
            self.stillest(|held| held == client)
        } else if taken >= all {
            let count = |one: Client| self.of(one).saturating_add((one == client).into());
            let are_alike = |one: Client| one.is_known == client.is_known;
            let alike = self.clients.keys().filter(|one| are_alike(**one));
            let most = alike.map(|one| count(*one)).max();
            self.stillest(|held| are_alike(held) && Some(count(held)) == most)
        } else {
            None
        };
        if let Some(displaced) = displaced.and_then(|id| self.leave(id)) {
            displaced.told.notify_one();
        }
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

    fn put(&mut self, id: u64, connection: OpenConnection) {
        let client = connection.client;
        self.held.insert(id, connection);
        *self.clients.entry(client).or_default() += 1;
        self.strangers += usize::from(!client.is_known);
    }

    fn leave(&mut self, id: u64) -> Option<OpenConnection> {
        let held = self.held.remove(&id)?;
        match self.of(held.client).saturating_sub(1) {
            0 => self.clients.remove(&held.client),
            left => self.clients.insert(held.client, left),
        };
        self.strangers -= usize::from(!held.client.is_known);
        Some(held)
    }
}

impl Place {
    /// Who came for it.
    pub(crate) fn client(&self) -> Client {
        self.client
    }

    /// Resolves when somebody else has been given the place.
    pub(crate) async fn lost(&self) {
        self.told.notified().await;
    }

    /// Who has it has shown who he is: no stranger is given it any more.
    pub(crate) fn make_known(&self) {
        let mut state = self.places.state();
        let Some(held) = state.leave(self.id) else {
            return;
        };
        let client = Client {
            is_known: true,
            ..held.client
        };
        state.make_room(client, self.places.all, self.places.per_client);
        state.put(self.id, OpenConnection { client, ..held });
    }

    /// Nobody else is given it from now on, as it is needed no more.
    pub(crate) fn release(&self) {
        self.places.state().leave(self.id);
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

/// A connection's bytes: each that comes or goes is told to its place.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TcpStream,
    place: Arc<Place>,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, place: Arc<Place>) -> Self {
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
        task::ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
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
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
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

/// What a directory answers: text, as it is or compressed.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) encoding: Encoding,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            body: body.into(),
            encoding: Encoding::Identity,
        }
    }

    /// Bytes that go for it.
    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.body.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=us-ascii");
        fields.insert(header::CONTENT_TYPE, text);
        if self.encoding != Encoding::Identity {
            let name = HeaderValue::from_static(self.encoding.name());
            fields.insert(header::CONTENT_ENCODING, name);
        }
        response
    }
}

/// Bytes of a request's head.
const HEAD_SIZE: usize = 8192;

/// How long, and how much of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long a request's head may take: it begins with the connection, and again with each answer, so it bounds the pauses too.
    pub(crate) head: Duration,
    /// Bytes of it.
    pub(crate) head_size: usize,
    /// How long all of it may last.
    pub(crate) whole: Duration,
}

/// Answers the requests of one connection in the clear, as [`converse_over`] does.
pub(crate) async fn converse<F: Future<Output = Response<Full<Bytes>>>>(
    stream: TcpStream,
    place: Place,
    (head, whole): (Duration, Duration),
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let bounds = Bounds {
        head,
        head_size: HEAD_SIZE,
        whole,
    };
    let in_the_clear = |watched| ready(Some(watched));
    converse_over(stream, Arc::new(place), bounds, in_the_clear, answer).await;
}

/// Answers the requests of one connection, until it ends, its time is over or its place is lost, over what `open` makes of its bytes: TLS, within the time
/// of a head; nothing where that fails.
pub(crate) async fn converse_over<S, O, F>(
    stream: TcpStream,
    place: Arc<Place>,
    bounds: Bounds,
    open: impl FnOnce(Watched) -> O,
    answer: impl Fn(Request<Incoming>) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    O: Future<Output = Option<S>>,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let watched = Watched::new(stream, Arc::clone(&place));
    let talk = async {
        let Ok(Some(stream)) = timeout(bounds.head, open(watched)).await else {
            return;
        };
        let service = service_fn(move |request| {
            let response = answer(request);
            async { Ok::<_, Infallible>(response.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_buf_size(bounds.head_size)
            .serve_connection(TokioIo::new(stream), service);
        // Whoever ends it, and why, is nothing that anybody could do something about.
        drop(connection.await);
    };
    tokio::select! {
        ended = timeout(bounds.whole, Box::pin(talk)) => drop(ended),
        () = place.lost() => {}
    }
}

/// Addresses that are known apart; those beyond it share one bucket, until others are at rest.
const APART: usize = 1 << 16;

/// What may be done within a minute, in all and by one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) all: u64,
    pub(crate) each: u64,
}

/// How often it is looked who is at rest, at most.
const SWEEP: Duration = Duration::from_secs(1);

/// A network that takes no more than this part of one address's share is quiet.
const QUIET: u64 = 8;

/// How fast an authority is asked: buckets that fill within a minute, one for all and one for each address (IPv6: /64). The last quarter of what is
/// for all is kept for networks (IPv4: /24, IPv6: /48) that ask for little, so that a few that ask for much, from however many of their addresses, leave the
/// others something.
#[derive(Debug)]
pub(crate) struct Rates {
    rate: Rate,
    all: Bucket,
    each: HashMap<IpAddr, Bucket>,
    /// Those that found no place.
    rest: Bucket,
    /// What networks may take and be quiet. Those that find no place are not.
    quiet: HashMap<IpAddr, Bucket>,
    /// When it was last looked who is at rest: that looks at all.
    swept: Option<Instant>,
}

/// What is left, at a moment.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
    fn full(rate: u64, now: Instant) -> Self {
        Self {
            left: rate as f64,
            at: now,
        }
    }

    /// Fills it by what has come since, up to a minute's worth.
    #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
    fn fill(&mut self, rate: u64, now: Instant) {
        let minutes = now.saturating_duration_since(self.at).as_secs_f64() / 60.0;
        let most = rate as f64;
        self.left = minutes.mul_add(most, self.left).min(most);
        self.at = now;
    }

    fn is_full(&self, rate: u64) -> bool {
        self.is_above(rate, 1.0)
    }

    fn is_above(&self, rate: u64, part: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
        let most = rate as f64;
        self.left >= most * part
    }
}

impl Rates {
    pub(crate) fn new(rate: Rate) -> Self {
        let now = Instant::now();
        Self {
            rate,
            all: Bucket::full(rate.all, now),
            each: HashMap::new(),
            rest: Bucket::full(rate.each, now),
            quiet: HashMap::new(),
            swept: None,
        }
    }

    /// Takes so much for `client`, if it is there. Who is served first takes from its own share alone.
    pub(crate) fn take(&mut self, client: IpAddr, amount: u64, is_first: bool) -> bool {
        let now = Instant::now();
        let rate = self.rate;
        self.all.fill(rate.all, now);
        let full = Bucket::full(rate.each, now);
        let (place, quiet) = (network(client, 24, 48), (rate.each / QUIET).max(1));
        let is_crowded = self.each.len() >= APART || self.quiet.len() >= APART;
        let is_time = |at: Instant| now - at >= SWEEP;
        if is_crowded && self.swept.is_none_or(is_time) {
            self.swept = Some(now);
            sweep(&mut self.each, rate.each, now);
            sweep(&mut self.quiet, quiet, now);
        }
        if self.quiet.len() < APART {
            let full = Bucket::full(quiet, now);
            self.quiet.entry(place).or_insert(full);
        }
        let mut of_network = self.quiet.get_mut(&place);
        let is_quiet = of_network.as_mut().is_some_and(|network| {
            network.fill(quiet, now);
            network.left > 0.0
        });
        let own = if self.each.len() < APART || self.each.contains_key(&client) {
            self.each.entry(client).or_insert(full)
        } else {
            &mut self.rest
        };
        own.fill(rate.each, now);
        #[expect(
            clippy::cast_precision_loss,
            reason = "amounts are at most a list's bytes"
        )]
        let amount = amount as f64;
        let kept = if is_quiet { 0.0 } else { 0.25 };
        let has_left = is_first || self.all.left >= amount && self.all.is_above(rate.all, kept);
        if own.left < amount || !has_left {
            return false;
        }
        own.left -= amount;
        if let Some(network) = of_network.filter(|_| !is_first) {
            network.left = (network.left - amount).max(-amount);
        }
        if !is_first {
            self.all.left -= amount;
        }
        true
    }
}

/// Forgets who is at rest.
fn sweep(buckets: &mut HashMap<IpAddr, Bucket>, rate: u64, now: Instant) {
    buckets.retain(|_, bucket| {
        bucket.fill(rate, now);
        !bucket.is_full(rate)
    });
}

#[cfg(test)]
mod places_tests {
    use super::*;

    fn stranger(n: u8) -> Client {
        Client {
            address: IpAddr::from([10, 0, 0, n]),
            is_known: false,
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

    #[tokio::test]
    async fn who_needs_its_place_no_more_gives_way_to_nobody() {
        let places = Places::new(1, 1);
        let done = places.enter(stranger(1));
        done.release();
        let _others = [2; 5].map(|n| places.enter(stranger(n)));
        let lost = timeout(Duration::from_millis(20), done.lost()).await;
        assert!(lost.is_err());
        drop(done);
        assert_eq!(places.state().strangers, 1);
    }

    #[test]
    fn who_shows_who_he_is_loses_his_place_to_no_stranger() {
        let places = Places::new(2, 2);
        let held = [1, 1, 2].map(|n| places.enter(stranger(n)));
        assert_eq!(held.each_ref().map(has_lost), [true, false, false]);
        held[2].make_known();
        held[2].make_known();
        // Too late.
        held[0].make_known();
        let others = [3, 4, 5].map(|n| places.enter(stranger(n)));
        assert_eq!(held.each_ref().map(has_lost), [true, true, false]);
        assert_eq!(others.each_ref().map(has_lost), [true, false, false]);
        drop((held, others));
        // Of one address they do not add up.
        let own = [1; 3].map(|n| {
            let place = places.enter(stranger(n));
            place.make_known();
            place
        });
        assert_eq!(own.each_ref().map(has_lost), [true, false, false]);
        // Nor of many, without end.
        let many = [2, 3].map(|n| {
            let place = places.enter(stranger(n));
            place.make_known();
            place
        });
        assert!(has_lost(&own[1]) && !has_lost(&many[1]));
        drop((own, many));
        let state = places.state();
        assert!(state.held.is_empty() && state.clients.is_empty() && state.strangers == 0);
    }

    #[test]
    fn authorities_have_places_that_no_stranger_takes_and_take_none_of_theirs() {
        let places = Places::new(2, 2);
        let authority = Client {
            is_known: true,
            ..stranger(1)
        };
        let stranger_at_it = places.enter(stranger(1));
        let _another = places.enter(stranger(3));
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

#[cfg(test)]
mod rates_tests {
    use std::time::Duration;

    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([192, 0, n, 1])
    }

    /// Each of them takes no more than it may.
    #[tokio::test(start_paused = true)]
    async fn addresses_of_one_site_leave_the_quiet_a_quarter_however_many_they_are() {
        let mut rates = Rates::new(Rate {
            all: 1000,
            each: 100,
        });
        let of_site = |n: u16| IpAddr::from([0x2001, 0xdb8, 1, n, 0, 0, 0, 0]);
        let other = IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, 0]);
        for second in 0..120 {
            for n in 0..64 {
                rates.take(of_site(n), 1, false);
            }
            if second % 10 == 0 {
                assert!(rates.take(other, 1, false), "after {second} s");
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_much_leaves_the_quiet_a_quarter_and_has_more_after_a_minute() {
        let mut rates = Rates::new(Rate { all: 100, each: 40 });
        let took =
            |rates: &mut Rates, n, first| (0..100).filter(|_| rates.take(ip(n), 1, first)).count();
        assert_eq!(took(&mut rates, 1, false), 40);
        assert_eq!(took(&mut rates, 2, false), 36, "three quarters are gone");
        assert_eq!(took(&mut rates, 3, false), 5, "then it is quiet no more");
        assert!(rates.take(ip(4), 1, false));
        assert_eq!(
            took(&mut rates, 5, true),
            40,
            "who is first has its own share"
        );
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(took(&mut rates, 1, false), 40);
    }
}
