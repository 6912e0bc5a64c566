//! A whole relay on loopback, asked by an HTTP/3 client of our own: what a client, a target and an operator see.

mod absurd;
mod admission;
mod doh;
mod early;
mod floods;
mod forged;
mod forward;
mod h1;
mod h2;
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
mod support;
mod tap;
mod tcp;
mod udp;
