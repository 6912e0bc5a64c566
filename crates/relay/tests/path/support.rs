//! Relays on loopback, and paths over them.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use hoplite_crypto::{Identity, Trust};
use hoplite_link::Peer;
use hoplite_masque::{Config as ClientConfig, Path, Relay as Known};
use hoplite_overlay::{
    Batch, Datagrams, Error, Opening, Overlay, Packets, Received, Stream, Terms,
    conformance::Subject, direct::Direct,
};
use hoplite_relay::{Config, Handle, Relay};
use hoplite_wire::{Target, connect_ip::Scope};

/// A path and what it is made of. The relays stop when it is dropped.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) path: Path,
    _relays: Vec<Handle>,
}

pub(crate) fn config() -> Config {
    let mut config = Config {
        listen: vec!["127.0.0.1:0".parse().expect("address")],
        ..Config::default()
    };
    let allow = ["127.0.0.0/8", "::1"].map(|rule| rule.parse().expect("rule"));
    config.egress.allow = allow.to_vec();
    config.limits.shards = 1;
    config
}

pub(crate) fn identity() -> Identity {
    let made = Identity::generate(&[]).expect("made");
    Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).expect("read")
}

pub(crate) fn known(name: &str, relay: &Handle) -> Known {
    Known {
        peer: Peer {
            name: name.to_owned(),
            address: Target::from(relay.addresses()[0]),
            trust: Trust::Pins(vec![relay.pin()]),
        },
        token: None,
        template: None,
        mode: None,
    }
}

pub(crate) fn build(hops: usize, below: &Arc<dyn Overlay>, client: ClientConfig) -> Built {
    let start = |_| Relay::start(&config(), &identity()).expect("started");
    let relays: Vec<Handle> = (0..hops).map(start).collect();
    let known = relays
        .iter()
        .enumerate()
        .map(|(n, relay)| known(&format!("r{n}"), relay));
    let path = Path::new(known.collect(), below, &Arc::new(client)).expect("a path");
    Built {
        path,
        _relays: relays,
    }
}

pub(crate) fn subject(hops: usize) -> Subject {
    let built = build(
        hops,
        &(Arc::new(Direct::new()) as _),
        ClientConfig::default(),
    );
    Subject::on_loopback(Arc::new(built))
}

pub(crate) fn subject_without_udp(hops: usize) -> Subject {
    let below = Switch::new();
    below.block(true);
    let built = build(hops, &(below as _), ClientConfig::default());
    Subject::on_loopback(Arc::new(built))
}

impl Overlay for Built {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        self.path.open_stream(target, terms)
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        self.path.open_datagrams(target, terms)
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.path.resolve(name, terms)
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        self.path.open_packets(scope, terms)
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        self.path.query(message, terms)
    }
}

/// The device's own sockets behind a firewall that can drop all UDP, silently, as firewalls do.
#[derive(Debug)]
pub(crate) struct Switch {
    direct: Direct,
    blocked: Arc<AtomicBool>,
}

struct Guarded {
    flow: Box<dyn Datagrams>,
    blocked: Arc<AtomicBool>,
}

impl Switch {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            direct: Direct::new(),
            blocked: Arc::default(),
        })
    }

    pub(crate) fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::SeqCst);
    }
}

impl Overlay for Switch {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        self.direct.open_stream(target, terms)
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let flow = self.direct.open_datagrams(target, terms).await?;
            Ok(Box::new(Guarded {
                flow,
                blocked: self.blocked.clone(),
            }) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.direct.resolve(name, terms)
    }
}

impl Guarded {
    fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::SeqCst)
    }
}

impl Datagrams for Guarded {
    fn max_payload(&self) -> usize {
        self.flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        match self.is_blocked() {
            true => Poll::Ready(Ok(())),
            false => self.flow.poll_send(cx, batch),
        }
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        loop {
            match self.flow.poll_recv(cx, buf) {
                Poll::Ready(Ok(_)) if self.is_blocked() => {}
                other => return other,
            }
        }
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarded")
    }
}
