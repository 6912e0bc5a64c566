//! A relay of ours between C tor and us: it introduces a service of ours to C tor's client, and joins a service of C tor's with a client of ours.
//! C tor extends a circuit to it by what link specifiers say alone, its RSA identity among them: no consensus lists it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hoplite_crypto::{
    SigningKey,
    onion::{
        descriptor::{self, Descriptor, Publication},
        service_keys::{BlindedKey, OnionAddress, ServiceIdentity},
        time_period::TimePeriod,
    },
};
use hoplite_onion::{
    Config,
    channel::Waiting,
    onion_service::{
        Client, ClientConfig, ClientKeys, Descriptors, DescriptorsConfig, Destination,
        IntroductionPoint, KnownService, Placed, Service, ServiceConfig, ServiceDirectory,
    },
    path::{CircuitUsage, Paths, Relay},
};
use hoplite_overlay::{Error, ErrorKind, Isolation, Terms};
use hoplite_wire::{cell::circuit::LinkSpecifier, tor::service_descriptor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    limit,
    network::{Network, schedule},
    ours::{Ours, dialer},
};

const MEBIBYTE: usize = 1 << 20;

/// Two relays of C tor, each time others, and then ours.
struct ToOurs {
    theirs: Vec<Relay>,
    ours: Relay,
    next: AtomicUsize,
}

impl ToOurs {
    fn new(network: &Network, ours: &Ours) -> Arc<Self> {
        Arc::new(Self {
            theirs: network.relays().to_vec(),
            ours: ours.relay(),
            next: AtomicUsize::new(0),
        })
    }
}

impl Paths for ToOurs {
    fn path<'a>(&'a self, _: &'a CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async {
            let next = self.next.fetch_add(1, Relaxed);
            let their = |place: usize| self.theirs[(next + place) % self.theirs.len()].clone();
            Ok(vec![their(0), their(1), self.ours.clone()])
        })
    }
}

impl fmt::Debug for ToOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ToOurs")
    }
}

/// What comes back is what was sent.
async fn echoes(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) {
    let sent: Vec<u8> = (0..=250).cycle().take(MEBIBYTE).collect();
    let (mut reads, mut writes) = tokio::io::split(stream);
    let mut got = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(
        async {
            writes.write_all(&sent).await?;
            writes.flush().await
        },
        reads.read_exact(&mut got)
    );
    wrote.unwrap();
    read.unwrap();
    assert!(got == sent, "other bytes came back");
}

/// A server that sends back what comes; its port.
async fn echo() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reads, mut writes) = stream.split();
                drop(tokio::io::copy(&mut reads, &mut writes).await);
            });
        }
    });
    port
}

async fn serve(mut service: Service, port: u16) {
    while let Some(request) = service.accept().await {
        tokio::spawn(async move {
            let mut local = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let mut stream = request.accept();
            drop(copy_bidirectional(&mut stream, &mut local).await);
        });
    }
}

fn described(point: &IntroductionPoint) -> descriptor::IntroductionPoint {
    let mut link_specifiers = Vec::new();
    LinkSpecifier::write_all(&point.relay.specifiers(), &mut link_specifiers);
    descriptor::IntroductionPoint {
        link_specifiers,
        onion_key: point.relay.keys.onion,
        auth_key: point.auth_key,
        enc_key: point.enc_key,
    }
}

fn text(identity: &ServiceIdentity, points: &[IntroductionPoint], period: TimePeriod) -> String {
    let key = identity.blinded(period);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let [counted_from, _] = schedule().counted_from(now.as_secs());
    let publication = Publication {
        subcredential: identity.address().subcredential(&key.public()),
        key: &key,
        signing: &SigningKey::generate().unwrap(),
        revision: key.revision(now.as_secs() - counted_from).unwrap(),
        lifetime: service_descriptor::LIFETIME,
        authorised: &[],
        now: now.as_secs(),
        most: service_descriptor::DESCRIPTOR,
    };
    let descriptor = Descriptor {
        congestion_control: Some(31),
        points: points.iter().map(described).collect(),
        ..Descriptor::default()
    };
    descriptor.publish(&publication).unwrap()
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_client_of_c_tor_is_introduced_to_a_service_by_a_relay_of_ours() {
    let mut network = Network::start().await;
    let ours = Ours::start(7).await;
    let (tell, subcredentials) = watch::channel(Vec::new());
    let config = ServiceConfig {
        points: 1,
        ..ServiceConfig::default()
    };
    let service = Service::start(
        Arc::new(dialer()),
        ToOurs::new(&network, &ours),
        &Config::default(),
        config,
        subcredentials,
    );
    let mut points = service.points();
    let points = limit(points.wait_for(|points| !points.is_empty())).await;
    let points = points.unwrap().clone();
    assert_eq!(points[0].relay.keys.ed25519, ours.relay().keys.ed25519);
    tokio::spawn(serve(service, echo().await));

    let identity = ServiceIdentity::generate().unwrap();
    let address = identity.address();
    for _ in 0..20 {
        let period = network.period().await;
        let blinded = address.blinded(period);
        tell.send_replace(vec![address.subcredential(&blinded)]);
        let text = text(&identity, &points, period);
        assert_eq!(network.post(&address.label(), &text).await, "250 OK");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (said, mut stream) = limit(network.reach(&address.to_string())).await;
        if said == 0 {
            limit(echoes(&mut stream)).await;
            return;
        }
        // No directory has it yet, or a period has ended: it is to forget that.
        println!("C tor says {said:#x}");
        assert_eq!(network.ask("SIGNAL NEWNYM").await, "250 OK");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("C tor's client does not reach it");
}

/// Has one descriptor, which the service itself has told.
#[derive(Debug)]
struct Told {
    descriptor: String,
    period: TimePeriod,
    asked: Relay,
}

impl ServiceDirectory for Told {
    fn looked_for(&self, _: &OnionAddress) -> Result<Placed, Error> {
        Ok(Placed {
            period: self.period,
            ends: u64::MAX,
            hsdirs: vec![self.asked.clone()],
        })
    }

    fn published(&self, _: &OnionAddress) -> Result<[Destination; 2], Error> {
        Err(Error::new(ErrorKind::Unsupported, "publishing"))
    }

    fn fetch<'a>(&'a self, _: &'a Relay, _: &'a BlindedKey) -> Waiting<'a, Result<String, Error>> {
        Box::pin(async { Ok(self.descriptor.clone()) })
    }

    fn publish<'a>(&'a self, _: &'a Relay, _: Arc<str>) -> Waiting<'a, Result<(), Error>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "publishing")) })
    }
}

/// How a service of C tor is reached, by its own word.
async fn known(network: &mut Network, address: &OnionAddress) -> Arc<KnownService> {
    loop {
        let now = network.period().await;
        let descriptor = network.descriptor(&address.label()).await;
        for number in now.number - 1..=now.number + 1 {
            let told = Told {
                descriptor: descriptor.clone(),
                period: TimePeriod { number, ..now },
                asked: network.relays()[0].clone(),
            };
            let config = DescriptorsConfig::default();
            let descriptors = Descriptors::new(Arc::new(told), ClientKeys::new(), config);
            if let Ok(service) = descriptors.service(address, &Isolation::default()).await
                && !service.points.is_empty()
            {
                return service;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_service_of_c_tor_meets_a_client_at_a_relay_of_ours() {
    let mut network = Network::start().await;
    let ours = Ours::start(8).await;
    let label = network.add_service(echo().await).await;
    let address: OnionAddress = format!("{label}.onion").parse().unwrap();
    let service = limit(known(&mut network, &address)).await;
    let client = Client::new(
        Arc::new(dialer()),
        ToOurs::new(&network, &ours),
        &Config::default(),
        ClientConfig::default(),
    );
    for _ in 0..3 {
        let terms = Terms::default();
        let opened = client.open_stream(&service, 80, &terms);
        let mut stream = limit(opened).await.unwrap();
        limit(echoes(&mut stream)).await;
    }
}
