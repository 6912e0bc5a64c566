//! Proxy-QUIC-Forwarding: what is understood is understood again when it is written, and nothing is selected that was not offered.
#![no_main]

use hoplite_wire::forwarding::{Answer, Key, Offer, Transform};
use libfuzzer_sys::fuzz_target;

const BOTH: [Transform; 2] = [Transform::Scramble, Transform::Identity];

fuzz_target!(|value: &[u8]| {
    offer(value);
    for offered in [&BOTH[..1], &BOTH[1..], &BOTH] {
        answer(value, offered);
    }
});

fn bytes(key: Option<&Key>) -> Option<[u8; 32]> {
    key.map(|key| *key.reveal())
}

fn offer(value: &[u8]) {
    let Some(offer) = Offer::parse(value) else {
        return;
    };
    let again = Offer::parse(offer.write().as_bytes()).expect("we understand ourselves");
    assert_eq!(again.transforms, offer.transforms);
    if !offer.transforms.is_empty() {
        assert_eq!(bytes(again.key.as_ref()), bytes(offer.key.as_ref()));
    }
    if let Some(selected) = offer.select(&BOTH) {
        assert!(offer.transforms.contains(&selected));
        assert!(selected == Transform::Identity || offer.key.is_some());
    }
}

fn answer(value: &[u8], offered: &[Transform]) {
    let Ok(Answer {
        transform: Some((transform, key)),
    }) = Answer::parse(value, offered)
    else {
        return;
    };
    assert!(offered.contains(&transform));
    assert_eq!(key.is_some(), transform == Transform::Scramble);
    let written = Answer {
        transform: Some((transform, key.clone())),
    }
    .write();
    let again = Answer::parse(written.as_bytes(), offered).expect("we understand ourselves");
    let (_, again) = again.transform.expect("a transform");
    assert_eq!(bytes(again.as_ref()), bytes(key.as_ref()));
}
