//! What the way of a cell costs: a client, three relays and a target in one process, a thread for each, over channels in memory, QUIC or TLS.
//! `cargo run --release -p hoplite-onion --example cells -- quic 512` prints one line of JSON: how fast one circuit is, and what each party's
//! thread used (CPU seconds for each gigabyte of the stream). With `tor1` as fifth argument the cells are encrypted so, else by CGO. It measures and
//! asserts nothing. docs/performance.md says how to run it.
//!
//! The target is part of the last relay's thread and costs next to nothing: what an exit's own socket costs is not in it.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "an experiment on the command line: it prints, and whatever fails ends it"
)]

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

use hoplite_channel::{
    self as link, ChannelDialer, ChannelServer, Channels, Counts, How, handshake::Us,
};
use hoplite_crypto::{
    ALPN_CHANNEL, Certificates, onion::OnionKey, onion::OnionKeys, onion::identity::RelayIdentity,
    server_tls,
};
use hoplite_link::server::{self, Shard};
use hoplite_onion::{
    Config, Onion,
    channel::{Channel, Dialer, Linked, Waiting, memory},
    path,
    relay::{self, Policy, serve},
};
use hoplite_overlay::{Direct, Error, Overlay, Stream, Terms};
use hoplite_quic::{Hooks, server::Secrets};
use hoplite_testing::{Double, identity};
use hoplite_wire::Protocols;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    runtime::{Builder, Handle},
};
use tokio_rustls::TlsAcceptor;

/// What the channels run over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Memory,
    Link(How),
}

/// A party: a thread with a runtime, and what it has used.
struct Party {
    handle: Handle,
    asked: mpsc::SyncSender<mpsc::SyncSender<Duration>>,
}

impl Party {
    fn start(name: &str) -> Self {
        let (tell, told) = mpsc::sync_channel(1);
        let (asked, asks) = mpsc::sync_channel::<mpsc::SyncSender<Duration>>(1);
        let asks = Mutex::new(asks);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let body = move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            tell.send(runtime.handle().clone()).expect("somebody waits");
            runtime.block_on(async move {
                loop {
                    // The question is put by a task, so that it is answered in this thread.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let asked = asks.lock().try_recv();
                    if let Ok(answer) = asked {
                        answer.send(used()).ok();
                    }
                }
            });
        };
        drop(thread.spawn(body).expect("a thread"));
        Self {
            handle: told.recv().expect("it runs"),
            asked,
        }
    }

    fn used(&self) -> Duration {
        let (answer, answered) = mpsc::sync_channel(1);
        self.asked.send(answer).expect("it runs");
        answered.recv().expect("it answers")
    }
}

/// What this thread has used of a processor.
fn used() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

/// A target that sends without end and takes all.
#[derive(Debug)]
struct Endless;

const ZEROS: &[u8] = &[0; 64 << 10];

impl AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buf.put_slice(&ZEROS[..buf.remaining().min(ZEROS.len())]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for Endless {
    fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Poll::Ready(Ok(ZEROS))
    }

    fn consume(self: Pin<&mut Self>, _: usize) {}
}

impl AsyncWrite for Endless {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// One relay, with what is needed to reach it.
struct Station {
    party: Party,
    relay: Arc<relay::Relay>,
    known: path::Relay,
}

/// Channels in memory: to each relay one, served by its own thread.
#[derive(Debug, Default)]
struct Memory {
    stations: Mutex<Vec<(Handle, Arc<relay::Relay>)>>,
}

impl Dialer for Memory {
    fn channel<'a>(
        &'a self,
        relay: &'a path::Relay,
    ) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(async move {
            let id = relay.keys.ed25519;
            let stations = self.stations.lock();
            let found = stations
                .iter()
                .find(|(_, there)| there.keys().published().ed25519 == id);
            let (handle, there) = found.expect("it is there");
            let (near, far) = memory::pair(Duration::ZERO, None, Some(id));
            handle.spawn(serve(far, Arc::clone(there)));
            Ok(near as Arc<dyn Channel>)
        })
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

fn linked(us: Us, how: How) -> Arc<dyn Dialer> {
    let link = hoplite_link::Config::default();
    let counts = Arc::<Counts>::default();
    let direct = Arc::new(Direct::default());
    let dialer = ChannelDialer::new(direct, us, &link, link::Config::default(), counts);
    Arc::new(Linked::new(Channels::new(dialer, drop), how))
}

/// Listens on a port of its own for channels, and serves them.
fn listen(party: &Party, us: Us, relay: &Arc<relay::Relay>) -> SocketAddr {
    let made = identity("relay.example");
    let certificates = Certificates::new(&made).expect("certificates");
    let tls = Arc::new(server_tls(certificates, &[ALPN_CHANNEL]).expect("a configuration"));
    let config = link::Config::default();
    let channels = ChannelServer::new(
        us,
        made.certificate_sha256(),
        config.clone(),
        Arc::default(),
    );
    let bound = server::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, 2 << 20).expect("a port");
    let address = bound.local_addr();
    let shard = bound.into_shards().remove(0);
    let transport = config
        .greeting(&hoplite_link::Config::default())
        .transport(0, 1472);
    let hooks = Hooks {
        window: Some(config.greeting_window.into()),
        ..Hooks::default()
    };
    let (relay, serving) = (Arc::clone(relay), tls.clone());
    party.handle.spawn(async move {
        let secrets = Secrets::generate().expect("randomness");
        let shard = shard.activate(tls, Arc::new(transport), &secrets, &hooks);
        accept(shard.expect("a shard"), channels, relay, serving).await;
    });
    address
}

async fn accept(
    shard: Shard,
    channels: ChannelServer,
    relay: Arc<relay::Relay>,
    tls: Arc<rustls::ServerConfig>,
) {
    let channels = Arc::new(channels);
    let acceptor = TlsAcceptor::from(tls);
    loop {
        let (channels, relay) = (Arc::clone(&channels), Arc::clone(&relay));
        tokio::select! {
            Some(incoming) = shard.endpoint.accept() => {
                tokio::spawn(async move {
                    let connection = incoming.await.expect("a connection");
                    let channel = channels.quic(connection).await.expect("a channel");
                    serve(Arc::new(channel), relay).await;
                });
            }
            Ok((stream, from)) = shard.tcp.accept() => {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.expect("TLS");
                    let channel = channels.tls(stream, Some(from.ip())).await.expect("a channel");
                    serve(Arc::new(channel), relay).await;
                });
            }
        }
    }
}

fn station(n: u8, over: Over, net: &Arc<Memory>) -> Station {
    let party = Party::start(&format!("relay{n}"));
    let identity =
        Arc::new(RelayIdentity::from_secret(&[n; 32], unix_time()).expect("an identity"));
    let ed25519 = identity.peer().ed25519;
    let secret = OnionKey::fresh_secret().expect("randomness");
    let keys = OnionKeys::new(
        [n; 20],
        ed25519,
        OnionKey::from_secret(&secret).expect("a key"),
        None,
    );
    let us = Us {
        identity: Some(identity),
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
    };
    let dialer = match over {
        Over::Memory => Arc::clone(net) as Arc<dyn Dialer>,
        Over::Link(how) => linked(us.clone(), how),
    };
    let mut made = relay::Relay::new(keys, dialer, relay::Config::default());
    made.out =
        Some(Arc::new(Double::nothing().streams(|_, _, _| {
            Box::pin(async { Ok(Stream::new(Endless)) })
        })));
    made.policy = Arc::new(Policy::everywhere(true));
    made.next = Arc::new(Policy::everywhere(true));
    let relay = Arc::new(made);
    let address = match over {
        Over::Memory => (Ipv4Addr::LOCALHOST, 9).into(),
        Over::Link(_) => listen(&party, us, &relay),
    };
    net.stations
        .lock()
        .push((party.handle.clone(), Arc::clone(&relay)));
    let known = path::Relay {
        name: format!("relay{n}").into(),
        keys: relay.keys().published(),
        rsa: false,
        addresses: vec![address],
        exit: None,
        ntor3: true,
        congestion_control: true,
        protocols: Protocols::CGO,
        half_close: true,
    };
    Station {
        party,
        relay,
        known,
    }
}

/// How long this many bytes take over one stream, from the first to the last.
async fn carry(onion: &Onion, bytes: usize, upload: bool) -> Duration {
    let target = "192.0.2.1:80".parse().expect("valid");
    let stream = onion.open_stream(&target, &Terms::default()).await;
    let mut stream = stream.expect("a stream");
    let mut buffer = vec![0; 64 << 10];
    let begun = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let most = left.min(buffer.len());
        left -= if upload {
            stream.write(&buffer[..most]).await.expect("it goes")
        } else {
            stream.read(&mut buffer[..most]).await.expect("it comes")
        };
    }
    begun.elapsed()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let text = arguments.next().unwrap_or_else(|| "quic".to_owned());
    let over = match text.as_str() {
        "memory" => Over::Memory,
        "quic" => Over::Link(How::Quic),
        "tls" => Over::Link(How::Tls),
        _ => panic!("cells memory|quic|tls [MEGABYTES] [up|down] [HOPS] [cgo|tor1]"),
    };
    let megabytes: usize = arguments
        .next()
        .map_or(512, |n| n.parse().expect("a number"));
    let upload = arguments.next().is_some_and(|way| way == "up");
    let hops: u8 = arguments.next().map_or(3, |n| n.parse().expect("a number"));
    let cgo = arguments.next().is_none_or(|crypto| crypto == "cgo");
    let net = Arc::<Memory>::default();
    let stations: Vec<_> = (1..=hops).map(|n| station(n, over, &net)).collect();
    let client = Party::start("client");
    let path = stations
        .iter()
        .map(|station| station.known.clone())
        .collect();
    let dialer = match over {
        Over::Memory => Arc::clone(&net) as Arc<dyn Dialer>,
        Over::Link(how) => linked(Us::default(), how),
    };
    let paths = Arc::new(path::Fixed(path));
    let (tell, told) = mpsc::sync_channel(1);
    let (go, gone) = mpsc::sync_channel::<()>(1);
    client.handle.spawn(async move {
        let config = Config {
            cgo,
            ..Config::default()
        };
        let onion = Onion::new(dialer, paths, config);
        // The circuit, and what is done once.
        carry(&onion, 1_000_000, upload).await;
        tell.send(Duration::ZERO).expect("somebody waits");
        tokio::task::spawn_blocking(move || gone.recv())
            .await
            .expect("no panic")
            .expect("go");
        tell.send(carry(&onion, megabytes * 1_000_000, upload).await)
            .expect("somebody waits");
        std::future::pending::<()>().await;
    });
    told.recv().expect("a circuit");
    let parties = || std::iter::once(&client).chain(stations.iter().map(|station| &station.party));
    let before: Vec<_> = parties().map(Party::used).collect();
    go.send(()).expect("it waits");
    let took = told.recv().expect("the end");
    let spent = parties()
        .zip(before)
        .map(|(party, before)| party.used() - before);
    let gigabytes = megabytes as f64 / 1000.0;
    let spent = spent.map(|spent| format!("{:.2}", spent.as_secs_f64() / gigabytes));
    let spent: Vec<_> = spent.collect();
    println!(
        "{{\"over\":\"{text}\",\"hops\":{hops},\"cgo\":{cgo},\"up\":{upload},\"megabytes\":{megabytes},\"mb_per_s\":{:.1},\"cpu_s_per_gb\":[{}]}}",
        megabytes as f64 / took.as_secs_f64(),
        spent.join(","),
    );
    debug_assert!(stations.iter().all(|station| station.relay.circuits() > 0));
}
