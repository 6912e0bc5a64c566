//! TCP by the device's own sockets: connecting, and the stream that reads through a buffer borrowed only while data is there.

use std::{
    cell::RefCell,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use futures_util::{StreamExt, stream::FuturesUnordered};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    more_telling, rights, socket_error,
    system::{self, AsSocket},
};
use crate::{Error, ErrorKind, Reason};

/// The size of a read buffer, in bytes. A flow that has nothing to read owns none.
const READ_BUFFER: usize = 64 * 1024;

/// How many unused read buffers a thread keeps for its next reader.
const MAX_SPARE_BUFFERS: usize = 4;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// A TCP connection. Dropped before both sides have ended, it is reset.
#[derive(Debug)]
pub struct TcpFlow {
    socket: TcpStream,
    buffer: BytesMut,
    read_ended: bool,
    write_ended: bool,
}

/// The mark of its packets, and when it is given up.
pub(super) type How = (Option<u32>, Option<Silence>);

/// Which address of this host's a socket towards another has; `None` for whichever the system takes.
pub type Source<'a> = dyn Fn(IpAddr) -> Option<IpAddr> + Sync + 'a;

/// Connects to whichever of `addresses` answers first (RFC 8305): with a mark on every packet, for the system's routing rules and filters
/// (setting one needs CAP_NET_ADMIN), and an end to silence.
pub(super) async fn connect_as(addresses: &[SocketAddr], how: How) -> Result<TcpFlow, Error> {
    let attempt = |address| connect(address, how, None);
    race(addresses, attempt, None).await.map(TcpFlow::new)
}

/// Connects to the first of the addresses that answers, for a caller with a copy loop of its own. An address that is silent is asked by a second
/// connection: the system repeats a SYN that was lost after a second only.
///
/// # Errors
/// The most telling error of all attempts.
pub async fn connect_socket(addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    connect_socket_from(addresses, &|_| None).await
}

/// As [`connect_socket`], from addresses of the caller's choice.
///
/// # Errors
/// As those of [`connect_socket`]; also when this host has no such address.
pub async fn connect_socket_from(
    addresses: &[SocketAddr],
    source: &Source<'_>,
) -> Result<TcpStream, Error> {
    let attempt = |address: SocketAddr| connect(address, How::default(), source(address.ip()));
    race(addresses, attempt, Some(AGAIN)).await
}

async fn connect(
    address: SocketAddr,
    (mark, silence): How,
    source: Option<IpAddr>,
) -> Result<TcpStream, Error> {
    let failed = |error| socket_error(error, "connecting");
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(failed)?;
    if let Some(mark) = mark {
        rights::mark(&socket, mark).map_err(failed)?;
    }
    if let Some(silence) = silence {
        silence.set(&socket).map_err(failed)?;
    }
    if let Some(source) = source {
        // Where the system does not know that, a port that is taken for one target is taken for all.
        system::choose_port_late(&socket).unwrap_or_default();
        bind_source(&socket, source).map_err(failed)?;
    }
    socket.set_nodelay(true).map_err(failed)?;
    socket.connect(address).await.map_err(failed)
}

/// Gives a socket its address. One of IPv6 is of a prefix that is routed to this host, and need not be any interface's.
pub(super) fn bind_source(socket: &impl AsSocket, source: IpAddr) -> io::Result<()> {
    if source.is_ipv6() {
        system::allow_any_ipv6(socket)?;
    }
    SockRef::from(socket).bind(&SocketAddr::new(source, 0).into())
}

impl TcpFlow {
    /// Takes a connected socket over.
    pub fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            read_ended: false,
            write_ended: false,
        }
    }

    /// Our own end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The other end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    #[cfg(test)]
    pub(super) fn mark(&self) -> u32 {
        SockRef::from(&self.socket).mark().expect("a mark")
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.buffer.capacity()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.buffer.is_empty() && !self.read_ended {
            ready!(self.socket.poll_read_ready(cx))?;
            self.buffer = spare_buffer();
            let outcome = self.socket.try_read_buf(&mut self.buffer);
            if self.buffer.is_empty() {
                keep_buffer(std::mem::take(&mut self.buffer));
            }
            match outcome {
                Ok(0) => self.read_ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        self.read_ended |= buf.filled().len() == before && buf.remaining() > 0;
        Poll::Ready(Ok(()))
    }
}

fn spare_buffer() -> BytesMut {
    let spare = SPARE_BUFFERS.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| BytesMut::with_capacity(READ_BUFFER))
}

fn keep_buffer(mut buffer: BytesMut) {
    buffer.clear();
    if !buffer.try_reclaim(READ_BUFFER) {
        return;
    }
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

impl AsyncRead for TcpFlow {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let flow = self.get_mut();
        if flow.buffer.is_empty() {
            return flow.poll_read_into(cx, buf);
        }
        let count = flow.buffer.len().min(buf.remaining());
        buf.put_slice(&flow.buffer[..count]);
        Pin::new(flow).consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for TcpFlow {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let flow = self.get_mut();
        ready!(flow.poll_fill(cx))?;
        Poll::Ready(Ok(&flow.buffer))
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        let flow = self.get_mut();
        flow.buffer.advance(amt);
        if amt > 0 && flow.buffer.is_empty() {
            keep_buffer(std::mem::take(&mut flow.buffer));
        }
    }
}

impl AsyncWrite for TcpFlow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        self.write_ended = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        if !(self.read_ended && self.write_ended) && self.socket.set_zero_linger().is_err() {
            tracing::trace!("a connection could not be reset");
        }
    }
}

// Several addresses, one connection: the order and the race of Happy Eyeballs (RFC 8305 §4 and §5).
// Knows nothing of sockets.

/// The Connection Attempt Delay of RFC 8305 §8.
const STAGGER: Duration = Duration::from_millis(250);

/// How long after the last attempt a silent address is asked by one more: longer than a round trip to nearly everywhere.
const AGAIN: Duration = Duration::from_millis(300);

/// Addresses of both families by turns; the resolver's first choice stays first (RFC 8305 §4).
pub(super) fn interleaved(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut preferred, mut other): (Vec<_>, Vec<_>) = addresses
        .iter()
        .copied()
        .partition(|a| a.is_ipv6() == first_is_v6);
    preferred.reverse();
    other.reverse();
    let mut ordered = Vec::with_capacity(addresses.len());
    while ordered.len() < addresses.len() {
        ordered.extend(preferred.pop());
        ordered.extend(other.pop());
    }
    ordered
}

/// Starts an attempt at each address in turn, the next one after [`STAGGER`] or as soon as one has failed; and if none has answered `again` after the
/// last, one more at the first of those that are still silent. The first to connect wins, the others are dropped.
pub(super) async fn race<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
    again: Option<Duration>,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let start = |address| {
        let attempt = attempt(address);
        async move { (address, attempt.await) }
    };
    let mut waiting = interleaved(addresses).into_iter();
    let (mut running, mut silent) = (FuturesUnordered::new(), Vec::new());
    let (mut again, mut failure) = (again, None);
    loop {
        match waiting.next() {
            Some(address) => {
                silent.push(address);
                running.push(start(address));
            }
            None if running.is_empty() => return Err(failure.unwrap_or_else(no_address)),
            None => {}
        }
        let pause = if waiting.len() > 0 {
            Some(STAGGER)
        } else {
            again
        };
        let outcome = match pause {
            Some(pause) => timeout(pause, running.next()).await,
            None => Ok(running.next().await),
        };
        match outcome {
            Ok(Some((_, Ok(connected)))) => return Ok(connected),
            Ok(Some((address, Err(error)))) => {
                silent.retain(|one| *one != address);
                failure = Some(more_telling(failure, error));
            }
            Ok(None) => {}
            Err(_) if waiting.len() > 0 => {}
            Err(_) => {
                again = None;
                running.extend(silent.first().map(|address| start(*address)));
            }
        }
    }
}

fn no_address() -> Error {
    Error::new(ErrorKind::TargetFailed, "connecting").because(Reason::NameNotFound)
}

// When a TCP connection is given up whose other end is silent: who loses power sends nothing that would end it, and the system repeats what was
// sent for a quarter of an hour. RFC 5482.

/// How long the other end may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// What was sent may be for this long without an acknowledgement, or the other end without room for more (TCP_USER_TIMEOUT).
    pub most: Duration,
    /// When nothing was sent for `after`, the other end is asked, and then again each `again`; unanswered ones count up to `most` from its
    /// last word. `None`: it is not asked.
    pub asked: Option<KeepAlive>,
}

/// Keep-alive (RFC 9293 §3.8.4), in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The first time.
    pub after: Duration,
    /// And then.
    pub again: Duration,
}

impl Silence {
    /// Towards a relay, from a client: somewhat longer than QUIC's 4 s, since TCP waits twice as long before each repetition. It does not ask:
    /// a client that wants something sends something, and the relay asks.
    pub const OF_ENTRY: Self = Self {
        most: Duration::from_secs(10),
        asked: None,
    };

    /// Between relays.
    pub const OF_RELAY: Self = Self {
        most: Duration::from_secs(10),
        asked: Some(KeepAlive {
            after: Duration::from_secs(4),
            again: Duration::from_secs(2),
        }),
    };

    /// Of a client, at a relay, as over QUIC: its network may be about to change.
    pub const OF_CLIENT: Self = Self {
        most: Duration::from_secs(45),
        asked: Some(KeepAlive {
            after: Duration::from_secs(25),
            again: Duration::from_secs(5),
        }),
    };

    /// Has the system give the connection up so.
    ///
    /// # Errors
    /// The operating system's.
    pub fn set(&self, socket: &impl AsSocket) -> io::Result<()> {
        system::limit_silence(socket, self.most)?;
        let Some(KeepAlive { after, again }) = self.asked else {
            return Ok(());
        };
        let asked = TcpKeepalive::new().with_time(after).with_interval(again);
        SockRef::from(socket).set_tcp_keepalive(&asked)
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::Target;
    use tokio::{
        net::TcpListener,
        time::{Instant, sleep},
    };

    use super::{super::Direct, *};

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        let parse = |text: &&str| text.parse().expect("an address");
        texts.iter().map(parse).collect()
    }

    fn refused() -> Error {
        Error::new(ErrorKind::TargetFailed, "connecting").because(Reason::Refused)
    }

    #[test]
    fn families_take_turns_and_the_resolvers_first_choice_stays_first() {
        let given = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let order = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(interleaved(&given), order);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_delays_the_next_one_by_a_quarter_second_only() {
        let given = addresses(&["[::1]:1", "1.1.1.1:1"]);
        let start = Instant::now();
        let won = race(
            &given,
            |address| async move {
                if address.is_ipv6() {
                    sleep(Duration::from_secs(60)).await;
                }
                Ok(address)
            },
            None,
        );
        assert_eq!(won.await.expect("connects"), given[1]);
        assert_eq!(start.elapsed(), STAGGER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusing_address_does_not_delay_the_next_one() {
        let given = addresses(&["[::1]:1", "1.1.1.1:1"]);
        let start = Instant::now();
        let won = race(
            &given,
            |address| async move {
                if address.is_ipv6() {
                    Err(refused())
                } else {
                    Ok(address)
                }
            },
            None,
        );
        assert_eq!(won.await.expect("connects"), given[1]);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_first_address_may_still_win() {
        let given = addresses(&["[::1]:1", "1.1.1.1:1"]);
        let won = race(
            &given,
            |address| async move {
                let pause = if address.is_ipv6() { 300 } else { 900 };
                sleep(Duration::from_millis(pause)).await;
                Ok(address)
            },
            None,
        );
        assert_eq!(won.await.expect("connects"), given[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_fail_the_most_telling_error_is_reported() {
        let given = addresses(&["1.1.1.1:1", "[::1]:1"]);
        let tried = RefCell::new(0);
        let lost: Result<(), _> = race(
            &given,
            |address| {
                *tried.borrow_mut() += 1;
                async move {
                    Err(if address.is_ipv6() {
                        Error::new(ErrorKind::TargetFailed, "connecting")
                            .because(Reason::NetworkUnreachable)
                    } else {
                        refused()
                    })
                }
            },
            None,
        )
        .await;
        assert_eq!(lost.expect_err("fails").reason(), Some(Reason::Refused));
        assert_eq!(*tried.borrow(), 2);
    }

    /// Connects to addresses of which some refuse; the first attempt at another one is never answered. When that came about, and how many attempts it took.
    async fn asked_twice(
        given: &[SocketAddr],
        refuses: fn(&SocketAddr) -> bool,
    ) -> (Duration, usize) {
        let (start, tried) = (Instant::now(), RefCell::new(Vec::new()));
        let won = race(
            given,
            |address| {
                let is_first = !tried.borrow().contains(&address);
                tried.borrow_mut().push(address);
                async move {
                    if refuses(&address) {
                        return Err(refused());
                    }
                    if is_first {
                        sleep(Duration::from_secs(60)).await;
                    }
                    Ok(address)
                }
            },
            Some(AGAIN),
        );
        let won = won.await.expect("connects");
        assert!(!refuses(&won));
        let tried = tried.borrow().len();
        (start.elapsed(), tried)
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_whose_first_packet_was_lost_is_asked_once_more() {
        let one = addresses(&["1.1.1.1:1"]);
        assert_eq!(asked_twice(&one, |_| false).await, (AGAIN, 2));
        let two = addresses(&["[::1]:1", "1.1.1.1:1"]);
        assert_eq!(asked_twice(&two, |_| false).await, (STAGGER + AGAIN, 3));
        // One that has refused is not asked again.
        assert_eq!(asked_twice(&two, SocketAddr::is_ipv6).await, (AGAIN, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_is_far_away_is_asked_twice_at_most_and_its_first_answer_wins() {
        let tried = RefCell::new(0);
        let start = Instant::now();
        let given = addresses(&["1.1.1.1:1"]);
        let won = race(
            &given,
            |address| {
                *tried.borrow_mut() += 1;
                async move {
                    sleep(Duration::from_secs(2)).await;
                    Ok(address)
                }
            },
            Some(AGAIN),
        );
        assert_eq!(won.await.expect("connects"), given[0]);
        assert_eq!(
            (start.elapsed(), *tried.borrow()),
            (Duration::from_secs(2), 2)
        );
    }

    const ALL: [Silence; 3] = [Silence::OF_ENTRY, Silence::OF_RELAY, Silence::OF_CLIENT];

    fn found(socket: &impl AsSocket) -> Silence {
        let socket = SockRef::from(socket);
        let most = socket.tcp_user_timeout().expect("read").unwrap_or_default();
        let asked = socket.keepalive().expect("read").then(|| KeepAlive {
            after: socket.tcp_keepalive_time().expect("read"),
            again: socket.tcp_keepalive_interval().expect("read"),
        });
        Silence { most, asked }
    }

    #[tokio::test]
    async fn a_connection_that_carries_a_tunnel_is_given_up_when_its_other_end_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = Target::from(listener.local_addr().expect("bound"));
        let open = async |direct: Direct| {
            let flow = direct.stream(&target).await.expect("connects");
            found(flow.socket())
        };
        assert_eq!(open(Direct::for_tunnels()).await, Silence::OF_ENTRY);
        for silence in ALL {
            assert_eq!(open(Direct::new().silence(silence)).await, silence);
        }
        let ordinary = open(Direct::new()).await;
        assert_eq!(ordinary.most, Duration::ZERO, "a target may take its time");
        assert_eq!(ordinary.asked, None);
    }

    #[tokio::test]
    async fn an_accepted_connection_is_given_up_as_well() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let near = TcpStream::connect(address);
        let (near, accepted) = tokio::join!(near, listener.accept());
        let accepted = accepted.expect("accepted").0;
        for silence in ALL {
            silence.set(&accepted).expect("set");
            assert_eq!(found(&accepted).most, silence.most);
        }
        assert_eq!(found(&accepted), Silence::OF_CLIENT);
        drop(near);
    }

    /// The system ends a connection as soon as the time is over and one question has no answer.
    #[test]
    fn two_lost_questions_do_not_end_a_connection_at_rest() {
        for Silence { most, asked } in ALL {
            let Some(KeepAlive { after, again }) = asked else {
                continue;
            };
            assert!(after + 2 * again < most, "{most:?}");
        }
    }
}
