//! `hoplite directory`: one authority. It answers relays, clients and other authorities in plain HTTP/1.1, and votes at fixed times.
//! What it decides is decided in `hoplite_directory::Authority`; here are its sockets, its clock and its file.

mod exchange;
mod places;
mod rates;
mod reach;
mod serve;
mod writer;

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hoplite_crypto::SigningKey;
use hoplite_directory::{Authority, Store, StoreError, authority};
use hoplite_wire::directory::Key;
use tokio::net::TcpListener;
use tracing::{info, warn};

use self::writer::Writer;
use crate::{
    config::{self, directory::Config},
    errors::Failure,
    resources, secret,
    signals::{self, Asked, Signals},
};

/// The machine and what is to be written, shared by who answers and who asks.
#[derive(Clone)]
struct Shared(Arc<State>);

struct State {
    authority: Mutex<Authority>,
    writer: Writer,
    /// From where the other authorities ask: they are served first.
    others: Mutex<HashSet<IpAddr>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Authority> {
        self.0
            .authority
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> &Writer {
        &self.0.writer
    }

    fn others(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
        self.0.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    moment().as_secs()
}

/// The time since 1970.
fn moment() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Serves with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let config = config::directory::read(&config::open(path)?)?;
    let key = secret::read(&config.key)?;
    let own = Key(key.public());
    if !config.trust().authorities.contains(&own) {
        let why = format!(
            "the key in {} is {own}, which `authorities` does not name",
            config.key.display()
        );
        return Err(Failure::new(
            "starting the authority",
            why,
            "add it there, for all authorities and clients",
        ));
    }
    let (shared, store) = open(&config, key)?;
    resources::raise_file_limit();
    signals::current_thread_runtime()?.block_on(serve(&config, own, &shared, store))
}

async fn serve(config: &Config, own: Key, shared: &Shared, store: Store) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let (listener, address) = listen(config.listen).await?;
    let relays = shared.lock().relays();
    info!(listen = %address, authority = %own, relays, "the authority is up");
    let serving = serve::serve(listener, shared.clone(), config.limits.clone());
    let voting = exchange::run(shared.clone(), config, own);
    let stopped = async {
        while signals.next().await == Asked::Reload {
            info!("an authority reads its file only when it starts: start it again");
        }
    };
    tokio::select! {
        () = serving => {}
        () = voting => {}
        () = reach::run(shared.clone()) => {}
        () = shared.writer().run(store) => {}
        () = stopped => info!("the authority has stopped"),
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let refused = |error: std::io::Error| {
        let remedy = "stop the program that has this port, or choose another address with `listen`";
        Failure::new(format!("listening on {address}"), error, remedy)
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

/// The machine with what its file has.
fn open(config: &Config, key: SigningKey) -> Result<(Shared, Store), Failure> {
    let promise = writer::promise(&config.key)?;
    let mut authority = Authority::new(
        authority::Config {
            key,
            trust: config.trust(),
            interval: config.interval.as_secs(),
            voting: config.voting.as_secs(),
            intervals: config.intervals,
            bandwidth_cap: config.bandwidth_cap,
            admission: config.admission.admission(),
        },
        promise,
        now(),
    );
    let store = restored(config, &mut authority).map_err(|error| {
        let doing = format!("opening the store {}", config.store.display());
        Failure::new(doing, "it cannot be used", error.to_string())
    })?;
    let state = State {
        authority: Mutex::new(authority),
        writer: Writer::default(),
        others: Mutex::default(),
    };
    Ok((Shared(Arc::new(state)), store))
}

fn restored(config: &Config, authority: &mut Authority) -> Result<Store, StoreError> {
    let store = Store::open(&config.store)?;
    for text in store.descriptors()? {
        // What is too old, or refused by now, is not taken again.
        authority.restore(&text, now()).ok();
    }
    if let Some((text, _)) = store.list()?
        && let Err(refused) = authority.resume(&text, now())
    {
        warn!("the last list is of no use any more: {refused}");
    }
    Ok(store)
}
