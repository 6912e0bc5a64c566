//! Turns names into addresses, with a bounded cache and a time limit.
//! The addresses that it answers are unchecked: each must pass the policy before anything is sent to it.
//! DNS over UDP, then TCP (RFC 1035, RFC 7766); the servers are the system's or those of `[egress] resolver`.

use std::{future::Future, net::IpAddr, pin::pin, time::Duration};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::rr::{Name, RData, Record, RecordType},
};
use hoplite_wire::{HostName, dns::Code, special};
use tokio::time::timeout;

use crate::config::ResolverChoice;

/// How many answers are kept; the least used go first.
const CACHE: u64 = 4096;
/// How long a client may keep an answer, in seconds: what is left of the servers' time would tell it when another client asked for the name.
const FRESH: u32 = 60;
/// How many addresses of one name are tried.
const ADDRESSES: usize = 8;
/// How long one family waits for the other (RFC 8305 §8).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

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
        if special::is_nobody(name.as_str()) {
            return Err(ResolveError::NotFound);
        }
        let dns = self.dns.as_ref().ok_or(ResolveError::Failed)?;
        let mut absolute = Name::from_ascii(name.as_str()).map_err(|_| ResolveError::NotFound)?;
        // Never completed with the host's search domains: the client means this name.
        absolute.set_fqdn(true);
        let families = both(
            family(dns, absolute.clone(), RecordType::AAAA),
            family(dns, absolute, RecordType::A),
        );
        let answer = timeout(self.limit, families).await;
        answer.map_err(|_| ResolveError::TimedOut)?
    }
}

/// What the servers say about a name.
pub(crate) struct Found {
    pub(crate) code: Code,
    pub(crate) answers: Vec<Record>,
    /// Why there is no answer, and for how long.
    pub(crate) authorities: Vec<Record>,
    /// How long they may be kept, in seconds; it does not tell how long they have been.
    pub(crate) fresh: u32,
}

impl Resolver {
    /// The records of one type, or that there are none.
    ///
    /// # Errors
    /// See [`ResolveError`]; it is never [`ResolveError::NotFound`].
    pub(crate) async fn records(
        &self,
        name: &Name,
        kind: RecordType,
    ) -> Result<Found, ResolveError> {
        let dns = self.dns.as_ref().ok_or(ResolveError::Failed)?;
        let asking = dns.lookup(name.clone(), kind);
        let answer = timeout(self.limit, asking).await;
        match answer.map_err(|_| ResolveError::TimedOut)? {
            Ok(found) => Ok(Found {
                code: Code::NO_ERROR,
                answers: found.answers().iter().map(fresh).collect(),
                authorities: Vec::new(),
                fresh: FRESH,
            }),
            Err(error) => nothing(error),
        }
    }
}

fn nothing(error: NetError) -> Result<Found, ResolveError> {
    match reason(&error) {
        ResolveError::NotFound => {}
        failure => return Err(failure),
    }
    let NetError::Dns(DnsError::NoRecordsFound(none)) = error else {
        return Err(ResolveError::Failed);
    };
    // "the minimum of the MINIMUM field of the SOA record and the TTL of the SOA itself" (RFC 2308 §5); without one it is not kept.
    let kept = none.soa.as_ref().map_or(0, |soa| soa.data.minimum);
    let soa = none.soa.map(|soa| fresh(&soa.into_record_of_rdata()));
    Ok(Found {
        code: none.response_code.into(),
        answers: Vec::new(),
        authorities: soa.into_iter().collect(),
        fresh: kept.min(FRESH),
    })
}

/// A record as it is told, whenever it came.
fn fresh(record: &Record) -> Record {
    let mut record = record.clone();
    record.ttl = FRESH;
    record
}

type Answer = Result<Vec<IpAddr>, ResolveError>;

/// The addresses of one family.
async fn family(dns: &TokioResolver, name: Name, kind: RecordType) -> Answer {
    let answer = dns.lookup(name, kind).await;
    let answer = answer.map_err(|error| reason(&error))?;
    let address = |record: &Record| match record.data {
        RData::A(ip) => Some(IpAddr::V4(ip.0)),
        RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
        _ => None,
    };
    let found = answer.answers().iter().filter_map(address).take(ADDRESSES);
    let found: Vec<IpAddr> = found.collect();
    if found.is_empty() {
        Err(ResolveError::NotFound)
    } else {
        Ok(found)
    }
}

/// Once one family has an address, the other gets [`RESOLUTION_DELAY`]: RFC 8305 §3.
async fn both(
    v6: impl Future<Output = Answer> + Send,
    v4: impl Future<Output = Answer> + Send,
) -> Answer {
    let (mut v6, mut v4) = (pin!(v6), pin!(v4));
    let (first, second) = tokio::select! {
        found = &mut v6 => (found, v4 as Pin<&mut (dyn Future<Output = Answer> + Send)>),
        found = &mut v4 => (found, v6 as _),
    };
    let missing = match first {
        Ok(mut found) => {
            let more = timeout(RESOLUTION_DELAY, second).await;
            found.extend(more.ok().and_then(Result::ok).unwrap_or_default());
            found.sort_by_key(IpAddr::is_ipv4);
            return Ok(found);
        }
        Err(missing) => missing,
    };
    second.await.map_err(|other| match missing {
        ResolveError::NotFound => other,
        missing => missing,
    })
}

fn reason(error: &NetError) -> ResolveError {
    match error {
        NetError::Timeout => ResolveError::TimedOut,
        // NOERROR without records is "not found" too, but SERVFAIL and REFUSED are not.
        error if error.is_no_records_found() && !is_failure(error) => ResolveError::NotFound,
        _ => ResolveError::Failed,
    }
}

fn is_failure(error: &NetError) -> bool {
    use hickory_resolver::proto::op::ResponseCode;
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
    options.timeout = (limit / 2).max(Duration::from_millis(100));
    options.attempts = 2;
    options.max_active_requests = 1024;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().ok()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{Instant, sleep};

    use super::*;

    /// What is told of a name that does not exist, so many seconds after the servers said so.
    fn absent(age: u32) -> Found {
        use hickory_resolver::{
            net::NoRecords,
            proto::{
                op::{Query, ResponseCode},
                rr::rdata::SOA,
            },
        };
        let zone = Name::from_ascii("test.").expect("a name");
        let soa = SOA::new(zone.clone(), zone.clone(), 1, 3600, 600, 86_400, 300);
        let query = Query::query(zone.clone(), RecordType::A);
        let mut none = NoRecords::new(query, ResponseCode::NXDomain);
        none.negative_ttl = Some(300 - age);
        none.soa = Some(Box::new(Record::from_rdata(zone, 300 - age, soa)));
        let found = nothing(NetError::Dns(DnsError::NoRecordsFound(none)));
        found.expect("no failure")
    }

    #[test]
    fn that_there_is_no_such_name_is_told_alike_whenever_it_was_learnt() {
        let [first, later] = [0, 290].map(absent);
        assert_eq!(first.authorities, later.authorities);
        let kept = first.authorities.first().map(|soa| soa.ttl);
        assert_eq!([first.fresh, later.fresh], [FRESH; 2]);
        assert_eq!(kept, Some(FRESH));
    }

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const V6: IpAddr = special::LOOPBACK[1];

    async fn late(answer: Answer) -> Answer {
        sleep(Duration::from_secs(1)).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_that_lags_delays_the_other_a_little_only() {
        let start = Instant::now();
        assert_eq!(both(pending(), ready(Ok(vec![V4]))).await, Ok(vec![V4]));
        assert_eq!(start.elapsed(), RESOLUTION_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_without_addresses_does_not_hide_the_other() {
        let missing = ready(Err(ResolveError::NotFound));
        assert_eq!(both(missing, late(Ok(vec![V4]))).await, Ok(vec![V4]));
        let failed = ready(Err(ResolveError::Failed));
        assert_eq!(both(late(Ok(vec![V6])), failed).await, Ok(vec![V6]));
    }

    #[tokio::test(start_paused = true)]
    async fn ipv6_comes_first_and_the_more_telling_failure_counts() {
        let answer = both(ready(Ok(vec![V6])), ready(Ok(vec![V4]))).await;
        assert_eq!(answer, Ok(vec![V6, V4]));
        let missing = || ready(Err(ResolveError::NotFound));
        assert_eq!(
            both(missing(), missing()).await,
            Err(ResolveError::NotFound)
        );
        let failed = both(missing(), late(Err(ResolveError::TimedOut))).await;
        assert_eq!(failed, Err(ResolveError::TimedOut));
    }
}
