//! Packets that are not for this relay's QUIC stack: short headers whose destination id is an alias that the relay handed out.
//! The shard's socket shows every received buffer to it before quinn; `relay` enters the aliases of its forwarded flows.
//! draft-ietf-masque-quic-proxy, "Proxy Considerations"; RFC 8999 §5.2 (where the id stands).

mod aliases;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

pub use quinn_udp::EcnCodepoint as Ecn;
use quinn_udp::{RecvMeta, Transmit};

pub(super) use self::aliases::Aliases;
use super::socket::Shared;
use crate::coalesce::MOST_OCTETS;

/// How long an alias is, in octets: as long as every id that the shard hands out.
pub const ALIAS: usize = super::ids::LENGTH;

/// Where the id ends in a packet with a short header.
const END: usize = 1 + ALIAS;

/// What a client puts into a packet instead of the id of a target.
pub type AliasId = [u8; ALIAS];

/// Takes packets with an alias. It is called while the shard receives: it never blocks, and what it cannot pass on it drops and counts.
pub trait Forward: fmt::Debug + Send + Sync {
    /// Packets with one alias, from one address.
    fn forward(&self, packets: Packets<'_>);
}

/// Packets that arrived together, all with short headers and one alias, which is [`ALIAS`] octets long.
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
    socket: Arc<Shared>,
}

/// An alias that is in force until this is dropped.
#[derive(Debug)]
pub struct Alias {
    aliases: Arc<Aliases>,
    id: AliasId,
}

impl Forwarder {
    pub(super) fn new(aliases: Arc<Aliases>, socket: Arc<Shared>) -> Self {
        Self { aliases, socket }
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
        let per_call = (MOST_OCTETS / segment).clamp(1, self.socket.most_segments());
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
    let octets = first.map_or(0, <[u8]>::len) + more.map(<[u8]>::len).sum::<usize>();
    (id, at + octets)
}

/// What would be the alias of a packet with a short header.
fn id_of(packet: &[u8]) -> Option<AliasId> {
    let head = packet.first_chunk::<END>()?;
    let short = head[0] & 0x80 == 0;
    short.then(|| std::array::from_fn(|at| head[1 + at]))
}
