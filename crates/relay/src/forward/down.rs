//! From the target to the client, past the connection: packets with a registered id are readdressed in the receive buffer, sealed and sent.
//! The flow's way down calls it for each batch; what is not to be forwarded it hands back. draft-ietf-masque-quic-proxy, "Using Forwarded Mode".

use std::{
    cell::RefCell,
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use hoplite_link::server::{Ecn, Towards};
use hoplite_overlay::Batch;
use hoplite_wire::forwarding::SETTLING;

use super::{
    Forwarding, Id,
    packets::{has_id, readdress, shortest},
};
use crate::metrics::{Level, Up};

thread_local! {
    /// For packets whose ids change their length. A shard has one.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The way through the connection.
pub(crate) trait Tunnel {
    /// Takes what is not forwarded.
    fn send(&self, batch: Batch<'_>);
    /// Whether nothing waits in it; who asks has waited for that already for so long.
    fn is_drained(&self, waited: Duration) -> bool;
}

/// The ids that are forwarded to the client; as many as the flow may register.
#[derive(Debug)]
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
    octets: u64,
    mask: u64,
}

#[derive(Debug)]
struct Client {
    id: Id,
    alias: Id,
    /// Its first packets went through the tunnel, and might be overtaken until then.
    settling: Option<Instant>,
    _counted: Up,
}

impl Client {
    fn settled(&mut self, tunnel: &impl Tunnel) -> Option<&Self> {
        let waits = |until: &mut Instant| {
            let left = until.saturating_duration_since(Instant::now());
            !left.is_zero() && !tunnel.is_drained(SETTLING.saturating_sub(left))
        };
        self.settling.take_if(|until| !waits(until));
        self.settling.is_none().then_some(self)
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
        ids: impl Iterator<Item = (Id, Id)>,
        open: &Level,
    ) {
        self.address = address;
        let before = std::mem::take(&mut self.ids);
        let until = Instant::now() + SETTLING;
        self.beginnings.clear();
        self.ids.extend(ids.map(|(id, alias)| {
            let known = before.iter().find(|client| client.alias == alias);
            Client {
                id,
                alias,
                settling: known.map_or(Some(until), |client| client.settling),
                _counted: Up::new(open),
            }
        }));
        let ids = self.ids.iter();
        let beginnings = ids.map(|client| Beginning::of(&client.id));
        self.beginnings.extend(beginnings);
    }

    /// Which of the ids a packet has; ids of one flow do not conflict, so that it is one at most.
    fn find(&self, packet: &[u8]) -> Option<usize> {
        let word = word(packet.get(1..)?);
        let mut candidates = self.beginnings.iter().zip(&self.ids);
        candidates.position(|(beginning, client)| {
            word & beginning.mask == beginning.octets && has_id(packet, &client.id)
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
            octets: word(id),
            mask: word(ones.get(..id.len()).unwrap_or(&ones)),
        }
    }
}

/// The first eight bytes, or as many as there are.
fn word(octets: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(octets) {
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
        let here = self.road.address() == clients.address;
        if !here || contents.is_empty() {
            drop(clients);
            self.look_around();
            return tunnel.send(Batch { contents, segment });
        }
        let towards = Towards {
            destination: clients.address,
            source: self.road.source(),
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
                Some(client) => self.to_client(client, run, segment, towards),
                _ => tunnel.send(Batch {
                    contents: run,
                    segment,
                }),
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
        let (octets, count) = (run.len(), run.len().div_ceil(segment));
        let refused = ROOM.with_borrow_mut(|room| {
            let (contents, segment) = readdress(run, segment, client.id.len(), &client.alias, room);
            // Each is long enough. Nothing leaves that is not sealed.
            let seal = |packet| self.transform.seal(packet, client.alias.len()).is_ok();
            match contents.chunks_mut(segment).all(seal) {
                true => self.road.forwarder.send(contents, segment, towards),
                false => count,
            }
        });
        self.sent(count - refused, octets.saturating_sub(refused * segment));
        if refused > 0 {
            let dropped = &self.ledger.metrics.forwarding.dropped;
            dropped.client_full.inc_by(refused as u64);
        }
    }

    fn sent(&self, count: usize, octets: usize) {
        let metrics = &self.ledger.metrics;
        metrics.datagrams_to_client.inc_by(count as u64);
        let forwarded = &metrics.forwarding.to_client;
        forwarded.count(count as u64, octets as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    struct Queue(bool);

    impl Tunnel for Queue {
        fn send(&self, _: Batch<'_>) {}
        fn is_drained(&self, _: Duration) -> bool {
            self.0
        }
    }

    fn clients(ids: &[(Id, Id)]) -> Clients {
        let mut clients = Clients::new((Ipv4Addr::LOCALHOST, 1).into());
        clients.renew(clients.address(), ids.iter().copied(), &Level::default());
        clients
    }

    #[test]
    fn packets_with_a_new_id_overtake_none_that_still_wait_in_the_tunnel() {
        let pair = || (Id::random(8).unwrap(), Id::random(8).unwrap());
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
        let pairs = ids.map(|id| (Id::new(id).unwrap(), Id::random(8).unwrap()));
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
}
