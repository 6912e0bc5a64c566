//! Packets that are not for this relay's QUIC stack: short headers whose destination id is an alias that the relay handed out.
//! The shard's socket shows every received buffer to it before QUIC sees it; `relay` enters the aliases of its forwarded flows.
//! draft-ietf-masque-quic-proxy, "Proxy Considerations"; RFC 8999 §5.2 (where the id stands).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use quinn_udp::{RecvMeta, Transmit};

use super::socket::ShardSocket;
use super::steering::{self, Ids};
use crate::{coalesce::MOST_BYTES, driver::AsyncUdpSocket as _};

pub use quinn_udp::EcnCodepoint as Ecn;

#[cfg(test)]
mod tests;

/// How long an alias is, in bytes: as long as every id that the shard hands out.
pub const ALIAS_LENGTH: usize = steering::CID_LENGTH;

/// Where the id ends in a packet with a short header.
const ID_END: usize = 1 + ALIAS_LENGTH;

/// What a client puts into a packet instead of the id of a target.
pub type AliasId = [u8; ALIAS_LENGTH];

/// Takes packets with an alias. It is called while the shard receives: it never blocks, and what it cannot pass on it drops and counts.
pub trait Forward: fmt::Debug + Send + Sync {
    /// Packets with one alias, from one address.
    fn forward(&self, packets: Packets<'_>);
}

/// Packets that arrived together, all with short headers and one alias, which is [`ALIAS_LENGTH`] bytes long.
#[derive(Debug)]
pub struct Packets<'a> {
    /// One after the other; they may be changed in place.
    pub contents: &'a mut [u8],
    /// The size of each but the last, which may be shorter; at least 1.
    pub segment: usize,
    /// Where they came from.
    pub from: SocketAddr,
    /// How the network marked them.
    pub ecn: Option<Ecn>,
}

/// Where packets of ours go to.
#[derive(Clone, Copy, Debug)]
pub struct Towards {
    /// Whose they are.
    pub destination: SocketAddr,
    /// The address of ours that they leave from.
    pub source: Option<IpAddr>,
    /// How they are marked.
    pub ecn: Option<Ecn>,
}

/// A shard's aliases and its socket, for those who forward. Clones are the same.
#[derive(Clone)]
pub struct Forwarder {
    aliases: Arc<Aliases>,
    socket: Arc<ShardSocket>,
}

/// An alias that is in force until this is dropped.
#[derive(Debug)]
pub struct Alias {
    aliases: Arc<Aliases>,
    id: AliasId,
}

impl Forwarder {
    pub(super) fn new(aliases: Arc<Aliases>, socket: Arc<ShardSocket>) -> Self {
        Self { aliases, socket }
    }

    /// The port that clients' packets come to.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        self.socket.local_addr().ok().map(|address| address.port())
    }

    /// An id that nobody has and nobody can guess; it leads to this shard.
    #[must_use]
    pub fn mint(&self) -> AliasId {
        self.aliases.mint()
    }

    /// From now on `to` gets the packets with this id. For a while after the end of the alias it still does, so that it can count them.
    #[must_use]
    pub fn enter(&self, id: AliasId, to: Arc<dyn Forward>) -> Alias {
        self.aliases.enter(id, to);
        Alias {
            aliases: Arc::clone(&self.aliases),
            id,
        }
    }

    /// Sends packets of one size, the last may be shorter, behind what QUIC has sent. Returns how many the kernel's full queue refused.
    pub fn send(&self, contents: &[u8], segment: usize, towards: Towards) -> usize {
        // Nothing can be sent to port 0.
        if contents.is_empty() || segment == 0 || towards.destination.port() == 0 {
            return 0;
        }
        let per_call = (MOST_BYTES / segment).clamp(1, self.socket.most_segments());
        let chunks = contents.chunks(per_call * segment);
        let refused = chunks.filter(|chunk| self.send_chunk(chunk, segment, towards).is_err());
        refused.map(|chunk| chunk.len().div_ceil(segment)).sum()
    }

    fn send_chunk(&self, contents: &[u8], segment: usize, towards: Towards) -> io::Result<()> {
        self.socket.pass(&Transmit {
            destination: towards.destination,
            ecn: towards.ecn,
            contents,
            segment_size: (contents.len() > segment).then_some(segment),
            src_ip: towards.source,
        })
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").finish_non_exhaustive()
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        self.aliases.retire(self.id);
    }
}

/// Takes what has an alias out of what was received; the rest stays for QUIC, in its order.
pub(super) fn divert(aliases: &Aliases, bufs: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) {
    let mut found = None;
    for (buf, meta) in bufs.iter_mut().zip(metas) {
        divert_one(aliases, &mut found, buf, meta);
    }
}

/// The alias that was looked up last, and whose it is.
type Found = Option<(AliasId, Arc<dyn Forward>)>;

fn divert_one(aliases: &Aliases, found: &mut Found, buf: &mut [u8], meta: &mut RecvMeta) {
    let segment = meta.stride.max(1);
    let len = meta.len.min(buf.len());
    let (mut at, mut kept) = (0, 0);
    while at < len {
        let (id, end) = run(&buf[..len], at, segment);
        match id.and_then(|id| find(aliases, found, id)) {
            Some(to) => to.forward(Packets {
                contents: &mut buf[at..end],
                segment,
                from: meta.addr,
                ecn: meta.ecn,
            }),
            None => {
                if kept < at {
                    buf.copy_within(at..end, kept);
                }
                kept += end - at;
            }
        }
        at = end;
    }
    meta.len = kept;
}

fn find<'a>(aliases: &Aliases, found: &'a mut Found, id: AliasId) -> Option<&'a Arc<dyn Forward>> {
    if found.as_ref().is_none_or(|(last, _)| *last != id) {
        *found = Some((id, aliases.find(id)?));
    }
    found.as_ref().map(|(_, to)| to)
}

/// The id of the packet at `at`, and where the packets end that have the same.
fn run(received: &[u8], at: usize, segment: usize) -> (Option<AliasId>, usize) {
    let mut packets = received[at..].chunks(segment);
    let first = packets.next();
    let id = first.and_then(id_of);
    let more = packets.take_while(|packet| id_of(packet) == id);
    let bytes = first.map_or(0, <[u8]>::len) + more.map(<[u8]>::len).sum::<usize>();
    (id, at + bytes)
}

/// What would be the alias of a packet with a short header.
fn id_of(packet: &[u8]) -> Option<AliasId> {
    let head = packet.first_chunk::<ID_END>()?;
    let short = head[0] & 0x80 == 0;
    short.then(|| std::array::from_fn(|at| head[1 + at]))
}

// The table of a shard's aliases. The socket looks up in it.

/// How many aliases are remembered after their end: their last packets are still under way, and QUIC would answer those by a reset.
const MAX_RETIRED: usize = 1024;

/// All aliases of a shard. Whoever enters them bounds their number; of those that have ended there are at most [`MAX_RETIRED`].
pub(super) struct Aliases {
    /// How many are in force; while there are none, nothing is looked up.
    live: AtomicUsize,
    table: Mutex<Table>,
}

struct Table {
    entries: HashMap<AliasId, Arc<dyn Forward>, Keyed>,
    retired: VecDeque<AliasId>,
    ids: Ids,
}

impl Aliases {
    pub(super) fn new(ids: Ids) -> Self {
        Self {
            live: AtomicUsize::new(0),
            table: Mutex::new(Table {
                entries: HashMap::with_hasher(Keyed::new()),
                retired: VecDeque::new(),
                ids,
            }),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Whether anything is to be looked up.
    pub(super) fn any(&self) -> bool {
        self.live.load(Ordering::Relaxed) > 0
    }

    /// 56 random bits: that QUIC has handed out the same for a connection is left to chance, as among its own ids. In a fleet it never is.
    fn mint(&self) -> AliasId {
        let mut table = self.table();
        loop {
            let id = table.ids.next();
            if !table.entries.contains_key(&id) {
                return id;
            }
        }
    }

    fn enter(&self, id: AliasId, to: Arc<dyn Forward>) {
        self.table().entries.insert(id, to);
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    fn retire(&self, id: AliasId) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.table();
        table.retired.push_back(id);
        let gone = if table.retired.len() > MAX_RETIRED {
            table.retired.pop_front()
        } else {
            None
        };
        let gone = gone.and_then(|id| table.entries.remove(&id));
        // What it holds may end with it, and retire aliases of its own.
        drop(table);
        drop(gone);
    }

    fn find(&self, id: AliasId) -> Option<Arc<dyn Forward>> {
        self.table().entries.get(&id).map(Arc::clone)
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.table().entries.len()
    }
}

impl fmt::Debug for Aliases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aliases")
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

/// Spreads ids that are random by themselves: nobody but us chooses what is in the table, so one multiplication is enough.
#[derive(Clone)]
struct Keyed(u64);

struct Spread(u64);

impl Keyed {
    fn new() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Spread;

    fn build_hasher(&self) -> Spread {
        Spread(self.0)
    }
}

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    /// The length, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
