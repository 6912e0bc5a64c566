//! Which shard of a port a connection belongs to: its ids say so, and the kernel reads them. The second byte of an id, modulo the shards: the
//! first is the same in all ids of a fleet, where it says how a balancer reads them ([`Routing`]).
//! RFC 9000 §5.1 (connection ids), draft-ietf-quic-load-balancers §3 and §7.2 (the first byte; shards behind a balancer), RFC 8999 §5 (where ids
//! stand in a packet), socket(7) SO_ATTACH_REUSEPORT_CBPF.

use std::{fmt, io, net::UdpSocket, os::fd::AsRawFd, sync::Arc, time::Duration};

use quinn_proto::InvalidCid;
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom, SystemRandom};

/// How many shards there can be: one for each value of an id's second byte.
pub const MOST_SHARDS: usize = 256;

/// Which of how many shards.
#[derive(Clone, Copy, Debug)]
pub struct ShardPlace {
    index: u8,
    /// 1 to [`MOST_SHARDS`].
    shards: u16,
}

impl ShardPlace {
    /// Number `index`, from 0, of `shards`; `index` is below `shards`, which is 1 to [`MOST_SHARDS`].
    #[must_use]
    pub const fn new(index: u8, shards: u16) -> Self {
        Self { index, shards }
    }

    /// From 0.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// The length of our ids, in bytes.
pub const CID_LENGTH: usize = 8;

/// Which byte of an id names its shard.
const STEERING: usize = 1;

/// How much randomness is fetched at a time, in bytes.
const STOCK: usize = 64 * CID_LENGTH;

/// Makes ids by which a balancer finds this process among others.
pub trait Routing: fmt::Debug + Send + Sync {
    /// The id that a random one becomes. Those that differ in the last four bytes become different ones.
    fn seal(&self, random: [u8; CID_LENGTH]) -> [u8; CID_LENGTH];
    /// Whether an id is one of this process.
    fn is_ours(&self, id: &[u8]) -> bool;
}

/// Makes random ids whose second byte is `shard` modulo `shards`. Only that much of an id means anything to an observer, and how a balancer
/// reads it if there is one.
#[derive(Debug)]
pub(super) struct Ids {
    place: ShardPlace,
    routing: Option<Arc<dyn Routing>>,
    /// The last bit of what is sealed: it keeps aliases and the ids of connections apart, which in a fleet have less that is random.
    last: u8,
    stock: [u8; STOCK],
    /// Where the unused part of `stock` begins.
    used: usize,
}

impl Ids {
    /// Those of connections.
    pub(super) fn new(place: ShardPlace, routing: Option<Arc<dyn Routing>>) -> Self {
        Self {
            place,
            routing,
            last: 0,
            stock: [0; STOCK],
            used: STOCK,
        }
    }

    /// Those of forwarded flows.
    pub(super) fn of_aliases(place: ShardPlace, routing: Option<Arc<dyn Routing>>) -> Self {
        Self {
            last: 1,
            ..Self::new(place, routing)
        }
    }

    fn random(&mut self) -> [u8; CID_LENGTH] {
        if self.used + CID_LENGTH > STOCK {
            SystemRandom::new()
                .fill(&mut self.stock)
                .expect("the system's randomness never fails once the process runs");
            self.used = 0;
        }
        let mut id = [0; CID_LENGTH];
        id.copy_from_slice(&self.stock[self.used..self.used + CID_LENGTH]);
        self.used += CID_LENGTH;
        id
    }

    /// A fresh id. What a balancer reads is encrypted: of its ids those are taken that happen to lead here, one in as many as there are shards.
    pub(super) fn next(&mut self) -> [u8; CID_LENGTH] {
        loop {
            let mut id = self.random();
            if let Some(routing) = &self.routing {
                id[CID_LENGTH - 1] = id[CID_LENGTH - 1] & !1 | self.last;
                let sealed = routing.seal(id);
                if self.leads_here(sealed[STEERING]) {
                    return sealed;
                }
            } else if let Some(steering) = self.nearest(id[STEERING]) {
                id[STEERING] = steering;
                return id;
            }
        }
    }

    fn leads_here(&self, steering: u8) -> bool {
        let ShardPlace { index, shards } = self.place;
        u16::from(steering) % shards == u16::from(index)
    }

    /// The byte nearest below `random` that leads to this shard; none from the incomplete last round, which would favour some values.
    fn nearest(&self, random: u8) -> Option<u8> {
        let ShardPlace { index, shards } = self.place;
        let random = u16::from(random);
        if random >= 256 / shards * shards {
            return None;
        }
        u8::try_from(random - random % shards + u16::from(index)).ok()
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.next())
    }

    /// A stray packet of a connection of another shard, or of another relay of the fleet, is dropped: a stateless reset would end that
    /// connection.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let here = id.get(STEERING).is_some_and(|byte| self.leads_here(*byte));
        let ours = |routing: &Arc<dyn Routing>| routing.is_ours(id);
        if here && self.routing.as_ref().is_none_or(ours) {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

// Tells the kernel which socket of a group of UDP sockets takes a QUIC packet: the second byte of the destination
// connection id, modulo the shards. RFC 8999 §5 (where the id stands), socket(7) SO_ATTACH_REUSEPORT_CBPF.
// So a connection stays with its shard when the client's address changes. The kernel may join packets of one source
// port into one delivery (GRO); those of a second connection from that port then reach the wrong shard, which drops
// them as the network might.

/// The program's instructions: classic BPF over the UDP payload. A load beyond the packet's end ends the program with shard 0.
fn program(shards: u16) -> [libc::sock_filter; 7] {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    [
        step(LOAD_BYTE, 0, 0),
        step(IF_ANY_BIT, 2, 0x80),
        // The long header: flags, four bytes of version, the id's length, the id.
        step(LOAD_BYTE, 0, 7),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 1),
        // The short header: flags, the id.
        step(LOAD_BYTE, 0, 2),
        step(MODULO, 0, u32::from(shards)),
        step(libc::BPF_RET | libc::BPF_A, 0, 0),
    ]
}

/// One instruction; `skip` is how many to skip if a condition does not hold.
fn step(code: u32, skip: u8, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).expect("every code of classic BPF has 16 bits"),
        jt: 0,
        jf: skip,
        k: operand,
    }
}

/// Has the kernel steer the packets of the group of sockets that `member` belongs to. Shards are counted in the order in which the sockets were
/// bound.
///
/// # Errors
/// The system refuses.
pub fn steer(member: &UdpSocket, shards: u16) -> io::Result<()> {
    let mut steps = program(shards);
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    #[expect(
        unsafe_code,
        reason = "no crate that we have offers this socket option"
    )]
    // SAFETY: the pointers are to locals that outlive the call, with their true lengths; the kernel copies and checks the program.
    let answer = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            length,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
                let mut ids = Ids::new(ShardPlace::new(shard, shards), None);
                let next = (u16::from(shard) + 1) % shards;
                let other = Ids::new(ShardPlace::new(u8::try_from(next).unwrap(), shards), None);
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
        let mut ids = Ids::new(ShardPlace::new(1, 3), None);
        let made: HashSet<ConnectionId> = (0..1000).map(|_| ids.generate_cid()).collect();
        assert_eq!(made.len(), 1000);
    }

    /// Server 7 of a fleet. It adds and rotates, which an observer could undo.
    #[derive(Debug)]
    struct Seventh;

    impl Routing for Seventh {
        fn seal(&self, random: [u8; CID_LENGTH]) -> [u8; CID_LENGTH] {
            let mut id = random;
            id[0] = 0x07;
            id[1] = random[7].wrapping_add(random[5]);
            id[2] = 7;
            id
        }

        fn is_ours(&self, id: &[u8]) -> bool {
            id.get(2) == Some(&7)
        }
    }

    #[test]
    fn ids_for_a_balancer_lead_to_their_relay_and_to_their_shard() {
        for shards in [1, 2, 3, 64, 256] {
            let last = u8::try_from(shards - 1).unwrap();
            let mut ids = Ids::new(ShardPlace::new(last, shards), Some(Arc::new(Seventh)));
            for _ in 0..50 {
                let id = ids.generate_cid();
                assert!(ids.validate(&id).is_ok());
                assert_eq!(u16::from(id[1]) % shards, u16::from(last));
                let stray = ConnectionId::new(&[id[0], id[1], 8, 0, 0, 0, 0, 0]);
                assert!(ids.validate(&stray).is_err());
            }
        }
    }

    #[test]
    fn aliases_in_a_fleet_are_never_ids_of_connections() {
        let routing = || -> Option<Arc<dyn Routing>> { Some(Arc::new(Seventh)) };
        let place = ShardPlace::new(1, 3);
        let (mut ids, mut aliases) = (
            Ids::new(place, routing()),
            Ids::of_aliases(place, routing()),
        );
        assert!((0..50).all(|_| ids.next()[7] & 1 == 0 && aliases.next()[7] & 1 == 1));
    }
}
