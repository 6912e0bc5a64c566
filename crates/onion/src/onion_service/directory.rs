//! What clients and services need of the directory: who keeps the descriptors of a service (HSDir), and circuits to ask them over. rend-spec-v3,
//! "Locating, uploading, and downloading hidden service descriptors"; tor-spec, "Opening a directory stream".
//!
//! Which relays there are, and how an HSDir is spoken to, is not known here: the program implements [`ServiceDirectory`], and tests do.

use std::{fmt, future::poll_fn, sync::Arc};

use hoplite_crypto::onion::{
    service_keys::{BlindedKey, OnionAddress},
    time_period::TimePeriod,
};
use hoplite_overlay::{Error, Stream};

use crate::{
    channel::{Dialer, Waiting},
    client::{self, Builder, LastRelay},
    endpoint::io::Handle,
    path::{Paths, Relay, ServiceEnd, ServicePurpose},
};

/// Where one descriptor of a service is, by a list of relays.
#[derive(Clone, PartialEq, Eq)]
pub struct Placed {
    /// Whose blinded key names the descriptor.
    pub period: TimePeriod,
    /// When that is over, in seconds since 1970.
    pub ends: u64,
    /// Who keeps it.
    pub hsdirs: Vec<Relay>,
}

/// Where one of a service's descriptors is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// There.
    pub placed: Placed,
    /// From when its revisions are counted, in seconds since 1970.
    pub counted_from: u64,
}

/// Knows where descriptors are, and asks those who keep them.
pub trait ServiceDirectory: fmt::Debug + Send + Sync {
    /// Where a client looks for the descriptor of a service.
    ///
    /// # Errors
    /// There is no list of relays that may be used, or none that keeps descriptors.
    fn looked_for(&self, address: &OnionAddress) -> Result<Placed, Error>;

    /// Where a service publishes its two descriptors.
    ///
    /// # Errors
    /// As [`ServiceDirectory::looked_for`].
    fn published(&self, address: &OnionAddress) -> Result<[Destination; 2], Error>;

    /// Asks a relay for the descriptor of this key. What it answers is anything, though no longer than a descriptor is.
    ///
    /// # Errors
    /// [`Reason::NameNotFound`](hoplite_overlay::Reason::NameNotFound): it has none; others: it cannot be asked.
    fn fetch<'a>(
        &'a self,
        hsdir: &'a Relay,
        key: &'a BlindedKey,
    ) -> Waiting<'a, Result<String, Error>>;

    /// Gives a relay a descriptor to keep.
    ///
    /// # Errors
    /// It cannot be asked, or refuses.
    fn publish<'a>(
        &'a self,
        hsdir: &'a Relay,
        descriptor: Arc<str>,
    ) -> Waiting<'a, Result<(), Error>>;
}

/// Streams to the directories of relays. Each has a circuit of its own, whose end an HSDir is behind a path that was chosen as any other: no HSDir
/// learns who asks it, nor that two questions come from the same.
#[derive(Clone)]
pub struct DirectoryCircuits(Arc<Builder>);

impl DirectoryCircuits {
    /// Builds circuits over what `paths` chooses, by the channels of `dialer`; `circuits` bounds each.
    pub fn new(dialer: Arc<dyn Dialer>, paths: Arc<dyn Paths>, circuits: &client::Config) -> Self {
        Self(Builder::new(dialer, paths, circuits.clone()))
    }

    /// A stream to the directory of this relay (BEGIN_DIR), to look for a descriptor or to publish one. Its circuit ends with it.
    ///
    /// # Errors
    /// There is no path to the relay, or it has no directory.
    pub async fn open(&self, relay: &Relay, purpose: ServicePurpose) -> Result<Stream, Error> {
        let end = ServiceEnd::Given(relay);
        let path = self.0.paths().service_path(purpose, end).await?;
        // Whose descriptor it is decides which relay is asked: a stranger's choice.
        let building = self.0.build_to(path, LastRelay::Strangers, purpose);
        let circuit = Arc::new(building.await?);
        let id = circuit.shared().lock().begin_directory()?;
        let mut handle = Handle::new(circuit.shared(), id);
        poll_fn(|cx| handle.poll_said(cx)).await?;
        Ok(Stream::new(handle).holding(circuit))
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({} HSDirs)", self.hsdirs.len())
    }
}

impl fmt::Debug for DirectoryCircuits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectoryCircuits")
    }
}
