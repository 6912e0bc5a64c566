//! A relay introduces clients to onion services and joins them, for whoever keeps to the protocol and for nobody else.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use hoplite_crypto::{SigningKey, onion::introduction};
use hoplite_onion::channel::Dialer;
use hoplite_wire::cell::{
    circuit::DestroyReason,
    onion_service::{Introduce, IntroduceStatus, IntroductionRate, Rendezvous1},
    relay::{RelayCommand, StreamId},
};

use crate::{
    raw::{Heard, Raw},
    support::{Kind, World, known},
};

const COOKIE: [u8; 20] = [5; 20];

/// Relays 1 and 3 lead to relay 2, where all meet.
struct Scene(World);

impl Scene {
    fn new() -> Self {
        Self(World::new(Duration::ZERO, Kind::default()))
    }

    /// A circuit of one hop to a relay, 0 to 2.
    async fn one_hop(&self, to: usize) -> Raw {
        let dialer = self.0.net.dialer(None);
        let first = &self.0.path[to];
        let channel = Dialer::channel(&*dialer, first).await.expect("a channel");
        Raw::new(&*channel, first, false).await
    }

    async fn circuit(&self, by: usize) -> Raw {
        let mut raw = self.one_hop(by).await;
        raw.extend(&self.0.path[1], false).await;
        raw
    }

    async fn client(&self) -> Raw {
        self.circuit(0).await
    }

    async fn service(&self) -> Raw {
        self.circuit(2).await
    }

    /// A client that waits at relay 2.
    async fn waiting(&self) -> Raw {
        let mut client = self.client().await;
        client
            .say(RelayCommand::ESTABLISH_RENDEZVOUS, 0, &COOKIE)
            .await;
        assert_eq!(
            said(client.hear().await),
            (RelayCommand::RENDEZVOUS_ESTABLISHED, vec![])
        );
        client
    }

    async fn joined(&self) -> [Raw; 2] {
        let (mut client, mut service) = (self.waiting().await, self.service().await);
        service
            .say(RelayCommand::RENDEZVOUS1, 0, &to_client())
            .await;
        assert_eq!(
            said(client.hear().await),
            (RelayCommand::RENDEZVOUS2, b"a handshake".to_vec())
        );
        [client, service]
    }

    /// A service that is introduced by relay 2.
    async fn introduced(&self, key: &SigningKey, rate: Option<IntroductionRate>) -> Raw {
        let mut service = self.service().await;
        let asked = introduction::establish(key, rate, &service.nonce);
        service.say(RelayCommand::ESTABLISH_INTRO, 0, &asked).await;
        assert_eq!(
            said(service.hear().await),
            (RelayCommand::INTRO_ESTABLISHED, vec![0])
        );
        service
    }

    async fn introduce(&self, key: &SigningKey) -> (IntroduceStatus, Raw) {
        let mut client = self.client().await;
        client
            .say(RelayCommand::INTRODUCE1, 0, &introduce(key))
            .await;
        let (command, data) = said(client.hear().await);
        assert_eq!(command, RelayCommand::INTRODUCE_ACK);
        (IntroduceStatus::parse(&data).expect("a status"), client)
    }
}

fn to_client() -> Vec<u8> {
    let mut out = Vec::new();
    Rendezvous1 {
        cookie: COOKIE,
        handshake: b"a handshake",
    }
    .write(&mut out);
    out
}

fn introduce(key: &SigningKey) -> Vec<u8> {
    let mut out = Vec::new();
    Introduce {
        auth_key: key.public(),
        encrypted: b"for the service",
    }
    .write(&mut out);
    out
}

/// What relay 2 says of the circuit.
fn said(heard: Heard) -> (RelayCommand, Vec<u8>) {
    let Heard::Message(1, command, StreamId::CIRCUIT, data, _) = heard else {
        panic!("{heard:?}");
    };
    (command, data)
}

/// Relay 2 has ended the circuit: the first hop says so.
async fn ends(raw: &mut Raw) {
    let heard = raw.hear().await;
    let Heard::Message(0, RelayCommand::TRUNCATED, ..) = heard else {
        panic!("{heard:?}");
    };
}

fn key() -> SigningKey {
    SigningKey::generate().expect("a key")
}

#[tokio::test]
async fn a_client_and_a_service_are_joined_and_hear_each_other() {
    let scene = Scene::new();
    let [mut client, mut service] = scene.joined().await;
    for text in ["one", "two", "three"] {
        client.say_beyond(text.as_bytes()).await;
        assert_eq!(service.hear_from_beyond().await, text.as_bytes());
        service.say_beyond(b"an answer").await;
        assert_eq!(client.hear_from_beyond().await, b"an answer");
    }
    assert_eq!(scene.0.relays[1].counters.joined.load(Relaxed), 1);
}

#[tokio::test]
async fn when_one_of_two_that_were_joined_ends_the_other_does() {
    for number in 0..2 {
        let scene = Scene::new();
        let mut both = Vec::from(scene.joined().await);
        both.remove(number)
            .circuit
            .sender
            .destroy(DestroyReason::NONE);
        ends(&mut both[0]).await;
    }
}

#[tokio::test]
async fn a_service_that_nobody_waits_for_is_closed() {
    let scene = Scene::new();
    let mut service = scene.service().await;
    service
        .say(RelayCommand::RENDEZVOUS1, 0, &to_client())
        .await;
    ends(&mut service).await;
    // Nor one that comes second.
    let _both = scene.joined().await;
    let mut service = scene.service().await;
    service
        .say(RelayCommand::RENDEZVOUS1, 0, &to_client())
        .await;
    ends(&mut service).await;
}

#[tokio::test]
async fn nobody_takes_a_clients_cookie_until_it_has_gone() {
    let scene = Scene::new();
    let first = scene.waiting().await;
    let mut second = scene.client().await;
    second
        .say(RelayCommand::ESTABLISH_RENDEZVOUS, 0, &COOKIE)
        .await;
    ends(&mut second).await;
    first.circuit.sender.destroy(DestroyReason::NONE);
    hoplite_testing::until(|| scene.0.relays[1].circuits() == 0).await;
    drop(scene.waiting().await);
}

#[tokio::test]
async fn a_service_hears_who_introduces_himself_and_the_client_that_it_did() {
    let scene = Scene::new();
    let key = key();
    let mut service = scene.introduced(&key, None).await;
    let (status, mut client) = scene.introduce(&key).await;
    assert_eq!(status, IntroduceStatus::SUCCESS);
    assert_eq!(
        said(service.hear().await),
        (RelayCommand::INTRODUCE2, introduce(&key))
    );
    // One circuit, one introduction.
    client
        .say(RelayCommand::INTRODUCE1, 0, &introduce(&key))
        .await;
    ends(&mut client).await;
    let (status, mut client) = scene.introduce(&self::key()).await;
    assert_eq!(status, IntroduceStatus::UNKNOWN);
    // Which may go on to another introduction point.
    let network = scene.0.network.clone();
    let other = scene.0.net.relay(9, &network, |_| ());
    client.extend(&known(&other, Kind::default()), false).await;
}

#[tokio::test]
async fn a_service_that_has_gone_is_unknown() {
    let scene = Scene::new();
    let key = key();
    let service = scene.introduced(&key, None).await;
    service.circuit.sender.destroy(DestroyReason::NONE);
    hoplite_testing::until(|| scene.0.relays[1].circuits() == 0).await;
    assert_eq!(scene.introduce(&key).await.0, IntroduceStatus::UNKNOWN);
}

#[tokio::test]
async fn a_service_is_introduced_over_its_last_circuit() {
    let scene = Scene::new();
    let key = key();
    let mut first = scene.introduced(&key, None).await;
    let mut second = scene.introduced(&key, None).await;
    ends(&mut first).await;
    assert_eq!(scene.introduce(&key).await.0, IntroduceStatus::SUCCESS);
    assert_eq!(said(second.hear().await).0, RelayCommand::INTRODUCE2);
}

#[tokio::test(start_paused = true)]
async fn a_service_hears_no_more_than_it_wants() {
    let scene = Scene::new();
    let key = key();
    let rate = IntroductionRate {
        per_second: 1,
        burst: 2,
    };
    let _service = scene.introduced(&key, Some(rate)).await;
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(scene.introduce(&key).await.0);
    }
    let (taken, refused) = (IntroduceStatus::SUCCESS, IntroduceStatus::CANT_RELAY);
    assert_eq!(heard, [taken, taken, refused, refused]);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(scene.introduce(&key).await.0, taken);
}

#[tokio::test]
async fn nobody_is_introduced_by_a_key_that_he_has_not_or_by_what_he_has_seen() {
    let scene = Scene::new();
    let key = key();
    let seen = {
        let service = scene.service().await;
        introduction::establish(&key, None, &service.nonce)
    };
    let mut changed = {
        let service = scene.service().await;
        introduction::establish(&key, None, &service.nonce)
    };
    changed[10] ^= 1;
    for data in [&seen[..], &changed, b"", &seen[..50]] {
        let mut service = scene.service().await;
        service.say(RelayCommand::ESTABLISH_INTRO, 0, data).await;
        ends(&mut service).await;
    }
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_circuit() {
    let scene = Scene::new();
    for (command, data) in [
        (RelayCommand::ESTABLISH_RENDEZVOUS, &COOKIE[..19]),
        (RelayCommand::RENDEZVOUS1, &COOKIE[..19]),
    ] {
        let mut raw = scene.client().await;
        raw.say(command, 0, data).await;
        let heard = raw.hear().await;
        assert!(
            matches!(heard, Heard::Message(0, RelayCommand::TRUNCATED, ..)),
            "{command:?}: {heard:?}"
        );
    }
    let mut waiting = scene.waiting().await;
    waiting
        .say(RelayCommand::ESTABLISH_RENDEZVOUS, 0, &[6; 20])
        .await;
    ends(&mut waiting).await;
    // A client that shows the introduction point its address.
    let key = key();
    let _service = scene.introduced(&key, None).await;
    let mut near = scene.one_hop(1).await;
    near.say(RelayCommand::INTRODUCE1, 0, &introduce(&key))
        .await;
    assert_eq!(near.hear().await, Heard::Destroyed(DestroyReason::PROTOCOL));
}

#[tokio::test]
async fn a_relay_that_is_not_to_serve_them_does_not() {
    let scene = Scene::new();
    let network = scene.0.network.clone();
    let closed = scene.0.net.relay(8, &network, |relay| {
        relay.config.onion_services.enabled = false;
    });
    let mut raw = scene.one_hop(0).await;
    raw.extend(&known(&closed, Kind::default()), false).await;
    raw.say(RelayCommand::ESTABLISH_RENDEZVOUS, 0, &COOKIE)
        .await;
    ends(&mut raw).await;
}
