//! `[[workload]]`s of one case: what is carried, from where to where, when. `workload::Plan` says what each key means.

use std::{collections::BTreeSet, time::Duration};

use super::{
    document::{Wrong, quoted},
    expression::Value,
    network::nearest,
    reader::{Reader, name, one_of},
    subject_file::Needs,
    units,
};
use crate::{
    experiments::workload::{
        Bulk, Choice, Congestion, Kind, Plan, Tuning,
        browse::{Browse, BrowserName, pages},
    },
    netns::process::find_program,
    topology::{NodeKind, Topology},
};

const MOST: usize = 2000;
const MOST_TIMES: u64 = 1_000_000;
const MOST_CHOICES: usize = 100;
/// IPv4's largest datagram.
const LARGEST_DATAGRAM: u64 = 65_507;
/// QUIC's smallest largest packet (RFC 9000 §14.1).
const SMALLEST_PACKET: u64 = 1200;

/// A page that takes longer has not been loaded, and a browser that takes longer to start does not. A page with a long tail takes half a minute at 1 Mbit/s.
const PAGE: Duration = Duration::from_secs(60);
const BROWSER: Duration = Duration::from_secs(60);

/// Keys of every `[[workload]]`.
const KEYS: &str = "name as kind from to group at direct may_fail stall timeout when repeat";

/// Kinds and their own keys.
const KINDS: [(&str, &str); 8] = [
    ("download", "bytes time connections count pause resolver"),
    ("upload", "bytes time connections count pause resolver"),
    ("request", "request response count pause resolver"),
    ("udp-echo", "size count interval"),
    ("udp-rate", "size rate time down"),
    ("schedule", "choices count"),
    (
        "http",
        "version bytes count parallel fresh upload congestion packet",
    ),
    ("browse", "browser pages visits seed settle resolver"),
];

/// Reads all workloads of a case.
pub(crate) fn workloads(root: Reader<'_>, topology: &Topology) -> Vec<Plan> {
    let (mut plans, mut names) = (Vec::new(), BTreeSet::new());
    if root.list("workload").is_empty() {
        root.missing("workload", "at least one [[workload]]");
    }
    for entry in root.tables("workload") {
        for scope in entry.instances() {
            let entry = Reader {
                scope: &scope,
                ..entry
            };
            let Some(plan) = workload(entry, topology) else {
                continue;
            };
            if !names.insert(plan.name.clone()) {
                let what = format!(
                    "there are two workloads with the name {}",
                    quoted(&plan.name)
                );
                entry.wrong("name", what, "another name; {i} tells repeated ones apart");
            }
            check_names(entry, &plan, &plans);
            plans.push(plan);
            if plans.len() > MOST {
                entry.wrong(
                    "name",
                    "there are too many workloads",
                    format!("at most {MOST}"),
                );
                return plans;
            }
        }
    }
    plans
}

fn workload(entry: Reader<'_>, topology: &Topology) -> Option<Plan> {
    let words: Vec<(&str, usize)> = KINDS
        .iter()
        .zip(0..)
        .map(|((name, _), i)| (*name, i))
        .collect();
    let (word, own) = *KINDS.get(entry.need(
        "kind",
        "what it does, such as kind = \"download\"",
        |value| one_of(value, &words),
    )?)?;
    entry.only(&format!("{KEYS} {own}"));
    let name = match entry.table.node("name") {
        Some(_) => entry.read("name", name)?,
        None => word.to_owned(),
    };
    let from = host(entry, "from", "client", topology);
    let servers = servers(entry, topology);
    let to = servers.as_ref().and_then(|servers| servers.first());
    let kind = kind(word, entry);
    let resolver = match entry.table.node("resolver") {
        Some(_) => Some(host(entry, "resolver", "resolver", topology)?),
        // Pages have names.
        None => to.cloned().filter(|_| word == "browse"),
    };
    let (from, servers, kind) = (from?, servers?, kind?);
    let to = servers.first()?.clone();
    let (stall, timeout) = match &kind {
        Kind::Browse(_) => (BROWSER, PAGE),
        _ => (Plan::STALL, Plan::TIMEOUT),
    };
    if servers.contains(&from) {
        let what = format!("it goes from {} to itself", quoted(&from));
        entry.wrong("to", what, "another host");
    }
    let several = servers.len() > 1;
    if several && !matches!(kind, Kind::Download(_) | Kind::Upload(_)) {
        let what = "only downloads and uploads choose among servers";
        entry.wrong("to", what, "one host");
    } else if several && resolver.is_some() {
        entry.wrong("resolver", "names lead to one server", "one host in `to`");
    }
    Some(Plan {
        counted_as: counted_as(entry, &name),
        name,
        group: entry.text("group").unwrap_or_else(|| "1".into()),
        at: entry.read("at", units::duration).unwrap_or_default(),
        from,
        to,
        resolver,
        among: if several { servers } else { Vec::new() },
        direct: entry.flag("direct", false),
        may_fail: entry.flag("may_fail", false),
        stall: entry.read("stall", some_time).unwrap_or(stall),
        timeout: entry.read("timeout", some_time).unwrap_or(timeout),
        kind,
    })
}

/// Names have one address and one resolver in a case, for all hosts of a world have one file of resolvers.
fn check_names(entry: Reader<'_>, plan: &Plan, others: &[Plan]) {
    let place = |plan: &Plan| Some((plan.to.clone(), plan.resolver.clone()?));
    let (own, other) = (place(plan), others.iter().find_map(place));
    if own.is_some() && other.is_some() && own != other {
        entry.wrong(
            "to",
            "another workload whose server has names has another host or resolver",
            "the same hosts for all of them",
        );
    }
}

/// The programs that workloads start.
pub(crate) fn needs(plans: &[Plan]) -> Vec<Needs> {
    let mut needs = Vec::new();
    for plan in plans {
        let Kind::Browse(browse) = &plan.kind else {
            continue;
        };
        let programs = browse.browser.programs();
        let there = programs.iter().find(|name| find_program(name).is_some());
        let program = *there.unwrap_or(&programs[0]);
        needs.push(Needs {
            command: program.into(),
            install: format!("apt-get install {}", browse.browser.packages()),
            version: vec![program.into(), "--version".into()],
        });
        needs.push(Needs {
            command: "certutil".into(),
            install: "apt-get install libnss3-tools".into(),
            version: Vec::new(),
        });
    }
    needs
}

/// What several workloads are called together. The report knows a failed transfer by its workload's name alone, which therefore begins with it.
fn counted_as(entry: Reader<'_>, own: &str) -> Option<String> {
    entry.read("as", |value| {
        let word = name(value)?;
        if own.starts_with(&word) {
            return Ok(word);
        }
        let what = format!("the name {} does not begin with it", quoted(own));
        Err(Wrong::new(what, "a beginning of the workload's name"))
    })
}

/// `to`: a host, or a list of those that transfers choose among.
fn servers(entry: Reader<'_>, topology: &Topology) -> Option<Vec<String>> {
    let list = match entry.table.node("to") {
        Some(_) => entry.value("to")?,
        None => return host(entry, "to", "server", topology).map(|host| vec![host]),
    };
    let Value::List(list) = &list.value else {
        return host(entry, "to", "server", topology).map(|host| vec![host]);
    };
    let mut hosts = Vec::new();
    for value in list.iter() {
        let known = name(value).and_then(|host| host_of(topology, &host).map(|()| host));
        match known {
            Ok(host) if hosts.contains(&host) => {
                let what = format!("{} is there twice", quoted(&host));
                entry.wrong("to", what, "each host once");
            }
            Ok(host) => hosts.push(host),
            Err(wrong) => entry.refuse("to", wrong),
        }
    }
    if list.is_empty() {
        entry.wrong("to", "the list is empty", "at least one host");
    }
    (!hosts.is_empty()).then_some(hosts)
}

fn host(entry: Reader<'_>, key: &str, default: &str, topology: &Topology) -> Option<String> {
    let known = |value: &Value| {
        let host = name(value)?;
        host_of(topology, &host).map(|()| host)
    };
    match entry.table.node(key) {
        Some(_) => entry.read(key, known),
        None if host_of(topology, default).is_ok() => Some(default.to_owned()),
        None => {
            let hosts = nearest(default, hosts(topology));
            entry.missing(
                key,
                &format!("{hosts} (only if there is a host \"{default}\" it may be left out)"),
            );
            None
        }
    }
}

/// Whether there is such a host.
pub(crate) fn host_of(topology: &Topology, name: &str) -> Result<(), Wrong> {
    if hosts(topology).any(|host| host == name) {
        return Ok(());
    }
    let router = topology.nodes.iter().any(|node| node.name == name);
    let what = if router {
        "is a router, not a host"
    } else {
        "is not a host"
    };
    Err(Wrong::new(
        format!("{} {what}", quoted(name)),
        nearest(name, hosts(topology)),
    ))
}

fn hosts(topology: &Topology) -> impl Iterator<Item = &str> {
    let hosts = topology
        .nodes
        .iter()
        .filter(|node| node.kind == NodeKind::Host);
    hosts.map(|node| node.name.as_str())
}

fn kind(word: &str, entry: Reader<'_>) -> Option<Kind> {
    match word {
        "download" => bulk(entry).map(Kind::Download),
        "upload" => bulk(entry).map(Kind::Upload),
        "request" => Some(request(entry)),
        "udp-echo" => udp_echo(entry),
        "udp-rate" => udp_rate(entry),
        "schedule" => schedule(entry),
        "browse" => Some(Kind::Browse(browse(entry))),
        _ => http(entry),
    }
}

fn bulk(entry: Reader<'_>) -> Option<Bulk> {
    let bytes = entry.read("bytes", some_bytes);
    let time = entry.read("time", some_time);
    let both = ["bytes", "time"].map(|key| entry.table.node(key).is_some());
    match both {
        [false, false] => entry.missing("bytes", "bytes = \"2MB\", or time = \"10s\""),
        [true, true] => entry.wrong("time", "there are bytes too", "bytes or time"),
        _ => {}
    }
    (bytes.is_some() || time.is_some()).then(|| Bulk {
        bytes: bytes.unwrap_or(0),
        time: time.unwrap_or_default(),
        connections: entry.count("connections", 1, 1, 1000),
        count: times(entry, 1),
        pause: pause(entry),
    })
}

fn request(entry: Reader<'_>) -> Kind {
    Kind::Request {
        request: entry.read("request", units::size).unwrap_or(100),
        response: entry.read("response", units::size).unwrap_or(1000),
        count: times(entry, 10),
        pause: pause(entry),
    }
}

fn udp_echo(entry: Reader<'_>) -> Option<Kind> {
    let size = datagram(entry, 64);
    let interval = entry.read("interval", some_time);
    Some(Kind::UdpEcho {
        size,
        count: times(entry, 100),
        interval: interval.unwrap_or(Duration::from_millis(20)),
    })
}

fn udp_rate(entry: Reader<'_>) -> Option<Kind> {
    let rate = entry.need(
        "rate",
        "bits of payload per second, such as rate = \"1Mbit\"",
        units::bits,
    );
    let time = entry.need("time", "how long, such as time = \"10s\"", some_time);
    Some(Kind::UdpRate {
        size: datagram(entry, 1200),
        rate: rate?,
        time: time?,
        down: entry.flag("down", false),
    })
}

fn schedule(entry: Reader<'_>) -> Option<Kind> {
    if entry.table.node("choices").is_none() {
        entry.missing("choices", "a list such as [{ recvsize = \"50kB\", weight = 12 }, { recvsize = \"1MB\", weight = 4 }]");
    }
    let choices: Vec<Choice> = entry
        .tables("choices")
        .into_iter()
        .filter_map(choice)
        .take(MOST_CHOICES + 1)
        .collect();
    let total: f64 = choices.iter().map(|choice| choice.weight).sum();
    if choices.len() > MOST_CHOICES {
        entry.wrong(
            "choices",
            "there are too many",
            format!("at most {MOST_CHOICES}"),
        );
    } else if total == 0.0 && entry.table.node("choices").is_some() {
        entry.wrong(
            "choices",
            "nothing can be drawn",
            "at least one with a weight above 0",
        );
    }
    (total > 0.0).then(|| Kind::Schedule {
        choices,
        count: times(entry, 10),
    })
}

fn choice(entry: Reader<'_>) -> Option<Choice> {
    entry.only("sendsize recvsize pause weight");
    let sendsize = entry.read("sendsize", units::size).unwrap_or(0);
    let recvsize = entry.read("recvsize", units::size).unwrap_or(0);
    if sendsize == 0 && recvsize == 0 {
        entry.missing(
            "recvsize",
            "bytes to the server (sendsize) or from it (recvsize)",
        );
    }
    let weight = entry.read("weight", units::number).unwrap_or(1.0);
    Some(Choice {
        sendsize,
        recvsize,
        pause: pause(entry),
        weight,
    })
}

fn http(entry: Reader<'_>) -> Option<Kind> {
    let version = entry.need("version", "1, 2 or 3", |value| units::count(value, 1, 3));
    let bytes = entry.need(
        "bytes",
        "the size of each body, such as bytes = \"2MB\"",
        units::size,
    );
    let version = u8::try_from(version?).ok()?;
    for key in ["upload", "congestion", "packet"] {
        if version != 3 && entry.table.node(key).is_some() {
            entry.wrong(key, "only HTTP/3 has it", "version = 3");
        }
    }
    Some(Kind::Http {
        version,
        bytes: bytes?,
        count: times(entry, 1),
        parallel: entry.count("parallel", 1, 1, 1000),
        fresh: entry.flag("fresh", false),
        upload: entry.flag("upload", false),
        tuning: tuning(entry),
    })
}

fn tuning(entry: Reader<'_>) -> Tuning {
    let words = [
        ("cubic", Congestion::Cubic),
        ("bbr", Congestion::Bbr),
        ("newreno", Congestion::Newreno),
    ];
    let congestion = entry.read("congestion", |value| one_of(value, &words));
    let packet = entry.read("packet", |value| {
        units::count(value, SMALLEST_PACKET, LARGEST_DATAGRAM)
    });
    Tuning {
        congestion: congestion.unwrap_or_default(),
        packet: short(packet.unwrap_or(0)),
    }
}

fn browse(entry: Reader<'_>) -> Browse {
    let words = [
        ("firefox", BrowserName::Firefox),
        ("chromium", BrowserName::Chromium),
    ];
    let settle = entry.read("settle", units::duration);
    Browse {
        browser: entry
            .read("browser", |value| one_of(value, &words))
            .unwrap_or_default(),
        pages: entry.count("pages", 100, 1, pages::MOST_PAGES.into()),
        visits: entry.count("visits", 1, 1, 1000),
        seed: entry.count("seed", 1, 0, 1 << 53),
        settle: settle.unwrap_or(Duration::from_secs(1)),
    }
}

fn times(entry: Reader<'_>, default: u32) -> u32 {
    entry.count("count", default, 1, MOST_TIMES)
}

fn pause(entry: Reader<'_>) -> Duration {
    entry.read("pause", units::duration).unwrap_or_default()
}

fn datagram(entry: Reader<'_>, default: u64) -> u16 {
    let size = entry.read("size", |value| {
        let size = units::size(value)?;
        units::count(
            &Value::Number(f64::from(u32::try_from(size).unwrap_or(u32::MAX))),
            16,
            LARGEST_DATAGRAM,
        )
    });
    short(size.unwrap_or(default))
}

fn short(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

fn some_bytes(value: &Value) -> Result<u64, Wrong> {
    match units::size(value)? {
        0 => Err(Wrong::new("0 bytes are nothing", "at least 1")),
        bytes => Ok(bytes),
    }
}

fn some_time(value: &Value) -> Result<Duration, Wrong> {
    let time = units::duration(value)?;
    if time.is_zero() {
        return Err(Wrong::new("it is 0", "a time above 0"));
    }
    Ok(time)
}
