//! How fast an authority is asked: buckets that fill within a minute, one for all and one for each address (IPv6: /64). The last quarter of what is
//! for all is kept for addresses that have asked for little, so that a few that ask for much leave the others something.

use std::{collections::HashMap, net::IpAddr};

use tokio::time::Instant;

/// Addresses that are known apart; those beyond it share one bucket, until others are at rest.
const APART: usize = 1 << 16;

/// What may be done within a minute, in all and by one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) all: u64,
    pub(super) each: u64,
}

/// Who has taken how much of it.
#[derive(Debug)]
pub(super) struct Rates {
    rate: Rate,
    all: Bucket,
    each: HashMap<IpAddr, Bucket>,
    /// Those that found no place.
    rest: Bucket,
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

    fn is_above(&self, rate: u64, part: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
        let most = rate as f64;
        self.left >= most * part
    }
}

/// Whom an address stands for.
pub(super) fn client(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & u128::MAX << 64).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Rates {
    pub(super) fn new(rate: Rate) -> Self {
        let now = Instant::now();
        Self {
            rate,
            all: Bucket::full(rate.all, now),
            each: HashMap::new(),
            rest: Bucket::full(rate.each, now),
        }
    }

    /// Takes so much for `client`, if it is there. Who is served first takes from its own share alone.
    pub(super) fn take(&mut self, client: IpAddr, amount: u64, is_first: bool) -> bool {
        let now = Instant::now();
        let rate = self.rate;
        self.all.fill(rate.all, now);
        let full = Bucket::full(rate.each, now);
        if !self.each.contains_key(&client) && self.each.len() >= APART {
            self.sweep(now);
        }
        let own = match self.each.len() < APART || self.each.contains_key(&client) {
            true => self.each.entry(client).or_insert(full),
            false => &mut self.rest,
        };
        own.fill(rate.each, now);
        let is_quiet = own.is_above(rate.each, 0.75);
        #[expect(
            clippy::cast_precision_loss,
            reason = "amounts are at most a list's octets"
        )]
        let amount = amount as f64;
        let kept = if is_quiet { 0.0 } else { 0.25 };
        let has_left = is_first || self.all.left >= amount && self.all.is_above(rate.all, kept);
        if own.left < amount || !has_left {
            return false;
        }
        own.left -= amount;
        if !is_first {
            self.all.left -= amount;
        }
        true
    }

    /// Forgets who is at rest.
    fn sweep(&mut self, now: Instant) {
        let each = self.rate.each;
        self.each.retain(|_, bucket| {
            bucket.fill(each, now);
            !bucket.is_above(each, 1.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_much_leaves_the_quiet_a_quarter_and_has_more_after_a_minute() {
        let mut rates = Rates::new(Rate { all: 100, each: 40 });
        let took =
            |rates: &mut Rates, n, first| (0..100).filter(|_| rates.take(ip(n), 1, first)).count();
        assert_eq!(took(&mut rates, 1, false), 40);
        assert_eq!(took(&mut rates, 2, false), 36, "three quarters are gone");
        assert_eq!(took(&mut rates, 3, false), 11, "then it is quiet no more");
        assert!(rates.take(ip(4), 1, false));
        assert_eq!(
            took(&mut rates, 5, true),
            40,
            "who is first has its own share"
        );
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(took(&mut rates, 1, false), 40);
    }

    #[test]
    fn addresses_of_one_ipv6_subnet_are_one_client() {
        let ip = |text: &str| client(text.parse().expect("an address"));
        assert_eq!(ip("2001:db8:1:2::1"), ip("2001:db8:1:2:ffff::9"));
        assert_ne!(ip("2001:db8:1:2::1"), ip("2001:db8:1:3::1"));
        assert_eq!(ip("::ffff:192.0.2.1"), ip("192.0.2.1"));
        assert_ne!(ip("192.0.2.2"), ip("192.0.2.1"));
    }
}
