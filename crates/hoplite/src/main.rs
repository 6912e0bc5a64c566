//! The one product binary: it reads files, speaks, exits, and wires the rooms below together.
//! Users run it; scripts rely on its command line, its exit codes and its JSON lines.
//!
//! # Not in this room
//! What a relay does (`relay`), how a path is built (`masque`, `onion`), how programs' traffic comes in (`mediator`).

mod check;
mod cli;
mod client;
mod config;
mod directory;
mod down;
mod fetch;
mod geofeed;
mod http_server;
mod identity;
mod introduce;
mod issuer;
mod issuer_keys;
mod keygen;
mod list_server;
mod listed;
mod listed_elsewhere;
mod logs;
mod measure;
mod openid;
mod portal;
mod process;
mod publisher;
mod relay;
mod run;
mod say;
mod service_keys;
mod statistics;
mod status;
mod tor_cache;
mod tor_relays;
mod up;
mod wallet;

fn main() -> std::process::ExitCode {
    cli::main()
}
