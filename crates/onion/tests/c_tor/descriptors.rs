//! Descriptors of ours, brought to C tor's directories and opened by its client, which says through its SOCKS port (proposal 304) what it thinks of them.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hoplite_crypto::{
    SigningKey,
    onion::{
        OnionKey,
        client_authorisation::{ClientKey, ClientSecret},
        descriptor::{Descriptor, IntroductionPoint, Publication},
        service_keys::ServiceIdentity,
        time_period::TimePeriod,
    },
};
use hoplite_onion::path::Relay;
use hoplite_wire::{cell::circuit::LinkSpecifier, tor::service_descriptor};

use crate::{
    limit,
    network::{Network, schedule},
};

/// "Onion Service Introduction Failed": the descriptor was opened, and the relays named there do not know the service.
const INTRODUCTION_FAILED: u8 = 0xf2;
const DESCRIPTOR_NOT_FOUND: u8 = 0xf0;
const NEEDS_AUTHORISATION: u8 = 0xf4;
const NOT_AUTHORISED: u8 = 0xf5;

/// A service of ours that tells of itself, and is nowhere.
struct Service {
    identity: ServiceIdentity,
    descriptor: Descriptor,
    authorised: Vec<ClientKey>,
}

impl Service {
    fn new(relays: &[Relay], authorised: &[ClientKey]) -> Self {
        Self {
            identity: ServiceIdentity::generate().unwrap(),
            descriptor: Descriptor {
                congestion_control: Some(31),
                points: relays.iter().map(point).collect(),
                ..Descriptor::default()
            },
            authorised: authorised.to_vec(),
        }
    }

    fn name(&self) -> String {
        self.identity.address().to_string()
    }

    fn text(&self, period: TimePeriod) -> String {
        let key = self.identity.blinded(period);
        let now = SystemTime::now();
        let now = now.duration_since(UNIX_EPOCH).unwrap();
        let [counted_from, _] = schedule().counted_from(now.as_secs());
        let publication = Publication {
            subcredential: self.identity.address().subcredential(&key.public()),
            key: &key,
            signing: &SigningKey::generate().unwrap(),
            revision: key.revision(now.as_secs() - counted_from).unwrap(),
            lifetime: service_descriptor::LIFETIME,
            authorised: &self.authorised,
            now: now.as_secs(),
            most: service_descriptor::DESCRIPTOR,
        };
        self.descriptor.publish(&publication).unwrap()
    }
}

fn point(relay: &Relay) -> IntroductionPoint {
    let [SocketAddr::V4(address)] = relay.addresses[..] else {
        unreachable!("relays of the network have one address");
    };
    let mut link_specifiers = Vec::new();
    let specifiers = [
        LinkSpecifier::Ipv4(address),
        LinkSpecifier::Rsa(relay.keys.rsa_id),
        LinkSpecifier::Ed25519(relay.keys.ed25519),
    ];
    LinkSpecifier::write_all(&specifiers, &mut link_specifiers);
    let secret = OnionKey::fresh_secret().unwrap();
    IntroductionPoint {
        link_specifiers,
        onion_key: relay.keys.onion,
        auth_key: SigningKey::generate().unwrap().public(),
        enc_key: *OnionKey::from_secret(&secret).unwrap().public(),
    }
}

/// What the client says of the service, once its descriptor is there: it is told again and again, as services do, since a directory may not have been
/// reached. A period may end meanwhile: then all begins again.
async fn told(network: &mut Network, service: &Service) -> u8 {
    let label = service.identity.address().label();
    loop {
        let period = network.period().await;
        let mut said = DESCRIPTOR_NOT_FOUND;
        for attempt in 0..60 {
            if attempt % 6 == 0 {
                let posted = network.post(&label, &service.text(period)).await;
                assert_eq!(posted, "250 OK");
            } else {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert_eq!(network.ask("SIGNAL NEWNYM").await, "250 OK");
            }
            said = limit(network.open(&service.name())).await;
            if said != DESCRIPTOR_NOT_FOUND || network.period().await != period {
                break;
            }
        }
        if network.period().await == period {
            return said;
        }
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_client_of_c_tor_opens_our_descriptors() {
    let mut network = Network::start().await;
    let open = Service::new(&network.relays()[..2], &[]);
    assert_eq!(told(&mut network, &open).await, INTRODUCTION_FAILED);

    let alice = ClientSecret::generate().unwrap();
    let closed = Service::new(&network.relays()[..2], &[alice.public()]);
    assert_eq!(told(&mut network, &closed).await, NEEDS_AUTHORISATION);
    for (client, expected) in [
        (ClientSecret::generate().unwrap(), NOT_AUTHORISED),
        (alice, INTRODUCTION_FAILED),
    ] {
        network.authorise(&closed.identity.address(), &client).await;
        let mut said = limit(network.open(&closed.name())).await;
        // It forgets no more often than each 10 seconds.
        for _ in 0..20 {
            if said == expected {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            said = limit(network.open(&closed.name())).await;
        }
        assert_eq!(said, expected);
    }

    // One that was changed on the way is not taken at all.
    let period = network.period().await;
    let forged = open.text(period).replace("lifetime 180", "lifetime 181");
    let posted = network
        .post(&open.identity.address().label(), &forged)
        .await;
    assert!(posted.starts_with("554 "), "{posted}");
}
