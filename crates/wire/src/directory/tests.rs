use proptest::{collection::vec, option, prelude::*};

use super::*;

fn key() -> impl Strategy<Value = Key> {
    any::<[u8; 32]>().prop_map(Key)
}

fn ports() -> impl Strategy<Value = Ports> {
    vec(any::<u16>(), 0..6).prop_filter_map("something is open", |ports| Ports::except(&ports))
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = ((1u8..224, any::<[u8; 3]>()), 1u16..)
        .prop_map(|((a, [b, c, d]), port)| SocketAddr::from(([a, b, c, d], port)));
    let v6 = (any::<[u16; 7]>(), 1u16..).prop_map(|([a, b, c, d, e, f, g], port)| {
        SocketAddr::from(([0x2001, a, b, c, d, e, f, g], port))
    });
    prop_oneof![v4, v6]
}

fn protocols() -> impl Strategy<Value = Protocols> {
    let (cgo, conflux) = (Protocols::CGO, Protocols::CONFLUX);
    proptest::sample::select(vec![cgo, conflux, cgo | conflux])
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let who = ("[a-zA-Z0-9_.-]{1,64}", key(), any::<u64>());
    let how = (
        option::of(any::<[u8; 32]>()),
        option::of(any::<[u8; 32]>()),
        any::<(bool, bool)>(),
        option::of(ports()),
        option::of(("[!-+\\--~]{1,255}", "[!-+\\--~]{1,255}")),
        option::of(protocols()),
    );
    let where_ = (
        vec(address(), 1..=4),
        option::of("[a-z-]{1,32}"),
        option::of("[a-z.]{1,64}"),
    );
    (who, where_, how, vec(key(), 0..4), any::<u64>()).prop_map(
        |(who, place, how, family, bandwidth)| {
            let (mut addresses, mut family) = (place.0, family);
            addresses.dedup();
            addresses.truncate(
                if addresses.len() > 1 && addresses[0] == addresses[addresses.len() - 1] {
                    1
                } else {
                    4
                },
            );
            family.sort_unstable();
            family.dedup();
            Descriptor {
                name: who.0,
                identity: who.1,
                published: who.2,
                addresses,
                pin: how.0,
                onion: how.1,
                hsdir: how.2.1 && how.1.is_some(),
                cache: how.2.1.then_some(1 + u16::from(how.2.0) * 9029),
                protocols: how.5.filter(|_| how.1.is_some()).unwrap_or_default(),
                roles: Roles {
                    ingress: how.2.0 || how.3.is_none(),
                    egress: how.3.is_some(),
                },
                region: place.1,
                operator: place.2,
                family,
                bandwidth,
                exit: how.3,
                tokens: how.4.map(|(issuer, origin)| Tokens { issuer, origin }),
            }
        },
    )
}

fn signature() -> impl Strategy<Value = Signature> {
    (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(a, b)| {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&a);
        bytes[32..].copy_from_slice(&b);
        Signature(bytes)
    })
}

fn signed() -> impl Strategy<Value = SignedDescriptor> {
    let certificate = option::of(vec(any::<u8>(), 1..=256));
    let parts = (descriptor(), certificate, signature());
    parts.prop_map(|(descriptor, certificate, signature)| SignedDescriptor {
        descriptor,
        certificate,
        signature,
    })
}

fn shared_random(stage: Stage) -> impl Strategy<Value = SharedRandomLines> {
    let value = || option::of(any::<[u8; 32]>());
    let commitments = proptest::collection::btree_map(key(), any::<[u8; 32]>(), 0..4);
    let own = option::of(any::<([u8; 32], [u8; 32])>());
    (value(), value(), commitments, own).prop_map(move |(previous, current, commitments, own)| {
        let own = own.filter(|_| stage == Stage::Vote);
        SharedRandomLines {
            previous,
            current,
            commitments,
            own: own.map(|(reveal, commitment)| Contribution { reveal, commitment }),
        }
    })
}

fn opinion() -> impl Strategy<Value = Opinion> {
    let flags = proptest::sample::subsequence(RelayFlags::NAMES.to_vec(), 0..=5);
    let flags = flags.prop_map(|flags| {
        let flags = flags.into_iter();
        flags.fold(RelayFlags::NONE, |all, (flag, _)| all.with(flag))
    });
    let opinion = (flags, option::of(any::<u64>()));
    opinion.prop_map(|(flags, measured)| Opinion { flags, measured })
}

fn list(stage: Stage) -> impl Strategy<Value = SignedList> {
    let params = proptest::collection::btree_map("[a-z-]{1,32}", any::<u64>(), 0..4);
    let signatures = proptest::collection::btree_map(key(), signature(), 0..4);
    let relays = vec((signed(), opinion()), 0..4);
    (
        relays,
        params,
        signatures,
        shared_random(stage),
        0u64..1 << 40,
    )
        .prop_map(move |(relays, params, signatures, shared_random, start)| {
            let opinions = relays.iter().map(|(relay, opinion)| {
                let mut opinion = *opinion;
                if !relay.descriptor.hsdir {
                    opinion.flags = opinion.flags.without(RelayFlags::HSDIR);
                }
                (relay.descriptor.identity, opinion)
            });
            let opinions = opinions.filter(|(_, opinion)| !opinion.is_nothing());
            let opinions: BTreeMap<Key, _> = opinions.collect();
            let relays: BTreeMap<Key, _> = relays
                .into_iter()
                .map(|(relay, _)| (relay.descriptor.identity, relay))
                .collect();
            let list = List {
                stage,
                valid_after: start,
                fresh_until: start + 10,
                valid_until: start + 30,
                params,
                shared_random,
                opinions,
                relays: relays.into_values().collect(),
            };
            SignedList { list, signatures }
        })
}

fn commitments() -> impl Strategy<Value = Commitments> {
    let signatures = || proptest::collection::btree_map(key(), signature(), 0..3);
    let one = (any::<[u8; 32]>(), signatures());
    let voters = proptest::collection::btree_map(key(), vec(one, 1..=2), 0..4);
    (any::<u64>(), voters).prop_map(|(valid_after, voters)| {
        let each = |(voter, votes): (Key, Vec<([u8; 32], _)>)| {
            votes.into_iter().map(move |(vote, signatures)| {
                let commitment = Commitment {
                    valid_after,
                    voter,
                    vote,
                };
                (commitment, signatures)
            })
        };
        Commitments {
            all: voters.into_iter().flat_map(each).collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn commitments_that_are_written_are_read_back(found in commitments()) {
        prop_assert_eq!(Commitments::parse(&found.to_string()), Ok(found));
    }

    #[test]
    fn a_descriptor_that_is_written_is_read_back(signed in signed()) {
        prop_assert_eq!(signed.descriptor.check(), Ok(()));
        prop_assert_eq!(SignedDescriptor::parse(&signed.to_string()), Ok(signed));
    }

    #[test]
    fn a_list_and_a_vote_are_read_back_and_not_taken_for_each_other(list in list(Stage::List), vote in list(Stage::Vote)) {
        prop_assert_eq!(SignedList::parse(&list.to_string(), Stage::List), Ok(list.clone()));
        prop_assert_eq!(SignedList::parse(&vote.to_string(), Stage::Vote), Ok(vote.clone()));
        prop_assert!(SignedList::parse(&list.to_string(), Stage::Vote).is_err());
        let (text, body) = (list.to_string(), list.list.text());
        prop_assert_eq!(split_signed(&text), Ok((body.as_str(), list.signatures.clone())));
        prop_assert!(SignedList::parse(&vote.to_string(), Stage::List).is_err());
    }

    #[test]
    fn a_flipped_bit_is_refused_or_means_something_else(signed in signed(), place: prop::sample::Index, bit in 0..8u8) {
        let text = signed.to_string();
        let mut bytes = text.clone().into_bytes();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        if let Some(read) = String::from_utf8(bytes).ok().and_then(|text| SignedDescriptor::parse(&text).ok()) {
            prop_assert_ne!(read, signed);
        }
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in "(hoplite-(descriptor|list|vote) 1\n)?([a-z-]{1,12} [ -~]{0,60}\n){0,20}") {
        drop(SignedDescriptor::parse(&text));
        drop(SignedList::parse(&text, Stage::List));
        drop(Commitments::parse(&text));
        drop(split_signed(&text));
    }

    #[test]
    fn ports_but_some_are_all_others(closed in vec(any::<u16>(), 0..8), port in 1u16..) {
        let open = Ports::except(&closed).expect("some are open");
        prop_assert_eq!(open.contains(port), !closed.contains(&port));
        prop_assert_eq!(open.to_string().parse(), Ok(open));
    }
}

fn plain() -> String {
    let identity = Key([7; 32]);
    let signature = Signature([9; 64]);
    format!(
        "hoplite-descriptor 1\nname amber\nidentity {identity}\npublished 1700000000\naddress 192.0.2.1:443\n\
         roles ingress egress\nbandwidth 1000000\nexit 80,443\nsignature {signature}\n"
    )
}

#[test]
fn what_could_be_written_otherwise_is_refused() {
    assert!(SignedDescriptor::parse(&plain()).is_ok());
    for (from, to) in [
        ("192.0.2.1:443", "[::ffff:192.0.2.1]:443"),
        ("192.0.2.1:443", "192.0.2.1:0443"),
        ("192.0.2.1:443", "192.0.2.1:0"),
        ("192.0.2.1:443", "0.0.0.0:443"),
        ("192.0.2.1:443", "192.0.2.1:443\naddress 192.0.2.1:443"),
        ("published 17", "published 017"),
        ("published 17", "published +17"),
        ("80,443", "443,80"),
        ("80,443", "80-80,443"),
        ("80,443", "80,81"),
        ("80,443", "0-80"),
        ("exit 80,443\n", ""),
        ("exit 80,443\n", "exit 80,443\ntokens issuer.example\n"),
        ("exit 80,443\n", "exit 80,443\ntokens issuer.example a b\n"),
        ("exit 80,443\n", "exit 80,443\ntokens issuer.example a,b\n"),
        ("exit 80,443\n", "exit 80,443\ntokens issuer.example \n"),
        ("exit 80,443\n", "exit 80,443\ntokens  a\n"),
        ("exit 80,443\n", "tokens issuer.example a\nexit 80,443\n"),
        ("exit 80,443\n", "exit 80,443\nhsdir 3\n"),
        ("exit 80,443\n", "exit 80,443\nprotocols Relay=6\n"),
        ("exit 80,443\n", "exit 80,443\ncache 0\n"),
        ("exit 80,443\n", "exit 80,443\ncache 09030\n"),
        ("exit 80,443\n", "exit 80,443\ncache 90300\n"),
        ("exit 80,443\n", "cache 9030\nexit 80,443\n"),
        ("ingress egress", "egress ingress"),
        ("ingress egress", "ingress"),
        ("name amber", "name am ber"),
        ("\nname", "\r\nname"),
        ("signature", "more 1\nsignature"),
    ] {
        let text = plain().replacen(from, to, 1);
        assert_ne!(text, plain(), "{from}");
        assert!(SignedDescriptor::parse(&text).is_err(), "{to}");
    }
    let with_tokens = plain().replace("signature", "tokens issuer.example:8443 a\nsignature");
    let read = SignedDescriptor::parse(&with_tokens).expect("right");
    let tokens = read.descriptor.tokens.expect("they are told");
    assert_eq!(
        (tokens.issuer.as_str(), tokens.origin.as_str()),
        ("issuer.example:8443", "a")
    );
    let long = with_tokens.replace("tokens ", &format!("tokens {}", "x".repeat(TOKEN_NAME)));
    assert!(SignedDescriptor::parse(&long).is_err());
    assert!(SignedDescriptor::parse(&format!("{}\n", plain())).is_err());
    assert!(SignedDescriptor::parse(plain().trim_end()).is_err());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let text = plain().replace("roles ingress egress", "roles king");
    let error = SignedDescriptor::parse(&text).expect_err("wrong");
    assert_eq!(error.what, "roles");
    assert!((6..=7).contains(&error.line), "{error}");
}

#[test]
fn no_key_is_told_in_a_log() {
    let signed = SignedDescriptor::parse(&plain()).expect("right");
    assert!(!format!("{signed:?}").contains("ed25519"));
}

#[test]
fn commitments_of_two_periods_out_of_order_or_more_than_two_of_a_voter_are_refused() {
    let commitment = |valid_after, vote| Commitment {
        valid_after,
        voter: Key([7; 32]),
        vote: [vote; 32],
    };
    let text = |all: &[Commitment]| all.iter().map(Commitment::text).collect::<String>();
    let good = [commitment(5, 1), commitment(5, 2)];
    assert!(Commitments::parse(&text(&good)).is_ok());
    for wrong in [
        vec![commitment(5, 1), commitment(6, 2)],
        vec![commitment(5, 2), commitment(5, 1)],
        vec![commitment(5, 1), commitment(5, 1)],
        vec![commitment(5, 1), commitment(5, 2), commitment(5, 3)],
    ] {
        assert!(Commitments::parse(&text(&wrong)).is_err());
    }
}

fn listed(lines: &str, flag: &str) -> String {
    let relay = plain().replace("roles", &format!("onion ntor:{}\nroles", encode(&[5; 32])));
    let relay = relay.replace("signature", "hsdir 3\nsignature");
    format!(
        "hoplite-list 1\nvalid-after 10\nfresh-until 20\nvalid-until 30\nparam hsdir-interval 1440\n{lines}relays 1\n{relay}{flag}"
    )
}

#[test]
fn a_list_with_shared_random_values_and_hsdirs_is_read_in_one_order_and_one_without_them_too() {
    let (a, b) = (encode(&[1; 32]), encode(&[2; 32]));
    let key = Key([3; 32]);
    let lines = format!(
        "shared-random-previous {a}\nshared-random-current {b}\nshared-random-commit {key} {a}\n"
    );
    let read = |text: &str| SignedList::parse(text, Stage::List).map(|signed| signed.list);
    let list = read(&listed(&lines, "flags hsdir\n")).expect("right");
    assert_eq!(list.shared_random.previous, Some([1; 32]));
    assert_eq!(list.shared_random.current, Some([2; 32]));
    assert_eq!(
        list.shared_random.commitments,
        BTreeMap::from([(key, [1; 32])])
    );
    let hsdirs = list.flagged(RelayFlags::HSDIR).copied();
    assert_eq!(hsdirs.collect::<Vec<_>>(), [Key([7; 32])]);
    let without = read(&listed("", "")).expect("right");
    assert_eq!(without.shared_random, SharedRandomLines::default());
    assert!(without.opinions.is_empty());
    for wrong in [
        format!("shared-random-current {b}\nshared-random-previous {a}\n"),
        format!("shared-random-current {b}\nshared-random-current {b}\n"),
        format!("shared-random-current {b}A\n"),
        format!("shared-random-commit {key} {a}\nshared-random-commit {key} {a}\n"),
        format!("shared-random-commit {key}\n"),
        format!("shared-random-own {a} {b}\n"),
    ] {
        assert!(read(&listed(&wrong, "")).is_err(), "{wrong}");
    }
    let too_many = (0..=AUTHORITIES).map(|n| {
        let key = Key([u8::try_from(n).expect("few"); 32]);
        format!("shared-random-commit {key} {a}\n")
    });
    assert!(read(&listed(&too_many.collect::<String>(), "")).is_err());
    // Who does not say that it keeps descriptors is given none.
    let says_nothing = listed("", "flags hsdir\n").replace("hsdir 3\n", "");
    assert!(read(&says_nothing).is_err());
    for wrong in [
        "flags \n",
        "flags slow\n",
        "flags guard fast\n",
        "flags fast fast\n",
        "measured\n",
        "measured -1\n",
        "measured 01\n",
        "measured 1\nflags fast\n",
    ] {
        assert!(read(&listed("", wrong)).is_err(), "{wrong}");
    }
    let said = read(&listed(
        "",
        "flags badexit fast guard hsdir stable\nmeasured 1250000\n",
    ));
    let said = said.expect("right").opinion(&Key([7; 32]));
    assert!(
        RelayFlags::NAMES
            .iter()
            .all(|(flag, _)| said.flags.has(*flag))
    );
    assert_eq!(said.measured, Some(1_250_000));
}
