use proptest::prelude::*;

use super::*;
use crate::capsule::raw;

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

fn written(capsule: &Capsule) -> Vec<u8> {
    let mut out = Vec::new();
    capsule.write(&mut out);
    out
}

/// Reads a whole capsule with its head.
fn read(bytes: &[u8]) -> Option<Result<Capsule, Malformed>> {
    let mut bytes = Bytes::copy_from_slice(bytes);
    let (kind, length) = (varint::read(&mut bytes)?, varint::read(&mut bytes)?);
    assert_eq!(length, bytes.len() as u64);
    Capsule::parse(kind, bytes)
}

/// The bytes of RFC 9484's figures, put together by hand.
#[test]
fn capsules_are_written_as_the_standard_draws_them() {
    let assign = Capsule::AddressAssign(vec![Numbered {
        request: 1,
        prefix: Prefix::one(ip("192.0.2.11")),
    }]);
    assert_eq!(written(&assign), [1, 7, 1, 4, 192, 0, 2, 11, 32]);
    let request = Capsule::AddressRequest(vec![Numbered {
        request: 1,
        prefix: Prefix::none(ip("192.0.2.11")),
    }]);
    assert_eq!(written(&request), [2, 7, 1, 4, 0, 0, 0, 0, 32]);
    let everywhere = Prefix::new(ip("0.0.0.0"), 0).expect("a prefix").route(0);
    let routes = Capsule::RouteAdvertisement(vec![everywhere]);
    assert_eq!(
        written(&routes),
        [3, 10, 4, 0, 0, 0, 0, 255, 255, 255, 255, 0]
    );
    for capsule in [assign, request, routes] {
        assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
    }
}

#[test]
fn nothing_assigned_and_nothing_routed_can_be_said_but_nothing_cannot_be_asked_for() {
    assert_eq!(read(&[1, 0]), Some(Ok(Capsule::AddressAssign(vec![]))));
    assert_eq!(read(&[3, 0]), Some(Ok(Capsule::RouteAdvertisement(vec![]))));
    assert_eq!(read(&[2, 0]), Some(Err(Malformed)));
}

#[test]
fn what_breaks_a_rule_is_malformed() {
    let range =
        |protocol, first: [u8; 4], last: [u8; 4]| [&[4][..], &first, &last, &[protocol]].concat();
    let behind = |a: Vec<u8>, b: Vec<u8>| [&[3, 20][..], &a, &b].concat();
    let (low, high) = ([10, 0, 0, 0], [10, 0, 0, 9]);
    for bytes in [
        vec![2, 7, 0, 4, 0, 0, 0, 0, 32],
        vec![1, 7, 0, 5, 0, 0, 0, 0, 32],
        vec![1, 7, 0, 4, 0, 0, 0, 0, 33],
        vec![1, 6, 0, 4, 0, 0, 0, 0],
        vec![1, 7, 0, 6, 0, 0, 0, 0, 32],
        vec![1, 8, 0, 4, 0, 0, 0, 0, 32, 0],
        vec![1, 1, 0x40],
        [&[3, 10][..], &range(0, high, low)].concat(),
        behind(range(6, low, high), range(6, high, high)),
        behind(range(17, low, high), range(6, low, high)),
    ] {
        assert_eq!(read(&bytes), Some(Err(Malformed)), "{bytes:?}");
    }
    let fine = behind(range(6, low, high), range(17, low, high));
    assert!(
        matches!(read(&fine), Some(Ok(Capsule::RouteAdvertisement(routes))) if routes.len() == 2)
    );
}

#[test]
fn other_kinds_are_others_business() {
    assert_eq!(Capsule::parse(0, Bytes::new()), None);
    assert_eq!(Capsule::parse(4, Bytes::new()), None);
    assert!(!Capsule::is_kind(0) && Capsule::is_kind(3) && !Capsule::is_kind(4));
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|ip| Ipv4Addr::from(ip).into()),
        any::<u128>().prop_map(|ip| Ipv6Addr::from(ip).into()),
    ]
}

fn entry() -> impl Strategy<Value = Numbered> {
    (1..varint::MAX, address(), 0_u8..=128).prop_map(|(request, address, length)| Numbered {
        request,
        prefix: Prefix::new(address, length).unwrap_or_else(|| Prefix::one(address)),
    })
}

proptest! {
    #[test]
    fn addresses_that_were_written_are_read_back(entries in prop::collection::vec(entry(), 1..20)) {
        for capsule in [Capsule::AddressAssign(entries.clone()), Capsule::AddressRequest(entries)] {
            prop_assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
        }
    }

    #[test]
    fn routes_that_were_written_are_read_back(ends in prop::collection::vec((address(), address(), any::<u8>()), 0..20)) {
        let mut routes: Vec<Route> = ends.into_iter().filter_map(|(a, b, protocol)| Route::new(a.min(b), a.max(b), protocol)).collect();
        routes.sort_by_key(|route| (route.first().is_ipv6(), route.protocol(), route.first()));
        routes.dedup_by(|next, last| !last.precedes(next));
        let capsule = Capsule::RouteAdvertisement(routes);
        prop_assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(kind in 0_u64..5, value: Vec<u8>) {
        if let Some(Ok(capsule)) = Capsule::parse(kind, value.into()) {
            prop_assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
        }
    }
}

fn route(first: &str, last: &str, protocol: u8) -> Route {
    Route::new(ip(first), ip(last), protocol).expect("a route")
}

#[test]
fn a_prefix_holds_its_addresses_and_no_others() {
    for (text, length, inside, outside) in [
        ("192.0.2.77", 24, "192.0.2.255", "192.0.3.0"),
        ("192.0.2.77", 32, "192.0.2.77", "192.0.2.76"),
        ("192.0.2.77", 0, "255.255.255.255", "::"),
        ("2001:db8::1", 32, "2001:db8:ffff::", "2001:db9::"),
        ("2001:db8::1", 128, "2001:db8::1", "2001:db8::2"),
        ("::", 0, "ffff::", "0.0.0.0"),
    ] {
        let prefix = Prefix::new(ip(text), length).expect("a prefix");
        assert!(prefix.contains(ip(inside)), "{text}/{length} {inside}");
        assert!(!prefix.contains(ip(outside)), "{text}/{length} {outside}");
        let all = prefix.route(0);
        assert!(all.contains(ip(inside)) && !all.contains(ip(outside)));
    }
    assert_eq!(Prefix::new(ip("192.0.2.1"), 33), None);
    assert_eq!(Prefix::new(ip("::1"), 129), None);
}

#[test]
fn icmp_of_the_right_family_passes_every_route() {
    let tcp = route("192.0.2.1", "192.0.2.9", 6);
    assert!(tcp.allows(ip("192.0.2.5"), 6) && tcp.allows(ip("192.0.2.5"), ICMP));
    assert!(!tcp.allows(ip("192.0.2.5"), 17) && !tcp.allows(ip("192.0.2.5"), ICMPV6));
    assert!(!tcp.allows(ip("192.0.2.10"), 6));
    assert!(route("192.0.2.1", "192.0.2.9", 0).allows(ip("192.0.2.9"), 17));
}

#[test]
fn ranges_are_ordered_by_version_protocol_and_address() {
    let a = route("10.0.0.0", "10.0.0.9", 6);
    for next in [
        route("10.0.0.10", "10.0.0.20", 6),
        route("10.0.0.0", "10.0.0.9", 17),
        route("::", "::1", 0),
    ] {
        assert!(a.precedes(&next) && !next.precedes(&a));
    }
    assert!(!a.precedes(&route("10.0.0.9", "10.0.0.9", 6)));
    assert_eq!(Route::new(ip("10.0.0.2"), ip("10.0.0.1"), 0), None);
    assert_eq!(Route::new(ip("10.0.0.2"), ip("::1"), 0), None);
}

proptest! {
    #[test]
    fn the_route_of_a_prefix_is_the_prefix(address: u128, length in 0_u8..=128, other: u128) {
        let prefix = Prefix::new(Ipv6Addr::from(address).into(), length).expect("a prefix");
        let other = Ipv6Addr::from(other).into();
        prop_assert!(prefix.contains(prefix.address()));
        prop_assert_eq!(prefix.contains(other), prefix.route(0).contains(other));
    }
}

fn flow(host: &str, protocol: u8) -> Scope {
    Scope::flow(&host.parse().expect("a host"), protocol)
}

#[test]
fn scopes_are_written_as_the_standard_has_them() {
    let all = Scope {
        target: ScopeTarget::Any,
        protocol: None,
    };
    let net = Scope {
        target: ScopeTarget::Prefix(Prefix::new([192, 0, 2, 0].into(), 24).expect("a prefix")),
        protocol: None,
    };
    for (scope, path) in [
        (all, "/.well-known/masque/ip/*/*/"),
        (net, "/.well-known/masque/ip/192.0.2.0%2F24/*/"),
        (
            flow("target.example.com", 132),
            "/.well-known/masque/ip/target.example.com/132/",
        ),
        (
            flow("2001:db8::42", 58),
            "/.well-known/masque/ip/2001%3Adb8%3A%3A42/58/",
        ),
    ] {
        assert_eq!(scope.path(), path);
        assert_eq!(Scope::read_path(path), Ok(scope.clone()));
        assert_eq!(Scope::read_path(path.trim_end_matches('/')), Ok(scope));
    }
}

#[test]
fn other_ways_to_say_the_same_are_understood() {
    for (path, scope) in [
        ("%2A/%2a", "*/*"),
        ("192.0.2.1%2F32/1", "192.0.2.1/1"),
        ("%3A%3Affff%3A192.0.2.1/1", "192.0.2.1/1"),
        ("%3A%3Affff%3A192.0.2.1%2f128/001", "192.0.2.1/1"),
        ("2001:db8::1/58", "2001%3Adb8%3A%3A1/58"),
    ] {
        let full = |rest: &str| Scope::read_path(&format!("{WELL_KNOWN}{rest}/"));
        assert_eq!(full(path), full(scope), "{path}");
        assert!(full(path).is_ok(), "{path}");
    }
}

#[test]
fn other_paths_are_told_apart_from_bad_scopes() {
    for path in [
        "/",
        "",
        "/.well-known/masque/udp/a/1/",
        "/.well-known/masque/ip/a",
        "/.well-known/masque/ip/a/1/x",
    ] {
        assert_eq!(Scope::read_path(path), Err(PathError::NoMatch), "{path}");
    }
    for rest in [
        "a/256",
        "a/-1",
        "a/+1",
        "a/",
        "/1",
        "a/0001",
        "192.0.2.1%2F33/1",
        "192.0.2.1%2F/1",
        "name%2F24/1",
        "::%2F129/1",
        "a b/1",
        "fe80::1%25eth0/1",
        "%ff/1",
        "a%00/1",
        "**/1",
        "a/**",
    ] {
        let path = format!("{WELL_KNOWN}{rest}/");
        assert_eq!(Scope::read_path(&path), Err(PathError::BadTarget), "{path}");
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(name in "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){0,3}", v4: u32, v6: u128, length in 0_u8..=128, which in 0..4, protocol: Option<u8>) {
        let v4 = IpAddr::V4(v4.into());
        let v6 = IpAddr::V6(v6.into());
        let target = match which {
            0 => ScopeTarget::Any,
            1 => ScopeTarget::Prefix(canonical(Prefix::new(v6, length).expect("a prefix"))),
            2 => ScopeTarget::Prefix(Prefix::new(v4, length % 33).expect("a prefix")),
            _ => match name.parse().expect("a host") {
                Host::Name(name) => ScopeTarget::Name(name),
                Host::Ip(ip) => ScopeTarget::Prefix(Prefix::one(ip)),
            },
        };
        let scope = Scope { target, protocol };
        prop_assert_eq!(Scope::read_path(&scope.path()), Ok(scope));
    }

    #[test]
    fn any_path_is_read_without_a_panic(rest in "[/a-z%*:.0-9]{0,60}", text in ".{0,60}") {
        drop(Scope::read_path(&format!("{WELL_KNOWN}{rest}")));
        drop(Scope::read_path(&text));
    }
}

/// The examples of draft-ietf-masque-connect-ip-dns, put together by hand.
#[test]
fn nameservers_and_nat64_prefixes_are_written_as_the_draft_draws_them() {
    let split_tunnel = Capsule::DnsAssign(vec![DnsConfiguration {
        nameservers: vec![Nameserver {
            priority: 1,
            ipv4: vec!["192.0.2.33".parse().expect("an address")],
            ipv6: Vec::new(),
            name: None,
            parameters: Vec::new(),
        }],
        internal: vec![None],
        search: vec![HostName::new("corp.example").expect("a name")],
    }]);
    let value = [
        &[1, 0, 1, 1, 192, 0, 2, 33, 0, 0, 0, 1, 0, 1, 12][..],
        b"corp.example",
    ]
    .concat();
    assert_eq!(written(&split_tunnel), raw(0x1ace_79ec, &value));
    let prefix = "64:ff9b::".parse().expect("an address");
    let nat64 = Capsule::Pref64(vec![Nat64Prefix::new(prefix, 96).expect("a length")]);
    let value = [96, 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(written(&nat64), raw(0x274c_0fbc, &value));
    for capsule in [
        split_tunnel,
        nat64,
        Capsule::DnsAssign(vec![]),
        Capsule::Pref64(vec![]),
    ] {
        assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
    }
}

#[test]
fn a_nameserver_that_breaks_a_rule_is_malformed() {
    let with = |head: &[u8], name: &[u8], parameters: &[u8]| {
        let lengths = [name.len(), parameters.len()].map(|len| u8::try_from(len).expect("short"));
        let [name_length, length] = lengths;
        let value = [
            &[1][..],
            head,
            &[name_length],
            name,
            &[length],
            parameters,
            &[0, 0],
        ]
        .concat();
        read(&raw(0x1ace_79ec, &value)).expect("of ours").is_ok()
    };
    let (reached, nowhere) = (&[0, 1, 1, 192, 0, 2, 33, 0][..], &[0, 1, 0, 0][..]);
    let (alpn, only) = (&[0, 1, 0, 3, 2, b'h', b'3'][..], &[0, 2, 0, 0][..]);
    assert!(with(reached, b"", b""));
    assert!(with(reached, b"dns.example", alpn));
    assert!(with(nowhere, b"dns.example", &[alpn, only].concat()));
    assert!(!with(&[0, 0, 1, 192, 0, 2, 33, 0], b"", b""), "priority 0");
    assert!(!with(nowhere, b"dns.example", alpn), "no address");
    assert!(!with(reached, b"", alpn), "no name to authenticate");
    assert!(
        !with(reached, b"dns.example", &[only, alpn].concat()),
        "order"
    );
    assert!(
        !with(reached, b"dns.example", &[only, only].concat()),
        "twice"
    );
    assert!(!with(reached, b"dns.example", &[0, 4, 0, 0]), "a hint");
    assert!(!with(reached, b"dns.example", &[0, 1, 0, 9]), "cut off");
    assert!(!with(reached, b"not a name", b""), "a name");
    assert!(!with(&[0, 1, 63, 192, 0, 2, 33, 0], b"", b""), "a count");
}

#[test]
fn a_nat64_prefix_has_one_of_six_lengths_and_thirteen_bytes() {
    for length in 0..=u8::MAX {
        let fine = [32, 40, 48, 56, 64, 96].contains(&length);
        let value = [&[length][..], &[0x20; 12]].concat();
        let read_back = read(&raw(0x274c_0fbc, &value)).expect("of ours");
        assert_eq!(read_back.is_ok(), fine, "{length}");
    }
    assert_eq!(read(&raw(0x274c_0fbc, &[96; 12])), Some(Err(Malformed)));
    assert_eq!(read(&raw(0x274c_0fbc, &[96; 14])), Some(Err(Malformed)));
}

proptest! {
    #[test]
    fn what_is_told_of_the_network_is_read_back(
        priority in 1_u16..,
        ipv4 in proptest::collection::vec(any::<u32>(), 1..4),
        ipv6 in proptest::collection::vec(any::<u128>(), 0..4),
        search in proptest::collection::vec("[a-z]{1,20}(\\.[a-z]{1,20}){0,3}", 0..4),
        keys in proptest::collection::btree_set(7_u16.., 0..4),
        address: u128,
        length in proptest::sample::select(&[32_u8, 40, 48, 56, 64, 96][..]),
    ) {
        let nameserver = Nameserver {
            priority,
            ipv4: ipv4.into_iter().map(Ipv4Addr::from).collect(),
            ipv6: ipv6.into_iter().map(Ipv6Addr::from).collect(),
            name: search.first().map(|name| HostName::new(name).expect("a name")),
            parameters: keys.into_iter().map(|key| (key, Bytes::from_static(b"value"))).collect(),
        };
        let search = search.iter().map(|name| HostName::new(name).expect("a name")).collect();
        let one = DnsConfiguration { nameservers: vec![nameserver], internal: vec![None], search };
        let prefix = Nat64Prefix::new(address.into(), length).expect("a length");
        for capsule in [Capsule::DnsAssign(vec![one.clone(), one.clone()]), Capsule::Pref64(vec![prefix; 3])] {
            prop_assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
        }
    }

    #[test]
    fn any_bytes_told_of_the_network_are_read_without_a_panic(value: Vec<u8>) {
        for kind in [0x1ace_79ec, 0x274c_0fbc] {
            drop(read(&raw(kind, &value)));
        }
    }
}
