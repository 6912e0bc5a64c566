//! Who turns names into addresses for [`super::Direct`]: the system, a fixed table, or what the relay plugs in.
//! Special names follow RFC 6761: `localhost` is loopback, `invalid` does not exist, and neither leaves the device.

use std::{
    collections::HashMap,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hoplite_wire::HostName;

use crate::{Error, ErrorKind, Opening, Reason};

/// Turns a name into addresses, best first.
pub trait Resolver: fmt::Debug + Send + Sync {
    /// The addresses of `name`; [`Reason::NameNotFound`] or [`Reason::ResolverFailed`] when there are none.
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

/// A table, for tests and for names that an operator pins. Names that it lacks do not exist.
#[derive(Clone, Default)]
pub struct Fixed(HashMap<HostName, Vec<IpAddr>>);

impl Fixed {
    /// Adds a name; asking for it answers `addresses` in this order.
    pub fn with(mut self, name: HostName, addresses: Vec<IpAddr>) -> Self {
        self.0.insert(name, addresses);
        self
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({} names)", self.0.len())
    }
}

impl Resolver for Fixed {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        let found = self.0.get(name).filter(|found| !found.is_empty());
        Box::pin(async move { found.cloned().ok_or_else(|| failed(Reason::NameNotFound)) })
    }
}

impl Resolver for System {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            match special(name) {
                Some(answer) => answer,
                None => ask_the_system(name).await,
            }
        })
    }
}

/// The answer for a name that must not be asked for (RFC 6761 §6.3 and §6.4).
pub fn special(name: &HostName) -> Option<Result<Vec<IpAddr>, Error>> {
    let last = name.as_str().rsplit('.').next().unwrap_or_default();
    match last {
        "localhost" => Some(Ok(vec![
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ])),
        "invalid" => Some(Err(failed(Reason::NameNotFound))),
        _ => None,
    }
}

async fn ask_the_system(name: &HostName) -> Result<Vec<IpAddr>, Error> {
    let found = tokio::net::lookup_host((name.as_str(), 0)).await;
    let mut addresses = Vec::new();
    for address in found.map_err(lookup_failed)? {
        let ip = address.ip().to_canonical();
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    if addresses.is_empty() {
        return Err(failed(Reason::NameNotFound));
    }
    Ok(addresses)
}

/// The standard library keeps only the text of EAI_AGAIN, EAI_FAIL and EAI_NONAME; those of glibc and musl are known.
fn lookup_failed(error: io::Error) -> Error {
    let text = error.to_string();
    let resolver = [
        "Temporary failure",
        "Try again",
        "Non-recoverable",
        "Unrecoverable",
    ];
    let reason = match resolver.iter().any(|known| text.contains(known)) {
        true => Reason::ResolverFailed,
        false => Reason::NameNotFound,
    };
    failed(reason).caused_by(error)
}

fn failed(reason: Reason) -> Error {
    Error::new(ErrorKind::TargetFailed, "resolving a name").because(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_names_are_answered_without_asking_anyone() {
        let ask = |name| special(&HostName::new(name).expect("valid"));
        let local = ask("a.localhost").expect("special").expect("found");
        assert!(local.iter().all(IpAddr::is_loopback));
        let missing = ask("nobody.invalid")
            .expect("special")
            .expect_err("missing");
        assert_eq!(missing.reason(), Some(Reason::NameNotFound));
        assert!(ask("localhost.example").is_none());
    }

    #[test]
    fn a_silent_name_server_is_told_from_a_missing_name() {
        let failure = |text: &str| lookup_failed(io::Error::other(text)).reason();
        let silent = "failed to lookup address information: Temporary failure in name resolution";
        assert_eq!(failure(silent), Some(Reason::ResolverFailed));
        assert_eq!(
            failure("failed to lookup address information: Name or service not known"),
            Some(Reason::NameNotFound)
        );
    }
}
