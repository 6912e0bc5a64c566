//! One request from its head to its end: let in, read, opened, answered, carried. Nothing is looked up and nothing opened before it is let in.
//! Each transport runs it in a task for each request; dropping the task closes the tunnel.
//! Requests: CONNECT by RFC 9114 §4.4 and RFC 9113 §8.5, extended CONNECT by RFC 8441 and RFC 9220, connect-udp by RFC 9298 §2 and §3 and draft-ietf-masque-connect-udp-listen-13,
//! connect-ip by RFC 9484 §4, connect-tcp by draft-ietf-httpbis-connect-tcp, DNS queries: see [`super::dns`].
//! Answers: RFC 9110 §15, RFC 9298 §3.3 and §3.5, RFC 9484 §4.5, `Proxy-Status` by RFC 9209.

use std::{future::Future, pin::Pin, sync::Arc};

use hoplite_http::{Exchange, HttpError, HttpVersion};
use hoplite_wire::{
    RequestHead, ResponseHead, Target, Template,
    connect_ip::Scope,
    connect_tcp::Draft,
    region::{self, Region, Shown},
    template::PathError,
};
use tokio::time::timeout;

use super::{Alive, Shared, bound, client_stream, dns, ip_flow, splice, udp};
use crate::{
    ConfigError,
    admission::{AdmittedBy, AdmittedClient, NotAdmitted},
    config,
    egress::{Lots, Origin},
    failure::{Failure, Limit},
    forward::{self, ClientConnection},
    limits::{Account, ClientKey, HeldPart, MemoryReservation, Place, QuotaGuard, TUNNEL},
    metrics::{Method, Up},
};

/// A request and where it came from.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    /// The client by its address; with a token, limits count by that instead.
    pub(crate) client: ClientKey,
    /// The connection's: it is busy while the request lasts.
    pub(crate) place: Arc<Place>,
    /// The connection's memory.
    pub(crate) account: Arc<Account>,
    /// By whose private token the connection was let in.
    pub(crate) by: Arc<AdmittedBy>,
    /// By which addresses its flows leave.
    pub(crate) lots: Arc<Lots>,
    /// What its client is told of where it is.
    pub(crate) region: Option<Region>,
    pub(crate) alive: Alive,
    pub(crate) head: RequestHead,
    /// The connection below, if its client's packets may be forwarded past it.
    pub(crate) client_connection: Option<ClientConnection>,
    pub(crate) exchange: Exchange,
}

/// Bytes that a field of a head takes beside its name and value: two allocations, and where they are.
const FIELD: usize = 96;
/// Bytes of a head that count as part of its tunnel.
const HEAD: usize = 4096;

/// What carries a tunnel that is open.
type Carried = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Job {
    /// Serves the request to its end; whether its client waited for the answer. A relay has thousands of these tasks, which last: each holds on the heap
    /// what it needs for its kind of request, and for as long as that takes.
    pub(crate) async fn run(self: Box<Self>) -> bool {
        let method = method(&self.head);
        let shared = self.shared.clone();
        let (place, admitted) = (self.place.clone(), Box::pin(self.admit()).await);
        let _busy = admitted.is_ok().then(|| {
            self.account.begin();
            place.busy()
        });
        let done = match admitted {
            Ok((Asked::Tcp(target, capsules), quota, _memory)) => {
                Box::pin(self.tcp(&target, capsules, &quota)).await
            }
            Ok((Asked::Udp(target), quota, _memory)) => Box::pin(self.udp(&target, &quota)).await,
            Ok((Asked::Bound, quota, _memory)) => Box::pin(self.bound_udp(&quota)).await,
            Ok((Asked::Ip(scope), quota, _memory)) => Box::pin(self.ip(&scope, &quota)).await,
            Ok((Asked::Dns(source), quota, _memory)) => Box::pin(self.dns(source, &quota)).await,
            Err(failure) => {
                let _alive = self.alive.clone();
                let exchange = self.into_exchange();
                let refused = Box::pin(refuse(&shared, method, failure, exchange));
                let patience = shared.limits().handshake;
                timeout(patience, refused).await.unwrap_or(Err(ClientGone))
            }
        };
        if let Err(ClientGone) = done {
            tracing::trace!("the client left before its answer");
        }
        done.is_ok()
    }

    /// Of the request nothing is left: who was not let in has nothing counted.
    fn into_exchange(self: Box<Self>) -> Exchange {
        self.exchange
    }

    async fn admit(&self) -> Result<(Asked, QuotaGuard, MemoryReservation), Failure> {
        let shared = &self.shared;
        if self.alive.is_draining() {
            return Err(Failure::Draining);
        }
        let admission = shared.admission.load_full();
        let judged = admission.judge(credentials(&self.head), &self.by).await;
        let key = match judged.map_err(|why| self.not_admitted(why))? {
            AdmittedClient::Anyone => self.client,
            AdmittedClient::Holder(index) => shared.quotas.by_token(index),
            AdmittedClient::Spender(nonce) => shared.quotas.by_private_token(&nonce),
        };
        let asked = read_request(&self.head, &shared.templates, shared.serves_dns)?;
        let quota = shared
            .quotas
            .request(key)
            .map_err(|_| Failure::Limited(Limit::Requests))?;
        let memory = MemoryReservation::of_request(&self.account, self.memory());
        let memory = memory.ok_or(Failure::Limited(Limit::Memory))?;
        Ok((asked, quota, memory))
    }

    fn not_admitted(&self, why: NotAdmitted) -> Failure {
        match why {
            NotAdmitted::Token(word) => {
                self.shared.metrics.token_refused(word);
                Failure::Unauthenticated
            }
            NotAdmitted::Unknown => {
                self.shared.metrics.token_refused("store_down");
                Failure::Internal
            }
        }
    }

    /// What this request alone may hold, beside what the connection's windows allow, in bytes.
    fn memory(&self) -> usize {
        let waiting = match self.exchange.version() {
            HttpVersion::H2 => self.shared.h2.send_buffer,
            HttpVersion::H1 | HttpVersion::H3 => 0,
        };
        TUNNEL + waiting + held(&self.head).saturating_sub(HEAD)
    }

    async fn tcp(
        self: Box<Self>,
        target: &Target,
        capsules: Option<Draft>,
        quota: &QuotaGuard,
    ) -> Result<(), ClientGone> {
        let (metrics, alive) = (Arc::clone(&self.shared.metrics), self.alive.clone());
        if let Some(carried) = Box::pin(self.open_tcp(target, capsules, quota)).await? {
            let up = Up::new(&metrics.tunnels_open.tcp);
            carried.await;
            drop((up, alive));
        }
        Ok(())
    }

    /// What carries the tunnel, if it was opened. Of the request nothing is left beside it.
    async fn open_tcp(
        mut self: Box<Self>,
        target: &Target,
        capsules: Option<Draft>,
        quota: &QuotaGuard,
    ) -> Result<Option<Carried>, ClientGone> {
        let (shared, method) = (self.shared, method(&self.head));
        let queries = shared.quotas.queries(quota);
        let origin = origin(&self.lots, &self.head);
        let egress = &shared.egress;
        let opened = Box::pin(egress.tcp(target, &origin, &queries, &shared.metrics));
        let socket = match unless_gone(&mut self.exchange, opened).await? {
            Ok(socket) => socket,
            Err(failure) => {
                refuse(&shared, method, failure, self.exchange).await?;
                return Ok(None);
            }
        };
        let head = located(ResponseHead::new(200), self.region);
        let head = match capsules {
            Some(_) => head.with("capsule-protocol", "?1"),
            None => head,
        };
        self.exchange.respond(&head).await?;
        shared.metrics.request(method, "ok");
        let terms = splice::Terms {
            metrics: Arc::clone(&shared.metrics),
            pace: quota.pace(),
            idle: shared.limits().idle_stream,
            account: self.account,
        };
        let (from, to) = client_stream::split(self.exchange, capsules);
        Ok(Some(Box::pin(splice::splice(from, to, socket, terms))))
    }

    async fn dns(
        self: Box<Self>,
        source: dns::Source,
        quota: &QuotaGuard,
    ) -> Result<(), ClientGone> {
        let shared = self.shared;
        let queries = shared.quotas.queries(quota);
        if queries.admits_query() {
            let allowance = dns::Allowance {
                queries: &queries,
                pace: quota.pace(),
            };
            dns::serve(&shared, allowance, source, self.exchange).await
        } else {
            refuse(
                &shared,
                Method::dns,
                Failure::Limited(Limit::Queries),
                self.exchange,
            )
            .await
        }
    }

    async fn udp(self: Box<Self>, target: &Target, quota: &QuotaGuard) -> Result<(), ClientGone> {
        let (metrics, alive) = (Arc::clone(&self.shared.metrics), self.alive.clone());
        if let Some((carried, place)) = Box::pin(self.open_udp(target, quota)).await? {
            let up = Up::new(&metrics.tunnels_open.udp);
            carried.await;
            drop((up, place, alive));
        }
        Ok(())
    }

    /// What carries the tunnel, and its place among all, if it was opened.
    async fn open_udp(
        mut self: Box<Self>,
        target: &Target,
        quota: &QuotaGuard,
    ) -> Result<Option<(Carried, QuotaGuard)>, ClientGone> {
        let shared = self.shared;
        let origin = origin(&self.lots, &self.head);
        let opened = async {
            let place = shared
                .quotas
                .udp(quota)
                .map_err(|_| Failure::Limited(Limit::UdpTunnels))?;
            let queries = shared.quotas.queries(quota);
            let opened = shared
                .egress
                .udp(target, &origin, &queries, &shared.metrics);
            opened.await.map(|socket| (socket, place))
        };
        let (socket, place) = match unless_gone(&mut self.exchange, Box::pin(opened)).await? {
            Ok(opened) => opened,
            Err(failure) => {
                refuse(&shared, Method::connect_udp, failure, self.exchange).await?;
                return Ok(None);
            }
        };
        let head = ResponseHead::new(200).with("capsule-protocol", "?1");
        let head = located(head, self.region);
        let part = HeldPart::new(Arc::clone(&self.account));
        let account = self.client_connection.is_none().then_some(self.account);
        let (head, terms) =
            forward::negotiate(&shared.forwarding, &self.head, self.client_connection, head);
        // HTTP/1.1 has one context alone.
        let has_contexts = self.exchange.version() != HttpVersion::H1;
        let marks = self.head.ecn_contexts().filter(|_| has_contexts);
        let head = match marks {
            Some(_) => head.with_ecn_contexts(),
            None => head,
        };
        self.exchange.respond(&head).await?;
        shared.metrics.request(Method::connect_udp, "ok");
        let counted = (quota.pace(), account, part);
        let carried = udp::carry(shared, counted, socket, self.exchange, (terms, marks));
        Ok(Some((Box::pin(carried), place)))
    }

    async fn bound_udp(mut self: Box<Self>, quota: &QuotaGuard) -> Result<(), ClientGone> {
        let shared = self.shared;
        let method = Method::bound_udp;
        let opened = async {
            let sources = shared.egress.bound_sources(&origin(&self.lots, &self.head));
            // Over HTTP/1.1 there is no way for the answers to capsules.
            if sources.is_empty() || self.exchange.version() == HttpVersion::H1 {
                return Err(Failure::Malformed);
            }
            // A port for each.
            let places = sources.iter().map(|_| shared.quotas.udp(quota));
            let places: Result<Vec<_>, _> = places.collect();
            let places = places.map_err(|_| Failure::Limited(Limit::UdpTunnels))?;
            let config = &shared.bound_udp;
            let memory = crate::bound::memory(config.contexts, config.targets);
            let memory = MemoryReservation::of_request(&self.account, memory);
            let memory = memory.ok_or(Failure::Limited(Limit::Memory))?;
            let opened = shared.egress.bind(&sources).await;
            opened.map(|opened| (opened, places, memory))
        };
        let (opened, _places, _memory) = match Box::pin(opened).await {
            Ok(opened) => opened,
            Err(failure) => return refuse(&shared, method, failure, self.exchange).await,
        };
        let head = ResponseHead::new(200).with("capsule-protocol", "?1");
        let head = located(head, self.region).with_bound(&opened.addresses());
        self.exchange.respond(&head).await?;
        shared.metrics.request(method, "ok");
        let _up = Up::new(&shared.metrics.tunnels_open.bound_udp);
        let part = HeldPart::new(Arc::clone(&self.account));
        let account = self.client_connection.is_none().then_some(self.account);
        let counted = (quota.pace(), account, part);
        bound::carry(&shared, counted, opened, self.exchange).await;
        Ok(())
    }

    async fn ip(mut self: Box<Self>, scope: &Scope, quota: &QuotaGuard) -> Result<(), ClientGone> {
        let shared = self.shared;
        let origin = origin(&self.lots, &self.head);
        let opened = async {
            let place = shared
                .quotas
                .ip_flow(quota)
                .map_err(|_| Failure::Limited(Limit::IpFlows))?;
            let queries = shared.quotas.queries(quota);
            let opened = shared
                .ip
                .open(scope, &shared.egress, &origin, &queries, &shared.metrics);
            opened.await.map(|opened| (opened, place))
        };
        let (opened, _place) = match unless_gone(&mut self.exchange, Box::pin(opened)).await? {
            Ok(opened) => opened,
            Err(failure) => {
                return refuse(&shared, Method::connect_ip, failure, self.exchange).await;
            }
        };
        let head = ResponseHead::new(200).with("capsule-protocol", "?1");
        self.exchange.respond(&head).await?;
        shared.metrics.request(Method::connect_ip, "ok");
        let _up = Up::new(&shared.metrics.tunnels_open.ip);
        let part = HeldPart::new(Arc::clone(&self.account));
        let account = self.client_connection.is_none().then_some(self.account);
        let counted = (quota.pace(), account, part);
        ip_flow::carry(&shared, counted, opened, self.exchange).await;
        Ok(())
    }
}

/// Bytes that a request's head takes, about: fields of a byte each take more than they have.
fn held(head: &RequestHead) -> usize {
    let fields = head.headers.iter();
    let fields = fields.map(|(name, value)| FIELD + name.len() + value.len());
    let path = head.path.as_ref().map_or(0, String::len);
    fields.sum::<usize>() + path + head.authority.len()
}

/// With the client's region, for its client alone.
fn located(head: ResponseHead, region: Option<Region>) -> ResponseHead {
    match region {
        Some(region) => head.with(region::FIELD, region.to_string()),
        None => head,
    }
}

/// What decides the address of a request's flow.
fn origin<'a>(lots: &'a Lots, head: &RequestHead) -> Origin<'a> {
    Origin {
        lots,
        shown: head.header(region::FIELD).and_then(Shown::read),
    }
}

/// The client's stream or connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientGone;

impl From<HttpError> for ClientGone {
    fn from(_: HttpError) -> Self {
        Self
    }
}

/// Works for a request until its client breaks it off: nobody dials for those that have gone. The work takes more room than what follows, and not for long.
async fn unless_gone<T>(
    exchange: &mut Exchange,
    work: Pin<Box<impl Future<Output = T>>>,
) -> Result<T, ClientGone> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = exchange.gone() => Err(ClientGone),
    }
}

/// Answers with a failure, and counts it.
pub(super) async fn refuse(
    shared: &Shared,
    method: Method,
    failure: Failure,
    exchange: Exchange,
) -> Result<(), ClientGone> {
    count(shared, method, failure);
    let mut head = refusal(&shared.name, failure);
    if failure == Failure::Unauthenticated {
        let mut field = "proxy-authenticate";
        // "A templated TCP proxy does not use the '407 (Proxy Authentication Required)' response code", which gateways keep.
        if method == Method::connect_tcp {
            (head.status, field) = (401, "www-authenticate");
        }
        for challenge in shared.admission.load().challenges() {
            head = head.with(field, challenge);
        }
    }
    let refused = exchange.refuse(&head).await;
    if refused.is_err() {
        tracing::trace!("the client left before it had read its refusal");
    }
    Ok(())
}

fn count(shared: &Shared, method: Method, failure: Failure) {
    let metrics = &shared.metrics;
    metrics.request(method, failure.outcome());
    match failure {
        Failure::Unauthenticated => drop(metrics.auth_failures.inc()),
        Failure::Refused(_) => drop(metrics.policy_refusals.inc()),
        Failure::Limited(limit) => metrics.limited(limit.label()),
        _ => (),
    }
}

/// The answer to a request that is not served.
fn refusal(name: &str, failure: Failure) -> ResponseHead {
    let answer = failure.answer();
    let mut status = format!("{name}; error={}", answer.error.token());
    if let Some(rcode) = answer.rcode {
        status.push_str("; rcode=\"");
        status.push_str(rcode);
        status.push('"');
    }
    let head = ResponseHead::new(answer.status).with("proxy-status", status);
    match failure {
        Failure::Method => head.with("allow", "CONNECT"),
        _ => head,
    }
}

/// A request that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    /// A TCP tunnel, bare or in the capsules of a draft.
    Tcp(Target, Option<Draft>),
    /// A UDP tunnel.
    Udp(Target),
    /// A UDP tunnel with a public address.
    Bound,
    /// A flow of IP packets.
    Ip(Scope),
    /// An answer to a DNS query.
    Dns(dns::Source),
}

/// The values of the headers that may hold a token. Firefox sends `Authorization` on connect-udp.
fn credentials(head: &RequestHead) -> impl Iterator<Item = &[u8]> {
    let names = ["proxy-authorization", "authorization"];
    names.into_iter().filter_map(|name| head.header(name))
}

/// The label that the request is counted under.
fn method(head: &RequestHead) -> Method {
    match (head.method.as_str(), head.protocol.as_deref()) {
        ("CONNECT", None) => Method::connect,
        ("CONNECT", Some("connect-udp")) => Method::connect_udp,
        ("CONNECT", Some("connect-ip")) => Method::connect_ip,
        ("CONNECT", Some(token)) if Draft::of(token).is_some() => Method::connect_tcp,
        _ if dns::read(head).is_some() => Method::dns,
        _ => Method::other,
    }
}

/// Reads what is asked for. DNS queries are one of the methods that are not served where `serves_dns` is not set.
fn read_request(
    head: &RequestHead,
    templates: &Templates,
    serves_dns: bool,
) -> Result<Asked, Failure> {
    if let Some(source) = dns::read(head).filter(|_| serves_dns) {
        return source.map(Asked::Dns);
    }
    if head.method != "CONNECT" {
        return Err(Failure::Method);
    }
    match head.protocol.as_deref() {
        None => tcp(head),
        // "… :authority … containing the authority of the UDP proxy": not compared, since Firefox leaves out the
        // port, and this relay may be reached by names that it does not know.
        Some("connect-udp") => udp(head, templates),
        Some("connect-ip") => ip(head),
        Some(token) => match Draft::of(token) {
            Some(draft) => tcp_by_template(head, templates, draft),
            None => Err(Failure::Protocol),
        },
    }
}

/// "The :authority pseudo-header field contains the host and port to connect to."
fn tcp(head: &RequestHead) -> Result<Asked, Failure> {
    let target = head.authority.parse();
    target
        .map(|target| Asked::Tcp(target, None))
        .map_err(|_| Failure::Malformed)
}

fn tcp_by_template(
    head: &RequestHead,
    templates: &Templates,
    draft: Draft,
) -> Result<Asked, Failure> {
    let path = head.path.as_deref().ok_or(Failure::Malformed)?;
    target(&templates.tcp, path).map(|target| Asked::Tcp(target, Some(draft)))
}

/// One that has a target and asks for an address as well is served without: "would accept fallback to unextended UDP proxying to that target".
fn udp(head: &RequestHead, templates: &Templates) -> Result<Asked, Failure> {
    let path = head.path.as_deref().ok_or(Failure::Malformed)?;
    let any = || templates.udp.iter().any(|template| template.is_any(path));
    if head.asks_to_bind() && any() {
        return Ok(Asked::Bound);
    }
    target(&templates.udp, path).map(Asked::Udp)
}

/// By the well-known template alone.
fn ip(head: &RequestHead) -> Result<Asked, Failure> {
    let path = head.path.as_deref().ok_or(Failure::Malformed)?;
    Scope::read_path(path)
        .map(Asked::Ip)
        .map_err(|error| match error {
            PathError::NoMatch => Failure::NotFound,
            PathError::BadTarget => Failure::Malformed,
        })
}

/// The paths that this relay serves: of each protocol the well-known one, and one of the operator's choice.
#[derive(Clone, Debug)]
pub(crate) struct Templates {
    udp: Vec<Template>,
    tcp: Vec<Template>,
}

impl Templates {
    /// The well-known templates and the configured ones.
    pub(crate) fn new(config: &config::Masque) -> Result<Self, ConfigError> {
        let more = |key: &'static str, text: &Option<String>| {
            let read = text.as_deref().map(str::parse::<Template>).transpose();
            read.map_err(|error| ConfigError::new(key, format!("{error}")))
        };
        let udp = more("masque.template", &config.template)?;
        let tcp = more("masque.tcp_template", &config.tcp_template)?;
        Ok(Self {
            udp: [Template::well_known()].into_iter().chain(udp).collect(),
            tcp: [Template::well_known_tcp()]
                .into_iter()
                .chain(tcp)
                .collect(),
        })
    }
}

/// The target that a path asks for.
fn target(templates: &[Template], path: &str) -> Result<Target, Failure> {
    let mut failure = Failure::NotFound;
    for template in templates {
        match template.match_path(path) {
            Ok(target) => return Ok(target),
            Err(PathError::BadTarget) => failure = Failure::Malformed,
            Err(PathError::NoMatch) => (),
        }
    }
    Err(failure)
}
