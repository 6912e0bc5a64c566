//! `[[host]]`, `[[router]]` and `[[link]]` of one case, as a `Topology`.
//! Everything must be reachable from everything: a node that is not is nearly always a mistake in a name.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    document::{Item, Wrong, listed, meant, quoted},
    expression::{Scope, Value},
    reader::{Reader, flag, name, one_of, text},
    units,
};
use crate::{
    emulator::trace,
    topology::{Direction, Discipline, Jitter, JitterShape, Link, Loss, Node, NodeKind, Topology},
};

const MOST_HOSTS: usize = 1000;
const MOST_ROUTERS: usize = 1000;
const MOST_LINKS: usize = 5000;

/// Keys of a `[[host]]` and a `[[router]]`.
const NODE_KEYS: &str = "name repeat when";

/// Draws the network of a case.
pub(crate) fn network(root: Reader<'_>, traces: &Traces<'_>) -> Topology {
    let mut drawing = Drawing::default();
    drawing.nodes(root, "host", NodeKind::Host, MOST_HOSTS);
    drawing.nodes(root, "router", NodeKind::Router, MOST_ROUTERS);
    if drawing
        .topology
        .nodes
        .iter()
        .all(|node| node.kind == NodeKind::Router)
    {
        root.missing(
            "host",
            "at least one, such as [[host]] with name = \"client\"",
        );
        return drawing.topology;
    }
    drawing.links(root, traces);
    drawing.check_connected(root);
    drawing.topology
}

#[derive(Default)]
struct Drawing {
    topology: Topology,
    /// Where each node is drawn.
    places: BTreeMap<String, usize>,
    links: BTreeSet<String>,
    /// A link that was drawn wrongly would make others look unconnected.
    broken: bool,
}

impl Drawing {
    fn nodes(&mut self, root: Reader<'_>, key: &str, kind: NodeKind, most: usize) {
        let mut count = 0;
        for entry in root.tables(key) {
            entry.only(NODE_KEYS);
            for scope in entry.instances() {
                count += 1;
                if count > most {
                    entry.wrong(
                        "name",
                        format!("there are too many {key}s"),
                        format!("at most {most}"),
                    );
                    return;
                }
                self.node(
                    Reader {
                        scope: &scope,
                        ..entry
                    },
                    kind,
                );
            }
        }
    }

    fn node(&mut self, entry: Reader<'_>, kind: NodeKind) {
        let Some(name) = entry.need("name", "what links and workloads call it", name) else {
            self.broken = true;
            return;
        };
        if name.eq_ignore_ascii_case("localhost") {
            let what = "every host calls itself localhost";
            entry.wrong("name", what, "another name");
        }
        if self.places.insert(name.clone(), entry.table.at).is_some() {
            let what = format!("there are two nodes with the name {}", quoted(&name));
            entry.wrong("name", what, "another name; {i} tells repeated ones apart");
            return;
        }
        self.topology.nodes.push(Node { name, kind });
    }

    fn links(&mut self, root: Reader<'_>, traces: &Traces<'_>) {
        for entry in root.tables("link") {
            entry.only(&format!("{LINK_KEYS} {DIRECTION_KEYS}"));
            for scope in entry.instances() {
                if self.topology.links.len() == MOST_LINKS {
                    entry.wrong(
                        "ends",
                        "there are too many links",
                        format!("at most {MOST_LINKS}"),
                    );
                    return;
                }
                let drawn = self.link(&entry, &scope, traces);
                self.broken |= drawn.is_none();
                self.topology.links.extend(drawn);
            }
        }
    }

    /// All of it is read, so that all mistakes are told.
    fn link(&mut self, entry: &Reader<'_>, scope: &Scope, traces: &Traces<'_>) -> Option<Link> {
        let entry = Reader { scope, ..*entry };
        let ends = self.ends(entry);
        let name = self.name(entry, ends.as_ref());
        let [forward, back] = directions(entry, traces);
        let mtu = mtu(entry);
        Some(Link {
            name: name?,
            ends: ends?,
            mtu,
            forward,
            back,
        })
    }

    fn name(&mut self, entry: Reader<'_>, ends: Option<&[String; 2]>) -> Option<String> {
        let given = entry.table.node("name").is_some();
        let name = if given {
            entry.read("name", name)?
        } else {
            let [first, second] = ends?;
            format!("{first}-{second}")
        };
        if self.links.insert(name.clone()) {
            return Some(name);
        }
        let what = format!("there are two links with the name {}", quoted(&name));
        let key = if given { "name" } else { "ends" };
        entry.wrong(key, what, "another name = \"…\"");
        None
    }

    fn ends(&self, entry: Reader<'_>) -> Option<[String; 2]> {
        const ALLOWED: &str =
            "the two nodes that it joins, such as ends = [\"client\", \"server\"]";
        let list = entry.list("ends");
        let [first, second] = list else {
            match entry.table.node("ends") {
                None => entry.missing("ends", ALLOWED),
                Some(_) => entry.wrong("ends", format!("there are {} ends", list.len()), ALLOWED),
            }
            return None;
        };
        let known = |value: &Value| {
            let end = name(value)?;
            self.known(&end).map(|()| end)
        };
        let first = entry.read_node(first, known);
        let ends = [first?, entry.read_node(second, known)?];
        if ends[0] == ends[1] {
            let what = format!("both ends are {}", quoted(&ends[0]));
            entry.wrong("ends", what, ALLOWED);
            return None;
        }
        Some(ends)
    }

    fn known(&self, node: &str) -> Result<(), Wrong> {
        if self.places.contains_key(node) {
            return Ok(());
        }
        Err(Wrong::new(
            format!("there is no host or router {}", quoted(node)),
            nearest(node, self.places.keys().map(String::as_str)),
        ))
    }

    fn check_connected(&self, root: Reader<'_>) {
        let Some(first) = self.topology.nodes.first().filter(|_| !self.broken) else {
            return;
        };
        let reached = reached(&self.topology, &first.name);
        let lost = self
            .topology
            .nodes
            .iter()
            .find(|node| !reached.contains(node.name.as_str()));
        let Some(lost) = lost else { return };
        let at = self.places.get(&lost.name).copied().unwrap_or(0);
        let what = format!(
            "no link leads from {} to {}",
            quoted(&first.name),
            quoted(&lost.name)
        );
        root.complaints.add(
            at,
            Wrong::new(what, "links that join all hosts and routers"),
        );
    }
}

/// What was probably meant, and all that there is.
pub(crate) fn nearest<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> String {
    let known: Vec<&str> = known.collect();
    let guess = meant(found, known.iter().copied());
    if guess.starts_with("did") {
        format!("{guess} There are {}", listed(&known))
    } else {
        format!("one of {}", listed(&known))
    }
}

fn reached<'t>(topology: &'t Topology, from: &'t str) -> BTreeSet<&'t str> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for link in &topology.links {
        let [a, b] = [link.ends[0].as_str(), link.ends[1].as_str()];
        next.entry(a).or_default().push(b);
        next.entry(b).or_default().push(a);
    }
    let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(here) = open.pop() {
        let around = next.get(here).map_or(&[][..], Vec::as_slice);
        open.extend(around.iter().copied().filter(|node| reached.insert(node)));
    }
    reached
}

// What happens to packets on a `[[link]]`, each way.
// Keys of the link hold for both directions; `forward` and `back` replace single ones.

/// Keys of a `[[link]]`, beside those of a direction.
const LINK_KEYS: &str = "ends name repeat when mtu forward back";
/// Keys of `forward` and `back`.
const DIRECTION_KEYS: &str = "rate trace delay jitter queue udp loss duplicate corrupt codel";

/// Reads a trace by its path.
pub(crate) type Traces<'a> = dyn Fn(&str) -> Result<Vec<u64>, Wrong> + 'a;

/// Reads what happens to packets, forward and back.
pub(crate) fn directions(entry: Reader<'_>, traces: &Traces<'_>) -> [Direction; 2] {
    let both = Settings::read(entry, traces);
    let sides = ["forward", "back"].map(|key| Settings::side(entry, key, &both, traces));
    let round_trip = sides.iter().filter_map(|side| side.delay).sum();
    sides.map(|side| side.direction(entry, round_trip, u64::from(mtu(entry))))
}

/// Reads the MTU: IPv6 wants 1280.
pub(crate) fn mtu(entry: Reader<'_>) -> u16 {
    entry.count("mtu", 1500, 1280, 65535)
}

/// What is said about a direction; `None` is not said.
#[derive(Clone, Debug, Default)]
struct Settings {
    speed: Option<Speed>,
    delay: Option<Duration>,
    jitter: Option<Option<Jitter>>,
    queue: Option<Queue>,
    udp: Option<bool>,
    loss: Option<Loss>,
    duplicate: Option<f64>,
    corrupt: Option<f64>,
    discipline: Option<Discipline>,
}

#[derive(Clone, Debug)]
enum Speed {
    Rate(Option<u64>),
    Trace(Vec<u64>),
}

#[derive(Clone, Copy, Debug)]
enum Queue {
    Bytes(u64),
    Bdp {
        factor: f64,
        round_trip: Option<Duration>,
    },
}

impl Settings {
    fn read(entry: Reader<'_>, traces: &Traces<'_>) -> Self {
        Self {
            speed: speed(entry, traces),
            delay: entry.read("delay", units::duration),
            jitter: jitter(entry),
            queue: queue(entry),
            udp: entry.read("udp", flag),
            loss: loss(entry),
            duplicate: entry.read("duplicate", units::share),
            corrupt: entry.read("corrupt", units::share),
            discipline: codel(entry),
        }
    }

    /// One direction: its own settings before those of both.
    fn side(entry: Reader<'_>, key: &str, both: &Self, traces: &Traces<'_>) -> Self {
        let own = match entry.table(key) {
            None => return both.clone(),
            Some(side) => {
                side.only(DIRECTION_KEYS);
                Self::read(side, traces)
            }
        };
        let both = both.clone();
        Self {
            speed: own.speed.or(both.speed),
            delay: own.delay.or(both.delay),
            jitter: own.jitter.or(both.jitter),
            queue: own.queue.or(both.queue),
            udp: own.udp.or(both.udp),
            loss: own.loss.or(both.loss),
            duplicate: own.duplicate.or(both.duplicate),
            corrupt: own.corrupt.or(both.corrupt),
            discipline: own.discipline.or(both.discipline),
        }
    }

    fn direction(self, entry: Reader<'_>, round_trip: Duration, mtu: u64) -> Direction {
        let (rate, trace) = match self.speed {
            None => (None, None),
            Some(Speed::Rate(rate)) => (rate, None),
            Some(Speed::Trace(trace)) => (None, Some(trace)),
        };
        Direction {
            rate,
            trace,
            delay: self.delay.unwrap_or_default(),
            jitter: self.jitter.flatten(),
            queue: self
                .queue
                .and_then(|queue| queue.bytes(entry, rate, round_trip, mtu)),
            discipline: self.discipline.unwrap_or_default(),
            blocks_udp: self.udp == Some(false),
            loss: self.loss.unwrap_or_default(),
            duplicate: self.duplicate.unwrap_or_default(),
            corrupt: self.corrupt.unwrap_or_default(),
        }
    }
}

impl Queue {
    /// In bytes; a product smaller than one packet still holds one.
    fn bytes(self, entry: Reader<'_>, rate: Option<u64>, link: Duration, mtu: u64) -> Option<u64> {
        let (factor, round_trip) = match self {
            Self::Bytes(bytes) => return Some(bytes),
            Self::Bdp { factor, round_trip } => (factor, round_trip.unwrap_or(link)),
        };
        let Some(rate) = rate else {
            let what = "a multiple of the bandwidth-delay product needs a rate";
            entry.wrong("queue", what, "rate = \"10Mbit\", or a queue in bytes");
            return None;
        };
        if round_trip.is_zero() {
            let what = "a multiple of the bandwidth-delay product needs a round trip";
            let allowed = "delay = \"5ms\", or queue = { bdp = 1.5, rtt = \"50ms\" }";
            entry.wrong("queue", what, allowed);
            return None;
        }
        Some(product(factor, rate, round_trip).max(mtu))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "factor, rate and round trip are bounded: at most 1000 x 10^12 bit/s x a week"
)]
fn product(factor: f64, rate: u64, round_trip: Duration) -> u64 {
    (factor * rate as f64 * round_trip.as_secs_f64() / 8.0).round() as u64
}

fn speed(entry: Reader<'_>, traces: &Traces<'_>) -> Option<Speed> {
    let rate = entry.read("rate", units::rate).map(Speed::Rate);
    let trace = entry
        .read("trace", |value| traces(&text(value)?))
        .map(Speed::Trace);
    if rate.is_some() && trace.is_some() {
        entry.wrong("trace", "there is a rate too", "a rate or a trace");
    }
    trace.or(rate)
}

fn jitter(entry: Reader<'_>) -> Option<Option<Jitter>> {
    const SHAPES: [(&str, JitterShape); 3] = [
        ("uniform", JitterShape::Uniform),
        ("normal", JitterShape::Normal),
        ("pareto", JitterShape::Pareto),
    ];
    let node = entry.table.node("jitter")?;
    if matches!(node.item, Item::Flag(false)) {
        return Some(None);
    }
    let jitter = entry.inner(node)?;
    jitter.only("width shape reorder");
    let width = jitter.need(
        "width",
        "how much, such as width = \"2ms\"",
        units::duration,
    )?;
    let shape = jitter.read("shape", |value| one_of(value, &SHAPES));
    let reorder = jitter.flag("reorder", false);
    let shape = shape.unwrap_or(JitterShape::Normal);
    Some((!width.is_zero()).then_some(Jitter {
        shape,
        width,
        reorder,
    }))
}

fn queue(entry: Reader<'_>) -> Option<Queue> {
    let node = entry.table.node("queue")?;
    let Item::Table(_) = node.item else {
        return entry.read_node(node, |value| match units::bdp(value) {
            Some(factor) => Ok(Queue::Bdp {
                factor,
                round_trip: None,
            }),
            None => bytes(value).map(Queue::Bytes),
        });
    };
    let queue = entry.inner(node)?;
    queue.only("bdp rtt");
    let factor = queue.need(
        "bdp",
        "how many bandwidth-delay products, such as bdp = 1.5",
        factor,
    )?;
    let round_trip = queue.read("rtt", units::duration);
    Some(Queue::Bdp { factor, round_trip })
}

fn bytes(value: &Value) -> Result<u64, Wrong> {
    let allowed = "bytes such as \"64kB\", or \"1.5bdp\" of the link's own round trip, or { bdp = 1.5, rtt = \"50ms\" }";
    let bytes = units::size(value).map_err(|wrong| Wrong::new(wrong.what, allowed))?;
    if bytes == 0 {
        return Err(Wrong::new("nothing fits into a queue of 0", allowed));
    }
    Ok(bytes)
}

fn factor(value: &Value) -> Result<f64, Wrong> {
    let number = match value {
        Value::Text(text) => text
            .parse()
            .map(Value::Number)
            .unwrap_or_else(|_| value.clone()),
        other => other.clone(),
    };
    match units::number(&number) {
        Ok(factor) if factor > 0.0 && factor <= 1000.0 => Ok(factor),
        _ => Err(Wrong::new(
            format!("{} is not possible", value.shown()),
            "a number above 0, up to 1000",
        )),
    }
}

fn loss(entry: Reader<'_>) -> Option<Loss> {
    let node = entry.table.node("loss")?;
    let Item::Table(table) = &node.item else {
        let share = entry.read_node(node, units::share)?;
        return Some(if share == 0.0 {
            Loss::None
        } else {
            Loss::Bernoulli { share }
        });
    };
    let loss = entry.inner(node)?;
    if table.node("packets").is_some() {
        loss.only("packets");
        return Some(Loss::Packets {
            packets: packets(loss),
        });
    }
    loss.only("p r good bad packets");
    let p = loss.need(
        "p",
        "the share of packets that lead from good to bad, or packets = [3, 7]",
        units::share,
    )?;
    let r = loss.need("r", "the share of packets that lead back", units::share)?;
    let good_loss = loss.read("good", units::share).unwrap_or(0.0);
    let bad_loss = loss.read("bad", units::share).unwrap_or(1.0);
    Some(Loss::GilbertElliott {
        p,
        r,
        good_loss,
        bad_loss,
    })
}

fn packets(loss: Reader<'_>) -> Vec<u64> {
    let read = |node| loss.read_node(node, |value| units::count(value, 1, 1 << 50));
    let mut packets: Vec<u64> = loss.list("packets").iter().filter_map(read).collect();
    packets.sort_unstable();
    packets.dedup();
    packets
}

fn codel(entry: Reader<'_>) -> Option<Discipline> {
    let node = entry.table.node("codel")?;
    let standard = Discipline::CoDel {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        ecn: false,
    };
    let Item::Table(_) = node.item else {
        let on = entry.read_node(node, flag)?;
        return Some(if on { standard } else { Discipline::DropTail });
    };
    let codel = entry.inner(node)?;
    codel.only("target interval ecn");
    Some(Discipline::CoDel {
        target: codel
            .read("target", units::duration)
            .unwrap_or(Duration::from_millis(5)),
        interval: codel
            .read("interval", units::duration)
            .unwrap_or(Duration::from_millis(100)),
        ecn: codel.flag("ecn", false),
    })
}

/// Reads a mahimahi trace.
pub(crate) fn trace(name: &str, text: &str) -> Result<Vec<u64>, Wrong> {
    const ALLOWED: &str = "mahimahi's format: one whole number of milliseconds a line, not descending, the last above 0";
    let wrong = |error| Wrong::new(format!("{} does not fit: {error}", quoted(name)), ALLOWED);
    trace::parse(text.as_bytes()).map_err(wrong)
}
