//! `hoplite tor-relays`: the relays of a network of C tor, as stanzas for a client's file. Its consensus is believed where a majority of the
//! authorities that the caller names has signed it. A client with `overlay = "onion"` then builds circuits over them by an explicit `path`.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use hoplite_directory::tor::{self, Network, Relay, Trust};
use hoplite_overlay::Direct;
use hoplite_wire::{OnionKey, Protocols, Target, tor::Flags};
use serde_json::json;

use crate::{directory::now, process, say, say::Failure};

/// How long the directory may take for each of its documents.
const LIMIT: Duration = Duration::from_secs(20);
/// How far clocks may be apart, in seconds.
const SKEW: u64 = 60;

/// The options.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The directory that is asked: the DirPort of an authority or of a relay. It need not be trusted.
    #[arg(long, value_name = "ADDRESS:PORT")]
    from: SocketAddr,
    /// The v3 identity of a known authority; may be given several times. More than half of them must have signed.
    #[arg(long = "authority", value_name = "FINGERPRINT", required = true, value_parser = fingerprint)]
    authorities: Vec<[u8; 20]>,
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let network = process::current_thread_runtime()?.block_on(read(options))?;
    let controlled = network.param("cc_alg", 2, 0..=i32::MAX) == 2;
    for relay in &network.relays {
        let name = name(&network, relay);
        if json {
            say::json(&object(relay, &name, controlled))?
        } else {
            say::answer(stanza(relay, &name))?
        }
    }
    Ok(())
}

async fn read(options: &Options) -> Result<Network, Failure> {
    let trust = Trust {
        authorities: options.authorities.clone(),
        skew: SKEW,
    };
    let (direct, source) = (Direct::default(), Target::from(options.from));
    let network = tor::fetch_all(&direct, &source, &trust, now(), LIMIT).await;
    network.map_err(|error| {
        let remedy = "ask another directory with --from, and compare --authority with what its operators publish";
        Failure::new("reading the consensus of Tor's authorities", error, remedy)
    })
}

/// Nicknames are not unique.
fn name(network: &Network, relay: &Relay) -> String {
    let nickname = &relay.router.nickname;
    let named = network.relays.iter();
    let alike = named.filter(|other| other.router.nickname == *nickname);
    match alike.count() {
        1 => nickname.clone(),
        _ => format!("{nickname}-{}", say::hex(&relay.keys.rsa_id)),
    }
}

fn onion(relay: &Relay) -> OnionKey {
    OnionKey {
        identity: relay.keys.ed25519,
        ntor: relay.keys.onion,
    }
}

fn address(relay: &Relay) -> String {
    let first = relay.router.addresses.first();
    first.map(SocketAddr::to_string).unwrap_or_default()
}

fn stanza(relay: &Relay, name: &str) -> String {
    let exit = match &relay.exit {
        Some(ports) => format!("exit to {ports}"),
        None => "no exit".into(),
    };
    let guard = if relay.router.flags.has(Flags::GUARD) {
        "guard, "
    } else {
        ""
    };
    let protocols = match relay.router.protocols {
        Protocols::NONE => String::new(),
        spoken => format!("protocols = \"{spoken}\"\n"),
    };
    format!(
        "[[relay]] # {guard}{exit}\nname = \"{name}\"\naddress = \"{}\"\nonion = \"{}\"\nrsa = \"{}\"\n{protocols}",
        address(relay),
        onion(relay),
        say::hex(&relay.keys.rsa_id),
    )
}

fn object(relay: &Relay, name: &str, controlled: bool) -> serde_json::Value {
    json!({
        "name": name,
        "address": address(relay),
        "onion": onion(relay).to_string(),
        "rsa": say::hex(&relay.keys.rsa_id),
        "guard": relay.router.flags.has(Flags::GUARD),
        "exit": relay.exit.as_ref().map(ToString::to_string),
        "bandwidth": relay.router.bandwidth,
        "congestion_control": controlled && relay.router.congestion_control,
    })
}

fn fingerprint(text: &str) -> Result<[u8; 20], String> {
    hoplite_wire::tor::fingerprint(text).ok_or_else(|| {
        "expected 40 hexadecimal digits, as `fingerprint` in its certificate has them".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_forty_hexadecimal_digits() {
        let digits = "4CB0A1456D97AECE1CF5F2A1F60A987D443C405C";
        assert_eq!(
            fingerprint(digits).map(|id| say::hex(&id)),
            Ok(digits.into())
        );
        assert!(fingerprint("4CB0").is_err());
        assert!(fingerprint(&"G".repeat(40)).is_err());
    }
}
