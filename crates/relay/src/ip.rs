//! Flows of IP packets: what a scope may have (addresses, routes, an egress), and who has it.
//! The CONNECT-IP handler opens flows here and carries them. RFC 9484.
//!
//! [`pool`] and [`filter`] are pure. The egress is the system's ping sockets (`overlay::direct::echo`), which carry ICMP echo without any
//! right; or a TUN device that the operator has made, for all protocols.

pub(crate) mod device;
mod filter;
mod pool;

use std::{net::IpAddr, sync::Arc, time::Duration};

use hoplite_overlay::{
    Packets,
    direct::{EchoFlow, EchoSettings, echo_is_permitted},
};
use hoplite_wire::{
    Host,
    connect_ip::{Capsule, ICMP, ICMPV6, Numbered, Prefix, Route, Scope, ScopeTarget},
    region::Shown,
};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::filter::{PacketFilter, Rate, Refused};
use self::{device::Device, pool::Pool};
use crate::{
    ConfigError, config,
    egress::{Egress, Origin, fit},
    failure::{Failure, Limit},
    limits::QueryQuota,
    metrics::Metrics,
};

/// After this long a program's identifier is forgotten when another comes.
const IDENT_IDLE: Duration = Duration::from_secs(60);

/// Both families, IPv4 first.
const FAMILIES: [bool; 2] = [false, true];

/// What serves flows of packets.
#[derive(Debug)]
pub(crate) struct Ip {
    config: config::Ip,
    /// Which families have an egress: IPv4, IPv6.
    served: [bool; 2],
    pools: Mutex<Vec<Located>>,
    device: Option<Arc<Device>>,
}

/// A pool, and for whom it is.
#[derive(Debug)]
struct Located {
    of: config::Pool,
    pool: Pool,
}

/// An open flow.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Towards the network.
    pub(crate) packets: Box<dyn Packets>,
    /// What may pass.
    pub(crate) filter: PacketFilter,
    pub(crate) lease: Lease,
}

/// The addresses of a flow; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    ip: Arc<Ip>,
    own: Vec<IpAddr>,
    routes: Vec<Route>,
    /// The flow goes anywhere by all protocols: its client may use it for whatever it has.
    whole: bool,
}

impl Ip {
    /// For a relay with this configuration.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub(crate) fn new(config: &config::Config) -> Result<Arc<Self>, ConfigError> {
        let ip = &config.ip;
        let serves = ip.enabled && config.is_egress();
        let name = ip.device.as_deref().filter(|_| serves);
        let device = name.map(open).transpose()?;
        let located = |of: &config::Pool| -> Vec<Located> {
            let all = of.addresses.iter();
            let all = all.map(|net| Located {
                of: of.clone(),
                pool: Pool::new(net, ip.flows),
            });
            all.collect()
        };
        let everybody = config::Pool {
            addresses: ip.pools.clone(),
            ..config::Pool::default()
        };
        let pools = ip.pool.iter().chain([&everybody]).flat_map(located);
        let can = |is_v6| device.is_some() || may_echo(is_v6);
        Ok(Arc::new(Self {
            served: FAMILIES.map(|is_v6| serves && ip.serves(is_v6) && can(is_v6)),
            pools: Mutex::new(pools.collect()),
            device,
            config: ip.clone(),
        }))
    }

    /// Reads the device for all flows, if there is one; ends when it is gone.
    pub(crate) async fn read(&self) {
        let Some(device) = &self.device else {
            return;
        };
        if let Err(error) = device.read().await {
            tracing::error!(%error, "the TUN device of [ip] is gone: flows of packets get no answers until the relay is started again");
        }
    }

    /// Whether there is a device to be read.
    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// How many echo requests a flow may send in a second.
    pub(crate) fn echoes_per_second(&self) -> u32 {
        self.config.echoes_per_second
    }

    /// Opens a flow within `scope`, from where its origin says.
    ///
    /// # Errors
    /// The protocol is not served, the policy refuses the target, it has no address that is served, or too many flows are open.
    pub(crate) async fn open(
        self: &Arc<Self>,
        scope: &Scope,
        egress: &Egress,
        origin: &Origin<'_>,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Opened, Failure> {
        let families = self.families(scope.protocol);
        if !families.contains(&true) {
            return Err(Failure::Protocol);
        }
        let mut routes = self.routes(scope, egress, queries, metrics).await?;
        routes.retain(|route| families[usize::from(route.first().is_ipv6())]);
        let whole = scope.target == ScopeTarget::Any && scope.protocol.is_none();
        let lease = self.lease(routes, whole, origin.shown.as_ref())?;
        Ok(Opened {
            packets: self.egress(&lease, || egress.echo_sources(origin)),
            filter: PacketFilter::new(lease.own.clone(), lease.routes.clone()),
            lease,
        })
    }

    fn egress(&self, lease: &Lease, sources: impl FnOnce() -> Vec<IpAddr>) -> Box<dyn Packets> {
        if let Some(device) = &self.device {
            return Box::new(device.flow(lease.own.clone(), lease.routes.clone()));
        }
        Box::new(EchoFlow::new(EchoSettings {
            addresses: lease.own.iter().copied().map(Prefix::one).collect(),
            routes: lease.routes.clone(),
            idents: self.config.idents_per_flow,
            idle: IDENT_IDLE,
            guard: None,
            sources: sources(),
            mark: None,
        }))
    }

    /// The families in which a protocol is served: each has its own ICMP, and ping sockets carry nothing else.
    fn families(&self, protocol: Option<u8>) -> [bool; 2] {
        let [v4, v6] = self.served;
        let wants = |icmp, other| match protocol {
            None => true,
            Some(only) if only == other => false,
            Some(only) => only == icmp || self.device.is_some(),
        };
        [v4 && wants(ICMP, ICMPV6), v6 && wants(ICMPV6, ICMP)]
    }

    /// The routes that the scope and the policy allow, ordered and without doubles.
    async fn routes(
        &self,
        scope: &Scope,
        egress: &Egress,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<Route>, Failure> {
        let route = |prefix: Prefix| match (&self.device, prefix.address()) {
            (Some(_), _) => prefix.route(scope.protocol.unwrap_or(0)),
            (None, IpAddr::V4(_)) => prefix.route(ICMP),
            (None, IpAddr::V6(_)) => prefix.route(ICMPV6),
        };
        let host = match &scope.target {
            ScopeTarget::Name(name) => Host::Name(name.clone()),
            // Of what is more than one host, each packet's destination is judged by itself.
            ScopeTarget::Any => return Ok(everything().map(route).collect()),
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(ip) => Host::ip(ip),
                None => return Ok(vec![route(*prefix)]),
            },
        };
        let mut found = egress.hosts(host, queries, metrics).await?;
        found.sort_unstable();
        found.dedup();
        Ok(found.into_iter().map(Prefix::one).map(route).collect())
    }

    /// An address of each family that is routed.
    fn lease(
        self: &Arc<Self>,
        routes: Vec<Route>,
        whole: bool,
        shown: Option<&Shown>,
    ) -> Result<Lease, Failure> {
        if routes.is_empty() {
            return Err(Failure::Unreachable);
        }
        let mut lease = Lease {
            ip: self.clone(),
            own: Vec::new(),
            routes,
            whole,
        };
        for is_v6 in FAMILIES {
            if lease
                .routes
                .iter()
                .any(|route| route.first().is_ipv6() == is_v6)
            {
                let address = self
                    .take(is_v6, shown)
                    .ok_or(Failure::Limited(Limit::IpAddresses))?;
                lease.own.push(address);
            }
        }
        Ok(lease)
    }

    fn pools(&self) -> MutexGuard<'_, Vec<Located>> {
        self.pools.lock()
    }

    /// An address of a pool that fits best; `None` where these are full, whatever others have.
    fn take(&self, is_v6: bool, shown: Option<&Shown>) -> Option<IpAddr> {
        let mut pools = self.pools();
        let fitting = |located: &Located| {
            let fit = fit(&located.of, shown);
            fit.filter(|_| located.pool.is_v6() == is_v6)
        };
        let best = pools.iter().filter_map(fitting).max()?;
        let mut best = pools
            .iter_mut()
            .filter(|located| fitting(located) == Some(best));
        best.find_map(|located| located.pool.take())
    }
}

impl Lease {
    /// What the client is told unasked.
    pub(crate) fn assigned(&self) -> Capsule {
        let own = self.own.iter().copied().map(Prefix::one);
        Capsule::AddressAssign(own.map(Numbered::unasked).collect())
    }

    /// Where the client may send packets; the routes are in the order that the standard wants.
    pub(crate) fn routes(&self) -> Capsule {
        Capsule::RouteAdvertisement(self.routes.clone())
    }

    /// The nameservers and NAT64 prefixes of the configuration, for a flow of everything: "these extensions are meant for cases where
    /// CONNECT-IP operates as a Remote Access VPN […] or a Site-to-Site VPN […], but not for cases like IP Flow Forwarding".
    pub(crate) fn network(&self) -> impl Iterator<Item = Capsule> {
        let told = self.whole.then(|| {
            let config = &self.ip.config;
            [config.dns_assign(), config.pref64()]
        });
        told.into_iter().flatten().flatten()
    }

    /// The answer to a request for addresses: the flow's own, where any or these were asked for, and none otherwise.
    pub(crate) fn answer(&self, wanted: &[Numbered]) -> Capsule {
        let entry = |wanted: &Numbered| {
            let family = wanted.prefix.address();
            let own = self
                .own
                .iter()
                .find(|own| own.is_ipv6() == family.is_ipv6());
            let fits = |own: &&IpAddr| wanted.prefix.is_none() || wanted.prefix.contains(**own);
            Numbered {
                request: wanted.request,
                prefix: own
                    .filter(fits)
                    .map_or_else(|| Prefix::none(family), |own| Prefix::one(*own)),
            }
        };
        let asked = wanted.iter().map(entry);
        let answered: Vec<Numbered> = asked.collect();
        let told = |own: &&IpAddr| {
            !answered
                .iter()
                .any(|told| told.prefix == Prefix::one(**own))
        };
        let others: Vec<Numbered> = self
            .own
            .iter()
            .filter(told)
            .map(|own| Numbered::unasked(Prefix::one(*own)))
            .collect();
        Capsule::AddressAssign([answered, others].concat())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pools = self.ip.pools();
        for own in &self.own {
            let pools = pools.iter_mut();
            pools.for_each(|located| located.pool.give_back(*own));
        }
    }
}

/// All addresses of each family.
fn everything() -> impl Iterator<Item = Prefix> {
    let zeros = [IpAddr::from([0; 4]), IpAddr::from([0_u16; 8])];
    zeros.into_iter().filter_map(|zero| Prefix::new(zero, 0))
}

fn open(name: &str) -> Result<Arc<Device>, ConfigError> {
    Device::open(name).map_err(|error| {
        let problem = format!(
            "cannot open the TUN device {name}: {error}: make it for the relay's user (ip tuntap add), or give the relay CAP_NET_ADMIN"
        );
        ConfigError::new("ip.device", problem)
    })
}

/// Whether the system lets us; if not, the operator is told once why clients get no echoes.
fn may_echo(is_v6: bool) -> bool {
    let Err(error) = echo_is_permitted(is_v6) else {
        return true;
    };
    // Both families have the same permission; that one of them is missing altogether is no news.
    if error.kind() == std::io::ErrorKind::PermissionDenied && !is_v6 {
        tracing::warn!(%error, "ICMP echo is not served: put the relay's group into net.ipv4.ping_group_range, or set ip.enabled = false");
    }
    false
}
