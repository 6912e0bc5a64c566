//! The program in the kernel and its maps, by aya. What it does stands in `forward.c`, of which `build` beside it makes `forward.o`.
//! Everything of it hangs on descriptors of this process: when it ends, however it ends, the kernel takes the program off the interfaces.

use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, MapError, xdp::DevMapHash},
    programs::{Xdp, XdpMode, links::FdLink},
};
use parking_lot::Mutex;

use super::{
    Attached, Counts, Interface, LEFT, Refused,
    rule::{Key, Value},
};
use crate::config::KernelMode;

/// To enter what is not there yet, and to change what is (linux/bpf.h).
const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;

/// A program that is loaded and attached.
pub(super) struct Program {
    rules: Mutex<HashMap<MapData, Key, Value>>,
    counts: Array<MapData, [u64; 2]>,
    left: Array<MapData, u64>,
    _interfaces: DevMapHash<MapData>,
    _links: Vec<FdLink>,
    _loaded: Ebpf,
}

impl Program {
    /// Loads it and attaches it to those of the interfaces that take it; says of each how it went.
    pub(super) fn attach(interfaces: &[Interface]) -> Result<(Self, Vec<Attached>), Refused> {
        let mut loaded = Ebpf::load(aya::include_bytes_aligned!("forward.o"))
            .map_err(|error| Refused::new("loading its program", &error))?;
        let maps = (
            taken::<HashMap<MapData, Key, Value>>(&mut loaded, "RULES_MAP")?,
            taken::<Array<MapData, [u64; 2]>>(&mut loaded, "COUNTS")?,
            taken::<Array<MapData, u64>>(&mut loaded, "LEFT")?,
        );
        let mut onward: DevMapHash<MapData> = taken(&mut loaded, "INTERFACES")?;
        let program = loaded.program_mut("forward");
        let program = program.ok_or_else(|| Refused("its program is not in it".into()))?;
        let program: &mut Xdp = program
            .try_into()
            .map_err(|error| Refused::new("loading its program", &error))?;
        program
            .load()
            .map_err(|error| Refused::new("loading its program", &error))?;
        let (mut links, mut attached) = (Vec::new(), Vec::new());
        for Interface { name, index, mode } in interfaces {
            let tried = attach_by(program, *index, *mode).and_then(|(link, how)| {
                let entered = onward.insert(*index, *index, None, 0);
                entered.map_err(|error| Refused::new("naming an interface", &error))?;
                Ok((link, how))
            });
            attached.push(Attached {
                interface: name.clone(),
                how: tried.map(|(link, how)| {
                    links.push(link);
                    how
                }),
            });
        }
        let (rules, counts, left) = maps;
        let program = Self {
            rules: Mutex::new(rules),
            counts,
            left,
            _interfaces: onward,
            _links: links,
            _loaded: loaded,
        };
        Ok((program, attached))
    }

    /// Enters a rule. False: there is one of that key, or no room.
    pub(super) fn enter(&self, key: &Key, value: &Value) -> bool {
        self.rules.lock().insert(key, value, BPF_NOEXIST).is_ok()
    }

    /// Changes a rule that is there.
    pub(super) fn renew(&self, key: &Key, value: &Value) -> bool {
        self.rules.lock().insert(key, value, BPF_EXIST).is_ok()
    }

    pub(super) fn remove(&self, key: &Key) {
        // One that is not there is removed.
        drop(self.rules.lock().remove(key));
    }

    /// What was counted in a slot since the program was loaded.
    pub(super) fn counts(&self, slot: u32) -> Counts {
        let [packets, bytes] = self.counts.get(&slot, 0).unwrap_or_default();
        Counts { packets, bytes }
    }

    /// How many packets were left to the relay, for each of the reasons.
    pub(super) fn left(&self) -> [u64; LEFT.len()] {
        let mut left = [0; LEFT.len()];
        for (index, count) in (0..).zip(&mut left) {
            *count = self.left.get(&index, 0).unwrap_or_default();
        }
        left
    }
}

fn taken<M: TryFrom<Map, Error = MapError>>(loaded: &mut Ebpf, name: &str) -> Result<M, Refused> {
    let map = loaded.take_map(name);
    let map = map.ok_or_else(|| Refused(format!("{name} is not in it")))?;
    M::try_from(map).map_err(|error| Refused::new(name, &error))
}

/// In the driver, or as it is told; says in which mode.
fn attach_by(
    program: &mut Xdp,
    interface: u32,
    mode: KernelMode,
) -> Result<(FdLink, KernelMode), Refused> {
    let attach = |program: &mut Xdp, by: KernelMode| {
        let xdp = match by {
            KernelMode::Generic => XdpMode::Skb,
            _ => XdpMode::Driver,
        };
        let link = program
            .attach_to_if_index(interface, xdp)
            .and_then(|id| program.take_link(id))
            .map_err(|error| Refused::new("attaching its program", &error))?;
        // One by netlink would outlive this process: it is detached again.
        let link = FdLink::try_from(link);
        link.map(|link| (link, by))
            .map_err(|_| Refused("the kernel has no links of XDP programs (Linux 5.9)".into()))
    };
    match mode {
        KernelMode::Generic => attach(program, KernelMode::Generic),
        KernelMode::Driver => attach(program, KernelMode::Driver),
        KernelMode::Auto | KernelMode::Off => {
            attach(program, KernelMode::Driver).or_else(|_| attach(program, KernelMode::Generic))
        }
    }
}

impl Refused {
    fn new(doing: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = format!("{doing}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            // Some errors have said all of their cause.
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self(text)
    }
}
