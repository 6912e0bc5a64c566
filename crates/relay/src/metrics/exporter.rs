//! Answers `GET /metrics`, `/ready` and `/live` in plain HTTP/1.1, one request after the other on each connection; and what others count for themselves (HTTP/3
//! sessions, circuits, the system), read when somebody asks.
//! The relay starts it when `[metrics] listen` is set; keep that on loopback or a management network. Who can connect there may be a stranger all the
//! same: a local program that keeps others out, or a page in the browser of an operator, whose own name it has resolve to the address (DNS rebinding).

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Once, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::h3::Counters;
use hoplite_wire::{Host, networks::host_network};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, uri::Authority};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use tokio::{net::TcpListener, task::AbortHandle};
use tracing::warn;

use super::Metrics;
use crate::{onion::Onion, serve::Alive};

/// Connections that are open at the same time; the next takes the place of another.
const MAX_SCRAPERS: usize = 16;
/// How long a scraper may keep a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Clock ticks a second in `/proc`: fixed by the kernel's interface on every Linux architecture that we know.
const TICKS: f64 = 100.0;
const PAGE: i64 = 4096;

/// What is answered with.
pub(crate) struct Exporter {
    metrics: Arc<Metrics>,
    alive: Alive,
    /// By which names it may be asked for metrics.
    hosts: Vec<Host>,
    /// Somebody has asked by another.
    misdirected: Once,
}

/// The connections that are open, by age.
#[derive(Default)]
struct Scrapers(VecDeque<Scraper>);

/// One of them.
struct Scraper {
    /// From where, IPv6: /64.
    from: IpAddr,
    /// A request has come.
    has_asked: Arc<AtomicBool>,
    serving: AbortHandle,
}

impl Exporter {
    pub(crate) fn new(metrics: Arc<Metrics>, alive: Alive, hosts: Vec<Host>) -> Self {
        Self {
            metrics,
            alive,
            hosts,
            misdirected: Once::new(),
        }
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let this = Arc::new(self);
        let mut scrapers = Scrapers::default();
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (this, has_asked) = (Arc::clone(&this), Arc::new(AtomicBool::new(false)));
            let asks = Arc::clone(&has_asked);
            let connection = tokio::spawn(async move {
                let service = service_fn(move |request| {
                    asks.store(true, Relaxed);
                    std::future::ready(Ok::<_, Infallible>(this.answer(&request)))
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(Duration::from_secs(5))
                    .serve_connection(TokioIo::new(stream), service);
                drop(tokio::time::timeout(CONNECTION_TIMEOUT, connection).await);
            });
            scrapers.enter(Scraper {
                from: host_network(from.ip()),
                has_asked,
                serving: connection.abort_handle(),
            });
            // However many come at once, each that has asked is answered before its place is taken.
            tokio::task::yield_now().await;
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, body) = match request.uri().path() {
            "/metrics" | "/ready" | "/live" if !reads => {
                (StatusCode::METHOD_NOT_ALLOWED, String::new())
            }
            "/metrics" if !self.is_meant(request) => {
                self.misdirected.call_once(|| {
                    warn!(
                        "metrics were asked for by a name that is not in `metrics.hosts`, and not given: add it there if it is the relay's"
                    );
                });
                let why = "Ask by an address, or by a name that is in metrics.hosts.\n";
                (StatusCode::MISDIRECTED_REQUEST, why.to_owned())
            }
            "/metrics" => (StatusCode::OK, self.metrics.text()),
            // Whoever balances gives nothing new to a relay that drains; what it has goes on.
            "/ready" if self.alive.is_draining() => {
                (StatusCode::SERVICE_UNAVAILABLE, String::new())
            }
            "/ready" | "/live" => (StatusCode::OK, String::new()),
            _ => (StatusCode::NOT_FOUND, String::new()),
        };
        let kind = match status {
            StatusCode::OK => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    /// Whether it is this server that is asked: by an address, or a name of its own. A page that has its own name resolve to this address is told
    /// nothing: its browser says that name.
    fn is_meant(&self, request: &Request<Incoming>) -> bool {
        let mut said = request.headers().get_all(header::HOST).iter();
        let is_old = request.version() == Version::HTTP_10;
        let is_said = is_old || request.headers().contains_key(header::HOST);
        is_said
            && said.all(|host| {
                let authority = Authority::try_from(host.as_bytes()).ok();
                let host = authority.and_then(|authority| authority.host().parse().ok());
                match host {
                    Some(Host::Ip(_)) => true,
                    Some(Host::Name(name)) if name.as_str() == "localhost" => true,
                    Some(name) => self.hosts.contains(&name),
                    None => false,
                }
            })
    }
}

impl Scrapers {
    /// One more: beyond [`MAX_SCRAPERS`] one goes of those whose network has the most; one over which nothing was asked before others, and the oldest of
    /// these.
    fn enter(&mut self, newcomer: Scraper) {
        self.0.retain(|one| !one.serving.is_finished());
        self.0.push_back(newcomer);
        if self.0.len() <= MAX_SCRAPERS {
            return;
        }
        let of = |from: IpAddr| self.0.iter().filter(|one| one.from == from).count();
        let most = self.0.iter().map(|one| of(one.from)).max();
        // The newcomer has had no time yet.
        let before = self.0.iter().take(MAX_SCRAPERS).enumerate();
        let those = before.filter(|(_, one)| Some(of(one.from)) == most);
        let first = those.min_by_key(|(_, one)| one.has_asked.load(Relaxed));
        let first = first.map(|(place, _)| place);
        if let Some(displaced) = first.and_then(|place| self.0.remove(place)) {
            displaced.serving.abort();
        }
    }
}

/// What the HTTP/3 sessions of all clients dropped.
#[derive(Debug)]
pub(super) struct Sessions(pub(super) Arc<Counters>);

impl Collector for Sessions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "What HTTP/3 sessions dropped";
        let mut family =
            encoder.encode_descriptor("session_dropped", help, None, MetricType::Counter)?;
        for (cause, count) in causes(&self.0) {
            let count = ConstCounter::new(count.load(Relaxed));
            count.encode(family.encode_family(&[("cause", cause)])?)?;
        }
        Ok(())
    }
}

/// Payloads that were dropped on their way to a client are among those of `datagrams_dropped`, and left out here.
fn causes(counters: &Counters) -> [(&'static str, &AtomicU64); 4] {
    [
        ("malformed", &counters.malformed),
        ("unknown_context", &counters.unknown_context),
        ("early", &counters.early_dropped),
        ("unrouted", &counters.unrouted),
    ]
}

/// Whose numbers are read, once there is somebody.
pub(super) type OnionSource = Arc<OnceLock<Weak<Onion>>>;

/// What circuits and channels count; nothing where `[onion]` is off.
#[derive(Debug)]
pub(super) struct Circuits(pub(super) OnionSource);

impl Collector for Circuits {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(onion) = self.0.get().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let counters = onion.counters();
        let circuits = [
            ("created", &counters.created),
            ("refused", &counters.refused),
            ("limited", &counters.limited),
            ("extended", &counters.extended),
            ("not_extended", &counters.not_extended),
            ("broken", &counters.broken),
        ];
        let circuits = circuits.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "What became of circuits";
        family(&mut encoder, "onion_circuits", help, circuits)?;
        let cells = [
            ("passed_forth", &counters.cells.passed_forth),
            ("passed_back", &counters.cells.passed_back),
            ("taken", &counters.cells.taken),
            ("made", &counters.cells.made),
        ];
        let cells = cells.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "Cells of circuits, 514 bytes each";
        family(&mut encoder, "onion_cells", help, cells)?;
        let services = [
            ("introduced", &counters.introduced),
            ("not_introduced", &counters.not_introduced),
            ("joined", &counters.joined),
        ];
        let services = services.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "Clients and circuits of onion services";
        family(&mut encoder, "onion_services", help, services)?;
        directory(&mut encoder, &onion)?;
        let streams = [("opened", counters.streams.load(Relaxed))];
        family(
            &mut encoder,
            "onion_streams",
            "Streams of circuits to targets",
            streams,
        )?;
        let help = "What went wrong on channels";
        family(
            &mut encoder,
            "onion_channel_faults",
            help,
            onion.faults().all(),
        )?;
        let help = "Circuits open now";
        level(&mut encoder, "onion_circuits_open", help, onion.circuits())?;
        let help = "Channels to other relays open now, whoever dialled";
        level(
            &mut encoder,
            "onion_relay_channels_open",
            help,
            onion.channels(),
        )?;
        let waiting = usize::try_from(onion.faults().queued()).unwrap_or(usize::MAX);
        let help = "Bytes that wait in all circuits, as the key queued counts them";
        level(&mut encoder, "onion_queued_bytes", help, waiting)
    }
}

/// What is asked of the relay's directory: of the HSDir, and of the directory cache.
fn directory(encoder: &mut DescriptorEncoder<'_>, onion: &Onion) -> Result<(), fmt::Error> {
    if let Some(hsdir) = onion.hsdir() {
        let (descriptors, bytes) = hsdir.kept();
        let help = "Descriptors of onion services that are kept now";
        level(encoder, "onion_hsdir_descriptors", help, descriptors)?;
        let help = "Bytes of descriptors of onion services that are kept now";
        level(encoder, "onion_hsdir_bytes", help, bytes)?;
        let counters = hsdir.counters();
        let requests = [
            ("published", &counters.published),
            ("refused", &counters.refused),
            ("fetched", &counters.fetched),
            ("unknown", &counters.unknown),
            ("limited", &counters.limited),
        ];
        let requests = requests.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "What became of requests to the HSDir";
        family(encoder, "onion_hsdir_requests", help, requests)?;
    }
    if let Some(cache) = onion.directory_cache() {
        let counters = cache.counters();
        let requests = [
            ("given", &counters.given),
            ("diffs", &counters.diffs),
            ("unmodified", &counters.unmodified),
            ("unknown", &counters.unknown),
            ("limited", &counters.limited),
        ];
        let requests = requests.map(|(what, count)| (what, count.load(Relaxed)));
        let help = "What became of requests to the directory cache";
        family(encoder, "onion_directory_requests", help, requests)?;
        let bytes = [("given", counters.bytes.load(Relaxed))];
        let help = "Bytes of documents that the directory cache has given";
        family(encoder, "onion_directory_bytes", help, bytes)?;
    }
    Ok(())
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (what, count) in counts {
        let count = ConstCounter::new(count);
        count.encode(family.encode_family(&[("what", what)])?)?;
    }
    Ok(())
}

fn level(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    now: usize,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(now).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// What this process uses, from `/proc/self` (proc(5)); where that does not exist the numbers are left out.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let kind = MetricType::Counter;
            let help = "CPU time of this process, user and system";
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                kind,
            )?)?;
        }
        if let Some(bytes) = resident() {
            let gauge = ConstGauge::new(bytes);
            let kind = MetricType::Gauge;
            let help = "Resident memory of this process";
            gauge.encode(encoder.encode_descriptor(
                "process_resident_memory_bytes",
                help,
                None,
                kind,
            )?)?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<f64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) / TICKS)
}

fn resident() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE)
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    #[tokio::test]
    async fn the_oldest_silent_connection_goes_of_the_network_with_the_most() {
        let mut scrapers = Scrapers::default();
        let mut enter = |from: &str, asks| {
            let connection = tokio::spawn(std::future::pending::<()>());
            scrapers.enter(Scraper {
                from: host_network(from.parse().expect("an address")),
                has_asked: Arc::new(AtomicBool::new(asks)),
                serving: connection.abort_handle(),
            });
            connection
        };
        let quiet = enter("192.0.2.1", false);
        let asked = enter("2001:db8::1", true);
        let many: Vec<_> = (0..MAX_SCRAPERS + 2)
            .map(|n| enter(&format!("2001:db8::{n:x}"), false))
            .collect();
        let other = enter("192.0.2.3", false);
        let (gone, held) = many.split_at(5);
        // The runtime ends them in its next turns.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(gone.iter().all(JoinHandle::is_finished));
        let held = held.iter().chain([&quiet, &asked, &other]);
        assert!(held.into_iter().all(|held| !held.is_finished()));
    }
}
