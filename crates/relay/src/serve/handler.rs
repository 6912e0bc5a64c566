//! One request from its head to its end: let in, read, opened, answered, carried.
//! Each transport runs it in a task for each request; dropping the task closes the tunnel.
//! Answers: RFC 9110 §15, RFC 9298 §3.3 and §3.5, RFC 9484 §4.5, `Proxy-Status` by RFC 9209.

use std::{future::Future, sync::Arc};

use hoplite_http::{Exchange, HttpError, HttpVersion};
use hoplite_wire::{RequestHead, ResponseHead, Target, connect_ip::Scope};

use super::{
    Alive, Shared, dns, ip,
    request::{self, Asked},
    splice, udp,
};
use crate::{
    admission::{CHALLENGE, Guest},
    failure::Failure,
    forward::{self, Road},
    limits::{Account, ClientKey, Held, Permit, Place},
    metrics::{Method, Up},
};

/// A request and where it came from.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    /// The client by its address; a token weighs more.
    pub(crate) client: ClientKey,
    /// The connection's: it is busy while the request lasts.
    pub(crate) place: Arc<Place>,
    /// The connection's memory.
    pub(crate) account: Arc<Account>,
    pub(crate) alive: Alive,
    pub(crate) head: RequestHead,
    /// The connection below, if its client's packets may be forwarded past it.
    pub(crate) road: Option<Road>,
    pub(crate) exchange: Exchange,
}

impl Job {
    /// Serves the request to its end; whether its client waited for the answer.
    pub(crate) async fn run(self) -> bool {
        let method = request::method(&self.head);
        let shared = self.shared.clone();
        let (place, admitted) = (self.place.clone(), self.admit());
        let _busy = admitted.is_ok().then(|| {
            self.account.begin();
            place.busy()
        });
        let done = match admitted {
            Ok((Asked::Tcp(target), permit, _buffer)) => self.tcp(&target, &permit).await,
            Ok((Asked::Udp(target), permit, _buffer)) => self.udp(&target, &permit).await,
            Ok((Asked::Ip(scope), permit, _buffer)) => self.ip(&scope, &permit).await,
            Ok((Asked::Dns(source), permit, _buffer)) => self.dns(source, &permit).await,
            Err(failure) => refuse(&shared, method, failure, self.exchange).await,
        };
        if let Err(ClientGone) = done {
            tracing::trace!("the client left before its answer");
        }
        done.is_ok()
    }

    fn admit(&self) -> Result<(Asked, Permit, Held), Failure> {
        let shared = &self.shared;
        if self.alive.is_draining() {
            return Err(Failure::Draining);
        }
        let guest = shared
            .admission
            .load()
            .judge(request::credentials(&self.head));
        let key = match guest.ok_or(Failure::Unauthenticated)? {
            Guest::Anyone => self.client,
            Guest::Holder(index) => shared.gate.by_token(index),
        };
        let asked = request::read(&self.head, &shared.templates, shared.serves_dns)?;
        let permit = shared.gate.request(key).map_err(|_| Failure::Limited)?;
        let buffer = Held::take(&self.account, self.buffer());
        let buffer = buffer.ok_or_else(|| {
            shared.metrics.limited("memory");
            Failure::Limited
        })?;
        Ok((asked, permit, buffer))
    }

    /// What may wait for the client of this request alone, beside what the connection's windows allow, in bytes.
    fn buffer(&self) -> usize {
        match self.exchange.version() {
            HttpVersion::H2 => self.shared.h2.send_buffer,
            HttpVersion::H1 | HttpVersion::H3 => 0,
        }
    }

    async fn tcp(mut self, target: &Target, permit: &Permit) -> Result<(), ClientGone> {
        let shared = self.shared;
        let asker = shared.gate.asker(permit);
        let opened = shared.egress.tcp(target, &asker, &shared.metrics);
        let socket = match unless_gone(&mut self.exchange, opened).await? {
            Ok(socket) => socket,
            Err(failure) => return refuse(&shared, Method::connect, failure, self.exchange).await,
        };
        self.exchange.respond(&ResponseHead::new(200)).await?;
        shared.metrics.request(Method::connect, "ok");
        let _up = Up::new(&shared.metrics.tunnels_open.tcp);
        let terms = splice::Terms {
            metrics: &shared.metrics,
            pace: permit.pace(),
            idle: shared.limits.idle_stream,
            account: &self.account,
        };
        let (to, from) = self.exchange.split();
        splice::splice(from, to, socket, terms).await;
        Ok(())
    }

    async fn dns(self, source: dns::Source, permit: &Permit) -> Result<(), ClientGone> {
        let shared = self.shared;
        let asker = shared.gate.asker(permit);
        match asker.admits_query() {
            true => dns::serve(&shared, &asker, source, self.exchange).await,
            false => refuse(&shared, Method::dns, Failure::Limited, self.exchange).await,
        }
    }

    async fn udp(mut self, target: &Target, permit: &Permit) -> Result<(), ClientGone> {
        let shared = self.shared;
        let opened = async {
            let place = shared.gate.udp(permit).map_err(|_| Failure::Limited)?;
            let asker = shared.gate.asker(permit);
            let opened = shared.egress.udp(target, &asker, &shared.metrics);
            opened.await.map(|socket| (socket, place))
        };
        let (socket, _place) = match unless_gone(&mut self.exchange, opened).await? {
            Ok(opened) => opened,
            Err(failure) => {
                return refuse(&shared, Method::connect_udp, failure, self.exchange).await;
            }
        };
        let head = ResponseHead::new(200).with("capsule-protocol", "?1");
        let account = self.road.is_none().then_some(self.account);
        let (head, terms) = forward::negotiate(&shared.forwarding, &self.head, self.road, head);
        self.exchange.respond(&head).await?;
        shared.metrics.request(Method::connect_udp, "ok");
        let _up = Up::new(&shared.metrics.tunnels_open.udp);
        udp::carry(
            &shared,
            (permit.pace(), account),
            socket,
            self.exchange,
            terms,
        )
        .await;
        Ok(())
    }

    async fn ip(mut self, scope: &Scope, permit: &Permit) -> Result<(), ClientGone> {
        let shared = self.shared;
        let opened = async {
            let place = shared.gate.packets(permit).map_err(|_| Failure::Limited)?;
            let asker = shared.gate.asker(permit);
            let opened = shared
                .ip
                .open(scope, &shared.egress, &asker, &shared.metrics);
            opened.await.map(|opened| (opened, place))
        };
        let (opened, _place) = match unless_gone(&mut self.exchange, opened).await? {
            Ok(opened) => opened,
            Err(failure) => {
                return refuse(&shared, Method::connect_ip, failure, self.exchange).await;
            }
        };
        let head = ResponseHead::new(200).with("capsule-protocol", "?1");
        self.exchange.respond(&head).await?;
        shared.metrics.request(Method::connect_ip, "ok");
        let _up = Up::new(&shared.metrics.tunnels_open.ip);
        let account = self.road.is_none().then_some(self.account);
        ip::carry(&shared, (permit.pace(), account), opened, self.exchange).await;
        Ok(())
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

/// Works for a request until its client breaks it off: nobody dials for those that have gone.
async fn unless_gone<T>(
    exchange: &mut Exchange,
    work: impl Future<Output = T>,
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
    let refused = exchange.refuse(&refusal(&shared.name, failure)).await;
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
        Failure::Limited => metrics.limited("requests"),
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
        Failure::Unauthenticated => head.with("proxy-authenticate", CHALLENGE),
        Failure::Method => head.with("allow", "CONNECT"),
        _ => head,
    }
}
