//! Packets that pass beside a link's own QUIC connection, on the socket that carries it: forwarded mode.
//! `masque` sends a flow's forwarded packets through it and is given those that come; [`crate::QuicLink`] has one for its life,
//! however often its socket is replaced.
//! draft-ietf-masque-quic-proxy, "Using Forwarded Mode".

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use hoplite_overlay::{Batch, Ecn, End, Received};
use parking_lot::{Mutex, RwLock};

use crate::socket::VirtualSocket;

/// An alias has at least this many bytes: by these packets are told from the link's own, whose ids are random.
pub const SHORTEST_ALIAS: usize = 8;
/// How many aliases one link recognises.
const MAX_ALIASES: usize = 4096;

type Key = [u8; SHORTEST_ALIAS];

/// Takes the packets of one flow. It never blocks and never calls back.
pub trait Beside: Send + Sync {
    /// A packet with a short header under an alias of `alias_len` bytes, which stands for `id`, as the network has marked it. It may be changed.
    fn push(&self, packet: &mut [u8], alias_len: usize, id: &[u8], mark: Option<Ecn>);

    /// Nothing more for now.
    fn flush(&self);
}

/// The way beside a link.
#[derive(Default)]
pub struct Bypass {
    socket: Mutex<Weak<VirtualSocket>>,
    /// How many sockets there have been.
    generation: AtomicU64,
    table: RwLock<HashMap<Key, Entry>>,
    /// The size of the table: usually nobody needs to look into it.
    entries: AtomicUsize,
}

struct Entry {
    alias: Box<[u8]>,
    id: Box<[u8]>,
    flow: Arc<dyn Beside>,
}

impl Bypass {
    /// Every packet goes through `socket` from now on.
    pub(crate) fn attach(&self, socket: &Arc<VirtualSocket>) {
        *self.socket.lock() = Arc::downgrade(socket);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Grows when the link moves to another socket.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn socket(&self) -> Option<Arc<VirtualSocket>> {
        let socket = self.socket.lock();
        socket.upgrade()
    }

    /// Ready when a batch will be taken.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.socket() {
            Some(socket) => socket.poll_writable(cx),
            None => Poll::Ready(()),
        }
    }

    /// Sends `batch` as it is, marked so; whether it was taken. What is not is lost.
    pub fn send(&self, batch: Batch<'_>, mark: Option<Ecn>) -> bool {
        self.socket()
            .is_some_and(|socket| socket.send_beside(batch, mark))
    }

    /// Gives packets under `alias` to `flow`, which knows them by `id`. `false` when the table is full, the id is too short
    /// or could be taken for another.
    pub fn admit(&self, alias: &[u8], id: &[u8], flow: Arc<dyn Beside>) -> bool {
        let Some(key) = alias.first_chunk() else {
            return false;
        };
        let mut table = self.table.write();
        if table.len() >= MAX_ALIASES || table.contains_key(key) {
            return false;
        }
        let entry = Entry {
            alias: alias.into(),
            id: id.into(),
            flow,
        };
        table.insert(*key, entry);
        self.entries.store(table.len(), Ordering::Release);
        true
    }

    /// Does not recognise `alias` any more, if it was `flow`'s.
    pub fn expel(&self, alias: &[u8], flow: &Arc<dyn Beside>) {
        let mut table = self.table.write();
        let Some(key) = alias.first_chunk::<SHORTEST_ALIAS>() else {
            return;
        };
        let own = |entry: &Entry| *entry.alias == *alias && same(&entry.flow, flow);
        if table.get(key).is_some_and(own) {
            table.remove(key);
        }
        self.entries.store(table.len(), Ordering::Release);
    }

    /// Tells the flow below that packets with this id will pass.
    pub fn announce(&self, end: End, id: &[u8]) {
        if let Some(socket) = self.socket() {
            socket.flow().announce(end, id);
        }
    }

    /// Tells it that they will not any more.
    pub fn withdraw(&self, end: End, id: &[u8]) {
        if let Some(socket) = self.socket() {
            socket.flow().withdraw(end, id);
        }
    }

    /// Gives what is not the link's own to the flows, and closes the gaps. All of it bears one mark.
    pub(crate) fn divert(&self, buf: &mut [u8], got: Received, mark: Option<Ecn>) -> Received {
        if self.entries.load(Ordering::Acquire) == 0 || got.len == 0 {
            return got;
        }
        let table = self.table.read();
        let segment = got.segment.max(1);
        let (mut kept, mut at) = (0, 0);
        let mut last: Option<&Arc<dyn Beside>> = None;
        while at < got.len {
            let end = got.len.min(at + segment);
            match buf
                .get_mut(at..end)
                .and_then(|packet| take(&table, packet, mark))
            {
                Some(flow) => {
                    if let Some(before) = last.replace(flow).filter(|before| !same(before, flow)) {
                        before.flush();
                    }
                }
                None => {
                    buf.copy_within(at..end, kept);
                    kept += end - at;
                }
            }
            at = end;
        }
        if let Some(last) = last {
            last.flush();
        }
        Received { len: kept, segment }
    }
}

/// Gives `packet` to its flow, if it is not the link's own.
fn take<'t>(
    table: &'t HashMap<Key, Entry>,
    packet: &mut [u8],
    mark: Option<Ecn>,
) -> Option<&'t Arc<dyn Beside>> {
    let (first, rest) = packet.split_first()?;
    let entry = table.get(rest.first_chunk()?)?;
    if first & 0x80 != 0 || !rest.starts_with(&entry.alias) {
        return None;
    }
    entry.flow.push(packet, entry.alias.len(), &entry.id, mark);
    Some(&entry.flow)
}

fn same(one: &Arc<dyn Beside>, other: &Arc<dyn Beside>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl fmt::Debug for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.load(Ordering::Relaxed);
        write!(f, "Bypass({entries} ids)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<(Vec<u8>, Option<Ecn>)>>);

    impl Beside for Kept {
        fn push(&self, packet: &mut [u8], alias_len: usize, id: &[u8], mark: Option<Ecn>) {
            assert_eq!((alias_len, id), (9, &b"own"[..]));
            self.0.lock().push((packet.to_vec(), mark));
        }

        fn flush(&self) {}
    }

    fn packet(first: u8, id: &[u8], fill: u8) -> Vec<u8> {
        let mut packet = vec![fill; 20];
        packet[0] = first;
        packet[1..=id.len()].copy_from_slice(id);
        packet
    }

    fn admitted() -> (Bypass, Arc<Kept>) {
        let (bypass, kept) = (Bypass::default(), Arc::<Kept>::default());
        assert!(bypass.admit(b"virtually", b"own", kept.clone()));
        (bypass, kept)
    }

    #[test]
    fn only_short_headers_under_a_alias_are_taken_out_and_the_rest_closes_up() {
        let (bypass, kept) = admitted();
        let ours = packet(0x40, b"virtually", 1);
        let all = [
            ours.clone(),
            packet(0xc0, b"virtually", 2),
            packet(0x40, b"virtual-y", 3),
            ours.clone(),
            packet(0x40, b"another i", 4),
        ];
        let mut buf = all.concat();
        buf.truncate(98);
        let (len, segment) = (buf.len(), 20);
        let congested = Some(Ecn::Ce);
        let left = bypass.divert(&mut buf, Received { len, segment }, congested);
        assert_eq!(left, Received { len: 58, segment });
        let rest = [&all[1][..], &all[2], &all[4][..18]].concat();
        assert_eq!(buf[..58], rest);
        assert_eq!(
            *kept.0.lock(),
            [(ours.clone(), congested), (ours, congested)]
        );
    }

    #[test]
    fn ids_that_could_be_taken_for_another_are_refused() {
        let (bypass, kept) = admitted();
        for id in [&b"virtuall"[..], b"virtually", b"virtually else", b"short"] {
            assert!(!bypass.admit(id, b"own", kept.clone()), "{id:?}");
        }
    }

    #[test]
    fn a_flow_expels_its_own_ids_alone() {
        let (bypass, kept) = admitted();
        let kept: Arc<dyn Beside> = kept;
        bypass.expel(b"virtually", &(Arc::<Kept>::default() as _));
        assert!(!bypass.admit(b"virtually", b"own", kept.clone()));
        bypass.expel(b"virtually", &kept);
        assert!(bypass.admit(b"virtually", b"own", kept));
    }
}
