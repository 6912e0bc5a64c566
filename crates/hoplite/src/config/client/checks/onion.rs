//! What `overlay = "onion"` asks of a client's file: keys, addresses, and one relay once.

use hoplite_wire::Host;

use super::Checker;
use crate::config::client::Relay;

impl Checker<'_> {
    /// The relays of the path, and `[onion]`.
    pub(super) fn circuits(&mut self) {
        for (key, expected) in self.config.onion.wrong() {
            self.add(key, expected, "correct the number");
        }
        if self.config.directory.is_some() {
            return;
        }
        if self.config.path.is_empty() && self.config.hops.is_some() {
            let why =
                "with overlay = \"onion\", relays are chosen from the list of [directory] alone";
            self.add(
                "hops",
                why,
                "name the path, as in path = [\"a\", \"b\", \"c\"]",
            );
        }
        let relays = self.config.relay.iter().enumerate();
        let used = relays.filter(|(_, relay)| self.config.path.contains(&relay.name));
        for (i, relay) in used.collect::<Vec<_>>() {
            self.circuit_relay(i, relay);
        }
        self.identities();
    }

    fn circuit_relay(&mut self, i: usize, relay: &Relay) {
        if relay.onion.is_none() {
            let why = format!(
                "overlay = \"onion\" needs the onion key of {:?}",
                relay.name
            );
            let remedy = "`hoplite keygen --show DIR` prints it on the relay";
            self.add(&format!("relay[{i}].onion"), why, remedy);
        }
        if matches!(relay.address.host, Host::Name(_)) {
            let why = "circuits are extended to addresses, not to names";
            let remedy = "write its IP address and port";
            self.add(&format!("relay[{i}].address"), why, remedy);
        }
    }

    /// One relay under two names would see two hops.
    fn identities(&mut self) {
        let relay = |name: &String| self.config.relay.iter().find(|relay| relay.name == *name);
        let relays: Vec<_> = self.config.path.iter().filter_map(relay).collect();
        let mut doubles = Vec::new();
        for (i, relay) in relays.iter().enumerate() {
            let Some(key) = relay.onion else { continue };
            let is_same = |other: &&&Relay| {
                other.name != relay.name
                    && other.onion.is_some_and(|it| it.identity == key.identity)
            };
            let double = relays.iter().take(i).find(is_same);
            doubles.extend(double.map(|other| (i, other.name.clone(), relay.name.clone())));
        }
        for (i, other, name) in doubles {
            let why = format!(
                "{other:?} and {name:?} are one relay: the identity in their onion keys is the same"
            );
            self.add(&format!("path[{i}]"), why, "use each relay once");
        }
    }
}
