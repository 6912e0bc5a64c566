//! The one product binary: it reads files, speaks, exits, and wires the rooms below together.
//! Users run it; scripts rely on its command line, its exit codes and its JSON lines.
//!
//! # Not in this room
//! What a relay does (`relay`), how a path is built (`masque`, `onion`), how programs' traffic comes in (`mediator`).

mod bench;
mod check;
mod cli;
mod client;
mod config;
mod cpu;
mod demo;
mod directory;
mod down;
mod identity;
mod keygen;
mod listed;
mod load;
mod logs;
mod portal;
mod process;
mod relay;
mod say;
mod status;
mod testbed;
mod tor_relays;
mod up;

fn main() -> std::process::ExitCode {
    cli::main()
}
