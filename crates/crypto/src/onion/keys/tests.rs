//! Which onion keys are accepted before, during and after a rotation.

use super::*;
use crate::onion::ntor;

fn key() -> OnionKey {
    OnionKey::from_secret(&OnionKey::fresh_secret().expect("random")).expect("a key")
}

#[test]
fn the_last_key_is_accepted_until_it_is_retired() {
    let first = OnionKeys::new([1; 20], [2; 32], key(), None);
    let (_, old) = ntor::client(&first.published()).expect("begun");
    let second = first.rotated(key());
    let (_, new) = ntor::client(&second.published()).expect("begun");
    assert_eq!(ntor::server(&first, &new).err(), Some(Refused::UnknownKey));
    ntor::server(&second, &old).expect("the last is accepted");
    ntor::server(&second, &new).expect("the current is accepted");

    let third = second.rotated(key());
    assert_eq!(ntor::server(&third, &old).err(), Some(Refused::UnknownKey));
    ntor::server(&third, &new).expect("the last is accepted");

    let retired = third.retired();
    assert_eq!(
        ntor::server(&retired, &new).err(),
        Some(Refused::UnknownKey)
    );
    assert_eq!(retired.published().onion, third.published().onion);
}

#[test]
fn a_stored_secret_gives_the_same_key_again() {
    let secret = OnionKey::fresh_secret().expect("random");
    let [one, two] = [(); 2].map(|()| OnionKey::from_secret(&secret).expect("a key"));
    assert_eq!(one.public(), two.public());
    assert_ne!(one.public(), key().public());
}
