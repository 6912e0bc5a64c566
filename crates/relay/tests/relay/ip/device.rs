//! Packets of all protocols by a TUN device, a masquerade and a second host that knows nothing of the clients' addresses.
//! Two network namespaces of the test's own: the relay's, and that of a sleeping program which stands for the host.

use std::{
    io,
    process::{Child, Command, Stdio},
};

use hoplite_testing::{
    namespace,
    relay::{config, identity},
};

use super::*;

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
/// As in docs/operating.md.
const RULES: &str = r#"
table inet hoplite-ip {
  chain out { type nat hook postrouting priority srcnat;
    ip saddr 100.96.0.0/16 masquerade; ip6 saddr fd68:6f70:6970::/64 masquerade; }
  chain forward { type filter hook forward priority filter;
    iifname "hoplite-ip" oifname "hoplite-ip" drop; }
}"#;

/// It forwards, and has a route to one address of each family beyond.
const SETTINGS: &str = "
ip link set lo up
ip addr add 198.51.100.2/24 dev eth0
ip addr add 2001:db8:51::2/64 dev eth0 nodad
ip link set eth0 up
ip route add 203.0.113.8 via 198.51.100.1
ip route add 2001:db8:99::8 via 2001:db8:51::1
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";

/// A host on the other end of a cable; gone when dropped.
pub(super) struct Host(Child);

impl Host {
    pub(super) fn start() -> io::Result<Self> {
        let host = Self(
            Command::new("unshare")
                .args(["-n", "sleep", "600"])
                .spawn()?,
        );
        let (pid, own) = (
            host.0.id().to_string(),
            std::fs::read_link("/proc/thread-self/ns/net")?,
        );
        // `unshare` needs a moment to get there.
        for _ in 0..1000 {
            if std::fs::read_link(format!("/proc/{pid}/ns/net"))? != own {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        namespace::run(&[
            "link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ])?;
        namespace::run(&["addr", "add", "198.51.100.1/24", "dev", "uplink"])?;
        let v6 = ["addr", "add", "2001:db8:51::1/64", "dev", "uplink", "nodad"];
        namespace::run(&v6)?;
        namespace::run(&["link", "set", "uplink", "up"])?;
        let status = Command::new("nsenter")
            .args(["-t", &pid, "-n", "sh", "-ec", SETTINGS])
            .status()?;
        if !status.success() {
            return Err(io::Error::other("setting up the other host failed"));
        }
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The device as the documentation has operators make it, and the masquerade.
fn make_device() -> io::Result<()> {
    for arguments in [
        "tuntap add dev hoplite-ip mode tun",
        "addr add 100.96.0.1/16 dev hoplite-ip",
        "link set hoplite-ip up",
    ] {
        namespace::run(&arguments.split(' ').collect::<Vec<_>>())?;
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        io::Write::write_all(&mut input, RULES.as_bytes())?;
    }
    if nft.wait()?.success() {
        Ok(())
    } else {
        Err(io::Error::other("nft failed"))
    }
}

fn with_device<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let prepare = || {
        namespace::enter()?;
        let host = Host::start()?;
        make_device()?;
        Ok(host)
    };
    namespace::with(prepare, test);
}

fn by_device(config: &mut Config) {
    config.ip.device = Some("hoplite-ip".into());
    config
        .egress
        .allow
        .push("198.51.100.0/24".parse().expect("a rule"));
}

#[test]
fn an_echo_crosses_the_device_and_the_masquerade_and_comes_back() {
    with_device(|| async {
        let relay = relay(by_device);
        let client = connect(&relay).await;
        let (mut packets, routes) = Packets::open(&client, "198.51.100.2/1").await;
        assert_eq!(routes, [Prefix::one(FAR).route(1)]);
        assert_eq!(soon(packets.ping(5, FAR)).await, (FAR, 5));
    });
}

/// A listener on the relay's own host, at an address that looks public; nothing allows it.
#[test]
fn no_packet_reaches_the_relays_own_host_by_the_device() {
    with_device(|| async {
        let own = [
            "addr",
            "add",
            "5.6.7.8/24",
            "brd",
            "5.6.7.255",
            "dev",
            "uplink",
        ];
        namespace::run(&own).expect("added");
        let local = tokio::net::UdpSocket::bind("0.0.0.0:9090").await;
        let local = local.expect("bound");
        let relay = relay(by_device);
        let client = connect(&relay).await;
        let (packets, _) = Packets::open(&client, "*/*").await;
        for to in [[5, 6, 7, 8], [5, 6, 7, 255], [100, 96, 0, 1]] {
            let mut packet = Vec::new();
            ip::write_header(&mut packet, packets.near, to.into(), 17, 64, 12);
            packet.extend_from_slice(&[0x12, 0x34, 0x23, 0x82, 0, 12, 0, 0, 1, 2, 3, 4]);
            packets.send(&packet);
            packet[9] = 47;
            packets.send(&packet);
        }
        until_number(&relay, &dropped("policy"), 6).await;
        let received = local.try_recv(&mut [0; 64]);
        assert!(received.is_err(), "{received:?}");
    });
}

#[test]
fn another_protocol_gets_the_hosts_answer() {
    with_device(|| async {
        let relay = relay(by_device);
        let client = connect(&relay).await;
        let (mut packets, routes) = Packets::open(&client, "198.51.100.2/17").await;
        assert_eq!(routes, [Prefix::one(FAR).route(17)]);
        let mut packet = Vec::new();
        ip::write_header(&mut packet, packets.near, FAR, 17, 64, 12);
        packet.extend_from_slice(&[0x12, 0x34, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]);
        packets.send(&packet);
        let answer = soon(packets.received.recv()).await.expect("an answer");
        let answer = ip::parse(&answer).expect("a packet");
        assert_eq!((answer.source, answer.destination), (FAR, packets.near));
        assert_eq!(answer.payload[..2], [3, 3], "nobody listens at port 9");
        let (packets, _) = Packets::open(&client, "*/*").await;
        packets.send(&packets.echo(1, "192.168.7.7".parse().expect("an address")));
        until_number(&relay, &dropped("policy"), 1).await;
    });
}

#[test]
fn two_clients_have_an_address_each_and_get_their_own_replies() {
    with_device(|| async {
        let relay = relay(by_device);
        let (one, other) = (connect(&relay).await, connect(&relay).await);
        let (mut a, _) = Packets::open(&one, "198.51.100.2/1").await;
        let (mut b, _) = Packets::open(&other, "198.51.100.2/1").await;
        assert_ne!(a.near, b.near);
        assert_eq!(soon(a.ping(1, FAR)).await, (FAR, 1));
        assert_eq!(soon(b.ping(2, FAR)).await, (FAR, 2));
        let mut forged = a.echo(3, FAR);
        forged.splice(
            12..16,
            match b.near {
                IpAddr::V4(near) => near.octets(),
                IpAddr::V6(_) => unreachable!("an IPv4 flow"),
            },
        );
        a.send(&forged);
        until_number(&relay, &dropped("source"), 1).await;
    });
}

/// As docs/regions.md has an operator give clients of a region an address of it.
#[test]
fn a_flow_has_an_address_of_the_pool_of_its_clients_region() {
    with_device(|| async {
        for arguments in [
            "route add 100.97.0.0/30 dev hoplite-ip",
            "addr add 198.51.100.9/24 dev uplink",
        ] {
            let arguments: Vec<_> = arguments.split(' ').collect();
            namespace::run(&arguments).expect("done");
        }
        let rule = "insert rule inet hoplite-ip out ip saddr 100.97.0.0/30 snat ip to 198.51.100.9";
        let made = Command::new("nft").args(rule.split(' ')).status();
        assert!(made.expect("runs").success());
        let relay = relay(|config| {
            by_device(config);
            config.ip.pool = vec![Pool {
                region: Some("DE-BE".parse().expect("a region")),
                zone: None,
                addresses: vec!["100.97.0.0/30".parse().expect("a network")],
            }];
        });
        let client = connect(&relay).await;
        let open = async |shown: &str| {
            let request = ask("198.51.100.2/1").with(FIELD, shown);
            let (exchange, answer) = client.ask(request).await;
            assert_eq!(answer.status, 200, "{shown}");
            Packets::new(exchange).await.0
        };
        let mut berlin = open("DE-BE").await;
        assert_eq!(berlin.near, IpAddr::from([100, 97, 0, 2]));
        assert_eq!(soon(berlin.ping(1, FAR)).await, (FAR, 1));
        let mut elsewhere = open("FR").await;
        assert!(elsewhere.near.to_string().starts_with("100.96."));
        assert_eq!(soon(elsewhere.ping(1, FAR)).await, (FAR, 1));
        // A network of four has one address for clients; nobody is moved elsewhere for want of another.
        let request = ask("198.51.100.2/1").with(FIELD, "DE;zone=Europe/Berlin");
        assert_eq!(client.status(request).await, 429);
    });
}

#[test]
fn a_device_that_is_not_there_and_cannot_be_made_is_named() {
    namespace::with(namespace::enter, || async {
        // A device that exists and is no TUN device.
        let mut config = config();
        by_device(&mut config);
        config.ip.device = Some("lo".into());
        let identity = identity();
        let error = hoplite_relay::Relay::start(&config, &identity).expect_err("no TUN device");
        assert!(error.to_string().starts_with("ip.device: "), "{error}");
    });
}
