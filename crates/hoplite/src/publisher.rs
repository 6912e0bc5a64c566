//! Tells directories of a relay: the authorities of ours (`[directory] publish`) by a descriptor of ours, and those of a network of Tor's (`[onion.tor]`)
//! by a server descriptor; at its start, when something of it has changed, and after 18 hours. dir-spec "Uploading server descriptors". Ours is handed in
//! each hour, in the same words as long as these hold: who has it leaves it as it is, and who has lost it has it again. All authorities are told side by
//! side, and who does not take it is asked again, ever more seldom until the next hour, without the others.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_crypto::{Certificates, Proof, onion::family::FamilyKey};
use hoplite_directory::{
    FetchError, Refused, RelayKey, said_by_holder,
    statistics::sign_statistics,
    tor::server_descriptor::{self, TapKey},
    upload, upload_statistics, upload_to_tor,
};
use hoplite_overlay::Direct;
use hoplite_relay::{
    Config, Handle, Rule,
    config::{Role, Tor},
    exit_policy,
    statistics::Said,
};
use hoplite_wire::{
    Protocols, Target,
    directory::{Descriptor, Key, Ports, Roles, SignedDescriptor, Tokens},
    tor::{
        Fingerprint,
        extra_info::Statistics,
        server_descriptor::{About, Bandwidth},
    },
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    directory::now,
    identity::{self, Stored},
    relay::below,
    say::Failure,
};

/// How long an authority may take to answer.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(20);
/// When authorities are asked again that did not take it: after this, then twice as long each time.
const RETRY_PAUSE: Duration = Duration::from_secs(15);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// When it is tried again to sign what keys on disk, or in TLS, did not sign.
const UNSIGNED_PAUSE: Duration = Duration::from_secs(60);

/// After so many seconds what is told to authorities of ours is told as of now, though nothing has changed.
const SAY_ANEW: u64 = 18 * 3600;
/// A bandwidth is told that has changed by this factor: "its bandwidth has changed by more than a factor of 2".
const OTHER_BANDWIDTH: u64 = 2;

/// For so long Tor's authorities keep what a relay has told them at most, and so that not all relays tell at once, up to `TOR_JITTER` earlier.
const TOR_EVERY: Duration = Duration::from_secs(18 * 3600);
const TOR_JITTER: Duration = Duration::from_secs(3600);

/// What hears of a relay's changes, and tells its directories.
pub(crate) struct Publisher {
    ours: Option<OurDirectory>,
    tor: Option<TorDirectory>,
    /// The onion key, as it is rotated.
    onion: Option<watch::Receiver<[u8; 32]>>,
    /// Which private tokens it takes, as its file says when it was read last.
    tokens: watch::Receiver<Option<Tokens>>,
    /// What it has carried, and its statistics.
    said: Option<watch::Receiver<Said>>,
}

/// What changes of a relay while it runs.
pub(crate) struct Hears {
    /// Its onion key, of one with circuits.
    pub(crate) onion: Option<watch::Receiver<[u8; 32]>>,
    /// Which private tokens it takes.
    pub(crate) tokens: watch::Receiver<Option<Tokens>>,
    /// What it has carried, and its statistics.
    pub(crate) said: Option<watch::Receiver<Said>>,
}

impl Publisher {
    /// None if the file names no authority. `onion` is what a relay with circuits has stored.
    pub(crate) fn of(
        config: &Config,
        handle: &Handle,
        onion: Option<&Stored>,
        hears: Hears,
    ) -> Result<Option<Self>, Failure> {
        let ours = OurDirectory::of(config, handle, onion, hears.onion.as_ref())?;
        let tor = config.onion.tor.as_ref().zip(onion);
        let tor =
            tor.map(|(tor, stored)| TorDirectory::of(config, tor, stored, handle.addresses()));
        let tor = tor.transpose()?.flatten();
        if ours.is_none() && tor.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            ours,
            tor,
            onion: hears.onion,
            tokens: hears.tokens,
            said: hears.said,
        }))
    }

    /// Tells whoever is to be told, until dropped.
    pub(crate) async fn run(mut self) {
        if let Some(ours) = &self.ours {
            info!(identity = %ours.descriptor.identity, "the relay is told to the directory");
        }
        loop {
            let tokens = self.tokens.borrow_and_update().clone();
            let said = self.said.as_mut();
            let said = said.map(|said| said.borrow_and_update().clone());
            let said = said.unwrap_or_default();
            tokio::join!(
                publish(&mut self.ours, tokens, &said),
                publish_to_tor(&mut self.tor, &said)
            );
            let ours = self.ours.as_ref().map(|ours| ours.due);
            let due = ours.into_iter().chain(self.tor.as_ref().map(|tor| tor.due));
            let due = due.min().unwrap_or_else(Instant::now);
            tokio::select! {
                () = sleep_until(due) => {}
                key = rotated(&mut self.onion) => self.has_onion_key(key),
                () = edited(&mut self.said) => self.says_all_again(),
                Ok(()) = self.tokens.changed() => {
                    if let Some(ours) = &mut self.ours {
                        ours.says_all_again();
                    }
                }
            }
        }
    }

    fn has_onion_key(&mut self, key: [u8; 32]) {
        if let Some(ours) = &mut self.ours {
            ours.descriptor.onion = Some(key);
        }
        self.says_all_again();
    }

    fn says_all_again(&mut self) {
        if let Some(ours) = &mut self.ours {
            ours.says_all_again();
        }
        if let Some(tor) = &mut self.tor {
            tor.handed_in = None;
            tor.due = Instant::now();
        }
    }
}

async fn publish(ours: &mut Option<OurDirectory>, tokens: Option<Tokens>, said: &Said) {
    if let Some(ours) = ours.as_mut().filter(|ours| ours.due <= Instant::now()) {
        ours.publish(tokens, said).await;
    }
}

async fn publish_to_tor(tor: &mut Option<TorDirectory>, said: &Said) {
    if let Some(tor) = tor.as_mut().filter(|tor| tor.due <= Instant::now()) {
        tor.publish(said).await;
    }
}

/// Which authorities have yet to take what they are told, until all are told anew.
struct Round {
    /// Their places among all.
    missing: Vec<usize>,
    /// How often it was tried.
    tries: u32,
    /// When all are told anew.
    until: Instant,
}

impl Round {
    /// None has taken it yet, and all are told anew after so long.
    fn of(authorities: &[Target], lasts: Duration) -> Self {
        Self {
            missing: (0..authorities.len()).collect(),
            tries: 0,
            until: Instant::now() + lasts,
        }
    }

    /// Tells those that are missing, each by its number and address, side by side: one that hangs delays none. What each of them says, by its number.
    async fn tell<'a, F>(
        &mut self,
        authorities: &'a [Target],
        tell: impl Fn(usize, &'a Target) -> F,
    ) -> Vec<(usize, Result<(), FetchError>)>
    where
        F: Future<Output = Result<(), FetchError>>,
    {
        let missing = std::mem::take(&mut self.missing);
        let asked = missing.into_iter().filter_map(|place| {
            let number = place.saturating_add(1);
            let answer = tell(number, authorities.get(place)?);
            Some(async move { (place, (number, answer.await)) })
        });
        let answers = join_all(asked).await;
        let refused = answers.iter().filter(|(_, (_, answer))| answer.is_err());
        self.missing = refused.map(|(place, _)| *place).collect();
        self.tries = self.tries.saturating_add(1);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// When somebody is to be told again.
    fn due(&self) -> Instant {
        if self.missing.is_empty() {
            self.until
        } else {
            let tries = self.tries.saturating_sub(1);
            self.until.min(Instant::now() + pause(tries))
        }
    }
}

/// Before the next try, after one and `tries` others.
fn pause(tries: u32) -> Duration {
    let factor = 2_u32.saturating_pow(tries);
    RETRY_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

/// The authorities of a directory of ours. The key that signs what they are told is beside the relay's identity, and made if it is not there: the
/// identity of its circuits, or of a relay without them a key of its own. With it goes a proof by the TLS key that the relay shows: nobody else can
/// name its pin.
struct OurDirectory {
    key: RelayKey,
    /// Where it is: of a relay whose identity is elsewhere, its signing key is made again now and then.
    identity: PathBuf,
    /// What the relay shows in TLS, as it is replaced.
    certificates: Arc<Certificates>,
    /// What holds of the relay now; when it was said, the last one says.
    descriptor: Descriptor,
    /// What was said last.
    last: Option<SignedDescriptor>,
    /// What the operator says that it can carry, in bytes a second.
    bandwidth: u64,
    authorities: Vec<Target>,
    every: Duration,
    /// Who has yet to take what was said last; None: all are told.
    round: Option<Round>,
    due: Instant,
}

impl OurDirectory {
    fn of(
        config: &Config,
        handle: &Handle,
        onion: Option<&Stored>,
        current: Option<&watch::Receiver<[u8; 32]>>,
    ) -> Result<Option<Self>, Failure> {
        let directory = &config.directory;
        if directory.publish.is_empty() {
            return Ok(None);
        }
        let key = match onion {
            Some(stored) => identity_key(config, stored)?,
            None => descriptor_key(config)?,
        };
        let identity = key.identity();
        let certificates = handle.certificates();
        let mut descriptor = describe(config, handle.addresses(), identity);
        descriptor.pin = certificates.pin().map(Into::into);
        descriptor.onion = current.map(|current| *current.borrow());
        if descriptor.onion.is_some() {
            descriptor.hsdir = config.onion.hsdir;
            descriptor.protocols = config.onion.protocols(descriptor.roles.egress);
        }
        descriptor.check().map_err(|error| {
            let remedy = "correct [directory], or the names of [auth.private_tokens], in its file";
            Failure::new("describing the relay", error, remedy)
        })?;
        Ok(Some(Self {
            key,
            identity: config.identity.clone(),
            certificates,
            descriptor,
            last: None,
            bandwidth: directory.bandwidth,
            authorities: directory.publish.clone(),
            every: Duration::from_secs(directory.every),
            round: None,
            due: Instant::now(),
        }))
    }

    fn says_all_again(&mut self) {
        self.round = None;
        self.due = Instant::now();
    }

    async fn publish(&mut self, tokens: Option<Tokens>, said: &Said) {
        self.take_up_key();
        self.descriptor.pin = self.certificates.pin().map(Into::into);
        self.descriptor.tokens = tokens;
        self.descriptor.bandwidth = said.declared(self.bandwidth);
        let Some((signed, proof)) = self.sign() else {
            self.due = Instant::now() + UNSIGNED_PAUSE.min(self.every);
            return;
        };
        let is_good = |round: &Round| round.until > Instant::now();
        let same = self.round.take().filter(is_good);
        let same = same.filter(|_| self.last.as_ref() == Some(&signed));
        let mut round = same.unwrap_or_else(|| Round::of(&self.authorities, self.every));
        // Who does not take the statistics is told them in the next round: an authority that has not tested the relay yet, or one of an earlier version.
        let statistics = &said.statistics;
        let statistics = (*statistics != Statistics::default())
            .then(|| sign_statistics(&self.key, now(), statistics.clone()));
        let (told, statistics) = ((&signed, Some(&proof)), statistics.as_ref());
        let overlay = &Direct::new();
        let answers = round.tell(&self.authorities, |authority, address| async move {
            upload(overlay, address, told, UPLOAD_TIMEOUT).await?;
            if let Some(told) = statistics {
                let answer = upload_statistics(overlay, address, told.clone(), UPLOAD_TIMEOUT);
                if let Err(error) = answer.await {
                    debug!(authority, "the relay's statistics were not taken: {error}");
                }
            }
            Ok(())
        });
        for (authority, answer) in answers.await {
            if let Err(error) = answer {
                warn!(authority, "the relay's descriptor was not taken: {error}");
            }
        }
        self.last = Some(signed);
        self.due = round.due();
        self.round = Some(round);
    }

    /// Of a relay whose identity is elsewhere, the signing key that is on disk now.
    fn take_up_key(&mut self) {
        if matches!(self.key, RelayKey::Identity(_)) {
            return;
        }
        let read = Stored::read(&self.identity).and_then(|stored| match stored {
            Some(stored) => stored.relay_key().map(Some),
            None => Ok(None),
        });
        match read {
            Ok(Some(key)) if key.identity() == self.key.identity() => self.key = key,
            Ok(_) => {}
            Err(failure) => warn!("the signing key stays: {failure}"),
        }
    }

    /// What is said now, and a proof by the TLS key.
    fn sign(&self) -> Option<(SignedDescriptor, Proof)> {
        let said = what_to_say(self.last.as_ref(), &self.key, &self.descriptor, now());
        let signed = said
            .inspect_err(|refused| warn!("the descriptor cannot be signed: {refused}"))
            .ok()?;
        let proof = self.certificates.prove(&said_by_holder(&signed));
        if proof.is_none() {
            warn!(
                "the TLS key signs in no way that authorities know: use one of ECDSA, Ed25519 or RSA"
            );
        }
        Some((signed, proof?))
    }
}

/// What is said of a relay of which this holds: what was said last, if it still does and is not too old.
fn what_to_say(
    last: Option<&SignedDescriptor>,
    key: &RelayKey,
    holds: &Descriptor,
    now: u64,
) -> Result<SignedDescriptor, Refused> {
    let Some(last) = last else {
        let published = now;
        return key.sign_descriptor(Descriptor {
            published,
            ..holds.clone()
        });
    };
    let before = &last.descriptor;
    let is_other = |one: u64, other: u64| one >= other.saturating_mul(OTHER_BANDWIDTH);
    let (was, is) = (before.bandwidth, holds.bandwidth);
    let same = Descriptor {
        published: before.published,
        bandwidth: if is_other(was, is) || is_other(is, was) {
            is
        } else {
            was
        },
        ..holds.clone()
    };
    // A key signs the same words in the same way; another key of an identity that is elsewhere does not.
    let again = key.sign_descriptor(same)?;
    if again == *last && before.published.saturating_add(SAY_ANEW) > now {
        return Ok(again);
    }
    key.sign_descriptor(Descriptor {
        // Each must be later than the one before, also when the clock was set back meanwhile.
        published: now.max(before.published.saturating_add(1)),
        ..holds.clone()
    })
}

/// The authorities of a network of Tor's.
struct TorDirectory {
    /// The directory of the relay's keys: what is told is what is there.
    identity: PathBuf,
    tap: TapKey,
    about: About,
    families: Vec<FamilyKey>,
    authorities: Vec<Target>,
    started: Instant,
    handed_in: Option<HandedIn>,
    due: Instant,
}

/// What was signed last.
struct HandedIn {
    documents: String,
    /// Who has yet to take it; its end is when other documents are signed.
    round: Round,
}

impl TorDirectory {
    /// None if the relay has no address that can be told, which its file is refused for.
    fn of(
        config: &Config,
        tor: &Tor,
        stored: &Stored,
        listen: &[SocketAddr],
    ) -> Result<Option<Self>, Failure> {
        let Some(about) = about(config, tor, listen) else {
            return Ok(None);
        };
        let tap = TapKey::forgotten(&stored.identity(now())?.peer());
        let tap =
            tap.map_err(|error| Failure::new("making an onion key for TAP", error, "try again"))?;
        Ok(Some(Self {
            identity: config.identity.clone(),
            tap,
            about,
            families: identity::family_keys(&tor.family_keys)?,
            authorities: tor
                .authorities
                .iter()
                .map(|one| one.address.clone())
                .collect(),
            started: Instant::now(),
            handed_in: None,
            due: Instant::now(),
        }))
    }

    async fn publish(&mut self, said: &Said) {
        let is_good = |one: &HandedIn| one.round.until > Instant::now();
        let mut handed_in = match self.handed_in.take().filter(is_good) {
            Some(handed_in) => handed_in,
            None => match self.sign(said) {
                Ok(handed_in) => handed_in,
                Err(failure) => {
                    warn!("the relay's server descriptor cannot be made: {failure}");
                    self.due = Instant::now() + LONGEST_PAUSE;
                    return;
                }
            },
        };
        let overlay = Direct::new();
        let documents = &handed_in.documents;
        let answers = handed_in.round.tell(&self.authorities, |_, address| {
            upload_to_tor(&overlay, address, documents, UPLOAD_TIMEOUT)
        });
        for (authority, answer) in answers.await {
            match answer {
                Ok(()) => info!(
                    authority,
                    "an authority of Tor's network has taken the relay's server descriptor"
                ),
                Err(error) => warn!(
                    authority,
                    "the relay's server descriptor was not taken: {error}"
                ),
            }
        }
        self.due = handed_in.round.due();
        self.handed_in = Some(handed_in);
    }

    /// Signs what the relay says of itself now, by the keys that are on disk.
    fn sign(&mut self, said: &Said) -> Result<HandedIn, Failure> {
        let stored = Stored::read(&self.identity)?.ok_or_else(|| {
            let remedy = "restore it from a copy, or start the relay again";
            Failure::new("reading the onion key", "it is gone", remedy)
        })?;
        self.about.published = now().max(self.about.published.saturating_add(1));
        self.about.uptime = self.started.elapsed().as_secs();
        self.about.overloaded = said.overloaded;
        self.about.bandwidth.observed = said.observed(self.about.bandwidth.average);
        let identity = stored.identity(now())?;
        let onion = stored.certified_ntor(now())?;
        let told = server_descriptor::Said {
            about: self.about.clone(),
            statistics: said.statistics.clone(),
            families: self.families.clone(),
        };
        let documents = server_descriptor::sign(told, &identity, &onion, &self.tap);
        let documents = documents
            .map_err(|error| Failure::new("signing the server descriptor", error, "try again"))?;
        Ok(HandedIn {
            documents,
            round: Round::of(&self.authorities, lifetime()),
        })
    }
}

/// For how long documents are good.
fn lifetime() -> Duration {
    let jitter = below(TOR_JITTER.as_secs());
    TOR_EVERY.saturating_sub(Duration::from_secs(jitter))
}

/// What a relay says of itself to Tor's authorities.
fn about(config: &Config, tor: &Tor, listen: &[SocketAddr]) -> Option<About> {
    let reached = config.directory.reached_at(listen);
    let address = reached.iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(*address),
        SocketAddr::V6(_) => None,
    })?;
    let address_v6 = reached.iter().find_map(|address| match address {
        SocketAddr::V6(address) => Some(*address),
        SocketAddr::V4(_) => None,
    });
    // What was observed is said when it is signed.
    let bandwidth = config.directory.bandwidth;
    Some(About {
        nickname: config.name.clone(),
        address,
        address_v6,
        bandwidth: Bandwidth {
            average: bandwidth,
            burst: bandwidth,
            observed: 0,
        },
        platform: format!("Hoplite {} on {}", env!("CARGO_PKG_VERSION"), system()),
        published: 0,
        uptime: 0,
        overloaded: None,
        contact: tor.contact.clone(),
        protocols: config.onion.subprotocols(config.is_egress()),
        hsdir: config.onion.hsdir,
        directory_cache: tor.caches(),
        family: tor.family.iter().map(|Fingerprint(id)| *id).collect(),
        exit: exit_policy(config, listen),
        exit_v6: address_v6.and_then(|_| open_ports(config)),
    })
}

fn system() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        other => other,
    }
}

/// There is something that is to be told at once.
async fn edited(said: &mut Option<watch::Receiver<Said>>) {
    if let Some(said) = said
        && said.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// The next onion key.
async fn rotated(onion: &mut Option<watch::Receiver<[u8; 32]>>) -> [u8; 32] {
    if let Some(onion) = onion
        && onion.changed().await.is_ok()
    {
        return *onion.borrow_and_update();
    }
    std::future::pending().await
}

/// Clients find the identity of a relay's channels in its descriptor, so that one signs the other.
fn identity_key(config: &Config, stored: &Stored) -> Result<RelayKey, Failure> {
    let key = stored.relay_key()?;
    let before = config.identity.join(identity::DESCRIPTOR);
    if before.exists() && Key(identity::read_secret(&before)?.public()) != key.identity() {
        warn!(
            "the relay is told to the directory by the identity of its circuits from now on, not by the one of {}",
            identity::DESCRIPTOR
        );
    }
    Ok(key)
}

/// Without circuits: a key of its own, unless there is an identity for circuits already, which they would be told by later.
fn descriptor_key(config: &Config) -> Result<RelayKey, Failure> {
    let path = config.identity.join(identity::DESCRIPTOR);
    if path.exists() {
        identity::read_secret(&path).map(RelayKey::Identity)
    } else {
        match Stored::read(&config.identity)? {
            Some(stored) => stored.relay_key(),
            None => identity::make_secret(&path, false).map(RelayKey::Identity),
        }
    }
}

fn describe(config: &Config, listen: &[SocketAddr], identity: Key) -> Descriptor {
    let directory = &config.directory;
    let mut family = directory.family.clone();
    family.sort_unstable();
    family.dedup();
    let egress = config.roles.contains(&Role::Egress);
    Descriptor {
        name: config.name.clone(),
        identity,
        published: 0,
        addresses: directory.reached_at(listen).to_vec(),
        pin: None,
        onion: None,
        roles: Roles {
            ingress: config.roles.contains(&Role::Ingress),
            egress,
        },
        region: directory.region.clone(),
        operator: directory.operator.clone(),
        family,
        bandwidth: directory.bandwidth,
        exit: open_ports(config),
        tokens: tokens_of(config),
        hsdir: false,
        cache: directory.cache.map(|cache| cache.port()),
        protocols: Protocols::NONE,
    }
}

/// The ports that a relay connects to wherever it connects to anything.
fn open_ports(config: &Config) -> Option<Ports> {
    let denied = config.egress.deny.iter();
    let closed: Vec<u16> = denied.filter_map(Rule::port_everywhere).collect();
    Ports::except(&closed).filter(|_| config.is_egress())
}

/// Which private tokens clients show it.
pub(crate) fn tokens_of(config: &Config) -> Option<Tokens> {
    let private = config.auth.private_tokens.as_ref()?;
    Some(Tokens {
        issuer: private.issuer.clone(),
        origin: private.origin.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::{future::ready, net::IpAddr};

    use hoplite_crypto::Identity;
    use http::StatusCode;
    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;
    use crate::http_server::{Answer, Client, Places, converse};

    /// What an authority was asked for.
    type Asked = Arc<Mutex<Vec<String>>>;

    /// An authority that answers everything with this status.
    async fn authority(status: StatusCode) -> (Target, Asked) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let asked = Asked::default();
        let (places, log) = (Places::new(9, 9), asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let place = places.enter(Client {
                    address: IpAddr::from([127, 0, 0, 1]),
                    is_known: false,
                });
                let log = log.clone();
                let patience = Duration::from_secs(60);
                tokio::spawn(converse(
                    stream,
                    place,
                    (patience, patience),
                    move |request| {
                        log.lock().push(request.uri().path().to_owned());
                        ready(Answer::new(status, "so\n").response())
                    },
                ));
            }
        });
        (address.into(), asked)
    }

    #[tokio::test]
    async fn one_authority_that_refuses_keeps_nothing_from_the_others() {
        let (willing, taken) = authority(StatusCode::OK).await;
        let (refusing, refused) = authority(StatusCode::FORBIDDEN).await;
        let seed = zeroize::Zeroizing::new([1; 32]);
        let key = RelayKey::Identity(hoplite_crypto::SigningKey::from_seed(seed).expect("a key"));
        let shown = Identity::generate(&["relay.test".into()]).expect("made");
        let shown = Identity::from_pem(shown.certificate.as_bytes(), shown.key.as_bytes());
        let config = Config {
            name: "amber".into(),
            ..Config::default()
        };
        let listen = ["192.0.2.1:443".parse().expect("an address")];
        let mut ours = OurDirectory {
            identity: PathBuf::new(),
            certificates: Certificates::new(&shown.expect("one")).expect("one"),
            descriptor: describe(&config, &listen, key.identity()),
            key,
            last: None,
            bandwidth: 1_000_000,
            authorities: vec![refusing, willing],
            every: Duration::from_secs(3600),
            round: None,
            due: Instant::now(),
        };
        let said = Said {
            statistics: Statistics {
                descriptors_exhausted: Some(1_790_000_000),
                ..Statistics::default()
            },
            ..Said::default()
        };
        let both = ["/hoplite/descriptor", "/hoplite/statistics"];
        ours.publish(None, &said).await;
        assert_eq!(*taken.lock(), both);
        assert_eq!(*refused.lock(), both[..1]);
        let pause = ours.due.saturating_duration_since(Instant::now());
        assert!(pause <= RETRY_PAUSE, "{pause:?}");
        // Who has it is not asked again before the hour is over, who has not is, ever more seldom.
        ours.publish(None, &said).await;
        assert_eq!(*taken.lock(), both);
        assert_eq!(refused.lock().len(), 2);
        let pause = ours.due.saturating_duration_since(Instant::now());
        assert!(pause > RETRY_PAUSE, "{pause:?}");
        // There are others: all are told.
        ours.says_all_again();
        ours.publish(None, &said).await;
        assert_eq!(*taken.lock(), [both, both].concat());
        // And so where the relay says something else of itself.
        ours.descriptor.region = Some("de".into());
        ours.publish(None, &said).await;
        assert_eq!(taken.lock().len(), 6);
        assert_eq!(refused.lock().len(), 4);
    }

    #[test]
    fn whoever_does_not_take_it_is_asked_again_ever_more_seldom() {
        let pauses: Vec<_> = (0..10).map(|tries| pause(tries).as_secs()).collect();
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn documents_are_signed_again_before_authorities_forget_them() {
        for _ in 0..100 {
            assert!((TOR_EVERY - TOR_JITTER..=TOR_EVERY).contains(&lifetime()));
        }
    }

    #[test]
    fn a_relay_says_the_same_words_until_something_has_changed_or_they_are_old() {
        let key = |n| hoplite_crypto::SigningKey::from_seed(zeroize::Zeroizing::new([n; 32]));
        let [key, other] = [1, 2].map(|n| RelayKey::Identity(key(n).expect("a key")));
        let config = Config {
            name: "amber".into(),
            ..Config::default()
        };
        let listen = ["192.0.2.1:443".parse().expect("an address")];
        let holds = Descriptor {
            pin: Some([7; 32]),
            ..describe(&config, &listen, key.identity())
        };
        let now = 1_790_000_000;
        let first = what_to_say(None, &key, &holds, now).expect("signed");
        assert_eq!(first.descriptor.published, now);
        let then = |holds: &Descriptor, at| {
            let said = what_to_say(Some(&first), &key, holds, at).expect("signed");
            (said != first).then_some(said.descriptor)
        };
        let carries = |bandwidth| Descriptor {
            bandwidth,
            ..holds.clone()
        };
        let before = holds.bandwidth;
        // An hour later, and also with a bandwidth that is not much of another.
        for same in [before, before + 1, before * 2 - 1, before / 2 + 1] {
            assert_eq!(then(&carries(same), now + 3600), None);
        }
        for other in [before * 2, before / 2] {
            let said = then(&carries(other), now + 3600).expect("another");
            assert_eq!((said.bandwidth, said.published), (other, now + 3600));
        }
        let anew = then(&carries(before + 1), now + SAY_ANEW).expect("as of now");
        assert_eq!(
            (anew.bandwidth, anew.published),
            (before + 1, now + SAY_ANEW)
        );
        let onion = Some([9; 32]);
        let rotated = Descriptor {
            onion,
            ..holds.clone()
        };
        let said = then(&rotated, now + 1).expect("another");
        assert_eq!((said.onion, said.published), (onion, now + 1));
        // The clock was set back: the later one has the later time all the same.
        let said = then(&rotated, now - 900).expect("another");
        assert_eq!(said.published, now + 1);
        let said = what_to_say(Some(&first), &other, &holds, now + 2).expect("signed");
        assert_eq!(said.descriptor.published, now + 2);
    }

    #[test]
    fn what_tor_is_told_is_what_the_file_says() {
        let config = Config {
            name: "amber".into(),
            onion: hoplite_relay::config::Onion {
                enabled: true,
                ..Default::default()
            },
            ..Config::default()
        };
        let tor = Tor {
            authorities: Vec::new(),
            contact: Some("op@example.org".into()),
            directory_cache: Some(false),
            family: vec![Fingerprint([7; 20])],
            family_keys: Vec::new(),
        };
        let listen = ["[2001:db8::1]:443", "192.0.2.1:443"].map(|it| it.parse().expect(it));
        let said = about(&config, &tor, &listen).expect("an address");
        assert_eq!(said.address.to_string(), "192.0.2.1:443");
        assert_eq!(
            said.address_v6.map(|it| it.to_string()),
            Some("[2001:db8::1]:443".into())
        );
        assert_eq!(
            said.protocols,
            "Conflux=1 Cons=1-2 Desc=1-2 FlowCtrl=1-2 HSIntro=4-5 HSRend=1-2 Link=4-5 LinkAuth=3 Microdesc=1-2 Relay=2-6 X-HopliteQuic=1"
        );
        assert_eq!(said.family, [[7; 20]]);
        assert!(said.exit_v6.is_some());
        assert!(
            about(&config, &tor, &listen[..1]).is_none(),
            "no IPv4 address"
        );
    }
}
