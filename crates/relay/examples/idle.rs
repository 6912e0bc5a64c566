//! What clients that ask for nothing cost a relay in memory: this many connections of each kind, and those that come to take their places. On loopback
//! only; the relay is a process of its own.
//!
//! usage: `cargo run --release -p hoplite-relay --example idle -- [CONNECTIONS [KIND…]]` (4000, all kinds). `UNDER="heaptrack -o FILE"` runs the relay
//! under that; `MEMORY` is its `limits.memory`.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use hoplite_crypto::{ALPN_H2, ALPN_H3, Identity, Pin, Trust, client_tls};
use hoplite_http::h3::Session;
use hoplite_quic as quic;
use hoplite_relay::{Config, Relay};
use hoplite_wire::RequestHead;
use rustls::pki_types::ServerName;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    time::sleep,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

type Failure = Box<dyn std::error::Error>;

/// What the client of a connection does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// TCP, and not one byte.
    Tcp,
    /// TLS, and no preface of HTTP/2.
    Tls,
    /// HTTP/1.1, and no request.
    H1,
    /// HTTP/2, and no request.
    H2,
    /// QUIC, and no stream.
    Quic,
    /// HTTP/3, and no request.
    H3,
    /// HTTP/3 with a request that waits for its target.
    Asks,
    /// HTTP/3, where only a sixteenth may wait: the others were sent away.
    Leaving,
}

const KINDS: [Kind; 8] = [
    Kind::Tcp,
    Kind::Tls,
    Kind::H1,
    Kind::H2,
    Kind::Quic,
    Kind::H3,
    Kind::Asks,
    Kind::Leaving,
];
/// Addresses that the clients come from.
const ADDRESSES: usize = 16;
/// How long is waited before memory is looked at.
const SETTLE: Duration = Duration::from_secs(1);
/// When connections that were closed are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(8);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Nobody is there.
const NOBODY: &str = "192.0.2.1:9";

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("relay") => relay(arguments.get(1).map_or(Ok(0), |text| text.parse())?),
        rest => {
            let connections = rest.map_or(Ok(4000), str::parse)?;
            let wanted = |kind: &Kind| {
                let name = format!("{kind:?}").to_lowercase();
                arguments.len() < 2 || arguments.iter().skip(1).any(|wanted| *wanted == name)
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            for kind in KINDS.iter().filter(|kind| wanted(kind)) {
                runtime.block_on(measure(*kind, connections))?;
            }
            Ok(())
        }
    }
}

/// The relay's process: says where it is, and serves until its input ends.
fn relay(waiting: usize) -> Result<(), Failure> {
    let made = Identity::generate(&["localhost".to_owned()])?;
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes())?;
    let mut config = Config {
        listen: vec!["127.0.0.1:0".parse()?],
        ..Config::default()
    };
    config.metrics.listen = Some("127.0.0.1:0".parse()?);
    if waiting > 0 {
        config.limits.waiting = waiting;
    }
    if let Ok(memory) = env::var("MEMORY") {
        config.limits.memory = memory.parse()?;
    }
    config.egress.allow = vec!["192.0.2.0/24".parse()?];
    let relay = Relay::start(&config, &identity)?;
    writeln!(
        std::io::stdout(),
        "{} {} {}",
        relay.addresses()[0],
        relay.pin(),
        relay.metrics_address().ok_or("no metrics")?
    )?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Running {
    process: Child,
    address: SocketAddr,
    pin: Pin,
    metrics: SocketAddr,
}

impl Running {
    fn start(waiting: usize) -> Result<Self, Failure> {
        let this = env::current_exe()?;
        let mut command = match env::var("UNDER") {
            Ok(tool) => {
                let mut words = tool.split(' ');
                let mut command = Command::new(words.next().ok_or("no tool")?);
                command.args(words).arg(this);
                command
            }
            Err(_) => Command::new(this),
        };
        let mut process = command
            .arg("relay")
            .arg(waiting.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().ok_or("no output")?);
        while line.split_whitespace().count() != 3 || !line.starts_with("127.") {
            line.clear();
            if output.read_line(&mut line)? == 0 {
                return Err("the relay did not start".into());
            }
        }
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("the relay did not start");
        let (address, pin, metrics) = (word()?.parse()?, word()?.parse()?, word()?.parse()?);
        std::thread::spawn(move || drop(std::io::copy(&mut output, &mut std::io::sink())));
        Ok(Self {
            process,
            address,
            pin,
            metrics,
        })
    }

    /// Bytes that are resident.
    fn resident(&self) -> Result<f64, Failure> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id()))?;
        let pages: f64 = statm.split(' ').nth(1).ok_or("statm")?.parse()?;
        Ok(pages * 4096.0)
    }

    /// The values of these metrics, as far as the relay has them.
    fn metrics(&self, names: &[&str]) -> Result<String, Failure> {
        let mut stream = std::net::TcpStream::connect(self.metrics)?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let wanted = |line: &&str| names.iter().any(|name| line.contains(name));
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let found: Vec<&str> = lines
            .filter(wanted)
            .filter(|line| !line.ends_with(" 0"))
            .collect();
        Ok(found.join(" ").replace("hoplite_relay_", ""))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// What keeps a connection open.
enum Open {
    Tcp { _stream: TcpStream },
    Tls { _stream: Box<TlsStream<TcpStream>> },
    Quic { _held: Box<dyn std::any::Any> },
}

async fn measure(kind: Kind, connections: usize) -> Result<(), Failure> {
    let waiting = match kind {
        Kind::Leaving => connections / 16,
        _ => connections + 64,
    };
    let relay = Running::start(waiting)?;
    let endpoints = (1..=ADDRESSES).map(|number| {
        let source = Ipv4Addr::new(127, 8, 1, u8::try_from(number).unwrap_or(u8::MAX));
        let endpoint = quic::Endpoint::client((source, 0).into());
        endpoint.map(|endpoint| (source, endpoint))
    });
    let endpoints: Vec<_> = endpoints.collect::<Result<_, _>>()?;
    // What the first of all takes for ever is not theirs.
    let mut first = Vec::new();
    for (source, endpoint) in &endpoints {
        first.push(open(kind, &relay, *source, endpoint).await?);
    }
    sleep(SETTLE).await;
    let before = relay.resident()?;
    let mut held = Vec::new();
    for number in 0..connections {
        let (source, endpoint) = &endpoints[number % ADDRESSES];
        held.extend(open(kind, &relay, *source, endpoint).await.ok());
    }
    sleep(SETTLE).await;
    let with = relay.resident()?;
    let metrics = relay.metrics(&["connections_open{", "memory_", "limit_refusals"])?;
    let made = held.len();
    drop((held, first));
    for (_, endpoint) in &endpoints {
        endpoint.close(0_u32.into(), b"");
    }
    drop(endpoints);
    sleep(FORGOTTEN).await;
    let after = relay.resident()?;
    writeln!(
        std::io::stdout(),
        "{:>8}: {made} made, {:.1} kB each ({:.0} to {:.0} MB), {:.0} MB when they have gone; {metrics}",
        format!("{kind:?}").to_lowercase(),
        (with - before) / made as f64 / 1e3,
        before / 1e6,
        with / 1e6,
        after / 1e6,
    )?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "an attacker is no flow")]
async fn open(
    kind: Kind,
    relay: &Running,
    source: Ipv4Addr,
    endpoint: &quic::Endpoint,
) -> Result<Open, Failure> {
    let trust = Trust::Pins(vec![relay.pin]);
    let alpn: &[&[u8]] = match kind {
        Kind::H1 => &[b"http/1.1"],
        Kind::Tcp | Kind::Tls | Kind::H2 => &[ALPN_H2],
        Kind::Quic | Kind::H3 | Kind::Asks | Kind::Leaving => &[ALPN_H3],
    };
    let tls = client_tls(&trust, alpn)?;
    if let Kind::Tcp | Kind::Tls | Kind::H1 | Kind::H2 = kind {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        let stream = socket.connect(relay.address).await?;
        if kind == Kind::Tcp {
            return Ok(Open::Tcp { _stream: stream });
        }
        let connector = TlsConnector::from(Arc::new(tls));
        let mut stream = connector
            .connect(ServerName::try_from("localhost")?, stream)
            .await?;
        if kind == Kind::H2 {
            stream.write_all(PREFACE).await?;
        }
        let _stream = Box::new(stream);
        return Ok(Open::Tls { _stream });
    }
    let tls: quic::crypto::rustls::QuicClientConfig = tls.try_into()?;
    let mut config = quic::ClientConfig::new(Arc::new(tls));
    let mut transport = quic::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(10)));
    config.transport_config(Arc::new(transport));
    let connection = endpoint
        .connect_with(config, relay.address, "localhost")?
        .await?;
    if kind == Kind::Quic {
        let _held = Box::new(connection);
        return Ok(Open::Quic { _held });
    }
    if kind == Kind::Asks {
        let session = Session::client(connection, &Default::default());
        let exchange = session
            .request(&RequestHead::connect(NOBODY.to_owned()))
            .await?;
        let _held = Box::new((session, exchange));
        return Ok(Open::Quic { _held });
    }
    let mut control = connection.open_uni().await?;
    control.write_all(&[0, 4, 0]).await?;
    let _held = Box::new((connection, control));
    Ok(Open::Quic { _held })
}
