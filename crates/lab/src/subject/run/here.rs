//! A site for tests: one host, `here`, which is this machine.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use super::site::{Look, Program, Site};
use crate::{netns::Process, topology::Addresses};

/// This machine.
pub(super) struct Here;

impl Site for Here {
    fn addresses(&self, host: &str) -> Option<Addresses> {
        (host == "here").then_some(Addresses {
            v4: Ipv4Addr::LOCALHOST,
            v6: Ipv6Addr::LOCALHOST,
        })
    }

    fn spawn(&self, _: &str, program: Program<'_>) -> io::Result<Process> {
        let (name, arguments) = program.command.split_first().unwrap();
        let mut command = Command::new(name);
        command.args(arguments).envs(program.env);
        command.current_dir(program.dir).process_group(0);
        command.stdin(Stdio::null());
        command.stdout(program.out).stderr(program.log);
        Process::start(&mut command)
    }

    fn inside(&self, _: &str, look: Look) -> io::Result<bool> {
        look()
    }
}
