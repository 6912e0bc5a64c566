//! A path that is chosen, and chosen again when it fails: `hops = n` in the client's file.
//! A failed relay is avoided while there are others; flows that run on the old path stay there.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{Target, connect_ip::Scope};
use tracing::warn;

use crate::{Config, Path, Relay};

/// Which relays make a path, by their places in the list of all, first hop first, if possible without those that failed, the last of which is the last
/// here; `None` if they do not allow one.
pub type Choose = Box<dyn FnMut(&[usize]) -> Option<Vec<usize>> + Send>;

/// Chooses among relays. Every flow goes through the path that is current when it opens.
pub struct Paths {
    below: Arc<dyn Overlay>,
    config: Arc<Config>,
    state: Mutex<State>,
}

struct State {
    relays: Vec<Relay>,
    /// Those that failed since the list is this one, in the order of it.
    failed: Vec<usize>,
    choose: Choose,
    indices: Vec<usize>,
    path: Path,
}

impl Paths {
    /// Lets `choose` choose; the first path at once.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the relays do not allow a path.
    pub fn new(
        relays: Vec<Relay>,
        below: Arc<dyn Overlay>,
        config: &Arc<Config>,
        mut choose: Choose,
    ) -> Result<Self, Error> {
        let (indices, path) = make(&relays, &below, config, &[], &mut choose)?;
        let state = Mutex::new(State {
            relays,
            failed: Vec::new(),
            choose,
            indices,
            path,
        });
        Ok(Self {
            below,
            config: config.clone(),
            state,
        })
    }

    /// Chooses among other relays from now on. The current path stays if all its relays are among them, named and addressed as before.
    pub fn renew(&self, relays: Vec<Relay>, choose: Choose) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let used = state.indices.iter().filter_map(|&i| state.relays.get(i));
        let again = used.map(|used| relays.iter().position(|relay| is_same(relay, used)));
        let again: Option<Vec<usize>> = again.collect();
        state.failed.clear();
        (state.relays, state.choose) = (relays, choose);
        match again {
            Some(indices) => state.indices = indices,
            None => {
                state.indices.clear();
                self.choose_again(&mut state);
            }
        }
    }

    fn choose_again(&self, state: &mut State) {
        let (below, config) = (&self.below, &self.config);
        let made = make(
            &state.relays,
            below,
            config,
            &state.failed,
            &mut state.choose,
        );
        if let Ok((indices, path)) = made {
            path.keep_warm();
            (state.indices, state.path) = (indices, path);
        }
    }

    /// The path that new flows take.
    pub fn current(&self) -> Path {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .path
            .clone()
    }

    /// Chooses another path if `failed` is still the current one. The relay to avoid is the first that has no connection.
    fn replace(&self, failed: &Path) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let broken = failed.hops().iter().position(|hop| hop.carrier().is_none());
        let Some(&relay) = broken.and_then(|hop| state.indices.get(hop)) else {
            return;
        };
        if !state.path.is(failed) {
            return;
        }
        state.failed.retain(|&i| i != relay);
        state.failed.push(relay);
        self.choose_again(&mut state);
        if !state.path.is(failed) {
            warn!("a relay of the path failed: another path is taken");
        }
    }

    async fn open<T, F: Future<Output = Result<T, Error>>>(
        &self,
        open: impl Fn(Path) -> F,
    ) -> Result<T, Error> {
        let path = self.current();
        match open(path.clone()).await {
            Err(error) if matters(error.kind()) => {
                self.replace(&path);
                let next = self.current();
                if next.is(&path) {
                    Err(error)
                } else {
                    open(next).await
                }
            }
            answer => answer,
        }
    }
}

/// Whether another path may help.
fn matters(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::EntryUnreachable | ErrorKind::PathFailed)
}

/// Whether connections to one are connections to the other.
fn is_same(a: &Relay, b: &Relay) -> bool {
    a.peer.name == b.peer.name && a.peer.address == b.peer.address && a.peer.trust == b.peer.trust
}

fn make(
    relays: &[Relay],
    below: &Arc<dyn Overlay>,
    config: &Arc<Config>,
    failed: &[usize],
    choose: &mut Choose,
) -> Result<(Vec<usize>, Path), Error> {
    let none = || {
        Error::new(
            ErrorKind::Unsupported,
            "choosing a path: the relays do not allow one",
        )
    };
    let indices = choose(failed).ok_or_else(none)?;
    let chosen = indices.iter().filter_map(|&i| relays.get(i)).cloned();
    let path = Path::new(chosen.collect(), below, config)?;
    Ok((indices, path))
}

impl Overlay for Paths {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(self.open(move |path| async move { path.open_stream(target, terms).await }))
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(self.open(move |path| async move { path.open_datagrams(target, terms).await }))
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(self.open(move |path| async move { path.resolve(name, terms).await }))
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(self.open(move |path| async move { path.open_packets(scope, terms).await }))
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(self.open(move |path| async move { path.query(message, terms).await }))
    }
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paths").finish_non_exhaustive()
    }
}
