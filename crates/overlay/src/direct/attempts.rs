//! Several addresses, one connection: the order and the race of Happy Eyeballs (RFC 8305 §4 and §5).
//! Used by [`super::tcp`]; knows nothing of sockets.

use std::{future::Future, net::SocketAddr, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::failure::more_telling;
use crate::{Error, ErrorKind, Reason};

/// The Connection Attempt Delay of RFC 8305 §8.
pub const STAGGER: Duration = Duration::from_millis(250);

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

/// Starts an attempt at each address in turn, the next one after [`STAGGER`] or as soon as one has failed;
/// the first to connect wins, the others are dropped.
pub(super) async fn race<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut waiting = interleaved(addresses).into_iter();
    let mut running = FuturesUnordered::new();
    let mut failure = None;
    loop {
        match waiting.next() {
            Some(address) => running.push(attempt(address)),
            None if running.is_empty() => return Err(failure.unwrap_or_else(no_address)),
            None => {}
        }
        let outcome = match waiting.len() {
            0 => running.next().await,
            _ => timeout(STAGGER, running.next()).await.unwrap_or_default(),
        };
        match outcome {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(error)) => failure = Some(more_telling(failure, error)),
            None => {}
        }
    }
}

fn no_address() -> Error {
    Error::new(ErrorKind::TargetFailed, "connecting").because(Reason::NameNotFound)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{Instant, sleep};

    use super::*;

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
        let won = race(&given, |address| async move {
            if address.is_ipv6() {
                sleep(Duration::from_secs(60)).await;
            }
            Ok(address)
        });
        assert_eq!(won.await.expect("connects"), given[1]);
        assert_eq!(start.elapsed(), STAGGER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusing_address_does_not_delay_the_next_one() {
        let given = addresses(&["[::1]:1", "1.1.1.1:1"]);
        let start = Instant::now();
        let won = race(&given, |address| async move {
            match address.is_ipv6() {
                true => Err(refused()),
                false => Ok(address),
            }
        });
        assert_eq!(won.await.expect("connects"), given[1]);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_first_address_may_still_win() {
        let given = addresses(&["[::1]:1", "1.1.1.1:1"]);
        let won = race(&given, |address| async move {
            let pause = if address.is_ipv6() { 300 } else { 900 };
            sleep(Duration::from_millis(pause)).await;
            Ok(address)
        });
        assert_eq!(won.await.expect("connects"), given[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_fail_the_most_telling_error_is_reported() {
        let given = addresses(&["1.1.1.1:1", "[::1]:1"]);
        let tried = RefCell::new(0);
        let lost: Result<(), _> = race(&given, |address| {
            *tried.borrow_mut() += 1;
            async move {
                Err(match address.is_ipv6() {
                    true => Error::new(ErrorKind::TargetFailed, "connecting")
                        .because(Reason::NetworkUnreachable),
                    false => refused(),
                })
            }
        })
        .await;
        assert_eq!(lost.expect_err("fails").reason(), Some(Reason::Refused));
        assert_eq!(*tried.borrow(), 2);
    }
}
