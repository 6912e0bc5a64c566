use hoplite_crypto::{
    SigningKey,
    onion::{
        OnionKey,
        client_authorisation::ClientKey,
        descriptor::{self, Publication},
        service_keys::ServiceIdentity,
        time_period::TimePeriod,
    },
};
use hoplite_wire::tor::service_descriptor::LIFETIME;
use tokio::task::JoinSet;

use super::*;
use crate::{channel::Waiting, onion_service::directory::Destination};

const PERIOD: TimePeriod = TimePeriod {
    number: 20_000,
    minutes: 1440,
};

fn hsdir(n: u8) -> Relay {
    let specifiers = [
        LinkSpecifier::Ipv4("192.0.2.1:9001".parse().expect("an address")),
        LinkSpecifier::Ed25519([n; 32]),
    ];
    relay(&specifiers, [n; 32]).expect("a relay")
}

/// A descriptor with one introduction point, at the relay of this number.
fn text(
    identity: &ServiceIdentity,
    point: u8,
    revision: u64,
    authorised: &[ClientKey],
) -> Arc<str> {
    let key = identity.blinded(PERIOD);
    let mut link_specifiers = Vec::new();
    LinkSpecifier::write_all(&hsdir(point).specifiers(), &mut link_specifiers);
    let secret = OnionKey::fresh_secret().expect("a key");
    let descriptor = Descriptor {
        points: vec![descriptor::IntroductionPoint {
            link_specifiers,
            onion_key: [point; 32],
            auth_key: SigningKey::generate().expect("a key").public(),
            enc_key: *OnionKey::from_secret(&secret).expect("a key").public(),
        }],
        ..Descriptor::default()
    };
    let publication = Publication {
        subcredential: identity.address().subcredential(&key.public()),
        key: &key,
        signing: &SigningKey::generate().expect("a key"),
        revision,
        lifetime: LIFETIME,
        authorised,
        now: unix_time(),
        most: DESCRIPTOR,
    };
    descriptor.publish(&publication).expect("fits").into()
}

/// What each HSDir answers; nothing: it has no such thing.
#[derive(Debug, Default)]
struct Shelf {
    answers: Mutex<HashMap<u8, Arc<str>>>,
    /// Who refuses to answer at all.
    refusing: Mutex<Vec<u8>>,
    asked: Mutex<Vec<u8>>,
    /// Whoever is asked now never answers.
    hangs: Mutex<bool>,
}

impl Shelf {
    fn has(&self, hsdir: u8, text: &Arc<str>) {
        self.answers.lock().insert(hsdir, Arc::clone(text));
    }

    /// Who was asked since.
    fn asked(&self) -> Vec<u8> {
        let mut asked = std::mem::take(&mut *self.asked.lock());
        asked.sort_unstable();
        asked
    }
}

impl ServiceDirectory for Shelf {
    fn looked_for(&self, _: &OnionAddress) -> Result<Placed, Error> {
        Ok(Placed {
            period: PERIOD,
            ends: unix_time() + 3600,
            hsdirs: (1..=6).map(hsdir).collect(),
        })
    }

    fn published(&self, _: &OnionAddress) -> Result<[Destination; 2], Error> {
        Err(Error::new(ErrorKind::Bug, "a client publishes nothing"))
    }

    fn fetch<'a>(
        &'a self,
        hsdir: &'a Relay,
        _: &'a BlindedKey,
    ) -> Waiting<'a, Result<String, Error>> {
        let number = hsdir.keys.ed25519[0];
        self.asked.lock().push(number);
        let found = self.answers.lock().get(&number).cloned();
        let refuses = self.refusing.lock().contains(&number);
        let hangs = *self.hangs.lock();
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            if refuses {
                let refused = Error::new(ErrorKind::Forbidden, "a test");
                return Err(refused.because(Reason::Limit));
            }
            let missing = Error::new(ErrorKind::TargetFailed, "a test");
            let found = found.ok_or_else(|| missing.because(Reason::NameNotFound));
            found.map(|text| text.to_string())
        })
    }

    fn publish<'a>(&'a self, _: &'a Relay, _: Arc<str>) -> Waiting<'a, Result<(), Error>> {
        Box::pin(async { Err(Error::new(ErrorKind::Bug, "a client publishes nothing")) })
    }
}

struct Scene {
    shelf: Arc<Shelf>,
    identity: ServiceIdentity,
    descriptors: Descriptors,
}

impl Scene {
    fn new() -> Self {
        Self::with(
            ServiceIdentity::generate().expect("a key"),
            ClientKeys::default(),
        )
    }

    fn with(identity: ServiceIdentity, keys: ClientKeys) -> Self {
        let shelf = Arc::<Shelf>::default();
        let directory = Arc::clone(&shelf) as Arc<dyn ServiceDirectory>;
        Self {
            descriptors: Descriptors::new(directory, keys, DescriptorsConfig::default()),
            shelf,
            identity,
        }
    }

    async fn look(&self) -> Result<Arc<KnownService>, Error> {
        let token = Isolation::default();
        self.descriptors
            .service(&self.identity.address(), &token)
            .await
    }

    /// A token looks for so many services that nobody has; dropped, it does no more.
    async fn page(&self, token: &Isolation, services: usize) -> JoinSet<Result<(), Error>> {
        let mut looking = JoinSet::new();
        for _ in 0..services {
            let (descriptors, token) = (self.descriptors.clone(), token.clone());
            let address = ServiceIdentity::generate().expect("a key").address();
            looking.spawn(async move { descriptors.service(&address, &token).await.map(drop) });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        looking
    }

    /// The relay of the only introduction point that is known.
    async fn point(&self) -> u8 {
        let known = self.look().await.expect("found");
        assert_eq!(known.points.len(), 1);
        known.points[0].relay.keys.ed25519[0]
    }

    /// The same of a newer descriptor, as it leads nowhere; nothing: there is none.
    async fn newer(&self) -> Option<u8> {
        let known = self.look().await.expect("kept");
        let address = self.identity.address();
        let token = Isolation::default();
        let newer = self.descriptors.newer(&address, &token, &known).await?;
        Some(newer.points[0].relay.keys.ed25519[0])
    }
}

#[tokio::test(start_paused = true)]
async fn one_honest_hsdir_among_liars_is_enough_and_each_is_asked_once_at_most() {
    for _ in 0..8 {
        let scene = Scene::new();
        let stranger = ServiceIdentity::generate().expect("a key");
        let right = text(&scene.identity, 9, 5, &[]);
        scene.shelf.has(1, &"garbage".into());
        scene.shelf.has(2, &text(&stranger, 8, 5, &[]));
        scene
            .shelf
            .has(3, &right.replacen("lifetime 180", "lifetime 181", 1).into());
        scene.shelf.has(4, &right);
        assert_eq!(scene.point().await, 9);
        let asked = scene.shelf.asked();
        let mut once = asked.clone();
        once.dedup();
        assert_eq!(asked, once);
        assert_eq!(scene.point().await, 9);
        assert!(scene.shelf.asked().is_empty(), "it is kept");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_nobody_has_is_looked_for_at_all_hsdirs_and_then_not_for_a_while() {
    let scene = Scene::new();
    for expected in [vec![1, 2, 3, 4, 5, 6], Vec::new()] {
        let error = scene.look().await.expect_err("nowhere");
        let reason = (error.kind(), error.reason());
        assert_eq!(
            reason,
            (ErrorKind::TargetFailed, Some(Reason::NameNotFound))
        );
        assert_eq!(scene.shelf.asked(), expected);
    }
    tokio::time::advance(DescriptorsConfig::default().in_vain).await;
    scene.shelf.has(2, &text(&scene.identity, 9, 5, &[]));
    assert_eq!(scene.point().await, 9);
}

/// Who has just started is found soon, and who is down is not asked for all the time.
#[tokio::test(start_paused = true)]
async fn hsdirs_that_have_nothing_are_asked_again_after_longer_and_longer_pauses() {
    let scene = Scene::new();
    let mut asked = Vec::new();
    for second in 0..125 {
        assert!(scene.look().await.is_err());
        if !scene.shelf.asked().is_empty() {
            asked.push(second);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(asked, [0, 5, 15, 35, 75]);
}

/// All whose introduction is in vain ask at once.
#[tokio::test(start_paused = true)]
async fn a_newer_descriptor_that_somebody_has_found_meanwhile_is_everybodys() {
    let scene = Scene::new();
    scene.shelf.has(1, &text(&scene.identity, 7, 5, &[]));
    let old = scene.look().await.expect("found");
    (1..=6).for_each(|n| scene.shelf.has(n, &text(&scene.identity, 9, 6, &[])));
    assert_eq!(scene.newer().await, Some(9));
    scene.shelf.asked();
    let address = scene.identity.address();
    let token = Isolation::default();
    let newer = scene.descriptors.newer(&address, &token, &old).await;
    assert_eq!(newer, scene.look().await.ok());
    assert!(scene.shelf.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn when_the_points_fail_a_newer_descriptor_is_looked_for_and_an_older_one_never_taken() {
    let scene = Scene::new();
    let first = text(&scene.identity, 7, 5, &[]);
    (1..=6).for_each(|n| scene.shelf.has(n, &first));
    assert_eq!(scene.point().await, 7);
    scene.shelf.asked();
    // An older one, of an HSDir that would have an old point used.
    let older = text(&scene.identity, 6, 4, &[]);
    (1..=5).for_each(|n| scene.shelf.has(n, &older));
    assert_eq!(scene.newer().await, None);
    assert_eq!(scene.shelf.asked(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(scene.point().await, 7, "the last one is better than none");
    assert_eq!(scene.newer().await, None);
    assert!(scene.shelf.asked().is_empty(), "not so soon");
    tokio::time::advance(2 * DescriptorsConfig::default().in_vain).await;
    scene.shelf.has(5, &text(&scene.identity, 9, 6, &[]));
    assert_eq!(scene.newer().await, Some(9));
    assert!(scene.shelf.asked().len() <= 6);
    assert_eq!((scene.point().await, scene.shelf.asked()), (9, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_points_fail_all_the_time_is_not_looked_for_all_the_time() {
    let scene = Scene::new();
    let config = DescriptorsConfig::default();
    let same = text(&scene.identity, 7, 5, &[]);
    (1..=6).for_each(|n| scene.shelf.has(n, &same));
    let mut asked = 0;
    for second in 0..240 {
        assert_eq!(scene.point().await, 7);
        if second > 0 {
            assert_eq!(scene.newer().await, None);
        }
        asked += scene.shelf.asked().len();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let most = 3 * usize::try_from(config.lookups).expect("few") * config.asked;
    assert!(asked <= most, "{asked} of {most}");
}

/// As when the relays where it is introduced fail one after another.
#[tokio::test(start_paused = true)]
async fn a_service_that_has_changed_its_points_often_is_looked_for_again_before_long() {
    let scene = Scene::new();
    let config = DescriptorsConfig::default();
    let change = |n: u8| {
        let text = text(&scene.identity, 10 + n, 5 + u64::from(n), &[]);
        (1..=6).for_each(|hsdir| scene.shelf.has(hsdir, &text));
    };
    change(0);
    assert_eq!(scene.point().await, 10);
    for n in 1..5 {
        change(n);
        assert_eq!(scene.newer().await, Some(10 + n));
    }
    change(5);
    assert_eq!(scene.newer().await, None, "too often");
    tokio::time::advance(config.within / config.lookups).await;
    assert_eq!(scene.newer().await, Some(15));
    change(6);
    assert_eq!(scene.newer().await, None, "too often");
}

#[tokio::test(start_paused = true)]
async fn a_descriptor_for_others_is_refused_by_the_first_hsdir_that_has_it_and_opened_with_the_key()
{
    let secret = ClientSecret::generate().expect("a key");
    let identity = ServiceIdentity::generate().expect("a key");
    for (keys, may) in [
        (ClientKeys::default(), false),
        (
            ClientKeys::from([(identity.address(), ClientSecret::generate().expect("a key"))]),
            false,
        ),
        (
            ClientKeys::from([(identity.address(), secret.clone())]),
            true,
        ),
    ] {
        let scene = Scene::with(identity.clone(), keys);
        let text = text(&identity, 9, 5, &[secret.public()]);
        (1..=6).for_each(|n| scene.shelf.has(n, &text));
        let found = scene.look().await;
        assert_eq!(scene.shelf.asked().len(), 1);
        match found {
            Ok(_) => assert!(may),
            Err(error) => {
                assert!(!may);
                assert_eq!(error.kind(), ErrorKind::Forbidden);
                assert!(error.to_string().contains("authorised"), "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_hsdir_that_refuses_to_answer_speaks_for_itself_alone() {
    for answers in 1..=6 {
        let scene = Scene::new();
        (1..=6).for_each(|n| scene.shelf.has(n, &text(&scene.identity, 9, 5, &[])));
        *scene.shelf.refusing.lock() = (1..=6).filter(|n| *n != answers).collect();
        assert_eq!(scene.point().await, 9);
    }
}

#[tokio::test(start_paused = true)]
async fn where_all_hsdirs_refuse_it_is_not_said_that_the_service_does() {
    let scene = Scene::new();
    *scene.shelf.refusing.lock() = (1..=6).collect();
    let error = scene.look().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(error.reason(), Some(Reason::Limit));
}

#[tokio::test(start_paused = true)]
async fn a_descriptor_is_used_until_its_period_is_over() {
    let scene = Scene::new();
    scene.shelf.has(1, &text(&scene.identity, 7, 5, &[]));
    assert_eq!(scene.point().await, 7);
    scene.shelf.asked();
    tokio::time::advance(Duration::from_secs(3500)).await;
    assert_eq!(scene.point().await, 7);
    assert!(scene.shelf.asked().is_empty());
    scene.shelf.has(1, &text(&scene.identity, 8, 6, &[]));
    tokio::time::advance(Duration::from_secs(200)).await;
    assert_eq!(scene.point().await, 8);
}

#[tokio::test(start_paused = true)]
async fn no_more_services_are_remembered_than_there_is_room_for() {
    let scene = Scene::new();
    let config = DescriptorsConfig {
        services: 3,
        ..DescriptorsConfig::default()
    };
    let directory = Arc::clone(&scene.shelf) as Arc<dyn ServiceDirectory>;
    let descriptors = Descriptors::new(directory, ClientKeys::default(), config);
    let token = Isolation::default();
    (1..=6).for_each(|n| scene.shelf.has(n, &text(&scene.identity, 9, 5, &[])));
    let found = scene.identity.address();
    assert!(descriptors.service(&found, &token).await.is_ok());
    for _ in 0..9 {
        let other = ServiceIdentity::generate().expect("a key").address();
        assert!(descriptors.service(&other, &token).await.is_err());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(descriptors.knows(&found), "others were not found");
    assert_eq!(format!("{descriptors:?}"), "Descriptors(3 services)");
}

fn token(n: u8) -> Isolation {
    Isolation::new(vec![n])
}

/// As a page does that names services without end, or one that names services of relays that never answer.
#[tokio::test(start_paused = true)]
async fn a_token_that_looks_for_services_without_end_keeps_no_other_waiting() {
    let scene = Scene::new();
    (1..=6).for_each(|n| scene.shelf.has(n, &text(&scene.identity, 9, 5, &[])));
    *scene.shelf.hangs.lock() = true;
    let _looking = scene.page(&token(1), 1000).await;
    assert_eq!(scene.shelf.asked().len(), 4, "half of all turns");
    *scene.shelf.hangs.lock() = false;
    let begun = Instant::now();
    assert_eq!(scene.point().await, 9);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_nobody_waits_for_any_more_is_not_looked_for_if_its_turn_has_not_come() {
    let scene = Scene::new();
    *scene.shelf.hangs.lock() = true;
    let looking = scene.page(&token(1), 100).await;
    assert_eq!(scene.shelf.asked().len(), 4);
    drop(looking);
    *scene.shelf.hangs.lock() = false;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(scene.shelf.asked().len(), 4 * 5, "those that were begun");
    let _looking = scene.page(&token(1), 1).await;
    assert_eq!(scene.shelf.asked().len(), 6, "its turns are free again");
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_to_look_for_services_than_there_is_room_for() {
    let scene = Scene::new();
    *scene.shelf.hangs.lock() = true;
    let mut looking = scene.page(&token(1), 1000).await;
    while let Some(ended) = looking.try_join_next() {
        let error = ended.expect("no panic").expect_err("too many");
        let reason = (error.kind(), error.reason());
        assert_eq!(reason, (ErrorKind::PathFailed, Some(Reason::Limit)));
    }
    assert_eq!(looking.len(), 4 + WAITING / 2);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_one_service_have_one_turn_together() {
    let scene = Scene::new();
    (1..=6).for_each(|n| scene.shelf.has(n, &text(&scene.identity, 9, 5, &[])));
    *scene.shelf.hangs.lock() = true;
    let address = scene.identity.address();
    let mut looking = JoinSet::new();
    for n in 0..20 {
        let descriptors = scene.descriptors.clone();
        looking.spawn(async move { descriptors.service(&address, &token(n % 2)).await });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(scene.shelf.asked().len(), 1);
    let _others = scene.page(&token(1), 3).await;
    assert_eq!(scene.shelf.asked().len(), 3, "as many turns as are left");
    *scene.shelf.hangs.lock() = false;
    while let Some(ended) = looking.join_next().await {
        assert_eq!(ended.expect("no panic").expect("found").points.len(), 1);
    }
}
