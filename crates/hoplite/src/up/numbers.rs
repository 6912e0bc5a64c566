//! The numbers by which the kernel, we, and who looks at the machine recognise what is ours. Documented in docs/device.md.

/// The mark of our own sockets' packets, and of those of excluded control groups.
pub(crate) const MARK: u32 = 0x68_6f6c;

/// The mark of packets that come in for this machine, where the kernel checks the way back. Answers that inherit it are nobody's of ours.
pub(crate) const ARRIVED: u32 = 0x68_6f6d;

/// Our routing table.
pub(crate) const TABLE: u32 = 0x686f;

/// The first priority of our rules; before the main table (32766). Where another program's come before that, ours stand before those.
pub(crate) const PRIORITY: u32 = 26_720;

/// How many priorities from the first on are ours.
pub(crate) const RULES: u32 = 16;

/// The protocol that our rules and routes carry: who made them. Unassigned in /etc/iproute2/rt_protos.
pub(crate) const PROTOCOL: u8 = 104;

/// The metric of routes into the interface.
pub(crate) const INTO: u32 = 1;

/// The metric of routes that block: worse than any other.
pub(crate) const BLOCKING: u32 = 0x7fff_ffff;

/// Our table of nftables, in the family `inet`.
pub(crate) const FIREWALL: &str = "hoplite";

/// The copy of it that lives with the process that is up.
pub(crate) const HELD: &str = "hoplite-held";

/// The copy that lives with the process that only blocks.
pub(crate) const KEPT: &str = "hoplite-kept";

/// The table that marks the packets of excluded control groups.
pub(crate) const GROUPS: &str = "hoplite-groups";
