//! The client's end: circuits built over a path, and the overlay made of them.
//! The binary hands it a [`Dialer`] and [`Paths`].

use std::{future::poll_fn, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use hoplite_channel::{How, PaddingMode, Rival};
use hoplite_config::ConfigError;
use hoplite_overlay::{Datagrams, Error, ErrorKind, Isolation, Opening, Overlay, Stream, Terms};
use hoplite_wire::{Target, cell::relay::Flags};
use serde::Deserialize;

use crate::{
    Randomness,
    channel::Dialer,
    endpoint::{HALF_CLOSE, Limits, io::Handle, udp::UdpHandle},
    onion_service::{ClientConfig, DescriptorsConfig},
    path::Paths,
};
use pool::{Need, Pool};

pub use circuit::{Asks, ClientCircuit, Progress};
pub use driver::BuiltCircuit;
pub use driver::build;
pub use events::{Event, EventKind, Events};
pub use pool::OF_A_TOKEN;
pub use times::BuildTimes;

pub(crate) use circuit::INCREMENTS;
pub(crate) use conversation::{Conversation, Heard};
pub(crate) use driver::{Builder, LastRelay};
pub(crate) use events::StreamEvents;

mod circuit;
pub mod control;
mod conversation;
mod driver;
mod events;
mod pool;
mod times;

/// How circuits are built and kept: the table `[onion]` of the client's file. The keys are explained in `examples/client-onion.toml`, which a test holds
/// equal to the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What the channel to the first relay runs over. Whoever makes the [`Dialer`] obeys it.
    pub channel: How,
    /// Circuits that stand ready for the next isolation token, for ports that were lately used.
    pub ahead: usize,
    /// Offer congestion control (proposal 324) where the exit has it, instead of fixed windows.
    pub congestion_control: bool,
    /// Of those that stand ready, each is two circuits with different guards to one exit that carry the same streams (Conflux), where the exit has it.
    pub conflux: bool,
    /// Encrypt relay cells by CGO (proposal 359) with each relay that has it; needs `congestion_control`.
    pub cgo: bool,
    /// Circuits tried for one stream.
    pub attempts: usize,
    /// The time that building a circuit may take at first, and at most; then it is learnt.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub build: Duration,
    /// No new streams on a circuit that is used for this long (`MaxCircuitDirtiness`).
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub lasts: Duration,
    /// A circuit without streams is closed after so long.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle: Duration,
    /// Isolation tokens with circuits, up to [`OF_A_TOKEN`] each; beyond it those without streams are closed, and if there are none the next token is
    /// refused. Relays give a client 256 circuits, of which some are ahead or end.
    pub isolated: usize,
    /// Streams of one circuit at once; the next is refused.
    pub streams: usize,
    /// Seconds that a small piece of a stream waits for more of it, so that they share a cell.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub share: Duration,
    /// How many bytes of one circuit the first relay may send ahead over QUIC: by default 800 Mbit/s where it is 80 ms away. A circuit is no faster. Who
    /// makes the [`Dialer`] obeys it.
    pub window: u32,
    /// How much the channel to the first relay is padded. Whoever makes the [`Dialer`] obeys it.
    pub padding: PaddingMode,
    /// How circuits share the channel to the first relay, where the lab asks for a rival of what is right. Whoever makes the [`Dialer`] obeys it; programs
    /// that are not built for the lab refuse the key.
    pub rival: Option<Rival>,
    /// A directory of keys of clients whom onion services have authorised (C tor's `*.auth_private`). Who makes the
    /// [`Descriptors`](crate::onion_service::Descriptors) obeys it.
    pub client_keys: Option<PathBuf>,
    /// A Unix socket at which Tor's control protocol tells of circuits and streams. Who serves it opens `events`.
    pub control: Option<PathBuf>,
    /// Bounds of reaching onion services. Who makes their [`Client`](crate::onion_service::Client) obeys it.
    pub services: ClientConfig,
    /// Bounds of looking for their descriptors. Who makes the [`Descriptors`](crate::onion_service::Descriptors) obeys it.
    pub descriptors: DescriptorsConfig,
    /// The time that the channel to the first relay may take. No key.
    #[serde(skip)]
    pub dial: Duration,
    /// The least time that is learnt for building a circuit over it. No key.
    #[serde(skip)]
    pub least_build: Duration,
    /// Other bounds of one circuit than `streams` and `share`. No key.
    #[serde(skip)]
    pub limits: Limits,
    /// What circuits and streams do goes there. No key.
    #[serde(skip)]
    pub events: Events,
    /// No key.
    #[serde(skip)]
    pub random: Randomness,
}

impl Default for Config {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            channel: How::Raced,
            ahead: 1,
            congestion_control: true,
            conflux: true,
            cgo: true,
            attempts: 3,
            build: Duration::from_secs(60),
            lasts: Duration::from_secs(600),
            idle: Duration::from_secs(1800),
            isolated: 48,
            streams: limits.streams,
            share: limits.share,
            window: 8 << 20,
            padding: PaddingMode::Auto,
            rival: None,
            client_keys: None,
            control: None,
            services: ClientConfig::default(),
            descriptors: DescriptorsConfig::default(),
            dial: Duration::from_secs(15),
            least_build: Duration::from_millis(1500),
            limits,
            events: Events::default(),
            random: Randomness::default(),
        }
    }
}

impl Config {
    /// Every key whose number makes no sense.
    pub fn check(&self) -> Vec<ConfigError> {
        let least = Duration::from_secs(1);
        let second = "expected a second at least";
        let checks = [
            ("onion.ahead", self.ahead <= 64, "expected 0 to 64"),
            (
                "onion.attempts",
                (1..=16).contains(&self.attempts),
                "expected 1 to 16",
            ),
            ("onion.build", self.build >= least, second),
            ("onion.lasts", self.lasts >= least, second),
            ("onion.idle", self.idle >= least, second),
            (
                "onion.isolated",
                (1..=65_536).contains(&self.isolated),
                "expected 1 to 65536",
            ),
            (
                "onion.streams",
                (1..=65_535).contains(&self.streams),
                "expected 1 to 65535",
            ),
            (
                "onion.share",
                self.share <= Duration::from_secs(1),
                "expected 0 to 1 second",
            ),
            (
                "onion.window",
                self.window >= 64 << 10,
                "expected 65536 at least",
            ),
            (
                "onion.services.attempts",
                (1..=16).contains(&self.services.attempts),
                "expected 1 to 16",
            ),
            (
                "onion.services.kept",
                self.services.kept > 0,
                "expected 1 at least",
            ),
            (
                "onion.descriptors.asked",
                (1..=16).contains(&self.descriptors.asked),
                "expected 1 to 16",
            ),
            (
                "onion.descriptors.lookups",
                self.descriptors.lookups > 0,
                "expected 1 at least",
            ),
            (
                "onion.descriptors.at_once",
                self.descriptors.at_once > 0,
                "expected 1 at least",
            ),
            (
                "onion.descriptors.services",
                self.descriptors.services > 0,
                "expected 1 at least",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, is_right, _)| !is_right);
        wrong
            .map(|(key, _, expected)| ConfigError::new(key, expected))
            .collect()
    }

    /// Bounds of one circuit.
    fn circuit(&self) -> Limits {
        Limits {
            streams: self.streams,
            share: self.share,
            ..self.limits
        }
    }
}

// Circuits as an overlay: a stream is a stream of the token's circuit, a name is resolved by its exit. tor-spec "Opening streams and transferring data", "Remote hostname lookup".

/// The overlay. Dropped, its circuits end with their last streams.
#[derive(Debug)]
pub struct Onion(Arc<Pool>);

impl Onion {
    /// Builds circuits over what `paths` chooses, by the channels of `dialer`.
    pub fn new(dialer: Arc<dyn Dialer>, paths: Arc<dyn Paths>, config: Config) -> Self {
        Self(Pool::new(dialer, paths, config))
    }

    /// Builds the spare circuits now, so that the first stream finds one.
    pub fn warm(&self) {
        self.0.refill();
    }

    /// A stream to the directory of the circuit's last relay (BEGIN_DIR).
    ///
    /// # Errors
    /// As [`Overlay::open_stream`]; [`ErrorKind::Unsupported`] if it has none.
    pub async fn open_directory(&self, terms: &Terms) -> Result<Stream, Error> {
        let opening = async {
            let circuit = self.0.circuit(&terms.isolation, Need::default()).await?;
            let id = circuit.shared().lock().begin_directory()?;
            let mut handle = Handle::new(circuit.shared(), id);
            poll_fn(|cx| handle.poll_said(cx)).await?;
            Ok(Stream::new(handle))
        };
        terms.run("opening a directory stream", opening).await
    }

    async fn stream(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let events = self.0.config().events.stream(target, terms);
        let ask = |circuit: Arc<BuiltCircuit>| -> Opening<'_, Stream> {
            let events = events.clone();
            Box::pin(async move {
                let mut handle = begin(&circuit, target, events)?;
                poll_fn(|cx| handle.poll_said(cx)).await?;
                Ok(Stream::new(handle))
            })
        };
        let opened = self.attempt(&terms.isolation, Need::stream(target), ask);
        opened.await.inspect_err(|error| events.failed(error))
    }

    async fn datagrams(&self, target: &Target, terms: &Terms) -> Result<Box<dyn Datagrams>, Error> {
        let ask = |circuit: Arc<BuiltCircuit>| -> Opening<'_, Box<dyn Datagrams>> {
            Box::pin(async move {
                let id = circuit
                    .shared()
                    .lock()
                    .connect_udp(target, Flags::IPV6_OKAY)?;
                let handle = UdpHandle::new(circuit.shared(), id);
                poll_fn(|cx| handle.poll_said(cx)).await?;
                Ok(Box::new(handle) as _)
            })
        };
        self.attempt(&terms.isolation, Need::udp(target), ask).await
    }

    /// First data travel behind BEGIN ("optimistic data").
    async fn early(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let events = self.0.config().events.stream(target, terms);
        let ask = |circuit: Arc<BuiltCircuit>| -> Opening<'_, Stream> {
            let events = events.clone();
            Box::pin(async move {
                let handle = begin(&circuit, target, events)?;
                Ok(Stream::early(handle, terms.deadline))
            })
        };
        let opened = self.attempt(&terms.isolation, Need::stream(target), ask);
        opened.await.inspect_err(|error| events.failed(error))
    }

    async fn addresses(&self, name: &str, terms: &Terms) -> Result<Vec<IpAddr>, Error> {
        let ask = |circuit: Arc<BuiltCircuit>| -> Opening<'_, Vec<IpAddr>> {
            Box::pin(async move {
                let id = circuit.shared().lock().resolve(name)?;
                let mut handle = Handle::new(circuit.shared(), id);
                poll_fn(|cx| handle.poll_addresses(cx)).await
            })
        };
        self.attempt(&terms.isolation, Need::default(), ask).await
    }

    /// Tries on the token's circuit, and on another where the circuit is what failed.
    async fn attempt<'a, T>(
        &self,
        isolation: &Isolation,
        need: Need,
        ask: impl Fn(Arc<BuiltCircuit>) -> Opening<'a, T>,
    ) -> Result<T, Error> {
        let mut attempts = 1;
        loop {
            let (failed, error) = match self.0.circuit(isolation, need).await {
                Ok(circuit) => match ask(Arc::clone(&circuit)).await {
                    Ok(found) => return Ok(found),
                    Err(error) => (Some(circuit), error),
                },
                Err(error) => (None, error),
            };
            if attempts >= self.0.config().attempts || !is_the_paths(&error, failed.is_none()) {
                return Err(error);
            }
            if let Some(circuit) = failed {
                self.0.give_up(isolation, &circuit);
            }
            attempts += 1;
        }
    }
}

/// Whether another circuit may do better.
fn is_the_paths(error: &Error, building: bool) -> bool {
    match error.kind() {
        ErrorKind::PathFailed | ErrorKind::EntryUnreachable => true,
        ErrorKind::TimedOut => building,
        _ => false,
    }
}

fn begin(circuit: &BuiltCircuit, target: &Target, events: StreamEvents) -> Result<Handle, Error> {
    let flags = if circuit.half_close() {
        Flags::IPV6_OKAY.and(HALF_CLOSE)
    } else {
        Flags::IPV6_OKAY
    };
    let id = circuit.shared().lock().begin(target, flags)?;
    events.sent(circuit.id());
    Ok(Handle::new(circuit.shared(), id).telling(events))
}

impl Overlay for Onion {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            if terms.early {
                terms
                    .run("opening a stream", self.early(target, terms))
                    .await
            } else {
                terms
                    .run("opening a stream", self.stream(target, terms))
                    .await
            }
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(terms.run("opening a UDP flow", self.datagrams(target, terms)))
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(terms.run("resolving a name", self.addresses(name, terms)))
    }
}
