use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout},
};

use super::{
    super::{Access, Place},
    *,
};

const FAST: Access = Access {
    up: 12_500_000,
    down: 12_500_000,
    queue: 1 << 20,
};

async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = timeout(Duration::from_secs(3600), work).await;
    done.expect("it hangs")
}

struct World {
    network: Network,
    near: Node,
    listener: Listener,
    there: SocketAddr,
}

impl World {
    fn new(loss: f64, access: Access) -> Self {
        let network = Network::new(1, loss);
        let near = network.add(Place::apart(25.0), access);
        let far = network.add(Place::apart(25.0), access);
        let there = SocketAddr::new(Network::address(far), 80);
        let listener = Listener::at(&network, there);
        Self {
            network,
            near,
            listener,
            there,
        }
    }

    async fn pair(&mut self) -> (TcpStream, TcpStream) {
        let connecting = TcpStream::connect(&self.network, self.near, self.there);
        let (near, far) = tokio::join!(soon(connecting), soon(self.listener.accept()));
        (near.expect("connects"), far.expect("comes").0)
    }

    /// How long `bytes` take from the far end to the near one, which sees that they are unchanged.
    async fn download(&mut self, bytes: usize) -> Duration {
        let (mut near, mut far) = self.pair().await;
        let begun = Instant::now();
        let data: Vec<u8> = (0..=250).cycle().take(bytes).collect();
        let sent = data.clone();
        let sending = tokio::spawn(async move {
            far.write_all(&sent).await.expect("taken");
            far.shutdown().await.expect("taken");
            let mut rest = Vec::new();
            far.read_to_end(&mut rest).await.expect("an end");
        });
        let mut got = Vec::new();
        soon(near.read_to_end(&mut got)).await.expect("an end");
        assert!(got == data, "{} bytes came", got.len());
        let took = begun.elapsed();
        near.shutdown().await.expect("taken");
        soon(sending).await.expect("no panic");
        took
    }
}

#[tokio::test(start_paused = true)]
async fn a_handshake_takes_one_round_trip_and_slow_start_some_more() {
    let mut world = World::new(0.0, FAST);
    let begun = Instant::now();
    drop(world.pair().await);
    assert!((100..=102).contains(&begun.elapsed().as_millis()));
    let took = world.download(1_000_000).await;
    // 10, 20, 40 ... segments a round trip: the 691 need seven round trips, which overlap by half.
    assert!((500..800).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_long_download_has_the_rate_of_the_line() {
    let mut world = World::new(0.0, FAST);
    let took = world.download(50_000_000).await;
    // 4 s, and headers, and slow start with its overflow.
    assert!((4100..6000).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn everything_arrives_in_order_although_much_is_lost() {
    for loss in [0.01, 0.1, 0.3] {
        let mut world = World::new(loss, FAST);
        let bytes = if loss < 0.2 { 1_000_000 } else { 30_000 };
        let took = world.download(bytes).await;
        assert!(took > Duration::from_millis(100), "{took:?}");
        assert!(world.network.ledger().is_balanced());
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_halts_what_comes_after_it() {
    let mut clean = World::new(0.0, FAST);
    let mut lossy = World::new(0.02, FAST);
    let (clean, lossy) = (
        clean.download(3_000_000).await,
        lossy.download(3_000_000).await,
    );
    assert!(lossy > clean * 3 / 2, "{lossy:?}, {clean:?} without");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_stops_the_writer_and_goes_on_where_it_was() {
    let mut world = World::new(0.01, FAST);
    let (mut near, mut far) = world.pair().await;
    let mut written = 0;
    let chunk = [3; 10_000];
    while timeout(Duration::from_secs(20), far.write_all(&chunk))
        .await
        .is_ok()
    {
        written += chunk.len();
    }
    let both = 2 * usize::try_from(RECEIVE_BUFFER).expect("small");
    assert!(written <= both + SEGMENT, "{written}");
    sleep(Duration::from_secs(300)).await;
    let mut got = vec![0; written];
    soon(near.read_exact(&mut got)).await.expect("open");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_there_is_told_from_who_does_not_listen() {
    use hoplite_overlay::Reason;
    let world = World::new(0.0, FAST);
    let nobody = SocketAddr::new(world.there.ip(), 81);
    let connect = |there| TcpStream::connect(&world.network, world.near, there);
    let error = soon(connect(nobody)).await.expect_err("nobody");
    assert_eq!(error.reason(), Some(Reason::Refused));
    world.network.remove(Node(1));
    let begun = Instant::now();
    let error = soon(connect(world.there)).await.expect_err("gone");
    assert_eq!(error.reason(), Some(Reason::HostUnreachable));
    assert_eq!(begun.elapsed().as_secs(), 15);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_midway_is_reset_and_one_whose_peer_is_gone_ends_in_time() {
    let mut world = World::new(0.0, FAST);
    let (near, mut far) = world.pair().await;
    drop(near);
    sleep(Duration::from_secs(1)).await;
    let mut byte = [0];
    soon(far.read(&mut byte)).await.expect_err("reset");
    let (mut near, _far) = world.pair().await;
    world.network.remove(Node(1));
    near.write_all(b"hello").await.expect("taken");
    soon(near.read(&mut byte)).await.expect_err("given up");
}
