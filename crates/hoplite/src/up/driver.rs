//! The real machine: how each step is done and undone. Dull on purpose; what is done in which order is the plan's.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use super::{
    child,
    netlink::{self, Netlink},
    nftables::{self, Held, Nftables, Standing},
    numbers::{GROUPS, HELD},
    plan::{Facts, Step, Way},
    resolv::{self, ResolvConf},
    taken::Machine,
    tun,
};
use crate::errors::Complaint;

/// Makes marks count where the kernel checks the way back.
const VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

/// This machine, or rather this network namespace of it.
#[derive(Debug)]
pub(crate) struct System {
    netlink: Netlink,
    nftables: Nftables,
    /// In a process that stays.
    held: Option<Held>,
    conf: ResolvConf,
    name: String,
    addresses: Vec<IpAddr>,
    /// Stands while we have changed [`VALID_MARK`].
    changed: PathBuf,
    device: Option<OwnedFd>,
    /// The number of the interface that was made last.
    index: Option<u32>,
    /// Rules of other programs that come before ours.
    before: usize,
    /// What resolved would ask by other interfaces, had we not claimed it.
    claimed: Vec<String>,
}

/// What is left of what was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All of it.
    All,
    /// Something is missing.
    Undone,
    /// The interface itself is.
    Gone,
}

impl System {
    /// With an interface called `name` that has these addresses. Needs a tokio runtime.
    pub(crate) fn new(run_dir: &Path, name: &str, addresses: &[IpAddr]) -> Result<Self, Complaint> {
        let netlink = Netlink::open().map_err(|error| {
            let remedy = "the kernel must have netlink, and the sandbox AF_NETLINK";
            Complaint::new("opening a netlink socket", error, remedy)
        })?;
        Ok(Self {
            netlink,
            nftables: Nftables::new(run_dir),
            held: None,
            conf: ResolvConf::system(run_dir),
            name: name.to_owned(),
            addresses: addresses.to_vec(),
            changed: run_dir.join("src_valid_mark"),
            device: None,
            index: None,
            before: 0,
            claimed: Vec::new(),
        })
    }

    /// For a process that stays.
    pub(crate) fn staying(mut self) -> Self {
        self.held = Some(Held::new(HELD));
        self
    }

    /// What the machine has; we answer names at `ours`.
    pub(crate) async fn facts(&self, ours: &[IpAddr]) -> Facts {
        super::facts::look(&self.netlink, &self.conf, ours).await
    }

    /// The descriptor of the interface.
    pub(crate) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    /// The number of the interface.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    /// How many rules of other programs come before ours.
    pub(crate) fn before(&self) -> usize {
        self.before
    }

    /// What the machine has of `steps`, as far as rtnetlink(7) tells.
    pub(crate) async fn find(&self, steps: &[Step]) -> io::Result<Found> {
        if netlink::index(&self.name).ok() != self.index {
            return Ok(Found::Gone);
        }
        for step in steps {
            let is_there = match (step, self.index) {
                (Step::Unreachable(families), _) => self.netlink.has_routes(families, None).await?,
                (Step::Routes(families), index) => self.netlink.has_routes(families, index).await?,
                (Step::Rules(rules), _) => self.netlink.has_rules(rules).await?,
                (Step::Addresses(addresses), Some(index)) => {
                    self.netlink.has_addresses(index, addresses).await?
                }
                _ => true,
            };
            if !is_there {
                return Ok(Found::Undone);
            }
        }
        Ok(Found::All)
    }

    /// Whether routes of ours block, and rules lead to them, for all that the kernel speaks.
    pub(crate) async fn is_blocked(&self) -> bool {
        let families = super::facts::families();
        let routes = self.netlink.has_routes(&families, None);
        let rules = self.netlink.leads(&families);
        routes.await.unwrap_or(false) && rules.await.unwrap_or(false)
    }

    /// What of the firewall stands.
    pub(crate) fn firewall(&self) -> Standing {
        self.nftables.look()
    }

    /// Whether resolv.conf is still ours.
    pub(crate) fn has_names(&self) -> bool {
        self.conf.is_ours()
    }

    /// Where that is written.
    pub(crate) fn sources(&self, facts: &Facts) -> Vec<PathBuf> {
        super::facts::sources(&self.conf, facts.resolving)
    }

    /// Whom the networks say to ask for names now.
    pub(crate) fn servers(&self, facts: &Facts, ours: &[IpAddr]) -> Vec<SocketAddr> {
        super::facts::servers(&self.conf, facts.resolving, ours)
    }

    async fn do_step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Firewall(table, copy) => {
                self.nftables.load(table, copy)?;
                self.held.iter_mut().for_each(|held| held.hold(copy));
                Ok(())
            }
            Step::Groups(text) => child::run("nft", &["-f", "-"], text).map(drop),
            Step::Unreachable(families) => self.netlink.block(families).await,
            Step::Rules(rules) => {
                self.before = self.netlink.rules(rules).await?;
                match self.before {
                    0 => Ok(()),
                    before => Err(io::Error::other(format!(
                        "{before} rules of other programs come before all that could be ours"
                    ))),
                }
            }
            Step::ReversePath => self.validate_marks(),
            Step::Device(name, mtu) => {
                stay_silent(name);
                self.netlink.furnish(name, *mtu).await
            }
            Step::Addresses(addresses) => self.netlink.address(&self.name, addresses).await,
            Step::Routes(families) => {
                let (name, addresses) = (&self.name, &self.addresses);
                self.netlink.lead_into(name, families, addresses).await
            }
            Step::Names(Way::Resolved, servers) => self.tell_resolved(servers),
            Step::Names(Way::Replace, servers) => self.conf.replace(servers),
            Step::Names(Way::Overwrite, servers) => self.conf.overwrite(servers),
        }
    }

    async fn undo_step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Firewall(..) => {
                self.held.iter_mut().for_each(|held| held.hold(""));
                self.nftables.remove()
            }
            Step::Groups(_) => nftables::remove(GROUPS),
            Step::Unreachable(_) => self.netlink.unroute(true).await,
            Step::Rules(_) => self.netlink.rules(&[]).await.map(drop),
            Step::ReversePath => self.forget_marks().await,
            Step::Device(..) => {
                self.device = None;
                Ok(())
            }
            // They go with the interface.
            Step::Addresses(_) => Ok(()),
            Step::Routes(_) => self.netlink.unroute(false).await,
            Step::Names(Way::Resolved, _) => self.revert_resolved(),
            Step::Names(..) => self.conf.give_back(),
        }
    }

    fn validate_marks(&self) -> io::Result<()> {
        if fs::read_to_string(VALID_MARK)?.trim() == "0" {
            fs::write(&self.changed, "0")?;
            fs::write(VALID_MARK, "1")?;
        }
        Ok(())
    }

    /// Who has rules by marks of its own may rely on it: nobody can tell whether it would have set what it found set.
    async fn forget_marks(&self) -> io::Result<()> {
        if !self.changed.exists() {
            return Ok(());
        }
        if !self.netlink.others_have_marks().await? {
            fs::write(VALID_MARK, "0")?;
        }
        fs::remove_file(&self.changed)
    }

    /// All names are asked for by our interface, whatever servers other interfaces have.
    fn tell_resolved(&mut self, servers: &[IpAddr]) -> io::Result<()> {
        self.claimed = self.claimable();
        let name = self.name.as_str();
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let mut dns = vec!["dns", name];
        dns.extend(servers.iter().map(String::as_str));
        child::run("resolvectl", &dns, "")?;
        let mut domains = vec!["domain", name, "~."];
        domains.extend(self.claimed.iter().map(String::as_str));
        child::run("resolvectl", &domains, "")?;
        child::run("resolvectl", &["default-route", name, "yes"], "")?;
        // We are on this machine, and our temporary addresses are nobody's to sign or to find in the neighbourhood.
        for setting in ["dnsovertls", "dnssec", "llmnr", "mdns"] {
            child::run("resolvectl", &[setting, name, "no"], "")?;
        }
        // What it remembers was asked past us.
        child::run("resolvectl", &["flush-caches"], "").map(drop)
    }

    /// Domains that lead to other interfaces: resolved asks where the longest one is, and where several have it, all of them
    /// (systemd-resolved.service(8), "Protocols and routing"). So we have each as well.
    fn claimable(&self) -> Vec<String> {
        let told = child::run("resolvectl", &["domain"], "").unwrap_or_default();
        resolv::routed(&told, &self.name)
    }

    /// Whether it leads other domains past us than we have claimed.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.claimable() != self.claimed
    }

    /// Its settings go with the interface; what it remembers are addresses of ours.
    fn revert_resolved(&self) -> io::Result<()> {
        child::run("resolvectl", &["revert", &self.name], "").unwrap_or_default();
        child::run("resolvectl", &["flush-caches"], "").unwrap_or_default();
        Ok(())
    }
}

impl Machine for System {
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint> {
        if let Step::Device(name, _) = step {
            // The older one must be gone before its name is free.
            self.device = None;
            self.device = Some(tun::open(name)?);
            self.index = netlink::index(name).ok();
        }
        let done = self.do_step(step).await;
        done.map_err(|error| complaint(step, &error))
    }

    async fn undo(&mut self, step: &Step) -> Result<(), Complaint> {
        let done = self.undo_step(step).await;
        done.map_err(|error| {
            let doing = format!("undoing what {} did", step.doing());
            Complaint::new(doing, error, "run 'hoplite down' again as root")
        })
    }
}

/// The kernel looks for routers and neighbours behind each interface: there are none. It may stay as it is where that cannot be said.
fn stay_silent(name: &str) {
    // linux/if_link.h: no link-local address, and so no message from one.
    let setting = format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode");
    fs::write(setting, "1").unwrap_or_default();
}

fn complaint(step: &Step, error: &io::Error) -> Complaint {
    let remedy = match (step, error.kind()) {
        (_, io::ErrorKind::PermissionDenied) => "run as root, or with CAP_NET_ADMIN",
        (Step::Names(..), _) => {
            "make it writable, or set `dns = \"off\"` in [takeover] and see to names yourself"
        }
        (Step::Rules(_), io::ErrorKind::Other) => {
            "see `ip rule` and `ip -6 rule`: give the others' rules higher numbers"
        }
        (Step::Firewall(..), _) => "see whether `nft list ruleset` works",
        (Step::Groups(_), _) => {
            "see that the groups in `exclude.cgroups` exist before it begins, or take them out"
        }
        _ => "see whether `ip` can do it by hand",
    };
    Complaint::new(step.doing(), error, remedy)
}
