//! Packets that pass the connection: what arrives under an alias is restored, readdressed in place and sent to the target; what the target sends
//! to a registered id is readdressed, sealed and sent to the client. The shard's socket calls the one, the flow's way down the other; what is
//! not to be forwarded is handed back. draft-ietf-masque-quic-proxy, "Using Forwarded Mode", "Sending With Forwarded Mode".

use std::{
    cell::RefCell,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hoplite_crypto::Transform;
use hoplite_overlay::{Batch, Datagrams};
use hoplite_quic::server::{ALIAS_LENGTH, AliasId, Ecn, Forward, Packets, Towards};
use hoplite_wire::forwarding::{ConnectionId, SETTLING};
use parking_lot::Mutex;

use super::{Forwarding, kernel::Entry};
use crate::metrics::{Level, Metrics, Up};

thread_local! {
    /// For packets whose ids change their length. A shard has one.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the scramble transform needs behind the id.
const BLOCK: usize = 16;

/// What stands behind an alias.
pub(super) struct Rule {
    flow: Weak<Forwarding>,
    metrics: Arc<Metrics>,
    alias: AliasId,
    /// The target's own id.
    id: ConnectionId,
    /// Where the client was when it asked for the rule.
    from: SocketAddr,
    closed: AtomicBool,
    /// The kernel was asked to obey it.
    offered: AtomicBool,
    /// Does so.
    kernel: Mutex<Option<Entry>>,
}

impl Rule {
    pub(super) fn new(
        flow: Weak<Forwarding>,
        metrics: Arc<Metrics>,
        (alias, id): (AliasId, ConnectionId),
        from: SocketAddr,
    ) -> Self {
        Self {
            flow,
            metrics,
            alias,
            id,
            from,
            closed: AtomicBool::new(false),
            offered: AtomicBool::new(false),
            kernel: Mutex::default(),
        }
    }

    /// What comes from now on is only counted.
    pub(super) fn close(&self) {
        let mut kernel = self.kernel.lock();
        self.closed.store(true, Ordering::Relaxed);
        *kernel = None;
    }

    /// The next packets need not come here, if the kernel can do it.
    fn offer(&self, flow: &Forwarding) {
        if !flow.may_enter_kernel() || self.offered.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut kernel = self.kernel.lock();
        if !self.closed.load(Ordering::Relaxed) {
            *kernel = flow.enter_from_client(self.from, &self.alias, &self.id);
        }
    }

    /// Looks after what the kernel does of it, or ends that.
    pub(super) fn tend(&self, stay: bool) {
        let mut kernel = self.kernel.lock();
        if stay {
            kernel.iter_mut().for_each(Entry::tend);
        } else if kernel.take().is_some() {
            self.offered.store(false, Ordering::Relaxed);
        }
    }

    fn flow(&self) -> Option<Arc<Forwarding>> {
        let open = !self.closed.load(Ordering::Relaxed);
        open.then(|| self.flow.upgrade()).flatten()
    }
}

impl Forward for Rule {
    fn forward(&self, packets: Packets<'_>) {
        let count = packets.contents.len().div_ceil(packets.segment) as u64;
        let dropped = &self.metrics.forwarding.dropped;
        let Some(flow) = self.flow() else {
            dropped.unknown_id.inc_by(count);
            return;
        };
        if packets.from != self.from || flow.client_connection.address() != self.from {
            dropped.wrong_address.inc_by(count);
            flow.look_around();
            return;
        }
        flow.up(&self.id, packets);
        self.offer(&flow);
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rule")
    }
}

impl Forwarding {
    fn up(&self, id: &ConnectionId, packets: Packets<'_>) {
        let Packets {
            contents,
            segment,
            ecn,
            ..
        } = packets;
        self.forwarded.fetch_add(1, Ordering::Relaxed);
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        let admitted = self.admitted(contents.len(), segment);
        let contents = contents.get_mut(..admitted).unwrap_or_default();
        if contents.is_empty() || !self.open(contents, segment) {
            return;
        }
        ROOM.with_borrow_mut(|room| {
            let (contents, segment) = readdress(contents, segment, ALIAS_LENGTH, id, room);
            self.to_target(Batch { contents, segment }, ecn);
        });
    }

    /// How many bytes of a batch of `len` are passed on; the rest is counted. Only the last packet may be shorter than the others.
    fn admitted(&self, len: usize, segment: usize) -> usize {
        let metrics = &self.ledger.metrics;
        let admitted = usable(len, segment, shortest(&self.transform, ALIAS_LENGTH));
        let packets = admitted.div_ceil(segment);
        let short = len.div_ceil(segment) - packets;
        if short > 0 {
            let dropped = &metrics.forwarding.dropped;
            dropped.too_short.inc_by(short as u64);
        }
        if self.ledger.pace.admits_datagrams(packets, admitted) {
            return admitted;
        }
        metrics.dropped.bandwidth.inc_by(packets as u64);
        0
    }

    /// Each packet is long enough: nothing fails but the cipher, and then nothing is passed on.
    fn open(&self, contents: &mut [u8], segment: usize) -> bool {
        let mut packets = contents.chunks_mut(segment);
        packets.all(|packet| self.transform.open(packet, ALIAS_LENGTH).is_ok())
    }

    fn to_target(&self, batch: Batch<'_>, ecn: Option<Ecn>) {
        let metrics = &self.ledger.metrics;
        let count = batch.payloads().count() as u64;
        let mut cx = Context::from_waker(Waker::noop());
        match self.target.poll_send_marked(&mut cx, batch, ecn) {
            Poll::Ready(Ok(())) => {
                let bytes = batch.contents.len() as u64;
                metrics.datagrams_to_target.inc_by(count);
                metrics.bytes_to_target.udp.inc_by(bytes);
                metrics.forwarding.to_target.count(count, bytes);
            }
            // A full socket loses the newest, as a full router would.
            Poll::Ready(Err(_)) | Poll::Pending => {
                metrics.forwarding.dropped.target_full.inc_by(count);
            }
        }
    }
}

/// The way through the connection.
pub(crate) trait Tunnel {
    /// Takes what is not forwarded, and how it was marked.
    fn send(&self, batch: Batch<'_>, mark: Option<Ecn>);
    /// Whether nothing waits in it; whoever asks has waited for that already for this long.
    fn is_drained(&self, waited: Duration) -> bool;
}

/// The ids that are forwarded to the client; as many as the flow may register.
pub(super) struct Clients {
    /// Where the client is.
    address: SocketAddr,
    ids: Vec<Client>,
    /// For each of them what its packets begin with: many are looked through for every packet of another flow.
    beginnings: Vec<Beginning>,
}

/// Up to eight bytes of an id.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    bytes: u64,
    mask: u64,
}

struct Client {
    id: ConnectionId,
    alias: ConnectionId,
    /// Its first packets went through the tunnel, and might be overtaken until then.
    settling: Option<Instant>,
    /// The kernel was asked to forward them.
    offered: bool,
    /// Does so.
    kernel: Option<Entry>,
    _counted: Up,
}

impl Client {
    fn settled(&mut self, tunnel: &impl Tunnel) -> Option<&mut Self> {
        let waits = |until: &mut Instant| {
            let left = until.saturating_duration_since(Instant::now());
            !left.is_zero() && !tunnel.is_drained(SETTLING.saturating_sub(left))
        };
        self.settling.take_if(|until| !waits(until));
        self.settling.is_none().then_some(self)
    }

    /// The next packets need not come here, if the kernel can do it.
    fn offer(&mut self, flow: &Forwarding, address: SocketAddr) {
        if flow.may_enter_kernel() && !self.offered {
            self.offered = true;
            self.kernel = flow.enter_from_target(address, &self.id, &self.alias);
        }
    }

    fn tend(&mut self, stay: bool) {
        if stay {
            self.kernel.iter_mut().for_each(Entry::tend);
        } else if self.kernel.take().is_some() {
            self.offered = false;
        }
    }
}

impl Clients {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            ids: Vec::new(),
            beginnings: Vec::new(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.beginnings.clear();
    }

    pub(super) fn renew(
        &mut self,
        address: SocketAddr,
        ids: impl Iterator<Item = (ConnectionId, ConnectionId)>,
        open: &Level,
    ) {
        let moved = self.address != address;
        self.address = address;
        let mut before = std::mem::take(&mut self.ids);
        let until = Instant::now() + SETTLING;
        self.beginnings.clear();
        self.ids.extend(ids.map(|(id, alias)| {
            let mut known = before.iter_mut().find(|client| client.alias == alias);
            let kernel = known.as_mut().filter(|_| !moved);
            let kernel = kernel.and_then(|client| client.kernel.take());
            Client {
                id,
                alias,
                settling: known.map_or(Some(until), |client| client.settling),
                offered: kernel.is_some(),
                kernel,
                _counted: Up::new(open),
            }
        }));
        let ids = self.ids.iter();
        let beginnings = ids.map(|client| Beginning::of(&client.id));
        self.beginnings.extend(beginnings);
    }

    /// Looks after what the kernel does for them, or ends that.
    pub(super) fn tend(&mut self, stay: bool) {
        for client in &mut self.ids {
            client.tend(stay);
        }
    }

    /// Which of the ids a packet has; ids of one flow do not conflict, so that it is one at most.
    fn find(&self, packet: &[u8]) -> Option<usize> {
        let word = word(packet.get(1..)?);
        let mut candidates = self.beginnings.iter().zip(&self.ids);
        candidates.position(|(beginning, client)| {
            word & beginning.mask == beginning.bytes && has_id(packet, &client.id)
        })
    }

    fn takes(&self, last: Option<usize>, packet: &[u8]) -> bool {
        match last.and_then(|at| self.ids.get(at)) {
            Some(client) => has_id(packet, &client.id),
            None => self.find(packet).is_none(),
        }
    }

    /// The id of the packet at `at`, and where the packets end that are treated alike.
    fn run(&mut self, received: &[u8], at: usize, segment: usize) -> (Option<&mut Client>, usize) {
        let mut packets = received.get(at..).unwrap_or_default().chunks(segment);
        let first = packets.next().unwrap_or_default();
        let client = self.find(first);
        let more = packets.take_while(|packet| self.takes(client, packet));
        let end = at + first.len() + more.map(<[u8]>::len).sum::<usize>();
        (client.and_then(|at| self.ids.get_mut(at)), end)
    }
}

impl Beginning {
    fn of(id: &[u8]) -> Self {
        let ones = [u8::MAX; 8];
        Self {
            bytes: word(id),
            mask: word(ones.get(..id.len()).unwrap_or(&ones)),
        }
    }
}

/// The first eight bytes, or as many as there are.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

impl Forwarding {
    /// Whether a batch from the target may have packets to be forwarded.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Forwards what is to be forwarded of a batch; the rest is handed to `tunnel`, in order.
    pub(crate) fn down(
        &self,
        contents: &mut [u8],
        segment: usize,
        ecn: Option<Ecn>,
        tunnel: &impl Tunnel,
    ) {
        let mut clients = self.clients();
        let here = self.client_connection.address() == clients.address;
        if !here || contents.is_empty() {
            drop(clients);
            self.look_around();
            return tunnel.send(Batch { contents, segment }, ecn);
        }
        let towards = Towards {
            destination: clients.address,
            source: self.client_connection.source(),
            ecn,
        };
        let mut at = 0;
        while at < contents.len() {
            let (client, end) = clients.run(contents, at, segment);
            let Some(run) = contents.get_mut(at..end) else {
                return;
            };
            let ready = |client: &&mut Client| self.is_long_enough(client, run, segment);
            let client = client.filter(ready);
            match client.and_then(|client| client.settled(tunnel)) {
                Some(client) => {
                    self.to_client(client, run, segment, towards);
                    client.offer(self, towards.destination);
                }
                _ => {
                    let batch = Batch {
                        contents: run,
                        segment,
                    };
                    tunnel.send(batch, ecn);
                }
            }
            at = end;
        }
    }

    /// Whether all packets of a run can be sealed. What cannot is no packet of QUIC version 1: the tunnel carries it.
    fn is_long_enough(&self, client: &Client, run: &[u8], segment: usize) -> bool {
        let last = run.len() % segment;
        let shortest_here = if last > 0 { last } else { segment };
        shortest_here >= shortest(&self.transform, client.id.len())
    }

    fn to_client(&self, client: &Client, run: &mut [u8], segment: usize, towards: Towards) {
        let (bytes, count) = (run.len(), run.len().div_ceil(segment));
        let refused = ROOM.with_borrow_mut(|room| {
            let (contents, segment) = readdress(run, segment, client.id.len(), &client.alias, room);
            // Each is long enough. Nothing leaves that is not sealed.
            let seal = |packet| self.transform.seal(packet, client.alias.len()).is_ok();
            if contents.chunks_mut(segment).all(seal) {
                self.client_connection
                    .forwarder
                    .send(contents, segment, towards)
            } else {
                count
            }
        });
        self.sent(count - refused, bytes.saturating_sub(refused * segment));
        if refused > 0 {
            let dropped = &self.ledger.metrics.forwarding.dropped;
            dropped.client_full.inc_by(refused as u64);
        }
    }

    fn sent(&self, count: usize, bytes: usize) {
        let metrics = &self.ledger.metrics;
        metrics.datagrams_to_client.inc_by(count as u64);
        let forwarded = &metrics.forwarding.to_client;
        forwarded.count(count as u64, bytes as u64);
    }
}

/// The shortest packet, in bytes, that can be transformed with an id of `id` bytes.
fn shortest(transform: &Transform, id: usize) -> usize {
    match transform {
        Transform::Identity => 1 + id,
        Transform::Scramble(_) => 1 + id + BLOCK,
    }
}

/// How many bytes of a batch of `len` are packets of at least `least`: only the last packet may be shorter than the others.
fn usable(len: usize, segment: usize, least: usize) -> usize {
    let last = len % segment;
    if len.min(segment) < least {
        0
    } else if last < least {
        len - last
    } else {
        len
    }
}

/// Whether a packet has a short header with `id`.
fn has_id(packet: &[u8], id: &[u8]) -> bool {
    let head = packet.split_first();
    head.is_some_and(|(first, rest)| first & 0x80 == 0 && rest.starts_with(id))
}

/// Puts `id` in place of the first `old` bytes behind the first one of each packet. Returns the packets and their size.
/// Each has more than `old` bytes. If its length changes, they are copied to `room` once.
fn readdress<'a>(
    contents: &'a mut [u8],
    segment: usize,
    old: usize,
    id: &[u8],
    room: &'a mut Vec<u8>,
) -> (&'a mut [u8], usize) {
    if id.len() == old {
        for packet in contents.chunks_mut(segment) {
            if let Some(place) = packet.get_mut(1..=old) {
                place.copy_from_slice(id);
            }
        }
        return (contents, segment);
    }
    room.clear();
    for packet in contents.chunks(segment) {
        if let (Some(first), Some(rest)) = (packet.get(..1), packet.get(1 + old..)) {
            room.extend_from_slice(first);
            room.extend_from_slice(id);
            room.extend_from_slice(rest);
        }
    }
    (room, segment + id.len() - old)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{super::registrations::random_id, *};

    struct Queue(bool);

    impl Tunnel for Queue {
        fn send(&self, _: Batch<'_>, _: Option<Ecn>) {}
        fn is_drained(&self, _: Duration) -> bool {
            self.0
        }
    }

    fn clients(ids: &[(ConnectionId, ConnectionId)]) -> Clients {
        let mut clients = Clients::new((Ipv4Addr::LOCALHOST, 1).into());
        clients.renew(clients.address(), ids.iter().copied(), &Level::default());
        clients
    }

    #[test]
    fn packets_with_a_new_id_overtake_none_that_still_wait_in_the_tunnel() {
        let pair = || (random_id(8).unwrap(), random_id(8).unwrap());
        let (old, new) = (pair(), pair());
        let mut clients = clients(&[old]);
        let [waits, drained] = [Queue(false), Queue(true)];
        assert!(clients.ids[0].settled(&waits).is_none());
        assert!(clients.ids[0].settled(&drained).is_some());
        clients.renew(clients.address(), [old, new].into_iter(), &Level::default());
        assert!(clients.ids[0].settled(&waits).is_some(), "once is enough");
        assert!(clients.ids[1].settled(&waits).is_none());
        clients.ids[1].settling = Some(Instant::now());
        assert!(clients.ids[1].settled(&waits).is_some(), "not for ever");
    }

    #[test]
    fn each_packet_is_found_by_its_own_id_whatever_the_lengths() {
        let ids: [&[u8]; 5] = [
            b"a",
            b"bcd",
            b"12345678",
            b"123456790",
            b"12345679123456789012",
        ];
        let pairs = ids.map(|id| (ConnectionId::new(id).unwrap(), random_id(8).unwrap()));
        let clients = clients(&pairs);
        let found = |packet: &[u8]| clients.find(packet).map(|at| clients.ids[at].id.to_vec());
        for id in ids {
            let packet = [b"\x40", id, b"rest"].concat();
            assert_eq!(found(&packet).as_deref(), Some(id));
        }
        for packet in [&b""[..], b"\x40", b"\x40bc", b"\x40123456791", b"\xc0a"] {
            assert_eq!(found(packet), None, "{packet:?}");
        }
    }

    /// Packets of these sizes, each with the id `old`.
    fn batch(old: &[u8], sizes: &[usize]) -> Vec<u8> {
        let packet = |(at, size): (usize, &usize)| {
            let mut packet = vec![0x40 | u8::try_from(at).unwrap()];
            packet.extend_from_slice(old);
            packet.resize(*size, 7);
            packet
        };
        sizes.iter().enumerate().flat_map(packet).collect()
    }

    #[test]
    fn ids_of_any_lengths_are_exchanged_in_every_packet() {
        for (old, new) in [(8, 8), (8, 0), (0, 8), (20, 8), (8, 20)] {
            let (old, new) = (vec![1; old], vec![2; new]);
            let sizes = [30, 30, 25];
            let mut contents = batch(&old, &sizes);
            let wanted = batch(&new, &sizes.map(|size| size + new.len() - old.len()));
            let mut room = Vec::new();
            let (got, segment) = readdress(&mut contents, 30, old.len(), &new, &mut room);
            assert_eq!(got, wanted);
            assert_eq!(segment, 30 + new.len() - old.len());
        }
    }

    #[test]
    fn an_id_of_the_same_length_is_exchanged_in_place() {
        let mut contents = batch(&[1; 8], &[30, 30]);
        let mut room = Vec::new();
        readdress(&mut contents, 30, 8, &[2; 8], &mut room);
        assert_eq!(room.capacity(), 0);
        assert_eq!(contents, batch(&[2; 8], &[30, 30]));
    }

    #[test]
    fn a_last_packet_that_is_too_short_is_left_off() {
        assert_eq!(usable(60, 30, 25), 60);
        assert_eq!(usable(70, 30, 25), 60);
        assert_eq!(usable(85, 30, 25), 85);
        assert_eq!(usable(24, 24, 25), 0);
        assert_eq!(usable(25, 30, 25), 25);
        assert_eq!(usable(0, 30, 25), 0);
    }

    #[test]
    fn only_short_headers_have_an_id() {
        assert!(has_id(b"\x40abc", b"ab") && has_id(b"\x00abc", b"abc"));
        assert!(has_id(b"\x40", b"") && !has_id(b"", b""));
        assert!(!has_id(b"\xc0abc", b"ab") && !has_id(b"\x40abc", b"abcd"));
    }
}
