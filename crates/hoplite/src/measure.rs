//! What shows how fast it is: `hoplite demo` and `hoplite bench`, and the relays and clients on loopback that both start.
//! What they send their traffic with, and read processor time by, is `hoplite_workload`.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod testbed;
