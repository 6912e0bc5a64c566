//! Associations where the overlay has UDP sockets at its far end.

use std::{
    future::pending,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{
    Batch, Bound, Datagrams, Direct, Error, ErrorKind, Opening, Overlay, Received, Stream, Terms,
    direct::BoundUdp,
};
use hoplite_testing::soon;
use hoplite_wire::{Target, socks::Endpoint};
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::timeout};

use super::{Program, associate_over, datagram, socket};
use crate::{Front, testing::config};

/// An overlay with UDP sockets at its far end, which is this host. Their flows hear nothing: what comes is all of strangers.
#[derive(Debug, Default)]
struct FarHost {
    opened: AtomicUsize,
    refuses: Option<ErrorKind>,
    last: Mutex<Option<Arc<FarSocket>>>,
}

#[derive(Debug)]
struct FarSocket {
    udp: BoundUdp,
    lost: AtomicBool,
}

#[derive(Debug)]
struct FarFlow(Arc<FarSocket>, SocketAddr);

impl Overlay for FarHost {
    fn open_stream<'a>(&'a self, _: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
        unreachable!("no streams")
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move { Direct::new().open_datagrams(target, terms).await })
    }

    fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        assert_eq!(name, "target.example");
        Box::pin(async { Ok(vec!["::1".parse().expect("v6"), [127, 0, 0, 1].into()]) })
    }

    fn open_bound<'a>(&'a self, _: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        self.opened.fetch_add(1, SeqCst);
        Box::pin(async move {
            if let Some(kind) = self.refuses {
                return Err(Error::new(kind, "a test"));
            }
            let udp = BoundUdp::bind([127, 0, 0, 1].into())?;
            udp.writable().await?;
            let lost = AtomicBool::new(false);
            let socket = Arc::new(FarSocket { udp, lost });
            *self.last.lock() = Some(Arc::clone(&socket));
            Ok(socket as Arc<dyn Bound>)
        })
    }
}

impl Bound for FarSocket {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.udp.local_addr()]
    }

    fn with(self: Arc<Self>, peer: SocketAddr) -> Box<dyn Datagrams> {
        Box::new(FarFlow(self, peer))
    }

    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(usize, SocketAddr), Error>> {
        let received = ready!(self.udp.poll_recv(cx, buf));
        Poll::Ready(received.map(|(received, from)| (received.len, from)))
    }

    fn is_open(&self) -> bool {
        !self.lost.load(SeqCst)
    }
}

impl Datagrams for FarFlow {
    fn max_payload(&self) -> usize {
        1200
    }

    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        if !self.0.is_open() {
            return Poll::Ready(Err(Error::new(ErrorKind::PathFailed, "a test")));
        }
        let sent = batch
            .payloads()
            .all(|payload| self.0.udp.send(payload, self.1));
        assert!(sent);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<Result<Received, Error>> {
        Poll::Pending
    }
}

/// A front before such an overlay, until the test ends.
async fn far(refuses: Option<ErrorKind>) -> (Arc<FarHost>, Program) {
    let overlay = Arc::new(FarHost {
        refuses,
        ..FarHost::default()
    });
    let front = Front::bind(config()).expect("binds");
    let socks = front.socks_addr().expect("bound");
    tokio::spawn(front.serve(Arc::clone(&overlay) as _, pending()));
    let tcp = TcpStream::connect(socks).await.expect("connects");
    let program = associate_over(tcp, socket().await, Endpoint::UNSPECIFIED).await;
    (overlay, program)
}

#[tokio::test]
async fn an_association_has_one_socket_at_the_far_end_for_names_addresses_and_strangers() {
    let (overlay, program) = far(None).await;
    let (first, second) = (socket().await, socket().await);
    let mut seen = Vec::new();
    let mut buf = [0; 100];
    for (target, host) in [(&first, "127.0.0.1"), (&second, "target.example")] {
        let port = target.local_addr().expect("bound").port();
        program
            .send(&datagram(&format!("{host}:{port}"), b"question"))
            .await;
        let (len, from) = soon(target.recv_from(&mut buf)).await.expect("came");
        assert_eq!(&buf[..len], b"question");
        seen.push(from);
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(overlay.opened.load(SeqCst), 1);
    let stranger = socket().await;
    let address = stranger.local_addr().expect("bound");
    stranger.send_to(b"hello", seen[0]).await.expect("sent");
    assert_eq!(
        program.recv().await,
        datagram(&address.to_string(), b"hello")
    );
}

#[tokio::test]
async fn a_socket_at_the_far_end_that_is_lost_is_replaced() {
    let (overlay, program) = far(None).await;
    let target = socket().await;
    let address = target.local_addr().expect("bound");
    let mut buf = [0; 100];
    program.send(&datagram(&address.to_string(), b"x")).await;
    let (_, first) = soon(target.recv_from(&mut buf)).await.expect("came");
    let lost = overlay.last.lock().clone();
    lost.expect("opened").lost.store(true, SeqCst);
    let second = loop {
        // The flow that failed keeps its place for a second.
        program.send(&datagram(&address.to_string(), b"x")).await;
        let again = timeout(Duration::from_millis(200), target.recv_from(&mut buf));
        if let Ok(received) = again.await {
            break received.expect("came").1;
        }
    };
    assert_ne!(second, first);
    assert_eq!(overlay.opened.load(SeqCst), 2);
}

#[tokio::test]
async fn without_sockets_at_the_far_end_each_target_has_a_flow_and_nobody_asks_again() {
    let (overlay, program) = far(Some(ErrorKind::Unsupported)).await;
    let mut buf = [0; 100];
    for _ in 0..3 {
        let target = socket().await;
        let address = target.local_addr().expect("bound");
        program.send(&datagram(&address.to_string(), b"x")).await;
        let (_, from) = soon(target.recv_from(&mut buf)).await.expect("came");
        target.send_to(b"y", from).await.expect("sent");
        assert_eq!(program.recv().await, datagram(&address.to_string(), b"y"));
    }
    assert_eq!(overlay.opened.load(SeqCst), 1);
}
