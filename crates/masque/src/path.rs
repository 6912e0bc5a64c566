//! One to four relays in a row, as one overlay. The last hop carries the flows; each hop is dialled through the one before.
//! Made by the binary from `path = [...]`; or chosen, and chosen again when it fails, from `hops = n`: a failed relay is avoided while there
//! are others, and flows that run on the old path stay there.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use hoplite_http::h3::Share;
use hoplite_link::Pad;
use hoplite_overlay::{
    Bound, Datagrams, Error, ErrorKind, Opening, Overlay, Packets, Reason, Stream, Terms,
};
use hoplite_wire::{Host, Target, connect_ip::Scope, special};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::{Config, Hop, Mode, Relay, spare::Spares, told::Told};

/// More than four hops cost packet size and time, and hide nothing more.
pub const MAX_HOPS: usize = 4;

/// So many relays that failed one after another behind the same one, within such a time, are a sign that it is that one which fails, or lets through whom
/// it likes: quickly, or one by one, so that it looks like chance. Relays that end one by one over weeks are nobody else's fault.
const MOST_BEHIND: [(usize, Duration); 2] = [
    (5, Duration::from_secs(600)),
    (12, Duration::from_secs(6 * 3600)),
];

/// A chain of hops. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Path {
    hops: Vec<Hop>,
    last: Hop,
    spares: Arc<Spares>,
    keeps_spare: bool,
}

impl Path {
    /// The path through `relays`, the first of which is reached through `below`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] unless there are 1..=4 relays; what [`Hop::new`] answers.
    pub fn new(
        relays: Vec<Relay>,
        below: &Arc<dyn Overlay>,
        config: &Arc<Config>,
    ) -> Result<Self, Error> {
        if relays.len() > MAX_HOPS {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "making a path of more than four relays",
            ));
        }
        let mut hops: Vec<Hop> = Vec::with_capacity(relays.len());
        let (carrying, last) = (carrying(config), relays.len().saturating_sub(1));
        let sharing = sharing_hop(config.pad, last);
        let mut tunnelled = 0;
        let told = Arc::<Told>::default();
        for (number, relay) in relays.into_iter().enumerate() {
            let below = hops
                .last()
                .map_or_else(|| below.clone(), |hop| Arc::new(hop.clone()) as _);
            let mut config = if number < last {
                carrying.clone()
            } else {
                Config::clone(config)
            };
            // What answers a download waits where it shares packets.
            config.gather &= config.share.answers.is_zero();
            if number != sharing {
                config.share = Share::default();
            }
            // Nobody but the first relay sees the packets of the others by themselves. Padded inside, they would fit no more where the
            // path of a hop below turns out to carry less.
            if number > 0 {
                config.pad = Pad::Off;
            }
            config.link.tunnelled_below = tunnelled;
            tunnelled += usize::from(relay.mode(&config) == Mode::Tunnelled);
            let regions = (
                (number == 0).then(|| told.clone()),
                (number == last).then(|| told.clone()),
            );
            hops.push(Hop::of_path(
                relay,
                number,
                below,
                &Arc::new(config),
                regions,
            )?);
        }
        let last = hops.last().cloned();
        let last =
            last.ok_or_else(|| Error::new(ErrorKind::Unsupported, "making a path of no relay"))?;
        let spares = Spares::new(last.clone(), config.isolated, config.spare_after);
        // All tokens share the connection to the first relay.
        let keeps_spare = config.spare && hops.len() > 1;
        Ok(Self {
            hops,
            last,
            spares,
            keeps_spare,
        })
    }

    /// Dials the whole path now and keeps it open.
    pub fn keep_warm(&self) {
        for hop in &self.hops {
            hop.keep_warm();
        }
        if self.keeps_spare {
            self.spares.keep();
        }
    }

    /// Waits until the whole path stands.
    ///
    /// # Errors
    /// What the hop that failed answered.
    pub async fn connect(&self) -> Result<(), Error> {
        self.last.connect().await
    }

    /// Whether both are the same path with the same connections.
    pub fn is_same(&self, other: &Self) -> bool {
        self.last.is_same(&other.last)
    }

    /// The hops, first one first.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }
}

/// On which hop what is small waits for others; nothing waits twice. Where packets have one size it is the first, whose connection all tokens share and
/// which nothing passes by; else the last, whose packets may be forwarded past the others.
fn sharing_hop(pad: Pad, last: usize) -> usize {
    match pad {
        Pad::Full => 0,
        Pad::Off => last,
    }
}

/// For hops that only carry the link to the next relay.
fn carrying(config: &Config) -> Config {
    let mut config = config.clone();
    config.link.carries_next_hop = true;
    config
}

/// A name of an onion service is not told to the last relay, which can do nothing with it. RFC 7686 §2 no. 1.
fn refuse_onion(name: &str) -> Result<(), Error> {
    if !special::is_onion_name(name) {
        return Ok(());
    }
    let doing =
        "reaching an onion service by tunnels, which lead to none: it needs overlay = \"onion\"";
    Err(Error::new(ErrorKind::Unsupported, doing))
}

fn refuse_onion_host(host: &Host) -> Result<(), Error> {
    match host {
        Host::Name(name) => refuse_onion(name.as_str()),
        Host::Ip(_) => Ok(()),
    }
}

impl Overlay for Path {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        let terms = self.spares.terms(terms);
        Box::pin(async move {
            refuse_onion_host(&target.host)?;
            self.last.open_stream(target, &terms).await
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move {
            refuse_onion_host(&target.host)?;
            self.last.gathered(target, &terms).await
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move {
            refuse_onion(name.trim_end_matches('.'))?;
            self.last.resolve(name, &terms).await
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.query(message, &terms).await })
    }

    fn open_bound<'a>(&'a self, terms: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.open_bound(&terms).await })
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.open_packets(scope, &terms).await })
    }
}

/// Which relays make a path, by their places in the list of all, first hop first, if possible without those that failed, the last of which is the last
/// here; `None` if they do not allow one. It hears once what was wrong with the first relay of the path before, if something was.
pub type Choose = Box<dyn FnMut(&[usize], Option<EntryTrouble>) -> Option<Vec<usize>> + Send>;

/// What became of [`Paths::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// The path begins with it now.
    Taken,
    /// It cannot be reached.
    Away,
    /// It does not go with the rest of any path, or another path or list has come meanwhile.
    NotChosen,
}

/// What was wrong with the first relay of a path, by its place in the list of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryTrouble {
    /// It could not be reached, or has let nobody in.
    Away(usize),
    /// Too many others have failed behind it.
    Choosy(usize),
}

/// A path that is chosen among relays. Every flow goes through the path that is current when it opens.
pub struct Paths {
    below: Arc<dyn Overlay>,
    config: Arc<Config>,
    state: Mutex<State>,
}

struct State {
    relays: Vec<Relay>,
    /// How many lists there were before this one.
    lists: u64,
    /// Those that failed since the list is this one, in the order of it.
    failed: Vec<usize>,
    behind: Behind,
    choose: Choose,
    indices: Vec<usize>,
    path: Path,
}

/// Which relays failed behind one of late, and when.
#[derive(Debug, Default)]
struct Behind {
    before: Option<Relay>,
    failed: Vec<(Relay, Instant)>,
}

impl Behind {
    /// `relay` failed behind `before`; whether so many have that `before` is to be avoided.
    fn blames(&mut self, before: &Relay, relay: &Relay) -> bool {
        if !self.before.as_ref().is_some_and(|was| is_same(was, before)) {
            self.failed.clear();
            self.before = Some(before.clone());
        }
        let longest = MOST_BEHIND.map(|(_, time)| time).into_iter().max();
        let longest = longest.unwrap_or_default();
        self.failed
            .retain(|(other, at)| !is_same(other, relay) && at.elapsed() < longest);
        self.failed.push((relay.clone(), Instant::now()));
        MOST_BEHIND.iter().any(|(most, time)| {
            let lately = self.failed.iter().filter(|(_, at)| at.elapsed() < *time);
            lately.count() >= *most
        })
    }

    fn has(&self, relay: &Relay) -> bool {
        self.failed.iter().any(|(failed, _)| is_same(failed, relay))
    }
}

impl State {
    /// The relay behind this hop failed; whether so many have that the hop is to be avoided. Those that failed behind it are no longer, then.
    fn blames(&mut self, hop: usize) -> bool {
        let place = |hop: usize| self.relays.get(*self.indices.get(hop)?);
        let (Some(before), Some(relay)) = (place(hop), place(hop.saturating_add(1))) else {
            return false;
        };
        if !self.behind.blames(before, relay) {
            return false;
        }
        warn!("many relays failed behind the same one: that one is avoided");
        let behind = std::mem::take(&mut self.behind);
        let relays = &self.relays;
        self.failed
            .retain(|&i| !relays.get(i).is_some_and(|relay| behind.has(relay)));
        true
    }
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
        let (indices, path) = make(&relays, &below, config, (&[], None), &mut choose)?;
        let state = Mutex::new(State {
            relays,
            lists: 0,
            failed: Vec::new(),
            behind: Behind::default(),
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
        let mut state = self.state.lock();
        let used = state.indices.iter().filter_map(|&i| state.relays.get(i));
        let again = used.map(|used| relays.iter().position(|relay| is_same(relay, used)));
        let again: Option<Vec<usize>> = again.collect();
        // None is known of a path that stayed because an earlier list allowed no other.
        let again = again.filter(|again| !again.is_empty());
        state.failed.clear();
        (state.relays, state.choose) = (relays, choose);
        state.lists = state.lists.wrapping_add(1);
        match again {
            Some(indices) => state.indices = indices,
            None => {
                state.indices.clear();
                self.choose_again(&mut state, None, false);
            }
        }
    }

    /// Where another one alone helps, the same one stays: a new path of the same relays would show them further tokens.
    fn choose_again(&self, state: &mut State, trouble: Option<EntryTrouble>, another_alone: bool) {
        let (below, config) = (&self.below, &self.config);
        let made = make(
            &state.relays,
            below,
            config,
            (&state.failed, trouble),
            &mut state.choose,
        );
        if let Ok((indices, path)) = made
            && !(another_alone && indices == state.indices)
        {
            path.keep_warm();
            (state.indices, state.path) = (indices, path);
        }
    }

    /// Chooses again, because more is known of the relays. The current path stays if it is chosen again; flows that run on it stay in any case.
    pub fn reconsider(&self) {
        let mut state = self.state.lock();
        let State { failed, choose, .. } = &mut *state;
        let chosen = choose(failed, None).filter(|chosen| *chosen != state.indices);
        let Some(indices) = chosen else { return };
        let relays = indices.iter().filter_map(|&i| state.relays.get(i)).cloned();
        if let Ok(path) = Path::new(relays.collect(), &self.below, &self.config) {
            path.keep_warm();
            (state.indices, state.path) = (indices, path);
        }
    }

    /// Takes a path from this first relay, by its place in the list, if one is chosen and the relay can be reached; else nothing changes. Flows that run on
    /// the current path stay there.
    pub async fn take_back(&self, first: usize) -> TakenBack {
        let (lists, before, indices, path) = {
            let mut state = self.state.lock();
            let State { failed, choose, .. } = &mut *state;
            let chosen = choose(failed, None);
            let chosen = chosen.filter(|chosen| chosen.first() == Some(&first));
            let Some(indices) = chosen else {
                return TakenBack::NotChosen;
            };
            let relays = indices.iter().filter_map(|&i| state.relays.get(i)).cloned();
            let Ok(path) = Path::new(relays.collect(), &self.below, &self.config) else {
                return TakenBack::NotChosen;
            };
            (state.lists, state.path.clone(), indices, path)
        };
        let reached = match path.hops().first() {
            Some(hop) => hop.connect().await.is_ok(),
            None => false,
        };
        let mut state = self.state.lock();
        if !reached {
            return TakenBack::Away;
        }
        if state.lists != lists || !state.path.is_same(&before) {
            return TakenBack::NotChosen;
        }
        path.keep_warm();
        (state.indices, state.path) = (indices, path);
        TakenBack::Taken
    }

    /// The first relay of the path that new flows take; `None` if it is not known to the list of now.
    pub fn first(&self) -> Option<Relay> {
        let state = self.state.lock();
        state.relays.get(*state.indices.first()?).cloned()
    }

    /// The path that new flows take.
    pub fn current(&self) -> Path {
        self.state.lock().path.clone()
    }

    /// Chooses another path if `failed` is still the current one. The relay to avoid is one that has just refused a private token, or the first that has no
    /// connection; where several have had none behind the same one, that one.
    fn replace(&self, failed: &Path, why: &Error) {
        let mut state = self.state.lock();
        let mut hops = failed.hops().iter();
        let is_refusal = why.reason() == Some(Reason::Authentication);
        let broken = if is_refusal {
            hops.position(Hop::has_refused)
        } else {
            hops.position(|hop| hop.http_version().is_none())
        };
        let placed = |hop: usize| Some((hop, *state.indices.get(hop)?));
        let Some((hop, relay)) = broken.and_then(placed) else {
            return;
        };
        if !state.path.is_same(failed) {
            return;
        }
        // Whoever refuses a token was reached.
        let before = hop.checked_sub(1).filter(|_| !is_refusal);
        let blamed = before.filter(|&hop| state.blames(hop));
        let blamed = blamed.and_then(|hop| Some((hop, *state.indices.get(hop)?)));
        let (hop, relay) = blamed.unwrap_or((hop, relay));
        state.failed.retain(|&i| i != relay);
        state.failed.push(relay);
        let trouble = (hop == 0).then_some(match blamed {
            Some(_) => EntryTrouble::Choosy(relay),
            None => EntryTrouble::Away(relay),
        });
        self.choose_again(&mut state, trouble, is_refusal);
        if !state.path.is_same(failed) {
            warn!("a relay of the path failed: another path is taken");
        }
    }

    async fn open<T, F: Future<Output = Result<T, Error>>>(
        &self,
        open: impl Fn(Path) -> F,
    ) -> Result<T, Error> {
        let path = self.current();
        match open(path.clone()).await {
            Err(error) if matters(&error) => {
                self.replace(&path, &error);
                let next = self.current();
                if next.is_same(&path) {
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
fn matters(error: &Error) -> bool {
    let failed = matches!(
        error.kind(),
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed
    );
    failed || error.reason() == Some(Reason::Authentication)
}

/// Whether connections to one are connections to the other.
fn is_same(a: &Relay, b: &Relay) -> bool {
    a.peer.name == b.peer.name && a.peer.address == b.peer.address && a.peer.trust == b.peer.trust
}

fn make(
    relays: &[Relay],
    below: &Arc<dyn Overlay>,
    config: &Arc<Config>,
    (failed, trouble): (&[usize], Option<EntryTrouble>),
    choose: &mut Choose,
) -> Result<(Vec<usize>, Path), Error> {
    let none = || {
        Error::new(
            ErrorKind::Unsupported,
            "choosing a path: the relays do not allow one",
        )
    };
    let indices = choose(failed, trouble).ok_or_else(none)?;
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

    fn open_bound<'a>(&'a self, terms: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        Box::pin(self.open(move |path| async move { path.open_bound(terms).await }))
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use hoplite_crypto::Trust;
    use hoplite_link::Peer;
    use tokio::time::advance;

    use super::*;

    fn relay(number: u16) -> Relay {
        Relay {
            peer: Peer {
                name: format!("relay{number}"),
                address: SocketAddr::from(([127, 0, 0, 1], number)).into(),
                trust: Trust::WebPki,
            },
            token: None,
            tokens: None,
            template: None,
            mode: None,
        }
    }

    /// How many relays fail one after another behind the first, with this pause, before that one is blamed; nothing after a hundred.
    async fn blamed_after(pause: Duration) -> Option<u16> {
        let (mut behind, first) = (Behind::default(), relay(1));
        for number in 1..=100 {
            if behind.blames(&first, &relay(100 + number)) {
                return Some(number);
            }
            advance(pause).await;
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_behind_which_others_fail_is_blamed_though_it_takes_its_time() {
        assert_eq!(blamed_after(Duration::from_secs(1)).await, Some(5));
        assert_eq!(blamed_after(Duration::from_secs(151)).await, Some(12));
        assert_eq!(blamed_after(Duration::from_secs(3600)).await, None);
    }

    #[test]
    fn what_is_small_waits_on_one_hop_alone() {
        assert_eq!(sharing_hop(Pad::Off, 2), 2);
        assert_eq!(sharing_hop(Pad::Full, 2), 0);
        assert_eq!(sharing_hop(Pad::Full, 0), sharing_hop(Pad::Off, 0));
    }
}
