//! A wire between a client and a relay that can be tapped: it sends packets of its own from the client's address, keeps those with
//! given ids to itself, and can move the client to another address.

use std::{future::poll_fn, net::SocketAddr, sync::Arc, time::Duration};

use hoplite_overlay::{
    Batch, Datagrams,
    direct::{UdpFlow, UdpSettings, connect_udp},
};
use hoplite_quic::server::Ecn;
use hoplite_testing::soon;
use parking_lot::Mutex;
use tokio::{net::UdpSocket, sync::mpsc, task::AbortHandle};

/// Packets, their size, and how they are marked.
type Caught = (Vec<u8>, usize, Option<Ecn>);

/// The wire; it ends when this is dropped.
pub(crate) struct Tap {
    /// Where the client finds the relay.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    caught: mpsc::Receiver<Caught>,
    pumps: Vec<AbortHandle>,
}

struct Shared {
    relay: SocketAddr,
    front: UdpSocket,
    client: Mutex<Option<SocketAddr>>,
    back: Mutex<Arc<UdpFlow>>,
    ids: Mutex<Vec<Vec<u8>>>,
    catch: mpsc::Sender<Caught>,
}

/// Somebody whose address the client has taken.
pub(crate) struct Victim(Arc<UdpFlow>);

fn locked<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}

fn dial(relay: SocketAddr) -> Arc<UdpFlow> {
    Arc::new(connect_udp(relay, &UdpSettings::default()).expect("connected"))
}

impl Tap {
    pub(crate) async fn new(relay: SocketAddr) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        let (catch, caught) = mpsc::channel(1024);
        let shared = Arc::new(Shared {
            relay,
            client: Mutex::default(),
            back: Mutex::new(dial(relay)),
            ids: Mutex::default(),
            catch,
            front,
        });
        let mut tap = Self {
            address: shared.front.local_addr().expect("bound"),
            pumps: vec![tokio::spawn(up(shared.clone())).abort_handle()],
            shared,
            caught,
        };
        tap.pump_down();
        tap
    }

    fn pump_down(&mut self) {
        let back = locked(&self.shared.back).clone();
        let pump = tokio::spawn(down(self.shared.clone(), back));
        self.pumps.push(pump.abort_handle());
    }

    /// From now on packets to the client with this id are for the tap.
    pub(crate) fn catch(&self, id: &[u8]) {
        locked(&self.shared.ids).push(id.to_vec());
    }

    /// The next batch that was caught, and the size of its packets.
    pub(crate) async fn caught(&mut self) -> Caught {
        soon(self.caught.recv()).await.expect("open")
    }

    /// The next one, if there is one already.
    pub(crate) fn caught_already(&mut self) -> Option<Caught> {
        self.caught.try_recv().ok()
    }

    /// Sends packets of one size to the relay as the client would.
    pub(crate) async fn send(&self, contents: &[u8], segment: usize) {
        let back = locked(&self.shared.back).clone();
        send(&back, contents, segment, None).await;
    }

    /// Sends one, marked.
    pub(crate) async fn send_marked(&self, contents: &[u8], ecn: Ecn) {
        let back = locked(&self.shared.back).clone();
        send(&back, contents, contents.len(), Some(ecn)).await;
    }

    /// Sends them from somewhere else.
    pub(crate) async fn send_from_elsewhere(&self, contents: &[u8]) {
        send(&dial(self.shared.relay), contents, contents.len(), None).await;
    }

    /// The client has another address now; what is sent to the old one is lost.
    pub(crate) fn move_away(&mut self) {
        *locked(&self.shared.back) = dial(self.shared.relay);
        self.pump_down();
    }

    /// The client's packets have the address of somebody else now, who gets all answers.
    pub(crate) fn impersonate(&mut self) -> Victim {
        let flow = dial(self.shared.relay);
        *locked(&self.shared.back) = flow.clone();
        Victim(flow)
    }
}

impl Victim {
    /// The packets that it gets, up to a pause.
    pub(crate) async fn suffers(&self) -> Vec<Vec<u8>> {
        let (mut buffer, mut packets) = (vec![0; 65_536], Vec::new());
        let pause = Duration::from_millis(200);
        loop {
            let received = poll_fn(|cx| self.0.poll_recv_marked(cx, &mut buffer));
            let Ok(Ok((received, _))) = tokio::time::timeout(pause, received).await else {
                return packets;
            };
            let contents = buffer[..received.len].chunks(received.segment.max(1));
            packets.extend(contents.map(<[u8]>::to_vec));
        }
    }
}

async fn send(back: &UdpFlow, contents: &[u8], segment: usize, ecn: Option<Ecn>) {
    let batch = Batch { contents, segment };
    poll_fn(|cx| back.poll_send_marked(cx, batch, ecn))
        .await
        .expect("sent");
}

async fn up(shared: Arc<Shared>) {
    let mut buffer = vec![0; 65_536];
    while let Ok((len, client)) = shared.front.recv_from(&mut buffer).await {
        *locked(&shared.client) = Some(client);
        let back = locked(&shared.back).clone();
        send(&back, &buffer[..len], len, None).await;
    }
}

async fn down(shared: Arc<Shared>, back: Arc<UdpFlow>) {
    let mut buffer = vec![0; 65_536];
    while let Ok((received, ecn)) = poll_fn(|cx| back.poll_recv_marked(cx, &mut buffer)).await {
        if !Arc::ptr_eq(&back, &locked(&shared.back)) {
            return;
        }
        let contents = &buffer[..received.len];
        let mine = contents.first().is_some_and(|first| first & 0x80 == 0)
            && locked(&shared.ids)
                .iter()
                .any(|id| contents[1..].starts_with(id));
        if mine {
            drop(
                shared
                    .catch
                    .try_send((contents.to_vec(), received.segment, ecn)),
            );
            continue;
        }
        let client = *locked(&shared.client);
        for packet in contents.chunks(received.segment.max(1)) {
            drop(
                shared
                    .front
                    .send_to(packet, client.expect("it spoke first"))
                    .await,
            );
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.pumps.iter().for_each(AbortHandle::abort);
    }
}
