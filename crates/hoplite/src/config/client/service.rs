//! The tables `[[service]]` of the client's file: the onion services of this device. Every key is explained in `examples/onion-service.toml`, which a
//! test holds equal to the defaults.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hoplite_onion::onion_service::ServiceConfig;
use hoplite_wire::cell::onion_service::IntroductionRate;
use serde::Deserialize;

use super::Checker;

/// Introduction points of one service: with more, and as many authorised clients as there may be, its descriptor would be too long.
pub(crate) const MOST_POINTS: usize = 10;
const POINTS: std::ops::RangeInclusive<usize> = 1..=MOST_POINTS;
/// Ports of one service.
const PORTS: usize = 256;

/// One onion service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    /// The directory of its identity and of the clients whom it has authorised, as C tor has it (`HiddenServiceDir`).
    pub(crate) keys: PathBuf,
    /// Its ports, and where each leads.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub(crate) ports: Vec<ServicePort>,
    /// How many relays introduce clients to it.
    #[serde(default = "Service::default_introduction_points")]
    pub(crate) introduction_points: usize,
    /// Streams of all clients at once; the next is refused.
    #[serde(default = "Service::default_streams")]
    pub(crate) streams: usize,
    /// Streams of one client's circuit at once.
    #[serde(default = "Service::default_streams_per_circuit")]
    pub(crate) streams_per_circuit: usize,
    /// Clients that it meets at most.
    #[serde(default = "Service::default_clients")]
    pub(crate) clients: usize,
    /// Circuits to rendezvous points that are built at once.
    #[serde(default = "Service::default_building")]
    pub(crate) building: usize,
    /// How many of them are begun in a second, in the long run …
    #[serde(default = "Service::default_rendezvous")]
    pub(crate) rendezvous: u32,
    /// … and at once.
    #[serde(default = "Service::default_rendezvous_burst")]
    pub(crate) rendezvous_burst: u32,
    /// The time that all circuits for one client may take.
    #[serde(
        default = "Service::default_patience",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub(crate) patience: Duration,
    /// A client without streams is left after so long.
    #[serde(
        default = "Service::default_idle",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub(crate) idle: Duration,
}

impl Service {
    fn default_introduction_points() -> usize {
        ServiceConfig::default().points
    }

    fn default_streams() -> usize {
        ServiceConfig::default().streams_of_all
    }

    fn default_streams_per_circuit() -> usize {
        ServiceConfig::default().streams
    }

    fn default_clients() -> usize {
        ServiceConfig::default().clients
    }

    fn default_building() -> usize {
        ServiceConfig::default().building
    }

    fn default_rendezvous() -> u32 {
        ServiceConfig::default().rendezvous.per_second
    }

    fn default_rendezvous_burst() -> u32 {
        ServiceConfig::default().rendezvous.burst
    }

    fn default_patience() -> Duration {
        ServiceConfig::default().patience
    }

    fn default_idle() -> Duration {
        ServiceConfig::default().idle
    }

    /// What it is served with.
    pub(crate) fn bounds(&self) -> ServiceConfig {
        ServiceConfig {
            points: self.introduction_points,
            streams: self.streams_per_circuit,
            streams_of_all: self.streams,
            clients: self.clients,
            building: self.building,
            rendezvous: IntroductionRate {
                per_second: self.rendezvous,
                burst: self.rendezvous_burst,
            },
            patience: self.patience,
            idle: self.idle,
            ..ServiceConfig::default()
        }
    }
}

/// A port of a service, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePort {
    /// What clients ask for.
    pub(crate) port: u16,
    /// Whether datagrams are carried, and not bytes.
    pub(crate) udp: bool,
    /// Where they are connected to.
    pub(crate) to: Local,
}

/// Where streams of a service end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// A port of this device or its network.
    Address(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

/// Why a text is no port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a port and where it leads, as in \"80=127.0.0.1:8080\", \"53/udp=127.0.0.1:53\" or \"22=unix:/run/ssh.sock\""
)]
pub(crate) struct NoServicePort;

impl FromStr for ServicePort {
    type Err = NoServicePort;

    fn from_str(text: &str) -> Result<Self, NoServicePort> {
        let (port, to) = text.split_once('=').ok_or(NoServicePort)?;
        let (port, udp) = match port.strip_suffix("/udp") {
            Some(port) => (port, true),
            None => (port, false),
        };
        let port = port.parse().ok().filter(|port| *port != 0);
        let to = match to.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && !udp => Local::Socket(path.into()),
            Some(_) => return Err(NoServicePort),
            None => {
                let address: SocketAddr = to.parse().map_err(|_| NoServicePort)?;
                let fits = address.port() != 0;
                fits.then_some(Local::Address(address))
                    .ok_or(NoServicePort)?
            }
        };
        Ok(Self {
            port: port.ok_or(NoServicePort)?,
            udp,
            to,
        })
    }
}

impl Checker<'_> {
    /// The onion services.
    pub(super) fn services(&mut self) {
        let config = self.config;
        let can_serve = config.is_onion() && config.directory.is_some();
        if !config.service.is_empty() && !can_serve {
            let why = "onion services are served over circuits through relays of a list";
            self.add("service", why, "add overlay = \"onion\" and [directory]");
        }
        for (i, service) in config.service.iter().enumerate() {
            let key = |name: &str| format!("service[{i}].{name}");
            let mut earlier = config.service.iter().take(i);
            if earlier.any(|other| other.keys == service.keys) {
                let why = "another service has these keys";
                self.add(&key("keys"), why, "give each its own directory");
            }
            self.ports(i, &service.ports);
            let counts = [
                (
                    "introduction_points",
                    service.introduction_points,
                    POINTS,
                    "expected 1 to 10",
                ),
                (
                    "streams",
                    service.streams,
                    1..=65_535,
                    "expected 1 to 65535",
                ),
                (
                    "streams_per_circuit",
                    service.streams_per_circuit,
                    1..=65_535,
                    "expected 1 to 65535",
                ),
                (
                    "clients",
                    service.clients,
                    1..=65_535,
                    "expected 1 to 65535",
                ),
                (
                    "building",
                    service.building,
                    1..=65_535,
                    "expected 1 to 65535",
                ),
            ];
            for (name, value, range, expected) in counts {
                if !range.contains(&value) {
                    self.add(&key(name), expected, "correct the number");
                }
            }
            let rates = [
                ("rendezvous", service.rendezvous),
                ("rendezvous_burst", service.rendezvous_burst),
            ];
            for (name, _) in rates.into_iter().filter(|(_, rate)| *rate == 0) {
                self.add(&key(name), "expected 1 at least", "correct the number");
            }
        }
    }

    fn ports(&mut self, service: usize, ports: &[ServicePort]) {
        if ports.is_empty() || ports.len() > PORTS {
            let why = format!("expected 1 to {PORTS} ports");
            let remedy = "say where one leads, as in ports = [\"80=127.0.0.1:8080\"]";
            self.add(&format!("service[{service}].ports"), why, remedy);
        }
        for (i, port) in ports.iter().enumerate() {
            let mut earlier = ports.iter().take(i);
            if earlier.any(|other| (other.port, other.udp) == (port.port, port.udp)) {
                let why = format!("port {} leads somewhere already", port.port);
                let key = format!("service[{service}].ports[{i}]");
                self.add(&key, why, "keep one of them");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_leads_to_an_address_or_a_socket_and_anything_else_is_refused() {
        let parse = |text: &str| text.parse::<ServicePort>();
        let udp = false;
        let to = |port, to| Ok(ServicePort { port, udp, to });
        let address = |text: &str| Local::Address(text.parse().expect("an address"));
        assert_eq!(
            parse("80=127.0.0.1:8080"),
            to(80, address("127.0.0.1:8080"))
        );
        assert_eq!(parse("443=[::1]:8443"), to(443, address("[::1]:8443")));
        let udp = ServicePort {
            port: 53,
            udp: true,
            to: address("127.0.0.1:5353"),
        };
        assert_eq!(parse("53/udp=127.0.0.1:5353"), Ok(udp));
        let socket = Local::Socket("/run/ssh.sock".into());
        assert_eq!(parse("22=unix:/run/ssh.sock"), to(22, socket));
        for wrong in [
            "",
            "80",
            "80=",
            "=127.0.0.1:80",
            "0=127.0.0.1:80",
            "65536=127.0.0.1:80",
            "80=127.0.0.1",
            "80=127.0.0.1:0",
            "80=localhost:80",
            "80=unix:",
            "80=unix:run/sock",
            "80=/run/sock",
            "53/udp=unix:/run/sock",
            "53/sctp=127.0.0.1:53",
        ] {
            assert_eq!(parse(wrong), Err(NoServicePort), "{wrong}");
        }
    }
}
