use proptest::{collection::vec, option, prelude::*};

use super::*;

/// A descriptor as a service writes it.
fn wrapper() -> String {
    let mut text = Wrapper::write_signed(180, &[1; 140], 7, &[2; 1000]);
    Wrapper::write_signature(&[3; 64], &mut text);
    text
}

fn read(text: &str) -> Option<Wrapper<'_>> {
    Wrapper::parse(text, DESCRIPTOR).ok()
}

fn point(byte: u8) -> IntroductionPoint {
    let mut link_specifiers = Vec::new();
    LinkSpecifier::write_all(&[LinkSpecifier::Ed25519([byte; 32])], &mut link_specifiers);
    IntroductionPoint {
        link_specifiers,
        onion_key: [byte; 32],
        auth_key: vec![byte; 140],
        enc_key: [byte.wrapping_add(1); 32],
        enc_key_cert: vec![byte; 140],
    }
}

fn second_layer(points: u8) -> SecondLayer {
    SecondLayer {
        create2_formats: vec![HandshakeType::NTOR],
        is_intro_auth_required: true,
        is_single_onion_service: true,
        congestion_control: Some(31),
        points: (0..points).map(point).collect(),
    }
}

fn first_layer() -> FirstLayer {
    let client = AuthClient {
        id: [1; 8],
        iv: [2; 16],
        cookie: [3; 16],
    };
    FirstLayer {
        ephemeral_key: [4; 32],
        clients: vec![client; 16],
        encrypted: vec![5; 300],
    }
}

/// The text without its lines that begin so.
fn without(text: &str, start: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(start)).collect()
}

/// The text with this item, object and all, twice.
fn twice(text: &str, keyword: &str) -> String {
    let at = text
        .find(&format!("{keyword} "))
        .or_else(|| text.find(&format!("{keyword}\n")));
    let (before, rest) = text.split_at(at.expect("there"));
    let mut object = false;
    let lines = rest
        .split_inclusive('\n')
        .enumerate()
        .take_while(|(at, line)| {
            let was = object;
            object = (object || line.starts_with("-----BEGIN")) && !line.starts_with("-----END");
            *at == 0 || was || object
        });
    let item: String = lines.map(|(_, line)| line).collect();
    [before, &item, rest].concat()
}

#[test]
fn a_wrapper_is_written_as_it_stands_in_the_specification() {
    let text = wrapper();
    let keywords: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase() && word.contains('-')))
        .collect();
    let expected = [
        "hs-descriptor",
        "descriptor-lifetime",
        "descriptor-signing-key-cert",
        "revision-counter",
    ];
    assert_eq!(keywords, expected);
    assert!(text.lines().all(|line| line.len() <= 100));
    let wrapper = read(&text).expect("reads");
    assert_eq!((wrapper.lifetime, wrapper.revision), (180, 7));
    assert_eq!(wrapper.certificate, [1; 140]);
    assert_eq!(wrapper.superencrypted, [2; 1000]);
    assert_eq!(wrapper.signature, [3; 64]);
    assert!(wrapper.signed.ends_with("-----END MESSAGE-----\n"));
}

#[test]
fn a_wrapper_that_lacks_something_or_has_it_twice_is_refused() {
    let text = wrapper();
    for keyword in [
        "hs-descriptor",
        "descriptor-lifetime",
        "descriptor-signing-key-cert",
        "revision-counter",
        "superencrypted",
        "signature",
    ] {
        assert!(read(&without(&text, keyword)).is_none(), "{keyword}");
        assert!(read(&twice(&text, keyword)).is_none(), "{keyword} twice");
    }
    for end in 0..text.len() {
        assert!(read(text.split_at(end).0).is_none(), "cut off at {end}");
    }
}

#[test]
fn values_out_of_their_bounds_are_refused() {
    let text = wrapper();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        text.replacen(from, to, 1)
    };
    for bad in [
        with("hs-descriptor 3", "hs-descriptor 4"),
        with("lifetime 180", "lifetime 29"),
        with("lifetime 180", "lifetime 721"),
        with("lifetime 180", "lifetime +80"),
        with("counter 7", "counter -7"),
        with("counter 7", "counter 18446744073709551616"),
        with("counter 7", "counter"),
        with("BEGIN MESSAGE", "BEGIN MESSAGES"),
        with("END MESSAGE", "END ED25519 CERT"),
        with("BEGIN ED25519 CERT", "BEGIN MESSAGE"),
        with("signature ", "signature A"),
        format!("{text}\n"),
        format!("{text}more\n"),
        format!("{text}-----BEGIN MESSAGE-----\nAAAA\n-----END MESSAGE-----\n"),
        format!("\u{1}{text}"),
    ] {
        assert!(read(&bad).is_none(), "{bad}");
    }
    let most = with("counter 7", "counter 18446744073709551615");
    assert_eq!(read(&most).expect("reads").revision, u64::MAX);
    // What nobody knows yet is signed like all else.
    let unknown = with("superencrypted", "news 1 2 3\nsuperencrypted");
    assert!(read(&unknown).expect("reads").signed.contains("news"));
}

#[test]
fn a_text_that_is_too_long_is_not_looked_at() {
    let text = wrapper();
    assert!(Wrapper::parse(&text, text.len()).is_ok());
    assert!(Wrapper::parse(&text, text.len() - 1).is_err());
}

#[test]
fn the_first_layer_is_read_with_its_padding_and_without_its_last_line_end() {
    let text = first_layer().write();
    assert!(text.ends_with("-----END MESSAGE-----"));
    for end in ["", "\n", "\0", "\n\0\0\0", "unknown\nlines 1\n\0"] {
        let separator = if end.starts_with('u') { "\n" } else { "" };
        let padded = format!("{text}{separator}{end}");
        assert_eq!(FirstLayer::parse(padded.as_bytes()), Ok(first_layer()));
    }
}

#[test]
fn a_first_layer_that_lacks_something_or_has_it_twice_is_refused() {
    let text = first_layer().write();
    for keyword in ["desc-auth-type", "desc-auth-ephemeral-key", "encrypted"] {
        for bad in [
            without(&text, keyword),
            twice(&(text.clone() + "\n"), keyword),
        ] {
            FirstLayer::parse(bad.as_bytes()).expect_err(keyword);
        }
    }
    for bad in [
        without(&text, "auth-client"),
        text.replacen("auth-type x25519", "auth-type another", 1),
        text.replacen("auth-client ", "auth-client A", 1),
        text.replacen("auth-client ", "auth-client AAAA ", 1),
        "\0".into(),
        String::new(),
    ] {
        FirstLayer::parse(bad.as_bytes()).expect_err("malformed");
    }
    FirstLayer::parse(b"\xff").expect_err("no text");
}

#[test]
fn the_second_layer_is_read_back_with_what_nobody_knows_in_it() {
    for points in [0, 1, 3, 20] {
        let layer = second_layer(points);
        assert_eq!(SecondLayer::parse(layer.write().as_bytes()), Ok(layer));
    }
    let layer = second_layer(2);
    let more = layer
        .write()
        .replace("create2-formats 2", "pow-params v1\ncreate2-formats 2")
        .replace(
            "onion-key ntor",
            "onion-key post-quantum AAAA BBBB\nonion-key ntor",
        )
        .replace("enc-key ntor", "legacy-key\nnews\nenc-key ntor")
        .replace("flow-control 1-2 31", "flow-control 1-3 31 more");
    assert_eq!(SecondLayer::parse(more.as_bytes()), Ok(layer));
}

#[test]
fn a_second_layer_whose_head_is_wrong_is_refused() {
    let text = second_layer(1).write();
    for bad in [
        without(&text, "create2-formats"),
        text.replacen("create2-formats 2", "create2-formats 3", 1),
        text.replacen("create2-formats 2", "create2-formats 2 x", 1),
        text.replacen("required ed25519", "required another", 1),
        text.replacen("1-2 31", "1-2", 1),
        text.replacen("1-2 31", "1-2 0", 1),
        text.replacen("1-2 31", "1-2 256", 1),
        twice(&text, "create2-formats"),
        twice(&text, "flow-control"),
        twice(&text, "single-onion-service"),
        twice(&text, "intro-auth-required"),
        String::new(),
    ] {
        SecondLayer::parse(bad.as_bytes()).expect_err("malformed");
    }
    let old = text.replacen("1-2 31", "1 31", 1);
    let old = SecondLayer::parse(old.as_bytes()).expect("reads");
    assert_eq!(old.congestion_control, None);
}

#[test]
fn more_introduction_points_than_there_may_be_are_refused() {
    let mut text = second_layer(20).write();
    assert!(SecondLayer::parse(text.as_bytes()).is_ok());
    text.push_str("introduction-point x\n");
    SecondLayer::parse(text.as_bytes()).expect_err("21");
    assert_eq!(
        second_layer(25)
            .write()
            .matches("introduction-point")
            .count(),
        20
    );
}

#[test]
fn an_introduction_point_that_is_not_whole_is_left_out_and_no_other() {
    let good = second_layer(2);
    let text = good.write();
    let at = text.rfind("introduction-point").expect("two");
    let (head, last) = text.split_at(at);
    let changed = |last: String| SecondLayer::parse(format!("{head}{last}").as_bytes());
    for keyword in ["onion-key", "auth-key", "enc-key"] {
        for odd in [without(last, keyword), twice(last, keyword)] {
            let layer = changed(odd).expect("reads");
            assert_eq!(layer.points, good.points[..1], "{keyword}");
        }
    }
    for (from, to) in [
        ("introduction-point ", "introduction-point A"),
        ("introduction-point ", "introduction-point AgUF "),
        ("ntor ", "ntor A"),
        ("ED25519 CERT", "CROSSCERT"),
    ] {
        let layer = changed(last.replace(from, to)).expect("reads");
        assert_eq!(layer.points, good.points[..1], "{to}");
    }
}

#[test]
fn debug_tells_nothing() {
    assert_eq!(format!("{:?}", first_layer()), "FirstLayer(hidden)");
    assert_eq!(format!("{:?}", second_layer(1)), "SecondLayer(hidden)");
    assert_eq!(
        format!("{:?}", read(&wrapper())),
        "Some(Wrapper<'_>(hidden))"
    );
}

proptest! {
    #[test]
    fn wrappers_are_read_back(lifetime in LIFETIMES, certificate: Vec<u8>, revision: u64, superencrypted: Vec<u8>, signature in vec(any::<u8>(), 64)) {
        let signature = signature.try_into().expect("64 bytes");
        let mut text = Wrapper::write_signed(lifetime, &certificate, revision, &superencrypted);
        let signed = text.clone();
        Wrapper::write_signature(&signature, &mut text);
        let read = Wrapper::parse(&text, DESCRIPTOR);
        prop_assert_eq!(read, Ok(Wrapper { lifetime, certificate, revision, superencrypted, signature, signed: &signed }));
    }

    #[test]
    fn layers_are_read_back(ephemeral_key: [u8; 32], clients in vec(any::<([u8; 8], [u8; 16], [u8; 16])>(), 1..20), encrypted: Vec<u8>, padding in 0..9_usize) {
        let clients = clients.into_iter().map(|(id, iv, cookie)| AuthClient { id, iv, cookie });
        let layer = FirstLayer { ephemeral_key, clients: clients.collect(), encrypted };
        let mut plaintext = layer.write().into_bytes();
        plaintext.resize(plaintext.len() + padding, 0);
        prop_assert_eq!(FirstLayer::parse(&plaintext), Ok(layer));
    }

    #[test]
    fn introduction_points_are_read_back(
        formats: Vec<u16>, is_intro_auth_required: bool, is_single_onion_service: bool, congestion_control in option::of(1..=255_u8),
        points in vec(any::<([u8; 32], [u8; 32], Vec<u8>, Vec<u8>)>(), 0..=20),
    ) {
        let points = points.into_iter().map(|(onion_key, enc_key, auth_key, enc_key_cert)| IntroductionPoint {
            link_specifiers: point(1).link_specifiers, onion_key, auth_key, enc_key, enc_key_cert,
        });
        let create2_formats = [2].into_iter().chain(formats).map(HandshakeType).collect();
        let layer = SecondLayer { create2_formats, is_intro_auth_required, is_single_onion_service, congestion_control, points: points.collect() };
        prop_assert_eq!(SecondLayer::parse(layer.write().as_bytes()), Ok(layer));
    }

    #[test]
    fn no_text_panics(text in "(hs-descriptor 3\n)?((signature|superencrypted|auth-client|create2-formats|introduction-point|enc-key)[ 2A]*\n?|-----(BEGIN|END) MESSAGE-----\n|.{0,9}\n){0,9}") {
        drop((Wrapper::parse(&text, DESCRIPTOR), FirstLayer::parse(text.as_bytes()), SecondLayer::parse(text.as_bytes())));
    }
}
