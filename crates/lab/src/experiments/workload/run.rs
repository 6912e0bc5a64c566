//! The processes that carry: `client` (`hoplite-lab __work`) and `server` (`__serve`), over TCP, UDP and HTTP, and by a browser,
//! through every way in.

mod browse;
pub mod client;
mod connect;
pub(crate) mod http;
mod record;
pub mod server;
mod tcp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod udp;
