//! Where a circuit may be extended to: which relay EXTEND2 names, and whether it may be that one.
//! [`super::driver`] asks before it dials. tor-spec "EXTEND and EXTENDED cells".

use std::net::SocketAddr;

use hoplite_crypto::onion::RelayKeys;
use hoplite_wire::cell::circuit::{Extend2, LinkSpecifier};

use super::Admit;
use crate::path;

/// Why a circuit is not extended; to the client each is DESTROY, reason PROTOCOL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Without an Ed25519 identity anybody could answer.
    #[error("EXTEND2 without an Ed25519 identity")]
    NoIdentity,
    /// No address that is a target.
    #[error("EXTEND2 without an address that is allowed")]
    NoAddress,
    /// To this relay.
    #[error("EXTEND2 to the relay itself")]
    Oneself,
    /// To where the circuit came from.
    #[error("EXTEND2 to the previous relay")]
    Back,
}

/// The relay that `extend` names. `own` is this relay's identity, `previous` that of whoever the circuit came from; of its addresses
/// those are taken that `admits` lets pass.
///
/// # Errors
/// [`Refusal`].
pub fn next_relay(
    extend: &Extend2<'_>,
    own: &[u8; 32],
    previous: Option<[u8; 32]>,
    admits: &dyn Admit,
) -> Result<path::Relay, Refusal> {
    let mut ed25519 = [0; 32];
    let mut rsa_id = None;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for specifier in &extend.specifiers {
        match specifier {
            LinkSpecifier::Ipv4(address) => addresses.push((*address).into()),
            LinkSpecifier::Ipv6(address) => addresses.push((*address).into()),
            LinkSpecifier::Rsa(id) => rsa_id = Some(*id),
            LinkSpecifier::Ed25519(id) => ed25519 = *id,
            LinkSpecifier::Unknown { .. } => {}
        }
    }
    addresses.retain(|address| address.port() != 0 && admits.admits(*address));
    check(&ed25519, own, previous)?;
    if addresses.is_empty() {
        return Err(Refusal::NoAddress);
    }
    // Only who and where matter here: the client makes the handshake.
    Ok(path::Relay {
        name: "".into(),
        keys: RelayKeys {
            rsa_id: rsa_id.unwrap_or_default(),
            ed25519,
            onion: [0; 32],
        },
        rsa: rsa_id.is_some(),
        addresses,
        ntor3: true,
        congestion_control: false,
        half_close: false,
        exit: None,
    })
}

fn check(named: &[u8; 32], own: &[u8; 32], previous: Option<[u8; 32]>) -> Result<(), Refusal> {
    if *named == [0; 32] {
        return Err(Refusal::NoIdentity);
    }
    if named == own {
        return Err(Refusal::Oneself);
    }
    if previous.as_ref() == Some(named) {
        return Err(Refusal::Back);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hoplite_wire::cell::circuit::{Create2, HandshakeType};

    use super::{super::Policy, *};

    const OWN: [u8; 32] = [1; 32];
    const GUARD: [u8; 32] = [2; 32];
    const OTHER: [u8; 32] = [3; 32];

    fn asked(address: &str, id: Option<[u8; 32]>, special: bool) -> Result<path::Relay, Refusal> {
        let mut specifiers = match address.parse().expect("an address") {
            SocketAddr::V4(address) => vec![LinkSpecifier::Ipv4(address)],
            SocketAddr::V6(address) => vec![LinkSpecifier::Ipv6(address)],
        };
        specifiers.push(LinkSpecifier::Unknown {
            kind: 9,
            value: b"?",
        });
        specifiers.extend(id.map(LinkSpecifier::Ed25519));
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &[],
        };
        let extend = Extend2 { specifiers, create };
        let policy = Policy::everywhere(special);
        next_relay(&extend, &OWN, Some(GUARD), &policy)
    }

    #[test]
    fn a_public_relay_is_extended_to() {
        let relay = asked("8.8.8.8:443", Some(OTHER), false).expect("allowed");
        assert_eq!(relay.keys.ed25519, OTHER);
        assert_eq!(relay.addresses.len(), 1);
    }

    #[test]
    fn nobody_extends_to_the_relay_itself_or_back() {
        assert_eq!(asked("8.8.8.8:443", Some(OWN), true), Err(Refusal::Oneself));
        assert_eq!(asked("8.8.8.8:443", Some(GUARD), true), Err(Refusal::Back));
    }

    #[test]
    fn nobody_extends_without_an_identity() {
        assert_eq!(asked("8.8.8.8:443", None, true), Err(Refusal::NoIdentity));
        assert_eq!(
            asked("8.8.8.8:443", Some([0; 32]), true),
            Err(Refusal::NoIdentity)
        );
    }

    #[test]
    fn special_addresses_are_extended_to_only_where_that_is_allowed() {
        for address in [
            "127.0.0.1:1",
            "10.1.1.1:1",
            "[::1]:1",
            "[fe80::1]:1",
            "0.0.0.0:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(
                asked(address, Some(OTHER), false),
                Err(Refusal::NoAddress),
                "{address}"
            );
            assert!(asked(address, Some(OTHER), true).is_ok(), "{address}");
        }
        assert_eq!(
            asked("8.8.8.8:0", Some(OTHER), true),
            Err(Refusal::NoAddress)
        );
    }
}
