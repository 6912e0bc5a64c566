//! The client's file: read, and checked for what its syntax cannot say: names that exist, roles that fit, enough relays.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use hoplite_crypto::Token;

use hoplite_masque::Mode;
use hoplite_mediator::Listen;
use hoplite_onion::onion_service::ClientKeys;
use hoplite_relay::config::Role;
use hoplite_wire::{Host, forwarding::Transform, tor::AUTHORITIES};

use self::takeover::{Dns, Domain, Exclude, Include};
use super::{Document, directory};
use crate::{
    say::{Complaint, Failure},
    service_keys,
};

pub(crate) mod scan;
pub(crate) mod service;
mod tables;
pub(crate) mod takeover;

pub(crate) use self::tables::*;

/// Each entry of a list becomes a rule that the kernel goes through.
const LONGEST_LIST: usize = 256;

/// A relay that the path uses, with what is needed to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    /// The relay.
    pub(crate) relay: Relay,
    /// What is shown to it.
    pub(crate) token: Option<Token>,
}

/// A file that was read and checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// What the file says.
    pub(crate) config: Config,
    /// Every relay with its token, in the file's order.
    pub(crate) relays: Vec<Hop>,
    /// What is shown to relays that have no token of their own.
    pub(crate) token: Option<Token>,
    /// What opens descriptors of onion services that are for authorised clients.
    pub(crate) client_keys: ClientKeys,
    /// What is allowed, but probably not meant.
    pub(crate) warnings: Vec<String>,
}

/// Reads the file at `path`.
pub(crate) fn load(path: &Path) -> Result<Client, Failure> {
    read(&super::open(path)?)
}

/// Reads and checks a client's file.
pub(crate) fn read(document: &Document) -> Result<Client, Failure> {
    let mut config: Config = super::value(document)?;
    if let Some(directory) = &mut config.directory {
        directory.cache = super::beside(document.path(), &directory.cache);
    }
    for issuer in &mut config.issuer {
        issuer.stock = super::beside(document.path(), &issuer.stock);
    }
    for service in &mut config.service {
        service.keys = super::beside(document.path(), &service.keys);
    }
    if let Some(scan) = &mut config.scan {
        let files = [&mut scan.results, &mut scan.file].into_iter();
        for file in files.chain(&mut scan.with) {
            *file = super::beside(document.path(), file);
        }
    }
    let mut complaints = complaints(&config, document);
    for (i, issuer) in config.issuer.iter_mut().enumerate() {
        let key = format!("issuer[{i}].token_file");
        match token_of(&issuer.token, &issuer.token_file, &key, document) {
            Ok(token) => issuer.token = token,
            Err(complaint) => complaints.push(complaint),
        }
        let file = issuer.token_file.as_ref();
        issuer.token_file = file.map(|file| super::beside(document.path(), file));
    }
    let control = config.onion.control.as_ref();
    config.onion.control = control.map(|socket| super::beside(document.path(), socket));
    let (token, relays) = with_tokens(&config, document, &mut complaints);
    let client_keys = client_keys(&config, document).unwrap_or_else(|complaint| {
        complaints.push(complaint);
        ClientKeys::default()
    });
    if complaints.is_empty() {
        Ok(Client {
            warnings: warnings(&config),
            config,
            relays,
            token,
            client_keys,
        })
    } else {
        Err(complaints.into())
    }
}

fn with_tokens(
    config: &Config,
    document: &Document,
    complaints: &mut Vec<Complaint>,
) -> (Option<Token>, Vec<Hop>) {
    let mut read = |token: &Option<Token>, file: &Option<PathBuf>, key: &str| {
        token_of(token, file, key, document).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            None
        })
    };
    let shared = read(&config.token, &config.token_file, "token_file");
    let hop = |(i, relay): (usize, &Relay)| {
        let key = format!("relay[{i}].token_file");
        let token = read(&relay.token, &relay.token_file, &key);
        Hop {
            relay: relay.clone(),
            token: token.or_else(|| shared.clone()),
        }
    };
    let hops = config.relay.iter().enumerate().map(hop).collect();
    (shared, hops)
}

fn client_keys(config: &Config, document: &Document) -> Result<ClientKeys, Complaint> {
    let Some(directory) = &config.onion.client_keys else {
        return Ok(ClientKeys::default());
    };
    let directory = super::beside(document.path(), directory);
    service_keys::of_client(&directory).map_err(|failure| {
        let remedy =
            "let it be a directory of this user alone (chmod 700), with a file of each key";
        document.complain("onion.client_keys", failure, remedy)
    })
}

fn token_of(
    token: &Option<Token>,
    file: &Option<PathBuf>,
    key: &str,
    document: &Document,
) -> Result<Option<Token>, Complaint> {
    let Some(file) = file else {
        return Ok(token.clone());
    };
    if token.is_some() {
        let why = "a token and a file of it are both given";
        return Err(document.complain(key, why, "keep one of them"));
    }
    let path = super::beside(document.path(), file);
    let refused = |why: String| {
        document.complain(
            key,
            format!("{}: {why}", path.display()),
            "correct the file",
        )
    };
    let text = std::fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
    let token = super::trimmed(text).ok_or_else(|| refused("there is no token in it".into()))?;
    Ok(Some(token))
}

/// Collects complaints about one document.
struct Checker<'a> {
    config: &'a Config,
    document: &'a Document,
    complaints: Vec<Complaint>,
    /// What stands before each key.
    table: String,
}

/// Everything that is wrong.
pub(super) fn complaints(config: &Config, document: &Document) -> Vec<Complaint> {
    let mut checker = Checker {
        config,
        document,
        complaints: Vec::new(),
        table: String::new(),
    };
    if config.is_direct() {
        checker.no_relays();
    } else if let Some(directory) = &config.directory {
        checker.listed(directory);
        checker.length();
    } else {
        checker.relays();
        checker.length();
        checker.path();
        checker.pins();
        checker.choice();
    }
    checker.routes();
    if config.is_onion() {
        checker.circuits();
    }
    let refused = super::refused_rival(document, config.onion.rival);
    checker.complaints.extend(refused);
    checker.services();
    checker.scan();
    checker.issuers();
    checker.front_ends();
    checker.device();
    checker.included_domains();
    checker.complaints
}

impl Checker<'_> {
    fn add(&mut self, key: &str, why: impl std::fmt::Display, remedy: &str) {
        let key = format!("{}{key}", self.table);
        let complaint = self.document.complain(&key, why, remedy);
        self.complaints.push(complaint);
    }

    /// What would go unused looks like protection that is not there.
    fn no_relays(&mut self) {
        let config = self.config;
        let given = [
            ("relay", !config.relay.is_empty()),
            ("directory", config.directory.is_some()),
            ("path", !config.path.is_empty()),
            ("hops", config.hops.is_some_and(|hops| hops > 0)),
        ];
        for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            let why = "overlay = \"direct\" uses no relay and hides nothing";
            self.add(key, why, "remove it, or remove `overlay`");
        }
    }

    fn relays(&mut self) {
        let mut first = HashMap::new();
        for (i, relay) in self.config.relay.iter().enumerate() {
            let key = format!("relay[{i}].name");
            if relay.name.is_empty() || relay.name.len() > 64 {
                self.add(&key, "expected 1 to 64 characters", "give it a short name");
            } else if let Some(other) = first.insert(relay.name.as_str(), i) {
                let why = format!("relay[{other}] has the name {:?} already", relay.name);
                self.add(&key, why, "give each relay its own name");
            }
            if relay.roles.is_empty() {
                let remedy = "use \"ingress\", \"egress\" or both, or leave the key out";
                self.add(
                    &format!("relay[{i}].roles"),
                    "a relay without a role is of no use",
                    remedy,
                );
            }
        }
    }

    /// It measures relays of a directory, over circuits.
    fn scan(&mut self) {
        let Some(scan) = &self.config.scan else {
            return;
        };
        if !self.config.is_onion() || self.config.directory.is_none() {
            let why = "relays of a directory are measured, over circuits";
            self.add("scan", why, "add overlay = \"onion\" and [directory]");
        }
        for error in scan.wrongs() {
            self.add(error.key, &error.problem, "correct the value");
        }
    }

    fn issuers(&mut self) {
        let config = self.config;
        for (i, issuer) in config.issuer.iter().enumerate() {
            let earlier = config.issuer.iter().take(i);
            if issuer.name.is_empty() || earlier.clone().any(|other| other.name == issuer.name) {
                let why = "expected a name of its own";
                self.add(&format!("issuer[{i}].name"), why, "give each issuer one");
            }
            if earlier.clone().any(|other| other.stock == issuer.stock) {
                let why = "another issuer's tokens are in this file";
                self.add(&format!("issuer[{i}].stock"), why, "give each its own");
            }
            if issuer.token.is_none() && issuer.token_file.is_none() {
                let why = "without a token the issuer does not know whose account it is";
                self.add(
                    &format!("issuer[{i}].token"),
                    why,
                    "add `token` or `token_file`",
                );
            }
            if !(2..=64).contains(&issuer.keep) {
                let why = format!("expected 2 to 64, found {}", issuer.keep);
                self.add(&format!("issuer[{i}].keep"), why, "correct the number");
            }
        }
        let names: Vec<&str> = config.issuer.iter().map(|it| it.name.as_str()).collect();
        for (i, relay) in config.relay.iter().enumerate() {
            let Some(wanted) = relay.issuer.as_deref() else {
                if relay.origin.is_some() {
                    let why = "a name for tokens of an issuer, and no issuer";
                    self.add(
                        &format!("relay[{i}].origin"),
                        why,
                        "add `issuer`, or remove it",
                    );
                }
                continue;
            };
            let key = format!("relay[{i}].issuer");
            if !names.contains(&wanted) {
                let why = format!("no [[issuer]] has the name {wanted:?}");
                self.add(&key, why, &super::meant(wanted, &names));
            }
            if relay.token.is_some() || relay.token_file.is_some() {
                let why = "the relay has a token of its own as well, which links all connections";
                self.add(&key, why, "keep one of them");
            }
        }
    }

    /// Relays come from one place, so that nobody takes those of the file for what is used.
    fn listed(&mut self, directory: &Directory) {
        if !self.config.relay.is_empty() {
            let why = "the relays come from the list of [directory]";
            self.add("relay", why, "keep one of [[relay]] and [directory]");
        }
        if let Some(tor) = &directory.tor {
            self.tor_directory(directory, tor);
            return;
        }
        let (given, threshold) = (&directory.authorities, directory.threshold);
        let hostile = directory.hostile;
        let wrong = directory::complaints(self.document, "directory.", given, threshold, hostile);
        self.complaints.extend(wrong);
    }

    /// Tor's network has circuits alone, and its authorities are believed by majority.
    fn tor_directory(&mut self, directory: &Directory, tor: &TorDirectory) {
        if !self.config.is_onion() {
            let why = "relays of Tor's network carry circuits alone";
            self.add("directory.tor", why, "add overlay = \"onion\"");
        }
        let own = [
            ("authorities", !directory.authorities.is_empty()),
            ("caches", !directory.caches.is_empty()),
            ("threshold", directory.threshold != 0),
            ("hostile", directory.hostile.is_some()),
            ("region", directory.region.is_some()),
        ];
        for (key, _) in own.into_iter().filter(|(_, is_given)| *is_given) {
            let why = "this is of lists of Hoplite's authorities, and the relays come from [directory.tor]";
            self.add(
                &format!("directory.{key}"),
                why,
                "remove it, or [directory.tor]",
            );
        }
        let key = "directory.tor.authorities";
        let identities = tor.authorities.iter().map(|one| one.identity);
        let different: BTreeSet<_> = identities.collect();
        if different.is_empty() {
            let why = "without authorities no consensus can be believed";
            self.add(key, why, "name those of C tor's `DirAuthority` lines");
        } else if different.len() < tor.authorities.len() || different.len() > AUTHORITIES {
            let why = format!("expected 1 to {AUTHORITIES} authorities, each once");
            self.add(key, why, "remove those that are too many");
        }
    }

    fn length(&mut self) {
        let (given, hops) = (self.config.path.len(), self.config.hops);
        let longest = self.config.longest();
        match (given, hops) {
            // Circuits have three unless it is said.
            (0, None) if self.config.is_onion() && self.config.directory.is_some() => {}
            (0, None) => self.add(
                "path",
                "neither `path` nor `hops` is given",
                "name the relays, as in path = [\"a\", \"b\"], or say how many, as in hops = 2",
            ),
            (1.., Some(_)) => self.add(
                "hops",
                "`path` and `hops` are both given",
                "keep one of them",
            ),
            (0, Some(0)) => self.add(
                "hops",
                format!("expected 1 to {longest}, found 0"),
                "for measurements without any relay there is overlay = \"direct\"",
            ),
            (0, Some(n)) if !(1..=longest).contains(&n) => self.add(
                "hops",
                format!("expected 1 to {longest}, found {n}"),
                "correct the number",
            ),
            (n, None) if n > longest => self.add(
                "path",
                format!("expected 1 to {longest} relays, found {n}"),
                "shorten the path",
            ),
            _ => {}
        }
    }

    fn path(&mut self) {
        let path = &self.config.path;
        for (i, name) in path.iter().enumerate() {
            let key = format!("path[{i}]");
            if path.iter().take(i).any(|other| other == name) {
                self.add(
                    &key,
                    format!("{name:?} stands twice on the path"),
                    "use each relay once",
                );
                continue;
            }
            let Some(relay) = self.config.relay.iter().find(|relay| relay.name == *name) else {
                self.unknown(&key, name);
                continue;
            };
            let needed = if i + 1 == path.len() {
                Role::Egress
            } else {
                Role::Ingress
            };
            if !relay.roles.is_empty() && !relay.roles.contains(&needed) {
                let (role, place) = match needed {
                    Role::Egress => ("egress", "last"),
                    Role::Ingress => ("ingress", if i == 0 { "first" } else { "inner" }),
                };
                let why = format!(
                    "the {place} relay of a path must have the role \"{role}\", and {name:?} has not"
                );
                self.add(&key, why, "change the path, or correct the roles");
            }
        }
    }

    /// One relay under two names would see two hops.
    fn pins(&mut self) {
        let relay = |name: &String| self.config.relay.iter().find(|relay| relay.name == *name);
        let relays: Vec<_> = self.config.path.iter().map(relay).collect();
        let mut doubles = Vec::new();
        for (i, relay) in relays.iter().enumerate() {
            let Some(relay) = relay.filter(|relay| relay.pin.is_some()) else {
                continue;
            };
            let before = relays.iter().take(i).flatten();
            let double = before.filter(|other| other.pin == relay.pin && other.name != relay.name);
            doubles.extend(double.map(|other| {
                (
                    i,
                    format!(
                        "{:?} and {:?} are one relay: their pins are the same",
                        other.name, relay.name
                    ),
                )
            }));
        }
        for (i, why) in doubles {
            self.add(&format!("path[{i}]"), why, "use each relay once");
        }
    }

    fn unknown(&mut self, key: &str, name: &str) {
        let relays = self.config.relay.iter();
        let names: Vec<&str> = relays.map(|relay| relay.name.as_str()).collect();
        let remedy = super::meant(name, &names);
        let remedy = if names.is_empty() {
            "add a [[relay]] of this name".into()
        } else {
            remedy
        };
        self.add(key, format!("no [[relay]] has the name {name:?}"), &remedy);
    }

    /// With `hops`, there must be enough relays of each role and of different operators.
    fn choice(&mut self) {
        let longest = self.config.longest();
        let hops = self.config.hops;
        // Circuits are told of that elsewhere.
        let Some(hops) = hops.filter(|n| (1..=longest).contains(n) && !self.config.is_onion())
        else {
            return;
        };
        if self.config.path.is_empty() && !self.is_possible() {
            let why = format!(
                "the {} relays do not allow a path of {hops}: it needs {} of role \"ingress\" and one of role \"egress\", each relay and each operator once",
                self.config.relay.len(),
                hops - 1
            );
            self.add("hops", why, "add relays, or take fewer hops");
        }
    }

    fn is_possible(&self) -> bool {
        let (network, constraints) = (self.config.network(), self.config.constraints());
        network.select_path(&constraints, &mut |_| 0).is_ok()
    }

    fn device(&mut self) {
        if let Err(error) = self.config.transparent().check() {
            self.add(error.key, &error.problem, "correct the value");
        }
        let takeover = &self.config.takeover;
        if takeover.user == Some(0) {
            let why = "expected a user without rights, 0 is root";
            self.add("takeover.user", why, "leave it out, or give another one");
        }
        let lists = [
            (
                "takeover.exclude.addresses",
                takeover.exclude.addresses.len(),
            ),
            ("takeover.exclude.domains", takeover.exclude.domains.len()),
            ("takeover.exclude.users", takeover.exclude.users.len()),
            ("takeover.exclude.cgroups", takeover.exclude.cgroups.len()),
            (
                "takeover.exclude.interfaces",
                takeover.exclude.interfaces.len(),
            ),
            (
                "takeover.include.addresses",
                takeover.include.addresses.len(),
            ),
            ("takeover.include.domains", takeover.include.domains.len()),
            ("takeover.include.users", takeover.include.users.len()),
            ("takeover.include.cgroups", takeover.include.cgroups.len()),
            (
                "takeover.include.interfaces",
                takeover.include.interfaces.len(),
            ),
            ("takeover.gateway", takeover.gateway.len()),
        ];
        for (key, _) in lists
            .into_iter()
            .filter(|(_, length)| *length > LONGEST_LIST)
        {
            let why = format!("expected at most {LONGEST_LIST}");
            self.add(key, why, "write larger ranges");
        }
        self.interfaces();
    }

    /// Nothing leaves the machine by ours or by loopback, and by another either what is taken or what is not.
    fn interfaces(&mut self) {
        let takeover = &self.config.takeover;
        let (exclude, include) = (&takeover.exclude.interfaces, &takeover.include.interfaces);
        let (excluded, included) = ("takeover.exclude.interfaces", "takeover.include.interfaces");
        let all = exclude.iter().map(|it| (excluded, it));
        for (key, interface) in all.chain(include.iter().map(|it| (included, it))) {
            let name = interface.name();
            if name == "lo" || name == self.config.device.name {
                let why = format!("nothing leaves this machine by {name:?}");
                self.add(key, why, "leave it out");
            } else if key == included && exclude.contains(interface) {
                let why = format!("{name:?} is excluded as well");
                self.add(key, why, "keep it in one of them");
            }
        }
    }

    /// Each is a path like that of the file.
    fn routes(&mut self) {
        for (i, route) in self.config.route.iter().enumerate() {
            let table = format!("route[{i}].");
            if self.config.overlay != OverlayChoice::Masque || self.config.directory.is_some() {
                let why = "other paths are tunnels over relays of this file";
                let remedy = "remove it, or remove `overlay` and [directory] and name the relays";
                self.add(&format!("{table}domains"), why, remedy);
                continue;
            }
            if route.domains.is_empty() {
                let why = "no name takes this path";
                self.add(&format!("{table}domains"), why, "name the domains that do");
            }
            let before = self.config.route.iter().take(i);
            let twice =
                |domain: &&Domain| before.clone().any(|other| other.domains.contains(domain));
            if let Some(domain) = route.domains.iter().find(twice) {
                let why = format!("another path has {:?} already", domain.name().as_str());
                self.add(&format!("{table}domains"), why, "keep it in one of them");
            }
            let config = Config {
                path: route.path.clone(),
                hops: route.hops,
                ..self.config.clone()
            };
            let mut checker = Checker {
                config: &config,
                document: self.document,
                complaints: Vec::new(),
                table,
            };
            checker.length();
            checker.path();
            checker.pins();
            checker.choice();
            self.complaints.extend(checker.complaints);
        }
    }

    /// Where only some names are taken, all programs ask us, and are told addresses that stand for those names.
    fn included_domains(&mut self) {
        let takeover = &self.config.takeover;
        if takeover.include.domains.is_empty() {
            return;
        }
        let wrong = [
            (
                !takeover.include.users.is_empty(),
                "a name is taken for all users, or for none",
                "leave out takeover.include.users",
            ),
            (
                !takeover.include.cgroups.is_empty(),
                "a name is taken for all programs, or for none",
                "leave out takeover.include.cgroups",
            ),
            (
                !takeover.include.interfaces.is_empty(),
                "a name is taken wherever it leads",
                "leave out takeover.include.interfaces",
            ),
            (
                takeover.dns == Dns::Off,
                "names are told apart when they are asked for, and takeover.dns = \"off\" leaves that to others",
                "leave out takeover.dns",
            ),
        ];
        for (_, why, remedy) in wrong.into_iter().filter(|(is_so, ..)| *is_so) {
            self.add("takeover.include.domains", why, remedy);
        }
    }

    fn front_ends(&mut self) {
        if let Err(error) = self.config.front().check() {
            self.add(error.key, &error.problem, "correct the value");
        }
        let (socks, http) = (self.config.socks.listen, self.config.http.listen);
        match (socks, http) {
            (Listen::Off, Listen::Off) => self.add(
                "socks.listen",
                "neither SOCKS nor HTTP listens",
                "give one of them an address",
            ),
            (Listen::At(a), Listen::At(b)) if a == b && a.port() != 0 => self.add(
                "http.listen",
                "SOCKS listens there already",
                "use another port",
            ),
            _ => {}
        }
    }
}

/// What is allowed, but probably not meant.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.is_direct() {
        warnings.push(
            "overlay = \"direct\": nothing is hidden: targets see this device, and its network sees the targets; it is for measurements".into(),
        );
    }
    if config.length() == 1 {
        warnings.push(
            "one relay sees both you and your targets; two of different operators do not".into(),
        );
    }
    for (what, remote) in [("socks", config.socks.remote), ("http", config.http.remote)] {
        if remote {
            warnings.push(format!(
                "{what}.remote is set: who reaches that address can use this client"
            ));
        }
    }
    warnings.extend(past_relays(config));
    warnings.extend(same_operator(config));
    warnings.extend(identity(config));
    warnings
}

/// What is excluded is seen by the network, and by its targets.
fn past_relays(config: &Config) -> Option<String> {
    let exclude = &config.takeover.exclude;
    let is_nothing =
        exclude == &Exclude::default() && config.takeover.include == Include::default();
    (!is_nothing).then(|| {
        "takeover.exclude or takeover.include: with `hoplite up` some traffic goes past the relays, and hides nothing".into()
    })
}

/// Who watches both sides of a relay recognises packets that nothing is done to.
fn identity(config: &Config) -> Option<String> {
    let is_forwarded = |relay: &Relay| relay.mode.unwrap_or(config.tunnel.mode) != Mode::Tunnelled;
    let forwards = config.overlay == OverlayChoice::Masque && config.relay.iter().any(is_forwarded);
    (forwards && config.tunnel.transform == Transform::Identity).then(|| {
        "tunnel.transform is \"identity\": who sees the packets on both sides of a relay can match them".into()
    })
}

fn same_operator(config: &Config) -> Option<String> {
    let operator = |name: &String| {
        config
            .relay
            .iter()
            .find(|relay| relay.name == *name)?
            .operator
            .as_deref()
    };
    let mut seen = Vec::new();
    for operator in config.path.iter().filter_map(operator) {
        if seen.contains(&operator) {
            return Some(format!(
                "two relays of the path are run by {operator:?}, who may see both ends"
            ));
        }
        seen.push(operator);
    }
    None
}

impl Checker<'_> {
    /// The relays of the path, and `[onion]`.
    fn circuits(&mut self) {
        for error in self.config.onion.check() {
            self.add(error.key, &error.problem, "correct the number");
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
