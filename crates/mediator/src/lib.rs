//! The mediator: turns programs' traffic into overlay flows, for programs that ask (SOCKS5 and HTTP proxy) and for those that do not (TUN).
//! The binary binds a [`Front`], or hands a TUN device to a [`tun::Transparent`], and serves it over the overlay that its configuration chose.
//! RFC 1928 and 1929 (SOCKS5), RFC 9110 §9.3.6 and RFC 9112 §3.2 (HTTP proxies), RFC 9209 (`Proxy-Status`).
//!
//! No name is looked up here and no connection made: all of that is the overlay's.
//!
//! # What a failure is called
//! | overlay says | SOCKS reply | HTTP status, `Proxy-Status` error |
//! |---|---|---|
//! | entry unreachable | 3 network unreachable | 503 `destination_unavailable` |
//! | path failed | 1 general failure | 503 `destination_unavailable` |
//! | target failed: refused | 5 connection refused | 502 `connection_refused` |
//! | target failed: no such name, resolver | 4 host unreachable | 502 `dns_error` |
//! | target failed: host unreachable | 4 host unreachable | 502 `destination_ip_unroutable` |
//! | target failed: network unreachable | 3 network unreachable | 502 `destination_ip_unroutable` |
//! | target failed, nothing known | 4 host unreachable | 502 `destination_unavailable` |
//! | forbidden: policy, identity | 2 not allowed | 403 `destination_ip_prohibited`, `proxy_configuration_error` |
//! | forbidden: the token | 2 not allowed | 403 `proxy_configuration_error` |
//! | forbidden: a limit | 2 not allowed | 503 `connection_limit_reached` |
//! | unsupported | 7 command not supported | 501 `proxy_internal_error` |
//! | timed out | 6 TTL expired | 504 `connection_timeout` |
//! | bug | 1 general failure | 500 `proxy_internal_error` |
//!
//! # Not in this room
//! What carries the flows (`masque`, `overlay::direct`), the SOCKS codec (`wire::socks`), files and signals (`hoplite`).

mod budget;
pub mod config;
mod copy;
mod counters;
mod datagrams;
mod front;
mod http;
mod program;
mod socks;
#[cfg(test)]
mod testing;
pub mod tun;
mod users;

pub use config::{Config, ConfigError, Listen};
pub use counters::{Counters, Snapshot};
pub use front::{BindError, Front};
