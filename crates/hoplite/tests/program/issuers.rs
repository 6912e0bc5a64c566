//! Private tokens for relays of a signed list, as their user sees it: an issuer, an authority, relays and a client, each from its file, on loopback.

use std::{fs, path::PathBuf};

use hoplite_crypto::{Pin, SigningKey};
use hoplite_directory::sign_descriptor;
use hoplite_wire::{
    Protocols,
    directory::{Descriptor, Key, Ports, Roles, Tokens},
};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::{
    client::{started, target, through_socks},
    common::{Running, value},
    directory::{Authorities, client_file, free_port, get, hand_in, proven, refusal, relay_with},
    tokens::{Issuer, account},
};

/// An issuer, an authority, and the relays on its list.
struct World {
    place: TempDir,
    issuer: Issuer,
    authorities: Authorities,
    relays: Vec<Running>,
}

/// The lines of a relay that takes tokens.
fn takes(issuer: &str, origin: &str) -> String {
    format!(
        "[auth.private_tokens]\nissuer = {issuer:?}\norigin = {origin:?}\nkeys = \"keys.json\"\n"
    )
}

impl World {
    /// With an account that may have so many tokens.
    fn new(tokens: u32) -> Self {
        let place = tempfile::tempdir().expect("directory");
        let issuer = Issuer::start(&account("ann", tokens));
        let keys = issuer.directory().to_json();
        fs::write(place.path().join("keys.json"), keys).expect("written");
        let authorities = Authorities::start(place.path(), 1, 1);
        Self {
            place,
            issuer,
            authorities,
            relays: Vec::new(),
        }
    }

    /// A relay with these lines, and its own file of spent tokens.
    fn relay(&mut self, lines: &str) {
        let n = u8::try_from(self.relays.len() + 1).expect("few");
        let lines = format!("{lines}spent = \"spent{n}\"\n");
        let (relay, _) = relay_with(self.place.path(), n, &self.authorities, &lines);
        self.relays.push(relay);
    }

    /// A client's file with this issuer, or without any.
    fn file(&self, hops: u8, issuer: Option<&str>) -> PathBuf {
        let path = format!("hops = {hops}\ntunnel.spare = false");
        let file = client_file(self.place.path(), &path, &self.authorities.names);
        let issuer = issuer.map(|name| {
            format!(
                "[[issuer]]\nname = {name:?}\naddress = {:?}\npin = {:?}\ntoken = \"secret of ann\"\nstock = \"stock\"\n",
                self.issuer.listen, self.issuer.pin
            )
        });
        let text = fs::read_to_string(&file).expect("there") + &issuer.unwrap_or_default();
        fs::write(&file, text).expect("written");
        file
    }
}

#[test]
fn only_listed_relays_whose_issuer_the_client_has_are_used_and_those_that_share_a_name_share_few_tokens()
 {
    // What two starts take, whichever relay is the first of the path.
    let mut world = World::new(4);
    world.relay(&takes("issuer.test", "fleet.test"));
    world.relay(&takes("issuer.test", "fleet.test"));
    world.relay(&takes("elsewhere.test", "fleet.test"));
    world.authorities.wait_for(3);
    let listed = get(world.authorities.ports[0], "/hoplite/list");
    assert!(
        listed.contains("\ntokens issuer.test fleet.test\nsignature "),
        "{listed}"
    );
    let told = refusal(&world.file(2, None));
    assert!(
        told.contains("takes tokens of an issuer that you have"),
        "{told}"
    );
    let told = refusal(&world.file(2, Some("another.test")));
    assert!(
        told.contains("takes tokens of an issuer that you have"),
        "{told}"
    );
    let (file, target) = (world.file(2, Some("issuer.test")), target());
    for _ in 0..2 {
        let (_client, socks, _) = started(Running::start("client", &file));
        for _ in 0..3 {
            assert_eq!(through_socks(socks, target), (0, "hello".into()));
        }
    }
    // "Connection not allowed by ruleset": they have run out.
    let (_client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target).0, 2);
}

/// How many tokens a relay with this port of metrics has refused because they are for another name.
fn refused(metrics: u16) -> u32 {
    let text = get(metrics, "/metrics");
    let line = text.lines().find_map(|line| {
        line.strip_prefix("hoplite_relay_token_refusals_total{cause=\"other_challenge\"} ")
    });
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn a_relay_that_lies_in_the_list_about_its_tokens_gets_a_few_of_them_and_the_client_goes_round_it()
{
    let mut world = World::new(200);
    let wide = "operator = \"a\"\nbandwidth = 1\n";
    world.relay(&format!("{wide}{}", takes("issuer.test", "honest.test")));
    let wide = "operator = \"b\"\nbandwidth = 1\n";
    world.relay(&format!("{wide}{}", takes("issuer.test", "honest.test")));
    let (liar, metrics) = liar(&world, 3);
    world.authorities.wait_for(3);
    let (file, target) = (world.file(2, Some("issuer.test")), target());
    let (_client, socks, _) = started(Running::start("client", &file));
    let came = |_: &i32| through_socks(socks, target) == (0, "hello".into());
    // The first flow may be the one that finds it out.
    let came = (0..20).filter(came).count();
    assert!(came >= 18, "{came}");
    let shown = refused(metrics);
    assert!((1..=3).contains(&shown), "{shown}");
    drop(liar);
}

/// A fast ingress that says in the list that it takes tokens of the client's issuer for a name of its own, and takes none. Its port of metrics.
fn liar(world: &World, n: u8) -> (Running, u16) {
    let (place, metrics) = (world.place.path(), free_port());
    let file = place.join("liar.toml");
    let text = format!(
        "listen = [\"127.{n}.0.1:0\"]\nidentity = \"liar\"\nmetrics.listen = \"127.0.0.1:{metrics}\"\n{}spent = \"spent of the liar\"\n",
        takes("issuer.test", "true.test")
    );
    fs::write(&file, text).expect("written");
    let mut relay = Running::start("relay", &file);
    let up = relay.line_with("the relay is up");
    let pin: Pin = value(&up, "pin").parse().expect("a pin");
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("later");
    let said = Descriptor {
        name: "liar".into(),
        identity: Key([0; 32]),
        published: since.as_secs(),
        addresses: vec![value(&up, "listen").parse().expect("one address")],
        pin: Some(pin.into()),
        onion: None,
        roles: Roles {
            ingress: true,
            egress: false,
        },
        region: None,
        operator: None,
        family: Vec::new(),
        bandwidth: 12_500_000,
        exit: None::<Ports>,
        tokens: Some(Tokens {
            issuer: "issuer.test".into(),
            origin: "false.test".into(),
        }),
        hsdir: false,
        cache: None,
        protocols: Protocols::NONE,
    };
    let key = SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key");
    let signed = sign_descriptor(said, &key).expect("signed");
    let proof = proven(&place.join("liar"), &signed);
    let answer = hand_in(world.authorities.ports[0], &signed, Some(&proof));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    (relay, metrics)
}
