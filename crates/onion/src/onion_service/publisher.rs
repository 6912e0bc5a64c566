//! Publishes the descriptors of a service as long as it lives: whenever its introduction points or the relays that keep descriptors change, and now and
//! then. [`Publisher`] is the driver, [`Uploads`] decides without I/O or clock who is told next. rend-spec-v3, "Generating and publishing hidden service
//! descriptors", "When to upload".
//!
//! HSDirs may refuse, keep silent or lie about having kept a descriptor: each is asked again after growing pauses, and what one does keeps no other from
//! being told.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

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
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
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
    /// How long a descriptor stands before another is made …
    pub least: Duration,
    /// … and how much longer at random.
    pub more: Duration,
    /// How long after the descriptor for which clients with our list look the other one is told relays that are new to it, at random from half of this
    /// on; less where time periods are short.
    pub apart: Duration,
    /// HSDirs that are told of one descriptor at once.
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
            apart: Duration::from_secs(1800),
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
    /// Introduction points that the service has.
    pub points: usize,
    /// HSDirs that have said that they keep one of them.
    pub told: usize,
    /// HSDirs that are to keep one of them.
    pub hsdirs: usize,
    /// When the newer of them was made.
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
    standing: Vec<Standing>,
    /// Of the descriptor for which clients with our list look, as far as is known.
    looked_for: Option<TimePeriod>,
    /// How many were made.
    made: u64,
    /// When was looked last who keeps them.
    looked: Instant,
    /// When that is looked next.
    look: Instant,
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

/// The descriptor of one time period that stands. Who keeps both must not see by the moment that two blinded keys are of one service: each is made anew at a
/// time of its own, and where both have a reason the one for which clients with our list look is told first.
struct Standing {
    period: TimePeriod,
    number: u64,
    since: Instant,
    /// Until then.
    over: Instant,
    /// The keys of the introduction points that it names.
    points: HashSet<[u8; 32]>,
    uploads: Uploads,
    /// They end with it.
    running: Vec<AbortHandle>,
}

/// What a round makes of one of the two descriptors.
#[derive(Clone, Copy)]
struct Turn {
    /// It is not the one that clients look for, and not the first that there is: it has times of its own.
    is_later: bool,
    /// The other one was made anew in this round.
    is_second: bool,
}

/// An HSDir has been told, or not: the number of the descriptor, and who it is.
type Ended = (u64, [u8; 32], bool);

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
            standing: Vec::new(),
            looked_for: None,
            made: 0,
            looked: Instant::now(),
            look: Instant::now(),
        }
    }

    /// How far it has come, from now on.
    pub fn published(&self) -> watch::Receiver<Published> {
        self.published.subscribe()
    }

    /// Publishes until the service is no more.
    pub async fn run(mut self) {
        let Some(mut points) = self.settled().await else {
            return;
        };
        let mut running = JoinSet::new();
        loop {
            let now = Instant::now();
            if self.renewal() <= now {
                self.renew(&points, now);
            }
            self.upload(&mut running, now);
            self.tell(points.len());
            let wakes = self.wakes();
            tokio::select! {
                changed = self.points.changed() => {
                    let settled = match changed {
                        Ok(()) => self.settled().await,
                        Err(_) => None,
                    };
                    let Some(others) = settled else {
                        return;
                    };
                    points = others;
                    self.look = Instant::now();
                }
                Some(ended) = running.join_next() => {
                    if let Ok(ended) = ended {
                        self.ended(ended, Instant::now());
                    }
                }
                () = sleep_until(wakes) => {}
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

    /// When [`Self::renew`] has something to do. What was over and could not be made, as there was no list of relays, or no HSDir, is tried again with the rest.
    fn renewal(&self) -> Instant {
        let overs = self.standing.iter().map(|one| one.over);
        let overs = overs.filter(|over| *over > self.looked);
        overs.fold(self.look, Instant::min)
    }

    fn wakes(&self) -> Instant {
        let again = self.standing.iter().filter_map(|one| one.uploads.again());
        again.fold(self.renewal(), Instant::min)
    }

    /// Makes those descriptors that are not there, over or of no use any more, and gives the others to relays that are to keep them by now.
    fn renew(&mut self, points: &[IntroductionPoint], now: Instant) {
        (self.looked, self.look) = (now, now + self.config.look);
        if let Ok(mut destinations) = self.directory.published(&self.identity.address()) {
            self.accept(&destinations);
            let periods = destinations.each_ref().map(|one| one.placed.period);
            self.periods.retain(|kept| periods.contains(&kept.period));
            self.standing.retain(|one| periods.contains(&one.period));
            let looked_for = self.directory.looked_for(&self.identity.address());
            self.looked_for = looked_for.ok().map(|it| it.period).or(self.looked_for);
            destinations.sort_by_key(|one| Some(one.placed.period) != self.looked_for);
            let is_beginning = self.standing.is_empty();
            let made = self.made;
            for destination in &destinations {
                let is_other = Some(destination.placed.period) != self.looked_for;
                let turn = Turn {
                    is_later: is_other && !is_beginning,
                    is_second: self.made > made,
                };
                self.renew_one(destination, points, now, turn);
            }
        }
    }

    fn renew_one(
        &mut self,
        destination: &Destination,
        points: &[IntroductionPoint],
        now: Instant,
        Turn {
            is_later,
            is_second,
        }: Turn,
    ) {
        let (period, hsdirs) = (destination.placed.period, &destination.placed.hsdirs);
        let later = if is_later {
            self.later(period, now)
        } else {
            now
        };
        let points_now: HashSet<_> = points.iter().map(|point| point.auth_key).collect();
        let mut standing = self.standing.iter_mut();
        let standing = standing.find(|one| one.period == period);
        let is_first = standing.is_none();
        if let Some(standing) = standing {
            let is_left = !standing.points.is_disjoint(&points_now);
            if is_later && is_second && is_left && standing.over <= now {
                standing.over = later;
            }
            // The other one is good as long as a point of it is left: were it made anew now, who keeps both would see it by that.
            let is_good = if is_later {
                is_left
            } else {
                standing.points == points_now
            };
            if is_good && standing.over > now {
                standing.uploads.belong_to(hsdirs, later);
                return;
            }
        }
        let Ok(text) = self.descriptor(destination, points) else {
            return;
        };
        let mut uploads = Uploads::new(text.into(), self.config);
        uploads.belong_to(hsdirs, if is_first { later } else { now });
        self.standing.retain(|one| one.period != period);
        self.made += 1;
        self.standing.push(Standing {
            period,
            number: self.made,
            since: now,
            over: now + self.lasts(),
            points: points_now,
            uploads,
            running: Vec::new(),
        });
    }

    /// When relays that are new to the other descriptor are told it.
    fn later(&self, period: TimePeriod, now: Instant) -> Instant {
        let part = Duration::from_secs(60) * period.minutes / 48;
        let half = self.config.apart.min(part) / 2;
        now + half + random(half)
    }

    /// Clients of both periods may introduce themselves, and, as those that are under way have older descriptors, clients of the last ones.
    fn accept(&self, destinations: &[Destination; 2]) {
        let address = self.identity.address();
        let of = |destination: &Destination| {
            address.subcredential(&address.blinded(destination.placed.period))
        };
        let mut accepted: Vec<_> = destinations.iter().map(of).collect();
        self.subcredentials.send_if_modified(|before| {
            let is_same = before.starts_with(&accepted);
            let older = before.iter().filter(|one| !accepted.contains(one));
            let older: Vec<_> = older.take(1).copied().collect();
            accepted.extend(older);
            *before = accepted;
            !is_same
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

    /// Has HSDirs told that are due.
    fn upload(&mut self, running: &mut JoinSet<Ended>, now: Instant) {
        for one in &mut self.standing {
            while let Some((hsdir, text)) = one.uploads.next(now) {
                let (directory, answer) = (Arc::clone(&self.directory), self.config.answer);
                let number = one.number;
                one.running.push(running.spawn(async move {
                    let told = timeout(answer, directory.publish(&hsdir, text)).await;
                    let is_told = matches!(told, Ok(Ok(())));
                    (number, hsdir.keys.ed25519, is_told)
                }));
            }
        }
    }

    fn ended(&mut self, (number, hsdir, is_told): Ended, now: Instant) {
        let mut standing = self.standing.iter_mut();
        if let Some(one) = standing.find(|one| one.number == number) {
            one.uploads.ended(&hsdir, is_told, now);
            one.running.retain(|task| !task.is_finished());
        }
    }

    fn lasts(&self) -> Duration {
        self.config.least + random(self.config.more)
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

    fn tell(&self, points: usize) {
        let uploads = || self.standing.iter().map(|one| &one.uploads);
        let now = Published {
            points,
            told: uploads().map(Uploads::told).sum(),
            hsdirs: uploads().map(|uploads| uploads.to.len()).sum(),
            since: self.standing.iter().map(|one| one.since).max(),
            revisions: self.revisions(),
        };
        self.published.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.running.iter().for_each(AbortHandle::abort);
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

/// A random time below this one, in seconds.
fn random(most: Duration) -> Duration {
    let most = u32::try_from(most.as_secs()).unwrap_or(u32::MAX);
    Duration::from_secs(random_below(most).into())
}

fn unmade(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Bug, "making the descriptor of an onion service").caused_by(why)
}

fn nothing() -> Error {
    Error::new(ErrorKind::Bug, "making the descriptor of an onion service")
}

// Who is told one descriptor next. A machine without I/O or clock.

struct Uploads {
    text: Arc<str>,
    config: PublisherConfig,
    to: Vec<Upload>,
    /// Those who have it, and are not to keep it any more: they would refuse it if they were told again.
    away: HashSet<[u8; 32]>,
}

/// To one relay.
struct Upload {
    hsdir: Relay,
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
    fn new(text: Arc<str>, config: PublisherConfig) -> Self {
        Self {
            text,
            config,
            to: Vec::new(),
            away: HashSet::new(),
        }
    }

    /// These are to keep it now, and are told from then on: who was told is not told again, whatever else is new of that relay.
    fn belong_to(&mut self, hsdirs: &[Relay], from: Instant) {
        let mut before = std::mem::take(&mut self.to);
        for hsdir in hsdirs {
            let identity = &hsdir.keys.ed25519;
            let known = before.iter().position(|to| to.is_to(identity));
            let known = known.map(|place| before.swap_remove(place));
            let (state, pause) = match known {
                // What is looked for by now waits no longer; who has failed does.
                Some(Upload {
                    state: State::Due(at),
                    pause,
                    ..
                }) if pause == self.config.pause => (State::Due(at.min(from)), pause),
                Some(known) => (known.state, known.pause),
                None if self.away.remove(identity) => (State::Told, self.config.pause),
                None => (State::Due(from), self.config.pause),
            };
            self.to.push(Upload {
                hsdir: hsdir.clone(),
                state,
                pause,
            });
        }
        let told = before.iter().filter(|to| to.state == State::Told);
        self.away.extend(told.map(|to| to.hsdir.keys.ed25519));
    }

    /// The next that is due, if not too many are told just now, and the text.
    fn next(&mut self, now: Instant) -> Option<(Relay, Arc<str>)> {
        let running = self.to.iter().filter(|to| to.state == State::Running);
        if running.count() >= self.config.at_once {
            return None;
        }
        let is_due = |to: &&mut Upload| matches!(to.state, State::Due(from) if from <= now);
        let to = self.to.iter_mut().find(is_due)?;
        to.state = State::Running;
        Some((to.hsdir.clone(), Arc::clone(&self.text)))
    }

    fn ended(&mut self, hsdir: &[u8; 32], is_told: bool, now: Instant) {
        let longest = self.config.longest_pause;
        let is_it = |to: &&mut Upload| to.is_to(hsdir) && to.state == State::Running;
        let Some(to) = self.to.iter_mut().find(is_it) else {
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

impl Upload {
    fn is_to(&self, hsdir: &[u8; 32]) -> bool {
        self.hsdir.keys.ed25519 == *hsdir
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher({:?})", *self.published.borrow())
    }
}

#[cfg(test)]
mod tests {
    use hoplite_crypto::onion::{
        OnionKey,
        service_keys::{BlindedKey, OnionAddress},
    };
    use parking_lot::Mutex;
    use tokio::time::sleep;

    use super::{super::Placed, *};
    use crate::channel::Waiting;

    fn hsdir(n: u8) -> Relay {
        let specifiers = [
            LinkSpecifier::Ipv4("192.0.2.1:9001".parse().expect("an address")),
            LinkSpecifier::Ed25519([n; 32]),
        ];
        super::super::relay(&specifiers, [0; 32]).expect("a relay")
    }

    fn uploads(of: u8, now: Instant) -> Uploads {
        let mut uploads = Uploads::new("text".into(), PublisherConfig::default());
        let hsdirs: Vec<_> = (1..=of).map(hsdir).collect();
        uploads.belong_to(&hsdirs, now);
        uploads
    }

    /// Who is told next, by its number.
    fn next(uploads: &mut Uploads, now: Instant) -> Option<u8> {
        let (hsdir, _) = uploads.next(now)?;
        Some(hsdir.keys.ed25519[0])
    }

    #[test]
    fn no_more_are_told_at_once_than_may_and_each_is_told() {
        let now = Instant::now();
        let mut uploads = uploads(6, now);
        let first: Vec<u8> = std::iter::from_fn(|| next(&mut uploads, now)).collect();
        assert_eq!(first, [1, 2, 3, 4]);
        assert_eq!(uploads.again(), None, "it is waited for an end");
        uploads.ended(&[3; 32], true, now);
        assert_eq!(next(&mut uploads, now), Some(5));
        for hsdir in [1, 2, 4, 5] {
            uploads.ended(&[hsdir; 32], true, now);
        }
        assert_eq!(next(&mut uploads, now), Some(6));
        uploads.ended(&[6; 32], true, now);
        assert_eq!((uploads.told(), uploads.again()), (6, None));
    }

    #[test]
    fn one_that_fails_is_told_again_after_longer_and_longer_pauses() {
        let mut now = Instant::now();
        let mut uploads = uploads(1, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(next(&mut uploads, now), Some(1));
            uploads.ended(&[1; 32], false, now);
            assert_eq!(next(&mut uploads, now), None, "not at once");
            let again = uploads.again().expect("a time");
            pauses.push((again - now).as_secs());
            now = again;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[test]
    fn another_relay_of_the_ring_is_told_and_nobody_twice() {
        let now = Instant::now();
        let mut uploads = uploads(3, now);
        for number in 1..=3 {
            assert_eq!(next(&mut uploads, now), Some(number));
        }
        uploads.ended(&[1; 32], true, now);
        uploads.ended(&[2; 32], false, now);
        let mut known = hsdir(1);
        known.keys.onion = [9; 32];
        let mut failed = hsdir(2);
        failed.addresses.clear();
        uploads.belong_to(&[known.clone(), failed.clone(), hsdir(4)], now);
        assert_eq!(next(&mut uploads, now), Some(4));
        assert_eq!(uploads.told(), 1, "it keeps what it was told");
        uploads.ended(&[3; 32], true, now);
        assert_eq!(uploads.told(), 1, "it is to keep nothing any more");
        let (again, _) = uploads.next(now + Duration::from_secs(5)).expect("due");
        assert!(again.addresses.is_empty(), "as it is known by now");
        uploads.belong_to(&[failed, hsdir(4)], now);
        uploads.belong_to(&[known, hsdir(5)], now + Duration::from_secs(9));
        assert_eq!(uploads.told(), 1, "it has it, and is to keep it again");
        assert_eq!(next(&mut uploads, now), None);
        assert_eq!(next(&mut uploads, now + Duration::from_secs(9)), Some(5));
    }

    /// Three HSDirs keep the descriptors of each period, 10 to 12 those of the first.
    #[derive(Debug)]
    struct Ring {
        /// The older one of both periods.
        first: Mutex<u64>,
        /// That for which clients look.
        looked_for: u64,
        /// Beside those three.
        more: Mutex<Vec<u8>>,
        /// There is no list of relays.
        is_lost: Mutex<bool>,
        told: Mutex<Vec<u8>>,
    }

    impl Ring {
        fn placed(&self, number: u64) -> Placed {
            let period = u8::try_from(number * 10).expect("few");
            let of_it = |hsdir: &&u8| **hsdir / 10 == period / 10;
            let more = self.more.lock();
            let more = more.iter().filter(of_it).copied();
            Placed {
                period: TimePeriod {
                    number,
                    minutes: 1440,
                },
                ends: u64::MAX,
                hsdirs: (period..period + 3).chain(more).map(hsdir).collect(),
            }
        }

        /// Who was told since this was asked last.
        fn told(&self) -> Vec<u8> {
            let mut told = std::mem::take(&mut *self.told.lock());
            told.sort_unstable();
            told
        }
    }

    impl ServiceDirectory for Ring {
        fn looked_for(&self, _: &OnionAddress) -> Result<Placed, Error> {
            Ok(self.placed(self.looked_for))
        }

        fn published(&self, _: &OnionAddress) -> Result<[Destination; 2], Error> {
            if *self.is_lost.lock() {
                return Err(nothing());
            }
            let first = *self.first.lock();
            Ok([first, first + 1].map(|number| Destination {
                placed: self.placed(number),
                counted_from: unix_time(),
            }))
        }

        fn fetch<'a>(
            &'a self,
            _: &'a Relay,
            _: &'a BlindedKey,
        ) -> Waiting<'a, Result<String, Error>> {
            unreachable!("nobody asks for one")
        }

        fn publish<'a>(&'a self, hsdir: &'a Relay, _: Arc<str>) -> Waiting<'a, Result<(), Error>> {
            self.told.lock().push(hsdir.keys.ed25519[0]);
            Box::pin(std::future::ready(Ok(())))
        }
    }

    fn point() -> IntroductionPoint {
        let secret = OnionKey::fresh_secret().expect("a key");
        let encryption = OnionKey::from_secret(&secret).expect("a key");
        IntroductionPoint {
            relay: hsdir(9),
            auth_key: SigningKey::generate().expect("a key").public(),
            enc_key: *encryption.public(),
        }
    }

    /// What of a publisher is seen at its HSDirs; a look is made each minute, and a descriptor stands for so long at least.
    fn published(least: Duration) -> (Arc<Ring>, watch::Sender<Vec<IntroductionPoint>>) {
        let ring = Arc::new(Ring {
            first: Mutex::new(1),
            looked_for: 2,
            more: Mutex::default(),
            is_lost: Mutex::new(false),
            told: Mutex::default(),
        });
        let (points, receiver) = watch::channel(vec![point(), point(), point()]);
        let publisher = Publisher {
            identity: ServiceIdentity::generate().expect("a key"),
            authorised: Vec::new(),
            directory: Arc::clone(&ring) as Arc<dyn ServiceDirectory>,
            points: receiver,
            sendme_increment: None,
            subcredentials: watch::channel(Vec::new()).0,
            published: watch::channel(Published::default()).0,
            config: PublisherConfig {
                look: LOOK,
                least,
                ..PublisherConfig::default()
            },
            periods: Vec::new(),
            standing: Vec::new(),
            looked_for: None,
            made: 0,
            looked: Instant::now(),
            look: Instant::now(),
        };
        tokio::spawn(publisher.run());
        (ring, points)
    }

    const LOOK: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    const SOON: Duration = Duration::from_secs(1);
    /// As long as one descriptor is told later than the other.
    const APART: Duration = Duration::from_secs(1800);
    const ALL: [u8; 6] = [10, 11, 12, 20, 21, 22];

    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_descriptors_of_two_periods_does_not_see_both_change_with_the_service() {
        let (ring, points) = published(HOUR * 24);
        sleep(SOON).await;
        assert_eq!(ring.told(), ALL, "it begins");
        points.send_modify(|points| points[0] = point());
        sleep(SOON).await;
        assert_eq!(ring.told(), [20, 21, 22]);
        sleep(APART).await;
        assert!(ring.told().is_empty(), "the others have two that are left");
        points.send_replace(vec![point(), point(), point()]);
        sleep(SOON).await;
        assert_eq!(ring.told(), ALL, "none is left");
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_descriptors_of_two_periods_does_not_see_both_come_with_a_list() {
        let (ring, _points) = published(HOUR * 24);
        sleep(SOON).await;
        assert_eq!(ring.told(), ALL, "it begins");
        ring.more.lock().extend([14, 24]);
        sleep(LOOK + SOON).await;
        assert_eq!(ring.told(), [24]);
        sleep(APART).await;
        assert_eq!(ring.told(), [14]);
        // The next period begins.
        *ring.first.lock() = 2;
        ring.more.lock().push(25);
        sleep(LOOK + SOON).await;
        assert_eq!(ring.told(), [25]);
        sleep(APART / 2 - LOOK * 2).await;
        assert!(ring.told().is_empty());
        sleep(APART / 2 + LOOK * 2).await;
        assert_eq!(ring.told(), [30, 31, 32]);
    }

    /// Both are over by then.
    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_descriptors_of_two_periods_does_not_see_both_come_after_a_time_without_a_list()
     {
        let (ring, _points) = published(HOUR);
        sleep(SOON).await;
        assert_eq!(ring.told(), ALL, "it begins");
        *ring.is_lost.lock() = true;
        sleep(HOUR * 3).await;
        assert!(ring.told().is_empty());
        *ring.is_lost.lock() = false;
        sleep(LOOK + SOON).await;
        assert_eq!(ring.told(), [20, 21, 22]);
        sleep(APART).await;
        assert_eq!(ring.told(), [10, 11, 12]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_descriptors_of_two_periods_are_not_made_anew_in_one_moment() {
        let (ring, _points) = published(HOUR);
        sleep(SOON).await;
        assert_eq!(ring.told(), ALL, "it begins");
        // Ten hours, in which each is made anew five to ten times.
        let (mut times, mut together) = (0, 0);
        for _ in 0..36_000 {
            sleep(SOON).await;
            let told = ring.told().len();
            times += told.div_ceil(3);
            together += usize::from(told > 3);
        }
        assert!(
            (9..=20).contains(&times) && together <= 1,
            "{times}: {together}"
        );
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
