//! `[fleet]`: how a balancer finds this relay among those that share one name with it.
//! draft-ietf-quic-load-balancers-21, §4 (server ids) and §5 (how ids are encrypted).

use std::{fs, path::PathBuf, sync::Arc};

use hoplite_config::hex;
use hoplite_crypto::{RoutableIds, fleet_reset_key};
use hoplite_quic::server::{CID_LENGTH, Routing, Secrets};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::ConfigError;

/// What stands in `server_id` for the number at the end of the host's name.
const ORDINAL: &str = "ordinal";

/// Where the kernel says it.
const HOST: &str = "/proc/sys/kernel/hostname";

/// How long the key is, in bytes.
const KEY: usize = 16;

/// One of many relays behind a balancer.
///
/// An id stays 8 bytes long, as it is without a fleet: the server id has one or two, its nonce the rest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// The configuration, 0 to 6, that the ids name: a new key has a new one, which balancers know beside the old.
    #[serde(default)]
    pub config: u8,
    /// The number of this relay, which no other of the fleet has: two or four hexadecimal digits; or `"ordinal"`: two bytes of the number at the
    /// end of the host's name, `relay-3`, as a StatefulSet gives it.
    pub server_id: String,
    /// A file with the key that the fleet and its balancers share: 32 hexadecimal digits. Everybody must not be allowed to read it; its group may.
    pub key: PathBuf,
}

impl Fleet {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.config > 6 {
            let problem = format!("expected 0 to 6, found {}", self.config);
            return Err(ConfigError::new("fleet.config", problem));
        }
        if self.server_id == ORDINAL || self.written_id().is_some() {
            return Ok(());
        }
        let problem = format!(
            "expected two or four hexadecimal digits or \"ordinal\", found {:?}",
            self.server_id
        );
        Err(ConfigError::new("fleet.server_id", problem))
    }

    fn written_id(&self) -> Option<Vec<u8>> {
        hex(&self.server_id).filter(|id| matches!(id.len(), 1 | 2))
    }

    fn id(&self) -> Result<Vec<u8>, ConfigError> {
        if self.server_id != ORDINAL {
            let wrong = || ConfigError::new("fleet.server_id", "expected hexadecimal digits");
            return self.written_id().ok_or_else(wrong);
        }
        let host = fs::read_to_string(HOST).unwrap_or_default();
        ordinal(host.trim()).ok_or_else(|| {
            let problem = "the host's name does not end in '-' and a number up to 65535";
            ConfigError::new("fleet.server_id", problem)
        })
    }

    /// `secrets` with ids by which a balancer finds this relay.
    ///
    /// # Errors
    /// The key's file cannot be read, is open to everybody, or has no key in it, or this relay has no number.
    pub fn apply(&self, secrets: Secrets) -> Result<Secrets, ConfigError> {
        let key = self.read()?;
        let server = self.id()?;
        let nonce = CID_LENGTH - 1 - server.len();
        let ids = RoutableIds::new(self.config, server.len(), nonce, &key)
            .map_err(|error| ConfigError::new("fleet", error.to_string()))?;
        let reset = fleet_reset_key(&key, &server);
        Ok(secrets.in_fleet(Arc::new(Numbered { ids, server }), &reset))
    }

    /// The key.
    ///
    /// # Errors
    /// The file cannot be read, is open to everybody, or has no key in it.
    pub fn read(&self) -> Result<Zeroizing<[u8; KEY]>, ConfigError> {
        hoplite_config::hex_key(&self.key).map_err(|problem| ConfigError {
            key: "fleet.key",
            problem,
            file: Some(self.key.clone()),
        })
    }
}

/// The number at the end of a host's name, behind a hyphen, as two bytes.
fn ordinal(host: &str) -> Option<Vec<u8>> {
    let first = host.split('.').next()?;
    let (_, number) = first.rsplit_once('-')?;
    let number: u16 = number.parse().ok()?;
    Some(number.to_be_bytes().to_vec())
}

/// The ids of one relay.
#[derive(Debug)]
struct Numbered {
    ids: RoutableIds,
    server: Vec<u8>,
}

impl Routing for Numbered {
    fn seal(&self, random: [u8; CID_LENGTH]) -> [u8; CID_LENGTH] {
        let nonce = random.get(1 + self.server.len()..).unwrap_or_default();
        let sealed = self.ids.seal(&self.server, nonce);
        sealed
            .and_then(|id| id.as_bytes().try_into().ok())
            .expect("the lengths add up to an id's, and AES encrypts any block")
    }

    fn is_ours(&self, id: &[u8]) -> bool {
        let server = self.ids.open(id);
        server.is_some_and(|server| server.as_bytes() == self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(server_id: &str) -> Fleet {
        Fleet {
            config: 0,
            server_id: server_id.into(),
            key: "fleet.key".into(),
        }
    }

    #[test]
    fn a_server_id_is_one_or_two_bytes_or_the_hosts_ordinal() {
        for fine in ["00", "fF", "01fe", "ordinal"] {
            assert!(fleet(fine).check().is_ok(), "{fine}");
        }
        for wrong in ["", "0", "012", "012345", "0g", "+1", "é"] {
            let error = fleet(wrong).check().expect_err(wrong);
            assert_eq!(error.key, "fleet.server_id");
        }
        let seven = Fleet {
            config: 7,
            ..fleet("01")
        };
        assert_eq!(seven.check().expect_err("7").key, "fleet.config");
    }

    #[test]
    fn the_ordinal_is_the_number_at_the_end_of_the_hosts_name() {
        assert_eq!(ordinal("relay-3"), Some(vec![0, 3]));
        assert_eq!(ordinal("my-relay-258.relay.default.svc"), Some(vec![1, 2]));
        for host in ["relay", "relay-", "relay-65536", "relay-x", ""] {
            assert_eq!(ordinal(host), None, "{host}");
        }
    }

    #[test]
    fn every_id_of_a_relay_is_its_own_and_no_other_relays() {
        let numbered = |server: &[u8]| Numbered {
            ids: RoutableIds::new(2, server.len(), 7 - server.len(), &[5; KEY]).expect("ids"),
            server: server.to_vec(),
        };
        let (one, two) = (numbered(&[0, 1]), numbered(&[0, 2]));
        for random in 0..=u8::MAX {
            let id = one.seal([random; CID_LENGTH]);
            assert!(one.is_ours(&id) && !two.is_ours(&id));
            assert_ne!(id, two.seal([random; CID_LENGTH]));
        }
    }
}
