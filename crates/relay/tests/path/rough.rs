//! The device's own sockets behind a network that loses, reorders, swallows what is forwarded, or gives out new addresses.

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker, ready},
};

use hoplite_overlay::{
    Batch, Datagrams, Error, Overlay, Received,
    direct::{Direct, UdpSettings, connect_udp},
};
use hoplite_testing::Double;
use hoplite_wire::forwarding::long_header_ids;
use parking_lot::{Mutex, MutexGuard};

/// Every this many datagrams one is lost, and one changes places with the next.
const LOST: u64 = 50;
const SWAPPED: u64 = 20;

/// What the network does now.
#[derive(Debug, Default)]
pub(crate) struct RoughNetwork {
    /// Some are lost and some change places, in both directions.
    pub(crate) bumpy: AtomicBool,
    /// What is no packet of the first link's own vanishes, in both directions.
    pub(crate) swallows: AtomicBool,
    /// How often an address translator has forgotten the binding; nobody is told.
    pub(crate) rebound: AtomicU64,
    /// How often the device has got another address, and knows.
    pub(crate) moved: AtomicU64,
    /// How many datagrams were swallowed.
    pub(crate) swallowed: AtomicU64,
    /// Bytes of UDP payloads that came from relays, and went to them.
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// All UDP vanishes.
    pub(crate) blocked: AtomicBool,
}

pub(crate) struct Rough {
    pub(crate) overlay: Arc<dyn Overlay>,
    pub(crate) rough: Arc<RoughNetwork>,
}

struct RoughFlow {
    rough: Arc<RoughNetwork>,
    peer: SocketAddr,
    moved: u64,
    state: Mutex<State>,
}

struct State {
    flow: Box<dyn Datagrams>,
    rebound: u64,
    count: u64,
    ready: VecDeque<Vec<u8>>,
    /// The ids of the link's own packets, sent and received: that of the handshake, and the first other one. A server leaves that of
    /// the handshake as soon as it has another, long before anything is forwarded.
    own: [Vec<Vec<u8>>; 2],
    waker: Option<Waker>,
}

impl Rough {
    pub(crate) fn new() -> Self {
        let rough = Arc::<RoughNetwork>::default();
        let network = Arc::clone(&rough);
        let overlay = Double::over(Direct::new()).datagrams(move |_, target, _| {
            let network = Arc::clone(&network);
            Box::pin(async move {
                let peer = target
                    .socket_addr()
                    .expect("relays of these tests have addresses");
                let flow = RoughFlow::open(network, peer).await?;
                Ok(Box::new(flow) as Box<dyn Datagrams>)
            })
        });
        let overlay = Arc::new(overlay);
        Self { overlay, rough }
    }
}

impl RoughFlow {
    async fn open(rough: Arc<RoughNetwork>, peer: SocketAddr) -> Result<Self, Error> {
        let flow = connect_udp(peer, &UdpSettings::default())?;
        flow.writable().await?;
        let state = State {
            flow: Box::new(flow),
            rebound: rough.rebound.load(SeqCst),
            count: 0,
            ready: VecDeque::new(),
            own: Default::default(),
            waker: None,
        };
        Ok(Self {
            peer,
            moved: rough.moved.load(SeqCst),
            rough,
            state: Mutex::new(state),
        })
    }

    /// The state, with a fresh socket if the translator forgot the old one.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let rebound = self.rough.rebound.load(SeqCst);
        if std::mem::replace(&mut state.rebound, rebound) != rebound {
            let fresh = connect_udp(self.peer, &UdpSettings::default()).expect("a socket");
            state.flow = Box::new(fresh);
            state
                .waker
                .take()
                .into_iter()
                .for_each(|waker| waker.wake());
        }
        state
    }
}

impl State {
    /// What gets through, and in which order; `direction` 0 is towards the relay.
    fn through<'p>(
        &mut self,
        rough: &RoughNetwork,
        direction: usize,
        packets: impl Iterator<Item = &'p [u8]>,
    ) -> Vec<Vec<u8>> {
        let mut through: Vec<Vec<u8>> = Vec::new();
        for packet in packets {
            if !self.passes(rough, direction, packet) {
                continue;
            }
            through.push(packet.to_vec());
            let last = through.len() - 1;
            if rough.bumpy.load(SeqCst) && self.count.is_multiple_of(SWAPPED) && last > 0 {
                through.swap(last, last - 1);
            }
        }
        through
    }

    fn passes(&mut self, rough: &RoughNetwork, direction: usize, packet: &[u8]) -> bool {
        let bytes = [&rough.sent, &rough.received][direction];
        bytes.fetch_add(packet.len() as u64, SeqCst);
        if rough.blocked.load(SeqCst) {
            return false;
        }
        if let Some(ids) = long_header_ids(packet) {
            self.own[1 - direction] = vec![ids.source.to_vec()];
            return true;
        }
        self.count += 1;
        if rough.bumpy.load(SeqCst) && self.count.is_multiple_of(LOST) {
            return false;
        }
        let own = self.is_own(direction, packet);
        if own || !rough.swallows.load(SeqCst) {
            return true;
        }
        rough.swallowed.fetch_add(1, SeqCst);
        false
    }

    /// Whether a packet with a short header is the link's own.
    fn is_own(&mut self, direction: usize, packet: &[u8]) -> bool {
        let own = &mut self.own[direction];
        let known = own.iter().any(|id| packet[1..].starts_with(id));
        if let ([handshake], false) = (&own[..], known) {
            let id = packet[1..=handshake.len()].to_vec();
            own.push(id);
            return true;
        }
        known
    }
}

impl Datagrams for RoughFlow {
    fn max_payload(&self) -> usize {
        self.state().flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.state();
        for packet in state.through(&self.rough, 0, batch.payloads()) {
            // What the socket does not take is lost as well.
            drop(state.flow.poll_send(cx, Batch::one(&packet)));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut state = self.state();
        state.waker = Some(cx.waker().clone());
        loop {
            if let Some(packet) = state.ready.pop_front() {
                buf[..packet.len()].copy_from_slice(&packet);
                let (len, segment) = (packet.len(), packet.len().max(1));
                return Poll::Ready(Ok(Received { len, segment }));
            }
            let mut all = vec![0; 1 << 16];
            let got = ready!(state.flow.poll_recv(cx, &mut all))?;
            let packets = all[..got.len].chunks(got.segment.max(1));
            let packets = state.through(&self.rough, 1, packets);
            state.ready.extend(packets);
        }
    }

    fn moved(&self) -> bool {
        self.moved != self.rough.moved.load(SeqCst)
    }
}

impl fmt::Debug for RoughFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoughFlow")
    }
}
