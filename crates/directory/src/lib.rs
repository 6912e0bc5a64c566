//! Who the relays are, and which of them make a path. Relays sign descriptors, authorities vote and sign a list, clients fetch, check and keep it.
//! The binary wires it: `hoplite directory` is an [`Authority`] behind HTTP, clients have a [`Client`] with its [`Store`].
//! docs/directory.md has the formats, the vote, and what a bad authority can do.
//!
//! # Not in this room
//! The documents' text (`wire::directory`), signatures (`crypto::signing`), the server's sockets and all files but the store (the binary).
//! Tor's own directory is beside all that, in [`tor`]. No clock: every time is handed in, in seconds since 1970.

mod asking;
pub mod authority;
mod check;
mod client;
mod fetch;
mod guards;
mod hsdirs;
mod list_cache;
mod path_bias;
mod path_chooser;
pub mod path_selection;
mod renewal;
mod round_trips;
pub mod scanner;
pub mod statistics;
mod store;
#[cfg(test)]
mod testing;
pub mod tor;
mod vanguards;

pub use asking::{KnownText, ask_caches, ask_for_list};
pub use authority::Authority;
pub use check::{Refused, RelayKey, Trust, said_by_holder, sign_descriptor};
pub use client::{Client, Heard, ListChecker, Offered};
pub use fetch::{
    Answered, DIFF_FROM, FetchError, PROOF, fetch, fetch_descriptor, publish_descriptor, upload,
    upload_statistics, upload_to_tor,
};
pub use guards::{Guard, Guards, Suspect};
pub use hsdirs::{HsDirs, PlacedRing};
pub use list_cache::ListCache;
pub use path_bias::{PathBias, Suspicion};
pub use path_chooser::{AVOIDED, Moment, PathChooser};
pub use renewal::Lifetime;
pub use round_trips::{CANDIDATES, Candidate};
pub use store::{Change, Store, StoreError, TorDocuments};
pub use vanguards::{Layer, ServiceCircuit, ServiceEnd, Vanguard, Vanguards, VanguardsMode};
