//! The program under test as a whole: what users, operators and scripts see of it.

mod block;
mod bound;
mod cli;
mod client;
mod common;
mod control_socket;
mod demo;
mod device;
mod device_onion_services;
mod directory;
mod full_disk;
mod hostile;
mod introduce;
mod issuer_keys;
mod issuers;
mod linking;
mod list_caches;
mod listed;
mod namespaces;
mod onion;
mod onion_services;
mod openid;
mod qlog;
mod relay;
mod shares;
mod tokens;
