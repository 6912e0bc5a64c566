//! `hoplite relay`: serves until it is told to stop. SIGTERM and SIGINT drain (a second one stops at once), SIGHUP reads
//! tokens and certificates again and keeps the old ones if the new are wrong.

pub(crate) mod known;
mod publish;
mod rotate;

use std::{path::Path, time::Duration};

use hoplite_crypto::Identity;
use hoplite_relay::{Config, Handle, Parts, Relay, StartError};
use tracing::{error, info, warn};

use self::{known::Reader, publish::Publisher, rotate::Rotation};
use crate::{
    config,
    directory::now,
    errors::Failure,
    identity::{
        self, Files,
        onion::{self, Stored},
    },
    qlog, resources,
    signals::{self, Asked, Signals},
    testbed::{self, Ready},
};

/// How long open tunnels may go on after the relay was told to stop.
const DRAIN: Duration = Duration::from_secs(30);

/// Serves with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let loaded = config::relay::load(path)?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| warn!("{warning}"));
    let identity = identity_of(&loaded.config)?;
    let onion = onion_of(&loaded.config)?;
    resources::raise_file_limit();
    let recording = qlog::Recording::from_environment()?;
    let runtime = signals::current_thread_runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let circuits = onion.as_ref().map(|stored| stored.circuits(now()));
        let parts = Parts {
            watch: recording.watch(),
            circuits: circuits.transpose()?,
        };
        let handle = start(&loaded.config, &identity, parts)?;
        tell(&handle);
        let rotation = rotation(&loaded.config, onion.as_ref(), &handle)?;
        let current = rotation.as_ref().map(Rotation::watch);
        let publisher = Publisher::of(&loaded.config, &handle, onion.as_ref(), current)?;
        let reader = Reader::of(&loaded.config, &handle)?;
        tokio::select! {
            () = serve(handle, path, &mut signals) => {}
            () = publish(publisher) => {}
            () = rotate(rotation) => {}
            () = read(reader) => {}
        }
        Ok(())
    })
}

/// What an operator, and a script, wants to know: where, and what clients write.
fn tell(handle: &Handle) {
    let listen: Vec<String> = handle.addresses().iter().map(ToString::to_string).collect();
    let (listen, pin) = (listen.join(", "), handle.pin());
    match handle.onion_key() {
        Some(onion) => info!(listen, %pin, %onion, "the relay is up"),
        None => info!(listen, %pin, "the relay is up"),
    }
}

/// What circuits are served with, if they are.
fn onion_of(config: &Config) -> Result<Option<Stored>, Failure> {
    let enabled = config.onion.enabled;
    let stored = enabled.then(|| Stored::read_or_make(&config.identity, now()));
    stored.transpose()
}

/// Only where a directory tells clients of a new key the old one can be given up.
fn rotation(
    config: &Config,
    onion: Option<&Stored>,
    handle: &Handle,
) -> Result<Option<Rotation>, Failure> {
    let every = match config.directory.publish.is_empty() {
        true => 0,
        false => config.onion.rotate.as_secs(),
    };
    let (Some(stored), Some(rekey)) = (onion, handle.rekey()) else {
        return Ok(None);
    };
    Rotation::new(stored.clone(), rekey, every).map(Some)
}

async fn rotate(rotation: Option<Rotation>) {
    match rotation {
        Some(rotation) => rotation.run().await,
        None => std::future::pending().await,
    }
}

/// Tells the directory of the relay, if the file says so; never ends.
async fn publish(publisher: Option<Publisher>) {
    match publisher {
        Some(publisher) => publisher.run().await,
        None => std::future::pending().await,
    }
}

/// Keeps the directory's list, if the file names authorities; never ends.
async fn read(reader: Option<Reader>) {
    match reader {
        Some(reader) => reader.run().await,
        None => std::future::pending().await,
    }
}

async fn serve(handle: Handle, path: &Path, signals: &mut Signals) {
    while signals.next().await == Asked::Reload {
        match reload(&handle, path) {
            Ok(()) => info!(pin = %handle.pin(), "tokens and certificates were read again"),
            Err(failure) => error!("the old tokens and certificates stay: {failure}"),
        }
    }
    info!(
        "draining: open tunnels may go on for {} s, a second signal stops at once",
        DRAIN.as_secs()
    );
    let again = async { while signals.next().await == Asked::Reload {} };
    tokio::select! {
        empty = handle.drain(DRAIN) => match empty {
            true => info!("the relay has stopped"),
            false => warn!("the relay has stopped and closed tunnels that were still open"),
        },
        () = again => warn!("the relay has stopped at once"),
    }
}

fn reload(handle: &Handle, path: &Path) -> Result<(), Failure> {
    let config = config::relay::load(path)?.config;
    let identity = files_of(&config).read()?;
    handle
        .reload(&config.auth, Some(&identity))
        .map_err(|error| refused(&error))
}

fn files_of(config: &Config) -> Files {
    match &config.tls {
        Some(tls) => Files {
            certificate: tls.cert.clone(),
            key: tls.key.clone(),
        },
        None => Files::within(&config.identity),
    }
}

/// Reads the identity; a relay without a certificate from elsewhere makes one at its first start.
fn identity_of(config: &Config) -> Result<Identity, Failure> {
    let files = files_of(config);
    if config.tls.is_none() && !files.exist() {
        identity::store(&config.identity, &identity::make(&[])?, false)?;
        info!("a new identity was made in {}", config.identity.display());
    }
    files.read()
}

fn start(config: &Config, identity: &Identity, parts: Parts) -> Result<Handle, Failure> {
    Relay::start_with(config, identity, parts).map_err(|error| refused(&error))
}

fn refused(error: &StartError) -> Failure {
    let remedy = match error {
        StartError::Config(_) => "run 'hoplite check' on the file",
        StartError::Listen { source, .. } => listen_remedy(source),
        StartError::Addresses(_) => "the sandbox must let it open netlink sockets (AF_NETLINK)",
        StartError::Identity(_) => {
            "check that key and certificate belong together, or make new ones with 'hoplite keygen --force'"
        }
        _ => "raise the limits of threads and open files",
    };
    Failure::new("starting the relay", error, remedy)
}

fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "stop the program that has this port, or choose another with `listen`"
        }
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 need privileges (AmbientCapabilities=CAP_NET_BIND_SERVICE): give them, or choose another with `listen`"
        }
        _ => "choose an address of this machine with `listen`",
    }
}

/// A relay of `demo` and `bench`: its identity is never stored, and it ends with its parent.
pub(crate) fn serve_node(config: &Config) -> Result<(), Failure> {
    resources::raise_file_limit();
    let identity = identity::parse(&identity::make(&[])?)?;
    let circuits = config.onion.enabled.then(|| onion::unstored(now()));
    let parts = Parts {
        circuits: circuits.transpose()?,
        ..Parts::default()
    };
    let handle = start(config, &identity, parts)?;
    let listen = handle.addresses().first().copied();
    let listen = listen.ok_or_else(|| {
        Failure::new(
            "starting the relay",
            "it listens nowhere",
            "please report this",
        )
    })?;
    testbed::ready(&Ready {
        listen,
        pin: Some(handle.pin().to_string()),
        onion: handle.onion_key().map(|key| key.to_string()),
    })?;
    signals::current_thread_runtime()?.block_on(testbed::orphaned());
    Ok(())
}
