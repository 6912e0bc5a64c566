//! The way out: from a target to a socket. Every address passes the policy, whether given or looked up, TCP and UDP alike.
//! Nothing else in this room opens a socket towards a target.
//! It also answers clients' DNS questions by the relay's own resolver; what the policy would not connect to is not told either. RFC 1035,
//! RFC 2308; RFC 8482 (a query for everything gets nothing), RFC 6303 (local reverse zones).

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use hickory_resolver::proto::rr::RecordType;
use hoplite_overlay::direct::{
    SocketBuffers, UdpFlow, UdpSettings, connect_socket_from, connect_udp,
};
use hoplite_wire::{
    Host, HostName, Target,
    dns::{Code, Question, believed},
    region::Shown,
    special,
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    config::Config,
    failure::{Failure, Limit},
    host_addresses::HostAddresses,
    limits::QueryQuota,
    metrics::{self, Metrics},
    policy::{Policy, PolicyVerdict, Refusal},
    resolve::{Found, ResolveError, Resolver},
};

mod bound;
mod pools;

pub(crate) use self::{
    bound::Bound,
    pools::{Lots, fit},
};
use self::{bound::BoundSockets, pools::Pools};

/// How long a negative answer of ours may be kept, in seconds: as long as any other.
const NEGATIVE: u32 = 60;

/// Opens sockets towards permitted targets.
#[derive(Debug)]
pub(crate) struct Egress {
    policy: ArcSwap<Policy>,
    resolver: Resolver,
    pools: Pools,
    bound: BoundSockets,
    /// How long a target may take to accept a TCP connection.
    patience: ArcSwap<Duration>,
}

/// For whom a flow leaves: it decides its address and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Origin<'a> {
    /// Those of the client's connection.
    pub(crate) lots: &'a Lots,
    /// The region that the client shows, which may be a lie.
    pub(crate) shown: Option<Shown>,
}

impl Egress {
    /// The way out of a relay that listens at `listen`, on the host that has the addresses `local`.
    pub(crate) fn new(config: &Config, listen: &[SocketAddr], local: Arc<HostAddresses>) -> Self {
        Self {
            policy: ArcSwap::from_pointee(Policy::new(config, listen, local)),
            resolver: Resolver::new(&config.egress.resolver, config.limits.resolve),
            pools: Pools::new(&config.egress),
            bound: BoundSockets::new(config),
            patience: ArcSwap::from_pointee(config.limits.connect),
        }
    }

    /// Judges by these rules from now on; what is open stays open.
    pub(crate) fn set_rules(&self, config: &Config) {
        let policy = self.policy().with_rules_of(config);
        self.policy.store(Arc::new(policy));
    }

    /// Waits so long for targets from now on.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.patience.store(Arc::new(patience));
    }

    fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Connects to `target` over TCP, to whichever of its permitted addresses answers first.
    ///
    /// # Errors
    /// The policy's, the resolver's or the target's.
    pub(crate) async fn tcp(
        &self,
        target: &Target,
        origin: &Origin<'_>,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<TcpStream, Failure> {
        let verdict = self.policy().check_target(target)?;
        let source = |ip| self.source(verdict, origin, ip);
        let addresses = self.addresses(target, queries, metrics).await?;
        let start = Instant::now();
        let patience = **self.patience.load();
        let connecting = timeout(patience, connect_socket_from(&addresses, &source));
        let socket = connecting.await.map_err(|_| Failure::TimedOut)??;
        metrics::observe(&metrics.connect, start.elapsed());
        Ok(socket)
    }

    /// Opens a connected UDP socket towards the first permitted address of `target` that has a route. What goes to a relay is a tunnel.
    ///
    /// # Errors
    /// The policy's, the resolver's or the system's.
    pub(crate) async fn udp(
        &self,
        target: &Target,
        origin: &Origin<'_>,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<UdpFlow, Failure> {
        let mut failure = Failure::Unreachable;
        let verdict = self.policy().check_target(target)?;
        let settings = UdpSettings {
            buffers: match verdict {
                PolicyVerdict::Relay => SocketBuffers::Tunnel,
                PolicyVerdict::Checked => SocketBuffers::Ordinary,
            },
            ..UdpSettings::default()
        };
        for address in self.addresses(target, queries, metrics).await? {
            let settings = UdpSettings {
                source: self.source(verdict, origin, address.ip()),
                ..settings
            };
            match connect_udp(address, &settings) {
                Ok(flow) => return flow.writable().await.map(|()| flow).map_err(Failure::from),
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }

    /// Which address of this host a flow to `target` has. A relay is no target: what is carried there leaves as the system says.
    fn source(
        &self,
        verdict: PolicyVerdict,
        origin: &Origin<'_>,
        target: IpAddr,
    ) -> Option<IpAddr> {
        match verdict {
            PolicyVerdict::Relay => None,
            PolicyVerdict::Checked => {
                let (lots, shown) = (origin.lots, origin.shown.as_ref());
                self.pools.source(lots, shown, target, Instant::now())
            }
        }
    }

    /// The address of each family that echoes leave from, where a pool has one.
    pub(crate) fn echo_sources(&self, origin: &Origin<'_>) -> Vec<IpAddr> {
        let (lots, shown) = (origin.lots, origin.shown.as_ref());
        let source = |family: &IpAddr| self.pools.source(lots, shown, *family, Instant::now());
        bound::FAMILIES.iter().filter_map(source).collect()
    }

    /// The addresses of `host` that the policy permits, whatever the port; at least one. For packets, which are judged again one by one.
    ///
    /// # Errors
    /// The policy's or the resolver's.
    pub(crate) async fn hosts(
        &self,
        host: Host,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        let target = Target { host, port: 0 };
        let found = self.addresses(&target, queries, metrics).await?;
        Ok(found.iter().map(SocketAddr::ip).collect())
    }

    /// Whether a packet may be sent to this address and port; port 0 where there are none.
    pub(crate) fn permits_address(&self, address: SocketAddr) -> bool {
        self.policy().check_address(address).is_ok()
    }

    /// Whether a name is looked up to connect to this port of it.
    pub(crate) fn permits_name(&self, name: &HostName, port: u16) -> bool {
        self.policy().check_name(name, port).is_ok()
    }

    /// Whether the operator names a relay there.
    pub(crate) fn is_configured_relay(&self, address: SocketAddr) -> bool {
        self.policy().is_configured_relay(address)
    }

    /// Whether the operator names the address as one that clients may reach.
    pub(crate) fn is_explicitly_allowed(&self, address: SocketAddr) -> bool {
        self.policy().is_explicitly_allowed(address)
    }

    /// Whether circuits may be extended to a relay there.
    pub(crate) fn permits_relay(&self, address: SocketAddr) -> bool {
        self.policy().check_relay(address).is_ok()
    }

    /// The addresses of `name` that a client may be told.
    ///
    /// # Errors
    /// The policy's or the resolver's.
    pub(crate) async fn resolve_for_client(
        &self,
        name: &HostName,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        let localhost = special::is_localhost(name.as_str());
        if !localhost && !self.policy().may_resolve(name.as_str()) {
            return Err(Refusal::Name.into());
        }
        let mut found = self.resolve(name, queries, metrics).await?;
        found.retain(|ip| self.policy().may_reveal(*ip));
        if found.is_empty() {
            Err(Refusal::Address.into())
        } else {
            Ok(found)
        }
    }

    /// The addresses of `target` that the policy permits; at least one.
    async fn addresses(
        &self,
        target: &Target,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let verdict = self.policy().check_target(target)?;
        let found = match &target.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => self.resolve(name, queries, metrics).await?,
        };
        Ok(self.permitted(verdict, &found, target.port)?)
    }

    async fn resolve(
        &self,
        name: &HostName,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        if !special::is_localhost(name.as_str()) && !queries.admits_name() {
            return Err(Failure::Limited(Limit::Queries));
        }
        let _place = queries
            .look_up()
            .map_err(|_| Failure::Limited(Limit::Queries))?;
        let start = Instant::now();
        let found = self.resolver.addresses(name).await;
        metrics::observe(&metrics.resolve, start.elapsed());
        Ok(found?)
    }

    fn permitted(
        &self,
        verdict: PolicyVerdict,
        found: &[IpAddr],
        port: u16,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let mut refusal = Refusal::Address;
        let mut permitted = Vec::with_capacity(found.len());
        for ip in found {
            let address = SocketAddr::new(ip.to_canonical(), port);
            match self.policy().check_resolved(verdict, address) {
                Ok(()) => permitted.push(address),
                Err(why) => refusal = why,
            }
        }
        if permitted.is_empty() {
            Err(refusal)
        } else {
            Ok(permitted)
        }
    }
}

/// A reply, and what is said about it.
pub(crate) struct Answered {
    pub(crate) reply: Vec<u8>,
    /// How long it may be kept.
    pub(crate) fresh: Duration,
    /// The word for the metrics.
    pub(crate) outcome: &'static str,
}

impl Egress {
    /// Answers `question`, which was admitted.
    pub(crate) async fn answer(
        &self,
        question: &Question,
        queries: &QueryQuota<'_>,
        metrics: &Metrics,
    ) -> Answered {
        if let Some(refused) = self.refused(question) {
            return refused;
        }
        let Ok(_place) = queries.look_up() else {
            metrics.limited(Limit::Queries.label());
            return failure(question, Code::FAILURE, "connection_limit_reached");
        };
        let start = Instant::now();
        let found = self
            .resolver
            .records(question.owner(), question.kind())
            .await;
        metrics::observe(&metrics.resolve, start.elapsed());
        match found {
            Ok(found) => self.told(question, found),
            Err(ResolveError::TimedOut) => failure(question, Code::FAILURE, "dns_timeout"),
            Err(_) => failure(question, Code::FAILURE, "dns_error"),
        }
    }

    /// The answer to what is never looked up.
    fn refused(&self, question: &Question) -> Option<Answered> {
        let text = question.text();
        if !question.is_internet() || is_of_no_use(question.kind()) {
            return Some(failure(question, Code::NOT_IMPLEMENTED, "not_supported"));
        }
        if special::is_nobody(&text) || special::is_localhost(&text) {
            let reply = question.nothing(Code::NO_NAME, NEGATIVE);
            return Some(answered(reply, NEGATIVE, "name_not_found"));
        }
        let inside = question
            .reverse()
            .is_some_and(|(ip, _)| !self.policy().may_reveal(ip));
        let refuses = inside || !self.policy().may_resolve(&text);
        refuses.then(|| failure(question, Code::REFUSED, "refused"))
    }

    fn told(&self, question: &Question, found: Found) -> Answered {
        let Found {
            code,
            answers,
            authorities,
            fresh,
        } = found;
        let had = !answers.is_empty();
        let answers = believed(answers, |ip: IpAddr| self.policy().may_reveal(ip));
        if had && !answers.iter().any(|r| r.record_type() == question.kind()) && hides(question) {
            return failure(question, Code::REFUSED, "refused");
        }
        // What the policy has emptied is no answer to be kept.
        let fresh = if had && answers.is_empty() { 0 } else { fresh };
        let outcome = match code {
            Code::NO_NAME => "name_not_found",
            _ => "ok",
        };
        answered(question.records(code, answers, authorities), fresh, outcome)
    }
}

/// Whether an answer without the wanted records means that the policy dropped them.
fn hides(question: &Question) -> bool {
    matches!(question.kind(), RecordType::A | RecordType::AAAA)
}

/// Whole zones, everything at once, and what is no record of a name.
fn is_of_no_use(kind: RecordType) -> bool {
    use RecordType::{ANY, AXFR, IXFR, OPT, TSIG, ZERO};
    matches!(kind, ANY | AXFR | IXFR | OPT | TSIG | ZERO)
}

fn failure(question: &Question, code: Code, outcome: &'static str) -> Answered {
    answered(question.failed(code), 0, outcome)
}

fn answered(reply: Vec<u8>, fresh: u32, outcome: &'static str) -> Answered {
    let fresh = Duration::from_secs(fresh.into());
    Answered {
        reply,
        fresh,
        outcome,
    }
}
