use hoplite_wire::{cell::circuit::LinkSpecifier, tor::service_descriptor::DESCRIPTOR};
use proptest::prelude::*;

use super::{
    super::{
        service_keys::{OnionAddress, ServiceIdentity},
        time_period::{Schedule, TimePeriod},
    },
    *,
};

/// When C tor made its descriptors.
const NOW: u64 = 1_795_653_634;

/// A service in one time period.
struct Service {
    identity: ServiceIdentity,
    key: BlindedSecret,
    signing: SigningKey,
}

impl Service {
    fn new() -> Self {
        let identity = ServiceIdentity::generate().expect("a key");
        let key = identity.blinded(Schedule::default().period(NOW));
        let signing = SigningKey::generate().expect("a key");
        Self {
            identity,
            key,
            signing,
        }
    }

    fn subcredential(&self) -> [u8; 32] {
        self.identity.address().subcredential(&self.key.public())
    }

    fn publication<'a>(&'a self, authorised: &'a [ClientKey]) -> Publication<'a> {
        Publication {
            key: &self.key,
            subcredential: self.subcredential(),
            signing: &self.signing,
            revision: 7,
            lifetime: 180,
            authorised,
            now: NOW,
            most: DESCRIPTOR,
        }
    }

    fn publish(&self, authorised: &[ClientKey]) -> String {
        let text = descriptor(3).publish(&self.publication(authorised));
        text.expect("made")
    }

    /// What a client says to a text that it was given.
    fn read(
        &self,
        text: &str,
        client: Option<&ClientSecret>,
    ) -> Result<Descriptor, DescriptorError> {
        let signed = SignedDescriptor::parse(text, DESCRIPTOR, NOW)?;
        signed.open(&self.key.public(), &self.subcredential(), client, NOW)
    }
}

fn point(byte: u8) -> IntroductionPoint {
    let mut link_specifiers = Vec::new();
    let specifiers = [
        LinkSpecifier::Ipv4("192.0.2.1:9001".parse().expect("an address")),
        LinkSpecifier::Rsa([byte; 20]),
        LinkSpecifier::Ed25519([byte; 32]),
    ];
    LinkSpecifier::write_all(&specifiers, &mut link_specifiers);
    IntroductionPoint {
        link_specifiers,
        onion_key: [byte; 32],
        auth_key: [byte; 32],
        enc_key: *KeyPair::generate().expect("a key").public(),
    }
}

fn descriptor(points: u8) -> Descriptor {
    Descriptor {
        points: (1..=points).map(point).collect(),
        congestion_control: Some(31),
        ..Descriptor::default()
    }
}

fn clients<const N: usize>() -> [ClientSecret; N] {
    [(); N].map(|()| ClientSecret::generate().expect("a key"))
}

fn keys(clients: &[ClientSecret]) -> Vec<ClientKey> {
    clients.iter().map(ClientSecret::public).collect()
}

// What C tor made: see c_tor/README.md.

struct Made {
    text: &'static str,
    hostname: &'static str,
    secret: &'static [u8],
}

const OPEN: Made = Made {
    text: include_str!("c_tor/open.descriptor"),
    hostname: include_str!("c_tor/open.hostname"),
    secret: include_bytes!("c_tor/open.hs_ed25519_secret_key"),
};
const AUTHORISED: Made = Made {
    text: include_str!("c_tor/authorised.descriptor"),
    hostname: include_str!("c_tor/authorised.hostname"),
    secret: include_bytes!("c_tor/authorised.hs_ed25519_secret_key"),
};

impl Made {
    fn address(&self) -> OnionAddress {
        self.hostname.trim().parse().expect("an address")
    }

    /// As a client that knows the address.
    fn open(&self, client: Option<&ClientSecret>) -> Result<Descriptor, DescriptorError> {
        let signed = SignedDescriptor::parse(self.text, DESCRIPTOR, NOW)?;
        let key = self.address().blinded(Schedule::testing(20).period(NOW));
        let subcredential = self.address().subcredential(&key);
        signed.open(&key, &subcredential, client, NOW)
    }
}

fn alice() -> ClientSecret {
    let file = include_str!("c_tor/alice.auth_private");
    let (address, secret) = ClientSecret::from_file(file).expect("reads");
    assert_eq!(address, AUTHORISED.address());
    assert_eq!(*secret.file(&address), *file);
    let public = include_str!("c_tor/alice.auth");
    assert_eq!(secret.public().file(), public);
    assert_eq!(ClientKey::from_file(public), Ok(secret.public()));
    secret
}

/// Three relays of the private network, whole.
fn is_whole(descriptor: &Descriptor) {
    assert_eq!(descriptor.points.len(), 3);
    assert_eq!(descriptor.congestion_control, Some(31));
    assert!(!descriptor.is_single_onion_service && !descriptor.is_intro_auth_required);
    for point in &descriptor.points {
        let specifiers = LinkSpecifier::parse_all(&point.link_specifiers).expect("reads");
        let [
            LinkSpecifier::Ipv4(address),
            LinkSpecifier::Rsa(_),
            LinkSpecifier::Ed25519(_),
        ] = specifiers[..]
        else {
            unreachable!("a relay of the private network has these");
        };
        assert!(address.ip().is_loopback());
    }
}

#[test]
fn a_service_of_c_tor_is_the_same_here() {
    for made in [OPEN, AUTHORISED] {
        let identity = ServiceIdentity::from_file(made.secret).expect("reads");
        assert_eq!(identity.address(), made.address());
        assert_eq!(identity.file().as_slice(), made.secret);
        let signed = SignedDescriptor::parse(made.text, DESCRIPTOR, NOW).expect("signed");
        let period = Schedule::testing(20).period(NOW);
        assert_eq!(period.minutes, 8);
        assert_eq!(identity.blinded(period).public(), signed.key());
        assert_eq!(signed.lifetime(), 180);
        assert!(signed.expires() > NOW + 54 * HOUR);
        // C tor made it 8 seconds before, or up to 9.
        let [from, _] = Schedule::testing(20).counted_from(NOW);
        let revision = identity.blinded(period).revision(NOW - 8 - from);
        assert_eq!(revision, Ok(signed.revision()));
    }
}

#[test]
fn a_descriptor_of_c_tor_is_opened() {
    is_whole(&OPEN.open(None).expect("opens"));
    // A client's key does no harm where none is asked for.
    is_whole(&OPEN.open(Some(&alice())).expect("opens"));
}

#[test]
fn a_descriptor_of_c_tor_is_opened_by_the_client_that_it_is_for_and_by_no_other() {
    is_whole(&AUTHORISED.open(Some(&alice())).expect("opens"));
    assert_eq!(
        AUTHORISED.open(None),
        Err(DescriptorError::NeedsAuthorisation)
    );
    let [eve] = clients();
    assert_eq!(
        AUTHORISED.open(Some(&eve)),
        Err(DescriptorError::NotAuthorised)
    );
}

#[test]
fn what_a_service_publishes_is_what_its_clients_read() {
    let service = Service::new();
    for points in [0, 1, 3, 20] {
        let told = Descriptor {
            is_single_onion_service: points == 1,
            is_intro_auth_required: points == 3,
            ..descriptor(points)
        };
        let text = told.publish(&service.publication(&[])).expect("made");
        assert_eq!(service.read(&text, None), Ok(told));
    }
    let signed = SignedDescriptor::parse(&service.publish(&[]), DESCRIPTOR, NOW).expect("signed");
    assert_eq!((signed.revision(), signed.lifetime()), (7, 180));
    assert_eq!(signed.key(), service.key.public());
}

#[test]
fn authorised_clients_read_it_and_nobody_else() {
    let service = Service::new();
    let all = clients::<17>();
    let text = service.publish(&keys(&all));
    for client in &all {
        assert!(service.read(&text, Some(client)).is_ok());
    }
    let [eve] = clients();
    assert_eq!(
        service.read(&text, Some(&eve)),
        Err(DescriptorError::NotAuthorised)
    );
    assert_eq!(
        service.read(&text, None),
        Err(DescriptorError::NeedsAuthorisation)
    );
}

#[test]
fn who_knows_the_address_cannot_tell_how_many_clients_are_authorised() {
    let service = Service::new();
    let all = clients::<17>();
    let opened = |authorised: usize| {
        let text = service.publish(&keys(&all[..authorised]));
        let signed = SignedDescriptor::parse(&text, DESCRIPTOR, NOW).expect("signed");
        let publication = service.publication(&[]);
        let first = publication.layer(None).open(&signed.superencrypted);
        let first = first.expect("a cipher").expect("authentic");
        let layer = text::FirstLayer::parse(&first).expect("reads");
        (
            text.len(),
            first.len(),
            layer.clients.len(),
            layer.encrypted.len(),
        )
    };
    let nobody = opened(0);
    assert_eq!(nobody.2, 16);
    assert_eq!(nobody.1 % PADDING, 0);
    assert_eq!([1, 15, 16].map(opened), [nobody; 3]);
    assert_eq!(opened(17).2, 32);
}

#[test]
fn where_an_authorised_clients_line_stands_says_nothing() {
    let lines = || (0..16_u8).collect::<Vec<_>>();
    let moved = (0..9).filter(|_| shuffled(lines()).expect("random") != lines());
    assert!(moved.count() > 0);
    let mut again = shuffled(lines()).expect("random");
    again.sort_unstable();
    assert_eq!(again, lines());
}

#[test]
fn a_directory_cannot_tell_what_has_changed_nor_how_much() {
    let service = Service::new();
    let text = |points| {
        descriptor(points)
            .publish(&service.publication(&[]))
            .expect("made")
    };
    let texts = [text(0), text(3), text(3)];
    assert!(texts.iter().all(|text| text.len() == texts[0].len()));
    let body = |text: &str| {
        let signed = SignedDescriptor::parse(text, DESCRIPTOR, NOW).expect("signed");
        signed.superencrypted
    };
    let [_, a, b] = texts.map(|text| body(&text));
    let same = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    assert!(same < a.len() / 100, "{same}");
}

#[test]
fn a_descriptor_of_another_service_or_period_is_not_opened() {
    let service = Service::new();
    let text = service.publish(&[]);
    let signed = SignedDescriptor::parse(&text, DESCRIPTOR, NOW).expect("signed");
    let address = service.identity.address();
    let later = TimePeriod {
        number: Schedule::default().period(NOW).number + 1,
        ..Schedule::default().period(NOW)
    };
    let other = Service::new();
    for (key, subcredential) in [
        (other.key.public(), other.subcredential()),
        (address.blinded(later), service.subcredential()),
    ] {
        let opened = signed.open(&key, &subcredential, None, NOW);
        assert_eq!(opened, Err(DescriptorError::OtherKey));
    }
    // Who has only the blinded key, as a directory has.
    let opened = signed.open(&service.key.public(), &[0; 32], None, NOW);
    assert_eq!(opened, Err(DescriptorError::Unauthentic));
}

#[test]
fn any_byte_that_changed_is_noticed() {
    let service = Service::new();
    let text = service.publish(&[]);
    let good = service.read(&text, None).expect("opens");
    for at in (0..text.len()).step_by(7) {
        let mut changed = text.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("a text");
        assert_ne!(
            service.read(&changed, None).ok(),
            Some(good.clone()),
            "{at}"
        );
        assert!(service.read(&changed, None).is_err(), "{at}");
    }
    for end in (0..text.len()).step_by(91) {
        assert!(
            service.read(text.split_at(end).0, None).is_err(),
            "cut off at {end}"
        );
    }
}

#[test]
fn a_revision_is_signed_and_is_what_a_layer_is_encrypted_for() {
    let service = Service::new();
    let text = service.publish(&[]);
    let newer = text.replace("revision-counter 7", "revision-counter 8");
    assert_eq!(service.read(&newer, None), Err(DescriptorError::Forged));
    // Signed again by whoever stole the signing key: still not what was encrypted.
    let signed = newer.split("signature ").next().expect("signed").to_owned();
    let mut forged = signed.clone();
    let signature = service
        .signing
        .sign(&[SIGNATURE, signed.as_bytes()].concat());
    text::Wrapper::write_signature(&signature, &mut forged);
    assert_eq!(
        service.read(&forged, None),
        Err(DescriptorError::Unauthentic)
    );
}

#[test]
fn a_descriptor_expires_with_its_certificate() {
    let service = Service::new();
    let text = service.publish(&[]);
    let read = |now| SignedDescriptor::parse(&text, DESCRIPTOR, now).map(|signed| signed.expires());
    let expires = read(NOW).expect("signed");
    assert!((54 * HOUR..55 * HOUR).contains(&(expires - NOW)));
    assert_eq!(read(expires), Ok(expires));
    assert_eq!(read(expires + 1), Err(DescriptorError::Expired));
}

#[test]
fn a_signing_key_that_no_blinded_key_has_certified_is_not_believed() {
    let service = Service::new();
    let (eve, key) = (SigningKey::generate().expect("a key"), service.key.public());
    let until = NOW / HOUR + 9;
    let by_eve = |signed: &[u8]| eve.sign(signed);
    let by_key = |signed: &[u8]| service.key.sign(signed);
    let made = |certificate: Vec<u8>| {
        let text = service.publish(&[]);
        let wrapper = text::Wrapper::parse(&text, DESCRIPTOR).expect("reads");
        let mut text = text::Wrapper::write_signed(180, &certificate, 7, &wrapper.superencrypted);
        let signature = eve.sign(&[SIGNATURE, text.as_bytes()].concat());
        text::Wrapper::write_signature(&signature, &mut text);
        service.read(&text, None).err()
    };
    let certify = |kind, sign: &dyn Fn(&[u8]) -> [u8; 64]| {
        certificate(kind, eve.public(), *key.as_bytes(), until, sign)
    };
    let signing = CertKind::HS_DESCRIPTOR_SIGNING;
    assert_eq!(made(certify(signing, &by_key)), None);
    let refused = Some(DescriptorError::Uncertified);
    assert_eq!(made(certify(signing, &by_eve)), refused);
    assert_eq!(
        made(certify(CertKind::HS_INTRO_AUTHENTICATE, &by_key)),
        refused
    );
    assert_eq!(made(vec![1; 140]), refused);
    // Eve's own, as if she were the service.
    let own = certificate(signing, eve.public(), eve.public(), until, by_eve);
    assert_eq!(made(own), Some(DescriptorError::OtherKey));
    // One that does not say who has signed it.
    let mut unnamed = Vec::new();
    let cert = Ed25519Cert {
        kind: signing,
        expires_hours: u32::MAX,
        key_kind: KeyKind::ED25519,
        key: eve.public(),
        signed_with: None,
    };
    cert.write(&mut unnamed);
    let signature = service.key.sign(&unnamed);
    assert_eq!(made([&unnamed[..], &signature].concat()), refused);
}

#[test]
fn introduction_points_that_the_service_has_not_certified_are_left_out() {
    let service = Service::new();
    let other = Service::new();
    let signed = SignedDescriptor::parse(&service.publish(&[]), DESCRIPTOR, NOW).expect("signed");
    let made = |service: &Service, now| {
        let publication = Publication {
            now,
            ..service.publication(&[])
        };
        publication.point(&point(1)).expect("certified")
    };
    let good = made(&service, NOW);
    assert!(signed.point(good.clone(), NOW).is_some());
    let exchanged = text::IntroductionPoint {
        enc_key: point(1).enc_key,
        ..good.clone()
    };
    let crossed = text::IntroductionPoint {
        auth_key: good.enc_key_cert.clone(),
        enc_key_cert: good.auth_key.clone(),
        ..good
    };
    for bad in [
        exchanged,
        crossed,
        made(&other, NOW),
        made(&service, NOW - 55 * HOUR),
    ] {
        assert_eq!(signed.point(bad, NOW), None);
    }
}

#[test]
fn what_directories_would_not_take_is_not_made() {
    let service = Service::new();
    let publish = |descriptor: &Descriptor, change: fn(&mut Publication<'_>)| {
        let mut publication = service.publication(&[]);
        change(&mut publication);
        descriptor.publish(&publication).map(|text| text.len())
    };
    let too_long = Err(DescriptorError::TooLong);
    let length = publish(&descriptor(3), |_| {}).expect("made");
    assert!(length < 15_000, "as long as C tor's: {length}");
    assert_eq!(publish(&descriptor(21), |_| {}), too_long);
    assert_eq!(publish(&descriptor(1), |it| it.lifetime = 29), too_long);
    assert_eq!(publish(&descriptor(1), |it| it.lifetime = 721), too_long);
    assert_eq!(publish(&descriptor(1), |it| it.most = 14_000), too_long);
    let mut twist = descriptor(1);
    twist.points[0].enc_key = [2; 32];
    assert_eq!(publish(&twist, |_| {}), Err(DescriptorError::BadKey));
    let many = keys(&clients::<10>()).repeat(100);
    let text = descriptor(1).publish(&service.publication(&many));
    assert_eq!(text, Err(DescriptorError::TooLong));
}

#[test]
fn debug_tells_nothing() {
    let service = Service::new();
    let signed = SignedDescriptor::parse(&service.publish(&[]), DESCRIPTOR, NOW).expect("signed");
    let publication = service.publication(&[]);
    let all = format!(
        "{:?} {:?} {publication:?} {signed:?}",
        descriptor(1),
        point(1)
    );
    assert_eq!(
        all,
        "Descriptor(hidden) IntroductionPoint(hidden) Publication(hidden) SignedDescriptor(hidden)"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_layer_is_opened_as_it_was_sealed(plaintext: Vec<u8>, subcredential: [u8; 32], revision: u64, cookie: Option<[u8; 16]>, at: prop::sample::Index) {
        let cookie = cookie.map(Zeroizing::new);
        let key = BlindedKey::from_bytes([1; 32]);
        let layer = Layer { key, cookie: cookie.as_ref(), subcredential: &subcredential, revision, constant: SECOND };
        let mut sealed = layer.seal(plaintext.clone()).expect("sealed");
        prop_assert_eq!(layer.open(&sealed), Ok(Some(plaintext)));
        let other = Layer { constant: FIRST, ..layer };
        prop_assert_eq!(other.open(&sealed), Ok(None));
        let layer = Layer { constant: SECOND, ..other };
        let at = at.index(sealed.len());
        prop_assert_eq!(layer.open(&sealed[..at]), Ok(None));
        sealed[at] ^= 1;
        prop_assert_eq!(layer.open(&sealed), Ok(None));
    }
}
