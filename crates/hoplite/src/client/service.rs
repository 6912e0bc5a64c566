//! The onion services of the file: their keys, their descriptors, and where their streams lead. What a client asks for and is not served, C tor answers
//! so, too: a port that is none closes his circuit, and of a local server that refuses he learns nothing but that the stream has ended.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use hoplite_onion::{
    endpoint::udp,
    onion_service::{Published, Publisher, PublisherConfig, Service, ServiceWatch, StreamRequest},
};
use hoplite_overlay::{Direct, Error, ErrorKind, Overlay, Stream, Terms};
use hoplite_wire::Target;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{BufStream, copy_bidirectional},
    net::UnixStream,
    sync::watch,
    time::timeout,
};
use tracing::{info, warn};

use super::onion::ServiceParts;
use crate::{
    config::client::service::{self as file, Local, ServicePort},
    say::Failure,
    service_keys::ServiceKeys,
};

/// How long a local server may take to accept.
const CONNECT: Duration = Duration::from_secs(10);
/// A UDP stream on which nothing has passed for so long is ended.
const IDLE_DATAGRAMS: Duration = Duration::from_secs(180);

/// A service that runs, for who asks how it does.
pub(crate) struct Running {
    number: usize,
    address: String,
    published: watch::Receiver<Published>,
    watch: ServiceWatch,
}

/// A service's keys, and what the file says of it.
pub(crate) struct Prepared {
    file: file::Service,
    keys: ServiceKeys,
}

impl Prepared {
    /// Whether one of its ports leads to a Unix socket.
    pub(crate) fn leads_to_unix_sockets(&self) -> bool {
        let mut ports = self.file.ports.iter();
        ports.any(|port| matches!(port.to, Local::Socket(_)))
    }
}

/// How a service does, for scripts and people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceStatus {
    /// Its name: who has it reaches it.
    pub(crate) address: String,
    /// How many seconds it has had each of its introduction points.
    pub(crate) introduction_points: Vec<u64>,
    /// Its newest descriptors: one for each of two time periods.
    pub(crate) descriptors: Vec<DescriptorStatus>,
    /// How many seconds ago they were made; absent until they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<u64>,
    /// HSDirs that are to have one of them, and that have.
    pub(crate) hsdirs: usize,
    /// Of those, how many have said that they keep it.
    pub(crate) told: usize,
    /// Clients: each has one circuit.
    pub(crate) clients: usize,
    /// Their streams.
    pub(crate) streams: usize,
}

/// A descriptor of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DescriptorStatus {
    /// The number of its time period.
    pub(crate) period: u64,
    /// Its revision.
    pub(crate) revision: u64,
}

/// Reads the keys of the file's services, or makes them: who reads them need not be who serves.
pub(crate) fn prepare(services: &[file::Service]) -> Result<Vec<Prepared>, Failure> {
    let prepared = |file: &file::Service| {
        let keys = ServiceKeys::read_or_make(&file.keys)?;
        let file = file.clone();
        Ok(Prepared { file, keys })
    };
    services.iter().map(prepared).collect()
}

/// Starts the services. Their streams lead to the device's own servers, over `local`.
pub(super) fn start(
    services: Vec<Prepared>,
    parts: Option<&ServiceParts>,
    local: &Direct,
) -> Vec<Running> {
    let Some(parts) = parts else {
        // `hoplite check` says so, if there are services.
        return Vec::new();
    };
    let numbered = (1..).zip(services);
    numbered
        .map(|(number, service)| start_one(number, service, parts, local))
        .collect()
}

fn start_one(
    number: usize,
    Prepared { file, keys }: Prepared,
    parts: &ServiceParts,
    local: &Direct,
) -> Running {
    let address = keys.identity.address().to_string();
    if let Err(error) = parts.directory.published(&keys.identity.address()) {
        warn!(
            service = number,
            "an onion service is not published: {error}"
        );
    }
    let config = file.bounds();
    let (tell, subcredentials) = watch::channel(Vec::new());
    let service = Service::start(
        Arc::clone(&parts.dialer),
        Arc::clone(&parts.paths),
        &parts.circuits,
        config,
        subcredentials,
    );
    let publisher = Publisher::new(
        keys.identity,
        keys.authorised,
        Arc::clone(&parts.directory),
        &service,
        tell,
        PublisherConfig {
            points: file.introduction_points,
            ..PublisherConfig::default()
        },
    );
    let (published, watch) = (publisher.published(), service.watch());
    tokio::spawn(tell_published(number, published.clone()));
    tokio::spawn(publisher.run());
    tokio::spawn(serve(service, file.ports.into(), local.clone()));
    Running {
        number,
        address,
        published,
        watch,
    }
}

impl Running {
    /// Says in the log how it does.
    pub(crate) fn tell(&self) {
        let published = *self.published.borrow();
        let age = published.since.map_or(0, |since| since.elapsed().as_secs());
        info!(
            service = self.number,
            points = published.points,
            told = published.told,
            hsdirs = published.hsdirs,
            age,
            "an onion service"
        );
    }

    /// How it does now.
    pub(crate) fn status(&self) -> ServiceStatus {
        let published = *self.published.borrow();
        let state = self.watch.state().unwrap_or_default();
        let made = published.revisions.into_iter();
        let made = made.filter(|(period, _)| *period != 0);
        ServiceStatus {
            address: self.address.clone(),
            introduction_points: state.points.iter().map(Duration::as_secs).collect(),
            descriptors: made
                .map(|(period, revision)| DescriptorStatus { period, revision })
                .collect(),
            published: published.since.map(|since| since.elapsed().as_secs()),
            hsdirs: published.hsdirs,
            told: published.told,
            clients: state.clients,
            streams: state.streams,
        }
    }
}

/// A report has no more of them: it has to fit into a message.
const REPORTED: usize = 64;

/// How the services do.
pub(crate) fn statuses(running: &[Running]) -> Vec<ServiceStatus> {
    running.iter().take(REPORTED).map(Running::status).collect()
}

/// For people.
pub(crate) fn lines(services: &[ServiceStatus], circuits: usize) -> Vec<String> {
    let circuits = (circuits > 0).then(|| format!("circuits to onion services: {circuits}"));
    let services = services.iter().map(ServiceStatus::line);
    services.chain(circuits).collect()
}

impl ServiceStatus {
    /// Fit to be shown on a terminal, whoever has written it.
    pub(crate) fn plain(mut self, plain: impl Fn(&str) -> String) -> Self {
        self.address = plain(&self.address);
        self.introduction_points.truncate(file::MOST_POINTS);
        self.descriptors.truncate(2);
        self
    }

    fn line(&self) -> String {
        let ages = self.introduction_points.iter().map(u64::to_string);
        let points = match ages.collect::<Vec<_>>().join(", ") {
            ages if ages.is_empty() => "no introduction point".to_owned(),
            ages => format!("introduction points for {ages} s"),
        };
        let made = self.descriptors.iter();
        let made = made.map(|one| format!("{} (period {})", one.revision, one.period));
        let descriptors = match self.published {
            None => "not published".to_owned(),
            Some(age) => format!(
                "descriptors {}, the newer made {age} s ago, {} of {} HSDirs have them",
                made.collect::<Vec<_>>().join(" and "),
                self.told,
                self.hsdirs
            ),
        };
        format!(
            "onion service {}: {points}; {descriptors}; {} clients, {} streams",
            self.address, self.clients, self.streams
        )
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

/// Says in the log when all who should have a descriptor have it.
async fn tell_published(number: usize, mut published: watch::Receiver<Published>) {
    while published.changed().await.is_ok() {
        let now = *published.borrow_and_update();
        if now.hsdirs > 0 && now.told == now.hsdirs {
            let (points, hsdirs) = (now.points, now.hsdirs);
            info!(
                service = number,
                points, hsdirs, "an onion service is published"
            );
        }
    }
}

async fn serve(mut service: Service, ports: Arc<[ServicePort]>, local: Direct) {
    while let Some(request) = service.accept().await {
        let asked = (request.port(), request.is_udp());
        let Some(port) = ports.iter().find(|port| (port.port, port.udp) == asked) else {
            // Programs try UDP where there is none, and have streams beside it.
            if request.is_udp() && !ports.iter().any(|port| port.udp) {
                request.refuse();
            } else {
                request.close_circuit();
            }
            continue;
        };
        let (to, local) = (port.to.clone(), local.clone());
        tokio::spawn(async move { carry(request, &to, &local).await });
    }
}

async fn carry(request: StreamRequest, to: &Local, local: &Direct) {
    if let (true, Local::Address(address)) = (request.is_udp(), to) {
        return carry_datagrams(request, *address, local).await;
    }
    let Ok(mut local) = connect(to, local).await else {
        request.refuse();
        return;
    };
    let mut stream = request.accept();
    // Whichever end breaks off, the other learns it.
    drop(copy_bidirectional(&mut stream, &mut local).await);
}

async fn carry_datagrams(request: StreamRequest, to: SocketAddr, local: &Direct) {
    let terms = Terms::default().within(CONNECT);
    let target = Target::from(to);
    let Ok(local) = local.open_datagrams(&target, &terms).await else {
        request.refuse();
        return;
    };
    // Whichever end breaks off, the other learns it.
    drop(udp::carry(&request.accept_udp(), &*local, IDLE_DATAGRAMS).await);
}

async fn connect(to: &Local, local: &Direct) -> Result<Stream, Error> {
    match to {
        Local::Address(address) => {
            let terms = Terms::default().within(CONNECT);
            let target = Target::from(*address);
            local.open_stream(&target, &terms).await
        }
        Local::Socket(path) => {
            let doing = "connecting to the Unix socket of an onion service";
            let connected = timeout(CONNECT, UnixStream::connect(path)).await;
            let socket = connected.map_err(|_| Error::new(ErrorKind::TimedOut, doing))?;
            let socket = socket
                .map_err(|error| Error::new(ErrorKind::TargetFailed, doing).caused_by(error))?;
            Ok(Stream::new(BufStream::new(socket)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_service_does_is_told_to_scripts_and_people() {
        let status = ServiceStatus {
            address: "abc.onion\u{1b}".into(),
            introduction_points: vec![5, 60],
            descriptors: vec![
                DescriptorStatus {
                    period: 20_000,
                    revision: 77,
                };
                9
            ],
            published: Some(12),
            hsdirs: 16,
            told: 15,
            clients: 3,
            streams: 4,
        };
        let status = status.plain(crate::up::control::plain);
        let line = lines(std::slice::from_ref(&status), 0).join("|");
        for part in [
            "onion service abc.onion: introduction points for 5, 60 s",
            "descriptors 77 (period 20000) and 77 (period 20000), the newer made 12 s ago",
            "15 of 16 HSDirs",
            "3 clients, 4 streams",
        ] {
            assert!(line.contains(part), "{line}");
        }
        let json = serde_json::to_value(&status).expect("json");
        assert_eq!(json["introduction_points"][1], 60);
        assert_eq!(
            serde_json::from_value::<ServiceStatus>(json).ok(),
            Some(status)
        );
        let new = lines(&[ServiceStatus::default()], 2);
        assert!(
            new[0].contains("no introduction point; not published"),
            "{new:?}"
        );
        assert_eq!(new[1], "circuits to onion services: 2");
    }
}
