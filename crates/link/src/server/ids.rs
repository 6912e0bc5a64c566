//! Connection ids whose first octet says which shard owns the connection.
//! Used by [`super::BoundShard::activate`]; the kernel's side of it is [`super::steer`]. RFC 9000 §5.1; the idea is that of QUIC-LB.

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use ring::rand::{SecureRandom, SystemRandom};

/// The length of our ids, in octets.
pub(super) const LENGTH: usize = 8;

/// How much randomness is fetched at a time, in octets.
const STOCK: usize = 64 * LENGTH;

/// Makes random ids whose first octet is `shard` modulo `shards`. Only that much of an id means anything to an observer.
#[derive(Debug)]
pub(super) struct Ids {
    shard: u8,
    /// 1 to 256.
    shards: u16,
    stock: [u8; STOCK],
    /// Where the unused part of `stock` begins.
    used: usize,
}

impl Ids {
    /// `shard` is below `shards`, which is 1 to 256.
    pub(super) fn new(shard: u8, shards: u16) -> Self {
        Self {
            shard,
            shards,
            stock: [0; STOCK],
            used: STOCK,
        }
    }

    fn random(&mut self) -> [u8; LENGTH] {
        if self.used + LENGTH > STOCK {
            SystemRandom::new()
                .fill(&mut self.stock)
                .expect("the system's randomness never fails once the process runs");
            self.used = 0;
        }
        let mut id = [0; LENGTH];
        id.copy_from_slice(&self.stock[self.used..self.used + LENGTH]);
        self.used += LENGTH;
        id
    }

    /// A fresh id.
    pub(super) fn next(&mut self) -> [u8; LENGTH] {
        loop {
            let mut id = self.random();
            if let Some(first) = self.first(id[0]) {
                id[0] = first;
                return id;
            }
        }
    }

    /// The octet nearest below `random` that leads to this shard; none from the incomplete last round, which would favour some values.
    fn first(&self, random: u8) -> Option<u8> {
        let (random, shards) = (u16::from(random), self.shards);
        if random >= 256 / shards * shards {
            return None;
        }
        u8::try_from(random - random % shards + u16::from(self.shard)).ok()
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.next())
    }

    /// A stray packet of another shard's connection is dropped: a stateless reset would end that connection.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.first() {
            Some(first) if u16::from(*first) % self.shards == u16::from(self.shard) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_id_leads_to_its_shard_and_to_no_other() {
        for shards in [1, 2, 3, 4, 7, 255, 256] {
            for shard in [0, shards - 1].map(|shard| u8::try_from(shard).unwrap()) {
                let mut ids = Ids::new(shard, shards);
                let next = (u16::from(shard) + 1) % shards;
                let other = Ids::new(u8::try_from(next).unwrap(), shards);
                for _ in 0..200 {
                    let id = ids.generate_cid();
                    assert!(ids.validate(&id).is_ok());
                    assert_eq!(other.validate(&id).is_ok(), shards == 1);
                }
            }
        }
    }

    #[test]
    fn ids_are_all_different() {
        let mut ids = Ids::new(1, 3);
        let made: HashSet<ConnectionId> = (0..1000).map(|_| ids.generate_cid()).collect();
        assert_eq!(made.len(), 1000);
    }
}
