//! What a client asks for, read out of a request's head; nothing is looked up and nothing opened here.
//! The handler asks it after the client was let in.
//! CONNECT: RFC 9114 §4.4, RFC 9113 §8.5; extended CONNECT: RFC 8441, RFC 9220; connect-udp: RFC 9298 §3; connect-ip: RFC 9484 §4;
//! DNS queries: see [`super::dns`].

use hoplite_wire::{RequestHead, Target, connect_ip::Scope, template::PathError};

use super::dns;
use crate::{failure::Failure, metrics::Method, template::Templates};

/// A request that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A TCP tunnel.
    Tcp(Target),
    /// A UDP tunnel.
    Udp(Target),
    /// A flow of IP packets.
    Ip(Scope),
    /// An answer to a DNS query.
    Dns(dns::Source),
}

/// The values of the headers that may hold a token. Firefox sends `Authorization` on connect-udp.
pub(crate) fn credentials(head: &RequestHead) -> impl Iterator<Item = &[u8]> {
    let names = ["proxy-authorization", "authorization"];
    names.into_iter().filter_map(|name| head.header(name))
}

/// The label that the request is counted under.
pub(crate) fn method(head: &RequestHead) -> Method {
    match (head.method.as_str(), head.protocol.as_deref()) {
        ("CONNECT", None) => Method::connect,
        ("CONNECT", Some("connect-udp")) => Method::connect_udp,
        ("CONNECT", Some("connect-ip")) => Method::connect_ip,
        _ if dns::read(head).is_some() => Method::dns,
        _ => Method::other,
    }
}

/// Reads what is asked for. DNS queries are one of the methods that are not served where `serves_dns` is not set.
pub(crate) fn read(
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
        Some(_) => Err(Failure::Protocol),
    }
}

/// "The :authority pseudo-header field contains the host and port to connect to."
fn tcp(head: &RequestHead) -> Result<Asked, Failure> {
    let target = head.authority.parse();
    target.map(Asked::Tcp).map_err(|_| Failure::Malformed)
}

fn udp(head: &RequestHead, templates: &Templates) -> Result<Asked, Failure> {
    let path = head.path.as_deref().ok_or(Failure::Malformed)?;
    templates.target(path).map(Asked::Udp)
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
