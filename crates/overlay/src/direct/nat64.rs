//! IPv4 addresses in networks that have IPv6 alone. A network that carries IPv4 behind a prefix of IPv6 (NAT64) has resolvers that answer so for names
//! with IPv4 addresses alone (DNS64); what they say of one whose addresses everybody knows shows the prefix (RFC 7050), and any address can be put behind
//! it (RFC 6052). Who forges that answer sends us elsewhere, as the network could anyway: whom we find there has to prove who it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hoplite_wire::{
    HostName,
    special::{TRANSLATION_PREFIXES, embed, embedded},
};

use super::Direct;

/// The name that is asked for: the answer is the network's where the device is now. It, and its addresses: RFC 7050 §8.2.
pub const NAT64_NAME: &str = "ipv4only.arpa";
const ITS_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// Where the network has `address`, best first; nothing where it says nothing of that.
pub(super) async fn translated(direct: &Direct, address: Ipv4Addr) -> Vec<IpAddr> {
    let Ok(name) = HostName::new(NAT64_NAME) else {
        return Vec::new();
    };
    let answers = direct.look_up(&name).await.unwrap_or_default();
    let mut found = Vec::new();
    for answer in answers {
        let IpAddr::V6(answer) = answer else {
            continue;
        };
        let there = prefix(answer).and_then(|length| embed(answer, length, address));
        if let Some(there) = there.map(IpAddr::V6).filter(|there| !found.contains(there)) {
            found.push(there);
        }
    }
    found
}

/// The length of the prefix behind which the name's address is here, the usual one first. The byte that all but the longest leave out is zero.
fn prefix(answer: Ipv6Addr) -> Option<u8> {
    let lengths = TRANSLATION_PREFIXES.into_iter().rev();
    lengths
        .filter(|length| *length == 96 || answer.octets()[8] == 0)
        .find(|length| embedded(answer, *length).is_some_and(|v4| ITS_ADDRESSES.contains(&v4)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::direct::Fixed;

    fn v6(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_length_of_a_prefix_shows_in_where_the_names_address_is() {
        for length in TRANSLATION_PREFIXES {
            for its in ITS_ADDRESSES {
                let answer = embed(v6("2001:db8:122:344::"), length, its).expect("a length");
                assert_eq!(prefix(answer), Some(length), "{answer}");
            }
        }
        assert_eq!(prefix(v6("2001:db8::1")), None);
        let left_out = v6("2001:db8:122:344:1c0:0:aa00::");
        assert_eq!(prefix(left_out), None, "the byte that is zero is not");
    }

    #[tokio::test]
    async fn a_network_that_says_nothing_of_it_has_it_nowhere() {
        let address = Ipv4Addr::new(192, 0, 2, 33);
        let name = HostName::new(NAT64_NAME).expect("a name");
        let answers = |found: &[&str]| {
            let found = found.iter().map(|text| text.parse().expect("an address"));
            let table = Fixed::default().with(name.clone(), found.collect());
            Direct::for_tunnels().resolver(Arc::new(table))
        };
        let there = translated(&answers(&["192.0.0.170", "192.0.0.171"]), address).await;
        assert!(there.is_empty(), "it has no DNS64");
        let named = [
            "64:ff9b::192.0.0.170",
            "64:ff9b::192.0.0.171",
            "192.0.0.170",
        ];
        let there = translated(&answers(&named), address).await;
        assert_eq!(there, [IpAddr::V6(v6("64:ff9b::192.0.2.33"))]);
    }
}
