//! The serving side: one process that carries other people's tunnels, for an operator.
//! The binary reads a [`Config`], starts a [`Relay`], and keeps its [`Handle`] for signals.
//! HTTP/3 (RFC 9114) and HTTP/2 (RFC 9113) on one port: CONNECT, CONNECT-UDP (RFC 9298) and CONNECT-IP (RFC 9484); and beside them channels of
//! circuits, over QUIC or TLS.
//!
//! # Not in this room
//! Frames and fields (`wire`), sessions and exchanges (`http`), sockets and shards (`link`), channels (`channel`), circuits (`onion`),
//! keys and tokens (`crypto`), sockets towards targets (`overlay::direct`), files and signals (the binary).

mod admission;
mod bound;
mod client_regions;
pub mod config;
mod egress;
mod failure;
mod forward;
mod handle;
mod host_addresses;
mod ip;
mod limits;
pub mod metrics;
mod onion;
mod policy;
mod pulse;
mod resolve;
mod serve;
pub mod statistics;
pub mod status;

pub use client_regions::ClientRegions;
pub use config::{Config, ConfigError};
pub use handle::{Handle, IssuerKeys, Parts, Rekey, Relay, Sampler, StartError};
pub use onion::{
    Circuits, DirectoryCache, Documents, GivenCertificate, GivenConsensus, HsDir, InConsensus,
    Listed,
};
pub use policy::{Rule, RuleError, exit_policy};
pub use pulse::Pulse;
pub use status::Observer;
