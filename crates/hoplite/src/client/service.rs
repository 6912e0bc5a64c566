//! The onion services of the file: their keys, their descriptors, and where their streams lead. What a client asks for and is not served, C tor answers
//! so, too: a port that is none closes his circuit, and of a local server that refuses he learns nothing but that the stream has ended.

use std::{sync::Arc, time::Duration};

use hoplite_onion::onion_service::{
    Published, Publisher, PublisherConfig, Service, ServiceConfig, StreamRequest,
};
use hoplite_overlay::{Direct, Error, ErrorKind, Overlay, Stream, Terms};
use hoplite_wire::Target;
use tokio::{
    io::{BufStream, copy_bidirectional},
    net::UnixStream,
    sync::{Semaphore, watch},
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

/// A service that runs, for who asks how it does.
pub(super) struct Running {
    number: usize,
    published: watch::Receiver<Published>,
}

/// Starts the services of the file.
pub(super) fn start(
    services: &[file::Service],
    parts: Option<&ServiceParts>,
) -> Result<Vec<Running>, Failure> {
    let Some(parts) = parts else {
        // `hoplite check` says so, if there are services.
        return Ok(Vec::new());
    };
    let numbered = (1..).zip(services);
    numbered
        .map(|(number, service)| start_one(number, service, parts))
        .collect()
}

fn start_one(
    number: usize,
    file: &file::Service,
    parts: &ServiceParts,
) -> Result<Running, Failure> {
    let keys = ServiceKeys::read_or_make(&file.keys)?;
    if let Err(error) = parts.directory.published(&keys.identity.address()) {
        warn!(
            service = number,
            "an onion service is not published: {error}"
        );
    }
    let config = ServiceConfig {
        points: file.introduction_points,
        streams: file.streams_per_circuit,
        ..ServiceConfig::default()
    };
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
    let published = publisher.published();
    tokio::spawn(tell_published(number, published.clone()));
    tokio::spawn(publisher.run());
    tokio::spawn(serve(service, file.ports.clone().into(), file.streams));
    Ok(Running { number, published })
}

impl Running {
    /// Says in the log how it does.
    pub(super) fn tell(&self) {
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

async fn serve(mut service: Service, ports: Arc<[ServicePort]>, streams: usize) {
    let room = Arc::new(Semaphore::new(streams));
    while let Some(request) = service.accept().await {
        let asked = request.port();
        let Some(port) = ports.iter().find(|port| port.port == asked) else {
            request.close_circuit();
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            request.refuse();
            continue;
        };
        let to = port.to.clone();
        tokio::spawn(async move {
            carry(request, &to).await;
            drop(place);
        });
    }
}

async fn carry(request: StreamRequest, to: &Local) {
    let Ok(mut local) = connect(to).await else {
        request.refuse();
        return;
    };
    let mut stream = request.accept();
    // Whichever end breaks off, the other learns it.
    drop(copy_bidirectional(&mut stream, &mut local).await);
}

async fn connect(to: &Local) -> Result<Stream, Error> {
    match to {
        Local::Address(address) => {
            let terms = Terms::default().within(CONNECT);
            let target = Target::from(*address);
            Direct::new().open_stream(&target, &terms).await
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
