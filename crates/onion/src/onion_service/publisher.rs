//! Publishes the descriptors of a service as long as it lives: whenever its introduction points or the relays that keep descriptors change, and now and
//! then. [`Publisher`] is the driver, [`Uploads`] decides without I/O or clock who is told next. rend-spec-v3, "Generating and publishing hidden service
//! descriptors", "When to upload".
//!
//! HSDirs may refuse, keep silent or lie about having kept a descriptor: each is asked again after growing pauses, and what one does keeps no other from
//! being told.

use std::{fmt, sync::Arc, time::Duration};

use hoplite_crypto::{
    SigningKey,
    onion::{
        client_authorisation::ClientKey,
        descriptor::{self, Descriptor, Publication},
        service_keys::ServiceIdentity,
        time_period::TimePeriod,
    },
};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{
    cell::circuit::LinkSpecifier,
    tor::service_descriptor::{DESCRIPTOR, LIFETIME},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    IntroductionPoint, Service, directory::Destination, directory::ServiceDirectory, unix_time,
};
use crate::{path::Relay, random_below};

/// Bounds and times of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherConfig {
    /// Introduction points that the service wants to have: with fewer it is published after a pause.
    pub points: usize,
    /// How long it is waited for further introduction points, before those that are there are published.
    pub settle: Duration,
    /// How often is looked whether other relays keep its descriptors.
    pub look: Duration,
    /// How long descriptors stand before others are made …
    pub least: Duration,
    /// … and how much longer at random.
    pub more: Duration,
    /// HSDirs that are told at once.
    pub at_once: usize,
    /// The time that one may take, with the circuit to it.
    pub answer: Duration,
    /// The first pause after a failure: each is twice the one before …
    pub pause: Duration,
    /// … up to this.
    pub longest_pause: Duration,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            points: 3,
            settle: Duration::from_secs(5),
            look: Duration::from_secs(15),
            least: Duration::from_secs(3600),
            more: Duration::from_secs(3600),
            at_once: 4,
            answer: Duration::from_secs(60),
            pause: Duration::from_secs(5),
            longest_pause: Duration::from_secs(600),
        }
    }
}

/// How far the newest descriptors are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Introduction points that they name.
    pub points: usize,
    /// HSDirs that have said that they keep one of them.
    pub told: usize,
    /// HSDirs that are to keep one of them.
    pub hsdirs: usize,
    /// When they were made.
    pub since: Option<Instant>,
    /// For which time periods, and which revisions: the period's number and the revision's.
    pub revisions: [(u64, u64); 2],
}

/// Publishes the descriptors of one service.
pub struct Publisher {
    identity: ServiceIdentity,
    authorised: Vec<ClientKey>,
    directory: Arc<dyn ServiceDirectory>,
    points: watch::Receiver<Vec<IntroductionPoint>>,
    sendme_increment: Option<u8>,
    subcredentials: watch::Sender<Vec<[u8; 32]>>,
    published: watch::Sender<Published>,
    config: PublisherConfig,
    periods: Vec<Period>,
}

/// What signs in one time period, and what it has signed.
struct Period {
    period: TimePeriod,
    signing: SigningKey,
    /// The seconds that the last revision was made of.
    last: Option<u64>,
    /// It.
    revision: u64,
}

/// Why descriptors are made anew.
enum Changed {
    /// The points, the relays, or it is time.
    Something,
    /// The service is no more.
    Gone,
}

impl Publisher {
    /// Of this identity, for `authorised` clients alone if there are any. `subcredentials` is what `service` was started with.
    pub fn new(
        identity: ServiceIdentity,
        authorised: Vec<ClientKey>,
        directory: Arc<dyn ServiceDirectory>,
        service: &Service,
        subcredentials: watch::Sender<Vec<[u8; 32]>>,
        config: PublisherConfig,
    ) -> Self {
        Self {
            identity,
            authorised,
            directory,
            points: service.points(),
            sendme_increment: service.sendme_increment(),
            subcredentials,
            published: watch::channel(Published::default()).0,
            config,
            periods: Vec::new(),
        }
    }

    /// How far it has come, from now on.
    pub fn published(&self) -> watch::Receiver<Published> {
        self.published.subscribe()
    }

    /// Publishes until the service is no more.
    pub async fn run(mut self) {
        while let Some(points) = self.settled().await {
            let Ok((destinations, uploads)) = self.make(&points) else {
                // There is no list of relays now, or no HSDir.
                sleep(self.config.look).await;
                continue;
            };
            self.tell(points.len(), &uploads, Some(Instant::now()));
            if let Changed::Gone = self.carry(&destinations, points.len(), uploads).await {
                return;
            }
        }
    }

    /// The introduction points, once there are enough or no further ones come. `None`: the service is no more.
    async fn settled(&mut self) -> Option<Vec<IntroductionPoint>> {
        loop {
            let points = self.points.borrow_and_update().clone();
            let is_enough = points.len() >= self.config.points;
            if is_enough {
                return Some(points);
            }
            let changed = self.points.changed();
            if points.is_empty() {
                changed.await.ok()?;
                continue;
            }
            match timeout(self.config.settle, changed).await {
                Ok(changed) => changed.ok()?,
                Err(_) => return Some(points),
            }
        }
    }

    /// Both descriptors, and who is to keep them.
    fn make(&mut self, points: &[IntroductionPoint]) -> Result<([Destination; 2], Uploads), Error> {
        let destinations = self.directory.published(&self.identity.address())?;
        self.accept(&destinations);
        let periods = destinations.each_ref().map(|one| one.placed.period);
        self.periods.retain(|kept| periods.contains(&kept.period));
        let mut uploads = Uploads::new(self.config);
        for destination in &destinations {
            let text: Arc<str> = self.descriptor(destination, points)?.into();
            uploads.add(&text, &destination.placed.hsdirs, Instant::now());
        }
        Ok((destinations, uploads))
    }

    /// Clients of both periods may introduce themselves, and, as those that are under way have older descriptors, clients of the last ones.
    fn accept(&self, destinations: &[Destination; 2]) {
        let address = self.identity.address();
        let of = |destination: &Destination| {
            address.subcredential(&address.blinded(destination.placed.period))
        };
        let mut accepted: Vec<_> = destinations.iter().map(of).collect();
        self.subcredentials.send_modify(|before| {
            let older = before.iter().filter(|one| !accepted.contains(one));
            let older: Vec<_> = older.take(1).copied().collect();
            accepted.extend(older);
            *before = accepted;
        });
    }

    fn descriptor(
        &mut self,
        destination: &Destination,
        points: &[IntroductionPoint],
    ) -> Result<String, Error> {
        let now = unix_time();
        let key = self.identity.blinded(destination.placed.period);
        let subcredential = self.identity.address().subcredential(&key.public());
        let descriptor = Descriptor {
            congestion_control: self.sendme_increment,
            points: points.iter().map(described).collect(),
            ..Descriptor::default()
        };
        let authorised = self.authorised.clone();
        let period = self.period(destination.placed.period)?;
        let seconds = period.seconds(now.saturating_sub(destination.counted_from));
        period.revision = key.revision(seconds).map_err(unmade)?;
        let publication = Publication {
            key: &key,
            subcredential,
            signing: &period.signing,
            revision: period.revision,
            lifetime: LIFETIME,
            authorised: &authorised,
            now,
            most: DESCRIPTOR,
        };
        descriptor.publish(&publication).map_err(unmade)
    }

    fn period(&mut self, period: TimePeriod) -> Result<&mut Period, Error> {
        if let Some(place) = self.periods.iter().position(|kept| kept.period == period) {
            return self.periods.get_mut(place).ok_or_else(nothing);
        }
        let signing = SigningKey::generate().map_err(unmade)?;
        self.periods.push(Period {
            period,
            signing,
            last: None,
            revision: 0,
        });
        self.periods.last_mut().ok_or_else(nothing)
    }

    /// Uploads them, until others are to be made.
    async fn carry(
        &mut self,
        destinations: &[Destination; 2],
        points: usize,
        mut uploads: Uploads,
    ) -> Changed {
        let since = Instant::now();
        let over = since + self.lasts();
        let mut look = since + self.config.look;
        let mut running = JoinSet::new();
        loop {
            while let Some((place, hsdir, text)) = uploads.next(Instant::now()) {
                let (directory, answer) = (Arc::clone(&self.directory), self.config.answer);
                running.spawn(async move {
                    let told = timeout(answer, directory.publish(&hsdir, text)).await;
                    (place, matches!(told, Ok(Ok(()))))
                });
            }
            let again = uploads.again().unwrap_or(over).min(look).min(over);
            tokio::select! {
                changed = self.points.changed() => return match changed {
                    Ok(()) => Changed::Something,
                    Err(_) => Changed::Gone,
                },
                Some(ended) = running.join_next() => {
                    if let Ok((place, is_told)) = ended {
                        uploads.ended(place, is_told, Instant::now());
                        self.tell(points, &uploads, Some(since));
                    }
                }
                () = sleep_until(again) => {
                    let now = Instant::now();
                    if now >= over || now >= look && self.is_elsewhere(destinations) {
                        return Changed::Something;
                    }
                    if now >= look {
                        look = now + self.config.look;
                    }
                }
            }
        }
    }

    fn lasts(&self) -> Duration {
        let more = u32::try_from(self.config.more.as_secs()).unwrap_or(u32::MAX);
        self.config.least + Duration::from_secs(random_below(more).into())
    }

    /// Whether the descriptors belong to other relays, or of other periods, by now.
    fn is_elsewhere(&self, destinations: &[Destination; 2]) -> bool {
        let now = self.directory.published(&self.identity.address());
        now.is_ok_and(|now| now != *destinations)
    }

    /// Of both periods, the older one first; one that is not there is zeros.
    fn revisions(&self) -> [(u64, u64); 2] {
        let mut made = self
            .periods
            .iter()
            .map(|one| (one.period.number, one.revision));
        let mut both = [(); 2].map(|()| made.next().unwrap_or_default());
        both.sort_unstable();
        both
    }

    fn tell(&self, points: usize, uploads: &Uploads, since: Option<Instant>) {
        self.published.send_replace(Published {
            points,
            told: uploads.told(),
            hsdirs: uploads.to.len(),
            since,
            revisions: self.revisions(),
        });
    }
}

impl Period {
    /// The seconds to make a revision of: later than those of the last one.
    fn seconds(&mut self, now: u64) -> u64 {
        let next = self.last.map_or(0, |last| last.saturating_add(1));
        *self.last.insert(now.max(next))
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

fn unmade(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Bug, "making the descriptor of an onion service").caused_by(why)
}

fn nothing() -> Error {
    Error::new(ErrorKind::Bug, "making the descriptor of an onion service")
}

// Who is told next. A machine without I/O or clock.

struct Uploads {
    config: PublisherConfig,
    to: Vec<Upload>,
}

/// To one relay.
struct Upload {
    hsdir: Relay,
    text: Arc<str>,
    state: State,
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be told, not before this.
    Due(Instant),
    /// Is being told.
    Running,
    /// Has the descriptor.
    Told,
}

impl Uploads {
    fn new(config: PublisherConfig) -> Self {
        let to = Vec::new();
        Self { config, to }
    }

    fn add(&mut self, text: &Arc<str>, hsdirs: &[Relay], now: Instant) {
        let pause = self.config.pause;
        self.to.extend(hsdirs.iter().map(|hsdir| Upload {
            hsdir: hsdir.clone(),
            text: Arc::clone(text),
            state: State::Due(now),
            pause,
        }));
    }

    /// The next that is due, if not too many are told just now: its place, the relay, the text.
    fn next(&mut self, now: Instant) -> Option<(usize, Relay, Arc<str>)> {
        let running = self.to.iter().filter(|to| to.state == State::Running);
        if running.count() >= self.config.at_once {
            return None;
        }
        let is_due = |to: &Upload| matches!(to.state, State::Due(from) if from <= now);
        let (place, to) = self.to.iter_mut().enumerate().find(|(_, to)| is_due(to))?;
        to.state = State::Running;
        Some((place, to.hsdir.clone(), Arc::clone(&to.text)))
    }

    fn ended(&mut self, place: usize, is_told: bool, now: Instant) {
        let longest = self.config.longest_pause;
        let Some(to) = self.to.get_mut(place) else {
            return;
        };
        if is_told {
            to.state = State::Told;
        } else {
            to.state = State::Due(now + to.pause);
            to.pause = to.pause.saturating_mul(2).min(longest);
        }
    }

    /// When the first of those that failed is due again.
    fn again(&self) -> Option<Instant> {
        let running = self.to.iter().filter(|to| to.state == State::Running);
        if running.count() >= self.config.at_once {
            return None;
        }
        let due = self.to.iter().filter_map(|to| match to.state {
            State::Due(from) => Some(from),
            State::Running | State::Told => None,
        });
        due.min()
    }

    fn told(&self) -> usize {
        let told = self.to.iter().filter(|to| to.state == State::Told);
        told.count()
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher({:?})", *self.published.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hsdir(n: u8) -> Relay {
        let specifiers = [
            LinkSpecifier::Ipv4("192.0.2.1:9001".parse().expect("an address")),
            LinkSpecifier::Ed25519([n; 32]),
        ];
        super::super::relay(&specifiers, [0; 32]).expect("a relay")
    }

    fn uploads(of: u8, now: Instant) -> Uploads {
        let mut uploads = Uploads::new(PublisherConfig::default());
        let hsdirs: Vec<_> = (1..=of).map(hsdir).collect();
        uploads.add(&"text".into(), &hsdirs, now);
        uploads
    }

    #[test]
    fn no_more_are_told_at_once_than_may_and_each_is_told() {
        let now = Instant::now();
        let mut uploads = uploads(6, now);
        let mut places = Vec::new();
        while let Some((place, ..)) = uploads.next(now) {
            places.push(place);
        }
        assert_eq!(places, [0, 1, 2, 3]);
        assert_eq!(uploads.again(), None, "it is waited for an end");
        uploads.ended(2, true, now);
        assert_eq!(uploads.next(now).map(|next| next.0), Some(4));
        for place in [0, 1, 3, 4] {
            uploads.ended(place, true, now);
        }
        assert_eq!(uploads.next(now).map(|next| next.0), Some(5));
        uploads.ended(5, true, now);
        assert_eq!((uploads.told(), uploads.again()), (6, None));
    }

    #[test]
    fn one_that_fails_is_told_again_after_longer_and_longer_pauses() {
        let mut now = Instant::now();
        let mut uploads = uploads(1, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(uploads.next(now).is_some());
            uploads.ended(0, false, now);
            assert!(uploads.next(now).is_none(), "not at once");
            let again = uploads.again().expect("a time");
            pauses.push((again - now).as_secs());
            now = again;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[test]
    fn revisions_grow_also_within_a_second() {
        let mut period = Period {
            period: TimePeriod {
                number: 1,
                minutes: 1440,
            },
            signing: SigningKey::generate().expect("a key"),
            last: None,
            revision: 0,
        };
        let made = [5, 5, 5, 9, 2].map(|now| period.seconds(now));
        assert_eq!(made, [5, 6, 7, 9, 10]);
    }
}
