//! A whole relay on loopback: what a client, a target and an operator see. `versions` asks it over every version of HTTP, the others over
//! HTTP/3 unless they say otherwise.

mod absurd;
mod admission;
mod bound;
mod doh;
mod early;
mod fleet;
mod floods;
mod forged;
mod forward;
mod h1;
mod host;
mod idle;
mod initials;
mod ip;
mod life;
mod limits;
mod many;
mod memory;
mod policy;
mod private_tokens;
mod region;
mod support;
mod tap;
mod udp;
mod versions;
