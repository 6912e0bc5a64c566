//! Which two relays may stand on one path: never one twice, and not two that the same people may run.

use std::net::IpAddr;

use hoplite_wire::directory::Descriptor;

/// What must differ between any two relays of a path. What is not known of a relay counts as different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// They do not both call the other family.
    pub family: bool,
    /// The operators that they name differ.
    pub operator: bool,
    /// No address of theirs shares 16 bits (IPv4) or 32 (IPv6).
    pub network: bool,
    /// The regions that they name differ.
    pub region: bool,
}

impl Default for Apart {
    fn default() -> Self {
        Self {
            family: true,
            operator: true,
            network: true,
            region: false,
        }
    }
}

impl Apart {
    /// Nothing but that they are two.
    pub fn hardly() -> Self {
        Self {
            family: false,
            operator: false,
            network: false,
            region: false,
        }
    }

    /// Whether both may stand on one path.
    pub fn are_apart(&self, a: &Descriptor, b: &Descriptor) -> bool {
        let operators = (a.operator.as_ref(), b.operator.as_ref());
        let regions = (a.region.as_ref(), b.region.as_ref());
        let alike = [
            a.identity == b.identity || shared(a, b),
            self.family && are_family(a, b),
            self.operator && is_same(operators),
            self.region && is_same(regions),
            self.network && are_neighbours(a, b),
        ];
        !alike.contains(&true)
    }
}

/// One machine, or one key, under two identities.
fn shared(a: &Descriptor, b: &Descriptor) -> bool {
    let pin = a.pin.is_some() && a.pin == b.pin;
    let onion = a.onion.is_some() && a.onion == b.onion;
    pin || onion
        || a.addresses
            .iter()
            .any(|address| b.addresses.contains(address))
}

/// Both must say so: else anybody could keep others off paths by naming them.
fn are_family(a: &Descriptor, b: &Descriptor) -> bool {
    a.family.contains(&b.identity) && b.family.contains(&a.identity)
}

fn is_same((a, b): (Option<&String>, Option<&String>)) -> bool {
    let lower = |text: &String| text.to_ascii_lowercase();
    a.is_some() && a.map(lower) == b.map(lower)
}

fn are_neighbours(a: &Descriptor, b: &Descriptor) -> bool {
    let prefixes: Vec<_> = b
        .addresses
        .iter()
        .map(|address| prefix(address.ip()))
        .collect();
    let mut own = a.addresses.iter();
    own.any(|address| prefixes.contains(&prefix(address.ip())))
}

/// The family, and the first 16 or 32 bits.
fn prefix(ip: IpAddr) -> (bool, [u8; 4]) {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            (false, [a, b, 0, 0])
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.octets();
            (true, [a, b, c, d])
        }
    }
}
