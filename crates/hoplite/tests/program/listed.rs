//! Circuits over relays of the list, as their user sees them: authorities, relays and a client, each from its file, on loopback.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{
    client::{started, target, through_socks},
    common::Running,
    directory::{Authorities, client_file, free_port, key, refusal, relay_with},
};

/// One authority that runs and relays that are on its list.
struct World {
    directory: TempDir,
    authorities: Authorities,
    /// With the key that signs its descriptor.
    relays: Vec<(Running, String)>,
}

impl World {
    fn new(relays: u8, lines: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let mut authorities = Authorities::start(directory.path(), 1, 1);
        let start = |n| relay_with(directory.path(), n, &authorities, lines);
        let relays: Vec<_> = (1..=relays).map(start).collect();
        authorities.wait_for(relays.len());
        Self {
            relays,
            directory,
            authorities,
        }
    }

    fn file(&self, path: &str, authorities: &[String]) -> PathBuf {
        let lines = format!("overlay = \"onion\"\n{path}");
        client_file(self.directory.path(), &lines, authorities)
    }

    /// A client, and its SOCKS port.
    fn client(&self, path: &str) -> (Running, u16) {
        let file = self.file(path, &self.authorities.names);
        let (client, socks, _) = started(Running::start("client", &file));
        (client, socks)
    }
}

const CIRCUITS: &str = "[onion]\nenabled = true\n";

#[test]
fn a_client_takes_three_of_four_relays_from_the_list_and_goes_round_one_that_dies() {
    let mut world = World::new(4, CIRCUITS);
    let target = target();
    {
        // Three hops, as the file says nothing of it.
        let (_client, socks) = world.client("");
        assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    }
    // Without any authority the kept list serves, by an explicit path too, by name and by key.
    world.authorities.running.clear();
    {
        let path = format!("path = [\"relay2\", {:?}, \"relay3\"]", world.relays[0].1);
        let (_client, socks) = world.client(&path);
        assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    }
    let (_client, socks) = world.client("hops = 3");
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    world.relays.remove(1);
    let came = |_| through_socks(socks, target) == (0, "hello".to_owned());
    assert!((0..20).any(came), "the list still has it");
}

#[test]
fn why_a_list_is_of_no_use_for_circuits_is_told() {
    let world = World::new(1, "");
    let told = refusal(&world.file("hops = 1", &world.authorities.names));
    assert!(
        told.contains("choosing a path from the list: no relay"),
        "{told}"
    );
    let stranger = key(&world.directory.path().join("stranger"));
    let claimed = format!("{stranger}@127.0.0.1:{}", world.authorities.ports[0]);
    let told = refusal(&world.file("", &[claimed]));
    assert!(
        told.contains("forged: 0 known authorities have signed it, 1 are needed"),
        "{told}"
    );
    let silent = format!("{stranger}@127.0.0.1:{}", free_port());
    let told = refusal(&world.file("", &[silent]));
    assert!(told.contains("cannot be reached"), "{told}");
}
