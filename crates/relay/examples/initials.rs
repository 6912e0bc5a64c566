//! How a relay bears a flood of QUIC Initials with forged source addresses: an honest client's handshakes before, while and after, beside the relay's
//! memory and what its metrics say of the flood. On loopback only; the relay is a process of its own.
//!
//! usage: `cargo run --release -p hoplite-relay --example initials -- [RATE [SECONDS [same]]]`: this many Initials a second for this long (3000 and 18), each
//! from an address of its own; with `same` all from the honest client's address.

#[path = "../tests/relay/forged.rs"]
mod forged;

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use forged::{Forger, address, initials_for};
use hoplite_crypto::{ALPN_H3, Identity, Pin, Trust};
use hoplite_link::{Config as LinkConfig, Dialer, Peer};
use hoplite_overlay::{Terms, direct::Direct};
use hoplite_relay::{Config, Relay};
use hoplite_wire::Target;

type Failure = Box<dyn std::error::Error>;

/// How often the honest client comes.
const EVERY: Duration = Duration::from_millis(100);
/// How long is looked before and after.
const AROUND: Duration = Duration::from_secs(3);
/// When handshakes that were never finished are forgotten at the latest.
const LONG_AFTER: Duration = Duration::from_secs(15);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("relay") => relay(),
        rest => {
            let rate = rest.map_or(Ok(3000), str::parse)?;
            let seconds = arguments.get(1).map_or(Ok(18), |text| text.parse())?;
            measure(
                rate,
                seconds,
                arguments.get(2).is_some_and(|word| word == "same"),
            )
        }
    }
}

/// The relay's process: says where it is, and serves until its input ends.
fn relay() -> Result<(), Failure> {
    let made = Identity::generate(&["localhost".to_owned()])?;
    let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes())?;
    let mut config = Config {
        listen: vec!["127.0.0.1:0".parse()?],
        ..Config::default()
    };
    config.metrics.listen = Some("127.0.0.1:0".parse()?);
    if let Ok(shards) = env::var("SHARDS") {
        config.limits.shards = shards.parse()?;
    }
    let relay = Relay::start(&config, &identity)?;
    let metrics = relay.metrics_address().ok_or("no metrics")?;
    writeln!(
        std::io::stdout(),
        "{} {metrics} {}",
        relay.addresses()[0],
        relay.pin()
    )?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Running {
    process: Child,
    address: SocketAddr,
    metrics: SocketAddr,
    pin: Pin,
}

impl Running {
    fn start() -> Result<Self, Failure> {
        let mut process = Command::new(env::current_exe()?)
            .arg("relay")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("the relay did not start");
        Ok(Self {
            address: word()?.parse()?,
            metrics: word()?.parse()?,
            pin: word()?.parse()?,
            process,
        })
    }

    fn resident(&self) -> Result<f64, Failure> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id()))?;
        let pages: f64 = statm.split(' ').nth(1).ok_or("statm")?.parse()?;
        Ok(pages * 4096.0 / 1e6)
    }

    /// The values of these metrics, as far as the relay has them.
    fn metrics(&self, names: &[&str]) -> Result<String, Failure> {
        let mut stream = TcpStream::connect(self.metrics)?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let wanted = |line: &&str| names.iter().any(|name| line.contains(name));
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let found: Vec<&str> = lines.filter(wanted).collect();
        Ok(found.join(" ").replace("hoplite_relay_", ""))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn measure(rate: usize, seconds: usize, same: bool) -> Result<(), Failure> {
    let relay = Running::start()?;
    let forged = initials_for(ALPN_H3, relay.address, relay.pin, rate * seconds);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let honest = |span| runtime.block_on(handshakes(&relay, span));
    say(&relay, "at rest", &honest(AROUND)?)?;
    let forger = Forger::new(relay.address);
    let flood = thread::spawn(move || {
        let began = Instant::now();
        let mut refused = 0;
        for (number, datagrams) in forged.iter().enumerate() {
            let source = if same {
                Ipv4Addr::LOCALHOST
            } else {
                address(number)
            };
            refused += usize::from(forger.send(source, datagrams).is_err());
            let due = Duration::from_secs_f64(number as f64 / rate as f64);
            thread::sleep(due.saturating_sub(began.elapsed()));
        }
        (forged.len() - refused, began.elapsed())
    });
    let span = Duration::from_secs(seconds as u64);
    for third in 1..=3 {
        say(&relay, &format!("flood, {third}/3"), &honest(span / 3)?)?;
    }
    let (sent, took) = flood.join().map_err(|_| "the attacker failed")?;
    say(&relay, "after", &honest(AROUND)?)?;
    thread::sleep(LONG_AFTER.saturating_sub(AROUND));
    say(&relay, "15 s after", &honest(AROUND)?)?;
    writeln!(
        std::io::stdout(),
        "{sent} clients forged in {:.1} s",
        took.as_secs_f64()
    )?;
    Ok(())
}

/// How long an honest newcomer's handshakes take, in milliseconds.
async fn handshakes(relay: &Running, span: Duration) -> Result<Vec<Option<f64>>, Failure> {
    let began = Instant::now();
    let mut times = Vec::new();
    while began.elapsed() < span {
        let start = Instant::now();
        let peer = Peer {
            name: "measured".into(),
            address: Target::from(relay.address),
            trust: Trust::Pins(vec![relay.pin]),
        };
        let dialer = Dialer::new(Arc::new(Direct::new()), peer, 0, LinkConfig::default());
        let dialled = dialer.quic(&Terms::default()).await;
        times.push(dialled.ok().map(|_| start.elapsed().as_secs_f64() * 1e3));
        tokio::time::sleep(EVERY.saturating_sub(start.elapsed())).await;
    }
    Ok(times)
}

fn say(relay: &Running, when: &str, times: &[Option<f64>]) -> Result<(), Failure> {
    let mut good: Vec<f64> = times.iter().copied().flatten().collect();
    good.sort_by(f64::total_cmp);
    let at = |share: usize| good.get(good.len() * share / 100).copied().unwrap_or(0.0);
    let metrics = [
        "retries",
        "handshakes_",
        "limit_refusals",
        "connections_open{transport=\"quic",
    ];
    writeln!(
        std::io::stdout(),
        "{when:>10}: handshakes {} of {} (median {:.1} ms, 90 % {:.1} ms, longest {:.1} ms), {:.0} MB; {}",
        good.len(),
        times.len(),
        at(50),
        at(90),
        good.last().copied().unwrap_or(0.0),
        relay.resident()?,
        relay.metrics(&metrics)?
    )?;
    Ok(())
}
