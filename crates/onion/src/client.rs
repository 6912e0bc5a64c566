//! The client's end: circuits built over a path, and the overlay made of them.
//! The binary hands it a [`Dialer`] and [`Paths`].

use std::{future::poll_fn, net::IpAddr, sync::Arc, time::Duration};

use hoplite_overlay::{Datagrams, Error, ErrorKind, Isolation, Opening, Overlay, Stream, Terms};
use hoplite_wire::{Target, cell::relay::Flags};

use crate::{
    channel::Dialer,
    edge::{HALF_CLOSE, Limits, io::Handle},
    path::Paths,
};
use pool::Pool;

pub use circuit::Circuit;
pub use circuit::Progress;
pub use driver::Live;
pub use driver::build;
pub use pool::OF_A_TOKEN;
pub use times::BuildTimes;

mod circuit;
mod driver;
mod pool;
mod times;

/// How circuits are built and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Offer congestion control (proposal 324) where the exit has it.
    pub congestion_control: bool,
    /// Circuits that stand ready for the next isolation token, for ports that were lately used.
    pub ahead: usize,
    /// Isolation tokens with a circuit; beyond it those without streams are closed, and if there are none the next token is refused.
    pub tokens: usize,
    /// No new streams on a circuit that is used for so long (`MaxCircuitDirtiness`).
    pub lasts: Duration,
    /// A circuit without streams is closed after so long.
    pub idle: Duration,
    /// Circuits tried for one stream.
    pub attempts: usize,
    /// The time that the channel to the first relay may take.
    pub dial: Duration,
    /// The least and the first time that building a circuit over it may take; between them it is learnt.
    pub build: (Duration, Duration),
    /// Bounds of one circuit.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            congestion_control: true,
            ahead: 1,
            tokens: 1024,
            lasts: Duration::from_secs(600),
            idle: Duration::from_secs(1800),
            attempts: 3,
            dial: Duration::from_secs(15),
            build: (Duration::from_millis(1500), Duration::from_secs(60)),
            limits: Limits::default(),
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
            let live = self.0.circuit(&terms.isolation, None).await?;
            let id = live.shared().lock().begin_directory()?;
            let mut handle = Handle::new(live.shared(), id);
            poll_fn(|cx| handle.poll_said(cx)).await?;
            Ok(Stream::new(handle))
        };
        terms.run("opening a directory stream", opening).await
    }

    async fn stream(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let ask = |live: Arc<Live>| -> Opening<'_, Stream> {
            Box::pin(async move {
                let mut handle = begin(&live, target)?;
                poll_fn(|cx| handle.poll_said(cx)).await?;
                Ok(Stream::new(handle))
            })
        };
        self.attempt(&terms.isolation, Some(target), ask).await
    }

    /// First data travel behind BEGIN ("optimistic data").
    async fn early(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        let ask = |live: Arc<Live>| -> Opening<'_, Stream> {
            Box::pin(async move { Ok(Stream::early(begin(&live, target)?, terms.deadline)) })
        };
        self.attempt(&terms.isolation, Some(target), ask).await
    }

    async fn addresses(&self, name: &str, terms: &Terms) -> Result<Vec<IpAddr>, Error> {
        let ask = |live: Arc<Live>| -> Opening<'_, Vec<IpAddr>> {
            Box::pin(async move {
                let id = live.shared().lock().resolve(name)?;
                let mut handle = Handle::new(live.shared(), id);
                poll_fn(|cx| handle.poll_addresses(cx)).await
            })
        };
        self.attempt(&terms.isolation, None, ask).await
    }

    /// Tries on the token's circuit, and on another where the circuit is what failed.
    async fn attempt<'a, T>(
        &self,
        isolation: &Isolation,
        target: Option<&Target>,
        ask: impl Fn(Arc<Live>) -> Opening<'a, T>,
    ) -> Result<T, Error> {
        let mut attempts = 1;
        loop {
            let (failed, error) = match self.0.circuit(isolation, target).await {
                Ok(live) => match ask(Arc::clone(&live)).await {
                    Ok(found) => return Ok(found),
                    Err(error) => (Some(live), error),
                },
                Err(error) => (None, error),
            };
            if attempts >= self.0.config().attempts || !is_the_paths(&error, failed.is_none()) {
                return Err(error);
            }
            if let Some(live) = failed {
                self.0.give_up(isolation, &live);
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

fn begin(live: &Live, target: &Target) -> Result<Handle, Error> {
    let flags = if live.half_close() {
        Flags::IPV6_OKAY.and(HALF_CLOSE)
    } else {
        Flags::IPV6_OKAY
    };
    let id = live.shared().lock().begin(target, flags)?;
    Ok(Handle::new(live.shared(), id))
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
        _: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async {
            let doing = "opening a UDP flow through circuits, which carry TCP alone";
            Err(Error::new(ErrorKind::Unsupported, doing))
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(terms.run("resolving a name", self.addresses(name, terms)))
    }
}
