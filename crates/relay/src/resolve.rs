//! Turns names into addresses, with a bounded cache and a time limit; `egress` alone uses it, after the policy agreed.
//! The addresses that it answers are unchecked: each must pass the policy before anything is sent to it.
//! DNS over UDP, then TCP (RFC 1035, RFC 7766); the servers are the system's or those of `[egress] resolver`.

use std::{net::IpAddr, time::Duration};

use hickory_resolver::{
    TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
        ResolverOpts,
    },
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::Name,
};
use hoplite_wire::HostName;
use tokio::time::timeout;

use crate::{config::ResolverChoice, policy::special};

/// How many answers are kept; the least used go first.
const CACHE: u64 = 4096;
/// How many addresses of one name are tried.
const ADDRESSES: usize = 8;

/// Asks the configured servers.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// Absent when the system has no usable configuration: then names fail and addresses still work.
    dns: Option<TokioResolver>,
    limit: Duration,
}

/// Why a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The name does not exist, or has no address.
    #[error("no such name")]
    NotFound,
    /// No server answered in time.
    #[error("the resolver did not answer in time")]
    TimedOut,
    /// The servers answered that they cannot, or nonsense.
    #[error("the resolver failed")]
    Failed,
}

impl Resolver {
    /// A resolver that asks `choice` and takes at most `limit` for a name.
    pub(crate) fn new(choice: &ResolverChoice, limit: Duration) -> Self {
        let dns = match choice {
            ResolverChoice::Servers(servers) => Some(servers_config(servers)),
            _ => hickory_resolver::system_conf::read_system_conf().ok(),
        };
        let built = dns.and_then(|(config, options)| build(config, options, limit));
        if built.is_none() {
            tracing::warn!(
                "no usable DNS configuration: names will not resolve; set egress.resolver"
            );
        }
        Self { dns: built, limit }
    }

    /// The addresses of `name`, both families, in the order of preference.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub(crate) async fn addresses(&self, name: &HostName) -> Result<Vec<IpAddr>, ResolveError> {
        if special::is_localhost(name.as_str()) {
            return Ok(special::LOOPBACK.to_vec());
        }
        let dns = self.dns.as_ref().ok_or(ResolveError::Failed)?;
        let mut absolute = Name::from_ascii(name.as_str()).map_err(|_| ResolveError::NotFound)?;
        // Never completed with the host's search domains: the client means this name.
        absolute.set_fqdn(true);
        let answer = timeout(self.limit, dns.lookup_ip(absolute)).await;
        let answer = answer.map_err(|_| ResolveError::TimedOut)?;
        let answer = answer.map_err(|error| kind(&error))?;
        let addresses: Vec<IpAddr> = answer.iter().take(ADDRESSES).collect();
        match addresses.is_empty() {
            true => Err(ResolveError::NotFound),
            false => Ok(addresses),
        }
    }
}

fn kind(error: &NetError) -> ResolveError {
    match error {
        NetError::Timeout => ResolveError::TimedOut,
        // NOERROR without records is "not found" too, but SERVFAIL and REFUSED are not.
        error if error.is_no_records_found() && !is_failure(error) => ResolveError::NotFound,
        _ => ResolveError::Failed,
    }
}

fn is_failure(error: &NetError) -> bool {
    use hickory_resolver::{net::DnsError, proto::op::ResponseCode};
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => !matches!(
            none.response_code,
            ResponseCode::NoError | ResponseCode::NXDomain
        ),
        _ => false,
    }
}

fn servers_config(servers: &[std::net::SocketAddr]) -> (ResolverConfig, ResolverOpts) {
    let with_port = |port| {
        move |mut connection: ConnectionConfig| {
            connection.port = port;
            connection
        }
    };
    let server = |address: &std::net::SocketAddr| {
        let connections =
            [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(with_port(address.port()));
        NameServerConfig::new(address.ip(), true, connections.to_vec())
    };
    let config = ResolverConfig::from_name_servers(servers.iter().map(server).collect());
    let mut options = ResolverOpts::default();
    options.use_hosts_file = ResolveHosts::Never;
    (config, options)
}

fn build(
    config: ResolverConfig,
    mut options: ResolverOpts,
    limit: Duration,
) -> Option<TokioResolver> {
    options.cache_size = CACHE;
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    options.timeout = (limit / 2).max(Duration::from_millis(100));
    options.attempts = 2;
    options.max_active_requests = 1024;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().ok()
}
