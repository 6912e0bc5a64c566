//! What somebody sees who watches the wire between two relays: packets of one connection, whose sizes are those of whole cells, whatever streams
//! programs open, use and close.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use hoplite_channel::How;
use hoplite_onion::Onion;
use hoplite_overlay::{Stream, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{soon, targets};
use hoplite_wire::{cell, forwarding};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    task::AbortHandle,
    time::sleep,
};

use crate::support::{client, echo, open, path, relays, token};

const N: usize = 1 << 20;
/// A short header, the tag, the heads of frames and acknowledgements: what a packet has besides cells.
const BESIDES: usize = 130;
/// A packet without a cell has no more bytes: acknowledgements, credit, new connection ids.
const BARE: usize = 200;
/// The search for the path's packet size has packets of its own, from here on.
const PROBE: usize = 1200;

/// A wire into which one looks; it ends when this is dropped.
struct Wire {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    pumps: Arc<Mutex<Vec<AbortHandle>>>,
}

/// What was seen since the last look.
#[derive(Debug, Default)]
struct Seen {
    /// The sizes of packets with a short header, from the dialling relay and towards it.
    sizes: [Vec<usize>; 2],
    /// Connections, by the id that whoever dialled chose for itself.
    connections: HashSet<Vec<u8>>,
    /// Ports that were dialled from.
    dialled_from: HashSet<SocketAddr>,
}

/// What a size tells of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// No cell.
    Bare,
    /// This many whole cells, as far as it can be told.
    Cells(usize),
    /// Of the search for the path's packet size, or so full of cells that a part of one does not fit.
    Full,
    /// A size that no cells have.
    Odd(usize),
}

impl Kind {
    fn of(size: usize) -> Self {
        let cells = size / cell::LEN;
        match size {
            ..=BARE => Self::Bare,
            PROBE.. => Self::Full,
            _ if cells > 0 && size % cell::LEN <= BESIDES => Self::Cells(cells),
            _ => Self::Odd(size),
        }
    }
}

impl Seen {
    fn note(&mut self, way: usize, packet: &[u8], from: SocketAddr) {
        if way == 0 {
            self.dialled_from.insert(from);
        }
        match forwarding::long_header_ids(packet) {
            Some(ids) if way == 0 => drop(self.connections.insert(ids.source.to_vec())),
            Some(_) => {}
            None => self
                .sizes
                .iter_mut()
                .skip(way)
                .take(1)
                .for_each(|sizes| sizes.push(packet.len())),
        }
    }

    fn bytes(&self) -> [usize; 2] {
        self.sizes.each_ref().map(|sizes| sizes.iter().sum())
    }

    fn kinds(&self) -> HashSet<Kind> {
        self.sizes
            .iter()
            .flatten()
            .map(|size| Kind::of(*size))
            .collect()
    }
}

impl Wire {
    async fn to(relay: SocketAddr) -> Self {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("bound"));
        let wire = Self {
            address: front.local_addr().expect("bound"),
            seen: Arc::default(),
            pumps: Arc::default(),
        };
        let up = up(
            front,
            relay,
            Arc::clone(&wire.seen),
            Arc::clone(&wire.pumps),
        );
        wire.pumps.lock().push(tokio::spawn(up).abort_handle());
        wire
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

type Pumps = Arc<Mutex<Vec<AbortHandle>>>;

/// From whoever dials to the relay, by a socket for each.
async fn up(front: Arc<UdpSocket>, relay: SocketAddr, seen: Arc<Mutex<Seen>>, pumps: Pumps) {
    let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while let Ok((len, from)) = front.recv_from(&mut buffer).await {
        seen.lock().note(0, &buffer[..len], from);
        if let Entry::Vacant(new) = backs.entry(from) {
            let back = new.insert(Arc::new(behind(relay).await));
            let down = down(
                Arc::clone(&front),
                Arc::clone(back),
                from,
                Arc::clone(&seen),
            );
            let down = tokio::spawn(down).abort_handle();
            pumps.lock().push(down);
        }
        drop(backs[&from].send(&buffer[..len]).await);
    }
}

async fn behind(relay: SocketAddr) -> UdpSocket {
    let back = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    back.connect(relay).await.expect("connected");
    back
}

async fn down(front: Arc<UdpSocket>, back: Arc<UdpSocket>, to: SocketAddr, seen: Arc<Mutex<Seen>>) {
    let mut buffer = vec![0; 65_536];
    while let Ok(len) = back.recv(&mut buffer).await {
        seen.lock().note(1, &buffer[..len], to);
        drop(front.send_to(&buffer[..len], to).await);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let pumps = self.pumps.lock();
        pumps.iter().for_each(AbortHandle::abort);
    }
}

/// Two relays with such a wire between them, and a client whose circuit over it stands.
async fn watched() -> (Wire, Onion, SocketAddr, [Handle; 2]) {
    let relays: [_; 2] = relays(How::Quic);
    let wire = Wire::to(relays[1].addresses()[0]).await;
    let mut path = path(&relays);
    path[1].addresses = vec![wire.address];
    let onion = client(path, How::Quic);
    let target = targets::tcp_echo().await;
    let stream = open(&onion, target, &Terms::default()).await;
    echo(stream.expect("opens"), 1000).await;
    (wire, onion, target, relays)
}

/// This many streams at once, of `each` bytes there and back; what was seen of it.
async fn carried(streams: u32, each: usize, isolated: bool) -> Seen {
    let (wire, onion, target, _relays) = watched().await;
    wire.seen().sizes = Default::default();
    let onion = Arc::new(onion);
    let mut all = tokio::task::JoinSet::new();
    for n in 0..streams {
        let (onion, terms) = (
            Arc::clone(&onion),
            if isolated { token(n) } else { Terms::default() },
        );
        all.spawn(async move {
            let stream = open(&onion, target, &terms).await;
            echo(stream.expect("opens"), each).await;
        });
    }
    soon(all.join_all()).await;
    std::mem::take(&mut *wire.seen())
}

#[tokio::test]
async fn the_same_bytes_look_the_same_on_one_stream_on_ten_and_on_ten_circuits() {
    let one = carried(1, N, false).await;
    for isolated in [false, true] {
        let ten = carried(10, N / 10, isolated).await;
        for seen in [&one, &ten] {
            assert_eq!(seen.connections.len(), 1);
            assert_eq!(seen.dialled_from.len(), 1);
        }
        for (one, ten) in one.bytes().into_iter().zip(ten.bytes()) {
            assert!(one >= N, "{one} bytes on the wire");
            // Cells that are not full, acknowledgements, repetitions: so much differs from run to run.
            assert!(one.abs_diff(ten) <= one / 3, "{one} bytes, and {ten}");
        }
    }
}

/// A cell each way.
async fn turn(stream: &mut Stream) {
    stream.write_all(b"hello").await.expect("taken");
    soon(stream.read_exact(&mut [0; 5])).await.expect("echoed");
}

#[tokio::test]
async fn opening_using_and_closing_a_stream_makes_packets_of_the_same_sizes() {
    let (wire, onion, target, _relays) = watched().await;
    let terms = Terms::default();
    let mut stream = open(&onion, target, &terms).await.expect("opens");
    let mut looks = Vec::new();
    for used in [true, false] {
        // What went before is acknowledged meanwhile.
        sleep(Duration::from_millis(300)).await;
        wire.seen().sizes = Default::default();
        for _ in 0..20 {
            if used {
                turn(&mut stream).await;
            } else {
                drop(open(&onion, target, &terms).await.expect("opens"));
            }
        }
        sleep(Duration::from_millis(300)).await;
        looks.push(std::mem::take(&mut wire.seen().sizes));
    }
    for sizes in looks {
        let seen = Seen {
            sizes,
            ..Seen::default()
        };
        let odd: Vec<Kind> = seen
            .kinds()
            .into_iter()
            .filter(|kind| matches!(kind, Kind::Odd(_)))
            .collect();
        assert!(odd.is_empty(), "{odd:?} in {seen:?}");
        assert!(seen.sizes.iter().all(|sizes| sizes.len() >= 20), "{seen:?}");
        assert!(seen.kinds().contains(&Kind::Cells(1)), "{seen:?}");
    }
}
