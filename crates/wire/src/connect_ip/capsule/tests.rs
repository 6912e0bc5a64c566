use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

fn written(capsule: &Capsule) -> Vec<u8> {
    let mut out = Vec::new();
    capsule.write(&mut out);
    out
}

/// Reads a whole capsule with its head.
fn read(octets: &[u8]) -> Option<Result<Capsule, Malformed>> {
    let mut octets = Bytes::copy_from_slice(octets);
    let (kind, length) = (varint::read(&mut octets)?, varint::read(&mut octets)?);
    assert_eq!(length, octets.len() as u64);
    Capsule::parse(kind, octets)
}

/// The octets of RFC 9484's figures, put together by hand.
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
    for octets in [
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
        assert_eq!(read(&octets), Some(Err(Malformed)), "{octets:?}");
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
    fn any_octets_are_read_without_a_panic(kind in 0_u64..5, value: Vec<u8>) {
        if let Some(Ok(capsule)) = Capsule::parse(kind, value.into()) {
            prop_assert_eq!(read(&written(&capsule)), Some(Ok(capsule)));
        }
    }
}
