//! One client: circuits over paths of its own choice, and fetches over them, each with an isolation token of its own.

use std::{io, net::SocketAddr, sync::Arc};

use hoplite_channel::{ChannelDialer, Channels, Counts, How, handshake::Us};
use hoplite_onion::{Config, Onion, channel::Linked};
use hoplite_overlay::{Error, Isolation, Overlay, Stream, Terms};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    net::{
        Network, Node,
        tcp::{Listener, TcpStream},
    },
    paths::{Chooser, Listed},
    random::{CELLS, Random},
    relay::{Host, sweep},
    report::{Book, Kind, Page},
    run::{Ground, Settings},
};

/// Tokens whose circuits a client keeps when their fetches are over: no other fetch may have them.
const TOKENS: usize = 2;

/// What a client needs to know.
pub(crate) struct ClientNode {
    pub(crate) number: usize,
    pub(crate) node: Node,
    pub(crate) settings: Arc<Settings>,
    pub(crate) targets: Arc<[Node]>,
    pub(crate) book: Arc<Book>,
    pub(crate) random: Random,
}

impl ClientNode {
    /// Begins some time within the warm-up, and fetches until it is dropped.
    pub(crate) async fn run(
        mut self,
        network: Network,
        ground: Ground,
        listed: Arc<Listed>,
        counts: Arc<Counts>,
    ) {
        let late = self.random.within(self.settings.warm_up);
        sleep(late).await;
        let onion = self.onion(&network, &ground, &listed, counts);
        let traffic = self.settings.traffic;
        let (kind, bytes, mean) = if self.random.happens(traffic.bulk) {
            (Kind::Bulk, traffic.bulk_bytes, traffic.bulk_pause)
        } else {
            (Kind::Web, traffic.web_bytes, traffic.web_pause)
        };
        for fetch in 0u64.. {
            self.fetch(&onion, kind, bytes, fetch).await;
            let pause = self.random.pause(mean);
            sleep(pause).await;
        }
    }

    fn onion(
        &mut self,
        network: &Network,
        ground: &Ground,
        listed: &Arc<Listed>,
        counts: Arc<Counts>,
    ) -> Onion {
        let host = Arc::new(Host::new(network, self.node));
        let link = ground.link_of(self.random.bytes());
        let dialer = ChannelDialer::new(host, Us::default(), &link, ground.channel.clone(), counts);
        let channels = Channels::new(dialer, drop);
        tokio::spawn(sweep(channels.clone()));
        let random = Random::new(self.settings.seed, "paths", self.number);
        let distance = |relay| network.latency(self.node, relay);
        let paths = Chooser::new(listed, self.settings.hops, random, &self.book, distance);
        let config = Config {
            congestion_control: self.settings.congestion_control,
            conflux: self.settings.conflux,
            ahead: self.settings.ahead,
            isolated: TOKENS,
            random: CELLS,
            ..Config::default()
        };
        let how: How = self.settings.channel;
        Onion::new(
            Arc::new(Linked::new(channels, how)),
            Arc::new(paths),
            config,
        )
    }

    async fn fetch(&mut self, onion: &Onion, kind: Kind, bytes: u64, number: u64) {
        let targets = u64::try_from(self.targets.len()).unwrap_or(u64::MAX);
        let chosen = usize::try_from(self.random.below(targets)).unwrap_or(0);
        let Some(node) = self.targets.get(chosen) else {
            return;
        };
        let to = Target::from(target_address(*node));
        let terms = Terms {
            isolation: Isolation::new(number.to_be_bytes().to_vec()),
            ..Terms::default()
        };
        let page = self.book.begin(self.number, kind, bytes);
        let patience = self.settings.traffic.patience;
        let done = timeout(patience, fetch(onion, &to, &terms, bytes, &page)).await;
        page.end(match done {
            Ok(Ok(())) => "done",
            Ok(Err(error)) => error,
            Err(_) => "given up",
        });
    }
}

async fn fetch(
    onion: &Onion,
    to: &Target,
    terms: &Terms,
    bytes: u64,
    page: &Page,
) -> Result<(), &'static str> {
    let stream = onion.open_stream(to, terms).await;
    let mut stream = stream.map_err(|error| kind(&error))?;
    page.opened();
    read(&mut stream, bytes, page)
        .await
        .map_err(|_| "broken off")
}

async fn read(stream: &mut Stream, bytes: u64, page: &Page) -> io::Result<()> {
    stream.write_all(&target_request(bytes)).await?;
    let mut left = bytes;
    while left > 0 {
        let got = stream.fill_buf().await?.len();
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        stream.consume(got);
        page.read(got);
        left = left.saturating_sub(u64::try_from(got).unwrap_or(left));
    }
    page.whole();
    stream.shutdown().await
}

/// What kind of error it is, in a word.
fn kind(error: &Error) -> &'static str {
    use hoplite_overlay::ErrorKind as Kind;
    match error.kind() {
        Kind::EntryUnreachable => "entry unreachable",
        Kind::PathFailed => "path failed",
        Kind::TargetFailed => "target failed",
        Kind::TimedOut => "timed out",
        _ => "failed",
    }
}

// Servers that clients fetch from: eight bytes say how many are wanted, and this many come.

/// Where they listen.
const PORT: u16 = 80;

/// What is written at once.
static CHUNK: [u8; 16 << 10] = [b'.'; 16 << 10];

/// Where a target listens.
pub(crate) fn target_address(node: Node) -> SocketAddr {
    SocketAddr::new(Network::address(node), PORT)
}

/// What a client sends to have `bytes`.
pub(crate) const fn target_request(bytes: u64) -> [u8; 8] {
    bytes.to_be_bytes()
}

/// Serves for ever.
pub(crate) async fn serve_target(network: Network, node: Node) {
    let mut listener = Listener::at(&network, target_address(node));
    let mut guests = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = guests.join_next() => {}
            accepted = listener.accept() => match accepted {
                Some((stream, _)) => drop(guests.spawn(answer(stream))),
                None => return,
            },
        }
    }
}

async fn answer(mut stream: TcpStream) {
    // An exit that goes away midway is nothing to a server.
    send(&mut stream).await.ok();
}

async fn send(stream: &mut TcpStream) -> io::Result<()> {
    let mut left = stream.read_u64().await?;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK.len());
        stream
            .write_all(CHUNK.get(..now).unwrap_or_default())
            .await?;
        left = left.saturating_sub(u64::try_from(now).unwrap_or(left));
    }
    stream.shutdown().await?;
    let mut rest = [0; 64];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
