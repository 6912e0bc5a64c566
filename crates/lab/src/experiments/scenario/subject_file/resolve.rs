//! A subject's files, steps and ways with every expression computed, checked against the hosts that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Component, Path},
    time::Duration,
};

use super::Places;
use crate::{
    experiments::{
        scenario::{
            document::{Item, Node, Wrong, meant, quoted},
            expression::Value,
            reader::{Reader, name, one_of, text},
            template::{Placeholder, Template},
            units,
            workloads::host_of,
        },
        subject::{File, Plan, Ready, Run, Step, WayIn},
        workload::Way,
    },
    topology::{Addresses, Topology},
};

const FILE_KEYS: &str = "path text mode repeat when";
const STEP_KEYS: &str = "name host command env run ready ready_within together repeat when";
const WAY_KEYS: &str = "host way address udp target repeat when";
const READY_KEYS: &str = "log file text tcp interface command";
const MOST: usize = 2000;
/// As much as Linux takes of one argument.
const LONGEST_COMMAND: usize = 128 << 10;

/// Where a subject is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// The network.
    pub(crate) topology: &'a Topology,
    /// Its hosts' addresses.
    pub(crate) addresses: &'a BTreeMap<String, Addresses>,
    /// The binaries.
    pub(crate) places: &'a Places,
}

/// Complains about unknown keys, whatever `when` says.
pub(super) fn check_keys(root: Reader<'_>) {
    let only = |of: Reader<'_>, key: &str, known: &str| {
        of.tables(key).iter().for_each(|entry| entry.only(known));
    };
    only(root, "file", FILE_KEYS);
    only(root, "step", STEP_KEYS);
    only(root, "way", WAY_KEYS);
    for step in root.tables("step") {
        only(step, "ready", READY_KEYS);
    }
}

/// All of it.
pub(super) fn plan(root: Reader<'_>, site: &Site<'_>) -> Plan {
    let (mut steps, mut ways, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    each(root, "step", |entry| {
        let step = step(entry, site, &names);
        if let Some(step) = &step
            && !names.insert(step.name.clone())
        {
            let what = format!("there are two steps with the name {}", quoted(&step.name));
            let allowed = "another name; {i} tells repeated ones apart";
            entry.wrong("name", what, allowed);
        }
        steps.extend(step);
    });
    each(root, "way", |entry| ways.extend(way(entry, site, &names)));
    check_ways(root, &ways);
    Plan {
        files: files(root, site, &names),
        steps,
        ways,
        ..Plan::default()
    }
}

/// Every instance of every entry.
fn each(root: Reader<'_>, key: &str, mut read: impl FnMut(Reader<'_>)) {
    let mut count = 0;
    for entry in root.tables(key) {
        for scope in entry.instances() {
            count += 1;
            if count > MOST {
                root.wrong(key, "there are too many", format!("at most {MOST}"));
                return;
            }
            read(Reader {
                scope: &scope,
                ..entry
            });
        }
    }
}

/// Files of one path are joined in order.
fn files(root: Reader<'_>, site: &Site<'_>, steps: &BTreeSet<String>) -> Vec<File> {
    let mut files: Vec<File> = Vec::new();
    each(root, "file", |entry| {
        let Some(file) = file(entry, site, steps) else {
            return;
        };
        match files.iter_mut().find(|other| other.path == file.path) {
            Some(other) => other.text.push_str(&file.text),
            None => files.push(file),
        }
    });
    files
}

fn file(entry: Reader<'_>, site: &Site<'_>, steps: &BTreeSet<String>) -> Option<File> {
    check_placeholders(
        entry,
        entry.table.node("text"),
        site,
        &Placeholders::File(steps),
    );
    let path = entry.need(
        "path",
        "where it is written, such as path = \"relay{i}.toml\"",
        below,
    );
    let text = entry.need("text", "what is written", text);
    Some(File {
        path: path?,
        text: text?,
        mode: entry.count("mode", 0o644, 0, 0o7777),
    })
}

/// A path that cannot leave the attempt's directory.
fn below(value: &Value) -> Result<String, Wrong> {
    let path = text(value)?;
    let path = path.strip_prefix("{dir}/").unwrap_or(&path).to_owned();
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    if !path.is_empty()
        && !path.contains(['{', '}', '\0'])
        && Path::new(&path).components().all(plain)
    {
        return Ok(path);
    }
    Err(Wrong::new(
        format!("{} is not possible", value.shown()),
        "a path below the attempt's directory, without ..",
    ))
}

fn step(entry: Reader<'_>, site: &Site<'_>, done: &BTreeSet<String>) -> Option<Step> {
    const RUNS: [(&str, Run); 3] = [
        ("daemon", Run::Daemon),
        ("once", Run::Once),
        ("once-per-campaign", Run::OncePerCampaign),
    ];
    let earlier = Placeholders::Step(done);
    check_placeholders(entry, entry.table.node("command"), site, &earlier);
    check_placeholders(entry, entry.table.node("env"), site, &earlier);
    check_placeholders(entry, entry.table.node("ready"), site, &earlier);
    let name = entry.need("name", "its name in logs and results", name);
    let host = host(entry, site);
    let command = command(entry, "command");
    Some(Step {
        name: name?,
        host: host?,
        command: command?,
        env: env(entry),
        run: entry
            .read("run", |value| one_of(value, &RUNS))
            .unwrap_or_default(),
        ready: entry
            .tables("ready")
            .into_iter()
            .filter_map(|ready| self::ready(ready, site))
            .collect(),
        ready_within: entry
            .read("ready_within", units::duration)
            .unwrap_or(Duration::from_secs(30)),
        together: entry.flag("together", false),
    })
}

fn host(entry: Reader<'_>, site: &Site<'_>) -> Option<String> {
    entry.need(
        "host",
        "where it runs, such as host = \"client\"",
        |value| {
            let host = name(value)?;
            let known = host_of(site.topology, &host);
            known.map_err(|wrong| {
                Wrong::new(
                    format!("the subject needs a host: {}", wrong.what),
                    wrong.allowed,
                )
            })?;
            Ok(host)
        },
    )
}

/// A list of texts; a list among them becomes several.
fn command(entry: Reader<'_>, key: &str) -> Option<Vec<String>> {
    if entry.table.node(key).is_none() {
        entry.missing(
            key,
            "the program and its arguments, such as command = [\"tor\", \"-f\", \"{dir}/torrc\"]",
        );
        return None;
    }
    let mut words = Vec::new();
    for node in entry.list(key) {
        match entry.evaluated(node)?.value {
            Value::List(list) => words.extend(list.iter().map(Value::text)),
            value => words.push(value.text()),
        }
    }
    if words.iter().map(String::len).sum::<usize>() > LONGEST_COMMAND {
        let allowed = format!("at most {LONGEST_COMMAND} bytes");
        entry.wrong(key, "the command is too long", allowed);
        return None;
    }
    if words.first().is_none_or(String::is_empty) {
        entry.wrong(key, "there is no program", "the program and its arguments");
        return None;
    }
    Some(words)
}

fn env(entry: Reader<'_>) -> BTreeMap<String, String> {
    let Some(env) = entry.table("env") else {
        return BTreeMap::new();
    };
    let read = |pair: &crate::experiments::scenario::document::Entry| {
        Some((pair.key.clone(), env.read_node(&pair.node, text)?))
    };
    env.table.entries.iter().filter_map(read).collect()
}

fn ready(entry: Reader<'_>, site: &Site<'_>) -> Option<Ready> {
    let has = |key: &str| entry.table.node(key).is_some();
    match () {
        () if has("log") => entry.text("log").map(Ready::Log),
        () if has("file") => {
            let text = entry.need("text", "what stands in the file when it is ready", text);
            Some(Ready::File {
                path: entry.text("file")?,
                text: text?,
            })
        }
        () if has("tcp") => entry
            .read("tcp", |value| address(value, site))
            .map(Ready::Tcp),
        () if has("interface") => entry.text("interface").map(Ready::Interface),
        () if has("command") => command(entry, "command").map(Ready::Command),
        () => {
            entry.missing(
                "log",
                "one of log, file (with text), tcp, interface, command",
            );
            None
        }
    }
}

fn way(entry: Reader<'_>, site: &Site<'_>, steps: &BTreeSet<String>) -> Option<WayIn> {
    check_placeholders(
        entry,
        entry.table.node("target"),
        site,
        &Placeholders::Step(steps),
    );
    let host = host(entry, site);
    let word = entry.read("way", |value| {
        one_of(value, &[("socks", 0), ("http", 1), ("direct", 2)])
    });
    let way = match word {
        Some(2) => Way::Direct,
        Some(1) => Way::Http {
            address: listens(entry, site)?,
        },
        Some(_) => Way::Socks {
            address: listens(entry, site)?,
            udp: entry.flag("udp", false),
        },
        None => {
            if entry.table.node("way").is_none() {
                entry.missing("way", "socks, http or direct");
            }
            return None;
        }
    };
    Some(WayIn {
        host: host?,
        way,
        target: entry.text("target"),
    })
}

fn listens(entry: Reader<'_>, site: &Site<'_>) -> Option<SocketAddr> {
    entry.need(
        "address",
        "where it listens, such as address = \"127.0.0.1:1080\"",
        |value| address(value, site),
    )
}

fn check_ways(root: Reader<'_>, ways: &[WayIn]) {
    let mut hosts = BTreeSet::new();
    if let Some(twice) = ways.iter().find(|way| !hosts.insert(&way.host)) {
        let what = format!("the host {} has two ways in", quoted(&twice.host));
        root.wrong("way", what, "at most one for each host");
    }
}

/// Address and port; a host's address may be given as `{ip:HOST}` or `[{ip6:HOST}]`.
fn address(value: &Value, site: &Site<'_>) -> Result<SocketAddr, Wrong> {
    let text = text(value)?;
    let of = |before: &str, behind: &str| {
        let (host, port) = text.strip_prefix(before)?.split_once(behind)?;
        Some((site.addresses.get(host)?, port.parse().ok()?))
    };
    if let Some((host, port)) = of("{ip:", "}:") {
        return Ok(SocketAddr::from((host.v4, port)));
    }
    if let Some((host, port)) = of("[{ip6:", "}]:") {
        return Ok(SocketAddr::from((host.v6, port)));
    }
    let wrong = |_| {
        Wrong::new(
            format!("{} is not an address", value.shown()),
            "an address and a port, such as \"127.0.0.1:1080\" or \"{ip:relay1}:443\"",
        )
    };
    text.parse().map_err(wrong)
}

/// Which placeholders may stand in a text besides directories and hosts' addresses.
enum Placeholders<'a> {
    /// A file: what steps write; it is made as soon as they have.
    File(&'a BTreeSet<String>),
    /// A step: also what is in files.
    Step(&'a BTreeSet<String>),
}

fn check_placeholders(
    entry: Reader<'_>,
    node: Option<&Node>,
    site: &Site<'_>,
    allowed: &Placeholders<'_>,
) {
    let Some(node) = node else { return };
    match &node.item {
        Item::List(list) => list
            .iter()
            .for_each(|node| check_placeholders(entry, Some(node), site, allowed)),
        Item::Table(table) => table
            .entries
            .iter()
            .for_each(|pair| check_placeholders(entry, Some(&pair.node), site, allowed)),
        Item::Text(text) => {
            let placeholders = Template::parse(text, entry.owner)
                .and_then(|template| template.placeholders(entry.scope));
            let wrong = placeholders.and_then(|placeholders| {
                placeholders
                    .iter()
                    .try_for_each(|placeholder| allowed.check(placeholder, site))
            });
            if let Err(wrong) = wrong {
                entry.complaints.add(node.at, wrong);
            }
        }
        _ => {}
    }
}

impl Placeholders<'_> {
    fn check(
        &self,
        (placeholder, name): &(Placeholder, String),
        site: &Site<'_>,
    ) -> Result<(), Wrong> {
        match (placeholder, self) {
            (Placeholder::Dir | Placeholder::Shared, _) | (Placeholder::File, Self::Step(_)) => {
                Ok(())
            }
            (Placeholder::Ip | Placeholder::Ip6, _) => host_of(site.topology, name),
            (Placeholder::Out, Self::File(steps) | Self::Step(steps)) if steps.contains(name) => {
                Ok(())
            }
            (Placeholder::Out, Self::File(steps)) => Err(no_step(name, steps, "is there")),
            (Placeholder::Out, Self::Step(steps)) => Err(no_step(name, steps, "comes before")),
            (Placeholder::File, Self::File(_)) => Err(Wrong::new(
                "a file cannot hold another",
                "{file:PATH} in commands, env, ready and targets",
            )),
        }
    }
}

fn no_step(name: &str, steps: &BTreeSet<String>, how: &str) -> Wrong {
    let allowed = meant(name, steps.iter().map(String::as_str));
    Wrong::new(format!("no step {} {how}", quoted(name)), allowed)
}
