use proptest::prelude::*;

use super::*;

const CONSENSUS: &str = include_str!("tests/consensus-microdesc");

const CERTIFICATES: &str = include_str!("tests/certificates");

const MICRODESCRIPTORS: &str = include_str!("tests/microdescriptors");

fn refused(text: &str) -> &'static str {
    let refused = Consensus::parse(text).expect_err("refused");
    refused.what
}

#[test]
fn what_c_tor_wrote_is_read() {
    let consensus = Consensus::parse(CONSENSUS).expect("read");
    assert_eq!(consensus.routers.len(), 6);
    assert_eq!(consensus.signatures.len(), 3);
    assert_eq!(consensus.fresh_until - consensus.valid_after, 20);
    assert!(consensus.signed.ends_with("\ndirectory-signature "));
    assert_eq!(consensus.weights.get("Wbm"), Some(&10_000));
    let router = consensus.routers.first().expect("one");
    let flags = [Flags::RUNNING, Flags::VALID, Flags::GUARD, Flags::EXIT];
    assert!(flags.iter().all(|flag| router.flags.has(*flag)));
    assert!(!router.flags.has(Flags::BAD_EXIT));
    assert!(router.ntor3 && router.congestion_control);
    assert_eq!(router.protocols, Protocols::CGO | Protocols::CONFLUX);
}

#[test]
fn a_relay_of_c_tor_has_no_channels_over_quic_and_one_that_says_so_has() {
    let quic = |text: &str| {
        let consensus = Consensus::parse(text).expect("read");
        let routers = consensus.routers.iter();
        routers.map(|router| router.quic).collect::<Vec<_>>()
    };
    assert!(quic(CONSENSUS).iter().all(|quic| !quic));
    let says = |word: &str| CONSENSUS.replacen("\npr ", &format!("\npr {word} "), 1);
    let one = quic(&says("X-HopliteQuic=1"));
    assert_eq!(one.iter().filter(|quic| **quic).count(), 1);
    assert!(one[0]);
    for other in ["X-HopliteQuic=2", "X-HopliteQuic=", "X-HopliteQuics=1"] {
        assert!(quic(&says(other)).iter().all(|quic| !quic), "{other}");
    }
}

#[test]
fn a_consensus_says_where_descriptors_of_onion_services_are() {
    let consensus = Consensus::parse(CONSENSUS).expect("read");
    let current = "zxJao+gBmFMSezvz/VXkEWEQJD5b/z+7AXNCGoLFVW0=";
    let current = base64::<32>(current).expect("32 bytes");
    assert_eq!(consensus.shared_random_current, Some(current));
    assert_eq!(consensus.shared_random_previous, None);
    for router in &consensus.routers {
        assert!(router.flags.has(Flags::HS_DIR));
        assert!(router.introduces && router.joins && router.keeps_descriptors);
    }
    let line = "shared-rand-current-value 0 ";
    let both = CONSENSUS.replace(
        line,
        &format!("shared-rand-previous-value 3 {}=\n{line}", "A".repeat(43)),
    );
    let both = Consensus::parse(&both).expect("read");
    assert_eq!(both.shared_random_previous, Some([0; 32]));
    assert_eq!(both.shared_random_current, Some(current));
    for wrong in ["", "0", "many zxJao", "0 AAAA"] {
        let text = CONSENSUS.replace(line, &format!("shared-rand-previous-value {wrong}\n{line}"));
        assert_eq!(refused(&text), "consensus", "{wrong}");
    }
    let old = CONSENSUS.replace(
        "HSDir=2 HSIntro=4-5 HSRend=1-2",
        "HSDir=1 HSIntro=3 HSRend=1",
    );
    let old = old.replace("Guard HSDir", "Guard");
    for router in Consensus::parse(&old).expect("read").routers {
        assert!(!router.flags.has(Flags::HS_DIR));
        assert!(!router.introduces && !router.joins && !router.keeps_descriptors);
    }
}

#[test]
fn every_relay_has_its_microdescriptor() {
    let consensus = Consensus::parse(CONSENSUS).expect("read");
    let found = Microdescriptor::parse_all(MICRODESCRIPTORS).expect("read");
    assert_eq!(found.len(), consensus.routers.len());
    for descriptor in found {
        assert!(descriptor.text.starts_with("onion-key\n"));
        assert!(!descriptor.text.contains('@'), "notes are not hashed");
        assert!(descriptor.ed25519.is_some());
        let exit = descriptor.exit.expect("an exit");
        assert!(exit.contains(80) && !exit.contains(0));
    }
}

#[test]
fn certificates_stand_one_behind_the_other() {
    let found = KeyCertificate::parse_all(CERTIFICATES).expect("read");
    assert_eq!(found.len(), 3);
    for certificate in found {
        assert!(certificate.signed.ends_with("\ndir-key-certification\n"));
        assert!(certificate.published < certificate.expires);
    }
}

#[test]
fn what_stands_behind_a_signature_is_not_believed() {
    let router = "r evil AAAAAAAAAAAAAAAAAAAAAAAAAAA 2038-01-01 00:00:00 192.0.2.1 9 0\n";
    let text = format!("{CONSENSUS}{router}");
    assert_eq!(refused(&text), "what nobody has signed");
    let text = format!("{CONSENSUS}params cc_alg=0\n");
    assert_eq!(refused(&text), "what nobody has signed");
}

#[test]
fn what_is_written_again_is_what_the_authorities_wrote_and_nothing_that_stood_beside_it() {
    let text = |consensus: &str| Consensus::parse(consensus).map(|it| it.to_text());
    assert_eq!(text(CONSENSUS).as_deref(), Ok(CONSENSUS));
    let signature = "\n-----BEGIN MESSAGE-----\nAAAA\n-----END MESSAGE-----\n";
    for more in [
        "\n",
        "@note\n",
        &format!("directory-signature A B{signature}"),
    ] {
        let more = format!("{CONSENSUS}{more}");
        assert_eq!(text(&more).as_deref(), Ok(CONSENSUS));
    }
    let called = |text: &str| {
        let text = text.replace("BEGIN SIGNATURE", "BEGIN SIGN");
        text.replace("END SIGNATURE", "END SIGN")
    };
    assert_eq!(text(&called(CONSENSUS)).as_deref(), Ok(CONSENSUS));
    let keys = KeyCertificate::parse_all(CERTIFICATES).expect("read");
    let others = called(CERTIFICATES);
    let others = KeyCertificate::parse_all(&others).expect("read");
    for (key, other) in keys.iter().zip(&others) {
        assert_ne!(other.text, key.text);
        assert_eq!([key.to_text(), other.to_text()], [key.text, key.text]);
    }
}

/// Of hashes that nobody knows, as many as one likes.
#[test]
fn no_more_stands_behind_what_is_signed_than_signatures_take() {
    let unknown = "directory-signature sha3-512 A B\n";
    let some = format!("{CONSENSUS}{}", unknown.repeat(100));
    assert!(Consensus::parse(&some).is_ok());
    for more in [unknown.repeat(2_000), "\n".repeat(SIGNATURES)] {
        let text = format!("{CONSENSUS}{more}");
        assert_eq!(refused(&text), "too much behind what is signed");
    }
}

#[test]
fn a_vote_and_another_flavour_are_no_consensus() {
    let vote = CONSENSUS.replace("vote-status consensus", "vote-status vote");
    assert_eq!(refused(&vote), "the consensus lacks something");
    let flavour = CONSENSUS.replace("version 3 microdesc", "version 3");
    assert!(refused(&flavour).starts_with("no consensus"));
    let late = format!("hello\n{CONSENSUS}");
    assert!(refused(&late).starts_with("no consensus"));
}

#[test]
fn a_relay_without_its_microdescriptors_hash_is_not_read() {
    let (mut seen, mut text) = (0, String::new());
    for line in CONSENSUS.lines() {
        seen += usize::from(line.starts_with("m "));
        if !(line.starts_with("m ") && seen == 2) {
            text.push_str(line);
            text.push('\n');
        }
    }
    assert_eq!(refused(&text), "consensus");
}

#[test]
fn what_is_not_known_is_skipped() {
    let new = CONSENSUS.replace("voting-delay", "tomorrow 1 2 3\nvoting-delay");
    assert!(Consensus::parse(&new).is_ok());
}

#[test]
fn a_policy_by_what_it_rejects_is_turned_round() {
    let text = MICRODESCRIPTORS.replace("p accept 1-65535", "p reject 1-24,26-79,81-65535");
    let found = Microdescriptor::parse_all(&text).expect("read");
    let exit = found.first().and_then(|one| one.exit.clone());
    assert_eq!(exit.map(|ports| ports.to_string()), Some("25,80".into()));
}

/// Between the lines of its last signature.
#[test]
fn nobody_makes_a_certificate_longer_than_it_is() {
    let end = "-----END SIGNATURE-----";
    let place = CERTIFICATES.find("dir-key-certification").expect("one");
    let (before, behind) = CERTIFICATES.split_at(place);
    let longer = behind.replacen(end, &format!("{}{end}", "\n".repeat(CERTIFICATE)), 1);
    let text = format!("{before}{longer}");
    let refused = KeyCertificate::parse_all(&text).expect_err("refused");
    assert_eq!(refused.what, "a key certificate is too long");
}

#[test]
fn a_certificate_that_lacks_something_is_refused() {
    for keyword in ["fingerprint ", "dir-key-expires ", "dir-key-published "] {
        let text = CERTIFICATES.replacen(keyword, "other ", 1);
        assert!(KeyCertificate::parse_all(&text).is_err(), "{keyword}");
    }
    let cut = CERTIFICATES.get(..CERTIFICATES.len() - 30).expect("ASCII");
    assert!(KeyCertificate::parse_all(cut).is_err());
}

#[test]
fn a_directory_is_asked_by_hashes() {
    let asked = Consensus::request(&[[0; 32], [255; 32]]);
    let (a, b) = ("A".repeat(43), "/".repeat(42) + "8");
    assert_eq!(asked, format!("/tor/micro/d/{a}-{b}"));
}

/// Documents with something changed.
fn changed() -> impl Strategy<Value = String> {
    let documents = prop::sample::select(vec![CONSENSUS, CERTIFICATES, MICRODESCRIPTORS]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,20}"), 1..6);
    (documents, changes).prop_map(|(document, changes)| {
        changes.iter().fold(document.to_owned(), |text, (at, new)| {
            let at = at.index(text.len());
            let until = text.len().min(at + 9);
            let mut bytes = text.into_bytes();
            bytes.splice(at..until, new.bytes());
            String::from_utf8_lossy(&bytes).into_owned()
        })
    })
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(text in changed()) {
        let consensus: Result<_, Malformed> = Consensus::parse(&text);
        if let Ok(consensus) = consensus {
            prop_assert!(text.starts_with(consensus.signed));
        }
        if let Ok(found) = KeyCertificate::parse_all(&text) {
            prop_assert!(found.iter().all(|one| text.contains(one.text) && one.text.starts_with(one.signed)));
        }
        if let Ok(found) = Microdescriptor::parse_all(&text) {
            prop_assert!(found.iter().all(|one| text.contains(one.text)));
        }
    }
}

#[test]
fn dates_are_counted_as_the_calendar_has_them() {
    assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
    assert_eq!(seconds("2000-02-29 00:00:00"), Some(951_782_400));
    assert_eq!(seconds("2000-03-01 00:00:00"), Some(951_868_800));
    assert_eq!(seconds("2026-11-22 02:53:40"), Some(1_795_316_020));
    for wrong in ["", "2026-11-22", "2026-13-01 00:00:00", "2026-1-1 0:0:+1"] {
        assert_eq!(seconds(wrong), None, "{wrong}");
    }
}
