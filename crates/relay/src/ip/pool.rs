//! Which addresses are whose: each flow of packets has one of each family, and gives it back when it ends.
//! Pure; [`super::Ip`] holds it behind a lock. An address that was given back is given out again as late as can be, so that what is still on
//! its way to the last holder reaches nobody.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

/// The addresses of one network.
#[derive(Debug)]
pub(crate) struct Pool {
    first: u128,
    /// How many there are; the network's first two are left out, and the last of IPv4.
    size: u128,
    is_v6: bool,
    next: u128,
    taken: HashSet<u128>,
    /// At most this many are given out at a time.
    bound: usize,
}

impl Pool {
    /// The addresses of `net`, of which at most `bound` are given out at a time.
    pub(crate) fn new(net: &IpNet, bound: usize) -> Self {
        let (first, last) = (number(net.network()), number(net.broadcast()));
        let is_v6 = net.addr().is_ipv6();
        let usable = last.saturating_sub(first).saturating_sub(1);
        Self {
            first: first.saturating_add(2),
            size: if is_v6 {
                usable
            } else {
                usable.saturating_sub(1)
            },
            is_v6,
            next: 0,
            taken: HashSet::new(),
            bound,
        }
    }

    /// An address that nobody has; `None` when all are given out, or as many as may be.
    pub(crate) fn take(&mut self) -> Option<IpAddr> {
        let all = usize::try_from(self.size).unwrap_or(usize::MAX);
        if self.taken.len() >= self.bound.min(all) {
            return None;
        }
        while !self.taken.insert(self.next) {
            self.step();
        }
        let offset = self.next;
        self.step();
        Some(self.address(offset))
    }

    fn step(&mut self) {
        self.next = (self.next + 1) % self.size.max(1);
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// The address is nobody's any more.
    pub(crate) fn give_back(&mut self, address: IpAddr) {
        if address.is_ipv6() == self.is_v6 {
            self.taken.remove(&number(address).wrapping_sub(self.first));
        }
    }

    fn address(&self, offset: u128) -> IpAddr {
        let number = self.first.saturating_add(offset);
        match u32::try_from(number) {
            Ok(v4) if !self.is_v6 => Ipv4Addr::from(v4).into(),
            _ => Ipv6Addr::from(number).into(),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(net: &str, bound: usize) -> Pool {
        Pool::new(&net.parse().expect("a network"), bound)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn the_first_two_and_the_last_are_nobodys() {
        let mut four = pool("10.0.0.0/29", 100);
        let given: Vec<_> = std::iter::from_fn(|| four.take()).collect();
        let wanted = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        assert_eq!(given, wanted.map(ip));
        let mut six = pool("fd00::/126", 100);
        let given: Vec<_> = std::iter::from_fn(|| six.take()).collect();
        assert_eq!(given, ["fd00::2", "fd00::3"].map(ip));
        assert_eq!(pool("0.0.0.0/0", 1).take(), Some(ip("0.0.0.2")));
        assert_eq!(pool("::/0", 1).take(), Some(ip("::2")));
    }

    #[test]
    fn what_was_given_back_comes_last() {
        let mut pool = pool("10.0.0.0/29", 100);
        let first = pool.take().expect("free");
        pool.give_back(first);
        pool.give_back(ip("fd00::2"));
        for _ in 0..4 {
            assert_ne!(pool.take(), Some(first));
        }
        assert_eq!(pool.take(), Some(first));
        assert_eq!(pool.take(), None);
    }

    proptest! {
        #[test]
        fn nobody_shares_and_the_bound_holds(steps in prop::collection::vec(any::<(bool, u8)>(), 0..300), bound in 1_usize..40) {
            let mut pool = pool("10.0.0.0/26", bound);
            let mut held: Vec<IpAddr> = Vec::new();
            for (takes, which) in steps {
                if takes {
                    match pool.take() {
                        Some(address) => {
                            prop_assert!(!held.contains(&address));
                            held.push(address);
                        }
                        None => prop_assert_eq!(held.len(), bound),
                    }
                } else if !held.is_empty() {
                    pool.give_back(held.swap_remove(usize::from(which) % held.len()));
                }
                prop_assert!(held.len() <= bound);
            }
        }
    }
}
