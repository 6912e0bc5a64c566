//! The processes that carry: `client` (`hoplite-lab __work`) and `server` (`__serve`), over TCP, UDP and HTTP, through every way in.
//! `cli` starts them; `world` gives them their orders and reads their transfers.

mod bulk;
pub mod client;
mod clock;
mod door;
mod http;
mod http_proxy;
mod patience;
mod record;
pub mod server;
mod socks;
mod tcp;
mod udp;

use super::{
    Bulk, Choice, Kind, Order, Phases, Ports, Transfer, TransferError, Way, message, payload,
    progress, random, transfer, trouble,
};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
