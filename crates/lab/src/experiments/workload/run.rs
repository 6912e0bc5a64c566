//! The processes that carry: `client` (`hoplite-lab __work`) and `server` (`__serve`), over TCP, UDP and HTTP, through every way in.

pub mod client;
mod connect;
mod http;
mod record;
pub mod server;
mod tcp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod udp;
