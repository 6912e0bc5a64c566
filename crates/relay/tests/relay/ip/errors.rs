//! What routers say of a client's echoes: it comes back as the ICMP error that it was.
//! The router is the host at the other end of the relay's cable, which forwards and has few routes.

use hoplite_testing::namespace;

use super::{device::Host, *};

/// A router, an address that it has a route to, one that it has none to; and what it says when hops are used up, and without a route.
type Route = ([&'static str; 3], [[u8; 2]; 2]);
const ROUTES: [Route; 2] = [
    (
        ["198.51.100.2", "203.0.113.8", "203.0.113.9"],
        [[11, 0], [3, 0]],
    ),
    (
        ["2001:db8:51::2", "2001:db8:99::8", "2001:db8:99::9"],
        [[3, 0], [1, 0]],
    ),
];

fn behind_a_router<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let prepare = || {
        namespace::enter()?;
        namespace::open_range()?;
        let host = Host::start()?;
        for ([router, known, unknown], _) in ROUTES {
            namespace::run(&["route", "add", known, "via", router])?;
            namespace::run(&["route", "add", unknown, "via", router])?;
        }
        Ok(host)
    };
    namespace::with(prepare, test);
}

fn anywhere(config: &mut Config) {
    let rules = ["203.0.113.0/24", "2001:db8::/32"].map(|rule| rule.parse().expect("a rule"));
    config.egress.allow.extend(rules);
}

/// Sends an echo request with this hop limit until there is an answer: who answers, with what type and code, about which echo.
async fn answer(packets: &mut Packets, far: IpAddr, hop_limit: u8) -> (IpAddr, [u8; 2], u16) {
    let mut request = packets.echo(3, far);
    request[if far.is_ipv4() { 8 } else { 7 }] = hop_limit;
    loop {
        packets.send(&request);
        let told = timeout(Duration::from_secs(1), packets.received.recv()).await;
        let Ok(Some(told)) = told else {
            continue;
        };
        let packet = ip::parse(&told).expect("a packet");
        assert!(packet.checksum_is_right());
        assert_eq!(packet.destination, packets.near);
        let quoted = ip::parse(&packet.payload[8..]).expect("the echo");
        assert_eq!((quoted.source, quoted.destination), (packets.near, far));
        let echo = ip::icmp::echo(&quoted).expect("an echo");
        assert_eq!((echo.identifier, echo.reply), (7, false));
        let kind = [packet.payload[0], packet.payload[1]];
        return (packet.source, kind, echo.sequence);
    }
}

#[test]
fn a_router_that_has_no_route_and_one_at_which_the_hops_are_used_up_are_heard() {
    behind_a_router(|| async {
        let relay = relay(anywhere);
        let client = connect(&relay).await;
        for (route, [exceeded, unreachable]) in ROUTES {
            let route = route.map(|ip| ip.parse().expect("an address"));
            let [router, known, unknown]: [IpAddr; 3] = route;
            for (far, hop_limit, kind) in [(known, 1, exceeded), (unknown, 64, unreachable)] {
                let text = far.to_string().replace(':', "%3A");
                let path = format!("{text}/{}", ip::icmp_of(far));
                let (mut packets, _) = Packets::open(&client, &path).await;
                let told = soon(answer(&mut packets, far, hop_limit)).await;
                assert_eq!(told, (router, kind, 3), "{hop_limit} hops");
            }
        }
    });
}
