//! Which shard of a port a connection belongs to: its ids say so, and the kernel reads them. The first byte of an id, modulo the shards.
//! RFC 9000 §5.1 (connection ids; the idea is that of QUIC-LB), RFC 8999 §5 (where they stand in a packet), socket(7) SO_ATTACH_REUSEPORT_CBPF.

use std::{io, net::UdpSocket, os::fd::AsRawFd, time::Duration};

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use ring::rand::{SecureRandom, SystemRandom};

/// How many shards there can be: one for each value of an id's first byte.
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
pub(super) const CID_LENGTH: usize = 8;

/// How much randomness is fetched at a time, in bytes.
const STOCK: usize = 64 * CID_LENGTH;

/// Makes random ids whose first byte is `shard` modulo `shards`. Only that much of an id means anything to an observer.
#[derive(Debug)]
pub(super) struct Ids {
    place: ShardPlace,
    stock: [u8; STOCK],
    /// Where the unused part of `stock` begins.
    used: usize,
}

impl Ids {
    pub(super) fn new(place: ShardPlace) -> Self {
        Self {
            place,
            stock: [0; STOCK],
            used: STOCK,
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

    /// A fresh id.
    pub(super) fn next(&mut self) -> [u8; CID_LENGTH] {
        loop {
            let mut id = self.random();
            if let Some(first) = self.first(id[0]) {
                id[0] = first;
                return id;
            }
        }
    }

    /// The byte nearest below `random` that leads to this shard; none from the incomplete last round, which would favour some values.
    fn first(&self, random: u8) -> Option<u8> {
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

    /// A stray packet of another shard's connection is dropped: a stateless reset would end that connection.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let ShardPlace { index, shards } = self.place;
        match id.first() {
            Some(first) if u16::from(*first) % shards == u16::from(index) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

// Tells the kernel which socket of a group of UDP sockets takes a QUIC packet: the first byte of the destination
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
        step(LOAD_BYTE, 0, 6),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 1),
        // The short header: flags, the id.
        step(LOAD_BYTE, 0, 1),
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
                let mut ids = Ids::new(ShardPlace::new(shard, shards));
                let next = (u16::from(shard) + 1) % shards;
                let other = Ids::new(ShardPlace::new(u8::try_from(next).unwrap(), shards));
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
        let mut ids = Ids::new(ShardPlace::new(1, 3));
        let made: HashSet<ConnectionId> = (0..1000).map(|_| ids.generate_cid()).collect();
        assert_eq!(made.len(), 1000);
    }
}
