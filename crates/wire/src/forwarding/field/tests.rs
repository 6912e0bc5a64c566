use Transform::{Identity, Scramble};
use proptest::prelude::*;

use super::*;

const KEY: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

fn key() -> Key {
    Key::new(Zeroizing::new(std::array::from_fn(|at| {
        u8::try_from(at).expect("small") + 1
    })))
}

fn offer(value: &str) -> Option<(Vec<Transform>, bool)> {
    let offer = Offer::parse(value.as_bytes())?;
    Some((offer.transforms, offer.key.is_some()))
}

/// The transform and whether there is a key; nothing offered is `Err`.
fn answer(value: &str, offered: &[Transform]) -> Result<Option<(Transform, bool)>, NotOffered> {
    let answer = Answer::parse(value.as_bytes(), offered)?;
    Ok(answer
        .transform
        .map(|(transform, key)| (transform, key.is_some())))
}

#[test]
fn offers_are_written_as_the_draft_writes_them() {
    let offer = Offer {
        transforms: vec![Scramble, Identity],
        key: Some(key()),
    };
    let wanted = format!("?1; accept-transform=\"scramble-dt,identity\"; scramble-key=:{KEY}:");
    assert_eq!(offer.write(), wanted);
    let read = Offer::parse(wanted.as_bytes()).expect("an offer");
    assert_eq!(read.transforms, [Scramble, Identity]);
    assert_eq!(read.key.expect("a key").reveal(), key().reveal());
    assert_eq!(Offer::default().write(), "?0");
}

#[test]
fn an_offer_without_transforms_is_as_if_it_were_not_there() {
    for value in [
        "?1",
        "?1; accept-transform=identity",
        "?1; accept-transform",
    ] {
        assert_eq!(offer(value), None, "{value}");
    }
    for value in ["", "1", "?1; accept-transform=\"identity\", ?1"] {
        assert_eq!(offer(value), None, "{value}");
    }
}

#[test]
fn what_a_relay_does_not_know_it_overlooks() {
    let value =
        "?1;x=3; accept-transform=\"chaff-9, identity ,scramble-dt,identity\";transform=\"y\"";
    assert_eq!(offer(value), Some((vec![Identity, Scramble], false)));
    let unknown = offer("?1; accept-transform=\"scramble,chaff-9\"");
    assert_eq!(
        unknown,
        Some((vec![], false)),
        "scramble is a later version"
    );
    assert_eq!(
        offer("?0; accept-transform=\"identity\""),
        Some((vec![], false))
    );
}

#[test]
fn a_key_that_is_not_32_bytes_is_none() {
    for text in [
        "",
        "AAAA",
        KEY.trim_start_matches("AQID"),
        &format!("AAAA{KEY}"),
        &format!("{KEY}{KEY}{KEY}"),
    ] {
        let value = format!("?1; accept-transform=\"scramble-dt\"; scramble-key=:{text}:");
        assert_eq!(offer(&value), Some((vec![Scramble], false)), "{text}");
    }
    let bare = KEY.trim_end_matches('=');
    let value = format!("?1; accept-transform=\"scramble-dt\"; scramble-key=:{bare}:");
    assert_eq!(offer(&value), Some((vec![Scramble], true)), "no padding");
    let twice = format!("?1; accept-transform=\"scramble-dt\"; scramble-key=:{KEY}:; scramble-key");
    assert_eq!(
        offer(&twice),
        Some((vec![Scramble], false)),
        "the last counts"
    );
}

#[test]
fn a_relay_selects_what_the_client_prefers_of_what_it_allows() {
    let both = Offer {
        transforms: vec![Scramble, Identity],
        key: Some(key()),
    };
    assert_eq!(both.select(&[Identity, Scramble]), Some(Scramble));
    assert_eq!(both.select(&[Identity]), Some(Identity));
    assert_eq!(both.select(&[]), None);
}

#[test]
fn scramble_without_a_key_disables_forwarding() {
    let keyless = Offer {
        transforms: vec![Scramble, Identity],
        key: None,
    };
    assert_eq!(keyless.select(&[Identity, Scramble]), None);
    let value = "?1; transform=\"scramble-dt\"";
    assert_eq!(answer(value, &[Scramble]), Ok(None));
}

#[test]
fn a_transform_that_was_not_offered_aborts_the_request() {
    let value = format!("?1; transform=\"scramble-dt\"; scramble-key=:{KEY}:");
    assert_eq!(answer(&value, &[Scramble]), Ok(Some((Scramble, true))));
    assert_eq!(answer(&value, &[Identity]), Err(NotOffered));
    let unknown = "?1; transform=\"chaff-9\"";
    assert_eq!(answer(unknown, &[Identity, Scramble]), Err(NotOffered));
}

#[test]
fn an_answer_that_cannot_be_read_is_no_forwarding() {
    for value in [
        "",
        "?0",
        "?1",
        "?1; transform=identity",
        "?0; transform=\"identity\"",
        "?1 x",
    ] {
        assert_eq!(answer(value, &[Identity]), Ok(None), "{value}");
    }
    let value = "?1; transform=\"identity\"; accept-transform=\"chaff-9\"";
    assert_eq!(answer(value, &[Identity]), Ok(Some((Identity, false))));
}

#[test]
fn heads_carry_the_fields_through_their_encoding() {
    let offer = Offer {
        transforms: vec![Scramble],
        key: Some(key()),
    };
    let head = RequestHead::connect_udp("relay", "/a/b/").with_offer(&offer);
    let head = RequestHead::decode(&head.encode(), 4096).expect("a request");
    assert_eq!(head.offer().expect("an offer").transforms, [Scramble]);
    assert_eq!(head.port_sharing(), None);

    let transform = Some((Scramble, Some(key())));
    let head = ResponseHead::new(200)
        .with_answer(&Answer { transform })
        .without_port_sharing();
    let head = ResponseHead::decode(&head.encode(), 4096).expect("a response");
    let answer = head.answer(&[Scramble]).expect("what was offered");
    let (transform, read) = answer.transform.expect("a transform");
    assert_eq!(transform, Scramble);
    assert_eq!(read.expect("a key").reveal(), key().reveal());
    assert_eq!(head.port_sharing(), Some(false));
}

#[test]
fn a_field_that_stands_there_twice_counts_for_nothing() {
    let head = RequestHead::connect_udp("relay", "/a/b/");
    let one = head.with(FORWARDING, "?1; accept-transform=\"identity\"");
    assert!(one.offer().is_some());
    let two = one.with(FORWARDING, "?1; accept-transform=\"identity\"");
    assert!(two.offer().is_none());
}

#[test]
fn debug_output_shows_no_key() {
    let offer = Offer {
        transforms: vec![Scramble],
        key: Some(key()),
    };
    assert!(!format!("{offer:?}").contains('1'));
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(bytes: [u8; 32], identity: bool) {
        let key = Key::new(Zeroizing::new(bytes));
        let transforms = if identity { vec![Scramble, Identity] } else { vec![Scramble] };
        let offer = Offer { transforms: transforms.clone(), key: Some(key.clone()) };
        let read = Offer::parse(offer.write().as_bytes()).expect("an offer");
        prop_assert_eq!(&read.transforms, &transforms);
        let read = read.key.expect("a key");
        prop_assert_eq!(read.reveal(), &bytes);
        let answer = Answer { transform: Some((Scramble, Some(key))) };
        let read = Answer::parse(answer.write().as_bytes(), &transforms).expect("offered");
        let (transform, key) = read.transform.expect("a transform");
        prop_assert_eq!(transform, Scramble);
        let key = key.expect("a key");
        prop_assert_eq!(key.reveal(), &bytes);
    }

    #[test]
    fn any_value_is_read_without_a_panic(value: Vec<u8>) {
        drop(Offer::parse(&value));
        drop(Answer::parse(&value, &[Scramble]));
    }
}

type Read<'a> = Option<(bool, Vec<(&'a [u8], Bare<'a>)>)>;

fn read(value: &[u8]) -> Read<'_> {
    let mut parameters = Vec::new();
    let item = boolean(value, |key, value| parameters.push((key, value)))?;
    Some((item, parameters))
}

#[test]
fn items_with_parameters_of_every_type_are_read() {
    let value = br#"  ?1; a="x\"y"; b=:AAA=: ;c;d=?0;*e=tok/en:x;f=-12.5;g=7  "#;
    assert_eq!(read(value), None, "a space stands in front of no semicolon");
    let value = br#"  ?1; a="x\"y"; b=:AAA=:;c;d=?0;*e=tok/en:x;f=-12.5;g=7  "#;
    let (item, parameters) = read(value).expect("an item");
    let wanted: [(&[u8], Bare<'_>); 7] = [
        (b"a", Bare::String(br#"x\"y"#)),
        (b"b", Bare::Binary(b"AAA=")),
        (b"c", Bare::Boolean(true)),
        (b"d", Bare::Boolean(false)),
        (b"*e", Bare::Other),
        (b"f", Bare::Other),
        (b"g", Bare::Integer(7)),
    ];
    assert!(item);
    assert_eq!(parameters, wanted);
}

#[test]
fn what_is_no_boolean_item_is_refused() {
    let cases: [&[u8]; 22] = [
        b"",
        b" ",
        b"1",
        b"?",
        b"?2",
        b"?10",
        b"?1,",
        b"?1, ?1",
        b"?1;",
        b"?1;A",
        b"?1;a=",
        b"?1;a=\"",
        b"?1;a=\"\\x\"",
        b"?1;a=\"\x7f\"",
        b"?1;a=:AA",
        b"?1;a=:-:",
        b"\t?1",
        b"?1;a=1.",
        b"?1;a=1.2345",
        b"?1;a=1234567890123456",
        b"?1;a=@",
        b"true",
    ];
    for value in cases {
        assert_eq!(read(value), None, "{}", value.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(value: Vec<u8>) {
        drop(read(&value));
    }
}
