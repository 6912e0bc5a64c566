//! The emulator: links and routers in user space, between the TUN devices of network namespaces.
//! `world` opens the TUNs, starts it and reads its counts; `calibrate` measures it.
//!
//! `network::Network` is the whole behaviour without a clock, a file or a thread; [`start`] drives one with a thread of its own.
//!
//! # Not in this room
//! Namespaces, interfaces, addresses and routes of the hosts: `netns`.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, path::PathBuf};

use crate::{
    topology::{Addresses, Topology},
    trial::{EmulatorHealth, Keep, LinkCount},
};

/// One end of a link that a host sees as an interface.
#[derive(Debug)]
pub struct Port {
    /// The host.
    pub node: String,
    /// The link.
    pub link: String,
    /// A TUN device (`IFF_TUN | IFF_NO_PI`), open for reading and writing; it need not be non-blocking.
    pub fd: OwnedFd,
    /// Whether it was opened with `IFF_VNET_HDR`: each packet begins with a `virtio_net_hdr`, and large ones are split.
    pub vnet: bool,
}

/// What an emulator needs to know beside the network.
#[derive(Clone, Debug)]
pub struct Options {
    /// All random streams of the links come from it.
    pub seed: u64,
    /// Where `pcap/` and `drops.csv` go.
    pub directory: PathBuf,
    /// What is recorded there.
    pub record: Keep,
}

/// An emulator at work. Dropping it stops it.
#[derive(Debug)]
pub struct Running(());

/// Starts the emulator of `topology` on a thread of its own. Every end of a link at a host needs its port.
///
/// # Errors
/// A port that the topology does not have or that is missing, a file or a thread that cannot be made.
pub fn start(
    topology: &Topology,
    ports: Vec<Port>,
    addresses: &BTreeMap<String, Addresses>,
    options: &Options,
) -> io::Result<Running> {
    let _ = (topology, ports, addresses, options);
    Err(io::Error::other("the emulator is not built yet"))
}

impl Running {
    /// The first workload begins: health is recorded from now on, what was before is forgotten.
    pub fn begin(&self) {}

    /// Stops, and says what happened on every direction of every link since the start, and how well promises were kept since `begin`.
    #[must_use]
    pub fn stop(self) -> (Vec<LinkCount>, EmulatorHealth) {
        (Vec::new(), EmulatorHealth::default())
    }
}
