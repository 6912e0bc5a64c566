//! The load generator of `demo` and `bench`: targets, and the program that uses the client's SOCKS port.
//! Light on purpose (blocking sockets, static buffers, batches): its CPU time is left out of every figure.

pub(crate) mod batch;
pub(crate) mod datagrams;
pub(crate) mod echo;
pub(crate) mod file;
pub(crate) mod socks;
pub(crate) mod stop;
pub(crate) mod target;
